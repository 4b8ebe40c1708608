"""Where the time of a run went: the runtime's nodes by sections and changes of a model, the account
of the gain, and the graphs of the page in a browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from browser import asked, needs_browser
from htmlpage import Page
from small_models import model, w, x

from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Graph, Node
from taso_mirage.measure.timing import Timing
from taso_mirage.onnx_io.write import value_names
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import optimize_model
from taso_mirage.report import html, summary
from taso_mirage.report.account import account
from taso_mirage.report.attribution import heads, owners, placed_in_model, run_spans, section_seconds
from taso_mirage.report.changes import by_counted_gain
from taso_mirage.report.details import statistics
from taso_mirage.report.operator_table import operator_rows
from taso_mirage.report.result import OperatorProfile, PlacedKernels, Result
from taso_mirage.report.sections import model_sections
from taso_mirage.search.config import Config
from taso_mirage.targets.profile import TimedNode


def node(operator: str, inputs: str, outputs: str, seconds: float = 1.0) -> TimedNode:
    return TimedNode(operator, tuple(inputs.split()), tuple(outputs.split()), seconds)


def run_of(made: Model, times: object) -> Iterator[TimedNode]:
    """A run with a node for each term, as long as it is predicted to take."""
    names = {n: name for name, n in value_names(made).items()}
    for n in made.nodes():
        if n in times:  # type: ignore[operator]
            yield TimedNode(n.op, tuple(names[a] for a in n.args if a in names), (names[n],), times[n])  # type: ignore[index]


@pytest.fixture(scope="module")
def profiled(mini: Result) -> Result:
    """The result with a profile that has the predicted times."""
    times = mini.times
    profile = OperatorProfile(tuple(run_of(mini.original, times.before)), tuple(run_of(mini.model, times.after)))
    listed = by_counted_gain(placed_in_model(mini, mini.explanations, profile))
    return replace(mini, profile=profile, explanations=tuple(listed))


# ---------------------------------------------------------------- nodes of a run


def test_a_node_without_a_known_value_belongs_to_its_reader_or_else_to_its_maker() -> None:
    nodes = [node("Reorder", "x", "r"), node("Conv", "r", "a"), node("Reorder", "a", "s"), node("Free", "s", "t")]
    assert heads(nodes, {"a"}) == [1, 1, 1, 1]
    assert owners(nodes, {"a": 7}) == [7, 7, 7, 7]
    assert owners(nodes, {"b": 7}) == [None] * 4


def test_the_time_of_a_run_is_that_of_its_sections(profiled: Result) -> None:
    """With the predicted times as measured ones, both views agree section by section."""
    sections = model_sections(profiled, profiled.times)
    for side, spans in enumerate(run_spans(profiled, sections)):
        assert all(span.place is not None for span in spans)
        found = section_seconds(spans, len(sections))
        assert found == pytest.approx([each.seconds[side] for each in sections])


def test_without_a_profile_spans_are_in_the_order_of_the_model(mini: Result) -> None:
    sections = model_sections(mini, mini.times)
    before, after = run_spans(mini, sections)
    order = [sections[i].order[j] for i, j in (span.place for span in before if span.place is not None)]
    assert order == list(range(len(order)))
    assert sum(span.seconds for span in after) == pytest.approx(mini.cost_after)


# ---------------------------------------------------------------- changes in the model


def test_changes_of_one_region_have_one_gain_in_the_model(profiled: Result) -> None:
    """The steps to an attention count once, and no terms that both models have."""
    listed = profiled.explanations
    head = next(each for each in listed if any(n.op == "packed_attention" for n in each.change.after))
    parts = [each for each in listed if each.part_of is head.change]
    assert head is listed[0]
    assert head.within is not None
    assert parts
    assert all(each.within is None and each.counted == 0 for each in parts)
    assert list(listed[1 : len(parts) + 1]) == parts
    own = sum(each.gain for each in (head, *parts))
    assert head.counted == pytest.approx(own, rel=0.01)


def test_a_node_that_the_runtime_fused_belongs_to_all_of_its_parts() -> None:
    """The sum is rewritten and the product before it is not: as one node of the runtime, both count
    for the change, on both sides."""
    a = x(2, 8, 16)
    old = term("gelu", term("add", term("matmul", a, w(16, 16)), w(16, name="b")), approximate="none")
    result = optimize_model(model((a,), (old,)), Config(budget=60, measure=False, explain=True, partial=False))
    assert "bias_gelu" in {n.op for n in result.model.nodes()}
    product, total = (n for n in result.original.nodes() if n.op in ("matmul", "add"))
    names = replace(result.original, names={**result.original.names, product: "p", total: "s"})
    result = replace(result, original=names, model=replace(result.model, names={**result.model.names, product: "p"}))
    after = (node("MatMul", "x", "p", 4.0), node("BiasGelu", "p", "output_0", 1.0))

    def gain(*before: TimedNode) -> tuple[float, float] | None:
        (found,) = placed_in_model(result, result.explanations, OperatorProfile(before, after))
        return found.within

    gelu = node("Gelu", "s", "output_0", 1.0)
    assert gain(node("MatMul", "x", "p", 4.0), node("Add", "p", "s", 1.0), gelu) == (2.0, 1.0)
    assert gain(node("Gemm", "x", "s", 4.5), gelu) == (5.5, 5.0)


# ---------------------------------------------------------------- the account


@pytest.mark.parametrize("kind", ["predicted", "alone", "in the model", "kernels"])
def test_the_rows_of_the_account_add_up(mini: Result, profiled: Result, kind: str) -> None:
    timing = None if kind == "predicted" else Timing(600e-6, 250e-6, 2.4, 2.3, 2.5, 40)
    result = replace(profiled if kind == "in the model" else mini, timing=timing)
    if kind == "kernels":
        result = replace(result, kernels=(PlacedKernels(((("matmul", "relu"), 3),), 1.2),))
    found = account(result, result.explanations)
    assert found is not None
    assert sum(row.counted for row in found.rows) == pytest.approx(found.total)
    assert [row.counted for row in found.rows[:-2]] == sorted((r.counted for r in found.rows[:-2]), reverse=True)
    predicted = sum(row.predicted or 0.0 for row in found.rows)
    assert predicted == pytest.approx(mini.cost_before - mini.cost_after)
    if kind == "predicted":
        assert abs(found.rows[-1].counted) < 0.01 * found.total
    else:
        assert found.total == pytest.approx(350e-6)
    kernels = [row for row in found.rows if row.name.startswith("kernel for matmul relu in 3 places")]
    assert [row.counted for row in kernels] == [pytest.approx(50e-6)] * (kind == "kernels")
    assert found.reason


def test_a_kept_model_has_no_account(mini: Result) -> None:
    assert account(replace(mini, changed=False), ()) is None


def test_predictions_that_the_clock_contradicts_are_said(mini: Result, profiled: Result) -> None:
    predicted = mini.cost_before / mini.cost_after
    agrees, differs = (Timing(600e-6, 600e-6 / r, r, 0.9 * r, 1.1 * r, 40) for r in (predicted, 2 * predicted))
    assert html.doubt(replace(mini, timing=agrees)) is None
    assert html.doubt(replace(profiled, timing=differs)) is None
    assert html.doubt(replace(mini, timing=differs)) == (f"{predicted:.2f}", f"{2 * predicted:.2f}")
    said = html.page(replace(mini, timing=differs), mini.explanations, Path("m"), [], ["x"], {})
    assert "Trust the clock" in said


# ---------------------------------------------------------------- the page


def test_statistics_of_weights() -> None:
    assert statistics(np.array([[0.0, 2.0], [-2.0, 0.0]], np.float32)) == [
        "4 elements",
        "min -2",
        "max 2",
        "mean 0",
        "std 1.414",
        "zeros 50.0%",
    ]
    assert statistics(np.array([1.0, np.inf], np.float16))[-1] == "1 not finite"
    assert statistics(np.array(["a", "b"], object)) == ["2 elements"]
    assert statistics(np.ones((1 << 21) + 1, np.int8))[-1].startswith("of a sample of ")


def test_terms_of_the_page_have_their_names_and_weights(profiled: Result) -> None:
    page = Page(html.page(profiled, profiled.explanations, Path("m.onnx"), [], ["taso-mirage"], {}))
    nodes, runs = (json.loads(each) for each in page.data)
    drawn = [each for each in nodes if each["op"] == "packed_attention" and each["at"].startswith("section")]
    assert any("num_heads=4" in each["attrs"] for each in drawn)
    weights = {row[0]: row[1:] for each in nodes for row in each.get("weights", ())}
    name = "embeddings.word_embeddings.weight"
    held = profiled.original.weights[name].numpy()
    assert weights[name][0] == f"{held.size} elements"
    assert f"max {held.max():.4g}" in weights[name]
    assert [sum(event[2] for event in run) * 1e-6 for run in runs] == pytest.approx(
        [profiled.cost_before, profiled.cost_after]
    )


def test_no_page_says_proved_beside_fuzzed(profiled: Result) -> None:
    text = "".join(Page(html.page(profiled, profiled.explanations, Path("m"), [], ["x"], {})).text)
    assert "proved" in text
    assert "fuzzed" not in text


@pytest.mark.parametrize(("called", "name"), [("taso_mirage::CpuKernel0", "fused kernels"), ("their::Op", "their::Op")])
def test_opaque_terms_have_the_operators_of_their_nodes(mini: Result, called: str, name: str) -> None:
    (a,) = mini.model.graph.inputs[:1]
    made = Node("opaque", (a,), (("call", called),), lambda: a.type)
    after = replace(mini.model, graph=Graph((a,), (made,)))
    _, rows = operator_rows(replace(mini, model=after, profile=None, times=None))
    assert (name, (0, 1)) in [(row.name, row.counts) for row in rows]


def test_the_terminal_has_the_operators(profiled: Result, mini: Result, capsys: pytest.CaptureFixture[str]) -> None:
    for result, titled in ((profiled, "operators, measured"), (replace(mini, times=None), "operators")):
        summary.show(result, Path("m.onnx"), [])
        said = [line.strip() for line in capsys.readouterr().out.splitlines()]
        assert titled in said
        (row,) = [line for line in said if "packed_attention" in line and "│" in line]
        assert row.strip("│ ").split("│")[1].strip() == "0"
        assert any(line.startswith("equations: ") for line in said)


@needs_browser
def test_graphs_in_a_browser(profiled: Result, tmp_path: Path) -> None:
    written = tmp_path / "out.html"
    content = html.page(profiled, profiled.explanations, Path("m.onnx"), [], ["taso-mirage"], {})
    written.write_text(content)
    script = """
      const press = (key) => document.body.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
      const link = document.querySelector(".bars a");
      const target = document.querySelector(link.getAttribute("href"));
      const folded = target.open;
      location.hash = link.getAttribute("href");
      dispatchEvent(new Event("hashchange"));
      const sides = document.querySelector("#change-1 .sides");
      prepare(sides);
      const scales = () => Array.from(sides.querySelectorAll("svg.drawing"),
        (svg) => (svg.getBoundingClientRect().width / svg.getAttribute("width")).toFixed(2));
      const fitted = scales();
      sides.querySelector('button[title="larger"]').click();
      const larger = scales();
      const operator = sides.querySelector("g.operator");
      operator.dispatchEvent(new MouseEvent("click", {bubbles: true}));
      const said = document.getElementById("node").textContent;
      press("ArrowDown");
      const below = document.getElementById("node").textContent;
      const text = graphText(sides);
      const drawing = new DOMParser().parseFromString(text, "image/svg+xml");
      press("Escape");
      const box = document.getElementById("search");
      box.value = "embeddings.word_embeddings.weight";
      box.dispatchEvent(new Event("input"));
      document.querySelector("#terms button").click();
      const weight = document.getElementById("node").textContent;
      const drawn = document.querySelectorAll(".selected").length;
      const trace = traceEvents();
      return {folded, opened: target.open, fitted, larger, said, below, weight, drawn, svg: drawing.documentElement.nodeName,
        boxes: [drawing.querySelectorAll("rect[rx]").length, sides.querySelectorAll("rect[rx]").length],
        events: trace.filter((each) => each.ph === "X").length, closed: document.getElementById("node").hidden};
    """
    found = asked(written, tmp_path, script, 1200)
    assert (found["folded"], found["opened"]) == (False, True)
    for scales in (found["fitted"], found["larger"]):
        assert len(set(scales)) == 1  # type: ignore[call-overload]
    assert found["larger"] > found["fitted"]  # type: ignore[operator]
    assert "Type" in str(found["said"])
    assert found["below"] != found["said"]
    assert "std" in str(found["weight"])
    assert found["drawn"] == 1
    assert found["svg"] == "svg"
    assert found["boxes"][0] == found["boxes"][1] > 10  # type: ignore[index]
    assert profiled.profile is not None
    assert found["events"] == len(profiled.profile.before) + len(profiled.profile.after)
