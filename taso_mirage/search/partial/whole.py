"""A corrected program against its original, and both as an Equation at their sizes: random field
tests and numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from taso_mirage.errors import Unsupported
from taso_mirage.ir.terms import Graph, Node, numpy_dtype, topological, variable
from taso_mirage.meanings.arrays import Array
from taso_mirage.meanings.reals import EXACT, REALS, Reals
from taso_mirage.meanings.residues import P
from taso_mirage.operators.expressions import Expr
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import get
from taso_mirage.rewriting.equation import Equation
from taso_mirage.search.partial.agreement import (
    ELEMENTS,
    Agreement,
    agreement,
    differing_elements,
    field_work,
    program_leaves,
    widest,
)
from taso_mirage.search.partial.correct import correct
from taso_mirage.verdicts import Evidence, Failure, FailureKind, MeasuredError

SEEDS = (1, 2, 3)
"""The seeds of the verification; none of them is the seed of the search for a region."""
TRIALS, LIMIT = 8, 4 * 10**9
"""The number of trials of a seed: fewer if they would take more than LIMIT operations or more than
ELEMENTS elements, but at least one."""
TIMES, FLOOR, HALF_FLOOR = 4, 64, 4
"""The criterion of the optimizer's check: TIMES the error of the original, or FLOOR roundings of
the largest element."""


@dataclass(frozen=True, slots=True)
class Total:
    """A verified mutant: the region where it agrees, the program with corrections, and its equation
    at these sizes with its evidence."""

    agreement: Agreement
    corrected: Graph
    equation: Equation
    evidence: Evidence


def total(original: Graph, mutant: Graph, name: str = "mutant", joined: bool = True) -> Total | Failure:
    """Test, correct and verify a mutant; a failure gives the reason."""
    try:
        found = agreement(original, mutant)
        corrected = correct(original, mutant, found, joined)
    except Unsupported as error:
        return Failure(FailureKind.EXCLUDED, str(error))
    evidence = verified_program(original, corrected)
    if isinstance(evidence, Failure):
        return evidence
    return Total(found, corrected, equation(name, original, corrected, tests_in_words(evidence)), evidence)


def verified_program(original: Graph, corrected: Graph) -> Evidence | Failure:
    """Whether two programs over the same leaves are equal everywhere: all elements in the field for
    each seed, then in numbers."""
    leaves = program_leaves(original.outputs)
    nodes = [*original.outputs, *corrected.outputs]
    trials = max(1, min(TRIALS, LIMIT // max(1, field_work(nodes)), ELEMENTS // widest(nodes)))
    for seed in SEEDS:
        for i, wrong in differing_elements(original.outputs, corrected.outputs, leaves, trials, seed):
            if wrong.any():
                place = tuple(np.argwhere(wrong)[0][1:].tolist())
                why = f"output {i} differs from the original's at {place} in the field (seed {seed})"
                return Failure(FailureKind.REFUTED, why)
    worst = _in_numbers(original, corrected, leaves, SEEDS[0])
    if isinstance(worst, Failure):
        return worst
    n = trials * len(SEEDS)
    return Evidence(tests=n, bound=float((len(leaves) / P) ** n), measured=(worst,))


def tests_in_words(evidence: Evidence) -> str:
    """The evidence of a corrected program: its field trials, and the largest error of an output."""
    (worst,) = evidence.measured
    return (
        f"equal in {evidence.tests} random field trials (a wrong program passes with probability {evidence.bound:.0e}); "
        f"relative error {worst.error:.1e} of {worst.allowed:.1e} allowed"
    )


def _in_numbers(original: Graph, corrected: Graph, leaves: Sequence[Node], seed: int) -> MeasuredError | Failure:
    """The largest error on normal inputs in the program's own dtypes."""
    rng = np.random.default_rng(seed)
    drawn = {n: rng.normal(size=[int(d) for d in n.shape]).astype(numpy_dtype(n.dtype)) for n in leaves}
    reference = _run(original, EXACT, drawn)
    measured: list[MeasuredError] = []
    for i, (r, a, b) in enumerate(
        zip(reference, _run(original, REALS, drawn), _run(corrected, REALS, drawn), strict=True)
    ):
        largest = float(np.abs(r).max(initial=0)) or 1.0
        dtype = numpy_dtype(original.outputs[i].dtype)
        floor = (HALF_FLOOR if dtype.itemsize == 2 else FLOOR) * _eps(dtype)
        error = float(np.abs(b - r).max(initial=0)) / largest
        allowed = TIMES * float(np.abs(a - r).max(initial=0)) / largest + floor
        if not error <= allowed:
            why = f"output {i} is off by {error:.3g} of its largest element; {allowed:.3g} is allowed"
            return Failure(FailureKind.INACCURATE, why)
        measured.append(MeasuredError(dtype.name, "normal", 1, error, allowed))
    return max(measured, key=lambda each: (each.error, each.allowed))


def _eps(dtype: np.dtype[Any]) -> float:
    from ml_dtypes import finfo

    return float(finfo(dtype).eps)


def _run(graph: Graph, xp: Reals, drawn: Mapping[Node, Array]) -> list[Array]:
    values = interpret(graph.outputs, xp, {n: xp.load(a) for n, a in drawn.items()})
    return [values[o].astype(np.float64) for o in graph.outputs]


def equation(name: str, original: Graph, corrected: Graph, evidence: str) -> Equation:
    """The equation original = corrected, for leaves of exactly these types.

    Leaves are x0, x1, ... in it.
    """
    leaves = program_leaves(original.outputs)
    names = {leaf: f"x{i}" for i, leaf in enumerate(leaves)}
    types = [(names[n], tuple(int(d) for d in n.shape), n.dtype) for n in leaves]
    guard = " and ".join(f"shape({name}) == {shape} and dtype({name}) == '{dtype}'" for name, shape, dtype in types)
    lhs, rhs = (_pattern(g.outputs, names) for g in (original, corrected))
    return Equation(name, lhs, rhs, Expr(guard), evidence)


def _pattern(outputs: Sequence[Node], names: Mapping[Node, str]) -> Graph:
    done: dict[Node, Node] = {leaf: variable(name) for leaf, name in names.items()}
    for node in topological(outputs):
        if node not in done:
            done[node] = node if not node.args else get(node.op).term(*[done[a] for a in node.args], **dict(node.attrs))
    return Graph(tuple(v for leaf, v in done.items() if leaf in names), tuple(done[o] for o in outputs))
