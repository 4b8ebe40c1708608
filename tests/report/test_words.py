"""The texts that users read: plain words, and nothing that looks like a gain where there is
none."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from htmlpage import Page
from sources import nodes

from taso_mirage.errors import CheckFailed
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.terms import Graph, Tensor, variable
from taso_mirage.measure.timing import Timing
from taso_mirage.onnx_io import load, save
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term
from taso_mirage.operators.work import count
from taso_mirage.pipeline import optimize_model
from taso_mirage.pipeline.fuse.stage import _Stage
from taso_mirage.report import html, summary
from taso_mirage.report.data import result_data
from taso_mirage.report.inspection import inspection, show_inspection
from taso_mirage.report.result import PlacedKernels, Result
from taso_mirage.search.config import Config
from taso_mirage.search.mutations import Mutations
from taso_mirage.search.search import Budget, SearchStatistics, _limit

HOME = Path(__file__).parents[2]
CODE = ("taso_mirage", "op_specs", "bench", "models", "tests")
LEANS = re.compile(
    r"(Of|Those|These|That|The same|It|Its|What|Whatever|As|Both|Which|Whose|Who|Whether the same|They|Their|Them|Such"
    r"|Also|Else|So|And|But|Or|Nor|Neither|There|Others)\b"
)
"""Beginnings of a docstring that a reader understands only beside the code or another docstring."""
FASTER, SLOWER = Timing(1.07, 1.0, 1.07, 1.06, 1.08, 40), Timing(1.0, 1.25, 0.8, 0.7, 0.9, 40)


@pytest.fixture(scope="module")
def result(layer: Path) -> Result:
    found = optimize_model(load(layer), Config(budget=5, measure=False))
    return replace(found, timing=FASTER)


def first_fact(result: Result) -> tuple[str, str]:
    """How the page's first fact looks, and its text."""
    content = html.page(result, [], Path("m.onnx"), [], ["taso-mirage"], {})
    Page(content)
    (found,) = re.findall(r'<p class="headline (\w+)">([^<]*)</p>', content)
    return found[0], found[1]


def test_only_a_gain_that_passed_the_check_is_green(result: Result) -> None:
    failed = replace(result, failure=CheckFailed("the check failed"))
    kept = replace(failed, steps=(), changed=False, model=result.original, timing=None)
    assert first_fact(result) == ("won", "The model is 1.07 times as fast: 1 s instead of 1.07 s, measured on cpu.")
    look, said = first_fact(failed)
    assert look == "failed"
    assert (
        said
        == "The check failed: a rewrite was left out; the rest is 1.07 times as fast: 1 s instead of 1.07 s, measured on cpu."
    )
    assert first_fact(kept) == ("failed", "The check failed: the original is kept.")
    assert first_fact(replace(kept, failure=None))[0] == "kept"
    assert first_fact(replace(result, timing=SLOWER))[0] == "kept"
    style = (HOME / "taso_mirage" / "report" / "templates" / "page.css").read_text()
    assert re.findall(r"[^{}]*headline\.\w+ \{[^}]*\}", style) == [
        "\n.headline.won { color: var(--after); }",
        " .headline.failed { color: var(--failed); }",
    ]
    for each, bar in ((result, "after"), (failed, "failed")):
        assert f'<rect class="{bar}"' in html.page(each, [], Path("m.onnx"), [], ["taso-mirage"], {})


def test_the_table_and_the_data_say_that_the_check_failed(result: Result, capsys: pytest.CaptureFixture[str]) -> None:
    failed = replace(result, failure=CheckFailed("the check failed"))
    for each, head in ((result, "optimized"), (failed, "without the failed rewrite")):
        summary.show(each, Path("m.onnx"), [])
        assert head in capsys.readouterr().out
    assert result_data(failed, Path("m.onnx"), [])["failure"] == "the check failed"
    assert result_data(result, Path("m.onnx"), [])["failure"] is None


def test_the_line_of_the_search_is_plain(result: Result, capsys: pytest.CaptureFixture[str]) -> None:
    why = _limit(Budget(60, patience=0), None, 5, 1)
    statistics = SearchStatistics(3, 2, 7, 9, {why: 2})
    looked = Mutations(programs=7, mutants=12, seconds=1.5)
    summary.show(replace(result, statistics=statistics, mutations=looked), Path("m.onnx"), [])
    printed = " ".join(capsys.readouterr().out.split())
    assert "search: 3 subgraphs (2 distinct), 7 states explored, 9 matches in " in printed
    assert "ended by: no recent improvement (2)" in printed
    assert "mutants: 12 tried for 7 costly programs, 0 faster alone, 1.50 s" in printed


def test_a_kernels_gain_says_against_what() -> None:
    assert str(PlacedKernels(((("softmax", "mul"), 2),), 1.147)) == (
        "kernel for softmax mul in 2 places: the whole model is 1.147 times as fast with it as without it"
    )


@pytest.mark.parametrize(
    ("kinds", "ended", "said"),
    [
        (0, "", "no kernels: no region of the model can be fused"),
        (1, "", "no kernels: one region of the model can be fused, but none makes the model measurably faster"),
        (
            4,
            "",
            "no kernels: 4 different regions of the model can be fused, but none makes the model measurably faster",
        ),
        (4, "the time was over", "no kernels: the time was over"),
    ],
)
def test_why_there_is_no_kernel(kinds: int, ended: str, said: str) -> None:
    stage: Any = SimpleNamespace(kinds=SimpleNamespace(places=dict.fromkeys(range(kinds))), ended=ended)
    assert _Stage._none(stage) == said


def test_nothing_moves_fewer_bytes_than_none(capsys: pytest.CaptureFixture[str]) -> None:
    """At sizes on which a model does not run, a dim that it computes may be below 0."""
    assert count(Tensor("float32", (4, -2, 3))) == 0
    x = variable("x", Tensor("float32", (symbol("n") - 9, 4)))
    y = term("relu", x)
    model = standalone(Graph((x,), (y,)), {"": 17})
    sizes = {"n": 8, **{f"d_{i}": 8 for i in range(20)}}
    found = inspection(model, sizes)
    assert found["operators"]["relu"] == {"count": 1, "flops": 0, "bytes": 0}
    show_inspection(found, Path("m.onnx"))
    assert "n=8, d_0=8" in (printed := capsys.readouterr().out)
    assert "and 13 more" in printed
    assert "d_19" not in printed


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        (0.0, "the time was over before the search had seen any graph (budget gives more)"),
        (5.0, "no equation applies"),
    ],
)
def test_a_search_that_saw_nothing_does_not_say_that_nothing_applies(budget: float, said: str, tmp_path: Path) -> None:
    x = variable("x", Tensor("float32", (4, 8)))
    save(standalone(Graph((x,), (term("softmax", x, axis=1),)), {"": 20}), tmp_path / "m.onnx")
    found = optimize_model(load(tmp_path / "m.onnx"), Config(budget=budget, measure=False))
    assert found.kept == f"{said}: the original's graph is kept"


def leaning(found: Iterable[ast.AST]) -> list[tuple[int, str]]:
    """The docstrings, those of values included, that begin without their subject: line and text."""
    statements = (n for n in found if isinstance(n, ast.Expr))
    texts = ((n.lineno, n.value.value) for n in statements if isinstance(n.value, ast.Constant))
    return sorted((line, text.strip()) for line, text in texts if isinstance(text, str) and LEANS.match(text.strip()))


def python_files() -> list[Path]:
    return [file for folder in CODE for file in sorted((HOME / folder).rglob("*.py"))]


@pytest.mark.lint(*CODE)
def test_results_depend_on_operands() -> None:
    riddle = re.compile("hangs? " + "on")
    assert [str(file) for file in python_files() if riddle.search(file.read_text())] == []


@pytest.mark.lint(*CODE)
def test_a_docstring_begins_with_its_subject() -> None:
    files = python_files()
    wrong = [f"{file.relative_to(HOME)}:{line}: {text[:60]}" for file in files for line, text in leaning(nodes(file))]
    assert wrong == []


@pytest.mark.parametrize("text", ["What it costs.", "The same for a GPU.", "Of a block.", "Its height."])
def test_a_docstring_without_a_subject_is_found(text: str) -> None:
    source = f'def f():\n    """{text}"""\n\n\nX = 1\n"""{text}"""\n'
    assert leaning(ast.walk(ast.parse(source))) == [(2, text), (6, text)]
    assert leaning(ast.walk(ast.parse('"""The costs of a block."""\n'))) == []
