"""A command again and again, of whose calls to the system another one fails each time (each
STEP-th); run by tests/system/test_faults.py with faults.cpp.

    LD_PRELOAD=faults.so python faults.py FOLDER ERRNO LASTS STEP COMMAND ...

Each run is a fork, so that modules are imported once. Prints a JSON object a line: which call
failed, the exit code, the output, and the files of the folder afterwards by their digests.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import onnxruntime  # noqa: F401 (imported once)

from taso_mirage.cli import commands
from taso_mirage.measure import session
from taso_mirage.pipeline import stages  # noqa: F401
from taso_mirage.prove.rules import proofs  # noqa: F401
from taso_mirage.search import rulesets
from taso_mirage.system import deadline

MOST = 500

deadline.GRACE = 15.0  # on a busy machine, too, a command of a small budget does its work


def digests(folder: Path) -> dict[str, str]:
    files = sorted(each for each in folder.rglob("*") if each.is_file())
    return {str(each.relative_to(folder)): hashlib.sha256(each.read_bytes()).hexdigest() for each in files}


def in_fork(work: Path, call: int, error: int, lasts: int, command: list[str]) -> int:
    """The exit code of the command, with its output in the files `out` and `err`; and the calls
    that it made, in `calls`."""
    number = os.fork()
    if number:
        return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
    shim = ctypes.CDLL(os.environ["LD_PRELOAD"])
    for name, descriptor in (("out", 1), ("err", 2)):
        os.dup2(os.open(work.parent / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    calls = os.open(work.parent / "calls", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.chdir(work)
    tempfile.tempdir = str(work.parent / "tmp")
    sys.argv = ["taso-mirage", *command]
    code = 70
    shim.arm(call, error, lasts)
    try:
        commands.main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        made = shim.calls()
        shim.arm(0, 0, 0)
        os.write(calls, str(made).encode())
        sys.stderr.flush()
        os._exit(code)


def main(folder: Path, error: int, lasts: int, step: int, command: list[str]) -> None:
    # The runtime works in this process: no other one is started for each run.
    session.in_child = lambda function, *args: function(*args)
    rulesets.rules()  # read once
    (folder / "cache").mkdir()
    for call in range(0, MOST, step):  # the first without a fault; it fills the cache that the others begin with
        work = folder / "run" / "work"
        shutil.copytree(folder / "given", work)
        shutil.copytree(folder / "cache", folder / "run" / "cache")
        (folder / "run" / "tmp").mkdir()
        os.environ["TASO_MIRAGE_CACHE"] = str(folder / "run" / "cache")
        code = in_fork(work, call, error, lasts, command)
        said = (folder / "run" / "err").read_text()
        made = int((folder / "run" / "calls").read_text() or 0)
        left = [each.name for each in (folder / "run" / "tmp").iterdir()]
        found = {"call": call, "code": code, "said": said, "files": digests(work), "left": left}
        print(json.dumps(found | {"given": digests(folder / "given")}), flush=True)
        if call == 0:
            shutil.copytree(folder / "run" / "cache", folder / "cache", dirs_exist_ok=True)
        shutil.rmtree(folder / "run")
        if made < call:  # it never came so far
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
