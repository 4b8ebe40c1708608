"""Loops of ONNX are read as terms of their bodies and written back; a loop that has no such term
stays the node that it was."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from bodies import floats, parse
from loop_models import RECURRENCES, as_terms, counted, gated, gated_delta, greedy
from onnx_texts import run

from taso_mirage.ir.model import random_inputs
from taso_mirage.ir.terms import topological
from taso_mirage.meanings.reals import EXACT
from taso_mirage.onnx_io import serialize
from taso_mirage.onnx_io.content_terms import opened
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.onnx_io.loops import with_scans
from taso_mirage.operators.interpret import interpret
from taso_mirage.rewriting.text import parse_graph, show_graph

MODELS: dict[str, Callable[[], onnx.ModelProto]] = {**RECURRENCES, "counted": counted, "greedy": greedy}


@pytest.mark.parametrize("name", MODELS)
def test_a_loop_is_read_evaluated_printed_and_written(name: str) -> None:
    before = MODELS[name]()
    model = as_terms(before)
    assert [n.op for n in model.nodes() if n.op in ("scan", "opaque")] == ["scan"]
    assert parse_graph(show_graph(model.graph)) == model.graph
    after = onnx.load_from_string(serialize(model))
    onnx.checker.check_model(after, full_check=True)
    feed = random_inputs(model, 0)
    wanted = run(before, **feed)
    for a, b in zip(wanted, run(after, **feed), strict=True):
        assert a.tobytes() == b.tobytes()
    values = interpret(model.graph.outputs, EXACT, {n: EXACT.load(feed[n.attr("name")]) for n in model.graph.inputs})
    for a, output in zip(wanted, model.graph.outputs, strict=True):
        np.testing.assert_allclose(values[output], a, 1e-4, 1e-5)


def test_the_number_of_steps_may_be_known_in_a_run_only() -> None:
    before = gated("t")
    after = onnx.load_from_string(serialize(as_terms(before)))
    for t in (1, 5):
        feed = {"h0": floats(2, 32), "X": floats(t, 2, 32), "Z": floats(t, 2, 32), "W": floats(32, 32)}
        for a, b in zip(run(before, **feed), run(after, **feed), strict=True):
            assert a.tobytes() == b.tobytes()


def test_the_number_of_samples_may_be_known_in_a_run_only() -> None:
    before = gated_delta("t", b="b")
    model = as_terms(before)
    assert "opaque" not in {n.op for n in model.nodes()}
    after = onnx.load_from_string(serialize(model))
    for b in (1, 3):
        feed = random_inputs(model, 0, {"b": b, "t": 4})
        wanted = run(before, **feed)
        for x, y in zip(wanted, run(after, **feed), strict=True):
            assert x.tobytes() == y.tobytes()
        values = interpret(
            model.graph.outputs, EXACT, {n: EXACT.load(feed[n.attr("name")]) for n in model.graph.inputs}
        )
        for x, output in zip(wanted, model.graph.outputs, strict=True):
            np.testing.assert_allclose(values[output], x, 1e-4, 1e-5)


def test_a_loop_may_have_no_steps() -> None:
    before = counted("t")
    model = as_terms(before)
    assert "opaque" not in {n.op for n in model.nodes()}
    after = onnx.load_from_string(serialize(model))
    for t in (0, 1, 5):
        feed = {"h0": floats(2, 32), "X": floats(t, 2, 32), "Z": floats(t, 2, 32), "W": floats(32, 32)}
        for a, b in zip(run(before, **feed), run(after, **feed), strict=True):
            assert a.tobytes() == b.tobytes()


REFUSED = {
    "a place one step later": counted(counter="o = Constant<value = int64 {1}>() \n k = Sub(i, o) \n j = Add(k, o)"),
    "a condition": counted(goes_on="Not(c)"),
    "a sequence that is longer": parse("""
        g (float[2] s0, float[5, 2] x) => (float[2] s) {
            trips = Constant<value = int64 {4}>() \n yes = Constant<value = bool {1}>()
            s = Loop(trips, yes, s0) <body = b (int64 i, bool c, float[2] a) => (bool c2, float[2] a2) {
                c2 = Identity(c) \n e = Gather(x, i) \n a1 = Mul(a, e) \n a2 = Add(a1, e)
            }>
        }
    """),
    "trips that only a run knows": parse("""
        g (float[2] s0, float[5, 2] x, int64 trips) => (float[2] s) {
            yes = Constant<value = bool {1}>()
            s = Loop(trips, yes, s0) <body = b (int64 i, bool c, float[2] a) => (bool c2, float[2] a2) {
                c2 = Identity(c) \n e = Gather(x, i) \n a1 = Mul(a, e) \n a2 = Add(a1, e)
            }>
        }
    """),
    "steps without end": parse("""
        g (float[2] s0) => (float[2] s) {
            trips = Constant<value = int64 {9223372036854775807}>() \n yes = Constant<value = bool {1}>()
            s = Loop(trips, yes, s0) <body = b (int64 i, bool c, float[2] a) => (bool c2, float[2] a2) {
                c2 = Identity(c) \n a2 = Neg(a)
            }>
        }
    """),
    "both directions": gated(more=", scan_input_directions = [1, 0]"),
    "another axis": parse("""
        g (float[2] s0, float[2, t] x) => (float[2] s) {
            s = Scan<num_scan_inputs = 1, scan_input_axes = [1], body = b (float[2] a, float[2] e) => (float[2] a2) {
                a1 = Mul(a, e) \n a2 = Add(a1, e)
            }>(s0, x)
        }
    """),
    "a random draw": parse("""
        g (float[2] s0, float[t, 2] x) => (float[2] s) {
            s = Scan<num_scan_inputs = 1, body = b (float[2] a, float[2] e) => (float[2] a2) {
                n = RandomNormal<shape = [2]>() \n a1 = Mul(a, n) \n a2 = Add(a1, e)
            }>(s0, x)
        }
    """),
    "a size of a run": parse("""
        g (float[2] s0, float[t, 2] x, int64[1] k) => (float[2] s) {
            zero = Constant<value = int64[1] {0}>()
            s = Scan<num_scan_inputs = 1, body = b (float[2] a, float[2] e) => (float[2] a2) {
                n = Slice(e, zero, k) \n m = ReduceSum(n) \n a1 = Mul(a, m) \n a2 = Add(a1, e)
            }>(s0, x)
        }
    """),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_loop_without_a_term_stays_as_it_is(name: str) -> None:
    model = from_memory(REFUSED[name])
    assert with_scans(model) is model


# ---------------------------------------------------------------- induction


def outputs(proto: onnx.ModelProto) -> object:
    """The outputs in the terms in which two loads meet."""
    model = from_memory(proto)
    return opened(model)(model.graph.outputs)


def test_a_node_and_its_term_are_opened_alike() -> None:
    for made in MODELS.values():
        node, loop = from_memory(made()), as_terms(made())
        assert opened(node)(node.graph.outputs) == opened(loop)(loop.graph.outputs)


TEXT = """
    g (float[2] s0, float[2] r0, float[t, 2] x, float[t, 2] w) => (float[2] s, float[t, 2] ys) {
        s, ys = Scan<num_scan_inputs = 2, body = b (float[2] a, float[2] e, float[2] f) => (float[2] a2, float[2] y) {
            a1 = Mul(a, e) \n a2 = Add(a1, f) \n y = Neg(a2)
        }>(s0, x, w)
    }
"""
WRONG = {
    "another state to begin with": ("(s0, x, w)", "(r0, x, w)"),
    "sequences that changed places": ("(s0, x, w)", "(s0, w, x)"),
    "a step of the old state": ("y = Neg(a2)", "y = Neg(a1)"),
    "the state after the step": ("a2 = Add(a1, f)", "a2 = Add(a, f)"),
    "the wrong direction": (
        "num_scan_inputs = 2,",
        "num_scan_inputs = 2, scan_input_directions = [1, 1], scan_output_directions = [1],",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_loop_that_computes_something_else_is_another_term(name: str) -> None:
    assert outputs(parse(TEXT)) == outputs(parse(TEXT))
    assert outputs(parse(TEXT)) != outputs(parse(TEXT.replace(*WRONG[name])))


BESIDE = """
    g (float[2] s0, float[2] r0, float[3, 2] x) => (float[2] p, float[2] q) {
        s, r, ys = Scan<num_scan_inputs = 1, body = b (float[2] a, float[2] b, float[2] e) => (float[2] a2, float[2] b2, float[2] y) {
            a2 = Mul(a, e) \n b2 = Sub(b, a) \n y = Neg(b2)
        }>(s0, r0, x)
        p, q = Scan<num_scan_inputs = 1, body = c (float[2] m, float[2] n, float[2] f) => (float[2] m2, float[2] n2) {
            m2 = Mul(m, f) \n n2 = Sub(n, m)
        }>(s0, r0, ys)
    }
"""


def test_other_numbers_of_states_are_those_of_one_loop() -> None:
    """The variables of a loop before it have the same names, and stay."""
    model = from_memory(parse(BESIDE))
    view = opened(model)
    _, last = view(model.graph.outputs)
    (before,) = {n for n in topological([last]) if n.op == "opaque" and n is not last}
    others = [each for made, each in view.renumbered(2) if made is last]
    assert len({*others}) == 2
    assert all(before in topological([each]) for each in others)
