"""The times of `recurrent.py` on a GPU: both files in sessions of a child process with inputs on
the device, all in turn, and PyTorch there."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from minute import target_of
from recurrent_models import RULES, agree, has_loop, inputs, own_operator
from recurrent_torch import Runs

from taso_mirage.measure import native
from taso_mirage.measure import session as runtime
from taso_mirage.onnx_io import load

SECONDS = 1.0
"""Seconds for the runs of all files in turn, and for those of one form of PyTorch's."""
LEAST = 5
"""Runs of PyTorch."""


def timed(name: str, t: int, folder: Path, with_torch: bool) -> dict[str, Any]:
    """The lower quartiles of the seconds of one model at one length."""
    paths = {"original": folder / "before.onnx", "ours": folder / "after.onnx"}
    feed = inputs(onnx.load(paths["original"]))
    there = {
        key: runtime.open_in_child(load(path, trust_kernels=True), target_of(path, "cuda"), source=True)
        for key, path in paths.items()
    }
    wanted = there["original"].run(feed)
    agree(wanted, there["ours"].run(feed))
    times = runtime.interleaved([*there.values()], feed, SECONDS)
    found: dict[str, Any] = {key: quartile(some) for key, some in zip(there, times, strict=True)}
    if name in RULES:
        found |= attempted("operator", lambda: operator(RULES[name], t, folder))
    model = onnx.load(paths["original"])
    if with_torch and has_loop(model):
        found["torch"] = torch.__version__
        for key, compiled, captured in (
            ("eager", False, False),
            ("compiled", True, False),
            ("captured", True, True),
        ):
            found |= attempted(key, lambda: in_torch(model, feed, wanted, compiled, captured))  # noqa: B023
    return found


def quartile(times: list[float]) -> float:
    return float(np.percentile(times, 25))


def attempted(key: str, seconds: Callable[[], float]) -> dict[str, Any]:
    """The figure of a peer; one that fails has none, and the reason."""
    try:
        return {key: seconds()}
    except Exception as error:
        return {f"{key} failed": f"{type(error).__name__}: {native.first_line(error)}"}


def operator(rule: str, t: int, folder: Path) -> float:
    """The seconds of ONNX Runtime's own operator."""
    own, feed = own_operator(rule, t)
    onnx.save(own, folder / "own.onnx")
    session = runtime.open_in_child(load(folder / "own.onnx"), target_of(folder / "own.onnx", "cuda"), source=True)
    return quartile(runtime.interleaved([session], feed, SECONDS)[0])


def in_torch(
    model: onnx.ModelProto, feed: Mapping[str, np.ndarray], wanted: list[Any], compiled: bool, captured: bool
) -> float:
    """The seconds of PyTorch on a loop."""
    there = Runs(model, feed, compiled, "cuda")
    given = there.moved(feed)
    agree(wanted, [each.cpu().numpy() for each in there.results(given)])
    call = graph_of(there, given) if captured else lambda: there.results(given)
    found: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(found) < LEAST or time.perf_counter() < end:
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return quartile(found)


def graph_of(there: Runs, given: Mapping[str, torch.Tensor]) -> Callable[[], Any]:
    """All steps of a loop in one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        there.results(given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        there.results(given)
    return graph.replay
