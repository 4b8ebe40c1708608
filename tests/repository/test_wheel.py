"""The wheel and the sdist: their content, and that the wheel works away from the checkout, with its
own operators and substitutions."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import onnx
import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager
from packaging.requirements import Requirement

from taso_mirage.version import __version__

ROOT = Path(__file__).parents[2]

VARIABLE = "TASO_MIRAGE_BUILD"
LINUX = {"sys_platform": "linux", "platform_machine": "x86_64"}
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
        [sys.executable, *map(str, args)], cwd=cwd, env=kept | extra, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, so that no file appears there."""
    hidden = shutil.ignore_patterns(".*", "__pycache__", "results")
    return Path(shutil.copytree(ROOT, tmp_path_factory.mktemp("wheel") / "source", ignore=hidden))


def built(source: Path, kind: str, folder: Path) -> Path:
    """The wheel or sdist of a folder."""
    _python("-m", "build", f"--{kind}", "--no-isolation", "--outdir", folder, source, cwd=folder.parent)
    (found,) = (path for path in folder.iterdir() if path.suffix == {"wheel": ".whl", "sdist": ".gz"}[kind])
    return found


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    return built(source, "wheel", source.parent / "dist")


@pytest.fixture(scope="module")
def sdist(source: Path) -> Path:
    return built(source, "sdist", source.parent / "dist_source")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("installed")
    options = ("--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", "--target", target)
    _python("-m", "pip", "install", *options, wheel, cwd=target)
    return target


def run(installed: Path, cwd: Path, *args: object) -> str:
    """The output of the installed command line; it and its data lie in `installed`."""
    dependencies = sysconfig.get_path("purelib")
    done = _python("-S", "-P", "-c", START, dependencies, "taso_mirage.cli", *args, cwd=cwd, path=installed)
    used = [Path(line) for line in done.stderr.splitlines()]
    assert used == [installed / "taso_mirage" / name for name in ("__init__.py", "op_specs", "substitutions")]
    return done.stdout


@pytest.mark.sampled(3, together=True)
def test_wheel_holds_the_package_and_its_data_and_no_more(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    described = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    data = {f"taso_mirage/{name}" for folder in ("op_specs", "substitutions") for name in files(folder)}
    assert {name.partition("/")[2] for name in described} == {
        *("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"),
    }
    assert names - described == files("taso_mirage") | data
    assert "taso_mirage/op_specs/conv.py" in names


def files(folder: str) -> set[str]:
    """The files that belong to a folder of the checkout."""
    found = (path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path.relative_to(ROOT).as_posix() for path in found}


@pytest.mark.parametrize(("build", "package"), [("", "onnxruntime-gpu"), ("cpu", "onnxruntime")])
def test_a_wheel_requires_one_build_of_the_runtime(build: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, build)
    lines = [Requirement(each) for each in ProjectMetadata(str(ROOT), PluginManager()).core.dependencies]
    there = [each.name for each in lines if each.marker is None or each.marker.evaluate(LINUX)]
    assert [name for name in there if name.startswith("onnxruntime")] == [package]
    assert "onnx" in there
    monkeypatch.setenv(VARIABLE, "tpu")
    with pytest.raises(ValueError, match="TASO_MIRAGE_BUILD=tpu is not known; it is one of gpu, cpu"):
        ProjectMetadata(str(ROOT), PluginManager()).core.dependencies  # noqa: B018


@pytest.mark.sampled(3, together=True)
def test_installed_copy_optimizes_a_model(installed: Path, layer: Path, tmp_path: Path) -> None:
    written = tmp_path / "mini.onnx"
    outputs = ("-o", written, "--report", tmp_path / "page.html")
    shown = run(installed, tmp_path, "optimize", layer, "--no-measure", "--budget", 20, *outputs)
    assert "equations: " in shown
    assert "<h2>Equations</h2>" in (tmp_path / "page.html").read_text()
    onnx.checker.check_model(written, full_check=True)
    assert len(onnx.load(written).graph.node) < len(onnx.load(layer).graph.node)


@pytest.mark.sampled(3, together=True)
def test_installed_copy_reports_on_itself(installed: Path, tmp_path: Path) -> None:
    found = json.loads(run(installed, tmp_path, "doctor", "--json"))
    assert "CPUExecutionProvider" in json.dumps(found)


@pytest.mark.sampled(3, together=True)
def test_the_archives_are_what_an_index_takes(wheel: Path, sdist: Path) -> None:
    done = _python("-m", "twine", "check", "--strict", wheel, sdist, cwd=wheel.parent)
    assert done.stdout.count("PASSED") == 2
    assert wheel.name == f"taso_mirage-{__version__}-py3-none-any.whl"
    assert sdist.name == f"taso_mirage-{__version__}.tar.gz"


@pytest.mark.sampled(3, together=True)
def test_the_sdist_holds_what_the_wheel_is_made_of_and_no_tests(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    tops = {path.name for path in folder.iterdir()}
    described = {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "hatch_build.py", "PKG-INFO"}
    assert tops - {".gitignore"} == {"taso_mirage", "op_specs", "substitutions", "docs"} | described
    again = built(folder, "wheel", tmp_path / "dist")
    assert contents(again) == contents(wheel)


def contents(wheel: Path) -> dict[str, int]:
    """The checksum of every file but the record of them."""
    entries = zipfile.ZipFile(wheel).infolist()
    return {each.filename: each.CRC for each in entries if not each.filename.endswith("RECORD")}


@pytest.mark.lint
def test_the_changelog_begins_with_this_version() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] in (__version__, f"{__version__} (not released yet)")


@pytest.mark.slow
def test_the_commands_of_the_readme_run_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """In a fresh environment, with the dependencies that an index gives, beside nothing of the
    checkout but the model."""
    (tmp_path / "models").mkdir()
    shutil.copy(ROOT / "models" / "mini_transformer.onnx", tmp_path / "models")
    venv.create(tmp_path / ".venv", with_pip=True)
    folder = tmp_path / ".venv" / "bin"
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    kept |= {"PATH": f"{folder}{os.pathsep}{kept['PATH']}", "TASO_MIRAGE_CACHE": str(tmp_path / "cache")}

    def run(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=kept, capture_output=True, text=True, timeout=1500)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    run(folder / "python", "-m", "pip", "install", "--quiet", wheel)
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (setup,) = (text for kind, text in blocks if kind == "sh" and "optimize models/" in text)
    command = setup.split("&&")[-1].strip()
    assert command.startswith(".venv/bin/taso-mirage optimize")
    assert "wrote" in run("bash", "-euc", command)
    (program,) = (text for kind, text in blocks if kind == "python" and "import torch" not in text)
    run(folder / "python", "-c", program)
    assert (tmp_path / "faster.onnx").exists()
    assert f"taso-mirage {__version__}" in run(folder / "taso-mirage", "--version")
