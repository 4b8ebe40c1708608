"""Random inputs of models with loops: those that a loop reads are smaller where outputs would grow
without bound."""

from __future__ import annotations

import pytest
from bodies import parse
from loop_models import RECURRENT, gated, gated_delta, recurrent

import taso_mirage
from taso_mirage.errors import CheckFailed
from taso_mirage.ir.model import Model, random_inputs
from taso_mirage.measure.loop_inputs import with_usual_draws
from taso_mirage.measure.session import Session
from taso_mirage.onnx_io import serialize
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.report.run_alike import run_alike
from taso_mirage.system import deadline


def test_a_recurrence_that_grows_gets_smaller_numbers() -> None:
    model = from_memory(gated_delta(t=128, k=16))
    session = Session(serialize(model))
    made, said = with_usual_draws(model, session, {})
    assert said is not None
    assert "rows of B, G, K, Q, S0, V are drawn with a length of 1" in said
    assert {name: int(array.size) for name, array in random_inputs(made, 0).items() if abs(array).max() > 3} == {}


def test_a_chaotic_recurrence_gets_smaller_numbers() -> None:
    model = from_memory(recurrent(t=64, n=32))
    made, said = with_usual_draws(model, Session(serialize(model)), {})
    assert said is not None
    assert "are at most 1e+06 and bear rounding" in said
    assert set(made.scales) == {"h0", "X", "W"}


def test_a_recurrence_that_stays_small_keeps_normal_numbers() -> None:
    model = from_memory(gated())
    assert with_usual_draws(model, Session(serialize(model)), {}) == (model, None)


def test_a_loop_without_an_end_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "GRACE", 0.5)
    endless = parse("""
        g (float[2] s0) => (float[2] s) {
            trips = Constant<value = int64 {1000000000000}>() \n yes = Constant<value = bool {1}>()
            s = Loop(trips, yes, s0) <body = b (int64 i, bool c, float[2] a) => (bool c2, float[2] a2) {
                c2 = Identity(c) \n a2 = Tanh(a)
            }>
        }
    """)
    made, result = taso_mirage.optimize(endless, budget=1.0, kernels="off", return_result=True)
    assert made.graph.node[-1].op_type == "Loop"
    assert "before ONNX Runtime had loaded or run a model" in " ".join(result.notes)


def test_growth_that_no_input_bounds_is_said() -> None:
    model = from_memory(
        parse("""
        g (float[2] s0, float[128, 2] x) => (float[2] s) {
            two = Constant<value = float {2}>()
            s = Scan<num_scan_inputs = 1, body = b (float[2] a, float[2] e) => (float[2] a2) {
                a1 = Mul(a, two) \n a2 = Add(a1, e)
            }>(s0, x)
        }
    """)
    )
    made, said = with_usual_draws(model, Session(serialize(model)), {})
    assert made is model
    assert said is not None
    assert "0% of the outputs' elements" in said


def changed(old: str, new: str, t: int = 4, n: int = 8) -> Model:
    """The product of the state with another text in its step."""
    assert old in RECURRENT
    return from_memory(parse(RECURRENT.replace(old, new).format(t=t, n=n)))


def test_models_of_chaotic_loops_are_compared_on_smaller_numbers() -> None:
    """At large numbers each rounding of the sum would change all digits."""
    parts = """l = Constant<value = int64[2] {{16, 16}}>() \n a, b = Split<axis = 1>(s, l) \n A, B = Split<axis = 0>(W, l)
        c = MatMul(a, A) \n d = MatMul(b, B) \n p = Add(c, d)"""
    said = run_alike(from_memory(recurrent(64, 32)), changed("p = MatMul(s, W)", parts, 64, 32))
    assert said == "both models run alike on 8 input sets"


OTHER_STEPS = {"q = Add(p, x)": "q = Sub(p, x)", "y = Identity(s2)": "z = Mul(s2, s2) \n y = Div(z, s2)"}


@pytest.mark.parametrize("old", OTHER_STEPS)
def test_other_loops_do_not_run_alike(old: str) -> None:
    with pytest.raises(CheckFailed):
        run_alike(from_memory(recurrent()), changed(old, OTHER_STEPS[old]))
