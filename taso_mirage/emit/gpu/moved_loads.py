"""Loads of moved elements (`moved_tensors.py`): the address of each lane by an index map.

A piece that is one affine map is a load with another start and other strides. Conditions are masks,
pieces are chosen with `tl.where`, and rows are integers that are loaded first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taso_mirage.emit.gpu.global_layouts import strides
from taso_mirage.emit.gpu.moved_tensors import MovedTensor
from taso_mirage.emit.gpu.offsets import TileCut, block_starts, lanes_along, offsets_along, wide_size
from taso_mirage.emit.gpu.small_floats import SMALL_FLOATS, loaded
from taso_mirage.emit.gpu.tiles import Tiles, known_count, marked
from taso_mirage.emit.statements import Expression, every, expression, mentioned, sum_of, tl, v
from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim, Floor, Shape, Symbolic, summed_terms, symbol, symbols
from taso_mirage.ir.mugraph import LoopPhase
from taso_mirage.ir.terms import Node, is_float
from taso_mirage.meanings.conditions import Conditions, index_names
from taso_mirage.meanings.index_maps import IndexPiece, ReadRow, position, row_numbers
from taso_mirage.meanings.indices import Indices

RUNS = 16
"""The largest number of regular runs of a constant that a program computes and does not load."""


@dataclass
class MovedLoad:
    """The load of one tile: `axes` are those of each dim of the operand, each with the number of
    the dim's elements in one step along it; `names` are the pointers of its sources."""

    tiles: Tiles
    operand: MovedTensor
    names: Mapping[Node, str]
    tile: Shape
    axes: Sequence[Sequence[tuple[int, int]]]
    cuts: Sequence[TileCut]
    stage: LoopPhase
    rows: dict[str, tuple[str, list[int]]] = field(init=False, default_factory=dict)
    """The code of each row that is loaded, and its axes."""

    def __post_init__(self) -> None:
        self.map = self.operand.map
        self.buffers = self.operand.buffers
        self.dims = {position(i): i for i in range(len(self.operand.shape))}
        self.is_wide = any(not isinstance(n, int) for n in self.operand.shape) or any(
            symbols(e) - {*self.dims, *(name for name, _ in self.map.rows)} for e in self.operand.dims
        )
        self.ranges = Indices()
        for name, i in self.dims.items():
            self.ranges.variable(name, self.operand.shape[i])
        for name, row in self.map.rows:
            self.ranges.variable(name, row.count)

    def code(self, **hint: str) -> tuple[str, list[int]]:
        """The name of the tile, and its axes: those along which its elements differ."""
        for name, row in self.map.rows:
            self.rows[name] = self._row(name, row)
        present = self._axes([e for p in self.map.pieces for e in (*p.index, *p.conditions)])
        if not self.map.pieces:
            return str(self._fill()), []
        parts = [self._piece(i, present, **hint) for i in range(len(self.map.pieces))]
        found = parts[-1]
        for piece, part in zip(reversed(self.map.pieces[:-1]), reversed(parts[:-1]), strict=True):
            found = tl.where(every(self._conditions(piece.conditions, present)), part, found)
        return str(found) if len(parts) == 1 else self.tiles.lines.let(self.stage, "moved", found), present

    def places(self, present: Sequence[int]) -> list[Expression]:
        """The offsets of the only piece: those of a store."""
        for name, row in self.map.rows:
            self.rows[name] = self._row(name, row)
        (piece,) = self.map.pieces
        return self._offsets(self._flat(piece.source, piece.index), present)

    def innermost(self) -> int | None:
        """The axis along which the first piece is contiguous in memory."""
        for piece in self.map.pieces[:1]:
            strides, _ = self._affine(self._flat(piece.source, piece.index))
            dims = [self.dims[name] for name, stride in strides.items() if stride == 1]
            return next((self.axes[d][-1][0] for d in dims if self.axes[d]), None)
        return None

    # ------------------------------------------------------------ pieces and rows

    def _piece(self, i: int, present: Sequence[int], **hint: str) -> Expression:
        """The elements of a piece, and those of the fill where it is not, in the last piece."""
        piece = self.map.pieces[i]
        if piece.source.op == "constant":
            return self._constant(piece, i == len(self.map.pieces) - 1, present)
        at = self._offsets(self._flat(piece.source, piece.index), present)
        missing = [a for a in present if a not in self._axes(piece.index)]
        at += [self.tiles.index(present, a) * 0 for a in missing]  # so that masks are not larger
        masks = [*self._conditions(piece.conditions, present), *self.tiles.masks(present)]
        name, dtype = self.names[piece.source], self.operand.dtype
        fill = self._fill() if i == len(self.map.pieces) - 1 else expression(0)
        if dtype in SMALL_FLOATS and self.map.fill:
            raise Unsupported(f"{dtype} that is padded with {self.map.fill}")
        return v[loaded(self.tiles.lines, self.stage, name, dtype, at, *masks, fill=fill, **hint)]

    def _fill(self) -> Expression:
        """The number where no piece is."""
        return _shown(self.map.fill or 0, is_float(self.map.dtype))

    def _row(self, name: str, row: ReadRow) -> tuple[str, list[int]]:
        """A row that is read: negative ones count from the end, and all are clamped."""
        present = self._axes([*row.index, *row.conditions])
        lines, index = self.tiles.lines, self._axes(row.index)
        if row.source.op == "constant":
            numbers = row_numbers(row.source.attr("value").numpy(), known_count([row.count]))
            read = self._table(numbers, self._flat(row.source, row.index), present)
            return lines.let(self._stage(read), name, read), present
        at = self._offsets(self._flat(row.source, row.index), present)
        at += [self.tiles.index(present, a) * 0 for a in present if a not in index]
        masks = [*self._conditions(row.conditions, present), *self.tiles.masks(present)]
        read = tl.load(sum_of([self.names[row.source], *at]), *masks, other=0).to(tl.int64)
        stage = self._stage(read)
        given = v[lines.let(stage, name, read)]
        count = expression(wide_size(self.tiles, row.count))
        counted = tl.where(given < 0, given + count, given)
        clamped = tl.minimum(tl.maximum(counted, 0), row.count - 1 if isinstance(row.count, int) else count - 1)
        return lines.let(stage, f"{name}_clamped", clamped), present

    def _constant(self, piece: IndexPiece, last: bool, present: Sequence[int]) -> Expression:
        """The numbers of a constant, and those of the fill where the last piece is not."""
        flat, dtype = self._flat(piece.source, piece.index), tl["int1" if self.map.dtype == "bool" else self.map.dtype]
        found = self._table(piece.source.attr("value").numpy(), flat, present)
        if last and piece.conditions:
            found = tl.where(every(self._conditions(piece.conditions, present)), found, self._fill())
        return tl.cast(found, dtype)

    def _table(self, numbers: NDArray[Any], flat: Dim, present: Sequence[int]) -> Expression:
        """The element of a constant at a place: it consists of runs with regular distances."""
        at, runs = self._value(flat, present), regular_runs(numbers.reshape(-1))
        if len(runs) > RUNS:
            raise Unsupported(f"a constant of {len(runs)} regular runs, more than {RUNS}; make it an input")
        found, end = expression(0), 0
        for i, (start, first, step) in enumerate(reversed(runs)):
            own = _shown(first, numbers.dtype.kind == "f") if not step else at * step + (first - start * step)
            found, end = (tl.where(at < end, own, found) if i else own), start
        return found

    def _stage(self, value: Expression) -> LoopPhase:
        """The section of a value: that of the loop if it reads the loop's variable."""
        inside = {"t", *(code for code, _ in self.rows.values())}
        return self.stage if inside.intersection(mentioned(value)) else LoopPhase.INVARIANT

    def _conditions(self, conditions: Conditions, present: Sequence[int]) -> list[Expression]:
        return [self._holds(e, present) for e in conditions]

    def _holds(self, e: Dim, present: Sequence[int]) -> Expression:
        """e >= 0 as a comparison of positions with a number, from which the compiler knows how many
        neighbouring lanes have one mask."""
        terms = e.terms if isinstance(e, Symbolic) else ()
        less = summed_terms([(m, -c) for m, c in terms if m and c < 0])
        rest = e + less
        if less == 0 or self._axes([rest]):
            left, right = summed_terms([(m, c) for m, c in terms if m and c > 0]), e
            return self._value(left, present) >= self._value(left - right, present)
        return self._value(less, present) < self._value(rest + 1, present)

    def _axes(self, indices: Iterable[Dim]) -> list[int]:
        """The axes along which some indices differ, in the order of the operand's dims."""
        names = {name for e in indices for name in index_names(e)}
        own = {axis for name in names if name in self.dims for axis, _ in self.axes[self.dims[name]]}
        own |= {axis for name in names if name in self.rows for axis in self.rows[name][1]}
        return [axis for axes in self.axes for axis, _ in axes if axis in own]

    # ------------------------------------------------------------ addresses

    @property
    def is_zero_outside(self) -> bool:
        """Whether the lanes beyond the sizes hold 0."""
        return not self.map.fill and all(piece.source.op != "constant" for piece in self.map.pieces)

    def _flat(self, source: Node, index: Sequence[Dim]) -> Dim:
        """The number of an element in memory."""
        found: Dim = self.buffers[source].start if source in self.buffers else 0
        dense = strides(source.shape, range(len(source.shape)))
        own = self.buffers[source].strides if source in self.buffers else dense
        for e, stride in zip(index, own, strict=True):
            found = found + e * stride
        return found

    def _affine(self, flat: Dim) -> tuple[dict[str, Dim], Dim]:
        """The stride along each dim of the operand, and the rest."""
        strides: dict[str, Dim] = {}
        rest: Dim = 0
        for monomial, c in flat.terms if isinstance(flat, Symbolic) else (((), flat),):
            own = [atom for atom, _ in monomial if not isinstance(atom, str) or atom in self.dims or atom in self.rows]
            whole = summed_terms([(monomial, c)])
            if len(own) == 1 and own[0] in self.dims and (own[0], 1) in monomial:
                factor = summed_terms([(tuple([x for x in monomial if x[0] != own[0]]), c)])
                strides[str(own[0])] = strides.get(str(own[0]), 0) + factor
            else:
                rest = rest + whole
        return strides, rest

    def _offsets(self, flat: Dim, present: Sequence[int]) -> list[Expression]:
        """The offsets of an element's number: for each dim the position times the stride, and the
        rest."""
        (strides, rest), found = self._affine(flat), list[Expression]()
        for name, i in self.dims.items():
            if (stride := strides.get(name, 0)) != 0:
                starts, lanes = self._position(i, present)
                size = self.operand.shape[i]
                found += offsets_along(self.tiles, size, stride, starts, lanes, self.tile[i])
        return [*found, *([self._value(rest, present)] if rest != 0 else [])]

    def _position(self, i: int, present: Sequence[int]) -> tuple[list[Expression], list[Expression]]:
        """The beginning of the tile along a dim of the operand, and the lanes."""
        starts = block_starts(self.tiles, self.operand.shape[i], self.tile, i, self.cuts)
        return starts, lanes_along(self.tiles, self.axes[i], present)

    def _value(self, e: Dim, present: Sequence[int]) -> Expression:
        """A polynomial of positions, rows and sizes, in 64 bits if a run gives sizes."""
        if isinstance(e, int):
            return expression(e)
        found: Expression | None = None
        for monomial, c in sorted(e.terms, key=lambda term: (term[1] < 0, not term[0])):
            factors = [self._atom(atom, present) for atom, power in monomial for _ in range(power)]
            factors += [expression(abs(c))] if abs(c) != 1 or not factors else []
            product = factors[0]
            for factor in factors[1:]:
                product = product * factor
            if found is None:
                found = product if c > 0 else product * -1
            else:
                found = found + product if c > 0 else found - product
        assert found is not None
        return found

    def _atom(self, atom: str | Floor, present: Sequence[int]) -> Expression:
        if isinstance(atom, Floor):
            return self._quotient(atom, present)
        if atom in self.rows:
            code, axes = self.rows[atom]
            return marked(code, [a in axes for a in present]) if axes else v[code]
        if atom not in self.dims:
            return expression(wide_size(self.tiles, symbol(atom)))
        starts, lanes = self._position(self.dims[atom], present)
        whole = sum_of([*starts, *lanes]) if starts or lanes else expression(0)
        return tl.cast(whole, tl.int64) if self.is_wide and (starts or lanes) else whole

    def _quotient(self, atom: Floor, present: Sequence[int]) -> Expression:
        """A quotient that is rounded down; the language rounds it to 0."""
        above, below = self._value(atom.numerator, present), self._value(atom.denominator, present)
        if self.ranges.nonnegative(atom.numerator):
            return above // below
        return tl.where(above < 0, above - (below - 1), above) // below


def _shown(number: float, is_float: bool) -> Expression:
    """A number of a program."""
    if not is_float or not number:
        return expression(int(number))
    return expression(float(number)) if math.isfinite(number) else v.float(f'"{number}"')


def regular_runs(numbers: NDArray[Any]) -> list[tuple[int, Any, int]]:
    """The runs of numbers with a regular distance, each as long as can be: the start, the first
    number and the distance. It is 0 in runs of floats, which are equal."""
    found, start = list[tuple[int, Any, int]](), 0
    while start < len(numbers):
        rest = numbers[start:]
        step = int(rest[1]) - int(rest[0]) if len(rest) > 1 and rest.dtype.kind in "iu" else 0
        differs = np.flatnonzero(rest != rest[0] + step * np.arange(len(rest)))
        end = start + int(differs[0]) if len(differs) else len(numbers)
        found.append((start, rest[0].item(), step if end - start > 1 else 0))
        start = end
    return found
