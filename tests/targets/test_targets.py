"""Targets: each has all that the protocol asks for, files say where they were measured, and
OpenVINO from end to end."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from commandline import result_of

import taso_mirage
from taso_mirage.devices import stamp
from taso_mirage.devices.cpu.device import CPU_DEVICE as CORES
from taso_mirage.devices.cuda import device as cuda
from taso_mirage.devices.cuda.device import H100, PINS, Gpu, described
from taso_mirage.devices.stamp import OPTIONS_KEY, TARGET_KEY, Stamp
from taso_mirage.errors import InvalidModel, InvalidOption, RunRefused, RuntimeUnavailable
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.model import random_inputs
from taso_mirage.ir.terms import Graph, Tensor, variable
from taso_mirage.measure.session import Session, interleaved, working_providers
from taso_mirage.measure.target import CPU, CUDA, OPENVINO, TARGETS, target_for
from taso_mirage.onnx_io import load, save, serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.onnx_io.kernels import dropped
from taso_mirage.operators.ops import term
from taso_mirage.runtime.register import metadata, register
from taso_mirage.search.available import Available
from taso_mirage.search.config import Config
from taso_mirage.search.passes import Context, runtime_specific
from taso_mirage.targets.packaging import opening, session, stamped
from taso_mirage.targets.protocol import Target

TRANSFORMER = Path(__file__).parents[2] / "models" / "mini_transformer.onnx"
needs_openvino = pytest.mark.skipif(
    find_spec("openvino") is None, reason="OpenVINO is not installed: pip install 'taso-mirage[openvino]'"
)


def x(*shape: Any, dtype: str = "float32") -> Any:
    return variable("x", Tensor(dtype, shape))


def relu(*shape: Any) -> Any:
    given = x(*shape)
    return standalone(Graph((given,), (term("relu", given),)), {"": 17})


def written(path: Path, entries: dict[str, str]) -> Path:
    """A model's file with this metadata."""
    proto = onnx.load_from_string(serialize(relu(4)))
    onnx.helper.set_model_props(proto, entries)
    onnx.save(proto, path)
    return path


# ---------------------------------------------------------------- the protocol


@pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))
def test_a_target_has_all_that_the_protocol_asks_for(target: Target) -> None:
    for name in (n for n in vars(Target) if not n.startswith("_")):
        if name != "runtime" or target.name != "openvino" or find_spec("openvino"):
            assert hasattr(target, name), name
    assert pickle.loads(pickle.dumps(target)) == target
    assert TARGETS[target.name] is target
    assert set(dict(target.stamp.options)) <= set(stamp.KNOWN_OPTIONS[target.name])
    assert all(variant.plain == target for variant in target.variants)
    assert target.device.operator.flops < target.device.flops  # a whole kernel reaches more than an operator


def test_every_target_has_a_folder() -> None:
    folder = Path(taso_mirage.__file__).parent / "targets"
    assert {f.name for f in folder.iterdir() if (f / "target.py").exists()} == set(TARGETS) == set(stamp.KNOWN_OPTIONS)
    for name, target in TARGETS.items():
        assert (folder.parent / "lowering" / f"{name}.py").exists() == (target.lowering is not None)


def test_the_roofline_of_passes_is_what_an_operator_reaches() -> None:
    """The numbers that decide; a device's peaks are those of a kernel."""
    reached = CORES.operator
    assert (reached.launch, reached.flops, reached.bandwidth, CORES.flops) == (3e-6, 5e10, 1e10, 2e11)
    reached = H100.operator
    assert (reached.launch, reached.flops, reached.bandwidth, H100.flops) == (2e-6, 3e13, 2e12, 6e14)
    node = term("relu", x(1 << 20))
    assert Context({"": 17}, {}, target=CPU).estimate(node) == pytest.approx(3e-6 + 8 * (1 << 20) / 1e10)


def test_another_gpu_is_described_by_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    sxm = Gpu("H100", 90, 132, 227 * 1024, PINS)
    assert described(sxm) == H100
    small = described(Gpu("NVIDIA L4", 89, 58, 99 * 1024, 3e11))
    assert (small.name, small.processors, small.shared) == ("NVIDIA L4", 58, 99 * 1024)
    assert small.bandwidth / H100.bandwidth == small.operator.bandwidth / H100.operator.bandwidth == 3e11 / PINS
    assert described(replace(sxm, pins=0.0)) == H100  # a driver that does not say
    cuda.here.cache_clear()
    monkeypatch.setattr(cuda, "gpu", lambda: None)
    try:
        assert CUDA.device == H100
        assert CUDA.machine == "unknown GPU"
    finally:
        cuda.here.cache_clear()


def test_variants_are_of_operators_with_a_layout() -> None:
    for variant in CUDA.variants:
        assert target_for(variant, ["conv"]) == variant
        assert target_for(variant, ["tanh"]) == CUDA
    assert target_for(OPENVINO, ["tanh"]) == OPENVINO
    assert CPU.variants == OPENVINO.variants == ()


def test_operators_of_one_runtime_are_not_available_on_another() -> None:
    own = term("fused_matmul", x(2, 2), x(2, 2))
    context = Context({"": 20, "com.microsoft": 1}, {})
    assert Available((), context)(own)
    assert not Available((), replace(context, target=OPENVINO))(own)
    assert not runtime_specific_is_left(OPENVINO)


def runtime_specific_is_left(target: Target) -> bool:
    """Whether the optimizer has equations into the runtime's own operators for a target."""
    return any(map(runtime_specific, Config(target=target, measure=False).applied))


# ---------------------------------------------------------------- the stamp of a file


@pytest.mark.parametrize("target", [CUDA, *CUDA.variants, OPENVINO], ids=["cuda", "chosen", "nhwc", "openvino"])
def test_what_a_file_says_of_its_target_is_read_back(target: Target, tmp_path: Path) -> None:
    save(stamped(relu(4), target), tmp_path / "m.onnx")
    found = stamp.read_stamp(metadata(tmp_path / "m.onnx"))
    assert found == target.stamp
    onnx.checker.check_model(tmp_path / "m.onnx")
    again = load(tmp_path / "m.onnx")  # a model made of it gets the stamp of its own target
    assert dropped(again.header) is None
    save(stamped(again, CPU), tmp_path / "again.onnx", source=True)
    assert metadata(tmp_path / "again.onnx") == {}


def test_a_file_for_the_cpu_needs_no_stamp() -> None:
    model = relu(4)
    assert stamped(model, CPU) is model
    assert stamp.read_stamp({}) is None


def test_a_captured_graph_is_asked_for() -> None:
    """With one a plain run would give the first run's outputs again."""
    last = CUDA.variants[1].stamp
    chosen = {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC", "prefer_nhwc": "1"}
    assert last.graph
    assert last.providers() == [("CUDAExecutionProvider", chosen), "CPUExecutionProvider"]
    assert last.providers(graph=True)[0] == ("CUDAExecutionProvider", {**chosen, "enable_cuda_graph": "1"})
    assert Stamp().providers() == OPENVINO.stamp.providers() == ["CPUExecutionProvider"]


HOSTILE = {
    "another target": {TARGET_KEY: "tpu"},
    "another option": {TARGET_KEY: "cuda", OPTIONS_KEY: '{"gpu_external_alloc": "140000000"}'},
    "another value": {TARGET_KEY: "cuda", OPTIONS_KEY: '{"use_tf32": "__import__"}'},
    "a library": {TARGET_KEY: "openvino", OPTIONS_KEY: '{"CACHE_DIR": "/etc"}'},
    "options of the CPU": {TARGET_KEY: "cpu", OPTIONS_KEY: '{"use_tf32": "0"}'},
    "threads": {OPTIONS_KEY: '{"threads": "100000"}'},
    "no text": {OPTIONS_KEY: '{"use_tf32": 0}'},
    "no table": {TARGET_KEY: "cuda", OPTIONS_KEY: '["use_tf32"]'},
    "no JSON": {TARGET_KEY: "cuda", OPTIONS_KEY: "use_tf32=0"},
    "deep": {TARGET_KEY: "cuda", OPTIONS_KEY: "[" * 100_000},
    "terminal commands": {TARGET_KEY: "\x1b[2J"},
}


@pytest.mark.parametrize("entries", HOSTILE.values(), ids=list(HOSTILE))
def test_hostile_options_are_refused(entries: dict[str, str], tmp_path: Path) -> None:
    path = written(tmp_path / "m.onnx", entries)
    for open_it in (session, lambda file: register(onnxruntime.SessionOptions(), file)):
        with pytest.raises(InvalidModel) as raised:
            open_it(path)
        assert "\x1b" not in str(raised.value)
        assert len(str(raised.value)) < 300
    assert session(path, "cpu").get_providers() == ["CPUExecutionProvider"]  # who names a target asks the file nothing
    assert dropped(load(path).header) is None


# ---------------------------------------------------------------- opening


def test_a_session_opens_a_file_with_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Recorded(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, source: Any, options: Any, providers: Any, **others: Any) -> None:
            asked.append(providers)
            super().__init__(source, options, providers=["CPUExecutionProvider"], **others)

        def get_providers(self) -> list[str]:
            return ["CUDAExecutionProvider", "CPUExecutionProvider"]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Recorded)
    target = CUDA.variants[1]
    save(stamped(relu(4), target), tmp_path / "m.onnx")
    found = taso_mirage.session(tmp_path / "m.onnx", cuda_graph=True)
    assert found.run(None, {"x": np.array([-1, 0, 1, 2], np.float32)})[0].tolist() == [0, 0, 1, 2]
    taso_mirage.session((tmp_path / "m.onnx").read_bytes())
    taso_mirage.session(tmp_path / "m.onnx", "cuda", options=onnxruntime.SessionOptions())
    taso_mirage.session(tmp_path / "m.onnx", "cpu")
    assert asked == [
        target.stamp.providers(graph=True),
        target.stamp.providers(),
        CUDA.stamp.providers(),
        ["CPUExecutionProvider"],
    ]


@pytest.mark.skipif("CUDAExecutionProvider" in working_providers(), reason="there is a GPU here")
def test_without_a_gpu_a_file_for_one_is_no_session_on_the_cpu(tmp_path: Path) -> None:
    save(stamped(relu(4), CUDA), tmp_path / "m.onnx")
    with pytest.raises(RuntimeUnavailable):
        session(tmp_path / "m.onnx")


def test_a_target_that_is_not_known_is_refused(tmp_path: Path) -> None:
    save(relu(4), tmp_path / "m.onnx")
    with pytest.raises(InvalidOption, match="the targets are: cpu, cuda, openvino"):
        session(tmp_path / "m.onnx", "tpu")


def test_register_gives_the_providers(tmp_path: Path) -> None:
    target = CUDA.variants[1]
    save(stamped(relu(4), target), tmp_path / "m.onnx")
    save(relu(4), tmp_path / "plain.onnx")
    cases = [
        ("plain.onnx", None, Stamp()),
        ("plain.onnx", True, Stamp("cuda", CUDA.options)),
        ("m.onnx", None, target.stamp),
        ("m.onnx", True, target.stamp),
        ("m.onnx", False, Stamp()),
    ]
    for name, given, wanted in cases:
        assert register(onnxruntime.SessionOptions(), tmp_path / name, cuda=given) == wanted.providers(), name
    options = onnxruntime.SessionOptions()
    opened = onnxruntime.InferenceSession(
        tmp_path / "plain.onnx", options, providers=register(options, tmp_path / "plain.onnx")
    )
    assert opened.run(None, {"x": np.array([-1, 0, 1, 2], np.float32)})[0].tolist() == [0, 0, 1, 2]


def test_the_line_of_python_that_opens_a_file() -> None:
    path = Path("it's.onnx")
    assert opening(path, Stamp(), False) == """taso_mirage.session("it's.onnx")"""
    assert (
        opening(path, CUDA.stamp, True) == """taso_mirage.session("it's.onnx", trust_kernels=True, cuda_graph=True)"""
    )


# ---------------------------------------------------------------- OpenVINO


@pytest.mark.skipif(find_spec("openvino") is not None, reason="OpenVINO is installed")
def test_without_openvino_an_error_says_what_to_install() -> None:
    with pytest.raises(RuntimeUnavailable, match=r"pip install 'taso-mirage\[openvino\]'"):
        Session(serialize(relu(4)), OPENVINO)


@needs_openvino
def test_a_model_runs_in_openvino() -> None:
    model = load(TRANSFORMER)
    there, inputs = Session(serialize(model), OPENVINO), random_inputs(model, 0)
    types = there.inputs()
    assert {name: (t.dtype, t.shape) for name, t in types.items()} == {
        n.attr("name"): (n.tensor.dtype, n.tensor.shape) for n in model.graph.inputs
    }
    for one, other in zip(there.run(inputs), Session(serialize(model)).run(inputs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    first, second = interleaved([there, Session(serialize(model))], inputs, 0.01, least=2)
    assert min(*first, *second) > 0
    assert there.bound(inputs)() > 0
    assert 0 < OPENVINO.nodes(serialize(model)) < len(model.nodes())


@needs_openvino
def test_openvino_says_what_it_refuses() -> None:
    given = x(symbol("n"))
    with pytest.raises(RunRefused, match=r"OpenVINO cannot load the model: .*[a-z]") as raised:
        Session(b"nothing", OPENVINO)
    assert "Exception from" not in str(raised.value)
    free = standalone(Graph((given,), (term("relu", given),)), {"": 17})
    assert Session(serialize(free), OPENVINO).run({"x": np.ones(3, np.float32)})[0].tolist() == [1, 1, 1]
    with pytest.raises(RunRefused, match="OpenVINO cannot run the model"):
        Session(serialize(relu(4)), OPENVINO).run({"x": np.ones(3, np.float32)})


@pytest.mark.sampled(5)
@needs_openvino
def test_openvino_from_end_to_end(layer: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "taso_mirage.cli", "optimize", str(layer), "--target", "openvino", "--json"]
    out = tmp_path / "out.onnx"
    done = subprocess.run([*command, "--budget", "10", "-o", str(out)], capture_output=True, text=True, check=True)
    found = result_of(done)
    assert found["target"] == {"name": "openvino", "provider": None, "options": dict(OPENVINO.options)}
    assert found["open"] == f"taso_mirage.session({str(out)!r})"
    assert all(case["passed"] for case in found["check"])
    assert found["seconds"]["measure"] > 0
    assert (
        found["changed"] == (found["time"] is not None) == bool(found["check"])
    )  # which of both is the machine's luck
    assert {node.domain for node in onnx.load(out).graph.node} == {""}
    model = load(layer)
    inputs = random_inputs(model, 1)
    opened = taso_mirage.session(out)
    results = list(opened(inputs).values())
    for one, other in zip(results, Session(serialize(model)).run(inputs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    with pytest.raises(InvalidOption, match="runs without ONNX Runtime"):
        taso_mirage.session(out, options=onnxruntime.SessionOptions())


@needs_openvino
def test_kernels_are_not_for_openvino(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "taso_mirage.cli", "optimize", str(TRANSFORMER), "--target", "openvino"]
    done = subprocess.run(
        [*command, "--kernels", "search", "-o", str(tmp_path / "out.onnx")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "no fused kernels for the target openvino" in done.stderr) == (2, True)
