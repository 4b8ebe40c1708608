"""Quantized numbers of a goal: as the integers of a product, which tensor cores multiply as signed
bytes, or as the floats that they are.

Definitions of quantized operators are over primitives; here these are operators, so that each has
labels. A number of 8 bits that is only converted to a float, less a zero or not, is a float: it has
at most 9 bits. All other uses are arithmetic in int32, which is exact modulo 2^32, over `whole`
numbers. The conversion of such a sum to a float rounds, so it is a function that nothing
distributes over: scales, biases and activations stand behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from taso_mirage.ir.dims import Dim
from taso_mirage.ir.mugraph import SIGN, Lowering
from taso_mirage.ir.terms import LEAVES, Node, constant, is_computed, topological, with_args
from taso_mirage.meanings.base import Scalar
from taso_mirage.mugraph.opaque_functions import is_scalar
from taso_mirage.operators.expressions import uniform_value
from taso_mirage.operators.ops import TermBuilder, Untraceable, term, traits

NARROW = ("int8", "uint8")
SUMMED = 2**31 // SIGN**2
"""The number of products of signed bytes below which a sum stays within int32; beyond it, tensor
cores may saturate."""
_ARITHMETIC = {np.add: "add", np.subtract: "sub", np.multiply: "mul"}


class QuantizedTerms(TermBuilder):
    """Terms of operators also for the primitives of quantized operators' definitions."""

    def map(self, fn: Scalar, *xs: Node) -> Node:
        if fn not in _ARITHMETIC:
            raise Untraceable(f"{fn} is no arithmetic")
        return term(_ARITHMETIC[fn], *xs)

    def cast(self, a: Node, dtype: str) -> Node:
        return term("cast", a, to=dtype)

    def reshape(self, a: Node, shape: Sequence[Dim]) -> Node:
        return a if tuple(a.shape) == tuple(shape) else term("reshape", a, shape=tuple(shape))

    def __getattribute__(self, name: str) -> Any:
        own = name in vars(QuantizedTerms)
        return object.__getattribute__(self, name) if own else super().__getattribute__(name)


def of_integers_or_floats(outputs: Sequence[Node]) -> tuple[Node, ...]:
    """The outputs with every 8-bit number in the form for arithmetic: a float, or a whole
    number."""
    done: dict[Node, Node] = {}
    for node in topological(outputs):
        same = with_args(node, tuple([done.get(a, a) for a in node.args])) if node.args else node
        done[node] = _as_float(node) or _as_whole(node) or _difference(node) or _expanded(same)
    return tuple([done[output] for output in outputs])


def _widened(node: Node) -> Node | None:
    """The numbers of 8 bits that a term has as int32."""
    converted = traits(node).converts and node.dtype == "int32" and node.args[0].dtype in NARROW
    return node.args[0] if converted else None


def _as_float(node: Node) -> Node | None:
    """A float of a number of 8 bits, or of the difference of two."""
    if not traits(node).converts or not is_computed(node.dtype):
        return None
    (x,) = node.args
    parts = x.args if traits(x).lowering is Lowering.SUBTRACT else (x,)
    numbers = [_widened(each) for each in parts]
    floats = [term("cast", each, to=node.dtype) for each in numbers if each is not None]
    return term(x.op, *floats) if len(floats) == len(parts) == 2 else floats[0] if len(floats) == len(parts) else None


def _difference(node: Node) -> Node | None:
    """The difference of two unsigned numbers as the difference of signed ones."""
    if traits(node).lowering is not Lowering.SUBTRACT:
        return None
    numbers = [_widened(each) for each in node.args]
    signed = [None if each is None else _signed(each) for each in numbers]
    alike = len({each.dtype for each in numbers if each is not None}) == 1
    return term(node.op, *signed) if alike and None not in signed else None


def _as_whole(node: Node) -> Node | None:
    number = _widened(node)
    signed = None if number is None else _signed(number)
    if number is None or signed is None or number.dtype == "int8":
        return signed
    return term("sub", signed, constant(np.asarray(-SIGN, np.int32)))


def _expanded(node: Node) -> Node:
    """A product of differences of integers as one of bytes alone, as tensor cores want them, less
    the terms of the zeros: (x - a)(w - b) = x w - a w - (x - a) b, where a and b leave the sums."""
    if traits(node).lowering is not Lowering.CONTRACT or node.dtype != "int32" or node.attrs:
        return node
    left, right = (_apart(each, axis) for each, axis in zip(node.args, (-1, -2), strict=True))
    (x, a), (w, b) = left, right
    made = term(node.op, x, w)
    if a is not None:
        made = term("sub", made, term("mul", a, _summed(w, -2)))
    if b is not None:
        made = term("sub", made, term("mul", _summed(node.args[0], -1), b))
    return made if made.type == node.type else node  # an operand of one axis has no zero of rows or columns


def _apart(x: Node, axis: int) -> tuple[Node, Node | None]:
    """A matrix without the zero that is taken away from it, and that, which is one along the axis
    of the sum."""
    if traits(x).lowering is not Lowering.SUBTRACT or len(x.shape) < 2:
        return x, None
    whole, zero = x.args
    if uniform_value(zero) == 0:
        return whole, None
    one = len(zero.shape) < -axis or zero.shape[axis] == 1
    return (whole, zero) if one and whole.shape == x.shape else (x, None)


def _summed(x: Node, axis: int) -> Node:
    return term("reduce_sum", x, axes=(axis % len(x.shape),), keepdims=1)


def _signed(number: Node) -> Node | None:
    """A leaf, or a view of one, as `whole`; None for a computed term."""
    if is_scalar(number):
        value = number.attr("value").numpy().astype(np.int32)
        return constant(value - (SIGN if number.dtype == "uint8" else 0))
    if number.op in LEAVES:
        return term("whole", number)
    moves = traits(number).lowering in (Lowering.RESHAPE, Lowering.TRANSPOSE)
    inner = _signed(number.args[0]) if moves else None
    return None if inner is None else term(number.op, inner, **dict(number.attrs))
