"""Whether results are those of eager PyTorch, as far as rounding allows."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from taso_mirage.errors import Unsupported

NEAR = 8.0
"""How many times as far from float64 as eager PyTorch a result may be that differs from eager."""
ROUNDINGS = 64
"""The number of roundings of the largest number by which a result may be off without further
comparison."""
PIECE = 1 << 24
"""Elements that are compared at a time: a GPU may have no room for all of them in float64."""


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
        largest = max(
            (float(b[b.isfinite()].abs().max()) for (b,) in _pieces(other) if b.isfinite().any()), default=0.0
        )
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
            found: Sequence[Any] = copy.deepcopy(module).double().forward(*wide)  # a call prints its errors
    except RuntimeError:  # a graph may name its dtype
        return None
    return found


def _as_near(ours: Any, theirs: Any, exact: Any) -> bool:
    """Whether ours is as near to float64, but for a small factor; never where that is not
    finite."""
    if exact.dtype != torch.float64 or exact.shape != ours.shape:
        return False
    return _distance(ours, exact) <= NEAR * _distance(theirs, exact)


def _distance(one: Any, other: Any) -> float:
    """The largest difference; NaN where some are not numbers."""
    found = [float((a - b).abs().max()) for a, b in _pieces(one, other) if a.numel()]
    return math.nan if any(map(math.isnan, found)) else max(found, default=0.0)


def _pieces(*tensors: Any) -> Iterator[tuple[Any, ...]]:
    """Parts of tensors of one shape, in float64."""
    for parts in zip(*[each.reshape(-1).split(PIECE) for each in tensors], strict=True):
        yield tuple([part.double() for part in parts])
