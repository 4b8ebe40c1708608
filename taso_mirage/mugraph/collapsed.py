"""Collapsed dims: dims that are adjacent in every tensor are one label, so a norm over channels,
rows and columns is a norm over one long row.

The search then chooses tiles of that row instead of tiles of each dim.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.terms import Graph, Node
from taso_mirage.meanings.reals import EXACT
from taso_mirage.mugraph.axis_classes import Unifier
from taso_mirage.mugraph.derivations.scalar_terms import ScalarTerm, TermForm
from taso_mirage.mugraph.goal import is_packed
from taso_mirage.mugraph.label_trace import LabelledValue
from taso_mirage.operators.interpret import interpret

LabelRuns: TypeAlias = tuple[tuple[str, ...], ...]
"""Labels that are always adjacent in one order, outermost first."""
CLOSE = 1e-9
"""The tolerance relative to the largest result, in float64: the same sums in another order."""


def collapsed_runs(
    values: Mapping[Node, LabelledValue], terms: Sequence[ScalarTerm], unifier: Unifier, names: Mapping[int, str]
) -> LabelRuns:
    """The runs of labels of which each tensor has all, adjacent, or none, and that all folds and
    counts contain together."""
    tensors = [[names[i] for axis in v.axes for i in unifier.axis(axis)] for v in values.values()]
    tensors += [[names[i] for axis in t.axes for i in unifier.axis(axis)] for t in terms if t.kind is TermForm.LEAF]
    sets = [{names[i] for i in unifier.axis(t.labels)} for t in terms if t.labels]
    apart = {names[i] for t in terms for pair in t.pairs for i in unifier.axis(pair)}
    apart |= {names[i] for n, v in values.items() if is_packed(n) for axis in v.axes for i in unifier.axis(axis)}
    pairs = [pair for tensor in tensors for pair in pairwise(tensor) if apart.isdisjoint(pair)]
    after = {x: y for x, y in pairs if _side_by_side(x, y, tensors) and all((x in s) == (y in s) for s in sets)}
    return tuple(_chained(after))


def _side_by_side(x: str, y: str, tensors: Iterable[list[str]]) -> bool:
    return all((x in each) == (y in each) and (x not in each or each.index(y) == each.index(x) + 1) for each in tensors)


def _chained(after: Mapping[str, str]) -> Iterable[tuple[str, ...]]:
    for first in after.keys() - set(after.values()):
        run = [first]
        while run[-1] in after:
            run.append(after[run[-1]])
        yield tuple(run)


def runs_without(runs: LabelRuns, names: Collection[str]) -> LabelRuns:
    """The parts of runs between labels of these names."""
    found: list[tuple[str, ...]] = []
    for run in runs:
        part: list[str] = []
        for name in run:
            if name in names:
                found.append(tuple(part))
                part = []
            else:
                part.append(name)
        found.append(tuple(part))
    return tuple([run for run in found if len(run) > 1])


def same_results(goal: Graph, other: Graph) -> bool:
    """Whether two graphs give the same numbers in row-major order on the same random inputs in
    float64. Integers may be rows: they are -1, 0 or 1."""
    rng = np.random.default_rng(0)
    arrays = [_drawn(x, rng) for x in goal.inputs]
    found = []
    for graph in (goal, other):
        try:
            results = run_exactly(graph, [a.reshape(x.shape) for x, a in zip(graph.inputs, arrays, strict=True)])
        except (TasoMirageError, ValueError):
            return False
        found.append([np.asarray(each, np.float64).ravel() for each in results])
    return all(map(equal_results, *found))


def run_exactly(graph: Graph, inputs: Sequence[Any]) -> list[Any]:
    """The results of a graph for some inputs, in float64."""
    given: dict[Node, Any] = {x: EXACT.load(a) for x, a in zip(graph.inputs, inputs, strict=True)}
    values = interpret(graph.outputs, EXACT, given)
    return [values[o] for o in graph.outputs]


def equal_results(result: Any, wanted: Any) -> bool:
    """Whether two results are equal but for the order of sums."""
    scale = float(np.max(np.abs(wanted), initial=0.0, where=np.isfinite(wanted)))
    return result.shape == wanted.shape and np.allclose(result, wanted, rtol=0, atol=CLOSE * scale, equal_nan=True)


def _drawn(leaf: Node, rng: np.random.Generator) -> np.ndarray:
    if leaf.dtype == "bool":
        return rng.integers(0, 2, leaf.shape) > 0
    return rng.integers(-1, 2, leaf.shape) if leaf.dtype in ("int32", "int64") else rng.normal(size=leaf.shape)
