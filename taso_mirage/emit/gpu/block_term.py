"""A `kernel` term with its buffers, and all its properties that are known before any code is
written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from taso_mirage.emit.gpu.axes import grouped
from taso_mirage.emit.gpu.block_products import BlockProduct, block_products
from taso_mirage.emit.gpu.clusters import stored_by_first
from taso_mirage.emit.gpu.moved_tensors import MovedTensor, OperandTensor
from taso_mirage.emit.gpu.names import FreeNames
from taso_mirage.emit.gpu.offsets import Groups, TileCut
from taso_mirage.emit.gpu.packed_weights import in_words
from taso_mirage.emit.gpu.products import LAYOUT, chained, vector_products
from taso_mirage.emit.gpu.program import TritonBuffer
from taso_mirage.emit.gpu.tiles import HALF_FLOATS
from taso_mirage.ir.dims import symbols
from taso_mirage.ir.mugraph import LoopPhase, Lowering, Overlap, is_free_kernel, loop_phases, overlaps
from taso_mirage.ir.terms import Node, users
from taso_mirage.operators.ops import traits

BLOCK_IDS = ("g0", "g1", "g2")
"""The variables that count blocks along each dim of a grid."""


class BlockTerm:
    """`reads` and `writes`: the buffers of its operands and of its results; `free`: the names of
    the sizes that a run gives."""

    def __init__(
        self,
        node: Node,
        name: str,
        reads: Sequence[OperandTensor],
        writes: Sequence[TritonBuffer | None],
        free: Sequence[str],
    ) -> None:
        self.node, self.name, self.reads, self.writes, self.free = node, name, reads, writes, free
        self.body, self.grid, self.loop = node.attr("body"), node.attr("grid"), node.attr("loop")
        self.looped, self.cluster = self.loop != 1, node.attr("cluster")

    @cached_property
    def sizes(self) -> FreeNames:
        """The sizes that a run gives to this kernel."""
        imap, fmap = self.node.attr("imap"), self.node.attr("fmap")
        free = is_free_kernel(self.body, self.grid, self.loop) or any(
            symbols(e).intersection(self.free) for x in self.reads if isinstance(x, MovedTensor) for e in x.dims
        )
        return FreeNames(tuple(self.free) if free else (), self.body, self.grid, imap, fmap)

    # ------------------------------------------------------------ the body

    @cached_property
    def stage(self) -> dict[Node, LoopPhase]:
        """Whether a term is computed before the loop, in it, or after it."""
        return loop_phases(self.body, self.node.attr("fmap"), self.loop)

    @cached_property
    def readers(self) -> Mapping[Node, Sequence[Node]]:
        return users(self.body)

    @cached_property
    def alone(self) -> set[Node]:
        """The terms that only the first block of a cluster computes."""
        return stored_by_first(self.node) if self.cluster != 1 else set()

    @cached_property
    def vectors(self) -> dict[Node, Node]:
        """The sums of the loop that are dots of a vector, with the products that they sum."""
        halves = [x for x, b in zip(self.body.inputs, self.reads, strict=True) if b.dtype in HALF_FLOATS]
        return vector_products(self.body, self.stage, halves) if self.looped else {}

    @cached_property
    def chained(self) -> set[Node]:
        """The products whose results another product reads."""
        return chained(self.body, self.looped)

    @cached_property
    def words(self) -> dict[Node, int]:
        """The terms that are numbers of a few bits, with the number of bits."""
        return in_words(self.body, self.reads, self.readers)

    @cached_property
    def products(self) -> dict[Node, BlockProduct]:
        """The products of one row with weights in blocks."""
        return {} if self.looped else block_products(self.body, self.reads, self.words)

    @cached_property
    def ahead(self) -> dict[Node, BlockProduct]:
        """Products by the terms that unpack their weights, which are loaded before all else."""
        return {each.packed: each for each in self.products.values()}

    @cached_property
    def split(self) -> dict[Node, Groups]:
        """The terms that cut dims of loaded values, with the dims in memory: offsets do the
        cutting, and no tile is reshaped, which needs a tile without lanes beyond its sizes."""
        reshapes = (n for n in self.body if traits(n).lowering is Lowering.RESHAPE and n.args[0] in self.body.inputs)
        return _joining({node: grouped(node.shape, node.args[0].shape) for node in reshapes})

    @cached_property
    def merged(self) -> dict[Node, Groups]:
        """The terms that join dims of values that are only stored, by offsets as well."""
        last = [n for n in self.body.outputs if not self.readers.get(n)]
        reshapes = (n for n in last if traits(n).lowering is Lowering.RESHAPE and n.args[0] not in self.body.inputs)
        return _joining({node: grouped(node.args[0].shape, node.shape) for node in reshapes})

    def is_shared(self, node: Node) -> bool:
        """Whether a product and another term read a tile."""
        return len(set(self._kinds(node))) > 1

    def _kinds(self, node: Node) -> Iterator[bool]:
        for user in self.readers.get(node, ()):
            if traits(user).lowering in LAYOUT:
                yield from self._kinds(user)
            else:
                yield traits(user).lowering is Lowering.CONTRACT or user in self.vectors.values()

    # ------------------------------------------------------------ memory

    @cached_property
    def overlaps(self) -> Sequence[Overlap | None]:
        return overlaps([b.shape for b in self.reads], self.body, self.grid, self.node.attr("imap"))

    def cuts(self, i: int) -> list[TileCut]:
        """The cuts of an operand by the grid and the loop."""
        found = zip(self.node.attr("imap")[i], self.grid, self.overlaps, BLOCK_IDS, strict=False)
        return [*found, (self.node.attr("fmap")[i], self.loop, None, "t")]

    def result_cuts(self, o: int) -> list[TileCut]:
        """The cuts of a result by the grid."""
        return list(zip(self.node.attr("omap")[o], self.grid, self.overlaps, BLOCK_IDS, strict=False))


def _joining(groups: Mapping[Node, Groups | None]) -> dict[Node, Groups]:
    """The groups of dims, if one of them has several dims."""
    return {node: each for node, each in groups.items() if each and max(map(len, each)) > 1}
