"""Inputs of models with loops: a recurrence multiplies its states in every step, so the normal
numbers that other models get grow without bound in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taso_mirage.errors import InvalidOption, OutOfTime, TasoMirageError
from taso_mirage.ir.model import Model, random_inputs
from taso_mirage.ir.terms import is_float, topological
from taso_mirage.measure.native import Arrays
from taso_mirage.measure.session import Session
from taso_mirage.measure.sizes import SEEDS
from taso_mirage.onnx_io.bodies import has_bodies, kind_of
from taso_mirage.system.wording import option

LARGEST = 1e6
"""The largest number of an output that counts as usual."""
NUDGE, MOVED = 2.0**-20, 1e-2
"""A change of the inputs by about a rounding, and the largest change of an output that counts as
usual, both relative to a number, or to 1."""
SCALES = (1.0, 1 / 16)
"""The lengths of the rows of inputs that are tried."""


def with_usual_draws(model: Model, session: Session, sizes: Mapping[str, int]) -> tuple[Model, str | None]:
    """The model with smaller random numbers for the inputs that its loops read, if its outputs are
    not finite, very large, or chaotic on normal ones; and a remark that says so."""
    read = _read_by_loops(model)
    if not read:
        return model, None
    try:
        usual = _usual_share(session, random_inputs(model, SEEDS[0], sizes))
    except InvalidOption:  # texts, or a rank that is not known: no input can be drawn
        return model, None
    if usual is None or usual == 1:
        return model, None
    said = f"on normal numbers {usual:.0%} of the outputs' elements are at most {LARGEST:g} and bear rounding"
    for scale in SCALES:
        made = replace(model, scales=dict.fromkeys(read, scale))
        if _usual_share(session, random_inputs(made, SEEDS[0], sizes)) == 1:
            names = ", ".join(read)
            return (
                made,
                f"{said}, since loops multiply their states: rows of {names} are drawn with a length of {scale:g}",
            )
    return model, f"{said}: the check says little there; give inputs with {option('inputs')}"


def with_usual_rows(model: Model, session: Session, inputs: Arrays) -> Arrays:
    """The inputs, with shorter rows of those that the model's loops read if its outputs are not
    finite, very large, or chaotic on longer ones."""
    read = {*_read_by_loops(model)} - {*model.defaults, *model.shares}
    for scale in SCALES if read else ():
        if _usual_share(session, inputs) in (None, 1):
            break
        inputs = {name: _with_rows_up_to(each, scale) if name in read else each for name, each in inputs.items()}
    return inputs


def _with_rows_up_to(array: NDArray[Any], length: float) -> NDArray[Any]:
    """Numbers, scaled so that no row is longer."""
    squares = np.square(array.astype(np.float64))
    rows = np.sqrt(squares.sum(axis=-1, keepdims=True) if array.ndim else squares)
    return (array * (length / np.maximum(rows, length))).astype(array.dtype)


def _read_by_loops(model: Model) -> list[str]:
    """The names of the inputs of floats that a loop reads."""
    loops = [n for n in model.nodes() if has_bodies(n) and kind_of(n) != "If"]
    below = topological([a for n in loops for a in n.args])
    return sorted({n.attr("name") for n in below if n.op == "input" and is_float(n.dtype)})


def _usual_share(session: Session, inputs: Arrays) -> float | None:
    """The share of the elements of float outputs that are finite, not very large, and nearly the
    same on inputs that are nudged; None where there are none, or the model does not run. Raises
    OutOfTime where it runs for too long."""
    try:
        first = session.run(inputs)
        again = session.run({name: _nudged(each) if _is_floats(each) else each for name, each in inputs.items()})
    except OutOfTime:
        raise
    except TasoMirageError:
        return None
    pairs = [(a.astype(np.float64), b.astype(np.float64)) for a, b in zip(first, again, strict=True) if _is_floats(a)]
    count = sum(int(a.size) for a, _ in pairs)
    return sum(_count_of_usual(a, b) for a, b in pairs) / count if count else None


def _nudged(array: NDArray[Any]) -> NDArray[Any]:
    made: NDArray[Any] = array * array.dtype.type(1 + NUDGE)
    return made


def _count_of_usual(a: NDArray[Any], b: NDArray[Any]) -> int:
    if a.shape != b.shape:
        return 0
    with np.errstate(invalid="ignore"):
        return int(((np.abs(a) <= LARGEST) & (np.abs(a - b) <= MOVED * np.maximum(1, np.abs(a)))).sum())


def _is_floats(value: Any) -> bool:
    return isinstance(value, np.ndarray) and is_float(value.dtype.name)
