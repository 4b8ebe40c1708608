"""Calls to the system that fail, through the commands that write files (`faults.cpp`)."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

from fuzz.judge import ROOT
from fuzz.seeds import made, node, value, weight
from taso_mirage.devices.cpu.compiler import compiler

ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS)
MODELS = ("m.onnx", "out.onnx")
"""Files that are the same in every run; others have times in them."""
QUICK = "--effort quick"
COMMANDS = {
    f"optimize m.onnx {QUICK} -o out.onnx --certificate c.json --report r.html": ("out.onnx", "c.json", "r.html"),
    f"optimize m.onnx {QUICK} --in-place": ("m.onnx",),
    f"optimize m.onnx {QUICK} --in-place --certificate c.json": ("m.onnx", "c.json"),
}
"""The files that each command writes."""


def fault_case(seed: int, folder: Path) -> tuple[str, list[str]]:
    """A command again and again, of whose calls each time another one fails, or it and all that
    follow: every file is the old one, or the new one, and nothing else is left."""
    random = Random(seed)
    command, outputs = random.choice([*COMMANDS.items()])
    (folder / "given").mkdir()
    for name in {"m.onnx", *outputs}:
        (folder / "given" / name).write_bytes(_model())
    asked = str(random.choice(ERRORS)), str(random.randrange(2)), str(random.randrange(9, 40))
    started = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "harness" / "faults.py"), str(folder), *asked, *command.split()],
        capture_output=True,
        text=True,
        env=os.environ
        | {"LD_PRELOAD": str(_shim(folder.parent)), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    if started.returncode:
        return "fault crash", [started.stderr[-600:]]
    whole, *runs = map(json.loads, started.stdout.splitlines())
    wrong = [said for each in runs for said in _judged(each, whole, outputs)]
    refused = sum(each["code"] == 4 for each in runs)
    return f"fault {command.split()[-1]} {'refused' if refused else 'done'}", wrong


def _judged(run: dict[str, Any], whole: dict[str, Any], outputs: tuple[str, ...]) -> list[str]:
    """The errors after a run, compared with the run without a fault."""
    old, new, found = whole["given"], whole["files"], run["files"]
    wrong = [f"left {name}" for name in {*found} - {*old} | {*run["left"]}]
    wrong += [f"{name} is neither" for name in old if found.get(name) not in (old[name], new[name]) and name in MODELS]
    wrong += [f"{name} was not asked for" for name in {*old} - {*outputs} if found.get(name) != old[name]]
    fine = (0, 4, 6) if "cannot be reached" in run["said"] else (0, 4)
    if run["code"] not in fine or len(run["said"].splitlines()) != bool(run["code"]) or "internal" in run["said"]:
        wrong.append(f"{run['code']}: {run['said'][-300:]}")
    if run["code"] == 0 and any(found[name] == old[name] != new[name] for name in outputs):
        wrong.append("done, and not all is written")
    return [f"call {run['call']}: {each}" for each in wrong]


def _model() -> bytes:
    nodes = [node("Relu", "x", "a"), node("Relu", "a", "b"), node("Add", "b w", "y")]
    return bytes(made(nodes, [value("x", 4, 4)], [value("y", 4, 4)], [weight("w", 4)]).SerializeToString())


def _shim(folder: Path) -> Path:
    """The library that lets calls fail, compiled once in a process."""
    found = folder / f"faults{os.getpid()}.so"
    if not found.exists():
        source = ROOT / "tests" / "harness" / "faults.cpp"
        subprocess.run([compiler()[0], "-shared", "-fPIC", "-O1", source, "-o", found, "-ldl"], check=True)
    return found
