"""Facts about scalar functions for proofs: a table of properties, each with its domain.

The properties are those of the functions' records; `rewrites` has the normal forms that follow.

Nothing is claimed where a function is undefined: a logarithm of a number that is not positive, a
division by 0, a root of a negative number. `tests/prove/test_axioms.py` checks every line of the
table in numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taso_mirage.meanings.functions import SCALAR_FUNCTIONS, Division, Fact
from taso_mirage.meanings.kinds import atom_kind, rounding
from taso_mirage.meanings.polynomials import Rational


@dataclass(frozen=True, slots=True)
class Axiom:
    """`statement` holds for all reals x, y, z in `domain`; `use` says how the normal form uses
    it."""

    function: str
    use: str
    statement: str
    domain: str = "True"


_ROUNDING = (
    Fact("odd", "f(-x) == -f(x)"),
    Fact("increasing", "f(x) <= f(y)", "x < y"),
    Fact("idempotent", "f(f(x)) == f(x)"),
)
_CASTS = ("float16", "bfloat16", "float32")
_ATOMS = [
    Axiom("inv", "pulled out of maxima", "1 / y < 1 / x", "0 < x < y"),
    Axiom("max", "positive factors out", "max(x * z, y * z) == max(x, y) * z", "z > 0"),
    Axiom("inv", "exponentials out", "1 / (x + exp(-y)) == exp(y) / (1 + x * exp(y))", "x > 0"),
    Axiom("inv", "no factor exp(x)", "exp(x) / (y + z * exp(x)) == (1 - y / (y + z * exp(x))) / z", "y > 0 and z > 0"),
    Axiom(
        "inv", "no factor exp(-x)", "1 / (y + z * exp(x)) == (1 - z * exp(x) / (y + z * exp(x))) / y", "y > 0 and z > 0"
    ),
]
"""Axioms of quotients and maxima, which are no scalar functions."""


def _named(name: str, facts: Sequence[Fact]) -> list[Axiom]:
    return [Axiom(name, fact.use, fact.statement.replace("f(", f"{name}("), fact.domain) for fact in facts]


AXIOMS = [
    *(axiom for function in SCALAR_FUNCTIONS.values() for axiom in _named(function.name, function.facts)),
    *(axiom for dtype in _CASTS for axiom in _named(f"cast_{dtype}", _ROUNDING)),
    *_ATOMS,
]
"""All that proofs know, from the records of the scalar functions."""
_FACTS = {rounding(dtype): _ROUNDING for dtype in _CASTS}
_BARE = ("exp", "sqrt")
"""The functions of which normal forms are built; the kinds of other functions contain their
dtypes."""


def division(kind: str) -> Division | None:
    """The division of integers that an atom's function is; None where it is none."""
    function = SCALAR_FUNCTIONS.get(atom_kind(kind).name)
    return None if function is None else function.division


def near(kind: str) -> tuple[Rational, Rational] | None:
    """The bounds of f(x) - x of a rounding f."""
    of = atom_kind(kind)
    function = SCALAR_FUNCTIONS.get(of.name) if of.of_floats else None
    return None if function is None else function.near


def has(kind: str, *uses: str) -> bool:
    """Whether one of the facts about an atom's function is of some use."""
    of = atom_kind(kind)
    function = SCALAR_FUNCTIONS.get(of.name) if kind in _BARE or of.of_floats else None
    if function is not None:
        return function.known(*uses)
    return any(fact.use in uses for fact in _FACTS.get(kind, ()))
