"""Matching, passes and search grow no faster than a model: counts of visited terms, which hold
whatever the clock says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
from scripts import script

from taso_mirage.ir.terms import Graph, Node, Tensor, constant, substitute, topological, users, variable, weight
from taso_mirage.onnx_io import load
from taso_mirage.operators.ops import term
from taso_mirage.rewriting.equation import Equation, apply_equation, matches
from taso_mirage.rewriting.index import Application, Rules
from taso_mirage.rewriting.match_keys import canonical_terms, depth, match_key, upper
from taso_mirage.rewriting.text import parse_equation
from taso_mirage.search.cost import Cost, Roofline
from taso_mirage.search.partition import model_parts
from taso_mirage.search.passes import Context, for_search, pass_order, simplify
from taso_mirage.search.rulesets import rules
from taso_mirage.search.search import (
    LEAST,
    BestState,
    Budget,
    SearchState,
    directions,
    rewrites,
    search_model,
    search_part,
)
from taso_mirage.verdicts import Failure

ROOT = Path(__file__).parents[2]
CONTEXT = Context({"": 17, "com.microsoft": 1}, {})
WIDTH = 16


def value(name: str = "x", *shape: int) -> Node:
    return variable(name, Tensor("float32", shape or (8, WIDTH)))


def parameter(name: str, *shape: int) -> Node:
    return weight(name, Tensor("float32", shape))


def layer(x: Node, i: int) -> Node:
    """An encoder layer with one head: attention, a sum, two products with a relu between, a sum."""
    q, k, v = (
        term("add", term("matmul", x, parameter(f"{n}{i}", WIDTH, WIDTH)), parameter(f"{n}b{i}", WIDTH)) for n in "qkv"
    )
    scores = term("mul", term("matmul", q, term("transpose", k, perm=(1, 0))), constant(0.25, "float32"))
    x = term("add", x, term("matmul", term("softmax", scores, axis=-1), v))
    hidden = term("relu", term("add", term("matmul", x, parameter(f"u{i}", WIDTH, 32)), parameter(f"ub{i}", 32)))
    return term("add", x, term("matmul", hidden, parameter(f"d{i}", 32, WIDTH)))


def layers(count: int) -> tuple[Node, ...]:
    x = value()
    for i in range(count):
        x = layer(x, i)
    return (x,)


@pytest.fixture(scope="module")
def equations() -> tuple[Equation, ...]:
    return tuple(directions(for_search(rules())))


class Tried:
    """All equations tried at every term with the operator of their first output."""

    def __init__(self, equations: tuple[Equation, ...]) -> None:
        self.at: dict[str, list[Equation]] = {}
        for equation in equations:
            self.at.setdefault(equation.roots[0], []).append(equation)

    def __call__(self, node: Node, used_by: Mapping[Node, list[Node]], joint: bool) -> Iterator[Application]:
        for equation in self.at.get(node.op, ()):
            if joint == (len(equation.roots) > 1):
                for found in matches(equation, node, used_by):
                    results = apply_equation(equation, found)
                    if not isinstance(results, Failure) and results != found.outputs:
                        yield Application(equation, found, results)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["bert", "light_shufflenet", "light_squeezenet"])
def test_rules_find_what_trying_all_of_them_finds(
    name: str, small: Callable[..., onnx.ModelProto], equations: tuple[Equation, ...], tmp_path: Path
) -> None:
    onnx.save(small(name), tmp_path / "model.onnx")
    model = load(tmp_path / "model.onnx")
    context = Context({"com.microsoft": 1, **model.opsets}, dict.fromkeys(model.symbols(), 8))
    every, tried = Rules(equations), Tried(equations)
    normal, _ = simplify(model.graph.outputs, pass_order(rules())[1], context)
    states = [model.graph.outputs, normal]
    states += [r.outputs for r, _ in zip(rewrites(normal, every, Rules(()), context), range(5), strict=False)]
    seen: set[Node] = set()
    found = 0
    for outputs in states:
        order = topological(outputs)
        used_by = users(order)
        for node in (n for n in order if n not in seen):
            seen.add(node)
            wanted: dict[tuple[Node, ...], Application] = {}
            for application in tried(node, used_by, joint=False):
                wanted.setdefault(application.results, application)
            assert every.applications(node) == tuple(wanted.values())
            assert list(every.joint_applications(node, used_by)) == list(tried(node, used_by, joint=True))
            found += len(wanted)
    assert found > 50


def test_equal_layers_are_matched_once(equations: tuple[Equation, ...]) -> None:
    seen = []
    for count in (4, 48):
        every = Rules(equations)
        order = topological(layers(count))
        roots = Counter(e.roots[0] for e in equations)
        found = sum(len(every.applications(n)) for n in order)
        assert found >= 2 * count
        seen.append((every.matched[1], every.trials))
        assert 10 * every.trials < sum(roots[n.op] for n in topological(layers(4)))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("first", [True, False])
def test_after_a_rewrite_only_what_looks_new_is_matched(first: bool, equations: tuple[Equation, ...]) -> None:
    every, outputs = Rules(equations), layers(48)
    order = topological(outputs)
    old = [n for n in order if every.applications(n) and n.op == "add"][0 if first else -1]
    terms, near = every.matched
    after = substitute(outputs, {old: every.applications(old)[0].results[0]})
    for node in topological(after):
        every.applications(node)
    anew = every.matched[0] - terms
    assert anew > 700 if first else anew < 10
    assert 0 < every.matched[1] - near < 20


def test_passes_over_equal_layers_try_no_equation_twice() -> None:
    trials = []
    for count in (4, 48):
        context, stage = Context({"": 17, "com.microsoft": 1}, {}), pass_order(rules())[1]
        _, steps = simplify(layers(count), stage, context)
        assert len(steps) >= count
        trials.append(context.helpful(stage).trials)
    assert trials[0] == trials[1]


def test_a_pass_keeps_only_applications_that_could_pay() -> None:
    stage = Rules([parse_equation("relu(relu(x)) == relu(x)"), parse_equation("neg(x) == mul(x, -1)")])
    helpful = CONTEXT.helpful(stage)
    x = value()
    assert len(helpful.applications(term("relu", term("relu", x)))) == 1
    assert helpful.applications(term("neg", x)) == ()
    assert len(stage.applications(term("neg", x))) == 1
    assert CONTEXT.helpful(stage) is helpful


def test_many_layers_are_searched_as_few(equations: tuple[Equation, ...]) -> None:
    eager = pass_order(rules())[1]
    found = []
    for count in (12, 48):
        outputs, _ = simplify(layers(count), eager, CONTEXT)
        _, _, statistics = search_model(
            outputs, Rules(equations), eager, Cost(Roofline(CONTEXT)), CONTEXT, Budget(600, states_per_part=3)
        )
        found.append(statistics)
    assert found[1].parts > 3 * found[0].parts
    assert found[1].distinct <= found[0].distinct + 1
    assert found[1].matches < 1.5 * found[0].matches


def test_the_borders_of_equal_layers_have_less_patience_and_no_contest(equations: tuple[Equation, ...]) -> None:
    """A part of one place costs little beside many equal ones together."""
    patience: dict[int, set[int]] = {}
    asked: list[int] = []
    outputs, eager = layers(48), pass_order(rules())[1]
    places = Counter(part.graph for part in model_parts(outputs))
    many = max(places.values())
    assert many > 8
    assert 1 in places.values()

    def noted(graph: Graph, *asked: Any) -> BestState:
        patience.setdefault(places[graph], set()).add(asked[4].patience)
        return search_part(graph, *asked)

    def choose(states: list[SearchState]) -> int:
        asked.append(next(places[graph] for graph in places if graph.outputs in states))
        return 0

    budget = Budget(600, states_per_part=2, choose=choose)
    found = (outputs, Rules(equations), eager, Cost(Roofline(CONTEXT)), CONTEXT, budget)
    search_model(*found, strategy=lambda graph, *rest: noted(graph, *rest) if graph in places else kept(graph))
    assert patience == {many: {budget.patience}, 1: {LEAST}}
    assert set(asked) <= {many}


def kept(graph: Graph) -> BestState:
    """A part as it is."""
    return BestState((), 1.0, 1.0, 1, 0, "nothing left to try")


def test_surroundings_tell_all_that_a_rewrite_asks_for() -> None:
    x, y, w = value("x"), value("y"), parameter("w", 8, WIDTH)

    def key(node: Node) -> object:
        return match_key(node, 2)[0]

    assert key(term("add", x, y)) == key(term("add", y, x))
    assert key(term("add", x, x)) != key(term("add", x, y))
    assert key(term("add", x, w)) != key(term("add", x, y))
    assert key(term("add", x, value("z", 8, 1))) != key(term("add", x, y))
    assert key(term("mul", x, constant(2.0, "float32"))) != key(term("mul", x, constant(3.0, "float32")))
    assert key(term("softmax", x, axis=0)) != key(term("softmax", x, axis=1))
    below = term("relu", term("tanh", x))
    assert key(term("neg", below)) == key(term("neg", term("relu", term("tanh", y))))
    assert key(term("neg", below)) == key(term("neg", term("relu", term("exp", y))))  # too far down
    assert key(term("neg", below)) != key(term("neg", term("relu", y)))


def test_a_term_that_is_near_and_far_is_one_canonical_term() -> None:
    x = value()
    shared = term("relu", x)
    both = term("add", term("neg", term("tanh", shared)), shared)
    key, terms = match_key(both, 2)
    made = dict(zip(terms, canonical_terms(key, terms), strict=True))
    assert made[shared].op == "relu"
    assert made[term("tanh", shared)].op == "input"
    assert made[both].args[1] is made[shared]
    other = term("add", term("neg", term("tanh", term("relu", value("y")))), term("relu", value("y")))
    assert canonical_terms(*match_key(other, 2)) == tuple(made.values())


def test_a_pattern_deeper_than_the_surroundings_is_tried_on_the_term() -> None:
    deep = parse_equation("neg(relu(neg(relu(neg(x))))) == tanh(x)")
    every = Rules([deep])
    assert depth(deep.lhs.outputs[0]) == 5
    x = value()
    chain = term("neg", term("relu", term("neg", term("relu", term("neg", x)))))
    other = term("neg", term("relu", term("neg", term("relu", term("exp", x)))))
    assert [a.results for a in every.applications(chain)] == [(term("tanh", x),)]
    assert every.applications(other) == ()
    assert every.matched == (2, 1)


def test_the_upper_part_of_a_pattern_has_a_variable_for_each_place() -> None:
    pattern = parse_equation("add(relu(neg(x)), tanh(neg(x))) == x").lhs.outputs[0]
    left, right = upper(pattern, 2).args
    assert left.args[0].op == right.args[0].op == "input"
    assert left.args[0] is not right.args[0]
    assert upper(pattern, 3) is pattern


@pytest.mark.slow
def test_the_benchmark_counts_what_matching_looks_at(small: Callable[..., onnx.ModelProto], tmp_path: Path) -> None:
    bench = script("matching")
    one = small("llama")
    two = bench.unrolled(one, 2)
    onnx.checker.check_model(two, full_check=True)
    assert len(two.graph.node) == 2 * len(one.graph.node) + 1
    assert len(two.graph.output) == 1
    onnx.save(two, tmp_path / "two.onnx")
    row = bench.measured(tmp_path / "two.onnx", len(two.graph.node))
    counts = row["counts"]
    assert counts["match"]["found"] > 0
    assert counts["match"]["trials"] < counts["same_root"] / 10
    assert counts["after a rewrite near the end"]["terms"] < 10 < counts["after a rewrite near the beginning"]["terms"]
    assert counts["search"]["states"] > 0
    assert row["megabytes"] > 50
    assert row["terms"][1] < row["terms"][0]
