"""A muGraph as generated source: the buffers, the launches over them, and the settings of each
launch for tuning."""

from __future__ import annotations

import keyword
from collections.abc import Sequence
from dataclasses import dataclass, field

from taso_mirage.devices.cuda.device import H100
from taso_mirage.emit.gpu.axes import power_of_two
from taso_mirage.emit.gpu.global_layouts import strides
from taso_mirage.ir.dims import Dim, Shape, dim_product
from taso_mirage.ir.mugraph import Batch, usual_size
from taso_mirage.ir.terms import is_stored, numpy_dtype
from taso_mirage.operators.stores import PartLayout

WARP_ROWS = 16
"""The number of rows of a product that a warp has on tensor cores."""
SHARED = 160 * 1024
"""Bytes of shared memory for the loads in flight of a block in a first schedule, if it is alone on
its processor."""


@dataclass(frozen=True, slots=True)
class TritonBuffer:
    """A dense tensor.

    `role` is input, scratch (between kernels: floats are fp32, unless they are narrow) or output;
    `order` are its dims from the outermost to the innermost, row order but for scratch. With
    `batched` there is one of this shape for every sample, one after the other. `part`: where the
    elements are within a larger tensor of this name, of which they are a part.
    """

    name: str
    dtype: str
    shape: Shape
    role: str
    order: tuple[int, ...]
    batched: bool = False
    part: PartLayout | None = None
    rows: tuple[TritonBuffer, ...] = ()
    """The buffers of the integers that are the rows of a part."""

    @property
    def pointed(self) -> str:
        """The dtype of its pointer's elements: floats of 8 bits are bytes to a program."""
        return "uint8" if is_stored(self.dtype) else self.dtype

    @property
    def strides(self) -> Shape:
        """The strides in elements."""
        if self.part is not None:
            return self.part.strides
        return strides(self.shape, self.order)

    @property
    def start(self) -> Dim:
        """The place of the first element."""
        return 0 if self.part is None else self.part.start

    @property
    def elements(self) -> Dim:
        """The number of elements; of one sample, where the buffer is batched."""
        return dim_product(self.shape)

    @property
    def bytes(self) -> int:
        """Usual ones, where a run alone knows."""
        return usual_size(self.elements) * numpy_dtype(self.dtype).itemsize


PRECISIONS = TF32_PARTS, BF16_PARTS, IEEE = ("tf32x3", "bf16x6", "ieee")
"""Triton's ways to multiply matrices in single precision: on the tensor cores with operands in two
parts of TF32 or in three of bfloat16, by the products of parts that matter, or on the other cores.
The first two sum each tile's products separately, and are at least as near to float64 as the third.
The first is the fastest if both operands are contiguous along the sum, else the second
(single_h100-H100)."""
TF32_ROUNDED = "tf32"
"""The way with operands rounded to TF32, if the model's own runtime may round them so, too."""


@dataclass(frozen=True, slots=True)
class LaunchSchedule:
    """The settings of a launch that a tuner chooses. `warps`: warps of 32 threads. `stages`:
    iterations whose loads are in flight (1: no pipelining). `overlap`: the blocks start while the
    preceding kernel ends (programmatic dependent launch, sm_90 and newer), and wait before they
    load. `early`: the next kernel's blocks may start before that wait, and not only after it; only
    without a loop. `late`: they may not start before this kernel ends. `specialized`: groups of
    warps (`warp_specialized.py`, where `warps` are the loading warps, and `stationary.py`);
    `stages` are then the slots of a ring. `precision`: one of PRECISIONS, or TF32_ROUNDED.
    `persistent`: the number of launched blocks that take tiles in turn; 0: one block for each
    tile."""

    warps: int = 4
    stages: int = 1
    overlap: bool = False
    early: bool = False
    late: bool = False
    specialized: bool = False
    precision: str = IEEE
    persistent: int = 0

    def __post_init__(self) -> None:
        """Raise ValueError for an invalid schedule: records are read from files, and become part of
        the generated source."""
        numbers = (self.warps, self.stages, self.persistent)
        flags = (self.overlap, self.early, self.late, self.specialized)
        known = self.precision in (*PRECISIONS, TF32_ROUNDED)
        if not known or {type(n) for n in numbers} != {int} or {type(f) for f in flags} != {bool}:
            raise ValueError(f"no schedule of a launch: {str((*numbers, *flags, self.precision))[:100]}")


def guessed(blocks: int, loop: Dim, largest: int, in_flight: int, few: bool) -> LaunchSchedule:
    """A first schedule: a thread has 16 elements of the largest tile; 64 in a loop, whose loads
    (`in_flight` bytes an iteration) stay in shared memory, and in a kernel that wants `few` warps:
    it runs later than another, whose blocks still occupy processors, or multiplies matrices of
    which one has the fewest rows. As many loads are in flight as fit, beside those of a second
    block if there are more blocks than an H100 has processors."""
    if loop == 1:
        return LaunchSchedule(_within(1, power_of_two(largest // (2048 if few else 512)), 8))
    room = SHARED if blocks <= H100.processors else H100.shared // 2
    stages = _within(1, room // max(in_flight, 1), min(4, loop if isinstance(loop, int) else 4))
    return LaunchSchedule(_within(4, power_of_two(largest // 2048), 8), stages)


def _within(low: int, n: int, high: int) -> int:
    return max(low, min(n, high))


@dataclass(frozen=True, slots=True)
class Traffic:
    """The work of all blocks of a launch, and the bytes that one block has in flight."""

    flops: int
    moved: int
    """Bytes that blocks load and store; bytes that several blocks load count several times."""
    in_flight: int
    """Bytes that a block loads in one iteration; without a loop, all bytes that it loads."""
    live: int = 0
    """The largest number of elements that a block holds at a time."""


@dataclass(frozen=True, slots=True)
class TileMap:
    """A buffer as a matrix of rows and columns, which a kernel copies in tiles: one argument of the
    kernel, which the host makes (a tensor map of Hopper's TMA)."""

    shape: tuple[int, int]
    tile: tuple[int, int]


@dataclass(frozen=True, slots=True)
class TritonLaunch:
    """One kernel: `buffers` names its arguments in order, the written ones last. They are followed
    by `sizes` as int32, the names of the sizes that only a run knows. `copies`: it gives its first
    buffer as it is, so nothing is to do where the last one is the same memory. `cluster`: the
    number of blocks of the last grid dim, which are neighbours along the first dim of the launch
    grid. `rows`: those of a product that another product reads; if there are more warps than its
    rows need, they share it. `precisions`: the possible ways to multiply matrices in single
    precision, if it does."""

    name: str
    grid: Shape
    loop: Dim
    buffers: tuple[str, ...]
    schedule: LaunchSchedule
    traffic: Traffic
    sizes: tuple[str, ...] = ()
    cluster: int = 1
    rows: int = 0
    maps: tuple[TileMap, ...] = ()
    """The tensor maps of the first buffers if warps are specialized (`warp_specialized.py`); a
    thread then starts with so many `registers`."""
    registers: int | None = None
    precisions: tuple[str, ...] = ()
    depths: tuple[int, ...] = ()
    """The numbers of slots of a ring that are tried, if groups of warps do not wait for each
    other."""
    copies: bool = False

    @property
    def blocks(self) -> int:
        """Usual ones, where a run alone knows."""
        return usual_size(dim_product(self.grid))

    @property
    def launched(self) -> tuple[Dim, Dim, Dim]:
        """The launched grid in blocks; if a run counts it, it has one dim, as other dims have at
        most 65,535."""
        if not all(isinstance(n, int) for n in self.grid):
            return dim_product(self.grid), 1, 1
        x, y, z = (*self.clusters, 1, 1, 1)[:3]
        return x * self.cluster, y, z

    @property
    def clusters(self) -> Shape:
        """The grid of clusters, or of blocks without clusters."""
        return self.grid if self.cluster == 1 else self.grid[:-1] or (1,)

    @property
    def constants(self) -> dict[str, int | str]:
        """The function's compile-time arguments."""
        overlap, early = self.schedule.overlap, self.schedule.early and self.loop == 1
        own: dict[str, int | str] = {"STAGES": self.schedule.stages} if self.loop != 1 else {}
        own |= {"PRECISION": self.schedule.precision} if self.precisions else {}
        own |= {"TURNS": True} if self.schedule.persistent and not self.schedule.specialized else {}
        late = {"LATE": True} if overlap and self.schedule.late else {}
        own |= {"APART": True} if 0 < self.rows < WARP_ROWS * self.schedule.warps else {}
        return own | ({"OVERLAP": True} if overlap else {}) | ({"EARLY": True} if overlap and early else {}) | late

    @property
    def options(self) -> dict[str, int | str]:
        """The options of a launch apart from its buffers."""
        overlap = {"launch_pdl": True} if self.schedule.overlap else {}
        registers = {} if self.registers is None else {"maxnreg": self.registers}
        return {"num_warps": self.schedule.warps} | registers | self.constants | overlap


def not_specialized(sizes: Sequence[str]) -> str:
    """Arguments of `triton.jit` for a function with these sizes of a run: Triton compiles no kernel
    of its own for a size of 1, or for multiples of 16."""
    return f"(do_not_specialize={list(sizes)})" if sizes else ""


@dataclass(frozen=True, slots=True)
class TritonProgram:
    """`source` is a Python module with one function for each launch, and `launch(*inputs)`.

    With `batch` a launch has its grid once for every sample.
    """

    source: str
    buffers: tuple[TritonBuffer, ...]
    launches: tuple[TritonLaunch, ...]
    results: tuple[str, ...] = field(default=())
    batch: Batch | None = None
    sizes: tuple[str, ...] = ()
    """The names of sizes that only a run knows."""
    empty: tuple[str, ...] = ()
    """The names of sizes that may be 0 in a run whose results have elements."""

    def buffer(self, name: str) -> TritonBuffer:
        return next(b for b in self.buffers if b.name == name)


WORDS = frozenset(
    "torch triton tl launch options OPTIONS float t g0 g1 g2 sample samples math block STAGES OVERLAP EARLY LATE APART "
    "TURNS PRECISION".split()
) | frozenset(keyword.kwlist)
"""Names that every generated module uses itself: those of Python, of a launch, and of a block."""
