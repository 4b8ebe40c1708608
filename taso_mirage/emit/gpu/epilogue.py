"""The fused epilogue of a form: element by element, on a tile of its results in registers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

from taso_mirage.emit.gpu.axes import TileAxes
from taso_mirage.emit.gpu.lines import Lines
from taso_mirage.emit.gpu.products import tile_product
from taso_mirage.emit.gpu.tiles import Tile, Tiles
from taso_mirage.emit.statements import Expression, Statement, let, tl, v
from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim
from taso_mirage.ir.mugraph import LoopPhase
from taso_mirage.ir.terms import Graph, Node, Tensor, variable
from taso_mirage.operators.interpret import interpret, retyped

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The function `body` of a tile of results, by the names of its other operands, which are the
    arguments of the term from number `first` on; or the `prologue` of a tile of data.

    A tile has channels by positions of one image, or with `channels_last` positions by channels,
    which are of several images if `images`.
    """

    node: Node
    names: Sequence[str]
    channels_last: bool = False
    first: int = 2
    images: bool = False
    attribute: str = "body"

    @property
    def body(self) -> Graph | None:
        """The function of numbers; None if there is none."""
        found: Graph | None = self.node.attr(self.attribute)
        return found

    @property
    def like(self) -> Node:
        """The tensor of which it has a tile: the result, or the data."""
        return self.node if self.attribute == "body" else self.node.args[0]

    @property
    def of_results(self) -> list[str]:
        """The operands with one element for each result."""
        return [name for name, x in self._operands if x.shape == self.like.shape]

    @property
    def of_channels(self) -> list[str]:
        """The operands with one element for each channel, of which a tile has a vector."""
        apart = {*self.of_results, *(self.of_images if self.images else ())}
        return [name for name in self.names if name not in apart]

    @property
    def of_images(self) -> list[str]:
        """The operands with one element for each channel of an image."""
        rows = ((name, x.shape) for name, x in self._operands if x.shape != self.like.shape)
        return [name for name, shape in rows if len(shape) == len(self.like.shape) and shape[0] != 1]

    @property
    def _operands(self) -> list[tuple[str, Node]]:
        return list(zip(self.names, self.node.args[self.first :], strict=False))

    def channel(self, name: str, image: Expression, channel: Expression) -> Expression:
        """The place of the number of a channel in an operand."""
        return image * self._channels + channel if name in self.of_images else channel

    @property
    def _channels(self) -> Dim:
        return self.like.shape[-1 if self.images else 1]

    def statements(self, result: str, tile: tuple[int, int], taken: Collection[str] | None) -> Iterator[Statement]:
        """The statements that compute `result` from itself and from `NAME_tile` of each operand, a
        tile or a vector of channels.

        None of them defines a name of `taken`. Without `taken` there are no statements: the
        function is then written for its own names only.
        """
        body = self.body
        if taken is None or body is None:
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
        for leaf, name in zip(body.inputs, (None, *self.names), strict=True):
            found = (
                whole if name is None else replace(vector if name in self.of_channels else whole, code=f"{name}_tile")
            )
            found = replace(found, dtype=leaf.dtype, stored="float32" if name is None else leaf.dtype)
            leaves[leaf] = variable(f"v{len(leaves)}", Tensor(leaf.dtype, found.shape))
            values[leaves[leaf]] = found
        (made,) = interpret(retyped(body.outputs, leaves), tiles, values).values()
        lines.write(LoopPhase.INVARIANT, let(result, tiles.ready(made).code))
        if lines.ranges():
            raise Unsupported("an epilogue that counts positions")
        yield from lines.swept()[0][LoopPhase.INVARIANT]

    def of_pixels(
        self,
        result: str,
        tile: tuple[int, int],
        taken: Collection[str] | None,
        place: Expression,
        inside: Sequence[Expression],
    ) -> Iterator[Statement]:
        """The loads of the operands and the statements for pixels with channels last, where the
        function has the names `image`, `channel` and `kept`. `inside`: conditions for channels."""
        for name in self.names:
            at, kept = place, [v.kept]
            if name in self.of_images:
                at = (v.image * self._channels)[:, None] + v.channel[None, :]
            elif name in self.of_channels:
                at, kept = v.channel, [*inside]
            yield let(f"{name}_tile", tl.load(v[name] + at, *kept))
        yield from self.statements(result, tile, taken)

    def _placed(self, sides: Sequence[T], one: T) -> tuple[T, ...]:
        """The two dims of a tile among those of one image."""
        return (one, sides[0], *[one] * (len(self.node.args[0].shape) - 3), sides[1])


@lru_cache(maxsize=1024)
def has_triton(body: Graph) -> bool:
    """Whether Triton has a function of numbers."""
    axes = TileAxes()
    tiles = Tiles(axes, Lines(frozenset(), False), tile_product)
    side = axes.fresh(2)
    leaves = {leaf: variable(leaf.attr("name"), Tensor(leaf.dtype, (2,))) for leaf in body.inputs}
    values = {new: Tile(f"x{i}", (2,), (side,), new.dtype, new.dtype) for i, new in enumerate(leaves.values())}
    try:
        interpret(retyped(body.outputs, leaves), tiles, values)
    except Unsupported:
        return False
    return not tiles.lines.ranges()
