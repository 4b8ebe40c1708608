"""Goals whose kernels read weights that were prepared, once, where a session is made: each kind is
one file beside this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from taso_mirage.ir.terms import Graph, Node
from taso_mirage.kernels.cpu import convolutions, linear
from taso_mirage.kernels.cpu.convolutions import Convolution, convolution
from taso_mirage.kernels.cpu.linear import WeightProducts, weight_products
from taso_mirage.kernels.prepared import PreparedKinds, Users
from taso_mirage.operators.expressions import is_weight


def candidates(
    order: Sequence[Node], users: Users, wanted: Callable[[Node], bool], sizes: Mapping[str, int]
) -> Iterator[list[Node]]:
    """The terms of a model, in their order, that may be regions with such kernels at these sizes of
    its symbols, each with its epilogue; first all together that read the same."""
    place = {node: i for i, node in enumerate(order)}
    shared: dict[Node, list[list[Node]]] = {}
    for node in order:
        if found := _members(node, users, wanted, sizes):
            shared.setdefault(linear.shared_operand(node) or node, []).append(found)
    for several in shared.values():
        if len(several) > 1:
            yield sorted({node for each in several for node in each}, key=place.__getitem__)
        yield from several


def _members(node: Node, users: Users, wanted: Callable[[Node], bool], sizes: Mapping[str, int]) -> list[Node]:
    """A term that there are kernels for, with its epilogue; nothing of others."""
    if convolutions.is_convolution(node):
        return convolutions.followed_convolution(node, users, wanted)
    return linear.followed_product(node, users, wanted) if linear.is_product(node, sizes) else []


def read_goal(goal: Graph) -> Convolution | WeightProducts | None:
    """Read a goal of a prepacked-weight kernel; None for other goals."""
    return convolution(goal) or weight_products(goal)


def prepared(goal: Graph, given: Sequence[Node]) -> Convolution | WeightProducts | None:
    """Read a goal of a prepacked-weight kernel whose inputs are these terms of a model; None for
    other goals, and where weights are unknown or too small."""
    made = read_goal(goal)
    terms = dict(zip(goal.inputs, given, strict=True))
    known = made is not None and all(is_weight(terms.get(each, each)) for each in made.known)
    large = not isinstance(made, WeightProducts) or made.large
    return made if known and large else None


CPU_GOALS = PreparedKinds(candidates, read_goal, prepared)
