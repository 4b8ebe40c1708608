"""Folds in numbers: those over windows of few elements are computed in another order than numpy's,
and give the same."""

from __future__ import annotations

import numpy as np
import pytest

from taso_mirage.meanings import reals
from taso_mirage.meanings.reals import Reals

FOLDS = np.add, np.multiply, np.maximum, np.minimum
DTYPES = "float16", "float32", "float64", "int32", "uint8", "bool"


@pytest.mark.parametrize("fn", FOLDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("axes", "keepdims"), [((-1, -2), False), ((3, 2), True), ((0, 3), True), ((3,), False)])
def test_a_fold_over_few_elements_is_numpys(fn: np.ufunc, dtype: str, axes: tuple[int, ...], keepdims: bool) -> None:
    array = (np.random.default_rng(0).integers(0, 3, (5, 4 * reals.MANY, 3, 3))).astype(dtype)
    found = Reals().reduce(fn, array, axes, keepdims)
    wide = array.astype(np.float32) if dtype == "float16" else array
    wanted = fn.reduce(wide, axis=axes, keepdims=keepdims).astype(dtype)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert np.allclose(found, wanted, rtol=1e-6)


def test_a_window_with_a_nan_stays_one() -> None:
    array = np.ones((2 * reals.MANY, 4))
    array[7, 2] = np.nan
    found = Reals(exact=True).reduce(np.maximum, array, (-1,), False)
    assert np.isnan(found[7])
    assert np.isfinite(np.delete(found, 7)).all()
