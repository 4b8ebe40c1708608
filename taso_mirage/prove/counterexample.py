"""Counterexamples: small concrete inputs on which the two sides of a refuted equation differ in
plain float64 arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from random import Random
from typing import Any

import numpy as np

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.terms import Graph, Node, is_float, numpy_dtype, topological
from taso_mirage.meanings.arrays import Array
from taso_mirage.meanings.reals import EXACT
from taso_mirage.operators.interpret import interpret
from taso_mirage.rewriting.text import show_graph
from taso_mirage.verdicts import Counterexample, Failure

RANGES = ((0, 1), (-2, 2), (1, 3), (-5, 5), (1, 40), (-100, 100))
"""The ranges of integers from which inputs are drawn, small ones first. With positive ranges, roots
and quotients are defined."""
TRIES = 6
APART = 1e-6
"""The smallest difference of two float64 values, relative to the larger one or 1, that refutes;
roundings are a billion times smaller."""


def find_counterexample(lhs: Sequence[Node], rhs: Sequence[Node], refuted: Failure, seed: int = 0) -> Counterexample:
    """Values from a few ranges of small integers for which a difference in the field is also one in
    float64."""
    leaves = tuple(n for n in topological([*lhs, *rhs]) if n.op in ("input", "weight"))
    inputs = tuple(n for n in leaves if n.op == "input")
    texts = show_graph(Graph(inputs, tuple(lhs))), show_graph(Graph(inputs, tuple(rhs)))
    for arrays in _inputs(leaves, seed):
        differs = _first_difference(lhs, rhs, arrays)
        if differs is not None:
            named = tuple((n.attr("name"), _plain(a)) for n, a in arrays.items())
            output, index, left, right = differs
            return Counterexample(output, *texts, named, index, left, right)
    note = f"no small float64 inputs tell the sides apart, the field does: {refuted.reason}"
    output = refuted.counterexample.output if refuted.counterexample is not None else 0
    return Counterexample(output, *texts, note=note)


def _inputs(leaves: Sequence[Node], seed: int) -> Iterator[dict[Node, Array]]:
    """None if a leaf contains strings."""
    if any(n.dtype == "string" for n in leaves):
        return
    for (low, high), i in product(RANGES, range(TRIES)):
        rng = Random(f"{seed} {low} {high} {i}")
        yield {n: _array(n, rng, low, high) for n in leaves}


def _array(node: Node, rng: Random, low: int, high: int) -> Array:
    """Integer values; an integer or boolean leaf is 0 or 1, which are legal indices."""
    shape = tuple(int(n) for n in node.shape)
    bounds = (low, high) if is_float(node.dtype) else (0, 1)
    values = [rng.randint(*bounds) for _ in range(int(np.prod(shape)))]
    dtype = np.dtype(np.float64) if is_float(node.dtype) else numpy_dtype(node.dtype)
    return np.array(values, dtype).reshape(shape)


def _plain(array: Array) -> Any:
    return array.astype(np.int64).tolist() if array.dtype.kind in "fu" else array.tolist()


def _first_difference(
    lhs: Sequence[Node], rhs: Sequence[Node], env: Mapping[Node, Array]
) -> tuple[int, tuple[int, ...], float, float] | None:
    try:
        values = interpret([*lhs, *rhs], EXACT, env)
    except (TasoMirageError, IndexError, ValueError):
        return None
    for i, (left, right) in enumerate(zip(lhs, rhs, strict=True)):
        a, b = values[left], values[right]
        if isinstance(a, tuple):
            continue
        a, b = a.astype(np.float64), b.astype(np.float64)
        with np.errstate(invalid="ignore"):
            apart = np.abs(a - b) > APART * np.maximum(1, np.maximum(np.abs(a), np.abs(b)))
        apart &= np.isfinite(a) & np.isfinite(b)
        for place in np.argwhere(apart):
            index = tuple(int(k) for k in place)
            return i, index, float(a[index]), float(b[index])
    return None
