"""Terms that a reader finds in another form in the file: each certificate leads to them, too."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from bodies import optimized, parse
from operator_uses import build, opsets, uses

from taso_mirage.certificates.follow import follow
from taso_mirage.certificates.judge import CHECKED, CaseJudge
from taso_mirage.errors import CheckFailed
from taso_mirage.ir.model import Model
from taso_mirage.onnx_io import from_ir, to_ir
from taso_mirage.onnx_io.build import standalone
from taso_mirage.onnx_io.written import read_as
from taso_mirage.operators.ops import Op
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.report.certificate import certificate
from taso_mirage.report.result import Result

PROOFS = Proofs(None)
UNREAD = "scaler"
"""The operator with such a form that the checker does not read: the prover proves it."""


@cache
def any_result() -> Result:
    return optimized(parse("g (float[2] x) => (float[2] y) { y = Neg(x) }"))[1]


def read_again(op: Op, i: int) -> tuple[Model, Model, dict[str, Any]]:
    """A use of an operator, the one that is read from its file, and the certificate of no step."""
    use = build(op, i)
    made = standalone(use.graph, opsets(use))
    result = replace(any_result(), original=made, model=made, steps=(), changed=True)
    return made, from_ir(to_ir(made)), json.loads(json.dumps(certificate(result, {}, PROOFS)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("op", "i"), [u for u in uses() if u.values[0].onnx is not None])
def test_a_certificate_leads_to_an_operator_as_it_is_read(op: Op, i: int) -> None:
    before, after, text = read_again(op, i)
    found = follow(before, after, text, CaseJudge())
    assert found.equalities[CHECKED] == found.equalities.total() or op.name == UNREAD


def test_a_form_without_a_proof_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader of another program, which takes a slice of all elements for one of the first."""
    (op, i) = next(u.values for u in uses() if u.values[0].name == "slice" and u.values[1] == 7)
    use = build(op, i)
    (x,) = use.graph.inputs
    assert read_as(use.term, {"": 18}) is x
    other = op.term(x, starts=(3,), ends=(-1,), axes=(0,), steps=(-1,))
    monkeypatch.setattr(
        "taso_mirage.report.certificate.read_as", lambda node, opsets: other if node == use.term else None
    )
    before, _, text = read_again(op, i)
    assert text["records"] == []
    with pytest.raises(CheckFailed, match="does not lead"):
        follow(before, from_ir(to_ir(standalone(replace(use.graph, outputs=(other,)), opsets(use)))), text, CaseJudge())
