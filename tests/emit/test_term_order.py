"""The order of a body's terms beside all orders, for small bodies; and bodies of many terms."""

from __future__ import annotations

import random
from itertools import permutations

import pytest

from taso_mirage.emit.gpu import order
from taso_mirage.ir.mugraph import LoopPhase, loop_phases
from taso_mirage.ir.terms import Graph, Node, Tensor, variable
from taso_mirage.operators.ops import term

INVARIANT = LoopPhase.INVARIANT


def body(seed: int, count: int) -> Graph:
    """Unary and binary terms over two inputs, whose results are the ones that nothing reads."""
    draw = random.Random(seed)
    made: list[Node] = [variable(name, Tensor("float32", (8,))) for name in "xy"]
    inputs = tuple(made)
    for i in range(count):
        a, b = draw.choice(made), draw.choice(made)
        made.append(term(draw.choice(["exp", "neg"]), a) if i % 3 == 0 else term("add", a, b))
    made = list(dict.fromkeys(made))
    read = {a for n in made for a in n.args}
    return Graph(inputs, tuple(n for n in made[2:] if n not in read))


def sizes(graph: Graph, seed: int) -> dict[Node, int]:
    draw = random.Random(seed)
    return {n: draw.choice([1, 2, 4, 16, 64]) for n in graph}


def live(graph: Graph, terms: tuple[Node, ...], size: dict[Node, int]) -> int:
    """The largest number of live elements of an order, by its definition; the count of a step has
    its operands and its result."""
    most, done = 0, list[Node]()
    for node in terms:
        held = [n for n in done if n in graph.outputs or any(n in m.args for m in terms if m not in done)]
        done.append(node)
        after = [n for n in done if n in graph.outputs or any(n in m.args for m in terms if m not in done)]
        most = max(most, sum(size[n] for n in held) + size[node], sum(size[n] for n in after))
    return most


def least(graph: Graph, size: dict[Node, int]) -> int:
    terms = [n for n in graph if n not in graph.inputs]
    valid = [
        each
        for each in permutations(terms)
        if all(a in graph.inputs or a in each[:i] for i, n in enumerate(each) for a in n.args)
    ]
    return min(live(graph, each, size) for each in valid)


@pytest.mark.parametrize("states", [(20_000, 20_000), (0, 20_000)], ids=["at first", "anew"])
@pytest.mark.parametrize("seed", range(12))
def test_no_order_of_a_small_body_has_fewer_live_elements(
    seed: int, states: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "STATES", states)
    graph = body(seed, 7)
    size = sizes(graph, seed)
    found = order.ordered(graph, loop_phases(graph, (-1, -1)), INVARIANT, size.__getitem__)
    assert found.exact
    assert found.live == live(graph, found.terms, size) == least(graph, size)


def test_a_body_of_many_terms_has_an_exact_order() -> None:
    """Twelve small chains beside a large tile: more sets of terms than the first search visits."""
    inputs = [variable(f"x{i}", Tensor("float32", (8,))) for i in range(12)]
    chains = [term("exp", term("neg", x)) for x in inputs]
    whole = chains[0]
    for each in chains[1:]:
        whole = term("add", whole, each)
    graph = Graph(tuple(inputs), (term("exp", whole),))
    large = graph.outputs[0]
    found = order.ordered(graph, loop_phases(graph, (-1,) * 12), INVARIANT, lambda n: 4096 if n is large else 8)
    assert found.exact
    assert found.live == 4096 + 8
