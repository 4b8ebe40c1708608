"""`doctor` reports several builds of ONNX Runtime, which overwrite each other's files."""

from __future__ import annotations

import importlib.metadata
from types import SimpleNamespace

import pytest

from taso_mirage.report import inspection


def test_several_builds_are_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = [SimpleNamespace(name=name, version="1.2") for name in ("onnxruntime", "onnxruntime-gpu", "onnxruntime-x")]
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: found)
    wheels = inspection.runtime_wheels()
    assert wheels == ["onnxruntime 1.2", "onnxruntime-gpu 1.2"]
    none = {"versions": {}, "providers": {}, "plugins": [], "operator_files": [], "runtime_wheels": wheels}
    one = {"taso-mirage": "", "python": "", "device": "", "operators": 0, "laws": 0, "op_specs": "", "substitutions": 0}
    inspection.show_diagnosis({**none, **one, "cache": {"path": "", "entries": 0, "bytes": 0}})
    said = capsys.readouterr().out
    assert "several builds of ONNX Runtime are installed (onnxruntime 1.2 and onnxruntime-gpu 1.2)" in said
