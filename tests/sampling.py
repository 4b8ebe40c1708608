"""Samples of the day: `@pytest.mark.sampled(N)` runs N cases of a test each day, and all of them
with `-m slow`.

The mark is for tests of many cases that are alike and rarely fail. The day is the seed, and
`TASO_MIRAGE_TEST_DAY` sets it: a failure names the day that repeats it.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from random import Random

import pytest

VARIABLE = "TASO_MIRAGE_TEST_DAY"
DAY = int(os.environ.setdefault(VARIABLE, str(int(time.time()) // 86400)))
"""Days since 1970; in the environment, so that the workers of one run have one day."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the cases of sampled tests that do not run today as slow."""
    tests = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("slow"):
            tests[item.nodeid.partition("[")[0]].append(item)
    for name, cases in tests.items():
        mark = cases[0].get_closest_marker("sampled")
        assert mark is not None
        count = 0 if config.option.markexpr == "slow" else min(mark.args[0], len(cases))
        today = set(Random(f"{DAY} {name}").sample(cases, count))
        for case in cases:
            if case not in today:
                case.add_marker("slow")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(f"sampled cases: those of {VARIABLE}={DAY}")
