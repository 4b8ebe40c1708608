"""Every law holds on random legal typings in the field, and known-wrong laws are refuted."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
from fuzzed import Fuzzed, fuzz
from stated_laws import WRONG, stated

from taso_mirage.ir.model import StoredWeight
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, substitute, topological, users, variable, weight
from taso_mirage.measure.session import Session
from taso_mirage.onnx_io import serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term
from taso_mirage.prove.counterexample import find_counterexample
from taso_mirage.prove.fingerprint import Agreed, fingerprint
from taso_mirage.prove.rules.fuzz import typings
from taso_mirage.prove.rules.hostile import legal
from taso_mirage.prove.rules.ladder import proved_at
from taso_mirage.rewriting.equation import Equation, apply_equation, match
from taso_mirage.rewriting.index import Rules
from taso_mirage.rewriting.match_reason import UNASKED, MatchReason
from taso_mirage.rewriting.patterns import found_at
from taso_mirage.rewriting.text import laws, parse_equation, show_equation
from taso_mirage.search.egraph import EGraph
from taso_mirage.search.passes import Context, new_terms
from taso_mirage.search.search import directions
from taso_mirage.search.weights import fold_weights
from taso_mirage.verdicts import Failure, FailureKind, failed


@pytest.mark.sampled(3)
@pytest.mark.parametrize("wanted", [3, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("law", laws(), ids=lambda law: law.name)
def test_law_holds_on_random_typings(law: Equation, wanted: int) -> None:
    given, attributes = stated(law)
    found = fuzz(law, wanted=wanted, tries=12_000 if given else 2_000, given=given, attributes=attributes)
    if found.counterexample is not None and found.counterexample.note:  # no numbers: the field's order is cyclic
        found = compared(law)
    assert found.counterexample is None, found.counterexample
    assert found.typings >= 3, (
        f"only {found.typings} typings of {show_equation(law)} were found: add an example to its operators"
    )


def compared(law: Equation) -> Fuzzed:
    """The comparison by numbers; proved typings alone count, since a law applies nowhere else."""
    given, attributes = stated(law)
    refuted = Failure(FailureKind.REFUTED, "by the field")
    drawn = (each for each in typings(law, given=given, attributes=attributes) if legal(each))
    proved = 0
    for each in islice(drawn, 8):
        numbers = find_counterexample(each.lhs, each.rhs, refuted)
        if not numbers.note:
            return Fuzzed(proved, 0, numbers)
        proved += not isinstance(proved_at(each.lhs, each.rhs), Failure)
    return Fuzzed(proved, 0)


@pytest.mark.parametrize("law", laws(), ids=lambda law: law.name)
def test_law_prints_and_parses_back(law: Equation) -> None:
    again = parse_equation(show_equation(law), law.name)
    assert (again.lhs, again.rhs, again.where) == (law.lhs, law.rhs, law.where)


@pytest.mark.parametrize("text", WRONG)
def test_wrong_law_is_refuted_with_a_counterexample(text: str) -> None:
    found = fuzz(parse_equation(text), wanted=200, tries=4000)
    assert found.counterexample is not None
    assert "against" in str(found.counterexample)


@pytest.mark.parametrize(
    ("included", "pads", "allowed"), [(1, (1, 1, 1, 1), False), (0, (1, 1, 1, 1), True), (1, (0, 0, 0, 0), True)]
)
def test_a_bias_is_averaged_only_where_no_padding_is(included: int, pads: tuple[int, ...], allowed: bool) -> None:
    image, kernel, bias = (
        variable(n, Tensor("float32", s)) for n, s in (("x", (1, 2, 4, 4)), ("w", (3, 2, 1, 1)), ("b", (3,)))
    )
    window = {
        "kernel": (3, 3),
        "strides": (1, 1),
        "dilations": (1, 1),
        "extra": (0, 0),
        "pads": pads,
        "count_include_pad": included,
    }
    pixel = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1}
    law = parse_equation(
        "conv(average_pool(x, pads=p, count_include_pad=c, **a), w, d, **b) == "
        "average_pool(conv(x, w, d, **b), pads=p, count_include_pad=c, **a)"
    )
    before = term("conv", term("average_pool", image, **window), kernel, bias, **pixel)
    found = match(law, before)
    assert found
    verdict = fingerprint((before,), apply_equation(law, found))
    assert isinstance(verdict, Agreed) if allowed else failed(verdict, FailureKind.REFUTED)
    swapped = [a for a in Rules(laws()).applications(before) if a.results[0].op == "average_pool"]
    assert bool(swapped) == allowed


def test_relu_of_a_relu_matches_with_reasons() -> None:
    law = parse_equation("relu(relu(x)) == relu(x)")
    x = variable("x", Tensor("float32", (2, 3)))
    found = match(law, term("relu", term("relu", x)))
    assert found
    assert apply_equation(law, found) == (term("relu", x),)
    missed = match(law, term("relu", term("neg", x)))
    assert isinstance(missed, Failure)
    assert "neg" in missed.reason


def test_guard_and_type_change_are_reasons() -> None:
    law = parse_equation("mul(matmul(x, w), c) == matmul(x, mul(w, c)) where is_weight(w) and size(c) == 1")
    x, w = variable("x", Tensor("float32", (2, 3))), variable("w", Tensor("float32", (3, 4)))
    product = term("mul", term("matmul", x, w), constant(2.0, "float32"))
    missed = match(law, product)
    assert isinstance(missed, Failure)
    assert "guard" in missed.reason
    grown = parse_equation("relu(x) == add(x, c) where rank(x) == 2")
    assert grown.reverse() is not None
    wider = parse_equation("relu(x) == concat(x, x, axis=0)")
    found = match(wider, term("relu", x))
    assert found
    assert "type would change" in apply_equation(wider, found).reason  # type: ignore[union-attr]


def test_commuted_operands_match_and_variables_unify() -> None:
    law = parse_equation("add(mul(x, y), mul(x, z)) == mul(x, add(y, z))")
    x, y, z = (variable(n, Tensor("float32", (2, 3))) for n in "xyz")
    found = match(law, term("add", term("mul", y, x), term("mul", x, z)))
    assert found
    assert apply_equation(law, found) == (term("mul", x, term("add", y, z)),)
    assert not match(law, term("add", term("mul", y, x), term("mul", z, z)))


def test_the_first_two_operands_may_change_places_beside_others() -> None:
    law = parse_equation("skip_layer_norm(neg(x), y, g) == skip_layer_norm(y, neg(x), g)")
    x, y = (variable(n, Tensor("float32", (2, 3, 4))) for n in "xy")
    g = variable("g", Tensor("float32", (4,)))
    for old in (term("skip_layer_norm", term("neg", x), y, g), term("skip_layer_norm", y, term("neg", x), g)):
        found = match(law, old)
        assert found
        assert found.outputs == (old,)
        assert found.operands == {"x": x, "y": y, "g": g}


def test_a_variable_is_no_absent_operand() -> None:
    """An equation is proved with the operand; Swin's attention, with a mask and no bias, ended the
    search in an error."""
    attention = "multi_head_attention(q, k, v, b, m, **a)"
    law = parse_equation(f"{attention} == neg(neg({attention}))")
    q, m, b = (variable(n, Tensor("float32", s)) for n, s in (("q", (2, 3, 8)), ("m", (2, 2, 3, 3)), ("b", (24,))))
    without, full = (term("multi_head_attention", q, q, q, bias, m, num_heads=2) for bias in (None, b))
    assert match(law, full)
    missed = match(law, without)
    assert isinstance(missed, Failure)
    assert missed.reason == "b stands for an operand, which is absent"
    for each, found in ((full, 1), (without, 0)):
        graph = EGraph()
        graph.add(each)
        assert len(list(found_at(law.lhs.outputs, graph.find(each), graph))) == found


def test_several_outputs_are_found_through_what_they_share() -> None:
    law = parse_equation("(relu(x), neg(x)) == (max(x, 0), mul(x, -1))")
    x = variable("x", Tensor("float32", (2,)))
    outputs = (term("relu", x), term("neg", x))
    found = match(law, outputs[0], users(topological(outputs)))
    assert found
    assert found.outputs == outputs


def test_fingerprint_verdicts() -> None:
    x, y = (variable(n, Tensor("float32", (2, 3))) for n in "xy")
    assert isinstance(fingerprint([term("add", x, y)], [term("add", y, x)]), Agreed)
    verdict = fingerprint([term("sub", x, y)], [term("sub", y, x)])
    assert failed(verdict, FailureKind.REFUTED)
    assert "element" in str(verdict.counterexample)
    zero = term("div", x, term("sub", y, y))
    assert failed(fingerprint([zero], [zero]), FailureKind.UNDECIDED)
    w = weight("w", Tensor("float32", (2, 3)))
    exp = [term("exp", term("add", x, w))], [term("mul", term("exp", x), term("exp", w))]
    assert isinstance(fingerprint(*exp), Agreed)
    root = [term("sqrt", term("mul", x, w))], [term("mul", term("sqrt", x), term("sqrt", w))]
    assert isinstance(fingerprint(*root), Agreed)
    negated = [term("sqrt", term("neg", x))], [term("sqrt", x)]
    assert failed(fingerprint(*negated), FailureKind.REFUTED)


def test_a_window_in_the_padding_alone_is_no_mean() -> None:
    """The runtime's is 0, our definition's 0/0: a convolution moved before the pool had left its
    bias out there, and a pool as a convolution over each window's share in the image was no number.
    """
    pool = {"kernel": (2, 2), "strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (3, 3), "extra": (0, 0)}
    x, kernel, bias = (
        variable("x", Tensor("float32", (1, 2, 2, 2))),
        Tensor("float32", (3, 2, 1, 1)),
        Tensor("float32", (3,)),
    )
    pooled = term("average_pool", x, count_include_pad=0, **pool)
    ones = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
    output = term("conv", pooled, weight("w", kernel), weight("b", bias), **ones)
    values = {
        "w": StoredWeight(np.arange(6, dtype=np.float32).reshape(3, 2, 1, 1)),
        "b": StoredWeight(np.ones(3, np.float32)),
    }

    def run(result: Node) -> Any:
        model, _ = fold_weights(standalone(Graph((x,), (result,)), {"": 20}, values))
        return Session(serialize(model)).run({"x": np.ones((1, 2, 2, 2), np.float32)})[0]

    wanted = run(output)
    rules, context = Rules(directions(laws())), Context({"": 20}, {})
    reached = [
        substitute((output,), dict(zip(each.found.outputs, each.results, strict=True)))[0]
        for node in (pooled, output)
        for each in rules.applications(node)
        if all(context.legal(n) for n in new_terms(each.results, each.found.operands))
    ]
    assert reached
    for each in reached:
        np.testing.assert_allclose(run(each), wanted, atol=1e-5)


def test_a_failed_guard_is_a_better_reason_than_an_operator() -> None:
    why = MatchReason("nothing yet")
    why.note("{} is not {}", "relu", "neg")
    assert why.text == "relu is not neg"
    why.overrule("the guard does not hold: {}", "rank(x) == 2", guard=True)
    why.note("{} is not {}", "abs", "neg")
    assert why.text == "the guard does not hold: rank(x) == 2"
    UNASKED.overrule("never kept")
    assert UNASKED.text == ""


def test_a_failure_is_false_and_says_why() -> None:
    x = variable("x", Tensor("float32", (2,)))
    refuted = fingerprint([term("neg", x)], [x])
    assert not refuted
    assert failed(refuted, FailureKind.REFUTED)
    assert not failed(refuted, FailureKind.UNPROVED)
    assert repr(refuted) == f"Failure(refuted: {refuted.reason})"
    assert str(refuted) == f"{refuted.reason}\noutput 0: {refuted.reason}"


@pytest.mark.parametrize("law", ["where(1, x, y) == x", "where(expand(0, shape=s), x, y) == y"])
def test_a_number_that_is_a_condition_is_a_boolean(law: str) -> None:
    found = [each.lhs[0].args[0].dtype for each in islice(typings(parse_equation(law)), 3)]
    assert found == ["bool"] * 3
