"""Interrupts at any moment, and caches and checkpoints in which something is wrong."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import onnx
import psutil

from fuzz.judge import CODES, ROOT, in_folder, ran
from fuzz.seeds import contents

SIGNALS = (
    (signal.SIGINT,),
    (signal.SIGINT, signal.SIGINT),
    (signal.SIGTERM,),
    (signal.SIGTERM, signal.SIGTERM),
    (signal.SIGHUP,),
    (signal.SIGINT, signal.SIGTERM),
    (signal.SIGHUP, signal.SIGINT, signal.SIGTERM),
    (signal.SIGKILL,),
)
LATEST = 300.0
"""Seconds after an interrupt in which a command ends, on the busiest machine: by itself it ends
after a few."""


def interrupted(seed: int, folder: Path) -> tuple[str, list[str]]:
    """A process of its own that gets one or two interrupts, or is killed."""
    random = Random(seed)
    (folder / "m.onnx").write_bytes(random.choice(contents()))
    output = folder / "out.onnx"
    command = [sys.executable, "-m", "taso_mirage.cli", "optimize", "m.onnx", "-o", "out.onnx", "--budget", "3"]
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path, "TASO_MIRAGE_CACHE": str(folder.parent / "cache")},
    )
    wrong, children = [], []
    _begun(folder, process)
    time.sleep(random.uniform(0, 4))
    signals = random.choice(SIGNALS)
    for number in signals:
        if process.poll() is None:
            children = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(number)
            time.sleep(random.uniform(0, 0.3))
    try:
        _, errors = process.communicate(timeout=LATEST)
    except subprocess.TimeoutExpired:
        process.kill()
        errors = process.communicate()[1]
        wrong.append(f"it goes on for {LATEST:g} s after {signals}")
    _, alive = psutil.wait_procs(children, LATEST)
    wrong += [f"left an orphan: {each}" for each in alive if each.is_running()]
    code = CODES.get(process.returncode, str(-process.returncode))
    if "Traceback" in errors or code not in ("done", "interrupted", "1", "2", "9", "15"):
        wrong.append(f"{code}: {errors[-600:]}")
    if output.exists():
        onnx.checker.check_model(onnx.load(output))
    elif code == "done":
        wrong.append("done, and no output")
    if code != "9":
        wrong += [f"left {each.name}" for each in folder.iterdir() if each.name not in ("m.onnx", "out.onnx")]
    return f"interrupt {code}", wrong


def _begun(folder: Path, process: subprocess.Popen[str]) -> None:
    """Wait until the command has its lock: before, Python itself still starts."""
    while process.poll() is None and not (folder / ".out.onnx.lock").exists():
        time.sleep(0.02)


def tampered(seed: int, folder: Path) -> tuple[str, list[str]]:
    """A command on caches, or on a checkpoint, of which a file was changed since the last one."""
    random = Random(seed)
    warm = _warm(folder.parent)
    shutil.copytree(warm, folder / "cache", symlinks=True)
    files = sorted(path for path in (folder / "cache").rglob("*") if path.is_file() and "runtime" not in path.parts)
    files += [folder / "cache" / "checkpoint.json"] * 5
    for path in random.sample(files, 1 if random.random() < 0.5 else min(4, len(files))):
        _damage(path, random)
    (folder / "m.onnx").write_bytes(contents()[1])
    if seed % 4 == 0:
        command = ["kernels", "m.onnx", "--budget", "1", "--checkpoint", "cache/checkpoint.json"]
    else:
        command = ["optimize", "m.onnx", "-o", "out.onnx", "--budget", "1"]
        command += ["--kernels", "cached"] if seed % 4 == 1 else ["--kernels", "off"]
    with in_folder(folder, folder / "cache"):
        code, wrong = ran(command)
    if code not in ("done", "option") and not wrong:
        wrong = [f"{code}: for a damaged cache"]
    return f"cache {command[0]} {code}", wrong


def _warm(folder: Path) -> Path:
    """A cache that was filled by the same commands; made once in a process."""
    warm = folder / f"warm{os.getpid()}"
    if not warm.exists():
        (folder / "runtime").mkdir(mode=0o700, exist_ok=True)
        warm.mkdir()
        (warm / "runtime").symlink_to(folder / "runtime")  # compiled files are named by their contents, and shared
        (warm / "m.onnx").write_bytes(contents()[1])
        with in_folder(warm, warm):
            ran(["optimize", "m.onnx", "-o", "out.onnx", "--budget", "5"])
            ran(["kernels", "m.onnx", "--budget", "5", "--checkpoint", "checkpoint.json"])
        shutil.rmtree(warm / "tmp", ignore_errors=True)
    return warm


def _damage(path: Path, random: Random) -> None:
    content = bytearray(path.read_bytes()) if path.exists() else bytearray()
    match random.randrange(6):
        case 0:
            path.unlink(missing_ok=True)
        case 1:
            path.write_bytes(content[: random.randrange(len(content) + 1)])
        case 2:
            path.write_bytes(random.randbytes(random.choice((0, 1, 100, 5000))))
        case 3:
            path.write_bytes(content.replace(b"1", b"9" * random.choice((1, 5, 400)), random.choice((1, 50))))
        case 4:
            path.write_bytes(b"[" * random.choice((10, 100000)))
        case _:
            for _ in range(random.choice((1, 10, 200))):
                if content:
                    content[random.randrange(len(content))] = random.randrange(256)
            path.write_bytes(content)
