"""Dims are integers that are not known yet: their arithmetic is integer arithmetic at every
size."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taso_mirage.errors import Undecidable
from taso_mirage.ir.dims import (
    Dim,
    Symbolic,
    bind,
    broadcast_dims,
    broadcast_shapes,
    dim_product,
    evaluate,
    floor_divide,
    parse_dim,
    show_shape,
    symbol,
    symbols,
)


def test_another_process_hashes_a_dim_anew() -> None:
    dim = symbol("a") * 2 + 1
    packed = pickle.dumps(dim)
    assert b"_hash" not in packed  # hashes of text differ from process to process
    assert pickle.loads(packed) == dim


SIZES = st.fixed_dictionaries({name: st.integers(1, 30) for name in "abc"})
quick = settings(max_examples=150, deadline=None, derandomize=True)


def dims() -> st.SearchStrategy[Dim]:
    leaves = st.one_of(st.integers(-6, 12), st.sampled_from("abc").map(symbol))
    return st.recursive(leaves, _combined, max_leaves=6)


def _combined(inner: st.SearchStrategy[Dim]) -> st.SearchStrategy[Dim]:
    sums = st.tuples(inner, inner, st.sampled_from("+-*")).map(_apply)
    quotients = st.tuples(inner, st.one_of(st.integers(1, 5), st.sampled_from("abc").map(symbol))).map(_divide)
    return st.one_of(sums, quotients)


def _apply(parts: tuple[Any, Any, str]) -> Dim:
    a, b, sign = parts
    result: Dim = a + b if sign == "+" else a - b if sign == "-" else a * b
    return result


def _divide(parts: tuple[Any, Any]) -> Dim:
    result: Dim = parts[0] // parts[1]
    return result


@quick
@given(dims(), dims(), SIZES)
def test_arithmetic_is_that_of_integers(a: Any, b: Any, sizes: dict[str, int]) -> None:
    x, y = evaluate(a, sizes), evaluate(b, sizes)
    assert evaluate(a + b, sizes) == x + y
    assert evaluate(a - b, sizes) == x - y
    assert evaluate(a * b, sizes) == x * y
    assert evaluate(-a, sizes) == -x
    assert evaluate(dim_product([a, b, 2]), sizes) == x * y * 2


@quick
@given(dims(), st.one_of(st.integers(-5, 7).filter(bool), st.sampled_from("abc").map(symbol), dims()), SIZES)
def test_floor_division_and_rest_are_those_of_integers(a: Any, b: Any, sizes: dict[str, int]) -> None:
    x, y = evaluate(a, sizes), evaluate(b, sizes)
    if y == 0 or b == 0:
        return
    assert evaluate(floor_divide(a, b), sizes) == x // y
    if isinstance(a, Symbolic):
        assert evaluate(a % b, sizes) == x % y


@quick
@given(dims(), dims(), dims())
def test_the_ring_laws_hold_as_equality(a: Any, b: Any, c: Any) -> None:
    assert a + b == b + a
    assert a * b == b * a
    assert (a + b) + c == a + (b + c)
    assert a * (b + c) == a * b + a * c
    assert a - a == 0
    assert a * 1 == a
    assert a * 0 == 0


@quick
@given(dims(), dims())
def test_equal_dims_have_equal_hashes(a: Any, b: Any) -> None:
    assert hash(a + b) == hash(b + a)
    assert len({a + b, b + a}) == 1


@quick
@given(dims())
def test_what_is_printed_parses_back(a: Any) -> None:
    assert parse_dim(str(a)) == a


@quick
@given(dims(), SIZES)
def test_bind_is_evaluate_one_symbol_at_a_time(a: Any, sizes: dict[str, int]) -> None:
    some = {"a": sizes["a"]}
    assert evaluate(bind(a, some), sizes) == evaluate(a, sizes)
    assert bind(a, sizes) == evaluate(a, sizes)
    assert symbols(bind(a, sizes)) == set()
    assert bind(a, {}) == a
    renamed = bind(a, {"a": symbol("z")})
    assert evaluate(renamed, {**sizes, "z": sizes["a"]}) == evaluate(a, sizes)


@pytest.mark.parametrize(
    "text",
    [
        "batch",
        "batch size",
        "2nd",
        "a.b",
        "a-",
        "Max(a, b)",
        "class",
        "None",
        "a\x00b",
        "(" * 300,
        "a//0",
        "",
        "ä",
        "a b*c",
    ],
)
def test_texts_that_are_no_arithmetic_are_names(text: str) -> None:
    parsed = parse_dim(text)
    assert isinstance(parsed, Symbolic)
    assert symbols(parsed) == {text}


@pytest.mark.parametrize(
    ("text", "value"), [("12", 12), ("-3", -3), ("2*3 + 1", 7), ("7//2", 3), ("floor(7/2)", 3), ("-7//2", -4)]
)
def test_arithmetic_of_numbers(text: str, value: int) -> None:
    assert parse_dim(text) == value


def test_normal_forms() -> None:
    n, m = symbol("n"), symbol("m")
    assert str(2 * n * m + n - 3) == "2*m*n + n - 3"
    assert (n * m) // m == n
    assert (4 * n + 2) // 2 == 2 * n + 1
    assert (n + 3) // 2 == (n + 1) // 2 + 1
    assert (2 * n + 3) // 4 == (n + 1) // 2
    assert ((n - 1) // 2 + 2) // 2 == (n + 3) // 4
    assert n // n == 1
    assert (n + m) - m == n
    assert show_shape([2, n, 3 * n]) == "[2, n, 3*n]"


def test_a_polynomial_that_divides_cancels() -> None:
    """Attention with a cache: heads times past and new positions over the positions."""
    n, m = symbol("n"), symbol("m")
    assert (64 * n * m + 64 * n) // (16 * m + 16) == 4 * n
    assert (n * n - m * m) // (n + m) == n - m
    assert str((n * m + n + 1) // (m + 1)) == "((m*n + n + 1)//(m + 1))"
    assert evaluate((4 * n + 2 * m) // (2 * n + 2 * m), {"n": 3, "m": 1}) == 14 // 8
    for seed in range(200):
        rng = random.Random(seed)
        a, b = (
            sum((rng.randint(-3, 3) * rng.choice((1, n, n * n)) * rng.choice((1, m, m * m)) for _ in range(3)), 1)
            for _ in "ab"
        )
        sizes = {"n": rng.randint(1, 9), "m": rng.randint(1, 9)}
        below = evaluate(b, sizes)
        if below and isinstance(b, Symbolic):
            assert evaluate((a * b) // b, sizes) == evaluate(a, sizes)
            assert evaluate(a // b, sizes) == evaluate(a, sizes) // below


def test_order_and_size_of_a_symbol_are_undecidable() -> None:
    n = symbol("n")
    for question in (lambda: n < 3, lambda: n >= n, lambda: int(n), lambda: range(n)):
        with pytest.raises(Undecidable, match="n"):
            question()


@pytest.mark.parametrize(
    ("a", "b", "result"), [(1, 5, 5), (5, 1, 5), (5, 5, 5), (symbol("n"), 1, symbol("n")), (symbol("n"), 4, 4)]
)
def test_broadcasting(a: Dim, b: Dim, result: Dim) -> None:
    assert broadcast_dims(a, b) == result
    assert broadcast_shapes((2, a), (b,)) == (2, result)


def test_broadcasting_that_fails() -> None:
    with pytest.raises(ValueError, match="dimension -1 does not broadcast: 2 against 3"):
        broadcast_shapes((4, 2), (3,))
    with pytest.raises(Undecidable, match="n against m"):
        broadcast_shapes((symbol("n"),), (symbol("m"),))
