"""Two runs that write to one output at once: the second one ends and names the first; a run that
died locks nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commandline import one_line, run
from scripts import ROOT
from test_folder import relus

from taso_mirage.errors import OutputError
from taso_mirage.system.locks import lock_file, locked

MINI = ROOT / "models" / "mini_transformer.onnx"
QUICK = ("--no-measure", "--kernels", "off", "--budget", "0")


@contextmanager
def at_work(*arguments: str | Path, lock: Path) -> Iterator[subprocess.Popen[str]]:
    """A command in a process of its own that has the lock, and is killed at the end."""
    command = [sys.executable, "-m", "taso_mirage.cli", "optimize", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            end = time.monotonic() + 60
            while not (lock.exists() and lock.read_text()):
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < end
                time.sleep(0.02)
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("option", ["-o", "--report", pytest.param("--certificate", marks=pytest.mark.slow)])
def test_a_file_is_written_by_one_run(tmp_path: Path, option: str) -> None:
    output, small = tmp_path / "output", tmp_path / "small.onnx"
    relus(small, 2)

    def to(name: str) -> list[str | Path]:
        return [option, output, *([] if option == "-o" else ["-o", tmp_path / name])]

    with at_work(MINI, "--budget", "60", *to("first.onnx"), lock=lock_file(output)) as other:
        said = one_line(run("optimize", small, *QUICK, *to("second.onnx"), check=4))
        assert re.search(rf"cannot write {output}: process {other.pid} on \S+ is writing to it; wait", said)
        assert not output.exists()
        run("optimize", small, *QUICK, "-o", tmp_path / "third.onnx")  # another output is free
    assert lock_file(output).exists()
    run("optimize", small, *QUICK, *to("second.onnx"))  # what a dead process left locks nothing
    assert output.exists()
    assert not lock_file(output).exists()


def test_a_folder_is_written_by_one_run(tmp_path: Path) -> None:
    models, out = tmp_path / "models", tmp_path / "out"
    models.mkdir()
    (models / "a.onnx").write_bytes(MINI.read_bytes())
    relus(models / "b.onnx", 2)
    with at_work(models, "-o", out, "--budget", "60", lock=out / ".lock") as other:
        said = one_line(run("optimize", models, "-o", out, *QUICK, check=4))
        assert re.search(rf"cannot write {out}: process {other.pid} on \S+ is writing to it; wait", said)
    run("optimize", models, "-o", out, *QUICK)
    left = {p.name for p in out.iterdir() if p.suffix != ".tmp"}  # the first run was killed as it wrote
    assert left == {f"{name}{ending}" for name in ("a", "b") for ending in (".onnx", ".onnx.html")} | {
        "index.html",
        "index.json",
    }


def test_what_another_run_is_writing_is_not_taken_for_a_strangers(tmp_path: Path) -> None:
    """It has written a model, and not the list of what it wrote yet."""
    models, out = tmp_path / "models", tmp_path / "out"
    models.mkdir()
    (models / "a.onnx").write_bytes(MINI.read_bytes())
    with at_work(models, "-o", out, "--budget", "60", lock=out / ".lock") as other:
        for each in out.glob("index.*"):
            each.unlink()
        (out / "a.onnx").write_bytes(b"half")
        said = one_line(run("optimize", models, "-o", out, *QUICK, check=4))
        assert f"process {other.pid}" in said


def test_an_interrupt_lets_go(tmp_path: Path) -> None:
    output = tmp_path / "faster.onnx"
    with at_work(MINI, "--budget", "60", "-o", output, lock=lock_file(output)) as other:
        for _ in range(40):
            other.send_signal(signal.SIGINT)
            time.sleep(0.25)
            if other.poll() is not None:
                break
        assert other.wait(30) in (0, 130)
    assert not lock_file(output).exists()


CONTEND = """
import sys, time
from pathlib import Path
from taso_mirage.errors import OutputError
from taso_mirage.system.locks import locked
output, inside = Path(sys.argv[1]), Path(sys.argv[2])
had = 0
end = time.monotonic() + 60
while had < 100 and time.monotonic() < end:
    try:
        with locked(output):
            inside.open("x").close()  # an error where another one is here
            inside.unlink()
        had += 1
    except OutputError:
        pass
print(had)
"""


def test_a_lock_is_had_by_one_process_at_a_time(tmp_path: Path) -> None:
    """Though each removes its file when it lets go, and others have opened it by then."""
    command = [sys.executable, "-c", CONTEND, tmp_path / "out.onnx", tmp_path / "inside"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    assert [each.communicate() for each in processes] == [("100\n", "")] * 3
    assert list(tmp_path.iterdir()) == []


def test_an_output_is_held_once_in_one_process_too(tmp_path: Path) -> None:
    with locked(tmp_path / "a"):
        with pytest.raises(OutputError, match="is writing to it"), locked(tmp_path / "b", tmp_path / "a"):
            pass
        with locked(tmp_path / "b"):  # what was had before the error is free again
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_follows_no_link_and_waits_for_no_pipe(tmp_path: Path) -> None:
    """What somebody planted at its place is neither opened nor written over."""
    victim = tmp_path / "victim"
    victim.write_text("of somebody")
    lock_file(tmp_path / "a").symlink_to(victim)
    os.mkfifo(lock_file(tmp_path / "b"))
    lock_file(tmp_path / "c").hardlink_to(victim)
    with locked(tmp_path / "a", tmp_path / "b", tmp_path / "c"):
        pass
    assert victim.read_text() == "of somebody"
