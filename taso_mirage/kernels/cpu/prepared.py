"""Goals whose kernels read weights that were prepared, once, where a session is made: each kind is
one file beside this one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from taso_mirage.ir.terms import Graph, Node
from taso_mirage.kernels.cpu import convolutions, linear
from taso_mirage.kernels.cpu.convolutions import Convolution, convolution
from taso_mirage.kernels.cpu.linear import WeightProducts, weight_products
from taso_mirage.operators.expressions import is_weight

PreparedGoal: TypeAlias = Convolution | WeightProducts


def members(
    node: Node, users: Callable[[Node], Sequence[Node]], wanted: Callable[[Node], bool], sizes: Mapping[str, int]
) -> list[Node]:
    """A term of a model that there are such kernels for at these sizes of its symbols, with what
    follows; nothing of others."""
    if convolutions.is_convolution(node):
        return convolutions.followed_convolution(node, users, wanted)
    return linear.followed_product(node, users, wanted) if linear.is_product(node, sizes) else []


def shared(node: Node) -> Node | None:
    """What terms read that are one region: all of them with one kernel."""
    return linear.shared_operand(node)


def read(goal: Graph) -> PreparedGoal | None:
    """What such a goal is; None for others."""
    return convolution(goal) or weight_products(goal)


def prepared(goal: Graph, given: Sequence[Node]) -> PreparedGoal | None:
    """What such a goal is whose inputs are these terms of a model, of which the weights are known
    and large enough; None for others."""
    made = read(goal)
    terms = dict(zip(goal.inputs, given, strict=True))
    known = made is not None and all(is_weight(terms.get(each, each)) for each in made.known)
    large = not isinstance(made, WeightProducts) or made.large
    return made if known and large else None
