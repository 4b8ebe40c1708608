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
from typing import Any

import pytest
from commandline import one_line, run
from scripts import ROOT
from small_models import relus

from taso_mirage.errors import OutputError
from taso_mirage.system.locks import lock_file, locked

MINI = ROOT / "models" / "mini_transformer.onnx"
QUICK = ("--no-measure", "--kernels", "off", "--budget", "0")


def usual_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def at_work(*arguments: str | Path, lock: Path, stopped: bool = True) -> Iterator[subprocess.Popen[str]]:
    """A command in a process of its own that has the lock, and is killed at the end.

    A stopped one keeps the lock until then, however long the tests take. Signals that the tests
    ignore, as under `nohup`, have their usual effect on it.
    """
    command = [sys.executable, "-m", "taso_mirage.cli", "optimize", *map(str, arguments)]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, preexec_fn=usual_signals if os.name == "posix" else None, **pipes) as process:
        try:
            end = time.monotonic() + 600
            while not (lock.exists() and lock.read_text()):
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < end
                time.sleep(0.02)
            if stopped:
                process.send_signal(signal.SIGSTOP)
            yield process
        finally:
            process.kill()


@pytest.mark.sampled(2)
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
    run("optimize", small, *QUICK, *to("second.onnx"))  # the file of a dead process locks nothing
    assert output.exists()
    assert not lock_file(output).exists()


@pytest.mark.sampled(2)
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


@pytest.mark.sampled(2)
def test_what_another_run_is_writing_is_not_taken_for_a_strangers(tmp_path: Path) -> None:
    """The other run has written a model, and not the list of its files yet."""
    models, out = tmp_path / "models", tmp_path / "out"
    models.mkdir()
    (models / "a.onnx").write_bytes(MINI.read_bytes())
    with at_work(models, "-o", out, "--budget", "60", lock=out / ".lock") as other:
        for each in out.glob("index.*"):
            each.unlink()
        (out / "a.onnx").write_bytes(b"half")
        said = one_line(run("optimize", models, "-o", out, *QUICK, check=4))
        assert f"process {other.pid}" in said


@pytest.mark.sampled(2)
def test_an_interrupt_lets_go(tmp_path: Path) -> None:
    output = tmp_path / "faster.onnx"
    with at_work(MINI, "--budget", "60", "-o", output, lock=lock_file(output), stopped=False) as other:
        for _ in range(40):
            other.send_signal(signal.SIGINT)
            time.sleep(0.25)
            if other.poll() is not None:
                break
        assert other.wait(600) in (0, 130)
    assert not lock_file(output).exists()


@pytest.mark.sampled(3)
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("again", [0, 3])
def test_a_signal_that_ends_a_run_lets_go(tmp_path: Path, number: int, again: int) -> None:
    """The run ends by the signal, at once, and leaves nothing but the model; more signals change
    nothing."""
    output = tmp_path / "faster.onnx"
    files = ("-o", output, "--report", tmp_path / "r.html", "--certificate", tmp_path / "c.json")
    with at_work(MINI, "--budget", "60", *files, lock=lock_file(output), stopped=False) as other:
        for _ in range(1 + again):
            other.send_signal(number)
            time.sleep(0.01 * again)
        _, err = other.communicate(timeout=600)
    assert (other.returncode, err) == (-number, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.sampled(2)
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_run_that_is_to_outlive_its_terminal_does(tmp_path: Path) -> None:
    """The run starts as `nohup` starts it."""
    relus(tmp_path / "m.onnx", 2)
    command = [sys.executable, "-m", "taso_mirage.cli", "optimize", tmp_path / "m.onnx", "-o", tmp_path / "out.onnx"]
    kept = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a process that is started now has it so
    try:
        process = subprocess.Popen([*command, *QUICK], stdout=subprocess.DEVNULL)
    finally:
        signal.signal(signal.SIGHUP, kept)
    while process.poll() is None:
        process.send_signal(signal.SIGHUP)
        time.sleep(0.05)
    assert process.returncode == 0
    assert (tmp_path / "out.onnx").exists()


CUT = """
import os, signal, sys
from pathlib import Path
from typing import Any
from taso_mirage.cli import interrupt
from taso_mirage.system.locks import locked
interrupt.end_cleanly()
line, seen = int(sys.argv[2]), 0
def trace(frame, event, argument):
    global seen
    seen += event == "line"
    if event == "line" and seen == line:
        os.kill(os.getpid(), signal.SIGTERM)
    return trace
try:
    sys.settrace(trace)
    with locked(Path(sys.argv[1])):
        pass
    sys.settrace(None)
    while seen >= line:
        signal.pause()
except interrupt.Ended as ended:
    sys.settrace(None)
    interrupt.die(ended.number)
"""


@pytest.mark.sampled(3)
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_signal_at_any_line_leaves_no_lock(tmp_path: Path) -> None:
    """Where a lock is being taken or given back."""
    output, codes = tmp_path / "out.onnx", []
    for line in range(1, 1000, 7):
        codes.append(subprocess.run([sys.executable, "-c", CUT, output, str(line)], timeout=600).returncode)
        assert list(tmp_path.iterdir()) == [], line
        if codes[-1] == 0:
            break
    assert codes[-1] == 0, "it never came to the end"
    assert set(codes[:-1]) == {-signal.SIGTERM}
    assert len(codes) > 10


CONTEND = """
import sys, time
from pathlib import Path
from typing import Any
from taso_mirage.errors import OutputError
from taso_mirage.system.locks import locked
output, inside = Path(sys.argv[1]), Path(sys.argv[2])
had = 0
end = time.monotonic() + 600
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
        with locked(tmp_path / "b"):  # locks from before the error are free again
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_follows_no_link_and_waits_for_no_pipe(tmp_path: Path) -> None:
    """A file that somebody planted at its place is neither opened nor written over."""
    victim = tmp_path / "victim"
    victim.write_text("of somebody")
    lock_file(tmp_path / "a").symlink_to(victim)
    os.mkfifo(lock_file(tmp_path / "b"))
    lock_file(tmp_path / "c").hardlink_to(victim)
    with locked(tmp_path / "a", tmp_path / "b", tmp_path / "c"):
        pass
    assert victim.read_text() == "of somebody"
