"""Fingerprints: two graphs evaluated on the same independent random residues, the first rung of the
evidence ladder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from taso_mirage.ir.terms import Node, topological
from taso_mirage.meanings.field import Field, Residues, agree
from taso_mirage.operators.interpret import interpret
from taso_mirage.verdicts import Counterexample, Failure, FailureKind


@dataclass(frozen=True, slots=True)
class Agreed:
    """The verdict that two graphs agree on a number of valid trials."""

    trials: int


def fingerprint(
    lhs: Sequence[Node], rhs: Sequence[Node], trials: int = 8, seed: int = 0, xp: Field | None = None
) -> Agreed | Failure:
    """Compare two lists of typed terms over the same leaves.

    Sizes must be fixed. A given field continues its random sequence.

    A failure is refuted, with the first difference of the residues, or undecided: no trial was
    valid (a zero denominator or an open order in each), or a term has no definition.
    """
    xp = xp or Field(trials, seed)
    trials = xp.trials
    env = {n: xp.fresh(n.tensor) for n in topological([*lhs, *rhs]) if n.op in ("input", "weight")}
    values = interpret([*lhs, *rhs], xp, env)
    valid = trials
    for i, (left, right) in enumerate(zip(lhs, rhs, strict=True)):
        verdict = _same(values[left], values[right])
        if verdict is None:
            why = "no trial decides: each divides by zero, or orders numbers that are equal modulo p alone"
            return Failure(FailureKind.UNDECIDED, why)
        if not verdict:
            difference = _first_difference(values[left], values[right])
            return Failure(FailureKind.REFUTED, difference, Counterexample(i, note=difference))
        a: Any = values[left]
        valid = min(valid, int(a.valid.sum()) if isinstance(a, Residues) else trials)
    return Agreed(valid)


def _same(a: Any, b: Any) -> bool | None:
    if isinstance(a, tuple):
        verdicts = [_same(x, y) for x, y in zip(a, b, strict=True)]
        return None if None in verdicts else all(verdicts)
    return agree(a, b)


def _first_difference(a: Any, b: Any) -> str:
    if isinstance(a, tuple):
        return next(_first_difference(x, y) for x, y in zip(a, b, strict=True) if not _same(x, y))
    if a.shape != b.shape:
        return f"shapes {list(a.shape)} and {list(b.shape)}"
    valid = a.valid & b.valid
    for trial in valid.nonzero()[0]:
        left, right = a.data[0, trial], b.data[0, trial]
        for place in np.argwhere(left != right):
            index = tuple(int(i) for i in place)
            return f"trial {trial}, element {index}: {left[index]} against {right[index]}"
    return "the residues modulo q differ"
