"""One hostile case in a process that lives on: what the command did, and whether it read, wrote, started or said what it should not."""

from __future__ import annotations

import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from commandline import Done, run

from fuzz.mutate import hostile
from fuzz.seeds import contents
from taso_mirage.cpu import compiler

ROOT = Path(__file__).resolve().parents[2]
SECRET = b"of no one else's concern"
MEMORY = 6 * 2**30
"""Bytes that a case may take: what wants more gets a MemoryError, which is an answer."""
CODES = {0: "done", 1: "error", 2: "option", 3: "model", 4: "output", 5: "check", 6: "runtime", 130: "interrupted"}
FINE = frozenset({"done", "model", "runtime", "option"})


class Watch:
    """Python's audit events of this process: paths opened outside of what is the program's own, and programs that were started."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.seen: list[str] = []
        own = (sys.prefix, sys.base_prefix, str(ROOT), "/proc/", "/sys/", "/dev/null", "/usr/", "/lib", "/etc/ld.so")
        self.own = (*map(os.path.realpath, own), "/proc", "/sys")
        self.programs = {sys.executable, compiler()[0], "ldconfig", "/sbin/ldconfig"}
        sys.addaudithook(self)

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event == "open" and isinstance(args[0], str | bytes):
            path = os.path.realpath(os.fsdecode(args[0]))
            if not path.startswith((self.folder, *self.own)):
                self.seen.append(f"opened {path} ({args[1]})")
        elif event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system"):
            if os.fsdecode(args[0]) not in self.programs:
                self.seen.append(f"started {args[0]!r}")
        elif event in ("socket.connect", "socket.bind"):
            self.seen.append(f"{event} {args[1]!r}")


_watch: list[Watch] = []


def judged(job: Mapping[str, Any]) -> dict[str, Any]:
    """What a case of `job` ("seed", "folder") came to: "kind" and "code", and "wrong", the list of all that is."""
    if not _watch:
        _watch.append(Watch())
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, resource.RLIM_INFINITY))
    seed, folder = int(job["seed"]), Path(job["folder"]) / f"case{job['seed']}"
    _prepared(folder, hostile(seed))
    start = time.monotonic()
    home = os.getcwd()
    os.environ["TASO_MIRAGE_CACHE"] = str(Path(job["folder"]) / "cache")
    tempfile.tempdir = str(folder / "tmp")
    os.chdir(folder / "here")
    _watch[0].seen, _watch[0].folder = [], os.path.realpath(job["folder"])
    try:
        command = _command(seed, folder)
        code, wrong = _ran(command)
    finally:
        _watch[0].folder = None
        os.chdir(home)
    wrong += _watch[0].seen + _left(folder)
    shutil.rmtree(folder)
    seconds = round(time.monotonic() - start, 2)
    return {"seed": seed, "command": command[0], "code": code, "wrong": wrong, "seconds": seconds}


def _prepared(folder: Path, model: bytes) -> None:
    for each in ("here", "in", "tmp"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    (folder / "secret.bin").write_bytes(SECRET * 10)
    if not (folder / "in" / "link").is_symlink():
        (folder / "in" / "link").symlink_to("../secret.bin")
    (folder / "in" / "m.onnx").write_bytes(model)


def _command(seed: int, folder: Path) -> list[str]:
    model = str(folder / "in" / "m.onnx")
    if seed % 10 == 7:
        return ["inspect", model]
    if seed % 20 == 8:
        other = folder / "in" / "other.onnx"
        other.write_bytes(contents()[seed % len(contents())])
        return ["diff", model, str(other)]
    options = ["--no-measure", "--budget", "1", "--run-limit", "5", "-o", str(folder / "out.onnx")]
    if seed % 5 == 4:
        options += ["--strategy", "saturate"]
    return ["optimize", model, *options]


def _ran(command: Sequence[str]) -> tuple[str, list[str]]:
    try:
        done: Done = run(*command, check=None)
    except AssertionError as error:  # a traceback
        return "traceback", [str(error)[-1500:]]
    code = CODES.get(done.returncode, str(done.returncode))
    wrong = []
    error = done.stderr.strip().splitlines()
    if code not in FINE and not (command[0] == "diff" and code == "check") and "not enough memory" not in done.stderr:
        wrong.append(f"{code}: {done.stderr.strip()[-600:]}")
    if code != "done" and command[0] != "diff" and len([e for e in error if e.startswith("taso-mirage: ")]) != 1:
        wrong.append(f"not one line: {done.stderr[-600:]}")
    said = (done.stdout + done.stderr).replace("\n", "")
    if not said.isprintable():
        wrong.append(f"control characters reach the terminal: {[c for c in said if not c.isprintable()][:9]!a}")
    return code, wrong


def _left(folder: Path) -> list[str]:
    """Files that nobody asked for, and a secret in those that were."""
    wrong = []
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if name == "tmp":
            continue
        if name not in (
            "here",
            "in",
            "secret.bin",
            "in/link",
            "in/m.onnx",
            "in/other.onnx",
            "out.onnx",
            "out.onnx.data",
        ):
            wrong.append(f"wrote {name}")
        if name.startswith("out.onnx") and SECRET in path.read_bytes():
            wrong.append("the output has what another file holds")
    if (folder / "out.onnx").exists():
        try:
            onnx.load(folder / "out.onnx")
        except Exception as error:
            wrong.append(f"the output cannot be read: {error}")
    return wrong
