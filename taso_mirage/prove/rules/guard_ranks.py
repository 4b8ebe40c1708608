"""Guards for ranks: a rule applies only at ranks at which it was tested often and never failed.

The meaning of operators depends on the rank (a product with a vector, axis 1 of a batch), and
random typings of unusual ranks are too rare to show errors. Rules of pointwise operators broadcast
in the same way at every rank and need no such guard.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Any

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.terms import ABSENT, topological
from taso_mirage.meanings.shapes import ShapesMeaning
from taso_mirage.operators.ops import get
from taso_mirage.prove.fingerprint import Agreed
from taso_mirage.prove.rules.fuzz import typings, verdicts
from taso_mirage.prove.rules.ladder import refutation
from taso_mirage.rewriting.library import Rule
from taso_mirage.verdicts import Failure, FailureKind, failed

OFTEN = 8
"""The number of typings of those ranks, or the divisor of all typings where they are few."""
Ranks = tuple[int, ...]


def rank_guards(rule: Rule, seed: int, wanted: int = 512) -> str | Failure | None:
    """The condition on the ranks of a rule's variables; None where it needs none.

    Rejected where it fails at the ranks of its typing.
    """
    if _pointwise(rule):
        return None
    agreed, wrong = Counter[Ranks](), set[Ranks]()
    drawn = typings(rule.equation, seed, 8 * wanted, rule.given, rule.attributes)
    for typing, verdict in verdicts(drawn, 4, seed + 1):
        of_typing = tuple(typing.names[name].tensor.rank for name, _ in rule.given)
        rejected = refutation(rule, typing, verdict, seed) if failed(verdict, FailureKind.REFUTED) else None
        if rejected is not None:
            if of_typing == tuple(type.rank for _, type in rule.given):
                return rejected
            wrong.add(of_typing)
        elif isinstance(verdict, Agreed):
            agreed[of_typing] += 1
        if agreed.total() >= wanted:
            break
    least = min(OFTEN, max(agreed.total() // 8, 1))
    good = sorted(r for r, count in agreed.items() if count >= least and r not in wrong)
    names = [name for name, _ in rule.given]
    if agreed.total() < wanted:  # few draws are legal: others than those that were seen may be, too
        return _condition(names, list(range(len(names))), good)
    seen = sorted({*agreed, *wrong})
    columns = list(zip(*seen, strict=True))
    told = [i for i, column in enumerate(columns) if len(set(column)) > 1 and column not in columns[:i]]
    return None if good == seen else _condition(names, told, good)


def _condition(names: list[str], told: list[int], good: list[Ranks]) -> str | None:
    """The good ranks of the variables that tell them from others."""
    if not good:
        return None
    tests = sorted({tuple(r[i] for i in told) for r in good})
    if len(tests) == 1:
        return " and ".join(f"rank({names[i]}) == {n}" for i, n in zip(told, tests[0], strict=True))
    if len(told) == 1:
        return f"rank({names[told[0]]}) in {tuple(n for (n,) in tests)}"
    return f"({', '.join(f'rank({names[i]})' for i in told)}) in {tuple(tests)}"


class _Structural(Exception):
    """A definition moves elements or combines several."""


class _Pointwise(ShapesMeaning):
    """The meaning `shapes` for definitions that treat every element alike."""

    def __getattribute__(self, name: str) -> Any:
        if name in STRUCTURAL:
            raise _Structural
        return super().__getattribute__(name)


STRUCTURAL = frozenset(
    "contract reduce cumulate reshape transpose expand concat slice pad window take take_along put iota extents".split()
)


def _pointwise(rule: Rule) -> bool:
    try:
        for node in topological(chain(*rule.instance())):
            if node.args and node is not ABSENT:
                get(node.op).body(
                    _Pointwise(), *[None if a is ABSENT else a.type for a in node.args], **dict(node.attrs)
                )
    except (_Structural, TasoMirageError, LookupError, TypeError, ValueError, ArithmeticError):
        return False
    return True
