"""What an equality of a certificate stands on: the small checker, else a proof found again, else
numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from taso_mirage import checker
from taso_mirage.errors import CheckFailed
from taso_mirage.ir.model import random_array
from taso_mirage.ir.terms import is_computed
from taso_mirage.meanings.reals import EXACT
from taso_mirage.operators.interpret import interpret
from taso_mirage.prove.rules.cases import Instance
from taso_mirage.prove.rules.proofs import BUDGET, proof
from taso_mirage.report.certificate import CHECK
from taso_mirage.rewriting.text import parse_graph

CHECKED = "accepted by the checker"
AGAIN = "proved again by the prover; the checker does not decide them"
NUMBERS = "not proved: they rest on the float check of the whole model, and agree on random inputs here"
TRIALS = 3
APART = 1e-6


class CaseJudge:
    """Called with a kind of proof and both sides. `strict`: only what the checker accepts."""

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict

    def __call__(self, kind: str, lhs: str, rhs: str) -> str:
        found = checker.check(lhs, rhs)
        if isinstance(found, checker.Accepted):
            return CHECKED
        if self.strict:
            raise CheckFailed(f"the checker does not accept an equality: {found.reason}\n{lhs}{rhs}")
        instance = Instance(parse_graph(lhs).outputs, parse_graph(rhs).outputs)
        if kind != CHECK:
            if not proof(instance, BUDGET, kind == "bounded")[0]:
                raise CheckFailed(f"an equality has no proof ({found.reason}):\n{lhs}{rhs}")
            return AGAIN
        _agree(instance, lhs + rhs)
        return NUMBERS


def _agree(instance: Instance, text: str) -> None:
    """Raise CheckFailed where random inputs tell the sides apart in float64."""
    rng = np.random.default_rng(0)
    sizes = {name: 3 + i for i, name in enumerate(sorted(instance.letters))}
    for _ in range(TRIALS):
        env = {n: EXACT.load(random_array(n, rng, sizes)) for n in instance.leaves}
        values = interpret((*instance.lhs, *instance.rhs), EXACT, env, sizes=dict(sizes))
        if not all(_near(values[a], values[b]) for a, b in zip(instance.lhs, instance.rhs, strict=True)):
            raise CheckFailed(f"the sides of an equality differ on random inputs:\n{text}")


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
