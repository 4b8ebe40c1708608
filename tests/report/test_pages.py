"""Names in pages and pictures are text, whatever they are.

The tests try every place where a name enters, and read the templates themselves.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from htmlpage import Page
from jinja2 import UndefinedError
from sources import PACKAGE, imports, modules

from taso_mirage.cli import kernels as kernels_command
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.model import Model, StoredWeight
from taso_mirage.ir.terms import Graph, Node, Tensor, variable, weight
from taso_mirage.measure.check import Difference
from taso_mirage.measure.timing import Timing
from taso_mirage.onnx_io import from_ir, to_ir
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import optimize_model
from taso_mirage.regions.kernel_regions import KernelRegion
from taso_mirage.regions.survey import Surveyed
from taso_mirage.report import html
from taso_mirage.report.changes import Explanation, ReportedChange
from taso_mirage.report.drawing import draw, draw_graph
from taso_mirage.report.explanations import StatedEquation
from taso_mirage.report.pages import render_template
from taso_mirage.report.result import MeasuredPeaks, OperatorTimes, Result
from taso_mirage.rewriting.library import load_rules
from taso_mirage.rewriting.text import show_graph
from taso_mirage.search.config import Config

TEMPLATES = sorted((PACKAGE / "report" / "templates").iterdir())


def evil(place: str) -> str:
    """A name that closes its surroundings, opens a script, and is a template itself."""
    closing = "".join(f"</{tag}>" for tag in ("title", "style", "pre", "text", "svg", "td"))
    return f"""{closing}<script>{place}</script>'"><img src=x onerror='{place}'>{{{{ 7 * 7 }}}}{{% raw %}}&lt;\udcff"""


def named(place: str) -> str:
    """One for a file: no `/` in it."""
    return evil(place).replace("/", "\\")


def graph(place: str, operators: int = 1) -> Graph:
    """A graph with hostile names of its input, its weight, a dim and an opaque node, and more
    operators."""
    x = variable(evil(f"input of {place}"), Tensor("float32", (symbol(evil(f"dim of {place}")), 3)))
    made = term("add", x, weight(evil(f"weight of {place}"), Tensor("float32", (3,))))
    call = (("call", evil(f"node of {place}")),)
    made = Node("opaque", (made,), call, lambda: Tensor("float32", (2, 3)))
    for _ in range(operators):
        made = term("tanh", made)
    return Graph((x,), (made,))


def drawn(place: str) -> list[str]:
    return [f"{name} of {place}" for name in ("input", "dim", "weight", "node")]


CHANGE = ReportedChange((evil("equation"),), graph("before"), graph("after"), (evil("place"),))
LARGE = replace(CHANGE, before=graph("large", html.DRAWN))
EXPLAINED = [
    Explanation(CHANGE, (3e-6, 1e-6), (2e-6, 1e-6), evil("ground")),
    Explanation(LARGE, (3e-6, 1e-6), None),
]


def stated(name: str, result: Result) -> StatedEquation:
    return StatedEquation(name, evil("text"), evil("guard"), evil("evidence"), evil("region"))


@pytest.fixture(scope="module")
def plain() -> Result:
    x = variable("x", Tensor("float32", (2, 3)))
    relu = term("relu", term("relu", term("add", x, weight("w", Tensor("float32", (3,))))))
    weights = {"w": StoredWeight(np.ones(3, np.float32))}
    small: Model = from_ir(to_ir(standalone(Graph((x,), (relu,)), {"": 20}, weights)))
    return optimize_model(small, Config(budget=1, measure=False))


@pytest.fixture
def hostile(plain: Result, monkeypatch: pytest.MonkeyPatch) -> Result:
    """A result with an evil name wherever a model, a rule or a file gives one."""
    monkeypatch.setattr(html, "statement", stated)
    times = Timing(2.0, 1.0, 2.0, 1.9, 2.1, 9)
    names = {node: evil("value") for node in plain.original.graph if node.args}
    return replace(
        plain,
        original=replace(plain.original, sizes={evil("size"): 3}, names=names),
        times=OperatorTimes(dict.fromkeys(names, 1e-6), {}, MeasuredPeaks(1e9, 1e9, evil("dtype"))),
        timing=replace(times, each=(times, times)),
        workloads=(({evil("set 1"): 1}, 0.5), ({evil("set 2"): 2}, 0.5)),
        remarks=(evil("remark"),),
        kept=evil("kept"),
        differences=(Difference(evil("case"), evil("output"), 0.0, 0.0, 1.0),),
        statistics=replace(plain.statistics, ended={evil("ended"): 1}),
        seconds={evil("stage"): 1.0},
    )


SAID = [
    "equation",
    "place",
    "ground",
    "text",
    "guard",
    "evidence",
    "region",
    "size",
    "set 1",
    "set 2",
    "remark",
    "kept",
    "value",
]
SAID += ["case", "output", "ended", "stage", "option", "package", "version", *drawn("before"), *drawn("after")]


def test_every_name_on_the_page_is_text(hostile: Result) -> None:
    source, written = Path(named("source")), Path(named("written"))
    command, used = ["taso-mirage", evil("option")], {evil("package"): evil("version")}
    content = html.page(hostile, EXPLAINED, source, [written], command, used)
    page = Page(content)
    assert "img" not in page.tags
    assert page.tags.count("script") == 3
    text = "".join(page.text)
    assert [place for place in SAID if evil(place) not in text.replace("'\"'\"'", "'")] == []  # a shell's quotes
    assert text.count(named("source")) == 2  # the title and the heading
    assert str(written) in text
    assert show_graph(LARGE.before) in text
    content.encode(errors="replace")


def test_every_name_on_the_page_of_kernels_is_text() -> None:
    region = KernelRegion(graph("before"), ((evil("place"),),), 1, 1, 1)
    each = Surveyed(region, None, evil("problem"), 1.0, 1.0, {})
    found = SimpleNamespace(
        graph=graph("after"), evidence=SimpleNamespace(tests=1, measured=()), seconds=0.5, device="d"
    )
    fused: Any = replace(each, found=found)  # type: ignore[arg-type]
    sizes, programs = {evil("size"): 1}, {1: evil("program")}
    page = Page(kernels_command._page(Path(named("source")), sizes, [each, fused], programs))
    assert not {"script", "img"} & set(page.tags)
    text = "".join(page.text)
    said = ["place", "problem", "size", "program", *drawn("before")]
    assert [place for place in said if evil(place) not in text] == []
    assert text.count(named("source")) == 2
    assert show_graph(graph("after")) in text


def test_the_label_of_a_drawing_is_an_attribute() -> None:
    page = Page(render_template("graph.svg", drawing=draw_graph(graph("before")), label=evil("label")))
    assert set(page.tags) == {"svg", "rect", "g", "path", "text"}


def test_a_rule_with_an_evil_name_is_one_picture() -> None:
    rule = replace(next(iter(load_rules())), name=evil("rule").replace("\udcff", ""))
    root = ET.fromstring(draw(rule))
    assert rule.name in [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]


NUMBERS = (
    r"--natural:\{\{ \"%\.0f\" % width \}\}px",
    r"#equation-\{\{ anchors\[name\] \}\}",
    r"#change-\{\{ number \}\}",
    r"#section-\{\{ (i|part\.section|row\.number) \}\}",
    r"#change-\{\{ each\.part_of \}\}",
    r"\{\{ row\.link \}\}",
)
"""The only values in a style and in an address; a link is quoted."""
SEARCH = re.escape(
    """<script type="application/json" id="nodes">{{ nodes | tojson }}</script>
<script type="application/json" id="runs">{{ runs | tojson }}</script>
<script>{% include "search.js" %}{% include "graph.js" %}{% include "export.js" %}</script>{% endblock %}"""
)
"""The only script, whose digest is in the policy of the page, and its data, which `tojson`
escapes."""
FORBIDDEN = {
    "marks a value as safe": r"\bsafe\b|autoescape|Markup",
    "has a script": r"<script|\bon\w+=",
    "has a value as an attribute without quotes": r"=\s*\{\{",
    "has a value in a style or an address": r"""\b(style|href|src)=["'][^"']*\{\{|<style>(?!\n\{% include "page.css" %\}\n</style>)""",
}


@pytest.mark.lint("taso_mirage", "tests/repository/test_architecture.py")
@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_templates_leave_nothing_unescaped(template: Path) -> None:
    """Values stand in text or in attributes with quotes, where escaping is enough."""
    text = re.sub("|".join((r"(?s:\{#.*?#\})", SEARCH, *NUMBERS)), "", template.read_text())
    assert [what for what, pattern in FORBIDDEN.items() if re.search(pattern, text)] == []
    assert template.suffix not in (".css", ".js") or not re.search(r"\{[{%#]", text)


@pytest.mark.lint("taso_mirage", "tests/repository/test_architecture.py")
def test_no_module_writes_html_or_marks_a_text_as_safe() -> None:
    for name, file in modules().items():
        assert not imports(file) & {"html", "markupsafe"}, name
        source = file.read_text()
        assert not re.search(r"</\w+>|\bMarkup\b|<(?:p|li|td|pre|svg|path)\b", source), name


def test_a_value_that_is_missing_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="'title' is undefined"):
        render_template("kernels.html")
