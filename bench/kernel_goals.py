"""Goals of many kinds and sizes, on which the model that ranks kernels is fitted and tested."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import convolution_peer  # noqa: E402
from integer_products import IntegerProduct  # noqa: E402

from models.workloads import BEYOND, PAPER  # noqa: E402
from taso_mirage.ir.terms import Graph, Node, Tensor, variable  # noqa: E402
from taso_mirage.mugraph.graph import KernelGraph, new_graph  # noqa: E402
from taso_mirage.operators.ops import term  # noqa: E402

Build = Callable[[KernelGraph], Node]


def _goal(build: Build) -> Graph:
    graph = new_graph()
    graph.mark_output(build(graph))
    return graph.graph()


def _inputs(g: KernelGraph, *dims: tuple[int, ...]) -> list[Node]:
    return [g.new_input(dims=each) for each in dims]


def attention(
    batch: int, heads: int, queries: int, keys: int, width: int, mask: tuple[int, ...] = (), turned: bool = True
) -> Build:
    """softmax(Q K^T / sqrt(width) + M) V, keys (batch, heads, keys, width) as they are stored where
    they are `turned`."""

    def build(g: KernelGraph) -> Node:
        q, k, v = _inputs(
            g,
            (batch, heads, queries, width),
            (batch, heads, keys, width) if turned else (batch, heads, width, keys),
            (batch, heads, keys, width),
        )
        k = g.transpose(k, 0, 1, 3, 2) if turned else k
        scores = g.mul(g.matmul(q, k), width**-0.5)
        if mask:
            scores = g.add(scores, g.new_input(dims=mask))
        return g.matmul(g.softmax(scores), v)

    return build


def layer_norm(g: KernelGraph, x: Node) -> Node:
    n = x.shape[-1]
    scale, bias = _inputs(g, (int(n),), (int(n),))
    return term("layer_norm", x, scale, bias)


def normal_product(rows: int, width: int, columns: int, after: str = "", norm: str = "layer") -> Build:
    """norm(x) W + b, and the operators `after` it; `norm` is none, layer, rms or residual."""

    def build(g: KernelGraph) -> Node:
        (x,) = _inputs(g, (rows, width))
        if norm == "residual":
            x = g.add(x, *_inputs(g, (rows, width)))
        if norm in ("rms", "residual"):
            x = g.rms_norm(x, *_inputs(g, (width,)), epsilon=1e-5)
        elif norm == "layer":
            x = layer_norm(g, x)
        w, b = _inputs(g, (width, columns), (columns,))
        y = g.add(g.matmul(x, w), b)
        return getattr(g, after)(y) if after else y

    return build


def rows_only(rows: int, width: int, what: str) -> Build:
    """A goal that folds rows, without a product."""

    def build(g: KernelGraph) -> Node:
        (x,) = _inputs(g, (rows, width))
        if what == "softmax":
            return g.softmax(x)
        if what == "log_softmax":
            return term("log_softmax", x, axis=1)
        if what == "logsumexp":
            return term("reduce_log_sum_exp", x, axes=(1,), keepdims=1)
        if what == "layer_norm":
            return layer_norm(g, x)
        if what == "residual_norm":
            y = g.add(x, *_inputs(g, (rows, width)))
            return g.rms_norm(y, *_inputs(g, (width,)), epsilon=1e-5)
        y = g.mul(g.silu(x), *_inputs(g, (rows, width)))
        return g.mul(y, *_inputs(g, (width,)))  # gates

    return build


def group_norm(batch: int, channels: int, plane: int, groups: int) -> Build:
    def build(g: KernelGraph) -> Node:
        (x,) = _inputs(g, (batch, groups, channels // groups, plane))
        scale, bias = _inputs(g, (groups, channels // groups, 1), (groups, channels // groups, 1))
        mean = term("reduce_mean", x, axes=(2, 3), keepdims=1)
        less = g.sub(x, mean)
        var = term("reduce_mean", g.mul(less, less), axes=(2, 3), keepdims=1)
        return g.silu(g.add(g.mul(g.div(less, g.sqrt(g.add(var, 1e-5))), scale), bias))

    return build


def swiglu(rows: int, width: int, hidden: int) -> Build:
    """silu(x W1) * (x W2)"""

    def build(g: KernelGraph) -> Node:
        x, a, b = _inputs(g, (rows, width), (width, hidden), (width, hidden))
        return g.mul(g.silu(g.matmul(x, a)), g.matmul(x, b))

    return build


def step_mlp(rows: int, width: int, hidden: int) -> Build:
    """x + (silu(n(x) W1) * (n(x) W2)) W3, n the root mean square norm."""

    def build(g: KernelGraph) -> Node:
        x, a, b, c = _inputs(g, (rows, width), (width, hidden), (width, hidden), (hidden, width))
        y = g.rms_norm(x, epsilon=1e-6)
        return g.add(g.matmul(g.mul(g.silu(g.matmul(y, a)), g.matmul(y, b)), c), x)

    return build


def step_product(rows: int, width: int, columns: int, what: str) -> Build:
    """x W with a sum behind it, a norm before it, or alone."""

    def build(g: KernelGraph) -> Node:
        x, w = _inputs(g, (rows, width), (width, columns))
        y = g.matmul(g.rms_norm(x, epsilon=1e-6) if what == "norm" else x, w)
        return g.add(y, *_inputs(g, (rows, columns))) if what == "sum" else y

    return build


def experts(count: int, rows: int, width: int, hidden: int) -> Build:
    """The gate of each expert's MLP."""

    def build(g: KernelGraph) -> Node:
        x, a, b = _inputs(g, (count, rows, width), (count, width, hidden), (count, width, hidden))
        return g.mul(g.silu(g.matmul(x, a)), g.matmul(x, b))

    return build


def router(rows: int, width: int, count: int) -> Build:
    """softmax(x W)"""

    def build(g: KernelGraph) -> Node:
        x, w = _inputs(g, (rows, width), (width, count))
        return g.softmax(g.matmul(x, w))

    return build


def rotary_norms(rows: int, heads: int, width: int) -> Build:
    """rms(a) * cos + rms(b) * sin of the halves of queries, split ahead."""

    def build(g: KernelGraph) -> Node:
        a, b = _inputs(g, (rows, heads, width), (rows, heads, width))
        cos, sin = _inputs(g, (rows, 1, width), (rows, 1, width))
        squares = [term("reduce_sum", g.mul(x, x), axes=(2,), keepdims=1) for x in (a, b)]
        root = g.sqrt(g.add(g.mul(g.add(*squares), 0.5 / width), 1e-6))
        return g.sub(g.mul(g.div(a, root), cos), g.mul(g.div(b, root), sin))

    return build


def single(rows: int, inner: int, columns: int) -> Graph:
    """relu(x W) in single precision."""
    leaves = variable("x", Tensor("float32", (rows, inner))), variable("w", Tensor("float32", (inner, columns)))
    return Graph(leaves, (term("relu", term("matmul", *leaves)),))


def blocks(rows: int, inner: int, columns: int, block: int = 32) -> Graph:
    """x times weights of 4 bits in blocks with scales and zeros."""
    count = inner // block
    leaves = [
        variable("x", Tensor("float16", (rows, inner))),
        variable("b", Tensor("uint8", (columns, count, block // 2))),
        variable("s", Tensor("float16", (columns, count))),
        variable("z", Tensor("uint8", (columns, count // 2))),
    ]
    return Graph(tuple(leaves), (term("matmul_nbits", *leaves, K=inner, N=columns, bits=4, block_size=block),))


def _workload(name: str, **sizes: int) -> Graph:
    return {**PAPER, **BEYOND}[name](**sizes).graph()


GOALS: Mapping[str, Callable[[], Graph]] = {
    "gated_mlp": partial(_workload, "gated_mlp"),
    "lora": partial(_workload, "lora"),
    "lora width=4096": partial(_workload, "lora", width=4096),
    "lora width=4096 rank=64": partial(_workload, "lora", width=4096, rank=64),
    "rmsnorm_linear batch=1": partial(_workload, "rmsnorm_linear", batch=1),
    "rmsnorm_linear batch=8": partial(_workload, "rmsnorm_linear", batch=8),
    "rmsnorm_gamma_linear": partial(_workload, "rmsnorm_gamma_linear", batch=1),
    "ntrans batch=1": partial(_workload, "ntrans", batch=1),
    "ntrans batch=64": partial(_workload, "ntrans", batch=64),
    "gqa batch=1": partial(_workload, "gqa", batch=1),
    "gqa batch=8": partial(_workload, "gqa", batch=8),
    "gqa width=128 keys=8192": partial(_workload, "gqa", width=128, keys=8192),
    "qknorm batch=1": partial(_workload, "qknorm", batch=1),
    "qknorm batch=8": partial(_workload, "qknorm", batch=8),
    "long_attention group=8": partial(_workload, "long_attention", group=8),
    "long_attention group=1": partial(_workload, "long_attention", group=1),
    "masked_attention": partial(_workload, "masked_attention"),
    "rotary_attention": partial(_workload, "rotary_attention"),
    "gated_mlp_down": partial(_workload, "gated_mlp_down"),
    "float8_linear batch=16": partial(_workload, "float8_linear", batch=16),
    "float8_linear batch=128": partial(_workload, "float8_linear", batch=128),
    "float8_attention": partial(_workload, "float8_attention"),
    "latent_attention": partial(_workload, "latent_attention"),
    "latent_attention heads=16": partial(_workload, "latent_attention", heads=16, keys=2048),
    "cross attention 1500": lambda: _goal(attention(1, 8, 1, 1500, 64)),
    "cross attention 20x1500": lambda: _goal(attention(1, 20, 4, 1500, 64)),
    "cross attention 77": lambda: _goal(attention(2, 8, 1024, 77, 40)),
    "ViT attention": lambda: _goal(attention(1, 12, 197, 197, 64)),
    "ViT attention 8": lambda: _goal(attention(8, 16, 257, 257, 64)),
    "window attention": lambda: _goal(attention(64, 4, 49, 49, 32, (1, 4, 49, 49))),
    "masked cache": lambda: _goal(attention(1, 32, 1, 4096, 128, (1, 1, 1, 4096))),
    "prompt attention": lambda: _goal(attention(1, 16, 1024, 1024, 64, (1, 1, 1024, 1024), turned=False)),
    "norm product 512": lambda: _goal(normal_product(512, 768, 2304)),
    "norm product gelu 128": lambda: _goal(normal_product(128, 768, 3072, "gelu")),
    "norm product gelu 1": lambda: _goal(normal_product(1, 1024, 4096, "gelu")),
    "residual norm product": lambda: _goal(normal_product(4, 2048, 8192, norm="residual")),
    "residual norm product 32": lambda: _goal(normal_product(32, 1024, 3072, norm="residual")),
    "product gelu 4096": lambda: _goal(normal_product(4096, 4096, 4096, "gelu", norm="none")),
    "product relu 197": lambda: _goal(normal_product(197, 768, 3072, "relu", norm="none")),
    "product 1": lambda: _goal(normal_product(1, 4096, 11008, norm="none")),
    "swiglu 1": lambda: _goal(swiglu(1, 2048, 8192)),
    "step mlp": lambda: _goal(step_mlp(1, 2048, 8192)),
    "step mlp 896": lambda: _goal(step_mlp(1, 896, 4864)),
    "step mlp 8x2048": lambda: _goal(step_mlp(8, 2048, 8192)),
    "step down": lambda: _goal(step_product(1, 8192, 2048, "sum")),
    "step output": lambda: _goal(step_product(1, 2048, 2048, "sum")),
    "step output 8x4096": lambda: _goal(step_product(8, 4096, 4096, "sum")),
    "step queries": lambda: _goal(step_product(1, 2048, 2048, "norm")),
    "step keys": lambda: _goal(step_product(1, 2048, 512, "norm")),
    "step keys 896": lambda: _goal(step_product(1, 896, 128, "alone")),
    "step head": lambda: _goal(step_product(1, 2048, 32000, "alone")),
    "step attention": lambda: _goal(attention(1, 8, 4, 2048, 64, (1, 1, 1, 2048))),
    "step attention 512": lambda: _goal(attention(1, 2, 7, 512, 64, (1, 1, 1, 512))),
    "swiglu 64": lambda: _goal(swiglu(64, 1024, 2816)),
    "experts": lambda: _goal(experts(8, 16, 1024, 2816)),
    "router": lambda: _goal(router(256, 2048, 64)),
    "router 1": lambda: _goal(router(1, 4096, 128)),
    "softmax rows": lambda: _goal(rows_only(2048, 16384, "softmax")),
    "softmax 197": lambda: _goal(rows_only(2364, 197, "softmax")),
    "log softmax": lambda: _goal(rows_only(64, 32000, "log_softmax")),
    "logsumexp 50257": lambda: _goal(rows_only(16, 50257, "logsumexp")),
    "layer norm": lambda: _goal(rows_only(4096, 1024, "layer_norm")),
    "layer norm 197": lambda: _goal(rows_only(197, 768, "layer_norm")),
    "residual norm": lambda: _goal(rows_only(1, 4096, "residual_norm")),
    "residual norm 2048": lambda: _goal(rows_only(2048, 2048, "residual_norm")),
    "gates": lambda: _goal(rows_only(512, 3072, "gates")),
    "group norm": lambda: _goal(group_norm(2, 320, 64 * 64, 32)),
    "group norm 8": lambda: _goal(group_norm(8, 128, 28 * 28, 16)),
    "rotary norms": lambda: _goal(rotary_norms(2048, 32, 64)),
    "rotary norms 1": lambda: _goal(rotary_norms(1, 32, 64)),
    "int8 product 16": lambda: IntegerProduct(16, left="int8").goal(),
    "int8 product 256": lambda: IntegerProduct(256, left="int8").goal(),
    "single 128": lambda: single(128, 1024, 1024),
    "single 1024": lambda: single(1024, 2048, 2048),
    "blocks 1": lambda: blocks(1, 4096, 4096),
    "blocks 1 long": lambda: blocks(1, 4096, 11008, 128),
    "blocks 16": lambda: blocks(16, 4096, 4096),
    "convolution 56": lambda: convolution_peer.goal(side=56, channels=128, group=32),
    "convolution 14": lambda: convolution_peer.goal(side=14, channels=512, group=32),
    "convolution 28": lambda: convolution_peer.goal(side=28, channels=64, group=1, batch=1),
}
