"""Predicted seconds of operators: the roofline with a correction that was fitted to operators
measured on a machine of the same kind.

The correction is a ridge regression of the logarithm of measured over roofline seconds: by the
logarithms of bytes, operations and the roofline itself, half precision, and for each label an
offset and slopes over the roofline and over operations per byte. The coefficients of a label with
few measurements are small. `bench/cost_table.py` makes the rows and the file of the corrections.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from taso_mirage.ir.terms import Node, Tensor
from taso_mirage.search.fusion_context import FusionContext
from taso_mirage.search.passes import Context

FITTED = "operator_seconds.json"
"""The file with the correction of every target that has one, in this folder."""
RIDGE, OFFSET, SLOPE = 0.03, 0.3, 0.1
"""Penalties on squared coefficients, in squared errors of one row: those of all labels, the offset
of one, and its slopes."""
DIGITS = 4
"""The number of decimals of coefficients. Rounding removes digits that depend on the order of a
sum."""
FREE = 0.06
"""The smallest predicted share of a term's roofline."""
SCALE = 10.0
"""The logarithms are divided by it."""
LAUNCH = 1e-6
"""Seconds of a launch in the roofline of every operator; measured operators run in sequence."""
HALF = frozenset({"float16", "bfloat16"})


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """A term as a prediction sees it: its label, its work, and its seconds on a roofline with a
    LAUNCH."""

    label: str
    half: bool
    bytes: int
    flops: int
    roofline: float


@dataclass(frozen=True, slots=True)
class Row:
    """An operator that was measured: the model that has it, a digest of all that its time depends
    on, and its seconds."""

    model: str
    digest: str
    work: OperatorWork
    seconds: float

    @property
    def error(self) -> float:
        """The logarithm of measured over roofline seconds."""
        return math.log(max(self.seconds / self.work.roofline, FREE))


def fusion_label(fusion: FusionContext) -> str:
    """The operator of a fusion context, with those that the runtime runs it with:
    `relu(add(conv))`."""
    inside = sorted(map(fusion_label, fusion.producers))
    return f"{fusion.node.op}({', '.join(inside)})" if inside else fusion.node.op


def operator_work(fusion: FusionContext, context: Context) -> OperatorWork | None:
    """The work of a fusion context as the prediction reads it; None where it cannot be counted."""
    node = fusion.node
    if (counted := context.work(node)) is None:
        return None
    half = isinstance(node.type, Tensor) and node.type.dtype in HALF
    return OperatorWork(fusion_label(fusion), half, counted.bytes, counted.flops, _roofline(node, context))


def _roofline(node: Node, context: Context) -> float:
    return max(context.estimate(node) - context.target.device.operator.launch, 0.0) + LAUNCH


@dataclass(frozen=True, slots=True)
class Correction:
    """A factor on the roofline, in logarithms. `scale`: the coefficients of bytes, operations, the
    roofline, its square, half precision, and 1. `labels`: the offset and the two slopes of each
    label. `joined`: the share of cases in which the runtime ran the term as one with its producer,
    for labels that were seen often."""

    scale: tuple[float, ...]
    labels: Mapping[str, tuple[float, ...]] = field(hash=False)
    joined: Mapping[str, float] = field(default_factory=dict, hash=False)

    def log(self, asked: OperatorWork) -> float:
        own = self.labels.get(asked.label, (0.0, 0.0, 0.0))
        return float(np.dot(self.scale, _features(asked)) + np.dot(own, _own_features(asked)))

    def surely_joined(self, name: str) -> bool | None:
        """Whether the runtime fuses a label with its producer; None if this varies or is
        unknown."""
        return {0.0: False, 1.0: True}.get(self.joined.get(name, 0.5))


def fitted(rows: Sequence[Row], joined: Mapping[str, float]) -> Correction:
    """The correction with the least squared error on some rows, and its ridge."""
    names = sorted({r.work.label for r in rows})
    columns = {name: i for i, name in enumerate(names)}
    known = np.array([_features(r.work) for r in rows])
    width, each = known.shape[1], len(_own_features(rows[0].work))
    own: NDArray[np.float64] = np.zeros((len(rows), len(names), each))
    for i, row in enumerate(rows):
        own[i, columns[row.work.label]] = _own_features(row.work)
    matrix = np.hstack([known, own.reshape(len(rows), -1)])
    ridge = [*[RIDGE] * width, *[OFFSET, *[SLOPE] * (each - 1)] * len(names)]
    normal = matrix.T @ matrix + np.diag(ridge)
    found = np.linalg.solve(normal, matrix.T @ np.array([r.error for r in rows])).round(DIGITS)
    labels = dict(zip(names, map(tuple, found[width:].reshape(-1, each).tolist()), strict=True))
    return Correction(tuple(found[:width].tolist()), labels, joined)


def _features(asked: OperatorWork) -> list[float]:
    seconds = math.log(asked.roofline / LAUNCH) / SCALE
    moved, done = math.log1p(asked.bytes) / SCALE, math.log1p(asked.flops) / SCALE
    return [moved, done, seconds, seconds**2, float(asked.half), 1.0]


def _own_features(asked: OperatorWork) -> list[float]:
    moved, done, seconds, *_ = _features(asked)
    return [1.0, seconds, done - moved]


@cache
def correction_of(target: str) -> Correction | None:
    """The correction that comes with the package; None where no machine of the kind was
    measured."""
    found = json.loads(files(__package__).joinpath(FITTED).read_text()).get(target)
    if found is None:
        return None
    labels = {name: tuple(own) for name, own in found["labels"].items()}
    return Correction(tuple(found["scale"]), labels, found["joined"])


class PredictedCost:
    """The cost of fusion contexts by a correction of the roofline: the same on every machine, at
    once."""

    def __init__(self, context: Context, correction: Correction) -> None:
        self.context, self.correction = context, correction

    def seconds(self, fusion: FusionContext) -> float:
        asked = operator_work(fusion, self.context)
        if asked is None:
            asked = OperatorWork(fusion_label(fusion), False, 0, 0, _roofline(fusion.node, self.context))
        return asked.roofline * math.exp(self.correction.log(asked))

    def joined(self, producer: FusionContext, node: Node) -> bool:
        return self.correction.joined.get(fusion_label(FusionContext(node, (producer,))), 0.0) > 0.5
