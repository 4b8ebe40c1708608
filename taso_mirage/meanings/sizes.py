"""The ranges of sizes and positions: the bounds that proofs assume, and their consequences.

A dim of a tensor is below 2^30, and a tensor has at most 2^48 elements: sums of two dims fit
no machine addresses more bytes. A position is below the dim that it is a position of.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from taso_mirage.ir.dims import Dim, DimFactor, DimMonomial, Floor, Shape, Symbolic, dim_product, symbols
from taso_mirage.meanings.indices import Indices
from taso_mirage.meanings.intervals import Interval

LARGEST = 2**30 - 1
"""The upper bound of a dim."""
ELEMENTS = 2**48
"""The upper bound of the number of elements of a tensor."""


def within_bounds(shape: Iterable[Dim]) -> bool:
    """Whether the fixed dims are within the bounds that proofs assume."""
    return all(not isinstance(d, int) or d <= LARGEST for d in shape)


def element_counts(shape: Shape) -> list[dict[DimFactor, int]]:
    """The products of sizes that are at most as many as a tensor of this shape has elements: powers
    by size."""
    volume = dim_product(shape)
    terms = volume.terms if isinstance(volume, Symbolic) else ()
    return [dict(m) for m, _ in terms] if all(c > 0 for _, c in terms) else []


def size_bounds(indices: Indices, e: Dim) -> Interval:
    """The least and the largest value of a polynomial of sizes and positions."""
    if isinstance(e, int):
        return Interval(e, e)
    total = Interval(0, 0)
    for m, c in e.terms:
        total = total + monomial_bounds(indices, m).scaled(c)
    return total


def monomial_bounds(indices: Indices, m: DimMonomial) -> Interval:
    """The bounds of a product of sizes and positions, which may be a number of elements."""
    total = Interval(1, 1)
    for factor, power in m:
        total = total * _factor(indices, factor).power(power)
    if total.low is None or total.low < 0 or sum(power for _, power in m) < 2:
        return total
    found = _below(indices, m)
    if found is None or total.high is None:
        return total
    times, powers = found
    small = any(all(v.get(f, 0) >= p for f, p in powers.items()) for v in indices.volumes)
    return Interval(total.low, min(total.high, times * ELEMENTS)) if small else total


def _factor(indices: Indices, factor: DimFactor) -> Interval:
    if isinstance(factor, Floor):
        above, below = size_bounds(indices, factor.numerator), size_bounds(indices, factor.denominator)
        if above.low is None or above.high is None or above.low < 0 or below.low is None or below.low < 1:
            return Interval(0 if indices.nonnegative(factor.numerator) else None)
        return Interval(0, int(above.high) // int(below.low))
    if not isinstance(factor, str):  # it is read from data
        return Interval(0)
    extent = indices.extents.get(factor)
    if extent is None:
        return Interval(1, LARGEST)
    high = size_bounds(indices, extent).high
    return Interval(0, None if high is None else max(high - 1, 0))


def _below(indices: Indices, m: DimMonomial) -> tuple[int, dict[DimFactor, int]] | None:
    """(c, powers of sizes) whose product is at least that of sizes and positions, a position being
    below its dim."""
    times, powers = 1, dict[DimFactor, int]()
    for factor, power in m:
        extent = indices.extents.get(factor, None) if isinstance(factor, str) else None
        if extent is None:
            parts: DimMonomial = ((factor, 1),)
            c = 1
        elif isinstance(extent, int):
            parts, c = (), extent
        elif len(extent.terms) == 1:
            parts, c = extent.terms[0]
        else:
            return None
        times *= c**power
        for part, p in parts:
            powers[part] = powers.get(part, 0) + p * power
    return (times, powers) if times > 0 else None


def fits(e: Dim, dtype: str) -> bool:
    """Whether a number that a model computes from its dims surely is one of int32 or int64. A
    product of different dims is a number of elements there."""
    indices = Indices()
    indices.volumes = [dict.fromkeys(symbols(e), 1)]
    found, most = size_bounds(indices, e), int(np.iinfo(dtype).max)
    return found.low is not None and found.high is not None and -most - 1 <= found.low and found.high <= most
