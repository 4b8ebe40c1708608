"""Changes, their explanation, and the page: each rewrite with its place and its proof, and nothing
from a model unescaped."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from browser import chromium, needs_browser
from commandline import one_line, result_of, run
from htmlpage import Page
from onnx import TensorProto, helper
from scripts import MINI
from small_models import model, w, x

from taso_mirage.ir.dims import symbol
from taso_mirage.ir.model import random_array
from taso_mirage.ir.terms import Graph, Tensor, variable, weight
from taso_mirage.meanings.reals import EXACT
from taso_mirage.measure.cost_cache import CostCache
from taso_mirage.onnx_io import load
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import optimize_model, stages
from taso_mirage.pipeline.stage import Job
from taso_mirage.report import explanations, html, summary
from taso_mirage.report.changes import Explanation, ReportedChange, changes
from taso_mirage.report.data import result_data
from taso_mirage.report.drawing import draw_graph
from taso_mirage.report.explanations import as_lines, measured_seconds, statement
from taso_mirage.report.pages import render_template
from taso_mirage.report.result import Result
from taso_mirage.rewriting.equation import Equation
from taso_mirage.rewriting.text import parse_equation, show_graph
from taso_mirage.search.config import Config, Stop, measuring, quiet
from taso_mirage.search.cost import Weighted
from taso_mirage.search.passes import Context
from taso_mirage.search.rulesets import rules
from taso_mirage.search.steps import FOLDING, RewriteStep


def named(*texts: str) -> dict[str, Equation]:
    return {name: parse_equation(text, name) for name, _, text in (t.partition(": ") for t in texts)}


# ---------------------------------------------------------------- changes


TWICE = named("twice: relu(relu(x)) == relu(x)")
RELU = Graph((x(2, 3, name="x1"),), (term("relu", x(2, 3, name="x1")),))


def test_equal_rewrites_are_one_change_of_several_places() -> None:
    a, b = x(2, 3), x(2, 3, name="y")
    olds = tuple(term("relu", term("relu", n)) for n in (a, b))
    made = model((a, b), olds)
    steps = [RewriteStep(("twice",), (old,), (old.args[0],)) for old in olds]
    (found,) = changes(made, steps, TWICE)
    assert (found.after, found.count, found.places) == (RELU, 2, ("output_0", "output_1"))
    assert found.before.outputs == (term("relu", RELU.outputs[0]),)


def test_the_context_of_a_rewrite_is_no_part_of_it() -> None:
    """Three terms stand above the rewrite, one of them with the rewrite's own operator."""
    a, b = x(2, 3), x(2, 3, name="y")
    old, new = (term("tanh", term("relu", term("add", n, b))) for n in (term("relu", term("relu", a)), term("relu", a)))
    (found,) = changes(model((a, b), (old,)), [RewriteStep(("twice",), (old,), (new,))], TWICE)
    assert (found.after, found.before.outputs) == (RELU, (term("relu", RELU.outputs[0]),))


def test_an_operand_that_is_dropped_is_cut_off() -> None:
    """The second operand of the concat is a long chain that the rewrite only drops; the match says
    that it is one operand."""
    a, b = x(2, 3), x(2, 3, name="y")
    chain = b
    for _ in range(5):
        chain = term("tanh", chain)
    old = term("item", term("split", term("concat", a, chain, axis=0), axis=0, split=(2, 2)), index=0)
    equation = named(
        "part: item(split(concat(x, y, axis=i), axis=i, split=s), index=0) == x where s[0] == dim(x, i) and len(s) == 2"
    )
    (found,) = changes(model((a, b), (old,)), [RewriteStep(("part",), (old,), (a,))], equation)
    assert found.after.outputs == (x(2, 3, name="x1"),)
    assert len(found.before.inputs) == 2
    assert [n.op for n in found.before if n.args] == ["concat", "split", "item"]


def test_steps_that_follow_at_one_place_are_one_change() -> None:
    a = x(2, 3)
    first, second, third = term("neg", term("neg", term("relu", a))), term("relu", a), term("max", a, term("neg", a))
    equations = named("double: neg(neg(x)) == x", "odd: relu(x) == max(x, neg(x))")
    steps = [RewriteStep(("double",), (first,), (second,), 7), RewriteStep(("odd",), (second,), (third,), 7)]
    (found,) = changes(model((a,), (first,)), steps, equations)
    assert found.equations == ("double", "odd")
    assert [n.op for n in found.after if n.args] == ["neg", "max"]


def test_several_outputs_are_one_change_and_folded_weights_are_one_each() -> None:
    a = x(2, 3)
    u, v = w(3, 4, name="u"), w(3, 4, name="v")
    olds = (term("matmul", a, u), term("matmul", a, v))
    both = term("split", term("matmul", a, term("concat", u, v, axis=1)), axis=1, split=(4, 4))
    news = tuple(term("item", both, index=i) for i in (0, 1))
    p = w(4, 4, name="p")  # the terms above have the rewrite's own operator
    tops, above = (tuple(term("matmul", term("tanh", n), p) for n in side) for side in (olds, news))
    made = model((a,), tops)
    sums = (term("add", u, v), term("add", v, u))
    steps = [
        RewriteStep(("joint",), tops, above),
        RewriteStep((FOLDING,), sums, (w(3, 4, name="f"), w(3, 4, name="g"))),
    ]
    equations = named(
        "joint: (matmul(x, u), matmul(x, v)) == (item(split(matmul(x, concat(u, v, axis=1)), axis=1, "
        "split=(dim(u, 1), dim(v, 1))), index=0), item(split(matmul(x, concat(u, v, axis=1)), axis=1, "
        "split=(dim(u, 1), dim(v, 1))), index=1))"
    )
    joint, folded = changes(made, steps, equations)
    assert [n.op for n in joint.before if n.args] == ["matmul", "matmul"]
    assert [n.op for n in joint.after.outputs] == ["item", "item"]
    assert (folded.count, folded.equations) == (2, (FOLDING,))
    assert folded.places == ("near u", "near v")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [pytest.param("bert", marks=pytest.mark.slow), "inception_v3"])
def test_both_sides_of_every_change_compute_the_same(
    small: Callable[..., onnx.ModelProto], name: str, tmp_path: Path
) -> None:
    """On the real thing: whatever was cut out, over free operands, is an equality in float64."""
    onnx.save(small(name, **({"dynamic": True} if name == "bert" else {})), tmp_path / "m.onnx")
    result = optimize_model(load(tmp_path / "m.onnx"), Config(budget=5, measure=False))
    found = changes(result.original, result.steps, {e.name: e for e in rules()})
    compared = [c for c in found if c.equations != (FOLDING,)]
    assert len(compared) >= 5
    assert max(c.count for c in found) >= 2
    assert len(result.steps) >= sum(c.count for c in compared)
    for change in compared:
        assert_equal(change, result.original.sizes)


def assert_equal(change: ReportedChange, sizes: dict[str, int]) -> None:
    rng = np.random.default_rng(3)
    sides = (change.before, change.after)
    leaves = dict.fromkeys(n for side in sides for n in (*side, *side.inputs) if n.op in ("input", "weight"))
    # batch normalization's variances are among the weights: none may be negative
    values = {
        n: EXACT.load(np.abs(random_array(n, rng, sizes)) if n.dtype != "bool" else random_array(n, rng, sizes))
        for n in leaves
    }
    old, new = ([interpret(s.outputs, EXACT, values, sizes=dict(sizes))[o] for o in s.outputs] for s in sides)
    for a, b in zip(old, new, strict=True):
        np.testing.assert_allclose(
            a, b, rtol=1e-6, atol=1e-9, err_msg=f"{change.equations}\n{show_graph(change.before)}"
        )


# ---------------------------------------------------------------- explanations


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """The output of `optimize --no-measure --explain --report --json`, and the page."""
    folder = tmp_path_factory.mktemp("report")
    options = ["--no-measure", "--explain", "--json", "--report", folder / "out.html"]
    done = run("optimize", MINI, "-o", folder / "out.onnx", *options)
    assert sorted(p.name for p in folder.iterdir()) == ["out.html", "out.onnx"]
    return result_of(done), folder / "out.html"


def test_explain_as_json(written: tuple[dict[str, Any], Path]) -> None:
    found = written[0]["changes"]
    assert 7 in [each["count"] for each in found]  # one a layer
    assert all(each["count"] == len(each["places"]) for each in found)
    assert all(e["equation"] and e["evidence"] for each in found for e in each["equations"])
    assert any("every size" in e["evidence"] for each in found for e in each["equations"])
    gains = [each["count"] * (each["predicted"]["before"] - each["predicted"]["after"]) for each in found]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 0
    assert all(each["measured"] is None for each in found)
    assert all(each["before"].startswith("def graph(") for each in found)
    assert {"proved for every size of its case"} <= {each["ground"] for each in found}


def test_explain_as_text_states_an_equation_once(mini: Result) -> None:
    graph = Graph(RELU.inputs, (term("relu", RELU.outputs[0]),))
    change = ReportedChange(("relu.0", "relu.0"), graph, RELU, ("a", "b", ""))
    listed = [Explanation(change, (3e-6, 1e-6), (2e-6, 1e-6)), Explanation(change, (1e-6, 1e-6), None)]
    lines = list(as_lines(listed, mini))
    assert lines[0] == "2 distinct changes at 6 places, the largest gain first"
    assert lines[2:5] == [
        "1. 3 x relu -> nothing",
        "   at a, b and 1 more",
        "   predicted 3 us -> 1 us a place; measured alone 2 us -> 1 us, 2.00 times as fast; 3 us saved in all",
    ]
    assert sum("relu.0" in line for line in lines) == 2
    assert "   by relu.0 (above)" in lines


def change(seconds: tuple[float, float], measured: tuple[float, float] | None, count: int = 1) -> Explanation:
    return Explanation(ReportedChange(("relu.0",), RELU, RELU, ("a",) * count), seconds, measured)


def test_what_was_measured_counts_before_what_was_predicted() -> None:
    """A change that is predicted to win most and wins little does not lead."""
    small = change((9e-6, 1e-6), (6.8e-6, 6.5e-6), 7)
    large = change((5e-6, 4e-6), (61e-6, 46e-6), 7)
    assert small.gain == pytest.approx(7 * 0.3e-6)
    assert large.gain == pytest.approx(7 * 15e-6)
    assert "98% of the changes' gains" in html.most_of_it([small, large])
    assert "together" not in html.most_of_it([small, large])


def test_the_first_sentence_says_what_else_a_gain_belongs_to() -> None:
    head = replace(change((9e-6, 1e-6), None), within=(9e-6, 1e-6))
    parts = [replace(change((2e-6, 1e-6), None), part_of=head.change) for _ in range(2)]
    assert "in one place, together with another change of the same terms." in html.most_of_it([head, *parts[:1]])
    assert "in one place, together with 2 other changes of the same terms." in html.most_of_it([head, *parts])


def test_statements_name_their_evidence(mini: Result) -> None:
    assert "op_specs/activations.py" in statement("relu.0", mini).evidence
    assert "computed in advance" in statement(FOLDING, mini).evidence
    generated = next(r for r in rules() if r.evidence == "library" and r.reverse() is not None)
    assert "typings" in statement(generated.name, mini).evidence
    backward = statement(f"{generated.name}~", mini)
    assert backward.text == " == ".join(reversed(statement(generated.name, mini).text.split(" == ")))
    assert "right to left" in backward.evidence
    assert statement("no.such.equation", mini).text == ""


def test_a_change_is_measured_at_the_sizes_of_the_model() -> None:
    a, n = x(symbol("n"), 3, name="x1"), weight("w1", Tensor("float32", (3, 3)))
    workloads = (({"n": 4}, 0.5), ({"n": 8}, 0.5))
    term_cost = Weighted(Context({"": 20}, {}), workloads, CostCache(None))

    def measured(before: Graph, after: Graph) -> tuple[float, float] | None:
        return measured_seconds(ReportedChange(("e",), before, after, ("",)), term_cost, workloads)

    product = term("matmul", a, n)
    found = measured(Graph((a,), (term("relu", term("relu", product)),)), Graph((a,), (term("relu", product),)))
    assert found is not None
    assert min(found) > 0
    assert measured(Graph((a,), (term("neg", term("neg", a)),)), Graph((a,), (a,))) is not None
    ahead = Graph((), (term("concat", n, n, axis=0),))
    assert measured(ahead, ahead) is None
    text, unknown, large = variable("s", Tensor("string", (1,))), x(symbol("m"), 3), x(1 << 30, 3)
    for operand in (text, unknown, large):
        side = Graph((operand,), (term("identity", operand),))
        assert measured(side, side) is None


# ---------------------------------------------------------------- the page


def test_the_page_has_everything_and_needs_nothing(written: tuple[dict[str, Any], Path]) -> None:
    found, path = written
    content = path.read_text()
    page = Page(content)
    text = " ".join(" ".join(page.text).split())
    assert not re.search(r"https?:|@import|url\((?!#arrow)", content)
    assert content.count('<details class="fold change"') == len(found["changes"])
    assert page.tags.count("figure") >= 2 * len(found["changes"]) + 2
    for section in ("Time", "Changes", "The model", "Roofline", "Equations", "Operators", "Check", "Search"):
        assert f"<h2>{section}</h2>" in content
    assert "<h2>Reproduce</h2>" in content
    assert "its peaks are not known" in text
    for name in found["equations"]:
        assert name in text
    for row in found["check"]:
        assert row["case"] in text
        assert f"{row['bound']:.3g}" in text
    assert f"taso-mirage optimize {MINI}" in text
    assert "onnxruntime" in text
    assert found["changes"][0]["places"][0] in text
    for equation in found["changes"][0]["equations"]:
        assert " ".join(equation["equation"].split()) in text
        assert equation["evidence"] in text


def test_the_search_is_reported(mini: Result, capsys: pytest.CaptureFixture[str]) -> None:
    a = x(2, 3)
    small = model((a,), (term("relu", term("relu", term("tanh", a))),))
    exact = optimize_model(small, Config(budget=60, measure=False, strategy="saturate"))
    assert exact.statistics.ended == {"saturated": 1}
    statistics = replace(exact.statistics, ended={"saturated": 2, "time": 1}, gaps=(0.0, 0.25, 0.0))
    saturated = replace(exact, statistics=statistics)
    expected = {"parts": 3, "exact": 2, "gap": 0.25}
    data = [result_data(r, Path("m.onnx"), [])["search"] for r in (exact, saturated, mini)]
    assert [d["extraction"] for d in data] == [{"parts": 1, "exact": 1, "gap": 0.0}, expected, None]
    assert data[1]["ended"] == {"saturated": 2, "time": 1}
    assert sum(data[2]["ended"].values()) == data[2]["distinct_parts"]
    text = "optimal in 2 of 3 subgraphs, elsewhere at most 25.0% could be saved"
    assert f"<td>{text}</td>" in html.page(saturated, [], Path("m.onnx"), [], ["taso-mirage"], {})
    for each, words in ((saturated, ("e-nodes", "saturated (2), time (1)", text)), (mini, ("states", "matches"))):
        summary.show(each, Path("m.onnx"), [])
        printed = " ".join(capsys.readouterr().out.split())
        assert all(word in printed for word in words)


def test_names_from_a_model_are_escaped(tmp_path: Path) -> None:
    evil = "<script>alert('1')</script>&\""
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["<b>", 8]) for n in (evil, f"{evil}y")]
    nodes = [helper.make_node("Relu", [evil], [f"{evil}a"]), helper.make_node("Relu", [f"{evil}a"], [f"{evil}y"])]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:])
    path = tmp_path / "a<i>&.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    run("optimize", path, "-o", tmp_path / "o.onnx", "--no-measure", "--report", tmp_path / "o.html")
    content = (tmp_path / "o.html").read_text()
    page = Page(content)
    assert {"b", "i"}.isdisjoint(page.tags)
    assert page.tags.count("script") == 3
    assert f"{evil}y" in "".join(page.text)


def test_a_kept_model_has_a_page_too(mini: Result) -> None:
    kept = replace(mini, steps=(), changed=False, model=mini.original, differences=(), kept="no equation <applies>")
    content = html.page(kept, [], Path("m.onnx"), [], ["taso-mirage"], {})
    assert "kept as it was" in "".join(Page(content).text)
    assert "no equation &lt;applies&gt;" in content


def many(count: int) -> list[Explanation]:
    """Distinct changes, the last one too large to be drawn."""
    made = []
    for i in range(1, count + 1):
        a = x(i, 3, name="x1")
        old = term("relu", a)
        for _ in range(html.DRAWN if i == count else 3):
            old = term("tanh", old)
        change = ReportedChange((f"law.{i}",), Graph((a,), (old,)), Graph((a,), (term("relu", a),)), tuple("abc") * 50)
        made.append(Explanation(change, (1e-3, 1e-4), None))
    return made


def test_three_hundred_changes_are_folded_and_capped(mini: Result) -> None:
    content = html.page(replace(mini, times=None), many(300), Path("m.onnx"), [], ["taso-mirage"], {})
    page = Page(content)
    assert page.tags.count("details") == 300
    assert len(re.findall(r'<details class="fold change" id="change-\d+" open>', content)) == html.OPEN
    assert page.tags.count("svg") == 2 * 300 - 1 + 3  # all but one are drawn; the arrow and the two bars
    assert "and 138 more" in content
    assert len(content) < 3_000_000


def test_the_report_is_refused_before_the_work(tmp_path: Path) -> None:
    report = tmp_path / "no" / "o.html"
    assert "does not exist" in one_line(run("optimize", MINI, "-o", tmp_path / "o.onnx", "--report", report, check=4))
    assert list(tmp_path.iterdir()) == []


def test_graphs_are_drawn_for_a_page() -> None:
    a = variable("<x>", Tensor("float32", (2, 3)))
    drawing = draw_graph(Graph((a,), (term("add", term("relu", a), w(3)),)))
    text = render_template("graph.svg", drawing=drawing, label='the "label"')
    assert "xmlns" not in text
    assert "<marker" not in text
    assert "&lt;x&gt; [2, 3]" in text
    assert "w [3]" in text
    assert 'aria-label="the &#34;label&#34;"' in text
    for kind in ("operator", "operand", "weight", "output"):
        assert f'class="{kind}"' in text


# ---------------------------------------------------------------- a browser


@pytest.mark.sampled(3)
@needs_browser
def test_the_page_in_a_browser(written: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    done = chromium(written[1], tmp_path, "--dump-dom", f"--screenshot={tmp_path / 'shot.png'}")
    assert "<h2>Reproduce</h2>" in done.stdout
    assert "CONSOLE" not in done.stderr
    shot = (tmp_path / "shot.png").read_bytes()
    assert values_of(shot) > 100


@pytest.mark.sampled(3)
@needs_browser
def test_a_browser_would_complain(written: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    """The test above relies on this: an error of the page is printed, the page allows no script,
    and a blank picture is seen."""
    bad = tmp_path / "bad.html"
    bad.write_text(written[1].read_text().replace("<main>", "<script>document.title = 'owned'</script><main hidden>"))
    done = chromium(bad, tmp_path, "--dump-dom", f"--screenshot={tmp_path / 'shot.png'}")
    assert "CONSOLE" in done.stderr
    assert "<title>owned" not in done.stdout
    assert values_of((tmp_path / "shot.png").read_bytes()) < 20


def values_of(png: bytes) -> int:
    """How many different bytes the rows of a picture have (as they are filtered: rows of one colour
    are zeros)."""
    data, at = b"", 8
    while at < len(png):
        length = int.from_bytes(png[at : at + 4], "big")
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + length]
        at += 12 + length
    return len(set(zlib.decompress(data)))


def test_after_an_interrupt_no_change_is_measured_alone(mini: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(change: object, *_: object) -> tuple[float, float]:
        heard.append(change)
        return 2.0, 1.0

    heard: list[object] = []
    monkeypatch.setattr(explanations, "measured_seconds", asked)
    monkeypatch.setattr(stages, "profile", lambda *_: None)
    config = Config(budget=5, seconds=0.1, explain=True)
    with measuring(config) as cache:
        for pressed in (False, True):
            heard.clear()
            stop = Stop()
            if pressed:
                stop()
            done = stages.explain(Job(config, quiet, stop, cache), mini)
            assert len(done.explanations) > 5
            assert bool(heard) is not pressed
