"""The float64 references of several inputs within a time limit: first those that every check needs,
then as many others as there is time for.

They are computed in threads that nobody has to wait for, so a product of large arrays does not
delay an interrupt or the end of the time.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from taso_mirage.devices.machine import cores
from taso_mirage.errors import OutOfTime, TasoMirageError
from taso_mirage.ir.model import Model
from taso_mirage.measure.bulk import ROOM, bulk
from taso_mirage.measure.check_inputs import CheckInput, CheckInputs
from taso_mirage.measure.child import child
from taso_mirage.measure.reference import FloatReference
from taso_mirage.measure.sizes import SEEDS
from taso_mirage.system.spending import Purpose, spent

WRONG = (TasoMirageError, ValueError, IndexError, TypeError, ArithmeticError)
"""Errors that an evaluation may raise because of its inputs."""
LOOK = 0.1
"""Seconds between two readings of the clock while threads compute."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation. `work`: its relative amount of work. `after`: its position if there is not
    time for all evaluations (0: it is needed)."""

    compute: Callable[[Callable[[], None]], Any]
    work: float = 1.0
    after: int = 0


class Left(Exception):
    """The result of an evaluation for which there was no time."""


class Evaluations:
    """Computes the wanted evaluations in `threads` threads and `seconds`; needed ones may take
    twice as many.

    An evaluation calls its argument between its steps; this raises OutOfTime once nobody waits.
    """

    def __init__(self, seconds: float, threads: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.threads, self.clock = seconds, threads, clock
        self.each = 0.0
        """Seconds of one unit of work, by the first evaluation."""

    def __call__(self, wanted: Sequence[Evaluation]) -> list[Any]:
        """For each evaluation, its value, the error that it raised (of WRONG), or Left.

        Raises OutOfTime where the needed evaluations take too long.
        """
        order = sorted(range(len(wanted)), key=lambda i: wanted[i].after)
        needed = [i for i in order if wanted[i].after == 0]
        began = self.clock()
        found: list[Any] = [Left() for _ in wanted]
        for each in (needed[:1], needed[1:]):  # the first one alone, because several threads could all be late
            for i, value in zip(each, self._computed([wanted[i] for i in each], began + 2 * self.seconds), strict=True):
                if isinstance(value, OutOfTime):
                    raise value
                found[i] = value
                self.each = self.each or (self.clock() - began) / max(wanted[i].work, 1e-9)
        rest = self._fitting(wanted, order[len(needed) :], began + self.seconds - self.clock())
        for i, value in zip(rest, self._computed([wanted[i] for i in rest], began + self.seconds), strict=True):
            found[i] = Left() if isinstance(value, OutOfTime) else value
        return found

    def _fitting(self, wanted: Sequence[Evaluation], order: Sequence[int], left: float) -> list[int]:
        """The evaluations that there is time for, judged by the time of the first."""
        kept: list[int] = []
        for i in order:
            takes = self.each * wanted[i].work / self.threads
            if takes <= left:
                kept.append(i)
                left -= takes
        return kept

    def _computed(self, wanted: Sequence[Evaluation], end: float) -> list[Any]:
        """For each evaluation, its value or error; OutOfTime where it is not done at the end."""
        over = threading.Event()
        todo: queue.SimpleQueue[int] = queue.SimpleQueue()
        done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        for i in range(len(wanted)):
            todo.put(i)

        def step() -> None:
            if over.is_set():
                raise OutOfTime("a float64 reference takes too long")

        def work() -> None:
            while not over.is_set():
                try:
                    i = todo.get_nowait()
                except queue.Empty:
                    return
                done.put((i, _given(wanted[i].compute, step)))

        found: list[Any] = [OutOfTime("a float64 reference takes too long") for _ in wanted]
        for _ in range(min(self.threads, len(wanted))):
            threading.Thread(target=work, daemon=True).start()
        try:
            waiting = len(wanted)
            while waiting and self.clock() < end:
                try:
                    i, value = done.get(timeout=LOOK)
                except queue.Empty:
                    continue
                found[i] = value
                waiting -= 1
        finally:
            over.set()
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, WRONG):
                raise each
        return found


def _given(compute: Callable[[Callable[[], None]], Any], step: Callable[[], None]) -> Any:
    """The value of an evaluation, or the error that it raised."""
    try:
        return compute(step)
    except BaseException as error:  # raised again when the result is read
        return error


def in_time(made_inputs: CheckInputs, seconds: float, most: float = math.inf) -> list[CheckInput]:
    """Up to `most` inputs on which the original runs. If the original is slow, these are the inputs
    found in time, and at least those that every check needs."""
    began, found = time.monotonic(), list[CheckInput]()
    for each in made_inputs:
        found.append(each)
        if len(found) >= most:
            break
        if not each.needed and time.monotonic() - began > seconds:
            made_inputs.late = True
            break
    return found


@spent(Purpose.REFERENCES)
def references(model: Model, taken: Sequence[CheckInput], seconds: float) -> list[Any]:
    """The float64 evaluation on every drawn input. If there is not time for all, the inputs that
    every check needs come first, then other sizes, then other values.

    Several are computed at the same time as far as memory permits, although numpy's products
    already use several cores.
    """
    exact, peak = FloatReference(model), 1
    needed = [each for each in taken if each.needed][: len(SEEDS)]
    wanted: list[Evaluation] = []
    for each in taken:
        made = bulk(model, each.sizes)
        peak = max(peak, made.peak)
        after = 0 if any(each is n for n in needed) else 1 if each.sizes != taken[0].sizes else 2
        wanted.append(Evaluation(partial(exact, each.inputs), made.total, after))
    return Evaluations(seconds, max(1, min(cores() // 4, ROOM // peak)))(wanted)


def in_command() -> None:
    """Raise OutOfTime once the time of the command is over."""
    child().deadline.demand("a float64 reference takes too long")
