"""The ground of an equality of a certificate: the checker, else the prover, else numbers.

A certificate's statement of its own proofs decides nothing: it only says which methods are tried.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from taso_mirage import checker
from taso_mirage.certificates.format import CHECK
from taso_mirage.errors import CheckFailed, TasoMirageError
from taso_mirage.ir.model import random_array
from taso_mirage.ir.terms import Node, is_computed, topological
from taso_mirage.meanings.degree import DEGREE
from taso_mirage.meanings.reals import EXACT
from taso_mirage.operators.interpret import interpret
from taso_mirage.prove.rules.cases import Instance
from taso_mirage.prove.rules.proofs import BUDGET, proof
from taso_mirage.rewriting.text import parse_graph
from taso_mirage.search.partial.agreement import differing_elements

CHECKED = "accepted by the checker"
AGAIN = "proved again by the prover; the checker does not decide them"
FIELD = "equal polynomials at random elements of a finite field, at their sizes alone (a wrong one passes in 1 of 10^30 runs)"
UNPROVED = "NOT PROVED: they agree on a few random inputs, and rest on the float check of the model alone"
TRIALS = 3
FIELD_TRIALS = 12
"""The number of trials that a polynomial of a degree below 100 passes with the probability that
`FIELD` states."""
LARGEST_DEGREE = 64
APART = 1e-6
Judge = Callable[[str, str, str], str]
"""The ground of an equality, given its kind of proof and both sides as text; raises CheckFailed
where it does not hold."""


@lru_cache(256)
def _check(lhs: str, rhs: str) -> checker.Accepted | checker.Refused:
    """The checker's answer, which the two texts decide: an equality of a case is asked for when its
    sides are chosen and when its ground is found."""
    return checker.check(lhs, rhs)


def undecided(lhs: str, rhs: str) -> str:
    """The reason why the checker does not decide an equality."""
    found = _check(lhs, rhs)
    return found.reason.removeprefix("Unsupported: ") if isinstance(found, checker.Refused) else ""


class CaseJudge:
    """The judge that finds the ground of an equality.

    `strict`: only equalities that the checker accepts. `numbers`: an equality without a proof may
    rest on a few random inputs, which show no difference at single numbers, or below rounding.
    """

    def __init__(self, strict: bool = False, numbers: bool = False) -> None:
        self.strict, self.numbers = strict, numbers

    def __call__(self, kind: str, lhs: str, rhs: str) -> str:
        found = _check(lhs, rhs)
        if isinstance(found, checker.Accepted):
            return CHECKED
        if self.strict:
            raise CheckFailed(f"the checker does not accept it: {found.reason}")
        instance = Instance(parse_graph(lhs).outputs, parse_graph(rhs).outputs)
        if kind != CHECK:
            if not proof(instance, BUDGET, kind == "bounded")[0]:
                raise CheckFailed(f"it has no proof, and the checker does not decide it: {found.reason}")
            return AGAIN
        _agree(instance)
        if _polynomials(instance):
            _equal_in_field(instance)
            return FIELD
        if not self.numbers:
            raise CheckFailed(
                "it rests on the float check of the model alone, which is no proof (--float-checks lets it pass)"
            )
        return UNPROVED


def _agree(instance: Instance) -> None:
    """Raise CheckFailed if the sides differ on random inputs in float64."""
    rng = np.random.default_rng(secrets.randbits(64))
    sizes = {name: 3 + i for i, name in enumerate(sorted(instance.letters))}
    for _ in range(TRIALS):
        env = {n: EXACT.load(random_array(n, rng, sizes)) for n in instance.leaves}
        values = interpret((*instance.lhs, *instance.rhs), EXACT, env, sizes=dict(sizes))
        if not all(_near(values[a], values[b]) for a, b in zip(instance.lhs, instance.rhs, strict=True)):
            raise CheckFailed("its sides differ on random inputs")


def _near(a: object, b: object) -> bool:
    pairs: Sequence[tuple[object, object]] = (
        list(zip(a, b, strict=True)) if isinstance(a, tuple) and isinstance(b, tuple) else [(a, b)]
    )
    for left, right in ((np.asarray(x), np.asarray(y)) for x, y in pairs):
        if not is_computed(left.dtype.name):
            same = bool((left == right).all())
        else:
            with np.errstate(all="ignore"):
                same = bool(np.allclose(left, right, rtol=APART, atol=APART, equal_nan=True))
        if not same:
            return False
    return True


def _polynomials(instance: Instance) -> bool:
    """Whether both sides are polynomials of low degree in floats, of fixed sizes, and name no
    number but 0 and 1: a multiple of the field's prime would be 0 there."""
    nodes = topological((*instance.lhs, *instance.rhs))
    if instance.letters or not all(is_computed(n.dtype) for n in instance.leaves) or not all(map(_plain, nodes)):
        return False
    noted = {n: (n.tensor, {n.attr("name"): 1}) for n in instance.leaves}
    try:
        found = interpret((*instance.lhs, *instance.rhs), DEGREE, noted)
    except (TasoMirageError, ValueError, TypeError, LookupError):
        return False
    outputs = (*instance.lhs, *instance.rhs)
    degrees = [sum(found[o][1].values()) if isinstance(found[o][1], dict) else math.inf for o in outputs]
    return max(degrees, default=math.inf) <= LARGEST_DEGREE


def _plain(node: Node) -> bool:
    if node.op == "constant" and is_computed(node.dtype):
        return bool(np.isin(node.attr("value").numpy().astype(np.float64), (0, 1)).all())
    numbers = (v for _, value in node.attrs for v in (value if isinstance(value, tuple) else (value,)))
    return all(v in (0.0, 1.0) for v in numbers if isinstance(v, float))


def _equal_in_field(instance: Instance) -> None:
    lhs, rhs = instance.lhs, instance.rhs
    for _, wrong in differing_elements(lhs, rhs, list(instance.leaves), FIELD_TRIALS, secrets.randbits(30)):
        if wrong.any():
            raise CheckFailed("its sides are different polynomials")
