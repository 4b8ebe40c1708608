"""Standard input and outputs of a command as they may be: closed before it began, or a pipe whose
reader has gone."""

from __future__ import annotations

import io
import os
import sys
from typing import Any, TextIO

NAMES = "stdin", "stdout", "stderr"


class _Output(io.FileIO):
    """A descriptor whose reader may leave: what comes then is dropped, as by /dev/null.

    Who reads the first lines of what a command prints, as `head`, has what it wanted; the command
    goes on to what it is for. Of standard error nothing is ever missed: the exit code says the
    same.
    """

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if not isinstance(error, BrokenPipeError) and self.fileno() != 2:
                raise
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self.fileno())
            os.close(nothing)
            return memoryview(data).nbytes


def steady() -> None:
    """Let this process have all three: one that was closed is /dev/null, as else the next file that
    is opened would take its number and get what is printed; and outputs that end quietly."""
    for number, name in enumerate(NAMES):
        try:
            os.fstat(number)
        except OSError:
            _fill(number)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    for name in NAMES[1:]:
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, _quiet_end(stream))


def _fill(number: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    if nothing != number:
        os.dup2(nothing, number)
        os.close(nothing)


def _quiet_end(stream: TextIO) -> TextIO:
    stream.flush()
    binary = io.BufferedWriter(_Output(stream.fileno(), "w", closefd=False))
    buffered = stream.isatty() or stream is sys.stderr
    return io.TextIOWrapper(binary, stream.encoding, "backslashreplace", line_buffering=buffered)
