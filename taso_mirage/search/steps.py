"""The steps of a rewrite of a model, so that any prefix can be replayed (to find the first step
that breaks it)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from taso_mirage.ir.model import Model, Weight
from taso_mirage.ir.terms import Node, substitute, topological, with_args
from taso_mirage.onnx_io.bodies import Body
from taso_mirage.rewriting.equation import Equation

FOLDING = "constant folding"
"""The name, among the equations of a step, of weights that are computed in advance."""
BODIES = "bodies of a node"
"""The name of a step that replaces the bodies of an If, a Loop or a Scan, which were optimized as
separate models."""


@dataclass(frozen=True, slots=True)
class RewriteStep:
    """One rewrite: the equations behind it, and the terms that were replaced, all at once, by terms
    of the same type.

    Steps of one bottom-up sweep share its number; there, `old` is the term over operands that are
    already rewritten. `details`: the steps of one equation each that this one is made of, where
    they are known. `inside`: the changes of the bodies of the node that was replaced.
    `obligations`: the equalities between terms of one step of a loop that make two loops equal.
    `closed`: the states of loops whose values in all steps are known terms. `behind`: the results
    of loops that are computed behind them. `unrolled`: the loops of a known number of steps that
    were written out. `shown`: where a loop was made or rewritten, the old terms as terms of their
    bodies, and `called` what they are in words, where they are many.
    `over`: the terms for all values of which the equality holds, where they are known.
    """

    equations: tuple[str, ...]
    old: tuple[Node, ...]
    new: tuple[Node, ...]
    sweep: int = 0
    details: tuple[RewriteStep, ...] = ()
    inside: tuple[BodySteps, ...] = field(default=(), compare=False, repr=False)
    obligations: tuple[RewriteStep, ...] = field(default=(), compare=False, repr=False)
    closed: tuple[ClosedState, ...] = field(default=(), compare=False, repr=False)
    behind: tuple[BehindLoop, ...] = field(default=(), compare=False, repr=False)
    unrolled: tuple[Node, ...] = field(default=(), compare=False, repr=False)
    shown: tuple[Node, ...] = field(default=(), compare=False, repr=False)
    called: str = field(default="", compare=False, repr=False)
    over: frozenset[Node] | None = field(default=None, compare=False, repr=False)

    @property
    def table(self) -> dict[Node, Node]:
        return {old: new for old, new in zip(self.old, self.new, strict=True) if old is not new}


@dataclass(frozen=True, slots=True)
class ClosedState:
    """A state of the loop with this result, and the terms that are its values after each step, and
    before it. Later ones of a step may be of the loop without this state."""

    result: Node
    state: int
    values: Node
    before: Node


@dataclass(frozen=True, slots=True)
class BehindLoop:
    """A result of a loop, the states through whose new values alone it depends on states, and the
    term that computes it from these for all steps."""

    result: Node
    states: tuple[int, ...]
    whole: Node


@dataclass(frozen=True, slots=True)
class BodySteps:
    """The steps from the terms of a body to those of the model in its place, with every weight that
    a state in between needs, and equations that only these steps name."""

    body: Body
    model: Model
    steps: tuple[RewriteStep, ...]
    weights: Mapping[str, Weight]
    equations: Mapping[str, Equation]


def replay(outputs: Sequence[Node], steps: Sequence[RewriteStep]) -> tuple[Node, ...]:
    """`outputs` after the steps, in their order.

    Linear for each sweep and for each step outside of sweeps.
    """
    current = tuple(outputs)
    for sweep, group in groupby(steps, key=lambda step: step.sweep):
        if sweep:
            current = _sweep(current, {old: new for step in group for old, new in step.table.items()})
            continue
        for step in group:
            current = substitute(current, step.table)
    return current


def claimed(outputs: Sequence[Node], steps: Sequence[RewriteStep]) -> dict[Node, Node]:
    """For each term below `outputs`, the term after the steps; the steps claim that both are
    equal."""
    nodes = topological(outputs)
    return dict(zip(nodes, replay(nodes, steps), strict=True))


def folded_from(steps: Sequence[RewriteStep]) -> dict[Node, Node]:
    """For each weight that the steps computed in advance, the term from which it was computed. A
    constant stands for itself: the reshape of a constant is that constant, which is its operand."""
    folded = [pair for step in steps if step.equations == (FOLDING,) for pair in step.table.items()]
    return {new: old for old, new in folded if new.op == "weight"}


def used(outputs: Sequence[Node], steps: Sequence[RewriteStep]) -> set[Node]:
    """The terms that the steps of one sweep, or one step, replace in `outputs`."""
    table = {old: new for step in steps for old, new in step.table.items()}
    if any(step.sweep for step in steps):
        met: set[Node] = set()
        _sweep(tuple(outputs), table, met)
        return met
    return {node for node in topological(outputs) if node in table}


def _sweep(outputs: tuple[Node, ...], table: Mapping[Node, Node], met: set[Node] | None = None) -> tuple[Node, ...]:
    """The outputs with terms replaced, over operands that are already replaced; `met` receives the
    terms that were replaced."""
    done: dict[Node, Node] = {}
    for node in topological(outputs):
        current, seen = with_args(node, tuple(done[a] for a in node.args)), set[Node]()
        while current in table and current not in seen:
            seen.add(current)
            current = table[current]
        done[node] = current
        if met is not None:
            met |= seen
    return tuple(done[o] for o in outputs)
