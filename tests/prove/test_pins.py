"""Guards that the fuzz alone does not find: wrong rules that once passed 512 typings and their
proofs, and the tests that stop them now."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from taso_mirage.ir.terms import Tensor, constant, variable
from taso_mirage.operators.ops import term
from taso_mirage.prove.fingerprint import fingerprint
from taso_mirage.prove.rules.fuzz import Typing
from taso_mirage.prove.rules.guard_numbers import number_guards
from taso_mirage.prove.rules.ladder import refutation
from taso_mirage.rewriting.equation import instantiate
from taso_mirage.rewriting.library import Rule, parse_attributes, parse_given
from taso_mirage.rewriting.text import parse_equation
from taso_mirage.verdicts import FailureKind, failed


def test_a_kernel_of_any_size_is_not_pinned() -> None:
    equation = parse_equation(
        "concat(conv(x, y, group=1, **a), conv(x, z, group=1, **a), axis=1) == conv(x, concat(y, z, axis=0), group=1, **a)"
    )
    given = parse_given("x: (n, c, h, w), y: (b, c, 3, 3), z: (d, c, 3, 3)")
    attributes = parse_attributes("a: {dilations: (1, 1), pads: (1, 1, 1, 1), strides: (1, 1)}")
    found = number_guards(Rule("r", 3, given, attributes, equation))
    assert isinstance(found, Rule)
    assert found.equation.where is None or "== 3" not in found.equation.where.source


class Wrong(NamedTuple):
    """A rule, and a typing (with values of the attribute names) where both sides have one type and
    differ."""

    given: str
    attributes: str
    text: str
    typing: str
    values: str
    guard: str


WINDOW = "dilations: (1, 1), pads: (0, 1, 0, 1), strides: (1, 1)"
VOLUME = "a: {dilations: (1, 1, 1), group: 1, pads: (1, 0, 0, 1, 0, 0), strides: (1, 1, 1)}"
WRONG = [
    Wrong(  # two groups of 1 and two of 3 output channels, against four of 2
        "x: (n, 2*g, h, w), y: (2*g, g, k, 3), z: (n, 2*g, h, w), w: (2*g, g, k, 3)",
        f"a: {{{WINDOW}}}",
        "concat(conv(x, y, group=2, **a), conv(z, w, group=2, **a), axis=1) == "
        "conv(concat(x, z, axis=1), concat(y, w, axis=0), group=4, **a)",
        "x: (1, 4, 3, 3), y: (2, 2, 1, 3), z: (1, 4, 3, 3), w: (6, 2, 1, 3)",
        f"a: {{{WINDOW}}}",
        "dim(y, 0) == dim(w, 0)",
    ),
    Wrong(  # the first spatial axis of a volume, under a kernel of 3
        "x: (n, c, h, w), y: (b, c, k, 3), z: (a, c, h, w)",
        f"a: {{{WINDOW}, group: 1}}, i: 0",
        "concat(relu(conv(x, y, **a)), relu(conv(z, y, **a)), axis=i) == relu(conv(concat(x, z, axis=i), y, **a)) "
        "where i < rank(x) - 2",
        "x: (1, 1, 2, 2, 2), y: (1, 1, 3, 1, 1), z: (1, 1, 2, 2, 2)",
        f"{VOLUME}, i: 2",
        "rank(x) == 4",
    ),
    Wrong(  # found at a kernel of 1, where the dilation says nothing
        "x: (n, 2*g, h, w), y: (a, 2*g, 1, 1)",
        "a: {group: 1, strides: (1, 1)}, p: (2, 2, 2, 2)",
        "conv(x, pad(y, pads=(0, 0, 1, 1, 0, 0, 1, 1), value=0.0, mode='constant'), pads=p, dilations=(2, 2), **a) == "
        "conv(x, y, pads=plus(p, (-2, -2, -2, -2)), dilations=(1, 1), **a)",
        "x: (1, 1, 5, 5), y: (1, 1, 2, 2)",
        "a: {group: 1, strides: (2, 2)}, p: (2, 2, 2, 2)",
        "dim(y, 2) == 1 and dim(y, 3) == 1",
    ),
    Wrong(  # 2 + 1 columns against 1 + 2 rows: the sums meet, the parts do not
        "x: (k, a), y: (k, b), z: (m, a), w: (m, b)",
        "",
        "matmul(concat(x, y, axis=rank(x) - 1), transpose(concat(z, w, axis=rank(z) - 1), perm=(1, 0))) == "
        "matmul(concat(y, x, axis=rank(y) - 1), transpose(concat(w, z, axis=rank(w) - 1), perm=(1, 0)))",
        "x: (3, 2), y: (3, 1), z: (1, 1), w: (1, 2)",
        "",
        "dim(x, 1) == dim(z, 1)",
    ),
    Wrong(  # axis 1 of kernels in batches is no column
        "x: (n, s, 2*d), y: (2*d, 2*d), z: (2*d, a)",
        "i: 1, a: {axes: (2,), ends: (2*d,)}",
        "slice(matmul(x, concat(y, z, axis=i)), starts=(0,), steps=(1,), **a) == matmul(x, y) where i > 0 and i == 1",
        "x: (2, 1, 2), y: (2, 1, 2, 2), z: (2, 1, 2, 2)",
        "i: 1, a: {axes: (2,), ends: (1,)}",
        "rank(y)",
    ),
    Wrong(  # a vector on the left of a product
        "x: (k, b), y: (k, k), z: (b, a)",
        "i: 1",
        "concat(add(x, matmul(y, x)), matmul(add(x, matmul(y, x)), z), axis=i) == "
        "add(concat(x, matmul(x, z), axis=i), matmul(y, concat(x, matmul(x, z), axis=i)))",
        "x: (2, 2, 2), y: (2,), z: (2, 2, 2)",
        "i: 2",
        "rank(y)",
    ),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("wrong", WRONG, ids=lambda w: w.guard)
def test_a_wrong_rule_is_stopped_by_its_guard(wrong: Wrong) -> None:
    rule = Rule(
        "test.rule", 3, parse_given(wrong.given), parse_attributes(wrong.attributes), parse_equation(wrong.text)
    )
    names: dict[str, Any] = dict(parse_attributes(wrong.values))
    names |= {name: variable(name, type) for name, type in parse_given(wrong.typing)}
    assert rule.equation.where is None or rule.equation.where(names)
    left, right = instantiate(rule.equation.lhs, names), instantiate(rule.equation.rhs, names)
    assert left[0].type == right[0].type
    assert failed(fingerprint(left, right), FailureKind.REFUTED)

    found = number_guards(rule)
    assert isinstance(found, Rule)
    guard = found.equation.where
    assert guard is not None
    assert wrong.guard in guard.source
    assert not guard(names)


def test_a_proof_outweighs_the_order_of_the_field() -> None:
    """The largest residue plus one is the smallest: a trial in some thousands meets it."""
    x = variable("x", Tensor("float32", (40, 50)))
    one = constant(1.0, "float32")
    sides = (term("reduce_max", term("add", x, one), axes=(0,)),), (term("add", term("reduce_max", x, axes=(0,)), one),)
    rule = Rule(
        "test.rule",
        2,
        (("x", x.tensor),),
        (),
        parse_equation("reduce_max(add(x, 1), axes=i) == add(reduce_max(x, axes=i), 1)"),
    )
    for seed in range(200):
        verdict = fingerprint(*sides, seed=seed, trials=64)
        if failed(verdict, FailureKind.REFUTED):
            break
    assert failed(verdict, FailureKind.REFUTED)
    assert refutation(rule, Typing(*sides), verdict, seed) is None


@pytest.mark.sampled(3)
def test_a_right_rule_needs_no_more_guard() -> None:
    """Grouped queries: heads of the keys may be fewer, although the rule was found at as many."""
    rule = Rule(
        "attention.attention_to_attention",
        2,
        parse_given("x: (n, 2, s, d), y: (n, 2, t, d), z: (n, 2, t, e)"),
        parse_attributes("a: {is_causal: 0, scale: 1.0, softcap: 0.0}"),
        parse_equation(
            "attention(mul(x, 0.5), y, z, q_num_heads=None, kv_num_heads=None, softmax_precision=None, **a) == "
            "attention(x, mul(y, 0.5), z, q_num_heads=None, kv_num_heads=None, softmax_precision=None, **a)"
        ),
    )
    found = number_guards(rule)
    assert isinstance(found, Rule)
    assert found.equation.where is None
