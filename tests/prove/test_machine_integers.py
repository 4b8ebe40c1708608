"""Proofs about integers hold for their machine's integers: a wrapped value is never taken for a
number, and casts keep their range."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from taso_mirage.ir.dims import symbol
from taso_mirage.ir.terms import Node, Tensor, constant, is_float, numpy_dtype, topological, variable
from taso_mirage.meanings.intervals import Interval
from taso_mirage.meanings.reals import REALS
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term
from taso_mirage.prove.bounded import prove_bounded
from taso_mirage.prove.symbolic import Proved, prove_symbolic
from taso_mirage.rewriting.equation import Match, instantiate, match
from taso_mirage.rewriting.text import parse_equation

SIGNED, UNSIGNED = ("int8", "int16", "int32", "int64"), ("uint8", "uint16", "uint32", "uint64")
EVERY = (*SIGNED, *UNSIGNED)
SOME = ("int8", "uint8", "int32", "int64")
WIDE = ("int32", "int64", "uint32", "uint64")
Sides = tuple[tuple[Node, ...], tuple[Node, ...]]


def sides(text: str, dtype: str, fixed: int | None = None) -> Sides:
    """The two sides with vectors for x, y, z, a vector of booleans for c and d, and matrices m, w;
    at every size, or a fixed one."""
    equation = parse_equation(text)
    n = symbol("n") if fixed is None else fixed
    shapes = {"m": (n, n), "w": (n, n)}
    leaves = {
        name: variable(name, Tensor("bool" if name in "cd" else dtype, shapes.get(name, (n,)))) for name in "xyzcdmw"
    }
    left, right = (instantiate(side, leaves, dtype) for side in (equation.lhs, equation.rhs))
    return left, right


@cache
def drawn(dtype: str, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Values of all leaves: all pairs over 8 bits, else edges and random ones."""
    generator = np.random.default_rng(0)
    numeric = [n for n in names if n not in "cd"]
    if dtype == "bool":
        edges = np.array([False, True])
    elif is_float(dtype):
        edges = np.array([0, 0.25, 0.5, 1, 1.5, 2, 2.5, 3, 100.3, 1000, 2049, 65504, 1e-3], np.float64)
        edges = np.concatenate([edges, -edges]).astype(numpy_dtype(dtype))
    else:
        info = np.iinfo(dtype)
        near = [info.min + i for i in range(4)] + [info.max - i for i in range(4)] + [0, 1, 2, 3, 5, 7]
        near += [v for v in (255, 256, 300, 2049, 65535, 2**24 + 1, 2**31, 2**53 + 1) if v <= info.max]
        near += [] if info.min == 0 else [-1, -2, -3]
        edges = np.concatenate(
            [np.array(near, dtype), generator.integers(info.min, info.max, 10, dtype, endpoint=True)]
        )
        if info.bits == 8 and len(numeric) <= 2:
            edges = np.arange(info.min, info.max + 1).astype(dtype)
    columns = [[False, True] if n in "cd" else edges for n in names]
    if all(len(c) <= 256 for c in columns) and np.prod([len(c) for c in columns]) <= 300_000:
        rows = list(product(*columns))
    else:
        rows = [tuple(c[generator.integers(len(c))] for c in columns) for _ in range(20_000)]
    values = zip(*rows, strict=True)
    dtypes = ["bool" if n in "cd" else dtype for n in names]
    return {n: np.array(v, numpy_dtype(d)) for n, v, d in zip(names, values, dtypes, strict=True)}


def differs(text: str, dtype: str) -> bool:
    """Whether numpy shows a difference."""
    names = tuple(sorted({n.attr("name") for side in sides(text, dtype) for n in topological(side) if n.op == "input"}))
    if "m" in names or "reduce" in text or "cumsum" in text or "concat" in text:
        found = False
        generator = np.random.default_rng(1)
        left, right = sides(text, dtype, 3)
        pool = {name: next(iter(drawn("bool" if name in "cd" else dtype, (name,)).values())) for name in names}
        leaves = {n.attr("name"): n for n in topological([*left, *right]) if n.op == "input"}
        for i in range(400):
            few = 3 if i % 2 else None
            env = {n: generator.choice(pool[name][:few], n.shape) for name, n in leaves.items()}
            found |= not equal(left, right, env)
        return found
    values = drawn(dtype, names)
    left, right = sides(text, dtype, len(values[names[0]]))
    leaves = {n.attr("name"): n for n in topological([*left, *right]) if n.op == "input"}
    return not equal(left, right, {n: values[name] for name, n in leaves.items()})


def equal(left: tuple[Node, ...], right: tuple[Node, ...], env: dict[Node, np.ndarray]) -> bool:
    with np.errstate(all="ignore"):
        found = interpret([*left, *right], REALS, env)
    return all(np.array_equal(found[a], found[b]) for a, b in zip(left, right, strict=True))


def proved(text: str, dtype: str) -> bool:
    return isinstance(prove_symbolic(*sides(text, dtype)), Proved)


FALSE = [
    ("max(x, sub(x, 1)) == x", EVERY),
    ("max(x, add(x, 1)) == add(x, 1)", EVERY),
    ("min(x, add(x, 1)) == x", EVERY),
    ("max(add(x, 1), add(y, 1)) == add(max(x, y), 1)", EVERY),
    ("min(sub(x, z), sub(y, z)) == sub(min(x, y), z)", SOME),
    ("max(mul(x, 2), mul(y, 2)) == mul(max(x, y), 2)", SOME),
    ("max(neg(x), neg(y)) == neg(min(x, y))", EVERY),
    ("relu(neg(x)) == sub(relu(x), x)", UNSIGNED),
    ("less(x, add(x, 1)) == equal(x, x)", EVERY),
    ("less_or_equal(sub(x, 1), x) == equal(x, x)", EVERY),
    ("less(sub(x, y), 0) == less(x, y)", EVERY),
    ("greater(add(x, z), add(y, z)) == greater(x, y)", SOME),
    ("less(neg(x), neg(y)) == less(y, x)", EVERY),
    ("less(mul(x, 2), mul(y, 2)) == less(x, y)", SOME),
    ("equal(mul(x, 2), mul(y, 2)) == equal(x, y)", SOME),
    ("equal(mul(x, y), 0) == logical_or(equal(x, 0), equal(y, 0))", ("int8", "uint8")),
    ("greater_or_equal(abs(x), 0) == equal(x, x)", SIGNED),
    ("greater_or_equal(mul(x, x), 0) == equal(x, x)", SIGNED),
    ("less_or_equal(x, mul(x, x)) == equal(x, x)", ("int8", "uint8", "int32")),
    ("relu(mul(x, x)) == mul(x, x)", SIGNED),
    ("relu(abs(x)) == abs(x)", SIGNED),
    ("max(x, neg(x)) == abs(x)", UNSIGNED),
    ("abs(mul(x, y)) == mul(abs(x), abs(y))", ("int8", "int32")),
    ("abs(sub(x, y)) == sub(max(x, y), min(x, y))", ("uint8", "uint32")),
    ("abs(sub(x, y)) == abs(sub(y, x))", UNSIGNED),
    ("sign(sub(x, y)) == sub(cast(greater(x, y), to='int8'), cast(less(x, y), to='int8'))", ("int8",)),
    ("sign(neg(x)) == neg(sign(x))", UNSIGNED),
    ("sign(mul(x, y)) == mul(sign(x), sign(y))", ("int8", "uint8")),
    ("div(mul(x, 2), 2) == x", EVERY),
    ("div(add(x, x), 2) == x", SOME),
    ("mul(div(x, 2), 2) == x", EVERY),
    ("div(add(x, 2), 2) == add(div(x, 2), 1)", SOME),
    ("div(add(x, y), 2) == add(div(x, 2), div(y, 2))", SOME),
    ("mod(add(x, 3), 3) == mod(x, 3)", EVERY),
    ("mod(mul(x, 3), 3) == sub(x, x)", SOME),
    ("mod(x, 4) == mod(x, 4, fmod=1)", SIGNED),
    ("reduce_mean(mul(x, 2), axes=(0,)) == mul(reduce_mean(x, axes=(0,)), 2)", SOME),
    ("reduce_max(add(x, 1), axes=(0,)) == add(reduce_max(x, axes=(0,)), 1)", EVERY),
    ("reduce_max(neg(x), axes=(0,)) == neg(reduce_min(x, axes=(0,)))", EVERY),
    ("relu(reduce_sum(relu(x), axes=(0,))) == reduce_sum(relu(x), axes=(0,))", SIGNED),
    ("cast(cast(x, to='int8'), to='int64') == x", ("int64",)),
    ("cast(cast(x, to='int8'), to='int32') == x", ("int32",)),
    ("cast(cast(x, to='uint8'), to='int64') == cast(x, to='int64')", ("int8", "int16", "int32")),
    (
        "cast(add(x, y), to='int64') == add(cast(x, to='int64'), cast(y, to='int64'))",
        ("int8", "uint8", "int16", "int32", "uint32"),
    ),
    ("cast(mul(x, y), to='int64') == mul(cast(x, to='int64'), cast(y, to='int64'))", ("int8", "uint8", "int16")),
    ("cast(neg(x), to='int64') == neg(cast(x, to='int64'))", ("int8", "uint8", "int32", "uint32")),
    ("cast(add(x, y), to='float32') == add(cast(x, to='float32'), cast(y, to='float32'))", ("int8", "uint8", "int16")),
    ("cast(abs(x), to='int32') == abs(cast(x, to='int32'))", ("int8", "int16")),
    ("cast(max(x, y), to='int8') == max(cast(x, to='int8'), cast(y, to='int8'))", ("uint8", "int16", "int64")),
    (
        "cast(less(cast(x, to='int8'), 0), to='int32') == cast(less(x, 0), to='int32')",
        ("int16", "int32", "int64", "uint8"),
    ),
    ("cast(cast(x, to='int8'), to='bool') == cast(x, to='bool')", ("int16", "int32", "int64", "uint16")),
    ("cast(add(x, y), to='bool') == logical_or(cast(x, to='bool'), cast(y, to='bool'))", ("int8", "uint8")),
    ("cast(cast(x, to='float16'), to='int32') == x", ("int32",)),
    ("cast(cast(x, to='float32'), to='int32') == x", ("int32",)),
    ("cast(cast(x, to='float32'), to='int64') == x", ("int64",)),
    ("cast(cast(x, to='float64'), to='int64') == x", ("int64",)),
    ("cast(cast(x, to='bfloat16'), to='int16') == x", ("int16",)),
    ("cast(cast(x, to='float16'), to='int16') == x", ("int16",)),
    ("cast(cast(x, to='float16'), to='float32') == cast(x, to='float32')", ("int16", "int32", "float32")),
    ("cast(cast(x, to='bfloat16'), to='float16') == x", ("float16",)),
    ("cast(cast(x, to='float32'), to='float64') == cast(x, to='float64')", ("int32", "int64", "uint32")),
    ("cast(cast(x, to='int32'), to='float32') == x", ("float32",)),
    ("cast(cast(x, to='int32'), to='float32') == cast(cast(x, to='int8'), to='float32')", ("float32",)),
    ("cast(cast(x, to='bool'), to='int32') == x", ("int32",)),
    ("cast(c, to='int8') == cast(logical_not(c), to='int8')", ("int8",)),
    ("max(x, y) == div(add(add(x, y), abs(sub(x, y))), 2)", SOME),
    ("pow(x, 2) == abs(mul(x, x))", ("int16",)),
    ("greater_or_equal(pow(x, 2), 0) == equal(x, x)", SIGNED),
    ("bitwise_not(x) == neg(x)", SIGNED),
    ("bitwise_and(x, y) == min(x, y)", SOME),
    ("clip(add(x, y), 0, 100) == clip(add(clip(x, 0, 100), y), 0, 100)", SOME),
    ("where(c, max(x, y), sub(x, 1)) == max(x, where(c, y, sub(x, 1)))", SOME),
    ("reduce_max(cumsum(relu(x), axis=0), axes=(0,)) == reduce_sum(relu(x), axes=(0,))", SIGNED),
    (
        "cast(reduce_sum(x, axes=(0,)), to='int64') == reduce_sum(cast(x, to='int64'), axes=(0,))",
        ("int8", "uint8", "int32"),
    ),
    ("cast(matmul(m, w), to='int64') == matmul(cast(m, to='int64'), cast(w, to='int64'))", ("int8", "uint8")),
    ("relu(matmul(relu(m), relu(w))) == matmul(relu(m), relu(w))", ("int8", "int16")),
    ("reduce_max(max(x, 1), axes=(0,)) == reduce_max(x, axes=(0,))", SOME),
    ("reduce_prod(abs(x), axes=(0,)) == abs(reduce_prod(x, axes=(0,)))", ("int8",)),
]
TRUE = [
    ("add(sub(x, y), y) == x", EVERY),
    ("sub(x, y) == add(x, neg(y))", EVERY),
    ("mul(x, add(y, z)) == add(mul(x, y), mul(x, z))", EVERY),
    ("mul(neg(x), neg(y)) == mul(x, y)", EVERY),
    ("mul(add(x, y), sub(x, y)) == sub(mul(x, x), mul(y, y))", EVERY),
    ("max(x, y) == max(y, x)", EVERY),
    ("max(max(x, y), z) == max(x, max(y, z))", EVERY),
    ("max(x, min(x, y)) == x", EVERY),
    ("min(x, max(x, y)) == x", EVERY),
    ("add(max(x, y), min(x, y)) == add(x, y)", EVERY),
    ("relu(relu(x)) == relu(x)", EVERY),
    ("relu(x) == x", UNSIGNED),
    ("abs(x) == x", UNSIGNED),
    ("max(x, 0) == relu(x)", EVERY),
    ("abs(neg(x)) == abs(x)", SIGNED),
    ("abs(abs(x)) == abs(x)", EVERY),
    ("abs(sub(x, y)) == abs(sub(y, x))", SIGNED),
    ("neg(max(neg(x), neg(y))) == neg(max(neg(y), neg(x)))", EVERY),
    ("max(add(x, y), z) == max(z, add(y, x))", EVERY),
    ("max(sub(add(x, y), y), z) == max(x, z)", EVERY),
    ("equal(add(x, z), add(y, z)) == equal(x, y)", EVERY),
    ("equal(neg(x), neg(y)) == equal(y, x)", EVERY),
    ("equal(sub(x, y), 0) == equal(x, y)", EVERY),
    ("logical_not(less(x, y)) == greater_or_equal(x, y)", EVERY),
    ("greater_or_equal(x, 0) == equal(x, x)", UNSIGNED),
    ("logical_and(less(x, y), less(y, x)) == less(x, x)", EVERY),
    ("less(add(x, 1), add(1, y)) == greater(add(y, 1), add(x, 1))", EVERY),
    ("add(x, 255) == sub(x, 1)", ("uint8",)),
    ("mul(x, 128) == neg(mul(x, 128))", ("uint8",)),
    ("max(mul(mul(x, 16), 16), y) == max(y, sub(y, y))", ("int8", "uint8")),
    ("where(c, x, x) == x", EVERY),
    ("where(logical_not(c), x, y) == where(c, y, x)", EVERY),
    ("relu(where(c, x, y)) == where(c, relu(x), relu(y))", EVERY),
    ("add(where(c, x, y), z) == where(c, add(x, z), add(y, z))", EVERY),
    ("max(where(c, x, y), where(c, y, x)) == max(x, y)", SOME),
    ("cast(cast(x, to='int64'), to='int8') == x", ("int8",)),
    ("cast(cast(x, to='int64'), to='uint8') == x", ("uint8",)),
    ("cast(cast(x, to='uint8'), to='int8') == x", ("int8",)),
    ("cast(cast(x, to='int32'), to='int8') == cast(x, to='int8')", ("int64", "uint64")),
    ("cast(add(x, y), to='int8') == add(cast(x, to='int8'), cast(y, to='int8'))", (*SIGNED, *UNSIGNED)),
    ("cast(mul(x, y), to='uint8') == mul(cast(x, to='uint8'), cast(y, to='uint8'))", EVERY),
    (
        "cast(max(x, y), to='int64') == max(cast(x, to='int64'), cast(y, to='int64'))",
        ("int8", "uint8", "int16", "int32"),
    ),
    ("cast(less(cast(x, to='int32'), 0), to='int8') == cast(less(x, 0), to='int8')", ("int8", "uint8", "int16")),
    ("cast(cast(x, to='float32'), to='int8') == x", ("int8",)),
    ("cast(cast(x, to='float16'), to='uint8') == x", ("uint8",)),
    ("cast(cast(x, to='float64'), to='int32') == x", ("int32",)),
    (
        "cast(cast(x, to='float32'), to='float64') == cast(x, to='float64')",
        ("int8", "uint8", "int16", "float16", "bfloat16"),
    ),
    ("cast(cast(x, to='float64'), to='float16') == x", ("float16",)),
    ("cast(cast(cast(x, to='float16'), to='float32'), to='float16') == cast(x, to='float16')", ("float32",)),
    ("cast(max(x, y), to='float32') == max(cast(x, to='float32'), cast(y, to='float32'))", ("int8", "uint8", "int16")),
    ("cast(cast(c, to='int8'), to='float16') == cast(c, to='float16')", ("int8",)),
    ("cast(cast(c, to='float32'), to='bool') == c", ("int8",)),
    ("cast(cast(x, to='int32'), to='bool') == cast(x, to='bool')", ("int8", "uint16", "int32")),
    ("logical_or(c, d) == logical_not(logical_and(logical_not(c), logical_not(d)))", ("int8",)),
    ("pow(x, 3) == mul(mul(x, x), x)", SOME),
    ("div(x, 1) == x", EVERY),
    ("mod(x, 1) == sub(x, x)", EVERY),
    ("mod(mod(x, 7), 7) == mod(x, 7)", EVERY),
    ("div(mod(x, 7), 7) == sub(x, x)", EVERY),
    ("add(mul(div(x, 3), 3), mod(x, 3)) == x", UNSIGNED),
    ("reduce_sum(neg(x), axes=(0,)) == neg(reduce_sum(x, axes=(0,)))", EVERY),
    ("reduce_sum(concat(x, y, axis=0), axes=(0,)) == add(reduce_sum(x, axes=(0,)), reduce_sum(y, axes=(0,)))", EVERY),
    ("reduce_max(max(x, y), axes=(0,)) == max(reduce_max(x, axes=(0,)), reduce_max(y, axes=(0,)))", EVERY),
    ("reduce_max(relu(x), axes=(0,)) == relu(reduce_max(x, axes=(0,)))", EVERY),
    ("reduce_max(add(x, y), axes=(0,)) == reduce_max(add(y, x), axes=(0,))", EVERY),
    ("reduce_sum(cast(x, to='int8'), axes=(0,)) == cast(reduce_sum(x, axes=(0,)), to='int8')", EVERY),
    ("matmul(m, transpose(m, perm=(1, 0))) == transpose(matmul(m, transpose(m, perm=(1, 0))), perm=(1, 0))", SOME),
    ("matmul(add(m, w), w) == add(matmul(m, w), matmul(w, w))", SOME),
    ("cast(matmul(m, w), to='uint8') == matmul(cast(m, to='uint8'), cast(w, to='uint8'))", SOME),
    ("mul(sign(x), sign(x)) == cast(cast(x, to='bool'), to='int8')", ("int8",)),
    ("bitwise_and(add(x, y), z) == bitwise_and(add(y, x), z)", SOME),
]


def each(rows: list[tuple[str, tuple[str, ...]]]) -> list[Any]:
    """By default with the first and the last dtype of each."""
    return [
        pytest.param(text, dtype, marks=[pytest.mark.slow] * (0 < i < len(dtypes) - 1))
        for text, dtypes in rows
        for i, dtype in enumerate(dtypes)
    ]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("text", "dtype"), each(FALSE))
def test_what_wraps_is_not_proved(text: str, dtype: str) -> None:
    assert differs(text, dtype), "this is true"
    assert not proved(text, dtype)
    assert not isinstance(prove_bounded(*sides(text, dtype, 3), budget=20_000), Proved)


@pytest.mark.parametrize(("text", "dtype"), each(TRUE))
def test_what_is_true_of_classes_is_proved(text: str, dtype: str) -> None:
    assert not differs(text, dtype), "this is false"
    assert proved(text, dtype)


def clamped(low: float, high: float, function: str) -> str:
    return f"cast(min(max({function}(x), {low}), {high}), to='int8')"


@pytest.mark.parametrize("function", ["round", "floor", "ceil"])
@pytest.mark.parametrize(
    ("low", "high", "right"), [(-131, 124, False), (-128, 127, True), (-3, 124, True), (-3, 200, False)]
)
def test_what_is_rounded_has_the_bounds_of_what_goes_in(low: int, high: int, right: bool, function: str) -> None:
    """A bound that is known from one side only is one behind a factor as well; minima are maxima of
    negatives."""
    text = f"cast({clamped(low, high, function)}, to='float32') == min(max({function}(x), {low}), {high})"
    assert proved(text, "float32") == right
    outside = f"cast(cast({function}(min(max(x, {low}.25), {high}.25)), to='int8'), to='float32')"
    if right and high < 127:
        assert proved(f"{outside} == {function}(min(max(x, {low}.25), {high}.25))", "float32")


def test_bounds_times_a_number_keep_the_side_that_is_known() -> None:
    below = Interval(-128, None)
    assert Interval(1, 1) * below == below == below * Interval(1, 1)
    assert Interval(-2, -2) * below == Interval(None, 256)
    assert Interval(0, 0) * below == Interval()
    assert Interval(0, 1) * below == Interval()


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_a_condition_tells_numbers_apart_that_are_one_double(dtype: str) -> None:
    """Beyond 2^53 a double is several integers."""
    law = parse_equation("clip(max(x, c), d, e) == expand(e, shape=shape(x)) where value(c) >= value(e)")
    x, zero = variable("x", Tensor(dtype, (3,))), constant(np.array(0, dtype))
    for least, most in product(range(1 << 53, (1 << 53) + 5), repeat=2):
        least_one, most_one = (constant(np.array(n, dtype)) for n in (least, most))
        found = match(law, term("clip", term("max", x, least_one), zero, most_one))
        assert isinstance(found, Match) == (least >= most)
