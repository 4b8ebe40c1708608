"""Models of public reports in ONNX's textual form, with seeded weights."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import numpy as np
import onnx
import onnx.parser
from numpy.typing import NDArray
from onnx import numpy_helper

Builder = Callable[[], onnx.ModelProto]
Array = NDArray[np.generic]


def text(
    graph: str, more: str = "", functions: str = "", /, *, opset: int = 17, **weights: tuple[int, ...] | Array
) -> Builder:
    """A function that builds a model from ONNX's textual form.

    A weight is an array, or the shape of a random one in float32 with a seed of its name. `more`
    are further imports of operator sets.
    """

    def build() -> onnx.ModelProto:
        model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}{more}]> {graph} {functions}')
        arrays = {k: random(k, v) if isinstance(v, tuple) else v for k, v in weights.items()}
        model.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items())
        return model

    return build


def random(name: str, shape: tuple[int, ...]) -> Array:
    """Normally distributed float32 values with a seed of the name."""
    return np.random.default_rng(crc32(name.encode())).standard_normal(shape).astype(np.float32)


def positive(size: int, seed: int = 0) -> Array:
    """A float32 vector of values between 0.5 and 1.5, as of variances."""
    return np.random.default_rng(seed).uniform(0.5, 1.5, size).astype(np.float32)


def whole(*values: int) -> Array:
    """An int64 vector."""
    return np.array(values, np.int64)


def number(value: float, kind: type[np.generic] = np.float32) -> Array:
    """An array of rank 0."""
    return np.asarray(value, kind)
