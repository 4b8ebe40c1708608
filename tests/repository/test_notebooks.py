"""The notebooks of docs/notebooks run from the first cell to the last."""

from __future__ import annotations

from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "docs" / "notebooks"
NEEDS = {"onnx": "onnx", "kernels": "numpy", "pytorch": "torch"}
"""The package that each notebook needs beside those of taso_mirage."""
LONG = ("onnx", "pytorch")
"""The notebooks that take more than a few seconds, which run with `-m slow`."""


def cases() -> list[object]:
    return [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in NEEDS]


def test_there_is_one_for_each_way_in() -> None:
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == set(NEEDS)


@pytest.mark.filterwarnings("ignore")  # of Jupyter
@pytest.mark.parametrize("name", cases())
def test_a_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip(NEEDS[name])
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOKS.parents[1]))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    stored = nbformat.read(NOTEBOOKS / f"{name}.ipynb", 4)
    nbformat.validate(stored)
    ran = nbformat.from_dict(stored)
    nbclient.NotebookClient(ran, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    for before, after in zip(stored.cells, ran.cells, strict=True):
        if before.cell_type == "code":
            kinds = [[output.output_type for output in cell.outputs] for cell in (before, after)]
            assert kinds[0] == kinds[1], before.source
    assert not any("/" + "home" in str(cell) for cell in stored.cells)
