"""Bounds inside and outside of roundings have one form in proofs: a proved equality holds in exact
numbers, and terms that are equal by their bounds are proved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from operator import add, mul
from random import Random
from typing import TypeAlias

import pytest

from taso_mirage.ir.terms import Node, Tensor, constant, variable
from taso_mirage.operators.ops import get
from taso_mirage.prove.symbolic import Proved, prove_symbolic

X = variable("x", Tensor("float32", ()))
ROUNDINGS = ("round", "floor", "ceil")
FUNCTIONS: dict[str, Callable[[Fraction, Fraction], Fraction | int]] = {
    **{"max": max, "min": min, "add": add, "mul": mul},
    **{"round": lambda x, _: round(x), "floor": lambda x, _: floor(x), "ceil": lambda x, _: ceil(x)},
}
GRID = [Fraction(n, 24) for n in range(-24 * 7, 24 * 7 + 1)]


@dataclass(frozen=True)
class Step:
    """One operator on the values computed so far, with a number where it takes one."""

    op: str
    number: Fraction = Fraction(0)

    def term(self, x: Node) -> Node:
        if self.op in ROUNDINGS:
            return get(self.op).term(x)
        return get(self.op).term(x, constant(float(self.number), "float32"))

    def value(self, x: Fraction) -> Fraction:
        return Fraction(FUNCTIONS[self.op](x, self.number))


Chain: TypeAlias = tuple[Step, ...]


def proved(one: Chain, other: Chain) -> bool:
    return isinstance(prove_symbolic([built(one)], [built(other)]), Proved)


def built(chain: Chain) -> Node:
    x = X
    for step in chain:
        x = step.term(x)
    return x


def equal(one: Chain, other: Chain) -> bool:
    return all(valued(one, x) == valued(other, x) for x in GRID)


def valued(chain: Chain, x: Fraction) -> Fraction:
    for step in chain:
        x = step.value(x)
    return x


def steps(text: str) -> Chain:
    """`max 0.25, round`: operators and numbers."""
    parts = [each.split() for each in text.split(",")]
    return tuple(Step(op, *map(Fraction, number)) for op, *number in parts)


TRUE = [
    ("max 0.25, round", "max 0, round"),
    ("min 0.75, round", "min 1, round"),
    ("max 0.5, round", "max 0, round"),
    ("max 1.5, round", "max 2, round"),
    ("max 0.75, floor", "max 0, floor"),
    ("min 0.25, ceil", "min 1, ceil"),
    ("round, add 3, max 0", "max -3, round, add 3"),
    ("round, mul -1, add 3, max 0", "min 3, round, mul -1, add 3"),
    ("mul -8, round, add 3, min 5", "max -0.25, mul -8, round, add 3"),
    ("min 0.75, mul 8, round, add 3, max 0, min 9", "mul 8, round, add 3, max 0, min 9"),
    ("max -2, min 2, mul 2, round, max -3, min 3", "mul 2, round, max -3, min 3"),
    ("round, add 1, max 0, min 5, add 2", "round, add 3, max 2, min 7"),
]
FALSE = [
    ("max 0.75, round", "max 0, round"),
    ("max 2.5, round", "max 3, round"),
    ("max 0.25, ceil", "max 0, ceil"),
    ("min 0.25, floor", "min 1, floor"),
    ("round, add 0.5, max 0", "max -0.5, round, add 0.5"),
    ("round, max 0.5", "max 0.5, round"),
    ("min 0.5, mul 8, round, add 3, max 0, min 9", "mul 8, round, add 3, max 0, min 9"),
    ("round, mul -1, add 3, max 0", "max 3, round, mul -1, add 3"),
    ("max 0, min 2, round", "max 0, min 3, round"),
]


@pytest.mark.parametrize(("one", "other"), TRUE)
def test_bounds_of_roundings_have_one_form(one: str, other: str) -> None:
    assert equal(steps(one), steps(other))
    assert proved(steps(one), steps(other))


@pytest.mark.parametrize(("one", "other"), FALSE)
def test_other_bounds_are_not_taken_for_equal(one: str, other: str) -> None:
    assert not equal(steps(one), steps(other))
    assert not proved(steps(one), steps(other))


def drawn(rng: Random) -> Chain:
    def step() -> Step:
        op = rng.choice(("max", "min", "max", "min", "add", "mul", *ROUNDINGS))
        numbers = (-2, -1, Fraction(1, 2), 2) if op == "mul" else [Fraction(n, 4) for n in range(-12, 13)]
        return Step(op, Fraction(0) if op in ROUNDINGS else Fraction(rng.choice(numbers)))

    return tuple(step() for _ in range(rng.randint(2, 6)))


def near(rng: Random, chain: Chain) -> Chain:
    """The chain with one number a little off, or two neighbours exchanged."""
    i = rng.randrange(len(chain))
    if rng.random() < 0.5 and chain[i].op in ("max", "min"):
        moved = Step(chain[i].op, chain[i].number + rng.choice((-1, 1)) * rng.choice((Fraction(1, 4), Fraction(1, 2))))
        return (*chain[:i], moved, *chain[i + 1 :])
    if i + 1 == len(chain):
        return chain[:-1]
    return (*chain[:i], chain[i + 1], chain[i], *chain[i + 2 :])


def pairs(seed: int, count: int) -> Iterator[tuple[Chain, Chain]]:
    rng = Random(seed)
    for _ in range(count):
        chain = drawn(rng)
        yield chain, near(rng, chain)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", [pytest.param(i, marks=[pytest.mark.slow] * (i > 1)) for i in range(4)])
def test_what_is_proved_is_equal_in_exact_numbers(seed: int) -> None:
    right = wrong = 0
    for one, other in pairs(seed, 250):
        same = equal(one, other)
        if proved(one, other):
            assert same, (one, other)
            right += 1
        wrong += not same
    assert right > 20
    assert wrong > 50
