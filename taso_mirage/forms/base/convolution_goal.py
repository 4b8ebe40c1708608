"""Goals of one convolution with stride 1 and channels first, as a model writes it, and elementwise
functions of its result and of its data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from taso_mirage.forms.base.epilogues import ScalarFunction, read_functions
from taso_mirage.forms.base.members import RECTIFIED
from taso_mirage.ir.terms import ABSENT, Graph, Node
from taso_mirage.operators.ops import term
from taso_mirage.operators.work import work
from taso_mirage.rewriting.forms import ADDED, RegionPattern

CONVOLVED = tuple(
    RegionPattern(f"conv({operands}, strides=(1, 1), pads=pads, dilations=(1, 1), group=group)")
    for operands in ("x, w, b", "x, w")
)


@dataclass(frozen=True, slots=True)
class ConvolutionGoal:
    """A convolution with stride 1: (n,g*c,h,w), (g*o,c,p,q), (g*o), (n,g*o,h',w'), where z is added
    to its result."""

    x: Node
    w: Node
    b: Node
    z: Node
    pads: tuple[int, ...]
    relu: bool
    group: int = 1
    follows: ScalarFunction | None = None
    """The function of the result, if more follows than a sum and a relu."""
    precedes: ScalarFunction | None = None
    """The function of the data."""

    @property
    def known(self) -> list[Node]:
        """The operands that are weights."""
        return [self.w]

    @property
    def kernel(self) -> tuple[int, ...]:
        """The kernel's height and width."""
        return tuple(map(int, self.w.shape[2:]))

    @property
    def others(self) -> tuple[Node, ...]:
        """The operands of both functions."""
        return tuple([a for each in (self.follows, self.precedes) if each is not None for a in each.others])

    def result_sides(self, sides: Sequence[int]) -> list[int]:
        """The height and the width of the results of such an image."""
        return [n + self.pads[i] + self.pads[i + 2] - self.kernel[i] + 1 for i, n in enumerate(sides)]

    def goal(self) -> Node:
        """The convolution as a model writes it."""
        attrs = {"strides": (1, 1), "pads": self.pads, "dilations": (1, 1), "group": self.group}
        x = self.x if self.precedes is None else self.precedes.of(self.x)
        made = term("conv", x, self.w, self.b, **attrs)
        made = made if self.z is ABSENT else term("add", made, self.z)
        made = term("relu", made) if self.relu else made
        return made if self.follows is None else self.follows.of(made)

    def operator(self, op: str, **attrs: Any) -> Node:
        """The term of a form's operator with the same operands and functions."""
        body, prologue = (None if each is None else each.body for each in (self.follows, self.precedes))
        operands = (self.x, self.w, self.b, self.z, *self.others)
        return term(op, *operands, relu=int(self.relu), body=body, prologue=prologue, **attrs)

    @property
    def flops(self) -> float:
        """The operations of the direct sum."""
        return work(self.goal(), {}).flops


T = TypeVar("T", bound=ConvolutionGoal)


def convolution_operands(node: Node) -> Mapping[str, Any] | None:
    """The operands, the pads and the group of a convolution with stride 1; None for other terms."""
    names = next((found for each in CONVOLVED if (found := each.match(node)) is not None), None)
    return None if names is None or min(names["pads"]) < 0 else names


def read_convolution_goal(goal: Graph, read: Callable[[Node], T | None]) -> T | None:
    """The goal of a convolution that `read` knows, with its epilogue and prologue; None for other
    graphs."""
    if len(goal.outputs) != 1:
        return None
    rectified = RECTIFIED.match(goal.outputs[0])
    node: Node = goal.outputs[0] if rectified is None else rectified["y"]
    summands = node.args if ADDED.match(node) is not None else ()
    given = {ABSENT, *(x for x in goal.inputs if x.type == node.type)}
    for each, z in [(node, ABSENT), *zip(summands, summands[::-1], strict=True)]:
        made = read(each)
        if made is not None and made.x in goal.inputs and z in given:
            return replace(made, z=z, relu=rectified is not None)
    return _followed(goal, read)


def _followed(goal: Graph, read: Callable[[Node], T | None]) -> T | None:
    """A convolution and any functions of its result, its data and given tensors."""
    (whole,) = goal.outputs
    found = read_functions(whole, lambda node: read(node) is not None)
    made = None if found is None else read(found[0])
    if found is None or made is None:
        return None
    _, follows, (data, precedes) = found
    made = replace(made, x=data, follows=follows, precedes=precedes)
    return made if made.goal() == whole and {made.x, *made.others} <= {*goal.inputs} else None
