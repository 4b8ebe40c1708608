"""Chromium without a window, for tests that look at pages: Debian's package `chromium` has it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NEEDED = "TASO_MIRAGE_TEST_BROWSER"
"""The variable with which a test fails where there is no browser: `.ci/run` installs one."""

needs_browser = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get(NEEDED), reason="no chromium or chrome on this machine"
)


def chromium(
    path: Path, folder: Path, *options: str, size: tuple[int, int] = (1200, 1600)
) -> subprocess.CompletedProcess[str]:
    """Run Chromium on a page; `folder` is for its profile."""
    assert CHROMIUM is not None, f"{NEEDED} asks for chromium or chrome, which is not on the path; install it"
    fixed = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    alone = ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
    window = [f"--window-size={size[0]},{size[1]}", "--hide-scrollbars", "--enable-logging=stderr"]
    command = [CHROMIUM, *fixed, *alone, *window, *options, path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)
