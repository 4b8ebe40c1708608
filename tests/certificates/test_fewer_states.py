"""Results of loops that stop to depend on a state: a product with zero in a step. The certificate
is followed; to another loop, or from one, it does not lead."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from bodies import parse
from certificate_cases import followed

from taso_mirage.certificates.follow import Followed
from taso_mirage.certificates.format import CERTIFICATE_FORMAT, PROOF
from taso_mirage.errors import CheckFailed
from taso_mirage.ir.terms import topological
from taso_mirage.onnx_io.content_terms import opened
from taso_mirage.onnx_io.files import from_memory

RESULTS = "=> (float[4] sl, float[4] rl, float[5, 4] Y)"
STEP = "step (float[4] s, float[4] r, float[4] x) => (float[4] s2, float[4] r2, float[4] y)"
BEFORE = """c = Constant<value = float {%s}>() \n s2 = Tanh(h) \n k = Mul(s2, c)
    q = Sin(r) \n r2 = Add(q, k) \n e = Exp(x) \n y = Add(e, k)"""
AFTER = "s2 = Tanh(h) \n r2 = Sin(r) \n y = Exp(x)"
INSIDE = """sl, rl, Y = If<then_branch = then () {results} {{ {scan} }}, else_branch = other () {results} {{
    sl = Identity(s0) \n rl = Identity(r0) \n Y = Identity(X) }}>(b)"""


def loop(step: str, operands: str = "s0, r0, X", more: str = "", inside: bool = False) -> onnx.ModelProto:
    """A model of one loop of two states, or with the loop in a branch."""
    head = f"num_scan_inputs = 1{more}, body = {STEP}"
    text = f"sl, rl, Y = Scan<{head} {{ h = Add(s, x) \n {step} }}>({operands})"
    if inside:
        results = RESULTS.replace("sl", "st").replace("rl", "rt").replace(" Y", " Yt")
        text = INSIDE.format(results=results, scan=text).replace("{ sl, rl, Y", "{ st, rt, Yt")
        text = text.replace("sl = Id", "st = Id").replace("rl = Id", "rt = Id").replace(" Y = Id", " Yt = Id")
    return parse(f"g (bool b, float[4] s0, float[4] r0, float[5, 4] X) {RESULTS} {{ {text} }}")


def zero_equality() -> dict[str, Any]:
    given = "x0: input('x0', float32[4]), x1: input('x1', float32[4])"
    zero = "v0 = constant(value=array('float32', (), [0.0]))\n    v1 = mul(x1, v0)\n    "
    lhs = f"def lhs({given}):\n    {zero}v2 = add(x0, v1)\n    return v2\n"
    return {"lhs": lhs, "rhs": f"def rhs({given}):\n    return x0\n", "proof": PROOF}


def certificate(original: onnx.ModelProto) -> dict[str, Any]:
    """A certificate which says that the products with zero add nothing."""
    model = from_memory(original)
    terms = topological(opened(model)(model.graph.outputs))
    number = {node: i for i, node in enumerate(terms)}
    sums = [n for n in terms if n.op == "add" and n.args[1].op == "mul"]
    records = [["equal", 0, {"x0": number[n.args[0]], "x1": number[n.args[1].args[0]]}] for n in sums]
    assert len(records) == 2
    return {"format": CERTIFICATE_FORMAT, "equalities": [zero_equality()], "records": records}


def leads(original: onnx.ModelProto, optimized: onnx.ModelProto) -> Followed:
    return followed((from_memory(original), from_memory(optimized), certificate(original)), strict=True)


@pytest.mark.parametrize("inside", [False, True])
def test_a_result_without_a_state_is_followed(inside: bool) -> None:
    found = leads(loop(BEFORE % "0.0", inside=inside), loop(AFTER, inside=inside))
    assert (found.places, found.alone) == (2, {})


@pytest.mark.parametrize("factor", ["1.0", "1e-30"])
def test_a_product_with_another_number_depends_on_the_state(factor: str) -> None:
    with pytest.raises(CheckFailed, match="does not lead"):
        leads(loop(BEFORE % factor), loop(AFTER))


OTHERS = {
    "of the other state": loop("s2 = Tanh(h) \n r2 = Sin(s) \n y = Exp(x)"),
    "of the first state": loop("s2 = Tanh(h) \n r2 = Sin(r0) \n y = Exp(x)"),
    "of the new state": loop("s2 = Tanh(h) \n r2 = Sin(r) \n y = Exp(s2)"),
    "with another first state": loop(AFTER, "s0, s0, X"),
    "from the last step": loop(AFTER, more=", scan_input_directions = [1], scan_output_directions = [1]"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_certificate_does_not_lead_to_another_loop(other: str) -> None:
    with pytest.raises(CheckFailed, match="does not lead"):
        leads(loop(BEFORE % "0.0"), OTHERS[other])
