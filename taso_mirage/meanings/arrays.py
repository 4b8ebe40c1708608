"""Functions that the meanings over numpy arrays share. The structure is that of numpy, after `lead`
leading axes (trials) that do not belong to the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Contraction: TypeAlias = Callable[[Array, Array, str, str, str], Array]
"""The einsum of two operands, by their letters and those of the result."""
PART = 1 << 26
"""The largest number of bytes of an operand of a product that are copied at once."""


def aligned(xs: Sequence[Array], lead: int) -> list[Array]:
    """Insert axes behind the leading ones so that numpy's broadcasting aligns at the right."""
    rank = max(x.ndim for x in xs)
    return [x.reshape(*x.shape[:lead], *(1,) * (rank - x.ndim), *x.shape[lead:]) for x in xs]


def windows(
    a: Array, axes: Sequence[int], sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Array:
    """Sliding windows as a view: (..., n, ...) -> (..., positions, ..., sizes)."""
    spans = [(size - 1) * dilation + 1 for size, dilation in zip(sizes, dilations, strict=True)]
    view = np.lib.stride_tricks.sliding_window_view(a, spans, axis=tuple(axes))
    index: list[slice] = [slice(None)] * view.ndim
    for i, (axis, stride, dilation) in enumerate(zip(axes, strides, dilations, strict=True)):
        index[axis] = slice(None, None, stride)
        index[a.ndim + i] = slice(None, None, dilation)
    result: Array = view[tuple(index)]
    return result


def padded_array(a: Array, low: Sequence[int], high: Sequence[int], value: Any, interior: Sequence[int]) -> Array:
    """Pad between and around the elements; a negative pad crops."""
    sizes = [
        n + max(n - 1, 0) * i + max(p, 0) + max(q, 0) for n, i, p, q in zip(a.shape, interior, low, high, strict=True)
    ]
    result = np.full(sizes, value, a.dtype)
    inside = tuple(
        slice(max(p, 0), max(p, 0) + max(n - 1, 0) * (i + 1) + min(n, 1), i + 1)
        for n, i, p in zip(a.shape, interior, low, strict=True)
    )
    result[inside] = a
    crop = tuple(slice(max(-p, 0), n - max(-q, 0)) for n, p, q in zip(sizes, low, high, strict=True))
    cropped: Array = result[crop]
    return cropped


def pairwise(a: Array, b: Array, letters_a: str, letters_b: str, result: str) -> Array:
    """einsum of two operands as one batched matrix product, so that BLAS does the work."""
    a, letters_a = _summed(a, letters_a, letters_b + result)
    b, letters_b = _summed(b, letters_b, letters_a + result)
    batch = [c for c in letters_a if c in letters_b and c in result]
    inner = [c for c in letters_a if c in letters_b and c not in result]
    rows = [c for c in letters_a if c not in letters_b]
    columns = [c for c in letters_b if c not in letters_a]
    left = a.transpose([letters_a.index(c) for c in (*batch, *rows, *inner)])
    right = b.transpose([letters_b.index(c) for c in (*batch, *inner, *columns)])
    n, k = len(batch), len(inner)
    rows_shape, columns_shape = left.shape[n : left.ndim - k], right.shape[n + k :]
    inner_size = int(np.prod(right.shape[n : n + k]))
    left = left.reshape(*left.shape[:n], int(np.prod(rows_shape)), inner_size)
    right = right.reshape(*right.shape[:n], inner_size, int(np.prod(columns_shape)))
    with np.errstate(all="ignore"):
        product = np.matmul(left, right)
    product = product.reshape((*product.shape[:n], *rows_shape, *columns_shape))
    order = [*batch, *rows, *columns]
    moved: Array = product.transpose([order.index(c) for c in result])
    return moved


def pairwise_in_parts(
    a: Array, b: Array, letters_a: str, letters_b: str, result: str, part: int = PART, by: Contraction = pairwise
) -> Array:
    """`pairwise`, cut along letters of the result so that no copy of an operand has more than
    `part` bytes: the windows of a convolution are many times its input."""
    large, letters = max(((a, letters_a), (b, letters_b)), key=lambda each: each[0].nbytes)
    kept = [(n, c) for n, c in zip(large.shape, letters, strict=True) if c in result]
    n, cut = max(kept, default=(1, ""), key=lambda each: each[0])
    if large.nbytes <= part or n < 2:
        return by(a, b, letters_a, letters_b, result)
    sizes = dict(zip(letters_a, a.shape, strict=True)) | dict(zip(letters_b, b.shape, strict=True))
    found = np.empty([sizes[c] for c in result], np.result_type(a, b))
    step = max(n * part // large.nbytes, 1)
    for start in range(0, n, step):
        along = slice(start, start + step)
        left, right = _cut(a, letters_a, cut, along), _cut(b, letters_b, cut, along)
        _cut(found, result, cut, along)[...] = pairwise_in_parts(left, right, letters_a, letters_b, result, part, by)
    return found


@dataclass
class Contractions:
    """The function that contracts two float64 operands: numpy's, or temporarily another one that is
    as exact and faster for large operands."""

    by: Contraction = pairwise_in_parts


CONTRACTING = Contractions()


def _cut(a: Array, letters: str, letter: str, along: slice) -> Array:
    return a[tuple(along if c == letter else slice(None) for c in letters)]


def _summed(a: Array, letters: str, kept: str) -> tuple[Array, str]:
    alone = tuple(i for i, c in enumerate(letters) if c not in kept)
    return (a.sum(axis=alone), "".join(c for c in letters if c in kept)) if alone else (a, letters)
