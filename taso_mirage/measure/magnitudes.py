"""The distances of results from each other and from float64, and the roundings of their dtypes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taso_mirage.ir.terms import is_computed, is_stored

BLOCK = 1 << 15
"""Elements that are compared at a time."""


@dataclass(slots=True)
class Magnitudes:
    """The largest magnitudes over all elements: optimized - exact, original - exact, optimized -
    original, exact, original."""

    error: float = 0.0
    own: float = 0.0
    apart: float = 0.0
    target: float = 0.0
    old: float = 0.0


def magnitudes(new: NDArray[Any], old: NDArray[Any], exact: NDArray[Any]) -> Magnitudes | None:
    """None if an element is finite in only one of both, or is another non-finite value. The arrays
    are compared block by block, so that logits of half a gigabyte stay in the cache. If both arrays
    have the same bytes, or a run is its own reference, there is less to compute."""
    found = Magnitudes()
    flat = [np.ravel(a) for a in (new, old, exact)]
    for start in range(0, old.size, BLOCK):
        here, there, right = (a[start : start + BLOCK] for a in flat)
        o = there.astype(np.float64)
        n = o if same_bytes(here, there) else here.astype(np.float64)
        r = o if exact is old else right.astype(np.float64)
        most = most_of(o)
        if not np.isfinite(most):
            finite = np.isfinite(o)
            if not np.array_equal(n[~finite], o[~finite], equal_nan=True):
                return None
            kept = o[finite]
            n, r = (kept if a is o else a[finite] for a in (n, r))
            o, most = kept, most_of(kept)
        largest = most if n is o else most_of(n)
        if not np.isfinite(largest):
            return None
        known = np.isfinite(r) if r is not o else None
        r = r if known is None or known.all() else np.where(known, r, o)
        found.error = max(found.error, _farthest(n, r))
        found.own = max(found.own, _farthest(o, r))
        found.apart = max(found.apart, _farthest(n, o))
        found.target = max(found.target, most if r is o else most_of(r))
        found.old = max(found.old, most)
    return found


def largest_distance(new: NDArray[Any], old: NDArray[Any]) -> float:
    """The largest distance that is a number, computed block by block; 0 for equal bytes."""
    most, flat = 0.0, [np.ravel(a) for a in (new, old)]
    for start in range(0, old.size, BLOCK):
        n, o = (a[start : start + BLOCK] for a in flat)
        if not same_bytes(n, o):
            with np.errstate(invalid="ignore"):  # of two infinities
                far = np.abs(n.astype(np.float64) - o.astype(np.float64))
            most = max(most, float(far[np.isfinite(far)].max(initial=0.0)))
    return most


def same_bytes(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def _farthest(a: NDArray[Any], b: NDArray[Any]) -> float:
    return 0.0 if a is b else most_of(a - b)


def epsilon(dtype: Any) -> float:
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).eps)


def least_normal(dtype: Any) -> float:
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).smallest_normal)


def least(dtype: Any) -> float:
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).smallest_subnormal)


def most_of(array: NDArray[Any]) -> float:
    return float(np.abs(array).max()) if array.size else 0.0


def uniform_number(array: NDArray[Any]) -> float | None:
    """The number that all elements of an array equal; None if they differ or are not numbers. The
    array is read block by block, so most arrays need only one block."""
    flat = array.reshape(-1)
    if not flat.size or flat.dtype.kind in "OSUc":
        return None
    first = flat[:1]
    blocks = (flat[start : start + BLOCK] for start in range(0, flat.size, BLOCK))
    return float(first[0]) if all(bool((each == first).all()) for each in blocks) else None


def rounds(value: Any) -> bool:
    """Whether an output is an array of floats, in which roundings differ; floats of 8 bits are
    quantized numbers."""
    return isinstance(value, np.ndarray) and is_computed(value.dtype.name)


def equal_values(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        if a.dtype == b.dtype and is_stored(a.dtype.name):
            return np.array_equal(a.astype(np.float32), b.astype(np.float32), equal_nan=True)
        return a.shape == b.shape and a.dtype == b.dtype and bool((a == b).all())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(equal_values(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and bool(np.all(a == b))
