"""Layers of experts as models write them, as goals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from named_models import x

from taso_mirage.ir.dims import Dim
from taso_mirage.ir.terms import Graph, Node, constant, topological
from taso_mirage.operators.ops import term

Leaf = Callable[..., Node]
EXPERTS, WIDTH, HIDDEN, RESULTS, SLOTS = 4, 7, 19, 6, 2


def goal(output: Node) -> Graph:
    return Graph(tuple(n for n in topological([output]) if n.op == "input"), (output,))


def silu(y: Node) -> Node:
    return term("mul", y, term("sigmoid", y))


def columns(y: Node, start: int, step: int) -> Node:
    end = start + (HIDDEN - 1) * step + 1
    return term("slice", y, axes=(2,), starts=(start,), ends=(end,), steps=(step,))


def biased(y: Node, leaf: Leaf, name: str) -> Node:
    return term("add", y, term("unsqueeze", leaf(name, EXPERTS, y.shape[-1]), axes=(1,)))


def dense(tokens: Dim, leaf: Leaf = x, packed: int = 0, by_expert: bool = False, gated: bool = True) -> Graph:
    """Every expert of every token; with `packed`, one product has the columns of both, side by side
    (1) or in turn (2), and products have biases."""
    data = x("x", tokens, WIDTH)
    shares = x("shares", *((EXPERTS, tokens) if by_expert else (tokens, EXPERTS)))
    if packed:
        both = biased(term("matmul", data, leaf("first", EXPERTS, WIDTH, 2 * HIDDEN)), leaf, "first_bias")
        first, beside = (columns(both, i * (HIDDEN if packed == 1 else 1), packed) for i in range(2))
    else:
        first, beside = (term("matmul", data, leaf(name, EXPERTS, WIDTH, HIDDEN)) for name in ("first", "beside"))
    inner = term("mul", silu(first), beside) if gated else term("relu", first)
    y = term("matmul", inner, leaf("last", EXPERTS, HIDDEN, RESULTS))
    y = biased(y, leaf, "last_bias") if packed else y
    turned = shares if by_expert else term("transpose", shares, perm=(1, 0))
    return goal(term("reduce_sum", term("mul", y, term("unsqueeze", turned, axes=(2,))), axes=(0,), keepdims=0))


def gathered(tokens: Dim, leaf: Leaf = x) -> Graph:
    """The weights of the chosen experts, for each token."""
    data, shares, chosen = x("x", tokens, WIDTH), x("shares", tokens, SLOTS), x("chosen", tokens, SLOTS, dtype="int64")
    rows, at = term("unsqueeze", data, axes=(1, 2)), term("unsqueeze", chosen, axes=(2,))
    first, beside = (
        term("matmul", rows, term("gather_nd", leaf(name, EXPERTS, WIDTH, HIDDEN), at)) for name in ("first", "beside")
    )
    y = term(
        "matmul",
        term("mul", silu(first), beside),
        term("gather", leaf("last", EXPERTS, HIDDEN, RESULTS), chosen, axis=0),
    )
    y = term("gather", y, constant(np.int64(0)), axis=2)
    return goal(term("reduce_sum", term("mul", y, term("unsqueeze", shares, axes=(2,))), axes=(1,), keepdims=0))


def batched(tokens: Dim, leaf: Leaf = x, swapped: bool = False) -> Graph:
    """Chosen experts as transformers' `batched_mm` writes them: rows of weights, the gate's and the
    others in one, and one product for each choice; `swapped`: the others first."""
    data, shares, chosen = x("x", tokens, WIDTH), x("shares", tokens, SLOTS), x("chosen", tokens, SLOTS, dtype="int64")
    count: Any = tokens * SLOTS
    at = term("unsqueeze", term("reshape", chosen, shape=(count,)), axes=(1,))
    rows = term("expand", term("unsqueeze", data, axes=(1,)), shape=(tokens, SLOTS, WIDTH))
    rows = term("unsqueeze", term("reshape", rows, shape=(count, WIDTH)), axes=(2,))
    weights = term("gather_nd", leaf("first", EXPERTS, 2 * HIDDEN, WIDTH), at)
    both = term("split", term("squeeze", term("matmul", weights, rows), axes=(2,)), axis=1, split=(HIDDEN, HIDDEN))
    first, beside = (term("item", both, index=int(i != swapped)) for i in range(2))
    inner = term("unsqueeze", term("mul", silu(first), beside), axes=(2,))
    y = term("squeeze", term("matmul", term("gather_nd", leaf("last", EXPERTS, RESULTS, HIDDEN), at), inner), axes=(2,))
    y = term("mul", y, term("unsqueeze", term("reshape", shares, shape=(count,)), axes=(1,)))
    return goal(term("reduce_sum", term("reshape", y, shape=(tokens, SLOTS, RESULTS)), axes=(1,), keepdims=0))


GOALS: Mapping[str, Callable[..., Graph]] = {
    "dense": dense,
    "by expert": partial(dense, by_expert=True),
    "one product": partial(dense, gated=False),
    "packed": partial(dense, packed=1),
    "in turn": partial(dense, packed=2, by_expert=True),
    "gathered": gathered,
    "batched": batched,
}
