"""The Python API as type checkers and interactive users see it."""

from __future__ import annotations

import ast
import typing
from pathlib import Path

import pytest
from mypy import api as mypy

import taso_mirage
from taso_mirage.optimize_options import Options
from taso_mirage.option_types import ModuleOptions, OptimizeOptions
from tests.harness.onnx_texts import built

PACKAGE = Path(taso_mirage.__file__).parent

CALLS = """
import onnx
import taso_mirage

model = onnx.ModelProto()
faster: onnx.ModelProto = taso_mirage.optimize(model, budget=5, effort="quick")
path: str = taso_mirage.optimize("model.onnx", kernels="off")
both, result = taso_mirage.optimize(model, return_result=True)
changed: bool = result.changed
taso_mirage.optimize(model, bugdet=5)
taso_mirage.optimize(model, effort="fast")
taso_mirage.optimize(model, budget="5")
"""
"""The last three have a misspelled option, an unknown effort, and a text as a number."""


def test_every_option_has_a_type() -> None:
    assert set(OptimizeOptions.__annotations__) == set(Options.__dataclass_fields__)
    assert set(ModuleOptions.__annotations__) > set(OptimizeOptions.__annotations__)


def test_every_option_is_described() -> None:
    tree = ast.parse((PACKAGE / "option_types.py").read_text())
    for each in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        own = [
            node.target.id
            for node in each.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        ]
        said = [
            before.target.id
            for before, after in zip(each.body, each.body[1:], strict=False)
            if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name) and isinstance(after, ast.Expr)
        ]
        assert said == own


@pytest.mark.slow
def test_a_type_checker_sees_the_types(tmp_path: Path) -> None:
    (tmp_path / "calls.py").write_text(CALLS)
    said, errors, _ = mypy.run(
        ["--strict", "--no-error-summary", "--cache-dir", str(tmp_path), str(tmp_path / "calls.py")]
    )
    assert not errors
    wrong = {int(line.split(":")[1]) for line in said.splitlines() if ": error:" in line}
    assert wrong == {10, 11, 12}, said


def test_names_are_listed_without_imports() -> None:
    assert dir(taso_mirage) == sorted([*taso_mirage.__all__, "__version__"])
    assert (PACKAGE / "py.typed").exists()
    assert typing.get_overloads(taso_mirage.optimize)


def test_a_result_is_shown_in_one_line_and_in_a_notebook_as_a_table() -> None:
    model = built("(float[4] x) => (float[4] y) { a = Identity (x) y = Relu (a) }", {})
    _, result = taso_mirage.optimize(model, effort="quick", return_result=True)
    shown = repr(result)
    assert shown.startswith("<Result: ")
    assert len(shown) < 200
    page = result._repr_html_()
    assert page.startswith("<table>")
    assert f"{result.terms_before} to {result.terms_after}" in page
    assert "<Result" not in page
