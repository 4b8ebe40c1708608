"""Results that a loop's states do not read are computed behind it, for all steps at once."""

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
from loop_models import as_terms, gated_delta
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
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.report.certificate import certificate
from taso_mirage.report.result import Result
from taso_mirage.search.loops.behind import results_of, without_outputs
from taso_mirage.search.steps import BODIES, RewriteStep

PROOFS = Proofs(None)
JUDGE = CaseJudge()
TEXT = """
    g (float[2, 4] h0, float[2, 4] c0, float[{t}, 2, 4] X, float[4, 4] R, float[4, 3] O)
            => (float[2, 4] h, float[{t}, 2, 3] Y, float[{t}, 2, 4] Z) {{
        h, c, Y, Z = Scan<num_scan_inputs = 1{more}, body = step (float[2, 4] a, float[2, 4] b, float[2, 4] x)
                => (float[2, 4] a2, float[2, 4] b2, float[2, 3] y, float[2, 4] z) {{
            p = MatMul(a, R) \n q = Add(p, x) \n a2 = Tanh(q) \n b2 = Add(b, a2)
            m = {read} \n y = MatMul(m, O) \n n = Mul(b2, x) \n z = Sigmoid(n)
        }}>(h0, c0, X)
    }}
"""
BACKWARD = ", scan_input_directions = [1], scan_output_directions = [1, 1]"


def model(t: int | str = 3, more: str = "", read: str = "Sub(a2, b2)") -> onnx.ModelProto:
    return parse(TEXT.format(t=t, more=more, read=read))


@cache
def any_result() -> Result:
    return optimized(model())[1]


def written(before: Model, step: RewriteStep) -> tuple[Model, Any]:
    after = before.with_graph(substitute(before.graph.outputs, step.table))
    done = replace(any_result(), original=before, model=after, steps=(step,), changed=True)
    return after, json.loads(json.dumps(certificate(done, {}, PROOFS)))


@cache
def certified(t: int | str = 3, more: str = "") -> tuple[Model, RewriteStep, Model, Any]:
    before = from_memory(model(t, more))
    (node,) = [n for n in before.nodes() if as_scan(before, n) is not None]
    found = as_scan(before, node)
    assert found is not None
    made = without_outputs(found.term, PROOFS)
    assert made is not None
    step = RewriteStep((BODIES,), results_of(node), made.results, obligations=made.obligations, behind=made.behind)
    return before, step, *written(before, step)


@pytest.mark.parametrize(("t", "more"), [(3, ""), ("t", ""), (3, BACKWARD)])
def test_the_product_of_the_states_becomes_one_for_all_steps(t: int | str, more: str) -> None:
    before, step, after, text = certified(t, more)
    (loop,) = {r.args[0] for r in step.new if r.op == "item"}
    assert [n.op for n in loop.attr("body") if n.args] == ["matmul", "add", "tanh", "add"]
    assert len(step.behind) == 2
    proto = onnx.load_from_string(serialize(after))
    onnx.checker.check_model(proto, full_check=True)
    assert not follow(before, from_memory(proto), text, JUDGE).alone
    rng = np.random.default_rng(0)
    feed = {n.attr("name"): random_array(n, rng, {"t": 3}) for n in before.graph.inputs}
    for a, b in zip(run(model(t, more), **feed), run(proto, **feed), strict=True):
        np.testing.assert_allclose(a, b, 1e-5, 1e-6)


@pytest.mark.parametrize("read", ["Sub(a, b2)", "Sub(a2, b)", "Add(a, b)"])
def test_what_reads_the_state_before_a_step_stays(read: str) -> None:
    before = from_memory(model(read=read))
    (node,) = [n for n in before.nodes() if as_scan(before, n) is not None]
    found = as_scan(before, node)
    assert found is not None
    made = without_outputs(found.term, PROOFS)
    assert made is not None
    assert [part.result for part in made.behind] == [results_of(found.term)[3]]


def part(whole: Node, start: int, end: int) -> Node:
    return term("slice", whole, starts=(start,), ends=(end,), axes=(0,), steps=(1,))


def joined(*parts: Node) -> Node:
    return term("concat", *parts, axis=0)


def wrong(whole: Node) -> Iterator[tuple[str, Node]]:
    """Other terms than that of all steps, of the same type."""
    yield "its negative", term("neg", whole)
    yield "twice", term("add", whole, whole)
    yield "one step later", joined(part(whole, 1, 3), part(whole, 0, 1))
    yield "one step before", joined(part(whole, 2, 3), part(whole, 0, 2))
    yield "from the last step", term("slice", whole, starts=(2,), ends=(-1,), axes=(0,), steps=(-1,))
    yield "the first step in all", term("expand", part(whole, 0, 1), shape=whole.shape)
    yield "a running sum", term("cumsum", whole, axis=0)
    yield "a mean over the steps", term("expand", term("reduce_mean", whole, axes=(0,), keepdims=1), shape=whole.shape)


@pytest.mark.parametrize("place", [0, 1])
def test_a_certificate_never_leads_behind_another_loop(place: int) -> None:
    before, step, after, text = certified()
    claimed = step.behind[place]
    for why, other in wrong(claimed.whole):
        there = after.with_graph(substitute(after.graph.outputs, {claimed.whole: other}))
        with pytest.raises(CheckFailed):
            follow(before, there, text, JUDGE)
        news = substitute(step.new, {claimed.whole: other})
        behind = tuple(replace(p, whole=other if p is claimed else p.whole) for p in step.behind)
        _, claim = written(before, replace(step, new=news, behind=behind))
        with pytest.raises(CheckFailed):
            follow(before, there, claim, JUDGE)
        assert why


@pytest.mark.parametrize(
    ("kind", "places"),
    [("behind", [[0], 0]), ("behind", [[], None]), ("behind", [[7], None]), ("values", [9]), ("values", [-1])],
)
def test_a_record_of_another_result_is_refused(kind: str, places: list[Any]) -> None:
    before, _, after, text = certified()
    at = next(i for i, record in enumerate(text["records"]) if record[0] == kind)
    old = text["records"][at]
    new = [kind, old[1], *[o if p is None else p for p, o in zip(places, old[2:], strict=True)]]
    records = [*text["records"][:at], new, *text["records"][at + 1 :]]
    with pytest.raises(CheckFailed):
        follow(before, after, {**text, "records": records}, JUDGE)


@pytest.mark.parametrize("size", [2, 8])
def test_large_states_are_not_kept_of_all_steps(size: int) -> None:
    """The state of attention has many times the elements of what a step reads and gives."""
    (node,) = [n for n in as_terms(gated_delta(k=size, v=size)).nodes() if n.op == "scan"]
    assert (without_outputs(node, PROOFS) is None) == (size > 2)
