"""One side of a pair in ONNX Runtime, in the process of `measure.child`."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import onnxruntime

from taso_mirage.errors import RunFailed
from taso_mirage.targets.onnx_runtime import run_session

Ran = list[Any] | str
"""The outputs of a run, or the reason why it has none."""


def side(content: bytes, feeds: Sequence[Mapping[str, Any]], optimized: bool) -> list[Ran] | str:
    """The outputs of a model on each of several inputs; a text where it cannot be loaded. Without
    optimizations the kernels are those of the operators as they are written."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.enable_cpu_mem_arena = False
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    with _dirty_memory():
        try:
            session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's errors share no base class of its own
            return str(error)[:300]
        return [_run(session, feed) for feed in feeds]


PERTURB, FILL = -6, 0x99
"""glibc's M_PERTURB, and the complement of the byte that memory has then before it is written."""


@contextmanager
def _dirty_memory() -> Iterator[None]:
    """Fill freed memory with nonzero bytes, where the C library is glibc, so that elements that a
    kernel leaves unset are not zero by chance."""
    option = getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)
    option(PERTURB, FILL)
    try:
        yield
    finally:
        option(PERTURB, 0)


def _run(session: Any, feed: Mapping[str, Any]) -> Ran:
    try:
        return run_session(session, feed)
    except RunFailed as error:
        return str(error)[:300]
