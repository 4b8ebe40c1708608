"""The operators of both models, as rows for the terminal and for pages: counts and times."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node
from taso_mirage.report.result import Result
from taso_mirage.report.times import IN_KERNELS, OperatorPair, by_operator, profiled_pairs

ROWS = 12
"""The largest number of operators in the terminal."""


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """An operator: its count and its seconds, before and after."""

    name: str
    counts: tuple[int, int]
    seconds: tuple[float, float] | None


def operator_rows(result: Result) -> tuple[str, list[OperatorRow]]:
    """How the seconds are known (`measured`, `predicted`, or nothing), and the operators: with the
    most time, or else with the largest change, first."""
    if result.profile is not None:
        return "measured", [_timed(pair) for pair in profiled_pairs(result.profile)]
    if result.times is not None:
        return "predicted", [_timed(pair) for pair in by_operator(result.times, result.original.sizes)]
    before, after = _counts(result.original), _counts(result.model)
    names = sorted({*before, *after}, key=lambda op: (-abs(before[op] - after[op]), -before[op], op))
    return "", [OperatorRow(op, (before[op], after[op]), None) for op in names]


def _timed(pair: OperatorPair) -> OperatorRow:
    return OperatorRow(pair.name, (pair.before.count, pair.after.count), (pair.before.seconds, pair.after.seconds))


def _counts(model: Model) -> Counter[str]:
    return Counter(_operator(n) for n in model.nodes() if n.args and n.op != "item")


def _operator(node: Node) -> str:
    """The operator of a term; an opaque one has that of its node."""
    if node.op != "opaque":
        return node.op
    called = str(node.attr("call"))
    return IN_KERNELS if called.startswith("taso_mirage::") else called


def first_rows(rows: list[OperatorRow]) -> list[OperatorRow]:
    """The first rows, and the others as one."""
    if len(rows) <= ROWS:
        return rows
    rest = rows[ROWS - 1 :]
    seconds = [each.seconds for each in rest if each.seconds is not None]
    spent = (sum(b for b, _ in seconds), sum(a for _, a in seconds)) if seconds else None
    counts = sum(each.counts[0] for each in rest), sum(each.counts[1] for each in rest)
    return [*rows[: ROWS - 1], OperatorRow(f"{len(rest)} more", counts, spent)]
