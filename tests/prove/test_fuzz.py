"""The known rules are classified without an error, and every refutation is reproduced by the
independent reference."""

from __future__ import annotations

from pathlib import Path

import pytest
from known_rules import FALSE, TRUE, Known
from reference import reproduce

from taso_mirage.prove.rules.fuzz import typings
from taso_mirage.prove.rules.guards import Settled, infer_guard
from taso_mirage.rewriting import library
from taso_mirage.rewriting.library import parse_attributes, parse_given
from taso_mirage.rewriting.text import parse_equation, show_equation
from taso_mirage.verdicts import Failure


def _settle(known: Known, wanted: int, infer: bool) -> Settled | Failure:
    equation = parse_equation(known.equation)
    return infer_guard(equation, parse_given(known.given), parse_attributes(known.attributes), wanted, infer=infer)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("known", TRUE, ids=lambda k: k.equation[:60])
def test_true_rule_settles_as_it_is(known: Known) -> None:
    found = _settle(known, 80, infer=False)
    assert isinstance(found, Settled), f"{found.reason}\n{found.counterexample}"
    assert found.typings >= 25


@pytest.mark.sampled(3)
@pytest.mark.parametrize("known", FALSE, ids=lambda k: k.equation[:60])
def test_false_rule_is_refuted_and_the_reference_agrees(known: Known) -> None:
    found = _settle(known, 500, infer=False)
    assert isinstance(found, Failure)
    assert found.counterexample is not None
    record = found.counterexample.fields()
    assert "note" not in record, record["note"]
    left, right = reproduce(record)
    assert left == pytest.approx(record["left"], rel=1e-9, abs=1e-9)
    assert right == pytest.approx(record["right"], rel=1e-9, abs=1e-9)
    assert abs(left - right) > 1e-7


GUARDED = [
    ("concat(conv(x, v, **a), conv(x, w, **a), axis=1) == conv(x, concat(v, w, axis=0), **a)", "group=1, **a", ""),
    ("conv(mul(x, k), w, **a) == mul(conv(x, w, **a), k)", "", "size(k) == 1"),
    ("matmul(mul(x, k), y) == mul(matmul(x, y), k)", "", "size(k) == 1"),
    ("transpose(transpose(x, perm=p), perm=p) == x", "", "rank(x) <= 2"),
    ("transpose(transpose(x, perm=p), perm=q) == transpose(x, perm=compose(q, p))", "", "p == inverse(q)"),
    ("softmax(transpose(x, perm=p), axis=i) == transpose(softmax(x, axis=i), perm=p)", "", "p[i] == i"),
    ("transpose(add(x, y), perm=p) == add(transpose(x, perm=p), y)", "", "p == iota(rank(x))"),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("text", "inside", "guard"), GUARDED, ids=lambda v: v[:60])
def test_guard_is_inferred_from_failures(text: str, inside: str, guard: str) -> None:
    known = next(k for k in FALSE if k.equation == text)
    found = _settle(known, 200, infer=True)
    assert isinstance(found, Settled)
    assert (found.equation.where.source if found.equation.where else "") == guard
    assert inside in show_equation(found.equation)


def test_typings_are_distinct_and_the_same_for_the_same_seed() -> None:
    known = TRUE[0]
    equation, given = parse_equation(known.equation), parse_given(known.given)
    attributes = parse_attributes(known.attributes)
    first, again = ([t.lhs for t in typings(equation, 3, 800, given, attributes)] for _ in range(2))
    assert first == again
    assert len(set(first)) == len(first) > 100


def test_counterexample_prints_inputs_and_both_values() -> None:
    known = next(k for k in FALSE if k.equation.startswith("relu(add(x, y))"))
    found = _settle(known, 200, infer=False)
    assert isinstance(found, Failure)
    text = str(found.counterexample)
    assert "def graph(" in text
    assert "\nx = [[" in text
    assert " against " in text


def test_a_rejected_candidate_is_reproduced_from_its_file(tmp_path: Path) -> None:
    known = FALSE[0]
    found = _settle(known, 200, infer=False)
    assert isinstance(found, Failure)
    assert found.counterexample is not None
    library.write_rejected(
        tmp_path / "rejected.toml", [library.RejectedRule(known.equation, found.reason, found.counterexample.fields())]
    )
    (again,) = library.read_rejected(tmp_path / "rejected.toml")
    assert reproduce(again.counterexample) == (found.counterexample.left, found.counterexample.right)
