"""Terms of a model as a graph of fixed sizes over inputs of its own, which is equal for equal
regions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from taso_mirage.ir.dims import Dim, fixed
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, is_constant, topological, variable
from taso_mirage.mugraph.free import at_sizes
from taso_mirage.operators.ops import term, traits
from taso_mirage.operators.work import sized

SymbolSizes = Mapping[str, int]


def operator_alone(node: Node, sizes: SymbolSizes) -> Graph:
    """One operator, with all its results, over canonical inputs.

    Raises LookupError, TypeError or TasoMirageError where it has no fixed sizes.
    """
    results = (
        [node] if isinstance(node.type, Tensor) else [term("item", node, index=i) for i in range(len(node.type or ()))]
    )
    return canonical_region([node, *results], results, sizes)[0]


def canonical_region(
    members: Sequence[Node], results: Sequence[Node], sizes: Mapping[str, Dim]
) -> tuple[Graph, dict[Node, Node]]:
    """The results of `members` at these sizes, which may be names, over inputs i0, i1, ..., and the
    new term of every operand. Scalars stay constants."""
    outside = {a for n in members for a in n.args} - set(members)
    done: dict[Node, Node] = {ABSENT: ABSENT}
    inputs: list[Node] = []
    for node in topological(results, stop=outside):
        for arg in node.args:
            if arg not in done:
                done[arg] = leaf = _leaf(arg, len(inputs), sizes)
                inputs += [] if is_constant(leaf) else [leaf]
        attrs = tuple([(k, _attribute(node, v, sizes)) for k, v in node.attrs])
        done[node] = Node(node.op, tuple([done[a] for a in node.args]), attrs, sized(node.type, sizes))
    return Graph(tuple(inputs), tuple([done[r] for r in results])), done


def _attribute(node: Node, value: object, sizes: Mapping[str, Dim]) -> object:
    """An attribute at these sizes; the body of a loop has the loop's."""
    if isinstance(value, Graph) and traits(node).lowering is Lowering.STEPS:
        return at_sizes(value, sizes)
    return fixed(value, sizes)


def _leaf(node: Node, place: int, sizes: Mapping[str, Dim]) -> Node:
    scalar = is_constant(node) and math.prod(node.shape) == 1
    return node if scalar else variable(f"i{place}", sized(node.tensor, sizes))
