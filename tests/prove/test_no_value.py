"""An equation claims nothing where neither side has a value, and is false where only one has."""

from __future__ import annotations

from itertools import islice
from math import isnan
from pathlib import Path

import pytest

from taso_mirage.prove.bounded import prove_bounded
from taso_mirage.prove.rules.enumeration import enumerated
from taso_mirage.prove.rules.examine import refuted
from taso_mirage.prove.rules.fuzz import Typing
from taso_mirage.prove.rules.hostile import RuleStatement
from taso_mirage.prove.rules.recheck import verdict_of
from taso_mirage.prove.symbolic import ELSEWHERE, Proved, prove_symbolic
from taso_mirage.rewriting.library import Rule, read
from taso_mirage.verdicts import Failure

FOLDER = Path(__file__).parents[1] / "equations"
FALSE = read(FOLDER / "false_undefined.toml")
ANY = "x: int64 (n, m), y: int64 (n, m)"
TWINS = {
    "a product": ("mul(div(x, y), sub(x, x))", "sub(div(x, y), div(x, y))"),
    "a sum": (
        "reduce_sum(mul(div(x, y), sub(x, x)), axes=(0,), keepdims=1)",
        "reduce_sum(sub(div(x, y), div(x, y)), axes=(0,), keepdims=1)",
    ),
    "a remainder": ("sub(mod(x, y, fmod=0), mod(x, y, fmod=0))", "sub(div(x, y), div(x, y))"),
}
"""Equations that divide on both sides by the same number."""


def typings(rule: Rule, most: int) -> list[Typing]:
    return list(islice(enumerated(RuleStatement(rule.equation, rule.given, rule.attributes), 1), most))


def rule_of(folder: Path, lhs: str, rhs: str) -> Rule:
    text = f'[[rule]]\nname = "mine.rule"\noperators = 4\ngiven = "{ANY}"\nlhs = "{lhs}"\nrhs = "{rhs}"\n'
    (folder / "mine.toml").write_text(text)
    (rule,) = read(folder / "mine.toml")
    return rule


@pytest.mark.parametrize("rule", FALSE, ids=lambda rule: rule.name)
def test_no_prover_takes_a_side_without_a_value_for_one_that_has_it(rule: Rule) -> None:
    """At every size, and at single ones."""
    sides = rule.instance()
    assert not prove_symbolic(*sides)
    found = typings(rule, 8)
    assert found
    for typing in found:
        assert not prove_symbolic(typing.lhs, typing.rhs)
        assert not prove_bounded(typing.lhs, typing.rhs)


@pytest.mark.parametrize("rule", [*FALSE[:3:2], *(pytest.param(rule, marks=pytest.mark.slow) for rule in FALSE)])
def test_such_a_rule_is_refused(rule: Rule) -> None:
    verdict = verdict_of(rule, 1, 48)
    assert verdict.problem
    assert not {"proved", "bounded"}.intersection(verdict.cases)


@pytest.mark.parametrize("kind", TWINS)
def test_what_is_undefined_alone_is_the_reason(kind: str, tmp_path: Path) -> None:
    """The two sides that divide are equal; x - x has the same elements, and a value where they have
    none."""
    divides, other = TWINS[kind]
    (typing, *_) = typings(rule_of(tmp_path, divides, other), 1)
    assert isinstance(prove_symbolic(typing.lhs, typing.rhs), Proved)
    assert isinstance(prove_bounded(typing.lhs, typing.rhs), Proved)
    (typing, *_) = typings(rule_of(tmp_path, divides, other.replace("div(x, y)", "x")), 1)
    for verdict in (prove_symbolic(typing.lhs, typing.rhs), prove_bounded(typing.lhs, typing.rhs)):
        assert isinstance(verdict, Failure)
        assert ELSEWHERE in verdict.reason


def test_numbers_show_that_one_side_has_no_value() -> None:
    (rule,) = (rule for rule in FALSE if rule.name == "undefined.add_to_operand")
    found = next(filter(None, map(refuted, typings(rule, 8))))
    assert isnan(found.left)
    assert not isnan(found.right)


@pytest.mark.parametrize(("fmod", "wrong"), [(1, False), (0, True)])
def test_where_both_sides_divide_by_zero_nothing_is_claimed(fmod: int, wrong: bool, tmp_path: Path) -> None:
    """For the other remainder a negative number shows the difference."""
    rule = rule_of(tmp_path, "sub(x, mul(div(x, y), y))", f"mod(x, y, fmod={fmod})")
    of_integers = [t for t in typings(rule, 40) if {n.dtype for n in t.rhs} <= {"int32", "int64"}]
    assert len(of_integers) > 8
    assert any(map(refuted, of_integers)) == wrong


def test_what_a_selection_does_not_choose_is_no_reason(tmp_path: Path) -> None:
    zero, one = (f"constant(value=array('int64', (), [{n}]))" for n in (0, 1))
    is_zero = f"equal(y, {zero})"
    rule = rule_of(tmp_path, f"where({is_zero}, x, div(x, y))", f"div(x, where({is_zero}, {one}, y))")
    found = [t for t in typings(rule, 40) if {n.dtype for n in t.rhs} == {"int64"}]
    assert found
    assert not any(map(refuted, found))


@pytest.mark.parametrize("name", ["true.layer_norm_to_layer_norm", "true.instance_norm_to_instance_norm"])
def test_a_mean_is_divided_by_one_number_in_values_and_where_they_are_none(name: str) -> None:
    """The root of a norm has a value on both sides, however the sum below it is written."""
    (rule,) = (rule for rule in read(FOLDER / "true.toml") if rule.name == name)
    assert isinstance(prove_symbolic(*rule.instance()), Proved)
