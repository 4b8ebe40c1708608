"""Mutants of shipped rules and laws: they are many, the same in every run, and most are false by
the oracle."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from rule_mutations import falsely_accepted, mutants, originals
from stranger import refute

from taso_mirage.rewriting.library import Rule, load_rules, parse_rules, show_rule
from taso_mirage.rewriting.text import laws, show_equation

pytestmark = pytest.mark.sampled(3, together=True)


@pytest.mark.parametrize("many", [500, pytest.param(2000, marks=pytest.mark.slow)])
def test_mutants_are_many_different_and_the_same_again(many: int) -> None:
    found = list(mutants(count=many))
    assert len(found) == many
    assert len({(show_equation(r.equation), r.given) for r, _ in found}) == many
    again = [(r.name, show_equation(r.equation)) for r, _ in islice(mutants(count=many), 50)]
    assert again == [(r.name, show_equation(r.equation)) for r, _ in found[:50]]
    kinds = ("exchanged", "left out", "axis", "negated", "is 1", "perm", " is min ", " is sub ", "operand y is x")
    assert [kind for kind in kinds if not any(kind in description for _, description in found)] == []


def test_mutants_are_of_all_rules_and_laws() -> None:
    assert len(originals()) >= len(load_rules()) + len(laws()) * 0.95


def test_a_mutant_is_written_and_read_back() -> None:
    for rule, _ in islice(mutants(seed=1), 100):
        (again,) = parse_rules(show_rule(rule))
        assert again.equation.lhs is not None
        assert show_equation(again.equation) == show_equation(rule.equation)


@pytest.mark.parametrize(("sample", "floor"), [(40, 18), pytest.param(200, 90, marks=pytest.mark.slow)])
def test_the_oracle_refutes_many(sample: int, floor: int) -> None:
    refuted = sum(refute(rule, draws=40, tries=10, strict=False) is not None for rule, _ in mutants(0, sample))
    assert refuted >= floor


@pytest.mark.sampled(3)
def test_a_verifier_that_accepts_all_is_caught_and_one_that_accepts_nothing_is_not() -> None:
    caught = falsely_accepted(lambda rule: True, count=8, draws=40)
    assert caught
    assert all(isinstance(rule, Rule) and counterexample for rule, _, counterexample in caught)
    assert falsely_accepted(lambda rule: False, count=8) == []


PRINTED = """
from itertools import islice
from rule_mutations import mutants
from taso_mirage.rewriting.text import show_equation
for rule, description in islice(mutants(), 300):
    print(description, show_equation(rule.equation), rule.given, rule.attributes)
"""


@pytest.mark.slow
def test_mutants_do_not_depend_on_the_hash_seed() -> None:
    command, path = (
        [sys.executable, "-c", PRINTED],
        os.pathsep.join([str(Path(__file__).parents[1] / "harness"), *sys.path]),
    )
    first, second = (
        subprocess.run(
            command, env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    )
    assert len(first.splitlines()) >= 300
    assert first == second
