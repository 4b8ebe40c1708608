"""The nine light models of the onnx wheel, with seeded random weights in place of their constants.

The wheel ships these networks of the model zoo with every weight filled by 0.02, which makes
numeric checks vacuous. Only the full size exists, so `small=True` and `small=False` both build it.
Initializers that the files also list among the graph inputs (as IR version 3 demanded) are dropped
from the inputs and the model becomes IR version 4, the one that belongs to its opset 9; the rest of
the graph is the original, but for the batch that is asked for.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

from models import weights

FILES = {
    "light_alexnet": "light_bvlc_alexnet.onnx",
    **{
        f"light_{name}": f"light_{name}.onnx"
        for name in (
            "zfnet512",
            "vgg19",
            "squeezenet",
            "inception_v1",
            "inception_v2",
            "resnet50",
            "shufflenet",
            "densenet121",
        )
    },
}

IR_VERSION_OF_OPSET_9 = 4
RESIDUAL_SCALE = 0.4
# The factor of the mean square by the last linear layer, where it is not one: these networks hand
# it a signal so large or so small that the softmax after it would be one-hot or uniform.
HEAD_GAIN = {"light_alexnet": 0.3, "light_inception_v1": 0.1, "light_resnet50": 4.0, "light_shufflenet": 0.001}


class Use(NamedTuple):
    """Where a weight is consumed: the node, the input's position, and whether the result is added
    to a shortcut."""

    node: onnx.NodeProto
    position: int
    is_residual: bool


def build(name: str, *, small: bool = True, seed: int = 0, batch: int = 1) -> onnx.ModelProto:
    """The light model `name`, of batch 1 in its file; `small` makes no difference here."""
    del small
    model = onnx.load(Path(onnx.__file__).parent / "backend/test/data/light" / FILES[name])
    graph = model.graph
    generator = np.random.default_rng(seed)
    uses = dict(_uses(graph))
    head = [node for node in graph.node if node.op_type in ("Conv", "Gemm")][-1]
    kept = {tensor.name: tensor for tensor in graph.initializer}
    for weight, shape in _float_weights(graph).items():
        if weight in uses:
            gain = HEAD_GAIN.get(name, 1.0) if uses[weight].node is head else 2.0
            kept[weight] = numpy_helper.from_array(_values(generator, uses[weight], shape, gain), weight)
    _replace_initializers(graph, kept)
    model.ir_version = IR_VERSION_OF_OPSET_9
    if batch != 1:
        _rebatch(graph, batch)
    return model


def _rebatch(graph: onnx.GraphProto, batch: int) -> None:
    """Give the inputs and outputs another batch; a reshape of a batch of one to a fixed shape keeps
    its first size (0)."""
    graph.ClearField("value_info")
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    fed = {value.name for value in graph.input}
    for node in graph.node:
        if fed.isdisjoint(node.input):
            continue
        fed.update(node.output)
        if node.op_type == "Reshape":
            shape = numpy_helper.to_array(tensors[node.input[1]])
            if shape[0] != 1:
                raise ValueError(
                    f"{node.output[0]} is reshaped to {shape.tolist()}, which does not begin with the batch"
                )
            name = f"{node.output[0]}_shape"
            graph.initializer.append(numpy_helper.from_array(np.array([0, *shape[1:]], np.int64), name))
            node.input[1] = name
    read = {name for node in graph.node for name in node.input}
    unread = [tensor for tensor in graph.initializer if tensor.name not in read]
    for tensor in unread:
        graph.initializer.remove(tensor)
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch


def _replace_initializers(graph: onnx.GraphProto, tensors: dict[str, onnx.TensorProto]) -> None:
    nodes = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    read = {name for node in nodes for name in node.input}
    fed = [value for value in graph.input if value.name not in tensors]
    for field in ("node", "initializer", "input"):
        graph.ClearField(field)
    graph.node.extend(nodes)
    graph.initializer.extend(tensor for name, tensor in tensors.items() if name in read)
    graph.input.extend(fed)


def _float_weights(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    """The shapes of all float weights: float initializers, and results of ConstantOfShape on
    integer ones."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    floats = (tensor for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT)
    shapes = {tensor.name: tuple(tensor.dims) for tensor in floats}
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            shapes[node.output[0]] = tuple(int(size) for size in numpy_helper.to_array(tensors[node.input[0]]))
    return shapes


def _uses(graph: onnx.GraphProto) -> Iterator[tuple[str, Use]]:
    """Every value with its consumer, looking through the reshapes that some files put behind a
    weight."""
    consumers = {name: (node, position) for node in graph.node for position, name in enumerate(node.input)}
    for name, (node, position) in consumers.items():
        while node.op_type in ("Unsqueeze", "Reshape") and node.output[0] in consumers:
            node, position = consumers[node.output[0]]
        after = consumers.get(node.output[0])
        yield name, Use(node, position, after is not None and after[0].op_type == "Sum")


def _values(generator: np.random.Generator, use: Use, shape: tuple[int, ...], gain: float) -> weights.Weights:
    match use.node.op_type, use.position:
        case "Conv", 1:
            return weights.linear(generator, shape, math.prod(shape[1:]), gain)
        case "Gemm", 1:
            transposed = any(attribute.name == "transB" and attribute.i for attribute in use.node.attribute)
            return weights.linear(generator, shape, shape[-1] if transposed else shape[-2], gain)
        case "BatchNormalization", 4:
            return weights.variance(generator, shape)
        case ("BatchNormalization", 1) | ("Mul", _):
            return weights.normal(generator, shape, RESIDUAL_SCALE if use.is_residual else 1.0, 0.1)
        case _:
            return weights.normal(generator, shape, 0.0, 0.1)
