"""Samples of the day: a case of a test with `@pytest.mark.sampled(N)` runs on one of N days.

The mark is for tests that are slow and rarely fail. All tests of a file have its mark
(`pytestmark`), but those with a mark of their own; `sampled(1)` is every day. Tests that share a
fixture run on one day: those of a file whose marks say `together=True`. The mark counts in runs of
the whole suite: a run of named files has all of their cases, and so has `-m slow`.
`TASO_MIRAGE_TEST_DAY` sets the day: a failure names the day that repeats it.
"""

from __future__ import annotations

import os
import time

import pytest

VARIABLE = "TASO_MIRAGE_TEST_DAY"
DAY = int(os.environ.setdefault(VARIABLE, str(int(time.time()) // 86400)))
"""Days since 1970; in the environment, so that the workers of one run have one day."""


def is_whole_suite(config: pytest.Config) -> bool:
    """Whether a run has no files or tests by name."""
    folders = (config.rootpath, config.rootpath / "tests")
    return all((config.invocation_params.dir / argument).resolve() in folders for argument in config.args)


def key(item: pytest.Item, mark: pytest.Mark) -> tuple[int, str]:
    """The number of days of a mark, and the name of what has one of them: the test, or its file."""
    file = item.getparent(pytest.Module)
    assert file is not None
    return mark.args[0], file.nodeid if mark.kwargs.get("together", False) else item.nodeid


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the sampled cases that do not run today as slow.

    Cases with the same number of days have them in turn, so that all days have about as many.
    """
    slow, whole = config.option.markexpr == "slow", is_whole_suite(config)
    nearest = ((item, item.get_closest_marker("sampled")) for item in items)
    marks = [(item, key(item, mark)) for item, mark in nearest if mark is not None]
    turns: dict[int, dict[str, int]] = {}
    for item, (days, name) in marks:
        if item.get_closest_marker("slow") is None:
            turns.setdefault(days, {}).setdefault(name, len(turns[days]))
    for item, (days, name) in marks:
        if slow or (whole and (DAY + turns.get(days, {}).get(name, 0)) % days):
            item.add_marker("slow")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(f"sampled cases: those of {VARIABLE}={DAY}")
