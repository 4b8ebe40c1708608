"""Convolutions of a model in single precision, with their elementwise epilogues, as the terms that
a GPU's kernels are found for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, is_constant, variable
from taso_mirage.kernels.codegen import triton
from taso_mirage.kernels.conversion import Conversion, known_bias, stored_array
from taso_mirage.kernels.form import IsWanted, Users
from taso_mirage.kernels.gpu.in_operators import dense_parts, nearest_tf32
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.interpret import retyped
from taso_mirage.operators.ops import term
from taso_mirage.rewriting.derived_traits import elementwise
from taso_mirage.rewriting.forms import RegionPattern

PLAIN = tuple(
    RegionPattern(f"conv({operands}, strides=strides, pads=pads, dilations=dilations, group=1)")
    for operands in ("x, w, b", "x, w")
)
TRANSPOSED = tuple(
    RegionPattern(
        f"conv_transpose({operands}, strides=strides, pads=pads, dilations=dilations, output_padding=extra, group=1)"
    )
    for operands in ("x, w, b", "x, w")
)
DEPTHWISE = tuple(
    RegionPattern(f"conv({operands}, strides=strides, pads=pads, dilations=dilations, group=group)")
    for operands in ("x, w, b", "x, w")
)
MEMBERS, OTHERS = 16, 5
"""Operators that follow, and other operands of theirs, at most."""


def single_convolution(node: Node) -> Mapping[str, Any] | None:
    """The operands and attributes of a convolution of images of fixed sizes in single precision,
    with stored weights, of one group or of one for each channel; None for other terms. Its `b` is
    ABSENT where nothing is added."""
    kinds = (*PLAIN, *TRANSPOSED, *DEPTHWISE)
    found = next((names for each in kinds if (names := each.match(node)) is not None), None)
    if found is None or node.dtype != "float32" or found["w"].op != "weight" or min(found["pads"]) < 0:
        return None
    if found.get("group", channels := found["x"].shape[1]) != channels:
        return None
    fixed = all(isinstance(n, int) for n in (*found["x"].shape[1:], *node.shape[1:]))
    b = known_bias(found.get("b", ABSENT))
    return {**found, "b": b} if fixed and b is not None else None


def fused_members(
    depthwise: bool, node: Node, users: Users, wanted: IsWanted, position: Mapping[Node, int]
) -> list[Node]:
    """A convolution that one term may compute, with its epilogue; nothing for other terms."""
    found = single_convolution(node)
    if found is None or ("group" in found) != depthwise:
        return []
    return following(node, users, wanted, position)


def following(node: Node, users: Users, wanted: IsWanted, position: Mapping[Node, int]) -> list[Node]:
    """A convolution with all that follows it element by element, in the model's order, as far as
    one result alone is read by others."""
    members, others = [node], set[Node]()
    while len(members) <= MEMBERS:
        waiting = {each for m in members for each in users(m) if each not in members and _joins(each, node, members)}
        if not waiting:
            break
        following = min(waiting, key=position.__getitem__)
        members.append(following)
        others |= {a for a in following.args if a not in members and not _is_number(a)}
        if len(others) > OTHERS:
            members.pop()
            break
    while len(members) > 1 and not _is_closed(members, users, wanted):
        members.pop()
    return members


def _joins(node: Node, conv: Node, members: Sequence[Node]) -> bool:
    """Whether a term is computed of a convolution's elements, numbers and other tensors that such a
    kernel may read."""
    if not isinstance(node.type, Tensor) or node.type != conv.type or not elementwise(node.op):
        return False
    return all(a in members or _is_number(a) or _is_read(a, conv) for a in node.args)


def _is_number(node: Node) -> bool:
    return is_constant(node) and not node.shape


def _is_read(node: Node, conv: Node) -> bool:
    """Whether a tensor has a number for each channel, which is known, or one for each element."""
    if not isinstance(node.type, Tensor) or node.dtype != "float32":
        return False
    if node.shape == conv.shape:
        return not is_weight(node)
    channels = (1, conv.shape[1], *(1,) * (len(conv.shape) - 2))
    return node.op == "weight" and node.shape in (channels, channels[1:])


def _is_closed(members: Sequence[Node], users: Users, wanted: IsWanted) -> bool:
    """Whether of some terms only the last one is read by others."""
    return not any(wanted(m) or not all(u in members for u in users(m)) for m in members[:-1])


def fused_term(op: str, members: Sequence[Node], model: Conversion) -> Node | None:
    """A convolution with its epilogue as one term of this operator; None where it has no form."""
    conv = members[0]
    found = single_convolution(conv)
    if found is None:
        return None
    spatial = len(conv.shape) - 2
    own = found["w"] if "group" in found else _in_parts(found, spatial, model)
    if own is None:
        return None
    channels = (1, conv.shape[1], *(1,) * spatial)
    image = (1, *conv.shape[1:])
    leaf = variable("y", Tensor("float32", image))
    given: dict[Node, tuple[Node, Node]] = {}  # an operand of the model: the one of the term, the leaf of its body
    if (b := found["b"]) is not ABSENT:
        stored = model.weight("bias", stored_array(b, model.weights).reshape(channels), b, model.biases.get)
        model.biases[stored] = b
        given[b] = stored, variable("v0", Tensor("float32", channels))
    for a in (a for m in members[1:] for a in m.args):
        if a in members or a in given or _is_number(a):
            continue
        shape = image if a.shape == conv.shape else a.shape
        given[a] = model.done[a], variable(f"v{len(given)}", Tensor("float32", shape))
    start = leaf if b is ABSENT else term("add", leaf, given[b][1])
    leaves = {conv: start, **{a: each for a, (_, each) in given.items() if a is not b}}
    body = Graph((leaf, *[each for _, each in given.values()]), retyped((members[-1],), leaves))
    attrs = {name: found[name] for name in ("strides", "pads", "dilations")}
    extra = {} if "group" in found else {"extra": tuple(found.get("extra", ()))}
    try:
        operands = (model.done[found["x"]], own, *[a for a, _ in given.values()])
        made = term(op, *operands, body=body, **attrs, **extra)
        inputs = tuple([variable(f"x{i}", a.tensor) for i, a in enumerate(operands)])
        triton.program(Graph(inputs, (term(op, *inputs, **dict(made.attrs)),)))
    except TasoMirageError:
        return None
    return made


def _in_parts(found: Mapping[str, Any], spatial: int, model: Conversion) -> Node | None:
    """The weights of a convolution of one group in two parts; None where they are not finite."""
    transposed, w = bool(found.get("extra")), found["w"]
    packed = _parts(model.weights[w.attr("name")].numpy(), transposed)
    if packed is None:
        return None

    def stands_for(made: Node) -> Node | None:
        return model.originals.get(dense_parts(made, spatial, transposed))

    own = model.weight("shifted", packed, w, stands_for)
    model.originals[dense_parts(own, spatial, transposed)] = w
    return own


def _parts(array: NDArray[np.generic], transposed: bool) -> NDArray[np.generic] | None:
    """Weights (o,c,i,j) as (2,j,o,i,c), of a transposed convolution from (c,o,i,j): the nearest
    numbers of TF32, and the differences from these; None where they are not finite."""
    first = (1, 0) if transposed else (0, 1)
    kernel = range(2, array.ndim)
    turned = np.ascontiguousarray(array.transpose(kernel[-1], first[0], *kernel[:-1], first[1]))
    near = nearest_tf32(turned)
    return np.stack([near, turned - near]) if np.isfinite(near).all() else None
