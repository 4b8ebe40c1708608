"""Goals that move elements along axes whose sizes a run gives: sizes are sums of such sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from moved_goals import goal, part
from mugraphs import leaf

from taso_mirage.ir.dims import Dim
from taso_mirage.ir.terms import Graph, Node
from taso_mirage.mugraph.free import FreeSizes
from taso_mirage.operators.ops import term

WIDTH = 16


def attention(q: Node, keys: Node, values: Node, *mask: Node) -> Node:
    scores = term("matmul", q, term("transpose", keys, perm=(0, 1, 3, 2)))
    for each in mask:
        scores = term("add", scores, each)
    return term("matmul", term("softmax", scores, axis=3), values)


def step(batch: Dim, past: Dim) -> Graph:
    """A new token and a cache, both of which a kernel reads in place."""
    q, k, v = (leaf(name, "float32", batch, 4, 1, WIDTH) for name in "qkv")
    keys, values = (leaf(name, "float32", batch, 4, past, WIDTH) for name in ("keys", "values"))
    mask = leaf("mask", "float32", batch, 1, 1, past + 1)
    joined = [term("concat", *pair, axis=2) for pair in ((keys, k), (values, v))]
    return goal([attention(q, *joined, mask)])


def rotated(batch: Dim, past: Dim) -> Graph:
    """The new key is computed: it is rotated before it is behind the cache."""
    q, k, v = (leaf(name, "float32", batch, 4, 1, WIDTH) for name in "qkv")
    cos, sin = (leaf(name, "float32", 1, WIDTH) for name in ("cos", "sin"))
    keys, values = (leaf(name, "float32", batch, 4, past, WIDTH) for name in ("keys", "values"))
    half = term("concat", term("neg", part(k, 3, 8, 16)), part(k, 3, 0, 8), axis=3)
    turned = term("add", term("mul", k, cos), term("mul", half, sin))
    joined = [term("concat", *pair, axis=2) for pair in ((keys, turned), (values, v))]
    return goal([attention(q, *joined)])


def chunk(past: Dim, new: Dim) -> Graph:
    """Several new tokens, whose number a run gives too."""
    q, k, v = (leaf(name, "float32", 1, 2, new, WIDTH) for name in "qkv")
    keys, values = (leaf(name, "float32", 1, 2, past, WIDTH) for name in ("keys", "values"))
    mask = leaf("mask", "float32", new, past + new)
    joined = [term("concat", *pair, axis=2) for pair in ((keys, k), (values, v))]
    return goal([attention(q, *joined, mask)])


def without_first(batch: Dim, length: Dim) -> Graph:
    """A sum over all tokens but the first three, each with a factor."""
    x, y = leaf("x", "float32", batch, length, WIDTH), leaf("y", "float32", batch, length - 3, 1)
    rest = term("slice", x, axes=(1,), starts=(3,), ends=(length,), steps=(1,))
    return goal([term("reduce_sum", term("relu", term("mul", rest, y)), axes=(1,), keepdims=0)])


def last(batch: Dim, length: Dim) -> Graph:
    """A window: the last 8 tokens, which are others at each length, and fewer in a short run."""
    x, y = leaf("x", "float32", batch, length, WIDTH), leaf("y", "float32", WIDTH)
    window = term("slice", x, axes=(1,), starts=(length - 8,), ends=(length,), steps=(1,))
    return goal([term("softmax", term("mul", window, y), axis=2)])


def doubled(batch: Dim, length: Dim) -> Graph:
    """Tokens and the same with another sign, one after the other."""
    x, y = leaf("x", "float32", batch, length, WIDTH), leaf("y", "float32", batch, 1, WIDTH)
    both = term("concat", x, term("neg", x), axis=1)
    return goal([term("softmax", term("mul", both, y), axis=2)])


def decoder_step(batch: Dim, past: Dim, dtype: str = "float32") -> Graph:
    """Attention of a decoder's step with two queries to a key: the caches with new rows, which are
    results too."""
    q = leaf("q", dtype, batch, 4, 1, WIDTH)
    rows = [leaf(name, dtype, batch, 2, 1, WIDTH) for name in ("k", "v")]
    caches = [leaf(name, dtype, batch, 2, past, WIDTH) for name in ("keys", "values")]
    mask = leaf("mask", dtype, batch, 1, 1, past + 1)
    joined = [term("concat", *pair, axis=2) for pair in zip(caches, rows, strict=True)]
    wide = [term("expand", term("unsqueeze", x, axes=(2,)), shape=(batch, 2, 2, past + 1, WIDTH)) for x in joined]
    keys, values = (term("reshape", x, shape=(batch, 4, past + 1, WIDTH)) for x in wide)
    return goal([*joined, attention(q, keys, values, mask)])


@dataclass(frozen=True)
class LengthGoal:
    """A goal by two sizes, those of the search, and the least length."""

    make: Callable[[Dim, Dim], Graph]
    sizes: tuple[int, int]
    least: int = 0

    def at(self, other: int, length: int) -> tuple[int, int]:
        """The sizes of a run with this length."""
        return (length, other) if self.make is chunk else (other, length)


GOALS = {
    "step": LengthGoal(step, (2, 255)),
    "rotated": LengthGoal(rotated, (2, 127)),
    "chunk": LengthGoal(chunk, (112, 16)),
    "without_first": LengthGoal(without_first, (2, 67), 4),
    "doubled": LengthGoal(doubled, (2, 64)),
}


def free_of(name: str, *names: Dim) -> FreeSizes:
    return FreeSizes.of_goal(GOALS[name].make(*names))
