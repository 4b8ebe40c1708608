"""The code of docs/from_zero.md runs, and prints the output that the page shows."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.sampled(2)
def test_every_line_of_the_tutorial_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    flags = doctest.IGNORE_EXCEPTION_DETAIL
    failed, tried = doctest.testfile("docs/from_zero.md", module_relative=False, optionflags=flags)
    assert failed == 0
    assert tried > 40
