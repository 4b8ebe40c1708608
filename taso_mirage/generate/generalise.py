"""From an equation with every attribute fixed to the most general rule that survives the fuzz:
attributes become names and guards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from taso_mirage.errors import IllTyped, Undecidable
from taso_mirage.generate.concrete import Concrete, Forms, Site, Slot, partly
from taso_mirage.ir.terms import Node, topological
from taso_mirage.operators.expressions import Expr, names_in_expression
from taso_mirage.prove.rules import guards
from taso_mirage.prove.rules.fuzz import Typing, typings
from taso_mirage.prove.rules.guards import TRIALS, Settled, infer_guard, judged, weakest
from taso_mirage.prove.rules.random_typings import VariableTypes
from taso_mirage.rewriting.equation import Equation
from taso_mirage.rewriting.library import Rule, operator_count, rule_name
from taso_mirage.rewriting.text import show_equation
from taso_mirage.verdicts import Evidence, Failure, FailureKind

DRAWN, QUICK = 800, 24
"""The number of draws that decide whether a more general form is worth examining, and the number of
their typings that are tested."""
VARIED = 3
"""The smallest number of tested typings with another value of the attribute than the given one.
With fewer, the form is not more general."""


class Reach(NamedTuple):
    """The generality of a form, for comparison: whether it has no guard, the number of its typings,
    and the number of tested typings that passed."""

    unguarded: bool
    typings: int
    passed: int


NONE = Reach(False, 0, 0)


def generalise(
    equation: Equation,
    given: VariableTypes,
    seed: int = 0,
    family: str = "rule",
    operators: int = 0,
    wanted: int = guards.TYPINGS,
) -> Rule | Failure:
    """The most general form of an equation that the fuzz lets pass, with the guard that it needs.

    `given` types the variables in letters; letters in attributes are sizes. Deterministic.
    """
    left, right = ({n.attr("name") for n in side if n.op == "input"} for side in (equation.lhs, equation.rhs))
    if right - left:
        return _excluded(equation, f"{min(right - left)} is on the right side only")
    try:
        work = Concrete(equation, given)
    except (Undecidable, IllTyped) as error:
        return _excluded(equation, f"it has no general form: {error}")
    search = _Search(work, seed)
    forms = search.most_general()
    verdict: Settled | Failure | None = None
    for each in (forms, work.fixed):
        verdict, attributes = search.settle(each, wanted)
        if isinstance(verdict, Settled):
            evidence = Evidence(TRIALS, verdict.typings)
            name = rule_name(family, verdict.equation)
            settled = replace(verdict.equation, name=name, evidence="library")
            kept = guards.stated_values(settled, attributes)
            kept = tuple((n, partly(v, work.sizes)) for n, v in kept)
            return Rule(name, operators or operator_count(equation), work.at(work.given), kept, settled, evidence)
    assert isinstance(verdict, Failure)
    return replace(verdict, equation=show_equation(equation))


def _excluded(equation: Equation, reason: str) -> Failure:
    return Failure(FailureKind.EXCLUDED, reason, equation=show_equation(equation))


class _Search:
    """Attribute by attribute the most general form of a concrete equation."""

    def __init__(self, work: Concrete, seed: int) -> None:
        self.work, self.seed = work, seed

    def most_general(self) -> Forms:
        """For each slot, the first form from general to fixed that holds (with a guard, if
        necessary) and is more general."""
        forms = dict(self.work.fixed)
        slots = self.work.slots()
        for slot in slots:
            if any(forms[s] is not self.work.fixed[s] or _named(forms[s]) for s in (*slot.left, *slot.right)):
                continue  # it went with another one
            for alike in self.candidates(slot, slots, forms):
                trials = [{**forms, **c} for c in alike]
                most = len(alike) > 1
                found = [self._varied(t, c, most) if t != forms else NONE for t, c in zip(trials, alike, strict=True)]
                if alike and max(found).passed >= VARIED:
                    forms = trials[found.index(max(found))]
                    break
        return forms

    def settle(self, forms: Forms, wanted: int) -> tuple[Settled | Failure, tuple[tuple[str, Any], ...]]:
        """The verdict on a form; a name that its guard fixes is no name."""
        built, attributes = self.work.build(forms)
        verdict = infer_guard(built, self.work.given, attributes, wanted, self.seed)
        if isinstance(verdict, Settled):
            equal = {c.source for c in verdict.conditions}
            fixed = {n for n, v in attributes if f"{n} == {v!r}" in equal}
            users = {s for s, f in forms.items() if isinstance(f, Expr) and names_in_expression(f.source) & fixed}
            users = {s for s in users if not _named(self.work.fixed[s])}
            if users:
                return self.settle({s: self.work.fixed[s] if s in users else f for s, f in forms.items()}, wanted)
        return verdict, attributes

    def _varied(self, forms: Forms, candidate: Forms, most: bool) -> Reach:
        """How many typings pass that the fixed form does not match; `most`: of all draws, to
        compare forms."""
        built, attributes = self.work.build(forms, packed=False)
        at_given = dict(attributes)
        new = sorted({v.name for v in candidate.values() if isinstance(v, Expr) and v.name})
        ranks = {n: len(t.shape or ()) for n, t in self.work.given}

        def varies(t: Typing) -> bool:
            if new:
                return any(t.names[n] != at_given[n] for n in new)
            return any(len(t.names[n].shape) != r for n, r in ranks.items())

        chosen: tuple[list[Typing], list[Typing]] = ([], [])
        for typing in typings(built, self.seed, DRAWN, self.work.given, attributes):
            chosen[varies(typing)].append(typing)
            if len(chosen[True]) >= QUICK and not most:
                break
        tested = (*chosen[True][:QUICK], *chosen[False][: QUICK // 2])
        found = judged(tested, len(tested), self.seed, failures=len(tested))
        passing = found.passing
        if found.failing:
            pinned = {f"{n} == {at_given[n]!r}" for n in new}
            guard = weakest(built, found, self.work.given, attributes, lambda c: c.source not in pinned)
            passing = tuple(t for t in passing if guard is not None and all(c(t.names) for c in guard))
        count = sum(map(varies, passing))
        return Reach(not found.failing and count >= VARIED, count * len(chosen[True]), count)

    # ------------------------------------------------------------ candidates

    def candidates(self, slot: Slot, slots: list[Slot], forms: Forms) -> Iterator[list[dict[Site, Any]]]:
        """Forms of a slot's attributes, the most general first; those that are as general as each
        other together."""
        if slot.left:
            name = self.work.name(slot.left[0], forms)
            if slot.sort == "axis":
                ranked = self._all_ranked(slot)
                if ranked is not None and len({min(names_in_expression(f.source)) for f in ranked.values()}) > 1:
                    yield [ranked]
                yield [self._axis(slot, name)]
            elif slot.sort == "perm":
                yield from self._permuted(slot, slots, name, forms)
            else:
                shared = {s: Expr(name) for s in (*slot.left, *slot.right)}
                if derived := self._derived(slot, slots, name):
                    yield [{**shared, **derived}]
                yield [shared]
        yield from ([c] for c in self._ranked(slot))

    def _axis(self, slot: Slot, name: str) -> dict[Site, Any]:
        """`i` wherever it is; as one of `axes` it is (i,), or i[0] where only `axes` can bind
        it."""
        return {s: self._as_axis(slot, s, name) for s in (*slot.left, *slot.right)}

    def _as_axis(self, slot: Slot, site: Site, name: str) -> Expr:
        bare = any(s[1] == "axis" for s in slot.left)
        if site[1] == "axis":
            return Expr(name if bare else f"{name}[0]")
        return Expr(f"({name},)" if bare else name)

    def _permuted(self, slot: Slot, slots: list[Slot], name: str, forms: Forms) -> Iterator[list[dict[Site, Any]]]:
        """A permutation and its inverse wherever they fit, with the axes that it moves."""
        first, *others = (*slot.left, *slot.right)
        twice = [name, f"inverse({name})"] if slot.value == _inverse(slot.value) else [name]
        choices = product([Expr(t) for t in twice], repeat=len(others))
        plain = [{first: Expr(name), **dict(zip(others, c, strict=True))} for c in choices]
        plain = [{**c, **self._derived(slot, slots, name)} for c in plain]
        moved = [m for other in slots for m in self._moved(slot, other, slots, name, forms)]
        moved += self._anchored(slot, slots, name)
        if moved:
            yield [{**c, **m} for c in plain for m in moved]
        yield plain

    def _moved(self, slot: Slot, axis: Slot, slots: list[Slot], p: str, forms: Forms) -> Iterator[dict[Site, Any]]:
        """An axis of the left side as a name, and on the right side that axis before or after the
        permutation."""
        if axis.sort != "axis" or not axis.left or isinstance(axis.value, tuple) or axis.value >= len(slot.value):
            return
        known = forms[axis.left[0]]
        i = known.name if isinstance(known, Expr) and known.name else self.work.name(axis.left[0], forms)
        bare = any(s[1] == "axis" for s in axis.left)
        at = i if bare else f"{i}[0]"
        places = {
            at: axis.value,
            f"{p}[{at}]": slot.value[axis.value],
            f"inverse({p})[{at}]": _inverse(slot.value)[axis.value],
        }
        rights = [o for o in slots if o.sort == "axis" and o.right]
        options = [[text for text, value in places.items() if value == o.value] for o in rights]
        for choice in product(*options):
            found = {s: self._as_axis(axis, s, i) for s in axis.left}
            for other, text in zip(rights, choice, strict=True):
                found |= {s: Expr(text if s[1] == "axis" else f"({text},)") for s in other.right}
            yield found

    def _anchored(self, slot: Slot, slots: list[Slot], p: str) -> Iterator[dict[Site, Any]]:
        """Where only the right side has axes: one of them as it is, the others where the
        permutation takes it."""
        axes = [s for s in slots if s.sort == "axis"]
        if len(axes) < 2 or any(s.left or isinstance(s.value, tuple) or s.value >= len(slot.value) for s in axes):
            return
        for anchor in axes:
            places = {f"{p}[{anchor.value}]": slot.value[anchor.value]}
            places[f"inverse({p})[{anchor.value}]"] = _inverse(slot.value)[anchor.value]
            others = [s for s in axes if s is not anchor]
            for choice in product(*[[text for text, value in places.items() if value == s.value] for s in others]):
                pairs = zip(others, choice, strict=True)
                yield {s: Expr(text if s[1] == "axis" else f"({text},)") for o, text in pairs for s in o.right}

    def _derived(self, slot: Slot, slots: list[Slot], name: str) -> dict[Site, Any]:
        """Attributes of the right side alone that follow from this one: inverse permutations, pads
        that differ by a constant."""
        found: dict[Site, Any] = {}
        for other in slots:
            if other.left or other.sort != slot.sort:
                continue
            expression = _follows(slot, other, name)
            if expression is not None:
                found |= dict.fromkeys(other.right, expression)
        return found

    def _ranked(self, slot: Slot) -> Iterator[dict[Site, Any]]:
        """Counted from the last axis of an operand: axes, and permutations of the last two."""
        if slot.sort not in ("axis", "perm"):
            return
        found = self._all_ranked(slot)
        if found is not None:
            yield found
        for site in (*slot.left, *slot.right):
            form = self._from_rank(site)
            if form is not None:
                yield {site: form}

    def _all_ranked(self, slot: Slot) -> dict[Site, Expr] | None:
        found = {s: self._from_rank(s) for s in (*slot.left, *slot.right)}
        return {s: f for s, f in found.items() if f is not None} if None not in found.values() else None

    def _from_rank(self, site: Site) -> Expr | None:
        node, value = site[0], self.work.values[site]
        rank = len(self.work.terms[node].args[0].shape)
        leaf = next((x for x in self._leaves(node) if len(self.work.types[x].shape or ()) == rank), None)
        if leaf is None:
            return None
        if site[1] == "perm":
            swapped = (*range(rank - 2), rank - 1, rank - 2)
            return Expr(f"iota(rank({leaf}) - 2) + (rank({leaf}) - 1, rank({leaf}) - 2)") if value == swapped else None
        axis = value[0] if isinstance(value, tuple) else value
        text = f"rank({leaf}) - {rank - axis}"
        return Expr(f"({text},)" if isinstance(value, tuple) else text)

    def _leaves(self, node: Node) -> list[str]:
        bound = set(self.work.types)
        return [n.attr("name") for n in topological(node.args[:1]) if n.op == "input" and n.attr("name") in bound]


def _named(form: Any) -> bool:
    return isinstance(form, Expr) and form.name is not None


def _inverse(perm: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(perm)), key=perm.__getitem__))


def _follows(slot: Slot, other: Slot, name: str) -> Expr | None:
    if slot.sort == "perm" and _inverse(slot.value) == other.value:
        return Expr(f"inverse({name})")
    if slot.sort == "pads" and len(slot.value) == len(other.value):
        more = tuple(b - a for a, b in zip(slot.value, other.value, strict=True))
        return Expr(f"plus({name}, {more!r})")
    return None
