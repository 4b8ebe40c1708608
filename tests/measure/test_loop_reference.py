"""The float64 reference of a loop: its body in double precision, where that has the same steps."""

from __future__ import annotations

import numpy as np
import pytest
from bodies import parse
from loop_models import recurrent

from taso_mirage.ir.model import Model, random_inputs
from taso_mirage.measure import reference
from taso_mirage.measure.reference import FloatReference, RoughReference
from taso_mirage.measure.session import Session
from taso_mirage.onnx_io import serialize
from taso_mirage.onnx_io.files import from_memory

TENTHS = """
    g (float[8, 2] x, int64 n, bool c, float[2] a0) => (float[2] a, float[k, 2] y) {{
        a, y = Loop(n, c, a0) <body = b (int64 i, bool c1, float[2] s) => (bool c2, float[2] s2, float[2] z) {{
            t = Constant<value_float = 0.1>() \n e = Gather(x, i) \n w = Cast<to = 1>(e) \n u = Mul(w, t)
            s2 = Add(s, u) \n z = Identity(s2)
            {goes_on}
        }}>
    }}
"""
"""A Loop that adds tenths of the elements of a sequence."""
BELOW = "top = Constant<value_float = 0.8>() \n all = ReduceMax<keepdims = 0>(s2) \n c2 = Less(all, top)"
INPUTS = {"x": np.ones((8, 2), np.float32), "n": np.array(8), "c": np.array(True), "a0": np.zeros(2, np.float32)}


def test_the_original_of_a_recurrence_has_an_error() -> None:
    model = from_memory(recurrent(t=6))
    inputs = random_inputs(model, 0)
    state, w = (inputs[name].astype(np.float64) for name in ("h0", "W"))
    states = [state := np.tanh(state @ w + x) for x in inputs["X"].astype(np.float64)]
    last, found = FloatReference(model)(inputs)
    np.testing.assert_allclose(found, states, 1e-12)
    own = abs(Session(serialize(model)).run(inputs)[1] - found).max()
    assert 0 < own < 1e-4
    assert last.dtype == np.float64


@pytest.mark.parametrize("goes_on", ["c2 = Identity(c1)", "c2 = Constant<value = bool {1}>()"])
def test_constants_and_conversions_of_a_body_are_doubles(goes_on: str) -> None:
    last, _ = FloatReference(read(TENTHS.format(goes_on=goes_on)))(INPUTS)
    np.testing.assert_allclose(last, 8 * float(np.float32(0.1)), 1e-14)


def test_a_condition_on_numbers_is_decided_as_in_the_runtime() -> None:
    model = read(TENTHS.format(goes_on=BELOW))
    (_, y), (_, exact) = Session(serialize(model)).run(INPUTS), FloatReference(model)(INPUTS)
    assert y.shape == exact.shape
    np.testing.assert_array_equal(y, exact)


ADDED = """
    g (float[1] s0, float[400, 1] X) => (float[1] s, float[400, 1] Y) {
        s, Y = Scan<num_scan_inputs = 1{more}, body = step (float[1] a, float[1] x) => (float[1] n, float[1] y) {
            n = Add(a, x) \n y = Identity(n) }>(s0, X)
    }
"""


@pytest.mark.parametrize("more", ["", ", scan_input_directions = [1], scan_output_directions = [1]"])
def test_each_step_of_a_loop_is_rounded(more: str) -> None:
    """Roundings of 400 steps are about 20 times that of the result."""
    model = read(ADDED.replace("{more}", more))
    inputs = {"s0": np.full(1, 1000, np.float32), "X": np.linspace(0, 1e-3, 400, dtype=np.float32)[:, None]}
    (last, every), exact = RoughReference(model, 0, 1.0)(inputs), FloatReference(model)(inputs)
    rounding = 1000 * float(np.finfo(np.float32).eps)
    assert 5 < abs(every - exact[1]).max() / rounding < 100
    assert abs(last - exact[0]).max() < 100 * rounding
    order = slice(None, None, -1 if more else 1)
    assert abs(every - exact[1])[order][0] < 3 * rounding


def test_a_loop_of_much_work_is_rounded_in_its_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "WORK", 100)
    model = read(ADDED.replace("{more}", ""))
    inputs = {"s0": np.full(1, 1000, np.float32), "X": np.zeros((400, 1), np.float32)}
    every = RoughReference(model, 0, 1.0)(inputs)[1]
    assert 0 < abs(every - 1000).max() < 3000 * float(np.finfo(np.float32).eps)


def read(text: str) -> Model:
    return from_memory(parse(text))


def test_the_steps_of_a_loop_whose_number_only_a_run_knows_stay_one_operator() -> None:
    text = ADDED.replace("{more}", "").replace("400", "N")
    inputs = {"s0": np.zeros(1, np.float32), "X": np.full((5, 1), 0.1, np.float32)}
    last, every = RoughReference(read(text), 0, 1.0)(inputs)
    np.testing.assert_allclose(last, [0.5], 1e-5)
    assert every.shape == (5, 1)
