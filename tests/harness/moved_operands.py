"""MuGraphs whose kernels have operands that are terms of movements, and random chains of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mugraphs import kernel, leaf

from taso_mirage.ir.terms import Graph, Node, constant
from taso_mirage.operators.ops import term


def cut(x: Node, axis: int, start: int, stop: int, step: int = 1) -> Node:
    return term("slice", x, starts=(start,), ends=(stop,), axes=(axis,), steps=(step,))


def joined(axis: int, *xs: Node) -> Node:
    return term("concat", *xs, axis=axis)


def padded(x: Node, *pads: int, value: float = 0.0) -> Node:
    return term("pad", x, pads=pads, value=value)


def rotary(dtype: str, grid: int = 2, cut_columns: bool = False) -> Graph:
    """x * cos + rotate_half(x) * sin, whose sign is in the sine."""
    x, cos, sin = leaf("x", dtype, 4, 12), leaf("cos", dtype, 4, 12), leaf("sin", dtype, 4, 12)
    half = joined(1, cut(x, 1, 6, 12), cut(x, 1, 0, 6))
    imap = (1,) if cut_columns else (0,)
    operands = [(each, imap, -1) for each in (x, half, cos, sin)]
    made = kernel(operands, lambda x, y, c, s: term("add", term("mul", x, c), term("mul", y, s)), (grid,), 1, imap)
    return Graph((x, cos, sin), (made,))


def cached(dtype: str, keys: int = 9, loop: int = 3) -> Graph:
    """softmax(q concat(past, new)^T) concat(v, w) without a maximum: both caches in a loop over the
    keys, whose tiles have keys of both."""
    q, past, new = leaf("q", dtype, 2, 8), leaf("past", dtype, keys, 8), leaf("new", dtype, 3, 8)
    v, w = leaf("v", dtype, keys, 5), leaf("w", dtype, 3, 5)

    def body(q: Node, k: Node, v: Node) -> Node:
        p = term("exp", term("einsum", q, k, equation="ad,bd->ab"))
        total = term("accumulate", term("reduce_sum", p, axes=(1,)))
        return term("div", term("accumulate", term("matmul", p, v)), total)

    operands = [(q, (0,), -1), (joined(0, past, new), (-1,), 0), (joined(0, v, w), (-1,), 0)]
    return Graph((q, past, new, v, w), (kernel(operands, body, (2,), loop, (0,)),))


def decoded(dtype: str, keys: Any = 7) -> Graph:
    """Attention of one new token to a cache of any length and to itself: neither is copied."""
    q, past, new = leaf("q", dtype, 3, 1, 8), leaf("past", dtype, 3, keys, 8), leaf("new", dtype, 3, 1, 8)
    v, w = leaf("v", dtype, 3, keys, 8), leaf("w", dtype, 3, 1, 8)

    def body(q: Node, k: Node, v: Node) -> Node:
        return term("matmul", term("softmax", term("einsum", q, k, equation="had,hbd->hab"), axis=2), v)

    operands = [(q, (0,), -1), (joined(1, past, new), (0,), -1), (joined(1, v, w), (0,), -1)]
    return Graph((q, past, new, v, w), (kernel(operands, body, (3,), 1, (0,)),))


def split(dtype: str) -> Graph:
    """q k^T of the parts of one projection, with heads."""
    x = leaf("x", dtype, 6, 24)

    def head(start: int) -> Node:
        return term("transpose", term("reshape", cut(x, 1, start, start + 8), shape=(6, 2, 4)), perm=(1, 0, 2))

    made = kernel(
        [(head(0), (0, 1), -1), (head(8), (0, -1), -1)],
        lambda q, k: term("einsum", q, k, equation="hmd,hnd->hmn"),
        (2, 3),
        1,
        (0, 1),
    )
    return Graph((x,), (made,))


def window(dtype: str) -> Graph:
    """The largest of 3 x 3 numbers around each one: nine operands that are shifted, padded."""
    x = leaf("x", dtype, 6, 10)
    wide = padded(x, 1, 1, 1, 1, value=-9.0)
    shifted = [cut(cut(wide, 0, i, i + 6), 1, j, j + 10) for i in range(3) for j in range(3)]

    def body(*xs: Node) -> Node:
        found = xs[0]
        for each in xs[1:]:
            found = term("max", found, each)
        return found

    return Graph((x,), (kernel([(each, (0,), -1) for each in shifted], body, (3,), 1, (0,)),))


def embedding(dtype: str) -> Graph:
    """A layer norm of a table's rows and a position's."""
    table, places, ids = leaf("table", dtype, 10, 16), leaf("places", dtype, 12, 16), leaf("ids", "int64", 6)
    rows, own = term("gather", table, ids, axis=0), term("gather", places, constant(np.arange(3, 9)), axis=0)

    def body(x: Node, y: Node) -> Node:
        both = term("add", x, y)
        apart = term("sub", both, term("reduce_mean", both, axes=(1,)))
        return term("div", apart, term("sqrt", term("reduce_mean", term("mul", apart, apart), axes=(1,))))

    made = kernel([(rows, (0,), -1), (own, (0,), -1)], body, (2,), 1, (0,))
    return Graph((table, places, ids), (made,))


def experts(dtype: str) -> Graph:
    """x times the weights of the experts that are chosen for it: a block's weights are one row."""
    x, weights, chosen = leaf("x", dtype, 2, 5, 8), leaf("weights", dtype, 7, 8, 6), leaf("chosen", "int32", 2)
    operands = [(x, (0,), -1), (term("gather", weights, chosen, axis=0), (0,), -1)]
    body: Callable[..., Node] = lambda x, w: term("matmul", x, w)  # noqa: E731
    return Graph((x, weights, chosen), (kernel(operands, body, (2,), 1, (0,)),))


def bodies(dtype: str) -> Graph:
    """Movements in a body: rows of a tile, padding, reversal."""
    x, ids = leaf("x", dtype, 4, 6), leaf("ids", "int64", 4, 3)

    def body(x: Node, ids: Node) -> Node:
        rows = term("gather", term("exp", x), term("reshape", ids, shape=(6,)), axis=1)
        return term(
            "mul", padded(cut(rows, 1, 5, -1, -1), 0, 1, 0, 1, value=2.0), term("relu", padded(rows, 0, 2, 0, 0))
        )

    return Graph((x, ids), (kernel([(x, (0,), -1), (ids, (0,), -1)], body, (2,), 1, (0,)),))


IN_BODIES = "bodies"
"""The muGraph with movements in a body, which have no form in Triton."""

MOVED: dict[str, Callable[[str], Graph]] = {
    "rotary": rotary,
    "rotary of columns": lambda dtype: rotary(dtype, 3, True),
    "cached": cached,
    "decoded": decoded,
    "split": split,
    "window": window,
    "embedding": embedding,
    "experts": experts,
    IN_BODIES: bodies,
}


def random_movement(rng: np.random.Generator, node: Node) -> Node:
    """One more movement of a tensor of rank 1 at least."""
    shape = [int(n) for n in node.shape]
    axis, few = int(rng.integers(len(shape))), np.prod(shape) < 200
    n = shape[axis]
    match rng.integers(8):
        case 0 if n > 1:
            return cut(node, axis, int(rng.integers(n - 1)), n, int(rng.integers(1, 3)))
        case 1 if n > 1:
            return cut(node, axis, n - 1, -1, -1)
        case 2 if few:
            return joined(axis, node, node)
        case 3 if few:
            return padded(node, *[int(k) for k in rng.integers(0, 2, 2 * len(shape))])
        case 4:
            return term("transpose", node, perm=tuple(int(i) for i in rng.permutation(len(shape))))
        case 5:
            factors = [k for k in range(1, int(np.prod(shape)) + 1) if np.prod(shape) % k == 0]
            first = int(rng.choice(factors))
            return term("reshape", node, shape=(first, int(np.prod(shape)) // first))
        case 6:
            return term("gather", node, constant(rng.integers(-n, n, 3).astype(np.int64)), axis=axis)
        case _:
            return joined(axis, cut(node, axis, n // 2, n), cut(node, axis, 0, n // 2)) if n > 1 else node


def chained(seed: int, dtype: str) -> Graph:
    """A kernel over a random chain of movements, which its blocks cut along a random axis; it folds
    along another one, or not."""
    rng = np.random.default_rng(seed)
    x, y = leaf("x", dtype, 4, 6), leaf("y", dtype, 4, 2)
    node = joined(1, x, y) if seed % 2 else x
    for _ in range(rng.integers(1, 6)):
        node = random_movement(rng, node)
    axis = int(rng.integers(len(node.shape)))
    counts = [k for k in range(1, 9) if node.shape[axis] % k == 0]
    others = [i for i in range(len(node.shape)) if i != axis]
    fold = others[:1] if seed % 3 == 0 else []

    def body(t: Node) -> Node:
        return term("reduce_sum", t, axes=tuple(fold)) if fold else term("add", term("mul", t, t), t)

    made = kernel([(node, (axis,), -1)], body, (int(rng.choice(counts)),), 1, (axis,))
    return Graph((x, y) if seed % 2 else (x,), (made,))


def arrays(graph: Graph, seed: int = 0) -> list[Any]:
    """Inputs of a muGraph: integers are rows of tensors of at least four, some of them negative."""
    rng = np.random.default_rng(seed)

    def values(x: Node) -> Any:
        shape: Sequence[int] = [int(n) for n in x.shape]
        return rng.standard_normal(shape) if x.dtype.startswith("float") else rng.integers(-4, 4, shape)

    return [values(x).astype(x.dtype) for x in graph.inputs]
