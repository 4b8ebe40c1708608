"""The sizes that a run gives to a kernel: its arguments, the block's position, and the rests of
tiles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from taso_mirage.emit.gpu.program import TritonBuffer
from taso_mirage.emit.statements import TRITON, ExpressionLike, Statement, add, expression, group, let, mentioned, tl, v
from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim, Shape, dim_product, symbols
from taso_mirage.ir.mugraph import parts_in
from taso_mirage.ir.terms import Graph


@dataclass
class FreeNames:
    """`given`: the names; none if all sizes of a kernel are fixed."""

    given: tuple[str, ...]
    body: Graph
    grid: Shape
    imap: Sequence[Sequence[int]]
    fmap: Sequence[int]
    rest_of: dict[str, tuple[str, int]] = field(init=False)
    """For each part the variable that counts its tiles, and the largest size."""

    def __post_init__(self) -> None:
        self.parts = parts_in(self.body)
        self.rest_of = {}
        for leaf, axes, axis in zip(self.body.inputs, self.imap, self.fmap, strict=True):
            cuts = [*((i, f"g{g}") for g, i in enumerate(axes)), (axis, "t")]
            for i, variable in cuts:
                name = str(leaf.shape[i]) if i >= 0 else ""
                if name in self.parts:
                    self.rest_of[name] = variable, self.parts[name][1]

    @property
    def reserved(self) -> frozenset[str]:
        return frozenset({*self.given, *self.parts})

    def is_iterations(self, dim: Dim) -> bool:
        """Whether a size is that of an iteration's part."""
        return any(self.rest_of.get(name, ("",))[0] == "t" for name in symbols(dim))

    def blocks(self, cluster: int) -> Iterator[Statement]:
        """The block's position along each dim of the grid: the first dim counts the fastest, or the
        last one if it is a cluster, whose blocks are neighbours."""
        counts = [(g, n) for g, n in enumerate(self.grid) if n != 1]
        counts = [*counts[-1:], *counts[:-1]] if cluster != 1 else counts
        for i, (g, n) in enumerate(counts):
            before = dim_product([count for _, count in counts[:i]])
            found = PROGRAM if before == 1 else PROGRAM // _factor(before)
            yield let(f"g{g}", found if g == counts[-1][0] else found % _factor(n))

    def rests(self, variable: str = "") -> Iterator[Statement]:
        """The number of elements of the tiles of a block, or of an iteration: a full tile, or the
        rest."""
        for name, (counter, most) in sorted(self.rest_of.items()):
            if (counter == variable) or (not variable and counter != "t"):
                left = expression(self.parts[name][0]) - expression(counter) * most
                yield let(name, tl.minimum(left, most))

    def check(self, outside: Iterable[Statement]) -> None:
        """Raise Unsupported if a statement outside of the loop reads the values of an iteration:
        after the loop they are those of the last one only."""
        inside = {name for name, (counter, _) in self.rest_of.items() if counter == "t"}
        for each in outside:
            if found := inside.intersection(mentioned(each)):
                (line,) = TRITON.lines([each])
                raise Unsupported(f"the size {min(found)} of an iteration, outside of the loop: {line}")


PROGRAM = tl.program_id(0)


def _factor(dim: Dim) -> ExpressionLike:
    return dim if str(dim).isidentifier() or isinstance(dim, int) else group(dim)


def fixed_ids(tensors: Sequence[tuple[str, TritonBuffer]], grid: Shape, cluster: int) -> list[Statement]:
    """Statements for the block's position in a grid of fixed sizes, and for its sample, to whose
    tensors the pointers move."""
    counts, block = grid, PROGRAM
    if cluster != 1:  # blocks of a cluster are neighbours along the first dim
        counts, block = grid[:-1], group(PROGRAM // cluster)
    ids = {g: tl.program_id(g) for g, n in enumerate(counts) if n != 1}
    ids |= {0: block} if 0 in ids else {}
    if cluster != 1:
        ids[len(counts)] = PROGRAM % cluster
    batched = [(name, buffer) for name, buffer in tensors if buffer.batched]
    first, moved = (int(counts[0]) if counts else 1), list[Statement]()
    if batched:
        sample = group(block // first) if first > 1 else block
        moved = [let("sample", sample.to(tl.int64))]
        moved += [add(name, v.sample * buffer.elements) for name, buffer in batched]
        ids |= {0: block % first} if first > 1 else {}
    return [*moved, *(let(f"g{g}", found) for g, found in ids.items())]
