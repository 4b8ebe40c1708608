"""The report of an optimization as one self-contained page: no network, and no script but that of
its search box.

`templates/report.html` has its form, this module its content.
"""

from __future__ import annotations

import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from taso_mirage.ir.terms import Graph
from taso_mirage.measure.refusals import shown_sizes
from taso_mirage.measure.session import device
from taso_mirage.report.account import account, kernel_rows
from taso_mirage.report.changes import Explanation
from taso_mirage.report.charts import operator_bars, roofline_chart, roofline_points, whole_bars
from taso_mirage.report.data import by_sizes
from taso_mirage.report.details import NodeDetails
from taso_mirage.report.drawing import Drawing, draw_graph
from taso_mirage.report.explanations import StatedEquation, explanation_lines, gains, shortened, statement
from taso_mirage.report.inspection import inspection, quantity, versions
from taso_mirage.report.notation import Formula, conditions, formula
from taso_mirage.report.outline import DRAWN, section_title, shown_sections
from taso_mirage.report.pages import render_template
from taso_mirage.report.result import Result
from taso_mirage.report.sections import model_sections
from taso_mirage.report.summary import search_facts
from taso_mirage.report.times import OperatorPair, by_operator, profiled_pairs
from taso_mirage.report.whereabouts import difference_text, region_view, run_events, whereabouts
from taso_mirage.rewriting.text import show_graph
from taso_mirage.system.files import write_file
from taso_mirage.system.terminal import duration, plural
from taso_mirage.version import __version__

OF_CHANGES, OF_BOTH = "changes' gains", "gains of changes and kernels"
OPEN = 3
"""The number of changes that are unfolded when the page opens."""
LINES = 200
"""The largest number of lines of one side of a change."""


def write_page(
    path: Path,
    result: Result,
    explained: Sequence[Explanation],
    source: Path,
    written: Sequence[Path],
    command: Sequence[str],
) -> None:
    """Write the page completely or not at all. Raises OutputError if that fails."""
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
    pairs = [] if result.times is None else by_operator(result.times, result.original.sizes)
    details = NodeDetails(result)
    return render_template(
        "report.html",
        title=f"{source.name}: {_verdict(result)}",
        source=source.name,
        headline=headline(result),
        most=most_of_it(explained, result),
        facts=_facts(result, explained),
        standing=_standing(result),
        notes=result.notes,
        left=result.left,
        **_times(result, pairs),
        **_changes(result, explained, details),
        account=_account(result, explained),
        nodes=details.listed,
        **_roofline(result, pairs),
        operators=_operators(result, pairs),
        sizes=shown_sizes(result.original.sizes),
        differences=_differences(result),
        let_through=result.let_through,
        roundings=_roundings(result),
        search=_search(result),
        command=shlex.join(command),
        written=written,
        used=list(used.items()),
    )


def headline(result: Result) -> str:
    """The gain in one sentence."""
    said = f"The model is {_verdict(result)}" if result.failure is None else f"The {_verdict(result)}"
    if not result.changed:
        return f"{said}."
    before, after = result.seconds_before_after
    measured = f"measured on {result.target.name}{_threads(result)}"
    how = "by prediction alone: nothing was measured" if result.timing is None else measured
    return f"{said}: {duration(after)} instead of {duration(before)}, {how}."


def _threads(result: Result) -> str:
    threads = result.target.stamp.threads
    return f" with {plural(threads, 'thread')}" if threads else ""


def most_of_it(explained: Sequence[Explanation], result: Result | None = None) -> str:
    """The change that gains most, measured alone or else predicted, with the number of others that
    the gain belongs to as well, or the kernel that does, and the share of the total; empty without
    changes."""
    kernels = [] if result is None else [row for row in kernel_rows(result, explained) if row.counted > 0]
    if not explained and not kernels:
        return ""
    gains = [*(each.counted for each in explained if each.counted > 0), *(row.counted for row in kernels)]
    if not gains:
        return "Measured one by one the changes gain nothing: the gain comes from how the runtime runs the whole model."
    said = f"The largest part ({max(gains) / sum(gains):.0%} of the {OF_BOTH if kernels else OF_CHANGES})"
    largest = max(explained, key=lambda each: each.counted, default=None)
    if largest is None or largest.counted < max(gains):
        return f"{said}: {max(kernels, key=lambda row: row.counted).name}."
    count = largest.change.count
    places = f"in {count} places" if count > 1 else "in one place"
    what, parts = _arrows(explanation_lines(largest.change)), sum(e.part_of is largest.change for e in explained)
    one = {0: "", 1: ", together with another change of the same terms"}
    others = one.get(parts, f", together with {parts} other changes of the same terms")
    return f"{said}: {what}, {places}{others}."


def _standing(result: Result) -> str:
    """The style of the first fact: `won`, `failed` for a failed check, or neither."""
    if result.failure is not None:
        return "failed"
    before, after = result.seconds_before_after
    return "won" if result.changed and after <= before else "kept"


def _verdict(result: Result) -> str:
    if result.failure is None:
        return _gain_text(result)
    if not result.changed:
        return "check failed: the original is kept"
    return f"check failed: a rewrite was left out; the rest is {_gain_text(result)}"


def _gain_text(result: Result) -> str:
    if not result.changed:
        return "kept as it was"
    if result.timing is not None:
        return f"{result.timing.ratio:.2f} times as fast"
    ratio = result.cost_before / result.cost_after if result.cost_after else 1.0
    return f"predicted {ratio:.2f} times as fast"


def _facts(result: Result, explained: Sequence[Explanation]) -> list[str]:
    facts = [f"{result.terms_before} operators before, {result.terms_after} after"]
    if explained:
        proved = sum(each.ground.startswith("proved") or each.ground.startswith("computed") for each in explained)
        facts.append(f"{proved} of {len(explained)} distinct changes proved or computed in advance")
    if result.differences:
        passed = sum(d.passed for d in result.differences)
        facts.append(f"{passed} of {len(result.differences)} outputs within the bound of the check")
    return facts


def _times(result: Result, pairs: Sequence[OperatorPair]) -> dict[str, Any]:
    """The diagrams of times: whole models, and by operator, both measured or else predicted."""
    shown = pairs if result.profile is None else profiled_pairs(result.profile)
    by_kind, legend = operator_bars(shown)
    return {
        "timing": result.timing,
        "predicted": [duration(seconds) for seconds in (result.cost_before, result.cost_after)],
        "bars": whole_bars(result),
        "by_kind": by_kind if shown else [],
        "legend": legend if shown else [],
        "profiled": result.profile is not None,
        "times_by_sizes": _times_by_sizes(result),
        "untimed": [sum(n.op == "opaque" for n in m.graph) for m in (result.original, result.model)],
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


def _account(result: Result, explained: Sequence[Explanation]) -> dict[str, Any] | None:
    """The rows of the account, and the reason for its rest."""
    found = account(result, explained)
    if found is None:
        return None

    def text(value: float | None) -> str:
        return "" if value is None else difference_text(value)

    rows = [
        (r.number, _arrows(r.name), text(r.predicted), text(r.alone), text(r.within), _share(r.counted, found.total))
        for r in found.rows
    ]
    return {"rows": rows, "total": difference_text(found.total), "measured": found.measured, "reason": found.reason}


APART = 1.25
"""The ratio of two gains from which they are said to differ."""


def doubt(result: Result) -> tuple[str, str] | None:
    """The predicted and the measured gain of the model where they differ much and the page shows
    predicted times."""
    if result.timing is None or result.times is None or result.profile is not None or not result.changed:
        return None
    predicted = sum(result.times.before.values()) / max(sum(result.times.after.values()), 1e-12)
    if 1 / APART < predicted / result.timing.ratio < APART:
        return None
    return f"{predicted:.2f}", f"{result.timing.ratio:.2f}"


def _share(part: float, total: float) -> str:
    return f"{part / total:.0%}".replace("-", "\N{MINUS SIGN}") if total > 0 else ""


def _changes(result: Result, explained: Sequence[Explanation], details: NodeDetails) -> dict[str, Any]:
    """The changes, the sections of the model that they are in with their times, and their
    equations."""
    sections = [] if result.times is None else model_sections(result, result.times)
    where = {name: i for i, each in enumerate(sections, 1) for names in each.places for name in names}
    names = list(dict.fromkeys(name for each in explained for name in each.change.equations))
    equations = {name: statement(name, result) for name in names}
    formulas = {name: formula(each.text) for name, each in equations.items()}
    titles = [section_title(each) for each in sections]
    found = whereabouts(result, sections)
    shown = shown_sections(sections, _numbers(explained, where), found.seconds, details)
    return {
        "runs": run_events(result, found),
        "doubt": doubt(result),
        "where": region_view(found, sections, titles) if sections else None,
        "changes": [_change(i, each, explained, formulas, where, details) for i, each in enumerate(explained, 1)],
        "measured": any(each.measured for each in explained),
        "open": OPEN,
        "anchors": {name: i for i, name in enumerate(names, 1)},
        "equations": [
            _equation(each, formulas[name], result.equations.get(name, 0)) for name, each in equations.items()
        ],
        "sections": shown,
    }


def _numbers(explained: Sequence[Explanation], where: Mapping[str, int]) -> dict[int, list[int]]:
    """The changes of each section, by their numbers."""
    found: dict[int, list[int]] = {}
    for number, each in enumerate(explained, 1):
        for section in dict.fromkeys(where[place] for place in each.change.places if place in where):
            found.setdefault(section, []).append(number)
    return found


def _equation(each: StatedEquation, written: Formula | None, count: int) -> dict[str, Any]:
    return {"stated": each, "formula": written, "conditions": conditions(each.where), "count": count}


def _change(
    number: int,
    each: Explanation,
    explained: Sequence[Explanation],
    formulas: Mapping[str, Formula | None],
    where: Mapping[str, int],
    details: NodeDetails,
) -> dict[str, Any]:
    change = each.change
    heads = [i for i, other in enumerate(explained, 1) if other.change is each.part_of]
    equations = dict.fromkeys(change.equations)
    return {
        "count": change.count,
        "operators": _arrows(explanation_lines(change)),
        "gain": _short_gain(each),
        "gains": _arrows(gains(each).capitalize()),
        "part_of": heads[0] if heads else 0,
        "equations": [(name, formulas[name]) for name in equations],
        "places": shortened(change.places, 12),
        "sections": list(dict.fromkeys(where[place] for place in change.places if place in where)),
        "proof": _proof(each.ground),
        "ground": each.ground[:1].upper() + each.ground[1:],
        "before": _side(change.before, details, f"change-{number}"),
        "after": _side(change.after, details, f"change-{number}"),
    }


def _proof(ground: str) -> str:
    """The style of the verdict on a change: proved, checked with the whole model, or unknown."""
    if not ground:
        return ""
    return "checked" if ground.startswith("not proved") else "proved"


def _arrows(text: str) -> str:
    return text.replace("->", "\N{RIGHTWARDS ARROW}")


def _short_gain(each: Explanation) -> str:
    if each.part_of is not None:
        return ""
    if each.within is not None:
        return f"{difference_text(each.counted)} saved, measured in the model"
    if each.measured is not None:
        return f"{difference_text(each.gain)} saved, measured alone"
    return f"{difference_text(each.gain)} saved, predicted" if each.gain else ""


def _side(side: Graph, details: NodeDetails, place: str) -> tuple[Drawing | None, str]:
    """The drawing of one side of a change, or else its text, of many steps the first lines."""
    if sum(1 for _ in side) <= DRAWN:
        return draw_graph(side, numbers=details.add(side, place)), ""
    lines = show_graph(side).splitlines()
    more = [f"... {len(lines) - LINES} more lines"] if len(lines) > LINES else []
    return None, "\n".join([*lines[:LINES], *more])


def _roofline(result: Result, pairs: Sequence[OperatorPair]) -> dict[str, Any]:
    """The roofline, or the reason why there is none."""
    peaks = None if result.times is None else result.times.peaks
    points = roofline_points(pairs)
    if peaks is not None:  # small operands stay in a cache: an operator may be faster than one large product
        peaks = replace(peaks, flops=max(peaks.flops, *(p.reached for p in points), 0.0))
    why = "Times are sums over several sets of sizes, each with work of its own." if len(result.workloads) > 1 else ""
    if peaks is None:
        why = "Nothing was measured on this machine, so its peaks are not known."
    elif not points:
        why = "No operator with known work was measured."
    if why or peaks is None:
        return {"roofline": None, "no_roofline": why, "reached": [], "peaks": None}
    rows = [
        [
            p.name,
            p.kind,
            f"{p.intensity:.3g}",
            quantity(p.reached, "FLOP/s"),
            f"{p.reached / min(peaks.flops, p.intensity * peaks.bandwidth):.0%}",
            duration(p.seconds),
        ]
        for p in points
    ]
    shown = quantity(peaks.flops, "FLOP/s"), quantity(peaks.bandwidth, "B/s"), peaks.dtype
    return {"roofline": roofline_chart(points, peaks), "no_roofline": "", "reached": rows, "peaks": shown}


def _operators(result: Result, pairs: Sequence[OperatorPair]) -> list[list[str]]:
    """Counts, predicted times, operations and bytes by operator; opaque nodes have counts only."""
    sizes = result.original.sizes
    before = inspection(result.original, sizes)["operators"]
    after = inspection(result.model, sizes)["operators"] if result.model is not result.original else before
    seconds = {p.name: (p.before.seconds, p.after.seconds) for p in pairs}
    none = {"count": 0, "flops": 0, "bytes": 0}
    rows = []
    for op in sorted({*before, *after}, key=lambda op: -sum(seconds.get(op, (0.0,)))):
        pair = (before.get(op, none), after.get(op, none))
        spent = [duration(s) for s in seconds[op]] if op in seconds else ["", ""]
        rows.append([op, *spent, *(_amount(row[key], key) for key in none for row in pair)])
    totals = [{key: sum(row[key] for row in side.values()) for key in none} for side in (before, after)]
    spent = [duration(sum(s)) for s in zip(*seconds.values(), strict=True)] if seconds else ["", ""]
    rows.append(["all", *spent, *(_amount(row[key], key) for key in none for row in totals)])
    return rows


def _amount(value: float, key: str) -> str:
    return str(int(value)) if key == "count" else quantity(value, "B" if key == "bytes" else "")


def _differences(result: Result) -> list[list[str]]:
    return [
        [d.case, d.output, f"{d.error:.3g}", f"{d.own:.3g}", f"{d.bound:.3g}", "passed" if d.passed else "FAILED"]
        for d in result.differences
    ]


def _roundings(result: Result) -> list[list[str]]:
    """The errors of the outputs by the permitted roundings."""
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
