"""`doctor` names the build of ONNX Runtime, reports several, and gives the next step for a GPU."""

from __future__ import annotations

import importlib.metadata
from types import SimpleNamespace
from typing import Any

import pytest

from taso_mirage.report import inspection

NOTHING: dict[str, Any] = {
    **{"versions": {}, "providers": {}, "plugins": [], "operator_files": [], "runtime_wheels": [], "gpu": None},
    **{"taso-mirage": "", "python": "", "device": "", "operators": 0, "laws": 0, "op_specs": "", "substitutions": 0},
    **{"cache": {"path": "", "entries": 0, "bytes": 0}, "compiler": None},
}


def said(capsys: pytest.CaptureFixture[str], **found: Any) -> str:
    inspection.show_diagnosis(NOTHING | found)
    return capsys.readouterr().out


def test_several_builds_are_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = [SimpleNamespace(name=name, version="1.2") for name in ("onnxruntime", "onnxruntime-gpu", "onnxruntime-x")]
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: found)
    wheels = inspection.runtime_wheels()
    assert wheels == ["onnxruntime 1.2", "onnxruntime-gpu 1.2"]
    text = said(capsys, runtime_wheels=wheels)
    assert "several builds of ONNX Runtime are installed (onnxruntime 1.2 and onnxruntime-gpu 1.2)" in text
    assert "pip uninstall -y onnxruntime onnxruntime-gpu" in text
    assert "is from the package onnxruntime 1.2" in said(capsys, runtime_wheels=wheels[:1])


@pytest.mark.parametrize(
    ("gpu", "providers", "expected"),
    [
        (None, {"CUDAExecutionProvider": False}, "GPU: no NVIDIA GPU with a driver"),
        ("H", {"CUDAExecutionProvider": True}, "GPU: H\n"),
        ("H", {"CUDAExecutionProvider": False}, "GPU: H; ONNX Runtime does not start on it: install the extra `cuda`"),
        ("H", {}, "GPU: H; this build of ONNX Runtime is for CPUs: install the extra `cuda` in a new environment"),
    ],
)
def test_the_next_step_for_a_gpu(
    gpu: str | None, providers: dict[str, bool], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in said(capsys, gpu=gpu, providers=providers)


def test_a_missing_compiler_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert "C++ compiler: none, so there are no fused kernels" in said(capsys)
    assert "C++ compiler: /usr/bin/g++" in said(capsys, compiler="/usr/bin/g++")
