"""Stabilised exponentials: which values of a muGraph are kept relative to a maximum, derived by degrees (KERNELS.md, step 8).

exp(s) has degree 1 in s; products add degrees, quotients subtract them, sums need equal ones. A value of degree d is computed times
exp(-d m), m the maximum of s over the labels that are summed away, so nothing overflows; a result has degree 0, where m cancels.
The rolling and the split update of Neptune (PLDI'26) follow: an accumulator is rescaled when its maximum grows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from taso_mirage.kernels.closure import Closure, Edge
from taso_mirage.kernels.structures import Body, Plan

Degree = Mapping[int, Fraction]
"""The degree of a value in exp of each class that it hangs on; 0 is left out."""
NONE: Degree = {}


@dataclass(frozen=True, slots=True)
class Stabiliser:
    """The maximum of the class `of` over the labels `over`, to which one kernel keeps its values; `labels` are those that it has."""

    of: int
    over: frozenset[str]
    labels: frozenset[str]


@dataclass(frozen=True, slots=True)
class Safe:
    """One kernel: the degree of each of its classes, and the stabiliser of each class that is exponentiated."""

    degrees: Mapping[int, Degree]
    stabilisers: Mapping[int, Stabiliser]


def safe(plan: Plan, closure: Closure) -> tuple[Safe, ...] | None:
    """The stabilisers of each kernel, or None where a muGraph cannot be stabilised.

    Exponentials that are still in a result are the model's own, and are left as they are; but not where the same ones cancel elsewhere,
    as they would in a softmax that the model computes safely.
    """
    plain: frozenset[int] = frozenset()
    whole = _all_degrees(plan, plain)
    while True:
        found = _all_degrees(plan, plain)
        if found is None:
            return None
        kept = frozenset(k for t in closure.targets for k in found[-1].get(t, NONE))
        if not kept:
            break
        plain |= kept
        if any(_cancels(kernel.body, degrees, plain) for kernel, degrees in zip(plan, whole or (), strict=True)):
            return None
    before: dict[int, Stabiliser] = {}
    results: list[Safe] = []
    for kernel, degrees in zip(plan, found, strict=True):
        stabilisers = _stabilisers(kernel.body, degrees, closure, before)
        if stabilisers is None:
            return None
        before |= stabilisers
        results.append(Safe(degrees, stabilisers))
    return tuple(results)


def storable(body: Body, closure: Closure) -> bool:
    """Whether a first kernel's results can be kept relative to maxima."""
    degrees = _degrees(body, {}, frozenset())
    return degrees is not None and _stabilisers(body, degrees, closure, {}) is not None


def _all_degrees(plan: Plan, plain: frozenset[int]) -> list[dict[int, Degree]] | None:
    stored: dict[int, Degree] = {}
    found: list[dict[int, Degree]] = []
    for kernel in plan:
        degrees = _degrees(kernel.body, stored, plain)
        if degrees is None:
            return None
        stored |= {t: degrees[t] for t in kernel.body.targets}
        found.append(degrees)
    return found


def _cancels(body: Body, degrees: Mapping[int, Degree], keys: frozenset[int]) -> bool:
    """Whether an exponential of `keys` is divided out somewhere."""
    for _, edge in body.chosen:
        if edge.op in ("mul", "dot", "div"):
            a, b = (degrees[arg] for arg in edge.args)
            sign = -1 if edge.op == "div" else 1
            if any(a.get(k, 0) * b.get(k, 0) * sign < 0 for k in keys):
                return True
    return False


def _degrees(body: Body, stored: Mapping[int, Degree], plain: frozenset[int]) -> dict[int, Degree] | None:
    found: dict[int, Degree] = {leaf: stored[leaf] for leaf in body.leaves}
    for made, edge in body.chosen:
        degree = _degree(edge, [found[a] for a in edge.args], plain)
        if degree is None or len(degree) > 1:  # exp(a) exp(b) for exp(a + b): each may vanish where the other is huge
            return None
        found[made] = degree
    return found


def _degree(edge: Edge, below: Sequence[Degree], plain: frozenset[int]) -> Degree | None:
    if edge.op in ("mul", "dot"):
        return _sum(below[0], below[1], 1)
    if edge.op == "div":
        return _sum(below[0], below[1], -1)
    if edge.op in ("sum", "mean"):
        return below[0]
    if edge.op in ("add", "sub"):
        return below[0] if below[0] == below[1] else None
    if edge.op == "map" and edge.name == "sqrt":
        return {k: d / 2 for k, d in below[0].items()}
    if any(below):
        return None
    if edge.op == "map" and edge.name == "exp" and edge.args[0] not in plain:
        return {edge.args[0]: Fraction(1)}
    return NONE


def _sum(a: Degree, b: Degree, sign: int) -> Degree:
    found = {k: a.get(k, Fraction(0)) + sign * b.get(k, Fraction(0)) for k in (*a, *b)}
    return {k: d for k, d in found.items() if d}


def _stabilisers(
    body: Body, degrees: Mapping[int, Degree], closure: Closure, before: Mapping[int, Stabiliser]
) -> dict[int, Stabiliser] | None:
    over: dict[int, set[str]] = {k: set() for d in degrees.values() for k in d}
    for result, edge in body.chosen:
        for key in degrees[result] if edge.label is not None else ():
            over[key].add(edge.label)  # type: ignore[arg-type]
    found: dict[int, Stabiliser] = {}
    made = {c for c, _ in body.chosen}
    for key, labels in over.items():
        has = before[key].labels if key in before else closure.classes[key]
        if (key in made) == (key in before) or (key in made and not labels):
            return None  # computed twice, or exp(s) stored as it is: nothing would bound it
        found[key] = Stabiliser(key, frozenset(labels), has - labels)
    fits = all(found[k].labels <= closure.classes[c] for c, d in degrees.items() for k in d)
    # A value that lacks a label of its stabiliser cannot be kept relative to it; a denominator may vanish unless it holds the largest.
    return found if fits and all(_holds(e, degrees, closure, found) for _, e in body.chosen) else None


def _holds(edge: Edge, degrees: Mapping[int, Degree], closure: Closure, found: Mapping[int, Stabiliser]) -> bool:
    """Whether a denominator is summed over all that its stabiliser is the maximum over."""
    if edge.op != "div":
        return True
    below = edge.args[1]
    return all(closure.classes[below] & closure.classes[k] <= found[k].labels for k in degrees[below])
