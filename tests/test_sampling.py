"""Sampled tests run some of their cases each day, the same ones all day, and all with `-m slow`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sampling import VARIABLE
from scripts import ROOT

TESTS = """
import pytest

@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", range(12))
def test_one(case):
    assert case < 99

@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", [*range(3), pytest.param(3, marks=pytest.mark.slow)])
def test_few(case):
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -m 'not slow'\nmarkers =\n  sampled\n  slow\n")
    return tmp_path


def ran(folder: Path, day: int, *options: str) -> set[str]:
    command = [sys.executable, "-m", "pytest", "-p", "sampling", "-p", "no:cacheprovider", "-v", *options, folder]
    environment = {**os.environ, VARIABLE: str(day), "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return set(re.findall(r"::(\w+\[\d+\]) PASSED", done.stdout))


def test_a_day_runs_its_cases_and_slow_runs_all(folder: Path) -> None:
    first, again, second = (ran(folder, day) for day in (1, 1, 2))
    assert first == again
    assert first != second
    assert {f"test_few[{i}]" for i in range(3)} <= first & second
    assert len(first) == len(second) == 4 + 3
    assert len(ran(folder, 1, "-m", "slow")) == 12 + 4
    assert len(ran(folder, 1, "-m", "")) == 12 + 4


def test_a_failure_names_the_day(folder: Path) -> None:
    (folder / "test_it.py").write_text(TESTS.replace("< 99", "< 0"))
    with pytest.raises(AssertionError, match=f"{VARIABLE}=7"):
        ran(folder, 7)
