"""Models that are built node by node, of all kinds of values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h

from taso_mirage.ir.model import Model
from taso_mirage.onnx_io import from_ir
from taso_mirage.onnx_io.protos import from_proto

V = h.make_tensor_value_info
F = T.FLOAT


def proto(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    **weights: Any,
) -> onnx.ModelProto:
    initializers = [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()]
    imports = [h.make_opsetid("", 15), h.make_opsetid("ai.onnx.ml", 1)]
    graph = h.make_graph(list(nodes), "g", list(inputs), list(outputs), initializers)
    return h.make_model(graph, opset_imports=imports, ir_version=8)


def read(made: onnx.ModelProto) -> Model:
    return from_ir(from_proto(made))


def large_kernel() -> onnx.ModelProto:
    """A convolution of 15 x 15: images of 8 x 8 are too small."""
    conv = h.make_node("Conv", ["image", "w"], ["c"], kernel_shape=[15, 15])
    return proto(
        [conv, h.make_node("Relu", ["c"], ["y"])],
        [V("image", F, ["n", 1, "height", "width"])],
        [V("y", F, ["n", 2, None, None])],
        w=np.ones((2, 1, 15, 15), np.float32),
    )


def branches() -> onnx.ModelProto:
    """A rate of 16000 takes the branch that runs; all others cut more than there is (Silero's
    detector of voices)."""
    good = h.make_graph([h.make_node("Relu", ["x"], ["a"])], "then", [], [V("a", F, ["n"])])
    bad = h.make_graph([h.make_node("Reshape", ["x", "seven"], ["b"])], "else", [], [V("b", F, [7])])
    nodes = [
        h.make_node("Equal", ["rate", "known"], ["same"]),
        h.make_node("If", ["same"], ["r"], then_branch=good, else_branch=bad),
        h.make_node("Neg", ["r"], ["m"]),
        h.make_node("Neg", ["m"], ["y"]),
    ]
    return proto(
        nodes,
        [V("x", F, ["n"]), V("rate", T.INT64, [])],
        [V("y", F, ["n"])],
        known=np.array(16000),
        seven=np.array([7]),
    )


def sequence_given() -> onnx.ModelProto:
    nodes = [h.make_node("SequenceAt", ["s", "one"], ["a"]), h.make_node("Relu", ["a"], ["y"])]
    return proto(nodes, [h.make_tensor_sequence_value_info("s", F, None)], [V("y", F, ["n", 4])], one=np.array(1))


def map_given() -> onnx.ModelProto:
    value = onnx.ValueInfoProto(name="d")
    value.type.map_type.key_type = T.STRING
    value.type.map_type.value_type.tensor_type.elem_type = F
    node = h.make_node("DictVectorizer", ["d"], ["y"], domain="ai.onnx.ml", string_vocabulary=["a", "b"])
    return proto([node], [value], [V("y", F, [1, 2])])
