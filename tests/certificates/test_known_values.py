"""Certificates of models in which a law gives a shape, an axis, a condition, or the number of a
loop's steps, of the graph or of bodies: the file is read with that number, the original without
it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from bodies import optimized, parse

from taso_mirage.certificates.classes import EqualTerms
from taso_mirage.certificates.follow import follow
from taso_mirage.certificates.judge import CHECKED, CaseJudge
from taso_mirage.certificates.known import KnownValues
from taso_mirage.errors import CheckFailed
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import constant, topological
from taso_mirage.onnx_io.content_terms import opened
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.report.certificate import certificate

BODY = """<body = b (int64 i, bool on, float[3] a) => (bool goes, float[3] e, float[3] s) {
    goes = Identity(on) \n e = Exp(a) \n s = Relu(e)
}>"""
BRANCHES = """<then_branch = t () => (float[3] p) { p = Exp(x) },
    else_branch = f () => (float[3] q) { q = Neg(x) }>"""
ZERO = "one = Constant<value = int64 {1}>() \n zero = Sub(n, n) \n k = Add(zero, one)"
VECTOR = "one = Constant<value = int64[1] {1}>() \n zero = Sub(n, n) \n k = Add(zero, one)"
MODELS = {
    "an axis": f"g (int64[1] n, float[3, 4, 4] x) => (float[K, L, M] y) {{ {VECTOR} \n y = ReduceSum(x, k) }}",
    "an end": f"g (int64[1] n, float[3, 4] x) => (float[K, 4] y) {{ {VECTOR} \n y = Slice(x, zero, k) }}",
    "a condition": f"g (int64 n, float[3] x) => (float[3] y) {{ {ZERO} \n c = Less(zero, k) \n y = If(c) {BRANCHES} }}",
    "a value of the other branch": f"""g (int64 n, float[3] x) => (float[3] y) {{ {ZERO} \n c = Less(zero, k)
        e = Exp(x) \n y = If(c) <then_branch = t () => (float[3] p) {{ p = Relu(x) }},
            else_branch = f () => (float[3] q) {{ q = Neg(e) }}> }}""",
    "a trip count": f"g (int64 n, float[3] x) => (float[3] y, float[K, 3] z) {{ {ZERO} \n y, z = Loop(k, , x) {BODY} }}",
    "in a branch": f"""g (int64 n, bool c, float[3] x) => (float[3] y) {{ {ZERO}
        y = If(c) <then_branch = t () => (float[3] p) {{ p, r = Loop(k, , x) {BODY} }},
            else_branch = f () => (float[3] q) {{ q = Neg(x) }}> }}""",
    "after a branch": f"""g (int64[1] n, float[3] x) => (float[M] y) {{ {VECTOR} \n c = Less(zero, k)
        m = If(c) <then_branch = t () => (int64[1] p) {{ p = Sub(n, n) }},
            else_branch = f () => (int64[1] q) {{ q = Neg(n) }}>
        y = ReduceSum(x, m) }}""",
}
LOCAL = "zero = Sub(m, m) \n k = Add(zero, one)"
STEPS = "g (int64[1] n, float[3, 4] x) => (int64[1] r, float[3, 4] y, float[K, 3, L] z)"
OTHER = "else_branch = f () => (float[U, W] q) { q = Neg(x) }"
ELSE = "else_branch = h () => (float[A, B] o) { o = Neg(e) }"
INSIDE = {
    "an axis in a branch": f"""g (bool c, int64[1] n, float[3, 4] x) => (float[K, L] y) {{
        y = If(c) <then_branch = t () => (float[P, Q] p) {{ {VECTOR} \n s = ReduceSum(x, k) \n p = Neg(s) }}, {OTHER}> }}""",
    "an axis in a branch of a branch": f"""g (bool c, bool d, int64[1] n, float[3, 4] x) => (float[K, L] y) {{
        y = If(c) <then_branch = t () => (float[P, Q] p) {{ e = Exp(x) \n p = If(d) <then_branch = s () =>
            (float[R, S] r) {{ {VECTOR} \n r = ReduceSum(e, k) }}, {ELSE}> }}, {OTHER}> }}""",
    "axes by one name in both branches": f"""g (bool c, int64[1] n, float[3, 4] x) => (float[K, L] y) {{
        y = If(c) <then_branch = t () => (float[P, Q] p) {{ {VECTOR} \n p = ReduceSum(x, k) }},
            else_branch = f () => (float[U, W] q) {{ {VECTOR} \n e = Exp(x) \n q = ReduceSum(e, k) }}> }}""",
    "an axis of a state": f"""{STEPS} {{ t = Constant<value = int64 {{2}}>()
        r, y, z = Loop(t, , n, x) <body = b (int64 i, bool on, int64[1] m, float[3, 4] a) =>
            (bool goes, int64[1] j, float[3, 4] e, float[3, V] s) {{
            one = Constant<value = int64[1] {{1}}>() \n {LOCAL}
            goes = Identity(on) \n j = Add(m, one) \n e = Exp(a) \n s = ReduceSum(e, k) }}> }}""",
    "an end of an element": f"""g (int64[5, 1] n, float[3, 4] x) => (float[3, 4] y, float[5, K, 4] z) {{
        y, z = Scan<num_scan_inputs = 1, body = b (float[3, 4] a, int64[1] m) => (float[3, 4] e, float[V, 4] s) {{
            one = Constant<value = int64[1] {{1}}>() \n {LOCAL}
            e = Exp(a) \n s = Slice(e, zero, k) }}>(x, n) }}""",
    "a condition in a branch": f"""g (bool c, int64 n, float[3, 4] x) => (float[3, 4] y) {{
        y = If(c) <then_branch = t () => (float[3, 4] p) {{ {ZERO} \n w = Less(zero, k)
            r = If(w) <then_branch = s () => (float[3, 4] u) {{ u = Exp(x) }},
                else_branch = h () => (float[3, 4] v) {{ v = Neg(x) }}> \n p = Abs(r) }}, {OTHER}> }}""",
    "a trip count in a branch": f"""g (bool c, int64 n, float[3] x) => (float[3] y) {{
        y = If(c) <then_branch = t () => (float[3] p) {{ {ZERO} \n p, r = Loop(k, , x) {BODY} }},
            else_branch = f () => (float[3] q) {{ q = Neg(x) }}> }}""",
}
"""Equal in these: the values of the numbers are known inside of a body alone."""
WRONG = {
    "of the other branch": ("axes by one name in both branches", "zero = Sub(n, n)", "zero = Sub(n, one)"),
    "of another state": ("an axis of a state", "zero = Sub(m, m)", "zero = Sub(m, n)"),
    "of another element": ("an end of an element", "zero = Sub(m, m)", "zero = Sub(m, one)"),
    "of a value outside": ("an axis in a branch of a branch", "zero = Sub(n, n)", "zero = Sub(one, n)"),
}
"""The model, an operation whose result is known, and one for its last place whose result is not."""
POOL = "m, i = MaxPool<kernel_shape = [2, 2]>(x)  u = MaxUnpool<kernel_shape = [2, 2]>(m, i)  v = Exp(u)"
DEAD = {
    "of the graph": f"g (float[1, 1, 4, 4] x) => (float[1, 1, 3, 3] y) {{ {POOL}  a = Neg(m)  y = Neg(a) }}",
    "of a body": f"""g (bool c, float[1, 1, 4, 4] x) => (float[1, 1, 3, 3] y) {{
        y = If(c) <then_branch = t () => (float[1, 1, 3, 3] p) {{ {POOL}  a = Neg(m)  p = Neg(a) }},
            else_branch = f () => (float[1, 1, 3, 3] q) {{ q = MaxPool<kernel_shape = [2, 2]>(x) }}> }}""",
    "of a branch that is not taken": """g (float[1, 1, 4, 4] x) => (float[1, 1, 3, 3] y) {
        m, i = MaxPool<kernel_shape = [2, 2]>(x)  c = Constant<value = bool {1}>()
        a = If(c) <then_branch = t () => (float[1, 1, 3, 3] p) { p = Neg(m) },
            else_branch = f () => (float[1, 1, 3, 3] q) { q = Cast<to = 1>(i) }>  y = Neg(a) }""",
}


def made(text: str) -> tuple[Model, Model, dict[str, Any]]:
    """The model of a text, the optimized one as its file is read, and the certificate."""
    given = parse(text)
    after, result = optimized(given, budget=60.0)
    return from_memory(given), from_memory(after), json.loads(json.dumps(certificate(result, {}, Proofs(None))))


@pytest.mark.parametrize("name", MODELS | INSIDE)
def test_the_certificate_is_followed(name: str) -> None:
    found = follow(*made((MODELS | INSIDE)[name]), CaseJudge(strict=True))
    assert found.equalities.keys() == {CHECKED}


@pytest.mark.parametrize("name", DEAD)
def test_results_that_only_dead_nodes_read_do_not_count(name: str) -> None:
    """The optimized file has no such node: a maximum is read there whose places nothing needs."""
    found = follow(*made(DEAD[name]), CaseJudge(strict=True))
    assert found.equalities.keys() == {CHECKED}


@pytest.mark.parametrize("name", MODELS)
def test_another_number_is_refused(name: str) -> None:
    """The optimized model of other numbers, with its certificate."""
    _, after, text = made(MODELS[name].replace("{1}", "{2}").replace("Less(zero, k)", "Less(k, zero)"))
    with pytest.raises(CheckFailed, match="does not lead"):
        follow(from_memory(parse(MODELS[name])), after, text, CaseJudge())


@pytest.mark.parametrize("name", INSIDE)
def test_another_number_inside_is_refused(name: str) -> None:
    _, after, text = made(INSIDE[name].replace("{1}", "{0}").replace("Less(zero, k)", "Less(k, zero)"))
    with pytest.raises(CheckFailed, match="does not lead"):
        follow(from_memory(parse(INSIDE[name])), after, text, CaseJudge())


@pytest.mark.parametrize("name", WRONG)
def test_what_is_known_at_one_place_is_not_known_at_another(name: str) -> None:
    """The last such value of the original is no constant, and its certificate is that of one."""
    model, known, unknown = WRONG[name]
    before, _, behind = INSIDE[model].rpartition(known)
    _, after, text = made(INSIDE[model])
    with pytest.raises(CheckFailed, match="does not lead"):
        follow(from_memory(parse(before + unknown + behind)), after, text, CaseJudge())


def test_readings_of_a_loop_over_other_variables_are_not_compared() -> None:
    """With the number of steps an input of the body is a state of a loop: a term over one of them
    is no term over the other."""
    original = from_memory(parse(MODELS["a trip count"]))
    view = opened(original)
    view(original.graph.outputs)
    classes = EqualTerms(topological(view.whole()))
    (count,) = (n for n in classes.terms if n.op == "add")
    classes.state(count, constant(np.array(1)))
    again = KnownValues(original, view).read_again(classes)
    assert again
    assert not {"exp", "relu"} & {old.op for old, _ in again}, "terms of the body"
