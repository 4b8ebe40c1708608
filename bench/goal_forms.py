"""The common forms of models that a kernel generator has to know, as goals: `FORMS`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from taso_mirage.ir.terms import Graph, Node, Tensor, constant, topological, variable  # noqa: E402
from taso_mirage.operators.ops import term  # noqa: E402


def leaf(name: str, *shape: int, dtype: str = "float32") -> Node:
    return variable(name, Tensor(dtype, shape))


def goal(*outputs: Node) -> Graph:
    """Outputs over the inputs that they read, in the order in which they read them."""
    return Graph(tuple(n for n in topological(outputs) if n.op == "input"), outputs)


def number(value: float) -> Node:
    return constant(np.float32(value))


def part(x: Node, axis: int, start: int, end: int, step: int = 1) -> Node:
    return term("slice", x, axes=(axis,), starts=(start,), ends=(end,), steps=(step,))


def parts(x: Node, axis: int, count: int) -> list[Node]:
    """Equal parts by ONNX's split."""
    made = term("split", x, axis=axis, split=(int(x.shape[axis]) // count,) * count)
    return [term("item", made, index=i) for i in range(count)]


def rotated(x: Node, cos: Node, sin: Node) -> Node:
    """x cos + rotate_half(x) sin along the last axis."""
    axis, half = len(x.shape) - 1, int(x.shape[-1]) // 2
    turned = term("concat", term("neg", part(x, axis, half, 2 * half)), part(x, axis, 0, half), axis=axis)
    return term("add", term("mul", x, cos), term("mul", turned, sin))


def attended(q: Node, k: Node, v: Node) -> Node:
    """softmax(q k^T / sqrt(width)) v, (batch, heads, rows, width)"""
    scores = term("mul", term("matmul", q, term("transpose", k, perm=(0, 1, 3, 2))), number(int(q.shape[-1]) ** -0.5))
    return term("matmul", term("softmax", scores, axis=3), v)


def silu(x: Node) -> Node:
    return term("mul", x, term("sigmoid", x))


def convolved(x: Node, w: Node, b: Node, pad: int, group: int = 1) -> Node:
    return term("conv", x, w, b, strides=(1, 1), pads=(pad,) * 4, dilations=(1, 1), group=group)


def normed(x: Node) -> Node:
    """A layer norm of the last axis with weights of its own."""
    n = int(x.shape[-1])
    return term("layer_norm", x, leaf("scale", n), leaf("shift", n))


# ---------------------------------------------------------------- the forms


def cache_window() -> Graph:
    q, k, v = leaf("q", 1, 8, 1, 64), leaf("keys", 1, 8, 1024, 64), leaf("values", 1, 8, 1024, 64)
    return goal(attended(q, part(k, 2, 768, 1024), part(v, 2, 768, 1024)))


def rotary() -> Graph:
    return goal(rotated(leaf("x", 1, 8, 128, 64), leaf("cos", 128, 64), leaf("sin", 128, 64)))


def convolution_silu() -> Graph:
    return goal(silu(convolved(leaf("x", 1, 32, 28, 28), leaf("w", 64, 32, 3, 3), leaf("b", 64), 1)))


def depthwise_norm() -> Graph:
    y = convolved(leaf("x", 1, 96, 28, 28), leaf("w", 96, 1, 7, 7), leaf("b", 96), 3, 96)
    return goal(normed(term("transpose", y, perm=(0, 2, 3, 1))))


def running_sums() -> Graph:
    return goal(term("mul", term("cumsum", leaf("x", 64, 512), axis=1), leaf("gate", 64, 512)))


def chosen_experts() -> Graph:
    x, w, chosen = leaf("x", 4, 1, 256), leaf("experts", 8, 256, 512), leaf("chosen", 4, dtype="int64")
    return goal(silu(term("matmul", x, term("gather", w, chosen, axis=0))))


def cache_append() -> Graph:
    q = leaf("q", 1, 8, 1, 64)
    pasts = leaf("past_keys", 1, 8, 511, 64), leaf("past_values", 1, 8, 511, 64)
    news = leaf("new_keys", 1, 8, 1, 64), leaf("new_values", 1, 8, 1, 64)
    return goal(attended(q, *(term("concat", past, new, axis=2) for past, new in zip(pasts, news, strict=True))))


def cross_attention() -> Graph:
    return goal(attended(leaf("q", 1, 8, 1, 64), leaf("k", 1, 8, 1500, 64), leaf("v", 1, 8, 1500, 64)))


def rotary_norms() -> Graph:
    x, gamma = leaf("x", 1, 8, 128, 64), leaf("gamma", 64)
    y = term("rms_norm", x, gamma, axis=3, epsilon=1e-6)
    return goal(rotated(y, leaf("cos", 128, 64), leaf("sin", 128, 64)))


def norm_product() -> Graph:
    return goal(term("add", term("matmul", normed(leaf("x", 64, 512)), leaf("w", 512, 1024)), leaf("b", 1024)))


def product_gelu() -> Graph:
    y = term("add", term("matmul", leaf("x", 128, 512), leaf("w", 512, 1024)), leaf("b", 1024))
    return goal(term("gelu", y))


def split_projection() -> Graph:
    """One projection, cut into queries, keys and values with heads, and their attention."""
    y = term("reshape", leaf("qkv", 1, 128, 3 * 8 * 64), shape=(1, 128, 3, 8, 64))
    turned = term("transpose", y, perm=(2, 0, 3, 1, 4))
    q, k, v = (term("squeeze", each, axes=(0,)) for each in parts(turned, 0, 3))
    return goal(attended(q, k, v))


def gated_split() -> Graph:
    y = term("matmul", leaf("x", 16, 512), leaf("w", 512, 2048))
    value, gate = parts(y, 1, 2)
    return goal(term("mul", value, term("gelu", gate)))


def padded_convolution() -> Graph:
    """A pad at the right and below, as of a stride-2 encoder, before the convolution."""
    x = term("pad", leaf("x", 1, 32, 28, 28), pads=(0, 0, 0, 0, 0, 0, 1, 1), value=0.0)
    y = term(
        "conv",
        x,
        leaf("w", 64, 32, 3, 3),
        leaf("b", 64),
        strides=(2, 2),
        pads=(0, 0, 0, 0),
        dilations=(1, 1),
        group=1,
    )
    return goal(term("relu", y))


def embedding_norm() -> Graph:
    rows = term("gather", leaf("table", 1000, 256), leaf("ids", 32, dtype="int64"), axis=0)
    return goal(normed(term("add", rows, leaf("places", 32, 256))))


def pixel_shuffle() -> Graph:
    """The sum of an image and its double at half the size: depth to space."""
    small, bias = leaf("small", 1, 48, 16, 16), leaf("b", 48, 1, 1)
    whole = term("depth_to_space", silu(term("add", small, bias)), blocksize=2, mode="CRD")
    return goal(term("add", whole, leaf("large", 1, 12, 32, 32)))


# ---------------------------------------------------------------- results of several parts


def product(name: str, rows: int, inner: int, columns: int) -> Node:
    """A product of the shared rows `x` with weights of its own."""
    return term("matmul", leaf("x", rows, inner), leaf(f"w_{name}", inner, columns))


def joined_products() -> Graph:
    """Two products of different operands and widths side by side."""
    a = term("matmul", leaf("a", 16, 256), leaf("w_a", 256, 128))
    b = term("matmul", leaf("b", 16, 384), leaf("w_b", 384, 320))
    return goal(term("concat", a, term("relu", b), axis=1))


def packed_projections() -> Graph:
    """Queries, keys and values of grouped heads as one packed tensor."""
    parts = [product("q", 16, 256, 256), product("k", 16, 256, 64), product("v", 16, 256, 64)]
    return goal(term("concat", *parts, axis=1))


def carried_rows() -> Graph:
    return goal(term("concat", leaf("past", 48, 128), product("new", 16, 256, 128), axis=0))


def carried_columns() -> Graph:
    return goal(term("concat", product("new", 16, 256, 128), leaf("skip", 16, 64), axis=1))


def padded_product() -> Graph:
    return goal(term("pad", product("y", 15, 256, 120), pads=(1, 0, 0, 8), value=0.0))


def stacked_products() -> Graph:
    made = [term("unsqueeze", product(name, 16, 256, 64), axes=(0,)) for name in ("mean", "scale")]
    return goal(term("concat", *made, axis=0))


def interleaved_products() -> Graph:
    """Elements of two products in turn: pairs of a complex embedding."""
    made = [term("unsqueeze", product(name, 16, 256, 64), axes=(2,)) for name in ("real", "imaginary")]
    return goal(term("reshape", term("concat", *made, axis=2), shape=(16, 128)))


def projected_cache() -> Graph:
    """A cache with the row of a new key: projected, with heads, and rotated."""
    key = term("transpose", term("reshape", product("k", 1, 512, 512), shape=(1, 1, 8, 64)), perm=(0, 2, 1, 3))
    new = rotated(key, leaf("cos", 1, 64), leaf("sin", 1, 64))
    return goal(term("concat", leaf("past", 1, 8, 127, 64), new, axis=2))


def separate_products() -> Graph:
    """The two parts of a split, each in a product of its own."""
    x, y = parts(leaf("x", 16, 512), 1, 2)
    made = [term("matmul", x, leaf("w_x", 256, 128)), term("matmul", y, leaf("w_y", 256, 192))]
    return goal(term("concat", *made, axis=1))


FORMS: Mapping[str, Callable[[], Graph]] = {
    "window of a cache": cache_window,
    "rotary embedding": rotary,
    "convolution, SiLU": convolution_silu,
    "depthwise 7x7, layer norm": depthwise_norm,
    "running sums": running_sums,
    "chosen experts": chosen_experts,
    "cache append": cache_append,
    "cross attention": cross_attention,
    "norms, rotary embedding": rotary_norms,
    "layer norm, product": norm_product,
    "product, GELU": product_gelu,
    "split projection": split_projection,
    "GeGLU by split": gated_split,
    "pad, convolution": padded_convolution,
    "embedding, layer norm": embedding_norm,
    "pixel shuffle": pixel_shuffle,
    "two products, concat": joined_products,
    "packed projections": packed_projections,
    "carried rows, product": carried_rows,
    "product, carried columns": carried_columns,
    "product, pad": padded_product,
    "stack of products": stacked_products,
    "interleaved products": interleaved_products,
    "cache, projected key": projected_cache,
    "split, two products": separate_products,
}
