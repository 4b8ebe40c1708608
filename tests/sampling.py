"""Samples of the day: a case of a test with `@pytest.mark.sampled(N)` runs on one of N days.

The mark is for tests that are slow and rarely fail. Tests that share a fixture run on one day: a
file with the mark runs all of its tests on one day, and so do the tests of a file whose marks say
`together=True`. The mark counts in runs of the whole suite: a run of named files has all of their
cases, and so has `-m slow`. `TASO_MIRAGE_TEST_DAY` sets the day: a failure names the day that
repeats it.
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


def key(item: pytest.Item, node: pytest.Node, mark: pytest.Mark) -> tuple[int, str]:
    """The name of the node (a test, a function or a file) whose mark gives it a day, and the mark's
    number of days."""
    if mark.kwargs.get("together", False):
        file = item.getparent(pytest.Module)
        assert file is not None
        return mark.args[0], file.nodeid
    return mark.args[0], node.nodeid


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the sampled cases that do not run today as slow.

    Cases with the same number of days have them in turn, so that all days have about as many.
    """
    slow, whole = config.option.markexpr == "slow", is_whole_suite(config)
    marks = [(item, key(item, *pair)) for item in items for pair in item.iter_markers_with_node("sampled")]
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
