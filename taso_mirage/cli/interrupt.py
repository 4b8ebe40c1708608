"""Signals. The first Ctrl-C keeps the best result so far, the next one ends the program without a
result. SIGTERM and SIGHUP end the program, which removes partial files."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

from taso_mirage.system import locks, streams
from taso_mirage.system.terminal import say

if TYPE_CHECKING:
    from taso_mirage.search.config import Stop


ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
GRACE = 5.0
"""Seconds within which an ending program completes its current step."""


class Ended(BaseException):
    """Raised for a signal that ends the program; not an Exception for the same reason as CtrlC."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class CtrlC(BaseException):
    """Raised for Ctrl-C, with an optional message.

    Not an Exception, so that no fallback swallows it.
    """


_WHOLE = frozenset({"<frozen importlib._bootstrap>", locks.__file__, streams.__file__})
"""Files whose code a signal must not interrupt: a module in C++ would turn it into an ImportError
or end the process during an import, a lock would stay, or a line would be printed twice."""


def _cuts(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename not in _WHOLE:
        frame = frame.f_back
    return frame is not None


def give_up(number: int, frame: FrameType | None) -> None:
    """Raise CtrlC; later if it would interrupt code that must not be interrupted."""
    if _cuts(frame):
        _postponed.set()
        return _again(number)
    raise CtrlC


def end_cleanly() -> None:
    """Make SIGTERM and SIGHUP raise Ended; a signal that the caller ignores (`nohup`) stays
    ignored."""
    for number in ENDING:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _end)


def end_at_once() -> None:
    """Restore the default effect of the signals, because there is nothing left to remove."""
    for number in ENDING:
        if signal.getsignal(number) in (_end, _wait):
            signal.signal(number, signal.SIG_DFL)


def _end(number: int, frame: FrameType | None) -> None:
    if _cuts(frame):
        return _again(number)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for each in ENDING:
        signal.signal(each, _wait)
    watch = threading.Timer(GRACE, _leave, (number,))
    watch.daemon = True
    watch.start()
    raise Ended(number)


def _wait(number: int, frame: FrameType | None) -> None:
    """Ignore a signal: the process is ending already."""


def _leave(number: int) -> None:
    locks.let_go_all()
    os._exit(128 + number)


def die(number: int) -> None:
    """End by the signal, as who sent it expects."""
    locks.let_go_all()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


FOUND = "the results so far"
_postponed = threading.Event()
"""Whether a Ctrl-C that ends the program is sent again; this is still necessary after the search
began."""


def _again(number: int) -> None:
    """Send the same signal to this process again, a moment later.

    It is sent to the process: only so does it wake the main thread from a wait.
    """
    later = threading.Timer(0.05, os.kill, (os.getpid(), number))
    later.daemon = True  # the program's end does not wait for it
    later.start()


def unraisable(dropped: sys.UnraisableHookArgs) -> None:
    """Handle exceptions that Python drops because they are raised in `__del__` or in the callback
    of a weak reference: a signal must not be lost there."""
    if isinstance(dropped.exc_value, CtrlC):
        _postponed.set()
        _again(signal.SIGINT)
    elif isinstance(dropped.exc_value, Ended):
        signal.signal(dropped.exc_value.number, _end)
        _again(dropped.exc_value.number)
    else:
        sys.__unraisablehook__(dropped)


@contextlib.contextmanager
def interruptible(keeping: str = "the best result so far, measured and checked", begun: bool = False) -> Iterator[Stop]:
    """The first Ctrl-C after the start of the search ends it and keeps the results so far; the next
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
    """Only record a Ctrl-C from now on, so that a file in progress is written."""
    signal.signal(signal.SIGINT, lambda number, frame: stop())
