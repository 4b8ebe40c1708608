"""Certificates of models in which a law gives a shape, an axis, a condition, or the number of a
loop's steps: the file is read with that number, the original without it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from bodies import optimized, parse

from taso_mirage.certificates.follow import follow
from taso_mirage.certificates.judge import CHECKED, CaseJudge
from taso_mirage.errors import CheckFailed
from taso_mirage.ir.model import Model
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


@pytest.mark.parametrize("name", MODELS)
def test_the_certificate_is_followed(name: str) -> None:
    found = follow(*made(MODELS[name]), CaseJudge(strict=True))
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
