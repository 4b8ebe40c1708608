"""Models with a free batch and a free sequence."""

from __future__ import annotations

import numpy as np
import onnx

from taso_mirage.ir.dims import Dim, symbol
from taso_mirage.ir.model import Model, StoredWeight
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, variable, weight
from taso_mirage.mugraph.free import FreeSizes
from taso_mirage.onnx_io import from_ir, from_proto, serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term

N, S, K = (symbol(name) for name in ("n0", "n1", "n2"))


def attention(b: Dim, s: Dim, k: Dim, mean: bool = False) -> Graph:
    """softmax(q k / 4 + m) v, or the mean of those rows."""
    q, v = (variable(name, Tensor("float32", shape)) for name, shape in (("q", (b, 4, s, 16)), ("v", (b, 4, k, 16))))
    keys, mask = variable("k", Tensor("float32", (b, 4, 16, k))), variable("m", Tensor("float32", (b, 1, 1, k)))
    scores = term("add", term("mul", term("matmul", q, keys), constant(0.25, "float32")), mask)
    made = term("matmul", term("softmax", scores, axis=3), v)
    return Graph((q, keys, v, mask), (term("reduce_mean", made, axes=(2,), keepdims=1) if mean else made,))


FREE = FreeSizes(((N, 4, S, 16), (N, 4, 16, K), (N, 4, K, 16), (N, 1, 1, K)), ((N, 4, S, 16),))


def norm(b: Dim, s: Dim) -> Graph:
    """(x + y) over the root of the mean of its squares."""
    x, y = (variable(name, Tensor("float32", (b, s, 64))) for name in "xy")
    total = term("add", x, y)
    squares = term("reduce_mean", term("mul", total, total), axes=(2,), keepdims=1)
    return Graph((x, y), (term("div", total, term("sqrt", squares)),))


WIDTH, HEADS = 16, 2


def model() -> Model:
    """A block of attention: norm, queries, keys and values of it, a mask, and the sum."""
    rng = np.random.default_rng(0)
    arrays = {n: (rng.normal(size=(WIDTH, WIDTH)) / 4).astype(np.float32) for n in ("wq", "wk", "wv", "wo")}
    wq, wk, wv, wo = (weight(n, Tensor("float32", a.shape)) for n, a in arrays.items())
    b, s = symbol("batch"), symbol("sequence")
    x, mask = variable("x", Tensor("float32", (b, s, WIDTH))), variable("mask", Tensor("float32", (b, 1, 1, s)))

    def heads(value: Node, *perm: int) -> Node:
        return term("transpose", term("reshape", value, shape=(b, s, HEADS, WIDTH // HEADS)), perm=perm)

    spread = term("sqrt", term("reduce_mean", term("mul", x, x), axes=(2,), keepdims=1))
    y = term("div", x, term("add", spread, constant(1e-3, "float32")))
    q, v = (heads(term("matmul", y, w), 0, 2, 1, 3) for w in (wq, wv))
    scores = term("mul", term("matmul", q, heads(term("matmul", y, wk), 0, 2, 3, 1)), constant(0.3, "float32"))
    mixed = term("matmul", term("softmax", term("add", scores, mask), axis=3), v)
    joined = term("reshape", term("transpose", mixed, perm=(0, 2, 1, 3)), shape=(b, s, WIDTH))
    made = term("add", x, term("gelu", term("matmul", joined, wo)))
    graph = standalone(Graph((x, mask), (made,)), {"": 20}, {n: StoredWeight(a) for n, a in arrays.items()})
    return from_ir(from_proto(onnx.load_from_string(serialize(graph))))
