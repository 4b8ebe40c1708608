"""The report of an optimization as one self-contained page: no script, no network, everything from a model escaped."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from taso_mirage.ir.terms import Graph
from taso_mirage.measure.check import shown_sizes
from taso_mirage.measure.session import device
from taso_mirage.report.drawing import ARROW, draw_graph
from taso_mirage.report.explanation import Explanation, StatedEquation
from taso_mirage.report.explanations import duration, explanation_lines, gains, shortened, statement
from taso_mirage.report.inspection import inspection, quantity, versions
from taso_mirage.report.result import Result
from taso_mirage.report.summary import by_sizes, search_facts
from taso_mirage.rewriting.text import show_graph
from taso_mirage.system.files import write_file
from taso_mirage.version import __version__

OPEN = 3
"""Changes that are unfolded when the page opens."""
DRAWN = 48
"""Terms up to which a graph is drawn; a larger one is printed."""
BAR, HIGH = 420.0, 34.0
"""Width of the longest bar and height of a row of the diagram of times."""


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
    """The whole page. `command` is the command line to repeat, `used` the versions and the device, by name."""
    names = list(dict.fromkeys(name for each in explained for name in each.change.equations))
    sections = [
        _section("Time", _times(result)),
        _section("What changed", _changes(explained, names)),
        _section("Equations", _equations(names, result)) if names else "",
        _section("Operators", _operators(result)),
        _section("Check", _check(result)),
        _section("Search", _search(result)),
        _section("To repeat it", _repeat(command, used, written)),
    ]
    title = f"{source.name}: {_verdict(result)}"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<svg width="0" height="0" '
        f'aria-hidden="true" class="defs"><defs>{ARROW}</defs></svg>\n<main>\n'
        f"<h1>{escape(source.name)}</h1>\n{_summary(result)}\n{''.join(sections)}</main>\n</body>\n</html>\n"
    )


def _verdict(result: Result) -> str:
    if not result.changed:
        return "kept as it was"
    if result.timing is not None:
        return f"{result.timing.ratio:.2f} times as fast"
    ratio = result.cost_before / result.cost_after if result.cost_after else 1.0
    return f"predicted {ratio:.2f} times as fast"


def _summary(result: Result) -> str:
    facts = [_verdict(result), f"{result.terms_before} operators before, {result.terms_after} after"]
    if result.differences:
        passed = sum(d.passed for d in result.differences)
        facts.append(f"{passed} of {len(result.differences)} outputs within the bound of the check")
    listed = "".join(f"<li>{escape(fact)}</li>" for fact in facts)
    notes = "".join(f'<p class="note">Note: {escape(note)}</p>' for note in result.notes)
    return f'<ul class="facts">{listed}</ul>{notes}'


def _section(title: str, body: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{body}\n</section>\n"


# ---------------------------------------------------------------- times


def _times(result: Result) -> str:
    timing = result.timing
    if timing is None:
        text = "Nothing was measured; the bars are the predicted cost, the sum over the operators."
        return _bars(result.cost_before, result.cost_after, None) + _paragraph(text)
    text = (
        f"Lower quartiles of {timing.runs} rounds, in which both models ran in turn. The optimized model is "
        f"{timing.ratio:.3f} times as fast; round by round, the quartiles of that ratio are {timing.low:.3f} and "
        f"{timing.high:.3f} (the line on the second bar). "
        f"Predicted, as the sum over the operators: {duration(result.cost_before)} and {duration(result.cost_after)}."
    )
    spread = (timing.original / timing.high, timing.original / timing.low)
    return _bars(timing.original, timing.optimized, spread) + _paragraph(text) + _times_by_sizes(result)


def _times_by_sizes(result: Result) -> str:
    """The times at each of several sets of sizes."""
    if result.timing is None or not result.timing.each:
        return ""
    rows = [
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
    text = "The times above are the sums over these sets of sizes, by their shares."
    return _paragraph(text) + _table(["sizes", "share", "original", "optimized", "ratio", "quartiles"], rows)


def _bars(before: float, after: float, spread: tuple[float, float] | None) -> str:
    scale = BAR / max(before, after, *(spread or ()), 1e-12)
    rows = [_bar(0, "original", before, scale, "before"), _bar(1, "optimized", after, scale, "after")]
    if spread is not None:
        low, high = (110 + s * scale for s in spread)
        y = 1.5 * HIGH
        rows.append(
            f'<path class="spread" d="M{low:.1f},{y:.1f} H{high:.1f} M{low:.1f},{y - 6:.1f} v12 M{high:.1f},{y - 6:.1f} v12"/>'
        )
    label = f"original {duration(before)}, optimized {duration(after)}"
    return (
        f'<div class="wide"><svg class="bars" role="img" aria-label="{escape(label)}" width="{BAR + 220:.0f}" '
        f'height="{2 * HIGH:.0f}" viewBox="0 0 {BAR + 220:.0f} {2 * HIGH:.0f}">{"".join(rows)}</svg></div>'
    )


def _bar(row: int, name: str, seconds: float, scale: float, kind: str) -> str:
    y, width = row * HIGH, seconds * scale
    return (
        f'<text x="100" y="{y + 22:.0f}" text-anchor="end">{name}</text>'
        f'<rect class="{kind}" x="110" y="{y + 5:.0f}" width="{width:.1f}" height="{HIGH - 10:.0f}" rx="3"/>'
        f'<text x="{BAR + 122:.0f}" y="{y + 22:.0f}">{escape(duration(seconds))}</text>'
    )


# ---------------------------------------------------------------- changes and equations


def _changes(explained: Sequence[Explanation], names: Sequence[str]) -> str:
    if not explained:
        return _paragraph("Nothing: the original's graph was kept.")
    total = sum(each.change.count for each in explained)
    text = f"{len(explained)} distinct changes at {total} places, the largest predicted gain first."
    text += " Green is known before the model runs: weights, and what is computed from weights, once."
    if any(each.measured for each in explained):
        text += " Measured alone means: both sides as small models of their own, run in turn."
    listed = (_change(i, each, names) for i, each in enumerate(explained, 1))
    return _paragraph(text) + "\n".join(listed)


def _change(number: int, each: Explanation, names: Sequence[str]) -> str:
    change = each.change
    times = f'<span class="count">{change.count} &times;</span> ' if change.count > 1 else ""
    links = ", ".join(
        f'<a href="#equation-{names.index(n) + 1}">{escape(n)}</a>' for n in dict.fromkeys(change.equations)
    )
    sides = "".join(
        f"<figure><figcaption>{name}</figcaption>{_drawing(side, f'{name} change {number}')}</figure>"
        for name, side in (("before", change.before), ("after", change.after))
    )
    ground = f"<br>{escape(each.ground[:1].upper() + each.ground[1:])}." if each.ground else ""
    return (
        f'<details class="change"{" open" if number <= OPEN else ""}>\n<summary>'
        f'<span class="gain">{escape(_short_gain(each))}</span>{number}. {times}{_arrows(explanation_lines(change))}</summary>\n'
        f"<p>{_arrows(gains(each).capitalize())}.<br>By {links}.<br>At {escape(shortened(change.places, 12))}.{ground}</p>\n"
        f'<div class="sides">{sides}</div>\n</details>'
    )


def _arrows(text: str) -> str:
    return escape(text).replace("-&gt;", "&rarr;")


def _short_gain(each: Explanation) -> str:
    if each.measured is not None:
        return f"measured {each.measured[0] / each.measured[1]:.2f} times as fast"
    return f"predicted {duration(each.gain)} won" if each.gain else ""


def _drawing(side: Graph, label: str) -> str:
    if sum(1 for _ in side) > DRAWN:
        return f'<pre class="wide">{escape(show_graph(side))}</pre>'
    return f'<div class="wide">{draw_graph(side, label)}</div>'


def _equations(names: Sequence[str], result: Result) -> str:
    listed = (_equation(i, statement(name, result), result.equations.get(name, 0)) for i, name in enumerate(names, 1))
    return "\n".join(listed)


def _equation(number: int, each: StatedEquation, count: int) -> str:
    guard = f"<p>where <code>{escape(each.where)}</code></p>" if each.where else ""
    region = _region(each.region) if each.region else ""
    return (
        f'<article id="equation-{number}"><h3>{escape(each.name)} <span class="count">applied {count} times</span></h3>'
        f"<pre>{escape(each.text)}</pre>{guard}<p>Evidence: {escape(each.evidence)}.</p>{region}</article>"
    )


def _region(picture: str) -> str:
    return f"<p>Positions of its output that are right without correction (.) and that are corrected (#):</p><pre>{escape(picture)}</pre>"


# ---------------------------------------------------------------- tables


def _operators(result: Result) -> str:
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
    heads = ["operator", "count before", "after", "flops before", "after", "bytes before", "after"]
    text = "Over the whole graph, with what is computed ahead from weights" + (
        f", at {shown_sizes(sizes)}." if sizes else "."
    )
    return _table(heads, rows) + _paragraph(text)


def _amount(value: float, key: str) -> str:
    return str(int(value)) if key == "count" else quantity(value, "B" if key == "bytes" else "")


def _check(result: Result) -> str:
    if not result.differences:
        return _paragraph("There was nothing to check: the original is written as it was read.")
    text = (
        "Against one evaluation of the original in float64: the error of the optimized model may be four times the original's "
        "own, and a few roundings of the output's type. Integers, booleans and texts must be equal."
    )
    rows = [
        [d.case, d.output, f"{d.error:.3g}", f"{d.own:.3g}", f"{d.bound:.3g}", "passed" if d.passed else "FAILED"]
        for d in result.differences
    ]
    return _paragraph(text) + _table(["inputs", "output", "error", "original's own", "bound", "result"], rows, 2)


def _search(result: Result) -> str:
    rows = [
        *([name, text] for name, text in search_facts(result).items() if name != "seconds"),
        ["rewrites taken", str(len(result.steps))],
        *([f"seconds to {stage}", f"{seconds:.2f}"] for stage, seconds in result.seconds.items()),
    ]
    return _table(["", "value"], rows)


def _repeat(command: Sequence[str], used: Mapping[str, str], written: Sequence[Path]) -> str:
    files = ", ".join(map(str, written))
    return (
        f"<pre>{escape(shlex.join(command))}</pre>"
        + (_paragraph(f"It wrote {files}.") if files else "")
        + _table(["", "version"], [[k, v] for k, v in used.items()])
    )


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> str:
    """A table of texts, the first `texts` columns to the left, numbers to the right."""
    head = "".join(f'<th scope="col">{escape(h)}</th>' for h in heads)
    body = "\n".join(_row(row) for row in rows)
    return f'<div class="wide"><table class="texts-{texts}"><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def _row(row: Sequence[Any]) -> str:
    first, *others = (escape(str(cell)) for cell in row)
    return f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in others)}</tr>'


STYLE = """
:root { color-scheme: light dark; --text: #1c2430; --quiet: #5b6675; --paper: #ffffff; --panel: #f5f7fa; --line: #d5dbe3;
  --accent: #2459a6; --before: #9aa6b5; --after: #2f7d4f; --operator: #e3edfb; --operator-line: #4a78b5; --operand: #ffffff;
  --operand-line: #8a8a8a; --weight: #e9f3e6; --weight-line: #7ba36d; --number: #f6f0e1; --number-line: #b39b56; --edge: #666666; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e9f0; --quiet: #a3aebd; --paper: #14181f; --panel: #1d232c; --line: #38424f; --accent: #8ab8ff; --before: #6d7a8a;
  --after: #5cb885; --operator: #1f3350; --operator-line: #6d9bd8; --operand: #1d232c; --operand-line: #8a94a2; --weight: #21382a;
  --weight-line: #7ba36d; --number: #3a3220; --number-line: #b39b56; --edge: #a3aebd; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--text); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 70rem; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.2rem 0 .6rem; padding-bottom: .25rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; overflow-wrap: anywhere; }
p { margin: .5rem 0; overflow-wrap: anywhere; }
a { color: var(--accent); }
.defs { position: absolute; }
.facts { display: flex; flex-wrap: wrap; gap: .5rem; list-style: none; padding: 0; margin: .5rem 0; }
.facts li { background: var(--panel); border: 1px solid var(--line); border-radius: 1rem; padding: .15rem .8rem; }
.facts li:first-child { color: var(--paper); background: var(--after); border-color: var(--after); font-weight: 600; }
.note { border-left: 4px solid var(--number-line); padding-left: .8rem; }
.count, .gain { color: var(--quiet); font-weight: 400; }
.gain { float: right; padding-left: 1rem; }
.wide { overflow-x: auto; max-width: 100%; }
pre, code { font: 13px/1.45 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: .6rem .8rem; margin: .4rem 0;
  white-space: pre-wrap; overflow-wrap: anywhere; }
.change { border: 1px solid var(--line); border-radius: 8px; margin: .6rem 0; padding: 0 .9rem; }
.change summary { cursor: pointer; padding: .55rem 0; font-weight: 600; }
.sides { display: flex; gap: 1rem; margin-bottom: .9rem; }
figure { margin: 0; flex: 0 1 auto; min-width: 0; border: 1px solid var(--line); border-radius: 6px; padding: .4rem; }
figcaption { color: var(--quiet); font-size: .85rem; padding-left: .4rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { text-align: right; padding: .22rem .8rem; border-bottom: 1px solid var(--line); }
th { font-weight: 400; }
thead th { color: var(--quiet); white-space: nowrap; }
th:first-child, .texts-2 :is(th, td):nth-child(2) { text-align: left; padding-left: 0; }
svg text { fill: var(--text); }
.bars { max-width: 100%; height: auto; } .bars text { font-size: 14px; }
.before { fill: var(--before); } .after { fill: var(--after); }
.spread { stroke: var(--text); stroke-width: 2; fill: none; }
.drawing { display: block; margin: 0 auto; height: auto; max-width: max(100%, calc(var(--natural) * .6)); }
.drawing .paper { fill: none; }
.drawing .edge { stroke: var(--edge); } .arrow { fill: var(--edge); }
.operator rect { fill: var(--operator); stroke: var(--operator-line); }
.operand rect { fill: var(--operand); stroke: var(--operand-line); }
:is(.weight, .ahead) rect { fill: var(--weight); stroke: var(--weight-line); }
.number rect { fill: var(--number); stroke: var(--number-line); }
@media (max-width: 45rem) { .sides { flex-wrap: wrap; } }
@media print { .change { break-inside: avoid; } }
"""
