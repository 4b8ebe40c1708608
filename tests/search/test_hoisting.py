"""Hoisting out of loops: terms that no state changes are computed for all steps at once, by
equalities that the prover proves for one step and the checker follows; false ones are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import onnx
import pytest
from bodies import floats, optimized, parse
from loop_models import BACKWARD, counted, gated, gated_delta, loop, recurrent, shifted
from onnx_texts import run

from taso_mirage.certificates.follow import follow
from taso_mirage.certificates.judge import CaseJudge
from taso_mirage.errors import CheckFailed
from taso_mirage.ir.model import Model, random_array
from taso_mirage.ir.terms import Node, Tensor, constant, substitute, variable
from taso_mirage.onnx_io import serialize
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.onnx_io.loops import as_scan
from taso_mirage.operators.ops import term
from taso_mirage.prove.rules.cases import Instance
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.report.certificate import certificate
from taso_mirage.search.loops.hoisting import HoistedLoop, hoisted_loop
from taso_mirage.search.steps import BODIES, RewriteStep

PROOFS = Proofs(None)
MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], set[str]]] = {
    "gated": (gated, {"mul", "add"}),
    "any length": (partial(gated, "t"), {"mul", "add"}),
    "backward": (partial(gated, more=BACKWARD), {"mul", "add"}),
    "counted": (counted, {"mul", "add"}),
    "gated delta": (gated_delta, {"mul", "add", "sub", "matmul", "unsqueeze", "squeeze"}),
}
"""Models, and the operators that stay in their loops."""


def hoisted(proto: onnx.ModelProto) -> tuple[Model, Model, HoistedLoop]:
    """A model, the model with less in its loop, and that loop."""
    model = from_memory(proto)
    (node,) = [n for n in model.nodes() if as_scan(model, n) is not None]
    found = as_scan(model, node)
    assert found is not None
    made = hoisted_loop(found.term, PROOFS)
    assert made is not None
    return model, model.with_graph(substitute(model.graph.outputs, {node: made.term})), made


@pytest.mark.parametrize("name", MODELS)
def test_what_no_state_changes_leaves_the_loop(name: str) -> None:
    make, inside = MODELS[name]
    before = make()
    model, lighter, made = hoisted(before)
    assert {n.op for n in made.term.attr("body") if n.args} == inside
    after = onnx.load_from_string(serialize(lighter))
    onnx.checker.check_model(after, full_check=True)
    rng, sizes = np.random.default_rng(0), {"t": 3}
    feed = {n.attr("name"): random_array(n, rng, sizes) for n in model.graph.inputs}
    for a, b in zip(run(before, **feed), run(after, **feed), strict=True):
        np.testing.assert_allclose(a, b, 1e-4, 1e-5)


@pytest.mark.parametrize("make", [recurrent, shifted])
def test_a_loop_whose_terms_all_depend_on_states_stays(make: Callable[[], onnx.ModelProto]) -> None:
    assert hoisted_loop(loop(make()).outputs[0].args[0], PROOFS) is None


CELL = """
    g (float[2, 4] h0, float[t, 2, 3] X, float[8, 3] W, float[8, 4] R, float[8] b) => (float[2, 4] h, float[t, 2, 4] Y) {
        h, Y = Scan<num_scan_inputs = 1, body = step (float[2, 4] s, float[2, 3] x) => (float[2, 4] s2, float[2, 4] y) {
            p = Gemm<transB = 1>(x, W, b) \n q = Gemm<transB = 1>(s, R) \n a = Add(p, q)
            z, n = Split<axis = 1, num_outputs = 2>(a) \n i = Sigmoid(z) \n c = Tanh(n)
            m = Mul(i, s) \n s2 = Add(m, c) \n y = Identity(s2)
        }>(h0, X)
    }
"""


def test_the_product_of_a_cells_inputs_becomes_one_for_all_steps() -> None:
    before = parse(CELL.replace(", num_outputs = 2", ""))
    _, lighter, made = hoisted(before)
    assert [n.op for n in made.term.attr("body")].count("gemm") == 1
    feed = {"h0": floats(2, 4), "X": floats(5, 2, 3), "W": floats(8, 3), "R": floats(8, 4), "b": floats(8)}
    after = onnx.load_from_string(serialize(lighter))
    for a, b in zip(run(before, **feed), run(after, **feed), strict=True):
        np.testing.assert_allclose(a, b, 1e-5, 1e-6)


# ---------------------------------------------------------------- false laws

STEP = variable("step", Tensor("int64", ()))
X, Z = (variable(name, Tensor("float32", (4, 3, 3))) for name in ("x", "z"))
W = variable("w", Tensor("float32", (3, 3)))


def at(x: Node, step: Node = STEP) -> Node:
    return term("gather", x, step, axis=0)


ONE = constant(1, "int64")
LATER = term("add", STEP, ONE)
FALSE = {
    "one step later": (term("tanh", at(X)), at(term("tanh", X), LATER)),
    "the step before": (term("matmul", at(X), W), at(term("matmul", X, W), term("sub", STEP, ONE))),
    "the wrong direction": (term("neg", at(X)), at(term("neg", X), term("neg", STEP))),
    "another sequence": (term("mul", at(X), at(X)), at(term("mul", X, Z))),
    "operands that changed places": (term("sub", at(X), at(Z)), at(term("sub", Z, X))),
    "a transposed weight": (term("matmul", at(X), W), at(term("matmul", X, term("transpose", W, perm=(1, 0))))),
    "a sum over another axis": (
        term("reduce_sum", at(X), axes=(0,), keepdims=0),
        at(term("reduce_sum", X, axes=(2,), keepdims=0)),
    ),
    "a sum over the steps": (at(X), at(term("expand", term("reduce_sum", X, axes=(0,), keepdims=1), shape=(4, 3, 3)))),
    "a softmax over the steps": (term("softmax", at(X), axis=0), at(term("softmax", X, axis=0))),
    "a running sum": (at(X), at(term("cumsum", X, axis=0))),
    "the first step in all": (at(X), at(X, term("sub", STEP, STEP))),
    "a mask that is ignored": (term("mul", at(X), at(Z)), at(X)),
}


@pytest.mark.parametrize("name", FALSE)
def test_a_false_equality_of_a_step_is_not_proved(name: str) -> None:
    old, new = FALSE[name]
    assert old.type == new.type
    assert not PROOFS.judge(Instance((old,), (new,)))


# ---------------------------------------------------------------- certificates


def certified(model: Model, lighter: Model, made: HoistedLoop) -> dict[str, object]:
    """The certificate of a hoisting."""
    _, result = optimized(onnx.load_from_string(serialize(model)))
    (node,) = [n for n in model.nodes() if as_scan(model, n) is not None]
    step = RewriteStep((BODIES,), (node,), (made.term,), obligations=made.obligations)
    done = replace(result, original=model, model=lighter, steps=(step,), changed=True)
    return certificate(done, {}, PROOFS)


def test_a_certificate_leads_through_the_steps_of_a_loop() -> None:
    model, lighter, made = hoisted(gated())
    text = certified(model, lighter, made)
    found = follow(model, lighter, text, CaseJudge())
    assert found.places == len(made.obligations) == 5
    assert not found.alone
    with pytest.raises(CheckFailed, match="does not lead"):
        follow(model, lighter, {**text, "records": text["records"][:-1]}, CaseJudge())  # type: ignore[index]


def wrong_loops(made: Node) -> Iterator[tuple[str, Node]]:
    """Loops that compute something else."""
    attrs = dict(made.attrs)
    yield "the wrong direction", term(made.op, *made.args, **{**attrs, "backward": 1})
    first, second, *rest = made.args[1:]
    yield "sequences that changed places", term(made.op, made.args[0], second, first, *rest, **attrs)
    late = term("concat", term("slice", first, axes=(0,), starts=(1,), ends=(4,), steps=(1,)), at_end(first), axis=0)
    yield "a sequence one step later", term(made.op, made.args[0], late, second, *rest, **attrs)
    yield "another first state", term(made.op, term("neg", made.args[0]), *made.args[1:], **attrs)


def at_end(x: Node) -> Node:
    return term("slice", x, axes=(0,), starts=(3,), ends=(4,), steps=(1,))


def test_a_certificate_never_leads_to_another_loop() -> None:
    model, lighter, made = hoisted(gated())
    text = certified(model, lighter, made)
    others = dict(wrong_loops(made.term))
    assert made.term not in others.values()
    for other in others.values():
        wrong = lighter.with_graph(substitute(lighter.graph.outputs, {made.term: other}))
        with pytest.raises(CheckFailed, match="does not lead"):
            follow(model, wrong, text, CaseJudge())
