"""Standard streams that are closed, that end early, or that take nothing: the command does its
work, and its exit code says how that ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_models import relus

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="descriptors of POSIX")
QUICK = "--no-measure --kernels off --budget 0"
PROGRAM = f"{sys.executable} -m taso_mirage.cli"


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(p for p in sys.path if p)
    script = f"set -o pipefail; {command}"
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"PYTHONPATH": path},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    relus(tmp_path / "m.onnx", 2)
    return tmp_path


@pytest.mark.sampled(5)
@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&-", "<&- >&- 2>&-", ">&- 2>&-"])
def test_a_closed_stream_is_as_nothing(folder: Path, closed: str) -> None:
    """The files that are written get nothing of the printed text, though their descriptors are the
    lowest ones that are free."""
    shell(f"{PROGRAM} optimize m.onnx {QUICK} -o open.onnx", folder)
    done = shell(f"{PROGRAM} optimize m.onnx {QUICK} -o out.onnx --certificate c.json {closed}", folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert (folder / "out.onnx").read_bytes() == (folder / "open.onnx").read_bytes()
    assert shell(f"{PROGRAM} optimize none.onnx {closed}", folder).returncode == 3


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "command", [f"optimize m.onnx {QUICK} -o out.onnx", "--help", f"optimize m.onnx {QUICK} --json"]
)
@pytest.mark.parametrize("reader", ["head -n 1", "true"])
def test_who_reads_no_more_has_seen_enough(folder: Path, command: str, reader: str) -> None:
    done = shell(f"{PROGRAM} {command} | {reader}", folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == (reader != "true")
    assert (folder / "out.onnx").exists() == ("-o" in command)


def test_the_exit_code_is_that_of_the_command(folder: Path) -> None:
    relus(folder / "other.onnx", 3)
    (folder / "none.onnx").write_text("no model")
    assert shell(f"{PROGRAM} optimize none.onnx 2>&1 | true", folder).returncode == 3
    assert shell(f"{PROGRAM} nothing 2>&1 | true", folder).returncode == 2


@pytest.mark.sampled(3)
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_is_told(folder: Path) -> None:
    for command in (f"optimize m.onnx {QUICK} -o out.onnx", "--help", "doctor --json"):
        done = shell(f"{PROGRAM} {command} >/dev/full", folder)
        assert done.returncode == 4
        (said,) = done.stderr.splitlines()
        assert said.startswith("taso-mirage: the output could not be printed (No space left on device)")
    assert (folder / "out.onnx").exists()
    assert shell(f"{PROGRAM} optimize m.onnx {QUICK} 2>/dev/full", folder).returncode == 0
