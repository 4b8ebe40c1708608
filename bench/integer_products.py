"""Rows of quantized_h100.py: products of integers with scales and a bias behind them (activations
in 8 bits, as DynamicQuantizeLinear, MatMulInteger, Cast, Mul and Add give them), and products of
half precision with weights of DequantizeLinear in 8 bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from taso_mirage.emit import tune
from taso_mirage.ir.mugraph import SIGN
from taso_mirage.ir.terms import Graph, Node, Tensor, variable, weight
from taso_mirage.measure import native
from taso_mirage.measure import session as runtime
from taso_mirage.measure.target import CUDA
from taso_mirage.mugraph.arranged import ArrangedGoal, arranged
from taso_mirage.operators.ops import term

ROUNDS = 8
"""How often a session of ONNX Runtime has every set of weights."""


@dataclass(frozen=True)
class IntegerProduct:
    """(rows, inner) of `left` with int8 weights (inner, columns); uint8 has a zero, which a run
    gives. Products of integers take their weights as the stage of kernels stores them, (columns,
    inner) and for uint8 with their sums; or `as_read`."""

    rows: int
    columns: int = 4096
    inner: int = 4096
    left: str = "uint8"
    as_read: bool = False

    @property
    def case(self) -> str:
        form = ", as read" if self.as_read else ""
        return f"{self.rows}x{self.inner}x{self.columns} {self.left} with int8{form}"

    @property
    def floats(self) -> str:
        return "float16" if self.left == "float16" else "float32"

    def leaves(self) -> list[Node]:
        """x, the weights, the scales of columns, the bias, the scale of x and its zero."""
        shapes = [
            ("x", self.left, (self.rows, self.inner)),
            ("w", "int8", (self.inner, self.columns)),
            ("u", self.floats, (self.columns,)),
            ("t", self.floats, (self.columns,)),
            ("s", self.floats, ()),
            ("z", self.left, ()),
        ]
        known = {"uint8": 6, "int8": 5}.get(self.left, 4)
        return [variable(name, Tensor(dtype, shape)) for name, dtype, shape in shapes[:known]]

    def goal(self) -> Graph:
        """The goal of the search."""
        made = self.arranged()
        return self.operators() if made is None else made.graph

    def arranged(self) -> ArrangedGoal | None:
        """The goal over weights that are stored otherwise; None where they are stored as read."""
        goal = self.operators()
        known = [weight("w", x.tensor) if x.attr("name") == "w" else x for x in goal.inputs]
        return None if self.as_read else arranged(goal, known)

    def operators(self) -> Graph:
        """The operators, over the weights as they are read."""
        leaves = self.leaves()
        x, w, u, t, *others = leaves
        if self.left == "float16":
            weights = term("dequantize", w, u, dtype="float16", axis=1)
            return Graph(tuple(leaves), (term("add", term("matmul", x, weights), t),))
        scale, *zero = others
        total = term("cast", term("matmul_integer", x, w, *zero), to="float32")
        return Graph(tuple(leaves), (term("add", term("mul", total, term("mul", scale, u)), t),))

    def bytes(self) -> int:
        """The bytes that a run reads and writes."""
        read = sum(np.dtype(x.dtype).itemsize * math.prod(map(int, x.shape)) for x in self.goal().inputs)
        return read + np.dtype(self.floats).itemsize * self.rows * self.columns

    def exact(self, inputs: Sequence[Any]) -> Any:
        """The result in float64; sums of integers are exact in it. Sums of weights are as they are
        given, which a tuner draws as well."""
        x, w, u, t, *others = (each.double() for each in inputs)
        w = self.read(w)
        scale, *zero = others or [1]
        if len(zero) == 2:
            total = (x - SIGN) @ w - (zero[0] - SIGN) * zero[1]
        else:
            total = (x - zero[0] if zero else x) @ w
        return total * u * scale + t

    def read(self, w: Any) -> Any:
        """The weights as they are read, without a copy."""
        made = self.arranged()
        return w if made is None or 1 not in made.perms else w.T

    def stored(self, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The operands behind x as a model has them."""
        _, w, *others = values
        return [np.ascontiguousarray(self.read(w)), *others[: len(self.leaves()) - 2]]

    def peers(self, sets: Sequence[Sequence[Any]]) -> Iterator[tuple[str, float]]:
        """Seconds of ONNX Runtime's operators, and of PyTorch's; none of those that fail."""
        dense = [(x.half(), self.read(w.half())) for x, w, *_ in sets[:8]]
        kinds: list[tuple[str, Callable[[], float]]] = [
            ("onnxruntime", lambda: _of_runtime(self, sets)),
            ("torch float16", lambda: float(tune.measured(lambda x, w: x @ w, dense))),
        ]
        if self.left == "int8":
            given = [(x, self.read(w), *others) for x, w, *others in sets]
            kinds.append(("torch int8", lambda: float(tune.measured(of_torch, given))))
        yield from timed_peers(kinds)


def timed_peers(kinds: Sequence[tuple[str, Callable[[], float]]]) -> Iterator[tuple[str, float]]:
    """The seconds that each of these calls gives, by name; none of one that fails."""
    import torch

    for name, call in kinds:
        try:
            with torch.inference_mode():
                yield name, call()
        except Exception as error:
            print(f"  {name}: {native.first_line(error)}", flush=True)


def of_torch(x: Any, w: Any, u: Any, t: Any, s: Any) -> Any:
    """cuBLAS's product of integers, which takes more than 16 rows, and the rest."""
    import torch

    return torch._int_mm(x, w).float() * (s * u) + t


def model(product: IntegerProduct, stored: Sequence[Sequence[np.ndarray]], rounds: int = ROUNDS) -> Any:
    """An ONNX model of `rounds` inputs x with each set of the operands behind it, in turn; the
    activation's scale and zero are constants of it."""
    nodes, held, results = [], [], []
    for i in range(rounds):
        for j, values in enumerate(stored):
            names = [f"{name.attr('name')}{j}" for name in product.leaves()[1:]]
            if i == 0:
                held += [numpy_helper.from_array(v, n) for v, n in zip(values, names, strict=True)]
            end = f"{i}_{j}"
            nodes += _nodes(product, f"x{i}", names, end)
            results.append(f"y{end}")
    known = helper.np_dtype_to_tensor_dtype(np.dtype(product.left))
    floats = helper.np_dtype_to_tensor_dtype(np.dtype(product.floats))
    given = [helper.make_tensor_value_info(f"x{i}", known, [product.rows, product.inner]) for i in range(rounds)]
    made = [helper.make_tensor_value_info(y, floats, [product.rows, product.columns]) for y in results]
    graph = helper.make_graph(nodes, "products", given, made, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def _nodes(product: IntegerProduct, x: str, names: Sequence[str], end: str) -> list[Any]:
    w, u, t, *others = names
    made = helper.make_node
    if product.left == "float16":
        return [
            made("DequantizeLinear", [w, u], [f"v{end}"], axis=1),
            made("MatMul", [x, f"v{end}"], [f"p{end}"]),
            made("Add", [f"p{end}", t], [f"y{end}"]),
        ]
    scale, *zero = others
    return [
        made("MatMulInteger", [x, w, *zero], [f"p{end}"]),
        made("Cast", [f"p{end}"], [f"f{end}"], to=TensorProto.FLOAT),
        made("Mul", [scale, u], [f"m{end}"]),
        made("Mul", [f"f{end}", f"m{end}"], [f"q{end}"]),
        made("Add", [f"q{end}", t], [f"y{end}"]),
    ]


def _of_runtime(product: IntegerProduct, sets: Sequence[Sequence[Any]]) -> float:
    """Seconds of a product in a captured session of ROUNDS for each set of weights."""
    import statistics

    stored = [product.stored([each.cpu().numpy() for each in own]) for own in sets]
    session = runtime.Session(model(product, stored).SerializeToString(), CUDA)
    run = session.prepared({f"x{i}": sets[0][0].cpu().numpy() for i in range(ROUNDS)})
    return statistics.median(run() for _ in range(15)) / (ROUNDS * len(stored))


INTEGER_PRODUCTS = (
    *(IntegerProduct(rows, left=left) for rows in (16, 64, 128, 256, 1024) for left in ("uint8", "int8")),
    *(IntegerProduct(rows, left="int8", as_read=True) for rows in (16, 128, 1024)),
    IntegerProduct(1),
    IntegerProduct(128, columns=11008, left="int8"),
    *(IntegerProduct(rows, left="float16") for rows in (1, 8, 16, 64)),
)
