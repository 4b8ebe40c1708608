"""Chromium without a window, for tests that look at pages: Debian's package `chromium` has it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NO_BROWSER = "no chromium or chrome on this machine"


def chromium(
    path: Path, folder: Path, *options: str, size: tuple[int, int] = (1200, 1600)
) -> subprocess.CompletedProcess[str]:
    """What it says of a page; `folder` is for its profile."""
    assert CHROMIUM is not None
    fixed = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    window = [f"--window-size={size[0]},{size[1]}", "--hide-scrollbars", "--enable-logging=stderr"]
    command = [CHROMIUM, *fixed, *window, *options, path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)
