"""Invariants of loops: terms that no iteration changes are computed before the loop, for every
number of iterations, and terms that could fail where the loop does not run stay inside."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from bodies import floats, kinds, optimized, parse, same
from onnx_texts import run

from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node, substitute
from taso_mirage.onnx_io import invariants, serialize
from taso_mirage.onnx_io.bodies import Body
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.operators.ops import term


def lightened(before: onnx.ModelProto) -> onnx.ModelProto:
    """The model after the invariants have moved."""
    model = from_memory(before)
    outputs = model.graph.outputs
    for old, new in invariants.without_invariants(model):
        outputs = substitute(outputs, {old: new})
    return onnx.load_from_string(serialize(model.with_graph(outputs)))


def trips(n: int) -> dict[str, Any]:
    return {"trips": np.array(n, np.int64)}


LOOP = """
    g (float[2, 8] x, float[%s, 8] m, float[8, 8] w, int64 trips) => (float[2, 8] y, float[t, %s, 8] all) {
        yes = Constant<value = bool {1}>()
        y, all = Loop(trips, yes, x) <
            body = b (int64 i, bool c, float[2, 8] s) => (bool c2, float[2, 8] s2, float[%s, 8] k2) {
                c2 = Identity(c)
                k = MatMul(m, w) \n k2 = Tanh(k)
                e = ReduceMean<axes = [0], keepdims = 0>(k2)
                s1 = MatMul(s, w) \n s2 = Add(s1, e)
            }
        >
    }
"""


@pytest.mark.parametrize(("size", "inside"), [("3", ["MatMul", "Add"]), ("n", ["ReduceMean", "MatMul", "Add"])])
def test_what_captured_values_give_is_computed_once(size: str, inside: list[str]) -> None:
    """A mean over no rows does not exist: with a named size it stays."""
    before = parse(LOOP % (size, size, size))
    after = lightened(before)
    assert sorted(set(kinds(after, "body")) - {"Identity"}) == sorted(inside)
    assert {"MatMul", "Tanh"} <= {*kinds(after)}
    feeds = {"x": floats(2, 8), "m": floats(3, 8), "w": floats(8, 8)}
    same(before, after, *(feeds | trips(n) for n in (0, 1, 5)))


def test_a_weight_that_is_captured_is_stored_once() -> None:
    before = parse(
        """
        g (float[2, 64] x, float[2, 64] m, int64 trips) => (float[2, 64] y) {
            yes = Constant<value = bool {1}>()
            y = Loop(trips, yes, x) <
                body = b (int64 i, bool c, float[2, 64] s) => (bool c2, float[2, 64] s2) {
                    c2 = Identity(c) \n k = MatMul(m, w) \n s1 = MatMul(s, w) \n s2 = Add(s1, k)
                }
            >
        }
        """,
        {"w": floats(64, 64)},
    )
    after = lightened(before)
    assert kinds(after).count("MatMul") == kinds(after, "body").count("MatMul") == 1
    assert after.ByteSize() < 1.5 * 4 * 64 * 64
    same(before, after, *({"x": floats(2, 64), "m": floats(2, 64)} | trips(n) for n in (0, 1, 3)))


def test_an_inner_loop_gives_to_the_outer_one_and_that_one_gives_it_on() -> None:
    before = parse(
        """
        g (float[4] x, float[4] m, int64 trips) => (float[4] y) {
            yes = Constant<value = bool {1}>()
            y = Loop(trips, yes, x) <
                body = b (int64 i, bool c, float[4] s) => (bool c2, float[4] s3) {
                    c2 = Identity(c)
                    s3 = Loop(trips, c, s) <
                        body = d (int64 j, bool c3, float[4] r) => (bool c4, float[4] r3) {
                            c4 = Identity(c3)
                            far = Exp(m) \n near = Sin(s)
                            r1 = Mul(r, far) \n r2 = Add(r1, near) \n r3 = Tanh(r2)
                        }
                    >
                }
            >
        }
    """.replace("inner = d", "body = d")
    )
    after = lightened(before)
    assert "Exp" in kinds(after)
    assert "Sin" in kinds(after, "body")
    assert sorted(set(kinds(after, "body", "body")) - {"Identity"}) == ["Add", "Mul", "Tanh"]
    same(before, after, *({"x": floats(4), "m": floats(4)} | trips(n) for n in (0, 1, 3)))


def test_a_scan_computes_once_what_its_elements_do_not_change() -> None:
    before = parse("""
        g (float[2] s0, float[t, 2] x, float[2] m) => (float[2] s, float[t, 2] ys) {
            s, ys = Scan<num_scan_inputs = 1, body = b (float[2] a, float[2] e) => (float[2] a2, float[2] y) {
                k = Exp(m) \n a1 = Mul(a, k) \n a2 = Add(a1, e) \n y = Neg(a2)
            }>(s0, x)
        }
    """)
    after = lightened(before)
    assert sorted(kinds(after, "body")) == ["Add", "Mul", "Neg"]
    same(before, after, *({"s0": floats(2), "x": floats(t, 2), "m": floats(2)} for t in (1, 4)))


def test_a_mask_of_integers_is_made_once_at_every_length() -> None:
    before = parse("""
        g (float[2, 4] x, float[n, 4] m, int64[n] seen, int64 trips) => (float[2, 4] y) {
            yes = Constant<value = bool {1}>() \n one = Constant<value = float {1}>()
            least = Constant<value = float {-10000}>()
            y = Loop(trips, yes, x) <
                body = b (int64 i, bool c, float[2, 4] s) => (bool c2, float[2, 4] s2) {
                    c2 = Identity(c)
                    f = Cast<to = 1>(seen) \n o = Sub(one, f) \n mask = Mul(o, least)
                    t = Transpose<perm = [1, 0]>(m) \n scores = MatMul(s, t) \n a = Add(scores, mask)
                    p = Softmax(a) \n s2 = MatMul(p, m)
                }
            >
        }
    """)
    after = lightened(before)
    assert sorted(set(kinds(after, "body")) - {"Identity"}) == ["Add", "MatMul", "Softmax"]
    for n in (1, 5):
        feeds = {"x": floats(2, 4), "m": floats(n, 4), "seen": np.ones(n, np.int64)}
        feeds["seen"][1:2] = 0
        same(before, after, *(feeds | trips(count) for count in (0, 1, 3)))


STAY = {
    "an index": "float[8, 8] w, int64[2] k | a = Gather(w, k) \n v = Tanh(a) | float[2, 8]",
    "a quotient of integers": "int64[2] k | a = Div(k, k) \n v = Cast<to = 1>(a) | float[2]",
    "a maximum": "float[n] w | v = ReduceMax<keepdims = 0>(w) | float",
    "a text": "string[2] t | v = Cast<to = 1>(t) | float[2]",
    "a window": "float[1, 1, n] w | v = MaxPool<kernel_shape = [3]>(w) | float[1, 1, p]",
    "an operator that is not known": "float[2] w | v = local.unknown(w) | float[2]",
    "a branch": "float[2] w, bool k | v = If(k) <then_branch = p () => (float[2] q) { q = Exp(w) }, "
    "else_branch = o () => (float[2] r) { r = Abs(w) }> | float[2]",
    "only a weight": "| v = Constant<value = float[2] {1, 2}>() | float[2]",
}


@pytest.mark.parametrize("why", STAY)
def test_what_could_fail_where_the_loop_does_not_run_stays(why: str) -> None:
    """Computed outside, an index beyond the table would be an error of a loop that never reads
    it."""
    given, body, type = (part.strip() for part in STAY[why].split("|"))
    before = parse(
        f"""
        g (int64 trips{", " * bool(given)}{given}) => (int64 last, {type.replace("[", "[t, ") if "[" in type else "float[t]"} all) {{
            yes = Constant<value = bool {{1}}>() \n zero = Constant<value = int64 {{0}}>()
            last, all = Loop(trips, yes, zero) <
                body = b (int64 i, bool c, int64 s) => (bool c2, int64 s2, {type} v) {{
                    c2 = Identity(c) \n s2 = Add(s, i)
                    {body}
                }}
            >
        }}
    """
    )
    assert invariants.without_invariants(from_memory(before)) == []


def test_a_loop_that_does_not_run_reads_no_table() -> None:
    before = parse("""
        g (float[4, 2] w, int64[2] k, float[2, 2] x, int64 trips) => (float[2, 2] y) {
            yes = Constant<value = bool {1}>()
            y = Loop(trips, yes, x) <
                body = b (int64 i, bool c, float[2, 2] s) => (bool c2, float[2, 2] s2) {
                    c2 = Identity(c) \n a = Exp(w) \n r = Gather(a, k) \n s2 = Add(s, r)
                }
            >
        }
    """)
    after = lightened(before)
    assert "Exp" in kinds(after)
    beyond = {"w": floats(4, 2), "k": np.array([9, 9]), "x": floats(2, 2)} | trips(0)
    same(before, after, beyond, beyond | {"k": np.array([0, 3])} | trips(2))


HEAVY = """
    g (float[2, n] x, float[n, 256] memory, float[256, 256] w) => (float[2, 256] y) {
        yes = Constant<value = bool {1}>() \n trips = Constant<value = int64 {16}>()
        zero = MatMul(x, memory)
        y = Loop(trips, yes, zero) <
            body = b (int64 i, bool c, float[2, 256] s) => (bool c2, float[2, 256] s2) {
                c2 = Identity(c)
                k = MatMul(memory, w) \n t = Transpose<perm = [1, 0]>(k)
                scores = MatMul(s, t) \n p = Softmax(scores) \n o = MatMul(p, k) \n s2 = Add(s, o)
            }
        >
    }
"""


@pytest.mark.sampled(3)
def test_a_model_whose_loop_repeats_itself_becomes_faster() -> None:
    before = parse(HEAVY)
    after, result = optimized(before, measure=True, budget=10.0, kernels="off")
    assert "Loop 'y': terms that no iteration changes are computed once" in result.notes
    assert result.changed, result.notes
    assert sum(kind in ("MatMul", "Gemm") for kind in kinds(after, "body")) == 2, onnx.printer.to_text(after)
    same(before, after, *({"x": floats(2, n), "memory": floats(n, 256), "w": floats(256, 256)} for n in (1, 30)))


def test_nothing_moves_where_nothing_is_measured() -> None:
    _, result = optimized(parse(HEAVY))
    assert not any("is computed once" in note for note in result.notes)


@pytest.mark.sampled(3)
def test_what_moved_wrongly_is_found_by_the_check_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    real = invariants._invariants

    def wrong(model: Model, body: Body) -> dict[Node, Node]:
        return {inner: term("neg", outer) for inner, outer in real(model, body).items()}

    monkeypatch.setattr(invariants, "_invariants", wrong)
    before = parse(HEAVY)
    after, result = optimized(before, measure=True, budget=10.0, kernels="off")
    assert "'bodies of a node' (step 1)" in str(result.failure)
    feeds = {"x": floats(2, 5), "memory": floats(5, 256), "w": floats(256, 256)}
    np.testing.assert_allclose(run(before, **feeds)[0], run(after, **feeds)[0], 1e-5, 1e-6)
