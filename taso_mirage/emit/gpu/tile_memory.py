"""The memory of a kernel: tiles of its operands that a block loads, and of its results that it
stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from taso_mirage.emit.gpu.block_products import digits_of_words, loaded_x
from taso_mirage.emit.gpu.block_term import BlockTerm
from taso_mirage.emit.gpu.moved_loads import MovedLoad
from taso_mirage.emit.gpu.moved_tensors import MovedTensor, OperandTensor
from taso_mirage.emit.gpu.offsets import TileCut, inner, place
from taso_mirage.emit.gpu.packed_weights import apart, loaded_words
from taso_mirage.emit.gpu.program import TritonBuffer
from taso_mirage.emit.gpu.small_floats import SMALL_FLOATS, loaded
from taso_mirage.emit.gpu.tiles import HALF_FLOATS, Tile, Tiles
from taso_mirage.emit.statements import Expression, Statement, sum_of, tl, when
from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Shape
from taso_mirage.ir.mugraph import LoopPhase
from taso_mirage.ir.terms import Node, Tensor, is_float, numpy_dtype


@dataclass(frozen=True, slots=True)
class Argument:
    """A parameter of the function, and its buffer."""

    name: str
    buffer: TritonBuffer


class TileMemory:
    """`before`: the tiles that are loaded before the wait for the preceding kernel: weights in
    blocks. `largest`: elements of the largest tile; `in_flight`: bytes that an iteration loads."""

    def __init__(self, term: BlockTerm, tiles: Tiles) -> None:
        self.term, self.tiles = term, tiles
        named = zip(term.body.inputs, term.reads, strict=True)
        self.arguments = [self._arguments(x, tensor) for x, tensor in named]
        self.results = [Argument(tiles.lines.name("out"), b) for b in term.writes if b is not None]
        self.rows = [[Argument(tiles.lines.name(x.name), x) for x in each.buffer.rows] for each in self.results]
        self.before: set[str] = set()
        self.largest, self.in_flight = 1, 0

    @property
    def tensors(self) -> list[tuple[str, TritonBuffer]]:
        """The names of all pointers, with their buffers."""
        arguments = [each for operand in (*self.arguments, *self.rows) for each in operand]
        return [(each.name, each.buffer) for each in (*arguments, *self.results)]

    def _arguments(self, leaf: Node, tensor: OperandTensor) -> list[Argument]:
        """The parameters that an operand takes: several if it is moved elements of several
        tensors."""
        if isinstance(tensor, TritonBuffer):
            return [Argument(self.tiles.lines.name(leaf.attr("name")), tensor)]
        return [Argument(self.tiles.lines.name(buffer.name), buffer) for buffer in tensor.buffers.values()]

    def measure(self, x: Tile) -> None:
        """Note the size of a tile."""
        self.largest = max(self.largest, self.tiles.lane_count(x))

    def load(self, i: int, leaf: Node, **hint: str) -> Tile:
        """The tile of operand i in the shape of `leaf`: the operand itself, or with some dims
        cut."""
        operand, shape = self.term.reads[i], leaf.shape
        groups = self.term.split.get(leaf) or [[d] for d in range(len(shape))]
        axes = tuple(None if n == 1 else self.tiles.axes_of.fresh(n) for n in shape)
        stored, stage = operand.dtype, self.term.stage[leaf]
        if is_float(stored) and stored not in (*HALF_FLOATS, *SMALL_FLOATS, "float32"):
            named = ", ".join(each.name for each in self.arguments[i])
            raise Unsupported(f"{named} of {stored}; float16, bfloat16 and float32 are computed with")
        parts = inner(groups, shape, axes)
        if isinstance(operand, MovedTensor):
            found = self._moved(i, operand, Tile("", shape, axes, leaf.dtype, stored, stage), parts, **hint)
        else:
            name = self._dense(i, operand, leaf, axes, parts, **hint)
            found = Tile(name, shape, axes, leaf.dtype, stored, stage, True, innermost=axes[-1] if axes else None)
        if stage is LoopPhase.LOOP and leaf not in self.term.split:
            self.in_flight += self.tiles.lane_count(found) * numpy_dtype(stored).itemsize
        self.measure(found)
        return found

    def _dense(
        self,
        i: int,
        buffer: TritonBuffer,
        leaf: Node,
        axes: Sequence[int | None],
        parts: Sequence[Sequence[tuple[int, int]]],
        **hint: str,
    ) -> str:
        """The name of the tile of an operand that is a tensor in memory."""
        (argument,), tile, stage = self.arguments[i], self.term.body.inputs[i].shape, self.term.stage[leaf]
        present = [a for a in axes if a is not None]
        at = place(self.tiles, buffer, tile, parts, present, self.term.cuts(i))
        products = self.term.products if leaf in self.term.split else {}
        x = loaded_x(products, self.tiles, leaf, argument.name, buffer, tile, self.term.cuts(i))
        if x is not None:
            return self.tiles.lines.let(stage, f"{argument.name}_tile", x)
        masks = self.tiles.masks(present)
        return loaded(self.tiles.lines, stage, argument.name, buffer.dtype, at, *masks, **hint)

    def _moved(
        self, i: int, operand: MovedTensor, x: Tile, parts: Sequence[Sequence[tuple[int, int]]], **hint: str
    ) -> Tile:
        """The tile x of an operand that is moved elements of tensors."""
        names = {node: each.name for node, each in zip(operand.buffers, self.arguments[i], strict=True)}
        tile = self.term.body.inputs[i].shape
        load = MovedLoad(self.tiles, operand, names, tile, parts, self.term.cuts(i), x.stage)
        code, present = load.code(**hint)
        axes = tuple([a if a in present else None for a in x.axes])
        return replace(x, code=code, axes=axes, zero=load.is_zero_outside, innermost=load.innermost())

    def words(self, node: Node) -> Tile:
        """The numbers of an operand of bytes, loaded as words."""
        i = self.term.body.inputs.index(node.args[0])
        (argument,), leaf = self.arguments[i], self.term.body.inputs[i]
        name, buffer = argument.name, argument.buffer
        digits = digits_of_words(self.term.ahead[node]) if node in self.term.ahead else None
        bits, stage = self.term.words[node], self.term.stage[node]
        words = loaded_words(self.tiles, name, buffer, leaf, stage, self.term.cuts(i), digits)
        self.before |= {words.code} if digits is not None else set()
        return apart(self.tiles, words, node.dtype, bits, node.op)

    def store(self, o: int, x: Tile, argument: Argument) -> None:
        """Write a result to its place."""
        x = self.tiles.ready(x)
        groups = self.term.merged.get(self.term.body.outputs[o]) or [[d] for d in range(len(x.shape))]
        axes = tuple(
            None if n == 1 else a if a is not None else self.tiles.axes_of.fresh(n)
            for a, n in zip(x.axes, x.shape, strict=True)
        )
        present = [a for a in axes if a is not None]
        cuts = self.term.result_cuts(o)
        lanes, tile = inner(groups, x.shape, axes), self.term.body.outputs[o].shape
        if argument.buffer.part is not None and argument.buffer.part.rows:
            at = self._row_places(argument, tile, lanes, present, cuts)
        else:
            at = place(self.tiles, argument.buffer, tile, lanes, present, cuts)
        alone = [g for axis, n, _, g in cuts if axis < 0 and n != 1]
        pointer = sum_of([argument.name, *at])
        stored: Statement = tl.store(pointer, self.tiles.spread(x, axes), *self.tiles.masks(present))
        if alone:
            stored = when(" and ".join(f"{g} == 0" for g in alone), stored, why="all blocks along it have the same")
        self.tiles.lines.write(LoopPhase.AFTER, stored)

    def _row_places(
        self,
        argument: Argument,
        tile: Shape,
        lanes: Sequence[Sequence[tuple[int, int]]],
        present: Sequence[int],
        cuts: Sequence[TileCut],
    ) -> list[Expression]:
        """The offsets of a part whose rows are read first."""
        buffer, given = argument.buffer, self.rows[self.results.index(argument)]
        assert buffer.part is not None
        sources = [row.source for _, row in buffer.part.rows if row.source.op != "constant"]
        operand = MovedTensor(
            buffer.part.map(Tensor(buffer.dtype, buffer.shape)), dict(zip(sources, buffer.rows, strict=True))
        )
        names = {source: each.name for source, each in zip(sources, given, strict=True)}
        return MovedLoad(self.tiles, operand, names, tile, lanes, cuts, LoopPhase.AFTER).places(present)
