"""Standard input and outputs of a command, which may be closed at the start, or a pipe whose reader
has ended."""

from __future__ import annotations

import io
import os
import sys
from typing import Any, TextIO

from taso_mirage.errors import OutputError

NAMES = "stdin", "stdout", "stderr"


class CannotPrint(OutputError):
    """Report once that the output can no longer be printed."""


class _Output(io.FileIO):
    """A descriptor whose reader may end. Later output is then dropped, as by /dev/null.

    A reader of the first lines of a command's output, as `head`, has them then; the command
    completes its work. Of standard error nothing is ever missed: the exit code says the same.
    """

    def __init__(self, number: int, nothing: int) -> None:
        super().__init__(number, "w", closefd=False)
        self._nothing = nothing

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            os.dup2(self._nothing, self.fileno())
            if isinstance(error, BrokenPipeError) or self.fileno() == 2:
                return memoryview(data).nbytes
            why = "the output could not be printed"
            raise CannotPrint(f"{why} ({error.strerror}); files that were written before stay") from None


def steady() -> None:
    """Let this process have all three: one that was closed is /dev/null, as else the next file that
    is opened would take its number and get the printed text; and outputs that end quietly."""
    nothing = os.open(os.devnull, os.O_RDWR)
    while nothing < len(NAMES):  # it has the number of a closed stream
        nothing = os.dup(nothing)
    for number, name in enumerate(NAMES):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(nothing, number)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    for name in NAMES[1:]:
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, _quiet_end(stream, nothing))


def _quiet_end(stream: TextIO, nothing: int) -> TextIO:
    binary = io.BufferedWriter(_Output(stream.fileno(), nothing))
    buffered = stream.isatty() or stream is sys.stderr
    return io.TextIOWrapper(binary, stream.encoding, "backslashreplace", line_buffering=buffered)
