"""The choice between constants of the graph, whose values rules can read, and weights."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

SMALL_INTEGERS = 1024
"""Integer constants up to this many elements live inside the terms (shapes, axes); larger ones are
weights."""
UNIFORM = 1 << 16
"""The largest number of elements of a float constant whose elements are all equal. Rules can then
recognise additions of 0 and multiplications by 1."""
COMPARED = ("float32", "float16", "float64", "float8_e4m3fn", "float8_e5m2")


def inside_terms(tensor: ir.TensorProtocol, dtype: str, count: int) -> bool:
    """Whether a tensor of `count` elements lives inside the terms."""
    if dtype == "string" or count > UNIFORM:
        return False
    if count == 1 or (count <= SMALL_INTEGERS and dtype.startswith(("int", "uint", "bool"))):
        return True
    array = tensor.numpy().reshape(-1) if dtype in COMPARED and count else None
    return array is not None and uniform(array)


def uniform(array: NDArray[Any]) -> bool:
    """Whether all elements of a vector are equal."""
    return bool(array.size) and bool(array[0] == array[-1]) and bool((array == array[0]).all())
