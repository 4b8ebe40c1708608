"""ONNX Runtime: the only module that imports it. Sessions, single runs, and interleaved timing."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taso_mirage.errors import RuntimeUnavailable
from taso_mirage.meanings.work import size
from taso_mirage.model import Model
from taso_mirage.onnx_io import save, serialize
from taso_mirage.onnx_io.files import checked

Arrays = Mapping[str, NDArray[Any]]


class RunFailed(RuntimeUnavailable):
    """ONNX Runtime refused to load or to run a model."""


class Session:
    """A model loaded at ONNX Runtime's full optimization level."""

    def __init__(self, source: bytes | str, providers: Sequence[str] = ("CPUExecutionProvider",)) -> None:
        import onnxruntime

        onnxruntime.set_default_logger_severity(4)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        try:
            self._session = onnxruntime.InferenceSession(source, options, providers=list(providers), enable_fallback=0)
        except Exception as error:  # onnxruntime's errors share no base class of its own
            raise RunFailed(f"ONNX Runtime cannot load the model: {first_line(error)}") from None
        missing = set(providers) - set(self._session.get_providers())
        if missing:
            raise RuntimeUnavailable(f"ONNX Runtime has no {', '.join(sorted(missing))} on this machine")

    def run(self, inputs: Arrays) -> list[Any]:
        """The outputs, in the order of the model."""
        try:
            return list(self._session.run(None, dict(inputs)))
        except Exception as error:
            raise RunFailed(f"ONNX Runtime cannot run the model: {first_line(error)}") from None

    def seconds(self, inputs: Arrays) -> float:
        """The wall time of one run."""
        feed = dict(inputs)
        start = time.perf_counter()
        self._session.run(None, feed)
        return time.perf_counter() - start


def first_line(error: BaseException) -> str:
    """The first line of an error's text, at most 400 characters."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:400]


def opened(model: Model, source: bool = False, check: bool = False) -> Session:
    """A session on a model, or with `source` on the model as it was read; onnx's checker comes first if asked.

    A model above 1.5 GB goes through a file.
    """
    if _weight_bytes(model) < 1_500_000_000:
        content = serialize(model, source)
        if check:
            checked(content)
        return Session(content)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        save(model, path, source)
        if check:
            checked(str(path))
        return Session(str(path))


def _weight_bytes(model: Model) -> int:
    return sum(size(n.tensor) for n in model.nodes() if n.op == "weight" and n.dtype != "string")


SETTLED = 0.003
"""Seconds that the threads of a session that just ran keep spinning; runs of another session begun meanwhile are not counted."""


def interleaved(sessions: Sequence[Session], inputs: Arrays, seconds: float, least: int = 15) -> list[list[float]]:
    """Run times of every session, in turn A B B A A B ..., so that a drift of the machine meets all alike.

    A turn is a run to warm up and one that counts; of a fast model a block of runs, of which the median counts once the other
    sessions' threads have settled.
    """
    for session in sessions:
        session.run(inputs)
        session.run(inputs)
    times: list[list[float]] = [[] for _ in sessions]
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < least or (time.perf_counter() < end and rounds < 2000):
        order = range(len(sessions)) if rounds % 2 == 0 else reversed(range(len(sessions)))
        for i in order:
            times[i].append(_turn(sessions[i], inputs))
        rounds += 1
    return times


def _turn(session: Session, inputs: Arrays) -> float:
    start = time.perf_counter()
    first = session.seconds(inputs)  # with cold caches and the other session's threads: not counted
    if first > 10 * SETTLED:
        return session.seconds(inputs)
    counted: list[float] = []
    while len(counted) < 5:
        taken = session.seconds(inputs)
        if time.perf_counter() - start > SETTLED:
            counted.append(taken)
    return float(np.median(counted))


def providers() -> list[str]:
    """The execution providers that this ONNX Runtime was built with."""
    import onnxruntime

    return list(onnxruntime.get_available_providers())


def working_providers() -> list[str]:
    """The providers that really start here: a session on a tiny model is asked which of them it uses."""
    from taso_mirage.ir import Graph, Tensor, variable
    from taso_mirage.onnx_io.build import standalone
    from taso_mirage.ops import term

    x = variable("x", Tensor("float32", (1,)))
    content = serialize(standalone(Graph((x,), (term("relu", x),)), {"": 17}))
    return [p for p in providers() if _starts(content, p)]


def _starts(content: bytes, provider: str) -> bool:
    try:
        Session(content, [provider])
    except RuntimeUnavailable:
        return False
    return True


def device() -> str:
    """What the machine is, as a key for measurements: processor and the cores this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{_processor()} x{cores}"


def _processor() -> str:
    import platform

    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def version() -> str:
    """ONNX Runtime's version."""
    import onnxruntime

    return str(onnxruntime.__version__)
