"""Graphs for `superoptimize`, written as in Mirage's own Python API.

graph = new_graph()
x, w = graph.new_input(dims=(8, 4096)), graph.new_input(dims=(4096, 4096))
graph.mark_output(graph.matmul(graph.rms_norm(x), w))
found = graph.superoptimize()
found[0].generate_triton_program("rms_linear.py")
"""

from __future__ import annotations

from typing import Any

import numpy as np

from taso_mirage.errors import IllTyped, InvalidOption
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, numpy_dtype, variable
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.mugraph.search import superoptimize
from taso_mirage.operators.ops import term

float16, bfloat16, float32 = "float16", "bfloat16", "float32"
float8, float8_e5m2 = "float8_e4m3fn", "float8_e5m2"


class KernelGraph:
    """A graph while it is written.

    Values are terms; `dims` are the sizes of a tensor's axes, and a `dim` may count from the end.
    """

    def __init__(self) -> None:
        self.inputs: list[Node] = []
        self.outputs: list[Node] = []

    def new_input(self, dims: tuple[int, ...], dtype: str = float16, name: str | None = None) -> Node:
        """An input tensor; weights are inputs, too."""
        found = variable(name or f"x{len(self.inputs)}", Tensor(dtype, tuple(dims)))
        if any(found.attr("name") == i.attr("name") for i in self.inputs):
            raise InvalidOption(f"the graph has an input named {name!r} already; give the new one another name")
        self.inputs.append(found)
        return found

    def mark_output(self, *values: Node) -> None:
        """Make values the graph's results, in this order."""
        self.outputs += values

    def graph(self) -> Graph:
        """The graph as it is used everywhere else."""
        if not self.outputs:
            raise InvalidOption("the graph has no output; call mark_output with its results")
        return Graph(tuple(self.inputs), tuple(self.outputs))

    def superoptimize(self, **options: Any) -> list[FoundMuGraph]:
        """`superoptimize` of this graph, with its options."""
        return superoptimize(self.graph(), **options)

    # ------------------------------------------------------------ operators

    def matmul(self, a: Node, b: Node) -> Node:
        return term("matmul", a, b)

    def add(self, a: Node, b: Node | float) -> Node:
        return term("add", a, _operand(b, a))

    def sub(self, a: Node, b: Node | float) -> Node:
        return term("sub", a, _operand(b, a))

    def mul(self, a: Node, b: Node | float) -> Node:
        return term("mul", a, _operand(b, a))

    def div(self, a: Node, b: Node | float) -> Node:
        return term("div", a, _operand(b, a))

    def exp(self, x: Node) -> Node:
        return term("exp", x)

    def sqrt(self, x: Node) -> Node:
        return term("sqrt", x)

    def silu(self, x: Node) -> Node:
        return term("mul", x, term("sigmoid", x))

    def sigmoid(self, x: Node) -> Node:
        return term("sigmoid", x)

    def gelu(self, x: Node) -> Node:
        return term("gelu", x)

    def relu(self, x: Node) -> Node:
        return term("relu", x)

    def tanh(self, x: Node) -> Node:
        return term("tanh", x)

    def reduction(self, x: Node, dim: int) -> Node:
        """The sum over a dim, which is kept with size 1."""
        return term("reduce_sum", x, axes=(_dim(x, dim),), keepdims=1)

    def softmax(self, x: Node, dim: int = -1) -> Node:
        return term("softmax", x, axis=_dim(x, dim))

    def transpose(self, x: Node, *perm: int) -> Node:
        return term("transpose", x, perm=perm)

    def dequantize(self, x: Node, scale: Node, dim: int = 0) -> Node:
        """x * scale in the dtype of the scale, which is one number, or one for each position of a
        dim."""
        return term("dequantize", x, scale, dtype=scale.dtype, axis=_dim(x, dim))

    def rms_norm(self, x: Node, weight: Node | None = None, epsilon: float = 0.0) -> Node:
        """x over the root of the mean of its squares along the last dim (plus `epsilon`), times
        `weight`."""
        squares = term("reduce_mean", term("mul", x, x), axes=(len(x.shape) - 1,), keepdims=1)
        if epsilon:
            squares = term("add", squares, _operand(epsilon, x))
        normal = term("div", x, term("sqrt", squares))
        return normal if weight is None else term("mul", normal, weight)


def new_graph() -> KernelGraph:
    """An empty graph."""
    return KernelGraph()


def _operand(value: Node | float, like: Node) -> Node:
    return value if isinstance(value, Node) else constant(np.asarray(value, numpy_dtype(like.dtype)))


def _dim(x: Node, dim: int) -> int:
    rank = len(x.shape)
    if not -rank <= dim < rank:
        raise IllTyped(f"there is no dim {dim}: the tensor has {rank}, of sizes {tuple(x.shape)}")
    return dim % rank
