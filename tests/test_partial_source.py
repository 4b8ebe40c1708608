"""Partial equivalence as a source: a model's costly programs, once each, and equations that the optimizer's rules apply."""

from __future__ import annotations

from partial_programs import conv, graph, image, kernel

from taso_mirage.equation import Rules
from taso_mirage.ir import Graph, Node, substitute, topological
from taso_mirage.ops import term
from taso_mirage.partial.source import equations, programs
from taso_mirage.partial.whole import verified

X = image(2, 4, 6, 6)


def layers(x: Node) -> Node:
    """Two equal convolutions, and two beside each other."""
    for i in range(2):
        x = term("relu", conv(x, kernel(4, 2, 3, 3, name=f"w{i}"), group=2))
    return term("concat", conv(x, kernel(4, 4, 3, 3, name="u")), conv(x, kernel(4, 4, 1, 1, name="v"), pad=0), axis=1)


def test_equal_programs_are_one() -> None:
    found = programs([layers(X)])
    assert [g.outputs[0].op for g in found] == ["conv", "conv", "conv", "concat"]
    assert [len(g.inputs) for g in found] == [1, 1, 1, 1]
    assert {n.attr("name") for g in found for n in topological(g.outputs) if n.op == "weight"} == {"x1", "x2"}


def test_every_equation_applies_and_keeps_the_program() -> None:
    output = layers(X)
    linear = graph(conv(X, kernel(4, 2, 3, 3), group=2))
    found = [e for e, _ in equations([output], lambda a, b: True)]
    assert {e.name for e in found} >= {
        "partial: batch into axis 3",
        "partial: axis 2 into batch",
        "partial: fewer groups",
        "partial: parallel to grouped",
    }
    rules = Rules(found)
    applied = {a.equation.name for n in topological([output]) for a in rules.applications(n)}
    assert applied == {e.name for e in found}
    for application in rules.applications(linear.outputs[0]):
        assert verified(
            linear, Graph(linear.inputs, substitute(linear.outputs, {linear.outputs[0]: application.results[0]}))
        )


def test_only_what_pays_is_verified() -> None:
    asked: list[int] = []

    def fewer_terms(program: Graph, corrected: Graph) -> bool:
        asked.append(len(list(corrected)))
        return len(list(corrected)) < len(list(program))

    assert not list(equations([conv(X, kernel(4, 4, 3, 3))], fewer_terms))
    assert asked


def test_it_stops_when_it_is_late() -> None:
    found = equations([layers(X)], lambda a, b: True, late=lambda: True)
    assert not list(found)
