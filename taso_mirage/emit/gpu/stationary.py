"""A `shifted_conv` whose weights stay in shared memory, in Gluon, for Hopper (sm_90): operands are
rounded to TF32.

One block for each processor loads the weights of its columns once (weight-stationary: Chen et al.,
Eyeriss, ISCA 2016, section IV). Two groups of four warps then have tiles of positions in turn, each
a ring of its own: a group waits for no other. A tile is 16 bytes of a row at a time, because rows
begin at multiples of 16 bytes here: the padding of a row lies between it and the next one.

Products are of a tile's positions, so tensor cores take the data from registers, along the sum, and
four neighbouring positions are four registers of a thread. A shift is then another name for a
register, or a number of the next lane; of a warp's 32 positions those whose sums would be another
warp's are loaded there, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

from taso_mirage.devices.cuda.device import H100
from taso_mirage.emit.gpu.dependent_launch import WAITING
from taso_mirage.emit.gpu.epilogue import Epilogue
from taso_mirage.emit.gpu.forms import LaunchedFunction, own_names, reserved_names
from taso_mirage.emit.gpu.program import TF32_ROUNDED, LaunchSchedule, Traffic, TritonLaunch, not_specialized
from taso_mirage.emit.gpu.shifted import ShiftedBlock
from taso_mirage.emit.gpu.stationary_sizes import COPIED, ROWS, WARP, WIDTHS, stationary_sizes
from taso_mirage.emit.gpu.stationary_text import (
    MOVED,
    ROUNDED_TILES,
    STATIONARY_FUNCTIONS,
)
from taso_mirage.emit.quotes import quoted
from taso_mirage.emit.statements import (
    GLUON,
    Expression,
    Parameter,
    ProgramFunction,
    Statement,
    every,
    expression,
    group,
    let,
    sum_of,
    tl,
    v,
    within,
)
from taso_mirage.errors import Unsupported
from taso_mirage.ir.mugraph import usual_size

SLOW, MANY = re.compile(r"gl\.(?:exp|log|where|erf|sin|cos|sqrt)|/"), 5
"""Functions that take registers beside an element and its result; MANY of them need one more."""
REGISTERS = 240
"""Registers of a thread of the second group; the first has no fewer."""
BEYOND = -(1 << 30)
"""The row for positions beside the image: none."""
Bases: TypeAlias = tuple[list[list[int]], list[list[int]], list[list[int]]]
"""A layout: where the bits of registers, lanes and warps lead."""


class StationaryBlock(LaunchedFunction):
    """The functions of one convolution. Raises Unsupported as `stationary_sizes` does."""

    specialized = True
    helpers = (ROUNDED_TILES,)

    def __init__(self, block: ShiftedBlock) -> None:
        self.block, self.name, self.node = block, block.name, block.node
        self.others = [f"other_{i}" for i, _ in enumerate(self.node.args[2:], 1)]
        self.operands = ["x", "w", *self.others, "result"]
        self.epilogue = Epilogue(self.node, self.others, channels_last=True)
        if self.epilogue.of_images:
            raise Unsupported("an epilogue with other numbers for each image, which has no form in Gluon")
        self.taken: frozenset[str] | None = reserved_names()
        self.sizes = stationary_sizes(block, self._live())
        self.taken = None
        self.taken = reserved_names() | own_names(self.source())

    def _live(self) -> int:
        """Registers of a thread for each column: results, and values that the epilogue computes."""
        epilogue = "".join(GLUON.lines(self.epilogue.statements("x", (ROWS, WIDTHS[-1]), self.taken)))
        slow = len(SLOW.findall(epilogue)) >= MANY
        return self.block.row.phases * (2 if self.epilogue.of_results else 1) + (2 if slow else 1)

    # ------------------------------------------------------------ the launch

    def launch(self, schedule: LaunchSchedule | None) -> TritonLaunch:
        plain, sizes = self.block.launch(None), self.sizes
        processors = max(H100.processors // sizes.parts, 1) * sizes.parts
        own = LaunchSchedule(4, sizes.slots, specialized=True, precision=TF32_ROUNDED, persistent=processors)
        chosen = schedule or own
        whole = chosen.persistent > 0 and chosen.persistent % sizes.parts == 0 and 2 <= chosen.stages <= sizes.slots
        if not chosen.specialized or chosen.precision != TF32_ROUNDED or not whole:
            raise Unsupported(f"weights that stay, with a schedule of another form: {chosen}")
        loop = max(sizes.deep.taps * sizes.high.taps * sizes.chunks, 2)
        return replace(
            plain,
            grid=(chosen.persistent,),
            loop=loop,
            schedule=chosen,
            traffic=self._traffic(loop),
            precisions=(TF32_ROUNDED,),
        )

    def _traffic(self, loop: int) -> Traffic:
        sizes = self.sizes
        count = sizes.parts * sizes.tiles_of_image * usual_size(self.block.images)
        products = 2 * ROWS * sizes.width * sizes.sums * sizes.depth * loop
        moved = ROWS * sizes.depth * loop * 4
        stored = sum(b.bytes for b in self.block.buffers[2:])
        return Traffic(
            products * count, moved * count + stored, ROWS * sizes.depth * 4, ROWS * sizes.width * sizes.sums
        )

    # ------------------------------------------------------------ the text

    def source(self) -> str:
        sizes, high, free = self.sizes, self.sizes.high, self.block.free
        shifts = {shift for phase in sizes.shifts for _, shift in phase if shift}
        moved = [each for shift in sorted(shifts) for each in _moved(self.name, shift)]
        *functions, kernel = quoted(
            STATIONARY_FUNCTIONS.replace("KERNEL", self.name),
            **{"form": self, "s": sizes, "deep": sizes.deep, "high": high, "row": sizes.row, "v": v},
            **{"OPERANDS": self.operands, "SUMS": self.sums, "beyond": BEYOND, "registers": REGISTERS},
            top=v.top if high.transposed else v.top * high.stride - high.pad,
            further=-v.tap if high.transposed else v.tap * high.dilation,
            images=group(self.block.images),
            waiting=WAITING,
        )
        flags = Parameter("STAGES"), Parameter("PRECISION", "'tf32'"), Parameter("OVERLAP", "False")
        given: list[str | Parameter] = [*self.operands, *free, *flags, Parameter("\n    LATE", "False")]
        kernel = replace(kernel, parameters=given, decoration=not_specialized(free))
        return "\n\n".join(map(GLUON.function, (*moved, *functions, kernel)))

    @property
    def sums(self) -> list[str]:
        """The names of the sums, one for each element of the kernel's row."""
        return [f"sum_{j}" for j in range(self.sizes.sums)]

    @property
    def tokens(self) -> list[str]:
        """The names of the products on their way."""
        return [f"token_{j}" for j in range(self.sizes.sums)]

    def loaded(self) -> Bases:
        """The layout of a loaded tile (channels, positions)."""
        channels = [[1 << i, 0] for i in range(2, self.sizes.depth.bit_length() - 1)]
        return [[0, 1], [0, 2], *channels], [[1, 0], [2, 0], [0, 4], [0, 8], [0, 16]], [[0, 32], [0, 64]]

    def summed(self) -> Bases:
        """The layout of sums by position."""
        columns = [[0, 1 << i] for i in range(3, self.sizes.width.bit_length() - 1)]
        return [[1, 0], [2, 0], [0, 1], *columns], [[0, 2], [0, 4], [4, 0], [8, 0], [16, 0]], [[32, 0], [64, 0]]

    def stored(self) -> Bases:
        """The layout of a stored tile (positions of all phases, columns)."""
        phases = self.sizes.row.phases.bit_length() - 1
        registers = [[0, 1 << i] for i in range(self.sizes.width.bit_length() - 1)]
        registers += [[32 << i, 0] for i in range(phases)]
        return registers, [[1 << i, 0] for i in range(5)], [[32 << phases, 0], [64 << phases, 0]]

    def element(self) -> Expression:
        """The tile of the weights of a step, among those of one element of a row."""
        deep, high, chunks = self.sizes.deep, self.sizes.high, self.sizes.chunks
        if deep.phases == high.phases == 1:
            return v.t
        tap = v.t // chunks
        low, high_tap = group(tap // "own_taps"), group(tap % "own_taps")
        element = deep.element("own_deep", low) * high.kernel + high.element("own_high", high_tap)
        return group(element) * chunks + v.t % chunks

    def zeros(self) -> list[Statement]:
        """The first values of the sums."""
        return [let(each, tl.zeros([ROWS, self.sizes.width], tl.float32, "MMA")) for each in self.sums]

    def products(self) -> Iterator[Statement]:
        """The products of a step, which add to the sums."""
        for j, (each, token) in enumerate(zip(self.sums, self.tokens, strict=True)):
            at = expression(j * (self.sizes.elements // self.sizes.sums)) + "place_w" if j else v.place_w
            weights = v.weights.index(at).permute((1, 0))
            yield let(token, v.warpgroup_mma("tile_x", weights, each, is_async=True))

    # ------------------------------------------------------------ epilogue

    def results(self) -> Iterator[Statement]:
        """The sums of each phase of a row, and the epilogue, where it has no operand of results."""
        early = not self.epilogue.of_results  # where a thread has fewer columns
        for each in self.sums:
            yield let(each, v.by_position(each, self.sizes.width, "SUMMED"))
        if early:
            yield let("column", v.columns + tl.arange(0, self.sizes.width, tl.SliceLayout(0, "SUMMED")))
            yield from map(self._operand, self.others)
        for i, products in enumerate(self.sizes.shifts):
            parts = [v[f"{self.name}_moved_{s}"](f"sum_{j}") if s else v[f"sum_{j}"] for j, s in products]
            zeros = tl.zeros([ROWS, self.sizes.width], tl.float32, "SUMMED")
            yield let(f"phase_{i}", sum_of(parts or [zeros]))
            yield from self._epilogue(f"phase_{i}", ROWS) if early else ()

    def late_epilogue(self) -> Iterator[Statement]:
        """The epilogue, where it has operands of results."""
        if self.epilogue.of_results:
            yield from map(self._operand, self.others)
            yield from self._epilogue("result_tile", ROWS * self.sizes.row.phases)

    def _epilogue(self, name: str, count: int) -> Iterator[Statement]:
        """The epilogue, on so many positions by columns."""
        return self.epilogue.statements(name, (count, self.sizes.width), self.taken)

    def _operand(self, name: str) -> Statement:
        """Load an operand of the epilogue."""
        if name in self.epilogue.of_results:
            return let(f"{name}_tile", tl.load(v[name] + v.own_image + v.place_y, v.kept))
        return let(f"{name}_tile", tl.load(v[name] + v.column, *self._inside()))

    def kept(self) -> Expression:
        """The condition for a result of a tile to be whole and in the image."""
        sizes, found = self.sizes, [v.place % WARP < self.sizes.kept, v.top < self.sizes.high.positions]
        found += within(v.pixel, sizes.row.positions)
        for axis, at in ((sizes.high, v.top_y), (sizes.row, v.pixel_y), (sizes.deep, v.plane_y)):
            found += within(at, axis.result) if axis.transposed else []
        columns = [tl.expand_dims(each, 0) for each in self._inside()]
        return every([tl.expand_dims(every(found), 1), *columns])

    def _inside(self) -> list[Expression]:
        """The condition for columns, where a part has others."""
        return [v.column < self.sizes.columns] if self.sizes.columns % self.sizes.width else []

    def joined(self) -> Expression:
        """The results of all phases, each beside that of the next one."""
        count = self.sizes.row.phases
        pairs = [v[f"phase_{i}"] for i in range(count)]
        while len(pairs) > 1:  # the dim that is joined last has the neighbours
            half = len(pairs) // 2
            pairs = [tl.join(a, b) for a, b in zip(pairs[:half], pairs[half:], strict=True)]
        dims = range(2, 2 + count.bit_length() - 1)
        whole = tl.reshape(tl.permute(pairs[0], [0, *dims, 1]), [ROWS * count, self.sizes.width])
        return pairs[0] if count == 1 else whole

    def explained(self) -> list[str]:
        """Why the functions are as they are."""
        return [
            f"a block for each processor keeps the weights of {self.sizes.width} columns in shared memory; two groups "
            f"of four warps have tiles of {4 * self.sizes.kept} positions in turn.",
            "operands are rounded to TF32; the data goes to tensor cores from registers: for sm_90 alone.",
        ]


def _moved(name: str, shift: int) -> list[ProgramFunction]:
    """A function of sums by position: those of positions further on, where a warp has them."""
    moves = []
    for i in range(COPIED):
        lanes, register = divmod(i + shift, COPIED)
        source = f"${COPIED + register}"
        moves.append(
            f"shfl.sync.down.b32 ${i}, {source}, {COPIED * lanes}, 31, -1;" if lanes else f"mov.b32 ${i}, {source};"
        )
    return quoted(MOVED.replace("KERNEL", name).replace("SHIFT", str(shift)), moves=f'"{" ".join(moves)}"')
