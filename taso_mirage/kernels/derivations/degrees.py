"""The degree of a value in each exponential that it hangs on.

exp(s) has degree 1 in s; products add degrees, quotients subtract them.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

Degree = Mapping[int, Fraction]
"""The degree of a value in exp of each class that it hangs on; 0 is left out."""
NO_DEGREE: Degree = {}


def total(a: Degree, b: Degree, sign: int = 1) -> Degree:
    """The degree of a product; of a quotient for the sign -1."""
    found = {k: a.get(k, Fraction(0)) + sign * b.get(k, Fraction(0)) for k in (*a, *b)}
    return {k: d for k, d in found.items() if d}
