"""Common parts of the tests of kernels inside models: a model with two kinds of regions, and clocks
that return given times."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import mugraphs
import numpy as np
import onnx
import onnxruntime
import pytest

from taso_mirage.devices.cuda.device import H100
from taso_mirage.ir.model import Model, StoredWeight
from taso_mirage.ir.terms import Graph, Tensor, variable, weight
from taso_mirage.lowering import cpu as cpu
from taso_mirage.lowering.cuda import CudaLowering
from taso_mirage.measure import session as runtime
from taso_mirage.measure.session import Session
from taso_mirage.measure.target import CPU, Target
from taso_mirage.onnx_io import from_ir, from_proto, save, serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import optimize_model
from taso_mirage.pipeline.fuse import comparisons, order, region_times, searches
from taso_mirage.report.result import Result
from taso_mirage.runtime import library
from taso_mirage.runtime.embed import EmbeddedRegion, embed
from taso_mirage.runtime.plan import cpu_kernel
from taso_mirage.search.config import Config
from taso_mirage.system.builds import private_folder
from taso_mirage.system.workers import Workers

ROWS, WIDTH = 66, 8
"""A linear layer of so many rows is in no region, so that there is one before it and one behind
it."""
TRYING = 100.0
"""Seconds that a trial in the model is said to take."""
CONFIG = Config(budget=1000.0, seconds=0.0, default_size=ROWS)


def model(rows: int | str = ROWS) -> Model:
    """softmax(gelu(x + b) W) * b."""
    rng = np.random.default_rng(0)
    arrays = {"w": rng.normal(size=(WIDTH, WIDTH)) / 3, "b": rng.normal(size=WIDTH)}
    weights = {n: StoredWeight(a.astype(np.float32)) for n, a in arrays.items()}
    w, b = (weight(n, Tensor("float32", a.shape)) for n, a in arrays.items())
    x = variable("x", Tensor("float32", (rows, WIDTH)))
    y = term("matmul", term("gelu", term("add", x, b)), w)
    made = standalone(Graph((x,), (term("mul", term("softmax", y, axis=1), b),)), {"": 20}, weights)
    return from_ir(from_proto(onnx.load_from_string(serialize(made))))


def plain(rows: int | str = ROWS, config: Config = CONFIG) -> Result:
    """The model as it comes from the other stages, which changed nothing and measured nothing."""
    found = optimize_model(model(rows), replace(config, measure=False, budget=0.0))
    return replace(found, model=found.original, steps=(), changed=False)


def quick(patch: pytest.MonkeyPatch, gain: float = 2.0) -> None:
    """Few muGraphs, run for a moment; each kernel is tried before another one is made; and the
    clocks: every kernel is twice as fast as its region, and makes the model `gain` times as fast as
    it was."""
    for name in ("KERNEL", "KNOWN"):
        patch.setattr(order, name, 1e3)
    patch.setattr(searches, "BEST", 2)
    patch.setattr(cpu, "SECONDS", 0.01)
    patch.setattr(region_times, "models_in_turn", lambda *measurement: [2.0, 1.0])
    patch.setattr(comparisons, "interleaved", clock([gain]))


def together(patch: pytest.MonkeyPatch) -> None:
    """After `quick`: all kernels are made before they are tried in the model, as they take nothing
    and gain little; a trial is to take TRYING."""
    for name in ("KERNEL", "KNOWN"):
        patch.setattr(order, name, 1e-3)
    patch.setattr(region_times, "models_in_turn", lambda *measurement: [2e-9, 1e-9])


def fresh_cache(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """A cache in `folder` that has nothing but compiled libraries and kernels, which are named by
    their sources."""
    for kept in (library().parent, private_folder("cpp")):
        (folder / kept.name).symlink_to(kept.resolve(), target_is_directory=True)
    patch.setenv("TASO_MIRAGE_CACHE", str(folder))


def on_the_cpu(
    model: Model, target: Target = CPU, source: bool = False, check: bool = False, anew: bool = False
) -> Session:
    """A session that runs the functions of the nodes for CUDA."""
    return OPENED(model, source=source, check=check, anew=anew)


OPENED = runtime.open_in_child


def clock(gains: Sequence[float]) -> Callable[..., list[list[float]]]:
    """`interleaved` where each comparison gives the next of these gains, the last one ever after;
    the models run once."""
    left = list(gains)

    def timed(sessions: Sequence[Any], inputs: Any, *_: Any, **__: Any) -> list[list[float]]:
        for session in sessions:
            session.run(inputs)
        gain = left.pop(0) if len(left) > 1 else left[0]
        return [[gain] * 9, [1.0] * 9]

    return timed


def run(content: bytes, inputs: dict[str, Any]) -> list[Any]:
    """Without the library of custom operators."""
    return list(onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, inputs))


def kernels(result: Result) -> int:
    """How many kinds of regions have got a kernel."""
    return sum(len(placed.kinds) for placed in result.kernels)


class NoCompiler(Workers):
    """Compilers for a GPU that is not there: they would take seconds to start, and nothing is
    measured."""

    def __init__(self) -> None:
        super().__init__("", 1, 1.0)

    def __call__(self, job: Mapping[str, Any]) -> Future[Any]:
        found: Future[Any] = Future()
        found.set_result(None)
        return found


GPU = CudaLowering(H100, "a stand-in for an H100", 90, NoCompiler())


def called(file: Path) -> list[dict[str, str]]:
    """The attributes of the kernels' only nodes."""
    functions = [f for f in onnx.load(file).functions if not f.attribute]
    return [{a.name: a.s.decode() for a in f.node[0].attribute} for f in functions]


def accepted(attributes: dict[str, str]) -> bool:
    """Whether the library takes a plan with its images."""
    contents = [text.encode() for name, text in attributes.items() if name != "plan"]
    array = (ctypes.c_char_p * len(contents))(*contents)
    sizes = (ctypes.c_size_t * len(contents))(*map(len, contents))
    plan, message = attributes["plan"].encode(), ctypes.create_string_buffer(2000)
    room, count = ctypes.c_size_t(2000), ctypes.c_size_t(len(contents))
    check = ctypes.CDLL(str(library())).taso_mirage_check
    return not check(plan, ctypes.c_size_t(len(plan)), array, sizes, count, message, room)


def with_kernel(folder: Path) -> Path:
    """The folder with `model.optimized.onnx`: gelu(X * X) by a kernel, of one input with six rows
    of five."""
    x = mugraphs.leaf("X", "float32", 6, 5)
    rows = mugraphs.kernel([(x, (0,), -1)], lambda x: term("gelu", term("mul", x, x)), (3,), 1, (0,))
    goal = term("gelu", term("mul", x, x))
    model = standalone(Graph((x,), (goal,)), {"": 20})
    save(
        embed(model, [EmbeddedRegion((x,), (goal,), cpu_kernel(Graph((x,), (rows,))))]), folder / "model.optimized.onnx"
    )
    save(model, folder / "model.onnx")
    return folder
