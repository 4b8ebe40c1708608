"""Loops that are linear attention become ONNX Runtime's operator, and false ones do not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from bodies import optimized, parse
from loop_models import GATED_DELTA
from onnx_texts import run

from taso_mirage.certificates.follow import follow
from taso_mirage.certificates.judge import CaseJudge
from taso_mirage.errors import CheckFailed
from taso_mirage.ir.model import Model, random_array
from taso_mirage.ir.terms import Node, substitute
from taso_mirage.onnx_io import serialize
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.onnx_io.loops import as_scan
from taso_mirage.operators.ops import term
from taso_mirage.pipeline.loops import with_loops
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.report.certificate import certificate
from taso_mirage.report.result import Result
from taso_mirage.search.loops.hoisting import hoisted_loop
from taso_mirage.search.loops.layers import LayerCandidate, candidates, proved_layer
from taso_mirage.search.steps import BODIES, RewriteStep

PROOFS = Proofs(None)
JUDGE = CaseJudge()
DECAY = "s1 = Mul(s, d2)"
WRITE = "e0 = Sub(v, kv) \n b1 = Unsqueeze(b, m1) \n e1 = Mul(e0, b1)"
RULES = {
    "linear": ((DECAY, "s1 = Identity(s)"), (WRITE, "e1 = Identity(v)")),
    "gated": ((WRITE, "e1 = Identity(v)"),),
    "delta": ((DECAY, "s1 = Identity(s)"),),
    "gated_delta": (),
}
"""The rules of the operator, as changes of the gated delta rule."""


def attention(rule: str, t: int | str = 3) -> onnx.ModelProto:
    """The loop; of any number of samples where its length is free."""
    text = GATED_DELTA
    for old, new in RULES[rule]:
        assert old in text
        text = text.replace(old, new)
    return parse(text.format(t=t, b="n" if t == "t" else 1, h=2, k=4, v=4))


def found_in(model: Model) -> tuple[Node, Node, LayerCandidate, tuple[RewriteStep, ...]]:
    """A loop, the loop with less inside, the operator that it may be, and the steps to that
    loop."""
    (node,) = [n for n in model.nodes() if as_scan(model, n) is not None]
    read = as_scan(model, node)
    assert read is not None
    loop, before = read.term, tuple[RewriteStep, ...]()
    if not [*candidates(loop)]:
        lighter = hoisted_loop(loop, PROOFS)
        assert lighter is not None
        loop, before = lighter.term, lighter.obligations
    (candidate,) = candidates(loop)
    return node, loop, candidate, before


@cache
def any_result() -> Result:
    return optimized(attention("linear"))[1]


@cache
def certified(rule: str, t: int | str = 3) -> tuple[Model, Node, LayerCandidate, Result, dict[str, Any]]:
    model = from_memory(attention(rule, t))
    node, loop, candidate, before = found_in(model)
    made = proved_layer(loop, candidate, PROOFS)
    assert made is not None
    olds = (term("item", node, index=0), term("item", node, index=1))
    step = RewriteStep((BODIES,), olds, made.results, obligations=(*before, *made.obligations))
    after = model.with_graph(substitute(model.graph.outputs, step.table))
    done = replace(any_result(), original=model, model=after, steps=(step,), changed=True)
    return model, node, candidate, done, json.loads(json.dumps(certificate(done, {}, PROOFS)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("rule", "t"), [("linear", "t"), ("gated", 3), ("delta", 3), ("gated_delta", "t")])
def test_a_loop_becomes_the_operator_and_the_checker_follows(rule: str, t: int | str) -> None:
    model, _, candidate, done, text = certified(rule, t)
    assert candidate.layer.attr("update_rule") == rule
    after = onnx.load_from_string(serialize(done.model))
    found = follow(model, from_memory(after), text, JUDGE)
    assert found.places
    assert not found.alone
    rng = np.random.default_rng(0)
    feed = {n.attr("name"): random_array(n, rng, {"t": 3, "n": 2}) for n in model.graph.inputs}
    for a, b in zip(run(attention(rule, t), **feed), run(after, **feed), strict=True):
        np.testing.assert_allclose(a, b, 1e-3, 1e-4)


def test_kernels_are_for_the_loop_again() -> None:
    model, _, _, done, _ = certified("linear", 3)
    loops = with_loops(done)
    assert loops is not None
    assert [n.op for n in loops.model.nodes() if n.op in ("scan", "linear_attention", "reshape", "transpose")] == [
        "scan"
    ]
    text = json.loads(json.dumps(certificate(loops, {}, PROOFS)))
    assert not follow(model, from_memory(serialize_proto(loops.model)), text, JUDGE).alone
    assert with_loops(loops) is None


def serialize_proto(model: Model) -> onnx.ModelProto:
    return onnx.load_from_string(serialize(model))


def wrong_operators(layer: Node) -> Iterator[tuple[str, Node]]:
    (q, k, v, s, g, b), attrs = layer.args, dict(layer.attrs)

    def made(*args: Node | None, **others: object) -> Node:
        return term(layer.op, *args, **{**attrs, **others})

    yield "queries and keys exchanged", made(k, q, v, s, g, b)
    yield "keys and values exchanged", made(q, v, k, s, g, b)
    yield "queries and values exchanged", made(v, k, q, s, g, b)
    yield "decay and update exchanged", made(q, k, v, s, b, g)
    yield "no decay", made(q, k, v, s, None, b, update_rule="delta")
    yield "no difference", made(q, k, v, s, g, None, update_rule="gated")
    yield "the usual scale", made(q, k, v, s, g, b, scale=0.0)
    yield "another scale", made(q, k, v, s, g, b, scale=0.5)
    yield "no first state", made(q, k, v, None, g, b)
    yield "the first state transposed", made(q, k, v, term("transpose", s, perm=(0, 1, 3, 2)), g, b)
    yield "one sequence for two", made(q, q, v, s, g, b)
    yield "the decay's inverse", made(q, k, v, s, term("neg", g), b)
    yield "the decay twice", made(q, k, v, s, term("add", g, g), b)
    late = [term("slice", v, starts=(i,), ends=(j,), axes=(1,), steps=(1,)) for i, j in ((1, 3), (0, 1))]
    yield "values one position later", made(q, k, term("concat", *late, axis=1), s, g, b)
    heads = term(
        "reshape", term("transpose", term("reshape", q, shape=(1, 3, 2, 4)), perm=(0, 1, 3, 2)), shape=(1, 3, 8)
    )
    yield "heads inside of the elements", made(heads, k, v, s, g, b)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("part", range(3))
def test_a_false_operator_is_not_proved_or_not_followed(part: int) -> None:
    model, _, candidate, done, text = certified("gated_delta", 3)
    _, loop, _, _ = found_in(model)
    wrong = dict(wrong_operators(candidate.layer))
    assert len(wrong) == 15
    for i, (why, other) in list(enumerate(wrong.items()))[part::3]:
        results = substitute(candidate.results, {candidate.layer: other})
        if i % 2:
            assert proved_layer(loop, replace(candidate, layer=other, results=results), PROOFS) is None, why
            continue
        after = done.model.with_graph(substitute(done.model.graph.outputs, {candidate.layer: other}))
        with pytest.raises(CheckFailed, match="does not lead"):
            follow(model, after, text, JUDGE)
