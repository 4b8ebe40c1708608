"""Wrong movements are refused: those of a goal's core, those of a muGraph's operands, and wrong
index maps. `pytest tests/mugraph/test_movement_mutants.py` runs all of them."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from functools import cache

import numpy as np
import pytest
from moved_goals import GOALS, goal
from moved_operands import MOVED, chained
from movement_mutants import wrong_goals, wrong_maps
from mugraphs import kernel, parts

from taso_mirage.errors import InvalidOption
from taso_mirage.ir.terms import Graph, Node, substitute
from taso_mirage.meanings.index_maps import IndexMap
from taso_mirage.meanings.reals import EXACT
from taso_mirage.mugraph.checkpoint import from_json, to_json
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.mugraph.moved_goal import MovedGoal, moved_goal
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.movements import index_map, is_index_map, is_moved, moved_elements
from taso_mirage.verdicts import Evidence

KINDS = {"off by one", "other part", "missing mask", "exchanged parts", "wrong pad", "wrong row"}


@cache
def values(graph: Graph, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(1000 + seed)
    with np.errstate(all="ignore"):
        found = interpret(graph.outputs, EXACT, {x: rng.normal(size=x.shape) for x in graph.inputs})
    return [found[output] for output in graph.outputs]


def equal(mutant: Graph, goal: Graph) -> bool:
    """Whether a mutant is no mutant: nothing reads the elements that it moves otherwise."""
    pairs = [pair for seed in range(2) for pair in zip(values(mutant, seed), values(goal, seed), strict=True)]
    return all(np.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in pairs)


def one_block(moved: MovedGoal) -> Graph:
    """The muGraph of a single block, which loads the operands whole."""
    core = moved.core

    def body(*tiles: Node) -> tuple[Node, ...]:
        return substitute(core.outputs, dict(zip(core.inputs, tiles, strict=True)))

    maps = [(-1,)] * len(core.outputs)
    made = kernel([(x, (-1,), -1) for x in core.inputs], body, (1,), 1, *maps)
    outputs = parts(made) if isinstance(made.type, tuple) else [made]
    return moved.restored(Graph(core.inputs, tuple(outputs)))


def refused(name: str) -> Counter[str]:
    """The kinds of the mutants of a goal that differ from it: no check accepts one of them."""
    given = goal(GOALS[name])
    right = moved_goal(given)
    assert right.is_equal()
    assert verified_mugraph(one_block(right), given, tests=2)
    found: Counter[str] = Counter()
    for kind, wrong in wrong_goals(right):
        if equal(wrong.restored(wrong.core), given):
            continue
        assert not wrong.is_equal(), (name, kind, wrong.operands)
        assert not verified_mugraph(one_block(wrong), given, tests=2), (name, kind, wrong.operands)
        found[kind] += 1
    return found


def test_a_record_with_a_wrong_movement_is_refused() -> None:
    """A checkpoint is read back as it was, and compared with its goal."""
    given = goal(GOALS["rotary embedding"])
    right = moved_goal(given)
    found = FoundMuGraph(one_block(right), given, 1.0, "cpu", Evidence())
    record = json.loads(json.dumps(found.as_json()))
    assert FoundMuGraph.of_json(record, given).graph == found.graph
    kinds = ((kind, wrong) for kind, wrong in wrong_goals(right) if not equal(wrong.restored(wrong.core), given))
    for _, wrong in dict(kinds).items():
        record["graph"] = to_json(one_block(wrong))
        with pytest.raises(InvalidOption, match="does not compute the goal"):
            FoundMuGraph.of_json(record, given)


@pytest.mark.parametrize("name", GOALS)
def test_movements_are_read_back_as_they_were_printed(name: str) -> None:
    graph = one_block(moved_goal(goal(GOALS[name])))
    assert from_json(json.loads(json.dumps(to_json(graph)))) == graph


def operands(name: str) -> list[Node]:
    """The operands of a muGraph's kernels that are terms of movements."""
    graph = MOVED[name]("float32") if name in MOVED else chained(int(name), "float32")
    return [x for x in graph if is_moved(x) and any(x in n.args for n in graph if n.op == "kernel")]


def elements(found: IndexMap, arrays: dict[Node, np.ndarray]) -> np.ndarray | None:
    with contextlib.suppress(ValueError):
        return moved_elements(found, arrays)
    return None


@cache
def refused_maps(name: str) -> Counter[str]:
    """The kinds of the mutants of index maps that give other random elements, or none: the check of
    maps refuses each."""
    counted: Counter[str] = Counter()
    for operand in operands(name):
        right, rng = index_map(operand), np.random.default_rng(5)
        arrays = {
            x: x.attr("value").numpy()
            if x.op == "constant"
            else rng.integers(0, 2, x.shape)
            if x.dtype.startswith("int")
            else rng.normal(size=x.shape)
            for x in right.sources
        }
        wanted = moved_elements(right, arrays)
        assert is_index_map(operand, right)
        for kind, wrong in wrong_maps(right):
            found = elements(wrong, arrays)
            if found is None or not np.array_equal(found, wanted):
                assert not is_index_map(operand, wrong), (kind, wrong)
                counted[kind] += 1
    return counted


CHAINS = [str(seed) for seed in range(30)]
"""Random chains of movements."""
OPERANDS = [name for name in MOVED if name != "bodies"]
"""The muGraphs whose operands are movements; the other one has them in bodies."""


@pytest.mark.parametrize("name", [*OPERANDS, *CHAINS])
def test_wrong_index_maps_are_refused(name: str) -> None:
    assert refused_maps(name).total() > 0


def test_three_hundred_wrong_movements_are_refused() -> None:
    of_goals, of_maps = [*map(refused, GOALS)], [*map(refused_maps, [*MOVED, *CHAINS])]
    assert all(of_goals)
    counted = sum([*of_goals, *of_maps], Counter[str]())
    assert counted.total() >= 300
    assert counted.keys() >= KINDS
