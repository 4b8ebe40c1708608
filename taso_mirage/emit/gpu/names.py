"""The sizes that a run gives to a kernel: its arguments, the block's position, and the rests of
tiles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from taso_mirage.emit.gpu.lines import WORD
from taso_mirage.emit.gpu.program import TritonBuffer
from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim, Shape, dim_product, symbols
from taso_mirage.ir.mugraph import parts_in
from taso_mirage.ir.terms import Graph


@dataclass
class FreeNames:
    """`given`: the names, none where all that a kernel has is fixed."""

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
        """Whether it is the size of an iteration's part."""
        return any(self.rest_of.get(name, ("",))[0] == "t" for name in symbols(dim))

    def blocks(self, cluster: int) -> Iterator[str]:
        """Lines for the block's position along each dim of the grid: the first dim counts the
        fastest, except that the last one does where it is a cluster, whose blocks are
        neighbours."""
        counts = [(g, n) for g, n in enumerate(self.grid) if n != 1]
        counts = [*counts[-1:], *counts[:-1]] if cluster != 1 else counts
        for i, (g, n) in enumerate(counts):
            before = dim_product([count for _, count in counts[:i]])
            found = "tl.program_id(0)" if before == 1 else f"tl.program_id(0) // {_factor(before)}"
            yield f"g{g} = {found}" if g == counts[-1][0] else f"g{g} = {found} % {_factor(n)}"

    def rests(self, variable: str = "") -> Iterator[str]:
        """Lines for the number of elements of the tiles of a block, or of an iteration: a full
        tile, or the rest."""
        for name, (own, most) in sorted(self.rest_of.items()):
            if (own == variable) or (not variable and own != "t"):
                yield f"{name} = tl.minimum({self.parts[name][0]} - {own} * {most}, {most})"

    def check(self, outside: Iterable[str]) -> None:
        """Raise Unsupported where a line outside of the loop reads the values of an iteration:
        after it they are those of the last one alone."""
        own = {name for name, (variable, _) in self.rest_of.items() if variable == "t"}
        for line in outside:
            if found := own.intersection(WORD.findall(line)):
                raise Unsupported(f"the size {min(found)} of an iteration, outside of the loop: {line}")


def _factor(dim: Dim) -> str:
    return str(dim) if str(dim).isidentifier() or isinstance(dim, int) else f"({dim})"


def fixed_ids(tensors: Sequence[tuple[str, TritonBuffer]], grid: Shape, cluster: int) -> list[str]:
    """Lines for the block's position in a grid of fixed sizes, and for the sample, to whose tensors
    it moves."""
    own, block = grid, "tl.program_id(0)"
    if cluster != 1:  # blocks of a cluster are neighbours along the first dim
        own, block = grid[:-1], f"(tl.program_id(0) // {cluster})"
    ids = {g: f"g{g} = tl.program_id({g})" for g, n in enumerate(own) if n != 1}
    ids |= {0: f"g0 = {block}"} if 0 in ids else {}
    if cluster != 1:
        ids[len(own)] = f"g{len(own)} = tl.program_id(0) % {cluster}"
    batched = [(name, buffer) for name, buffer in tensors if buffer.batched]
    if not batched:
        return list(ids.values())
    first, sample = int(own[0]) if own else 1, block
    if first > 1:
        ids[0], sample = f"g0 = {block} % {first}", f"({block} // {first})"
    moved = [f"{name} += sample * {buffer.elements}" for name, buffer in batched]
    return [f"sample = {sample}.to(tl.int64)", *moved, *ids.values()]
