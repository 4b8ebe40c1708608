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
from zlib import crc32

import pytest

VARIABLE = "TASO_MIRAGE_TEST_DAY"
DAY = int(os.environ.setdefault(VARIABLE, str(int(time.time()) // 86400)))
"""Days since 1970; in the environment, so that the workers of one run have one day."""


def is_whole_suite(config: pytest.Config) -> bool:
    """Whether a run has no files or tests by name."""
    folders = (config.rootpath, config.rootpath / "tests")
    return all((config.invocation_params.dir / argument).resolve() in folders for argument in config.args)


def runs_on(day: int, item: pytest.Item, node: pytest.Node, mark: pytest.Mark) -> bool:
    """Whether a case runs on a day, by a mark at a node: its function, or its file."""
    shared = mark.kwargs.get("together", False)
    return (day + crc32((item.getparent(pytest.Module) if shared else node).nodeid.encode())) % mark.args[0] == 0


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the sampled cases that do not run today as slow."""
    slow, whole = config.option.markexpr == "slow", is_whole_suite(config)
    for item in items:
        for node, mark in item.iter_markers_with_node("sampled"):
            if slow or (whole and not runs_on(DAY, item, node, mark)):
                item.add_marker("slow")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(f"sampled cases: those of {VARIABLE}={DAY}")
