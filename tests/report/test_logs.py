"""The logger `taso_mirage`, and the options `-q` and `-v` of `optimize`."""

from __future__ import annotations

import logging
from pathlib import Path

import onnx
import pytest
from commandline import one_line, run
from onnx import parser

import taso_mirage

TEXT = '<ir_version: 8, opset_import: ["" : 17]> g (float[2, 8] x) => (float[2, 8] y) { t = Relu (x) y = Relu (t) }'


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(parser.parse_model(TEXT), path)
    return path


def test_the_logger_has_stages_outcome_and_notes(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []
    with caplog.at_level(logging.INFO, "taso_mirage"):
        taso_mirage.optimize(model, effort="quick", progress=lambda stage, *_: heard.append(stage))
    said = [record.getMessage() for record in caplog.records if record.name == "taso_mirage"]
    assert f"{model}: search" in said
    assert said.count(f"{model}: check") == 1
    assert "times as fast" in said[-1] or "note: " in said[-1]
    assert "search" in heard


def test_nothing_is_printed_without_a_handler(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    taso_mirage.optimize(model, effort="quick")
    assert capfd.readouterr() == ("", "")


def test_quiet_prints_errors_alone(model: Path) -> None:
    done = run("optimize", model, "--effort", "quick", "-q")
    assert (done.stdout, done.stderr) == ("", "")
    assert model.with_name("m.optimized.onnx").exists()
    assert "no such file" in one_line(run("optimize", "none.onnx", "-q", check=3))
    assert "leave --json" in one_line(run("optimize", model, "-q", "--json", check=2))
    folder = run("optimize", model.parent, "-o", model.parent.with_name("out"), "--effort", "quick", "-q")
    assert (folder.stdout, folder.stderr) == ("", "")


def test_verbose_prints_the_stages_with_their_times(model: Path) -> None:
    done = run("optimize", model, "--effort", "quick", "-v")
    lines = done.stderr.splitlines()
    assert all(line.split()[1] == "s" and float(line.split()[0]) >= 0 for line in lines)
    assert any(line.endswith(": search") for line in lines)
    assert "wrote " in done.stdout
    assert run("optimize", model, "--effort", "quick").stderr == ""
