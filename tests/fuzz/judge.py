"""One hostile case in a process that lives on: the outcome of the command, and whether it read,
wrote, started or said anything forbidden."""

from __future__ import annotations

import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import onnx
from commandline import Done, run

from fuzz.generated.model import random_model
from fuzz.generated.running import feedable, feeds, near, session
from fuzz.mutate import hostile
from fuzz.seeds import contents
from taso_mirage.devices.cpu.compiler import compiler

ROOT = Path(__file__).resolve().parents[2]
SECRET = b"of no one else's concern"
MEMORY = 6 * 2**30
"""Bytes that a case may take: a larger request gets a MemoryError, which is an answer."""
CODES = {0: "done", 1: "error", 2: "option", 3: "model", 4: "output", 5: "check", 6: "runtime", 130: "interrupted"}
FINE = frozenset({"done", "model", "runtime", "option"})


class Watch:
    """Python's audit events of this process: paths opened outside of the program's own, and
    programs that were started."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.cache = ""
        self.seen: list[str] = []
        own = (sys.prefix, sys.base_prefix, str(ROOT), "/proc/", "/sys/", "/dev/null", "/usr/", "/lib", "/etc/ld.so")
        dask = os.path.join(tempfile.gettempdir(), "dask-scratch-space")  # of tests that run beside this one
        self.own = (*map(os.path.realpath, own), "/proc", "/sys", dask)
        self.programs = {sys.executable, compiler()[0], "ldconfig", "/sbin/ldconfig"}
        sys.addaudithook(self)

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event == "open" and isinstance(args[0], str | bytes):
            path = os.path.realpath(os.fsdecode(args[0]))
            if not path.startswith((self.folder, self.cache, *self.own)):
                self.seen.append(f"opened {path} ({args[1]})")
        elif event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system"):
            if os.fsdecode(args[0]) not in self.programs:
                self.seen.append(f"started {args[0]!r}")
        elif event in ("socket.connect", "socket.bind"):
            self.seen.append(f"{event} {args[1]!r}")


_watch: list[Watch] = []
KINDS = {
    "fault": "faults:fault_case",
    "certificate": "certificates:certificate_case",
    "replaced": "replaced:replaced",
    "model": "judge:mutated_model",
    "graph": "judge:random_graph",
    "interrupt": "accidents:interrupted",
    "cache": "accidents:tampered",
    "text": "texts:text_case",
    "corpus": "corpus:kept_case",
    "archive": "archives:archive_case",
    "value": "surfaces:valued",
    "torch": "modules:moduled",
}
"""The judge of each kind of cases: a function of a seed and of a folder, in a module of this
package."""


def judged(job: Mapping[str, Any]) -> dict[str, Any]:
    """The outcome of a case of `job` ("kind", "seed", "folder"): "code" in words, and "wrong", the
    list of all errors."""
    if not _watch:
        _watch.append(Watch())
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, resource.RLIM_INFINITY))
    kind, seed = str(job["kind"]), int(job["seed"])
    module, _, name = KINDS[kind].partition(":")
    folder = Path(job["folder"]) / f"{kind}{seed}"
    folder.mkdir(parents=True)
    start = time.monotonic()
    code, wrong = getattr(import_module(f"fuzz.{module}"), name)(seed, folder)
    shutil.rmtree(folder)
    return {"kind": kind, "seed": seed, "code": code, "wrong": wrong, "seconds": round(time.monotonic() - start, 2)}


@contextmanager
def in_folder(folder: Path, cache: Path) -> Iterator[list[str]]:
    """Work in a folder; gives Python's accesses outside of it."""
    home, kept, watch = os.getcwd(), os.environ.get("TASO_MIRAGE_CACHE"), _watch[0]
    (folder / "tmp").mkdir(exist_ok=True)
    os.environ["TASO_MIRAGE_CACHE"], tempfile.tempdir = str(cache), str(folder / "tmp")
    os.chdir(folder)
    watch.seen, watch.folder, watch.cache = [], os.path.realpath(folder.parent), os.path.realpath(cache)
    try:
        yield watch.seen
    finally:
        watch.folder, tempfile.tempdir = None, None
        os.chdir(home)
        if kept is None:
            del os.environ["TASO_MIRAGE_CACHE"]
        else:
            os.environ["TASO_MIRAGE_CACHE"] = kept


def mutated_model(seed: int, folder: Path) -> tuple[str, list[str]]:
    _prepared(folder, hostile(seed))
    command = _command(seed, folder)
    with in_folder(folder / "here", folder.parent / "cache") as seen:
        _watch[0].folder = os.path.realpath(folder.parent)
        code, wrong = ran(command)
    return f"{command[0]} {code}", wrong + seen + _left(folder)


def random_graph(seed: int, folder: Path) -> tuple[str, list[str]]:
    """A random graph, optimized with one of the strategies; its outputs are compared here again."""
    (folder / "m.onnx").write_bytes(random_model(seed))
    strategy = ("best-first", "saturate")[seed % 2]
    options = ["--no-measure", "--budget", "2", "--strategy", strategy, "-o", "out.onnx"]
    with in_folder(folder, folder.parent / "cache") as seen:
        code, wrong = ran(["optimize", "m.onnx", *options])
        if code == "done":
            wrong += _different(folder / "m.onnx", folder / "out.onnx", seed)
    return f"{strategy} {code}", wrong + seen


def _different(first: Path, second: Path, seed: int) -> list[str]:
    """Outputs that differ by more than rounding explains, on inputs that the command did not
    draw."""
    one, two = (session(onnx.load(path)) for path in (first, second))
    fed = next(feeds(one, seed))
    if not feedable(one):
        return []
    names = [each.name for each in one.get_outputs()]
    results = zip(names, one.run(None, fed), two.run(None, fed), strict=True)
    return [f"the output {name} is off" for name, a, b in results if not near(a, b)]


def _prepared(folder: Path, model: bytes) -> None:
    for each in ("here", "in"):
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


def ran(command: Sequence[str]) -> tuple[str, list[str]]:
    """A command line's exit code in words, and the errors of it and of its output."""
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
        if name == "here/tmp":
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
