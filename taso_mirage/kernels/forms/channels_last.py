"""Convolutions with channels last on a GPU, in half precision.

They stand between transpositions that neighbours cancel. Where weights are zero outside of smaller
groups, they are those of these groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd

import numpy as np
from numpy.typing import NDArray

from taso_mirage.ir.terms import ABSENT, Node, is_constant
from taso_mirage.kernels.codegen.gpu.convolution import ConvolutionBlock
from taso_mirage.kernels.codegen.gpu.forms import GpuProgram
from taso_mirage.kernels.conversion import Conversion, known_bias, stored_array
from taso_mirage.kernels.cpu.convolutions import followed_convolution
from taso_mirage.kernels.form import Form, IsWanted, ModelTerms, Users, own_terms
from taso_mirage.kernels.gpu.convolutions import (
    OPERATOR,
    ChannelsLastConvolution,
    is_half_convolution,
    read_convolution,
)
from taso_mirage.kernels.gpu.in_operators import FIRST, INNERMOST, LAST, channels_first, dense_weights
from taso_mirage.operators.ops import term
from taso_mirage.rewriting.forms import ADDED


def _members(node: Node, users: Users, wanted: IsWanted, position: Mapping[Node, int]) -> list[Node]:
    return followed_convolution(node, users, wanted) if is_half_convolution(node) else []


def _converted(members: Sequence[Node], model: Conversion) -> Node:
    """A convolution with its epilogue, whose last term the others read."""
    conv, *following = members
    x, w = conv.args[:2]
    b = _bias(conv, model)
    array, whole = model.weights[w.attr("name")].numpy(), conv.attr("group")
    merged = parts_of_groups(array, whole)
    group = whole * merged
    packed = grouped_weights(array, group, whole).transpose(INNERMOST)

    def stands_for(made: Node) -> Node | None:
        return model.originals.get(dense_weights(made, group, merged))

    own = model.weight(f"channels_last_{group}_{merged}", packed, w, stands_for)
    model.originals[dense_weights(own, group, merged)] = w
    others = [a for n in following if ADDED.match(n) is not None for a in n.args if a is not conv]
    image, *more = (term("transpose", model.done[each], perm=LAST) for each in (x, *others))
    z = more[0] if more else ABSENT
    strides, pads, dilations = (conv.attr(name) for name in ("strides", "pads", "dilations"))
    relu = len(following) > len(others)
    made = ChannelsLastConvolution(image, own, b, z, strides, pads, dilations, group, merged, relu)
    return term("transpose", made.goal(), perm=FIRST)


def _bias(conv: Node, model: Conversion) -> Node:
    """The bias of such a convolution, as a weight where the model has a constant."""
    b = known_bias((*conv.args, ABSENT)[2])
    assert b is not None  # as asked before
    if not is_constant(b):
        return b
    own = model.weight("bias", stored_array(b, model.weights), b, model.originals.get)
    model.originals[own] = b
    return own


def parts_of_groups(array: NDArray[np.generic], group: int) -> int:
    """Into how many groups each group of weights (g*o,c,i,j) falls, at most: it is zero where one
    of them would see the channels of another."""
    o, c = array.shape[:2]
    if array.reshape(group, o // group, c, -1)[:, 0, -1].any():  # the first sees the last
        return 1
    seen = (array != 0).reshape(group, o // group, c, -1).any(axis=(0, 3))
    common = gcd(o // group, c)
    for parts in sorted((d for d in range(1, common + 1) if common % d == 0), reverse=True):
        blocks = seen.reshape(parts, o // group // parts, parts, c // parts).any(axis=(1, 3))
        if not (blocks & ~np.eye(parts, dtype=bool)).any():
            return parts
    return 1


def grouped_weights(array: NDArray[np.generic], group: int, whole: int) -> NDArray[np.generic]:
    """(g*o,p*c,i,j) -> (g*o,c,i,j): weights of `whole` groups as those of so many."""
    o, c, *kernel = array.shape
    parts = group // whole
    if parts == 1:
        return array
    apart = array.reshape(whole, parts, o // group, parts, c // parts, *kernel)
    own = [apart[:, i, :, i] for i in range(parts)]
    return np.stack(own, axis=1).reshape(o, c // parts, *kernel)


FORM = Form(
    GpuProgram(OPERATOR, ConvolutionBlock),
    read_convolution,
    own_terms(OPERATOR),
    operators=channels_first,
    terms=ModelTerms(_members, _converted),
)
