"""Z3 on scalars: whether two normal forms are equal reals, with maxima and comparisons as case
distinctions."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from taso_mirage.meanings.conditions import Conditions
from taso_mirage.meanings.functions import Division
from taso_mirage.meanings.integers import context
from taso_mirage.meanings.kinds import atom_kind
from taso_mirage.meanings.polynomials import Atom, Monomial, Poly
from taso_mirage.prove.axioms import division, has
from taso_mirage.prove.machine import integral, modulus, value_bounds
from taso_mirage.prove.matching import Matching

RLIMIT = 500_000
SMALL = 60
"""The largest number of terms of a polynomial that is given to Z3."""
DECIDABLE = ("positive", "zero", "max")
SIZES = ("size", "floor")
"""Atoms that are integers but need not be declared so to Z3, as the integers that functions of
floats give."""


def equal(matching: Matching, p: Poly, q: Poly, given: Conditions, dtype: str = "float32") -> bool:
    """Whether Z3 shows p = q for all reals, or for wrapping integers of the dtype; False if it does
    not decide. Folds and reads are unknowns, other functions uninterpreted."""
    if len(p.terms) + len(q.terms) > SMALL or not (_mentions(p) or _mentions(q)):
        return False
    import z3

    matching.indices.step(100)
    translate = _Translation(matching, given)
    solver = z3.Solver(ctx=translate.context)
    solver.set("rlimit", RLIMIT)
    wraps = modulus(dtype) if integral(p) and integral(q) else None
    differ = translate(p) != translate(q) if wraps is None else z3.ToInt(translate(p) - translate(q)) % wraps != 0
    solver.add(differ, *translate.facts)
    return bool(solver.check() == z3.unsat)


def _mentions(p: Poly) -> bool:
    """Whether the polynomial contains an order (a maximum or comparison), of which Z3 knows more
    than the normal form."""
    return any(
        a.kind in DECIDABLE
        or atom_kind(a.kind).wraps
        or _divides(a) is not None
        or any(isinstance(x, Poly) and _mentions(x) for x in a.args)
        for m in p.terms
        for a, _ in m
    )


def _divides(a: Atom) -> Division | None:
    """The division of integers by a positive number that an atom is, for which Z3 gets constraints;
    None for other atoms."""
    how, operands = division(a.kind), atom_kind(a.kind).operands
    integers = bool(operands) and "int" in operands[0]
    return how if how is not None and integers and (a.args[1].number or 0) > 0 else None


class _Translation:
    """Normal forms as Z3 reals; equal folds and reads are one unknown."""

    def __init__(self, matching: Matching, given: Conditions) -> None:
        self.matching, self.given = matching, given
        self.context = context(matching.indices)
        self.known: list[tuple[Atom, Any]] = []
        self.facts: list[Any] = []
        self.count = 0

    def __call__(self, p: Poly) -> Any:
        import z3

        total = z3.RealVal(0, self.context)
        for m, c in p.terms.items():
            total = total + self._monomial(m) * z3.RealVal(str(Fraction(c)), self.context)
        return total

    def _monomial(self, m: Monomial) -> Any:
        import z3

        product = z3.RealVal(1, self.context)
        for a, power in m:
            value = self._atom(a)
            for _ in range(abs(power)):
                product = product * value if power > 0 else product / value
        return product

    def _atom(self, a: Atom) -> Any:
        for other, value in self.known:
            if self.matching.same_atom(other, a, self.given):
                return value
        value = self._new(a)
        self.known.append((a, value))
        return value

    def _new(self, a: Atom) -> Any:
        import z3

        if a.kind in ("positive", "zero"):
            inner = self(a.args[0])
            return z3.If(
                inner > 0 if a.kind == "positive" else inner == 0, *(z3.RealVal(n, self.context) for n in (1, 0))
            )
        if a.kind == "max" and not any(b or c for b, c, _ in a.args):
            first, *others = [self(p) for _, _, p in a.args]
            for other in others:
                first = z3.If(first >= other, first, other)
            return first
        polys = [self(x) for x in a.args if isinstance(x, Poly)]
        if integral(Poly({((a, 1),): 1})) and a.kind not in SIZES and not has(a.kind, "whole"):
            return self._integer(a, polys)
        if polys and a.kind not in ("sum", "prod", "max"):
            value = z3.Function(a.kind, *[z3.RealSort(self.context)] * (len(polys) + 1))(*polys)
        else:
            value = z3.Real(f"u{len(self.known)}.{a.id}", self.context)
        self._note(a, value, polys)
        return value

    def _note(self, a: Atom, value: Any, polys: list[Any]) -> None:
        import z3

        if a.kind in ("exp", "size"):
            self.facts.append(value > 0 if a.kind == "exp" else value >= 0 if a.names & self._indices() else value >= 1)
        elif a.kind == "inv":
            self.facts.append(z3.Implies(polys[0] != 0, value * polys[0] == 1))
        elif a.kind == "sqrt":
            self.facts += [value >= 0, value * value == z3.If(polys[0] >= 0, polys[0], -polys[0])]

    def _integer(self, a: Atom, polys: list[Any]) -> Any:
        """An unknown integer within its range. A wrapped integer differs from its operand by a
        multiple of 2^n, a remainder by a multiple of the divisor."""
        value = self._unknown(a.kind, polys)
        found = value_bounds(self.matching.algebra, Poly({((a, 1),): 1}))
        self.facts += [value >= self._number(found.low)] if found.low is not None else []
        self.facts += [value <= self._number(found.high)] if found.high is not None else []
        kind = atom_kind(a.kind)
        if kind.wraps:
            self.facts.append(value == polys[0] - self._number(modulus(kind.result)) * self._unknown())
        how = _divides(a)
        if how is not None:
            self._note_division(how, value, polys[0], self._number(a.args[1].number))
        return value

    def _note_division(self, how: Division, value: Any, p: Any, d: Any) -> None:
        """The remainder is smaller than the divisor, and has the sign of p if the quotient is not
        rounded down."""
        import z3

        rest = value if how.rest else p - d * value
        if how.rest:
            self.facts.append(value == p - d * self._unknown())
        above = rest >= 0
        self.facts += [rest < d, above if how.floors else z3.And(rest > -d, z3.If(p >= 0, above, rest <= 0))]

    def _unknown(self, kind: str = "", polys: Sequence[Any] = ()) -> Any:
        """An integer, the same for equal operands."""
        import z3

        self.count += 1
        real, integer = z3.RealSort(self.context), z3.IntSort(self.context)
        name = kind if polys else f"{kind}{self.count}"
        return z3.ToReal(z3.Function(name, *[real] * len(polys), integer)(*polys))

    def _number(self, n: Any) -> Any:
        import z3

        return z3.RealVal(str(n), self.context)

    def _indices(self) -> frozenset[str]:
        return frozenset(self.matching.indices.extents)
