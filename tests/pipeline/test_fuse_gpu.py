"""`optimize --target cuda --kernels search` on a GPU: nothing but the choice of the kept kernels is
made up, so that every kernel runs."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Lock
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from fused_models import CONFIG, ROWS, WIDTH, kernels, plain, run

from taso_mirage.devices.cuda.device import H100
from taso_mirage.emit import triton as codegen
from taso_mirage.emit.compile import compiled
from taso_mirage.ir.terms import Graph
from taso_mirage.lowering import cuda as cuda
from taso_mirage.measure import timing
from taso_mirage.measure.session import Session, working_providers
from taso_mirage.measure.target import CUDA
from taso_mirage.mugraph.search import Search, SearchOptions
from taso_mirage.onnx_io import serialize
from taso_mirage.pipeline.fuse import fused, region_times, searches, stage
from taso_mirage.regions.fragments import fragments
from taso_mirage.report.result import Result
from taso_mirage.runtime import register
from taso_mirage.runtime.embed import EmbeddedRegion, embed
from taso_mirage.runtime.plan import cuda_kernel, images
from taso_mirage.targets.protocol import Trusted

pytestmark = pytest.mark.skipif("CUDAExecutionProvider" not in working_providers(), reason="needs a GPU")


@pytest.fixture(scope="module")
def found() -> Result:
    return made(ROWS)


@pytest.fixture(scope="module")
def free() -> Result:
    return made("rows")


def made(rows: int | str) -> Result:
    """The model with a kernel for both of its regions, as it was measured here: all are kept."""
    measured = region_times.models_in_turn

    def timed(*args: Any) -> list[float]:
        return [max(measured(*args)) + 1.0, 1.0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(region_times, "models_in_turn", timed)
        patch.setattr(searches, "BEST", 4)
        patch.setattr(stage, "GAIN", 0.0)
        patch.setattr(timing.Timing, "verdict", timing.Verdict.FASTER)
        config = replace(CONFIG, target=CUDA, seconds=0.2)
        return fused(plain(rows, config), config, "search")


def feed(seed: int, rows: int = ROWS) -> dict[str, Any]:
    return {"x": np.random.default_rng(seed).normal(size=(rows, WIDTH)).astype(np.float32)}


def test_kernels_are_tuned_checked_and_captured(found: Result) -> None:
    assert kernels(found) == 2
    assert not [note for note in found.notes if "report it" in note]
    assert all(d.passed for d in found.differences)
    session = Session(Trusted(serialize(found.model)), CUDA)
    assert session.captures
    assert session.bound(feed(0))() > 0


def opened(content: bytes, profile: str = "") -> Any:
    """A session without CUDA graphs, which several threads may use."""
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = bool(profile), profile
    register(options, content, cuda=True)
    exact = {"use_tf32": "0"}
    return onnxruntime.InferenceSession(content, options, providers=[("CUDAExecutionProvider", exact)])


def test_the_kernels_run_on_the_gpu(found: Result, tmp_path: Path) -> None:
    content = serialize(found.model)
    session = opened(content, str(tmp_path / "profile"))
    (got,) = session.run(None, feed(0))
    np.testing.assert_allclose(got, run(content, feed(0))[0], rtol=1e-4, atol=1e-5)
    events = [
        e["args"] for e in json.loads(Path(session.end_profiling()).read_text()) if "op_name" in e.get("args", {})
    ]
    ran = {e["op_name"]: e["provider"] for e in events}
    assert ran.keys() >= {"CudaKernel0", "CudaKernel1"}
    assert set(ran.values()) == {"CUDAExecutionProvider"}


def test_sessions_and_threads_share_nothing(found: Result) -> None:
    content = serialize(found.model)
    sessions = [opened(content) for _ in range(2)]
    wanted = [run(content, feed(i))[0] for i in range(4)]

    def one(i: int) -> None:
        np.testing.assert_allclose(sessions[i % 2].run(None, feed(i % 4))[0], wanted[i % 4], rtol=1e-4, atol=1e-5)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(one, range(2000)))
    sessions.clear()
    one_more = Session(Trusted(content), CUDA)  # after the other sessions ended
    np.testing.assert_allclose(one_more.run(feed(0))[0], wanted[0], rtol=1e-4, atol=1e-5)


def test_eight_threads_replay_their_captured_graphs(found: Result) -> None:
    """A session each, which is how graphs may be used, beside one that all share and that captures
    nothing; graphs captured before are replayed on new inputs in their place."""
    content = serialize(found.model)
    shared, turn, all_there = opened(content), Lock(), Barrier(8)
    wanted = [run(content, feed(i))[0] for i in range(8)]

    def one(thread: int) -> None:
        with turn:  # a thread's first runs make its buffers, and capture
            session = Captured(content)
            shared.run(None, feed(thread))
        all_there.wait()
        for i in range(thread, thread + 200):
            np.testing.assert_allclose(session(feed(i % 8)), wanted[i % 8], rtol=1e-4, atol=1e-5)
            if i % 8 == thread:
                np.testing.assert_allclose(shared.run(None, feed(i % 8))[0], wanted[i % 8], rtol=1e-4, atol=1e-5)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(one, range(8)))


class Captured:
    """A session of which every run but the first is a replay of its CUDA graph."""

    def __init__(self, content: bytes) -> None:
        options = onnxruntime.SessionOptions()
        register(options, content, cuda=True)
        graphs = {"use_tf32": "0", "enable_cuda_graph": "1"}
        self.session = onnxruntime.InferenceSession(content, options, providers=[("CUDAExecutionProvider", graphs)])
        self.input = onnxruntime.OrtValue.ortvalue_from_numpy(feed(0)["x"], "cuda", 0)
        self.output = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((ROWS, WIDTH), np.float32), "cuda", 0)
        self.binding = self.session.io_binding()
        self.binding.bind_ortvalue_input("x", self.input)
        self.binding.bind_ortvalue_output(self.session.get_outputs()[0].name, self.output)
        for i in range(3):
            self(feed(i))

    def __call__(self, given: dict[str, Any]) -> Any:
        self.input.update_inplace(given["x"])
        self.session.run_with_iobinding(self.binding)
        return self.output.numpy()


def test_free_rows_run_in_kernels_at_any_number(free: Result, tmp_path: Path) -> None:
    assert kernels(free) == 2
    assert all(d.passed for d in free.differences)
    content = serialize(free.model)
    session = opened(content, str(tmp_path / "profile"))
    for rows in (1, 2, ROWS, 3 * ROWS + 1, 0):
        (got,) = session.run(None, feed(rows, rows))
        assert got.shape == (rows, WIDTH)
        np.testing.assert_allclose(got, run(content, feed(rows, rows))[0], rtol=1e-4, atol=1e-5)
    events = json.loads(Path(session.end_profiling()).read_text())
    assert {e["args"]["op_name"] for e in events if "op_name" in e.get("args", {})} >= {"CudaKernel0", "CudaKernel1"}
    captured = Session(Trusted(content), CUDA)
    assert captured.captures
    for rows in (1, 5):  # each has a graph of its own
        assert captured.bound(feed(rows, rows))() > 0
        np.testing.assert_allclose(
            captured.run(feed(rows, rows))[0], run(content, feed(rows, rows))[0], rtol=1e-4, atol=1e-5
        )


def held() -> tuple[int, int]:
    """Bytes of this process in the machine's memory, and of all in the GPU's."""
    import torch

    pages = int(Path("/proc/self/statm").read_text().split()[1])
    free, whole = torch.cuda.mem_get_info()
    return pages * os.sysconf("SC_PAGE_SIZE"), whole - free


@pytest.mark.slow
def test_ten_thousand_runs_and_a_hundred_sessions_leak_nothing(found: Result) -> None:
    """Run it with the GPU to itself."""
    content = serialize(found.model)
    wanted = [run(content, feed(i))[0] for i in range(4)]

    def lived(runs: int) -> None:
        session = opened(content)
        for i in range(runs):
            np.testing.assert_allclose(session.run(None, feed(i % 4))[0], wanted[i % 4], rtol=1e-4, atol=1e-5)

    def all_of_them(lives: int) -> tuple[int, int]:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lived, [100] * lives))
        return held()

    first, last = all_of_them(20), all_of_them(100)
    assert last[0] - first[0] < 64 << 20
    assert last[1] - first[1] < 64 << 20


def test_ptx_alone_runs_too() -> None:
    """A GPU that is newer than all cubins has its driver compile the PTX when the session is
    created."""
    model = plain().original
    graph, (site,) = next(iter(fragments(model, {}).items()))
    program = codegen.program(Search(graph, SearchOptions(), H100).run(1, 100.0)[0].graph)
    made = compiled(program, cuda.PORTABLE)
    kernel = cuda_kernel(program, [i.with_ptx(c.ptx) for i, c in zip(images(made), made, strict=True)])
    content = serialize(embed(model, [EmbeddedRegion(site.inputs, site.outputs, kernel)]))
    (got,) = Session(Trusted(content), CUDA).run(feed(0))
    np.testing.assert_allclose(got, run(content, feed(0))[0], rtol=1e-4, atol=1e-5)


def test_a_changed_cubin_is_refused_before_the_driver_sees_it(found: Result) -> None:
    proto = onnx.load_from_string(serialize(found.model))
    for function in proto.functions:
        for attribute in (a for node in function.node for a in node.attribute if a.name.startswith("image_")):
            attribute.s = attribute.s[:1000] + (b"B" if attribute.s[1000:1001] == b"A" else b"A") + attribute.s[1001:]
    with pytest.raises(Exception, match=r"was changed.*load it without this library"):
        Session(Trusted(proto.SerializeToString()), CUDA)


def test_goals_are_right_on_the_gpu_in_float64(found: Result) -> None:
    """The check that the tuner makes of every program takes torch's tensors, and knows a wrong
    result."""
    import torch

    for goal in fragments(found.original, {}):
        inputs = [torch.randn([int(n) for n in x.shape], device="cuda") for x in goal.inputs]
        right = cuda.Float64Oracle(Graph(goal.inputs, goal.outputs))
        results = [torch.from_numpy(value).cuda() for value in _computed(goal, inputs)]
        assert right(inputs, results)
        assert not right(inputs, [r * 1.001 for r in results])


def _computed(goal: Graph, inputs: list[Any]) -> list[Any]:
    from taso_mirage.onnx_io.build import standalone

    arrays = {x.attr("name"): value.cpu().numpy() for x, value in zip(goal.inputs, inputs, strict=True)}
    return run(serialize(standalone(goal, {"": 20})), arrays)
