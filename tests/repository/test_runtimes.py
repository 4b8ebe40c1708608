"""Files that `optimize` writes load and run in the oldest and in the newest ONNX Runtime that
pyproject.toml allows, with and without their kernels; and the optimizer works on each.

Slow, and in need of a package index: `pytest -m slow tests/repository/test_runtimes.py`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from commandline import result_of
from fused_models import with_kernel
from operator_uses import build, opsets

import models
import taso_mirage
from models.real import KNOWN
from models.real import build as real
from taso_mirage.errors import TasoMirageError
from taso_mirage.measure.native import Arrays
from taso_mirage.measure.session import Session
from taso_mirage.onnx_io import serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import load_specs
from taso_mirage.runtime import build_kernels, library

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
RUNS = """
import json, sys
from pathlib import Path
import numpy as np
import onnxruntime

found = {}
for file in sorted(Path(sys.argv[1]).glob("*.onnx")):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if len(sys.argv) > 2:
        options.add_session_config_entry("taso_mirage.kernels", sys.argv[2] + "/kernels.so")
        options.add_session_config_entry("taso_mirage.cuda", "0")
        options.register_custom_ops_library(sys.argv[2] + "/taso_mirage.so")
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        outputs = session.run(None, dict(np.load(file.with_suffix(".npz"))))
    except Exception as error:
        found[file.stem] = str(error)
        continue
    np.savez(file.with_suffix(".out.npz"), *outputs)
    found[file.stem] = "ran"
print(json.dumps({"version": onnxruntime.__version__, "models": found}))
"""
"""The script of a machine that has nothing but ONNX Runtime and numpy: it runs the models of a
folder, with the folder of shipped kernels where there is one."""
SHAPES = {"bert_torchscript": {"batch": 1, "sequence": 16}, "llama_decode_torchscript": {"past": 7, "total": 8}}
"""Sizes of exports; `models.inputs` has the others."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """An ONNX Runtime in a folder of its own, which comes before the installed one."""

    folder: Path

    def python(self, *arguments: str, more: str = "") -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(self.folder), *([more] if more else [])])
        environment = {**os.environ, "PYTHONPATH": path}
        command = [sys.executable, *arguments]
        return subprocess.run(command, env=environment, cwd=self.folder, capture_output=True, text=True, timeout=600)

    def run(self, place: Path, kernels: Path | None = None) -> dict[str, Any]:
        """The outputs or the error of each model of a folder on its inputs."""
        shipped = [] if kernels is None else [str(kernels)]
        done = self.python("-c", RUNS, str(place), *shipped)
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout.splitlines()[-1])
        assert said["version"] == (self.folder / "version").read_text()
        return {
            name: list(np.load(place / f"{name}.out.npz").values()) if result == "ran" else result
            for name, result in said["models"].items()
        }


def declared() -> str:
    """The oldest ONNX Runtime of pyproject.toml, the same for all of its wheels."""
    read = tomllib.loads((ROOT / "pyproject.toml").read_text())
    builds = read["tool"]["hatch"]["metadata"]["hooks"]["custom"]["onnxruntime"]
    lines = [*builds["gpu"], *builds["cpu"], *read["project"]["optional-dependencies"]["cuda"]]
    (least,) = {m[1] for m in (re.match(r"onnxruntime(?:-gpu)?(?:\[.*\])?>=([\d.]+)", line) for line in lines) if m}
    return least


@pytest.fixture(scope="module", params=["oldest", "newest"])
def runtime(request: pytest.FixtureRequest, shared: Path) -> Runtime:
    wanted = f"onnxruntime=={declared()}.0" if request.param == "oldest" else "onnxruntime"
    folder = shared / f"runtime-{request.param}"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
    done = subprocess.run([*command, "--target", folder, wanted], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"pip cannot install {wanted}: {done.stderr.strip().splitlines()[-1]}")
    there = Runtime(folder)
    version = there.python("-c", "import onnxruntime; print(onnxruntime.__version__, end='')").stdout
    (folder / "version").write_text(version)
    assert request.param == "newest" or version == f"{declared()}.0"
    return there


def put(place: Path, name: str, content: bytes, inputs: Arrays) -> None:
    (place / f"{name}.onnx").write_bytes(content)
    np.savez(place / f"{name}.npz", **inputs)


def agree(found: Any, wanted: Any, name: str) -> None:
    assert not isinstance(found, str), f"{name}: {found}"
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype
        largest = float(np.abs(b).max(initial=0)) if b.dtype.kind == "f" else 0.0
        room = 1e-2 if b.dtype == np.float16 else 1e-4
        np.testing.assert_allclose(a, b, rtol=room, atol=room * largest, err_msg=name)


# ---------------------------------------------------------------- the written files


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[Any]]]:
    """A model of every use of the runtime's own operators that this runtime implements on a CPU:
    the operators that rewrites may make."""
    place, wanted = tmp_path_factory.mktemp("fused"), {}
    for op in load_specs().values():
        for i in range(len(op.examples) if op.domain else 0):
            use = build(op, i)
            content = serialize(standalone(use.graph, opsets(use)))
            inputs = {str(leaf.attr("name")): value for leaf, value in use.values.items()}
            try:
                outputs = Session(content).run(inputs)
            except TasoMirageError:
                continue  # no kernel for this dtype on a CPU: `search/available.py` asks
            wanted[f"{op.name}_{i}"] = outputs
            put(place, f"{op.name}_{i}", content, inputs)
    return place, wanted


def mini() -> tuple[onnx.ModelProto, Arrays]:
    model = onnx.load(ROOT / "models" / "mini_transformer.onnx")
    return model, models.inputs(model)


def built(name: str) -> tuple[onnx.ModelProto, Arrays]:
    pytest.importorskip("torch")
    model = models.build(name, small=True)
    return model, models.inputs(model)


def exported(name: str) -> tuple[onnx.ModelProto, Arrays]:
    source = KNOWN[name].source
    assert isinstance(source, real.Export)
    if real.missing(source.packages):
        pytest.skip(f"{name} needs {' and '.join(real.missing(source.packages))}")
    model = real.exported(source)
    return model, models.inputs(model, sizes={**KNOWN[name].sizes, **SHAPES.get(name, {})})


MODELS: dict[str, Callable[[], tuple[onnx.ModelProto, Arrays]]] = {
    "mini_transformer": mini,
    **{name: lambda name=name: built(name) for name in ("resnet18", "light_shufflenet", "llama_decode")},
    **{
        name: lambda name=name: exported(name)
        for name in ("bert_torchscript", "llama_decode_torchscript", "segformer_torchscript", "gru")
    },
}


@pytest.fixture(scope="module", params=MODELS)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, list[Any]]:
    """A folder with an optimized model (chosen by a roofline, so that every fused operator is in
    it), its name, and the original's results."""
    model, inputs = MODELS[request.param]()
    place = tmp_path_factory.mktemp("written")
    original = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    faster, result = taso_mirage.optimize(model, measure=False, budget=15.0, return_result=True)
    assert result.changed or request.param == "gru"
    put(place, request.param, faster.SerializeToString(), inputs)
    return place, request.param, original.run(None, inputs)


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as docs/shipping.md makes it: a model with a kernel, the library and the compiled
    kernels."""
    place = with_kernel(tmp_path_factory.mktemp("kernel"))
    ship = place / "ship"
    ship.mkdir()
    shutil.copy(library(), ship / "taso_mirage.so")
    kernels = build_kernels(place / "model.optimized.onnx")
    assert kernels is not None
    shutil.copy(kernels, ship / "kernels.so")
    x = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    for name in ("model", "model.optimized"):
        np.savez(place / f"{name}.npz", X=x)
    return place


# ---------------------------------------------------------------- in each runtime


def test_every_operator_that_rewrites_may_make_is_there(runtime: Runtime, fused: Any) -> None:
    place, wanted = fused
    assert len(wanted) >= 15
    found = runtime.run(place)
    assert found.keys() == wanted.keys()
    for name in wanted:
        agree(found[name], wanted[name], name)


def test_an_optimized_model_loads_and_runs(runtime: Runtime, written: Any) -> None:
    place, name, wanted = written
    agree(runtime.run(place)[name], wanted, name)


def test_kernels_run_where_their_library_is_registered(runtime: Runtime, shipped: Path) -> None:
    plain, fast = runtime.run(shipped), runtime.run(shipped, shipped / "ship")
    for found in (plain, fast):
        agree(found["model.optimized"], plain["model"], "model.optimized")


def test_the_optimizer_itself_works(runtime: Runtime, tmp_path: Path) -> None:
    given, out = ROOT / "models" / "mini_transformer.onnx", tmp_path / "out.onnx"
    command = ("-m", "taso_mirage.cli", "optimize", str(given), "-o", str(out), "--budget", "10", "--json")
    done = runtime.python(*command, more=str(ROOT))
    assert done.returncode == 0, done.stderr
    said = result_of(done)
    assert said["failure"] is None
    assert all(each["passed"] for each in said["check"])
    model, inputs = mini()
    wanted = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.savez(out.with_suffix(".npz"), **inputs)
    agree(runtime.run(tmp_path)["out"], wanted.run(None, inputs), "out")
