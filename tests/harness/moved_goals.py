"""Goals whose elements move: each movement can be at the operands of a kernel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mugraphs import leaf

from taso_mirage.ir.terms import Graph, Node, constant, topological
from taso_mirage.operators.ops import term


def part(x: Node, axis: int, start: int, end: int, step: int = 1) -> Node:
    return term("slice", x, axes=(axis,), starts=(start,), ends=(end,), steps=(step,))


def goal(outputs: Sequence[Node]) -> Graph:
    return Graph(tuple(n for n in topological(outputs) if n.op == "input"), tuple(outputs))


X, COS, SIN = leaf("x", "float32", 2, 4, 8, 16), leaf("cos", "float32", 8, 16), leaf("sin", "float32", 8, 16)
A, W = leaf("a", "float32", 8, 16), leaf("w", "float32", 16, 48)
PAST, NEW, Q = (leaf(name, "float32", 1, 4, n, 16) for name, n in (("past", 7), ("new", 1), ("q", 1)))
ROTATED = term("concat", term("neg", part(X, 3, 8, 16)), part(X, 3, 0, 8), axis=3)
PROJECTED = term("reshape", term("matmul", A, W), shape=(8, 3, 4, 4))
KEYS = term("concat", PAST, term("mul", NEW, constant(2.0, "float32")), axis=2)
GATES = leaf("gates", "float32", 8, 32)
HALVES = [term("item", term("split", GATES, axis=1, split=(16, 16)), index=i) for i in range(2)]
CACHE = leaf("cache", "float32", 4, 12, 8)
LEFT, RIGHT = leaf("left", "float32", 6, 8), leaf("right", "float32", 6, 8)
PICTURE = leaf("picture", "float32", 3, 6, 6)


def windowed() -> Node:
    """Attention to the last keys of a cache."""
    keys = part(CACHE, 1, 4, 12)
    query = leaf("query", "float32", 4, 2, 8)
    scores = term("softmax", term("matmul", query, term("transpose", keys, perm=(0, 2, 1))), axis=2)
    return term("matmul", scores, keys)


def neighbours() -> Node:
    """The sum of each element and its neighbours in a row, padded."""
    wide = term("pad", PICTURE, pads=(0, 0, 1, 0, 0, 1), value=0.0)
    left, middle, right = (part(wide, 2, i, i + 6) for i in range(3))
    return term("relu", term("add", term("add", left, middle), right))


IMAGE, KERNEL, OWN = (
    leaf("image", "float32", 1, 4, 6, 6),
    leaf("kernel", "float32", 8, 4, 3, 3),
    leaf("own", "float32", 4, 1, 3, 3),
)
WINDOWS = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
STRIDED = {"strides": (2, 2), "pads": (1, 1, 0, 0), "dilations": (1, 1)}
CONVOLVED = term("conv", IMAGE, KERNEL, **WINDOWS)


GOALS: dict[str, Sequence[Node]] = {
    "rotary embedding": [term("add", term("mul", X, COS), term("mul", ROTATED, SIN))],
    "queries, keys and values": [term("reshape", part(PROJECTED, 1, i, i + 1), shape=(8, 4, 4)) for i in range(3)],
    "cache and new keys": [term("matmul", Q, term("transpose", KEYS, perm=(0, 1, 3, 2)))],
    "gated by halves": [term("mul", part(GATES, 1, 0, 16), term("sigmoid", part(GATES, 1, 16, 32)))],
    "padded": [term("exp", term("pad", term("relu", A), pads=(0, 1, 0, 2), value=0.5))],
    "rows of a softmax": [part(term("softmax", A, axis=1), 0, 2, 7)],
    "reversed rows of a product": [part(term("relu", term("matmul", A, W)), 0, 7, -1, -1)],
    "convolution, SiLU": [term("mul", CONVOLVED, term("sigmoid", CONVOLVED))],
    "strided convolution": [term("relu", term("conv", IMAGE, KERNEL, **STRIDED))],
    "depthwise convolution": [term("relu", term("conv", IMAGE, OWN, **WINDOWS, group=4))],
    "max pool": [term("exp", term("max_pool", IMAGE, kernel=(3, 3), **STRIDED))],
    "running sums": [term("relu", term("cumsum", A, axis=1))],
    "halves of a split": [term("mul", HALVES[0], term("sigmoid", HALVES[1]))],
    "gathered columns": [term("gather", term("matmul", A, W), constant(np.array([3, -1, 0])), axis=1)],
    "window of a cache": [windowed()],
    "neighbours": [neighbours()],
    "side by side": [term("tanh", term("concat", LEFT, RIGHT, LEFT, axis=1))],
    "one below the other": [term("matmul", term("concat", LEFT, term("exp", RIGHT), axis=0), part(W, 0, 3, 11))],
}
