"""Bounds of scalars, and their arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from taso_mirage.meanings.polynomials import Rational


@dataclass(frozen=True, slots=True)
class Interval:
    """Bounds of a scalar, both included; None is no bound."""

    low: Rational | None = None
    high: Rational | None = None

    def __add__(self, other: Interval) -> Interval:
        return Interval(
            None if self.low is None or other.low is None else self.low + other.low,
            None if self.high is None or other.high is None else self.high + other.high,
        )

    def scaled(self, c: Rational) -> Interval:
        low, high = (None if v is None else v * c for v in (self.low, self.high))
        return Interval(low, high) if c > 0 else Interval(high, low)

    def __mul__(self, other: Interval) -> Interval:
        for point, rest in ((self, other), (other, self)):
            if point.low is not None and point.low == point.high and point.low != 0:
                return rest.scaled(point.low)
        ends = (self.low, self.high, other.low, other.high)
        if all(v is not None for v in ends):
            a, b, c, d = (v or 0 for v in ends)
            products = [a * c, a * d, b * c, b * d]
            return Interval(min(products), max(products))
        if (self.low or 0) >= 0 and (other.low or 0) >= 0 and self.low is not None and other.low is not None:
            return Interval(self.low * other.low, None)
        return Interval()

    def power(self, n: int) -> Interval:
        if n < 0:
            return Interval(0, None) if self.low is not None and self.low >= 0 else Interval()
        result = reduce(Interval.__mul__, [self] * n, Interval(1, 1))
        return Interval(max(0, result.low or 0), result.high) if n % 2 == 0 else result

    def hull(self, other: Interval) -> Interval:
        return Interval(
            None if self.low is None or other.low is None else min(self.low, other.low),
            None if self.high is None or other.high is None else max(self.high, other.high),
        )
