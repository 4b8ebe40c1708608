"""How far results are apart: computed by blocks, with less work where both have the same bytes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from taso_mirage.measure.magnitudes import BLOCK, Magnitudes, largest_distance, magnitudes

DTYPES = np.float16, ml_dtypes.bfloat16, np.float32, np.float64
SIZES = 0, 1, 1000, 2 * BLOCK + 3


def plainly(new: Any, old: Any, exact: Any) -> Magnitudes | None:
    """The definition."""
    n, o, r = (a.astype(np.float64) for a in (new, old, exact))
    finite = np.isfinite(o)
    if not np.array_equal(n[~finite], o[~finite], equal_nan=True) or not np.isfinite(n[finite]).all():
        return None
    n, o, r = n[finite], o[finite], r[finite]
    r = np.where(np.isfinite(r), r, o)
    return Magnitudes(*(float(np.abs(a).max(initial=0.0)) for a in (n - r, o - r, n - o, r, o)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("spoilt", ["none", "old", "new", "both", "exact"])
@pytest.mark.parametrize("itself", [False, True])
def test_the_largest_of_each_difference(dtype: Any, size: int, spoilt: str, itself: bool) -> None:
    rng = np.random.default_rng(size)
    old = rng.standard_normal(size).astype(dtype)
    exact = rng.standard_normal(size)
    places = rng.integers(0, max(size, 1), size // 10)
    for array in {"none": [], "exact": [exact]}.get(spoilt, [old] if spoilt in ("old", "both") else []):
        array[places] = np.array([np.nan, np.inf, -np.inf])[places % 3]
    for scale in (1.0, 1.001):
        new = (old.astype(np.float64) * scale).astype(dtype)
        if spoilt == "new":
            new[places] = np.nan
        reference = old if itself else exact
        assert magnitudes(new, old, reference) == plainly(new, old, reference)


@pytest.mark.parametrize("size", SIZES)
def test_the_largest_distance_that_is_a_number(size: int) -> None:
    old = np.random.default_rng(size).standard_normal(size).astype(np.float16)
    assert largest_distance(old.copy(), old) == 0.0
    new = old.copy()
    new[-1:] += np.float16(1)
    new[:1] = np.inf
    wanted = np.abs(new[1:].astype(np.float64) - old[1:].astype(np.float64)).max(initial=0.0)
    assert largest_distance(new, old) == (wanted if size > 1 else 0.0)
