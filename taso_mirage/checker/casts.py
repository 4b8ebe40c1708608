"""Numbers of one dtype as those of another: a machine's integers as whole numbers, and floats
rounded to their digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from taso_mirage.checker.forms import (
    FLOATS,
    INTS,
    MAKERS,
    RANGED,
    WORK,
    Atom,
    Number,
    Poly,
    bits,
    constant,
    holds,
    just,
    need,
    poly,
)
from taso_mirage.checker.functions import REAL, called, compared, denied, lifted, lone, value_of
from taso_mirage.checker.tensors import Tensor

EXPONENTS = {"bfloat16": 127, "float16": 15, "float32": 127, "float64": 1023}
"""The largest exponent of a float type."""
SIZE = 2**40
"""No size or position is larger."""


def has(wide: str, narrow: str) -> bool:
    """Whether a type has every number of another one."""
    if wide == narrow or narrow == "bool":
        return True
    if wide in INTS:
        return narrow in INTS and bits(wide)[0] <= bits(narrow)[0] and bits(narrow)[1] <= bits(wide)[1]
    if narrow in FLOATS:
        return FLOATS[narrow] <= FLOATS[wide] and EXPONENTS[narrow] <= EXPONENTS[wide]
    return narrow in INTS and max(-bits(narrow)[0], bits(narrow)[1] + 1) <= 2 ** FLOATS[wide]


def own(a: Atom) -> str:
    """The dtype of which an atom is surely a number: that of the tensor it reads, or of the
    function's result; "" if it is not known."""
    if a[0] in ("read", "table"):
        return str(a[2] if a[0] == "read" else a[1])
    if a[0] == "max" and a[1] != REAL:
        return str(a[1]).lstrip("-1")
    name = a[1].split() if a[0] == "call" else [""]
    return name[1] if name[0] == "as" or name[-1] in INTS else ""


def magnitude(p: Poly, size: int | None) -> Number | None:
    """A bound of |p| where p is made of positions and sizes, of which none is above `size` (None:
    only of positions of known ranges)."""

    def largest(a: Atom) -> Number | None:
        n = constant(a[2]) if a[0] in RANGED else None
        return n - 1 if n else size if a[0] in (*RANGED, "size") else None

    bound: Number = 0
    for (b, f), c in p.terms:
        ends = [(largest(a), e) for a, e in f]
        if b or c != int(c):
            return None
        part: Number = max(c, -c)
        for end, e in ends:
            if end is None or e < 0 or e != int(e):
                return None
            part = part * int(end) ** int(e)
        bound = bound + part
    return bound


def of_sizes(p: Poly) -> bool:
    """Whether an integer is computed from sizes and positions alone."""
    kinds = (*RANGED, "size", "div")
    return all(not b and c == int(c) and all(e > 0 and a[0] in kinds for a, e in f) for (b, f), c in p.terms)


def exact(dtype: str, p: Poly) -> Poly:
    """The element of an integer type as a whole number: p is that modulo 2**n. Sizes, positions and
    values computed from them alone fit 32 bits."""

    def one(q: Poly) -> Poly:
        low, high = bits(dtype)
        if (n := constant(q)) is not None:
            return poly((int(n) - low) % (high - low + 1) + low)
        a, bound = lone(q), magnitude(q, None)
        inner = own(a) if a is not None else ""
        if inner in INTS and has(dtype, inner) and (found := value_of(inner, q)) is not None:
            return found
        fits = (a is not None and own(a) != "" and has(dtype, own(a))) or (
            bound is not None and bound <= high and (low < 0 or holds(q, WORK.get().facts))
        )
        return q if fits or (dtype in ("int32", "int64") and of_sizes(q)) else just("call", f"value {dtype}", q)

    return p if dtype in FLOATS or dtype == "bool" else lifted(one, p)


def place(p: Poly, n: Poly) -> Poly:
    """A position in n, where one below 0 counts from the end; nothing is claimed of others."""
    facts = WORK.get().facts

    def one(q: Poly) -> Poly:
        if holds(q, facts) and holds(n - 1 - q, facts):
            return q
        if holds(-q - 1, facts) and holds(q + n, facts):
            return q + n
        need(constant(q) is None, "a position that may leave the tensor")
        return just("place", q, n)

    return lifted(one, p)


MAKERS["place"] = place


def rounded(to: str, dtype: str, p: Poly) -> Poly:
    """A number of one type as one of another: itself where that has it; else floats round, integers
    keep their low bits, and a float is cut to a whole number."""
    if to in INTS and dtype in INTS:
        wider = bits(to)[1] - bits(to)[0] > bits(dtype)[1] - bits(dtype)[0]
        return exact(dtype, p) if wider else p
    return lifted(lambda q: nearest(to, q), exact(dtype, p))


def nearest(to: str, q: Poly) -> Poly:
    """A real number in another type."""
    a, n, bound = lone(q), constant(q), magnitude(q, SIZE)
    if (a is not None and own(a) != "" and has(to, own(a))) or (n is not None and representable(to, n)):
        return q
    if to in FLOATS and bound is not None and bound <= 2 ** FLOATS[to] and bound < 2 ** EXPONENTS[to]:
        return q
    return called(f"{'as' if to in FLOATS else 'cut'} {to}", q)


def representable(to: str, n: Number) -> bool:
    if to in INTS:
        return n == int(n) and bits(to)[0] <= n <= bits(to)[1]
    whole, below = abs(n.numerator), n.denominator
    digits = whole.bit_length() - ((whole & -whole).bit_length() - 1 if whole else 0)
    small = below & (below - 1) == 0 and below <= 2 ** (EXPONENTS[to] - 2)
    return digits <= FLOATS[to] and small and whole < below * 2 ** EXPONENTS[to]


def cast(x: Tensor, *, to: str) -> Tensor:
    need(to in (*FLOATS, *INTS, "bool"), "a type that is not read by this checker")
    if to == x.dtype or x.dtype == "bool":
        return Tensor(to, x.shape, x.read)
    if to == "bool":
        zero = poly(0)
        return Tensor(to, x.shape, lambda *i: denied(compared("eq", x.dtype, x.at(*i), zero)))
    if has(to, x.dtype) and x.dtype in FLOATS:
        return Tensor(to, x.shape, x.read)
    return Tensor(to, x.shape, lambda *i: rounded(to, x.dtype, x.at(*i)))


CASTS: dict[str, Callable[..., Any]] = {
    "cast": cast,
    "cast_like": lambda x, like: cast(x, to=like.dtype),
    "identity": lambda x: x,
    "dropout": lambda x: x,
}
