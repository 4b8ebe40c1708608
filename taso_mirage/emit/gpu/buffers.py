"""The terms of a muGraph that are launched, and the buffers that they read and write."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from taso_mirage.emit.gpu.forms import gpu_programs, reserved_names
from taso_mirage.emit.gpu.global_layouts import accesses, best_order, usual_shape
from taso_mirage.emit.gpu.program import TritonBuffer
from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import dim_product
from taso_mirage.ir.mugraph import Batch, Lowering, size_names
from taso_mirage.ir.terms import Graph, Node, Tensor, is_float, numpy_dtype, topological
from taso_mirage.operators.movements import is_moved
from taso_mirage.operators.ops import traits
from taso_mirage.operators.stores import has_parts, launch_order, part_layout, stored_parts, writes_over


def is_launched(node: Node) -> bool:
    """Whether a term is one function."""
    return node.op in gpu_programs()


def kernel_terms(graph: Graph) -> list[Node]:
    """The terms of a muGraph that are launched, operands first.

    Raises Unsupported if other operators are between them than reshapes, those that move the
    elements of an operand, and those that put parts together to a result.
    """
    found = [node for node in launch_order(graph) if is_launched(node)]
    moved = {arg for node in found for arg in node.args if is_moved(arg)} - {*graph.outputs}
    within = {*topological(moved), *(node for output in graph.outputs for node in joining(output))}
    for node in graph:
        known = is_launched(node) or node in within or node.op in ("item", "input", "weight", "absent")
        if not known and not _is_view(node, graph):
            raise Unsupported(f"{node.op} between kernels; only kernels are compiled")
    return found


def joining(output: Node) -> set[Node]:
    """The terms that put the parts of a result together."""
    return {*topological([output], stop={part.value for part in stored_parts(output)})} if has_parts(output) else set()


def _part_buffers(output: Node, whole: TritonBuffer, given: Mapping[Node, TritonBuffer]) -> dict[Node, TritonBuffer]:
    """The buffers of the parts of a result, within that of the result; `given`: those of inputs."""
    found: dict[Node, TritonBuffer] = {}
    for part in stored_parts(output):
        made = part.value
        if made in found or not (is_launched(made) or made.op == "item"):
            raise Unsupported(f"{made.op} {made.type} as a part of a result: each is stored by a kernel, at one place")
        order = tuple(range(len(made.shape)))
        layout = part_layout(part)
        sources = [row.source for _, row in layout.rows if row.source.op != "constant"]
        if not given.keys() >= {*sources}:
            raise Unsupported(f"{made.op} {made.type}, stored at rows that are computed")
        found[made] = replace(
            whole, shape=made.shape, order=order, part=layout, rows=tuple([given[x] for x in sources])
        )
    return found


def _is_view(node: Node, graph: Graph) -> bool:
    """Whether a term is an input, a result, or what a kernel gives in another shape."""
    if traits(node).lowering is not Lowering.RESHAPE or has_parts(node):
        return False
    (of,) = node.args
    return of in graph.inputs or of.op == "weight" or node in graph.outputs or is_launched(of)


def tensor_buffers(graph: Graph, batch: Batch | None = None) -> dict[Node, TritonBuffer]:
    """The buffer of every tensor of a muGraph: of inputs, weights, and the results of kernels,
    which are all batched if any input is; the buffer of a view has the view's shape."""
    found: dict[Node, TritonBuffer] = {}
    taken = {f"kernel_{i}" for i, _ in enumerate(kernel_terms(graph))} | {*size_names([x.shape for x in graph.inputs])}
    for node in (*graph.inputs, *(n for n in graph if n.op == "weight")):
        found[node] = _buffer(node, _free(node.attr("name"), taken), "input")
    for output in dict.fromkeys(filter(has_parts, graph.outputs)):
        found[output] = _buffer(output, _free("result", taken), "output")
        parts = _part_buffers(output, found[output], found)
        if writes_over(output) and any(x in {output, *parts} for n in kernel_terms(graph) for x in topological(n.args)):
            raise Unsupported(f"a kernel that reads {output.op} {output.type}, whose parts are stored one over another")
        if batch is not None or not parts.keys().isdisjoint({*found, *graph.outputs}):
            raise Unsupported("parts of a result that are results themselves, or of a run's samples")
        found |= parts
    views = [node for node in graph if _is_view(node, graph)]
    given = {*graph.outputs, *(node.args[0] for node in views if node in graph.outputs)}
    for node in (*graph, *graph.outputs):
        made = node.op == "item" or is_launched(node)
        if not made or node in found or not isinstance(node.type, Tensor):
            continue
        role = "output" if node in given else "scratch"
        found[node] = _buffer(node, _free("result" if role == "output" else "scratch", taken), role)
        if role == "scratch" and all(node is not view.args[0] for view in views):
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
    """Each buffer once, in the shape of the inputs and the results."""
    views = {node for node in graph if _is_view(node, graph)}
    found = {b.name: b for node, b in buffers.items() if node not in views}
    return tuple((found | {buffers[o].name: buffers[o] for o in graph.outputs}).values())


def output_buffers(node: Node, buffers: dict[Node, TritonBuffer]) -> Iterator[TritonBuffer | None]:
    """The buffers of a kernel's outputs, None for an output that nothing reads."""
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
    """Whether a kernel writes a result in its own type."""
    maker, place = (made.args[0], made.attr("index")) if made.op == "item" else (made, 0)
    return traits(maker.attr("body").outputs[place]).lowering is Lowering.NARROW


def _free(hint: str, taken: set[str]) -> str:
    hint = re.sub(r"\W", "_", hint, flags=re.ASCII)
    hint = hint if hint.isidentifier() and hint not in reserved_names() else f"t_{hint}"
    name, i = hint, 1
    while name in taken:
        i += 1
        name = f"{hint}_{i}"
    taken.add(name)
    return name
