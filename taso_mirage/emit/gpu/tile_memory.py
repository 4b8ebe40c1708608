"""The memory of a kernel: tiles of its operands that a block loads, and of its results that it
stores."""

from __future__ import annotations

from dataclasses import dataclass

from taso_mirage.emit.gpu.block_products import digits_of_words, loaded_x
from taso_mirage.emit.gpu.block_term import BlockTerm
from taso_mirage.emit.gpu.offsets import inner, place
from taso_mirage.emit.gpu.packed_weights import apart, loaded_words
from taso_mirage.emit.gpu.program import TritonBuffer
from taso_mirage.emit.gpu.small_floats import SMALL_FLOATS, loaded
from taso_mirage.emit.gpu.tiles import HALF_FLOATS, Tile, Tiles
from taso_mirage.emit.statements import Statement, sum_of, tl, when
from taso_mirage.errors import Unsupported
from taso_mirage.ir.mugraph import LoopPhase
from taso_mirage.ir.terms import Node, is_float, numpy_dtype


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
        self.arguments = [Argument(tiles.lines.name(x.attr("name")), buffer) for x, buffer in named]
        self.results = [Argument(tiles.lines.name("out"), b) for b in term.writes if b is not None]
        self.before: set[str] = set()
        self.largest, self.in_flight = 1, 0

    @property
    def tensors(self) -> list[tuple[str, TritonBuffer]]:
        """The names of all pointers, with their buffers."""
        return [(each.name, each.buffer) for each in (*self.arguments, *self.results)]

    def measure(self, x: Tile) -> None:
        """Note the size of a tile."""
        self.largest = max(self.largest, self.tiles.lane_count(x))

    def load(self, i: int, leaf: Node, **hint: str) -> Tile:
        """The tile of operand i in the shape of `leaf`: the operand itself, or with some dims
        cut."""
        argument, shape = self.arguments[i], leaf.shape
        groups = self.term.split.get(leaf) or [[d] for d in range(len(shape))]
        axes = tuple(None if n == 1 else self.tiles.axes_of.fresh(n) for n in shape)
        present = [a for a in axes if a is not None]
        tile = self.term.body.inputs[i].shape
        at = place(self.tiles, argument.buffer, tile, inner(groups, shape, axes), present, self.term.cuts(i))
        stored, stage = argument.buffer.dtype, self.term.stage[leaf]
        if is_float(stored) and stored not in (*HALF_FLOATS, *SMALL_FLOATS, "float32"):
            raise Unsupported(f"{argument.name} of {stored}; float16, bfloat16 and float32 are computed with")
        products = self.term.products if leaf in self.term.split else {}
        x = loaded_x(products, self.tiles, leaf, argument.name, argument.buffer, tile, self.term.cuts(i))
        if x is not None:
            name = self.tiles.lines.let(stage, f"{argument.name}_tile", x)
        else:
            masks = self.tiles.masks(present)
            name = loaded(self.tiles.lines, stage, argument.name, stored, at, *masks, **hint)
        found = Tile(name, shape, axes, leaf.dtype, stored, stage, True, innermost=axes[-1] if axes else None)
        if stage is LoopPhase.LOOP and leaf not in self.term.split:
            self.in_flight += self.tiles.lane_count(found) * numpy_dtype(stored).itemsize
        self.measure(found)
        return found

    def words(self, node: Node) -> Tile:
        """The numbers of an operand of bytes, loaded as words."""
        i = self.term.body.inputs.index(node.args[0])
        (name, buffer), leaf = (self.arguments[i].name, self.arguments[i].buffer), self.term.body.inputs[i]
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
        at = place(
            self.tiles, argument.buffer, self.term.body.outputs[o].shape, inner(groups, x.shape, axes), present, cuts
        )
        alone = [g for axis, n, _, g in cuts if axis < 0 and n != 1]
        pointer = sum_of([argument.name, *at])
        stored: Statement = tl.store(pointer, self.tiles.spread(x, axes), *self.tiles.masks(present))
        if alone:
            stored = when(" and ".join(f"{g} == 0" for g in alone), stored, why="all blocks along it have the same")
        self.tiles.lines.write(LoopPhase.AFTER, stored)
