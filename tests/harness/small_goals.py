"""Goals of the search for kernels."""

from __future__ import annotations

from functools import cache

import mugraphs

from taso_mirage.ir.terms import Graph, Node, Tensor, variable
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.mugraph.graph import KernelGraph, new_graph
from taso_mirage.mugraph.search import Search, SearchOptions
from taso_mirage.operators.ops import term


def rms_linear(gamma: bool = False, bias: bool = False) -> KernelGraph:
    g = new_graph()
    x, w = g.new_input((16, 1024), name="X"), g.new_input((1024, 1536), name="W")
    scale = g.new_input((1024,), name="G") if gamma else None
    made = g.matmul(g.rms_norm(x, scale, 1e-5 if gamma else 0.0), w)
    g.mark_output(g.add(made, g.new_input((1536,), name="B")) if bias else made)
    return g


def gated(down: bool = False) -> KernelGraph:
    g = new_graph()
    x, a, b = g.new_input((8, 512), name="X"), g.new_input((512, 1024), name="A"), g.new_input((512, 1024), name="B")
    made = g.mul(g.silu(g.matmul(x, a)), g.matmul(x, b))
    g.mark_output(g.matmul(made, g.new_input((1024, 512), name="D")) if down else made)
    return g


def lora() -> KernelGraph:
    g = new_graph()
    x, w = g.new_input((16, 4096), name="X"), g.new_input((4096, 4096), name="W")
    a, b = g.new_input((4096, 16), name="A"), g.new_input((16, 4096), name="B")
    g.mark_output(g.add(g.matmul(x, w), g.matmul(g.matmul(x, a), b)))
    return g


def attention(norm: bool = False, scale: bool = False, mask: bool = False, rotary: bool = False) -> KernelGraph:
    g = new_graph()
    q, v = g.new_input((2, 128, 64), name="Q"), g.new_input((2, 2048, 64), name="V")
    k = g.new_input((2, 2048, 64) if norm else (2, 64, 2048), name="K")
    if norm:
        q, k = g.rms_norm(q), g.transpose(g.rms_norm(k), 0, 2, 1)
    if rotary:
        turned = g.mul(g.new_input((2, 128, 64), name="Q turned"), g.new_input((128, 64), name="sin"))
        q = g.add(g.mul(q, g.new_input((128, 64), name="cos")), turned)
    s = g.matmul(q, k)
    s = g.mul(s, 0.125) if scale else s
    s = g.add(s, g.new_input((128, 2048), name="M")) if mask else s
    g.mark_output(g.matmul(g.softmax(s), v))
    return g


def layer_norm_goal(rows: int, inner: int, cols: int = 0, dtype: str = "float32") -> Graph:
    """A layer norm, with a linear layer and its bias after it if there are columns."""
    x, gamma, beta = mugraphs.leaf("X", dtype, rows, inner), *(mugraphs.leaf(n, dtype, inner) for n in ("G", "B"))
    normal = term("layer_norm", x, gamma, beta, axis=1)
    if not cols:
        return Graph((x, gamma, beta), (normal,))
    w, bias = mugraphs.leaf("W", dtype, inner, cols), mugraphs.leaf("b", dtype, cols)
    return Graph((x, gamma, beta, w, bias), (term("add", term("matmul", normal, w), bias),))


SMALL, DECODER = (2, 2, 4, 33, 16), (8, 4, 8, 513, 64)
"""Batch, groups of heads, heads of queries a group, keys, width of a head; of a model of 1.1
billion weights at batch 8."""


def half(name: str, *shape: int) -> Node:
    return variable(name, Tensor("float16", shape))


def several_queries(batch: int, groups: int, each: int, keys: int, width: int) -> Graph:
    """Attention of one new token: heads are cut from the results of the linear layer before, and
    joined for the one after."""
    heads, shape = groups * each, (batch, groups, each, keys, width)
    q = half("q", batch, 1, heads * width)
    k, v = (half(name, batch, groups, keys, width) for name in "kv")
    mask = half("mask", batch, 1, 1, keys)
    wide = [
        term("reshape", term("expand", term("unsqueeze", y, axes=(2,)), shape=shape), shape=(batch, heads, keys, width))
        for y in (k, v)
    ]
    turned = term("transpose", term("reshape", q, shape=(batch, 1, heads, width)), perm=(0, 2, 1, 3))
    scores = term("matmul", turned, term("transpose", wide[0], perm=(0, 1, 3, 2)))
    weights = term("softmax", term("add", scores, mask), axis=-1)
    back = term("transpose", term("matmul", weights, wide[1]), perm=(0, 2, 1, 3))
    return Graph((q, k, mask, v), (term("reshape", back, shape=(batch, 1, heads * width)),))


@cache
def searched(graph: Graph, best: int = 1) -> list[FoundMuGraph]:
    return Search(graph, SearchOptions()).run(best, 600.0)
