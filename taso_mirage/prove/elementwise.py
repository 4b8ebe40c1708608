"""Scalar functions on normal forms, and how reshaping maps an index: the parts of the meaning
`elements`."""

from __future__ import annotations

from collections.abc import Callable

from taso_mirage.ir.dims import Dim, Shape, dim_product
from taso_mirage.ir.terms import is_float
from taso_mirage.meanings.conditions import Conditions, Unprovable
from taso_mirage.meanings.functions import POWER, SCALAR_FUNCTIONS, WHERE, Comparison, Function
from taso_mirage.meanings.indices import Indices
from taso_mirage.meanings.kinds import FLOAT, of_dtypes, of_floats
from taso_mirage.meanings.polynomials import ONE, ZERO, Poly, infinite
from taso_mirage.prove import machine
from taso_mirage.prove.cases import Cases
from taso_mirage.prove.scalars import Scalars


def normal_form(algebra: Scalars, function: Function, dtypes: list[str], ps: list[Poly], result: str) -> Cases:
    """A function on every element; a function without a rule here is uninterpreted.

    Integers may be given modulo 2^n.
    """
    algebra.indices.step(1 + sum(len(p.terms) for p in ps))
    compares = function.comparison
    if any(infinite(p) for p in ps):
        return (((), _infinite(function, machine.values(algebra, ps, dtypes))),)
    if compares is not None and compares.sign == "zero" and machine.modulus(dtypes[0]) is not None:
        return _equal_integers(algebra, compares, ps, dtypes[0])
    if function is POWER:
        ps = _power(algebra, dtypes, ps, result)
    elif not _modular(function, dtypes, result):
        ps = machine.values(algebra, ps, dtypes)
    if compares is not None:
        return _compared(algebra, compares, ps)
    found = machine.reduced(algebra, _value(algebra, function, dtypes, ps, result), result)
    return (((), found if function is WHERE else machine.counted_float(algebra, found, result)),)


def _modular(function: Function, dtypes: list[str], result: str) -> bool:
    """Whether a function of integers is one of their classes modulo 2^n."""
    if function is WHERE:
        return dtypes[1] == dtypes[2] == result
    return function.ring and dtypes[0] == result and machine.modulus(result) is not None


def _power(algebra: Scalars, dtypes: list[str], ps: list[Poly], result: str) -> list[Poly]:
    """The operands of a power: the base itself if the power is a product, otherwise its wrapped
    value."""
    exponent = machine.wrapped_value(algebra, ps[1], dtypes[1])
    ring = dtypes[0] == result and _natural(dtypes, exponent)
    return [ps[0] if ring else machine.wrapped_value(algebra, ps[0], dtypes[0]), exponent]


def _value(algebra: Scalars, function: Function, dtypes: list[str], ps: list[Poly], result: str) -> Poly:
    if dtypes[0] == "bool" and function.boolean:
        function = SCALAR_FUNCTIONS[function.boolean]
    if function is POWER and _natural(dtypes, ps[1]):
        return algebra.power(ps[0], int(ps[1].number or 0))
    floats = all(is_float(d) for d in dtypes)
    if function.normal is not None and (floats or not function.floats):
        return function.normal(algebra, *ps)
    if floats:
        return algebra.apply(of_floats(function.name, "" if is_float(result) else result), *ps)
    operands = [FLOAT if is_float(d) else d for d in dtypes]
    return algebra.apply(of_dtypes(function.name, operands, result), *ps)


def _natural(dtypes: list[str], exponent: Poly) -> bool:
    """Whether a power is a product: by a small natural number, and integers by integers alone."""
    n = exponent.number
    return n is not None and n == int(n) and 0 <= n <= 8 and (is_float(dtypes[0]) or not is_float(dtypes[1]))


def _infinite(function: Function, ps: list[Poly]) -> Poly:
    """The few rules for infinite constants; other arithmetic on them is Unprovable."""
    found = None if function.infinite is None else function.infinite(ps)
    if found is None:
        raise Unprovable(f"{function.name} of an infinite element")
    return found


def _equal_integers(algebra: Scalars, compares: Comparison, ps: list[Poly], dtype: str) -> Cases:
    """Integers are equal where their difference is 0 modulo 2^n."""
    m = machine.modulus(dtype) or 0
    yes, no = (ONE, ZERO) if compares.holds else (ZERO, ONE)
    a, b = machine.values(algebra, ps, [dtype, dtype])
    if algebra.as_dim(a - b) is not None:
        return _distinguished(algebra, a - b, "zero", yes, no)
    difference = machine.reduced(algebra, ps[0] - ps[1], dtype)
    found = machine.value_bounds(algebra, difference)
    if found.low is not None and found.high is not None and -m < found.low and found.high < m:
        return _distinguished(algebra, difference, "zero", yes, no)
    if algebra.flipped(difference):
        difference = machine.reduced(algebra, difference.scaled(-1), dtype)
    return _distinguished(algebra, machine.wrapped_value(algebra, difference, dtype), "zero", yes, no)


def _compared(algebra: Scalars, compares: Comparison, ps: list[Poly]) -> Cases:
    """A comparison as 0 or 1; of sizes and indices it is a distinction of cases."""
    difference = ps[0] - ps[1]
    if compares.swapped:
        difference = difference.scaled(-1)
    yes, no = (ONE, ZERO) if compares.holds else (ZERO, ONE)
    return _distinguished(algebra, difference, compares.sign, yes, no)


def _distinguished(algebra: Scalars, p: Poly, kind: str, yes: Poly, no: Poly) -> Cases:
    e = algebra.as_dim(p)
    if e is None:
        found = algebra.sign(kind, p)
        return (((), found if yes is ONE else ONE - found),)
    cases = [((e - 1,), yes), ((-e,), no)] if kind == "positive" else [((e, -e), yes), ((e - 1,), no), ((-e - 1,), no)]
    kept: list[tuple[Conditions, Poly]] = []
    for conditions, value in cases:
        decided = [algebra.indices.tidy(c) for c in conditions]
        if False not in decided:
            kept.append((tuple(c for c in decided if not isinstance(c, bool)), value))
    return tuple(kept)


def converted(algebra: Scalars, p: Poly, old: str, new: str) -> Cases:
    """A conversion: the identity if the new type represents the number, a test for zero for bool,
    otherwise an unknown function."""
    machine.modelled_dtype(old), machine.modelled_dtype(new)
    if old == new:
        return (((), p),)
    if infinite(p):
        if is_float(new) and machine.widens(old, new):
            return (((), p),)
        raise Unprovable(f"a conversion of an infinite element to {new}")
    if new == "bool":
        return _distinguished(algebra, machine.wrapped_value(algebra, p, old), "zero", ZERO, ONE)
    convert = machine.to_float if is_float(new) else machine.to_integer
    return (((), convert(algebra, p, old, new)),)


def reshaped(indices: Indices, have: Shape, want: Shape) -> Callable[[tuple[Dim, ...]], tuple[Dim, ...]]:
    """Map an index into `want` to the index into `have` of the same element in row-major order."""
    groups = _groups(have, want)

    def place(index: tuple[Dim, ...]) -> tuple[Dim, ...]:
        found: list[Dim] = [0] * len(have)
        for mine, theirs in groups:
            flat: Dim = 0
            for j in theirs:
                flat = flat * want[j] + index[j]
            left = flat
            for k, i in enumerate(mine):
                inner = dim_product(have[m] for m in mine[k + 1 :])
                found[i] = indices.divide(left, inner)
                left = left - found[i] * inner
        return tuple(found)

    for mine, theirs in groups:  # extents that are known to be products
        for j in theirs:
            if len(mine) == 2 and len(theirs) == 1:
                indices.quotients[(want[j], have[mine[1]])] = have[mine[0]]
    return place


def _groups(have: Shape, want: Shape) -> list[tuple[list[int], list[int]]]:
    """The smallest groups of dims with equal products; dims of 1 are ignored."""
    mine = [i for i, n in enumerate(have) if n != 1]
    theirs = [j for j, n in enumerate(want) if n != 1]
    groups: list[tuple[list[int], list[int]]] = []
    while mine or theirs:
        match = next(
            (
                (a, b)
                for total in range(2, len(mine) + len(theirs) + 1)
                for a in range(1, total)
                if (b := total - a) <= len(theirs)
                and a <= len(mine)
                and dim_product(have[i] for i in mine[:a]) == dim_product(want[j] for j in theirs[:b])
            ),
            None,
        )
        if match is None:
            raise Unprovable(f"reshape of {have} to {want}")
        a, b = match
        groups.append((mine[:a], theirs[:b]))
        mine, theirs = mine[a:], theirs[b:]
    return groups
