"""Inside of nodes: bodies of If, Loop and Scan are optimized like any model, on their inputs when
the whole model runs, and the results are the same on every branch and for every number of
iterations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from bodies import floats, kinds, optimized, parse, same
from onnx_texts import run

from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node
from taso_mirage.onnx_io.bodies import ChangedBody, bodies_of, has_bodies
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.pipeline import inside


def terms_with_bodies(model: Model) -> list[Node]:
    return [n for n in model.nodes() if has_bodies(n)]


BRANCHES = """
    g (float[n, 4] x, bool c) => (float[n, 4] y) {
        r = Relu(x)
        y = If(c) <
            then_branch = t () => (float[n, 4] p) { a = Transpose<perm = [1, 0]>(r) \n b = Transpose<perm = [1, 0]>(a) \n p = Neg(b) },
            else_branch = e () => (float[n, 4] s) { d = Neg(x) \n f = Neg(d) \n s = Add(f, r) }
        >
    }
"""


def test_both_branches_are_optimized_and_captured_values_are_their_inputs() -> None:
    before = parse(BRANCHES)
    after, result = optimized(before)
    assert kinds(after, "then_branch") == ["Neg"]
    assert kinds(after, "else_branch") == ["Add"]
    assert [line for line in result.notes if line.startswith("then_branch of If 'y': 1 operators instead of 3")]
    assert {d.case for d in result.differences} >= {"random inputs with c=1"}
    same(before, after, *({"x": floats(3, 4), "c": np.array(c)} for c in (True, False)))


def test_a_body_that_gives_what_it_captures_gives_a_copy() -> None:
    """The runtime takes no body whose output is a value of the outer graph."""
    before = parse("""
        g (float[3] x, bool c) => (float[3] y, float[3] z) {
            r = Relu(x)
            y, z = If(c) <
                then_branch = t () => (float[3] p, float[3] q) { a = Neg(r) \n p = Neg(a) \n q = Neg(a) },
                else_branch = e () => (float[3] s, float[3] u) { s = Abs(x) \n u = Exp(x) }
            >
        }
    """)
    after, _ = optimized(before)
    assert kinds(after, "then_branch") == ["Identity", "Identity"]
    same(before, after, *({"x": floats(3), "c": np.array(c)} for c in (True, False)))


def test_a_constant_condition_leaves_its_branch() -> None:
    """Names of branches beside each other may be equal, their weights are not."""
    branch = "a = Constant<value = float[3] {%s}>() \n b = Add(x, a) \n %s = Neg(b)"
    before = parse(f"""
        g (float[3] x) => (float[3] y, float[3] z) {{
            s = Shape(x) \n k = Size(s) \n one = Constant<value = int64 {{1}}>() \n c = Equal(k, one) \n no = Not(c)
            y = If(c) <then_branch = t () => (float[3] p) {{ {branch % ("1, 2, 3", "p")} }},
                else_branch = e () => (float[3] q) {{ {branch % ("4, 5, 6", "q")} }}>
            z = If(no) <then_branch = t2 () => (float[3] p2) {{ {branch % ("7, 8, 9", "p2")} }},
                else_branch = e2 () => (float[3] q2) {{ {branch % ("10, 11, 12", "q2")} }}>
        }}
    """)
    after, result = optimized(before)
    assert result.changed
    assert "If" not in kinds(after)
    same(before, after, {"x": floats(3)})


LOOP = """
    g (float[2, n] x, int64 trips, float[4, 4] m) => (float[2, k] all, float[4, 4] last, float[t, 2] sums) {
        yes = Constant<value = bool {1}>()
        all, last, sums = Loop(trips, yes, x, m) <
            body = b (int64 i, bool c, float[2, a] s, float[4, 4] w) => (bool c2, float[2, a2] s2, float[4, 4] w2, float[2] out) {
                c2 = Identity(c)
                first = Constant<value = int64[1] {0}>() \n second = Constant<value = int64[1] {1}>()
                head = Slice(s, first, second, second)
                n1 = Neg(head) \n n2 = Neg(n1)
                s2 = Concat<axis = 1>(s, n2)
                t1 = Transpose<perm = [1, 0]>(w) \n t2 = Transpose<perm = [1, 0]>(t1) \n w2 = MatMul(t2, m)
                out = ReduceSum<keepdims = 0>(n2, second)
            }
        >
    }
"""


def test_a_loop_carries_what_grows_and_may_not_run_at_all() -> None:
    before = parse(LOOP)
    after, result = optimized(before)
    inner = kinds(after, "body")
    assert not {"Neg", "Transpose"} & {*inner}, result.notes
    feeds = ({"x": floats(2, 3), "m": floats(4, 4), "trips": np.array(n, np.int64)} for n in (0, 1, 5))
    same(before, after, *feeds)
    assert {d.case for d in result.differences} >= {"random inputs with trips=0"}


def test_the_type_of_what_grows_is_free_in_its_body() -> None:
    model = from_memory(parse(LOOP))
    (body,) = bodies_of(model, terms_with_bodies(model)[0])
    carried = {n.attr("name"): str(n.type) for n in body.model.graph.inputs}
    assert carried["s"] == "float32[2, carried_0_1]"
    assert carried["w"] == "float32[4, 4]"


def test_a_scan_along_other_axes_from_the_end() -> None:
    before = parse("""
        g (float[2, 3] s0, float[2, 5, 3] x) => (float[2, 3] s, float[5, 2, 3] ys) {
            s, ys = Scan<num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1],
                body = b (float[2, 3] a, float[2, 3] e) => (float[2, 3] a2, float[2, 3] y) {
                    n1 = Neg(e) \n n2 = Neg(n1) \n a2 = Add(a, n2) \n y = Mul(a2, e)
                }>(s0, x)
        }
    """)
    after, _ = optimized(before)
    assert kinds(after, "body") == ["Add", "Mul"]
    same(before, after, {"s0": floats(2, 3), "x": floats(2, 5, 3)})


def test_a_branch_inside_of_a_loop() -> None:
    before = parse("""
        g (float[3] x, int64 trips, float[3] w) => (float[3] y) {
            yes = Constant<value = bool {1}>()
            y = Loop(trips, yes, x) <
                body = b (int64 i, bool c, float[3] s) => (bool c2, float[3] s2) {
                    c2 = Identity(c)
                    one = Constant<value = int64 {1}>() \n odd = Equal(i, one)
                    r = Abs(s)
                    s2 = If(odd) <
                        then_branch = t () => (float[3] p) { a = Neg(r) \n b2 = Neg(a) \n p = Add(b2, w) },
                        else_branch = e () => (float[3] q) { d = Sub(r, w) \n q = Exp(d) }
                    >
                }
            >
        }
    """)
    after, result = optimized(before)
    assert kinds(after, "body", "then_branch") == ["Add"], result.notes
    assert any(line.startswith("then_branch of If 's2'") for line in result.notes)
    same(before, after, *({"x": floats(3), "w": floats(3), "trips": np.array(n, np.int64)} for n in (0, 1, 4)))


def test_a_weight_of_both_branches_is_stored_once() -> None:
    """The branches both fold the transposition of a captured weight, with equal results."""
    before = parse(
        """
        g (float[2, 64] x, bool c) => (float[2, 64] y) {
            y = If(c) <
                then_branch = t () => (float[2, 64] p) { t1 = Transpose<perm = [1, 0]>(w) \n m1 = MatMul(x, t1) \n p = Abs(m1) },
                else_branch = e () => (float[2, 64] q) { t2 = Transpose<perm = [1, 0]>(w) \n m2 = MatMul(x, t2) \n q = Exp(m2) }
            >
        }
        """,
        {"w": floats(64, 64)},
    )
    after, result = optimized(before)
    assert kinds(after, "then_branch") == ["MatMul", "Abs"], result.notes
    assert after.ByteSize() < 1.5 * 4 * 64 * 64
    same(before, after, *({"x": floats(2, 64), "c": np.array(c)} for c in (True, False)))


def test_a_branch_that_no_run_reaches_is_checked_by_itself() -> None:
    before = parse("""
        g (float[3] x) => (float[3] y) {
            s = Abs(x) \n t = ReduceSum<keepdims = 0>(s) \n zero = Constant<value = float {-1.0}>() \n c = Less(t, zero)
            y = If(c) <
                then_branch = a () => (float[3] p) { n = Neg(s) \n m = Neg(n) \n p = Exp(m) },
                else_branch = b () => (float[3] q) { q = Identity(x) }
            >
        }
    """)
    after, result = optimized(before)
    assert kinds(after, "then_branch") == ["Exp"]
    assert any("no run of the model reaches it" in line for line in result.notes)
    same(before, after, {"x": floats(3)})


def test_a_body_that_went_wrong_is_found_by_the_check_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    real = inside.with_bodies

    def wrong(model: Model, term: Node, changed: Sequence[ChangedBody]) -> Node:
        """The branches exchanged."""
        made = real(model, term, changed)
        attributes = made.attr("call").node.attributes
        one, other = attributes["then_branch"].as_graph(), attributes["else_branch"].as_graph()
        attributes["then_branch"]._value, attributes["else_branch"]._value = other, one
        return made

    monkeypatch.setattr(inside, "with_bodies", wrong)
    _, result = optimized(parse(BRANCHES))
    assert not result.changed
    assert "'bodies of a node' (step 1)" in str(result.failure)


def test_what_is_carried_as_a_sequence_stays() -> None:
    before = parse("""
        g (float[3] x, int64 trips) => (float[k] y) {
            yes = Constant<value = bool {1}>() \n r1 = Neg(x) \n r = Neg(r1)
            empty = SequenceConstruct(r)
            all = Loop(trips, yes, empty) <
                body = b (int64 i, bool c, seq(float[3]) s) => (bool c2, seq(float[3]) s2) {
                    c2 = Identity(c) \n e = Exp(x) \n s2 = SequenceInsert(s, e)
                }
            >
            y = ConcatFromSequence<axis = 0>(all)
        }
    """)
    after, result = optimized(before)
    assert "Neg" not in kinds(after), result.notes
    assert kinds(after, "body") == ["Identity", "Exp", "SequenceInsert"]
    same(before, after, *({"x": floats(3), "trips": np.array(n, np.int64)} for n in (0, 3)))


def test_optional_values_pass_through() -> None:
    before = parse("""
        g (float[3] x, bool c) => (float[3] y) {
            n = Neg(x) \n r = Neg(n)
            o = If(c) <
                then_branch = t () => (optional(float[3]) p) { a = Exp(r) \n p = Optional(a) },
                else_branch = e () => (optional(float[3]) q) { b = Abs(x) \n q = Optional(b) }
            >
            y = OptionalGetElement(o)
        }
    """)
    after, result = optimized(before)
    assert "Neg" not in kinds(after), result.notes
    for c in (True, False):
        feeds = {"x": floats(3), "c": np.array(c)}
        np.testing.assert_allclose(run(before, **feeds)[0], run(after, **feeds)[0], 1e-6)


FUNCTIONS = """
    g (float[3] x, bool c) => (float[3] y) { a = local.scaled<k = 2.0>(x, c) \n y = local.scaled<k = 3.0>(a, c) }
    <domain: "local", opset_import: ["" : 17]>
    scaled <k> (a, c) => (r) {
        n = Neg(a) \n m = Neg(n)
        r = If(c) <
            then_branch = t () => (p) { f = Constant<value_float: float = @k>() \n p = Mul(m, f) },
            else_branch = e () => (q) { f2 = Constant<value_float: float = @k>() \n g2 = Neg(f2) \n h = Neg(g2) \n q = Div(m, h) }
        >
    }
"""


def test_functions_are_read_in_the_place_of_their_calls() -> None:
    """Attributes of the call reach into the bodies of the function."""
    before = parse(FUNCTIONS)
    after, result = optimized(before)
    assert not after.functions, result.notes
    assert "Neg" not in kinds(after)
    same(before, after, *({"x": floats(3), "c": np.array(c)} for c in (True, False)))


def test_a_function_of_another_opset_stays() -> None:
    before = parse(FUNCTIONS.replace('["" : 17]', '["" : 16]'))
    after, result = optimized(before)
    assert len(after.functions) == 1, result.notes


def test_a_model_with_functions_that_is_kept_keeps_them() -> None:
    before = parse("""
        g (float[3] x) => (float[3] y) { y = local.one(x) }
        <domain: "local", opset_import: ["" : 17]>
        one (a) => (r) { r = Exp(a) }
    """)
    after, result = optimized(before)
    assert not result.changed
    assert [f.name for f in after.functions] == kinds(after) == ["one"]
