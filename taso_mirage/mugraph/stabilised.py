"""Stabilised exponentials: the values of a muGraph that are stored relative to a maximum, derived
by degrees.

exp(s) has degree 1 in s; products add degrees, quotients subtract them, sums need equal ones. A
value of degree d is computed times exp(-d m), m the maximum of s over the labels that are summed
away, so nothing overflows; a result has degree 0, where m cancels. The rolling and the split update
of Neptune (PLDI'26) follow: an accumulator is rescaled when its maximum grows. A value without a
degree of 0 is computed bare, as the model writes it, if that costs only an overflow that the
model's own result has (`bare.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from taso_mirage.mugraph.closure import Closure
from taso_mirage.mugraph.derivations.kind import DerivationEdge, largest_operand
from taso_mirage.mugraph.derivations.overflow import NO_DEGREE, Degree, OverflowEffect
from taso_mirage.mugraph.kernel_bodies import KernelBody, Plan
from taso_mirage.verdicts import Failure, FailureKind


@dataclass(frozen=True, slots=True)
class Stabiliser:
    """The maximum of the class `of` over the labels `over`, to which one kernel keeps its values;
    `labels` are those that it has."""

    of: int
    over: frozenset[str]
    labels: frozenset[str]


@dataclass(frozen=True, slots=True)
class Stabilisation:
    """One kernel: the degree of each of its classes, the stabiliser of each class that is
    exponentiated, and for each exponential that is stabilised the class whose stabiliser it is
    relative to.

    `bare`: the classes that are computed as the model writes them; those of `stable` are computed
    relative to maxima (one may be both).
    """

    degrees: Mapping[int, Degree]
    stabilisers: Mapping[int, Stabiliser]
    keys: Mapping[int, int] = field(default_factory=dict)
    stable: frozenset[int] = frozenset()
    bare: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class _Value:
    """A class: its degree, None where it has none; its effect if it is computed bare; whether it is
    computed so wherever it is used; and for an exponential the maximum that it is relative to, with
    the labels over which its own exponent is the maximum of that."""

    degree: Degree | None
    bare: OverflowEffect
    alone: bool = False
    key: int | None = None
    top: frozenset[str] = frozenset()


_Values = dict[int, _Value]
Asked = tuple[int, bool]
"""A class, and whether it is needed bare."""


def stabilisation(plan: Plan, closure: Closure) -> tuple[Stabilisation, ...] | Failure:
    """The stabilisers of each kernel, or the reason why a muGraph cannot be stabilised."""
    stored: _Values = {}
    values: list[_Values] = []
    for kernel in plan:
        values.append(_values(kernel.body, stored, closure))
        stored |= {t: values[-1][t] for t in kernel.body.targets}
    return _stabilised(plan, values, closure)


def storable(body: KernelBody, closure: Closure) -> bool:
    """Whether a first kernel's results can be kept relative to maxima, or be computed bare."""
    values = _values(body, {}, closure)
    asked = _asked(body, values, [(t, values[t].degree is None) for t in body.targets])
    return not isinstance(asked, Failure) and not isinstance(_safe(body, values, asked, closure, {}), Failure)


# ---------------------------------------------------------------- degrees


def _values(body: KernelBody, stored: Mapping[int, _Value], closure: Closure) -> _Values:
    found: _Values = {leaf: stored[leaf] for leaf in body.leaves}
    chosen = dict(body.chosen)
    for made, edge in body.chosen:
        below = [found[a] for a in edge.args]
        of, top, bounded = None, frozenset[str](), False
        if edge.kind.exponential:
            (exponent,) = edge.args
            of, top = largest_operand(exponent, chosen)
            bounded = exponent in chosen and chosen[exponent].kind.bounded(chosen[exponent], chosen)
        degree = _degree(edge, of, [v.degree for v in below])
        number = closure.goal.constants.get(edge.kind.reads or "")
        alike = edge.kind.bare(edge, [v.bare for v in below], number, bounded)
        if bounded and below[0].degree == NO_DEGREE:
            degree, of = NO_DEGREE, None
        alone = degree is None and not alike.grows and not alike.ill
        if alone or degree == NO_DEGREE:
            alike, degree = alike.kept(), NO_DEGREE
        found[made] = _Value(degree, alike, alone, of, top)
    return found


def _degree(edge: DerivationEdge, of: int | None, below: Sequence[Degree | None]) -> Degree | None:
    known = [d for d in below if d is not None]
    found = edge.kind.degree(known, of) if len(known) == len(below) else None
    return found if found is None or len(found) < 2 else None  # exp(a) exp(b): each may vanish where the other is huge


# ---------------------------------------------------------------- stable or bare


def _stabilised(plan: Plan, values: Sequence[_Values], closure: Closure) -> tuple[Stabilisation, ...] | Failure:
    """For each kernel, the classes that it computes relative to maxima and those that it computes
    bare; results of the last kernel that have a degree are bare."""
    wanted = {(t, values[-1][t].degree != NO_DEGREE) for t in closure.targets}
    asked: list[set[Asked]] = []
    for kernel, own in zip(reversed(plan), reversed(values), strict=True):
        here = _asked(kernel.body, own, [each for each in wanted if each[0] in kernel.body.targets])
        if isinstance(here, Failure):
            return here
        asked.insert(0, here)
        wanted |= {each for each in here if each[0] in kernel.body.leaves}
    if any((c, not plainly) in wanted for c, plainly in wanted):
        return _unsafe("exponentials that one kernel stores are needed both as they are and relative to their maximum")
    before: dict[int, Stabiliser] = {}
    found: list[Stabilisation] = []
    for kernel, own, each in zip(plan, values, asked, strict=True):
        stable = _safe(kernel.body, own, each, closure, before)
        if isinstance(stable, Failure):
            return stable
        found.append(stable)
    return tuple(found)


def _unsafe(reason: str) -> Failure:
    return Failure(FailureKind.INACCURATE, reason)


def _asked(body: KernelBody, values: _Values, results: Sequence[Asked]) -> set[Asked] | Failure:
    """The classes that are needed for some results, each with whether it is computed bare."""
    chosen = dict(body.chosen)
    found = set[Asked]()
    waiting = list(results)
    while waiting:
        c, plainly = waiting.pop()
        plainly = values[c].alone or (plainly and values[c].degree != NO_DEGREE)
        if (c, plainly) not in found:
            if plainly and values[c].bare.ill:
                return _unsafe(values[c].bare.ill)
            found.add((c, plainly))
            waiting += [(a, plainly) for a in chosen[c].args] if c in chosen else []
    return found


def _safe(
    body: KernelBody, values: _Values, asked: set[Asked], closure: Closure, before: dict[int, Stabiliser]
) -> Stabilisation | Failure:
    """One kernel; the maxima that it stores are noted in `before`."""
    stable, plainly = (frozenset(c for c, each in asked if each is which) for which in (False, True))
    degrees = {c: value.degree or NO_DEGREE if c in stable else NO_DEGREE for c, value in values.items()}
    stabilisers = _stabilisers(body, degrees, stable, closure, before)
    if isinstance(stabilisers, Failure):
        return stabilisers
    keys = {c: key for c in sorted(stable) if (key := values[c].key) is not None and degrees[c]}
    for c, key in keys.items():
        if values[c].top and values[c].top != stabilisers[key].over:
            return _unsafe("the maximum that a model takes is over other axes than the sums of its exponentials")
    if body.cluster is not None and any(degrees[c] for c in {*body.targets} - body.joint()):
        return _unsafe("a value relative to the maximum of a block is stored beside one that its cluster combines")
    relative = {k for t in body.targets if t not in plainly for k in degrees[t]}
    before |= {k: stabilisers[k] for k in sorted(relative)}
    return Stabilisation(degrees, stabilisers, keys, stable, plainly)


def _stabilisers(
    body: KernelBody,
    degrees: Mapping[int, Degree],
    stable: frozenset[int],
    closure: Closure,
    before: Mapping[int, Stabiliser],
) -> dict[int, Stabiliser] | Failure:
    over: dict[int, set[str]] = {k: set() for d in degrees.values() for k in d}
    for result, edge in body.chosen:
        for key in degrees[result] if edge.label is not None else ():
            over[key].add(edge.label)  # type: ignore[arg-type]
    found: dict[int, Stabiliser] = {}
    made = {c for c, _ in body.chosen}
    for key, labels in over.items():
        has = before[key].labels if key in before else closure.classes[key]
        again = key in made and key in before and not labels  # relative to a value that an earlier kernel stored
        if not again and ((key in made) == (key in before) or (key in made and not labels)):
            return _unsafe("an exponential is computed twice, or stored where nothing bounds it")
        found[key] = Stabiliser(key, frozenset(labels), has - labels)
    if not all(found[k].labels <= closure.classes[c] for c, d in degrees.items() for k in d):
        return _unsafe("a value that lacks an axis of a maximum cannot be kept relative to it")
    if not all(_holds(e, degrees, closure, found) for c, e in body.chosen if c in stable):
        return _unsafe("a denominator may vanish: it is not summed over all that its maximum is taken over")
    return found


def _holds(
    edge: DerivationEdge, degrees: Mapping[int, Degree], closure: Closure, found: Mapping[int, Stabiliser]
) -> bool:
    """Whether a denominator is summed over all that its stabiliser is the maximum over."""
    below = edge.kind.denominator(edge)
    return below is None or all(closure.classes[below] & closure.classes[k] <= found[k].labels for k in degrees[below])
