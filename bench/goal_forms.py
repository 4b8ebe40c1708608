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


def cache_append(heads: int = 8, past: int = 511, width: int = 64) -> Graph:
    q = leaf("q", 1, heads, 1, width)
    pasts = leaf("past_keys", 1, heads, past, width), leaf("past_values", 1, heads, past, width)
    news = leaf("new_keys", 1, heads, 1, width), leaf("new_values", 1, heads, 1, width)
    return goal(attended(q, *(term("concat", old, new, axis=2) for old, new in zip(pasts, news, strict=True))))


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
}
LARGE: Mapping[str, Callable[[], Graph]] = {
    "window of a cache": partial(cache_window, heads=32, keys=8192, window=1024, width=128),
    "rotary embedding": partial(rotary, heads=32, rows=2048),
    "convolution, SiLU": partial(convolution_silu, batch=8, channels=64, results=128, side=56),
    "depthwise 7x7, layer norm": partial(depthwise_norm, batch=8, side=56),
    "running sums": partial(running_sums, rows=4096, width=256),
    "chosen experts": partial(chosen_experts, tokens=8, experts=16, width=2048, hidden=1408),
    "cache append": partial(cache_append, heads=32, past=2047, width=128),
    "cross attention": partial(cross_attention, heads=20, rows=4),
    "norms, rotary embedding": partial(rotary_norms, heads=32, rows=2048),
    "layer norm, product": partial(norm_product, rows=512, width=768, columns=2304),
    "product, GELU": partial(product_gelu, rows=4096, width=4096, columns=4096),
    "split projection": partial(split_projection, rows=1024, heads=16),
    "GeGLU by split": partial(gated_split, width=2048, hidden=5632),
    "pad, convolution": partial(padded_convolution, batch=8, channels=64, results=128, side=112),
    "embedding, layer norm": partial(embedding_norm, words=50257, tokens=2048, width=768),
    "pixel shuffle": partial(pixel_shuffle, batch=8, channels=64, side=64),
}
"""The forms at sizes that fill a GPU."""
