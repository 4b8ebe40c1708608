"""A scalar function as one record: all facts that the system has about it.

Definitions map functions over elements: `xp.map(np.exp, x)`, or `xp.map(ERROR_FUNCTION, x)` where
numpy has no such function. A numpy function without a record is uninterpreted: it is an oracle in
the field and an opaque function in proofs, and has no code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeAlias

from taso_mirage.meanings.polynomials import Poly, Rational
from taso_mirage.meanings.residues import FieldRule

Normal: TypeAlias = Callable[..., Poly]
"""(algebra, *normal forms of the operands) -> the normal form of the result."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A statement about the function, which it calls f, that holds for all reals x, y, z in
    `domain`.

    `use` says how proofs use it.
    """

    use: str
    statement: str
    domain: str = "True"


@dataclass(frozen=True, slots=True)
class Comparison:
    """0 or 1 by the `sign` ("positive" or "zero") of a - b, or of b - a where `swapped`.

    `holds`: its value where the difference has that sign.
    """

    sign: str
    holds: bool = True
    swapped: bool = False


@dataclass(frozen=True, slots=True)
class Division:
    """Integer division: its remainder (`rest`) or its quotient, which is rounded down (`floors`) or
    towards zero."""

    rest: bool
    floors: bool


@dataclass(frozen=True, slots=True)
class Fold:
    """A function that folds elements along an axis, with its text for each back end.

    `kind` is that of a fold in proofs. C++ begins with the value `cpp`, and OpenMP calls the fold
    `clause`. Triton has a call, and a number that changes nothing.
    """

    kind: str
    cpp: str
    clause: str
    triton: str = ""
    neutral: float = 0.0


class Linear(Enum):
    """The dependence of a result's degree on the degrees of the operands (PET)."""

    SUM = "that of the largest"
    PRODUCT = "their sum"
    QUOTIENT = "that of the first, over what is known"
    CHOICE = "that of the largest but the first, which is known"


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function of elements. All fields except the name and the numpy function are optional.

    Types: `free` are the operands whose dtype may differ from that of the others; `tests`: the
    result is a bool. Field: `field` is its effect on residues; without it, it is a random oracle on
    floats. Proofs: `normal` builds its normal form (of floats alone if `floats`), `facts` are
    further facts, and `undefined` is 1 where it has no value, else 0, of the operands that
    `decisive` has (all if none). `ring`: on integers it is one of their classes modulo 2^n.
    `boolean` names the function that it is on booleans. `infinite` gives the result where an
    operand is an infinite constant, or None. `comparison` and `division` say which of these it is.
    Programs: `linear` for degrees; `sizes`: it holds for symbolic sizes. Code: `cpp` and `triton`
    are expressions of the operands. `dear`: it is expensive, so its result is loaded rather than
    computed twice. `fold`: folding with it. `whole`: the whole number that it rounds an exact one
    to. `near`: the bounds of f(x) - x.
    """

    name: str
    real: Callable[..., Any]
    free: tuple[int, ...] = ()
    tests: bool = False
    field: FieldRule | None = None
    normal: Normal | None = None
    floats: bool = True
    facts: tuple[Fact, ...] = ()
    undefined: Normal | None = None
    decisive: tuple[int, ...] = ()
    ring: bool = False
    boolean: str = ""
    infinite: Callable[[Sequence[Poly]], Poly | None] | None = None
    comparison: Comparison | None = None
    division: Division | None = None
    linear: Linear | None = None
    sizes: bool = False
    cpp: str = ""
    triton: str = ""
    dear: bool = False
    fold: Fold | None = None
    whole: Callable[[Fraction], int] | None = None
    near: tuple[Rational, Rational] | None = None

    def __call__(self, *xs: Any) -> Any:
        return self.real(*xs)

    @property
    def __name__(self) -> str:  # the attribute of numpy functions
        return self.name

    def known(self, *uses: str) -> bool:
        """Whether one of its facts is of use for that."""
        return any(fact.use in uses for fact in self.facts)


_DECLARED: dict[str, Function] = {}
_BY_REAL: dict[Any, Function] = {}
SCALAR_FUNCTIONS: Mapping[str, Function] = MappingProxyType(_DECLARED)
"""All records by name."""


def declare_function(made: Function) -> Function:
    """Declare a scalar function: its record, which definitions map as they map numpy's function."""
    if made.name in _DECLARED:
        raise ValueError(f"two scalar functions are called {made.name}")
    _DECLARED[made.name] = made
    _BY_REAL.setdefault(made.real, made)
    return made


def function_of(fn: Callable[..., Any]) -> Function:
    """The record of a function that a definition maps."""
    if isinstance(fn, Function):
        return fn
    return _BY_REAL.get(fn) or _uninterpreted(fn)


@lru_cache(maxsize=4096)
def _uninterpreted(fn: Callable[..., Any]) -> Function:
    return Function(str(fn.__name__), fn)
