"""Index maps as lazy tensors: a view where the map is affine, tensors side by side where its
conditions cut an axis, else a choice for each element."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from taso_mirage.emit.cpu.index_text import integer, row
from taso_mirage.emit.cpu.lazy_tensors import (
    Axis,
    BufferSizes,
    Concat,
    CppBuffer,
    LoopConstant,
    LoopValue,
    Mapped,
    view_of,
)
from taso_mirage.emit.statements import Expression, Let, mentioned, v
from taso_mirage.ir.dims import Dim, bind, symbol
from taso_mirage.ir.terms import ABSENT, Node
from taso_mirage.meanings.conditions import Conditions, index_names, linear, of_sizes_nonnegative
from taso_mirage.meanings.index_maps import IndexMap, IndexMapMeaning, position, tile_map
from taso_mirage.operators.movements import index_map, is_moved


def operand_sources(node: Node) -> list[Node]:
    """The tensors that a term of a muGraph reads, each once: for an operand that only moves
    elements, those that it moves."""
    given = [arg for arg in node.args if arg is not ABSENT]
    return list(dict.fromkeys(x for arg in given for x in (index_map(arg).sources if is_moved(arg) else (arg,))))


PARTS = 9
"""The largest number of parts in which the conditions of an index map cut a tensor; with more, each
element has a choice."""


def parted(found: IndexMap, whole: Collection[int], part: Callable[[IndexMap], LoopValue]) -> LoopValue:
    """A tensor whose parts along the axes `whole` have no conditions on these axes, where there are
    few; `part` makes each of them."""
    parts = _cut(found, whole)
    if len(parts) > PARTS:
        return part(found)
    return _joined(found, whole, part)


def _cut(found: IndexMap, whole: Collection[int]) -> list[IndexMap]:
    place = _boundary(found, whole)
    return [found] if place is None else [x for half in _halves(found, *place) for x in _cut(half, whole)]


def _joined(found: IndexMap, whole: Collection[int], part: Callable[[IndexMap], LoopValue]) -> LoopValue:
    place = _boundary(found, whole)
    if place is None:
        return part(found)
    axis, at = place
    halves = [_joined(half, whole, part) for half in _halves(found, axis, at)]
    args = [x for half in halves for x in (half.args if isinstance(half, Concat) and half.axis == axis else (half,))]
    shape = [n if i != axis else sum([x.shape[axis] for x in args]) for i, n in enumerate(args[0].shape)]
    return Concat(found.dtype, tuple(shape), axis, args=tuple(args))


def _halves(found: IndexMap, axis: int, at: Dim) -> list[IndexMap]:
    meaning, end = IndexMapMeaning(), found.shape[axis]
    return [meaning.slice(found, axis, 0, at), meaning.slice(found, axis, at, end)]


def _boundary(found: IndexMap, whole: Collection[int]) -> tuple[int, Dim] | None:
    """An axis, and a place in it where a condition on it alone changes."""
    varying = {position(i) for i in range(len(found.shape))} | {name for name, _ in found.rows}
    conditions: list[Conditions] = [x.conditions for x in found.pieces] + [row.conditions for _, row in found.rows]
    for condition in (e for each in conditions for e in each):
        for axis in whole:
            if index_names(condition) & varying != {position(axis)}:
                continue
            at = _change(condition, position(axis))
            if at is not None and of_sizes_nonnegative(at - 1) and of_sizes_nonnegative(found.shape[axis] - at - 1):
                return axis, at
    return None


def _change(condition: Dim, name: str) -> Dim | None:
    """The first value at which condition >= 0 differs from that of 0; None if it is not linear."""
    parts = linear(condition, name)
    if parts is None or not isinstance(parts[0], int):
        return None
    slope, rest = parts
    return -(rest // slope) if slope > 0 else rest // -slope + 1


def values_at(found: IndexMap, sources: Mapping[Node, LoopValue]) -> LoopValue:
    """The elements of an index map over lazy tensors."""
    shape = found.shape
    if not found.pieces:
        number = LoopConstant(found.dtype, (), 0.0 if found.fill is None else found.fill)
        return view_of(number, shape, ()) if shape else number
    args = tuple([sources[node] for node in found.sources])
    piece = found.pieces[0]
    source = sources[piece.source]
    if len(found.pieces) == 1 and not piece.conditions:
        made = _strided(found, source) if isinstance(source, CppBuffer) else _view(found, source)
        if made is not None:
            return made
    return Mapped(found.dtype, shape, found, args=args)


def _strided(found: IndexMap, source: CppBuffer) -> CppBuffer | None:
    """The memory itself, with other strides: its start may depend on rows that all elements
    share."""
    start, strides = source.start, list[Dim]()
    for at, stride in zip(found.pieces[0].index, source.strides, strict=True):
        start = start + at * stride
    for axis, n in enumerate(found.shape):
        parts = linear(start, position(axis)) if n != 1 else (0, start)
        if parts is None or _varies(parts[0], found):
            return None
        stride, start = parts
        strides.append(stride)
    if _varies(start, found):
        return None
    return replace(source, shape=found.shape, strides=tuple(strides), start=start)


def _varies(e: Dim, found: IndexMap) -> bool:
    """Whether an integer is another one for some elements."""
    names = index_names(e)
    if any(position(axis) in names for axis in range(len(found.shape))):
        return True
    rows = dict(found.rows)
    return any(_varies(x, found) for name in names if name in rows for x in (*rows[name].index, *rows[name].conditions))


def _view(found: IndexMap, source: LoopValue) -> LoopValue | None:
    """A view, where the index along each axis of the source is affine."""
    axes: list[Axis] = []
    for at in found.pieces[0].index:
        rest, terms = at, list[tuple[int, Dim]]()
        for axis in range(len(found.shape)):
            parts = linear(rest, position(axis))
            if parts is None:
                return None
            slope, rest = parts
            terms += [(axis, slope)] if slope != 0 else []
        names = {position(axis) for axis in range(len(found.shape))} | {name for name, _ in found.rows}
        if any(index_names(e) & names for e in (rest, *(k for _, k in terms))):
            return None
        axes.append((rest, tuple(terms)))
    return view_of(source, found.shape, axes)


@dataclass
class MovedTile:
    """The tile `name` of an operand that is a term of movements over `sources`: its elements, and
    the statements that name rows and pointers, `moved` if they differ between iterations."""

    name: str
    sources: Mapping[Node, CppBuffer]
    numbers: Mapping[Node, LoopValue]
    """The sources that are constants of one element."""
    types: Mapping[str, str]
    """The C++ types of the elements of the sources, by their names."""
    shape: BufferSizes
    starts: Sequence[Dim]
    extents: Mapping[str, Dim]
    """The numbers of blocks and iterations, which `starts` mention."""
    made: list[Let] = field(default_factory=list)
    moved: list[Let] = field(default_factory=list)

    def value(self, found: IndexMap) -> LoopValue:
        """The elements of the tile; the index map is that of the whole operand."""
        whole = [axis for axis, (n, tile) in enumerate(zip(found.shape, self.shape, strict=True)) if n == tile]

        def part(each: IndexMap) -> LoopValue:
            shape = [n if axis in whole else self.shape[axis] for axis, n in enumerate(each.shape)]
            tile = tile_map(each, shape, self.starts, self.extents)
            made = values_at(tile, {**self.sources, **self.numbers})
            return self._pointed(made, tile) if isinstance(made, CppBuffer) else made

        return parted(found, whole, part)

    def _pointed(self, x: CppBuffer, tile: IndexMap) -> CppBuffer:
        """The memory from a pointer of its own."""
        places: dict[str, Dim] = {}
        for name, each in tile.rows:
            known = self._named(row(each, self.sources[each.source], places), "size_t")
            places[name] = symbol(known)
        start = v[x.name] + integer(bind(x.start, places)) if x.start != 0 else v[x.name]
        return replace(x, name=self._named(start, f"{self.types[x.name]}* __restrict"), start=0)

    def _named(self, value: Expression, type: str) -> str:
        count = len(self.made) + len(self.moved)
        name = f"{self.name}_{count}" if count else self.name
        differs = set(mentioned(value)) & {"iteration", *(each.name for each in self.moved)}
        (self.moved if differs else self.made).append(Let(name, value, f"const {type}"))
        return name
