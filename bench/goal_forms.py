"""The common forms of models that a kernel generator has to know, as goals: `FORMS`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
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


def cache_window(heads: int = 8, keys: int = 1024, window: int = 256, width: int = 64) -> Graph:
    q, k, v = leaf("q", 1, heads, 1, width), leaf("keys", 1, heads, keys, width), leaf("values", 1, heads, keys, width)
    return goal(attended(q, part(k, 2, keys - window, keys), part(v, 2, keys - window, keys)))


def rotary(heads: int = 8, rows: int = 128, width: int = 64) -> Graph:
    return goal(rotated(leaf("x", 1, heads, rows, width), leaf("cos", rows, width), leaf("sin", rows, width)))


def convolution_silu(batch: int = 1, channels: int = 32, results: int = 64, side: int = 28) -> Graph:
    w = leaf("w", results, channels, 3, 3)
    return goal(silu(convolved(leaf("x", batch, channels, side, side), w, leaf("b", results), 1)))


def depthwise_norm(batch: int = 1, channels: int = 96, side: int = 28) -> Graph:
    x, w = leaf("x", batch, channels, side, side), leaf("w", channels, 1, 7, 7)
    y = convolved(x, w, leaf("b", channels), 3, channels)
    return goal(normed(term("transpose", y, perm=(0, 2, 3, 1))))


def running_sums(rows: int = 64, width: int = 512) -> Graph:
    return goal(term("mul", term("cumsum", leaf("x", rows, width), axis=1), leaf("gate", rows, width)))


def chosen_experts(tokens: int = 4, experts: int = 8, width: int = 256, hidden: int = 512) -> Graph:
    x, w = leaf("x", tokens, 1, width), leaf("experts", experts, width, hidden)
    return goal(silu(term("matmul", x, term("gather", w, leaf("chosen", tokens, dtype="int64"), axis=0))))


def routed_experts(tokens: int = 16, experts: int = 8, width: int = 128, hidden: int = 256) -> Graph:
    """Gated experts, all of them for every token, by shares, which a router leaves zero but for a
    few."""
    x, shares = leaf("x", tokens, width), leaf("shares", tokens, experts)
    gate, up = (term("matmul", x, leaf(name, experts, width, hidden)) for name in ("gate", "up"))
    y = term("matmul", term("mul", silu(gate), up), leaf("down", experts, hidden, width))
    each = term("unsqueeze", term("transpose", shares, perm=(1, 0)), axes=(2,))
    return goal(term("reduce_sum", term("mul", y, each), axes=(0,), keepdims=0))


def cache_append(heads: int = 8, past: int = 511, width: int = 64) -> Graph:
    q = leaf("q", 1, heads, 1, width)
    pasts = leaf("past_keys", 1, heads, past, width), leaf("past_values", 1, heads, past, width)
    news = leaf("new_keys", 1, heads, 1, width), leaf("new_values", 1, heads, 1, width)
    return goal(attended(q, *(term("concat", old, new, axis=2) for old, new in zip(pasts, news, strict=True))))


def paged_attention(
    batch: int = 2, heads: int = 8, pages: int = 64, blocks: int = 16, page: int = 16, width: int = 64
) -> Graph:
    """A step of attention to a cache of pages, which a table of a run chooses for each sequence."""
    table, keys = leaf("table", batch, blocks, dtype="int64"), blocks * page
    found = [term("gather", leaf(name, pages, page, heads, width), table, axis=0) for name in ("keys", "values")]
    k, v = (term("transpose", term("reshape", x, shape=(batch, keys, heads, width)), perm=(0, 2, 1, 3)) for x in found)
    scores = term("matmul", leaf("q", batch, heads, 1, width), term("transpose", k, perm=(0, 1, 3, 2)))
    masked = term("add", term("mul", scores, number(width**-0.5)), leaf("mask", batch, 1, 1, keys))
    return goal(term("matmul", term("softmax", masked, axis=3), v))


def cross_attention(heads: int = 8, rows: int = 1, keys: int = 1500, width: int = 64) -> Graph:
    k, v = leaf("k", 1, heads, keys, width), leaf("v", 1, heads, keys, width)
    return goal(attended(leaf("q", 1, heads, rows, width), k, v))


def rotary_norms(heads: int = 8, rows: int = 128, width: int = 64) -> Graph:
    x, gamma = leaf("x", 1, heads, rows, width), leaf("gamma", width)
    y = term("rms_norm", x, gamma, axis=3, epsilon=1e-6)
    return goal(rotated(y, leaf("cos", rows, width), leaf("sin", rows, width)))


def norm_product(rows: int = 64, width: int = 512, columns: int = 1024) -> Graph:
    y = term("matmul", normed(leaf("x", rows, width)), leaf("w", width, columns))
    return goal(term("add", y, leaf("b", columns)))


def product_gelu(rows: int = 128, width: int = 512, columns: int = 1024) -> Graph:
    y = term("add", term("matmul", leaf("x", rows, width), leaf("w", width, columns)), leaf("b", columns))
    return goal(term("gelu", y))


def split_projection(rows: int = 128, heads: int = 8, width: int = 64) -> Graph:
    """One projection, cut into queries, keys and values with heads, and their attention."""
    y = term("reshape", leaf("qkv", 1, rows, 3 * heads * width), shape=(1, rows, 3, heads, width))
    turned = term("transpose", y, perm=(2, 0, 3, 1, 4))
    q, k, v = (term("squeeze", each, axes=(0,)) for each in parts(turned, 0, 3))
    return goal(attended(q, k, v))


def gated_split(rows: int = 16, width: int = 512, hidden: int = 1024) -> Graph:
    y = term("matmul", leaf("x", rows, width), leaf("w", width, 2 * hidden))
    value, gate = parts(y, 1, 2)
    return goal(term("mul", value, term("gelu", gate)))


def padded_convolution(batch: int = 1, channels: int = 32, results: int = 64, side: int = 28) -> Graph:
    """A pad at the right and below, as of a stride-2 encoder, before the convolution."""
    x = term("pad", leaf("x", batch, channels, side, side), pads=(0, 0, 0, 0, 0, 0, 1, 1), value=0.0)
    how = {"strides": (2, 2), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1}
    return goal(term("relu", term("conv", x, leaf("w", results, channels, 3, 3), leaf("b", results), **how)))


def embedding_norm(words: int = 1000, tokens: int = 32, width: int = 256) -> Graph:
    rows = term("gather", leaf("table", words, width), leaf("ids", tokens, dtype="int64"), axis=0)
    return goal(normed(term("add", rows, leaf("places", tokens, width))))


def pixel_shuffle(batch: int = 1, channels: int = 12, side: int = 16) -> Graph:
    """The sum of an image and its double at half the size: depth to space."""
    small, bias = leaf("small", batch, 4 * channels, side, side), leaf("b", 4 * channels, 1, 1)
    whole = term("depth_to_space", silu(term("add", small, bias)), blocksize=2, mode="CRD")
    return goal(term("add", whole, leaf("large", batch, channels, 2 * side, 2 * side)))


# ---------------------------------------------------------------- results of several parts


def product(name: str, rows: int, inner: int, columns: int) -> Node:
    """A product of the shared rows `x` with weights of its own."""
    return term("matmul", leaf("x", rows, inner), leaf(f"w_{name}", inner, columns))


def joined_products(rows: int = 16, width: int = 128) -> Graph:
    """Two products of different operands and widths side by side."""
    a = term("matmul", leaf("a", rows, 2 * width), leaf("w_a", 2 * width, width))
    b = term("matmul", leaf("b", rows, 3 * width), leaf("w_b", 3 * width, 5 * width // 2))
    return goal(term("concat", a, term("relu", b), axis=1))


def packed_projections(rows: int = 16, width: int = 256) -> Graph:
    """Queries, keys and values of grouped heads as one packed tensor."""
    widths = {"q": width, "k": width // 4, "v": width // 4}
    return goal(term("concat", *[product(name, rows, width, n) for name, n in widths.items()], axis=1))


def carried_rows(rows: int = 16, width: int = 128) -> Graph:
    return goal(term("concat", leaf("past", 3 * rows, width), product("new", rows, 2 * width, width), axis=0))


def carried_columns(rows: int = 16, width: int = 128) -> Graph:
    return goal(term("concat", product("new", rows, 2 * width, width), leaf("skip", rows, width // 2), axis=1))


def padded_product(rows: int = 15, width: int = 120) -> Graph:
    return goal(term("pad", product("y", rows, 256, width), pads=(1, 0, 0, 8), value=0.0))


def stacked_products(rows: int = 16, width: int = 64) -> Graph:
    made = [term("unsqueeze", product(name, rows, 4 * width, width), axes=(0,)) for name in ("mean", "scale")]
    return goal(term("concat", *made, axis=0))


def interleaved_products(rows: int = 16, width: int = 64) -> Graph:
    """Elements of two products in turn: pairs of a complex embedding."""
    made = [term("unsqueeze", product(name, rows, 4 * width, width), axes=(2,)) for name in ("real", "imaginary")]
    return goal(term("reshape", term("concat", *made, axis=2), shape=(rows, 2 * width)))


def projected_cache(heads: int = 8, past: int = 127, width: int = 64) -> Graph:
    """A cache with the row of a new key: projected, with heads, and rotated."""
    made = product("k", 1, heads * width, heads * width)
    key = term("transpose", term("reshape", made, shape=(1, 1, heads, width)), perm=(0, 2, 1, 3))
    new = rotated(key, leaf("cos", 1, width), leaf("sin", 1, width))
    return goal(term("concat", leaf("past", 1, heads, past, width), new, axis=2))


def row_of_cache(heads: int = 8, rows: int = 128, width: int = 64) -> Graph:
    """A cache in which the projected and rotated key is the row at the position of a run, as
    PyTorch's index_copy is exported."""
    made = product("k", 1, heads * width, heads * width)
    new = rotated(term("reshape", made, shape=(1, 1, heads, width)), leaf("cos", 1, width), leaf("sin", 1, width))
    turned = term("transpose", leaf("cache", 1, heads, rows, width), perm=(2, 0, 1, 3))
    at = term("reshape", leaf("at", 1, dtype="int64"), shape=(1, 1))
    written = term("scatter_nd", turned, at, term("transpose", new, perm=(1, 0, 2, 3)))
    return goal(term("transpose", written, perm=(1, 2, 0, 3)))


def rows_of_sequences(batch: int = 4, heads: int = 8, rows: int = 128, width: int = 64) -> Graph:
    """A cache of several sequences, each with its own position for the normed and rotated key."""
    at = term("reshape", leaf("at", batch, dtype="int64"), shape=(batch, 1, 1, 1))
    key = term("rms_norm", leaf("key", batch, heads, 1, width), leaf("gamma", width), axis=3, epsilon=1e-6)
    new = rotated(key, leaf("cos", batch, 1, 1, width), leaf("sin", batch, 1, 1, width))
    where = term("expand", at, shape=(batch, heads, 1, width))
    return goal(term("scatter_elements", leaf("cache", batch, heads, rows, width), where, new, axis=2))


def separate_products(rows: int = 16, width: int = 256) -> Graph:
    """The two parts of a split, each in a product of its own."""
    halves = parts(leaf("x", rows, 2 * width), 1, 2)
    columns = (width // 2, 3 * width // 4)
    made = [term("matmul", x, leaf(f"w_{n}", width, n)) for x, n in zip(halves, columns, strict=True)]
    return goal(term("concat", *made, axis=1))


FORMS: Mapping[str, Callable[[], Graph]] = {
    "window of a cache": cache_window,
    "rotary embedding": rotary,
    "convolution, SiLU": convolution_silu,
    "depthwise 7x7, layer norm": depthwise_norm,
    "running sums": running_sums,
    "chosen experts": chosen_experts,
    "routed experts": routed_experts,
    "cache append": cache_append,
    "cross attention": cross_attention,
    "attention to pages": paged_attention,
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
    "row of a cache": row_of_cache,
    "rows of sequences": rows_of_sequences,
}
LARGE: Mapping[str, Callable[[], Graph]] = {
    "window of a cache": partial(cache_window, heads=32, keys=8192, window=1024, width=128),
    "rotary embedding": partial(rotary, heads=32, rows=2048),
    "convolution, SiLU": partial(convolution_silu, batch=8, channels=64, results=128, side=56),
    "depthwise 7x7, layer norm": partial(depthwise_norm, batch=8, side=56),
    "running sums": partial(running_sums, rows=4096, width=256),
    "chosen experts": partial(chosen_experts, tokens=8, experts=16, width=2048, hidden=1408),
    "routed experts": partial(routed_experts, tokens=16, experts=16, width=2048, hidden=1408),
    "cache append": partial(cache_append, heads=32, past=2047, width=128),
    "attention to pages": partial(paged_attention, batch=8, heads=32, pages=1024, blocks=128, width=128),
    "cross attention": partial(cross_attention, heads=20, rows=4),
    "norms, rotary embedding": partial(rotary_norms, heads=32, rows=2048),
    "layer norm, product": partial(norm_product, rows=512, width=768, columns=2304),
    "product, GELU": partial(product_gelu, rows=4096, width=4096, columns=4096),
    "split projection": partial(split_projection, rows=1024, heads=16),
    "GeGLU by split": partial(gated_split, width=2048, hidden=5632),
    "pad, convolution": partial(padded_convolution, batch=8, channels=64, results=128, side=112),
    "embedding, layer norm": partial(embedding_norm, words=50257, tokens=2048, width=768),
    "pixel shuffle": partial(pixel_shuffle, batch=8, channels=64, side=64),
    "two products, concat": partial(joined_products, rows=512, width=1024),
    "packed projections": partial(packed_projections, rows=512, width=2048),
    "carried rows, product": partial(carried_rows, rows=512, width=1024),
    "product, carried columns": partial(carried_columns, rows=512, width=1024),
    "product, pad": partial(padded_product, rows=511, width=1016),
    "stack of products": partial(stacked_products, rows=512, width=512),
    "interleaved products": partial(interleaved_products, rows=512, width=512),
    "cache, projected key": partial(projected_cache, heads=32, past=2047, width=128),
    "split, two products": partial(separate_products, rows=512, width=1024),
    "row of a cache": partial(row_of_cache, heads=32, rows=2048, width=128),
    "rows of sequences": partial(rows_of_sequences, batch=16, heads=32, rows=2048, width=128),
}
"""The forms at sizes that fill a GPU."""
