"""Results that a loop stacks have the same dims where no step runs."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest
from onnx import parser

import taso_mirage
from taso_mirage.ir.model import Model
from taso_mirage.onnx_io import from_ir
from taso_mirage.onnx_io.bodies import bodies_of, has_bodies
from taso_mirage.onnx_io.stacked import knows_more

BODIES = {
    "reshape": "z = Sub(n, n) s = Constant<value = int64[2] {6, 2}>() k = Add(z, s) e = Exp(a) o = Reshape(e, k)",
    "branches": """e = Exp(a) o = If(c) <
        then_branch = t () => (float[P,Q] p) {
            z = Sub(n, n) s = Constant<value = int64[2] {3, 4}>() k = Add(z, s) p = Reshape(e, k) },
        else_branch = f () => (float[U,W] q) { q = Neg(a) }> """,
}
FOLDED = {
    "reshape": "k = Constant<value = int64[2] {6, 2}>() e = Exp(a) o = Reshape(e, k)",
    "branches": """e = Exp(a) o = If(c) <
        then_branch = t () => (float[P,Q] p) { k = Constant<value = int64[2] {3, 4}>() p = Reshape(e, k) },
        else_branch = f () => (float[U,W] q) { q = Neg(a) }> """,
}


def loop(body: str, trips: str = "t", given: str = "int64 t, ") -> onnx.ModelProto:
    """A loop that stacks o, with a number of steps that the run gives, or another one."""
    return parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 18]>
        g ({given}bool c, int64[2] n, float[3,4] x) => (float[3,4] y, float[K,A,B] s) {{
            one = Constant<value = int64 {{1}}>()
            y, s = Loop({trips}, , x) <body = b (int64 i, bool on, float[3,4] a)
                => (bool on2, float[3,4] e, float[A,B] o) {{ on2 = Identity(on) {body} }}> }}""")


def dims_of_no_step(model: bytes) -> list[tuple[int, ...]]:
    session = onnxruntime.InferenceSession(model)
    x, n = np.ones((3, 4), np.float32), np.ones(2, np.int64)
    feed = {"t": np.array(0), "c": np.array(True), "n": n, "x": x}
    return [np.shape(y) for y in session.run(None, {i.name: feed[i.name] for i in session.get_inputs()})]


@pytest.mark.parametrize("name", BODIES)
def test_more_is_known_of_a_body_whose_shapes_are_constants(name: str) -> None:
    """The runtime gives other dims for the stacked result of no step then."""
    told = []
    for trips in ("t", "one"):
        first, folded = (
            next((m, t, *bodies_of(m, t)) for m in [read(loop(body[name], trips))] for t in m.nodes() if has_bodies(t))
            for body in (BODIES, FOLDED)
        )
        told.append(knows_more(first[1], first[2], folded[2].model))
        assert not knows_more(first[1], first[2], first[2].model)
    assert told == [True, False]  # a loop with a step has a result
    protos = (loop(each[name]).SerializeToString() for each in (BODIES, FOLDED))
    assert dims_of_no_step(next(protos)) != dims_of_no_step(next(protos))


def read(proto: onnx.ModelProto) -> Model:
    return from_ir(onnx_ir.from_proto(proto))


@pytest.mark.parametrize("name", BODIES)
def test_a_stacked_result_of_no_step_keeps_its_dims(name: str) -> None:
    given = loop(BODIES[name])
    made = taso_mirage.optimize(given, effort="quick")
    assert dims_of_no_step(made.SerializeToString()) == dims_of_no_step(given.SerializeToString())
