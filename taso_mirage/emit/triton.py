"""A muGraph as one readable Python module: a Triton function for each kernel, and `launch(*inputs)`
over torch tensors.

Mirage (OSDI'25), section 6, as far as Triton leaves it to us: the order of computations before, in
and after the loop, and the time of each fold. Layouts in shared memory and barriers are the Triton
compiler's, except in the forms in Gluon, which state their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from textwrap import wrap

from taso_mirage.emit.gpu.buffers import dense_buffers, kernel_terms, output_buffers, tensor_buffers
from taso_mirage.emit.gpu.clusters import SOURCE
from taso_mirage.emit.gpu.forms import LaunchedFunction, gpu_programs
from taso_mirage.emit.gpu.moved_tensors import buffers_of, operand_tensor
from taso_mirage.emit.gpu.program import LaunchSchedule, TritonBuffer, TritonLaunch, TritonProgram
from taso_mirage.emit.gpu.small_floats import CONVERSIONS
from taso_mirage.emit.statements import PYTHON, ProgramFunction, Return, Statement, expression, let, v
from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import dim_product, symbols
from taso_mirage.ir.mugraph import Batch, Lowering, possibly_empty, size_names
from taso_mirage.ir.terms import Graph, Node, is_float, is_stored
from taso_mirage.operators.ops import traits
from taso_mirage.rewriting.text import show_graph


def program(
    graph: Graph,
    schedules: Sequence[LaunchSchedule | None] | None = None,
    batch: Batch | None = None,
    specialized: bool = False,
) -> TritonProgram:
    """Triton source for a muGraph whose terms are kernels.

    `schedules`: one for each kernel, None for the generator's choice. `batch`: the muGraph is for
    one sample, and runs for as many as the inputs have. `specialized`: at least one of the kernels
    without a given schedule has groups of warps, in Gluon for sm_90: attention, with roles, and
    convolutions whose weights stay in shared memory.

    Raises Unsupported with the reason if a body has no form in Triton, or not the requested one.
    """
    buffers, sizes = tensor_buffers(graph, batch), size_names([x.shape for x in graph.inputs])
    if unnamed := {n for b in buffers.values() for dim in b.shape for n in symbols(dim)}.difference(sizes):
        raise Unsupported(f"the size {min(unnamed)}, which no input has as a dim")
    terms = kernel_terms(graph)
    chosen = schedules or [None] * len(terms)
    written = [_function(node, f"kernel_{i}", buffers, sizes) for i, node in enumerate(terms)]
    blocks = [
        _in_groups(node, block) if schedule and schedule.specialized else block
        for node, block, schedule in zip(terms, written, chosen, strict=True)
    ]
    if specialized:
        blocks = _specialized(terms, blocks, chosen)
    launches = tuple(b.launch(s) for b, s in zip(blocks, chosen, strict=True))
    results = tuple(buffers[o].name for o in graph.outputs)
    everything = dense_buffers(graph, buffers)
    helpers = [*dict.fromkeys(text for each in blocks for text in each.helpers)]
    helpers += [SOURCE] if any(each.cluster != 1 for each in launches) else []
    helpers += [CONVERSIONS] if any(is_stored(b.dtype) for b in everything) else []
    text = [_header(graph, blocks, launches, batch), IMPORTS, *helpers, *(b.source() for b in blocks)]
    text += [options_text(launches), _launch(everything, launches, results, batch, sizes)]
    source = "\n\n".join(t.rstrip("\n") + "\n" for t in text)
    return TritonProgram(
        source, everything, launches, results, batch, tuple(sizes), tuple(possibly_empty(graph) if sizes else ())
    )


def program_forms(graph: Graph, specialized: bool) -> list[TritonProgram]:
    """All forms of a muGraph: that in Triton, and on request that in Gluon; none if it has no
    form."""
    found = []
    for each in (False, True)[: 1 + specialized]:
        with suppress(Unsupported):
            found.append(program(graph, specialized=each))
    return found


def _function(node: Node, name: str, buffers: dict[Node, TritonBuffer], sizes: Sequence[str]) -> LaunchedFunction:
    """A term that is launched as a function."""
    read, written = [operand_tensor(a, buffers) for a in node.args], list(output_buffers(node, buffers))
    parts = any(b.part for x in (*read, *written) if x is not None for b in buffers_of(x))
    if parts and traits(node).lowering is not Lowering.KERNEL:
        raise Unsupported(f"{node.op} over a part of a result: only kernels of the search store parts")
    return gpu_programs()[node.op].function(node, name, read, written, sizes)


def _in_groups(node: Node, block: LaunchedFunction) -> LaunchedFunction:
    """The form whose groups of warps do not wait for each other, unlike those of a block."""
    found = gpu_programs()[node.op].in_groups
    if found is None:
        raise Unsupported(f"{node.op}, which has no form in Gluon")
    return found(block)


def _specialized(
    terms: Sequence[Node], blocks: Sequence[LaunchedFunction], chosen: Sequence[LaunchSchedule | None]
) -> list[LaunchedFunction]:
    """The blocks, with specialized forms in place of those that have one. Raises Unsupported if
    none has one."""
    found, reasons = list(blocks), list[str]()
    for i, (node, block, schedule) in enumerate(zip(terms, blocks, chosen, strict=True)):
        if schedule is None and not block.specialized:
            try:
                found[i] = _in_groups(node, block)
            except Unsupported as error:
                reasons.append(str(error))
    if not any(block.specialized for block in found):
        raise Unsupported("; ".join(dict.fromkeys(reasons)) or "schedules that were chosen for another form")
    return found


def generate(graph: Graph) -> str:
    """The source of the module."""
    return program(graph).source


IMPORTS = """import triton
import triton.language as tl
"""


def _header(
    graph: Graph,
    blocks: Sequence[LaunchedFunction],
    launches: Sequence[TritonLaunch],
    batch: Batch | None,
) -> str:
    lines = ['"""Generated by taso_mirage from the muGraph below: run launch(*inputs) on contiguous CUDA tensors.', ""]
    for block, launch in zip(blocks, launches, strict=True):
        loop = f", loop of {launch.loop}" if launch.loop != 1 else ""
        loop += f", clusters of {launch.cluster} along the last dim" if launch.cluster != 1 else ""
        lines.append(f"{launch.name}: grid {launch.grid}{loop}; its schedule is in OPTIONS.")
        for said in block.explained():
            lines += wrap(said, 118, initial_indent="  - ", subsequent_indent="    ")
    whole = any(traits(n).lowering is Lowering.WHOLE for block in blocks for n in block.body)
    if batch is not None:
        shared = [x.attr("name") for x, one in zip(graph.inputs, batch.inputs, strict=True) if not one]
        all_read = f"; all of them read {', '.join(shared)}" if shared else ""
        lines += wrap(
            f"The muGraph is of one sample. Each grid is launched once for every sample, along its first dim{all_read}.",
            118,
        )
    lines += [
        "Arithmetic and what passes between kernels is fp32; a dot takes operands of the model's dtype and sums in fp32.",
        *(["Of numbers in 8 bits less their zeros it is int32, and exact."] if whole else []),
        '"""',
        "",
    ]
    return "\n".join([*lines, *(f"# {line}" for line in show_graph(graph).splitlines())])


def options_text(launches: Sequence[TritonLaunch]) -> str:
    """The text of the module that says how each launch is tuned."""
    shown = []
    for each in launches:
        options = ", ".join(f'"{name}": {value!r}' for name, value in each.options.items())
        shown.append(f"    {{{options}}},  # {each.name}")
    return "\n".join(["OPTIONS = (", *shown, ")"])


def _launch(
    buffers: Sequence[TritonBuffer],
    launches: Sequence[TritonLaunch],
    results: Sequence[str],
    batch: Batch | None,
    sizes: Sequence[str],
) -> str:
    inputs = [b for b in buffers if b.role == "input"]
    dims = batch.dims if batch is not None else 0

    def shown_shape(b: TritonBuffer) -> str:
        return str([*("n" * dims), *b.shape[dims:]] if b.batched else list(b.shape)).replace("'", "")

    shown = ", ".join(f"{b.name}: {b.dtype}{shown_shape(b)}" for b in inputs)
    made = ", ".join(f"{b.dtype}{shown_shape(b)}" for b in buffers if b.name in results)
    body: list[Statement] = [v["import torch\n"]]
    body += [let(b.name, f"{b.name}.contiguous(){_as_bytes(b)}") for b in inputs]
    for name in sizes:
        given, axis = next((b.name, i) for b in inputs for i, n in enumerate(b.shape) if str(n) == name)
        body.append(let(name, v[given].shape[axis]))
    sample = next((b.name for b in inputs if b.batched), None)
    if sample is not None:
        body.append(let("samples", f"{sample}.shape[:{dims}]"))
    for b in (b for b in buffers if b.role != "input"):
        shape = f"(*samples, *{b.shape[dims:] if b.role == 'output' else b.shape})" if b.batched else b.shape
        empty = v.torch.empty(shape, dtype=f"torch.{b.dtype}", device=v[inputs[0].name].device)
        body.append(let(b.name, empty))
    for i, each in enumerate(launches):
        grid = str((dim_product(each.clusters), 1, 1) if each.sizes else each.clusters)
        grid = grid if sample is None else f"(samples.numel() * {each.clusters[0]}, *{each.clusters[1:]})"
        mapped = [v.tiles(b, m.shape, m.tile) for b, m in zip(each.buffers, each.maps, strict=False)]
        args = (*mapped, *each.buffers[len(mapped) :], *each.sizes, f"**options[{i}]")
        clusters = v.launch_clusters(each.name, grid, each.cluster, *args)
        body.append(v[f"{each.name}[{grid}]"](*args) if each.cluster == 1 else clusters)
    body.append(Return(expression(results)))
    names = (*(b.name for b in inputs), "*", "options=OPTIONS")
    return PYTHON.function(ProgramFunction("launch", names, tuple(body), why=f"{shown} -> {made}"))


def _as_bytes(buffer: TritonBuffer) -> str:
    return "" if buffer.pointed == buffer.dtype else f".view(torch.{buffer.pointed})"


def pointer(dtype: str) -> str:
    """Triton's type of a pointer to elements of a dtype."""
    short = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64", "bool": "i1", "uint8": "u8"}
    return (
        f"*{short.get(dtype) or dtype.replace('uint', 'u').replace('int', 'i')}"
        if not is_float(dtype) or dtype in short
        else f"*{dtype}"
    )
