"""A concatenation of the values of all steps with other tensors beside them."""

from __future__ import annotations

import onnx
from written_chains import COUNT, count_of, followed, loops, model, stepped


def test_values_are_joined_with_others() -> None:
    """Along the last axis, with a wider tensor: each of two equalities is decided by the strict
    checker, and the one of both is not."""
    proto = model()
    join = proto.graph.node[-1]
    join.input[:] = ["first", *(f"y{t}" for t in range(1, COUNT + 1)), "h0"]
    proto.graph.input.append(onnx.helper.make_tensor_value_info("first", onnx.TensorProto.FLOAT, (2, 5)))
    proto.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, (2, 9 + 2 * COUNT)))
    before, after, steps = stepped(proto)
    assert [count_of(each) for each in loops(after)] == [COUNT]
    followed(before, after, steps)
