"""Measurements of small models as functions of bytes, so that any `concurrent.futures` executor can
run them on the machine for which they are made.

The child process imports this module while others wait for it, so all that takes long to import is
imported where it is used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Protocol

import numpy as np

from taso_mirage.errors import Unsupported
from taso_mirage.ir.terms import Graph, Tensor, variable
from taso_mirage.measure import native
from taso_mirage.measure.native import SETTLED, Arrays, device_key, pause_between, spins
from taso_mirage.measure.target import Target
from taso_mirage.measure.timing import clear, compared_times, enough_wins, has_verdict
from taso_mirage.targets.protocol import RuntimeSession, Source

__all__ = ["counted_nodes", "device_key", "in_turn", "operator_seconds", "overhead", "random_feed"]
CHAIN = 20
LEAST, MOST, SECONDS = 7, 200, 0.02
"""The runs of one measurement: their minimum number (except for long runs), their maximum number,
and their seconds."""
FEW, LONG = 3, 0.1
"""FEW runs are enough where they have taken LONG seconds: a long run varies less."""
ALONE = 0.02
"""Seconds of a run that hardly depends on the caches' contents before it."""
BLOCK = 4
"""The number of consecutive runs of one of several models. More would only measure the drift that
all models should share."""
SIGNS = next(n for n in range(MOST) if enough_wins(n) is not None)
"""Rounds that a verdict takes at least."""
UNSURE = 15
"""Rounds of regions whose times do not decide before."""


def operator_seconds(content: bytes, target: Target, seed: int = 1) -> float:
    """Seconds that a model's operators take on random inputs: the lower quartile of its runs, less
    the cost of any run."""
    return max(_quiet(_runner(content, target, seed)) - overhead(target), 1e-7)


def in_turn(contents: Sequence[Source], target: Target, budget: float, seed: int = 1) -> list[float]:
    """Seconds of several small models with the same inputs, run in turn, so that a drift of the
    machine affects all equally: the median of the first model, and for every other its certain gain
    or loss relative to the first (`Timing.sure`). A difference that may be chance counts as
    none. The runs end early where all differences are clear."""
    return _timed_in_turn([_runner(content, target.resting, seed) for content in contents], target, budget)


def sessions_in_turn(numbers: Sequence[int], target: Target, budget: float, seed: int = 1) -> list[float]:
    """Return the seconds of sessions as `in_turn` does: of sessions of this process, which were
    opened on the target's `resting` variant."""
    return _timed_in_turn([_bound(native.session_of(number), seed) for number in numbers], target, budget, UNSURE)


def _timed_in_turn(runs: Sequence[Callable[[], float]], target: Target, budget: float, unsure: int = 0) -> list[float]:
    """Return the seconds of runs in turn. Up to `unsure` rounds follow, whatever the budget, where
    fewer give no verdict."""
    times: list[list[float]] = [[] for _ in runs]
    pause = pause_between(runs, target, spins)
    end = time.perf_counter() + budget
    while (count := len(times[0])) < SIGNS or (
        (time.perf_counter() < end and count < MOST and not clear(times)) or (count < unsure and not has_verdict(times))
    ):
        order = range(len(runs)) if count % 2 == 0 else reversed(range(len(runs)))
        for i in order:
            time.sleep(pause)
            times[i].append(_turn(runs[i]))
    first = float(np.median(times[0]))
    return [first, *(first / compared_times([times[0]], [each], [1.0]).sure for each in times[1:])]


def counted_nodes(content: bytes, target: Target, zeros: int = 0) -> int:
    """The number of nodes into which the runtime turns a model; it is smaller than the sum over its
    parts if the runtime fuses them or keeps a layout. `zeros`: the bytes of the file of zeros in
    which the model has weights."""
    return target.nodes(content, zeros)


@cache
def overhead(target: Target) -> float:
    """A run of one tiny operator, less the cost of each further one (that part belongs to the
    operator)."""
    from taso_mirage.onnx_io import serialize
    from taso_mirage.onnx_io.build import standalone
    from taso_mirage.operators.ops import get

    x = variable("x", Tensor("float32", (1,)))
    one = chain = get("tanh").term(x)
    for _ in range(CHAIN):
        chain = get("tanh").term(chain)
    alone, many = (_quiet(_runner(serialize(standalone(Graph((x,), (o,)), {"": 17})), target, 1)) for o in (one, chain))
    return alone - max(many - alone, 0.0) / CHAIN


def _runner(content: Source, target: Target, seed: int) -> Callable[[], float]:
    return _bound(target.open(content, False, {}), seed)


def _bound(session: RuntimeSession, seed: int) -> Callable[[], float]:
    if texts := [name for name, type in session.inputs().items() if type.dtype == "string"]:
        raise Unsupported(f"the input {texts[0]!r} has texts, and no memory of texts is bound")
    run = session.bound(random_feed(session, seed))
    run()
    return run


def _turn(run: Callable[[], float]) -> float:
    """Seconds of a run: the median of a block after runs to warm up. Of runs that take ALONE
    seconds fewer are enough, and one that does counts as it is."""
    end = time.perf_counter() + SETTLED
    if (first := run()) >= ALONE:
        return first
    while time.perf_counter() < end:
        run()
    times = [run()]
    while len(times) < BLOCK and sum(times) < ALONE:
        times.append(run())
    return float(np.median(times))


class HasInputs(Protocol):
    """A session of this process, or of the child process."""

    def inputs(self) -> dict[str, Tensor]:
        """The types of the inputs, by name."""


def random_feed(session: HasInputs, seed: int) -> Arrays:
    """Random inputs of the types that a model of fixed sizes asks for."""
    from taso_mirage.ir.model import repeated_array

    rng = np.random.default_rng(seed)
    return {name: repeated_array(variable(name, type), rng) for name, type in session.inputs().items()}


def _quiet(run: Callable[[], float]) -> float:
    times: list[float] = []
    start = time.perf_counter()
    while (spent := time.perf_counter() - start) < SECONDS or len(times) < (LEAST if spent < LONG else FEW):
        times.append(run())
        if len(times) == MOST:
            break
    return float(np.percentile(times, 25))
