"""The command `python -m tests.lint` runs a test that passed again after a change of its files, and
not before; a test that failed always runs again."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import ROOT

TESTS = """
from pathlib import Path
import pytest

@pytest.mark.lint("a")
def test_of_one_folder():
    assert Path("a/text").exists()

@pytest.mark.lint
def test_of_all():
    assert Path("b/text").read_text() != "wrong"

def test_of_the_code():
    raise NotImplementedError
"""
COMMAND = """
import sys
from pathlib import Path
from tests import lint

lint.ROOT, lint.TOOLS = Path.cwd(), ()
sys.exit(lint.main())
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in {"tests/test_it.py": TESTS, "a/text": "", "b/text": "", ".gitignore": ".pytest_cache\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = lint\n")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    return tmp_path


def ran(checkout: Path, code: int = 0) -> dict[str, int]:
    """How many tests passed, failed and were deselected."""
    command = [sys.executable, "-B", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}){COMMAND}"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=600)
    assert done.returncode == code, done.stdout + done.stderr
    return {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|deselected)", done.stdout)}


@pytest.mark.sampled(3)
def test_a_test_runs_again_after_a_change_of_its_files(checkout: Path) -> None:
    assert ran(checkout) == {"passed": 2, "deselected": 1}
    assert ran(checkout) == {"deselected": 3}
    (checkout / "b" / "text").write_text("other")
    assert ran(checkout) == {"passed": 1, "deselected": 2}
    (checkout / "a" / "new").write_text("")
    assert ran(checkout) == {"passed": 2, "deselected": 1}


def test_a_test_that_failed_runs_again(checkout: Path) -> None:
    (checkout / "b" / "text").write_text("wrong")
    assert ran(checkout, code=1) == {"passed": 1, "failed": 1, "deselected": 1}
    assert ran(checkout, code=1) == {"failed": 1, "deselected": 2}
    (checkout / "b" / "text").write_text("right")
    assert ran(checkout) == {"passed": 1, "deselected": 2}


def test_the_default_suite_leaves_lint_to_the_command() -> None:
    assert "not slow and not lint" in (ROOT / "pyproject.toml").read_text()
    assert "python -m tests.lint" in (ROOT / "tests" / "run").read_text()
