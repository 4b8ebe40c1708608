"""Generated Triton kernels on a GPU, under NVIDIA's compute-sanitizer and without it: each in a
process that runs nothing else there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from triton_cases import CASES, REAL, agrees, drawn

from taso_mirage.devices.cuda.device import gpu, largest_cluster
from taso_mirage.emit import triton as codegen
from taso_mirage.emit import tune
from taso_mirage.emit.gpu.program import LaunchSchedule, TritonLaunch, TritonProgram
from taso_mirage.errors import RuntimeUnavailable
from taso_mirage.ir.mugraph import kernels
from taso_mirage.ir.terms import Graph

TOOL = shutil.which("compute-sanitizer", path=f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin")
RUN = """
import importlib.util, sys, numpy, torch
for name in open(f"{sys.argv[1]}/names").read().split():
    spec = importlib.util.spec_from_file_location(name, f"{sys.argv[1]}/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    case = name.partition(".")[0]
    data = numpy.load(f"{sys.argv[1]}/{case}.npz")
    inputs = [torch.from_numpy(data[key]) for key in sorted(data.files)]
    dtypes = open(f"{sys.argv[1]}/{case}.txt").read().split()
    found = module.launch(*[x.to(getattr(torch, dtype)).cuda() for x, dtype in zip(inputs, dtypes)])
    found = found[0] if isinstance(found, tuple) else found
    numpy.save(f"{sys.argv[1]}/{name}.npy", found.cpu().to(torch.float64).numpy())
"""


def has_gpu() -> bool:
    try:
        return bool(tune.gpu_and_versions())
    except RuntimeUnavailable:
        return False


def possible(graph: Graph) -> bool:
    """Whether the GPU has such clusters."""
    found = gpu()
    return found is not None and all(
        node.attr("cluster") <= largest_cluster(found.capability) for node in kernels(graph.outputs)
    )


pytestmark = pytest.mark.skipif(not has_gpu(), reason="needs a GPU")


def pipelined(launch: TritonLaunch) -> TritonLaunch:
    """With as many stages as are tried, four warps, and a start before the launch in front of it
    ends, or loads where that may be."""
    stages = min(max(s.stages for s in tune.schedules(launch)), 4)
    return replace(launch, schedule=LaunchSchedule(4, stages, overlap=True, early=launch.loop == 1))


def variants(name: str, program: TritonProgram) -> dict[str, TritonProgram]:
    deep = program
    for i, launch in enumerate(program.launches):
        deep = tune.scheduled(deep, i, pipelined(launch).schedule)
    return {f"{name}.guess": program, f"{name}.deep": deep}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cases with two schedules each and their inputs.

    The real sizes have no goal here: nothing but the tools look at them.
    """
    made = tmp_path_factory.mktemp("kernels")
    names = []
    for name, make in CASES.items() | {f"real_{k}": v for k, v in REAL.items()}.items():
        graph, _ = make()
        if not possible(graph):
            continue
        for variant, program in variants(name, codegen.program(graph)).items():
            (made / f"{variant}.py").write_text(program.source)
            names.append(variant)
        values = [drawn(name, x, i) for i, x in enumerate(graph.inputs)]
        wide = [v if v.dtype == bool else v.astype(np.float32) for v in values]
        np.savez(made / f"{name}.npz", **{f"{i:02}": v for i, v in enumerate(wide)})
        (made / f"{name}.txt").write_text(" ".join(x.dtype for x in graph.inputs))
    (made / "names").write_text("\n".join(names))
    return made


def ran(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, sys.executable, "-c", RUN, str(folder)],
        env=os.environ | {"TRITON_CACHE_DIR": str(folder / "triton")},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def results(folder: Path) -> Path:
    made = ran(folder)
    assert made.returncode == 0, made.stderr[-3000:]
    return folder


@pytest.mark.parametrize("variant", ["guess", "deep"])
@pytest.mark.parametrize("name", CASES)
def test_generated_code_computes_the_goal_on_the_gpu(name: str, variant: str, results: Path) -> None:
    if not possible(CASES[name]()[0]):
        pytest.skip("needs a GPU with such clusters")
    assert agrees(name, np.load(results / f"{name}.{variant}.npy"))


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
def test_compute_sanitizer_finds_nothing(tool: str, results: Path) -> None:
    """In a process with ONNX Runtime racecheck ends with an error of its own."""
    if TOOL is None:
        pytest.skip("needs compute-sanitizer, of the CUDA toolkit")
    made = ran(results, TOOL, "--tool", tool, "--error-exitcode", "9", "--target-processes", "application-only")
    assert made.returncode == 0, (made.stdout + made.stderr)[-6000:]
    assert "ERROR SUMMARY: 0 errors" in made.stdout or "0 hazards displayed" in made.stdout
