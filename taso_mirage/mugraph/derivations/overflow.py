"""The effect of exponentials on a value: its degree in each, and the result if one overflows in the
form in which the model computes it.

exp(s) has degree 1 in s; products add degrees, quotients subtract them.

exp(s) may be infinite. Then 1 / (1 + exp(-s)) is correctly 0, but exp(s) / (1 + exp(s)) is NaN. A
value therefore grows, or is within range, or is ill; no result may depend on an ill value. The
effect of each derivation kind on its operands is beside its definition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

Degree = Mapping[int, Fraction]
"""The degree of a value in exp of each class that it depends on; 0 is left out."""
NO_DEGREE: Degree = {}
PRODUCT = (
    "an exponential that may overflow is multiplied with, or divided by, another: write it relative to its maximum"
)
Signs = tuple[bool, bool]
"""Whether a value is positive, and whether it is far from 0."""


@dataclass(frozen=True, slots=True)
class OverflowEffect:
    """A value that is computed as the model writes it.

    `exponential`: one is below it; `grows`: it may overflow, and only where it should; `ill`: why
    it may be no number, or wrong. `positive`: it is nowhere below 0; `floor`: it is nowhere near 0.
    """

    exponential: bool = False
    grows: bool = False
    positive: bool = False
    floor: bool = False
    ill: str = ""

    def kept(self) -> OverflowEffect:
        """The effect on this value where something keeps it within range."""
        return replace(self, grows=False, ill="")


def joined(below: Sequence[OverflowEffect], grows: bool, signs: Signs, ill: str) -> OverflowEffect:
    """A value of such operands; `ill` is the problem with the value itself."""
    inherited = next((v.ill for v in below if v.ill), "")
    return OverflowEffect(any(v.exponential for v in below), grows, *signs, inherited or ill)


def product_signs(below: Sequence[OverflowEffect]) -> Signs:
    """The signs of a product, or of a sum of products: 0 times an infinity is NaN."""
    positive = all(v.positive for v in below)
    if any(v.grows for v in below):
        positive = positive and all(v.grows or v.floor for v in below)
    return positive, False


def product_ill(below: Sequence[OverflowEffect]) -> str:
    """The reason why a product or a quotient is refused in which an operand may overflow; empty if
    it is not."""
    return PRODUCT if all(v.exponential for v in below) else ""


def total(a: Degree, b: Degree, sign: int = 1) -> Degree:
    """The degree of a product; of a quotient for the sign -1."""
    found = {k: a.get(k, Fraction(0)) + sign * b.get(k, Fraction(0)) for k in (*a, *b)}
    return {k: d for k, d in found.items() if d}
