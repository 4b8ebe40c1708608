"""Random chains of operators that only move elements."""

from __future__ import annotations

import numpy as np

from taso_mirage.ir.terms import Node, Tensor, variable
from taso_mirage.operators.ops import term

LARGEST = 200
"""Elements that a movement that repeats elements is applied to."""


def movements(seed: int) -> Node:
    """Some movements of X (4, 6), Y (4, 2) and the rows of an input."""
    rng = np.random.default_rng(seed)
    x, y = (variable(name, Tensor("float32", shape)) for name, shape in (("X", (4, 6)), ("Y", (4, 2))))
    node = term("concat", x, y, axis=1) if seed % 2 else x
    while len(node.shape) < 2 or node is x or rng.integers(3):
        node = _moved(rng, node)
    return node


def _moved(rng: np.random.Generator, node: Node) -> Node:
    shape = tuple(int(n) for n in node.shape)
    axis, small = int(rng.integers(len(shape))), int(np.prod(shape)) < LARGEST
    n = shape[axis]
    match rng.integers(8):
        case 0 if n > 1:
            start, step = int(rng.integers(n - 1)), int(rng.integers(1, 3))
            return term("slice", node, starts=(start,), ends=(n,), axes=(axis,), steps=(step,))
        case 1 if n > 1:
            return term("slice", node, starts=(n - 1,), ends=(-1,), axes=(axis,), steps=(-1,))
        case 2 if small:
            return term("concat", node, node, axis=axis)
        case 3 if small:
            pads = tuple(int(k) for k in rng.integers(0, 2, 2 * len(shape)))
            return term("pad", node, pads=pads, value=float(rng.integers(2)) if _filled(node) else 0.0)
        case 4:
            return term("transpose", node, perm=tuple(int(i) for i in rng.permutation(len(shape))))
        case 5:
            factors = [k for k in range(1, node_count(shape) + 1) if node_count(shape) % k == 0]
            first = int(rng.choice(factors))
            return term("reshape", node, shape=(first, node_count(shape) // first))
        case 6 if n >= 4:
            return term("gather", node, variable("rows", Tensor("int64", (3,))), axis=axis)
        case _ if small:
            return term("expand", term("reshape", node, shape=(1, *shape)), shape=(2, *shape))
    return node


def node_count(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape))


def _filled(node: Node) -> bool:
    """Whether a pad may have its own number: no pad is below."""
    return all(each.op != "pad" for each in _below(node))


def _below(node: Node) -> list[Node]:
    return [node, *(x for arg in node.args for x in _below(arg))]
