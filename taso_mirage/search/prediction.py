"""Seconds of operators that nobody measured here: the roofline, with a correction that was fitted
to operators measured on a machine of the same kind.

The correction is a ridge regression of the logarithm of measured over roofline seconds: by the
logarithms of bytes and operations, half precision, and for each label an offset and a slope over
bytes. A label that was measured few times keeps little of its own. `bench/cost_table.py` makes the
rows and the file of the corrections.
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
from taso_mirage.search.passes import Context
from taso_mirage.search.settings import FusionContext

FITTED = "operator_seconds.json"
"""The file with the correction of every target that has one, in this folder."""
RIDGE = 0.3
"""What a squared coefficient costs, in squared errors of one row."""
DIGITS = 4
"""Decimals of coefficients: what depends on the order of a sum is rounded away."""
FREE = 0.02
"""Of its roofline: what is measured to take less takes nothing that can be told."""
SCALE, USUAL = 10.0, 1.0
"""The logarithms are divided by the one, and slopes are over bytes of the other: about e^10."""
HALF = frozenset({"float16", "bfloat16"})


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """A term as a prediction sees it: its label, what it does, and its seconds on a roofline."""

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


def setting_label(setting: FusionContext) -> str:
    """The operator of a setting, with those that the runtime runs it with: `relu(add(conv))`."""
    inside = sorted(map(setting_label, setting.producers))
    return f"{setting.node.op}({', '.join(inside)})" if inside else setting.node.op


def operator_work(setting: FusionContext, context: Context) -> OperatorWork | None:
    """What a prediction sees of a setting; None where its work cannot be counted."""
    node = setting.node
    if (counted := context.work(node)) is None:
        return None
    half = isinstance(node.type, Tensor) and node.type.dtype in HALF
    return OperatorWork(setting_label(setting), half, counted.bytes, counted.flops, context.estimate(node))


@dataclass(frozen=True, slots=True)
class Correction:
    """What the roofline is multiplied by, as logarithms; `scale`: for bytes, operations, half
    precision, and all; `labels`: the offset and the slope of each. `joined`: of labels that were
    seen often, in which part of all cases the runtime ran the term as one with its producer."""

    scale: tuple[float, ...]
    labels: Mapping[str, tuple[float, float]] = field(hash=False)
    joined: Mapping[str, float] = field(default_factory=dict, hash=False)

    def log(self, asked: OperatorWork) -> float:
        features = _features(asked)
        offset, slope = self.labels.get(asked.label, (0.0, 0.0))
        return float(np.dot(self.scale, features)) + offset + slope * (features[0] - USUAL)

    def surely_joined(self, name: str) -> bool | None:
        """Whether the runtime runs a label as one with its producer; None where it depends, or is
        not known."""
        return {0.0: False, 1.0: True}.get(self.joined.get(name, 0.5))


def fitted(rows: Sequence[Row], joined: Mapping[str, float]) -> Correction:
    """The correction with the least squared error on some rows, and its ridge."""
    names = sorted({r.work.label for r in rows})
    columns = {name: i for i, name in enumerate(names)}
    known = np.array([_features(r.work) for r in rows])
    width = known.shape[1]
    own: NDArray[np.float64] = np.zeros((len(rows), 2 * len(names)))
    for i, row in enumerate(rows):
        own[i, columns[row.work.label]] = 1.0
        own[i, len(names) + columns[row.work.label]] = known[i, 0] - USUAL
    matrix = np.hstack([known, own])
    normal = matrix.T @ matrix + RIDGE * np.eye(matrix.shape[1])
    found = np.linalg.solve(normal, matrix.T @ np.array([r.error for r in rows])).round(DIGITS).tolist()
    offsets, slopes = found[width : width + len(names)], found[width + len(names) :]
    labels = dict(zip(names, zip(offsets, slopes, strict=True), strict=True))
    return Correction(tuple(found[:width]), labels, joined)


def _features(asked: OperatorWork) -> list[float]:
    return [math.log1p(asked.bytes) / SCALE, math.log1p(asked.flops) / SCALE, float(asked.half), 1.0]


@cache
def correction_of(target: str) -> Correction | None:
    """The correction that comes with the package; None where no machine of the kind was
    measured."""
    found = json.loads(files(__package__).joinpath(FITTED).read_text()).get(target)
    if found is None:
        return None
    labels = {name: (offset, slope) for name, (offset, slope) in found["labels"].items()}
    return Correction(tuple(found["scale"]), labels, found["joined"])


class PredictedCost:
    """The cost of settings by a correction of the roofline: the same on every machine, at once."""

    def __init__(self, context: Context, correction: Correction) -> None:
        self.context, self.correction = context, correction

    def seconds(self, setting: FusionContext) -> float:
        asked = operator_work(setting, self.context)
        if asked is None:
            roofline = self.context.estimate(setting.node)
            asked = OperatorWork(setting_label(setting), False, 0, 0, roofline)
        return asked.roofline * math.exp(self.correction.log(asked))

    def joined(self, producer: FusionContext, node: Node) -> bool:
        return self.correction.joined.get(setting_label(FusionContext(node, (producer,))), 0.0) > 0.5
