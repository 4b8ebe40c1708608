"""The page of a result: sections of both models, equations as mathematics, times, a roofline; and
its behaviour in a browser."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from browser import asked, chromium, needs_browser
from htmlpage import Page
from small_models import model, w, x

from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.ir.terms import Graph, Node, topological
from taso_mirage.measure.cost_cache import CostCache
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.ops import load_specs, term
from taso_mirage.pipeline import optimize_model
from taso_mirage.report import html as report
from taso_mirage.report.charts import operator_bars, roofline_chart, roofline_points, whole_bars
from taso_mirage.report.details import NodeDetails
from taso_mirage.report.explanations import explained, statements
from taso_mirage.report.notation import FORMS, MathTree, conditions, formula
from taso_mirage.report.outline import PICTURES, shown_sections
from taso_mirage.report.pages import render_template
from taso_mirage.report.result import MeasuredPeaks, OperatorTimes, Result
from taso_mirage.report.sections import SECTIONS, model_sections
from taso_mirage.report.times import OperatorPair, OperatorTotals, by_operator, measured_peaks, operator_times
from taso_mirage.search.config import Config, quiet
from taso_mirage.search.cost import MeasuredCost, Weighted
from taso_mirage.search.passes import Context

PEAKS = MeasuredPeaks(5e10, 1e10, "float32")


def times_of(result: Result) -> OperatorTimes:
    assert result.times is not None
    return result.times


# ---------------------------------------------------------------- sections


def test_every_term_that_runs_is_in_one_section(mini: Result) -> None:
    times = times_of(mini)
    sections = model_sections(mini, times)
    for k, table in enumerate((times.before, times.after)):
        assert sum(each.seconds[k] for each in sections) == pytest.approx(sum(table.values()))
    run = [n for n in mini.original.graph if n.args and not is_weight(n)]
    sizes = sum(len(each.places) * sum(1 for n in each.before if n.args) for each in sections)
    assert sizes == len(run)
    names = Counter(name for each in sections for place in each.places for name in place)
    assert max(names.values()) == 1
    assert {mini.original.names[n] for n in run if n in mini.original.names} <= set(names)


def test_equal_layers_are_one_section(mini: Result) -> None:
    sections = model_sections(mini, times_of(mini))
    assert max(len(each.places) for each in sections) >= 4
    assert len(sections) <= 8
    assert any(each.changed for each in sections)
    shown = shown_sections(sections, {1: [2]}, [each.seconds for each in sections], NodeDetails(mini))
    assert shown[0]["changes"] == [2]
    assert all(each["before"]["drawing"] or each["before"]["rows"] for each in shown)


def test_a_model_that_was_kept_has_no_changed_section(mini: Result) -> None:
    kept = replace(mini, model=mini.original, steps=(), changed=False)
    times = times_of(mini)
    sections = model_sections(kept, OperatorTimes(times.before, times.before))
    assert not any(each.changed for each in sections)
    assert sum(each.gain for each in sections) == 0


def test_what_the_other_side_does_not_have_is_marked(mini: Result) -> None:
    a = x(2, 3)
    old, new = term("relu", term("neg", term("neg", a))), term("relu", a)
    section = model_sections(mini, times_of(mini))[0]
    changed = replace(section, before=Graph((a,), (old,)), after=Graph((a,), (new,)))
    before, after = (
        shown_sections([changed], {}, [(1.0, 1.0)], NodeDetails(mini))[0][side]["drawing"]
        for side in ("before", "after")
    )
    assert [box.lines[0] for box in before.shapes if box.marked] == ["neg", "neg", "relu"]
    assert [box.lines[0] for box in after.shapes if box.marked] == ["relu"]
    assert 'class="operator marked"' in render_template("graph.svg", drawing=before, label="")


@pytest.mark.sampled(3)
def test_a_model_of_ten_thousand_terms_has_a_small_page(mini: Result) -> None:
    """All of its sections differ, so none is folded into another."""
    made = x(2, 3)
    for i in range(10_000):
        made = term("leaky_relu", made, alpha=1 / (i + 2))
    large = model((x(2, 3),), (made,))
    nodes = [n for n in topological(large.graph.outputs) if n.args]
    spent = dict.fromkeys(nodes, 1e-6)
    kept = replace(mini, original=large, model=large, steps=(), changed=False, times=OperatorTimes(spent, spent, PEAKS))
    content = report.page(kept, [], Path("m.onnx"), [], ["taso-mirage"], {})
    page = Page(content)
    assert SECTIONS / 2 < content.count('<details class="fold section') <= SECTIONS + 1
    assert content.count('class="drawing"') == PICTURES
    assert page.tags.count("li") > 8_000
    assert len(content) < 3_000_000


# ---------------------------------------------------------------- equations as mathematics


def flat(tree: MathTree) -> str:
    parts = [flat(part) for part in tree.parts]
    forms = {"fraction": "{0}/{1}", "root": "sqrt {0}", "above": "{0}^{1}", "below": "{0}_{1}"}
    return forms[tree.kind].format(*parts) if tree.kind in forms else tree.text.strip() + " ".join(parts)


def shown(text: str) -> str:
    written = formula(text)
    assert written is not None
    names = "".join(f"; {flat(name)} = {flat(long)}" for name, long in written.names)
    return f"{flat(written.left)} = {flat(written.right)}{names}".replace("\N{MINUS SIGN}", "-")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("add(add(x, c), d) == add(x, add(c, d))", "x + c + d = x + ( c + d )"),
        ("sub(x, sub(y, z)) == add(sub(x, y), z)", "x - ( y - z ) = x - y + z"),
        ("matmul(mul(x, c), y) == mul(matmul(x, y), c)", "( x \u2299 c ) · y = x · y \u2299 c"),
        ("matmul(x, add(y, z)) == add(matmul(x, y), matmul(x, z))", "x · ( y + z ) = x · y + x · z"),
        ("neg(add(x, y)) == sub(neg(x), y)", "- ( x + y ) = - x - y"),
        ("mul(x, reciprocal(sqrt(y))) == div(x, sqrt(y))", "x \u2299 1/sqrt y = x/sqrt y"),
        ("exp(add(x, y)) == mul(exp(x), exp(y))", "e^x + y = e^x \u2299 e^y"),
        ("pow(add(x, y), 2.0) == mul(add(x, y), add(x, y))", "( x + y )^2 = ( x + y ) \u2299 ( x + y )"),
        ("transpose(matmul(x, y), perm=p) == z", "( x · y )^T p = z"),
        ("item(split(x, axis=1, split=s), index=0) == x", "split_axis=1, split=s ( x )_0 = x"),
        ("softmax(add(x, -1.0), axis=i) == softmax(x, axis=i)", "softmax_i ( x + ( -1 ) ) = softmax_i ( x )"),
        ("conv(concat(x, y, axis=0), w, **a) == w", "conv_a ( [ x , y ]_0 , w ) = w"),
        ("where(equal(x, y), x, y) == y", "( x where ( x = y ) , else y ) = y"),
        ("(neg(x), abs(x)) == (x, abs(neg(x)))", "( - x , | x | ) = ( x , | - x | )"),
    ],
)
def test_equations_as_mathematics(text: str, expected: str) -> None:
    assert shown(text) == expected


def test_a_term_that_is_there_twice_has_a_name() -> None:
    assert shown(
        "mul(softmax(x, axis=i), softmax(x, axis=i)) == x"
    ) == "{0} \u2299 {0} = x; {0} = softmax_i ( x )".format("\u03b1")


def test_every_equation_is_written_in_lines_that_are_not_long() -> None:
    written = {name: formula(each.text) for name, each in statements().items()}
    assert [name for name, found in written.items() if found is None] == []
    widths = [
        max(tree.width for tree in (found.left, found.right, *(long for _, long in found.names)))
        for found in written.values()
        if found is not None
    ]
    assert sorted(widths)[len(widths) * 9 // 10] <= 60
    assert max(widths) <= 200


def test_forms_are_what_operators_say() -> None:
    said = {op.doc.partition("\n")[0] for op in load_specs().values()}
    assert [form for form in FORMS if not any(line.startswith(form) for line in said)] == []


def test_prose_is_no_formula() -> None:
    assert formula("terms over weights alone become weights") is None
    assert formula("</math><script>") is None
    assert conditions("") == ()
    assert conditions("rank(x) == 2 and is_weight(w)") == (
        "the rank of x equals 2",
        "w is known before the model runs (a weight)",
    )
    assert conditions("<b>") == ("<b>",)


# ---------------------------------------------------------------- times


def test_the_times_are_those_of_the_cost_model(mini: Result) -> None:
    times = times_of(mini)
    assert sum(times.before.values()) == pytest.approx(mini.cost_before)
    assert sum(times.after.values()) == pytest.approx(mini.cost_after)
    assert times.peaks is None
    pairs = by_operator(times, mini.original.sizes)
    assert [p.seconds for p in pairs] == sorted((p.seconds for p in pairs), reverse=True)
    assert sum(p.before.count for p in pairs) == len(times.before)


def test_peaks_are_measured_and_only_measured() -> None:
    context = Context({"": 20}, {})
    found = measured_peaks(Weighted(context, (({}, 1.0),), CostCache(None)), "float32", CPU_DEVICE)
    assert found is not None
    assert 1e8 < found.bandwidth < 1e13
    assert 1e8 < found.flops < 1e15
    assert measured_peaks(Weighted(context, (({}, 1.0),), None), "float32", CPU_DEVICE) is None


def pair(name: str, before: float, after: float, flops: int = 1000) -> OperatorPair:
    return OperatorPair(name, OperatorTotals(1, before, flops, 100), OperatorTotals(1, after, flops, 100))


def test_bars_are_as_long_as_times(mini: Result) -> None:
    bars, legend = operator_bars([pair(f"op{i}", 4e-6, 2e-6) for i in range(12)])
    assert [sum(part.length for part in bar.parts) for bar in bars] == pytest.approx([1000, 500])
    assert all(a.start + a.length == pytest.approx(b.start) for bar in bars for a, b in pairwise(bar.parts))
    assert [entry.name for entry in legend] == [*(f"op{i}" for i in range(7)), "5 more"]
    few, legend = operator_bars([pair("relu", 1e-6, 0.0)])
    assert [len(bar.parts) for bar in few] == [1, 0]
    assert [entry.kind for entry in legend] == ["k0"]
    original, optimized = whole_bars(mini)
    assert original.parts[0].length == 1000
    assert optimized.parts[0].length == pytest.approx(1000 * mini.cost_after / mini.cost_before)


def test_the_roofline_has_what_computes() -> None:
    pairs = [pair("fast", 1e-6, 1e-7), pair("slow", 1e-3, 0.0), pair("moves", 1e-6, 1e-6, flops=0)]
    points = roofline_points(pairs)
    assert [(p.name, p.kind) for p in points] == [("slow", "before"), ("fast", "before"), ("fast", "after")]
    chart = roofline_chart(points, PEAKS)
    slow, fast, faster = chart.points
    assert slow.x == fast.x == faster.x  # equal operations per byte
    assert slow.y > fast.y > faster.y  # a faster model stands higher
    assert all(8 <= p.y <= 296 and 84 <= p.x <= 632 for p in chart.points)
    assert {name for _, _, name in chart.names} == {"slow", "fast"}
    assert [tick.text for tick in chart.up][:2] == ["1 M", "10 M"]


def test_why_there_is_no_roofline_is_said(mini: Result) -> None:
    def text(result: Result) -> str:
        return " ".join("".join(Page(report.page(result, [], Path("m"), [], ["x"], {})).text).split())

    assert "its peaks are not known" in text(mini)
    measured = replace(mini, times=replace(times_of(mini), peaks=PEAKS))
    assert "not the peaks of a data sheet" in text(measured)
    assert "several sets of sizes" in text(replace(measured, workloads=(({"n": 1}, 0.5), ({"n": 2}, 0.5))))


def test_what_has_no_time_is_said(mini: Result) -> None:
    """Kernels and other opaque terms are in no bar by operator."""
    a = x(2, 3)
    opaque = Node("opaque", (term("relu", a),), (("call", "f"),), lambda: a.type)
    with_one = replace(mini.model, graph=Graph((a,), (opaque,)))
    content = report.page(replace(mini, model=with_one), [], Path("m"), [], ["x"], {})
    assert "0 in the original and 1 in the result" in " ".join("".join(Page(content).text).split())
    assert "in the result." not in "".join(Page(report.page(mini, [], Path("m"), [], ["x"], {})).text)


def test_measured_results_have_peaks() -> None:
    a = x(64, 64)
    small = model((a,), (term("relu", term("matmul", a, w(64, 64))),))
    result = optimize_model(small, Config(budget=20))
    times = operator_times(result, Config())
    assert times.peaks is not None
    assert sum(times.before.values()) > 0
    late = operator_times(result, Config(), 0.0)
    assert sum(late.before.values()) == pytest.approx(result.cost_before)  # predicted as the line above the table


def test_once_the_time_is_over_nothing_is_measured_for_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """No operator, no change and no peak of the machine is measured."""
    a = x(3, 5)
    changed = optimize_model(
        model((a,), (term("neg", term("neg", term("relu", a))),)), Config(budget=0.0, measure=False)
    )
    assert changed.changed
    monkeypatch.setattr(MeasuredCost, "_run", lambda *_: pytest.fail("something was measured"))
    times = operator_times(changed, Config(), 0.0)
    assert times.peaks is None
    assert sum(times.before.values()) > 0
    (listed,) = explained(changed, Config(), quiet, 0.0)
    assert listed.measured is None


# ---------------------------------------------------------------- how it looks


def colours(css: str) -> list[dict[str, str]]:
    """The colours by name, in light and in dark."""
    light, dark = css.split("prefers-color-scheme: dark", 1)
    found = [dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in (light, dark)]
    return [found[0], found[0] | found[1]]


def contrast(a: str, b: str) -> float:
    """By WCAG 2, of two colours."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


TEXTS, SHAPES = ("text", "quiet", "accent", "after", "failed", "mark"), ("before", "after", "edge", "rest", "mark")


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_contrast_is_that_of_level_aa(scheme: int) -> None:
    known = colours(render_template("page.css"))[scheme]
    assert [name for name in TEXTS if contrast(known[name], known["paper"]) < 4.5] == []
    assert [name for name in ("text", "quiet") if contrast(known[name], known["panel"]) < 4.5] == []
    boxes = ("operator", "operand", "weight", "number")
    assert [name for name in boxes if contrast(known["text"], known[name]) < 4.5] == []
    shapes = (*SHAPES, *(f"k{i}" for i in range(7)))
    assert [name for name in shapes if contrast(known[name], known["paper"]) < 3] == []


@pytest.fixture(scope="module")
def path(mini: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page with a roofline, and names that nobody can break."""
    measured = replace(mini, times=replace(times_of(mini), peaks=PEAKS))
    written = tmp_path_factory.mktemp("page") / "out.html"
    source = Path("a_model_with_a_name_that_is_so_long_that_no_line_of_a_telephone_has_room_for_it.onnx")
    report.write_page(written, measured, measured.explanations, source, [written], ["taso-mirage", "optimize"])
    return written


@pytest.mark.sampled(3)
@needs_browser
@pytest.mark.parametrize("width", [400, 900, 1600])
def test_the_first_screen_says_what_was_gained(path: Path, tmp_path: Path, width: int) -> None:
    script = """
      document.querySelectorAll("details").forEach((each) => { each.open = true; });
      const root = document.documentElement;
      const bottom = (name) => document.querySelector(name).getBoundingClientRect().bottom;
      return {inside: innerWidth, wide: root.scrollWidth, said: document.querySelector(".headline").textContent,
        headline: bottom(".headline"), bars: bottom(".bars"), where: bottom(".where tr")};
    """
    found = asked(path, tmp_path, script, width)
    assert found["inside"] == width
    assert found["wide"] == width  # the page itself never scrolls sideways
    assert "times as fast" in str(found["said"])
    assert 0 < found["headline"] < found["bars"] < found["where"] < 800  # type: ignore[operator]


@pytest.mark.sampled(3)
@needs_browser
def test_search_by_keyboard(path: Path, tmp_path: Path) -> None:
    script = """
      const press = (key) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
      const box = document.getElementById("search");
      const shown = () => Array.from(document.querySelectorAll(".fold, .law")).filter((each) => !each.hidden);
      const all = shown().length;
      press("/");
      const focused = document.activeElement.id;
      box.value = "packed_ATTENTION num_heads";
      box.dispatchEvent(new Event("input"));
      const some = shown();
      const right = some.every((each) => /packed_attention/.test(each.textContent));
      const open = some.filter((each) => each.matches("details")).every((each) => each.open);
      const said = document.getElementById("found").textContent;
      press("Escape");
      return {all, focused, some: some.length, right, open, said, after: shown().length, value: box.value,
        form: box.form.hidden, order: Array.from(document.querySelectorAll("[tabindex]")).length};
    """
    found = asked(path, tmp_path, script)
    assert found["focused"] == "search"
    assert found["form"] is False
    assert found["order"] == 0  # the order of the focus is that of the page
    assert 0 < found["some"] < found["all"]  # type: ignore[operator]
    assert found["right"]
    assert found["open"]
    assert found["said"] == f"{found['some']} found"
    assert (found["after"], found["value"]) == (found["all"], "")


@pytest.mark.sampled(3)
@needs_browser
def test_what_is_folded_is_printed(path: Path, tmp_path: Path) -> None:
    def pages(content: str) -> int:
        (tmp_path / "p.html").write_text(content)
        chromium(tmp_path / "p.html", tmp_path, f"--print-to-pdf={tmp_path / 'p.pdf'}")
        return len(re.findall(rb"/Type /Page\b(?!s)", (tmp_path / "p.pdf").read_bytes()))

    content = path.read_text()
    opened = content.replace("<details", "<details open").replace(" open open", " open")
    assert pages(content) == pages(opened) > pages(content.replace("details::details-content", "details::nothing"))


def test_without_scripts_nothing_is_hidden_but_the_search(path: Path) -> None:
    content = path.read_text()
    hidden = re.findall(r"<(\w+)[^>]* hidden>", content.partition("<script")[0])
    assert hidden == ["form", "button", "button", "aside"]
    page = Page(content)
    assert {"details", "summary", "nav", "header", "main", "math", "label"} <= set(page.tags)
    assert page.tags.count("h1") == 1
