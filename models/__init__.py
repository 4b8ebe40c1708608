"""Real architectures with seeded random weights, built without downloads: `build(name)`, and
`inputs(model)` for it."""

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from models import exporter, light, weights

EXPORTED = {
    "bert": "transformer",
    "llama": "transformer",
    "llama_decode": "transformer",
    "llama_lora": "transformer",
    "vit": "transformer",
    "mini_transformer": "transformer",
    "resnet18": "basic",
    "resnet3d18": "basic",
    "resnet50": "resnet",
    "resnext50": "resnet",
    "mobilenet_v2": "mobilenet",
    "inception_v3": "inception",
    "nasnet_a": "nasnet",
    "csrnet": "csrnet",
    "decoder": "decoder",
    "experts": "experts",
}

NAMES: tuple[str, ...] = (*EXPORTED, *light.FILES)

UNKNOWN_VOCABULARY = 32
UNKNOWN_SIZE = 2


def build(
    name: str, *, small: bool = True, seed: int = 0, checkpoint: str | None = None, **options: Any
) -> onnx.ModelProto:
    """The model `name`; `options` are the keyword arguments of its builder, such as `batch` or
    `dynamic`.

    `checkpoint` is a dtype, "bfloat16" or "float16": the matrices have its numbers, as those of a
    model that was exported from such a checkpoint in float32.
    """
    model = _built(name, small, seed, options)
    return model if checkpoint is None else weights.from_checkpoint(model, checkpoint)


def _built(name: str, small: bool, seed: int, options: Mapping[str, Any]) -> onnx.ModelProto:
    if name in light.FILES:
        _check_options(name, light.build, options)
        return light.build(name, small=small, seed=seed, **options)
    if name not in EXPORTED:
        raise ValueError(f"no model is named {name!r}; the names are {', '.join(NAMES)}")
    exporter.require("torch")
    builder = getattr(importlib.import_module(f"models.{EXPORTED[name]}"), name)
    _check_options(name, builder, options)
    model: onnx.ModelProto = builder(small=small, seed=seed, **options)
    return model


def module(name: str, **options: Any) -> tuple[Any, dict[str, Any]]:
    """The torch module behind an exported model, and its inputs by name; `options` are those of
    `build`."""
    if name not in EXPORTED:
        raise ValueError(f"{name!r} has no torch module; those that have one are {', '.join(EXPORTED)}")
    try:
        with exporter.intercept():
            build(name, **options)
    except exporter.Intercepted as found:
        return found.module, dict(found.arguments)
    raise AssertionError(f"the builder of {name!r} exports nothing")


def _check_options(name: str, builder: Any, options: Mapping[str, Any]) -> None:
    allowed = [option for option in inspect.signature(builder).parameters if option not in ("name", "small", "seed")]
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        raise TypeError(f"{name} has no option {', '.join(unknown)}; its options are {', '.join(allowed) or 'none'}")


def inputs(model: onnx.ModelProto, seed: int = 0, sizes: Mapping[str, int] | None = None) -> dict[str, NDArray[Any]]:
    """Random inputs for a model: token ids within its vocabulary, ones for masks, normal floats.

    `sizes` gives the dynamic dimensions by name; one that it does not name is two.
    """
    generator = np.random.default_rng(seed)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    values: dict[str, NDArray[Any]] = {}
    for value in model.graph.input:
        if value.name not in weights:
            shape = [_size(dimension, sizes or {}) for dimension in value.type.tensor_type.shape.dim]
            values[value.name] = _random(generator, model, value, shape)
    return values


def _size(dimension: onnx.TensorShapeProto.Dimension, sizes: Mapping[str, int]) -> int:
    if dimension.HasField("dim_value"):
        return int(dimension.dim_value)
    return sizes.get(dimension.dim_param, UNKNOWN_SIZE)


def _random(
    generator: np.random.Generator, model: onnx.ModelProto, value: onnx.ValueInfoProto, shape: list[int]
) -> NDArray[Any]:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    if dtype.kind == "b" or "mask" in value.name:
        return np.ones(shape, dtype)
    if dtype.kind in "iu":
        return generator.integers(0, _vocabulary(model, value.name), shape).astype(dtype)
    return generator.standard_normal(shape).astype(dtype)


def _vocabulary(model: onnx.ModelProto, name: str) -> int:
    """How many rows the table has that this input gathers from."""
    rows = {tensor.name: tensor.dims[0] for tensor in model.graph.initializer if tensor.dims}
    tables = [node.input[0] for node in model.graph.node if node.op_type == "Gather" and node.input[1] == name]
    return min((rows[table] for table in tables if table in rows), default=UNKNOWN_VOCABULARY)
