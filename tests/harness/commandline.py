"""The command line, in the process of the tests or in one of its own."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Any
from unittest.mock import patch

import pytest
import typer

from taso_mirage.cli.commands import app, main

Done = subprocess.CompletedProcess[str]


def run(*args: object, check: int | None = 0) -> Done:
    """The command line in this process: most of the time of a process of its own goes to
    imports."""
    command = ["taso-mirage", *map(str, args)]
    out, err, handler = io.StringIO(), io.StringIO(), signal.getsignal(signal.SIGINT)
    try:
        kept = patch.object(sys, "argv", command), patch.object(sys, "unraisablehook", sys.unraisablehook)
        with kept[0], kept[1], redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
    finally:
        signal.signal(signal.SIGINT, handler)
    code = ended.value.code or 0
    assert isinstance(code, int), code
    return judged(Done(command, code, out.getvalue(), err.getvalue()), check)


def run_apart(*args: object, check: int | None = 0) -> Done:
    """The command line in a process of its own, with all that libraries write to its outputs."""
    command = [sys.executable, "-m", "taso_mirage.cli", *map(str, args)]
    return judged(subprocess.run(command, capture_output=True, text=True, timeout=600), check)


def judged(done: Done, check: int | None) -> Done:
    assert "Traceback" not in done.stderr, done.stderr
    if check is not None:
        assert done.returncode == check, f"{done.returncode}: {done.stdout}\n{done.stderr}"
    return done


def one_line(done: Done) -> str:
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("taso-mirage: ")
    return lines[0]


def result_of(done: Done) -> dict[str, Any]:
    """The result line of `optimize --json`."""
    (found,) = (line for line in map(json.loads, done.stdout.splitlines()) if line["event"] == "result")
    result: dict[str, Any] = found
    return result


def commands() -> dict[str, Any]:
    """Every command that does something, by its words."""
    found: dict[str, Any] = {}

    def walk(command: Any, words: str) -> None:
        inner = getattr(command, "commands", {})
        if not inner or command.params:
            found[words] = command
        for name, each in inner.items():
            walk(each, f"{words} {name}".strip())

    walk(typer.main.get_command(app), "")
    return found
