"""Dimensions: an int, or a `Symbolic` integer polynomial over named sizes, in a normal form so that
equal means equal."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd
from typing import Any, TypeAlias, TypeVar, cast, overload

from taso_mirage.errors import Undecidable, Unsupported
from taso_mirage.system.wording import option


@dataclass(frozen=True, slots=True)
class Floor:
    """The atom `numerator // denominator`, for a division that is not exact for every size."""

    numerator: Symbolic
    denominator: Dim

    def __str__(self) -> str:
        return f"(({self.numerator})//({self.denominator}))"


F = TypeVar("F")
Powers: TypeAlias = tuple[tuple[F, int], ...]
"""Factors with their exponents, sorted."""
DimFactor: TypeAlias = str | Floor
DimMonomial: TypeAlias = Powers[DimFactor]
_Terms: TypeAlias = tuple[tuple[DimMonomial, int], ...]


@dataclass(frozen=True, eq=False)
class Symbolic:
    """A polynomial with integer coefficients; `terms` is sorted and holds no zero.

    Symbols stand for sizes >= 0.
    """

    terms: _Terms
    _hash: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(self.terms))

    def __reduce__(self) -> tuple[Any, ...]:  # hashes differ between processes
        return Symbolic, (self.terms,)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Symbolic) and self.terms == other.terms)

    def __add__(self, other: Dim) -> Dim:
        return _sum(self, other)

    def __neg__(self) -> Dim:
        return Symbolic(tuple([(m, -c) for m, c in self.terms]))

    def __sub__(self, other: Dim) -> Dim:
        return _difference(self, other)

    def __rsub__(self, other: int) -> Dim:
        return -self + other

    def __mul__(self, other: Dim) -> Dim:
        return _product(self, other)

    def __pow__(self, power: int) -> Dim:
        return dim_product([self] * power)

    __radd__ = __add__
    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return floor_divide(self, other)

    def __rfloordiv__(self, other: int) -> Dim:
        return floor_divide(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return self - (self // other) * other

    def __lt__(self, other: Dim) -> bool:
        raise Undecidable(f"whether {self} is below {other} depends on the size; fix it with {option('shape')}")

    __gt__ = __le__ = __ge__ = __lt__

    def __int__(self) -> int:
        raise Undecidable(f"{self} has no fixed size; fix it with {option('shape')}")

    __index__ = __int__

    def __str__(self) -> str:
        return " + ".join(_show(m, c) for m, c in self.terms).replace("+ -", "- ")

    __repr__ = __str__


Dim: TypeAlias = int | Symbolic
Shape: TypeAlias = tuple[Dim, ...]


def symbol(name: str) -> Symbolic:
    """The size called `name`."""
    return Symbolic((((((name, 1),)), 1),))


def _show(monomial: DimMonomial, coefficient: int) -> str:
    factors = [str(atom) for atom, power in monomial for _ in range(power)]
    if not factors:
        return str(coefficient)
    text = "*".join(factors)
    return text if coefficient == 1 else f"-{text}" if coefficient == -1 else f"{coefficient}*{text}"


def _terms(dim: Dim) -> _Terms:
    if isinstance(dim, Symbolic):
        return dim.terms
    return (((), int(dim)),) if dim else ()


TERMS = 1024
"""The largest number of products in a size; products of sums could have exponentially many."""


@lru_cache(maxsize=1 << 15)
def _sum(a: Symbolic, b: Dim) -> Dim:
    return summed_terms([*a.terms, *_terms(b)])


@lru_cache(maxsize=1 << 15)
def _difference(a: Symbolic, b: Dim) -> Dim:
    return summed_terms([*a.terms, *[(m, -c) for m, c in _terms(b)]])


@lru_cache(maxsize=1 << 15)
def _product(a: Symbolic, b: Dim) -> Dim:
    if len(a.terms) * len(_terms(b)) > TERMS:
        raise Undecidable(f"a size of more than {TERMS} products: fix some of the free dims with {option('shape')}")
    return summed_terms([(times(m, n, lambda power: str(power[0])), c * d) for m, c in a.terms for n, d in _terms(b)])


def times(a: Powers[F], b: Powers[F], key: Callable[[tuple[F, int]], Any] | None = None) -> Powers[F]:
    """The product of two monomials: exponents add, and factors are sorted by `key`."""
    if not a or not b:
        return a or b
    total = dict(a)
    for factor, exponent in b:
        total[factor] = total.get(factor, 0) + exponent
    return tuple(sorted([pair for pair in total.items() if pair[1]], key=key))


def summed_terms(terms: Iterable[tuple[DimMonomial, int]]) -> Dim:
    """The sum of products of sizes, each with its coefficient."""
    found: dict[DimMonomial, int] = {}
    for monomial, coefficient in terms:
        found[monomial] = found.get(monomial, 0) + coefficient
    kept = [item for item in found.items() if item[1]]
    if not kept:
        return 0
    if len(kept) > 1:
        kept.sort(key=_place)
    return kept[0][1] if len(kept) == 1 and kept[0][0] == () else Symbolic(tuple(kept))


def _place(term: tuple[DimMonomial, int]) -> tuple[int, str]:
    return _place_of(term[0])


@lru_cache(maxsize=1 << 15)
def _place_of(monomial: DimMonomial) -> tuple[int, str]:
    return -len(monomial), str(monomial)


def _divide_term(term: tuple[DimMonomial, int], divisor: tuple[DimMonomial, int]) -> tuple[DimMonomial, int] | None:
    powers = dict(term[0])
    for atom, power in divisor[0]:
        powers[atom] = powers.get(atom, 0) - power
        if powers[atom] < 0:
            return None
    if term[1] % divisor[1]:
        return None
    return tuple((a, p) for a, p in powers.items() if p), term[1] // divisor[1]


@lru_cache(maxsize=4096)
def floor_divide(a: Dim, b: Dim) -> Dim:
    """`a // b`; the part of `a` that `b` divides comes out: (b*q + r) // b = q + r // b, exact for
    integers."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if b == 0:
        raise ZeroDivisionError(f"{a} // 0")
    if a == b:
        return 1
    if isinstance(b, int) and b > 0:
        return _divide_by_number(_lift(a), b)
    divisors = _terms(b)
    if len(divisors) != 1:
        exact = _exact_quotient(a, b)
        return uneven(a, b) if exact is None else exact
    quotient: list[tuple[DimMonomial, int]] = []
    rest: list[tuple[DimMonomial, int]] = []
    for term in _terms(a):
        divided = _divide_term(term, divisors[0])
        (rest if divided is None else quotient).append(term if divided is None else divided)
    remainder = summed_terms(rest)
    if isinstance(remainder, int) and isinstance(b, int):
        return summed_terms(quotient) + remainder // b
    if remainder == 0:
        return summed_terms(quotient)
    return summed_terms(quotient) + uneven(remainder, b)


def _exact_quotient(a: Dim, b: Dim) -> Dim | None:
    """The polynomial q with a = b * q; None where there is none.

    Division with leading terms in the graded lexicographic order (Cox, Little, O'Shea, "Ideals,
    Varieties, and Algorithms", section 2.3).
    """
    atoms = sorted({atom for dim in (a, b) for m, _ in _terms(dim) for atom, _ in m}, key=str)

    def order(term: tuple[DimMonomial, int]) -> tuple[int, list[int]]:
        powers = dict(term[0])
        return sum(powers.values()), [powers.get(atom, 0) for atom in atoms]

    leading, rest, found = max(_terms(b), key=order), a, list[tuple[DimMonomial, int]]()
    while rest != 0:
        divided = _divide_term(max(_terms(rest), key=order), leading)
        if divided is None or len(found) == len(_terms(a)):
            return None
        found.append(divided)
        rest = rest - summed_terms([divided]) * b
    return summed_terms(found)


def _divide_by_number(a: Symbolic, b: int) -> Dim:
    """Integer multiples of `b` are separated from every term, a common factor cancels, and nested
    floors become one floor."""
    quotient = summed_terms([(m, c // b) for m, c in a.terms])
    rest = _lift(summed_terms([(m, c % b) for m, c in a.terms]))
    factor = gcd(b, *(c for m, c in rest.terms if m))
    rest, b = _lift(summed_terms([(m, c // factor) for m, c in rest.terms])), b // factor
    if b == 1 or not any(m for m, _ in rest.terms):
        return quotient + rest if b == 1 else quotient
    (monomial, coefficient), *others = rest.terms
    atom, power = monomial[0]
    single = len(monomial) == 1 and power == 1 and coefficient == 1 and not any(m for m, _ in others)
    if single and isinstance(atom, Floor) and isinstance(atom.denominator, int) and atom.denominator > 0:
        shift = sum(c for _, c in others) * atom.denominator
        return quotient + floor_divide(atom.numerator + shift, atom.denominator * b)
    return quotient + uneven(rest, b)


def _lift(dim: Dim) -> Symbolic:
    return dim if isinstance(dim, Symbolic) else Symbolic((((), dim),))


def uneven(numerator: Dim, denominator: Dim) -> Symbolic:
    """The quotient as an atom: the division does not come out even."""
    return Symbolic((((((Floor(_lift(numerator), denominator)), 1),), 1),))


def symbols(dim: Dim) -> set[str]:
    """The names in `dim`."""
    found: set[str] = set()
    for monomial, _ in _terms(dim):
        for atom, _ in monomial:
            found |= {atom} if isinstance(atom, str) else symbols(atom.numerator) | symbols(atom.denominator)
    return found


@overload
def evaluate(dim: Dim, sizes: Mapping[str, int]) -> int: ...


@overload
def evaluate(dim: Dim, sizes: Mapping[str, Dim]) -> Dim: ...


def evaluate(dim: Dim, sizes: Mapping[str, Any]) -> Any:
    """`dim` with every symbol replaced by its size, which may be a polynomial of others.

    Raises KeyError for a symbol without a size.
    """
    if isinstance(dim, int):
        return dim
    total: Any = 0
    for monomial, coefficient in dim.terms:
        for atom, power in monomial:
            if isinstance(atom, str):
                value = sizes[atom]
            else:
                value = evaluate(atom.numerator, sizes) // evaluate(atom.denominator, sizes)
            coefficient = coefficient * value**power  # arrays of several shapes broadcast
        total = total + coefficient
    return total


def bind(dim: Dim, sizes: Mapping[str, Dim]) -> Dim:
    """`dim` with the named symbols replaced; the others stay."""
    if isinstance(dim, int):
        return dim

    def value(factor: DimFactor) -> Dim:
        if isinstance(factor, str):
            return sizes.get(factor, symbol(factor))
        return bind(factor.numerator, sizes) // bind(factor.denominator, sizes)

    return replaced_factors(dim, value)


def replaced_factors(dim: Symbolic, value: Callable[[DimFactor], Dim]) -> Dim:
    """`dim` with every factor of its products replaced by the result of `value` for it."""
    total: Dim = 0
    for monomial, coefficient in dim.terms:
        product: Dim = coefficient
        for factor, power in monomial:
            each = value(factor)
            for _ in range(power):
                product = product * each
        total = total + product
    return total


def parse_dim(text: str) -> Dim:
    """Parse the text that `str` of a dim prints; a text that is no arithmetic is the name of one
    symbol."""
    try:
        return _from_ast(ast.parse(text, mode="eval").body)
    except (SyntaxError, KeyError, ValueError, ArithmeticError, RecursionError, MemoryError, Undecidable):
        return symbol(text)


def _from_ast(tree: ast.expr) -> Dim:
    match tree:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_from_ast(operand)
        case ast.Call(func=ast.Name(id="floor"), args=[ast.BinOp(left=left, op=ast.Div(), right=right)]):
            return _from_ast(left) // _from_ast(right)
        case ast.BinOp(left=left, op=op, right=right):
            made: Dim = _ARITHMETIC[type(op)](_from_ast(left), _from_ast(right))
            return made
    raise KeyError(type(tree).__name__)


_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}
}


def fixed(value: Any, sizes: Mapping[str, Dim]) -> Any:
    """An attribute's value with every symbol at its size."""
    if isinstance(value, Symbolic):
        return evaluate(value, sizes)
    return tuple(fixed(v, sizes) for v in value) if isinstance(value, tuple) else value


def learn(shape: Shape | None, actual: Iterable[int], sizes: dict[str, int]) -> None:
    """Read the sizes of symbols from an actual shape."""
    for dim, n in zip(shape or (), actual, strict=False):
        if isinstance(dim, Symbolic) and len(dim.terms) == 1 and dim.terms[0][1] == 1:
            ((monomial, _),) = dim.terms
            if len(monomial) == 1 and isinstance(monomial[0][0], str) and monomial[0][1] == 1:
                sizes.setdefault(monomial[0][0], int(n))


def refuse_free(attrs: Mapping[str, object]) -> None:
    """Raise Unsupported if an attribute depends on a size that is known only at run time, which a
    model cannot express."""
    for name, value in attrs.items():
        if any(isinstance(each, Symbolic) for each in (value if isinstance(value, tuple) else (value,))):
            raise Unsupported(f"the attribute {name} is {value}, which a run gives")


def dim_product(dims: Iterable[Dim]) -> Dim:
    """The product of `dims`; 1 for none."""
    total: Dim = 1
    for dim in dims:
        total = total * dim
    return total


def broadcast_dims(a: Dim, b: Dim) -> Dim:
    """The broadcast of two dims.

    A symbol with n > 1 gives n, because every legal run gives n.
    """
    if a == b or (isinstance(b, int) and b == 1):
        return a
    if isinstance(a, int) and a == 1:
        return b
    if isinstance(a, int) and isinstance(b, int):
        raise ValueError(f"{a} against {b}")
    if isinstance(a, int) or isinstance(b, int):
        return a if isinstance(a, int) else b
    raise Undecidable(f"{a} against {b}: the sizes are not known to be equal")


def broadcast_shapes(*shapes: Shape) -> Shape:
    """numpy's broadcasting, with symbolic dims."""
    rank = max((len(s) for s in shapes), default=0)
    result: list[Dim] = [1] * rank
    for shape in shapes:
        for i, dim in enumerate(shape, rank - len(shape)):
            try:
                result[i] = broadcast_dims(result[i], dim)
            except ValueError as error:
                raise ValueError(
                    f"dimension {i - rank} does not broadcast: {error} (shapes {', '.join(map(show_shape, shapes))})"
                ) from None
    return tuple(result)


def _may_grow(size: Dim, to: Dim) -> bool:
    return size < to if isinstance(size, int) and isinstance(to, int) else size != to


def show_shape(shape: Iterable[Dim]) -> str:
    """`[2, batch, 3*s]`."""
    return "[" + ", ".join(map(str, shape)) + "]"


def gathered(parts: Sequence[Dim], wholes: Sequence[Dim]) -> list[range] | None:
    """For each of `wholes`, the range of consecutive `parts` whose product is its size; sizes of 1
    between ranges belong to none. None if there is no such range, or if the answer depends on the
    value of a size."""
    found: list[range] = []
    i = 0
    for n in wholes:
        first, size = i, cast(Dim, 1)
        while i < len(parts) and _may_grow(size, n):
            size = size * parts[i]
            i += 1
        if size != n:
            return None
        found.append(range(first, i))
        while n != 1 and i < len(parts) and parts[i] == 1:
            i += 1
    return found if all(n == 1 for n in parts[i:]) else None
