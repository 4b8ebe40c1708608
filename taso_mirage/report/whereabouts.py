"""Where the time of both models went, by sections of the model: two strips in the order of a run,
and a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from taso_mirage.report.attribution import Span, run_spans, section_seconds
from taso_mirage.report.charts import COLOURS, FULL, BarPart, TimeBar
from taso_mirage.report.result import Result
from taso_mirage.report.sections import ModelSection
from taso_mirage.system.terminal import duration

ROWS = 8
"""Rows of the table of the sections with the most time."""
SHORT = FULL / 1000
"""Neighbours on a strip that are shorter are one part."""


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """The spans of both runs, and the seconds of each section before and after; measured by the
    runtime's profiler, or predicted."""

    before: Sequence[Span]
    after: Sequence[Span]
    seconds: Sequence[tuple[float, float]]
    measured: bool


def whereabouts(result: Result, sections: Sequence[ModelSection]) -> Whereabouts:
    before, after = run_spans(result, sections)
    sums = [section_seconds(spans, len(sections)) for spans in (before, after)]
    return Whereabouts(before, after, list(zip(*sums, strict=True)), result.profile is not None)


def region_view(found: Whereabouts, sections: Sequence[ModelSection], titles: Sequence[str]) -> dict[str, Any]:
    """The template's data: strips, and rows of the sections with the most time."""
    spent = [i for i in range(len(sections)) if max(found.seconds[i]) > 0]
    order = sorted(spent, key=lambda i: -max(found.seconds[i]))
    kinds = {i: f"k{rank}" if rank < COLOURS - 1 else "rest" for rank, i in enumerate(order)}
    sides = ("original", found.before), ("optimized", found.after)
    totals = [sum(span.seconds for span in spans) for _, spans in sides]
    scale = FULL / max(*totals, 1e-12)
    strips = [
        TimeBar(name, tuple(_parts(spans, kinds, titles, scale)), duration(total))
        for (name, spans), total in zip(sides, totals, strict=True)
    ]
    listed = [
        {
            "number": i + 1,
            "kind": kinds[i],
            "places": len(sections[i].places),
            "title": titles[i],
            "times": _difference(*found.seconds[i]),
            "changed": sections[i].changed,
        }
        for i in order[:ROWS]
    ]
    rest = [found.seconds[i] for i in order[ROWS:]]
    more = _difference(sum(b for b, _ in rest), sum(a for _, a in rest)) if rest else None
    other = [sum(span.seconds for span in spans if span.place is None) for _, spans in sides]
    return {
        "strips": strips,
        "rows": listed,
        "more": (len(rest), more),
        "other": _difference(*other) if any(other) else None,
        "measured": found.measured,
    }


def run_events(result: Result, found: Whereabouts) -> list[list[tuple[str, str, float]]]:
    """The nodes of both runs for a timeline, each with its name, its section, and its microseconds,
    in the order of the run; without a profile the sections."""

    def where(span: Span) -> str:
        return "" if span.place is None else f"section {span.place[0] + 1}, place {span.place[1] + 1}"

    if result.profile is None:
        return [[(where(s), where(s), s.seconds * 1e6) for s in spans] for spans in (found.before, found.after)]
    sides = (result.profile.before, found.before), (result.profile.after, found.after)
    runs = [(nodes, [span for span in spans for _ in range(span.nodes)]) for nodes, spans in sides]
    return [[(n.operator, where(s), n.seconds * 1e6) for n, s in zip(nodes, each, strict=True)] for nodes, each in runs]


def _difference(before: float, after: float) -> tuple[str, str, str]:
    """Seconds before and after, and the saved ones."""
    return duration(before), duration(after), difference_text(before - after)


def difference_text(saved: float) -> str:
    """Saved seconds; a loss has a minus."""
    return f"\N{MINUS SIGN}{duration(-saved)}" if saved < 0 else duration(saved)


def _parts(spans: Sequence[Span], kinds: dict[int, str], titles: Sequence[str], scale: float) -> Iterator[BarPart]:
    """Parts in the order of the run; short neighbours are one part, which leads nowhere."""
    start, short = 0.0, 0.0
    for span in spans:
        length = span.seconds * scale
        if span.place is None or length < SHORT:
            short += length
            continue
        if short:
            yield BarPart("rest", start, short, "short sections")
            start, short = start + short, 0.0
        section = span.place[0]
        title = f"section {section + 1}, {titles[section]}: {duration(span.seconds)}"
        yield BarPart(kinds[section], start, length, title, section + 1)
        start += length
    if short:
        yield BarPart("rest", start, short, "short sections")
