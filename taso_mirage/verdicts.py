"""The answers of provers and checks: a value, which is true, or a `Failure`, which is false and
gives the reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeGuard


class FailureKind(Enum):
    """The statement of a failure about the two programs, or the equation, that were compared."""

    NO_MATCH = "no match"
    """An equation does not apply, or operands and types differ."""
    REFUTED = "refuted"
    """The two sides differ: in numbers, or in a finite field."""
    INACCURATE = "inaccurate"
    """The two sides may be equal over the reals, but in floats one overflows or is too
    inaccurate."""
    UNDECIDED = "undecided"
    """The trials decide nothing; for example, each divides by zero."""
    UNPROVED = "unproved"
    """No proof was found."""
    EXCLUDED = "excluded"
    """The question is outside of the judge's domain (a division of integers, for instance), or its
    answer is not worth the effort."""


@dataclass(frozen=True, slots=True)
class Counterexample:
    """A difference of two sides: the output, the sides as text, inputs as nested lists, and the
    first element that differs.

    `note` gives the reason if there are no values: only the field distinguishes the sides.
    """

    output: int
    lhs: str = ""
    rhs: str = ""
    inputs: tuple[tuple[str, Any], ...] = ()
    index: tuple[int, ...] = ()
    left: float = 0.0
    right: float = 0.0
    note: str = ""

    def fields(self) -> dict[str, Any]:
        """Plain values for TOML."""
        sides: dict[str, Any] = {"lhs": self.lhs, "rhs": self.rhs}
        if self.note:
            return {**sides, "output": self.output, "note": self.note}
        place = {"output": self.output, "index": list(self.index), "left": self.left, "right": self.right}
        return {**sides, "inputs": dict(self.inputs), **place}

    def __str__(self) -> str:
        text = f"{self.lhs}against\n{self.rhs}" if self.lhs else ""
        if self.note:
            return f"{text}output {self.output}: {self.note}"
        values = "".join(f"{name} = {value}\n" for name, value in self.inputs)
        return f"{text}{values}output {self.output}, element {self.index}: {self.left!r} against {self.right!r}"


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why there is no answer, with a counterexample if one is known.

    Its truth value is false; answers are true. `equation`: the text of the rule that failed, with
    its guards at that time. `steps`: the work of the prover.
    """

    kind: FailureKind
    reason: str
    counterexample: Counterexample | None = None
    equation: str = ""
    steps: int = 0

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"Failure({self.kind.value}: {self.reason})"

    def __str__(self) -> str:
        return self.reason if self.counterexample is None else f"{self.reason}\n{self.counterexample}"


@dataclass(frozen=True, slots=True)
class Proof:
    """`kind`: "symbolic" (every case for every size) or "bounded" (some cases at their own sizes
    alone).

    `bound` is its range, in words; `steps` a deterministic measure of its work.
    """

    kind: str
    bound: str
    steps: int


@dataclass(frozen=True, slots=True)
class MeasuredError:
    """One numeric case: inputs rounded to `dtype`; the largest error and the allowed one, both over
    the largest element."""

    dtype: str
    draw: str
    scale: float
    error: float
    allowed: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence that a rule holds, or that two programs are equal: proofs, tests in a finite
    field, runs in floats.

    Proofs: the number of proved `cases`, the number of `typings` that were drawn, and the range of
    the `proof`. `bounded`: the number of these cases that are proved only at their own sizes.
    `excluded`: the number of cases that the guard admits and that are not proved, so that the rule
    does not apply in them; no readable guard excludes them.

    Tests: `tests` passed, with all elements equal, and `undecided` others did not decide. A wrong
    program passes with a probability of at most `bound`, (n / p)^tests with n inputs: PET's Theorem
    2, for programs that are linear in each input. `measured`: the errors in floats.
    """

    cases: int = 0
    typings: int = 0
    proof: Proof | None = None
    bounded: int = 0
    excluded: int = 0
    tests: int = 0
    undecided: int = 0
    bound: float = 1.0
    measured: tuple[MeasuredError, ...] = ()


NO_EVIDENCE = Evidence()


def failed(verdict: object, kind: FailureKind) -> TypeGuard[Failure]:
    """Whether a verdict is a failure of that kind."""
    return isinstance(verdict, Failure) and verdict.kind is kind
