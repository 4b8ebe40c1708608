"""What the provers and checks give back: an answer, which is true, or a `Failure`, which is false and says why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeGuard


class FailureKind(Enum):
    """What a failure says about the two programs, or the equation, that were looked at."""

    NO_MATCH = "no match"
    """An equation does not apply there, or operands and types differ."""
    REFUTED = "refuted"
    """They differ: in numbers, or in a finite field."""
    INACCURATE = "inaccurate"
    """They are equal over the reals at most: in floats one overflows, or is too far off."""
    UNDECIDED = "undecided"
    """What was tried shows nothing: each trial divides by zero, for example."""
    UNPROVED = "unproved"
    """No proof was found."""
    EXCLUDED = "excluded"
    """It was not tried: something in it is outside of what can be judged, or it is not worth it."""


@dataclass(frozen=True, slots=True)
class Counterexample:
    """Where two sides differ: the output; and the sides as text, inputs as nested lists, and the first element that differs.

    `note` says why there are no values: only the field tells the sides apart.
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
    """Why there is no answer, with a counterexample where one is known; false, where answers are true.

    `equation`: the text of the rule that failed, with the guards that it had by then. `steps`: the work that a prover spent.
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


def failed(verdict: object, kind: FailureKind) -> TypeGuard[Failure]:
    """Whether a verdict is a failure of that kind."""
    return isinstance(verdict, Failure) and verdict.kind is kind
