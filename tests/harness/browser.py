"""Chromium without a window, for tests that look at pages: Debian's package `chromium` has it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html import escape, unescape
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
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def asked(path: Path, folder: Path, script: str, width: int = 900) -> dict[str, object]:
    """The result of a script on the page in a frame (a window is never narrower than 500); the
    policy, which would refuse the script, is taken out."""
    content = re.sub(r"<meta http-equiv[^>]*>", "", path.read_text())
    probe = f"<script>document.body.dataset.found = JSON.stringify((() => {{ {script} }})())</script></body>"
    page = escape(content.replace("</body>", probe))
    take = "document.body.dataset.found = frames[0].document.body.dataset.found"
    (folder / "probe.html").write_text(
        f'<body><iframe width="{width}" height="800" style="border: 0" srcdoc="{page}"></iframe>'
        f"<script>onload = () => {{ {take}; frames[0].frameElement.remove(); }}</script></body>"
    )
    done = chromium(folder / "probe.html", folder, "--dump-dom", size=(1700, 900))
    (found,) = re.findall(r'data-found="([^"]*)"', done.stdout)
    data: dict[str, object] = json.loads(unescape(found))
    return data
