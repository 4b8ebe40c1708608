"""Attention whose warps have roles on a GPU of sm_90: its programs, and models with it in ONNX
Runtime, against float64.

Each runs in a process of its own, which is ended after LIMIT seconds: a barrier that is wrong makes
a kernel that never ends, and nothing else would.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import mugraphs
import numpy as np
import pytest

from models.workloads.gqa import gqa
from models.workloads.qknorm import qknorm
from taso_mirage.devices.cuda.device import SPECIALIZED, gpu
from taso_mirage.emit import triton, tune
from taso_mirage.emit.gpu.program import TritonProgram
from taso_mirage.errors import RuntimeUnavailable
from taso_mirage.ir.terms import Graph
from taso_mirage.lowering import cuda as cuda
from taso_mirage.measure.session import working_providers
from taso_mirage.mugraph.search import superoptimize
from taso_mirage.onnx_io import save
from taso_mirage.onnx_io.build import standalone
from taso_mirage.runtime.embed import EmbeddedRegion, embed
from taso_mirage.runtime.plan import PlannedNode, cuda_kernel

LIMIT = 120.0
TOLERANCE = 4e-3
"""The norm of the difference, as in `bench/kernels_h100.py`."""
TOOL = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
PROGRAM = """
import importlib.util, sys, numpy, torch
folder, dtype = sys.argv[1:]
data = numpy.load(f"{folder}/inputs.npz")
spec = importlib.util.spec_from_file_location("generated", f"{folder}/generated.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
inputs = [torch.from_numpy(data[name]).to(getattr(torch, dtype)).cuda() for name in "QKV"]
found = [module.launch(*inputs) for _ in range(3)]
torch.cuda.synchronize()
numpy.savez(f"{folder}/found.npz", *[x.double().cpu().numpy() for x in found])
"""
MODEL = """
import sys, numpy, onnxruntime
from taso_mirage.runtime import register
folder = sys.argv[1]
content = open(f"{folder}/model.onnx", "rb").read()
data = numpy.load(f"{folder}/inputs.npz")
sets = [{name: numpy.ascontiguousarray(scale * data[name]).astype("float16") for name in "QKV"} for scale in (1.0, 0.5, -1.0)]
found = []
for captured in (False, True):
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = not captured, f"{folder}/profile"
    register(options, content, cuda=True)
    provider = ("CUDAExecutionProvider", {"enable_cuda_graph": str(int(captured))})
    session = onnxruntime.InferenceSession(content, options, providers=[provider])
    kept = {k: onnxruntime.OrtValue.ortvalue_from_numpy(v, "cuda", 0) for k, v in sets[0].items()}
    result = onnxruntime.OrtValue.ortvalue_from_shape_and_type(data["Q"].shape, numpy.float16, "cuda", 0)
    for values in sets:
        binding = session.io_binding()
        for k, v in values.items():
            if captured:  # a graph is replayed on the tensors that it was captured with
                kept[k].update_inplace(v)
            else:
                kept[k] = onnxruntime.OrtValue.ortvalue_from_numpy(v, "cuda", 0)
            binding.bind_ortvalue_input(k, kept[k])
        binding.bind_ortvalue_output(session.get_outputs()[0].name, result)
        session.run_with_iobinding(binding)
        found.append(result.numpy().astype("float64"))
    print(session.end_profiling() if not captured else "")
numpy.savez(f"{folder}/found.npz", *found)
"""


def is_there() -> bool:
    try:
        found = gpu() if tune.gpu_and_versions() else None
    except RuntimeUnavailable:
        return False
    return found is not None and found.capability == SPECIALIZED


pytestmark = pytest.mark.skipif(not is_there(), reason="needs a GPU of sm_90")
in_a_runtime = pytest.mark.skipif(
    "CUDAExecutionProvider" not in working_providers(), reason="needs ONNX Runtime for CUDA"
)


def drawn(graph: Graph, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {x.attr("name"): rng.normal(size=x.shape).astype(np.float16).astype(np.float32) for x in graph.inputs}


def exact(values: Mapping[str, Any], normed: bool) -> Any:
    q, k, v = (values[name].astype(np.float64) for name in "QKV")
    if normed:
        q, k = (x / np.sqrt((x * x).mean(-1, keepdims=True)) for x in (q, k))
    scores = q @ (k.transpose(0, 2, 1) if normed else k)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights @ v / weights.sum(-1, keepdims=True)


def results(folder: Path, script: str, *words: str, tool: Sequence[str] = ()) -> list[Any]:
    """The arrays that a process writes; a test that takes longer fails with TimeoutExpired."""
    command = [*tool, sys.executable, "-c", script, str(folder), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    with np.load(folder / "found.npz") as found:
        return list(found.values())


def close(found: Any, wanted: Any) -> bool:
    return bool(np.linalg.norm(found - wanted) < TOLERANCE * np.linalg.norm(wanted))


def written(folder: Path, program: TritonProgram, graph: Graph) -> dict[str, Any]:
    values = drawn(graph)
    np.savez(folder / "inputs.npz", **values)
    (folder / "generated.py").write_text(program.source)
    return values


SHAPES = {
    "two tiles": (256, 2, 2, 2),
    "an odd number": (2 * 3 * 64, 2, 3, 2),
    "five": (2 * 5 * 64, 2, 5, 1),
    "many of 128": (4 * 9 * 128, 4, 9, 1),
    "65 tiles of 64": (65 * 64, 5, 13, 2),
    "batch 8": (4096, 4, 8, 16),
}
"""Keys, parts, tiles of each, heads."""


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_a_program_computes_attention(name: str, normed: bool, stages: int, dtype: str, tmp_path: Path) -> None:
    keys, splits, loop, heads = SHAPES[name]
    if dtype == "bfloat16" and stages != 3:
        pytest.skip("depths are tried in half precision")
    graph, _ = mugraphs.attention_roles(keys, splits, loop, normed=normed, heads=heads, dtype=dtype)
    program = tune.overlapped(triton.program(graph, specialized=True))
    program = tune.scheduled(program, 0, replace(program.launches[0].schedule, stages=stages))
    values = written(tmp_path, program, graph)
    found = results(tmp_path, PROGRAM, dtype)
    assert all(np.array_equal(found[0], each) for each in found)
    error = 8 if dtype == "bfloat16" else 1
    wanted = exact(values, normed)
    assert np.linalg.norm(found[0] - wanted) < error * TOLERANCE * np.linalg.norm(wanted)


sanitized = pytest.mark.skipif(TOOL is None, reason="needs compute-sanitizer")
normed_or_not = pytest.mark.parametrize("normed", [False, True])


def sanitizer(tool: str) -> tuple[str, ...]:
    return (str(TOOL), "--tool", tool, "--target-processes", "all")


@sanitized
@pytest.mark.parametrize("tool", ["memcheck", "synccheck"])
@normed_or_not
def test_no_tool_complains(normed: bool, tool: str, tmp_path: Path) -> None:
    graph, _ = mugraphs.attention_roles(2 * 5 * 64, 2, 5, normed=normed, heads=1)
    written(tmp_path, tune.overlapped(triton.program(graph, specialized=True)), graph)
    command = (*sanitizer(tool), "--error-exitcode", "9")
    assert len(results(tmp_path, PROGRAM, "float16", tool=command)) == 3


def races(output: str) -> set[tuple[int, int]]:
    """The lines of the source that racecheck names in pairs."""
    found, first = set(), 0
    for line in output.splitlines():
        place = re.search(r" access at .*:(\d+)( \[|$)", line)
        if place and "Race reported" in line:
            first = int(place[1])
        elif place:
            found.add((first, int(place[1])))
    return found


@sanitized
@normed_or_not
def test_racecheck_names_only_what_it_cannot_see(normed: bool, tmp_path: Path) -> None:
    """An mbarrier at which one thread arrives for a group that has met: the scales of keys, and, in
    the line of the kernel's head, how the compiler starts warps with roles. The order of these is
    tested without a GPU (`test_specialized_barriers.py`)."""
    graph, _ = mugraphs.attention_roles(2 * 5 * 64, 2, 5, normed=normed, heads=1)
    program = tune.overlapped(triton.program(graph, specialized=True))
    written(tmp_path, program, graph)
    command = [*sanitizer("racecheck"), sys.executable, "-c", PROGRAM, str(tmp_path), "float16"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    source = program.source.splitlines()
    for pair in races(done.stdout):
        one, other = sorted(source[i - 1].strip() for i in pair)
        scales = one.startswith("by_key = scales.index") and other.startswith("scales.index")
        assert scales or (one == other and one.startswith("def kernel_0(")), pair


ARRIVING = """
#include <cstdint>
__device__ uint32_t at(void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ void arrive(uint64_t* b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at(b)) : "memory"); }
__global__ void pattern(float* out, bool all) {
  __shared__ float tile[128];
  __shared__ uint64_t full;
  int t = threadIdx.x % 128;
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at(&full)), "r"(all ? 128 : 1));
  __syncthreads();
  if (threadIdx.x < 128) {
    tile[t] = t;
    asm volatile("bar.sync 1, 128;" ::: "memory");
    if (all || t == 0) arrive(&full);
  } else {
    asm volatile("{ .reg .pred p;\\nagain%=:\\n mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra again%=; }"
                 :: "r"(at(&full)) : "memory");
    out[t] = tile[(t + 1) % 128];
  }
}
int main(int argc, char**) {
  float* out;
  cudaMalloc(&out, 512);
  pattern<<<1, 256>>>(out, argc > 1);
  return cudaDeviceSynchronize();
}
"""


@sanitized
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("all_arrive", [False, True])
def test_racecheck_does_not_see_a_group_that_met_before_one_thread_arrives(all_arrive: bool, tmp_path: Path) -> None:
    """The programs are both right. When this fails for the first, racecheck should find nothing
    above either."""
    (tmp_path / "pattern.cu").write_text(ARRIVING)
    built = ["nvcc", "-arch=sm_90", "-lineinfo", "-o", tmp_path / "pattern", tmp_path / "pattern.cu"]
    subprocess.run(built, check=True, timeout=LIMIT)
    command = [*sanitizer("racecheck"), str(tmp_path / "pattern"), *["all"] * all_arrive]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout
    assert bool(races(done.stdout)) != all_arrive


def in_model(folder: Path, goal: Graph, node: PlannedNode, normed: bool) -> None:
    """Without a CUDA graph at other addresses every time, and in one whose inputs change."""
    values = drawn(goal)
    np.savez(folder / "inputs.npz", **values)
    region = EmbeddedRegion(goal.inputs, goal.outputs, node)
    save(embed(standalone(goal, {"": 17}), [region]), folder / "model.onnx")
    wanted = [exact({k: scale * v for k, v in values.items()}, normed) for scale in (1.0, 0.5, -1.0)]
    for found, each in zip(results(folder, MODEL), wanted * 2, strict=True):
        assert close(found, each)
    profile = next(folder.glob("profile*.json")).read_text()
    assert '"op_name" : "CudaKernel0"' in profile or '"op_name":"CudaKernel0"' in profile.replace(" ", "")


@in_a_runtime
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_a_model_computes_attention(name: str, normed: bool, tmp_path: Path) -> None:
    keys, splits, loop, heads = SHAPES[name]
    graph, goal = mugraphs.attention_roles(keys, splits, loop, normed=normed, heads=heads)
    program = tune.overlapped(triton.program(graph, specialized=True))
    node = cuda_kernel(program, cuda.everywhere(program, SPECIALIZED, ()))
    assert node.plan.count("\nmap ") == 3
    in_model(tmp_path, goal, node, normed)


@in_a_runtime
@pytest.mark.parametrize(("make", "keys"), [*product((gqa, qknorm), (4096, 3072, 5120)), (qknorm, 4095)])
def test_the_tuner_keeps_what_is_right_and_fastest(make: Callable[..., Any], keys: int, tmp_path: Path) -> None:
    """Where there are two forms, both are tried: 4,095 keys are no tiles of 64."""
    goal = make(batch=8, keys=keys).graph()
    backend = cuda.here()
    found = superoptimize(goal, best=20, budget=60.0, device=backend.device)
    forms = [triton.program_forms(each.graph, True) for each in found]
    assert any(len(each) == 2 for each in forms) == (keys != 4095)
    try:
        record = backend.fastest(goal, found, float("inf"))
        node = backend.kernel(record)
    finally:
        backend.close()
    print(f"{make.__name__} of {keys} keys:", "roles" if "\nmap " in node.plan else "Triton")
    in_model(tmp_path, goal, node, make is qknorm)
