"""A muGraph as generated source: the buffers, the launches over them, and how each launch is
tuned."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim, Shape, dim_product
from taso_mirage.ir.mugraph import Batch, Lowering, size_names, usual_size
from taso_mirage.ir.terms import Graph, Node, Tensor, is_float, is_stored, numpy_dtype
from taso_mirage.kernels.codegen.gpu.axes import power_of_two
from taso_mirage.kernels.codegen.gpu.global_layouts import accesses, best_order, strides, usual_shape
from taso_mirage.kernels.codegen.gpu.small_floats import NAMES
from taso_mirage.operators.ops import traits
from taso_mirage.targets.cuda.device import H100

LAUNCHED = (Lowering.KERNEL, Lowering.IMPLICIT_GEMM, Lowering.SHIFTED, Lowering.DEPTHWISE)
"""The terms of a muGraph that are one function each."""
WARP_ROWS = 16
"""Rows of a product that a warp has on tensor cores."""
SHARED = 160 * 1024
"""Bytes of shared memory that the loads in flight of a block may take in a first schedule, where it
is alone on its processor."""


@dataclass(frozen=True, slots=True)
class TritonBuffer:
    """A dense tensor.

    `role` is input, scratch (between kernels: floats are fp32, unless they are narrow) or output;
    `order` are its dims from the outermost to the innermost, row order but for scratch. With
    `batched` there is one of this shape for every sample, one behind the other.
    """

    name: str
    dtype: str
    shape: Shape
    role: str
    order: tuple[int, ...]
    batched: bool = False

    @property
    def pointed(self) -> str:
        """The dtype that its pointer is to: floats of 8 bits are bytes to a program."""
        return "uint8" if is_stored(self.dtype) else self.dtype

    @property
    def strides(self) -> Shape:
        """In elements."""
        return strides(self.shape, self.order)

    @property
    def elements(self) -> Dim:
        """The number of elements; of one sample, where the buffer is batched."""
        return dim_product(self.shape)

    @property
    def bytes(self) -> int:
        """Usual ones, where a run alone knows."""
        return usual_size(self.elements) * numpy_dtype(self.dtype).itemsize


PRECISIONS = TF32_PARTS, BF16_PARTS, IEEE = ("tf32x3", "bf16x6", "ieee")
"""How Triton multiplies matrices in single precision: operands in two parts of TF32 or in three of
bfloat16 on the tensor cores, and the products of parts that matter, or on the other cores. The
first two sum each tile's products apart, and are as near to float64 as the third or nearer. The
first is the fastest where both operands lie along the sum, else the second (single_h100-H100)."""
TF32_ROUNDED = "tf32"
"""Operands rounded to TF32: where the model's own runtime may round them so, too."""


@dataclass(frozen=True, slots=True)
class LaunchSchedule:
    """The settings of a launch that a tuner chooses. `warps`: warps of 32 threads. `stages`:
    iterations whose loads are in flight (1: no pipelining). `overlap`: the blocks start while the
    kernel before ends (programmatic dependent launch, sm_90 and newer), and wait before they load.
    `early`: the next kernel's blocks may start before that wait, and not only after it; only
    without a loop. `late`: they may not start before this kernel ends. `specialized`: groups of
    warps (`specialized.py`, where `warps` are the loading warps, and `stationary.py`); `stages` are
    then the slots of a ring. `precision`: one of PRECISIONS, or TF32_ROUNDED. `persistent`: the
    number of blocks that are launched and take tiles in turn; 0: one block for each tile."""

    warps: int = 4
    stages: int = 1
    overlap: bool = False
    early: bool = False
    late: bool = False
    specialized: bool = False
    precision: str = IEEE
    persistent: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError for an invalid schedule: records are read from files, and stand in the
        source that is generated."""
        numbers = (self.warps, self.stages, self.persistent)
        flags = (self.overlap, self.early, self.late, self.specialized)
        known = self.precision in (*PRECISIONS, TF32_ROUNDED)
        if not known or {type(n) for n in numbers} != {int} or {type(f) for f in flags} != {bool}:
            raise ValueError(f"no schedule of a launch: {str((*numbers, *flags, self.precision))[:100]}")


def guessed(blocks: int, loop: Dim, largest: int, in_flight: int, later: bool) -> LaunchSchedule:
    """A first schedule: 16 elements of the largest tile a thread; 64 in a loop, whose loads
    (`in_flight` bytes an iteration) stay in shared memory, and in a kernel that comes `later` than
    another, whose blocks are still there. As many loads in flight as fit, beside those of a second
    block where an H100 has fewer processors than there are blocks."""
    if loop == 1:
        return LaunchSchedule(_within(1, power_of_two(largest // (2048 if later else 512)), 8))
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
    """Bytes that blocks load and store; bytes that several load count several times."""
    in_flight: int
    """Bytes that a block loads in one iteration (without a loop: at all)."""
    live: int = 0
    """Elements that a block holds at a time, at most."""


@dataclass(frozen=True, slots=True)
class TileMap:
    """A buffer as a matrix of so many rows and columns, that a kernel copies in tiles of so many:
    the kernel takes that as one argument, which the host makes (a tensor map of Hopper's TMA)."""

    shape: tuple[int, int]
    tile: tuple[int, int]


@dataclass(frozen=True, slots=True)
class TritonLaunch:
    """One kernel: `buffers` names its arguments in order, the written ones last. Behind them come
    `sizes` as int32, the names of the sizes that only a run knows. `cluster`: so many blocks of the
    last grid dim, all of it, are neighbours along the first dim of the launch grid. `rows`: of a
    product that goes on to another one; warps that are more than it has rows for share it.
    `precisions`: how it may multiply matrices in single precision, if it does."""

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
    """The tensor maps of the first buffers, where warps are specialized (`specialized.py`); a
    thread then has `registers` when it starts."""
    registers: int | None = None
    precisions: tuple[str, ...] = ()

    @property
    def blocks(self) -> int:
        """Usual ones, where a run alone knows."""
        return usual_size(dim_product(self.grid))

    @property
    def launched(self) -> tuple[Dim, Dim, Dim]:
        """The grid as it is launched, in blocks: where a run counts it, one dim, as others have at
        most 65,535."""
        if not all(isinstance(n, int) for n in self.grid):
            return dim_product(self.grid), 1, 1
        x, y, z = (*self.clusters, 1, 1, 1)[:3]
        return x * self.cluster, y, z

    @property
    def clusters(self) -> Shape:
        """The grid of clusters, or of blocks where there are none."""
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
        """The options of a launch besides its buffers."""
        overlap = {"launch_pdl": True} if self.schedule.overlap else {}
        registers = {} if self.registers is None else {"maxnreg": self.registers}
        return {"num_warps": self.schedule.warps} | registers | self.constants | overlap


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
    """The names of the sizes that only a run knows."""

    def buffer(self, name: str) -> TritonBuffer:
        return next(b for b in self.buffers if b.name == name)


def kernel_terms(graph: Graph) -> list[Node]:
    """The terms of a muGraph that are launched, operands first.

    Raises Unsupported where there is any other operator between them than another shape of an input
    or of a result.
    """
    found = []
    for node in graph:
        if traits(node).lowering in LAUNCHED:
            found.append(node)
        elif node.op not in ("item", "input", "weight", "absent") and not _is_view(node, graph):
            raise Unsupported(f"{node.op} between kernels; only kernels are compiled")
    return found


def _is_view(node: Node, graph: Graph) -> bool:
    """Whether a term is an input, or a result, in another shape."""
    reshape = traits(node).lowering is Lowering.RESHAPE
    return reshape and (node.args[0] in graph.inputs or node.args[0].op == "weight" or node in graph.outputs)


def tensor_buffers(graph: Graph, batch: Batch | None = None) -> dict[Node, TritonBuffer]:
    """The buffer of every tensor of a muGraph: inputs, weights, and the results of kernels, which
    are all batched if anything is; that of a view of one has its own shape."""
    found: dict[Node, TritonBuffer] = {}
    taken = {f"kernel_{i}" for i, _ in enumerate(kernel_terms(graph))} | {*size_names([x.shape for x in graph.inputs])}
    for node in (*graph.inputs, *(n for n in graph if n.op == "weight")):
        found[node] = _buffer(node, _free(node.attr("name"), taken), "input")
    views = [node for node in graph if _is_view(node, graph)]
    given = {*graph.outputs, *(node.args[0] for node in views if node in graph.outputs)}
    for node in (*graph, *graph.outputs):
        made = node.op == "item" or traits(node).lowering in LAUNCHED
        if not made or node in found or not isinstance(node.type, Tensor):
            continue
        role = "output" if node in given else "scratch"
        found[node] = _buffer(node, _free("result" if role == "output" else "scratch", taken), role)
        if role == "scratch":
            order = best_order(
                usual_shape(found[node].shape), accesses(graph, node), numpy_dtype(found[node].dtype).itemsize
            )
            found[node] = replace(found[node], order=order)
    if batch is not None:
        shared = {x for x, free in zip(graph.inputs, batch.inputs, strict=True) if not free}
        found = {n: replace(b, batched=n.op != "weight" and n not in shared) for n, b in found.items()}
    for node in views:
        found[node] = replace(found[node.args[0]], shape=node.shape, order=tuple(range(len(node.shape))))
    return found


def dense_buffers(graph: Graph, buffers: Mapping[Node, TritonBuffer]) -> tuple[TritonBuffer, ...]:
    """Each buffer once, in the shape that the inputs and the results have."""
    views = {node for node in graph if _is_view(node, graph)}
    found = {b.name: b for node, b in buffers.items() if node not in views}
    return tuple((found | {buffers[o].name: buffers[o] for o in graph.outputs}).values())


def output_buffers(node: Node, buffers: dict[Node, TritonBuffer]) -> Iterator[TritonBuffer | None]:
    """The buffers of a kernel's outputs, None for one that nobody reads."""
    if isinstance(node.type, Tensor):
        yield buffers[node]
        return
    items = {n.attr("index"): b for n, b in buffers.items() if n.op == "item" and n.args[0] is node}
    yield from (items.get(i) for i in range(len(node.type or ())))


def _buffer(node: Node, name: str, role: str) -> TritonBuffer:
    shape = node.shape
    if int(dim_product([n for n in shape if isinstance(n, int)])) >= 2**31:
        raise Unsupported(f"{name} of {shape}: offsets within fixed dims are 32 bits wide")
    dtype = "float32" if role == "scratch" and is_float(node.dtype) and not _is_narrow(node) else node.dtype
    return TritonBuffer(name, dtype, shape, role, tuple(range(len(shape))))


def _is_narrow(made: Node) -> bool:
    """Whether a kernel hands a result over in its own type."""
    maker, place = (made.args[0], made.attr("index")) if made.op == "item" else (made, 0)
    return traits(maker.attr("body").outputs[place]).lowering is Lowering.NARROW


def _free(hint: str, taken: set[str]) -> str:
    hint = re.sub(r"\W", "_", hint, flags=re.ASCII)
    hint = hint if hint.isidentifier() and hint not in RESERVED else f"t_{hint}"
    name, i = hint, 1
    while name in taken:
        i += 1
        name = f"{hint}_{i}"
    taken.add(name)
    return name


SPECIAL = frozenset(
    {
        "gluon",
        "gl",
        "gl_mbarrier",
        "tma",
        "fence_async_shared",
        "warpgroup_mma",
        "warpgroup_mma_wait",
        "TensorDescriptor",
        "TILED",
        "tiles",
        "load_tile",
        "take_turn",
        "pass_turn",
        "here",
        "async_copy",
        "rounded_tile",
        "by_position",
    }
)
"""Names of modules with a kernel whose warps have roles, or whose weights stay."""
RESERVED = frozenset(
    {
        "torch",
        "triton",
        "tl",
        "launch",
        "launch_clusters",
        "exchange",
        *NAMES,
        "exchanged",
        "registers",
        "elements_of_a_thread",
        "options",
        "OPTIONS",
        "float",
        "t",
        "g0",
        "g1",
        "g2",
        "sample",
        "samples",
        "math",
        "block",
        "STAGES",
        "OVERLAP",
        "EARLY",
        "LATE",
        "APART",
        "TURNS",
        "PRECISION",
        *SPECIAL,
    }
) | frozenset(
    "and as assert async await break class continue def del elif else except finally for from global if import in is lambda "
    "nonlocal not or pass raise return try while with yield True False None".split()
)
"""Names that generated modules use themselves."""
