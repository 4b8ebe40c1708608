"""The gates of a cell as one product, by equalities that the prover proves for a step and the
checker follows; false ones are refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from bodies import optimized, parse
from onnx_texts import run
from written_chains import followed as checked

from taso_mirage.errors import CheckFailed
from taso_mirage.ir.model import Model
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import Node, substitute
from taso_mirage.onnx_io import serialize
from taso_mirage.onnx_io.files import from_memory
from taso_mirage.onnx_io.loops import as_scan, with_scans
from taso_mirage.operators.ops import term, traits
from taso_mirage.pipeline.loops import with_loops
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.search.loops.gates import JOINING, is_split_once, with_joint_products
from taso_mirage.search.loops.hoisting import hoisted_loop
from taso_mirage.search.steps import BODIES, RewriteStep

PROOFS = Proofs(None)
RNG = np.random.default_rng(0)
CELL = """
    g (float[1, 4] h0, float[1, 4] c0, float[5, 1, 3] X{inputs}) => (float[1, 4] h, float[5, 1, 4] Y) {{
        h, c, Y = Scan<num_scan_inputs = 1, body = step (float[1, 4] s, float[1, 4] r, float[1, 3] x)
                => (float[1, 4] s2, float[1, 4] r2, float[1, 4] y) {{
            {gates}
            f = Sigmoid(a0) \n i = Sigmoid(a1) \n t = Tanh(a2)
            u = Mul(f, r) \n w = Mul(i, t) \n r2 = Add(u, w) \n s2 = Tanh(r2) \n y = Identity(s2)
        }}>(h0, c0, X)
    }}
"""
"""A cell of three gates, whose sums are `a0` to `a2`."""
GATES = {
    "matmul": "p{i} = MatMul(x, W{i}) \n q{i} = MatMul(s, R{i}) \n a{i} = Add(p{i}, q{i})",
    "biases": "m{i} = MatMul(x, W{i}) \n n{i} = MatMul(s, R{i}) \n p{i} = Add(m{i}, b{i}) \n q{i} = Add(b{i}, n{i})"
    " \n a{i} = Add(p{i}, q{i})",
    "gemm": "p{i} = Gemm<transB = 1>(x, T{i}, b{i}) \n q{i} = Gemm<transB = 1>(s, S{i}, b{i}) \n a{i} = Add(p{i}, q{i})",
    "products of products": "p{i} = MatMul(x, W{i}) \n o{i} = MatMul(s, R{i}) \n m{i} = MatMul(o{i}, S{i})"
    " \n q{i} = Add(m{i}, b{i}) \n a{i} = Add(p{i}, q{i})",
    "reset": "p{i} = MatMul(x, W{i}) \n q{i} = MatMul(s, R{i}) \n e{i} = Mul(r, q{i}) \n a{i} = Add(p{i}, e{i})",
}
"""A gate, as exporters write it."""
WEIGHTS = {
    f"{n}{i}": RNG.normal(size=shape).astype(np.float32)
    for i in range(3)
    for n, shape in {"W": (3, 4), "R": (4, 4), "b": (4,), "T": (4, 3), "S": (4, 4)}.items()
}


def model(gate: str, inputs: str = "", weights: dict[str, np.ndarray] = WEIGHTS) -> onnx.ModelProto:
    return parse(CELL.format(gates="\n".join(gate.format(i=i) for i in range(3)), inputs=inputs), weights)


def loop_in(read: Model) -> tuple[Node, Node]:
    """The node of a loop, and its term."""
    (node,) = [n for n in read.nodes() if as_scan(read, n) is not None]
    found = as_scan(read, node)
    assert found is not None
    return node, found.term


def followed(before: Model, new: Node, obligations: Sequence[RewriteStep]) -> Any:
    """The verdict of the strict checker on a loop in the place of another one."""
    node, _ = loop_in(before)
    after = before.with_graph(substitute(before.graph.outputs, {node: new}))
    return checked(before, after, [RewriteStep((BODIES,), (node,), (new,), obligations=tuple(obligations))])


APART = {"products of products": 6, "reset": 3}
"""The products of a state in a step of cells whose joint products would be split in two places, so
that they stay apart."""


@pytest.mark.parametrize("name", GATES)
def test_gates_become_one_product_of_the_state_and_one_of_all_elements(name: str) -> None:
    proto = model(GATES[name])
    before = from_memory(proto)
    node, old = loop_in(before)
    made = hoisted_loop(old, PROOFS)
    assert made is not None
    inside = Counter(n.op for n in made.term.attr("body"))
    assert (inside["matmul"], inside["gemm"]) == (APART.get(name, 1), 0)
    assert made.term.attr("sequences") == (3 if name in APART else 1)
    assert made.term.args[2].shape == (5, 1, 4 if name in APART else 12)
    after = before.with_graph(substitute(before.graph.outputs, {node: made.term}))
    feeds = {n: RNG.normal(size=s).astype(np.float32) for n, s in (("h0", (1, 4)), ("c0", (1, 4)), ("X", (5, 1, 3)))}
    for a, b in zip(run(proto, **feeds), run(onnx.load_from_string(serialize(after)), **feeds), strict=True):
        np.testing.assert_allclose(a, b, 1e-4, 1e-5)
    assert followed(before, made.term, made.obligations).places == len(made.obligations)


STAYS = {
    "weights of the run": (GATES["matmul"], ", float[4, 4] R0, float[4, 4] R1, float[4, 4] R2"),
    "products of several terms": (
        "o{i} = Sub(s, b{i}) \n q{i} = MatMul(o{i}, R{i})"
        " \n p{i} = MatMul(x, W{i}) \n e{i} = Exp(p{i}) \n a{i} = Add(e{i}, q{i})",
        "",
    ),
}


@pytest.mark.parametrize("name", STAYS)
def test_other_products_stay(name: str) -> None:
    gate, inputs = STAYS[name]
    weights = {n: a for n, a in WEIGHTS.items() if f" {n}" not in inputs}
    _, old = loop_in(from_memory(model(gate, inputs, weights)))
    made, _ = with_joint_products(old, PROOFS)
    states = [n for n in made.attr("body") if n.op == "matmul" and n.args[0].shape == (1, 4)]
    assert len(states) == 3


def test_gates_of_a_result_with_loops_are_one_product() -> None:
    """The stage of kernels asks for such loops."""
    _, result = optimized(parse("g (float[2] x) => (float[2] y) { y = Neg(x) }"))
    read = with_scans(from_memory(model(GATES["gemm"])))
    given = replace(result, original=read, model=read, steps=(), weights=read.weights)
    found = with_loops(given)
    assert found is not None
    (loop,) = [n for n in found.model.nodes() if traits(n).lowering is Lowering.STEPS]
    assert sum(n.op == "matmul" for n in loop.attr("body")) == 1
    assert with_loops(found) is None


@pytest.mark.parametrize("name", GATES)
def test_joint_products_are_followed_wherever_they_are_split(name: str) -> None:
    before = from_memory(model(GATES[name]))
    _, old = loop_in(before)
    made, obligations = with_joint_products(old, PROOFS)
    assert is_split_once(made) == (name not in APART)
    assert followed(before, made, obligations).places == len(obligations)


def wrong(loop: Node, name: str) -> Node:
    """A loop whose gates are mixed up."""
    body = loop.attr("body")
    parts = [n for n in body if n.op == "item" and n.args[0].op == "split"]
    (product,) = {n.args[0].args[0] for n in parts if n.args[0].args[0].args[0] is body.inputs[0]}
    own = [n for n in parts if n.args[0].args[0] is product]
    first, second, _ = sorted(own, key=lambda n: int(n.attr("index")))
    state, other = body.inputs[:2]
    table = {
        "two gates": {first: second, second: first},
        "one gate twice": {second: first},
        "another state": {product: term("matmul", other, product.args[1])},
        "a sum of a gate": {first: term("add", first, second)},
        "the other sign": {first: term("neg", first)},
        "a gate of the state": {first: state},
    }[name]
    step = replace(body, outputs=substitute(body.outputs, table))
    return term(loop.op, *loop.args, **{**dict(loop.attrs), "body": step})


@pytest.mark.parametrize(
    "name",
    ["two gates", "one gate twice", "another state", "a sum of a gate", "the other sign", "a gate of the state"],
)
def test_false_gates_are_refused(name: str) -> None:
    before = from_memory(model(GATES["reset"]))
    _, old = loop_in(before)
    made, obligations = with_joint_products(old, PROOFS)
    with pytest.raises(CheckFailed):
        followed(before, wrong(made, name), obligations)


def test_a_false_equality_of_gates_is_refused() -> None:
    before = from_memory(model(GATES["matmul"]))
    _, old = loop_in(before)
    made, obligations = with_joint_products(old, PROOFS)
    (first, second, *rest) = obligations
    swapped = [replace(first, new=second.new), replace(second, new=first.new), *rest]
    assert first.equations == (JOINING,)
    assert followed(before, made, obligations).places == len(obligations)
    with pytest.raises(CheckFailed):
        followed(before, made, swapped)
