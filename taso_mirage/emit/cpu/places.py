"""The places of a muGraph's tensors while its C++ program runs: the inputs and outputs of the entry
point, and the scratch memory between the kernels."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from taso_mirage.emit.cpu.nests import memory_type
from taso_mirage.emit.cpu.printer import static_cast
from taso_mirage.emit.statements import Expression, expression, sum_of, v
from taso_mirage.ir.dims import Dim, dim_product
from taso_mirage.ir.terms import Graph, Node, Tensor, is_float

ALIGNMENT = 64


def source(node: Node) -> tuple[Node, int]:
    """The kernel of a value, and the number of its result."""
    return (node.args[0], node.attr("index")) if node.op == "item" else (node, 0)


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

    def __post_init__(self) -> None:
        for i, node in enumerate(self.graph.inputs):
            self.found[node, 0] = v.inputs[i], node.tensor

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
