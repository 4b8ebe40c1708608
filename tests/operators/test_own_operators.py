"""Operator files of the user's own folders (`TASO_MIRAGE_OPERATORS`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from taso_mirage.errors import InvalidOption
from taso_mirage.operators.additions import FOLDERS, add_from_folders, operator_files
from taso_mirage.operators.ops import load_specs
from taso_mirage.prove.rules.proofs import prover_files

GOOD = """
from taso_mirage.operators.ops import op

@op(onnx="Frob", since=1)
def frob(xp, x):
    "x -> max(x, 0)"
    return xp.maximum(x, xp.literal(0, x))

frob.laws("frob(frob(x)) == frob(x)")
"""
ASKED = """
from taso_mirage.operators.ops import get, load_specs
from taso_mirage.rewriting.text import laws
load_specs()
print(get("frob").onnx, [each.name for each in laws() if each.name.startswith("frob.")])
"""


def asked(folders: str) -> subprocess.CompletedProcess[str]:
    """The operator `frob` and its laws, in a process of its own: operators are loaded once."""
    command = [sys.executable, "-P", "-c", ASKED]
    return subprocess.run(command, env=os.environ | {FOLDERS: folders}, capture_output=True, text=True, timeout=600)


def test_an_operator_of_an_own_folder_is_one_of_all(tmp_path: Path) -> None:
    for name, text in (("first", GOOD), ("second", 'from op_specs.first import frob\nfrob.example("float32[2,3]")')):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.py").write_text(text)
    done = asked(os.pathsep.join((str(tmp_path / "first"), str(tmp_path / "second"))))
    assert done.stdout == "Frob ['frob.0']\n", done.stderr


def test_no_operator_is_changed(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from op_specs.arithmetic import add, sub\nadd.body = sub.body\n")
    said = asked(str(tmp_path)).stderr.splitlines()[-1]
    assert said.startswith("taso_mirage.errors.InvalidOption: ")
    assert said.endswith("mine.py changes the operator add, which is not its own; give it another name")


def test_a_file_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_specs()
    monkeypatch.setenv(FOLDERS, str(tmp_path))
    assert operator_files() == []
    (tmp_path / "broken_here.py").write_text("1 / 0")
    for _ in range(2):
        with pytest.raises(InvalidOption, match=r"broken_here\.py: ZeroDivisionError: division by zero"):
            add_from_folders({})
    assert tmp_path / "broken_here.py" in prover_files()  # a proof depends on it
    (tmp_path / "broken_here.py").rename(tmp_path / "conv.py")
    with pytest.raises(InvalidOption, match=r"there is another file conv\.py of operators; rename it"):
        add_from_folders({})
    monkeypatch.setenv(FOLDERS, str(tmp_path / "none"))
    with pytest.raises(InvalidOption, match="which is no folder"):
        operator_files()
