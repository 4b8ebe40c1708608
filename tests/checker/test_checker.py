"""The independent checker: true equations, false ones, the library's, and steps that somebody
tampered with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from random import Random

import numpy as np
import pytest
from program_texts import text

from taso_mirage.checker import Accepted, Refused, check, check_step
from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.dims import evaluate, symbols
from taso_mirage.ir.terms import LEAVES, Graph, Tensor, numpy_dtype, topological
from taso_mirage.meanings.reals import EXACT
from taso_mirage.operators.interpret import interpret
from taso_mirage.rewriting import library
from taso_mirage.rewriting.text import parse_graph, show_graph

MN = {"x": "float32['m', 'n']", "y": "float32['m', 'n']"}
ATTRS = "strides=(1, 1), dilations=(1, 1), group=1"
COLUMNS = "; ".join(
    f"{v} = unsqueeze(gather(x, constant(value=array('int64', (), [{i}])), axis=1), axes=(1,))"
    for i, v in enumerate("ab")
)
IMAGE = {"x": "float32['n', 'c', 'h', 'w']", "w": "float32['a', 'c', 3, 3]", "z": "float32['n', 'c', 'h', 'w']"}
TRUE: list[tuple[dict[str, str], str, str]] = [
    (MN, f"{COLUMNS}; concat(a, b, axis=1)", "slice(x, starts=(0,), ends=(2,), axes=(1,), steps=(1,))"),
    (MN, "add(x, y)", "add(y, x)"),
    (MN, "neg(sub(x, y))", "sub(y, x)"),
    (MN, "neg(min(x, y))", "a = neg(x); b = neg(y); max(a, b)"),
    (MN, "a = min(x, y); max(x, a)", "x"),
    (MN, "transpose(x, perm=(1, 0))", "transpose(x, perm=(1, 0))"),
    (MN, "relu(relu(x))", "relu(x)"),
    (MN, "a = concat(x, y, axis=0); relu(a)", "a = relu(x); b = relu(y); concat(a, b, axis=0)"),
    (MN, "a = concat(x, y, axis=1); slice(a, starts=(0,), ends=('n',), axes=(1,), steps=(1,))", "x"),
    (
        MN,
        "a = concat(x, y, axis=0); reduce_sum(a, axes=(0,), keepdims=1)",
        "a = add(reduce_sum(x, axes=(0,), keepdims=1), reduce_sum(y, axes=(0,), keepdims=1)); a",
    ),
    (
        MN,
        "a = softmax(x, axis=1); reduce_sum(a, axes=(1,), keepdims=1)",
        "a = softmax(y, axis=-1); reduce_sum(a, axes=(1,), keepdims=1)",
    ),
    ({"x": "int8['m']", "y": "int8['m']"}, "neg(sub(x, y))", "sub(y, x)"),
    (
        {"x": "float32['m', 'k']", "y": "float32['k', 'n']", "z": "float32['k', 'n']"},
        "a = add(y, z); matmul(x, a)",
        "add(matmul(x, y), matmul(x, z))",
    ),
    (
        {"x": "float32['m', 'k']", "y": "float32['k', 'n']"},
        "a = matmul(x, y); transpose(a, perm=(1, 0))",
        "matmul(transpose(y, perm=(1, 0)), transpose(x, perm=(1, 0)))",
    ),
    ({"x": "float32['m', 'n']", "y": "float32[()]"}, "mul(x, y)", "mul(y, x)"),
    (
        IMAGE,
        f"conv(add(x, z), w, pads=(1, 1, 1, 1), {ATTRS})",
        f"add(conv(x, w, pads=(1, 1, 1, 1), {ATTRS}), conv(z, w, pads=(1, 1, 1, 1), {ATTRS}))",
    ),
    ({"x": "float32['m', dim('2*n')]"}, "reshape(reshape(x, shape=('m', 2, 'n')), shape=('m', dim('2*n')))", "x"),
]
FALSE: list[tuple[dict[str, str], str, str]] = [
    (MN, f"{COLUMNS}; concat(b, a, axis=1)", "slice(x, starts=(0,), ends=(2,), axes=(1,), steps=(1,))"),
    (MN, f"{COLUMNS}; concat(a, b, axis=1)", "slice(x, starts=(1,), ends=(3,), axes=(1,), steps=(1,))"),
    (MN, "sub(x, y)", "sub(y, x)"),
    (MN, "x", "y"),
    (MN, "max(x, y)", "min(x, y)"),
    (MN, "transpose(x, perm=(1, 0))", "x"),
    (MN, "concat(x, y, axis=0)", "concat(y, x, axis=0)"),
    (MN, "concat(x, y, axis=0)", "concat(x, y, axis=1)"),
    (MN, "leaky_relu(x, alpha=0.1)", "leaky_relu(x, alpha=0.2)"),
    (MN, "softmax(x, axis=0)", "softmax(x, axis=1)"),
    (MN, "reduce_sum(x, axes=(0,), keepdims=1)", "reduce_sum(x, axes=(0,), keepdims=0)"),
    (MN, "a = concat(x, y, axis=1); slice(a, starts=(1,), ends=(dim('n + 1'),), axes=(1,), steps=(1,))", "x"),
    (MN, "reduce_max(x, axes=(0,), keepdims=1)", "reduce_sum(x, axes=(0,), keepdims=1)"),
    (
        MN,
        "slice(x, starts=(-1,), ends=('n',), axes=(1,), steps=(1,))",
        "slice(x, starts=(-1,), ends=('n',), axes=(1,), steps=(1,))",
    ),
    ({"x": "float32['m', 'm']"}, "transpose(x, perm=(1, 0))", "x"),
    ({"x": "float32['m', 'm']", "y": "float32['m', 'm']"}, "matmul(x, y)", "matmul(y, x)"),
    ({"x": "float32['m', 'm']", "y": "float32['m']"}, "a = reshape(y, shape=('m', 1)); mul(x, a)", "mul(x, y)"),
    ({"x": "int8['m']", "y": "int8['m']"}, "neg(max(x, y))", "min(neg(x), neg(y))"),  # -128
    ({"x": "int8['m']"}, "abs(neg(x))", "x"),
    ({"x": "int32['m']", "y": "int32['m']"}, "max(x, y)", "a = neg(min(neg(x), neg(y))); a"),
    ({"x": "int32['m']", "y": "int32['m']"}, "div(mul(x, y), y)", "x"),
    (IMAGE, f"conv(x, w, pads=(1, 1, 1, 1), {ATTRS})", f"conv(x, w, pads=(2, 0, 1, 1), {ATTRS})"),
    (
        {"x": "float32['m', dim('2*n')]"},
        "reshape(x, shape=('m', 2, 'n'))",
        "transpose(reshape(x, shape=('m', 'n', 2)), perm=(0, 2, 1))",
    ),
    (
        {"x": "float32['m', 'n']"},
        "pad(x, pads=(1, 0, 0, 0), value=0.0, mode='constant')",
        "pad(x, pads=(0, 0, 1, 0), value=0.0, mode='constant')",
    ),
]


@pytest.mark.parametrize(("leaves", "left", "right"), TRUE)
def test_true_equations(leaves: dict[str, str], left: str, right: str) -> None:
    found = check(text(left, **leaves), text(right, **leaves))
    assert found == Accepted()


@pytest.mark.parametrize(("leaves", "left", "right"), FALSE)
def test_false_equations(leaves: dict[str, str], left: str, right: str) -> None:
    assert isinstance(check(text(left, **leaves), text(right, **leaves)), Refused)


X = text("x", x="float32['m']")


@pytest.mark.parametrize(
    "other",
    [
        "",
        "x",
        "def f(:",
        "import os",
        text("y", x="float32['m']"),
        text("relu(x, alpha=1.0)", x="float32['m']"),
        text("unknown(x)", x="float32['m']"),
        text("x", x="float16['m']"),
        text("x", x="float32['n']"),
        text("x, x", x="float32['m']"),
        text("a = input('x', float32['n']); x", x="float32['m']"),
        text("a = weight('x', float32['m']); x", x="float32['m']"),
        text("__import__('os').system('true')", x="float32['m']"),
        "def f():\n" + "    v = v\n" * 5,
        text("x", x="float32[dim('9**9**9**9')]"),
        text("x", x=f"float32[dim('{'(' * 300}m{')' * 300}')]"),
        "def f():\n    return " + "neg(" * 5000 + ")" * 5000,
        "def f(\n" + "x" * 200_000,
    ],
)
def test_hostile_texts_are_refused(other: str) -> None:
    assert isinstance(check(X, other), Refused)
    assert isinstance(check(other, other), Refused) or other.count("input") < 2


def test_work_is_bounded() -> None:
    lines = "; ".join(f"v{i} = mul(v{i - 1}, add(v{i - 1}, x))" for i in range(1, 40))
    big = text(f"v0 = x; {lines}; v39", x="float32['m']")
    assert isinstance(check(big, text("x", x="float32['m']")), Refused)
    deep = "; ".join(f"v{i} = exp(v{i - 1})" for i in range(1, 3000))
    assert isinstance(check(text(f"v0 = x; {deep}; v2999", x="float32['m']"), X), Refused)


def test_steps() -> None:
    assert check_step({"lhs": X, "rhs": X, "proof": "symbolic"}) == Accepted()
    assert isinstance(check_step({"lhs": X, "rhs": X, "proof": "none"}), Refused)


# ---------------------------------------------------------------- the library, and tampered steps


@cache
def steps() -> list[tuple[str, str]]:
    found = []
    for rule in library.load_rules():
        with suppress(TasoMirageError):  # a typing that is no longer legal is for other tests to tell
            lhs, rhs = rule.instance()
            found.append((show_graph(Graph((), lhs), "lhs"), show_graph(Graph((), rhs), "rhs")))
    return found


PARTS = 8


@pytest.mark.sampled(3)
@pytest.mark.parametrize("part", [pytest.param(part, marks=[pytest.mark.slow] * (part > 0)) for part in range(PARTS)])
def test_share_of_the_library(part: int) -> None:
    """The library's rules at their own typings."""
    some = steps()[part::PARTS]
    refused = [pair for pair in some if check(*pair) != Accepted()]
    assert refused == []


SIMILAR = {
    "add": "sub",
    "sub": "add",
    "mul": "add",
    "max": "min",
    "min": "max",
    "relu": "abs",
    "abs": "neg",
    "neg": "exp",
}
SIMILAR |= {
    "instance_norm": "group_norm",
    "quantize": "dequantize",
    "less": "less_or_equal",
    "floor": "round",
    "reduce_sum": "reduce_mean",
    "reduce_mean": "reduce_max",
    "max_pool": "average_pool",
    "exp": "sqrt",
    "div": "mul",
}


def tampered(side: str, rng: Random) -> str:
    """The text with one thing changed."""
    match rng.randrange(8):
        case 0:  # a number
            spots = list(re.finditer(r"(?<![\w.'])\d+(?![\w.'])", side))
            change = lambda m: str(max(int(m[0]) + rng.choice((-1, 1)), 0))  # noqa: E731
        case 1:  # operands
            spots = list(re.finditer(r"\b([vx]\d+), ([vx]\d+)\b", side))
            change = lambda m: f"{m[2]}, {m[1]}"  # noqa: E731
        case 2:  # a letter
            spots = list(re.finditer(r"'([a-z])'(?=[,)\]])(?!, (float|int))", side))
            change = lambda m: repr(rng.choice("mnkabcd"))  # noqa: E731
        case 3:  # a dtype, or a constant
            spots = list(re.finditer(r"\bfloat32\b|\d+\.\d+", side))
            change = lambda m: "int32" if m[0] == "float32" else "1.75"  # noqa: E731
        case 4:  # an operator for another
            spots = [m for m in re.finditer(r"(?<== )\w+(?=\()", side) if m[0] in SIMILAR]
            change = lambda m: SIMILAR[m[0]]  # noqa: E731
        case 5:  # an operand that may be left out, and another operand
            spots = list(re.finditer(r"(?<=\w), v\d+(?=, \w+=|\))", side))
            change = lambda m: rng.choice(("", f", v{rng.randrange(6)}"))  # noqa: E731
        case 6:  # an attribute
            spots = list(re.finditer(r"(?<==)(-?\d+\.\d+|[01]|True|False)(?=[,)])", side))
            change = lambda m: "0.625" if "." in m[0] else str(1 - int(m[0])) if m[0] in "01" else m[0]  # noqa: E731
        case _:  # an operator away
            spots = list(re.finditer(r"= \w+\((v\d+)[^\n]*", side))
            change = lambda m: f"= add({m[1]}, {m[1]})" if rng.random() < 0.2 else f"= neg(neg({m[1]}))"  # noqa: E731
    if not spots:
        return side
    spot = rng.choice(spots)
    return side[: spot.start()] + change(spot) + side[spot.end() :]


def forgeries(count: int, seed: int) -> Iterator[tuple[str, str]]:
    rng, every, accepted = Random(seed), steps(), dict[int, bool]()
    while count:
        i = rng.randrange(len(every))
        if i not in accepted:
            accepted[i] = check(*every[i]) == Accepted()
        if accepted[i]:
            left, right = every[i]
            pair = (tampered(left, rng), right) if rng.random() < 0.5 else (left, tampered(right, rng))
            if pair != every[i]:
                count -= 1
                yield pair


def agree(left: str, right: str, rng: Random) -> bool | None:
    """Whether both sides give the same numbers at some sizes; None where the texts have no such
    sizes."""
    graphs = [parse_graph(side) for side in (left, right)]
    leaves = {
        n.attr("name"): n
        for g in graphs
        for n in topological(g.outputs)
        if n.op in LEAVES and isinstance(n.type, Tensor)
    }
    letters = sorted({s for n in leaves.values() for d in n.shape for s in symbols(d)})
    sizes = dict(zip(letters, rng.sample(range(3, 4 + len(letters)), len(letters)), strict=True))
    draws = np.random.default_rng(rng.randrange(2**32))
    values = {}
    for name, n in leaves.items():
        shape = [evaluate(d, sizes) for d in n.shape]
        drawn = draws.uniform(0.5, 2.0, shape) * draws.choice([1, 1, 1, -1], shape) * 3
        drawn = np.abs(drawn) % 3 if n.dtype == "int64" else drawn  # positions that are there
        values[name] = EXACT.load(np.asarray(drawn.astype(numpy_dtype(n.dtype))))
    results = []
    for graph in graphs:
        env = {n: values[n.attr("name")] for n in topological(graph.outputs) if n.op in LEAVES}
        found = interpret(graph.outputs, EXACT, env, sizes=dict(sizes))
        results.append([np.asarray(found[o]) for o in graph.outputs])
    return all(
        a.shape == b.shape and (np.allclose(a, b, rtol=1e-6, atol=1e-7, equal_nan=True) or not np.isfinite(a - b).all())
        for a, b in zip(*results, strict=True)
    )


@pytest.mark.parametrize(
    ("count", "seed"),
    [pytest.param(30, 0, marks=pytest.mark.sampled(2)), pytest.param(2000, 1, marks=pytest.mark.slow)],
)
def test_tampered_steps(count: int, seed: int) -> None:
    """Some are true equations; no others are accepted."""
    still = [(left, right) for left, right in forgeries(count, seed) if check(left, right) == Accepted()]
    assert still
    for left, right in still:
        try:
            same = agree(left, right, Random(seed))
        except (TasoMirageError, ValueError, TypeError, IndexError) as error:
            raise AssertionError(f"accepted, but {error}\n{left}\n{right}") from error
        assert same, f"{left}\n{right}"
