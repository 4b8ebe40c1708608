"""The evidence ladder of one rule (DESIGN section 4): field, shape fuzz, then a proof at structurally different typings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from taso_mirage.dims import Symbolic
from taso_mirage.errors import TasoMirageError
from taso_mirage.ir import LEAVES, Node, topological
from taso_mirage.library import Evidence, Proof, Rejected, Rule
from taso_mirage.text import show_equation
from taso_mirage.verify.bounded import prove_bounded
from taso_mirage.verify.counterexample import find
from taso_mirage.verify.fingerprint import Agreed, Refuted, fingerprint
from taso_mirage.verify.fuzz import Typing, typings, verdicts
from taso_mirage.verify.laws import prove_by_laws
from taso_mirage.verify.lift import lift
from taso_mirage.verify.symbolic import Proved, Unproved, prove_symbolic

TRIALS = 16
WANTED = 512
CHOSEN = 32
"""So many structurally different typings are proved."""
KINDS = ("symbolic", "laws", "bounded")
"""From the strongest to the weakest; a rule has the weakest that one of its typings needed."""
Sides = tuple[tuple[Node, ...], tuple[Node, ...]]


@dataclass(frozen=True, slots=True)
class _Found:
    kind: str
    steps: int
    largest: int


def climb(rule: Rule, seed: int = 0, typings: int = WANTED) -> Evidence | Rejected | Unproved:
    """All rungs for one rule, on new seeds. `Rejected` has a counterexample; `Unproved` says which typing has no proof."""
    agreed: list[Typing] = []
    drawn = _drawn(rule, seed, typings)
    for typing, verdict in verdicts(drawn, 4, seed + 1):
        if isinstance(verdict, Refuted):
            rejected = refutation(rule, typing, verdict, seed)
            if rejected is not None:
                return rejected
        if isinstance(verdict, Agreed):
            agreed.append(typing)
        if len(agreed) >= typings:
            break
    if not agreed:
        return Unproved("no legal typing was found on which the field gives a verdict")
    first = fingerprint(agreed[0].lhs, agreed[0].rhs, TRIALS, seed + 2)
    if isinstance(first, Refuted) and (rejected := refutation(rule, agreed[0], first, seed)):
        return rejected
    proof = _proof(rule, agreed)
    if isinstance(proof, Refuted):
        return Rejected(show_equation(rule.equation), "refuted by the bounded proof", {"values": proof.counterexample})
    if isinstance(proof, Unproved):
        return proof
    return Evidence(first.trials if isinstance(first, Agreed) else 0, len(agreed), proof)


def _drawn(rule: Rule, seed: int, wanted: int) -> Iterator[Typing]:
    return typings(rule.equation, seed, 8 * wanted, rule.given, rule.attributes)


def refutation(rule: Rule, typing: Typing, verdict: Refuted, seed: int) -> Rejected | None:
    """The rejection of a rule, with numbers. None where no numbers tell the sides apart and a proof says that none do: the order of the
    field is cyclic, so max(x + 1) is not max(x) + 1 at its end."""
    counterexample: Mapping[str, Any] = find(typing.lhs, typing.rhs, verdict, seed).fields()
    if "note" in counterexample and isinstance(proved_at(typing.lhs, typing.rhs), _Found):
        return None
    return Rejected(show_equation(rule.equation), "refuted by the shape fuzz", counterexample)


def _proof(rule: Rule, agreed: Sequence[Typing]) -> Proof | Refuted | Unproved:
    """A proof of the rule's own typing and of every chosen one."""
    cases: list[tuple[Sides, bool]] = []
    with suppress(TasoMirageError, LookupError, TypeError, ValueError, ArithmeticError):
        cases.append((rule.instance(), True))  # a guard on values may leave the letters without a type
    cases += [((t.lhs, t.rhs), False) for t in different(agreed)]
    found: list[_Found] = []
    for sides, symbolic in cases:
        one = _symbolically(sides) if symbolic else proved_at(*sides)
        if not isinstance(one, _Found):
            if symbolic and len(cases) > 1:
                continue  # its letters may be more general than the guard allows; the drawn typings decide
            return one
        found.append(one)
    weakest = max((f.kind for f in found), key=KINDS.index)
    return Proof(weakest, _bound(weakest, found), sum(f.steps for f in found))


def _bound(kind: str, found: Sequence[_Found]) -> str:
    count = f"{len(found)} typing{'s' if len(found) > 1 else ''}"
    if kind == "bounded":
        return f"{count}, dims up to {max(f.largest for f in found if f.kind == kind)}"
    return f"every size of {count}" + (", by the laws of the operators" if kind == "laws" else "")


def _symbolically(sides: Sides) -> _Found | Unproved:
    verdict = prove_symbolic(*sides)
    return _Found("symbolic", verdict.steps, 0) if isinstance(verdict, Proved) else verdict


def proved_at(lhs: Sequence[Node], rhs: Sequence[Node]) -> _Found | Refuted | Unproved:
    """The strongest proof of one typing: at every size, by the laws, then at its own sizes."""
    tried: list[Sides] = []
    for apart in (True, False):
        lifted = lift(lhs, rhs, apart)
        if lifted is not None and lifted not in tried:
            tried.append(lifted)
            verdict = prove_symbolic(*lifted)
            if isinstance(verdict, Proved):
                return _Found("symbolic", verdict.steps, 0)
    for sides in tried:
        by_laws = prove_by_laws(*sides)
        if isinstance(by_laws, Proved):
            return _Found("laws", by_laws.steps, 0)
    fixed = prove_symbolic(lhs, rhs)
    largest = _largest((*lhs, *rhs))
    if isinstance(fixed, Proved):  # nothing but dims of 1 is every size too
        return _Found("symbolic" if largest <= 1 else "bounded", fixed.steps, largest)
    verdict_here = prove_bounded(lhs, rhs)
    if isinstance(verdict_here, Proved):
        return _Found("bounded", verdict_here.steps, largest)
    return verdict_here


def _largest(outputs: Sequence[Node]) -> int:
    shapes = [n.shape for n in topological(outputs) if n.op in LEAVES]
    return max((int(d) for shape in shapes for d in shape if not isinstance(d, Symbolic)), default=1)


def different(agreed: Sequence[Typing], wanted: int = CHOSEN) -> list[Typing]:
    """Typings of different structure: first by ranks and dims of 1 of the leaves, then by attributes."""
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
    """The attributes that are no sizes."""
    if node.op in ("reshape", "expand", "split"):
        return tuple(len(v) for _, v in node.attrs if isinstance(v, tuple))
    return tuple(v for k, v in node.attrs if k not in ("starts", "ends"))
