"""Forms are found by their files alone: no other module names one, and each has the parts that the
search, the code generators and the model need."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from operator_uses import build
from sources import nodes

from taso_mirage.emit.gpu.forms import GpuProgram, bound_names, gpu_programs, own_names, reserved_names
from taso_mirage.forms.base.form import CPU_GOALS, GPU_GOALS, Form, form_of, known_forms
from taso_mirage.operators.ops import load_specs

PACKAGE = Path(__file__).parents[2] / "taso_mirage"
FOLDER = PACKAGE / "forms"
NAMED = {"kernel", "scan"}
"""The operator of searched kernels, and that of loops as models have them, which other modules
name."""


def test_every_file_has_one_form() -> None:
    files = [file for file in FOLDER.glob("*.py") if file.stem != "__init__"]
    operators = [form.program.op for form in known_forms()]
    assert len(operators) == len(files)
    assert len(set(operators)) == len(operators)
    assert set(operators) <= load_specs().keys()
    assert {*CPU_GOALS.forms, *GPU_GOALS.forms} == {*known_forms()}


def strings(file: Path) -> set[str]:
    """The strings of a module that are no docstrings."""
    texts = [node for node in nodes(file) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    shown = {id(n.value) for n in nodes(file) if isinstance(n, ast.Expr)}
    return {str(node.value) for node in texts if id(node) not in shown}


@pytest.mark.lint("taso_mirage")
def test_no_other_module_names_a_form() -> None:
    names = {form.program.op for form in known_forms()} - NAMED
    others = [file for file in PACKAGE.rglob("*.py") if file.parent != FOLDER]
    named = {file.name: found for file in others if (found := names & strings(file))}
    assert named == {}
    importing = [file.name for file in others if re.search(r"taso_mirage\.forms\.(?!base\b)", file.read_text())]
    assert importing == []


def test_names_that_helpers_bind_are_reserved() -> None:
    programs = gpu_programs().values()
    helpers = [text for each in programs for text in each.helpers]
    assert len(helpers) > 3
    assert all(bound_names(text) for text in helpers)
    assert set().union(*map(bound_names, helpers)) <= reserved_names()


def test_names_are_those_of_functions_parameters_and_values() -> None:
    source = "import a as b\nC = 1\n\ndef f(x, y=1):\n    for i in range(x):\n        z = g.load(x, mask=y)\n"
    assert bound_names(source) == {"b", "C", "f"}
    assert own_names(source) == {"C", "f", "x", "y", "i", "range", "z", "g"}


@pytest.mark.parametrize(
    "form", [form for form in GPU_GOALS.forms if form.terms is not None], ids=lambda f: f.program.op
)
def test_terms_that_a_model_gets_can_be_written_back(form: Form) -> None:
    """A form that replaces operators of a model keeps them for the regions that get no kernel."""
    assert isinstance(form.program, GpuProgram)
    example = build(load_specs()[form.program.op], 0).term
    assert form_of(example) is form
    back = form.operators(example)
    assert back.type == example.type
    assert back.op != form.program.op
