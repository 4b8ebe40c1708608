"""Convolutions of a model in single precision, with their elementwise epilogues, as the terms for
which GPU kernels are found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taso_mirage.emit import triton
from taso_mirage.emit.gpu.epilogue import has_triton
from taso_mirage.errors import TasoMirageError
from taso_mirage.forms.base.conversion import Conversion, known_bias, stored_array
from taso_mirage.forms.base.epilogues import following, of_results_or_channels, scalar_function
from taso_mirage.forms.base.form import IsWanted, Users
from taso_mirage.ir.terms import ABSENT, Graph, Node, variable
from taso_mirage.operators.interpret import retyped
from taso_mirage.operators.ops import term
from taso_mirage.rewriting.forms import RegionPattern

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
    None where they cannot be so. `floats`: the types of their tensors.
    """

    patterns: tuple[RegionPattern, ...]
    attrs: Callable[[MatchedNames], Mapping[str, Any] | None]
    weights: Callable[[MatchedNames, Conversion], Node | None] = as_stored
    floats: tuple[str, ...] = ("float32",)

    def names(self, node: Node) -> MatchedNames | None:
        """The operands and attributes of such a convolution of images of fixed sizes, with stored
        weights; None for other terms. Its `b` is ABSENT where nothing is added."""
        found = next((names for each in self.patterns if (names := each.match(node)) is not None), None)
        if found is None or node.dtype not in self.floats or found["w"].op != "weight" or min(found["pads"]) < 0:
            return None
        fixed = all(isinstance(n, int) for n in (*found["x"].shape[1:], *node.shape[1:]))
        b = known_bias(found.get("b", ABSENT))
        return {**found, "b": b} if fixed and b is not None and self.attrs(found) is not None else None

    def members(self, node: Node, users: Users, wanted: IsWanted, position: Mapping[Node, int]) -> list[Node]:
        """A convolution that one term may compute, with its epilogue; empty for other terms."""
        if self.names(node) is None:
            return []
        return following(node, users, wanted, of_results_or_channels, has_triton, position)

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


def _epilogue(
    members: Sequence[Node], found: MatchedNames, own: Node, model: Conversion
) -> tuple[tuple[Node, ...], Graph]:
    """The operands of a term with these weights, and the epilogue of its convolution."""
    made = scalar_function(members)
    others, body = tuple([model.done[a] for a in made.others]), made.body
    if (b := found["b"]) is not ABSENT:
        channels = (1, members[0].shape[1], *(1,) * (len(members[0].shape) - 2))
        stored = model.weight("bias", stored_array(b, model.weights).reshape(channels), b, model.biases.get)
        model.biases[stored] = b
        others, body = (stored, *others), _with_bias(body)
    return (model.done[found["x"]], own, *others), body


def _with_bias(body: Graph) -> Graph:
    """A function of a result without its bias, which is the second operand."""
    y, *others = body.inputs
    b = variable("b", y.tensor)
    return Graph((y, b, *others), retyped(body.outputs, {each: each for each in others} | {y: term("add", y, b)}))
