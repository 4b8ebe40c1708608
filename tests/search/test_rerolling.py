"""Re-rolling: a sum of experts that are written out becomes one term over stacked weights, by
equalities that are proved and that the checker follows; sums that differ in one thing are refused.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from bodies import optimized, parse
from onnx_texts import run
from scripts import script

from taso_mirage.certificates.follow import follow
from taso_mirage.certificates.judge import CHECKED, CaseJudge
from taso_mirage.errors import CheckFailed
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node, Tensor, substitute, variable
from taso_mirage.onnx_io import serialize
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.operators.ops import term
from taso_mirage.prove.rules.cases import Instance
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.report.certificate import certificate
from taso_mirage.report.changes import changes
from taso_mirage.report.loop_changes import loop_regions
from taso_mirage.search.loops.rerolling import rerolled_sums
from taso_mirage.search.steps import RewriteStep

PROOFS = Proofs(None)
BENCH = script("recurrent_models")
TOKENS, EXPERTS, WIDTH = 3, 11, 4
TEXT = BENCH.experts(TOKENS, EXPERTS, 2, WIDTH)


def model(text: str = TEXT) -> onnx.ModelProto:
    """Experts with their weights in the file."""
    proto = parse(text)
    arrays = {n: a for n, a in BENCH.inputs(proto).items() if n != "X"}
    for each in [each for each in proto.graph.input if each.name in arrays]:
        proto.graph.input.remove(each)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(arrays[each.name], each.name))
    return proto


def steps(proto: onnx.ModelProto) -> tuple[Model, list[RewriteStep]]:
    before = from_memory(proto)
    return before, [*rerolled_sums(before.graph.outputs, PROOFS)]


GEMM = TEXT.replace("= MatMul(X, G", "= Gemm<transB = 1>(X, G").replace("= MatMul(h", "= Gemm<transB = 1>(h")


def test_a_report_has_the_sum_as_one_change() -> None:
    before, made = steps(model())
    (change,) = changes(before, made, {}, loop_regions(made))
    assert change.called == f"{EXPERTS} equal terms of a sum"
    assert change.places == before.output_names


@pytest.mark.parametrize(
    "text", [TEXT, GEMM, TEXT.replace("= Sum(", "= Sum(X, ")], ids=["MatMul", "Gemm", "a term more"]
)
def test_experts_that_are_written_out_become_one_product_of_stacked_weights(text: str) -> None:
    proto = model(text)
    before, (step,) = steps(proto)
    after = before.with_graph(substitute(before.graph.outputs, step.table))
    assert sum(n.op in ("matmul", "gemm") for n in after.nodes()) == 4  # of the router, gate, up and down
    made = onnx.load_from_string(serialize(after))
    onnx.checker.check_model(made, full_check=True)
    x = BENCH.inputs(proto)["X"]
    for a, b in zip(run(proto, X=x), run(made, X=x), strict=True):
        np.testing.assert_allclose(a, b, 1e-4, 1e-6)


OTHERS = {
    "shares that changed places": ("(shares, i4)", "(shares, i5)"),
    "another function in one expert": ("a3 = Sigmoid", "a3 = Tanh"),
    "another operand in one expert": ("u2 = MatMul(X,", "u2 = MatMul(Z,"),
    "few terms": (", y7, y8, y9, y10)", ")"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_sum_of_other_terms_stays(name: str) -> None:
    old, new = OTHERS[name]
    assert old in TEXT
    text = TEXT.replace(old, new).replace("l = MatMul", "Z = Neg(X) \n l = MatMul")
    assert steps(model(text))[1] == []


def test_the_certificate_is_followed_and_leads_to_no_other_sum() -> None:
    before, (step,) = steps(model())
    _, result = optimized(onnx.load_from_string(serialize(before)))
    after = before.with_graph(substitute(before.graph.outputs, step.table))
    text = certificate(replace(result, original=before, model=after, steps=(step,), changed=True), {}, PROOFS)
    found = follow(before, after, text, CaseJudge())
    assert found.places == len(step.obligations)
    assert list(found.equalities) == [CHECKED]
    (product,) = [n for n in after.nodes() if n.op == "sigmoid"]
    wrong = after.with_graph(substitute(after.graph.outputs, {product: term("tanh", *product.args)}))
    with pytest.raises(CheckFailed, match="does not lead"):
        follow(before, wrong, text, CaseJudge())
    with pytest.raises(CheckFailed, match="does not lead"):
        follow(before, after, {**text, "records": text["records"][:-1]}, CaseJudge())


A, B, C = (variable(name, Tensor("float32", (2, 3))) for name in "abc")


def stacked(*terms: Node) -> Node:
    return term("concat", *[term("unsqueeze", each, axes=(0,)) for each in terms], axis=0)


FALSE = {
    "a term twice": (term("add", term("add", A, B), C), stacked(A, B, B)),
    "a term less": (term("add", term("add", A, B), C), stacked(A, B)),
    "a difference": (term("sub", term("add", A, B), C), stacked(A, B, C)),
}


@pytest.mark.parametrize("name", FALSE)
def test_a_false_sum_is_not_proved(name: str) -> None:
    old, above = FALSE[name]
    new = term("reduce_sum", above, axes=(0,), keepdims=0)
    assert not PROOFS.judge(Instance((old,), (new,)))
