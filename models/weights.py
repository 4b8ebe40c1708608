"""Seeded random weights with which activations neither explode nor vanish."""

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

Weights: TypeAlias = NDArray[np.float32]


def normal(generator: np.random.Generator, shape: Sequence[int], mean: float = 0.0, deviation: float = 1.0) -> Weights:
    """Independent normal values in float32."""
    values = generator.standard_normal(tuple(shape), dtype=np.float32)
    values *= np.float32(deviation)
    values += np.float32(mean)
    return values


def linear(generator: np.random.Generator, shape: Sequence[int], fan_in: int, gain: float = 1.0) -> Weights:
    """Weights for which an input of mean square q gives an output of mean square gain * q."""
    return normal(generator, shape, deviation=math.sqrt(gain / fan_in))


def variance(generator: np.random.Generator, shape: Sequence[int]) -> Weights:
    """The running variance of a normalization: positive, and near one."""
    return generator.uniform(0.8, 1.25, tuple(shape)).astype(np.float32)


def from_checkpoint(model: onnx.ModelProto, dtype: str) -> onnx.ModelProto:
    """The model in float32 as if its matrices came from a checkpoint in `dtype`, "bfloat16" or
    "float16": rounded to its numbers."""
    kinds = {"bfloat16": onnx.TensorProto.BFLOAT16, "float16": onnx.TensorProto.FLOAT16}
    if dtype not in kinds:
        raise ValueError(f"a checkpoint in {dtype!r}; it is one of {', '.join(kinds)}")
    narrow = onnx.helper.tensor_dtype_to_np_dtype(kinds[dtype])
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) > 1:
            rounded = numpy_helper.to_array(tensor).astype(narrow).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))
    return model
