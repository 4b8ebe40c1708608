"""Printed graphs, types and equations parse back to the same terms; texts that are none are refused
with their place."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taso_mirage.errors import SyntaxProblem
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.terms import Graph, Literal, Node, Tensor, constant, variable, weight
from taso_mirage.operators.ops import TERMS, extents, get, load_specs, term
from taso_mirage.rewriting.equation import Match, apply_equation, match
from taso_mirage.rewriting.text import laws, parse_equation, parse_graph, parse_type, show_equation, show_graph

quick = settings(max_examples=60, deadline=None, derandomize=True)
UNARY = ["relu", "neg", "exp", "tanh", "abs"]
BINARY = ["add", "sub", "mul", "max"]


@st.composite
def graphs(draw: Any) -> Graph:
    """Random graphs of elementwise operators over inputs, weights and constants of one type, with
    shared terms."""
    dims = draw(st.sampled_from([(2, 3), (), (symbol("n"), 2), (symbol("batch size"), symbol("n") * 2 + 1)]))
    type = Tensor(draw(st.sampled_from(["float32", "float16", "bfloat16", "float64"])), dims)
    inputs = [variable(name, type) for name in draw(st.sampled_from([["x"], ["x", "the 'second'"]]))]
    pool = [*inputs, weight("w\n", type), constant(draw(st.floats(width=16)), type.dtype)]
    for _ in range(draw(st.integers(0, 8))):
        args = draw(st.lists(st.sampled_from(pool), min_size=2, max_size=2))
        if draw(st.booleans()):
            pool.append(term(draw(st.sampled_from(UNARY)), args[0]))
        else:
            pool.append(term(draw(st.sampled_from(BINARY)), *args))
    outputs = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=3))
    return Graph(tuple(inputs), tuple(outputs))


@quick
@given(graphs())
def test_graphs_parse_back(graph: Graph) -> None:
    text = show_graph(graph)
    again = parse_graph(text)
    assert show_graph(again) == text
    assert again == graph


@pytest.mark.parametrize(
    "array",
    [
        np.array([1.5, -0.0, np.inf, -np.inf, np.nan], np.float32),
        np.array([[1, -2], [3, 2**62 + 1]]),
        np.array(0.1),
        np.array(0.1, np.float16),
        np.array([0.1, 3e38], ml_dtypes.bfloat16),
        np.array([1, -8, 7], ml_dtypes.int4),
        np.array([0.5, 448], ml_dtypes.float8_e4m3fn),
        np.array([True, False]),
        np.array([2**64 - 1], np.uint64),
        np.zeros((0, 3), np.float32),
        np.zeros((2, 0), np.int64),
    ],
    ids=lambda a: f"{a.dtype.name}-{a.shape}",
)
def test_constants_parse_back_to_the_bit(array: Any) -> None:
    graph = Graph((), (constant(array),))
    (again,) = parse_graph(show_graph(graph)).outputs
    assert again is graph.outputs[0]
    literal: Literal = again.attr("value")
    assert literal.numpy().tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "type",
    [
        Tensor("float32", (2, 3)),
        Tensor("float32", ()),
        Tensor("int64", (symbol("n"),)),
        Tensor("bool", (symbol("n") * symbol("m") + 2, 1)),
        Tensor("bfloat16", (symbol("the batch"),)),
        Tensor("float32", ((symbol("n") - 1) // 2 + 1, 0)),
        Tensor("float32", None),
        Tensor("Sequence(Tensor(FLOAT))", None),
    ],
    ids=str,
)
def test_types_parse_back(type: Tensor) -> None:
    graph = Graph((variable("x", type),), (variable("x", type),))
    assert parse_graph(show_graph(graph)) == graph


def test_a_golden_graph() -> None:
    x = variable("x", Tensor("float32", (symbol("n"), 4)))
    w = weight("w", Tensor("float32", (4, 2)))
    graph = Graph((x,), (term("relu", term("matmul", x, w)), extents([symbol("n"), 2])))
    assert show_graph(graph) == (
        "def graph(x0: input('x', float32['n', 4])):\n"
        "    v0 = weight('w', float32[4, 2])\n"
        "    v1 = matmul(x0, v0)\n"
        "    v2 = relu(v1)\n"
        "    v3 = extents(values=('n', 2), scalar=0)\n"
        "    return v2, v3\n"
    )


def test_a_deep_graph_prints_and_parses() -> None:
    node: Node = variable("x", Tensor("float32", (2,)))
    graph_input = node
    for _ in range(3000):
        node = term("neg", term("relu", node))
    graph = Graph((graph_input,), (node,))
    assert parse_graph(show_graph(graph)) == graph


@pytest.mark.parametrize("law", laws(), ids=lambda e: e.name)
def test_laws_parse_back(law: Any) -> None:
    text = show_equation(law)
    again = parse_equation(text, law.name)
    assert show_equation(again) == text
    assert (again.lhs, again.rhs, again.where) == (law.lhs, law.rhs, law.where)


def test_every_operator_can_be_called_by_its_name() -> None:
    assert all(name.isidentifier() and get(name) is op for name, op in load_specs().items())
    assert TERMS.constant(Literal.of(np.float32(1))).op == "constant"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def graph(:", "line 1"),
        ("x = 1", "def graph"),
        ("def graph(x):\n return x", "x has no type"),
        ("def graph(x: input('x', float32[2])):\n    return y", "line 2: y is not defined"),
        (
            "def graph(x: input('x', float32[2])):\n    v = nothing_like_it(x)\n    return v",
            "no operator nothing_like_it",
        ),
        ("def graph(x: input('x', float32[2])):\n    v = relu(x)", "returns nothing"),
        ("def graph(x: input('x', float32[2])):\n    import os\n    return x", "line 2: import os"),
        ("def graph(x: input('x', float32[2])):\n    v = relu(x.y)\n    return v", r"x\.y is no term"),
        ("def graph(x: input('x', 3)):\n    return x", "3 is no type"),
        ("def graph(x: input('x', float32[2])):\n    v = softmax(x, axis=open('f'))\n    return v", "is no value"),
    ],
)
def test_texts_that_are_no_graphs(text: str, message: str) -> None:
    with pytest.raises(SyntaxProblem, match=message):
        parse_graph(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("relu(x)", "no equation"),
        ("relu(x) == ", "invalid syntax"),
        ("relu(x) == (x, x)", "1 outputs on the left, 2 on the right"),
        ("relu(x, colour=1) == x", "no attribute colour"),
        ("nothing(x) == x", "no operator nothing"),
        ("relu(x.y) == x", "no term"),
        ("relu(rank) == rank", "function of guards"),
        ("leaky_relu(x, alpha=a) == max(x, mul(x, a))", "a is an operand and the attribute alpha of leaky_relu"),
        ("mul(leaky_relu(x, alpha=a), a) == x", "a is an operand and the attribute alpha of leaky_relu"),
        ("relu(x) == leaky_relu(x, alpha=x)", "x is an operand and the attribute alpha of leaky_relu"),
        ("softmax(x, **a) == mul(x, a)", "a is an operand and all other attributes of softmax"),
    ],
)
def test_texts_that_are_no_equations(text: str, message: str) -> None:
    with pytest.raises(SyntaxProblem, match=message):
        parse_equation(text)


def test_parse_type_of_a_text() -> None:
    assert parse_type('float32[2, "batch"]') == Tensor("float32", (2, symbol("batch")))
    assert parse_type("int64") == Tensor("int64", ())


def test_pads_that_are_moved_by_numbers_are_read_backwards() -> None:
    forth = parse_equation(
        "conv(x, pad(y, pads=(0, 0, 1, 0, 0, 0, 1, 0)), pads=p, group=1, **a) == conv(x, y, pads=plus(p, (-1, 0, -1, 0)), group=1, **a) "
        "where max(p) < 3"
    )
    back = forth.reverse()
    assert back is not None
    assert show_equation(back).replace(", value=0.0, mode='constant'", "") == (
        "conv(x, y, pads=p, group=1, **a) == "
        "conv(x, pad(y, pads=(0, 0, 1, 0, 0, 0, 1, 0)), pads=minus(p, (-1, 0, -1, 0)), group=1, **a) "
        "where max(minus(p, (-1, 0, -1, 0))) < 3"
    )
    x, y = variable("x", Tensor("float32", (1, 2, 5, 5))), variable("y", Tensor("float32", (4, 2, 1, 3)))
    small = term("conv", x, y, strides=(1, 1), pads=(0, 1, 0, 1), dilations=(1, 1), group=1)
    place = match(back, small, {})
    assert isinstance(place, Match)
    found = apply_equation(back, place)
    assert isinstance(found, tuple)
    assert found[0].attr("pads") == (1, 1, 1, 1)
    assert found[0].args[1].shape == (4, 2, 3, 3)
    assert parse_equation("add(pad(x, pads=p), pad(y, pads=q)) == pad(x, pads=plus(p, q))").reverse() is None


def test_attributes_that_are_computed_from_operands_are_read_backwards() -> None:
    back = parse_equation(
        "neg(softmax(x, axis=i)) == softmax(neg(x), axis=rank(x) - 1) where i == rank(x) - 1"
    ).reverse()
    assert back is None  # the axis i is nowhere on the right
    back = parse_equation("neg(softmax(x, axis=1)) == softmax(neg(x), axis=rank(x) - 1)").reverse()
    assert back is not None
    x = variable("x", Tensor("float32", (2, 3)))
    assert isinstance(match(back, term("softmax", term("neg", x), axis=1), {}), Match)
    assert not match(back, term("softmax", term("neg", x), axis=0), {})
