"""Goals whose results consist of computed parts, and muGraphs that store each part at its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from moved_goals import goal
from mugraphs import kernel, leaf

from taso_mirage.ir.dims import Dim
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import Graph, Node, substitute, topological
from taso_mirage.mugraph.stored_goal import stored_goal
from taso_mirage.operators.ops import term, traits
from taso_mirage.operators.stores import PartLayout, StoredPart, part_layout

A, B = leaf("a", "float32", 6, 10), leaf("b", "float32", 6, 14)
V, W = leaf("v", "float32", 10, 8), leaf("w", "float32", 14, 12)
ROWS, WIDE = leaf("rows", "float32", 4, 8), leaf("wide", "float32", 6, 5)
LEFT, RIGHT = term("matmul", A, V), term("relu", term("matmul", B, W))
LOW = term("matmul", A, leaf("u", "float32", 10, 8))
PAST = leaf("past", "float32", 1, 2, 7, 4)
PROJECTED = term("matmul", leaf("x", "float32", 1, 16), leaf("k", "float32", 16, 8))
KEY = term("transpose", term("reshape", PROJECTED, shape=(1, 1, 2, 4)), perm=(0, 2, 1, 3))


def stacked(axis: int) -> Node:
    return term("concat", *[term("unsqueeze", x, axes=(axis,)) for x in (LEFT, LOW)], axis=axis)


GOALS: dict[str, Sequence[Node]] = {
    "two products": [term("concat", LEFT, RIGHT, axis=1)],
    "carried rows": [term("concat", ROWS, LEFT, axis=0)],
    "carried columns": [term("concat", LEFT, WIDE, axis=1)],
    "stack": [stacked(0)],
    "in turn": [term("reshape", stacked(2), shape=(6, 16))],
    "turned": [term("transpose", term("concat", LEFT, RIGHT, axis=1), perm=(1, 0))],
    "nested": [term("concat", term("concat", LEFT, LOW, axis=0), term("concat", ROWS, ROWS, ROWS, axis=0), axis=1)],
    "cache": [term("concat", PAST, KEY, axis=2)],
    "frame": [term("pad", term("concat", LEFT, RIGHT, axis=1), pads=(1, 0, 2, 3), value=0.5)],
    "a part and a result": [term("concat", LEFT, RIGHT, axis=1), LEFT],
}


def goals() -> dict[str, Graph]:
    return {name: goal(outputs) for name, outputs in GOALS.items()}


def apart(given: Graph) -> Graph:
    """The muGraph with a kernel of two blocks, or of one, for each part."""
    stored = stored_goal(given)
    return Graph(given.inputs, stored.restored([_computed(x) for x in stored.parts.outputs]))


def row_sums() -> Graph:
    """A part that only the first of two blocks along a grid dim stores."""
    x, y = leaf("x", "float32", 4, 6), leaf("y", "float32", 4, 3)
    alone = kernel([(x, (0, -1), -1), (y, (0, -1), -1)], lambda a, b: term("mul", b, b), (2, 2), 1, (0, -1))
    other = kernel([(x, (0,), -1)], lambda t: term("exp", t), (2,), 1, (0,))
    return Graph((x, y), (term("concat", other, alone, axis=1),))


def read_again() -> Graph:
    """A part that a later kernel reads."""
    x = leaf("x", "float32", 4, 6)
    first = kernel([(x, (0,), -1)], lambda t: term("exp", t), (2,), 1, (0,))
    return Graph(
        (x,), (term("concat", first, kernel([(first, (0,), -1)], lambda t: term("relu", t), (2,), 1, (0,)), axis=1),)
    )


def parted() -> dict[str, Graph]:
    """MuGraphs of one result of parts, by names of functions."""
    made = {name.replace(" ", "_"): apart(given) for name, given in goals().items() if len(given.outputs) == 1}
    return made | {"row_sums": row_sums(), "read_again": read_again()}


def _computed(value: Node) -> Node:
    leaves = [n for n in topological([value]) if n.op == "input"]
    rows = [
        x for x in leaves if x.tensor.rank == 2 and value.shape == (x.shape[0], *value.shape[1:]) and x.shape[0] == 6
    ]
    cut = len(rows) == 1 and value.tensor.rank == 2

    def body(*tiles: Node) -> Node:
        made = dict(zip(leaves, tiles, strict=True))
        for node in topological([value], stop=made):
            attrs = dict(node.attrs)
            made[node] = term(node.op, *[made[a] for a in node.args], **attrs)
        return made[value]

    maps = [(0,) if x in rows and cut else (-1,) for x in leaves]
    return kernel(
        [(x, cuts, -1) for x, cuts in zip(leaves, maps, strict=True)],
        body,
        (2 if cut else 1,),
        1,
        (0,) if cut else (-1,),
    )


# ---------------------------------------------------------------- mutants


def wrong_places(parts: Sequence[StoredPart]) -> Iterator[tuple[str, list[StoredPart]]]:
    """Mutants of the places of parts."""
    for i, part in enumerate(parts):
        for kind, place in _wrong(part.place):
            yield kind, [*parts[:i], replace(part, place=place), *parts[i + 1 :]]
        for j in range(i):
            if part.place.type == parts[j].place.type:
                other = list(parts)
                other[i], other[j] = replace(part, place=parts[j].place), replace(parts[j], place=part.place)
                yield "exchanged", other
                yield "overlap", [*parts[:i], replace(part, place=parts[j].place), *parts[i + 1 :]]
        yield "gap", [*parts[:i], *parts[i + 1 :]]


def _wrong(place: Node) -> Iterator[tuple[str, Node]]:
    for node in topological([place]):
        for kind, other in _moved(node):
            yield kind, substitute([place], {node: other})[0]


def _moved(node: Node) -> Iterator[tuple[str, Node]]:
    kind = traits(node).lowering
    if kind is Lowering.SLICE:
        (axis,), (start,), (end,) = (node.attr(name) for name in ("axes", "starts", "ends"))
        for by in (-1, 1):
            if start + by >= 0 and end + by <= node.args[0].shape[axis]:
                yield (
                    "off by one",
                    term("slice", node.args[0], axes=(axis,), starts=(start + by,), ends=(end + by,), steps=(1,)),
                )
    if kind is Lowering.TRANSPOSE and len(set(node.shape)) < len(node.shape):
        x = node.args[0]
        if x.type == node.type:
            yield "other order", x


def wrong_layouts(parts: Sequence[StoredPart]) -> Iterator[tuple[str, list[tuple[tuple[Dim, ...], PartLayout]]]]:
    """Mutants of the places of parts in memory."""
    right = [(part.value.shape, part_layout(part)) for part in parts]
    for i, (shape, layout) in enumerate(right):
        others = [("off by one", replace(layout, start=layout.start + by)) for by in (-1, 1)]
        others += [
            (
                "other stride",
                replace(layout, strides=(*layout.strides[:a], layout.strides[a] + 1, *layout.strides[a + 1 :])),
            )
            for a, n in enumerate(shape)
            if n != 1
        ]
        others += [("overlap", replace(layout, start=other.start)) for _, other in right if other.start != layout.start]
        for kind, other in others:
            yield kind, [*right[:i], (shape, other), *right[i + 1 :]]
        yield "gap", [*right[:i], *right[i + 1 :]]
