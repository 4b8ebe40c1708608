"""Runs of an original without the runtime's own optimizations."""

from __future__ import annotations

from typing import Any

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.model import Model
from taso_mirage.measure.native import Arrays
from taso_mirage.measure.session import open_in_child
from taso_mirage.measure.target import Target, lower_levels


def plain_outputs(model: Model, inputs: Arrays, target: Target) -> list[Any] | None:
    """The original's outputs at the lowest level of the runtime's own optimizations; None where it
    does not run there."""
    try:
        return open_in_child(model, lower_levels(target)[-1], source=True).run(inputs)
    except TasoMirageError:
        return None
