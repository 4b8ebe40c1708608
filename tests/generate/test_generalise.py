"""Concrete equations become general rules: the printed forms, typings and guards."""

from __future__ import annotations

import pytest

from taso_mirage.generate.generalise import generalise
from taso_mirage.ir.terms import Tensor, variable
from taso_mirage.operators.ops import term
from taso_mirage.rewriting.equation import match
from taso_mirage.rewriting.library import Rule, parse_given, show_attributes, show_given
from taso_mirage.rewriting.text import parse_equation, show_equation
from taso_mirage.verdicts import Failure

CONV = "strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=1"
WIDE = "strides=(1, 1), pads=(0, 1, 0, 1), dilations=(1, 1), group=1"

CASES = [
    (
        f"concat(conv(x, v, {CONV}), conv(x, w, {CONV}), axis=1) == conv(x, concat(v, w, axis=0), {CONV})",
        "x: (n, c, h, w), v: (c, c, 3, 3), w: (c, c, 3, 3)",
        "concat(conv(x, v, group=1, **a), conv(x, w, group=1, **a), axis=1) == "
        "conv(x, concat(v, w, axis=0), group=1, **a)",
        "a: {dilations: (1, 1), pads: (1, 1, 1, 1), strides: (1, 1)}",
        "x: (n, c, h, w), v: (a, c, 3, 3), w: (b, c, 3, 3)",
    ),
    (
        f"conv(x, v, {WIDE}) == conv(x, pad(v, pads=(0, 0, 1, 0, 0, 0, 1, 0)), {CONV})",
        "x: (n, c, h, w), v: (o, c, 1, 3)",
        "conv(x, v, pads=p, dilations=(1, 1), **a) == conv(x, pad(v, pads=(0, 0, 1, 0, 0, 0, 1, 0), value=0.0, "
        "mode='constant'), pads=plus(p, (1, 0, 1, 0)), dilations=(1, 1), **a)",
        "a: {group: 1, strides: (1, 1)}, p: (0, 1, 0, 1)",
        "x: (n, c, h, w), v: (o, c, 1, 3)",
    ),
    (
        "transpose(transpose(x, perm=(1, 0)), perm=(1, 0)) == x",
        "x: (m, k)",
        "transpose(transpose(x, perm=p), perm=inverse(p)) == x",
        "p: (1, 0)",
        "x: (m, k)",
    ),
    (
        "transpose(matmul(x, y), perm=(1, 0)) == matmul(transpose(y, perm=(1, 0)), transpose(x, perm=(1, 0)))",
        "x: (m, k), y: (k, n)",
        "transpose(matmul(x, y), perm=iota(rank(x) - 2) + (rank(x) - 1, rank(x) - 2)) == "
        "matmul(transpose(y, perm=iota(rank(y) - 2) + (rank(y) - 1, rank(y) - 2)), "
        "transpose(x, perm=iota(rank(x) - 2) + (rank(x) - 1, rank(x) - 2)))",
        "",
        "x: (m, k), y: (k, n)",
    ),
    (
        "concat(matmul(x, v), matmul(x, w), axis=1) == matmul(x, concat(v, w, axis=1))",
        "x: (m, k), v: (k, k), w: (k, k)",
        "concat(matmul(x, v), matmul(x, w), axis=rank(x) - 1) == matmul(x, concat(v, w, axis=rank(v) - 1))",
        "",
        "x: (m, k), v: (k, a), w: (k, b)",
    ),
    (
        "concat(transpose(x, perm=(1, 0)), transpose(y, perm=(1, 0)), axis=1) == "
        "transpose(concat(x, y, axis=0), perm=(1, 0))",
        "x: (m, k), y: (l, k)",
        "concat(transpose(x, perm=p), transpose(y, perm=p), axis=i) == transpose(concat(x, y, axis=p[i]), perm=p)",
        "p: (1, 0), i: 1",
        "x: (m, k), y: (l, k)",
    ),
    (
        "concat(item(split(x, axis=0, split=(dim(x, 0) // 2, dim(x, 0) // 2)), index=0), "
        "item(split(x, axis=0, split=(dim(x, 0) // 2, dim(x, 0) // 2)), index=1), axis=0) == x",
        "x: (m, k)",
        "concat(item(split(x, axis=i, split=s), index=0), item(split(x, axis=i, split=s), index=1), axis=i) == x",
        "i: 0, s: (m, m)",
        "x: (2*m, k)",
    ),
    (
        "div(exp(x), reduce_sum(exp(x), axes=(1,))) == softmax(x, axis=1)",
        "x: (m, k)",
        "div(exp(x), reduce_sum(exp(x), axes=i, keepdims=1)) == softmax(x, axis=i[0]) where len(i) == 1",
        "i: (1,)",
        "x: (m, k)",
    ),
    (
        "matmul(matmul(x, y), z) == matmul(x, matmul(y, z))",
        "x: (m, k), y: (k, k), z: (k, k)",
        "matmul(matmul(x, y), z) == matmul(x, matmul(y, z)) where rank(y) >= 2",
        "",
        "x: (m, k), y: (k, b), z: (b, a)",
    ),
    (
        "conv(x, d, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=c) == "
        "neg(conv(neg(x), d, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=c))",
        "x: (n, c, h, w), d: (c, 1, 3, 3)",
        "conv(x, d, **a) == neg(conv(neg(x), d, **a))",
        "a: {dilations: (1, 1), group: 4, pads: (1, 1, 1, 1), strides: (1, 1)}",
        "x: (n, 4, h, w), d: (4, 1, 3, 3)",
    ),
    (
        "reshape(relu(transpose(reshape(x, shape=(b, s, h, d)), perm=(0, 2, 1, 3))), shape=(b*h, s, d)) == "
        "reshape(transpose(relu(reshape(x, shape=(b, s, h, d))), perm=(0, 2, 1, 3)), shape=(b*h, s, d))",
        "x: (b, s, h*d)",
        "reshape(relu(transpose(reshape(x, shape=s), perm=p)), shape=s2) == "
        "reshape(transpose(relu(reshape(x, shape=s)), perm=p), shape=s2)",
        "p: (0, 2, 1, 3), s: (b, s, h, d), s2: (b*h, s, d)",
        "x: (b, s, d*h)",
    ),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("text", "given", "wanted", "attributes", "typing"), CASES, ids=lambda v: v[:40])
def test_general_form(text: str, given: str, wanted: str, attributes: str, typing: str) -> None:
    found = generalise(parse_equation(text), parse_given(given), family="test")
    assert isinstance(found, Rule)
    assert show_equation(found.equation) == wanted
    assert sorted(show_attributes([a]) for a in found.attributes) == sorted(_parts(attributes))
    assert show_given(found.given) == typing
    assert found.evidence.typings >= 300
    left, right = found.instance()
    assert [o.type for o in left] == [o.type for o in right]


def _parts(attributes: str) -> list[str]:
    """One text for each name."""
    from taso_mirage.rewriting.library import parse_attributes

    return [show_attributes([a]) for a in parse_attributes(attributes)]


def test_a_false_equation_is_rejected_with_values() -> None:
    text = f"relu(conv(x, w, {CONV})) == conv(relu(x), w, {CONV})"
    found = generalise(parse_equation(text), parse_given("x: (n, c, h, w), w: (o, c, 3, 3)"))
    assert isinstance(found, Failure)
    assert found.counterexample is not None
    assert found.counterexample.left != found.counterexample.right


def test_a_variable_on_the_right_alone_is_no_rule() -> None:
    found = generalise(parse_equation("x == sub(add(x, y), y)"), parse_given("x: (m, k), y: (m, k)"))
    assert isinstance(found, Failure)
    assert found.reason == "y is on the right side only"


def test_a_part_of_two_is_no_part_of_three() -> None:
    """Shipped once: the second of three parts of 8 is not y behind an x of 16.

    The draws had only ever made two parts.
    """
    text = "item(split(concat(x, y, axis=1), axis=1, split=(a, b)), index=1) == y"
    found = generalise(
        parse_equation(text.replace("(a, b)", "(dim(x, 1), dim(y, 1))")), parse_given("x: (n, a), y: (n, b)")
    )
    assert isinstance(found, Rule)
    x, y = variable("x", Tensor("float32", (2, 16))), variable("y", Tensor("float32", (2, 8)))
    parts = term("split", term("concat", x, y, axis=1), axis=1, split=(8, 8, 8))
    assert not match(found.equation, term("item", parts, index=1))
    halves = term("split", term("concat", x, y, axis=1), axis=1, split=(16, 8))
    assert match(found.equation, term("item", halves, index=1))
