"""Operators that move elements as terms of a few: a split is slices, a convolution is a product of
the windows of a padded picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.dims import Dim
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import ABSENT, Node, Tensor, constant, is_float, is_part, numpy_dtype, topological, with_args
from taso_mirage.meanings.base import window_count
from taso_mirage.operators.interpret import interpret_term
from taso_mirage.operators.ops import TermBuilder, Untraceable, term, traits

MOVING = frozenset((Lowering.SLICE, Lowering.CONCAT, Lowering.PAD, Lowering.GATHER, Lowering.PICK))
"""The operators that move elements between axes; others are defined by them."""
LONGEST = 2**20
"""The largest number of rows that a movement lists: of all windows of an axis, or of the triangle
of a running sum."""
REDUCTIONS = {np.add: "reduce_sum", np.maximum: "reduce_max"}
"""The operators that fold by these functions."""


class _MovementTerms(TermBuilder):
    """Terms of operators also for the primitives that move elements, and for the sums and maxima
    over them: a convolution is a product of windows."""

    def slice(self, a: Node, axis: int, start: Dim, stop: Dim, step: int = 1) -> Node:
        return term("slice", a, axes=(axis,), starts=(start,), ends=(stop,), steps=(step,))

    def concat(self, xs: Sequence[Node], axis: int) -> Node:
        return term("concat", *xs, axis=axis)

    def take(self, a: Node, indices: Node, axis: int) -> Node:
        return term("gather", a, indices, axis=axis)

    def take_along(self, a: Node, indices: Node, axis: int) -> Node:
        return term("gather_elements", a, indices, axis=axis)

    def reshape(self, a: Node, shape: Sequence[Dim]) -> Node:
        return term("reshape", a, shape=tuple(shape))

    def transpose(self, a: Node, perm: Sequence[int]) -> Node:
        return term("transpose", a, perm=tuple(perm))

    def expand(self, a: Node, shape: Sequence[Dim]) -> Node:
        return term("expand", a, shape=tuple(shape))

    def pad(
        self, a: Node, low: Sequence[Dim], high: Sequence[Dim], value: float = 0, interior: Sequence[int] | None = None
    ) -> Node:
        if any(interior or ()):
            raise Untraceable("padding between elements is no operator")
        return term("pad", a, pads=(*low, *high), value=float(value)) if any((*low, *high)) else a

    def window(
        self, a: Node, axes: Sequence[int], sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
    ) -> Node:
        """Each axis by a gather of its windows, whose elements are one axis more, at the end."""
        for axis, size, stride, dilation in zip(axes, sizes, strides, dilations, strict=True):
            count = window_count(a.shape[axis], size, stride, dilation)
            if int(count) * size > LONGEST:
                raise Untraceable(f"{count} windows of {size} elements are too many rows")
            rows = np.arange(int(count))[:, None] * stride + np.arange(size) * dilation
            rank = a.tensor.rank + 1
            made = term("gather", a, constant(rows), axis=axis)
            a = term("transpose", made, perm=(*(i for i in range(rank) if i != axis + 1), axis + 1))
        return a

    def contract(self, equation: str, a: Node, b: Node) -> Node:
        return term("einsum", a, b, equation=equation)

    def cumulate(self, fn: np.ufunc, a: Node, axis: int) -> Node:
        """A running sum as a product with a triangle of ones, which is a movement of the number
        1."""
        n, rank = a.shape[axis], a.tensor.rank
        if fn is not np.add or not isinstance(n, int) or not is_float(a.dtype):
            raise Untraceable(f"a running fold of {fn} is no operator")
        if n * n > LONGEST:
            raise Untraceable(f"a triangle of {n} rows is too large")
        ones = term("expand", constant(np.ones(1, numpy_dtype(a.dtype))), shape=(n,))
        rows = n - 1 - np.arange(n)[:, None] + np.arange(n)
        triangle = term("gather", term("pad", ones, pads=(0, n - 1), value=0.0), constant(rows), axis=0)
        letters = "abcdefgh"[:rank]
        return self.contract(f"{letters},z{letters[axis]}->{letters.replace(letters[axis], 'z')}", a, triangle)

    def reduce(self, fn: np.ufunc, a: Node, axes: Sequence[int], keepdims: bool = True) -> Node:
        if fn not in REDUCTIONS:
            raise Untraceable(f"a fold of {fn} is no operator")
        return term(REDUCTIONS[fn], a, axes=tuple(axes), keepdims=int(keepdims))

    def __getattribute__(self, name: str) -> Any:
        own = name in vars(_MovementTerms)
        return object.__getattribute__(self, name) if own else super().__getattribute__(name)


def moves_elements(node: Node) -> bool:
    """Whether a term is of MOVING."""
    return traits(node).lowering in MOVING


def movement_term(node: Node) -> Node | None:
    """A term as one of MOVING, a reshape or a transpose of its operands; None if it is none."""
    kinds = MOVING | {Lowering.RESHAPE, Lowering.TRANSPOSE}
    if traits(node).lowering in kinds:
        return node
    if is_part(node) or not isinstance(node.type, Tensor):
        return None
    try:
        made = interpret_term(node, _MovementTerms(), [None if a is ABSENT else a for a in node.args])
    except TasoMirageError:
        return None
    within = topological([made], stop=node.args) if isinstance(made, Node) and made not in node.args else ()
    moves = within and all(traits(n).lowering in kinds for n in within if n not in node.args)
    return made if moves and made.type == node.type else None


def movements(outputs: Sequence[Node]) -> tuple[Node, ...]:
    """The outputs with every other operator that moves elements (a split, a tile, the windows of a
    convolution) by those of MOVING."""
    done: dict[Node, Node] = {}
    for node in topological(outputs):
        new = with_args(node, tuple([done.get(a, a) for a in node.args])) if node.args else node
        whole = new.args[0] if is_part(new) else new
        made = None
        if whole.args and not moves_elements(whole):
            try:
                made = interpret_term(whole, _MovementTerms(), [None if a is ABSENT else a for a in whole.args])
            except TasoMirageError:
                made = None
        part = made[new.attr("index")] if isinstance(made, tuple) and is_part(new) else made
        moving = isinstance(part, Node) and any(map(moves_elements, topological([part], stop=whole.args)))
        done[node] = part if moving and isinstance(part, Node) else new
    return tuple([done[output] for output in outputs])
