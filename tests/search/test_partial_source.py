"""Partial equivalence as a source: a model's costly programs, once each, and equations that the
optimizer's rules apply."""

from __future__ import annotations

from collections.abc import Callable

from partial_programs import conv, graph, image, kernel

from taso_mirage.ir.terms import Graph, Node, substitute, topological
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.ops import term
from taso_mirage.rewriting.index import Rules
from taso_mirage.search.partial import source
from taso_mirage.search.partial.source import Tried, counted, programs, tried
from taso_mirage.search.partial.whole import verified_program

X = image(2, 4, 6, 6)


def layers(x: Node) -> Node:
    """Two equal convolutions, and two beside each other."""
    for i in range(2):
        x = term("relu", conv(x, kernel(4, 2, 3, 3, name=f"w{i}"), group=2))
    return term("concat", conv(x, kernel(4, 4, 3, 3, name="u")), conv(x, kernel(4, 4, 1, 1, name="v"), pad=0), axis=1)


def everything_pays(program: Graph) -> float:
    """The program asked for first costs most."""
    everything_pays.asked += 1  # type: ignore[attr-defined]
    return 0.5 ** min(everything_pays.asked, 900)  # type: ignore[attr-defined, no-any-return]


def found(program: Graph) -> Tried:
    everything_pays.asked = 0  # type: ignore[attr-defined]
    made = tried(program, everything_pays)
    assert made is not None
    return made


def test_equal_programs_are_one() -> None:
    assert [g.outputs[0].op for g in programs([layers(X)])] == ["conv", "conv", "conv", "concat"]
    assert list(counted([layers(X)]).values()) == [2, 1, 1, 1]
    each = programs([layers(X)])
    assert [len(g.inputs) for g in each] == [1, 1, 1, 1]
    assert {n.attr("name") for g in each for n in topological(g.outputs) if n.op == "weight"} == {"x1", "x2"}


def test_every_equation_applies_and_keeps_the_program(monkeypatch: object) -> None:
    output = layers(X)
    linear = graph(conv(X, kernel(4, 2, 3, 3), group=2))
    source.KEPT, kept = 100, source.KEPT
    try:
        mutations = [m for p in programs([output]) for m in found(p).mutations]
    finally:
        source.KEPT = kept
    families = {f for m in mutations for f in m.families}
    assert families >= {"batch into axis 3", "axis 2 into batch", "fewer groups", "parallel to grouped"}
    assert any(m.region and m.right < 1 for m in mutations)
    assert all(bool(m.region) == (m.right < 1) for m in mutations)
    rules = Rules([m.equation for m in mutations])
    assert len({e.name for e in rules.equations}) == len(mutations)
    applied = {a.equation.name for n in topological([output]) for a in rules.applications(n)}
    assert applied <= {m.equation.name for m in mutations}
    assert len(applied) > 10
    for application in rules.applications(linear.outputs[0]):
        replaced = substitute(linear.outputs, {linear.outputs[0]: application.results[0]})
        assert verified_program(linear, Graph(linear.inputs, replaced))


def test_only_what_pays_is_kept() -> None:
    program = graph(conv(X, kernel(4, 4, 3, 3)))
    contested: list[Graph] = []

    def even(a: Graph, b: Graph) -> tuple[float, float]:
        contested.append(b)
        return 1.0, 1.0

    nothing = tried(program, lambda g: float(len(list(g))))
    assert nothing is not None
    assert not nothing.mutations
    assert nothing.mutants
    everything_pays.asked = 0  # type: ignore[attr-defined]
    lost = tried(program, everything_pays, even)
    assert lost is not None
    assert not lost.mutations
    assert contested
    assert len(found(program).mutations) == source.KEPT


def test_it_stops_when_it_is_late() -> None:
    assert tried(programs([layers(X)])[0], everything_pays, late=lambda: True) is None


def evenly() -> tuple[list[Graph], Callable[[Graph], float]]:
    """Costs that are all the same, and the terms that they were asked for."""
    asked: list[Graph] = []

    def even(each: Graph) -> float:
        asked.append(each)
        return 1.0

    return asked, even


def test_costs_that_were_asked_for_too_late_are_not_kept() -> None:
    """After the deadline they are estimates: a program for which nothing pays would never be tried
    again."""
    program = programs([conv(X, kernel(4, 4, 3, 3))])[0]
    asked, even = evenly()
    made = tried(program, even)
    assert made is not None
    total, asked[:] = len(asked), []
    assert tried(program, even, late=lambda: len(asked) == total) is None


def test_what_moves_the_data_of_a_mutant_is_not_asked_where_its_largest_term_takes_too_long() -> None:
    program = programs([conv(X, kernel(4, 4, 3, 3))])[0]
    asked, even = evenly()
    made = tried(program, even)
    assert made is not None
    assert made.mutants > 1
    assert all([n.op for n in topological(g.outputs) if n.args and not is_weight(n)] == ["conv"] for g in asked)
    asked.clear()
    tried(program, lambda g: even(g) if len(asked) == 0 else 0.5 * even(g))
    assert any(len([n for n in topological(g.outputs) if n.args]) > 1 for g in asked)
