"""hard_swish before there was an operator of that name."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from small_models import F, ops, w

from taso_mirage.ir.model import StoredWeight
from taso_mirage.ir.terms import Graph, Tensor, constant, variable
from taso_mirage.onnx_io import serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term
from taso_mirage.rewriting.index import Rules
from taso_mirage.search.passes import Context, simplify
from taso_mirage.search.rulesets import rules


@pytest.mark.parametrize("opset", [7, 11, 13, 14])
def test_hard_swish_is_written_at_every_opset_and_part_of_a_convolution(opset: int) -> None:
    """Where there is no operator of that name, as ONNX defines it, by HardSigmoid."""
    x, kernel = variable("x", Tensor(F, (1, 16, 6, 6))), w(16, 16, 3, 3, name="k")
    conv = term("conv", x, kernel, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1))
    weights = {"k": StoredWeight(np.random.default_rng(0).normal(size=(16, 16, 3, 3)).astype(np.float32))}
    graph = Graph((x,), (term("hard_swish", conv),))
    written = serialize(standalone(graph, {"": opset}, weights))
    names = [node.op_type for node in onnx.load_model_from_string(written).graph.node]
    assert names == (["Conv", "HardSwish"] if opset >= 14 else ["Conv", "HardSigmoid", "Mul"])
    plain = serialize(standalone(Graph((x,), (conv,)), {"": opset}, weights))
    given = {"x": np.random.default_rng(1).normal(size=(1, 16, 6, 6)).astype(np.float32)}
    (found,), (y,) = (onnxruntime.InferenceSession(each).run(None, given) for each in (written, plain))
    np.testing.assert_allclose(found, y * np.clip(y + 3, 0, 6) / 6, atol=1e-5)


def test_exported_hard_swish_becomes_one_term_at_old_opsets() -> None:
    """Paddle writes four nodes, which keep the runtime's blocked layout from the next
    convolution."""
    x = variable("x", Tensor(F, (2, 3)))
    clipped = term("clip", term("add", x, constant(3.0, F)), constant(0.0, F), constant(6.0, F))
    exported = term("div", term("mul", x, clipped), constant(6.0, F))
    found, _ = simplify((exported,), Rules(rules()), Context({"": 11}, {}))
    assert ops(found) == ["hard_swish"]
