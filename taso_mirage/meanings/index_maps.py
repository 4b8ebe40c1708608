"""The meaning `index_maps`: for a term that only moves elements (slice, concat, pad, window,
gather, reshape, transpose, expand), the element of its operands at each position.

An index is a polynomial over the variables `i0`, `i1`, ... of a position, with quotients where a
reshape merges dims. A back end prints it as the address of a load or a store, so the term is never
computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim, Shape, bind, dim_product, gathered, symbol
from taso_mirage.ir.terms import Node, Tensor
from taso_mirage.meanings.base import Meaning
from taso_mirage.meanings.conditions import Conditions, index_names
from taso_mirage.meanings.indices import Indices
from taso_mirage.meanings.shapes import SHAPES


@dataclass(frozen=True, slots=True)
class ReadRow:
    """A row that is read first: the integer of the tensor `source` at `index`, plus `count` if it
    is negative, clamped to 0 <= row < count. It is only read where every one of `conditions` is at
    least 0."""

    source: Node
    index: tuple[Dim, ...]
    count: Dim
    conditions: Conditions = ()


@dataclass(frozen=True, slots=True)
class IndexPiece:
    """Where every one of `conditions` is at least 0, the element is that of `source` at `index`."""

    source: Node
    index: tuple[Dim, ...]
    conditions: Conditions = ()


@dataclass(frozen=True, slots=True)
class IndexMap:
    """A tensor whose element at the position `i0`, `i1`, ... is given by the piece whose conditions
    hold; by at most one. Elsewhere it is the number `fill`. `rows` are the variables of `index` and
    `conditions` that are read from tensors of integers."""

    dtype: str
    shape: Shape
    pieces: tuple[IndexPiece, ...]
    fill: float | None = None
    rows: tuple[tuple[str, ReadRow], ...] = ()

    @property
    def sources(self) -> tuple[Node, ...]:
        """The tensors that are read, each once: those of elements, then those of rows."""
        read = (*(piece.source for piece in self.pieces), *(row.source for _, row in self.rows))
        return tuple(dict.fromkeys(read))


def position(axis: int) -> str:
    """The name of the variable of a position along an axis."""
    return f"i{axis}"


class IndexMapMeaning(Meaning[IndexMap]):
    """Primitives that compute have no meaning here: they raise Unsupported.

    Sizes may be symbolic where no condition depends on their values.
    """

    def __init__(self) -> None:
        self.rows = 0

    def leaf(self, node: Node) -> IndexMap:
        """A tensor in memory."""
        shape = node.shape
        return IndexMap(node.dtype, shape, (IndexPiece(node, _positions(shape)),))

    def shape(self, a: IndexMap) -> Shape:
        return a.shape

    def dtype(self, a: IndexMap) -> str:
        return a.dtype

    def reshape(self, a: IndexMap, shape: Sequence[Dim]) -> IndexMap:
        groups = _regrouped(a.shape, shape)
        variables = _variables(shape)
        found: dict[str, Dim] = {}
        for old, new in groups:
            linear: Dim = 0
            for axis in new:
                linear = linear * shape[axis] + _at(shape, axis)
            for axis in reversed(old):
                rest = variables.divide(linear, a.shape[axis]) if axis != old[0] else 0
                found[position(axis)] = linear - rest * a.shape[axis]
                linear = rest
        return _moved(a, shape, found)

    def transpose(self, a: IndexMap, perm: Sequence[int]) -> IndexMap:
        shape = tuple([a.shape[i] for i in perm])
        return _moved(a, shape, {position(i): _at(shape, j) for j, i in enumerate(perm)})

    def expand(self, a: IndexMap, shape: Sequence[Dim]) -> IndexMap:
        lead = len(shape) - len(a.shape)
        found = {position(i): 0 if n == 1 else _at(shape, i + lead) for i, n in enumerate(a.shape)}
        return _moved(a, shape, found)

    def slice(self, a: IndexMap, axis: int, start: Dim, stop: Dim, step: int = 1) -> IndexMap:
        shape = SHAPES.slice(_type(a), axis, start, stop, step).shape or ()
        return _moved(a, shape, {position(axis): _at(shape, axis) * step + start})

    def concat(self, xs: Sequence[IndexMap], axis: int) -> IndexMap:
        type = SHAPES.concat([_type(x) for x in xs], axis)
        shape, pieces = type.shape or (), list[IndexPiece]()
        start: Dim = 0
        rows: dict[str, ReadRow] = {}
        for x in xs:
            at = _at(shape, axis) - start
            bounds = [at, x.shape[axis] - 1 - at]
            part = self._apart(_moved(x, shape, {position(axis): at}, bounds), rows)
            pieces, rows = [*pieces, *part.pieces], rows | dict(part.rows)
            start = start + x.shape[axis]
        return IndexMap(type.dtype, shape, tuple(pieces), _one_fill(xs), tuple(rows.items()))

    def _apart(self, a: IndexMap, taken: Mapping[str, ReadRow]) -> IndexMap:
        """The map with other names for rows whose names are `taken` by others."""
        if all(taken.get(name, row) == row for name, row in a.rows):
            return a
        names = {name: self._name() for name, _ in a.rows}
        places = {old: symbol(new) for old, new in names.items()}

        def renamed(index: Sequence[Dim]) -> tuple[Dim, ...]:
            return tuple([bind(e, places) for e in index])

        pieces = [IndexPiece(p.source, renamed(p.index), renamed(p.conditions)) for p in a.pieces]
        rows = [(names[n], ReadRow(r.source, renamed(r.index), r.count, renamed(r.conditions))) for n, r in a.rows]
        return replace(a, pieces=tuple(pieces), rows=tuple(rows))

    def _name(self) -> str:
        self.rows += 1
        return f"row{self.rows - 1}"

    def pad(
        self,
        a: IndexMap,
        low: Sequence[Dim],
        high: Sequence[Dim],
        value: float = 0,
        interior: Sequence[int] | None = None,
    ) -> IndexMap:
        if any(interior or ()):
            raise Unsupported("padding between elements")
        shape = SHAPES.pad(_type(a), low, high, value).shape or ()
        places = {position(i): _at(shape, i) - n for i, n in enumerate(low)}
        padded = [i for i, (m, n) in enumerate(zip(low, high, strict=True)) if (m, n) != (0, 0)]
        bounds = [e for i in padded for e in (places[position(i)], a.shape[i] - 1 - places[position(i)])]
        found = _moved(a, shape, places, bounds)
        return replace(found, fill=_one_fill([a, replace(a, fill=value)]))

    def window(
        self, a: IndexMap, axes: Sequence[int], sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
    ) -> IndexMap:
        shape = SHAPES.window(_type(a), axes, sizes, strides, dilations).shape or ()
        found: dict[str, Dim] = {}
        for k, axis in enumerate(axes):
            found[position(axis)] = _at(shape, axis) * strides[k] + _at(shape, len(a.shape) + k) * dilations[k]
        return _moved(a, shape, found)

    def take(self, a: IndexMap, indices: IndexMap, axis: int) -> IndexMap:
        rank, count = len(indices.shape), a.shape[axis]
        shape = (*a.shape[:axis], *indices.shape, *a.shape[axis + 1 :])
        row = self._row(_moved(indices, shape, {position(i): _at(shape, axis + i) for i in range(rank)}), count)
        places = {position(i): _at(shape, i + rank - 1) for i in range(axis + 1, len(a.shape))}
        return self._at_row(a, row, axis, shape, places)

    def take_along(self, a: IndexMap, indices: IndexMap, axis: int) -> IndexMap:
        shape = SHAPES.take_along(_type(a), _type(indices), axis).shape or ()
        return self._at_row(a, self._row(indices, a.shape[axis]), axis, shape, {})

    def _at_row(self, a: IndexMap, row: ReadRow, axis: int, shape: Shape, places: Mapping[str, Dim]) -> IndexMap:
        """The elements of `a` at a row of an axis, and at other places of other axes."""
        places = dict(places)
        if (known := _regular_row(row)) is not None:
            return _moved(a, shape, places | {position(axis): known})
        name = self._name()
        read = replace(a, rows=((name, row), *a.rows))  # the rows of `a` may depend on it
        found = _moved(read, shape, places | {position(axis): symbol(name)})
        return replace(found, rows=tuple([(n, row if n == name else r) for n, r in found.rows]))

    def _row(self, indices: IndexMap, count: Dim) -> ReadRow:
        """The row that each position reads."""
        if len(indices.pieces) != 1 or indices.pieces[0].conditions or indices.rows:
            raise Unsupported("rows that are chosen by indices of several parts")
        (piece,) = indices.pieces
        return ReadRow(piece.source, piece.index, count)

    def __getattribute__(self, name: str) -> Any:
        if name in (
            "constant",
            "extents",
            "iota",
            "map",
            "cast",
            "contract",
            "reduce",
            "cumulate",
            "put",
        ):
            raise Unsupported(f"{name} computes elements")
        return super().__getattribute__(name)


# ---------------------------------------------------------------- indices


def _type(a: IndexMap) -> Tensor:
    return Tensor(a.dtype, a.shape)


def _at(shape: Sequence[Dim], axis: int) -> Dim:
    """The position along an axis: 0 where it has one element."""
    return 0 if shape[axis] == 1 else symbol(position(axis))


def _positions(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    return tuple([_at(shape, axis) for axis in range(len(shape))])


def _variables(shape: Sequence[Dim]) -> Indices:
    """The variables of the positions of a tensor, with their ranges."""
    found = Indices()
    for axis, n in enumerate(shape):
        found.variable(position(axis), n)
    return found


def tile_map(a: IndexMap, shape: Sequence[Dim], starts: Sequence[Dim], extents: Mapping[str, Dim]) -> IndexMap:
    """The tile of this shape that begins at `starts`, which are polynomials of the variables of
    `extents`, each at least 0 and below its extent."""
    places = {position(axis): _at(shape, axis) + start for axis, start in enumerate(starts)}
    return _moved(a, shape, places, extents=extents)


_NO_EXTENTS: Mapping[str, Dim] = {}


def _moved(
    a: IndexMap,
    shape: Sequence[Dim],
    places: Mapping[str, Dim],
    bounds: Sequence[Dim] = (),
    extents: Mapping[str, Dim] = _NO_EXTENTS,
) -> IndexMap:
    """The elements of `a` at new positions: those of a tensor of `shape` at which all `bounds` are
    at least 0. An axis that `places` lacks keeps its position."""
    variables = _variables(shape)
    variables.extents |= {name: row.count for name, row in a.rows} | dict(extents)
    own = {position(axis): _at(shape, axis) for axis in range(min(len(shape), len(a.shape)))}
    places = own | dict(places)

    def bound(index: Sequence[Dim]) -> tuple[Dim, ...]:
        return tuple([variables.bind(e, places) for e in index])

    def tightened(old: Conditions) -> Conditions | None:
        """The conditions at the new positions; None where they never hold."""
        found = [variables.tidy(e) for e in (*bound(old), *bounds)]
        return None if False in found else tuple(dict.fromkeys(e for e in found if e is not True))

    pieces = [IndexPiece(p.source, bound(p.index), c) for p in a.pieces if (c := tightened(p.conditions)) is not None]
    rows = [
        (name, ReadRow(row.source, bound(row.index), row.count, c))
        for name, row in a.rows
        if (c := tightened(row.conditions)) is not None
    ]
    return IndexMap(a.dtype, tuple(shape), tuple(pieces), a.fill, _read_rows(pieces, rows))


def _regular_row(row: ReadRow) -> Dim | None:
    """The row as a polynomial of positions, if it is that of a constant whose elements have regular
    distances along each of its axes."""
    if row.source.op != "constant" or not isinstance(row.count, int) or row.conditions:
        return None
    rows = row_numbers(row.source.attr("value").numpy(), row.count)
    if not rows.size:
        return None
    first, found = int(rows.flat[0]), np.full(rows.shape, int(rows.flat[0]))
    known: Dim = first
    for axis, n in enumerate(rows.shape):
        step = int(rows[tuple([int(i == axis) for i in range(rows.ndim)])]) - first if n > 1 else 0
        found = found + step * np.indices(rows.shape)[axis]
        known = known + row.index[axis] * step
    return known if np.array_equal(rows, found) else None


def row_numbers(rows: NDArray[Any], count: int) -> NDArray[Any]:
    """The rows that integers mean: negative ones count from the end, and all are clamped."""
    clamped: NDArray[Any] = np.clip(np.where(rows < 0, rows + count, rows), 0, count - 1)
    return clamped


def _read_rows(pieces: Sequence[IndexPiece], rows: Sequence[tuple[str, ReadRow]]) -> tuple[tuple[str, ReadRow], ...]:
    """The rows on which the elements depend; a row may depend on rows before it."""
    names = set[str]().union(*[index_names(e) for piece in pieces for e in (*piece.index, *piece.conditions)])
    kept: list[tuple[str, ReadRow]] = []
    for name, row in reversed(rows):
        if name in names:
            kept.append((name, row))
            names = names.union(*[index_names(e) for e in (*row.index, *row.conditions)])
    return tuple(kept[::-1])


def _regrouped(old: Sequence[Dim], new: Sequence[Dim]) -> list[tuple[Sequence[int], Sequence[int]]]:
    """Groups of adjacent axes of two shapes that have the same elements; as small as possible."""
    if (split := gathered(new, old)) is not None:
        return [((i,), tuple(part)) for i, part in enumerate(split)]
    if (merged := gathered(old, new)) is not None:
        rest = [i for i, n in enumerate(old) if n == 1 and not any(i in part for part in merged)]
        return [*((tuple(part), (i,)) for i, part in enumerate(merged)), *(((i,), ()) for i in rest)]
    if dim_product(old) != dim_product(new):
        raise Unsupported(f"a reshape of {tuple(old)} to {tuple(new)}")
    if any(n == 0 for n in (*old, *new)):
        raise Unsupported(f"no elements in {tuple(old)}")
    if not all(isinstance(n, int) for n in (*old, *new)):
        return [(range(len(old)), range(len(new)))]
    ends = {int(dim_product(old[:i])): i for i in range(len(old) + 1)}
    cuts = [(ends[n], j) for j in range(len(new) + 1) if (n := int(dim_product(new[:j]))) in ends]
    cuts = [(0, 0), *dict(cuts[:-1]).items(), (len(old), len(new))]
    return [(range(m, i), range(n, j)) for (m, n), (i, j) in pairwise(cuts) if (m, n) != (i, j)]


def _one_fill(xs: Sequence[IndexMap]) -> float | None:
    """The number that fills all tensors that are filled."""
    fills = {x.fill for x in xs if x.fill is not None}
    if len(fills) > 1:
        raise Unsupported(f"padding with several numbers, {sorted(fills)}")
    return next(iter(fills), None)
