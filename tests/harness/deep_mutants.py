"""Transformers of many layers with one wrong rewrite deep inside of them, and right ones.

A mutant is a name and a function that puts a wrong term in the place of one of a layer's terms, at
any depth: the tests have them in a model of few numbers, and `bench/regional.py` in large ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from taso_mirage.ir.model import Model, StoredWeight
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, variable, weight
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term
from taso_mirage.search.steps import RewriteStep, claimed, replay

EPSILON = 1e-5
MASKED = -1e4


@dataclass(frozen=True)
class Sizes:
    """The sizes of a transformer: images or texts at once, tokens, heads, numbers of a head."""

    batch: int = 2
    tokens: int = 24
    heads: int = 4
    inner: int = 8
    layers: int = 8
    dtype: str = "float32"

    @property
    def width(self) -> int:
        return self.heads * self.inner


@dataclass
class Transformer:
    """A transformer, and each layer's terms by their names."""

    sizes: Sizes
    weights: dict[str, StoredWeight] = field(default_factory=dict)
    layers: list[dict[str, Node]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(0)
        s = self.sizes
        self.input = x = variable("x", Tensor(s.dtype, (s.batch, s.tokens, s.width)))
        angles = np.arange(s.tokens)[:, None] / 100.0 ** (np.arange(s.inner) / s.inner)
        self.cos, self.sin = self.weight("cos", np.cos(angles)), self.weight("sin", np.sin(angles))
        self.mask = self.weight("mask", np.triu(np.full((s.tokens, s.tokens), MASKED), 1))
        for i in range(s.layers):
            x = self._layer(i, x)
        self.model: Model = standalone(Graph((self.input,), (x,)), {"": 20, "com.microsoft": 1}, self.weights)

    def weight(self, name: str, array: Any) -> Node:
        """A new weight."""
        array = np.asarray(array).astype(self.sizes.dtype)
        self.weights[name] = StoredWeight(array)
        return weight(name, Tensor(array.dtype.name, array.shape))

    def number(self, value: float) -> Node:
        return constant(np.asarray(value, self.sizes.dtype))

    def _random(self, name: str, *shape: int) -> Node:
        scale = shape[0] ** -0.5 if len(shape) > 1 else 0.3
        return self.weight(name, self.rng.normal(size=shape) * scale)

    def _layer(self, i: int, x: Node) -> Node:
        s, t = self.sizes, dict[str, Node]()
        self.layers.append(t)
        h = s.width
        for name, *shape in (
            *((f"w{c}", h, h) for c in "qkvo"),
            *((f"b{c}", h) for c in "qkvo"),
            ("w1", h, 4 * h),
            ("b1", 4 * h),
            ("w2", 4 * h, h),
            ("b2", h),
            *((f"{kind}{k}", h) for kind in ("shift", "gain") for k in "12"),
        ):
            t[name] = self._random(f"{name}.{i}", *shape)
        t["x"] = x
        t["norm1"] = term("layer_norm", x, t["gain1"], t["shift1"], axis=-1, epsilon=EPSILON)
        for c in "qkv":
            t[f"{c}.product"] = term("matmul", t["norm1"], t[f"w{c}"])
            t[f"{c}.sum"] = term("add", t[f"{c}.product"], t[f"b{c}"])
            parted = term("reshape", t[f"{c}.sum"], shape=(s.batch, s.tokens, s.heads, s.inner))
            t[f"{c}.heads"] = term("transpose", parted, perm=(0, 2, 1, 3))
        t["q"], t["k"] = self._rotated(t, "q"), self._rotated(t, "k")
        t["turned"] = term("transpose", t["k"], perm=(0, 1, 3, 2))
        t["scores"] = term("mul", term("matmul", t["q"], t["turned"]), self.number(s.inner**-0.5))
        t["masked"] = term("add", t["scores"], self.mask)
        t["shares"] = term("softmax", t["masked"], axis=-1)
        t["mixed"] = term("matmul", t["shares"], t["v.heads"])
        joined = term("transpose", t["mixed"], perm=(0, 2, 1, 3))
        t["joined"] = term("reshape", joined, shape=(s.batch, s.tokens, h))
        t["out"] = term("add", term("matmul", t["joined"], t["wo"]), t["bo"])
        t["after"] = term("add", x, t["out"])
        t["norm2"] = term("layer_norm", t["after"], t["gain2"], t["shift2"], axis=-1, epsilon=EPSILON)
        t["wide"] = term("add", term("matmul", t["norm2"], t["w1"]), t["b1"])
        t["gelu"] = term("gelu", t["wide"])
        t["narrow"] = term("add", term("matmul", t["gelu"], t["w2"]), t["b2"])
        t["y"] = term("add", t["after"], t["narrow"])
        return t["y"]

    def _rotated(self, t: dict[str, Node], c: str) -> Node:
        x, half = t[f"{c}.heads"], self.sizes.inner // 2
        t[f"{c}.first"], t[f"{c}.second"] = sliced(x, 3, 0, half), sliced(x, 3, half, 2 * half)
        t[f"{c}.turned"] = term("concat", term("neg", t[f"{c}.second"]), t[f"{c}.first"], axis=3)
        return term("add", term("mul", x, self.cos), term("mul", t[f"{c}.turned"], self.sin))


def sliced(x: Node, axis: int, start: int, end: int) -> Node:
    return term("slice", x, starts=(start,), ends=(end,), axes=(axis,), steps=(1,))


def in_dtype(dtype: str, op: str, *args: Node, **attrs: Any) -> Node:
    """An operator on operands of another dtype, its result in the dtype of the first."""
    return term("cast", term(op, *[term("cast", a, to=dtype) for a in args], **attrs), to=args[0].dtype)


def but_rows(x: Node, other: Node, axis: int, start: int, end: int) -> Node:
    """`x`, with some rows of another one."""
    size = int(x.shape[axis])
    parts = [(x, 0, start), (other, start, end), (x, end, size)]
    return term("concat", *[sliced(each, axis, a, b) for each, a, b in parts if a < b], axis=axis)


Change = Callable[[Transformer, int, dict[str, Node]], tuple[Node, Node]]


def _array(f: Transformer, node: Node) -> Any:
    return f.weights[node.attr("name")].array


def _new(f: Transformer, node: Node, i: int, change: Callable[[Any], Any]) -> Node:
    return f.weight(f"{node.attr('name')}.wrong{i}.{len(f.weights)}", change(_array(f, node)))


def _norm(f: Transformer, t: dict[str, Node], n: str, **changed: Any) -> tuple[Node, Node]:
    x = t["x"] if n == "1" else t["after"]
    args = {"gain": t[f"gain{n}"], "shift": t[f"shift{n}"], "epsilon": EPSILON, **changed}
    shift = () if args["shift"] is None else (args["shift"],)
    return t[f"norm{n}"], term("layer_norm", x, args["gain"], *shift, axis=-1, epsilon=args["epsilon"])


def _bumped(array: Any, *place: int, by: float = 1.01) -> Any:
    found = np.array(array)
    found[place] *= by
    return found


def _row(array: Any, row: int, value: float) -> Any:
    found = np.array(array)
    found[row, : row // 2 + 1] = value
    return found


def _last_column(array: Any) -> Any:
    found = np.array(array)
    found[..., -1] = 0
    return found


def _rounded(f: Transformer, x: Node) -> Node:
    """Numbers of so many bits behind the point."""
    return term("div", term("round", term("mul", x, f.number(4096))), f.number(4096))


def mutants() -> dict[str, Change]:
    """Wrong rewrites of one layer, each the old term and the wrong one."""
    found: dict[str, Change] = {}

    def add(name: str, change: Change) -> None:
        found[name] = change

    for n in "12":
        for epsilon in (1e-4, 1e-3):
            add(f"epsilon of norm {n} is {epsilon:g}", lambda f, i, t, n=n, e=epsilon: _norm(f, t, n, epsilon=e))
        add(f"no shift of norm {n}", lambda f, i, t, n=n: _norm(f, t, n, shift=None))
        add(
            f"gain and shift of norm {n} exchanged",
            lambda f, i, t, n=n: _norm(f, t, n, gain=t[f"shift{n}"], shift=t[f"gain{n}"]),
        )
        add(
            f"one gain of norm {n} off",
            lambda f, i, t, n=n: _norm(f, t, n, gain=_new(f, t[f"gain{n}"], i, lambda a: _bumped(a, -1))),
        )
    add("gain of another layer", lambda f, i, t: _norm(f, t, "1", gain=f.layers[i - 1]["gain1"]))
    add(
        "norm in half precision",
        lambda f, i, t: (
            t["norm1"],
            in_dtype("float16", "layer_norm", t["x"], t["gain1"], t["shift1"], axis=-1, epsilon=EPSILON),
        ),
    )
    for by in (1.01, 0.99, 1.001):
        add(
            f"scale of scores off by {by}",
            lambda f, i, t, by=by: (t["scores"], term("mul", t["scores"].args[0], f.number(f.sizes.inner**-0.5 * by))),
        )
        add(f"gelu off by {by}", lambda f, i, t, by=by: (t["gelu"], term("mul", t["gelu"], f.number(by))))
    add(
        "masked scores off by 1 %",
        lambda f, i, t: (t["masked"], term("add", term("mul", t["scores"], f.number(1.01)), f.mask)),
    )
    add(
        "mask differs in the last row",
        lambda f, i, t: (
            t["masked"],
            term("add", t["scores"], _new(f, f.mask, i, lambda a: _row(a, len(a) - 1, MASKED))),
        ),
    )
    add(
        "mask differs in a middle row",
        lambda f, i, t: (
            t["masked"],
            term("add", t["scores"], _new(f, f.mask, i, lambda a: _row(a, len(a) // 2, MASKED))),
        ),
    )
    add(
        "mask shows the next token",
        lambda f, i, t: (t["masked"], term("add", t["scores"], _new(f, f.mask, i, lambda a: np.triu(a, 2)))),
    )
    add("no mask", lambda f, i, t: (t["masked"], t["scores"]))
    add("softmax along the queries", lambda f, i, t: (t["shares"], term("softmax", t["masked"], axis=-2)))
    add("exp in the place of softmax", lambda f, i, t: (t["shares"], term("exp", t["masked"])))
    add("shares of 12 bits", lambda f, i, t: (t["shares"], _rounded(f, t["shares"])))
    add(
        "queries and keys exchanged",
        lambda f, i, t: (t["scores"].args[0], term("matmul", t["k"], term("transpose", t["q"], perm=(0, 1, 3, 2)))),
    )
    add("values and keys exchanged", lambda f, i, t: (t["mixed"], term("matmul", t["shares"], t["k.heads"])))
    add(
        "shares transposed",
        lambda f, i, t: (t["mixed"], term("matmul", term("transpose", t["shares"], perm=(0, 1, 3, 2)), t["v.heads"])),
    )
    for c in "qk":
        add(
            f"slice of {c} off by one",
            lambda f, i, t, c=c: (
                t[f"{c}.second"],
                sliced(t[f"{c}.heads"], 3, f.sizes.inner // 2 - 1, f.sizes.inner - 1),
            ),
        )
        add(
            f"halves of {c} exchanged",
            lambda f, i, t, c=c: (
                t[f"{c}.turned"],
                term("concat", t[f"{c}.first"], term("neg", t[f"{c}.second"]), axis=3),
            ),
        )
        add(
            f"no sign in {c}",
            lambda f, i, t, c=c: (t[f"{c}.turned"], term("concat", t[f"{c}.second"], t[f"{c}.first"], axis=3)),
        )
    add(
        "angles of q one token late",
        lambda f, i, t: (
            t["q"],
            term(
                "add",
                term("mul", t["q.heads"], _new(f, f.cos, i, lambda a: np.roll(a, 1, 0))),
                term("mul", t["q.turned"], f.sin),
            ),
        ),
    )
    add(
        "sines and cosines exchanged",
        lambda f, i, t: (t["k"], term("add", term("mul", t["k.heads"], f.sin), term("mul", t["k.turned"], f.cos))),
    )
    for c in "qkv":
        add(f"no bias of {c}", lambda f, i, t, c=c: (t[f"{c}.sum"], t[f"{c}.product"]))
        add(
            f"bias of {c} of another layer",
            lambda f, i, t, c=c: (t[f"{c}.sum"], term("add", t[f"{c}.product"], f.layers[i - 1][f"b{c}"])),
        )
        add(
            f"product of {c} in half precision",
            lambda f, i, t, c=c: (t[f"{c}.product"], in_dtype("float16", "matmul", t["norm1"], t[f"w{c}"])),
        )
    add(
        "heads in another order",
        lambda f, i, t: (t["joined"], term("reshape", t["mixed"], shape=t["joined"].attr("shape"))),
    )
    add(
        "weights transposed",
        lambda f, i, t: (
            t["out"],
            term("add", term("matmul", t["joined"], term("transpose", t["wo"], perm=(1, 0))), t["bo"]),
        ),
    )
    add(
        "last column lost",
        lambda f, i, t: (
            t["narrow"],
            term("add", term("matmul", t["gelu"], _new(f, t["w2"], i, _last_column)), t["b2"]),
        ),
    )
    add(
        "one weight off by 10 %",
        lambda f, i, t: (
            t["wide"],
            term("add", term("matmul", t["norm2"], _new(f, t["w1"], i, lambda a: _bumped(a, -1, -1, by=1.1))), t["b1"]),
        ),
    )
    add(
        "bias rolled",
        lambda f, i, t: (t["wide"], term("add", t["wide"].args[0], _new(f, t["b1"], i, lambda a: np.roll(a, 1)))),
    )
    add("gelu by tanh", lambda f, i, t: (t["gelu"], term("gelu", t["wide"], approximate="tanh")))
    add("swish in the place of gelu", lambda f, i, t: (t["gelu"], term("mul", t["wide"], term("sigmoid", t["wide"]))))
    add("gelu of 12 bits", lambda f, i, t: (t["gelu"], _rounded(f, t["gelu"])))
    add("the residual is lost", lambda f, i, t: (t["after"], t["out"]))
    add("the residual is of the norm", lambda f, i, t: (t["after"], term("add", t["norm1"], t["out"])))
    add("the residual counts twice", lambda f, i, t: (t["y"], term("add", t["y"], t["after"])))
    add(
        "the last token is the one before",
        lambda f, i, t: (
            t["narrow"],
            but_rows(t["narrow"], _shifted(t["narrow"]), 1, f.sizes.tokens - 1, f.sizes.tokens),
        ),
    )
    add(
        "a middle token is off by 1 %",
        lambda f, i, t: (
            t["gelu"],
            but_rows(
                t["gelu"], term("mul", t["gelu"], f.number(1.01)), 1, f.sizes.tokens // 2, f.sizes.tokens // 2 + 1
            ),
        ),
    )
    add(
        "the last of the batch is the first",
        lambda f, i, t: (
            t["out"],
            term(
                "concat",
                *[
                    sliced(t["out"], 0, k % (f.sizes.batch - 1), k % (f.sizes.batch - 1) + 1)
                    for k in range(f.sizes.batch)
                ],
                axis=0,
            ),
        ),
    )
    return found


def _shifted(x: Node) -> Node:
    """Each row is the one before."""
    return term("concat", sliced(x, 1, 0, 1), sliced(x, 1, 0, int(x.shape[1]) - 1), axis=1)


def right_ones() -> dict[str, Change]:
    """Right rewrites, which round otherwise."""
    return {
        "scale in the queries": lambda f, i, t: (
            t["scores"],
            term("matmul", term("mul", t["q"], f.number(f.sizes.inner**-0.5)), t["turned"]),
        ),
        "product of a transposed": lambda f, i, t: (
            t["scores"].args[0],
            term("transpose", term("matmul", t["k"], term("transpose", t["q"], perm=(0, 1, 3, 2))), perm=(0, 1, 3, 2)),
        ),
        "bias before the residual": lambda f, i, t: (
            t["after"],
            term("add", term("add", t["x"], t["bo"]), t["out"].args[0]),
        ),
        "products in halves": lambda f, i, t: (t["narrow"], term("add", _in_halves(f, t["gelu"], t["w2"], i), t["b2"])),
        "softmax of sums": lambda f, i, t: (
            t["shares"],
            term("div", term("exp", t["masked"]), term("reduce_sum", term("exp", t["masked"]), axes=(3,), keepdims=1)),
        ),
        "scale in a weight": lambda f, i, t: (
            t["q.product"],
            term("mul", term("matmul", t["norm1"], _new(f, t["wq"], i, lambda a: a * 3)), f.number(1 / 3)),
        ),
    }


def _in_halves(f: Transformer, x: Node, w: Node, i: int) -> Node:
    n = int(w.shape[0])
    parts = [(sliced(x, 2, a, b), _new(f, w, i, lambda v, a=a, b=b: v[a:b])) for a, b in ((0, n // 2), (n // 2, n))]
    return term("add", *[term("matmul", *each) for each in parts])


@dataclass(frozen=True)
class Planted:
    """A model with one rewrite, and its claim."""

    model: Model
    claims: dict[Node, Node]
    steps: tuple[RewriteStep, ...]


def planted(f: Transformer, change: Change, layer: int) -> Planted:
    """The model with a change at a layer."""
    old, new = change(f, layer, f.layers[layer])
    steps = (RewriteStep(("planted",), (old,), (new,)),)
    outputs = f.model.graph.outputs
    changed = f.model.with_graph(replay(outputs, steps), {**f.model.weights, **f.weights})
    assert changed.graph != f.model.graph
    return Planted(changed, claimed(outputs, steps), steps)
