"""The places of a muGraph's tensors while its C++ program runs: the inputs and outputs of the entry
point, and the scratch memory between the kernels."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from taso_mirage.emit.cpu.lazy_tensors import contiguous
from taso_mirage.emit.cpu.nests import memory_type
from taso_mirage.emit.cpu.printer import static_cast
from taso_mirage.emit.statements import Expression, expression, sum_of, v
from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim, Shape, dim_product
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import Graph, Node, Tensor, is_float, topological
from taso_mirage.operators.ops import traits
from taso_mirage.operators.stores import PartLayout, has_parts, part_layout, stored_parts, writes_over

ALIGNMENT = 64


def source(node: Node) -> tuple[Node, int]:
    """The kernel of a value, and the number of its result."""
    return (node.args[0], node.attr("index")) if node.op == "item" else (node, 0)


def is_copy(node: Node) -> bool:
    """Whether a kernel gives its operand as it is, each block the part that it reads."""
    if traits(node).lowering is not Lowering.KERNEL or len(node.args) != 1:
        return False
    body = node.attr("body")
    return bool(body.outputs == body.inputs and node.attr("imap") == node.attr("omap") and node.attr("loop") == 1)


def tensor_bytes(type: Tensor) -> Dim:
    memory_type(type.dtype)
    return dim_product(type.shape or ()) * np.dtype(type.dtype).itemsize


@dataclass
class Places:
    """The pointer and the stored type of every tensor of a muGraph."""

    graph: Graph
    found: dict[tuple[Node, int], tuple[Expression, Tensor]] = field(default_factory=dict)
    scratch: list[Dim] = field(default_factory=list)
    """The bytes of each tensor in the scratch memory."""

    strides: dict[tuple[Node, int], Shape] = field(default_factory=dict)
    """The strides of the parts of results, in elements; all else is dense."""
    layouts: dict[tuple[Node, int], PartLayout] = field(default_factory=dict)
    """The layouts of the parts whose rows are read first."""
    parts: dict[tuple[Node, int], tuple[Expression, Tensor]] = field(default_factory=dict)
    """The places of the parts of results."""
    joined: set[Node] = field(default_factory=set)
    """The terms that put parts together: nothing is left to be done for them."""

    def __post_init__(self) -> None:
        for i, node in enumerate(self.graph.inputs):
            self.found[node, 0] = v.inputs[i], node.tensor
        for i, output in enumerate(self.graph.outputs):
            if has_parts(output) and output not in self.graph.outputs[:i]:
                self._parts(output, v.outputs[i])

    def _parts(self, output: Node, whole: Expression) -> None:
        """Places of the parts of a result, if each is stored with one stride an axis, by a kernel,
        at one place."""
        parts = stored_parts(output)
        made = [source(part.value) for part in parts]
        if not all(traits(node).lowering is Lowering.KERNEL for node, _ in made) or len(set(made)) < len(made):
            return
        if {*made} & {*self.parts, *map(source, self.graph.outputs)}:
            return
        try:
            layouts = [part_layout(part) for part in parts]
        except Unsupported:
            return
        if writes_over(output) and self._read({*made, source(output)}):
            raise Unsupported(f"a kernel that reads {output.op} {output.type}, whose parts are stored one over another")
        for key, part, layout in zip(made, parts, layouts, strict=True):
            start = static_cast("char*", whole) + expression(layout.start * np.dtype(output.dtype).itemsize)
            self.parts[key] = (whole if layout.start == 0 or layout.rows else start), part.value.tensor
            self.strides[key] = layout.strides
            self.layouts |= {key: layout} if layout.rows else {}
        self.joined |= {output, *topological([output], stop={part.value for part in parts})}
        self.found[output, 0] = whole, output.tensor

    def _read(self, values: set[tuple[Node, int]]) -> bool:
        """Whether a kernel reads one of these values."""
        kernels = (node for node in self.graph if traits(node).lowering is Lowering.KERNEL)
        return any(source(x) in values for node in kernels for arg in node.args for x in topological([arg]))

    def rows(self, node: Node, i: int) -> list[Node]:
        """The tensors of the rows of a result that is a part of another."""
        layout = self.layouts.get((node, i))
        return [] if layout is None else [row.source for _, row in layout.rows]

    def strides_of(self, node: Node) -> Shape | None:
        """The strides of a part of a result; None for a dense tensor."""
        return self.strides.get(source(node))

    def elsewhere(self, node: Node) -> Expression | None:
        """For a kernel that copies an input to a part of a result whose elements lie as those of
        the input: whether the caller gave other memory for it. None for any other kernel."""
        if (node, 0) not in self.parts or not is_copy(node) or node.args[0] not in self.graph.inputs:
            return None
        input, (place, part) = node.args[0], self.parts[node, 0]
        pairs = zip(input.shape, contiguous(input.shape), self.strides[node, 0], strict=True)
        dense = all(own == stride for n, own, stride in pairs if n != 1)
        return self.of(input)[0].differs(place) if dense and part == input.tensor else None

    def of(self, node: Node) -> tuple[Expression, Tensor]:
        return self.found[source(node)]

    def pointer(self, node: Node) -> Expression:
        """The pointer to a value as an argument of a kernel."""
        place, _ = self.of(node)
        return v["const_cast<void*>"](place) if node in self.graph.inputs else place

    def results(self, node: Node) -> list[tuple[Expression, Tensor]]:
        """Places for the results of a kernel."""
        types = node.type if isinstance(node.type, tuple) else (node.tensor,)
        made = [self._place(node, i, type) for i, type in enumerate(types)]
        self.found |= {(node, i): place for i, place in enumerate(made)}
        return made

    def _place(self, node: Node, index: int, type: Tensor) -> tuple[Expression, Tensor]:
        """A place in an output of the graph, else in the scratch memory, where floats are fp32."""
        if (node, index) in self.parts:
            return self.parts[node, index]
        for i, output in enumerate(self.graph.outputs):
            if source(output) == (node, index):
                return v.outputs[i], type
        stored = Tensor("float32", type.shape) if is_float(type.dtype) else type
        return self.room(tensor_bytes(stored)), stored

    def room(self, bytes: Dim) -> Expression:
        """A place of so many bytes in the scratch memory."""
        place = sum_of([static_cast("char*", "scratch"), *self.used()])
        self.scratch.append(bytes)
        return place

    def used(self) -> list[Expression]:
        """The bytes of the scratch memory so far, as terms of a sum."""
        aligned = sum(-(-n // ALIGNMENT) * ALIGNMENT for n in self.scratch if isinstance(n, int))
        return [expression(aligned), *(v.aligned(n) for n in self.scratch if not isinstance(n, int))]
