"""Loops that are recurrent layers become operators, by a step that the prover proves and the
checker follows; false ones are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from bodies import optimized
from cell_models import LAYERS, counted_layer
from loop_models import as_terms
from onnx_texts import run
from operator_uses import build, opsets

from taso_mirage.certificates.follow import follow
from taso_mirage.certificates.judge import CaseJudge
from taso_mirage.errors import CheckFailed
from taso_mirage.ir.model import Model, random_array
from taso_mirage.ir.terms import Node, substitute, topological
from taso_mirage.onnx_io import from_ir, serialize, to_ir
from taso_mirage.onnx_io.build import standalone
from taso_mirage.onnx_io.content_terms import opened
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.onnx_io.loops import as_scan
from taso_mirage.operators.ops import get, term
from taso_mirage.pipeline.loops import with_loops
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.report.certificate import certificate
from taso_mirage.report.result import Result
from taso_mirage.search.loops.layers import Layer, candidates, layer_of, proved_layer
from taso_mirage.search.steps import BODIES, RewriteStep

PROOFS = Proofs(None)
JUDGE = CaseJudge()


def in_model(proto: onnx.ModelProto) -> tuple[Model, Node, Layer]:
    """A model, its loop, and the operator for it."""
    model = from_memory(proto)
    (node,) = [n for n in model.nodes() if as_scan(model, n) is not None]
    found = as_scan(model, node)
    assert found is not None
    made = layer_of(found.term, PROOFS)
    assert made is not None
    return model, node, made


def with_layer(model: Model, node: Node, results: tuple[Node, ...]) -> Model:
    olds = [term("item", node, index=i) for i in range(len(results))]
    return model.with_graph(substitute(model.graph.outputs, dict(zip(olds, results, strict=True))))


@cache
def any_result() -> Result:
    return optimized(LAYERS["rnn"]())[1]


@cache
def with_operator(name: str) -> tuple[Model, Node, Layer, Result]:
    """A model of `LAYERS`, its loop, the operator, and the model with the operator as a result."""
    model, node, made = in_model(LAYERS[name]())
    olds = tuple(term("item", node, index=i) for i in range(len(made.results)))
    step = RewriteStep((BODIES,), olds, made.results, obligations=made.obligations)
    done = replace(
        any_result(), original=model, model=with_layer(model, node, made.results), steps=(step,), changed=True
    )
    return model, node, made, done


@cache
def certified(name: str) -> tuple[Model, Node, Layer, dict[str, object]]:
    """A model of `LAYERS` with its operator and the certificate of it."""
    model, node, made, done = with_operator(name)
    return model, node, made, json.loads(json.dumps(certificate(done, {}, PROOFS)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", LAYERS)
def test_kernels_are_for_the_loop_of_a_layer_again(name: str) -> None:
    model, _, made, done = with_operator(name)
    loops = with_loops(done)
    assert loops is not None
    operators = [n.op for n in loops.model.nodes()]
    assert "scan" in operators
    assert made.operator.op not in operators
    proto = onnx.load_from_string(serialize(loops.model))
    text = json.loads(json.dumps(certificate(loops, {}, PROOFS)))
    assert not follow(model, from_memory(proto), text, JUDGE).alone
    rng = np.random.default_rng(0)
    feed = {n.attr("name"): random_array(n, rng, {"t": 3, "n": 2}) for n in model.graph.inputs}
    for a, b in zip(run(LAYERS[name](), **feed), run(proto, **feed), strict=True):
        np.testing.assert_allclose(a, b, 1e-3, 1e-4)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", LAYERS)
def test_a_loop_becomes_the_operator_and_the_checker_follows(name: str) -> None:
    model, node, made, text = certified(name)
    assert made.operator.op == name.split()[0]
    after = onnx.load_from_string(serialize(with_layer(model, node, made.results)))
    onnx.checker.check_model(after, full_check=True)
    found = follow(model, from_memory(after), text, JUDGE)
    assert found.places
    assert not found.alone
    rng = np.random.default_rng(0)
    feed = {n.attr("name"): random_array(n, rng, {"t": 3, "n": 2}) for n in model.graph.inputs}
    for a, b in zip(run(LAYERS[name](), **feed), run(after, **feed), strict=True):
        np.testing.assert_allclose(a, b, 1e-4, 1e-5)


def test_a_result_that_nothing_reads_needs_no_record() -> None:
    before, node, made, _ = certified("lstm")
    model = before.with_graph(before.graph.outputs[-1:])
    after = with_layer(model, node, made.results)
    olds = tuple(term("item", node, index=i) for i in range(len(made.results)))
    step = RewriteStep((BODIES,), olds, made.results, obligations=made.obligations)
    done = replace(any_result(), original=model, model=after, steps=(step,), changed=True)
    names = {"output_names": before.output_names[-1:]}
    one, two = replace(model, **names), replace(after, **names)
    text = json.loads(json.dumps(certificate(replace(done, original=one, model=two), {}, PROOFS)))
    assert not follow(one, two, text, JUDGE).alone


# ---------------------------------------------------------------- false laws


def exchanged(matrix: Node, gates: int, first: int, second: int) -> Node:
    """The weights with two gates in each other's place."""
    order = list(range(gates))
    order[first], order[second] = second, first
    n = matrix.shape[1] // gates
    parts = [term("slice", matrix, starts=(i * n,), ends=((i + 1) * n,), axes=(1,), steps=(1,)) for i in order]
    return term("concat", *parts, axis=1)


def wrong_layers(layer: Node) -> Iterator[tuple[str, Node]]:
    """Operators that compute something else than a layer."""
    (x, w, r, b, *firsts), attrs = layer.args, dict(layer.attrs)
    gates = w.shape[1] // r.shape[2]
    yield from ((name, term(layer.op, *args, *firsts, **attrs)) for name, *args in wrong_weights(x, w, r, b, gates))
    for name, others in wrong_firsts(*firsts):
        yield name, term(layer.op, x, w, r, b, *others, **attrs)
    yield "the other direction", term(layer.op, *layer.args, **{**attrs, "backward": 1 - attrs["backward"]})
    late = [term("slice", x, starts=(i,), ends=(j,), axes=(0,), steps=(1,)) for i, j in ((1, 3), (0, 1))]
    yield "a sequence one step later", term(layer.op, term("concat", *late, axis=0), *layer.args[1:], **attrs)
    yield "one element in all steps", term(layer.op, term("expand", late[1], shape=x.shape), *layer.args[1:], **attrs)
    if "linear_before_reset" in attrs:
        other = {**attrs, "linear_before_reset": 1 - attrs["linear_before_reset"]}
        yield "the reset on the other side of the product", term(layer.op, *layer.args, **other)
    names = attrs["activations"].split()
    for i, name in enumerate(names):
        changed = " ".join([*names[:i], "Softsign" if name == "Tanh" else "Tanh", *names[i + 1 :]])
        yield f"another activation {i}", term(layer.op, *layer.args, **{**attrs, "activations": changed})


def wrong_weights(x: Node, w: Node, r: Node, b: Node, gates: int) -> Iterator[tuple[Any, ...]]:
    for i in range(gates):
        for j in range(i):
            one, two = exchanged(w, gates, i, j), exchanged(r, gates, i, j)
            yield f"the gates {j} and {i} exchanged", x, one, two, b
            yield f"the inputs of the gates {j} and {i} exchanged", x, one, r, b
            yield f"the states of the gates {j} and {i} exchanged", x, w, two, b
    yield "a bias twice", x, w, r, term("add", b, b)
    yield "no bias", x, w, r, None
    parts = [term("slice", r, starts=(4 * i,), ends=(4 * i + 4,), axes=(1,), steps=(1,)) for i in range(gates)]
    turned = term("concat", *(term("transpose", each, perm=(0, 2, 1)) for each in parts), axis=1)
    yield "the matrices of the states transposed", x, w, turned, b


def wrong_firsts(h: Node, *c: Node) -> Iterator[tuple[str, tuple[Node | None, ...]]]:
    yield "the first state ignored", (None, *c)
    yield "the first state twice", (term("add", h, h), *c)
    if c:
        yield "states exchanged", (*c, h)
        yield "the state of the cell ignored", (h,)
        yield "one first state for both", (h, h)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("name", ["lstm", "gru", "gru that resets the state"])
def test_a_false_layer_is_not_proved_or_not_followed(name: str, part: int) -> None:
    model, node, made, text = certified(name)
    found = as_scan(model, node)
    assert found is not None
    candidate, wrong = next(candidates(found.term)), dict(wrong_layers(made.operator))
    assert candidate.layer is made.operator
    assert proved_layer(found.term, candidate, PROOFS) is not None
    assert len(wrong) > 18
    for i, (why, other) in list(enumerate(wrong.items()))[part::4]:
        results = substitute(made.results, {made.operator: other})
        if i % 3 == 0:
            assert proved_layer(found.term, replace(candidate, layer=other, results=results), PROOFS) is None, why
            continue
        after = with_layer(model, node, results)
        with pytest.raises(CheckFailed, match="does not lead"):
            follow(model, after, text, JUDGE)


# ---------------------------------------------------------------- operators


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("op", "i"), [(n, i) for n in ("lstm", "gru", "rnn") for i in range(len(get(n).examples))])
def test_a_written_operator_is_opened_as_its_definition(op: str, i: int) -> None:
    use = build(get(op), i)
    there = from_ir(to_ir(standalone(use.graph, opsets(use))))
    assert use.op.name not in {n.op for n in there.nodes()}
    graph = replace(there, graph=use.graph)
    assert opened(there)(there.graph.outputs) == opened(graph)(graph.graph.outputs)
    assert all(
        n.op != "opaque" or "loop" in repr(n.attr("call")) for n in topological(opened(there)(there.graph.outputs))
    )


@pytest.mark.parametrize(("op", "i"), [(n, i) for n in ("lstm", "gru", "rnn") for i in range(len(get(n).examples))])
def test_the_loop_of_a_written_operator_is_followed(op: str, i: int) -> None:
    """The rows of the only gate of an RNN are a slice of all, which a file has without axes."""
    use = build(get(op), i)
    made = standalone(use.graph, opsets(use))
    original = from_ir(to_ir(made))
    loops = with_loops(replace(any_result(), original=original, model=made, steps=(), changed=True))
    assert loops is not None
    after = from_memory(onnx.load_from_string(serialize(loops.model)))
    text = json.loads(json.dumps(certificate(loops, {}, PROOFS)))
    assert not follow(original, after, text, JUDGE).alone


def test_a_loop_that_may_have_no_step_stays() -> None:
    """ONNX Runtime's layers give zeros after no step."""
    model = as_terms(counted_layer("t"))
    (node,) = [n for n in model.nodes() if n.op == "scan"]
    assert layer_of(node, PROOFS) is None
