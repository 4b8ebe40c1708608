"""Every kind of text that the package generates, by name: programs in Triton and Gluon, C++, plans,
and the sources of TensorRT plugins.

The muGraphs are those of the tests: written by hand, or hand-written forms at several sizes.
Programs that only a search writes (8-bit floats, integers, packed weights, free sizes) are kept in
`searched.json`, so that a change of the search changes no text here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [
    str(ROOT),
    str(ROOT / "tests"),
    str(ROOT / "tests" / "harness"),
    *map(str, {f.parent for f in ROOT.glob("tests/*/test_*.py")}),
]

import moved_operands  # noqa: E402
import mugraphs  # noqa: E402
import test_batches as batches  # noqa: E402
import test_block_linear as block_linear  # noqa: E402
import test_codegen_cpp as codegen_cpp  # noqa: E402
import test_codegen_triton as codegen_triton  # noqa: E402
import test_convolutions as winograd  # noqa: E402
import test_shifted_gpu as shifted  # noqa: E402
import test_stationary as stationary  # noqa: E402

from taso_mirage.emit import triton, tune  # noqa: E402
from taso_mirage.emit.cpp import SizeRange  # noqa: E402
from taso_mirage.emit.cpu.prepared import header  # noqa: E402
from taso_mirage.emit.gpu.program import LaunchSchedule, TritonProgram  # noqa: E402
from taso_mirage.errors import Unsupported  # noqa: E402
from taso_mirage.ir.dims import symbol  # noqa: E402
from taso_mirage.ir.mugraph import Batch  # noqa: E402
from taso_mirage.ir.terms import ABSENT, Graph, Tensor, constant, variable  # noqa: E402
from taso_mirage.mugraph.checkpoint import from_json  # noqa: E402
from taso_mirage.operators.ops import term  # noqa: E402
from taso_mirage.runtime.plan import KernelImage, ProgramRange, cpu_kernel, cuda_kernel  # noqa: E402
from taso_mirage.runtime.tensorrt import plugin_attributes, plugin_source, python_plugin  # noqa: E402

FORM_TESTS = [import_module(file.stem) for file in sorted(ROOT.glob("tests/forms/test_*.py"))]
"""The tests of forms: `gpu_golden` or `cpu_golden` of one has the muGraphs whose programs are
kept."""
SEARCHED = Path(__file__).parent / "searched.json"
Named = Iterator[tuple[str, str]]


def texts() -> Named:
    """Each text by its name, which a file may have."""
    yield "cpu/vector header", header("vector.h")
    for name, graph in gpu_graphs():
        yield from _programs(f"gpu/{name}", graph)
    yield from _batched()
    yield from _scheduled()
    for name, graph in cpu_graphs():
        yield from _cpu(f"cpu/{name}", graph)
    yield from _ranges()
    yield from _tensorrt()


def gpu_graphs() -> Iterator[tuple[str, Graph]]:
    """MuGraphs for a GPU."""
    made: dict[str, Callable[[], tuple[Graph, Graph]]] = dict(codegen_triton.CASES)
    made |= {f"real {name}": make for name, make in codegen_triton.REAL.items()}
    made |= {
        "roles": mugraphs.attention_roles,
        "roles normed": partial(mugraphs.attention_roles, normed=True),
        "roles bfloat16": partial(mugraphs.attention_roles, 1024, 4, 4, dtype="bfloat16"),
    }
    for name, make in made.items():
        yield f"kernels/{name}", make()[0]
    for name, moved in moved_operands.MOVED.items():
        if name != moved_operands.IN_BODIES:
            yield f"moved/{name}", moved("float16")
    for each in FORM_TESTS:
        yield from getattr(each, "gpu_golden", tuple)()
    for name, of_weights in stationary.FORMS.items():
        yield f"stationary/{name}", Graph(of_weights[1].inputs, (of_weights[0].mugraph(stationary.BLOCK),))
    for name, value in _searched("gpu"):
        yield f"searched/{name}", value


def cpu_graphs() -> Iterator[tuple[str, Graph]]:
    """MuGraphs for a CPU."""
    made = dict(mugraphs.WORKLOADS) | {f"{name} odd": make for name, make in codegen_cpp.ODD.items()}
    for name, make in made.items():
        yield f"kernels/{name}", make()[0]
    for each in FORM_TESTS:
        yield from getattr(each, "cpu_golden", tuple)()
    yield from _whole_programs()
    for name, value in _searched("cpu"):
        yield f"searched/{name}", value


def _whole_programs() -> Iterator[tuple[str, Graph]]:
    """Programs for a CPU with tables and copies, with results that one block of several writes,
    with terms that run together, and with any number of images."""
    x, row = variable("X", Tensor("float32", (4, 6))), constant(np.arange(6, dtype=np.float32))
    made = mugraphs.kernel([(x, (0,), -1), (row, (-1,), -1)], lambda a, b: term("mul", a, b), (2,), 1, (0,))
    yield "programs/table and copies", Graph((x,), (term("softmax", made, axis=1), made, x, made))
    repeated = mugraphs.kernel([(x, (0, -1), -1)], lambda a: term("relu", a), (2, 3), 1, (0, -1))
    yield "programs/one block of several", Graph((x,), (repeated,))
    product, goal = block_linear.case(*block_linear.CASES[0])
    both = tuple([product.mugraph(block) for block in block_linear.BLOCKS[:2]])
    yield "programs/together", Graph(goal.inputs, both)
    convolution, goal = winograd.case(*winograd.CASES[0])
    images = variable("X", Tensor("float32", (symbol("n0"), *convolution.x.shape[1:])))
    free = replace(convolution, x=images, b=ABSENT, z=ABSENT)
    yield "programs/any number of images", Graph((images, free.w), (free.mugraph((2, 2), (16, 1)),))


def _searched(target: str) -> Iterator[tuple[str, Graph]]:
    for name, value in json.loads(SEARCHED.read_text())[target].items():
        yield name, from_json(value)


def _programs(name: str, graph: Graph) -> Named:
    """The programs of a muGraph, in Triton and in Gluon, each with its plan; of a form that it does
    not have the reason."""
    for form, specialized in (("triton", False), ("gluon", True)):
        try:
            made = triton.program(graph, specialized=specialized)
        except Unsupported as error:
            yield f"{name}.{form}", f"none: {error}\n"
            continue
        yield f"{name}.{form}", made.source
        yield f"{name}.{form} plan", _plan(made)


def _plan(program: TritonProgram) -> str:
    """The plan of a program with stand-ins for machine code, and the tuner's facts about each
    launch."""
    noted = "".join(f"{x.schedule} {x.traffic} {x.precisions}\n" for x in program.launches)
    try:
        return noted + cuda_kernel(program, _images(program)).plan
    except Unsupported as error:
        return f"{noted}none: {error}\n"


def _images(program: TritonProgram) -> list[KernelImage]:
    launches = enumerate(program.launches)
    return [KernelImage(i, 90, b"code", x.name, x.schedule.warps, 0, 2, x.schedule.overlap) for i, x in launches]


def _batched() -> Named:
    """A muGraph of one sample for any number of them, counted by one dim and by two."""
    for samples in ((5,), (2, 3)):
        made = triton.program(batches.sums(*samples)[0], None, Batch(len(samples), (True, False)))
        yield f"gpu/batched/{len(samples)} dims.triton", made.source
        yield f"gpu/batched/{len(samples)} dims.triton plan", _plan(made)


def _scheduled() -> Named:
    """Programs of schedules: options, and launches by which blocks take turns."""
    split = triton.program(mugraphs.attention_split_safe()[0])
    yield "gpu/scheduled/overlapped.triton", tune.overlapped(split).source
    (made, goal), block = shifted.FORMS["phases"]
    graph = Graph(goal.inputs, (made.mugraph(block),))
    for schedule in (LaunchSchedule(4, 2, persistent=3), LaunchSchedule(8, 3, True, True, precision="tf32")):
        name = f"gpu/scheduled/{schedule.warps} warps, {schedule.persistent} blocks.triton"
        yield name, triton.program(graph, [schedule]).source


def _cpu(name: str, graph: Graph) -> Named:
    """The C++ of a muGraph, without the common part, and its plan."""
    try:
        made = cpu_kernel(graph)
    except Unsupported as error:
        yield f"{name}.cpp", f"none: {error}\n"
        return
    yield f"{name}.cpp", made.source.replace(header("vector.h"), "")
    yield f"{name}.cpp plan", made.plan


def _ranges() -> Named:
    """One kernel for several ranges of sizes."""
    graphs, programs = (dict(_searched(target)) for target in ("cpu", "gpu"))
    few, many = "free norm_linear 0", "free norm_linear 1"
    made = cpu_kernel(graphs[many], [SizeRange(graphs[few], 16)])
    yield "cpu/ranges.cpp", made.source.replace(header("vector.h"), "")
    first, second = triton.program(programs[few]), triton.program(programs[many])
    before = [ProgramRange(first, _images(first), 16)]
    yield "gpu/ranges.triton plan", cuda_kernel(second, _images(second), before).plan


def _tensorrt() -> Named:
    """A library of plugins, and the module of those that are one launch."""
    kernels = {}
    for name in ("gated_mlp", "attention_split", "rmsnorm_linear_cluster"):
        program = triton.program(codegen_triton.CASES[name]()[0])
        images = _images(program)
        made = cuda_kernel(program, [*images, *(each.with_ptx(_ptx(program, each)) for each in images)])
        kernels[name] = plugin_attributes.kernel(name, made.attributes, [None] * len(made.inputs))
    for name, text in plugin_source.sources(kernels).items():
        yield f"tensorrt/{name}", text
    module, missing = python_plugin.module(kernels)
    yield "tensorrt/plugins.py", module + "".join(f"# {name}: {why}\n" for name, why in missing.items())


def _ptx(program: TritonProgram, image: KernelImage) -> str:
    """A stand-in for the PTX of a launch, with its parameters alone."""
    count = len(program.launches[image.kernel].buffers) + image.hidden
    given = ",\n".join(f"\t.param .u64 {image.symbol}_param_{i}" for i in range(count))
    return f".visible .entry {image.symbol}(\n{given}\n)\n{{ }}"
