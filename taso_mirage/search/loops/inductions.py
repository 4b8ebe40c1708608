"""Proofs that two loops are equal, by induction over their steps: their states before the first
step are equal, and what a step computes is equal for all states and at every place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import ABSENT, Graph, Node, is_constant, substitute, topological, variable
from taso_mirage.onnx_io.loops import STEP, state_leaves, step_leaves
from taso_mirage.onnx_io.states import is_zero
from taso_mirage.operators.interpret import definition
from taso_mirage.operators.ops import term, traits
from taso_mirage.prove.rules.cases import cut_free
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.search.steps import RewriteStep

INDUCTION = "a loop as an operator"
"""The name of the equalities, among those of a step."""


def loop_in(layer: Node) -> Node:
    """The loop in the definition of a term."""
    inner = definition(term("item", layer, index=0), parts=True)
    return next(n for n in topological([] if inner is None else [inner]) if traits(n).lowering is Lowering.STEPS)


def outputs_of_step(loop: Node, states: Sequence[Node] = ()) -> tuple[Node, ...]:
    """The outputs of a step over variables for the states, or these terms, and over elements of the
    sequences at the place `STEP`."""
    body: Graph = loop.attr("body")
    leaves = step_leaves(loop, loop.args)[1]
    given = (*states, *leaves[len(states) :])
    return substitute(body.outputs, dict(zip(body.inputs, given, strict=True)))


def equal_loops(
    loop: Node, other: Node, places: Mapping[int, int], fixed: Iterable[Node], proofs: Proofs
) -> tuple[RewriteStep, ...] | None:
    """The equalities by which results of a loop are those of another one at `places`; None where
    one of them is not proved. `fixed`: terms for all values of which a step is equal, besides the
    states and the place."""
    states, others = loop.attr("states"), other.attr("states")
    matched = {j: i for i, j in places.items() if i < states}
    if _steps(loop) != _steps(other) or sorted(matched) != list(range(others)):
        return None
    variables = state_leaves(loop.args[:states])
    old = outputs_of_step(loop)
    new = outputs_of_step(other, [variables[matched[j]] for j in range(others)])
    cut = [*variables, STEP, *_read_by(old, fixed)]
    pairs = [(loop.args[i], other.args[j], [] if is_zero(loop.args[i]) else [loop.args[i]]) for j, i in matched.items()]
    pairs += [(old[i], new[j], cut) for i, j in places.items()]
    found = []
    for one, two, leaves in dict.fromkeys((a, b, tuple(c)) for a, b, c in pairs if a is not b):
        over = [a for a in dict.fromkeys(leaves) if a is not ABSENT and not is_constant(a)]
        if not is_equal(one, two, over, proofs):
            return None
        found.append(RewriteStep((INDUCTION,), (one,), (two,), over=frozenset(over)))
    return tuple(found)


def over_definition(layer: Node, result: Node) -> Node:
    """A result over an operator, as one over the loop in the operator's definition."""
    parts = [n for n in topological([result], stop={layer}) if n.args and n.args[0] is layer]
    table = {part: definition(part, parts=True) or part for part in parts}
    return substitute((result,), table)[0]


def is_equal(old: Node, new: Node, leaves: Sequence[Node], proofs: Proofs) -> bool:
    """Whether two terms are proved to be equal for all values of some leaves."""
    cut = {a: variable(f"x{i}", a.tensor) for i, a in enumerate(leaves)}
    try:
        return bool(proofs.judge(cut_free((old,), (new,), cut)))
    except TasoMirageError:
        return False


def _steps(loop: Node) -> tuple[object, ...]:
    """The number of steps and their direction."""
    return loop.args[loop.attr("states")].shape[0], loop.attr("backward")


def _read_by(outputs: Sequence[Node], fixed: Iterable[Node]) -> list[Node]:
    """The highest terms below some, which may be these, that outputs read."""
    below, found, waiting = set(topological(outputs)), list[Node](), list(fixed)
    while waiting:
        node = waiting.pop()
        (found if node in below else waiting).extend([node] if node in below else node.args)
    return found
