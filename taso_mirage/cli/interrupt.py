"""Ctrl-C: the first one keeps the best found so far, the next one gives up."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

from taso_mirage.system.terminal import say

if TYPE_CHECKING:
    from taso_mirage.search.config import Stop


class CtrlC(BaseException):
    """Ctrl-C, and what is to be said of it where that is more than usual.

    Not an Exception, so that no fallback swallows it.
    """


def give_up(number: int, frame: FrameType | None) -> None:
    """Raises CtrlC, but not inside of an import: a module in C++ makes an ImportError of it,
    or ends the process."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return _again()
        frame = frame.f_back
    raise CtrlC


FOUND = "what was found so far"
_postponed = threading.Event()
"""Whether a Ctrl-C that gives up is to come again: it still does once the search began."""


def _again() -> None:
    """The same signal a moment later.

    It is sent to the process: only so does it wake the main thread from a wait.
    """
    _postponed.set()
    later = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    later.daemon = True  # the program's end does not wait for it
    later.start()


def unraisable(dropped: sys.UnraisableHookArgs) -> None:
    """What Python drops, because it is raised in `__del__` or in a weak reference's callback; a
    Ctrl-C is not to be lost there."""
    if isinstance(dropped.exc_value, CtrlC):
        _again()
    else:
        sys.__unraisablehook__(dropped)


@contextlib.contextmanager
def interruptible(keeping: str = "the best found so far, measured and checked", begun: bool = False) -> Iterator[Stop]:
    """The first Ctrl-C after the start of the search ends it and keeps what was found; the next
    ends the program with nothing written. `begun`: the search starts at once."""
    from taso_mirage.search.config import Stop

    stop = Stop()
    stop.began = begun

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not stop.began or _postponed.is_set():
            return give_up(number, frame)
        stop()
        signal.signal(signal.SIGINT, give_up)
        say(f"interrupted: keeping {keeping} (Ctrl-C again to give up)", err=True)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield stop
    finally:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, give_up)


def stop_later(stop: Stop) -> None:
    """From here on a Ctrl-C is only noted: what is being written is written."""
    signal.signal(signal.SIGINT, lambda number, frame: stop())
