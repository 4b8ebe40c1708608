"""Runs of models in ONNX Runtime as they are, on numbers of several sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from fuzz.generated.kernels import text
from fuzz.generated.values import BFLOAT, EVERY, FLOATS, HALF, STRING

FREE = 4
"""Elements of a dim that has no number."""
DTYPES = {text(dtype): dtype for dtype in (*EVERY, STRING)}


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """The model without the runtime's optimizations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def feedable(running: onnxruntime.InferenceSession) -> bool:
    """Whether numpy has the dtypes of inputs and outputs."""
    return not any(text(BFLOAT) in each.type for each in (*running.get_inputs(), *running.get_outputs()))


def feeds(running: onnxruntime.InferenceSession, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Inputs by name: normal ones, large ones, small whole numbers."""
    for how, scale in enumerate((1, 30, 7)):
        rng = np.random.default_rng([seed, how])
        found: dict[str, Any] = {}
        for each in running.get_inputs():
            shape = [d if isinstance(d, int) else FREE for d in each.shape]
            dtype, numbers = DTYPES[each.type], rng.normal(size=shape) * scale
            numbers = np.round(numbers) if how == 2 else numbers
            if dtype == STRING:
                found[each.name] = np.full(shape, "a b", object)
            else:
                kind = helper.tensor_dtype_to_np_dtype(dtype)
                found[each.name] = np.asarray(numbers if dtype in FLOATS else np.abs(numbers)).astype(kind)
        yield found


def near(a: Any, b: Any) -> bool:
    """Whether results differ by no more than rounding."""
    if isinstance(a, list):
        return len(a) == len(b) and all(map(near, a, b))
    if a is None or b is None:
        return a is b
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind != "f":
        return bool((a == b).all())
    most = float(np.abs(a[np.isfinite(a)]).max(initial=0))
    unit = 2e-2 if a.dtype == helper.tensor_dtype_to_np_dtype(HALF) else 1e-4
    return bool(np.allclose(a, b, rtol=unit, atol=unit * most, equal_nan=True))
