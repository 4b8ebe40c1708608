"""The convolutions with channels last of a GPU's kernels in the operators of a model: between
transpositions, which neighbours cancel, and with the weights that the model had, which may have
zeros in place of groups."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from taso_mirage.ir.terms import ABSENT, Graph, Node, constant
from taso_mirage.operators.interpret import retyped
from taso_mirage.operators.ops import term

FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)
"""Permutations that bring the channels of an image to the front, and to the end."""
INNERMOST, OUTERMOST = (2, 3, 1, 0), (3, 2, 0, 1)
"""Permutations that move the output channels of weights innermost, and back."""


def channels_first(node: Node) -> Node:
    """A convolution with channels last between transpositions; it has so many groups fewer as there
    are merged."""
    x, w, b, z, *others = (*node.args, ABSENT, ABSENT)[: max(len(node.args), 4)]
    merged = node.attr("merged")
    attrs = {name: node.attr(name) for name in ("strides", "pads", "dilations")} | {
        "group": node.attr("group") // merged
    }
    body, prologue = node.attr("body"), node.attr("prologue")
    count = 0 if body is None else len(body.inputs) - 1
    image = followed_by(prologue, term("transpose", x, perm=FIRST), others[count:])
    made = term("conv", image, dense_weights(w, node.attr("group"), merged), b, **attrs)
    made = made if z is ABSENT else term("add", made, term("transpose", z, perm=FIRST))
    made = term("relu", made) if node.attr("relu") else made
    return term("transpose", followed_by(body, made, others[:count]), perm=LAST)


def followed_by(body: Graph | None, result: Node, others: Sequence[Node]) -> Node:
    """A function of a tensor with channels first and of others, which have channels last; without a
    function, the tensor."""
    if body is None:
        return result
    first = [of_channels(a) if len(a.shape) == 1 else term("transpose", a, perm=FIRST) for a in others]
    return retyped(body.outputs, dict(zip(body.inputs, (result, *first), strict=True)))[0]


def of_channels(numbers: Node) -> Node:
    """(c) -> (c,1,1): a number for each channel of an image with channels first."""
    return term("reshape", numbers, shape=(numbers.shape[0], 1, 1))


def dense_weights(w: Node, group: int, merged: int) -> Node:
    """(i,j,c,g*o) -> (g*o,merged*c,i,j): the weights of merged groups, with zeros where a group
    would read the channels of another."""
    made = term("transpose", w, perm=OUTERMOST)
    if merged == 1:
        return made
    o, c, *kernel = made.shape
    each, parts = o // group, group // merged
    block = each * c * prod(kernel)  # a row of merged + 1 blocks, read as one of merged: each begins one block later
    made = term("reshape", made, shape=(parts, merged, block))
    zeros = term("expand", constant(0.0, w.dtype), shape=(parts, merged, merged * block))
    made = term("concat", made, zeros, axis=2)  # runtimes fold this in half precision, but not a pad
    made = term("reshape", made, shape=(parts, merged * (merged + 1) * block))
    made = term("slice", made, axes=(1,), starts=(0,), ends=(merged * merged * block,), steps=(1,))
    made = term("reshape", made, shape=(parts, merged, merged, each, c, *kernel))
    made = term("transpose", made, perm=(0, 1, 3, 2, 4, 5, 6))
    return term("reshape", made, shape=(o, merged * c, *kernel))


CUT = np.int32(0x1FFF)
"""The number of bits of single precision that TF32 does not have."""


def nearest_tf32(array: NDArray[np.float32]) -> NDArray[np.float32]:
    """The nearest numbers of TF32; infinite ones for numbers near the largest of all."""
    return ((array.view(np.int32) + (CUT + 1) // 2) & ~CUT).view(np.float32)
