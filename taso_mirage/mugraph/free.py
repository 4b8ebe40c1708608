"""Sizes of muGraphs that are known only at run time: a search uses one instance of them, and its
results are typed again with names in their place.

The roles of a muGraph are independent of sizes: a label that a kernel cuts into tiles of 8 is cut
in this way at every size, and the last tile is the remainder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import (
    Dim,
    Shape,
    Symbolic,
    bind,
    dim_product,
    evaluate,
    fixed,
    learn,
    parse_dim,
    symbol,
    symbols,
)
from taso_mirage.ir.mugraph import Lowering, part_of, tile_part
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, substitute, topological, variable
from taso_mirage.meanings.conditions import linear
from taso_mirage.mugraph.checkpoint import from_json, to_json
from taso_mirage.mugraph.goal import Labelled, LabelNames, whole_leaf
from taso_mirage.mugraph.tile_work import TileSizes
from taso_mirage.operators.ops import term, traits

SMALL, LARGE = 16, 64
"""Instances are powers of two below the one, and multiples of the other from there on: they have
tiles of every size."""


@dataclass(frozen=True, slots=True)
class FreeSizes:
    """The shapes of a goal's inputs and outputs with names for the sizes that a run fixes: n0, n1,
    ..., each of which is a dim of an input alone. And the `goal` with these names in all of its
    terms, if it moves elements."""

    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    goal: Graph | None = None

    @staticmethod
    def of(graph: Graph) -> FreeSizes:
        """The shapes of a graph."""
        return FreeSizes(tuple([x.shape for x in graph.inputs]), tuple([o.shape for o in graph.outputs]))

    @staticmethod
    def of_goal(graph: Graph) -> FreeSizes:
        """The shapes of a goal with names in its terms, and the goal."""
        return replace(FreeSizes.of(graph), goal=graph)

    def of_lane(self, inputs: Sequence[int], outputs: Sequence[int]) -> FreeSizes:
        """The free sizes of some inputs and outputs, by their positions."""
        goal = None if self.goal is None else lane_of(self.goal, inputs, outputs)
        return FreeSizes(tuple([self.inputs[i] for i in inputs]), tuple([self.outputs[i] for i in outputs]), goal)

    def as_json(self) -> dict[str, Any]:
        """A value from which `of_json` makes the same."""
        shapes = [[list(map(str, shape)) for shape in shapes] for shapes in (self.inputs, self.outputs)]
        return {"shapes": shapes} | ({} if self.goal is None else {"goal": to_json(self.goal)})

    @staticmethod
    def of_json(value: Mapping[str, Any]) -> FreeSizes:
        """The sizes of `as_json`."""
        inputs, outputs = (tuple([tuple(map(parse_dim, shape)) for shape in shapes]) for shapes in value["shapes"])
        return FreeSizes(inputs, outputs, from_json(value["goal"]) if "goal" in value else None)

    def labels(self, goal: Labelled) -> dict[str, Dim] | None:
        """The free labels of the goal with their sizes; None where dims of one label have different
        names, so that a run may give them different sizes."""
        pairs = [
            (axis, dim)
            for labels, shape in (*self._views(goal), *zip(goal.outputs, self.outputs, strict=True))
            for axis, dim in zip(labels, shape, strict=True)
        ]
        found: dict[str, Dim] = {}
        for (label, *more), dim in [pair for pair in pairs if pair[0]]:
            if not more and found.setdefault(label, dim) != dim:
                return None
        known = {**goal.sizes, **found}
        if not all(dim_product(known[x] for x in axis) == dim for axis, dim in pairs):
            return None
        return {label: dim for label, dim in found.items() if isinstance(dim, Symbolic)}

    def _views(self, goal: Labelled) -> list[tuple[Sequence[tuple[str, ...]], Shape]]:
        given = dict(zip(goal.graph.inputs, self.inputs, strict=True))
        return [(axes, given.get(_as_wide(leaf), leaf.shape)) for axes, leaf in _leaves(goal)]


def lane_of(goal: Graph, inputs: Sequence[int], outputs: Sequence[int]) -> Graph:
    """Some outputs of a goal as a goal over inputs of its own, which are the `inputs` of the
    goal."""
    leaves = {goal.inputs[i]: variable(f"i{k}", goal.inputs[i].tensor) for k, i in enumerate(inputs)}
    return Graph(tuple(leaves.values()), substitute([goal.outputs[i] for i in outputs], leaves))


def _leaves(goal: Labelled) -> list[tuple[LabelNames, Node]]:
    return [(axes, goal.leaves[name]) for name, axes in goal.inputs.items()]


def _as_wide(leaf: Node) -> Node:
    """The input of the same shape that a leaf is, or is the numbers of; itself where there is
    none."""
    return leaf.args[0] if traits(leaf).lowering is Lowering.WHOLE else leaf


def free_sizes(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> FreeSizes | None:
    """Canonical names for the free dims of a region; None if one cannot be read from the preceding
    inputs."""
    named = named_dims(inputs)
    made = [tuple([named(dim) for dim in shape]) for shape in (*inputs, *outputs)]
    if any(dim is None for shape in made for dim in shape):
        return None
    whole = [tuple([dim for dim in shape if dim is not None]) for shape in made]
    return FreeSizes(tuple(whole[: len(inputs)]), tuple(whole[len(inputs) :]))


@dataclass(frozen=True, slots=True)
class NamedDims:
    """The names of the `dims` of some shapes, and the sizes by `symbols` that follow from them."""

    dims: Mapping[Dim, Dim]
    symbols: Mapping[str, Dim]

    def __call__(self, dim: Dim) -> Dim | None:
        """A dim by the names: one of those that have names, or a polynomial of sizes that follow
        from them. None where it is a quotient without a name."""
        if dim in self.dims or isinstance(dim, int):
            return self.dims.get(dim, dim)
        if not symbols(dim) <= self.symbols.keys() or any(not isinstance(f, str) for m, _ in dim.terms for f, _ in m):
            return None
        return bind(dim, self.symbols)


def named_dims(shapes: Iterable[Shape]) -> NamedDims:
    """The names n0, n1, ... of the free dims of shapes, in the order in which they come, but for
    those that follow from the ones before: after p + s and s, p is their difference."""
    dims, known = dict[Dim, Dim](), dict[str, Dim]()
    named = NamedDims(dims, known)
    for dim in [dim for shape in shapes for dim in shape]:
        if named(dim) is None:
            dims[dim] = symbol(f"n{len(dims)}")
            while more := {k: v for each, name in dims.items() for k, v in _told(each, name, known).items()}:
                known |= more  # the new name may tell a size of a dim before
    return named


def _told(dim: Dim, name: Dim, known: Mapping[str, Dim]) -> dict[str, Dim]:
    """The only size of a dim that is not known, if it is the dim less the others."""
    (left, *more) = sorted(symbols(dim) - known.keys()) or ("",)
    parts = linear(dim, left) if left and not more else None
    if parts is None or parts[0] not in (1, -1):
        return {}
    slope, rest = parts
    return {left: (name - bind(rest, known)) * slope}


def instance(size: int) -> int:
    """The size with which a search replaces a free one, so that its label exists and has tiles."""
    if size >= LARGE:
        return -(-size // LARGE) * LARGE
    return max(2, 1 << (size - 1).bit_length()) if size <= SMALL else -(-size // SMALL) * SMALL


def free_goal(
    goal: Labelled, sizes: TileSizes, names: Mapping[str, Dim]
) -> tuple[tuple[Node, ...], dict[str, Node], tuple[Shape, ...]] | None:
    """The inputs of a goal, the leaf of each of its views, and the shapes of its results, with
    names for some sizes; None for a constant that has such a size."""
    known = {**goal.sizes, **sizes, **names}
    made: dict[Node, Node] = {}
    for view, axes in goal.inputs.items():
        leaf, given = goal.leaves[view], _as_wide(goal.leaves[view])
        shape = tuple([dim_product(known[x] for x in axis) for axis in axes])
        if shape != leaf.shape and whole_leaf(given) not in goal.graph.inputs:
            return None
        made[given] = given if shape == leaf.shape else _renamed(given, shape, goal, names)
        made[whole_leaf(given)] = whole_leaf(made[given])
        made[leaf] = made[given] if leaf is given else term(leaf.op, made[given])
    results = [_dims(o.shape, axes, known, names) for o, axes in zip(goal.graph.outputs, goal.results, strict=True)]
    inputs = tuple([made.get(x, x) for x in goal.graph.inputs])
    return inputs, {view: made[leaf] for view, leaf in goal.leaves.items()}, tuple(results)


def _dims(shape: Shape, axes: LabelNames, known: Mapping[str, Dim], names: Mapping[str, Dim]) -> Shape:
    """A shape with names for its free dims."""
    pairs = zip(shape, axes, strict=True)
    return tuple([n if names.keys().isdisjoint(own) else dim_product(known[x] for x in own) for n, own in pairs])


def _renamed(leaf: Node, shape: Shape, goal: Labelled, names: Mapping[str, Dim]) -> Node:
    """A leaf with names in its shape; where it has one dim for several, these are fixed."""
    whole = whole_leaf(leaf)
    if whole is leaf:
        return _typed(leaf, shape)
    (axes,) = [each.axes for each in goal.known if each.node is whole]
    return term("reshape", _typed(whole, _dims(whole.shape, axes, {**goal.sizes, **names}, names)), shape=shape)


def free_tiles(
    tiles: TileSizes, sizes: TileSizes, names: Mapping[str, Dim], open: Mapping[str, int] = MappingProxyType({})
) -> dict[str, Dim]:
    """The tiles of a kernel where some labels have names for their sizes: those that it does not
    cut stay whole, of those that it cuts the last is the rest.

    A label that is `open` is cut in any case, into tiles of at least its number there.
    """

    alike: Counter[tuple[str, int]] = Counter()

    def tile(label: str, size: int) -> Dim:
        whole = names.get(label)
        if whole is None or size == 1 < sizes[label]:
            return size
        if size == sizes[label] and label not in open:
            return whole
        size = max(size, open.get(label, 1))
        alike[str(whole), size] += 1
        return tile_part(whole, size, alike[str(whole), size])

    return {label: tile(label, size) for label, size in tiles.items()}


def at_sizes(graph: Graph, sizes: Mapping[str, Dim]) -> Graph:
    """A muGraph at sizes of its names, which its tiles divide.

    Raises IllTyped where they do not.
    """
    inputs = {x: _typed(x, tuple([evaluate(n, sizes) for n in x.shape])) for x in graph.inputs}
    return _rebuilt(graph, inputs, sizes)


def at_sizes_of(goal: Graph, graph: Graph, free: FreeSizes | None) -> Graph:
    """A muGraph for a goal at the sizes that the goal has.

    Raises Unsupported where its tiles do not divide them.
    """
    sizes: dict[str, int] = {}
    for shape, leaf in zip(() if free is None else free.inputs, goal.inputs, strict=free is not None):
        learn(shape, [int(n) for n in leaf.shape], sizes)
    return at_sizes(graph, part_sizes(graph, sizes))


def with_free_names(graph: Graph, free: FreeSizes) -> Graph:
    """A graph whose terms have no sizes of their own with the names of the free ones.

    Raises IllTyped, or Unsupported where its results have other sizes than those.
    """
    made = _rebuilt(graph, {x: _typed(x, shape) for x, shape in zip(graph.inputs, free.inputs, strict=True)}, {})
    if [o.shape for o in made.outputs] != list(free.outputs):
        raise Unsupported(f"results of {[o.shape for o in made.outputs]} where the model has {free.outputs}")
    return made


def with_free_sizes(graph: Graph, free: FreeSizes, sizes: Mapping[str, int]) -> Graph:
    """The graph with free names, at these sizes."""
    return at_sizes(with_free_names(graph, free), sizes)


def _typed(node: Node, shape: Shape) -> Node:
    return Node(node.op, (), node.attrs, Tensor(node.dtype, shape))


def _rebuilt(graph: Graph, inputs: Mapping[Node, Node], sizes: Mapping[str, Dim]) -> Graph:
    done: dict[Node, Node] = {ABSENT: ABSENT, **inputs}
    for node in topological([*graph.inputs, *graph.outputs]):
        if node not in done and not node.args:
            own = tuple([(key, fixed(value, sizes)) for key, value in node.attrs])
            done[node] = Node(node.op, (), own, node.type)
        if node not in done:
            args = [done[a] for a in node.args]
            attrs = {key: _attribute(value, sizes) for key, value in node.attrs}
            if traits(node).lowering is Lowering.KERNEL:
                attrs["body"] = _with_whole_tiles(node, args, sizes)
                grid = fixed(node.attr("grid"), sizes)
                attrs["grid"] = tuple([_blocks(node, args, g, count) for g, count in enumerate(grid)])
            done[node] = term(node.op, *args, **attrs)
    return Graph(tuple([done[x] for x in graph.inputs]), tuple([done[o] for o in graph.outputs]))


def _with_whole_tiles(kernel: Node, args: Sequence[Node], sizes: Mapping[str, Dim]) -> Graph:
    """The body of a kernel, whose tiles that are whole along a dim of an operand are whole there
    for other operands, too."""
    body: Graph = kernel.attr("body")
    leaves = {}
    for leaf, old, new in zip(body.inputs, kernel.args, args, strict=True):
        dims = zip(leaf.shape, old.shape, new.shape, strict=True)
        leaves[leaf] = _typed(leaf, tuple([n if own == m else fixed(own, sizes) for own, m, n in dims]))
    return _rebuilt(body, leaves, sizes)


def _blocks(kernel: Node, args: Sequence[Node], g: int, count: Dim) -> Dim:
    """The number of blocks along a dim of a grid: of blocks of one element, the size of the
    operand's dim that they cut."""
    for leaf, arg, axes in zip(kernel.attr("body").inputs, args, kernel.attr("imap"), strict=True):
        size: Dim = arg.shape[axes[g]] if axes[g] >= 0 and leaf.shape[axes[g]] == 1 else count
        if isinstance(size, Symbolic):
            return size
    return count


def _attribute(value: object, sizes: Mapping[str, Dim]) -> object:
    return at_sizes(value, sizes) if isinstance(value, Graph) else fixed(value, sizes)


def part_sizes(graph: Graph, sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes of all names of a muGraph, those of parts among them, from the sizes that a run fixes.

    Raises Unsupported where a size is no multiple of a part's.
    """
    found = dict(sizes)
    for name in _names(graph):
        each = part_of(symbol(name))
        if each is not None:
            whole, found[name] = evaluate(each[0], sizes), each[1]
            if whole % each[1]:
                raise Unsupported(f"{each[0]} is {whole}, no multiple of the {each[1]} of its tiles")
    return found


def _names(graph: Graph) -> set[str]:
    found: set[str] = set()
    for node in topological([*graph.inputs, *graph.outputs]):
        types = node.type if isinstance(node.type, tuple) else (node.tensor,)
        found |= {
            name for type in types if isinstance(type, Tensor) for dim in type.shape or () for name in symbols(dim)
        }
        found |= {name for _, value in node.attrs if isinstance(value, Graph) for name in _names(value)}
    return found
