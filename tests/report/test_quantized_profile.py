"""`inspect --profile`: the nodes of a quantized model that run in integers, the others and the
reasons, told by the runtime's own model; and activations in int8 as uint8, which mends most of
it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from commandline import run
from fuzzed import fuzz
from onnx import numpy_helper

from taso_mirage.errors import RunFailed
from taso_mirage.ir.terms import Tensor, constant, variable
from taso_mirage.measure.session import Session
from taso_mirage.measure.target import UNOPTIMIZED
from taso_mirage.onnx_io import from_ir, from_proto, serialize
from taso_mirage.operators.ops import get
from taso_mirage.prove.symbolic import Proved, prove_symbolic
from taso_mirage.report.quantized import runtime_profile
from taso_mirage.rewriting.equation import instantiate
from taso_mirage.rewriting.index import Rules
from taso_mirage.rewriting.library import parse_attributes, parse_given
from taso_mirage.rewriting.text import law_typing, laws, parse_equation
from taso_mirage.search.config import Config
from taso_mirage.search.passes import Context
from taso_mirage.search.rulesets import rules
from taso_mirage.search.simultaneous import all_at_once, laws_together

HEAD = '<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>'
CHANNELS = 8
SCALES = {"s": 0.05, "s2": 0.07, "s3": 0.09, "ws": 0.02}


def quantized(body: str, shape: str = f"1,{CHANNELS},6,6", **more: Any) -> onnx.ModelProto:
    """A model of `x` to `y`: scales, zeros of both signs (`z` of int8, `u` of uint8), a kernel `w`
    and a bias `b` with the scale `bs` of sums of products."""
    model = onnx.parser.parse_model(f"{HEAD} g (float[{shape}] x) => (float[{shape}] y) {{ {body} }}")
    rng = np.random.default_rng(0)
    held = {name: np.float32(value) for name, value in SCALES.items()}
    held |= {"z": np.int8(3), "u": np.uint8(131), "wz": np.int8(0), "bz": np.int32(0)}
    held |= {"w": rng.integers(-99, 99, (CHANNELS, CHANNELS, 3, 3)).astype(np.int8)}
    held |= {"b": rng.integers(-99, 99, CHANNELS).astype(np.int32), "bs": np.float32(SCALES["s"] * SCALES["ws"])}
    held |= more
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), k) for k, v in held.items() if k in used)
    for node in model.graph.node:
        node.name = f"the_{node.output[0]}"
    return model


def around(zero: str, *nodes: str, scale: str = "s") -> str:
    """Nodes from `d` to `r`, with the quantizers around them."""
    return f"""
        q = QuantizeLinear (x, s, {zero}) d = DequantizeLinear (q, s, {zero})
        {" ".join(nodes)}
        p = QuantizeLinear (r, {scale}, {zero}) y = DequantizeLinear (p, {scale}, {zero})
    """


KERNEL = "k = DequantizeLinear (w, ws, wz) c = DequantizeLinear (b, bs, bz)"
CONV = f"{KERNEL} r = Conv <pads = [1, 1, 1, 1]> (d, k, c)"
SHORTCUT = f"""{KERNEL} v = Conv <pads = [1, 1, 1, 1]> (d, k, c)
    vq = QuantizeLinear (v, s2, Z) vd = DequantizeLinear (vq, s2, Z) r = Add (vd, d)"""


def found(model: onnx.ModelProto, place: Path) -> dict[str, Any]:
    path = place / "m.onnx"
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())
    return runtime_profile(from_proto_model(model), path, Config())


def from_proto_model(model: onnx.ModelProto) -> Any:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return from_ir(from_proto(copy))


def why(said: dict[str, Any]) -> dict[str, list[str]]:
    return {each["node"]: each["why"] for each in said["fallbacks"]}


@pytest.mark.parametrize("nodes", [CONV, SHORTCUT.replace("Z", "u")])
def test_a_model_in_uint8_runs_in_integers_but_for_its_ends(nodes: str, tmp_path: Path) -> None:
    said = found(quantized(around("u", nodes, scale="s3")), tmp_path)
    assert why(said) == {}
    assert said["floats"]["operators"] == {}
    assert "QLinearConv" in said["integers"]["operators"]
    counts = {op: each["count"] for op, each in said["conversions"]["operators"].items()}
    assert counts == {"QuantizeLinear": 1, "DequantizeLinear": 1}
    assert said["seconds"] == pytest.approx(sum(said[k]["seconds"] for k in KINDS))


KINDS = ("integers", "floats", "conversions", "other")


def test_activations_in_int8_that_several_read_are_named(tmp_path: Path) -> None:
    said = why(found(quantized(around("z", SHORTCUT.replace("Z", "z"), scale="s3")), tmp_path))
    assert said.keys() >= {"the_r"}
    assert all("in uint8 it runs in integers" in reason for reasons in said.values() for reason in reasons)


REASONS = {
    "operator": (around("u", "r = Sin (d)"), ["the runtime has no operator of integers for Sin"]),
    "result": (f"{around('u', CONV)}".split("p = ")[0] + "y = Relu (r)", ["its result r is not quantized"]),
    "bias": (
        around("u", CONV.replace("(b, bs, bz)", "(b, s3, bz)"), scale="s3"),
        ["the scale of c is not the product of the operands' scales"],
    ),
    "operand": (around("u", "r = Add (d, x)"), ["its operand x is not quantized"]),
    "readers": (
        f"{around('u', CONV, scale='s3').replace('y = Deq', 'o = Deq')} t = Sin (r) y = Sub (o, t)",
        ["its result r is read in floats too"],
    ),
    "scales": (
        around("u", "r = MaxPool <kernel_shape = [1, 1]> (d)", scale="s2"),
        ["operands and results have different scales"],
    ),
}


@pytest.mark.parametrize("case", REASONS)
def test_why_a_group_falls_back_is_asked_of_the_runtime(case: str, tmp_path: Path) -> None:
    body, reasons = REASONS[case]
    said = why(found(quantized(body), tmp_path))["the_r"]
    assert [reason.removeprefix("its ") for reason in said] == [reason.removeprefix("its ") for reason in reasons]


def test_a_product_that_the_file_does_not_quantize_is_named(tmp_path: Path) -> None:
    body = "k = DequantizeLinear (v, s, u) r = MatMul (x, f) y = MatMul (r, k)"
    said = found(quantized(body, "4,8", v=np.ones((8, 8), np.uint8), f=np.ones((8, 8), np.float32)), tmp_path)
    assert why(said)["the_r"] == ["the file does not quantize it"]


@pytest.mark.parametrize("level", [0, 4])
def test_packed_weights_are_multiplied_in_integers_at_their_accuracy_level(level: int, tmp_path: Path) -> None:
    body = (
        "r = com.microsoft.MatMulNBits <K = 32, N = 32, bits = 4, block_size = 32, accuracy_level = "
        f"{level}> (x, packed, scales) y = Relu (r)"
    )
    held = {"packed": np.full((32, 1, 16), 0x5A, np.uint8), "scales": np.full(32, 0.1, np.float32)}
    said = found(quantized(body, "4,32", **held), tmp_path)
    assert ("MatMulNBits" in said["integers"]["operators"]) == (level == 4)
    assert ("the_r" in why(said)) == (level != 4)


def test_the_command_line_says_the_same_as_text_and_as_json(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(quantized(around("u", "r = Sin (d)")).SerializeToString())
    said = json.loads(run("inspect", path, "--profile", "--json").stdout)["profile"]
    assert why(said) == {"the_r": ["the runtime has no operator of integers for Sin"]}
    text = run("inspect", path, "--profile").stdout
    assert all(each in text for each in ("the_r", "conversions", "DequantizeLinear", "onnxruntime"))
    assert "profile" not in json.loads(run("inspect", path, "--json").stdout)


def test_of_a_model_in_floats_it_says_that_nothing_is_quantized(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(quantized("y = MatMul (x, w)", "4,8", w=np.ones((8, 8), np.float32)).SerializeToString())
    text = run("inspect", path, "--profile").stdout
    assert "nothing in this model is quantized" in text
    assert "why" not in text.partition("onnxruntime")[2]


def test_a_model_that_does_not_run_has_no_profile(tmp_path: Path) -> None:
    body = "t = ReduceSum <keepdims = 0> (x) i = Cast <to = 7> (t) n = Unsqueeze (i, a) y = Expand (x, n)"
    with pytest.raises(RunFailed):
        found(quantized(body, "4,8", a=np.zeros(1, np.int64)), tmp_path)


# ---------------------------------------------------------------- in uint8


def unsigned(model: onnx.ModelProto) -> tuple[Any, int]:
    """The model with its activations in uint8, and how many places changed."""
    made = from_proto_model(model)
    context = Context(made.opsets, {}, weights=made.weights)
    only = [e for e in laws_together(rules()) if e.name.startswith("dequantize.")]
    outputs, steps = all_at_once(made.graph.outputs, Rules(only), context)
    return made.with_graph(outputs), len(steps)


@pytest.mark.parametrize("nodes", [CONV, SHORTCUT.replace("Z", "z"), "r = Sin (d)"])
def test_activations_in_uint8_are_the_same_floats_bit_by_bit(nodes: str) -> None:
    model = quantized(around("z", nodes, scale="s3"))
    changed, places = unsigned(model)
    assert places == nodes.count("QuantizeLinear (v,") + 2
    x = {"x": np.random.default_rng(1).normal(0, 4, (1, CHANNELS, 6, 6)).astype(np.float32)}
    x["x"].flat[:3] = 1e30, -1e30, 0.0
    before, after = (
        Session(content, UNOPTIMIZED).run(x)[0] for content in (model.SerializeToString(), serialize(changed))
    )
    assert len(np.unique(before)) > 20
    np.testing.assert_array_equal(before, after)


def test_in_uint8_the_shortcut_runs_in_integers(tmp_path: Path) -> None:
    changed, _ = unsigned(quantized(around("z", SHORTCUT.replace("Z", "z"), scale="s3")))
    said = found(onnx.load_from_string(serialize(changed)), tmp_path)
    assert why(said) == {}
    assert "QLinearAdd" in said["integers"]["operators"]


LAW = next(law for law in laws() if law.name == "dequantize.0")


@pytest.mark.parametrize("zero", [-127, -1, 3, 127])
def test_the_law_is_proved_for_a_zero_that_both_dtypes_add(zero: int) -> None:
    """For -128 and 0, where one side adds nothing, the sides have other normal forms: there the law
    is not proved, and does not apply."""
    names = {"x": variable("x", Tensor("float32", (2, 3))), "s": variable("s", Tensor("float32", ()))}
    names |= {"z": constant(np.int8(zero)), "a": {"axis": 1, "block_size": 0, "saturate": 1}}
    names |= {"b": {"axis": 1, "block_size": 0, "dtype": "float32"}}
    assert isinstance(prove_symbolic(instantiate(LAW.lhs, names), instantiate(LAW.rhs, names)), Proved)


@pytest.mark.parametrize(
    ("old", "new"),
    [("128)", "127)"), ("128)", "129)"), ("add(cast", "sub(cast")],
)
def test_wrong_forms_of_the_law_are_refuted(old: str, new: str) -> None:
    text = next(t for t in get("dequantize").law_texts if "uint8" in t)
    lhs, _, rhs = text.partition("==")
    assert old in rhs
    wrong = parse_equation(f"{lhs}=={rhs.replace(old, new)}", "wrong")
    given, _, attributes = law_typing(LAW.name).partition("|")
    stated = {"given": parse_given(given), "attributes": parse_attributes(attributes)}
    assert fuzz(wrong, wanted=40, tries=2000, **stated).counterexample is not None
