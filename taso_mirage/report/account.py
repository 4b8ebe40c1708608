"""The account of a gain: what each change and each kernel saves, and the rest, so that the rows add
up to the difference of the two models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from taso_mirage.ir.mugraph import Lowering
from taso_mirage.operators.ops import load_specs
from taso_mirage.report.changes import Explanation
from taso_mirage.report.explanations import explanation_lines
from taso_mirage.report.result import Result
from taso_mirage.system.terminal import plural

LISTED = 8
"""The largest number of changes with rows of their own."""


@dataclass(frozen=True, slots=True)
class AccountRow:
    """Saved seconds at all places: predicted, measured by itself, and measured in the model; None:
    not known. `counted` is the best of these; `number` that of the change, 0 for others."""

    name: str
    number: int = 0
    predicted: float | None = None
    alone: float | None = None
    within: float | None = None
    counted: float = 0.0


@dataclass(frozen=True, slots=True)
class GainAccount:
    """The rows, whose counted seconds add up to `total`, and the reason for the rest."""

    rows: tuple[AccountRow, ...]
    total: float
    measured: bool
    reason: str


def account(result: Result, explained: Sequence[Explanation]) -> GainAccount | None:
    """The account of a changed model, the largest gain first; None without changes and kernels.

    Kernels are measured in the whole model, each with those before it.
    """
    if not result.changed or not (explained or result.kernels):
        return None
    rows = sorted((*_changes(explained), *kernel_rows(result, explained)), key=lambda row: -row.counted)
    if len(rows) > LISTED:
        rows = [*rows[:LISTED], _together(f"{len(rows) - LISTED} more", rows[LISTED:])]
    before, after = result.seconds_before_after
    if result.timing is None and result.times is not None:
        before, after = sum(result.times.before.values()), sum(result.times.after.values())
    rest = before - after - sum(row.counted for row in rows)
    predicted = _predicted_rest(result, rows)
    rows.append(AccountRow("the rest of the model", predicted=predicted, counted=rest))
    return GainAccount(tuple(rows), before - after, result.timing is not None, _reason(result, explained, rest))


def _changes(explained: Sequence[Explanation]) -> Iterator[AccountRow]:
    """The changes; the parts of a change are in its row."""
    for number, each in enumerate(explained, 1):
        if each.part_of is not None:
            continue
        parts = [each, *(other for other in explained if other.part_of is each.change)]
        known = [p.change.count * (p.measured[0] - p.measured[1]) for p in parts if p.measured is not None]
        yield AccountRow(
            explanation_lines(each.change),
            number,
            sum(p.change.count * (p.predicted[0] - p.predicted[1]) for p in parts),
            sum(known) if known else None,
            None if each.within is None else each.counted,
            each.counted,
        )


def kernel_rows(result: Result, explained: Sequence[Explanation]) -> Iterator[AccountRow]:
    """The kernels, from the last one back: the model without it took longer by its gain. Those of
    loops say what the loops were."""
    _, after = result.seconds_before_after
    for each in reversed(result.kernels):
        saved = after * (each.gain - 1)
        after += saved
        kinds = " and ".join(f"{' '.join(operators)} in {plural(places, 'place')}" for operators, places in each.kinds)
        loops = {op for operators, _ in each.kinds for op in operators if _is_loop(op)}
        were = [e.change.called for e in explained if e.change.called and any(n.op in loops for n in e.change.after)]
        said = f" ({' and '.join(were)})" if were else ""
        yield AccountRow(f"kernel for {kinds}{said}", within=saved, counted=saved)


def _is_loop(name: str) -> bool:
    op = load_specs().get(name)
    return op is not None and op.traits.lowering is Lowering.STEPS


def _together(name: str, rows: Sequence[AccountRow]) -> AccountRow:
    def total(values: Sequence[float | None]) -> float | None:
        known = [each for each in values if each is not None]
        return sum(known) if known else None

    predicted, alone, within = (total([getattr(row, c) for row in rows]) for c in ("predicted", "alone", "within"))
    return AccountRow(name, 0, predicted, alone, within, sum(row.counted for row in rows))


def _predicted_rest(result: Result, rows: Sequence[AccountRow]) -> float | None:
    """The predicted difference of the models that is in no row."""
    if result.times is None:
        return None
    whole = sum(result.times.before.values()) - sum(result.times.after.values())
    return whole - sum(row.predicted or 0.0 for row in rows)


def _reason(result: Result, explained: Sequence[Explanation], rest: float) -> str:
    """The reason why the rows of changes do not add up to the difference of the models."""
    if result.timing is None:
        return "The prediction of an operator depends on its neighbours, so that of a model is not exactly a sum."
    if any(each.within is not None for each in explained):
        return (
            "Times in the model are those of the runtime's profiler, less the time that it takes itself, which is "
            "estimated to be the same for each operator; the total is by the clock, without the profiler."
        )
    if rest < 0:
        return "A cost that neighbours share counts in each change, and each change ran without its neighbours."
    return "The runtime gains more between the changes than in each of them alone."
