"""A concatenation of the values of all steps with other tensors beside them."""

from __future__ import annotations

import onnx
import pytest
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


LONG = 70
"""Steps of which there are groups of groups, the last ones shorter."""


@pytest.mark.parametrize("axis", [0, 2])
def test_values_of_many_steps_are_joined_by_groups(axis: int) -> None:
    """Along an axis with several elements the strict checker decides equalities of groups, and one
    about all: that groups of groups are all."""
    proto = model(count=LONG)
    proto.graph.node[-1].attribute[0].i = axis
    shape = [2, 1, 2]
    shape[axis] *= LONG
    proto.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, shape))
    before, after, steps = stepped(proto)
    assert [count_of(each) for each in loops(after)] == [LONG]
    assert not any(n.op == "concat" and len(n.args) > 2 for n in after.nodes())
    proved = [each for each in steps[0].obligations if "concat" in {n.op for n in each.old}]
    assert len(proved) == 9 + 1 + 1 + 2
    assert sorted(len(each.over or ()) for each in proved)[-3:] == [8, LONG, LONG]
    followed(before, after, steps)
