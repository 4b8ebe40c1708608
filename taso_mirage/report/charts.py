"""The diagrams of a page: bars of times, and a roofline (Williams et al., CACM'09)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from taso_mirage.report.inspection import quantity
from taso_mirage.report.result import MeasuredPeaks, Result
from taso_mirage.report.times import OperatorPair, OperatorTotals
from taso_mirage.system.terminal import duration

FULL = 1000.0
"""Units of the longest bar; a page stretches them to its width."""
COLOURS = 8
"""The number of operators with their own colour; the last colour is for the rest."""
WIDTH, HEIGHT, LEFT, BOTTOM = 640.0, 340.0, 84.0, 44.0
"""The roofline with its margins, in pixels."""
LABELS, LINE = 7, 13.0
"""Operators with their names in the roofline, and the height of one."""


@dataclass(frozen=True, slots=True)
class BarPart:
    """A piece of a bar: the class of its colour, where it begins, how long it is, its text, and the
    section that it leads to (0: none)."""

    kind: str
    start: float
    length: float
    title: str
    section: int = 0


@dataclass(frozen=True, slots=True)
class TimeBar:
    """A bar: its name, its pieces, their total time, and the ends of a line that shows the
    uncertainty."""

    name: str
    parts: tuple[BarPart, ...]
    time: str
    spread: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """The legend entry of a colour: an operator, with its times before and after."""

    kind: str
    name: str
    before: str
    after: str


def whole_bars(result: Result) -> list[TimeBar]:
    """Bars for the two models, with measured or else predicted times, one below the other."""
    timing = result.timing
    before, after = result.seconds_before_after
    spread = None if timing is None else (timing.original / timing.high, timing.original / timing.low)
    scale = FULL / max(before, after, *(spread or ()), 1e-12)
    ends = None if spread is None else (spread[0] * scale, spread[1] * scale)
    kind = "after" if result.failure is None else "failed"
    return [
        TimeBar("original", (BarPart("before", 0.0, before * scale, ""),), duration(before)),
        TimeBar("optimized", (BarPart(kind, 0.0, after * scale, ""),), duration(after), ends),
    ]


def operator_bars(pairs: Sequence[OperatorPair]) -> tuple[list[TimeBar], list[LegendEntry]]:
    """Bars for the two models by operator: those with the most time have colours, in one order."""
    shown = [*pairs[: COLOURS - 1], *_rest(pairs[COLOURS - 1 :])]
    sides = {"original": [p.before for p in shown], "optimized": [p.after for p in shown]}
    longest = max(1e-12, *(sum(t.seconds for t in side) for side in sides.values()))
    kinds = [f"k{i}" for i in range(len(shown) - (len(pairs) >= COLOURS))] + ["rest"]
    bars = [
        TimeBar(name, tuple(_parts(shown, side, kinds, FULL / longest)), duration(sum(t.seconds for t in side)))
        for name, side in sides.items()
    ]
    legend = [
        LegendEntry(kind, p.name, duration(p.before.seconds), duration(p.after.seconds))
        for kind, p in zip(kinds, shown, strict=False)
    ]
    return bars, legend


def _rest(pairs: Sequence[OperatorPair]) -> Iterator[OperatorPair]:
    if pairs:
        rest = OperatorPair(f"{len(pairs)} more")
        for pair in pairs:
            rest.before.add(pair.before.seconds, 0, 0)
            rest.after.add(pair.after.seconds, 0, 0)
        yield rest


def _parts(
    pairs: Sequence[OperatorPair], side: Sequence[OperatorTotals], kinds: Sequence[str], scale: float
) -> Iterator[BarPart]:
    start = 0.0
    for pair, totals, kind in zip(pairs, side, kinds, strict=False):
        if totals.seconds > 0:
            yield BarPart(kind, start, totals.seconds * scale, f"{pair.name}: {duration(totals.seconds)}")
            start += totals.seconds * scale


# ---------------------------------------------------------------- roofline


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """All terms of one operator in one model: operations per byte, and the operations per second
    that they reach. `kind` is before or after."""

    kind: str
    name: str
    intensity: float
    reached: float
    seconds: float
    x: float = 0.0
    y: float = 0.0


@dataclass(frozen=True, slots=True)
class Tick:
    """A decade of an axis, where it stands, and its text."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class RooflineChart:
    """A roofline with its axes: the path of the roof, points, and names beside some of them."""

    roof: str
    points: tuple[RooflinePoint, ...]
    names: tuple[tuple[float, float, str], ...]
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]


def roofline_points(pairs: Iterable[OperatorPair]) -> list[RooflinePoint]:
    """The operators that compute, the longest first; operators that only move elements have no
    place on the chart."""
    found = [
        RooflinePoint(kind, pair.name, t.flops / t.bytes, t.flops / t.seconds, t.seconds)
        for pair in pairs
        for kind, t in (("before", pair.before), ("after", pair.after))
        if t.flops > 0 and t.bytes > 0 and t.seconds > 0
    ]
    return sorted(found, key=lambda point: -point.seconds)


def roofline_chart(points: Sequence[RooflinePoint], peaks: MeasuredPeaks) -> RooflineChart:
    """The points below the machine's peaks, both axes logarithmic."""
    ridge = peaks.flops / peaks.bandwidth
    across = _decades([ridge, *(p.intensity for p in points)])
    up = _decades([peaks.flops, *(p.reached for p in points)])

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - 8) * (math.log10(value) - across[0]) / (across[-1] - across[0])

    def y(value: float) -> float:
        return (HEIGHT - BOTTOM) - (HEIGHT - BOTTOM - 8) * (math.log10(value) - up[0]) / (up[-1] - up[0])

    placed = [replace(p, x=x(p.intensity), y=y(p.reached)) for p in points]
    begin = max(10.0 ** across[0], 10.0 ** up[0] / peaks.bandwidth)
    roof = [(begin, begin * peaks.bandwidth), (ridge, peaks.flops), (10.0 ** across[-1], peaks.flops)]
    return RooflineChart(
        "M" + " L".join(f"{x(a):.1f},{y(b):.1f}" for a, b in roof),
        tuple(placed),
        tuple(_names(placed)),
        tuple(Tick(x(10.0**k), f"{10.0**k:g}") for k in across),
        tuple(Tick(y(10.0**k), quantity(10.0**k, "")) for k in up),
    )


def _decades(values: Sequence[float]) -> range:
    return range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)


def _names(points: Sequence[RooflinePoint]) -> Iterator[tuple[float, float, str]]:
    """Beside the longest points, each operator once, moved down where one would cover another."""
    chosen: dict[str, RooflinePoint] = {}
    for point in points:
        chosen.setdefault(point.name, point)
    taken: list[tuple[float, float, str]] = []
    for point in sorted([*chosen.values()][:LABELS], key=lambda p: p.y):
        y = point.y + 4
        while any(abs(y - other) < LINE and abs(point.x - at) < 130 for at, other, _ in taken):
            y += 1
        taken.append((point.x, y, point.name))
    yield from taken
