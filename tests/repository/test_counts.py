"""The counts of code and pages, on a package of three files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.counts import counts

pytestmark = pytest.mark.lint("tests/counts.py")
FILES = {
    "taso_mirage/above/code.py": 'from taso_mirage.below import code\n\n\ndef f():\n    """What it is."""\n',
    "taso_mirage/below/code.py": "def f():\n    from taso_mirage.above.code import f\n",
    "taso_mirage/below/alone.py": 'def joined_of():\n    """A function."""\n',
    "docs/page.md": "word " * 1501,
}


def test_counts_of_a_small_package(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = counts(tmp_path)
    assert found["lines of above"] == 5
    assert found["lines of Python in the package"] == 9
    assert found["pairs of folders that import each other"] == 1
    assert found["module names in several folders"] == 1
    assert found["docstrings that begin without their subject"] == 1
    assert found["docstrings with a clause of what"] == 1
    assert found["functions named by a participle"] == 1
    assert found["lines of a function: median, 90 %, most"] == "2, 2, 2"
    assert found["pages of more than 1500 words"] == 1
    assert found["words of the longest page"] == 1501
