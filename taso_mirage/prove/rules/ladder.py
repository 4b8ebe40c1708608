"""The evidence of one rule: every case that the adversarial typings reach is proved, or the rule is
rejected with a counterexample."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.dims import Symbolic
from taso_mirage.ir.terms import LEAVES, Node, topological
from taso_mirage.operators.expressions import claims_proved_cases, question
from taso_mirage.operators.ops import get, traits
from taso_mirage.prove.bounded import prove_bounded
from taso_mirage.prove.counterexample import find_counterexample
from taso_mirage.prove.rules.cases import Instance
from taso_mirage.prove.rules.examine import Examined, Judged, examine
from taso_mirage.prove.rules.fuzz import Typing
from taso_mirage.prove.rules.guards import Condition, Sample, guarded, weakest
from taso_mirage.prove.rules.hostile import RuleStatement
from taso_mirage.prove.rules.lift import lift
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.prove.symbolic import Proved, prove_symbolic, unproved
from taso_mirage.rewriting.library import Rule
from taso_mirage.rewriting.text import show_equation
from taso_mirage.verdicts import Counterexample, Evidence, Failure, FailureKind, Proof

WANTED = 320
"""Typings that are drawn of a rule; `substitutions verify` asks for as many."""
CHOSEN = 32
"""The number of structurally different typings that are proved."""
KINDS = ("symbolic", "bounded")
"""The kinds of proof from the strongest to the weakest; a rule has the weakest kind that one of its
cases needed."""
KEPT = 0.9
"""The largest share of the proved cases that a guard may exclude."""
GUARDS = 3
"""The largest number of attempts to find a guard that excludes the failed cases."""
EquationSides = tuple[tuple[Node, ...], tuple[Node, ...]]


@dataclass(frozen=True, slots=True)
class _Found:
    kind: str
    steps: int
    largest: int


def examined(rule: Rule, proofs: Proofs, seed: int = 0, typings: int = WANTED) -> Examined:
    """The cases of a rule, that of its own typing first."""
    found = examine(RuleStatement(rule.equation, rule.given, rule.attributes), proofs, seed, typings)
    with suppress(TasoMirageError, LookupError, TypeError, ValueError, ArithmeticError):  # a guard may ask for numbers
        sides = rule.instance()
        own = proofs.of_sizes(Instance(*sides))
        others = [c for c in found.cases if c.verdict.case.key != own.case.key]
        names = {**dict(rule.attributes), **{name: rule.operand(name, type) for name, type in rule.given}}
        found = replace(found, cases=(Judged(Typing(*sides, names), own), *others))
    return found


def evidence(found: Examined, proofs: Proofs) -> Evidence:
    """The evidence of an examination, in words."""
    every, bounded = len(found.of("proved")), len(found.of("bounded"))
    bound = f"every size of {every} case{'s' if every != 1 else ''}"
    if bounded:
        bound += f", {bounded} at {'its' if bounded == 1 else 'their'} own sizes"
    excluded = len(found.of("refuted", "unproved"))
    if found.compared:
        bound += f"; bounded: {len(found.cases)} of {len(found.cases) + found.compared} cases, the others compared in numbers"
    proof = Proof("bounded" if bounded or found.compared else "symbolic", bound, proofs.steps)
    return Evidence(every + bounded, found.typings, proof, bounded, excluded)


def failure(rule: Rule, found: Examined) -> Failure:
    """Why a rule does not hold as it is stated."""
    wrong = sorted(found.of("refuted"), key=lambda c: c.typing.elements)
    if wrong and wrong[0].counterexample is not None:
        return _refuted(rule, "refuted by drawing", wrong[0].counterexample)
    missing = found.of("unproved")
    if not missing:
        return unproved("no legal typing was found")
    return unproved(
        f"{missing[0].verdict.why} for this case, and no counterexample:\n{missing[0].verdict.case.instance}"
    )


def holding(rule: Rule, seed: int, typings: int = WANTED) -> tuple[Rule, Evidence] | Failure:
    """The rule with a guard under which every case is proved, and its evidence.

    If there is no readable guard, the rule claims only its proved cases (`proved()`).
    """
    for attempt in range(GUARDS + 1):
        proofs = Proofs()
        found = examined(rule, proofs, seed, typings)
        if found.holds:
            return rule, evidence(found, proofs)
        chosen = missing_guard(rule, found)
        if chosen is None or attempt == GUARDS:
            return (where_proved(rule), evidence(found, proofs)) if excludes(found) else failure(rule, found)
        rule = replace(rule, equation=guarded(rule.equation, chosen))
    raise AssertionError


def claims_proved(rule: Rule) -> bool:
    """Whether the guard says `proved()`: then the rule claims its proved cases alone."""
    return rule.equation.where is not None and claims_proved_cases(rule.equation.where.source)


def where_proved(rule: Rule) -> Rule:
    """The rule that claims its proved cases alone."""
    if claims_proved(rule):
        return rule
    return replace(rule, equation=guarded(rule.equation, (Condition("proved()"),)))


def excludes(found: Examined) -> bool:
    """Whether a rule is useful although some of its cases are excluded: the first case, of its own
    typing, is proved, and most others are."""
    own = found.cases[0] if found.cases else None
    return own is not None and bool(own.verdict) and len(found.of("proved")) > len(found.cases) / 2


def missing_guard(rule: Rule, found: Examined) -> tuple[Condition, ...] | None:
    """The weakest conditions that exclude the cases that failed and hold at the rule's own typing;
    None where they would exclude many proved cases too: those that failed are excluded by their
    verdicts then."""
    failing = tuple((c.typing, Failure(FailureKind.REFUTED, "")) for c in found.of("refuted", "unproved"))
    passing = tuple(c.typing for c in found.of("proved", "bounded") if c.typing.names)
    if not failing or not passing:
        return None
    chosen = weakest(rule.equation, Sample(passing, failing), rule.given, rule.attributes)
    kept = sum(all(c(t.names) for c in chosen) for t in passing) if chosen is not None else 0
    floats = chosen is not None and all(question(c.source) == "is_float" for c in chosen)
    return chosen if floats or kept >= KEPT * len(passing) else None


def refutation(rule: Rule, typing: Typing, verdict: Failure, seed: int) -> Failure | None:
    """The rejection of a rule, with numbers.

    None where no numbers tell the sides apart and a proof says that none do: the order of the field
    is cyclic, so max(x + 1) is not max(x) + 1 at its end.
    """
    counterexample = find_counterexample(typing.lhs, typing.rhs, verdict, seed)
    if counterexample.note and isinstance(proved_at(typing.lhs, typing.rhs), _Found):
        return None
    return _refuted(rule, "refuted by the shape fuzz", counterexample)


def _refuted(rule: Rule, reason: str, counterexample: Counterexample) -> Failure:
    return Failure(FailureKind.REFUTED, reason, counterexample, show_equation(rule.equation))


def proved_at(lhs: Sequence[Node], rhs: Sequence[Node]) -> _Found | Failure:
    """The strongest proof of one typing: at every size, then at its own sizes."""
    tried: list[EquationSides] = []
    for apart in (True, False):
        lifted = lift(lhs, rhs, apart)
        if lifted is not None and lifted not in tried:
            tried.append(lifted)
            verdict = prove_symbolic(*lifted)
            if isinstance(verdict, Proved):
                return _Found("symbolic", verdict.steps, 0)
    fixed = prove_symbolic(lhs, rhs)
    largest = _largest((*lhs, *rhs))
    if isinstance(fixed, Proved):  # a case with dims of 1 only also covers every size
        return _Found("symbolic" if largest <= 1 else "bounded", fixed.steps, largest)
    verdict_here = prove_bounded(lhs, rhs)
    if isinstance(verdict_here, Proved):
        return _Found("bounded", verdict_here.steps, largest)
    return verdict_here


def _largest(outputs: Sequence[Node]) -> int:
    shapes = [n.shape for n in topological(outputs) if n.op in LEAVES]
    return max((int(d) for shape in shapes for d in shape if not isinstance(d, Symbolic)), default=1)


def different(agreed: Sequence[Typing], wanted: int = CHOSEN) -> list[Typing]:
    """Typings of different structure: first by ranks and dims of 1 of the leaves, then by
    attributes."""
    by_leaves: dict[Any, dict[Any, Typing]] = {}
    for typing in agreed:
        order = topological((*typing.lhs, *typing.rhs))
        leaves = tuple((n.dtype, tuple(d == 1 for d in n.shape)) for n in order if n.op in (*LEAVES, "constant"))
        attrs = tuple((n.op, *_structural(n)) for n in order if n.args)
        by_leaves.setdefault(leaves, {}).setdefault(attrs, typing)
    found: list[Typing] = []
    depth = 0
    while len(found) < wanted and any(len(group) > depth for group in by_leaves.values()):
        found += [next(islice(group.values(), depth, None)) for group in by_leaves.values() if len(group) > depth]
        depth += 1
    return found[:wanted]


def _structural(node: Node) -> tuple[Any, ...]:
    """The attributes that are no sizes.

    If an operator's sizes follow its operands', how many there are counts, and its other tuples.
    """
    if traits(node).resize is None:
        return tuple(v for _, v in node.attrs)
    sized = get(node.op).sized
    return tuple(len(v) if k in sized else v for k, v in node.attrs if isinstance(v, tuple))
