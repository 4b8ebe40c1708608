"""Random compositions of 2 to 6 operators, deterministic by a seed: each operator is drawn by how
often it follows the one before it in real models (`goal_corpus.py`), the sizes and attributes at
random."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from goal_corpus import LEAST, MOST, MOVEMENTS  # noqa: E402
from goal_forms import convolved, goal, number, part, parts, rotated  # noqa: E402

from taso_mirage.ir.terms import Graph, Node, Tensor, constant, variable  # noqa: E402
from taso_mirage.operators.ops import term  # noqa: E402

Follow = Mapping[str, Mapping[str, int]]
Shape = tuple[int, ...]
ELEMENTS = 1 << 18
"""The largest number of elements of a value."""
SHARE = 0.04
"""The least share of each movement among the operators that follow another one: models write many
of them in several operators, or have few of them where much depends on each."""


@dataclass
class Composition:
    """A composition while it is written: `leaves` counts its inputs, `values` are its terms."""

    draw: random.Random
    values: list[Node] = field(default_factory=list)
    leaves: int = 0

    def leaf(self, *shape: int, dtype: str = "float32") -> Node:
        self.leaves += 1
        return variable(f"x{self.leaves - 1}", Tensor(dtype, shape))

    def axis(self, x: Node, least: int = 2) -> int | None:
        """An axis of at least so many positions."""
        fine = [i for i, n in enumerate(sizes(x)) if n >= least]
        return self.draw.choice(fine) if fine else None

    def operand(self, x: Node) -> Node:
        """A second operand of an elementwise operator: an earlier value or an input of the shape, a
        bias, or a number."""
        shape, earlier = sizes(x), [v for v in self.values[:-1] if v.shape == x.shape]
        match self.draw.randrange(4):
            case 0 if earlier:
                return self.draw.choice(earlier)
            case 1:
                return self.leaf(shape[-1])
            case 2:
                return number(round(self.draw.uniform(0.25, 2.0), 3))
        return self.leaf(*shape)


Step = Callable[[Composition, Node], Node | None]


def sizes(x: Node) -> Shape:
    return tuple(int(n) for n in x.shape)


# ---------------------------------------------------------------- operators that compute


def _elementwise(op: str) -> Step:
    return lambda c, x: term(op, x)


def _binary(op: str) -> Step:
    return lambda c, x: term(op, x, c.operand(x))


def _div(c: Composition, x: Node) -> Node:
    """By a number that is not near 0: quotients of random numbers have no bound."""
    return term("div", x, number(round(c.draw.uniform(1.0, 8.0), 3)))


def _root(c: Composition, x: Node) -> Node:
    return term("sqrt", term("add", term("mul", x, x), number(1e-3)))


def _square(c: Composition, x: Node) -> Node:
    return term("pow", x, number(2.0))


def _where(c: Composition, x: Node) -> Node:
    return term("where", c.leaf(*sizes(x)[-2:], dtype="bool"), x, number(-1.0))


def _softmax(c: Composition, x: Node) -> Node:
    return term("softmax", x, axis=len(sizes(x)) - 1)


def _layer_norm(c: Composition, x: Node) -> Node:
    n = sizes(x)[-1]
    return term("layer_norm", x, c.leaf(n), c.leaf(n), axis=len(sizes(x)) - 1)


def _rms_norm(c: Composition, x: Node) -> Node:
    return term("rms_norm", x, c.leaf(sizes(x)[-1]), axis=len(sizes(x)) - 1, epsilon=1e-6)


def _mean(c: Composition, x: Node) -> Node:
    return term("reduce_mean", x, axes=(len(sizes(x)) - 1,), keepdims=1)


def _matmul(c: Composition, x: Node) -> Node | None:
    """A product with a weight, or of two values of the run."""
    *batch, rows, inner = sizes(x)
    if inner < 8 or rows * inner * 64 > 1 << 26:
        return None
    columns = c.draw.choice((32, 64, 128, 192))
    both = len(batch) == 2 and c.draw.random() < 0.6
    return term("matmul", x, c.leaf(*batch, inner, columns) if both else c.leaf(inner, columns))


def _gemm(c: Composition, x: Node) -> Node | None:
    made = _matmul(c, x)
    return None if made is None else term("add", made, c.leaf(sizes(made)[-1]))


def _conv(c: Composition, x: Node) -> Node | None:
    if len(sizes(x)) != 4 or sizes(x)[0] != 1 or min(sizes(x)[2:]) < 7 or sizes(x)[1] > 64:
        return None
    channels, size = sizes(x)[1], c.draw.choice((1, 3, 3, 5))
    if c.draw.random() < 0.3:
        return convolved(x, c.leaf(channels, 1, size, size), c.leaf(channels), size // 2, channels)
    out = c.draw.choice((16, 32))
    return convolved(x, c.leaf(out, channels, size, size), c.leaf(out), size // 2)


def _pool(op: str) -> Step:
    def made(c: Composition, x: Node) -> Node | None:
        if len(sizes(x)) != 4 or min(sizes(x)[2:]) < 4:
            return None
        return term(op, x, kernel=(2, 2), strides=(2, 2), pads=(0, 0, 0, 0), dilations=(1, 1))

    return made


def _global_mean(c: Composition, x: Node) -> Node | None:
    return term("reduce_mean", x, axes=(2, 3), keepdims=1) if len(sizes(x)) == 4 else None


def _cumsum(c: Composition, x: Node) -> Node:
    return term("cumsum", x, axis=len(sizes(x)) - 1)


def _rotary(c: Composition, x: Node) -> Node | None:
    rows, width = sizes(x)[-2:]
    return rotated(x, c.leaf(rows, width), c.leaf(rows, width)) if width % 2 == 0 else None


# ---------------------------------------------------------------- movements


def _slice(c: Composition, x: Node) -> Node | None:
    axis = c.axis(x, 4)
    if axis is None:
        return None
    n = sizes(x)[axis]
    start = c.draw.choice((0, n // 4, n // 2, c.draw.randrange(n // 2)))
    return part(x, axis, start, c.draw.choice((n, start + n // 2)), c.draw.choice((1, 1, 1, 2)))


def _flip(c: Composition, x: Node) -> Node | None:
    axis = c.axis(x)
    return None if axis is None else part(x, axis, sizes(x)[axis] - 1, -1, -1)


def _concat(c: Composition, x: Node) -> Node | None:
    """With an input before it, as a cache, or with its own values or an earlier one after it."""
    axis = c.axis(x)
    if axis is None:
        return None
    shape, earlier = [*sizes(x)], [v for v in c.values[:-1] if v.shape == x.shape]
    other = c.draw.choice(earlier) if earlier and c.draw.random() < 0.5 else None
    if other is None:
        shape[axis] = c.draw.choice((1, 3, shape[axis], 2 * shape[axis]))
        other = c.leaf(*shape)
    return term("concat", *c.draw.sample([other, x], 2), axis=axis)


def _pad(c: Composition, x: Node) -> Node:
    rank = len(sizes(x))
    pads = [0] * (2 * rank)
    for axis in c.draw.sample(range(rank), min(2, rank)):
        pads[axis], pads[rank + axis] = c.draw.randrange(3), c.draw.randrange(1, 3)
    return term("pad", x, pads=tuple(pads), value=0.0)


def _split(c: Composition, x: Node) -> Node | None:
    """Two parts and their product, as of gates, or their sum."""
    axis = len(sizes(x)) - 1
    if sizes(x)[axis] % 2 or sizes(x)[axis] < 4:
        return None
    a, b = parts(x, axis, 2)
    return term("mul", a, term("sigmoid", b)) if c.draw.random() < 0.6 else term("add", a, b)


def _reshape(c: Composition, x: Node) -> Node | None:
    """Heads of the last axis, or two axes as one."""
    shape = sizes(x)
    heads = [h for h in (2, 3, 4, 8) if shape[-1] % h == 0 and shape[-1] // h >= 8]
    if heads and len(shape) < 5 and c.draw.random() < 0.6:
        h = c.draw.choice(heads)
        return term("reshape", x, shape=(*shape[:-1], h, shape[-1] // h))
    if len(shape) < 3:
        return None
    i = c.draw.randrange(len(shape) - 1)
    return term("reshape", x, shape=(*shape[:i], shape[i] * shape[i + 1], *shape[i + 2 :]))


def _transpose(c: Composition, x: Node) -> Node:
    rank = len(sizes(x))
    perm = (*range(rank - 2), rank - 1, rank - 2) if c.draw.random() < 0.4 else tuple(c.draw.sample(range(rank), rank))
    return term("transpose", x, perm=perm)


def _expand(c: Composition, x: Node) -> Node | None:
    """Each position of an axis several times, as heads that queries share."""
    shape, times = sizes(x), c.draw.choice((2, 3, 4))
    axis = c.draw.randrange(len(shape))
    if len(shape) > 4:
        return None
    wide = term("expand", term("unsqueeze", x, axes=(axis + 1,)), shape=(*shape[: axis + 1], times, *shape[axis + 1 :]))
    return term("reshape", wide, shape=(*shape[:axis], shape[axis] * times, *shape[axis + 1 :]))


def _tile(c: Composition, x: Node) -> Node:
    repeats = [1] * len(sizes(x))
    repeats[c.draw.randrange(len(repeats))] = c.draw.choice((2, 3))
    return term("tile", x, repeats=tuple(repeats))


def _gather(c: Composition, x: Node) -> Node | None:
    """Positions of an axis by a constant, or rows by indices of a run."""
    axis = c.axis(x, 4)
    if axis is None:
        return None
    n, count = sizes(x)[axis], c.draw.choice((4, 7, 16))
    if not x.args and c.draw.random() < 0.5:
        return term("gather", x, c.leaf(count, dtype="int64"), axis=0)
    rows = [c.draw.randrange(n) for _ in range(count)]
    return term("gather", x, constant(np.array(rows, np.int64)), axis=axis)


def _squeeze(c: Composition, x: Node) -> Node | None:
    ones = [i for i, n in enumerate(sizes(x)) if n == 1]
    return term("squeeze", x, axes=(ones[0],)) if ones and len(sizes(x)) > 2 else None


def _unsqueeze(c: Composition, x: Node) -> Node | None:
    return term("unsqueeze", x, axes=(c.draw.randrange(len(sizes(x)) + 1),)) if len(sizes(x)) < 4 else None


MOVED: Mapping[str, Step] = {
    "slice": _slice,
    "flip": _flip,
    "concat": _concat,
    "pad": _pad,
    "split": _split,
    "reshape": _reshape,
    "transpose": _transpose,
    "expand": _expand,
    "tile": _tile,
    "gather": _gather,
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
}
STEPS: Mapping[str, Step] = {
    **{op: _elementwise(op) for op in ("relu", "sigmoid", "tanh", "gelu", "erf", "neg", "hard_swish", "swish")},
    **{op: _binary(op) for op in ("add", "sub", "mul")},
    "div": _div,
    "sqrt": _root,
    "pow": _square,
    "where": _where,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "reduce_mean": _mean,
    "matmul": _matmul,
    "gemm": _gemm,
    "conv": _conv,
    "max_pool": _pool("max_pool"),
    "global_average_pool": _global_mean,
    "cumsum": _cumsum,
    "rotary_embedding": _rotary,
    **MOVED,
}
"""The operators of compositions by the names that models have for them."""


def _begun(c: Composition) -> Node:
    """The first input: rows, rows of a batch, heads, or an image."""
    d = c.draw
    match d.randrange(4):
        case 0:
            return c.leaf(d.choice((1, 16, 64)), d.choice((64, 128, 256, 384)))
        case 1:
            return c.leaf(1, d.choice((16, 32, 49)), d.choice((64, 96, 128)))
        case 2:
            return c.leaf(1, d.choice((4, 6, 8)), d.choice((1, 16, 64)), d.choice((32, 64)))
    side = d.choice((7, 14, 16))
    return c.leaf(1, d.choice((8, 16, 32)), side, side)


def _weights(follow: Follow, before: str) -> dict[str, float]:
    """How often each operator follows another one."""
    known = {op: float(n) for op, n in follow.get(before, follow[""]).items() if op in STEPS}
    total = sum(known.values()) or 1.0
    return {op: known.get(op, 0.0) / total + (SHARE if op in MOVED else SHARE / 4) for op in STEPS}


def composition(seed: str, follow: Follow) -> tuple[str, Graph]:
    """A composition, and the operators of which it is made."""
    c = Composition(random.Random(seed))
    x, path, count = _begun(c), list[str](), c.draw.randint(LEAST, MOST)
    c.values.append(x)
    while len(path) < count:
        weights = _weights(follow, path[-1] if path else "")
        op = c.draw.choices([*weights], [*weights.values()])[0]
        leaves = c.leaves
        made = STEPS[op](c, x)
        if made is None or prod(sizes(made)) > ELEMENTS:
            c.leaves = leaves
            continue
        x, path = made, [*path, op]
        c.values.append(x)
    if all(op in MOVEMENTS or op == "flip" for op in path if op != "split"):
        x, path = term("mul", x, c.leaf(*sizes(x))), [*path, "mul"]
    return ", ".join(path), goal(x)
