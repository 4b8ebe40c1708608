"""Proofs at fixed sizes: every element of both sides as a polynomial, with expanded folds; Z3
decides if the polynomials differ."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import product

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.dims import Symbolic
from taso_mirage.ir.dims import dim_product as volume
from taso_mirage.ir.terms import Node, topological
from taso_mirage.meanings.conditions import Unprovable
from taso_mirage.meanings.polynomials import infinite
from taso_mirage.prove.cases import Element
from taso_mirage.prove.counterexample import find_counterexample
from taso_mirage.prove.elements import Elements
from taso_mirage.prove.fingerprint import fingerprint
from taso_mirage.prove.matching import Matching
from taso_mirage.prove.symbolic import ELSEWHERE, Proved, denoted_elements, settled, undefined, unproved
from taso_mirage.verdicts import Failure, FailureKind, failed

BUDGET = 200_000
ELEMENTS = 4096
"""The largest number of elements of an output that is expanded."""


def prove_bounded(lhs: Sequence[Node], rhs: Sequence[Node], budget: int = BUDGET) -> Proved | Failure:
    """Whether all elements are equal at these sizes, which must be fixed.

    A refuted equality has concrete inputs that show a difference.
    """
    if any(isinstance(d, Symbolic) for n in topological([*lhs, *rhs]) if n.op in ("input", "weight") for d in n.shape):
        return unproved("the sizes are not fixed")
    xp = Elements(budget, unroll=sys.maxsize)
    try:
        matching = Matching(xp.algebra)
        for i, (a, b) in enumerate(denoted_elements(xp, lhs, rhs)):
            why = _differ(xp, matching, a, b)
            if why is not None:
                return _judged(lhs, rhs, unproved(f"output {i}, {why}", xp.indices.steps))
        for i, (a, b) in enumerate(undefined(xp, lhs, rhs)):
            if _differ(xp, matching, a, b) is not None:
                return unproved(f"output {i}: {ELSEWHERE}", xp.indices.steps)
    except (Unprovable, TasoMirageError, RecursionError, LookupError, ValueError, TypeError, ArithmeticError) as error:
        return _judged(lhs, rhs, unproved(str(error) or type(error).__name__, xp.indices.steps))
    return Proved(xp.indices.steps)


def _differ(xp: Elements, matching: Matching, a: Element, b: Element) -> str | None:
    if int(volume(a.shape)) > ELEMENTS:
        raise Unprovable(f"{volume(a.shape)} elements")
    for place in product(*[range(int(n)) for n in a.shape]):
        ((_, p),), ((_, q),) = a.at(place), b.at(place)
        if p == q and infinite(p) == infinite(q):
            continue
        if infinite(p) or infinite(q) or not (matching.same(p, q, ()) or settled(matching, p, q, (), a.type.dtype)):
            return f"element {place}"
    return None


def _judged(lhs: Sequence[Node], rhs: Sequence[Node], why: Failure) -> Failure:
    """Refute an equality if float64 arithmetic shows a difference. A difference in the field alone
    is no difference over the reals."""
    try:
        verdict = fingerprint(lhs, rhs)
    except (IndexError, ValueError, TasoMirageError):
        return why
    if not failed(verdict, FailureKind.REFUTED):
        return why
    found = find_counterexample(lhs, rhs, verdict)
    return why if found.note else Failure(FailureKind.REFUTED, "float64 arithmetic shows a difference", found)
