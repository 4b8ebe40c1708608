"""Terms that are read from a model can be written again: in half precision before there was an
operator of that name, with sizes that a run gives; a term that cannot be written stays the node
that it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.terms import Tensor, variable
from taso_mirage.onnx_io import from_ir, from_proto, serialize
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.onnx_io.inlining import without_functions
from taso_mirage.operators.ops import Call, Op, get

NORM = """
<ir_version: 8, opset_import: ["" : {opset}]>
agraph (float16[3,4,{side}] x, float16[{side}] s, float16[{side}] b) => (float16[3,4,{side}] y) {{
  y = LayerNormalization <axis = -1, epsilon = 0.01> (x, s, b)
}}
"""
FREE_KERNELS = {
    "Conv": "y = Conv (x, w)",
    "ConvTranspose": "y = ConvTranspose (x, w)",
}
CONVOLUTION = """
<ir_version: 8, opset_import: ["" : 15]>
agraph (float[1,4,h,v] x, float[4,4,i,j] w) => (float[1,4,p,q] y) {{ {node} }}
"""
INTEGERS = """
<ir_version: 8, opset_import: ["" : 15]>
agraph (uint8[1,4,h,v] x, uint8[4,4,i,j] w) => (int32[1,4,p,q] y) { y = ConvInteger (x, w) }
"""


def read(text: str) -> Any:
    return from_ir(from_proto(parser.parse_model(text)))


def both(text: str, inputs: dict[str, Any]) -> tuple[Any, Any]:
    """The result of a model in the runtime, and that of the model written back."""
    written = serialize(read(text))
    given = parser.parse_model(text).SerializeToString()
    found = [onnxruntime.InferenceSession(each).run(None, inputs)[0] for each in (given, written)]
    return found[0], found[1]


@pytest.mark.parametrize("opset", [11, 15, 17])
def test_a_norm_in_half_precision_is_written_at_every_opset(opset: int) -> None:
    """Tools of the runtime fuse it into models of opsets that do not have it; its computation in
    single precision stays so."""
    text, rng = NORM.format(opset=opset, side=32), np.random.default_rng(0)
    assert [n.op for n in read(text).nodes() if n.args] == ["layer_norm"]
    x = rng.normal(300, 100, size=(3, 4, 32))  # whose squares are infinite in half precision
    inputs = {"x": x.astype(np.float16), "s": np.ones(32, np.float16), "b": np.zeros(32, np.float16)}
    wanted, found = both(text, inputs)
    assert np.abs(wanted).max() > 1
    np.testing.assert_allclose(found.astype(float), wanted.astype(float), atol=4e-3)
    names = {node.op_type for node in onnx.load_model_from_string(serialize(read(text))).graph.node}
    assert ("LayerNormalization" in names) == (opset >= 17)


@pytest.mark.parametrize("op", ["LayerNormalization", "RMSNormalization"])
def test_a_norm_in_double_precision_keeps_its_epsilon(op: str) -> None:
    """The runtime makes one operator of nodes with a power, in which it reads a double epsilon as
    if it was a float."""
    opset, rng = {"LayerNormalization": 15, "RMSNormalization": 22}[op], np.random.default_rng(0)
    text = f"""
    <ir_version: 8, opset_import: ["" : {opset}]>
    agraph (double[3,4,8] x, double[8] s) => (double[3,4,8] y) {{
      y = {op} <axis = -1, epsilon = 1.0> (x, s)
    }}
    """
    x, s = rng.normal(size=(3, 4, 8)), rng.normal(size=8)
    apart = x - x.mean(-1, keepdims=True) if op == "LayerNormalization" else x
    wanted = apart / np.sqrt((apart * apart).mean(-1, keepdims=True) + 1.0) * s
    (found,) = onnxruntime.InferenceSession(serialize(read(text))).run(None, {"x": x, "s": s})
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize("text", [*(CONVOLUTION.format(node=each) for each in FREE_KERNELS.values()), INTEGERS])
def test_a_kernel_of_free_sizes_says_no_sizes(text: str) -> None:
    model = read(text)
    (node,) = [n for n in model.nodes() if n.args]
    assert node.op != "opaque"
    written = onnx.load_model_from_string(serialize(model)).graph.node[0]
    assert "kernel_shape" not in [each.name for each in written.attribute]
    dtype = np.uint8 if "uint8" in text else np.float32
    x = np.arange(4 * 6 * 5).reshape(1, 4, 6, 5).astype(dtype)
    for sides in ((3, 2), (1, 4)):
        w = (np.arange(16 * sides[0] * sides[1]) % 7).reshape(4, 4, *sides).astype(dtype)
        wanted, found = both(text, {"x": x, "w": w})
        np.testing.assert_array_equal(found, wanted)


def test_what_cannot_be_written_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node of any operator is kept, whatever the reason, and says why."""

    def refused(op: Op, node: Any, opset: int) -> Any:
        raise Unsupported("no such thing here") if op.name == "layer_norm" else AssertionError(op.name)

    monkeypatch.setattr(Op, "to_onnx", refused)
    model = read(NORM.format(opset=17, side=4))
    monkeypatch.undo()
    (node,) = [n for n in model.nodes() if n.args]
    assert node.op == "opaque"
    assert model.opaque == {node: "no such thing here"}
    (written,) = onnx.load_model_from_string(serialize(model)).graph.node
    assert written.op_type == "LayerNormalization"


@pytest.mark.parametrize("value", [symbol("n"), (1, 2 * symbol("n"))])
def test_an_attribute_that_a_run_gives_is_refused(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the writer of any operator."""
    relu = get("relu")
    node = relu.term(variable("x", Tensor("float32", (2,))))
    assert relu.to_onnx(node, 17).op_type == "Relu"
    monkeypatch.setattr(Op, "_write", lambda op, node, opset: Call("Relu", node.args, {"sides": value}, opset))
    with pytest.raises(Unsupported, match=r"the attribute sides is .*n.*, which a run gives"):
        relu.to_onnx(node, 17)


def test_a_call_keeps_outputs_without_a_name() -> None:
    """ONNX Runtime refuses a call with fewer outputs than the function."""
    text = """
    <ir_version: 10, opset_import: ["" : 21, "own" : 1]>
    agraph (float[4] x) => (float[4] y) { unused_0 = own.outer (x)  y, "", "" = own.both (unused_0) }
    <domain: "own", opset_import: ["" : 21]>
    both (a, low) => (p, q, r) { p = Relu (a)  q = Neg (a)  r = Clip (a, low) }
    <domain: "own", opset_import: ["" : 21, "own" : 1]>
    outer (a) => (p) { "", p, "" = own.both (a) }
    """
    before, after = both(text, {"x": np.array([-1, 2, 3, -4], np.float32)})
    assert before.tolist() == after.tolist() == [1, 0, 0, 4]


def test_a_function_uses_a_result_that_its_call_omits() -> None:
    """onnx_ir gives the function's own value the empty name of the call's result."""
    text = """
    <ir_version: 10, opset_import: ["" : 21, "own" : 1]>
    agraph (float[4] x) => (float[4] y) { omitted_0 = Neg (x)  "", y = own.both (omitted_0) }
    <domain: "own", opset_import: ["" : 21]>
    both (a) => (p, q) { p = Relu (a)  q = Add (p, p) }
    """
    read = without_functions(from_memory(parser.parse_model(text)))
    assert [node.op for node in read.nodes()] == ["input", "neg", "relu", "add"]
    before, after = both(text, {"x": np.array([-1, 2, 3, -4], np.float32)})
    assert before.tolist() == after.tolist() == [2, 0, 0, 8]


def test_the_result_of_a_function_keeps_its_metadata() -> None:
    """A call whose function is inlined gives an output of the model."""
    text = """
    <ir_version: 10, opset_import: ["" : 21, "own" : 1]>
    agraph (float[4] x) => (float[4] y) { y = own.both (x) }
    <domain: "own", opset_import: ["" : 21]>
    both (a) => (p) { q = Neg (a)  p = Relu (q) }
    """
    proto = parser.parse_model(text)
    proto.graph.output[0].metadata_props.add(key="kind", value="USER_OUTPUT")
    read = without_functions(from_memory(proto))
    assert [node.op for node in read.nodes()] == ["input", "neg", "relu"]
    (output,) = onnx.load_from_string(serialize(read)).graph.output
    assert [(each.key, each.value) for each in output.metadata_props] == [("kind", "USER_OUTPUT")]
