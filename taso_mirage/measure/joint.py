"""Optimized sides of many patches that run as one model: on a GPU it takes longer to open a session
than to run most patches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from taso_mirage.errors import OutOfTime
from taso_mirage.measure.cuts import Sides, few_bytes, joined_sides
from taso_mirage.measure.evaluation import WRONG
from taso_mirage.measure.native import Arrays
from taso_mirage.measure.session import Session
from taso_mirage.measure.target import Target


@dataclass(frozen=True, slots=True)
class Ran:
    """A run that was, in the place of a session: its outputs, whatever is asked."""

    outputs: list[Any]

    def run(self, inputs: Arrays) -> list[Any]:
        return self.outputs


def opens_slowly(target: Target) -> bool:
    """Whether sessions take long to open."""
    return not target.on_cores


def run_together(places: Sequence[Sides], opened: Callable[[Sides], Session]) -> list[Ran | None]:
    """The run of each optimized side, in few sessions; None for those of one that does not run: one
    of them is no model, and each has to show."""
    found: list[Ran | None] = []
    for some in few_bytes(places):
        there = joined_sides(some)
        try:
            outputs = opened(there).run(there.inputs)
        except OutOfTime:
            raise
        except WRONG:
            found += [None] * len(some)
            continue
        ends = np.cumsum([0, *(len(each.after) for each in some)]).tolist()
        found += [Ran(outputs[a:b]) for a, b in pairwise(ends)]
    return found
