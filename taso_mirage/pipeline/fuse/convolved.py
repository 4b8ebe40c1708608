"""Convolutions of a model as a GPU's kernels take them: in half precision with channels last,
between transpositions that neighbours cancel, in single precision with what follows
(`followed.py`); and weights in the order in which they are loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from taso_mirage.ir.model import Model, Weight
from taso_mirage.ir.terms import ABSENT, Node, is_constant, topological, users, with_args
from taso_mirage.kernels.cpu.convolutions import followed_convolution
from taso_mirage.kernels.gpu.convolutions import HALF_FLOATS, ChannelsLastConvolution
from taso_mirage.kernels.gpu.in_operators import FIRST, INNERMOST, LAST, dense_weights, in_operators
from taso_mirage.operators.ops import term
from taso_mirage.pipeline.fuse.followed import (
    followed,
    following,
    known_bias,
    other_form,
    single_convolution,
    stored_array,
)
from taso_mirage.rewriting.forms import ADDED, RegionPattern

CONVOLVED = tuple(
    RegionPattern(f"conv({operands}, strides=strides, pads=pads, dilations=dilations, group=group)")
    for operands in ("x, w, b", "x, w")
)
TO_FIRST, TO_LAST = (RegionPattern(f"transpose(y, perm={perm})") for perm in (FIRST, LAST))


@dataclass(frozen=True, slots=True)
class ConvolvedModel:
    """A model whose convolutions are as kernels take them; `originals` are the weights of the model
    that it was made of, `weights`, which terms of its own stand for."""

    model: Model
    originals: Mapping[Node, Node]
    weights: Mapping[str, Weight]
    biases: Mapping[Node, Node]
    """The biases of convolutions, by what is added in their place."""

    def without_rest(self, model: Model) -> Model:
        """This model, some parts of which are kernels now, with the other parts as they were: pairs
        of transpositions that cancel are left out, and weights are the original's."""
        outputs = in_operators(model.graph.outputs)
        done: dict[Node, Node] = dict(self.originals)
        for node in topological(outputs):
            if node not in done:
                new = with_args(node, tuple([done[a] for a in node.args]))
                done[node] = self._with_bias(_once_turned(new))
        return _kept(model, tuple([done[o] for o in outputs]), {**self.weights, **model.weights})

    def _with_bias(self, node: Node) -> Node:
        """A convolution to which its own bias is added."""
        b = next((self.biases[a] for a in node.args if a in self.biases), None)
        if b is None or ADDED.match(node) is None:
            return node
        conv = next(a for a in node.args if a not in self.biases)
        return term(conv.op, *conv.args[:2], b, **dict(conv.attrs))


def _once_turned(node: Node) -> Node:
    """The term between two transpositions of an image that cancel; other terms as they are."""
    for first, second in ((TO_LAST, TO_FIRST), (TO_FIRST, TO_LAST)):
        outer = second.match(node)
        inner = None if outer is None else first.match(outer["y"])
        if inner is not None:
            found: Node = inner["y"]
            return found
    return node


def with_convolutions(model: Model) -> ConvolvedModel:
    """A model with its convolutions, each with what alone reads it, as such terms. Where weights in
    half precision are zero outside of smaller groups, they are those of these groups."""
    ends = _ends(model)
    weights, done, originals, biases = dict(model.weights), dict[Node, Node](), dict[Node, Node](), dict[Node, Node]()
    for node in model.nodes():
        made = None
        if node in ends and _is_convolution(ends[node][0]):
            made = _turned(ends[node], done, weights, originals)
        elif node in ends:
            made = followed(ends[node], done, weights, originals, biases)
        done[node] = made or with_args(node, tuple([done[a] for a in node.args]))
    return ConvolvedModel(
        _kept(model, tuple([done[o] for o in model.graph.outputs]), weights), originals, model.weights, biases
    )


def _ends(model: Model) -> dict[Node, list[Node]]:
    """Convolutions with what follows, by the last term of each; of the sum of two, one has it."""
    order = model.nodes()
    readers, wanted = users(order), set(model.graph.outputs)
    position = {node: i for i, node in enumerate(order)}
    found: dict[Node, list[Node]] = {}
    for node in order:
        if _is_convolution(node):
            members = followed_convolution(node, lambda n: readers.get(n, ()), wanted.__contains__)
        elif single_convolution(node) is not None:
            members = following(node, lambda n: readers.get(n, ()), wanted.__contains__, position)
        else:
            continue
        alone = members[-1] in found
        found[node if alone else members[-1]] = [node] if alone else members
    return found


def _is_convolution(node: Node) -> bool:
    """Whether a term is a convolution of images in half precision, with stored weights and channels
    of fixed sizes."""
    found = next((names for each in CONVOLVED if (names := each.match(node)) is not None), None)
    if found is None or node.dtype not in HALF_FLOATS or len(node.shape) != 4 or found["w"].op != "weight":
        return False
    return min(found["pads"]) >= 0 and known_bias(found.get("b", ABSENT)) is not None


def _turned(
    members: list[Node], done: Mapping[Node, Node], weights: dict[str, Weight], originals: dict[Node, Node]
) -> Node:
    """A convolution with what follows, the last of which is what others read."""
    conv, *following = members
    x, w = conv.args[:2]
    b = _bias(conv, weights, originals)
    array, whole = weights[w.attr("name")].numpy(), conv.attr("group")
    merged = parts_of_groups(array, whole)
    group = whole * merged
    packed = grouped_weights(array, group, whole).transpose(INNERMOST)

    def stands_for(made: Node) -> Node | None:
        return originals.get(dense_weights(made, group, merged))

    own = other_form(f"channels_last_{group}_{merged}", packed, w, weights, stands_for)
    originals[dense_weights(own, group, merged)] = w
    others = [a for n in following if ADDED.match(n) is not None for a in n.args if a is not conv]
    image, *more = (term("transpose", done[each], perm=LAST) for each in (x, *others))
    z = more[0] if more else ABSENT
    strides, pads, dilations = (conv.attr(name) for name in ("strides", "pads", "dilations"))
    relu = len(following) > len(others)
    made = ChannelsLastConvolution(image, own, b, z, strides, pads, dilations, group, merged, relu)
    return term("transpose", made.goal(), perm=FIRST)


def _bias(conv: Node, weights: dict[str, Weight], originals: dict[Node, Node]) -> Node:
    """The bias of such a convolution, as a weight where the model has a constant."""
    b = known_bias((*conv.args, ABSENT)[2])
    assert b is not None  # as asked before
    if not is_constant(b):
        return b
    own = other_form("bias", stored_array(b, weights), b, weights, originals.get)
    originals[own] = b
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


def _kept(model: Model, outputs: tuple[Node, ...], weights: Mapping[str, Weight]) -> Model:
    """The model with other outputs and the weights that these depend on."""
    used = {n.attr("name") for n in topological(outputs) if n.op == "weight"}
    return model.with_graph(outputs, {name: each for name, each in weights.items() if name in used})
