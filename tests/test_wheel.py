"""The wheel: what is in it, and that it works away from the checkout, with its own operators and
substitutions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import onnx
import pytest

ROOT = Path(__file__).parent.parent

START = """
import runpy, sys
dependencies, *sys.argv = sys.argv[1:]
sys.path.append(dependencies)
import taso_mirage
from taso_mirage.operators.ops import data_folder
for path in (taso_mirage.__file__, data_folder("op_specs"), data_folder("substitutions")):
    print(path, file=sys.stderr)
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""Runs a module under `python -S`, which reads no .pth file: the editable installation is not
there. The dependencies' folder comes after the installed copy; nothing else of this environment is
on the path."""


def _python(*args: object, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    extra = {} if path is None else {"PYTHONPATH": str(path)}
    done = subprocess.run(
        [sys.executable, *map(str, args)], cwd=cwd, env=kept | extra, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy, so that no file appears in the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    hidden = shutil.ignore_patterns(".*", "__pycache__", "results")
    source = shutil.copytree(ROOT, folder / "source", ignore=hidden)
    _python("-m", "build", "--wheel", "--no-isolation", "--outdir", folder / "dist", source, cwd=folder)
    (built,) = (folder / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("installed")
    options = ("--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", "--target", target)
    _python("-m", "pip", "install", *options, wheel, cwd=target)
    return target


def run(installed: Path, cwd: Path, *args: object) -> str:
    """What the installed command line prints; it and its data lie in `installed`."""
    dependencies = sysconfig.get_path("purelib")
    done = _python("-S", "-P", "-c", START, dependencies, "taso_mirage.cli", *args, cwd=cwd, path=installed)
    used = [Path(line) for line in done.stderr.splitlines()]
    assert used == [installed / "taso_mirage" / name for name in ("__init__.py", "op_specs", "substitutions")]
    return done.stdout


def test_wheel_holds_the_package_and_its_data_and_no_more(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    described = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    data = {f"taso_mirage/{name}" for folder in ("op_specs", "substitutions") for name in files(folder)}
    assert {name.partition("/")[2] for name in described} == {"METADATA", "WHEEL", "RECORD", "entry_points.txt"}
    assert names - described == files("taso_mirage") | data
    assert "taso_mirage/op_specs/conv.py" in names


def files(folder: str) -> set[str]:
    """The files that belong to a folder of the checkout."""
    found = (path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path.relative_to(ROOT).as_posix() for path in found}


def test_installed_copy_optimizes_a_model(installed: Path, tmp_path: Path) -> None:
    written = tmp_path / "mini.onnx"
    original = ROOT / "models" / "mini_transformer.onnx"
    outputs = ("-o", written, "--report", tmp_path / "page.html")
    shown = run(installed, tmp_path, "optimize", original, "--no-measure", "--budget", 5, *outputs)
    assert "applied substitutions" in shown
    assert "<h2>Equations</h2>" in (tmp_path / "page.html").read_text()
    onnx.checker.check_model(written, full_check=True)
    assert len(onnx.load(written).graph.node) < len(onnx.load(original).graph.node)


def test_installed_copy_reports_on_itself(installed: Path, tmp_path: Path) -> None:
    found = json.loads(run(installed, tmp_path, "doctor", "--json"))
    assert "CPUExecutionProvider" in json.dumps(found)
