"""Goals whose results are tensors with new rows where a run says, and muGraphs that store them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from moved_goals import goal
from mugraphs import leaf
from stored_goals import apart

from taso_mirage.ir.dims import Dim
from taso_mirage.ir.terms import Graph, Node, constant
from taso_mirage.operators.ops import term
from taso_mirage.operators.stores import PartLayout, StoredPart

HEADS, ROWS, WIDTH = 2, 7, 4


def projected(batch: int = 1) -> Node:
    """The key of a token, with heads: (batch, heads, 1, width); that of several is given."""
    if batch > 1:
        return term("relu", leaf("new", "float32", batch, HEADS, 1, WIDTH))
    made = term("matmul", leaf("x", "float32", batch, 16), leaf("w", "float32", 16, HEADS * WIDTH))
    return term("transpose", term("reshape", made, shape=(batch, 1, HEADS, WIDTH)), perm=(0, 2, 1, 3))


def cache(name: str = "cache", batch: int = 1) -> Node:
    return leaf(name, "float32", batch, HEADS, ROWS, WIDTH)


def position(batch: int = 1, dtype: str = "int64") -> Node:
    return leaf("at", dtype, batch)


def by_elements(batch: int = 1, name: str = "cache") -> Node:
    """A row as PyTorch's scatter is exported."""
    shape = (batch, HEADS, 1, WIDTH)
    at = term("expand", term("reshape", position(batch), shape=(batch, 1, 1, 1)), shape=shape)
    return term("scatter_elements", cache(name, batch), at, projected(batch), axis=2)


def by_rows() -> Node:
    """A row with the axis of the rows as the first one."""
    turned, row = (term("transpose", x, perm=(2, 0, 1, 3)) for x in (cache(), projected()))
    made = term("scatter_nd", turned, term("reshape", position(), shape=(1, 1)), row)
    return term("transpose", made, perm=(1, 2, 0, 3))


def viewed_row() -> Graph:
    """A row whose columns are one axis of a tile on a GPU, whatever the heads are."""
    made = term("matmul", leaf("x", "float32", 1, 64), leaf("w", "float32", 64, 2 * 32))
    turned = term("transpose", leaf("cache", "float32", 1, 2, 16, 32), perm=(2, 0, 1, 3))
    row = term("scatter_nd", turned, leaf("at", "int64", 1, 1), term("reshape", made, shape=(1, 1, 2, 32)))
    return goal([term("transpose", row, perm=(1, 2, 0, 3))])


def by_grid() -> Node:
    """A row as PyTorch's index_put is exported: with the indices of all axes before it."""
    lead = (1, HEADS, 1)
    grids = [constant(np.indices(lead)[axis][..., None]) for axis in (0, 1)]
    at = term("expand", term("reshape", position(), shape=(1, 1, 1, 1)), shape=(*lead, 1))
    return term("scatter_nd", cache(), term("concat", *grids, at, axis=3), projected())


def several_rows() -> Node:
    made = term("relu", term("matmul", leaf("a", "float32", 3, 8), leaf("b", "float32", 8, 5)))
    return term("scatter_nd", leaf("rows", "float32", 6, 5), leaf("places", "int64", 3, 1), made)


def every_other() -> Node:
    """Constant rows that are no part."""
    made = term("matmul", leaf("a", "float32", 3, 8), leaf("b", "float32", 8, 5))
    return term("scatter_nd", leaf("rows", "float32", 6, 5), constant([[5], [1], [3]]), made)


def below_new_rows() -> Node:
    """Over a concatenation."""
    made = term("matmul", leaf("a", "float32", 1, 8), leaf("b", "float32", 8, 5))
    whole = term("concat", leaf("rows", "float32", 4, 5), leaf("more", "float32", 2, 5), axis=0)
    return term("scatter_nd", whole, leaf("places", "int64", 1, 1), made)


def read_before() -> Sequence[Node]:
    """A row, and a product with what was there: it is read before the row is stored."""
    scores = term("matmul", leaf("q", "float32", 1, HEADS, 1, WIDTH), term("transpose", cache(), perm=(0, 1, 3, 2)))
    return [by_elements(), scores]


GOALS: dict[str, Sequence[Node]] = {
    "row by elements": [by_elements()],
    "row of each sequence": [by_elements(2)],
    "row by rows": [by_rows()],
    "row by a grid": [by_grid()],
    "tensor scatter": [term("tensor_scatter", cache(batch=2), projected(2), position(2), axis=2)],
    "several rows": [several_rows()],
    "constant rows": [every_other()],
    "over a concatenation": [below_new_rows()],
    "two caches": [by_elements(name="keys"), by_elements(name="values")],
    "read before": read_before(),
}


def goals() -> dict[str, Graph]:
    return {name: goal(outputs) for name, outputs in GOALS.items()}


def scattered() -> dict[str, Graph]:
    """MuGraphs of one result each."""
    return {name.replace(" ", "_"): apart(given) for name, given in goals().items() if len(given.outputs) == 1}


# ---------------------------------------------------------------- mutants


def wrong_layouts(parts: Sequence[tuple[StoredPart, PartLayout]]) -> Iterator[tuple[str, list[PartLayout]]]:
    """Mutants of the places of parts in memory: off by one, another stride, another row."""
    right = [layout for _, layout in parts]
    for i, (part, layout) in enumerate(parts):
        others = [("off by one", replace(layout, start=layout.start + by)) for by in (-1, 1)]
        others += [
            ("other stride", replace(layout, strides=(*layout.strides[:a], stride + 1, *layout.strides[a + 1 :])))
            for a, (n, stride) in enumerate(zip(part.value.shape, layout.strides, strict=True))
            if n != 1
        ]
        for k, (name, row) in enumerate(layout.rows):
            rows = [replace(row, count=row.count - 1)] if row.source.op == "input" else []
            rows += [replace(row, index=shifted) for shifted in _shifted(row.index, row.source)]
            others += [
                ("other row", replace(layout, rows=(*layout.rows[:k], (name, x), *layout.rows[k + 1 :]))) for x in rows
            ]
        for kind, other in others:
            yield kind, [*right[:i], other, *right[i + 1 :]]


def _shifted(index: tuple[Dim, ...], source: Node) -> Iterator[tuple[Dim, ...]]:
    for axis, n in enumerate(source.shape):
        if n != 1:
            yield (*index[:axis], n - 1 - index[axis], *index[axis + 1 :])
