"""Movements where some sizes are known only in a run.

The goal is moved (`moved_goal.py`) at its own sizes and at others. Every number in the terms found
(where a part begins, how many elements a pad has) is then written as a polynomial of the sizes. A
polynomial that a few sizes suggest may be wrong at others, so a movement along an axis of a free
size needs a proof for all sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from math import prod
from typing import Any

from taso_mirage.errors import TasoMirageError, Unsupported
from taso_mirage.ir.dims import Dim, dim_product, evaluate, learn, symbol
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import Graph, Node, Tensor, substitute, topological
from taso_mirage.mugraph.congruence import proved_moved
from taso_mirage.mugraph.free import FreeSizes, at_sizes
from taso_mirage.mugraph.moved_goal import MovedGoal, moved_goal
from taso_mirage.operators.ops import term, traits


@dataclass(frozen=True, slots=True)
class FreeMoves:
    """The movements of a goal at every size: its `inputs` with names for free sizes, the `operands`
    of its core over them, and the `sizes` of the core. `whole`: the core over its operands, if
    elements move."""

    moved: MovedGoal
    inputs: tuple[Node, ...]
    operands: tuple[Node, ...]
    sizes: FreeSizes
    whole: Graph | None = None

    def restored(self, graph: Graph) -> Graph:
        """A graph over the inputs of the core with names for their sizes, as one over those of the
        goal."""
        return _over(graph, self.inputs, self.operands) if self.moved.moves else graph

    def at(self, core: Graph, sizes: Mapping[str, int]) -> Graph:
        """The core at sizes of the names, as a graph over the inputs of the goal."""
        if not self.moved.moves:
            return core
        made = at_sizes(Graph(self.inputs, self.operands), sizes)
        return _over(core, made.inputs, made.outputs)

    @property
    def lengthens(self) -> bool:
        """Whether elements move along an axis of a free size."""
        return any(map(moves_free_axis, topological(self.operands)))


def _over(graph: Graph, inputs: Sequence[Node], operands: Sequence[Node]) -> Graph:
    return Graph(tuple(inputs), substitute(graph.outputs, dict(zip(graph.inputs, operands, strict=True))))


def free_moves(moved: MovedGoal, free: FreeSizes) -> FreeMoves | None:
    """The movements of a goal with these names for its sizes; None where they are not the same for
    every size, or not proved to be."""
    if moved.moves:
        return None if free.goal is None else _named_moves(moved, free.goal)
    pairs = zip(moved.goal.inputs, free.inputs, strict=True)
    inputs = tuple([Node(x.op, (), x.attrs, Tensor(x.dtype, shape)) for x, shape in pairs])
    return FreeMoves(moved, inputs, inputs, free)


@lru_cache(maxsize=1024)
def _named_moves(moved: MovedGoal, named: Graph) -> FreeMoves | None:
    """The movements of a goal that has these terms for every size."""
    sizes: dict[str, int] = {}
    for x, own in zip(named.inputs, moved.goal.inputs, strict=True):
        learn(x.shape, [int(n) for n in own.shape], sizes)
    fit = _PolynomialFit(sizes)
    try:
        several = [moved_goal(at_sizes(named, point), moved.spread) for point in fit.points]
        if several[0] != moved:
            return None
        operands = tuple([fit.term(each) for each in zip(*[m.operands for m in several], strict=True)])
        outputs = [fit.term(each) for each in zip(*[m.core.outputs for m in several], strict=True)]
        inputs = [fit.term(each) for each in zip(*[m.core.inputs for m in several], strict=True)]
        whole = substitute(outputs, dict(zip(inputs, operands, strict=True)))
    except (TasoMirageError, LookupError, ValueError, TypeError):
        return None
    sizes_of_core = FreeSizes(tuple([x.shape for x in operands]), tuple([o.shape for o in named.outputs]))
    made = FreeMoves(moved, named.inputs, operands, sizes_of_core, Graph(named.inputs, whole))
    if made.lengthens and not (_stays_inside(operands, named.inputs) and _proved(named, whole)):
        return None
    return made


@lru_cache(maxsize=1024)
def _proved(named: Graph, whole: tuple[Node, ...]) -> bool:
    return proved_moved(named.outputs, whole, _is_short)


def _is_short(node: Node) -> bool:
    """Whether no element moves along an axis of a free size; such movements are tested at several
    sizes, with the whole goal."""
    return not any(map(moves_free_axis, topological([node])))


def _stays_inside(operands: Sequence[Node], inputs: Sequence[Node]) -> bool:
    """Whether parts lie inside of what they are parts of at every size, 0 included; the dims of the
    inputs are at least 0. The last 8 of n are no such part."""
    bounds: list[Dim] = []
    for node in topological(operands):
        bounds += node.shape
        if traits(node).lowering is Lowering.SLICE:
            for axis, start, end in zip(node.attr("axes"), node.attr("starts"), node.attr("ends"), strict=True):
                bounds += [start, end, node.args[0].shape[axis] - end] if node.args[0].shape[axis] != end else [start]
        if traits(node).lowering is Lowering.PAD:
            bounds += node.attr("pads")
    known = [0, *(dim for x in inputs for dim in x.shape)]
    return all(isinstance(e, int) or any(map(_is_sum_of_sizes, (e - n for n in known))) for e in bounds)


def _is_sum_of_sizes(e: Dim) -> bool:
    return (
        e >= 0
        if isinstance(e, int)
        else all(isinstance(f, str) for m, _ in e.terms for f, _ in m) and all(c >= 0 for _, c in e.terms)
    )


def moves_free_axis(node: Node) -> bool:
    """Whether a term moves elements along an axis whose size a run gives."""
    match traits(node).lowering:
        case Lowering.SLICE:
            moved = [node.args[0].shape[axis] for axis in node.attr("axes")]
        case Lowering.GATHER | Lowering.PICK:
            moved = [node.args[0].shape[node.attr("axis")]]
        case Lowering.CONCAT:
            moved = [x.shape[node.attr("axis")] for x in node.args]
        case Lowering.PAD:
            shape, pads = node.args[0].shape, node.attr("pads")
            moved = [n for n, *ends in zip(shape, pads, pads[len(shape) :], strict=False) if any(n != 0 for n in ends)]
        case _:
            return False
    return not all(isinstance(n, int) for n in moved)


@dataclass
class _PolynomialFit:
    """Terms whose numbers are polynomials of named sizes, from terms at some `points`: at the
    `sizes`, and where one or two of them are twice as large. The polynomials have at most two
    factors in each product, all different."""

    sizes: Mapping[str, int]
    made: dict[tuple[Node, ...], Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = sorted(self.sizes)
        self.larger = [frozenset(each) for count in range(3) for each in combinations(names, count)]
        self.points = [{name: n * (1 + (name in own)) for name, n in self.sizes.items()} for own in self.larger]

    def term(self, nodes: Sequence[Node]) -> Node:
        """The term that is each of these at its point.

        Raises Unsupported where they differ in more than numbers.
        """
        key = tuple(nodes)
        if key not in self.made:
            self.made[key] = key[0] if len(set(key)) == 1 else self._term(key)
        return self.made[key]

    def _term(self, nodes: tuple[Node, ...]) -> Node:
        first = nodes[0]
        if len({(n.op, len(n.args), *(name for name, _ in n.attrs)) for n in nodes}) > 1:
            raise Unsupported(f"{first.op} at some sizes is another operator at others")
        attrs = {name: self._value([dict(n.attrs)[name] for n in nodes]) for name, _ in first.attrs}
        if not first.args:
            shape = self._value([n.shape for n in nodes])
            return Node(first.op, (), tuple(attrs.items()), Tensor(first.dtype, shape))
        made = term(first.op, *[self.term(args) for args in zip(*[n.args for n in nodes], strict=True)], **attrs)
        for point, node in zip(self.points, nodes, strict=True):
            if isinstance(made.type, Tensor) and tuple([evaluate(n, point) for n in made.shape]) != node.shape:
                raise Unsupported(f"{first.op} {made.type} has other sizes at {point}")
        return made

    def _value(self, values: Sequence[Any]) -> Any:
        first = values[0]
        if all(type(v) is int for v in values):
            return self._number(values)
        if isinstance(first, tuple) and len({len(v) for v in values}) == 1:
            return tuple([self._value(each) for each in zip(*values, strict=True)])
        if any(v != first for v in values):
            raise Unsupported(f"{str(first)[:80]} depends on sizes that a run gives")
        return first

    def _number(self, values: Sequence[int]) -> Dim:
        """The polynomial with these values: for each set of sizes that are larger, the difference
        that only they make together is a product of their distances."""
        at = dict(zip(self.larger, values, strict=True))
        found: Dim = 0
        for own in self.larger:
            subsets = [each for each in self.larger if each <= own]
            made = sum((-1) ** (len(own) - len(each)) * at[each] for each in subsets)
            step = prod(self.sizes[name] for name in own)
            if made % step:
                raise Unsupported(f"{values[0]} is no polynomial of the sizes {dict(self.sizes)}")
            found = found + dim_product([made // step, *(symbol(name) - self.sizes[name] for name in sorted(own))])
        return found
