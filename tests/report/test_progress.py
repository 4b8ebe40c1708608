"""Progress: one bar that is the share of the budget, and one line on the current stage."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.text import Text
from set_clock import Clock

from taso_mirage.report.summary import Stages
from taso_mirage.search.config import SPENT


def shown(stages: Stages) -> tuple[float, str, str]:
    """The share of the bar that is full, the seconds, and the line."""
    (task,) = stages.progress.tasks
    _, bar, seconds, line = (each if isinstance(each, str) else each.render(task) for each in stages.progress.columns)
    share = 0.0 if bar.total is None else bar.completed / bar.total
    assert isinstance(seconds, Text)
    assert isinstance(line, Text)
    return share, seconds.plain, line.plain


def test_the_bar_is_the_share_of_the_budget_whatever_the_stages_are() -> None:
    clock = Clock()
    stages = Stages(clock=clock)
    stages("load the original", 0, 0)
    assert shown(stages) == (0.0, "0 s", "load the original")
    for now, stage in ((3.7, "passes"), (15, "search"), (45, "kernels")):
        clock.now = now
        stages(SPENT, int(now), 60)
        stages(stage, 0, 0)
        assert shown(stages)[0] == pytest.approx((now - 0.7) / 60)  # seconds are told as whole ones
        assert shown(stages)[2] == stage
    stages("kernels", 3, 9)
    assert shown(stages) == (pytest.approx(44.3 / 60), "44 s of 60", "kernels: 3 of 9")
    clock.now = 75.7
    assert shown(stages) == (1.0, "75 s of 60", "kernels: 3 of 9")


def test_the_budget_of_a_body_is_not_that_of_the_command() -> None:
    clock = Clock()
    stages = Stages(clock=clock)
    stages(SPENT, 0, 60)
    clock.now = 30
    stages("body of Loop: search", 0, 0)
    stages(f"body of Loop: {SPENT}", 5, 5)
    assert shown(stages) == (0.5, "30 s of 60", "body of Loop: search")


@pytest.mark.sampled(2)
def test_nothing_of_it_stays_on_the_screen(tmp_path: Path, layer: Path) -> None:
    command = [sys.executable, "-m", "taso_mirage.cli", "optimize", layer, "-o", tmp_path / "m.onnx"]
    there, here = pty.openpty()
    with subprocess.Popen(
        [*map(str, command), "--no-measure", "--budget", "2"], stdin=here, stdout=subprocess.PIPE, stderr=here
    ) as done:
        os.close(here)
        written = b""
        while True:
            try:
                part = os.read(there, 4096)
            except OSError:  # its end, on Linux
                break
            written += part
            if not part:
                break
        assert done.stdout is not None
        done.stdout.read()
    os.close(there)
    assert done.returncode == 0
    text = written.decode()
    lines = [line for line in text.split("\n") if "━" in line]
    assert lines
    assert re.search(r"\d s of 2", text)
    # nothing goes on to a next line: each picture is drawn over the one before, and the last erased
    assert text.count("\n") <= 1
    assert text.rstrip("\r\n").endswith("\x1b[2K") or "\x1b[2K" in text[text.rindex("━") :]
