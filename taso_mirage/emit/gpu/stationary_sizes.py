"""The sizes of a convolution whose weights stay in shared memory: tiles of positions, parts of the
columns, and the slots of a ring."""

from __future__ import annotations

from dataclasses import dataclass, replace

from taso_mirage.emit.gpu.convolved_axes import ConvolvedAxis
from taso_mirage.emit.gpu.shifted import COUNTED, ShiftedBlock
from taso_mirage.errors import Unsupported

GROUPS, WARP, ROWS = 2, 32, 128
"""The number of groups of four warps, the positions of a warp, and those of a group."""
COPIED = 4
"""Numbers that are copied at once."""
STEP = 8
"""Channels of a product of the tensor cores."""
WIDTHS = (64, 32, 16)
"""Columns of a block."""
SUMS = 192
"""The largest number of registers of a thread for sums, and for results with the values computed
from them: more of them go to memory."""
MEMORY = 227 * 1024
"""Bytes of shared memory of a block."""
SCRATCH = 4 * 1024 + 512
"""Bytes of shared memory through which the results of a phase pass."""
DEEPEST, LEAST = 4, 3
"""Slots of a ring."""


@dataclass(frozen=True, slots=True)
class StationarySizes:
    """`deep`, `high`, `row`: the axes of the convolution. `width`: columns of a block, which has
    rings of so many `slots`."""

    deep: ConvolvedAxis
    high: ConvolvedAxis
    row: ConvolvedAxis
    columns: int
    inputs: int
    """Channels of the data."""
    width: int
    slots: int

    # ------------------------------------------------------------ positions

    @property
    def shifts(self) -> list[list[tuple[int, int]]]:
        """For each phase of a row its products, with the positions by which they are shifted."""
        return self.row.shifts(self.sums)

    @property
    def reach(self) -> int:
        """The largest shift."""
        return max(shift for phase in self.shifts for _, shift in phase)

    @property
    def kept(self) -> int:
        """The number of positions of a warp whose sums are complete."""
        return WARP - _up(self.reach, COPIED)

    @property
    def gap(self) -> int:
        """Positions before a row, of zeros."""
        return _up(self.row.origin, COPIED)

    @property
    def begin(self) -> int:
        """The position of a row's first result."""
        return self.gap - self.row.origin

    @property
    def pitch(self) -> int:
        """The number of positions of a row. A result at its end reads the zeros before the next
        row."""
        end = self.begin + self.row.positions
        last = end + self.reach
        return _up(max(end, last - self.gap, min(self.row.size + self.gap, last)), COPIED)

    @property
    def tiles(self) -> int:
        """The tiles of a plane of one phase."""
        return -(-self.high.positions * self.pitch // (4 * self.kept))

    @property
    def tiles_of_image(self) -> int:
        return self.tiles * self.deep.phases * self.high.phases * self.deep.positions

    # ------------------------------------------------------------ weights

    @property
    def sums(self) -> int:
        """The elements of the kernel's row, of which each has a sum."""
        return self.row.kernel

    @property
    def taps(self) -> int:
        """The elements of the kernel along the other axes."""
        return self.deep.kernel * self.high.kernel

    @property
    def depth(self) -> int:
        """Channels of a tile."""
        return 2 * STEP if _up(self.inputs, STEP) % (2 * STEP) == 0 else STEP

    @property
    def chunks(self) -> int:
        """The parts of the channels."""
        return _up(self.inputs, STEP) // self.depth

    @property
    def elements(self) -> int:
        """Tiles of the weights."""
        return self.sums * self.taps * self.chunks

    @property
    def parts(self) -> int:
        """The parts of the columns."""
        return -(-self.columns // self.width)

    @property
    def vector(self) -> int:
        """Weights that a thread copies at once."""
        return COPIED if self.inputs % COPIED == 0 else 1

    @property
    def lanes(self) -> list[int]:
        """Threads of a warp along a tile's rows and columns while it copies weights."""
        return [WARP * self.vector // self.depth, self.depth // self.vector]

    @property
    def volume(self) -> int:
        """Elements of a channel of the data."""
        return self.deep.size * self.high.size * self.row.size

    @property
    def volume_y(self) -> int:
        """Elements of a channel of the result."""
        return self.deep.result * self.high.result * self.row.result


def stationary_sizes(block: ShiftedBlock, live: int) -> StationarySizes:
    """The sizes with the fewest parts of the columns, as each part loads the data; `live`:
    registers of a thread for each column.

    Raises Unsupported for rows that do not begin at multiples of 16 bytes or that have a stride,
    and for weights that do not fit into shared memory beside the rings.
    """
    row, (deep, high), columns = block.row, block.outer, block.columns
    if not row.transposed and row.stride != 1:
        raise Unsupported(f"weights that stay, and a row with stride {row.stride}")
    if row.size % COPIED:
        raise Unsupported(f"rows of {row.size} numbers, not of multiples of {COPIED}, that are copied at once")
    if any(each.transposed and (each.dilation != 1 or [] in each.products) for each in block.outer):
        raise Unsupported("weights that stay, and a transposed convolution with dilations beside the row")
    if row.phases not in (1, 2, 4):
        raise Unsupported(f"{row.phases} phases of a row; 1, 2 and 4 have a form")
    sizes = StationarySizes(deep, high, row, columns, block.channels, WIDTHS[-1], LEAST)
    if sizes.kept < WARP // 2:
        raise Unsupported(f"sums of {sizes.reach + 1} positions of a row, of which a warp has {WARP}")
    if sizes.tiles * 4 * sizes.kept >= COUNTED:
        raise Unsupported(f"{sizes.tiles} tiles of a plane, whose positions 32 bits count")
    found = []
    for width in WIDTHS:
        memory = MEMORY - SCRATCH * row.phases - sizes.elements * width * sizes.depth * 4
        slots = min(DEEPEST, memory // (GROUPS * sizes.depth * ROWS * 4))
        if max(sizes.sums, live) * width <= SUMS and slots >= LEAST:
            found.append((-(-columns // width) * (width + WIDTHS[-1]), width, slots))
    if not found or (found[0][1] < 2 * STEP * 2 and columns > found[0][1]):
        raise Unsupported(f"weights of {block.node.args[1].type}, which shared memory has no room for")
    _, width, slots = min(found)
    return replace(sizes, width=width, slots=slots)


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
