"""Exponentials as a model writes them: what an overflow of one does to the values that are made of it.

exp(s) may be infinite. 1 / (1 + exp(-s)) is 0 then, as it should be; exp(s) / (1 + exp(s)) is not a number. So a value grows, or is
within range, or is ill, which no result may be made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from taso_mirage.kernels.edges import Edge


@dataclass(frozen=True, slots=True)
class Bare:
    """A value that is computed as the model writes it.

    `exponential`: one is below it; `grows`: it may overflow, and only where it should; `ill`: why it may be no number, or wrong.
    `positive`: it is nowhere below 0; `floor`: it is nowhere near 0.
    """

    exponential: bool = False
    grows: bool = False
    positive: bool = False
    floor: bool = False
    ill: str = ""

    def kept(self) -> Bare:
        """The same value where something keeps it within range."""
        return replace(self, grows=False, ill="")


def bare(edge: Edge, below: Sequence[Bare], number: float | None, bounded: bool) -> Bare:
    """What a derivation gives of such operands. `number`: of a constant; `bounded`: an exponent is never above 0."""
    if edge.op == "input":
        above = number is not None and number > 0
        return Bare(positive=above, floor=above)
    exponential, grows = any(v.exponential for v in below), any(v.grows for v in below)
    ill = next((v.ill for v in below if v.ill), "") or _ill(edge, below)
    if edge.op == "map" and edge.name == "exp":
        return Bare(True, not bounded, True, False, ill)
    grows = grows and not (edge.op == "div" and not below[0].grows and below[1].floor)
    if edge.op == "map" and edge.name == "reciprocal" and below[0].floor:
        grows = False
    return Bare(exponential, grows, *_signs(edge, below), ill)


def _signs(edge: Edge, below: Sequence[Bare]) -> tuple[bool, bool]:
    """Whether a value is positive, and whether it is far from 0."""
    positive = all(v.positive for v in below)
    if edge.op in ("mul", "dot") and any(v.grows for v in below):  # 0 times an infinity is no number
        positive = positive and all(v.grows or v.floor for v in below)
    if edge.op == "variance":
        return True, False
    if edge.op == "mul" and len(set(edge.args)) == 1:
        return True, below[0].floor and not below[0].grows
    if edge.op in ("sub", "merged") or (edge.op == "map" and edge.name not in ("sqrt", "reciprocal")):
        return False, False
    if edge.op == "add":
        return positive, positive and any(v.floor for v in below)
    alone = edge.op in ("sum", "mean", "max") or (edge.op == "map" and edge.name == "sqrt")
    return positive, alone and below[0].floor


def _ill(edge: Edge, below: Sequence[Bare]) -> str:
    if not any(v.grows for v in below):
        return ""
    if edge.op in ("mul", "dot", "div") and all(v.exponential for v in below):
        return "an exponential that may overflow is multiplied with, or divided by, another: write it relative to its maximum"
    if edge.op == "map" and edge.name not in ("sqrt", "neg", "reciprocal"):
        return f"{edge.name} of an exponential that may overflow: write it relative to its maximum"
    return "a variance of exponentials that may overflow" if edge.op in ("variance", "merged") else ""
