"""The choice of an If's branch that replaces it: the only one with which the rest of the model
runs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from taso_mirage.onnx_io import serialize
from taso_mirage.onnx_io.branches import ALIKE, RANKS
from taso_mirage.onnx_io.files import from_memory

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'
RNG = np.random.default_rng(0)
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def parse(body: str, **weights: np.ndarray) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(HEADER + textwrap.dedent(body))
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights.items())
    return proto


def exported(after: str) -> onnx.ModelProto:
    """A model as torch writes `x.squeeze(-1)` for a size that it does not know, with given nodes
    after it."""
    return parse(
        f"""
        squeezed (float[b, 4, t] x) => (float[] y) <int64[1] last = {{-1}}, int64[1] one = {{1}}, int64[1] first = {{0}}> {{
          sizes = Shape (x)
          size = Gather (sizes, last)
          single = Equal (size, one)
          s = If (single) <then_branch = then () => (float[b, 4] a) {{ a = Squeeze (x, last) }},
                           else_branch = else () => (float[b, 4, t] e) {{ e = Identity (x) }}>
          {after}
        }}""",
        w=RNG.normal(size=(1, 4 * 5, 4)).astype(np.float32),
        r=RNG.normal(size=(1, 4 * 5, 5)).astype(np.float32),
    )


RECURRENT = """
    u = Unsqueeze (s, first)
    h, y, c = LSTM <hidden_size = 5> (u, w, r)
"""


def test_a_branch_after_which_the_model_does_not_run_is_left_out() -> None:
    """With a tensor of rank 3 the LSTM would have one of rank 4."""
    proto = exported(RECURRENT)
    model = from_memory(proto)
    assert not [n for n in model.nodes() if n.op == "opaque" and n.attr("call").node.op_type == "If"]
    written = onnx.load_model_from_string(serialize(model))
    assert "If" not in [node.op_type for node in written.graph.node]
    original, ours = (onnxruntime.InferenceSession(each.SerializeToString()) for each in (proto, written))
    for batch in (1, 3):
        given = {"x": RNG.normal(size=(batch, 4, 1)).astype(np.float32)}
        np.testing.assert_array_equal(original.run(None, given)[0], ours.run(None, given)[0])
    for session in (original, ours):
        with pytest.raises(Exception, match=r"rank|dimension|Squeeze"):
            session.run(None, {"x": RNG.normal(size=(2, 4, 3)).astype(np.float32)})


@pytest.mark.parametrize(
    "after",
    [
        "y = Relu (s)",  # both run
        RECURRENT.replace("y, c", "g, c") + "y = Relu (s)",  # no output needs the refused operator
        "v = Unsqueeze (s, first)\n z = Unsqueeze (v, first)\n h, y, c = LSTM <hidden_size = 5> (z, w, r)",  # none runs
    ],
)
def test_other_branches_stay(after: str) -> None:
    proto = exported(after)
    model = from_memory(proto)
    assert [n for n in model.nodes() if n.op == "opaque" and n.attr("call").node.op_type == "If"]


def test_a_decided_branch_decides_those_behind_it() -> None:
    """The value after the first branch has a rank, so that a question for it is a constant."""
    proto = exported("""
        q = Shape (s)
        rank = Size (q)
        pair = Add (one, one)
        flat = Equal (rank, pair)
        u = If (flat) <then_branch = flat () => (float[b, 4] f) { f = Identity (s) },
                       else_branch = batched () => (float[1, b, 4, t] d) { d = Unsqueeze (s, first) }>
        v = Unsqueeze (u, first)
        h, y, c = LSTM <hidden_size = 5> (v, w, r)
    """)
    model = from_memory(proto)
    assert "If" not in {n.attr("call").node.op_type for n in model.nodes() if n.op == "opaque"}
    given = {"x": RNG.normal(size=(2, 4, 1)).astype(np.float32)}
    found = [
        onnxruntime.InferenceSession(each).run(None, given)[0] for each in (proto.SerializeToString(), serialize(model))
    ]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(("kind", "place"), [(kind, i) for kind, ranks in RANKS.items() for i in range(len(ranks))])
def test_the_runtime_runs_no_such_operator_with_another_rank(kind: str, place: int) -> None:
    gates = GATES[kind]
    shapes, attributes = [(6, 2, 3), (1, gates * 5, 3), (1, gates * 5, 5)], {"hidden_size": 5}
    run(kind, shapes, attributes)
    for wrong in ((*shapes[place], 1), (1, *shapes[place]), shapes[place][1:]):
        with pytest.raises(Exception, match=r"Status Message"):
            run(kind, [wrong if i == place else shape for i, shape in enumerate(shapes)], attributes)


@pytest.mark.parametrize("kind", sorted(ALIKE))
def test_the_runtime_runs_no_convolution_with_a_kernel_of_another_rank(kind: str) -> None:
    x, kernel = (1, 2, 5, 5), (2, 2, 3, 3)
    run(kind, [x, kernel], {})
    for wrong in ((1, 2, 5), (1, 2, 5, 5, 1), (2, 5)):
        with pytest.raises(Exception, match=r"Status Message"):
            run(kind, [wrong, kernel], {})


def run(kind: str, shapes: Sequence[Sequence[int]], attributes: dict[str, int]) -> None:
    """One operator whose operands have no declared rank."""
    names = [f"i{k}" for k in range(len(shapes))]
    node = helper.make_node(kind, names, ["y"], **attributes)
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
    graph = helper.make_graph([node], "one", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    session.run(None, {name: np.ones(shape, np.float32) for name, shape in zip(names, shapes, strict=True)})
