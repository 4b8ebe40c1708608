"""The report of an optimization as one self-contained page: no script, no network.

`templates/report.html` says how it looks, this module what is in it.
"""

from __future__ import annotations

import platform
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from taso_mirage.ir.terms import Graph
from taso_mirage.measure.check import shown_sizes
from taso_mirage.measure.session import device
from taso_mirage.measure.timing import Timing
from taso_mirage.report.data import by_sizes
from taso_mirage.report.drawing import Drawing, draw_graph
from taso_mirage.report.explanation import Explanation
from taso_mirage.report.explanations import duration, explanation_lines, gains, shortened, statement
from taso_mirage.report.inspection import inspection, quantity, versions
from taso_mirage.report.pages import rendered
from taso_mirage.report.result import Result
from taso_mirage.report.summary import search_facts
from taso_mirage.rewriting.text import show_graph
from taso_mirage.system.files import write_file
from taso_mirage.version import __version__

OPEN = 3
"""Changes that are unfolded when the page opens."""
DRAWN = 48
"""Terms up to which a graph is drawn; a larger one is printed."""
BAR = 420.0
"""Width of the longest bar of the diagram of times."""


def write_page(
    path: Path,
    result: Result,
    explained: Sequence[Explanation],
    source: Path,
    written: Sequence[Path],
    command: Sequence[str],
) -> None:
    """Write the page, whole or not at all. OutputError where that fails."""
    used = {"taso-mirage": __version__, "Python": platform.python_version(), **versions()}
    used |= {"device": device(result.target), "target": result.target.name}
    content = page(result, explained, source, written, command, used)
    write_file(path, content.encode(errors="replace"))


def page(
    result: Result,
    explained: Sequence[Explanation],
    source: Path,
    written: Sequence[Path],
    command: Sequence[str],
    used: Mapping[str, str],
) -> str:
    """The whole page.

    `command` is the command line to repeat, `used` the versions and the device, by name.
    """
    names = list(dict.fromkeys(name for each in explained for name in each.change.equations))
    return rendered(
        "report.html",
        title=f"{source.name}: {_verdict(result)}",
        source=source.name,
        facts=_facts(result),
        standing=_standing(result),
        notes=result.notes,
        **_times(result),
        changes=[_change(each) for each in explained],
        measured=any(each.measured for each in explained),
        open=OPEN,
        anchors={name: i for i, name in enumerate(names, 1)},
        equations=[(statement(name, result), result.equations.get(name, 0)) for name in names],
        operators=_operators(result),
        sizes=shown_sizes(result.original.sizes),
        differences=_differences(result),
        let_through=result.let_through,
        roundings=_roundings(result),
        search=_search(result),
        command=shlex.join(command),
        written=written,
        used=list(used.items()),
    )


def _standing(result: Result) -> str:
    """How the first fact looks: as something `won`, as a `failed` check, or as neither."""
    if result.failure is not None:
        return "failed"
    before, after = (result.cost_before, result.cost_after) if result.timing is None else _seconds(result.timing)
    return "won" if result.changed and after <= before else "kept"


def _seconds(timing: Timing) -> tuple[float, float]:
    return timing.original, timing.optimized


def _verdict(result: Result) -> str:
    if result.failure is None:
        return _gained(result)
    if not result.changed:
        return "check failed: the original is kept"
    return f"check failed: a rewrite was left out; the rest is {_gained(result)}"


def _gained(result: Result) -> str:
    if not result.changed:
        return "kept as it was"
    if result.timing is not None:
        return f"{result.timing.ratio:.2f} times as fast"
    ratio = result.cost_before / result.cost_after if result.cost_after else 1.0
    return f"predicted {ratio:.2f} times as fast"


def _facts(result: Result) -> list[str]:
    facts = [_verdict(result), f"{result.terms_before} operators before, {result.terms_after} after"]
    if result.differences:
        passed = sum(d.passed for d in result.differences)
        facts.append(f"{passed} of {len(result.differences)} outputs within the bound of the check")
    return facts


def _times(result: Result) -> dict[str, Any]:
    """The diagram of times, measured or else predicted, with the line that shows their spread."""
    timing, predicted = result.timing, (result.cost_before, result.cost_after)
    before, after = predicted if timing is None else _seconds(timing)
    spread = None if timing is None else (timing.original / timing.high, timing.original / timing.low)
    scale = BAR / max(before, after, *(spread or ()), 1e-12)
    return {
        "timing": timing,
        "predicted": [duration(seconds) for seconds in predicted],
        "bars": [
            {"kind": kind, "name": name, "time": duration(seconds), "width": seconds * scale}
            for kind, name, seconds in (
                ("before", "original", before),
                ("after" if result.failure is None else "failed", "optimized", after),
            )
        ],
        "spread": spread and [seconds * scale for seconds in spread],
        "times_by_sizes": _times_by_sizes(result),
    }


def _times_by_sizes(result: Result) -> list[list[str]]:
    """The times at each of several sets of sizes."""
    if result.timing is None or not result.timing.each:
        return []
    return [
        [
            shown_sizes(sizes),
            f"{share:.1%}",
            duration(t.original),
            duration(t.optimized),
            f"{t.ratio:.3f}",
            f"{t.low:.3f} to {t.high:.3f}",
        ]
        for sizes, share, t in by_sizes(result)
        if t is not None
    ]


def _change(each: Explanation) -> dict[str, Any]:
    change = each.change
    return {
        "count": change.count,
        "operators": _arrows(explanation_lines(change)),
        "gain": _short_gain(each),
        "gains": _arrows(gains(each).capitalize()),
        "equations": list(dict.fromkeys(change.equations)),
        "places": shortened(change.places, 12),
        "ground": each.ground[:1].upper() + each.ground[1:],
        "before": _side(change.before),
        "after": _side(change.after),
    }


def _arrows(text: str) -> str:
    return text.replace("->", "\N{RIGHTWARDS ARROW}")


def _short_gain(each: Explanation) -> str:
    if each.measured is not None:
        return f"measured {each.measured[0] / each.measured[1]:.2f} times as fast"
    return f"predicted {duration(each.gain)} won" if each.gain else ""


def _side(side: Graph) -> tuple[Drawing | None, str]:
    """What is drawn of one side of a change, or else printed."""
    return (None, show_graph(side)) if sum(1 for _ in side) > DRAWN else (draw_graph(side), "")


def _operators(result: Result) -> list[list[str]]:
    """Counts, operations and bytes by operator; opaque nodes have counts only."""
    sizes = result.original.sizes
    before, after = (inspection(m, sizes)["operators"] for m in (result.original, result.model))
    none = {"count": 0, "flops": 0, "bytes": 0}
    rows = []
    for op in dict.fromkeys((*before, *after)):
        pair = (before.get(op, none), after.get(op, none))
        rows.append([op, *(_amount(row[key], key) for key in none for row in pair)])
    totals = [{key: sum(row[key] for row in side.values()) for key in none} for side in (before, after)]
    rows.append(["all", *(_amount(row[key], key) for key in none for row in totals)])
    return rows


def _amount(value: float, key: str) -> str:
    return str(int(value)) if key == "count" else quantity(value, "B" if key == "bytes" else "")


def _differences(result: Result) -> list[list[str]]:
    return [
        [d.case, d.output, f"{d.error:.3g}", f"{d.own:.3g}", f"{d.bound:.3g}", "passed" if d.passed else "FAILED"]
        for d in result.differences
    ]


def _roundings(result: Result) -> list[list[str]]:
    """How far off the outputs are by the roundings that were let through."""
    found = () if result.let_through is None else result.let_through.outputs
    return [
        [o.case, o.output, o.against, f"{o.step:.3g}", f"{o.steps:.3g}", str(o.elements), str(o.size)] for o in found
    ]


def _search(result: Result) -> list[tuple[str, str]]:
    return [
        *((name, text) for name, text in search_facts(result).items() if name != "seconds"),
        ("rewrites taken", str(len(result.steps))),
        *((f"seconds to {stage}", f"{seconds:.2f}") for stage, seconds in result.seconds.items()),
    ]
