"""Random legal typings of an equation, fingerprinted: they refute a law, or do not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from taso_mirage.prove.counterexample import find_counterexample
from taso_mirage.prove.fingerprint import Agreed
from taso_mirage.prove.rules.fuzz import typings, verdicts
from taso_mirage.prove.rules.random_typings import VariableTypes
from taso_mirage.rewriting.equation import Equation
from taso_mirage.verdicts import Counterexample, Failure, FailureKind, failed


@dataclass(frozen=True, slots=True)
class Fuzzed:
    """The verdict over many typings; `counterexample` is the typing that refutes, with concrete
    values."""

    typings: int
    unknown: int
    counterexample: Counterexample | None = None


def fuzz(
    equation: Equation,
    wanted: int = 20,
    seed: int = 0,
    tries: int = 2000,
    trials: int = 4,
    given: VariableTypes = (),
    attributes: Iterable[tuple[str, Any]] = (),
) -> Fuzzed:
    """Fingerprint up to `wanted` random legal typings of an equation; stops at the first that
    refutes it."""
    tested = unknown = 0
    for typing, verdict in verdicts(typings(equation, seed, tries, given, attributes), trials, seed):
        if failed(verdict, FailureKind.REFUTED):
            return Fuzzed(tested, unknown, find_counterexample(typing.lhs, typing.rhs, verdict, seed))
        unknown += isinstance(verdict, Failure)
        tested += isinstance(verdict, Agreed)
        if tested >= wanted:
            break
    return Fuzzed(tested, unknown)
