"""The best known muGraphs of Mirage's workloads (OSDI'25, section 8), written by hand: each builder
gives (muGraph, goal).

Sizes, grid and loop are parameters, so that tests can keep every size apart and back ends can take
real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import sqrt
from typing import Any, TypeAlias

from taso_mirage.ir.mugraph import _Ints, tile
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, variable
from taso_mirage.operators.ops import term

Pair: TypeAlias = tuple[Graph, Graph]
Operand: TypeAlias = tuple[Node, _Ints, int]
"""An operand of a kernel, its imap and its fmap."""


def leaf(name: str, dtype: str, *shape: int) -> Node:
    return variable(name, Tensor(dtype, shape))


def kernel(
    operands: Sequence[Operand],
    body: Callable[..., Node | tuple[Node, ...]],
    grid: _Ints,
    loop: int,
    *omap: _Ints,
    cluster: int = 1,
) -> Node:
    """The kernel whose body is the result of `body` on the operands' tiles; the tiles are called as
    the operands."""
    tiles = [
        variable(x.attr("name") if x.op == "input" else f"t{i}", tile(x.tensor, grid, imap, fmap, loop))
        for i, (x, imap, fmap) in enumerate(operands)
    ]
    made = body(*tiles)
    graph = Graph(tuple(tiles), made if isinstance(made, tuple) else (made,))
    imap, fmap = tuple(i for _, i, _ in operands), tuple(f for _, _, f in operands)
    maps = {"imap": imap, "fmap": fmap, "omap": omap}
    return term("kernel", *[x for x, _, _ in operands], body=graph, grid=grid, loop=loop, **maps, cluster=cluster)


def parts(node: Node) -> list[Node]:
    """The outputs of a kernel with several."""
    return [term("item", node, index=i) for i in range(len(node.type or ()))]


def mean_square(x: Node, axis: int) -> Node:
    return term("reduce_mean", term("mul", x, x), axes=(axis,))


def rms(x: Node, axis: int) -> Node:
    return term("div", x, term("sqrt", mean_square(x, axis)))


def rmsnorm_linear(
    rows: int = 4,
    inner: int = 12,
    cols: int = 10,
    grid: int = 5,
    loop: int = 3,
    *,
    gamma: bool = False,
    bias: bool = False,
    dtype: str = "float16",
) -> Pair:
    """rms(X) [* gamma] W [+ bias]: the product and the sum of squares accumulate in one loop over
    `inner`."""
    x, w = leaf("X", dtype, rows, inner), leaf("W", dtype, inner, cols)
    g, b = leaf("gamma", dtype, inner), leaf("bias", dtype, cols)
    normed = term("mul", rms(x, 1), g) if gamma else rms(x, 1)
    goal = term("add", term("matmul", normed, w), b) if bias else term("matmul", normed, w)

    def body(x: Node, w: Node, *more: Node) -> Node:
        scaled = term("mul", x, more[0]) if gamma else x
        product = term("accumulate", term("matmul", scaled, w))
        squares = term("accumulate", term("reduce_sum", term("mul", x, x), axes=(1,)))
        found = term("div", product, term("sqrt", term("div", squares, constant(inner, dtype))))
        return term("add", found, more[-1]) if bias else found

    operands: list[Operand] = [(x, (-1,), 1), (w, (1,), 0)]
    operands += [(g, (-1,), 0)] if gamma else []
    operands += [(b, (0,), -1)] if bias else []
    inputs = tuple(o for o, _, _ in operands)
    return Graph(inputs, (kernel(operands, body, (grid,), loop, (1,)),)), Graph(inputs, (goal,))


def gated_mlp(
    rows: int = 4, inner: int = 12, cols: int = 10, grid: int = 5, loop: int = 3, *, dtype: str = "float16"
) -> Pair:
    """silu(X W1) * (X W2): two accumulators."""
    x, gate, up = leaf("X", dtype, rows, inner), leaf("W1", dtype, inner, cols), leaf("W2", dtype, inner, cols)
    goal = term("mul", term("swish", term("matmul", x, gate)), term("matmul", x, up))

    def body(x: Node, gate: Node, up: Node) -> Node:
        left, right = (term("accumulate", term("matmul", x, w)) for w in (gate, up))
        return term("mul", term("swish", left), right)

    made = kernel([(x, (-1,), 1), (gate, (1,), 0), (up, (1,), 0)], body, (grid,), loop, (1,))
    return Graph((x, gate, up), (made,)), Graph((x, gate, up), (goal,))


def lora(
    rows: int = 4,
    inner: int = 12,
    cols: int = 10,
    rank: int = 2,
    grid: int = 5,
    loop: int = 3,
    *,
    dtype: str = "float16",
) -> Pair:
    """X W + (X A) B: two accumulators, and the small product after the loop."""
    x, w = leaf("X", dtype, rows, inner), leaf("W", dtype, inner, cols)
    a, b = leaf("A", dtype, inner, rank), leaf("B", dtype, rank, cols)
    goal = term("add", term("matmul", x, w), term("matmul", term("matmul", x, a), b))

    def body(x: Node, w: Node, a: Node, b: Node) -> Node:
        main, low = term("accumulate", term("matmul", x, w)), term("accumulate", term("matmul", x, a))
        return term("add", main, term("matmul", low, b))

    made = kernel([(x, (-1,), 1), (w, (1,), 0), (a, (-1,), 0), (b, (1,), -1)], body, (grid,), loop, (1,))
    return Graph((x, w, a, b), (made,)), Graph((x, w, a, b), (goal,))


def ntrans(rows: int = 6, inner: int = 5, grid: int = 3, *, dtype: str = "float16") -> Pair:
    """rms(X + alpha * (rms(H) - X)): blocks of rows, no loop."""
    x, h, alpha = leaf("X", dtype, rows, inner), leaf("H", dtype, rows, inner), leaf("alpha", dtype, inner)

    def body(x: Node, h: Node, alpha: Node) -> Node:
        return rms(term("add", x, term("mul", alpha, term("sub", rms(h, 1), x))), 1)

    made = kernel([(x, (0,), -1), (h, (0,), -1), (alpha, (-1,), -1)], body, (grid,), 1, (0,))
    return Graph((x, h, alpha), (made,)), Graph((x, h, alpha), (body(x, h, alpha),))


class Attention:
    """softmax(Q K [* scale] [+ mask]) V over (heads, queries, dim), (heads, dim, keys), (heads,
    keys, width) [, (queries, keys)].

    The blocks are (heads, query blocks[, splits of the keys]); the loop runs over the keys of a
    block.
    """

    def __init__(
        self,
        heads: int,
        queries: int,
        dim: int,
        keys: int,
        width: int,
        *,
        scaled: bool,
        masked: bool,
        normed: bool,
        dtype: str,
    ) -> None:
        self.q, self.k = leaf("Q", dtype, heads, queries, dim), leaf("K", dtype, heads, dim, keys)
        self.v, self.mask = leaf("V", dtype, heads, keys, width), leaf("mask", dtype, queries, keys)
        self.heads, self.masked, self.normed, self.dtype = heads, masked, normed, dtype
        self.scale = constant(1 / sqrt(dim), dtype) if scaled else None

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.q, self.k, self.v, self.mask) if self.masked else (self.q, self.k, self.v)

    @property
    def goal(self) -> Graph:
        scores = self.scores(self.q, self.k, *self.inputs[3:])
        return Graph(self.inputs, (term("matmul", term("softmax", scores, axis=2), self.v),))

    def scores(self, q: Node, k: Node, *mask: Node) -> Node:
        found = term("matmul", rms(q, 2), rms(k, 1)) if self.normed else term("matmul", q, k)
        found = term("mul", found, self.scale) if self.scale else found
        return term("add", found, mask[0]) if mask else found

    def operands(self, split: _Ints) -> list[Operand]:
        """Imaps for the grid (heads, query blocks) and, if `split` is (2,), the splits of the
        keys."""
        cut = lambda axis: (axis,) if split else ()  # noqa: E731
        found = [(self.q, (0, 1, *cut(-1)), -1), (self.k, (0, -1, *cut(2)), 2), (self.v, (0, -1, *cut(1)), 1)]
        return [*found, (self.mask, (-1, 0, *cut(1)), 1)] if self.masked else found

    def accumulators(self, q: Node, k: Node, v: Node, *mask: Node) -> tuple[Node, Node, Node]:
        """The unnormalised output, the sum and the largest score of the tile, rescaled by the
        running maximum."""
        s = self.scores(q, k, *mask)
        top = term("reduce_max", s, axes=(2,))
        m = term("running_max", top)
        p = term("exp", term("sub", s, m))
        o = term("accumulate", term("matmul", p, v), m, over="rescaled", degree=1)
        total = term("accumulate", term("reduce_sum", p, axes=(2,)), m, over="rescaled", degree=1)
        return o, total, term("accumulate", top, over="max")


def attention_safe(
    heads: int = 2,
    queries: int = 6,
    dim: int = 5,
    keys: int = 12,
    width: int = 7,
    blocks: int = 2,
    loop: int = 3,
    *,
    scaled: bool = True,
    masked: bool = False,
    normed: bool = False,
    dtype: str = "float16",
) -> Pair:
    """Flash attention: one kernel, the loop over the keys, a running maximum."""
    a = Attention(heads, queries, dim, keys, width, scaled=scaled, masked=masked, normed=normed, dtype=dtype)

    def body(*tiles: Node) -> Node:
        o, total, _ = a.accumulators(*tiles)
        return term("div", o, total)

    made = kernel(a.operands(()), body, (heads, blocks), loop, (0, 1))
    return Graph(a.inputs, (made,)), a.goal


def attention_split_safe(
    heads: int = 2,
    queries: int = 6,
    dim: int = 5,
    keys: int = 24,
    width: int = 7,
    blocks: int = 3,
    splits: int = 4,
    loop: int = 3,
    *,
    scaled: bool = True,
    masked: bool = False,
    normed: bool = False,
    dtype: str = "float16",
) -> Pair:
    """Flash decoding: the keys are split over the grid too, and a second kernel combines the
    splits."""
    a = Attention(heads, queries, dim, keys, width, scaled=scaled, masked=masked, normed=normed, dtype=dtype)

    def first(*tiles: Node) -> tuple[Node, ...]:
        return tuple(term("unsqueeze", x, axes=(1,)) for x in a.accumulators(*tiles))

    def second(o: Node, total: Node, top: Node) -> Node:
        c = term("exp", term("sub", top, term("reduce_max", top, axes=(1,))))
        o, total = (term("reduce_sum", term("mul", x, c), axes=(1,), keepdims=0) for x in (o, total))
        return term("div", o, total)

    split = kernel(a.operands((2,)), first, (heads, blocks, splits), loop, *[(0, 2, 1)] * 3)
    made = kernel([(x, (0, 2), -1) for x in parts(split)], second, (heads, blocks), 1, (0, 1))
    return Graph(a.inputs, (made,)), a.goal


def attention_cluster(
    heads: int = 2,
    queries: int = 6,
    dim: int = 5,
    keys: int = 24,
    width: int = 7,
    blocks: int = 3,
    splits: int = 4,
    loop: int = 3,
    *,
    scaled: bool = True,
    masked: bool = False,
    normed: bool = False,
    dtype: str = "float16",
) -> Pair:
    """Flash decoding in one kernel: the splits of the keys are a cluster, whose blocks combine."""
    a = Attention(heads, queries, dim, keys, width, scaled=scaled, masked=masked, normed=normed, dtype=dtype)

    def body(*tiles: Node) -> Node:
        o, total, top = a.accumulators(*tiles)
        return term("div", *[term("combine", x, top, over="rescaled", degree=1) for x in (o, total)])

    made = kernel(a.operands((2,)), body, (heads, blocks, splits), loop, (0, 1, -1), cluster=splits)
    return Graph(a.inputs, (made,)), a.goal


def rmsnorm_linear_cluster(
    rows: int = 4, inner: int = 24, cols: int = 10, grid: int = 5, splits: int = 2, loop: int = 3
) -> Pair:
    """rms(X) W with the rows of W split over a cluster: both sums are combined."""
    x, w = leaf("X", "float16", rows, inner), leaf("W", "float16", inner, cols)

    def body(x: Node, w: Node) -> Node:
        sums = term("matmul", x, w), term("reduce_sum", term("mul", x, x), axes=(1,))
        product, squares = (term("combine", term("accumulate", each)) for each in sums)
        return term("div", product, term("sqrt", term("div", squares, constant(inner, "float16"))))

    made = kernel([(x, (-1, 1), 1), (w, (1, 0), 0)], body, (grid, splits), loop, (1, -1), cluster=splits)
    return Graph((x, w), (made,)), Graph((x, w), (term("matmul", rms(x, 1), w),))


def long_rows(rows: int = 6, inner: int = 20, grid: int = 3, splits: int = 4) -> Pair:
    """rms(X) of rows that are too long for one block: each of a cluster writes its part."""
    x = leaf("X", "float16", rows, inner)

    def body(x: Node) -> Node:
        squares = term("combine", term("reduce_sum", term("mul", x, x), axes=(1,)))
        return term("div", x, term("sqrt", term("div", squares, constant(inner, "float16"))))

    made = kernel([(x, (0, 1), -1)], body, (grid, splits), 1, (0, 1), cluster=splits)
    return Graph((x,), (made,)), Graph((x,), (rms(x, 1),))


def spread_cluster(
    rows: int = 6, inner: int = 24, grid: int = 3, splits: int = 2, loop: int = 3, *, dtype: str = "float16"
) -> Pair:
    """The variance and the largest element of rows, in one pass over the parts of a cluster."""
    x = leaf("X", dtype, rows, inner)

    def variance(x: Node) -> Node:
        apart = term("sub", x, term("reduce_mean", x, axes=(1,)))
        return term("reduce_mean", term("mul", apart, apart), axes=(1,))

    def body(x: Node) -> tuple[Node, Node]:
        mean = term("reduce_mean", x, axes=(1,))
        whole = term("div", term("accumulate", mean), constant(loop, dtype))
        found = term("combine", term("accumulate", variance(x), mean, over="variance"), whole, over="variance")
        top = term("combine", term("accumulate", term("reduce_max", x, axes=(1,)), over="max"), over="max")
        return found, top

    made = kernel([(x, (0, 1), 1)], body, (grid, splits), loop, (0, -1), (0, -1), cluster=splits)
    return Graph((x,), tuple(parts(made))), Graph((x,), (variance(x), term("reduce_max", x, axes=(1,))))


def attention_roles(
    keys: int = 512, splits: int = 2, loop: int = 4, *, normed: bool = False, dtype: str = "float16", heads: Any = 2
) -> Pair:
    """Flash decoding as the search writes it, at sizes that warps with roles are generated for:
    heads of 64 (a number of them or a name), two blocks of 128 queries; `normed`: queries and keys
    are, and keys lie in rows."""
    order = "afd" if normed else "adf"
    q, v = leaf("Q", dtype, heads, 256, 64), leaf("V", dtype, heads, keys, 64)
    k = leaf("K", dtype, heads, *((keys, 64) if normed else (64, keys)))
    least = term("cast", constant(-3.4028234663852886e38, "float32"), to=dtype)

    def scores(q: Node, k: Node) -> Node:
        q, k = (rms(q, 2), rms(k, 2)) if normed else (q, k)
        return term("einsum", q, k, equation=f"abd,{order}->abf")

    def first(q: Node, k: Node, v: Node) -> tuple[Node, ...]:
        s = scores(q, k)
        top = term("max", term("reduce_max", s, axes=(2,)), least)
        m = term("running_max", top)
        p = term("exp", term("sub", s, m))
        o = term("accumulate", term("einsum", p, v, equation="abf,afc->abc"), m, over="rescaled", degree=1)
        total = term("accumulate", term("reduce_sum", p, axes=(2,)), m, over="rescaled", degree=1)
        return tuple(term("unsqueeze", x, axes=(1,)) for x in (o, total, term("accumulate", top, over="max")))

    def second(o: Node, total: Node, top: Node) -> Node:
        c = term("exp", term("sub", top, term("reduce_max", top, axes=(1,))))
        o, total = (term("reduce_sum", term("mul", x, c), axes=(1,), keepdims=0) for x in (o, total))
        return term("div", o, total)

    cut = order.index("f")
    operands = [(q, (0, 1, -1), -1), (k, (0, -1, cut), cut), (v, (0, -1, 1), 1)]
    split = kernel(operands, first, (heads, 2, splits), loop, *[(0, 2, 1)] * 3)
    made = kernel([(x, (0, 2), -1) for x in parts(split)], second, (heads, 2), 1, (0, 1))
    goal = term("matmul", term("softmax", scores(q, k), axis=2), v)
    return Graph((q, k, v), (made,)), Graph((q, k, v), (goal,))


def qknorm(**sizes: int) -> Pair:
    """Attention with rms(Q) and rms(K)."""
    return attention_safe(**sizes, normed=True)  # type: ignore[arg-type]


WORKLOADS: dict[str, Callable[[], Pair]] = {
    "rmsnorm_linear": rmsnorm_linear,
    "rmsnorm_linear_gamma_bias": partial(rmsnorm_linear, gamma=True, bias=True),
    "gated_mlp": gated_mlp,
    "lora": lora,
    "ntrans": ntrans,
    "attention": attention_safe,
    "attention_masked": partial(attention_safe, masked=True),
    "attention_split": attention_split_safe,
    "attention_split_masked": partial(attention_split_safe, masked=True),
    "qknorm": qknorm,
}
"""At sizes that keep every dim, grid and loop apart."""
CLUSTERS: dict[str, Callable[[], Pair]] = {
    "attention_cluster": attention_cluster,
    "attention_cluster_masked": partial(attention_cluster, masked=True),
    "qknorm_cluster": partial(attention_cluster, normed=True),
    "rmsnorm_linear_cluster": rmsnorm_linear_cluster,
    "long_rows": long_rows,
    "spread_cluster": spread_cluster,
}
"""MuGraphs whose blocks combine values in a cluster."""
