"""Lint of the repository in one cached command: `python -m tests.lint`.

Lint is the format, ruff's rules, the types, and every test with the mark `lint`. Such a test reads
files of the checkout and runs no optimization. Pytest's cache keeps a digest for each: a test that
passed is run again when a file of the folders that its mark names (no names: any file), the Python
version or an installed package has changed.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from functools import cache
from hashlib import sha256
from importlib.metadata import distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
KEPT = "lint/passed"
"""The key in pytest's cache: the digest with which each test has passed, by its node id."""
SHARED = (
    *("tests/conftest.py", "tests/lint.py", "pyproject.toml"),
    *("tests/harness/scripts.py", "tests/harness/sources.py"),
)
TOOLS = (
    [sys.executable, "-m", "ruff", "format", "--check", "."],
    [sys.executable, "-m", "ruff", "check", "."],
    [sys.executable, "-m", "mypy"],
)


@cache
def contents() -> dict[str, str]:
    """The digest of every file of the checkout that Git does not ignore, by its path."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = sorted(name for name in set(listed.split("\0")) - {""} if (ROOT / name).is_file())
    return {name: sha256((ROOT / name).read_bytes()).hexdigest() for name in files}


@cache
def environment() -> str:
    packages = sorted(f"{each.name} {each.version}" for each in distributions())
    return "\n".join([sys.version, *packages])


def within(name: str, places: tuple[str, ...]) -> bool:
    """Whether a path is one of these files, or in one of these folders."""
    return any(name == place or name.startswith(f"{place}/") for place in places)


def digest(own: str, places: tuple[str, ...]) -> str:
    """The digest of everything that a test in the file `own` depends on, if it reads `places`; no
    place stands for the whole checkout."""
    read = [f"{n} {d}" for n, d in contents().items() if not places or within(n, (own, *SHARED, *places))]
    return sha256("\n".join([environment(), *read]).encode()).hexdigest()


def key(item: pytest.Item) -> str:
    mark = item.get_closest_marker("lint")
    assert mark is not None
    return digest(item.path.relative_to(ROOT).as_posix(), mark.args)


class Unchanged:
    """A pytest plugin that leaves out tests that have passed with the same digest."""

    def __init__(self) -> None:
        self.passed: dict[str, str] = {}
        self.failed = set[str]()
        self.left_out = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        assert config.cache is not None
        kept: dict[str, str] = config.cache.get(KEPT, {})
        self.passed = {item.nodeid: key(item) for item in items}
        unchanged = [item for item in items if kept.get(item.nodeid) == self.passed[item.nodeid]]
        config.hook.pytest_deselected(items=unchanged)
        self.left_out = len(unchanged)
        items[:] = [item for item in items if item not in unchanged]

    def pytest_runtestloop(self) -> None:
        """Parsed files stay: a third of the time would go into visits of them."""
        gc.disable()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.left_out:
            session.exitstatus = pytest.ExitCode.OK
        if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            assert session.config.cache is not None
            session.config.cache.set(KEPT, {n: d for n, d in self.passed.items() if n not in self.failed})


def marked() -> list[str]:
    """The test files that have a mark `lint`: no others are imported."""
    return [str(file) for file in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.lint" in file.read_text()]


def main() -> int:
    os.chdir(ROOT)
    tools = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for command in TOOLS]
    failed = pytest.main(["-m", "lint", "-n", "0", *marked()], plugins=[Unchanged()])
    for tool in tools:
        said, _ = tool.communicate()
        if tool.returncode:
            print(f"{' '.join(map(str, tool.args))}:\n{said}", file=sys.stderr)
    return int(bool(failed) or any(tool.returncode for tool in tools))


if __name__ == "__main__":
    sys.exit(main())
