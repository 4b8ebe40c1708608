"""Measurements of long runs: a run that is long counts as it is."""

from __future__ import annotations

import subprocess
import sys

import pytest

from taso_mirage.measure import native, tasks
from taso_mirage.measure.target import CPU


class Run:
    """A run that says how long it took, and counts."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.count = seconds, 0

    def __call__(self) -> float:
        self.count += 1
        return self.seconds


def test_a_long_run_needs_no_warm_up() -> None:
    long, short = Run(0.2), Run(0.05)
    assert (native.turn(long), native.turn(short)) == (0.2, 0.05)
    assert (long.count, short.count) == (1, 2)


def test_long_regions_run_once_in_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [Run(0.4), Run(0.2)]
    monkeypatch.setattr(tasks, "_runner", lambda content, target, seed: runs[content])
    monkeypatch.setattr(tasks, "pause_between", lambda *args: 0.0)
    assert tasks.in_turn([0, 1], CPU, 0.0) == [0.4, pytest.approx(0.2)]
    assert [run.count for run in runs] == [tasks.SIGNS] * 2


def test_the_child_imports_no_library_of_models_to_measure() -> None:
    """A command waits while its child process imports the module."""
    code = "import sys, taso_mirage.measure.tasks; print([x for x in ('onnx', 'onnx_ir', 'sympy') if x in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
