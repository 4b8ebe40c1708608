"""Movements where some sizes are known only in a run: those along axes of fixed sizes.

The operands of a core (`moved_goal.py`) are typed again over inputs with names for their sizes. A
movement along an axis of a free size has no such form: the positions that it moves are not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.dims import Dim, Shape, dim_product, evaluate, learn
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, substitute, topological
from taso_mirage.meanings.boxes import regrouped_runs
from taso_mirage.mugraph.free import FreeSizes, at_sizes
from taso_mirage.mugraph.moved_goal import MovedGoal
from taso_mirage.operators.ops import term, traits


@dataclass(frozen=True, slots=True)
class FreeMoves:
    """The movements of a goal at every size: its `inputs` with names for free sizes, the `operands`
    of its core over them, and the `sizes` of the core."""

    moved: MovedGoal
    inputs: tuple[Node, ...]
    operands: tuple[Node, ...]
    sizes: FreeSizes

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


def _over(graph: Graph, inputs: Sequence[Node], operands: Sequence[Node]) -> Graph:
    return Graph(tuple(inputs), substitute(graph.outputs, dict(zip(graph.inputs, operands, strict=True))))


def free_moves(moved: MovedGoal, free: FreeSizes) -> FreeMoves | None:
    """The movements of a goal with these names for its sizes; None where an axis of a free size is
    moved."""
    goal = moved.goal
    inputs = tuple([_named(x, shape) for x, shape in zip(goal.inputs, free.inputs, strict=True)])
    if not moved.moves:
        return FreeMoves(moved, inputs, inputs, free)
    done: dict[Node, Node] = {ABSENT: ABSENT, **dict(zip(goal.inputs, inputs, strict=True))}
    sizes: dict[str, int] = {}
    for x, shape in zip(goal.inputs, free.inputs, strict=True):
        learn(shape, [int(n) for n in x.shape], sizes)
    try:
        for node in topological(moved.operands, stop=done):
            made = _typed(node, [done[a] for a in node.args]) if node.args else node
            if made is None or tuple([evaluate(n, sizes) for n in made.shape]) != node.shape:
                return None
            done[node] = made
    except (TasoMirageError, KeyError):
        return None
    operands = tuple([done[x] for x in moved.operands])
    return FreeMoves(moved, inputs, operands, FreeSizes(tuple([x.shape for x in operands]), free.outputs))


def _named(leaf: Node, shape: Shape) -> Node:
    return Node(leaf.op, (), leaf.attrs, Tensor(leaf.dtype, shape))


def _typed(node: Node, args: Sequence[Node]) -> Node | None:
    """A movement of operands some of whose dims have names; None if it moves such a dim."""
    attrs: dict[str, Any] = dict(node.attrs)
    shape: Shape = args[0].shape
    match traits(node).lowering:
        case Lowering.SLICE:
            moved = [shape[axis] for axis in attrs["axes"]]
        case Lowering.GATHER:
            moved = [shape[attrs["axis"]]]
        case Lowering.CONCAT:
            moved = [x.shape[attrs["axis"]] for x in args]
        case Lowering.PAD:
            ends = zip(attrs["pads"], attrs["pads"][len(shape) :], strict=False)
            moved = [n for n, pads in zip(shape, ends, strict=True) if any(pads)]
        case Lowering.TRANSPOSE:
            moved = []
        case Lowering.EXPAND:
            attrs["shape"] = _spread(shape, attrs["shape"])
            moved = []
        case Lowering.RESHAPE:
            dims = dict(_reshaped(shape, node.args[0].shape, attrs["shape"]))
            attrs["shape"] = tuple([dims[i] for i in range(len(dims))])
            moved = []
        case _:
            return None
    return term(node.op, *args, **attrs) if all(isinstance(n, int) for n in moved) else None


def _spread(shape: Shape, wanted: Sequence[Dim]) -> Shape:
    """The shape of a repeated tensor: its own dims, and those that it repeats."""
    lead = len(wanted) - len(shape)
    return tuple([n if i < lead or shape[i - lead] == 1 else shape[i - lead] for i, n in enumerate(wanted)])


def _reshaped(named: Shape, shape: Shape, wanted: Shape) -> Iterator[tuple[int, Dim]]:
    """The dims `wanted` of a reshape of `shape`, whose dims have the names `named`, by their
    places."""
    for old, new in regrouped_runs([int(n) for n in shape], [int(n) for n in wanted]):
        whole = dim_product(named[i] for i in old)
        yield from zip(new, _parts(whole, [named[i] for i in old], [wanted[j] for j in new]), strict=True)


def _parts(whole: Dim, own: Sequence[Dim], wanted: Sequence[Dim]) -> Sequence[Dim]:
    """Dims that make a whole: one of them has all of its names, if possible one that was there."""
    if isinstance(whole, int):
        return wanted
    found = []
    for j in range(len(wanted)):
        others = dim_product([*wanted[:j], *wanted[j + 1 :]])
        one = whole // others
        if one * others == whole:
            found.append([*wanted[:j], one, *wanted[j + 1 :]])
    return min(found, key=lambda dims: not any(n in own for n in dims if not isinstance(n, int)), default=wanted)
