"""The notebooks of docs/notebooks run from the first cell to the last, and print what is stored in
them, but for numbers.

    python -m tests.repository.test_notebooks [NAME ...]

stores the outputs anew.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "docs" / "notebooks"
NEEDS = {"onnx": "onnx", "kernels": "numpy", "pytorch": "torch"}
"""The package that each notebook needs beside those of taso_mirage."""
DAYS = {"onnx": 2, "pytorch": 5}
"""The notebooks that take more than a few seconds run on one of so many days."""
NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]\d+)?")


def cases() -> list[object]:
    marks = {name: [pytest.mark.sampled(days)] for name, days in DAYS.items()}
    return [pytest.param(name, marks=marks.get(name, [])) for name in NEEDS]


def test_there_is_one_for_each_way_in() -> None:
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == set(NEEDS)


def needed(name: str) -> Any:
    """A package of the extra `dev` or `torch`. Where the variable CI is set, none is missing."""
    return importlib.import_module(name) if os.environ.get("CI") else pytest.importorskip(name)


def executed(name: str, folder: Path) -> tuple[Any, Any]:
    """A notebook as it is stored, and after a run in a folder."""
    nbformat, nbclient, _ = (needed(each) for each in ("nbformat", "nbclient", "ipykernel"))
    stored = nbformat.read(NOTEBOOKS / f"{name}.ipynb", 4)
    nbformat.validate(stored)
    ran = nbformat.from_dict(stored)
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(ran, timeout=600, coalesce_streams=True, resources=resources).execute()
    return stored, ran


def printed(cell: Any) -> list[tuple[str, str]]:
    """The kinds of a cell's outputs, and their printed texts without numbers."""
    return [(each.output_type, NUMBER.sub("#", each.get("text", ""))) for each in cell.outputs]


@pytest.mark.filterwarnings("ignore")  # of Jupyter
@pytest.mark.parametrize("name", cases())
def test_a_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed(NEEDS[name])
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOKS.parents[1]))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    stored, ran = executed(name, tmp_path)
    for before, after in zip(stored.cells, ran.cells, strict=True):
        if before.cell_type == "code":
            assert printed(before) == printed(after), before.source
    assert not any("/" + "home" in str(cell) for cell in stored.cells)


if __name__ == "__main__":
    import tempfile

    import nbformat

    os.environ |= {"PYTHONPATH": str(NOTEBOOKS.parents[1]), "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    for each in sys.argv[1:] or NEEDS:
        with tempfile.TemporaryDirectory() as made:
            _, ran = executed(each, Path(made))
        for cell in ran.cells:
            cell.metadata.pop("execution", None)
        nbformat.write(ran, NOTEBOOKS / f"{each}.ipynb")
