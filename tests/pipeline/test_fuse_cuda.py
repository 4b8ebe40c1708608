"""`optimize --target cuda --kernels search` without a GPU: all but the clocks is real, the
compilers and ONNX Runtime on the CPU too."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import interpreter
import mugraphs
import numpy as np
import onnx
import pytest
from fused_models import CONFIG, GPU, ROWS, WIDTH, accepted, called, fresh_cache, kernels, on_the_cpu, plain, quick, run
from mugraphs import leaf
from sample_regions import sample_regions

from taso_mirage.devices.cuda.device import H100, Gpu
from taso_mirage.emit import triton as codegen
from taso_mirage.emit.compile import compiled
from taso_mirage.emit.gpu.program import TritonProgram
from taso_mirage.errors import OutOfTime, Unsupported
from taso_mirage.ir.model import Model, random_inputs
from taso_mirage.ir.terms import Graph, Tensor, constant, substitute, variable
from taso_mirage.lowering import backend as lowering
from taso_mirage.lowering import cuda as cuda
from taso_mirage.lowering.cuda import SHIPPED, Float64Oracle, everywhere
from taso_mirage.lowering.shipping import Shipping
from taso_mirage.measure import session as runtime
from taso_mirage.measure.session import Session
from taso_mirage.measure.target import CUDA
from taso_mirage.mugraph.checkpoint import from_json, to_json
from taso_mirage.mugraph.search import Search, SearchOptions
from taso_mirage.onnx_io import save, serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term
from taso_mirage.pipeline.fuse import fused, searches, stage
from taso_mirage.pipeline.fuse.model_trials import ModelTrials
from taso_mirage.report.result import Result
from taso_mirage.runtime.embed import EmbeddedRegion, embed
from taso_mirage.runtime.plan import cuda_kernel
from taso_mirage.runtime.tensorrt.plugin_export import export

pytestmark = pytest.mark.sampled(2, together=True)

pytest.importorskip("triton", reason="the extra `triton` is not installed")


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Result, Result]]:
    """A model before, and with the kernels of a search whose programs the analytic model tuned."""
    with pytest.MonkeyPatch.context() as patch:
        fresh_cache(patch, tmp_path_factory.mktemp("cuda"))
        quick(patch)
        result = replace(plain(), target=CUDA)
        patch.setattr(stage, "here", lambda target: GPU)
        patch.setattr(runtime, "open_in_child", on_the_cpu)
        found = fused(result, CONFIG, "search")
        patch.setattr(searches, "Search", None)
        assert serialize(fused(result, CONFIG, "cached").model) == serialize(found.model)
        yield result, found


@pytest.fixture(scope="module")
def file(searched: tuple[Result, Result], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("written") / "optimized.onnx"
    save(searched[1].model, path)
    return path


def test_the_written_model_computes_the_same_on_a_cpu(searched: tuple[Result, Result], file: Path) -> None:
    result, found = searched
    assert kernels(found) == 2
    assert found.changed
    assert all(d.passed for d in found.differences)
    content = file.read_bytes()
    onnx.checker.check_model(content)
    inputs = dict(random_inputs(result.original, 0, {}))
    (wanted,) = run(serialize(result.original), inputs)
    for (got,) in (run(content, inputs), Session(content).run(inputs)):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_the_result_has_the_record_of_each_kernel(searched: tuple[Result, Result]) -> None:
    result, found = searched
    called = {str(n.attr("call").node.op_type) for n in found.model.nodes() if n.op == "opaque"}
    assert set(found.records) == called
    assert found.unfused == result.model
    assert not result.records


COMPOSED = """
import json, sys
from pathlib import Path
import torch
from taso_mirage.measure.target import CUDA
from taso_mirage.onnx_io import load
from taso_mirage.torch import inductor
from taso_mirage.torch.inductor import ComposedCalls, OptimizedPart

inductor.compile_by_inductor = lambda graph, given: graph.forward
torch.manual_seed(0)
file, records = Path(sys.argv[1]), json.loads(sys.argv[2])
before, after = load(file.parent / "before.onnx"), load(file, trust_kernels=True)
x = torch.randn([int(n) for n in before.graph.inputs[0].shape])
found = []
for model, own in ((before, {}), (after, records)):
    calls = ComposedCalls([OptimizedPart(model, own, CUDA)], model.input_names, model.output_names, [x], x.device, None)
    found.append(calls([x]))
    print(len(calls._placed))
torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
"""


def test_its_kernels_are_operators_of_pytorch(searched: tuple[Result, Result], file: Path) -> None:
    """In Triton's interpreter."""
    pytest.importorskip("torch")
    save(searched[0].original, file.parent / "before.onnx")
    done = interpreter.run(COMPOSED, file, json.dumps(dict(searched[1].records)))
    assert (done.returncode, done.stdout.split()) == (0, ["0", "2"]), done.stderr


def test_it_has_cubins_for_every_architecture_and_ptx(file: Path) -> None:
    proto = onnx.load(file)
    nodes = [n.op_type for n in proto.graph.node if n.domain == "taso_mirage"]
    assert nodes == [f.name for f in proto.functions if not f.attribute]
    assert {f"taso_mirage.triton.{name}" for name in nodes} < {p.key for p in proto.metadata_props}
    for attributes in called(file):
        lines = [line.split() for line in attributes["plan"].splitlines()]
        images = [line for line in lines if line[0] == "image"]
        launches = sum(line[0] == "kernel" for line in lines)
        assert [(int(x[2]), x[3]) for x in images] == [
            (capability, kind)
            for capability, kind in [*((c, "cubin") for c in SHIPPED), (80, "ptx")]
            for _ in range(launches)
        ]
        assert accepted(attributes)


def test_tampered_code_is_found(file: Path) -> None:
    attributes = called(file)[0]
    image = attributes["image_0"]
    at = len(image) // 2
    assert not accepted(attributes | {"image_0": image[:at] + ("B" if image[at] == "A" else "A") + image[at + 1 :]})
    assert not accepted(attributes | {"image_0": attributes["image_1"]})


def test_the_written_model_becomes_a_plugin(file: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "taso_mirage.cli", "export-plugin", str(file), "-o", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert len(said["plugins"]) == 2
    nodes = [n.op_type for n in onnx.load(tmp_path / "model.onnx").graph.node if n.domain == "taso_mirage"]
    assert nodes == list(said["plugins"])
    assert len(list((tmp_path / "triton").iterdir())) == 2
    assert not onnx.load(tmp_path / "reference.onnx").functions


def test_a_kernel_that_tensorrt_cannot_take_stays_operators(tmp_path: Path) -> None:
    x, mask = variable("X", Tensor("float32", (6, 5))), variable("mask", Tensor("bool", (6, 5)))
    zero = constant(0.0, "float32")
    goals = [Graph((mask, x), (term("where", mask, x, zero),)), Graph((x,), (term("exp", term("mul", x, x)),))]
    kernels = []
    for goal in goals:
        program = codegen.program(Search(goal, SearchOptions(), H100).run(1, 100.0)[0].graph)
        kernels.append(cuda_kernel(program, everywhere(program, 90, ())))
    (last,) = substitute(goals[1].outputs, {x: goals[0].outputs[0]})
    regions = [
        EmbeddedRegion((mask, x), goals[0].outputs, kernels[0]),
        EmbeddedRegion(goals[0].outputs, (last,), kernels[1]),
    ]
    save(embed(standalone(Graph((x, mask), (last,)), {"": 17}), regions), tmp_path / "both.onnx")
    made = export(tmp_path / "both.onnx", tmp_path / "plugin", {})
    assert len(made.kernels) == 1
    assert list(made.refused) == ["CudaKernel0"]
    assert "input 0 is bool; a TensorRT plugin takes" in made.refused["CudaKernel0"]
    nodes = [n.op_type for n in onnx.load(tmp_path / "plugin" / "model.onnx").graph.node]
    assert nodes == ["Constant", "Where", *made.kernels]
    save(embed(standalone(Graph((x, mask), goals[0].outputs), {"": 17}), regions[:1]), tmp_path / "one.onnx")
    with pytest.raises(Unsupported, match="input 0 is bool"):
        export(tmp_path / "one.onnx", tmp_path / "none", {})


def test_with_free_rows_kernels_run_for_any_number_of_them(
    searched: tuple[Result, Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fresh_cache(monkeypatch, tmp_path)
    monkeypatch.setattr(searches, "Search", Search)  # `searched` has left it to be found missing
    quick(monkeypatch)
    monkeypatch.setattr(stage, "here", lambda target: GPU)
    monkeypatch.setattr(cuda, "SHIPPED", (90,))
    monkeypatch.setattr(runtime, "open_in_child", on_the_cpu)
    result = replace(plain("rows"), target=CUDA)
    found = fused(result, CONFIG, "search")
    assert kernels(found) == 2
    assert not any("at all other sizes" in note for note in found.notes)
    assert all(d.passed for d in found.differences)
    assert len({d.case for d in found.differences}) > 3
    content = serialize(found.model)
    onnx.checker.check_model(content)
    assert not any(n.op_type == "If" for f in onnx.load_from_string(content).functions for n in f.node)
    for rows in (1, 7):
        inputs = {"x": np.random.default_rng(rows).normal(size=(rows, WIDTH)).astype(np.float32)}
        np.testing.assert_allclose(*(run(c, inputs)[0] for c in (content, serialize(result.original))), rtol=1e-5)
    save(found.model, tmp_path / "free.onnx")
    for attributes in called(tmp_path / "free.onnx"):
        lines = attributes["plan"].splitlines()
        assert {line.split()[2] for line in lines if line.startswith("output")} == {"n0"}
        assert all("n0" in line.split()[1] for line in lines if line.startswith("kernel"))
        assert accepted(attributes)
    made = export(tmp_path / "free.onnx", tmp_path / "plugin", {"rows": 5})
    assert [k.outputs[0].shape for k in made.kernels.values()] == [(5, WIDTH)] * 2


def test_code_is_in_the_file_once_however_often_it_is_called() -> None:
    graph, goal = mugraphs.ntrans(dtype="float32")
    kernel = cuda_kernel(codegen.program(graph), everywhere(codegen.program(graph), 90, SHIPPED))
    x, *others = goal.inputs
    sizes = []
    for count in (1, 8):
        regions, last = [], x
        for _ in range(count):
            regions.append(EmbeddedRegion.of(goal, (last, *others), kernel))
            (last,) = regions[-1].outputs
        sizes.append(len(serialize(embed(standalone(Graph(goal.inputs, (last,)), {"": 17}), regions))))
    assert sizes[1] - sizes[0] < 7 * 300 < sizes[0] / 20


# ---------------------------------------------------------------- the shipped files


def looped(stages: int) -> TritonProgram:
    """A program whose loop keeps `stages` iterations' tiles in shared memory."""
    graph = mugraphs.rmsnorm_linear(rows=32, inner=4096, cols=256, grid=2, loop=32)[0]
    schedules = [replace(launch.schedule, stages=stages) for launch in codegen.program(graph).launches]
    return codegen.program(graph, schedules)


def test_smaller_gpus_get_fewer_loads_in_flight() -> None:
    found = {(x.capability, x.ptx): x for x in everywhere(looped(4), 90, (86, 90))}
    assert found[90, False].shared > 99 * 1024
    for key in ((86, False), (80, True)):
        assert 0 < found[key].shared <= 99 * 1024


def test_what_fits_on_no_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "SHARED", {90: 1})
    with pytest.raises(Unsupported, match="more shared memory than a GPU of sm_90 has"):
        everywhere(looped(2), 90, ())


def test_a_gpu_that_nothing_compiles_for_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU that the kernel was made on is never left out."""

    def failing(program: TritonProgram, capability: int, schedules: Any = None) -> Any:
        if capability == broken:
            raise RuntimeError("PassManager::run failed")
        return compiled(program, capability, schedules)

    monkeypatch.setattr(cuda, "compiled", failing)
    program, broken = codegen.program(mugraphs.ntrans(dtype="float32")[0]), 120
    assert {x.capability for x in everywhere(program, 90, SHIPPED)} == set(SHIPPED) - {120}
    broken = 90
    with pytest.raises(RuntimeError, match="PassManager"):
        everywhere(program, 90, SHIPPED)


def test_a_record_keeps_the_schedules() -> None:
    graph = mugraphs.ntrans(dtype="float32")[0]
    record = {"mugraph": to_json(graph), "schedules": [{"warps": 2, "stages": 1, "overlap": True}]}
    assert len(GPU.kernel(record).images) == 1
    (kernel,) = GPU.shipped([record])
    images = [line.split() for line in kernel.plan.splitlines() if line.startswith("image")]
    assert {(x[5], int(x[2]) >= 90 and x[3] == "cubin", x[8]) for x in images} == {("2", False, "0"), ("2", True, "1")}


def gpus(model: Model, path: Path) -> set[str]:
    """The compute capabilities for which kernels of a model have code."""
    save(model, path)
    plans = [each["plan"] for each in called(path) if "plan" in each]
    assert plans
    return {line.split()[2] for plan in plans for line in plan.splitlines() if line.startswith("image")}


@pytest.mark.parametrize("late", [False, True])
def test_a_large_model_gets_code_for_other_gpus_after_its_check(
    late: bool, searched: tuple[Result, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[Model] = []
    given = ModelTrials.written

    def written(self: ModelTrials, model: Model) -> Model:
        checked.append(model)
        return given(self, model)

    def no_time(*_: Any) -> None:
        raise OutOfTime("kernels were compiled for all GPUs")

    monkeypatch.setattr(ModelTrials, "written", written)
    if late:
        monkeypatch.setattr(Shipping, "wait", no_time)
    found = fused(searched[0], CONFIG, "cached", once=True)
    assert kernels(found) == 2
    assert gpus(checked[0], tmp_path / "checked.onnx") == {"90"}
    assert gpus(found.model, tmp_path / "found.onnx") == ({"90"} if late else {*map(str, SHIPPED)})
    assert (stage.HERE_ALONE in found.notes) == late
    assert found.records.keys() == searched[1].records.keys() or late


def test_ptx_is_that_of_the_cubin() -> None:
    (made,) = compiled(codegen.program(mugraphs.ntrans(dtype="float32")[0]), 80)
    assert ".target sm_80" in made.ptx
    assert f".entry {made.symbol}(" in made.ptx


# ---------------------------------------------------------------- tuning


class OnGpu:
    """The part of a torch tensor's interface that the check needs."""

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)

    def double(self) -> OnGpu:
        return OnGpu(self.array.astype(np.float64))

    def cpu(self) -> OnGpu:
        return self

    def numpy(self) -> Any:
        return self.array

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)


INTERPRETED = """
import json, sys
from pathlib import Path
import torch
from taso_mirage.lowering.cuda import Float64Oracle, launcher
from taso_mirage.mugraph.checkpoint import from_json

torch.manual_seed(0)
for i, (goal, record) in enumerate(json.loads(Path(sys.argv[1]).read_text())):
    goal = from_json(goal)
    inputs = [torch.randn([int(n) for n in x.shape]) for x in goal.inputs]
    results = launcher(record, [x.shape for x in inputs])(*inputs)
    assert Float64Oracle(goal)(inputs, results if isinstance(results, tuple) else (results,)), i
    print(i)
"""


@pytest.mark.parametrize("rows", [ROWS, "rows"])
def test_programs_of_a_models_regions_pass_the_check_in_tritons_interpreter(rows: int | str, tmp_path: Path) -> None:
    """Where rows are free, five rows run with the kernel of one."""
    pytest.importorskip("torch")
    chosen = []
    regions, out = sample_regions(plain(rows).original, {} if rows == ROWS else {"rows": 5}, True)
    assert out == (set() if rows == ROWS else {"rows"})  # of the product: its weights are read for every sample
    assert regions
    for kind in regions:
        found = Search(kind.goal, SearchOptions(), H100).run(2, 100.0)
        record = dict(GPU.fastest(kind.goal, found, math.inf))
        batch = {} if kind.batch is None else {"batch": asdict(kind.batch)}
        chosen.append((to_json(kind.whole), record | batch))
    (tmp_path / "chosen.json").write_text(json.dumps(chosen))
    done = interpreter.run(INTERPRETED, tmp_path / "chosen.json")
    assert (done.returncode, done.stdout.split()) == (0, [*map(str, range(len(regions)))]), done.stderr


@pytest.mark.parametrize(("dtype", "off", "right"), [("float16", 1e-3, True), ("float16", 1e-2, False)])
def test_results_are_compared_with_the_goal_in_float64(dtype: str, off: float, right: bool) -> None:
    x, y = leaf("X", dtype, 30, 40), leaf("Y", dtype, 30, 40)
    goal = Graph((x, y), (term("mul", term("exp", x), y), term("add", x, y)))
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(30, 40)).astype(dtype) for _ in range(2))
    check, inputs = Float64Oracle(goal), (OnGpu(a), OnGpu(b))
    wide = a.astype(np.float64), b.astype(np.float64)
    product, total = np.exp(wide[0]) * wide[1], wide[0] + wide[1]
    assert check(inputs, (OnGpu((product * (1 + off)).astype(dtype)), OnGpu(total.astype(dtype)))) == right
    assert check(inputs, (OnGpu(product.astype(dtype)), OnGpu((total * (1 + off)).astype(dtype)))) == right
    assert not check(inputs, (OnGpu(np.full_like(product, np.nan)), OnGpu(total)))


def test_the_quickest_program_is_taken_with_its_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tuner itself, with a clock that gives the time of each launch: two warps are the best."""
    seen: list[TritonProgram] = []

    def seconds(module: Any, program: TritonProgram, sets: Any, check: Any, enough: float) -> float:
        seen.append(program)
        return 1.0 if isinstance(check, Float64Oracle) and program.launches[0].schedule.warps == 2 else 2.0

    monkeypatch.setattr(cuda.tune, "gpu_and_versions", lambda: "a stand-in for an H100")
    monkeypatch.setattr(cuda.tune._Bench, "_compiled", lambda self, programs, which: [(i, True) for i in which])
    monkeypatch.setattr(cuda.tune, "input_sets", lambda program, sizes: [[None]])
    monkeypatch.setattr(cuda.tune, "_seconds", seconds)
    monkeypatch.setattr(cuda.tune._Bench, "overlaps", lambda self: True)
    goal = mugraphs.ntrans(rows=512, inner=256, grid=64)[1]
    found = Search(goal, SearchOptions(), H100).run(4, 100.0)
    record = GPU.fastest(goal, found, math.inf)
    assert [x["warps"] for x in record["schedules"]] == [2]
    assert all(x["overlap"] for x in record["schedules"])
    assert to_json(from_json(record["mugraph"])) == record["mugraph"]
    assert len({cuda._functions(program) for program in seen}) > 1
    assert all(launch.schedule.overlap for program in seen for launch in program.launches)


def test_processes_find_what_a_search_here_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searches, "Search", Search)  # which other tests of this file do without
    goals = [mugraphs.ntrans(dtype=dtype)[1] for dtype in ("float16", "float32")]

    def interrupted(stage: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with (
        closing(searches.Searches([(goal, None) for goal in goals], H100, 100.0, 1, {})) as ahead,
        closing(searches.Searches((), H100, 0.0, 0, {})) as here,
    ):
        with pytest.raises(KeyboardInterrupt):
            ahead(goals[0], 100.0, interrupted)
        for goal in goals:
            found, wanted = (each(goal, 100.0, lambda stage, done, total: None) for each in (ahead, here))
            assert [f.as_json() for f in found] == [f.as_json() for f in wanted]
            assert len(found) == searches.BEST


def test_without_any_form_in_triton_there_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(graph: Graph, **options: Any) -> TritonProgram:
        raise Unsupported("made up")

    goal = mugraphs.ntrans(dtype="float32")[1]
    found = Search(goal, SearchOptions(), H100).run(1, 100.0)
    monkeypatch.setattr(cuda.triton, "program", refused)
    with pytest.raises(Unsupported, match="none of 1 muGraphs has a form in Triton"):
        GPU.fastest(goal, found, math.inf)


def test_the_gpu_that_is_there_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "gpu", lambda: Gpu("NVIDIA A100", 80, 108, 163 * 1024, 1.555e12))
    monkeypatch.setattr(cuda.tune, "gpu_and_versions", lambda: "NVIDIA A100")
    found = lowering.here(CUDA)
    assert (found.key, found.device.processors, found.device.shared) == ("NVIDIA A100", 108, 163 * 1024)
    assert found.device.bandwidth == pytest.approx(1.39e12, rel=0.01)
