"""A sampled case runs on one of its days in a run of the whole suite, and always in a run of named
files and with `-m slow`."""

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

@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", [*range(12), pytest.param(12, marks=pytest.mark.slow)])
def test_it(case):
    assert case < 99
"""

TOGETHER = TESTS.replace("sampled(3)", "sampled(3, together=True)") + "\ndef test_other(): pass\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -m 'not slow'\nmarkers =\n  sampled\n  slow\n")
    return tmp_path


def ran(folder: Path, day: int, *options: str, code: int = 0) -> set[int]:
    command = [sys.executable, "-m", "pytest", "-p", "sampling", "-p", "no:cacheprovider", "-v", *options]
    environment = {**os.environ, VARIABLE: str(day), "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == code, done.stdout + done.stderr
    assert (f"{VARIABLE}={day}" in done.stdout) == bool(code)
    return set(map(int, re.findall(r"\[(\d+)\] (?:PASSED|FAILED)", done.stdout)))


@pytest.mark.sampled(3)
def test_each_case_runs_on_one_of_its_days(folder: Path) -> None:
    first, second, third, fourth = (ran(folder, day) for day in (7, 8, 9, 10))
    assert sorted([*first, *second, *third]) == list(range(12))
    assert 0 < len(first) < 12
    assert fourth == first


@pytest.mark.sampled(3)
def test_tests_that_share_a_fixture_run_on_one_day(folder: Path) -> None:
    (folder / "test_it.py").write_text(TOGETHER)
    assert sorted(len(ran(folder, day)) for day in (7, 8, 9)) == [0, 0, 12]


FILE = """
pytestmark = pytest.mark.sampled(2)
@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", [20, 21])
def test_other(case): pass
@pytest.mark.parametrize("case", [30, 31, 32, 33])
def test_third(case): pass
"""


def test_a_file_has_a_mark_for_tests_without_one(folder: Path) -> None:
    (folder / "test_it.py").write_text(TESTS + FILE)
    first, second, third = (ran(folder, day) for day in (7, 8, 9))
    assert all(found >= {20, 21} for found in (first, second, third))
    assert sorted(case for case in [*first, *second, *third] if case < 12) == list(range(12))
    assert {case for case in first if case >= 30} == {case for case in third if case >= 30}
    assert len([case for case in first if case >= 30]) == len([case for case in second if case >= 30]) == 2
    assert first | second >= {30, 31, 32, 33}


def test_slow_cases_take_no_turn(folder: Path) -> None:
    cases = "[c for i in range(4) for c in (i, pytest.param(10 + i, marks=pytest.mark.slow))]"
    (folder / "test_it.py").write_text(
        TESTS.replace("(3)", "(2)").replace("[*range(12), pytest.param(12", f"{cases} + [pytest.param(12")
    )
    assert ran(folder, 7) == {1, 3}


def test_slow_runs_and_runs_of_named_files_have_all_cases(folder: Path) -> None:
    assert ran(folder, 1, "-m", "slow") == set(range(13))
    assert ran(folder, 1, "test_it.py") == set(range(12))


def test_a_failure_names_the_day(folder: Path) -> None:
    (folder / "test_it.py").write_text(TESTS.replace("< 99", "< 0"))
    assert len(ran(folder, 7, code=1)) < 12
