"""Comparison of two ways to run a graph: whether results are those of eager PyTorch, as far as
rounding allows, and which way takes longer."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from taso_mirage.errors import Unsupported
from taso_mirage.measure.timing import Timing, Verdict, compared_times, enough_wins

NEAR = 8.0
"""The largest ratio of a result's error to that of eager PyTorch, both against float64, if the two
differ."""
ROUNDINGS = 64
"""The deviation up to which a result needs no further comparison, in roundings of the largest
number."""
PIECE = 1 << 24
"""Elements that are compared at a time: a GPU may have no room for all of them in float64."""
ROUNDS, SECONDS = 40, 1.0
"""The largest number of rounds, and the seconds after which none begins once a verdict is
possible."""
PATIENCE = 8.0
"""The seconds after which no round begins in any case; without a verdict no graph counts as
slower."""
SHORT = 1e-4
"""Seconds of calls whose time does not matter: the time of Python counts there."""
TimedCall = Callable[[], Any]


def check_equal(
    ours: Sequence[Any], theirs: Sequence[Any], exact: Callable[[], Sequence[Any] | None], rounded: bool = False
) -> None:
    """Integers are equal; other numbers to half of their digits, of the largest, or nearly as close
    to float64 as those of eager PyTorch: the mean of a normalized batch is rounding alone.

    `rounded`: products rounded their operands to half of their digits. Then numbers that are off by
    more than a few roundings are compared in float64: eager PyTorch may not have rounded there.
    Raises Unsupported with the number of a result that is not.
    """
    for i, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if one.dtype != other.dtype or one.shape != other.shape:
            raise Unsupported(
                f"its result {i} is {one.dtype}{list(one.shape)}, in eager PyTorch {other.dtype}{list(other.shape)}"
            )
        if not other.is_floating_point():
            if not torch.equal(one, other):
                raise Unsupported(f"its result {i} is not equal to that of eager PyTorch")
            continue
        finite = (b[b.isfinite()] for (b,) in _pieces(other))
        largest = max((float(each.abs().max()) for each in finite if each.numel()), default=0.0)
        rounding = torch.finfo(other.dtype).eps
        tolerance = (ROUNDINGS * rounding if rounded else rounding**0.5) * largest
        if not all(torch.allclose(a, b, rtol=0.0, atol=tolerance, equal_nan=True) for a, b in _pieces(one, other)):
            known = exact()
            if known is None or not _as_near(one, other, known[i]):
                error = _distance(one, other)
                raise Unsupported(
                    f"its result {i} differs from eager PyTorch by {error:.3g}, the largest is {largest:.3g}"
                )


def in_float64(module: Any, given: Sequence[Any]) -> Sequence[Any] | None:
    """The outputs of eager PyTorch in float64; None if it does not run so."""
    wide = [each.double() if isinstance(each, torch.Tensor) and each.is_floating_point() else each for each in given]
    try:
        with torch.no_grad():
            found: Sequence[Any] = copy.deepcopy(module).double().forward(*wide)  # a module call prints its errors
    except RuntimeError:  # a graph may name its dtype
        return None
    return found


def _as_near(ours: Any, theirs: Any, exact: Any) -> bool:
    """Whether our result is as near to float64 as eager's, but for a small factor; never if float64
    is not finite."""
    if exact.dtype != torch.float64 or exact.shape != ours.shape:
        return False
    return _distance(ours, exact) <= NEAR * _distance(theirs, exact)


def _distance(one: Any, other: Any) -> float:
    """The largest difference of two tensors; NaN where some elements are not numbers."""
    found = [float((a - b).abs().max()) for a, b in _pieces(one, other) if a.numel()]
    return math.nan if any(map(math.isnan, found)) else max(found, default=0.0)


def _pieces(*tensors: Any) -> Iterator[tuple[Any, ...]]:
    """Parts of tensors of one shape, in float64."""
    for parts in zip(*[each.reshape(-1).split(PIECE) for each in tensors], strict=True):
        yield tuple([part.double() for part in parts])


# ------------------------------------------------------------ times


def slower(ours: TimedCall, theirs: TimedCall, cuda: bool) -> float | None:
    """The ratio of a graph's time to that of another way, if the verdict is that it is slower. Both
    have run before.

    They run in turn, in an order that changes, until the verdict is clear.
    """
    if both_short(ours, theirs, cuda):
        return None
    calls, times, start = (ours, theirs), (list[float](), list[float]()), time.perf_counter()

    def timing() -> Timing:
        return compared_times([times[0]], [times[1]], [1.0])

    while (rounds := len(times[0])) < ROUNDS and time.perf_counter() < start + PATIENCE:
        enough = enough_wins(rounds) is not None if rounds else False
        if enough and (time.perf_counter() > start + SECONDS or timing().verdict is not Verdict.UNDECIDED):
            break
        for i in (0, 1) if rounds % 2 else (1, 0):
            times[i].append(seconds(calls[i], cuda))
    found = timing()
    return found.ratio if found.faster else None


def both_short(ours: TimedCall, theirs: TimedCall, cuda: bool) -> bool:
    """Whether the time of these calls does not matter."""
    seconds(ours, cuda)  # a second run may include a capture
    return max(seconds(ours, cuda), seconds(theirs, cuda)) < SHORT


def seconds(call: TimedCall, cuda: bool) -> float:
    """Seconds of a call, from an idle GPU to an idle one."""
    if cuda:
        torch.cuda.synchronize(0)
    start = time.perf_counter()
    call()
    if cuda:
        torch.cuda.synchronize(0)
    return time.perf_counter() - start
