"""A kernel in the attributes of its node: a plan (cpp/plan.h describes the format), and compiled
images."""

from __future__ import annotations

import hashlib
import zlib
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from taso_mirage.emit.compile import CompiledKernel, TensorMap
from taso_mirage.emit.cpp import SizeRange, generate_ranges
from taso_mirage.emit.cpu.prepared import prepares
from taso_mirage.emit.gpu.program import TritonBuffer, TritonLaunch, TritonProgram
from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import dim_product, symbol
from taso_mirage.ir.mugraph import has_free_sizes, possibly_empty
from taso_mirage.ir.terms import Graph, Node, Tensor
from taso_mirage.runtime.register import PLAN_FORMAT

DTYPES = frozenset(
    "float32 uint8 int8 uint16 int16 int32 int64 bool float16 float64 uint32 uint64 bfloat16 float8_e4m3fn float8_e5m2".split()
)


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """A node's kernel: `images` are compiled for CUDA; `source` is the C++ that is compiled where
    the model is loaded, or the Triton source, which is only for inspection. `entry` is its name."""

    target: str
    entry: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    plan: str
    source: str
    images: tuple[bytes, ...] = ()

    @property
    def free(self) -> bool:
        """Whether the kernel has sizes that are known only at run time."""
        return any(not isinstance(n, int) for type in (*self.inputs, *self.outputs) for n in type.shape or ())

    @property
    def attributes(self) -> dict[str, str]:
        """The attributes of the node; all are text."""
        return {"plan": self.plan} | {f"image_{i}": b64encode(x).decode() for i, x in enumerate(self.images)}


@dataclass(frozen=True, slots=True)
class KernelImage:
    """The code of kernel number `kernel` for one architecture, and how it is launched: machine
    code, or PTX for this one and later ones.

    `shared` is in bytes, `hidden` counts null pointers behind the arguments. `maps`: arguments that
    are given as tensor maps; other images of the kernel may take pointers.
    """

    kernel: int
    capability: int
    content: bytes
    symbol: str
    warps: int
    shared: int
    hidden: int
    overlap: bool
    ptx: bool = False
    maps: tuple[TensorMap, ...] = ()

    @property
    def line(self) -> str:
        """The image's line in a plan, followed by a line for each tensor map."""
        kind = "ptx" if self.ptx else "cubin"
        launch = f"{self.symbol} {self.warps} {self.shared} {self.hidden} {int(self.overlap)}"
        head = f"image {self.kernel} {self.capability} {kind}"
        return "\n".join([f"{head} {launch} {len(self.content)} {zlib.crc32(self.content):08x}", *map(_map, self.maps)])

    def with_ptx(self, text: str) -> KernelImage:
        """This kernel as PTX, which later architectures compile when they load it (none for sm_90a:
        start from 80 or 89)."""
        return replace(self, content=text.encode(), ptx=True)


def cpu_kernel(graph: Graph, before: Sequence[SizeRange] = ()) -> PlannedNode:
    """A muGraph as C++ that is compiled where it runs; `before` has others of the same goal, for
    smaller runs.

    Raises Unsupported where one has no C++.
    """
    inputs, outputs = (_types(nodes) for nodes in (graph.inputs, graph.outputs))
    entry = f"kernel_{hashlib.blake2b(generate_ranges(graph, before).encode(), digest_size=8).hexdigest()}"
    empty = [f"empty {name}" for name in possibly_empty(graph)] if has_free_sizes(graph) else []
    head = [f"taso_mirage {PLAN_FORMAT} cpu", *_lines("input", inputs), *_lines("output", outputs)]
    lines = [*head, *empty, f"entry {entry}"]
    prepared = " prepared" if any(map(prepares, graph)) else ""  # a keyword that older libraries reject
    prepared += " sizes" if has_free_sizes(graph) else ""
    said = f'extern "C" const char {entry}_types[] = "{_signature(inputs, outputs)}{prepared}";\n'
    return PlannedNode(
        "cpu", entry, inputs, outputs, sealed(lines), generate_ranges(graph, before, entry) + "\n" + said
    )


def images(compiled: Sequence[CompiledKernel]) -> list[KernelImage]:
    """The images of the kernels that `emit.compile.compiled` made of a program for one
    capability."""
    return [
        KernelImage(i, c.capability, c.cubin, c.symbol, c.warps, c.shared, c.hidden, c.overlap, maps=c.maps)
        for i, c in enumerate(compiled)
    ]


@dataclass(frozen=True, slots=True)
class ProgramRange:
    """The program for runs whose named sizes have a product of at most `most`, with its images."""

    program: TritonProgram
    images: Sequence[KernelImage]
    most: int


def cuda_kernel(
    program: TritonProgram, images: Sequence[KernelImage], before: Sequence[ProgramRange] = ()
) -> PlannedNode:
    """A Triton program with its kernels' images: at least one for every launch. `before` has others
    of the same goal, for smaller runs.

    The free dims of a batch are named n0, n1, ...

    Raises Unsupported where a result is no kernel's.
    """
    ranges = [*[(each.program, each.images, each.most) for each in before], (program, images, None)]
    inputs = [b for b in program.buffers if b.role == "input"]
    outputs = [program.buffer(name) for name in program.results]
    free = tuple(f"n{i}" for i in range(program.batch.dims)) if program.batch is not None else ()
    types = [tuple([_type(b, free) for b in buffers]) for buffers in (inputs, outputs)]
    scratch: list[Tensor] = []
    launches: list[str] = []
    coded: list[KernelImage] = []
    for each, own, most in ranges:
        places = _places(each, len(scratch))
        scratch += [_type(b, free) for b in each.buffers if b.role == "scratch"]
        first = sum(line.startswith("kernel") for line in launches)
        launches += [_launch(launch, places, free) for launch in each.launches]
        launches += [f"range {most}"] if most is not None else []
        coded += [replace(image, kernel=image.kernel + first) for image in own]
    lines = [f"taso_mirage {PLAN_FORMAT} cuda", *_lines("input", types[0]), *_lines("output", types[1])]
    empty = [name for name in program.empty if all(name in each.empty for each, *_ in ranges)]
    plan = sealed(
        [
            *lines,
            *(f"empty {name}" for name in empty),
            *_lines("scratch", scratch),
            *launches,
            *(image.line for image in coded),
        ]
    )
    key = hashlib.blake2b(plan.encode(), digest_size=8).hexdigest()
    source = "\n\n".join(each.source for each, _, _ in ranges)
    contents = tuple(image.content for image in coded)
    return PlannedNode("cuda", f"kernel_{key}", types[0], types[1], plan, source, contents)


def _places(program: TritonProgram, scratch: int) -> dict[str, str]:
    """The plan's name for each buffer and size, where earlier programs have `scratch` scratch
    buffers."""
    outputs = [program.buffer(name) for name in program.results]
    if len(set(program.results)) < len(outputs) or any(b.role != "output" for b in outputs):
        raise Unsupported(f"the results {program.results} of a program; each must be written by a kernel, once")
    found = {b.name: f"o{i}" for i, b in enumerate(outputs)} | {name: f"n{i}" for i, name in enumerate(program.sizes)}
    for role, first in (("input", 0), ("scratch", scratch)):
        own = [b for b in program.buffers if b.role == role]
        found |= {b.name: f"{role[0]}{i}" for i, b in enumerate(own, first)}
    return found


def _launch(launch: TritonLaunch, places: Mapping[str, str], free: Sequence[str]) -> str:
    x, y, z = launch.launched
    grid = "*".join([*free, str(x).replace(" ", "")])
    kernel = f"kernel {grid} {y} {z} {' '.join(places[b] for b in (*launch.buffers, *launch.sizes))}"
    more = [f"cluster {launch.cluster}"] if launch.cluster != 1 else []
    return "\n".join([kernel, *more, *(["copies"] if launch.copies else [])])


def _map(map: TensorMap) -> str:
    numbers = (",".join(str(n).replace(" ", "") for n in each) for each in (map.shape, map.strides, map.box))
    return f"map {map.argument} {' '.join(numbers)} {map.swizzle} {'nan' if map.nan else 'zero'}"


def sealed(lines: Iterable[str]) -> str:
    """A plan of these lines, followed by their checksum."""
    text = "".join(line + "\n" for line in lines)
    return f"{text}check {zlib.crc32(text.encode()):08x}\n"


def _type(buffer: TritonBuffer, free: Sequence[str]) -> Tensor:
    """The type of a scratch buffer: samples are stored one after the other, independent of the dims
    of one."""
    if not buffer.batched:
        return Tensor(buffer.dtype, buffer.shape)
    names = tuple([symbol(name) for name in free])
    if buffer.role == "scratch":
        return Tensor(buffer.dtype, (dim_product((*names, *buffer.shape)),))
    return Tensor(buffer.dtype, (*names, *buffer.shape[len(names) :]))


def _types(nodes: Sequence[Node]) -> tuple[Tensor, ...]:
    for node in nodes:
        if node.dtype not in DTYPES:
            raise Unsupported(f"a kernel for the CPU over {node.type}; kernels take {', '.join(sorted(DTYPES))}")
    return tuple(node.tensor for node in nodes)


def _lines(word: str, types: Iterable[Tensor]) -> list[str]:
    return [" ".join((word, type.dtype, *_texts(type))) for type in types]


def _signature(inputs: Iterable[Tensor], outputs: Iterable[Tensor]) -> str:
    """The signature as cpp/plan.cpp writes it: the compiled kernel states it, so that a plan cannot
    give it other tensors."""
    shown = [" ".join((t.dtype, *_texts(t))) + "," for t in inputs]
    return " ".join([*shown, "->", *(" ".join((t.dtype, *_texts(t))) + "," for t in outputs)])


def _texts(type: Tensor) -> list[str]:
    """The dims of a type, each as one word."""
    return [str(n).replace(" ", "") for n in type.shape or ()]
