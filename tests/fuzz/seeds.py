"""Small models that together have every feature of a model file; random ones are made of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
OPSETS = [helper.make_opsetid("", 18)]


def weight(name: str, *shape: int) -> onnx.TensorProto:
    size = int(np.prod(shape))
    return numpy_helper.from_array(np.linspace(-1, 1, size, dtype=np.float32).reshape(shape), name)


def ints(name: str, *values: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def value(name: str, *shape: int | str, dtype: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def made(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Sequence[onnx.TensorProto] = (),
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    opsets = [*OPSETS, helper.make_opsetid("local", 1)] if functions else OPSETS
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, [i if i != "-" else "" for i in inputs.split()], outputs.split(), **attributes)


def convolution() -> onnx.ModelProto:
    nodes = [
        node("Conv", "x w b", "c", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c s t m v", "n"),
        node("Relu", "n", "r"),
        node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Pad", "p pads", "q"),
        node("GlobalAveragePool", "q", "g"),
        node("Flatten", "g", "y"),
    ]
    weights = [weight("w", 4, 3, 3, 3), *(weight(n, 4) for n in "bstm"), numpy_helper.from_array(np.ones(4, "f"), "v")]
    return made(nodes, [value("x", 1, 3, 8, 8)], [value("y", 1, 4)], [*weights, ints("pads", 0, 0, 1, 1, 0, 0, 1, 1)])


def attention() -> onnx.ModelProto:
    nodes = [
        node("MatMul", "x wq", "q"),
        node("MatMul", "x wk", "k"),
        node("MatMul", "x wv", "v"),
        node("Transpose", "k", "kt", perm=[0, 2, 1]),
        node("MatMul", "q kt", "a"),
        node("Mul", "a half", "h"),
        node("Softmax", "h", "p", axis=-1),
        node("MatMul", "p v", "o"),
        node("Add", "o x", "r"),
        node("LayerNormalization", "r one one", "y", axis=-1),
    ]
    weights = [
        *(weight(f"w{n}", 8, 8) for n in "qkv"),
        weight("one", 8),
        numpy_helper.from_array(np.float32(0.5), "half"),
    ]
    return made(nodes, [value("x", "batch", 6, 8)], [value("y", "batch", 6, 8)], weights)


def branch(name: str, *nodes: onnx.NodeProto, output: str) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [value(output, "n", 4)])


def control() -> onnx.ModelProto:
    body = helper.make_graph(
        [node("Identity", "go", "on"), node("Add", "s one", "t"), node("Mul", "t t", "u")],
        "body",
        [value("i", dtype=INT64), value("go", dtype=onnx.TensorProto.BOOL), value("s", "n", 4)],
        [value("on", dtype=onnx.TensorProto.BOOL), value("t", "n", 4), value("u", "n", 4)],
    )
    nodes = [
        node("ReduceSum", "x", "total", keepdims=0),
        node("Greater", "total zero", "c"),
        helper.make_node(
            "If",
            ["c"],
            ["z"],
            then_branch=branch("yes", node("Relu", "x", "a"), output="a"),
            else_branch=branch("no", node("Add", "x w", "b"), output="b"),
        ),
        helper.make_node("Loop", ["three", "", "z"], ["l", "all"], body=body),
        node("Add", "l z", "y"),
    ]
    weights = [weight("w", 4), weight("one", 4), ints("three", 3), numpy_helper.from_array(np.float32(0), "zero")]
    weights[2].dims[:] = []
    return made(nodes, [value("x", "n", 4)], [value("y", "n", 4)], weights)


def functions() -> onnx.ModelProto:
    inner = helper.make_function(
        "local", "Inner", ["a"], ["b"], [node("Relu", "a", "r"), node("Mul", "r r", "b")], OPSETS, ["alpha"]
    )
    outer = helper.make_function(
        "local",
        "Outer",
        ["a", "c"],
        ["b"],
        [
            helper.make_node("Inner", ["a"], ["i"], domain="local", alpha=1.0),
            helper.make_node(
                "If",
                ["c"],
                ["b"],
                then_branch=branch("yes", helper.make_node("Constant", [], ["k"], value=weight("k", 1, 4)), output="k"),
                else_branch=branch("no", node("Neg", "i", "m"), output="m"),
            ),
        ],
        [*OPSETS, helper.make_opsetid("local", 1)],
    )
    nodes = [
        node("ReduceMax", "x", "top", keepdims=0),
        node("Cast", "top", "c", to=onnx.TensorProto.BOOL),
        helper.make_node("Outer", ["x", "c"], ["z"], domain="local"),
        node("Add", "z x", "y"),
    ]
    return made(nodes, [value("x", 1, 4)], [value("y", 1, 4)], (), [inner, outer])


def quantized() -> onnx.ModelProto:
    zero = numpy_helper.from_array(np.uint8(128), "z")
    scale = numpy_helper.from_array(np.float32(0.02), "s")
    packed = numpy_helper.from_array(np.arange(32, dtype=np.uint8).reshape(8, 4), "w")
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("DequantizeLinear", "q s z", "d"),
        node("DequantizeLinear", "w s z", "e"),
        node("MatMul", "d e", "m"),
        node("DynamicQuantizeLinear", "m", "a b c"),
        node("MatMulInteger", "a w2 c", "i"),
        node("Cast", "i", "f", to=FLOAT),
        node("Mul", "f b", "y"),
    ]
    other = numpy_helper.from_array(np.arange(-8, 8, dtype=np.int8).reshape(4, 4), "w2")
    return made(nodes, [value("x", 2, 8)], [value("y", 2, 4)], [zero, scale, packed, other])


def shapes() -> onnx.ModelProto:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s first", "n", axis=0),
        node("Slice", "s one two", "m"),
        node("Concat", "n minus", "t", axis=0),
        node("Reshape", "x t", "r"),
        node("ConstantOfShape", "s", "k"),
        node("Add", "x k", "a"),
        node("Split", "r", "u v", axis=1, num_outputs=2),
        node("Concat", "v u", "w", axis=1),
        node("Resize", "image - scales", "z", mode="nearest"),
        node("Gather", "table ids", "g", axis=0),
        node("Where", "mask g zero", "y2"),
    ]
    weights = [ints("first", 0), ints("one", 1), ints("two", 2), ints("minus", -1), weight("table", 10, 4)]
    weights += [numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")]
    weights += [numpy_helper.from_array(np.float32(0), "zero")]
    inputs = [
        value("x", "n", 4),
        value("image", 1, 1, 3, 3),
        value("ids", "n", dtype=INT64),
        value("mask", "n", 1, dtype=onnx.TensorProto.BOOL),
    ]
    outputs = [value("a", "n", 4), value("w", "n", 4), value("z", 1, 1, 6, 6), value("y2", "n", 4)]
    return made(nodes, inputs, outputs, weights)


def others() -> onnx.ModelProto:
    """Sequences, strings, half precision, integers, a recurrent layer, constants of every kind, and
    numbers in typed fields."""
    typed = helper.make_tensor("typed", FLOAT, [2, 2], [1.0, 2.0, 3.0, 4.0])
    nodes = [
        node("SequenceConstruct", "x x", "seq"),
        node("SequenceAt", "seq index", "at"),
        helper.make_node("Constant", [], ["words"], value_strings=["a", "b"]),
        helper.make_node("Constant", [], ["numbers"], value_floats=[1.0, 2.0]),
        node("Identity", "words", "said"),
        node("Cast", "at", "half", to=onnx.TensorProto.FLOAT16),
        node("MatMul", "half square", "product"),
        node("Transpose", "product", "turned", perm=[1, 0]),
        node("Cast", "turned", "back", to=FLOAT),
        node("Add", "back typed", "y"),
        node("Mul", "y numbers", "y3"),
        node("Div", "count two", "y4"),
        node("TopK", "y3 one", "best where", axis=1),
        node("LSTM", "steps w r", "h", hidden_size=2),
    ]
    square = numpy_helper.from_array(np.eye(2, dtype=np.float16), "square")
    weights = [
        typed,
        square,
        ints("two", 2),
        ints("one", 1),
        ints("index", 1),
        weight("w", 1, 8, 3),
        weight("r", 1, 8, 2),
    ]
    weights[4].dims[:] = []
    inputs = [value("x", 2, 2), value("count", 3, dtype=INT64), value("steps", 4, 1, 3)]
    outputs = [
        value("said", 2, dtype=onnx.TensorProto.STRING),
        value("y3", 2, 2),
        value("y4", 3, dtype=INT64),
        value("best", 2, 1),
        value("where", 2, 1, dtype=INT64),
        value("h", 4, 1, 1, 2),
    ]
    return made(nodes, inputs, outputs, weights)


SEEDS = (convolution, attention, control, functions, quantized, shapes, others)


@cache
def contents() -> tuple[bytes, ...]:
    """The models as files, each accepted by the checker."""
    found = [seed() for seed in SEEDS]
    for model in found:
        onnx.checker.check_model(model)
    return tuple(model.SerializeToString() for model in found)
