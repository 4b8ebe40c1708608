"""Whether a normal form is 0 for all values of its atoms, by z3: real numbers, or a machine's
integers."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from taso_mirage.checker.casts import own
from taso_mirage.checker.forms import INTS, Poly, Term, bits, boolean, named, opened, spend, variables
from taso_mirage.checker.tensors import bag

WORK_OF_Z3 = 2_000_000
RANGES = {"tanh": (-1, 1), "erf": (-1, 1), "sin": (-1, 1), "cos": (-1, 1), "sqrt": (0, None)}
"""Functions with a range."""


def solved(p: Poly, dtype: str) -> bool:
    """Whether p is 0 for all values of its atoms."""
    import z3  # imported here, because the import is slow

    spend(100)
    solver = z3.Solver()
    solver.set("rlimit", WORK_OF_Z3)
    values = Integers(z3, solver, dtype) if dtype in INTS else Reals(z3, solver)
    solver.add(values.number(p) != values.value(0))
    return bool(solver.check() == z3.unsat)


class Reals:
    """Polynomials over real numbers."""

    def __init__(self, z3: Any, solver: Any) -> None:
        self.z3, self.solver = z3, solver
        self.seen: dict[Any, Any] = {}

    def value(self, c: Any) -> Any:
        return self.z3.RealVal(str(c))

    def fresh(self) -> Any:
        return self.z3.Real(f"r{len(self.seen)}")

    def number(self, p: Poly) -> Any:
        return reduce(lambda x, y: x + y, [self.term(t) * self.value(c) for t, c in p.terms], self.value(0))

    def term(self, t: Term) -> Any:
        bound, f = opened(t)
        inner = frozenset((a, e) for a, e in f if not variables(a).isdisjoint(bound))
        found = [
            self.symbol((a, e)) if e < 0 or e != int(e) else reduce(lambda x, y: x * y, [self.symbol(a)] * int(e))
            for a, e in f - inner
        ]
        first = self.symbol(named(bound, inner)) if bound else self.value(1)
        return reduce(lambda x, y: x * y, found, first)

    def symbol(self, a: Any) -> Any:
        if a not in self.seen:
            self.seen[a] = x = self.fresh()
            if isinstance(a[0], str):
                self.known(a, x)
        return self.seen[a]

    def members(self, a: Any, dtype: str, sign: int) -> list[Any] | None:
        """The values of which an atom is the largest, if it is that."""
        if a[:2] != ("max", bag(dtype, sign)) or not all(c > 0 for _, c in a[2].terms):
            return None
        alone = [(b, f) for (b, f), _ in a[2].terms]
        return [self.number(next(iter(f))[0][1]) if not b and len(f) == 1 else self.symbol((b, f)) for b, f in alone]

    def choose(self, x: Any, values: list[Any], above: Callable[[Any, Any], Any]) -> None:
        self.solver.add(self.z3.Or([x == v for v in values]), *(above(x, v) for v in values))

    def known(self, a: Any, x: Any) -> None:
        """Tell the solver everything that is known of a new symbol."""
        z3, add = self.z3, self.solver.add
        values = self.members(a, "float64", 1)
        if values is not None:
            self.choose(x, values, lambda y, v: y >= v)
        elif a[0] in ("lt", "eq"):
            add(x == z3.If(self.number(a[1]) < 0 if a[0] == "lt" else self.number(a[1]) == 0, 1, 0))
        elif boolean(a):
            add(z3.Or(x == 0, x == 1))
        elif a[0] == "inv":
            add(x * self.number(a[1]) == 1)
        elif a[0] == "exp":
            add(x > 0)
        elif a[0] == "call" and a[1] in RANGES:
            low, high = RANGES[a[1]]
            add(*([x >= low] if low is not None else []), *([x <= high] if high is not None else []))
        elif (dtype := own(a)) in INTS:
            add(x >= bits(dtype)[0], x <= bits(dtype)[1])


class Integers(Reals):
    """Polynomials over the integers of a machine, modulo 2**n; a value with other digits may be any
    of them."""

    def __init__(self, z3: Any, solver: Any, dtype: str) -> None:
        super().__init__(z3, solver)
        self.dtype, self.signed = dtype, dtype[0] != "u"
        self.size = (bits(dtype)[1] - bits(dtype)[0] + 1).bit_length() - 1

    def value(self, c: Any) -> Any:
        if c.denominator != 1:
            raise ValueError("an integer that is none")
        return self.z3.BitVecVal(int(c), self.size)

    def fresh(self) -> Any:
        return self.z3.BitVec(f"b{len(self.seen)}", self.size)

    def not_above(self, a: Any, b: Any) -> Any:
        return a <= b if self.signed else self.z3.ULE(a, b)

    def known(self, a: Any, x: Any) -> None:
        one, zero = self.value(1), self.value(0)
        high, low = (self.members(a, self.dtype, sign) for sign in (1, -1))
        if high is not None:
            self.choose(x, high, lambda y, v: self.not_above(v, y))
        elif low is not None:
            self.choose(x, low, self.not_above)
        elif a[:2] in (("call", f"lt {self.dtype}"), ("call", f"eq {self.dtype}")):
            p, q = map(self.number, a[2:])
            holds = self.z3.Not(self.not_above(q, p)) if a[1].startswith("lt") else p == q
            self.solver.add(x == self.z3.If(holds, one, zero))
        elif boolean(a):
            self.solver.add(self.z3.Or(x == zero, x == one))
