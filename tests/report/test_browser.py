"""Tests of pages are skipped where there is no browser, and fail there where one was promised."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from browser import NEEDED
from scripts import ROOT

TEST = "from browser import chromium, needs_browser\n\n\n@needs_browser\ndef test_a_page(tmp_path):\n    chromium(tmp_path, tmp_path)\n"


@pytest.mark.parametrize(("promised", "ended"), [("", "1 skipped"), ("1", "1 failed")])
def test_a_promised_browser_is_not_skipped(tmp_path: Path, promised: str, ended: str) -> None:
    (tmp_path / "test_it.py").write_text(TEST)
    (tmp_path / "bin").mkdir()
    environment = {
        **os.environ,
        "PATH": str(tmp_path / "bin"),
        "PYTHONPATH": str(ROOT / "tests" / "harness"),
        NEEDED: promised,
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert ended in done.stdout
    assert ("install it" in done.stdout) == (promised == "1")


@pytest.mark.lint
def test_ci_installs_a_browser_and_promises_it() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert f"export {NEEDED}=1" in script
    assert script.index("\ndebian\n") < script.index("bash tests/run")
    assert "missing+=(chromium" in script
