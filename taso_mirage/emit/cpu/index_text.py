"""Integers of index maps as C++ expressions of type size_t.

An index is at least 0 wherever it is read, so differences may wrap in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from taso_mirage.emit.cpu.lazy_tensors import Affine, AffineIndex, CppBuffer
from taso_mirage.emit.cpu.printer import static_cast
from taso_mirage.emit.statements import Expression, every, expression, select, sum_of, v
from taso_mirage.ir.dims import Dim, DimFactor, Floor, Symbolic, bind
from taso_mirage.meanings.index_maps import ReadRow

SIGNED = "ptrdiff_t"


def integer(e: Dim) -> Expression:
    """A polynomial."""
    above, below = _sides(e)
    return above if below is None else above - below


def holds(e: Dim) -> Expression:
    """Whether a polynomial is at least 0."""
    above, below = _sides(e)
    if _may_be_negative(e):
        return static_cast(SIGNED, integer(e)) >= 0
    return above >= (0 if below is None else below)


def _sides(e: Dim) -> tuple[Expression, Expression | None]:
    """The terms with positive coefficients, and those that are subtracted, if there are any."""
    terms = e.terms if isinstance(e, Symbolic) else (((), e),)
    above = [_term(m, c) for m, c in terms if c > 0]
    below = [_term(m, -c) for m, c in terms if c < 0]
    return sum_of(above or [expression(0)]), sum_of(below) if below else None


def _term(monomial: Iterable[tuple[DimFactor, int]], count: int) -> Expression:
    factors = [_factor(atom) for atom, power in monomial for _ in range(power)]
    factors = factors if count == 1 and factors else [expression(count), *factors]
    made = factors[0]
    for each in factors[1:]:
        made = made * each
    return made


def _factor(atom: DimFactor) -> Expression:
    if isinstance(atom, str):
        return v[atom]
    if _subtracts(atom.numerator):
        return static_cast(
            "size_t", v.floor_of(static_cast(SIGNED, integer(atom.numerator)), integer(atom.denominator))
        )
    return integer(atom.numerator) / integer(atom.denominator)


def _subtracts(e: Dim) -> bool:
    return _may_be_negative(e) or any(c < 0 for _, c in (e.terms if isinstance(e, Symbolic) else ()))


def _may_be_negative(e: Dim) -> bool:
    """Whether a quotient in a polynomial may be negative."""
    atoms = [atom for monomial, _ in (e.terms if isinstance(e, Symbolic) else ()) for atom, _ in monomial]
    return any(isinstance(atom, Floor) and _subtracts(atom.numerator) for atom in atoms)


def offset(buffer: CppBuffer, index: Sequence[Dim]) -> Dim:
    """The place of an element, in elements from the pointer."""
    return sum([at * stride for at, stride in zip(index, buffer.strides, strict=True)], start=buffer.start)


def row(made: ReadRow, buffer: CppBuffer, places: Mapping[str, Dim]) -> Expression:
    """The row that is read; 0 where it is not read."""
    at = offset(buffer, [bind(e, places) for e in made.index])
    read = v.row_of(v[buffer.name][integer(at)], integer(bind(made.count, places)))
    conditions = [holds(bind(e, places)) for e in made.conditions]
    return select(read, every(conditions), "size_t{0}") if conditions else read


def opaque(index: Sequence[Dim]) -> AffineIndex:
    """An index for comparisons alone: each product of variables is a name."""
    found = []
    for e in index:
        terms = e.terms if isinstance(e, Symbolic) else (((), e),)
        names = {"*".join(str(a) for a, p in m for _ in range(p)): c for m, c in terms}
        constant = names.pop("", 0)
        found.append(Affine(constant, tuple(sorted(names.items()))))
    return tuple(found)
