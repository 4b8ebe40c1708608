"""Z3 on the integers of a proof: consequences of conditions, index ranges and sizes of at least
1."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from taso_mirage.ir.dims import Dim, Floor
from taso_mirage.meanings.conditions import Conditions, DataIndex

RLIMIT = 400_000
"""Z3's own measure of work, a question; it does not depend on the machine."""


class Ranges(Protocol):
    """The index variables of a proof with their extents, and Z3's state for it."""

    extents: dict[str, Dim]
    context: Any


def context(indices: Ranges) -> Any:
    """Z3's state for one proof: the proofs within the limit must not depend on earlier ones."""
    import z3

    if indices.context is None:
        indices.context = z3.Context()
    return indices.context


class _Translation:
    """Dims as Z3 integers; `facts` collects the facts about every variable met."""

    def __init__(self, indices: Ranges) -> None:
        self.indices, self.context = indices, context(indices)
        self.known: dict[Any, Any] = {}
        self.facts: list[Any] = []

    def __call__(self, e: Dim) -> Any:
        import z3

        if isinstance(e, int):
            return z3.IntVal(e, self.context)
        terms = []
        for monomial, c in e.terms:
            product = z3.IntVal(c, self.context)
            for atom, power in monomial:
                for _ in range(power):
                    product = product * self._atom(atom)
            terms.append(product)
        return z3.Sum(terms)

    def _atom(self, atom: str | Floor | DataIndex) -> Any:
        import z3

        if atom in self.known:
            return self.known[atom]
        value = self.known[atom] = z3.Int(f"v{len(self.known)}", self.context)
        if isinstance(atom, Floor):
            numerator, denominator = self(atom.numerator), self(atom.denominator)
            self.facts += [value * denominator <= numerator, numerator < value * denominator + denominator]
        elif isinstance(atom, str):
            extent = self.indices.extents.get(atom)
            self.facts += [value >= 1] if extent is None else [value >= 0, value < self(extent)]
        return value


def follows(indices: Ranges, given: Conditions, alternatives: Iterable[Dim]) -> bool:
    """Whether under `given` one of `alternatives` is >= 0, for all values; False where Z3 does not
    know."""
    return covers(indices, given, [[a] for a in alternatives])


def covers(indices: Ranges, given: Conditions, alternatives: Iterable[Iterable[Dim]]) -> bool:
    """Whether under `given` one of the conjunctions in `alternatives` holds, for all values."""
    import z3

    translate = _Translation(indices)
    solver = z3.Solver(ctx=translate.context)
    solver.set("rlimit", RLIMIT)
    goals = [translate(g) >= 0 for g in given]
    true = z3.BoolVal(True, translate.context)
    goals += [z3.Not(z3.And(true, *[translate(c) >= 0 for c in each])) for each in alternatives]
    solver.add(*goals, *translate.facts)
    return bool(solver.check() == z3.unsat)
