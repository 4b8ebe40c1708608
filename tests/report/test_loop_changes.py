"""Loops that were made, and rewritten by several steps, are one change each, whose sides compute
the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from bodies import optimized, parse
from loop_models import gated
from written_chains import COUNT, PROOFS, loops, model, stepped

from taso_mirage.ir.model import Model, random_array
from taso_mirage.ir.terms import Graph
from taso_mirage.meanings.reals import EXACT
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.operators.interpret import interpret
from taso_mirage.pipeline.loops import rewrite_loops, with_loops
from taso_mirage.report.account import account
from taso_mirage.report.changes import Explanation, ReportedChange
from taso_mirage.report.details import NodeDetails
from taso_mirage.report.explanations import explanation_lines, ground
from taso_mirage.report.html import LINES, _side, most_of_it
from taso_mirage.report.result import PlacedKernels, Result
from taso_mirage.rewriting.text import show_graph
from taso_mirage.search.loops.behind import results_of
from taso_mirage.search.steps import RewriteStep

CELL = {
    "x": "Gather<axis = 1>(X, i{t})",
    "p": "MatMul(x{t}, W)",
    "q": "MatMul(h{s}, R)",
    "g": "Add(p{t}, q{t})",
    "h": "Tanh(g{t})",
}
UPPER = {"a": "MatMul(h{t}, T)", "b": "MatMul(k{s}, S)", "d": "Add(a{t}, b{t})", "k": "Tanh(d{t})"}


@cache
def any_result() -> Result:
    return optimized(parse("g (float[2] x) => (float[2] y) { y = Neg(x) }"))[1]


def chain(layers: int) -> onnx.ModelProto:
    """An RNN of one layer or two, of which each step runs both."""
    cell = {**CELL, **(UPPER if layers == 2 else {}), "u": f"Unsqueeze({'k' if layers == 2 else 'h'}{{t}}, one)"}
    proto = model({1: {"b": "MatMul(h0, S)"}} if layers == 2 else {}, cell=cell)
    proto.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, (2, COUNT, 4)))
    return proto


def rewritten(before: Model, after: Model, steps: list[RewriteStep]) -> Result:
    """The model after its loops became operators, where they can."""
    context = SimpleNamespace(available=lambda node: True)
    problem: Any = SimpleNamespace(
        model=before, weights=dict(before.weights), proofs=PROOFS, rewriter=SimpleNamespace(context=context)
    )
    job: Any = SimpleNamespace(config=SimpleNamespace(measure=True, portable=False), remarks=[])
    known = [result for loop in loops(after) for result in results_of(loop)]
    made, more = rewrite_loops(job, problem, after, None, known)
    return replace(any_result(), original=before, model=made, steps=(*steps, *more), changed=True)


def same(change: ReportedChange) -> bool:
    """Whether both sides compute the same."""
    rng = np.random.default_rng(0)
    leaves = {n for side in (change.before, change.after) for n in (*side, *side.inputs) if n.op in ("input", "weight")}
    given = {n: EXACT.load(random_array(n, rng, {})) for n in sorted(leaves, key=str)}
    one, two = (interpret(side.outputs, EXACT, given) for side in (change.before, change.after))
    pairs = zip(change.before.outputs, change.after.outputs, strict=True)
    return all(np.allclose(one[a], two[b], 1e-9, 1e-9) for a, b in pairs)


def called(result: Result) -> list[ReportedChange]:
    return [c for c in result.changes if c.called]


@pytest.mark.parametrize("layers", [1, 2])
def test_a_chain_that_became_an_operator_is_one_change(layers: int) -> None:
    result = rewritten(*stepped(chain(layers)))
    found = called(result)
    assert [c.called for c in found for _ in c.places] == [f"{COUNT} steps of a recurrence"] * layers
    for change in found:
        assert Counter(n.op for n in change.before)["tanh"] == COUNT
        after = Counter(n.op for n in change.after)
        assert (after["rnn"], after["scan"]) in ([(1, 0)] if layers == 1 else [(1, 0), (0, 1)])
        assert same(change)
        assert explanation_lines(change).startswith(f"{COUNT} steps of a recurrence -> ")
        assert ground(change, PROOFS).startswith("proved by")


@pytest.mark.parametrize("layers", [1, 2])
def test_a_loop_for_an_operator_belongs_to_the_change(layers: int) -> None:
    result = with_loops(rewritten(*stepped(chain(layers))))
    assert result is not None
    found = called(result)
    assert sum(c.count for c in found) == layers
    for change in found:
        assert "rnn" not in {n.op for n in change.after}
        assert Counter(n.op for n in change.after)["scan"] == 1
        assert same(change)


def test_a_loop_of_a_file_is_shown_as_a_term() -> None:
    """A loop whose products leave it; it is one term, so there are no words for it."""
    before = from_memory(gated())
    (change,) = rewritten(before, before, []).changes
    assert (change.called, change.places) == ("", ("h",))
    assert [n.op for n in change.before if n.op == "scan"] == ["scan"]
    assert "opaque" not in {n.op for n in change.before}
    assert explanation_lines(change).startswith("scan -> ")
    assert same(change)


def explanation(change: ReportedChange, gain: float) -> Explanation:
    return Explanation(change, (1.0, 1.0 - gain), None)


def test_the_kernel_of_a_loop_says_what_the_loop_was() -> None:
    """The kernel has the largest gain."""
    result = with_loops(rewritten(*stepped(chain(1))))
    assert result is not None
    (change,) = called(result)
    listed = [explanation(change, 0.1)]
    done = replace(result, cost_before=1.0, cost_after=0.25, kernels=(PlacedKernels(((("scan",), 1),), 3.0),))
    found = account(done, listed)
    assert found is not None
    first = found.rows[0]
    assert first.name == f"kernel for scan in 1 place ({COUNT} steps of a recurrence)"
    assert first.counted == pytest.approx(0.5)
    said = f"The largest part (83% of the gains of changes and kernels): {first.name}."
    assert most_of_it(listed, done) == said
    slow = replace(done, kernels=(PlacedKernels(((("scan",), 1),), 1.1),))
    assert f"{COUNT} steps of a recurrence \N{RIGHTWARDS ARROW} " in most_of_it(listed, slow)


def test_the_steps_of_a_long_loop_are_cut_on_a_page() -> None:
    result = rewritten(*stepped(chain(2)))
    (change, *_) = called(result)
    long = Graph(change.before.inputs, (*change.before.outputs,) * LINES)
    drawn, text = _side(long, NodeDetails(result), "change-1")
    assert drawn is None
    assert len(text.splitlines()) == min(LINES + 1, len(show_graph(long).splitlines()))
