"""Messages name options as their caller writes them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from taso_mirage import api
from taso_mirage.system.wording import for_command_line, option

PACKAGE = Path(api.__file__).parent
NAMES = "|".join(name.replace("_", "-") for name in api.Options.__dataclass_fields__)
WRITTEN = re.compile(rf"--(no-)?({NAMES})\b")
APART = {"cli": "prints for the command line alone", "generate": "is reached by the command line alone"}


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """All texts of a module but its docstrings and statements of text alone."""
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.lineno, node.value


@pytest.mark.lint("taso_mirage")
def test_no_message_writes_an_option_of_optimize_itself() -> None:
    """`system.wording.option` does, so that errors in Python name Python's options; whole commands
    stand in backticks, or begin with `python -m`."""
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {text}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in APART
        for line, text in texts(ast.parse(path.read_text()))
        if WRITTEN.search(re.sub(r"`[^`]*`|^python -m .*", "", text))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("given", "python", "command"),
    [
        (("run_limit",), "run_limit", "--run-limit"),
        (("target", "gpu"), 'target="gpu"', "--target gpu"),
        (("output", Path("a/b.onnx")), 'output="a/b.onnx"', "--output a/b.onnx"),
        (("may_grow", True), "may_grow=True", "--may-grow"),
        (("measure", False), "measure=False", "--no-measure"),
        (("budget", -1), "budget=-1", "--budget -1"),
        (("rules", None), "rules=None", "--rules None"),
        (("effort", 'a"b'), "effort='a\"b'", '--effort a"b'),
        (("effort", "it's\n\u202e"), 'effort="it\'s\\n\\u202e"', "--effort it's\n\u202e"),
    ],
)
def test_an_option_is_written_for_its_caller(given: tuple[str, object], python: str, command: str) -> None:
    assert option(*given) == python
    with for_command_line():
        assert option(*given) == command
    assert option(*given) == python
