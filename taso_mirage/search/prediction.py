"""Seconds of operators that nobody measured here: from a table of another run on a machine of the
same kind, or a correction of the roofline that is fitted to the table.

The correction is a ridge regression: the logarithm of measured over roofline seconds, by the
logarithms of bytes and operations, half precision, and one offset for each operator. The offset of
an operator that the table has few times stays near zero.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.terms import Node, Tensor
from taso_mirage.search.passes import Context
from taso_mirage.search.settings import FusionContext, description

RIDGE = 0.3
"""What a squared coefficient costs, in squared errors of one row."""
DIGITS = 6
"""Decimals of coefficients: what depends on the order of a sum is rounded away."""
SHORTEST = 1e-7
HALF = frozenset({"float16", "bfloat16"})


class CostOrigin(StrEnum):
    """Where seconds come from."""

    TABLE = "table"
    LEARNED = "learned"
    ROOFLINE = "roofline"


@dataclass(frozen=True, slots=True)
class Prediction:
    """`seconds`, and the factor by which nine of ten measurements differ from them at most."""

    seconds: float
    factor: float
    origin: CostOrigin

    def differs(self, other: Prediction) -> bool:
        """Whether the errors of both are too small to turn their order; else measuring decides."""
        far = abs(math.log(max(self.seconds, SHORTEST) / max(other.seconds, SHORTEST)))
        return far > math.hypot(math.log(self.factor), math.log(other.factor))


@dataclass(frozen=True, slots=True)
class Row:
    """One operator that was measured: the model that has it, its setting's digest, what it does,
    and its seconds by the roofline and as measured."""

    model: str
    digest: str
    op: str
    half: bool
    bytes: int
    flops: int
    roofline: float
    seconds: float

    @property
    def error(self) -> float:
        """The logarithm of measured over roofline seconds."""
        return math.log(max(self.seconds, SHORTEST) / self.roofline)


def row(model: str, node: Node, context: Context, seconds: float) -> Row | None:
    """What a table keeps of a measured term; None where its work cannot be counted."""
    if (counted := context.work(node)) is None:
        return None
    half = isinstance(node.type, Tensor) and node.type.dtype in HALF
    roofline = context.estimate(node)
    return Row(model, digest(node, context), node.op, half, counted.bytes, counted.flops, roofline, seconds)


def digest(node: Node, context: Context) -> str:
    """A short name of all that a term's time depends on. Raises what a description raises."""
    return hashlib.sha256(description(FusionContext(node), context).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Correction:
    """What the roofline's seconds are multiplied by; `scale`: of bytes, operations, half precision,
    and of all; `offsets`: of operators."""

    scale: tuple[float, ...]
    offsets: Mapping[str, float] = field(hash=False)

    def log(self, row: Row) -> float:
        return float(np.dot(self.scale, _features(row))) + self.offsets.get(row.op, 0.0)


def fitted(rows: Sequence[Row]) -> Correction:
    """The correction with the least squared error on some rows, and its ridge."""
    operators = sorted({r.op for r in rows})
    columns = {op: i for i, op in enumerate(operators)}
    known = np.array([_features(r) for r in rows])
    one_hot: NDArray[np.float64] = np.zeros((len(rows), len(operators)))
    one_hot[np.arange(len(rows)), [columns[r.op] for r in rows]] = 1.0
    matrix = np.hstack([known, one_hot])
    normal = matrix.T @ matrix + RIDGE * np.eye(matrix.shape[1])
    found = np.linalg.solve(normal, matrix.T @ np.array([r.error for r in rows])).round(DIGITS).tolist()
    width = known.shape[1]
    return Correction(tuple(found[:width]), dict(zip(operators, found[width:], strict=True)))


def _features(row: Row) -> list[float]:
    return [math.log1p(row.bytes) / 10, math.log1p(row.flops) / 10, float(row.half), 1.0]


@dataclass(frozen=True, slots=True)
class CostTable:
    """Rows measured on one kind of machine; `made`: when, on what device and with which versions.
    The factors say how wrong another time (`table`), the correction and the roofline are."""

    made: str
    device: str
    factors: Mapping[CostOrigin, float] = field(hash=False)
    rows: tuple[Row, ...]

    def text(self) -> str:
        about = {"made": self.made, "device": self.device, "factors": dict(self.factors)}
        lines = [json.dumps(about), *(json.dumps([*asdict(r).values()], separators=(",", ":")) for r in self.rows)]
        return "\n".join(lines) + "\n"


def read_table(path: Path) -> CostTable:
    """A table from its file. Raises OSError, and ValueError, TypeError or LookupError for another
    file."""
    first, *rest = path.read_text().splitlines()
    about = json.loads(first)
    factors = {CostOrigin(k): float(v) for k, v in about["factors"].items()}
    return CostTable(about["made"], about["device"], factors, tuple(Row(*json.loads(line)) for line in rest))


class Predictor:
    """Seconds of single terms by a table: the same for the same term, on every machine."""

    def __init__(self, context: Context, table: CostTable) -> None:
        self.context, self.table = context, table
        self.known = {r.digest: r.seconds for r in table.rows}
        self.correction = fitted(table.rows)

    def predict(self, node: Node) -> Prediction:
        factors = self.table.factors
        try:
            asked = row("", node, self.context, SHORTEST)
        except (TasoMirageError, LookupError, TypeError, ValueError):
            asked = None
        if asked is None:
            return Prediction(self.context.estimate(node), factors[CostOrigin.ROOFLINE], CostOrigin.ROOFLINE)
        if asked.digest in self.known:
            return Prediction(self.known[asked.digest], factors[CostOrigin.TABLE], CostOrigin.TABLE)
        seconds = asked.roofline * math.exp(self.correction.log(asked))
        return Prediction(seconds, factors[CostOrigin.LEARNED], CostOrigin.LEARNED)
