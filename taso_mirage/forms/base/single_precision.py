"""Convolutions of a model in single precision, with their elementwise epilogues, as the terms for
which GPU kernels are found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taso_mirage.emit import triton
from taso_mirage.errors import TasoMirageError
from taso_mirage.forms.base.conversion import Conversion, known_bias, stored_array
from taso_mirage.forms.base.form import IsWanted, Users
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, is_constant, variable
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.interpret import retyped
from taso_mirage.operators.ops import term
from taso_mirage.rewriting.derived_traits import elementwise
from taso_mirage.rewriting.forms import RegionPattern

MEMBERS, OTHERS = 16, 5
"""The largest number of operators in an epilogue, and of their other operands."""


MatchedNames = Mapping[str, Any]
"""The operands and attributes of a convolution by the names of a pattern."""


def patterns(convolution: str) -> tuple[RegionPattern, RegionPattern]:
    """Patterns of a convolution with a bias and without: `OP(ARGUMENTS)`, whose data is `x` and
    whose weights are `w`."""
    return RegionPattern(convolution.replace("x, w", "x, w, b", 1)), RegionPattern(convolution)


def as_stored(names: MatchedNames, model: Conversion) -> Node:
    """The weights in the model's order."""
    w: Node = names["w"]
    return w


@dataclass(frozen=True, slots=True)
class FusedKind:
    """The convolutions of a model in single precision that become terms of one form, with their
    elementwise epilogues.

    `patterns`: the operators, with strides, pads and dilations by these names. `attrs`: the other
    attributes of a term; None where it has none. `weights`: the weights as its kernels load them;
    None where they cannot be so.
    """

    patterns: tuple[RegionPattern, ...]
    attrs: Callable[[MatchedNames], Mapping[str, Any] | None]
    weights: Callable[[MatchedNames, Conversion], Node | None] = as_stored

    def names(self, node: Node) -> MatchedNames | None:
        """The operands and attributes of such a convolution of images of fixed sizes, with stored
        weights; None for other terms. Its `b` is ABSENT where nothing is added."""
        found = next((names for each in self.patterns if (names := each.match(node)) is not None), None)
        if found is None or node.dtype != "float32" or found["w"].op != "weight" or min(found["pads"]) < 0:
            return None
        fixed = all(isinstance(n, int) for n in (*found["x"].shape[1:], *node.shape[1:]))
        b = known_bias(found.get("b", ABSENT))
        return {**found, "b": b} if fixed and b is not None and self.attrs(found) is not None else None

    def members(self, node: Node, users: Users, wanted: IsWanted, position: Mapping[Node, int]) -> list[Node]:
        """A convolution that one term may compute, with its epilogue; empty for other terms."""
        return [] if self.names(node) is None else following(node, users, wanted, position)

    def term(self, op: str, members: Sequence[Node], model: Conversion) -> Node | None:
        """A convolution with its epilogue as one term of this operator; None if it has no form."""
        conv = members[0]
        found = self.names(conv)
        own = None if found is None else self.weights(found, model)
        if found is None or own is None:
            return None
        operands, body = _epilogue(members, found, own, model)
        how = {name: found[name] for name in ("strides", "pads", "dilations")} | dict(self.attrs(found) or {})
        try:
            made = term(op, *operands, body=body, **how)
            inputs = tuple([variable(f"x{i}", a.tensor) for i, a in enumerate(operands)])
            triton.program(Graph(inputs, (term(op, *inputs, **dict(made.attrs)),)))
        except TasoMirageError:
            return None
        return made


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


def _epilogue(
    members: Sequence[Node], found: MatchedNames, own: Node, model: Conversion
) -> tuple[tuple[Node, ...], Graph]:
    """The operands of a term with these weights, and the epilogue of its convolution for one
    image."""
    conv = members[0]
    channels = (1, conv.shape[1], *(1,) * (len(conv.shape) - 2))
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
    return (model.done[found["x"]], own, *[a for a, _ in given.values()]), body
