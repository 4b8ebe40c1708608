"""The fused epilogue of a convolution: element by element, on a tile of its results in
registers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from taso_mirage.emit.gpu.axes import TileAxes
from taso_mirage.emit.gpu.lines import Lines
from taso_mirage.emit.gpu.products import tile_product
from taso_mirage.emit.gpu.tiles import Tile, Tiles
from taso_mirage.emit.statements import Statement, let
from taso_mirage.errors import Unsupported
from taso_mirage.ir.mugraph import LoopPhase
from taso_mirage.ir.terms import Node, Tensor, variable
from taso_mirage.operators.interpret import interpret, retyped

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The `body` of a convolution, by the names of its operands after data and weights. A tile has
    channels by positions, or with `channels_last` positions by channels."""

    node: Node
    names: Sequence[str]
    channels_last: bool = False

    @property
    def of_results(self) -> list[str]:
        """The operands with one element for each result."""
        rows = zip(self.names, self.node.args[2:], strict=True)
        return [name for name, x in rows if x.shape == self.node.shape]

    @property
    def of_channels(self) -> list[str]:
        """The operands with one element for each channel."""
        return [name for name in self.names if name not in self.of_results]

    def statements(self, result: str, tile: tuple[int, int], taken: Collection[str] | None) -> Iterator[Statement]:
        """The statements that compute `result` from itself and from `NAME_tile` of each operand, a
        tile or a vector of channels.

        None of them defines a name of `taken`. Without `taken` there are no statements: the
        function is then written for its own names only.
        """
        if taken is None:
            return
        lines = Lines(frozenset({*taken, result, *self.names, *(f"{name}_tile" for name in self.names)}), False)
        axes = TileAxes()
        tiles = Tiles(axes, lines, tile_product)
        sides = [axes.fresh(n) for n in tile]
        whole = Tile(result, self._placed(tile, 1), self._placed(sides, None), "float32", "float32")
        alone = int(not self.channels_last)  # the dim of positions, which a vector of channels lacks
        shape = self._placed([1 if i == alone else n for i, n in enumerate(tile)], 1)
        vector = replace(
            whole, shape=shape, axes=self._placed([None if i == alone else a for i, a in enumerate(sides)], None)
        )
        leaves, values = dict[Node, Node](), dict[Node, Tile]()
        for leaf, name in zip(self.node.attr("body").inputs, (None, *self.names), strict=True):
            found = (
                whole if name is None else replace(vector if name in self.of_channels else whole, code=f"{name}_tile")
            )
            leaves[leaf] = variable(f"v{len(leaves)}", Tensor("float32", found.shape))
            values[leaves[leaf]] = found
        (made,) = interpret(retyped(self.node.attr("body").outputs, leaves), tiles, values).values()
        lines.write(LoopPhase.INVARIANT, let(result, tiles.ready(made).code))
        if lines.ranges():
            raise Unsupported("the epilogue of a convolution counts positions")
        yield from lines.swept()[0][LoopPhase.INVARIANT]

    def _placed(self, sides: Sequence[T], one: T) -> tuple[T, ...]:
        """The two dims of a tile among those of one image."""
        return (one, sides[0], *[one] * (len(self.node.args[0].shape) - 3), sides[1])
