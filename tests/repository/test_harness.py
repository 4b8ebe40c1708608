"""The common parts of the tests are in `tests/harness`: no test file imports another one, and no
module there is without a use."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts import ROOT
from sources import nodes

pytestmark = pytest.mark.lint("tests", "bench")
FILES = [*sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "bench").glob("*.py"))]


def imported(file: Path) -> Iterator[str]:
    for node in nodes(file):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_no_test_file_imports_another() -> None:
    """The golden texts alone are made of the cases of test files."""
    found = [(file.name, name) for file in FILES for name in imported(file) if name.startswith("test_")]
    assert [file for file, _ in found if file not in ("catalogue.py", "search.py")] == []
    assert found


def test_every_module_of_the_harness_is_used() -> None:
    used = {name for file in FILES for name in imported(file)}
    texts = "\n".join(file.read_text() for file in FILES)
    modules = {file.stem for file in (ROOT / "tests" / "harness").glob("*.py")}
    assert sorted(name for name in modules - used if f'"{name}.py"' not in texts) == []
