"""Printing of commands' output.

Names come from files, so characters that control a terminal or end a line are escaped, only in this
module.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

import typer

_CONTROL = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
"""Control characters but the end of a line, invisible ones, those that turn the direction of
writing, and halves of characters."""


def printable(text: str) -> str:
    """A text with its control characters escaped; the ends of lines stay."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """The text with the ends of lines escaped."""
    return printable(text).replace("\n", "\\n")


def plural(count: int, noun: str, many: str = "") -> str:
    """`1 box`, `2 boxes`."""
    return f"{count} {noun if count == 1 else many or noun + 's'}"


def duration(seconds: float) -> str:
    """`12.3 us`."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def say(text: str, err: bool = False) -> None:
    """Print a text to stdout or stderr, and the end of a line."""
    typer.echo(printable(text), err=err)


def say_lines(lines: Iterable[str]) -> None:
    """Print lines; ends of lines within a line are escaped."""
    for line in lines:
        typer.echo(one_line(line))


def asking() -> bool:
    """Whether a user can answer a question: both streams are terminals."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr is not None and sys.stderr.isatty()
