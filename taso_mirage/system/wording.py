"""Options in messages, as the caller writes them: `--strategy best` on the command line,
`strategy="best"` in Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any

_ALONE = object()
_LONGEST = 80
"""The number of characters that a message repeats of a value that is neither a text nor a path."""
_command_line = False


@contextmanager
def for_command_line() -> Iterator[None]:
    """Write options as the command line does, in all threads, until the end of the block."""
    global _command_line
    before, _command_line = _command_line, True
    try:
        yield
    finally:
        _command_line = before


def option(name: str, value: Any = _ALONE) -> str:
    """Return an option as text: its name in Python, or on the command line, and its value if one is
    given.

    `option("may_grow", True)` is `--may-grow` on the command line and `may_grow=True` in Python;
    with False it is `--no-may-grow`.
    """
    if not _command_line:
        return name if value is _ALONE else f"{name}={_written(value)}"
    words = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{words}" if value else f"--no-{words}"
    return f"--{words}" if value is _ALONE else f"--{words} {value}"


def _written(value: Any) -> str:
    """A value of any class as Python writes it, on one line, with texts in double quotes."""
    try:
        if isinstance(value, str | PathLike):
            text = str(value)
            return repr(text) if '"' in text else '"' + repr(text + '"')[1:-2].replace("\\'", "'") + '"'
        return " ".join(repr(value).split())[:_LONGEST]
    except Exception:
        return f"<{type(value).__name__}>"
