"""Sizes and positions are machine's numbers: floats hold them up to their digits, integers up to
their width, and a model's shapes are computed as the runtime computes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from taso_mirage.ir.dims import Dim, parse_dim, symbol
from taso_mirage.ir.terms import Node, Tensor, constant, variable
from taso_mirage.meanings.indices import Indices
from taso_mirage.meanings.reals import REALS
from taso_mirage.meanings.sizes import ELEMENTS, LARGEST, element_counts, fits, size_bounds
from taso_mirage.measure.session import Session
from taso_mirage.onnx_io import from_ir, serialize
from taso_mirage.onnx_io.protos import from_proto
from taso_mirage.operators.folding import fold_small
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term
from taso_mirage.prove.rules.cases import Instance
from taso_mirage.prove.rules.proofs import Coverage, Proofs
from taso_mirage.prove.symbolic import Proved, prove_symbolic
from taso_mirage.rewriting.equation import instantiate
from taso_mirage.rewriting.index import Rules
from taso_mirage.rewriting.text import laws, parse_equation
from taso_mirage.search.passes import Context, simplify
from taso_mirage.search.weights import fold_weights

Sides = tuple[tuple[Node, ...], tuple[Node, ...]]


def sides(text: str, n: Dim, m: Dim = 0, dtype: str = "int8") -> Sides:
    """The two sides where x has the shape (n,), and y (n, m)."""
    equation = parse_equation(text)
    leaves = {"x": variable("x", Tensor(dtype, (n,))), "y": variable("y", Tensor(dtype, (n, m)))}
    left, right = (instantiate(side, leaves, "float64") for side in (equation.lhs, equation.rhs))
    return left, right


def differs(text: str, n: int) -> bool:
    """Whether numpy shows a difference at a size: y is empty, and of x only the last is not 0."""
    left, right = sides(text, n)
    x, y = np.zeros(n, np.int8), np.zeros((n, 0), np.int8)
    x[-1] = 1
    env = {leaf: {"x": x, "y": y}[leaf.attr("name")] for side in (left, right) for leaf in _leaves(side)}
    with np.errstate(all="ignore"):
        found = interpret([*left, *right], REALS, env)
    return not all(np.array_equal(found[a], found[b]) for a, b in zip(left, right, strict=True))


def _leaves(side: Sequence[Node]) -> list[Node]:
    found, pending = [], list(side)
    while pending:
        node = pending.pop()
        found += [node] if node.op == "input" else []
        pending += node.args
    return found


N = "size_of(x)"
FALSE = [
    (f"cast(cast({N}, to='float16'), to='int64') == {N}", 2049),
    (f"cast(cast({N}, to='bfloat16'), to='int64') == {N}", 257),
    (f"cast(cast({N}, to='float32'), to='int64') == {N}", 2**24 + 1),
    (f"cast(cast({N}, to='int8'), to='int64') == {N}", 128),
    (f"cast(cast({N}, to='uint8'), to='int64') == {N}", 256),
    (f"cast(cast({N}, to='int16'), to='int64') == {N}", 32768),
    (f"cast(cast({N}, to='float16'), to='float32') == cast({N}, to='float32')", 2049),
    (f"cast(cast(cast({N}, to='float16'), to='float64'), to='int32') == cast({N}, to='int32')", 2051),
    (f"cast(add(cast({N}, to='float16'), 1), to='int64') == add({N}, 1)", 2049),
    (f"cast(mul(cast({N}, to='float16'), 2), to='int64') == mul({N}, 2)", 2049),
    (f"cast(neg(cast({N}, to='bfloat16')), to='int64') == neg({N})", 257),
    (f"cast(sqrt(cast(mul({N}, {N}), to='float32')), to='int64') == {N}", 2**24 + 1),
    (f"mul(cast({N}, to='bfloat16'), cast({N}, to='bfloat16')) == cast(mul({N}, {N}), to='bfloat16')", 257),
    (f"cast(add({N}, 1), to='float16') == add(cast({N}, to='float16'), 1)", 2049),
    (
        f"less(cast({N}, to='float16'), cast(add({N}, 1), to='float16')) == less({N}, add({N}, 1))",
        2048,
    ),
    (f"equal(cast({N}, to='float16'), cast(add({N}, 1), to='float16')) == equal({N}, add({N}, 1))", 2048),
    (f"cast(mul(cast({N}, to='int32'), cast({N}, to='int32')), to='int64') == mul({N}, {N})", 46341),
    (f"cast(mul(mul(cast({N}, to='int32'), 64), 64), to='int64') == mul(mul({N}, 64), 64)", 2**19),
    (f"div(mul(cast({N}, to='int16'), 2), 2) == cast({N}, to='int16')", 2**14),
    (f"greater(mul(mul(mul({N}, {N}), mul({N}, {N})), {N}), 0) == equal({N}, {N})", 2**13),
    ("cast(cast(argmax(x, axis=0), to='float16'), to='int64') == argmax(x, axis=0)", 2050),
    ("cast(cast(argmax(x, axis=0), to='bfloat16'), to='int64') == argmax(x, axis=0)", 600),
    ("cast(cast(argmax(x, axis=0), to='uint8'), to='int64') == argmax(x, axis=0)", 600),
    (
        "cast(cast(cumsum(sub(add(x, 1), x), axis=0), to='int64'), to='int16') "
        "== cumsum(cast(sub(add(x, 1), x), to='int16'), axis=0)",
        128,
    ),
    (
        "cast(cast(cumsum(cast(sub(add(x, 1), x), to='int32'), axis=0), to='float16'), to='int32') "
        "== cumsum(cast(sub(add(x, 1), x), to='int32'), axis=0)",
        2049,
    ),
]
"""Equations that hold at small sizes, and one at which they do not."""
TRUE = [
    f"cast(cast({N}, to='float64'), to='int64') == {N}",
    f"cast(cast({N}, to='int32'), to='int64') == {N}",
    f"cast(cast({N}, to='uint32'), to='int64') == {N}",
    f"cast(add(cast({N}, to='int32'), cast({N}, to='int32')), to='int64') == mul({N}, 2)",
    f"cast(cast(cast({N}, to='int32'), to='float64'), to='int64') == {N}",
    f"cast(cast(sub({N}, 1), to='float64'), to='int32') == sub(cast({N}, to='int32'), 1)",
    f"mul(cast({N}, to='float16'), 2) == add(cast({N}, to='float16'), cast({N}, to='float16'))",
    f"mul(cast({N}, to='int16'), cast({N}, to='int16')) == cast(mul({N}, {N}), to='int16')",
    f"greater(mul({N}, {N}), 0) == equal({N}, {N})",
    f"less({N}, add({N}, 1)) == equal({N}, {N})",
    "cast(cast(size_of(y), to='float64'), to='int64') == size_of(y)",
]


@pytest.mark.parametrize(("text", "n"), FALSE)
def test_what_fails_at_large_sizes_is_proved_at_small_ones_alone(text: str, n: int) -> None:
    assert differs(text, n)
    assert not differs(text, 7)
    assert not isinstance(prove_symbolic(*sides(text, symbol("n"))), Proved)
    proofs = Proofs()
    assert not proofs.of_sizes(Instance(*sides(text, n, 1)))
    assert proofs.of_sizes(Instance(*sides(text, 7, 1))).covers is not Coverage.EVERY


@pytest.mark.parametrize("text", TRUE)
def test_what_digits_hold_is_proved_for_every_size(text: str) -> None:
    assert isinstance(prove_symbolic(*sides(text, symbol("n"), symbol("m"))), Proved)


LOST = [
    ("sub(add({f}, 2048), 2048)", "float16", 101),
    ("sub(add({f}, 16777216), 16777216)", "float32", 101),
    ("div(mul({f}, 1000), 1000)", "float16", 101),
    ("mul(div({f}, 7), 7)", "float32", 31),
    ("sub(mul({f}, {f}), mul({f}, sub({f}, 1)))", "float16", 101),
    ("sub(reduce_sum(expand({f}, shape=(40,)), axes=(0,)), mul({f}, 39))", "float16", 101),
]
KEPT = [
    ("sub(add({f}, 1024), 1024)", "float16", 101),
    ("sub(add({f}, 2048), 2048)", "float32", 101),
    ("mul(mul({f}, 0.5), 2)", "float16", 101),
    ("neg(neg({f}))", "bfloat16", 101),
]


@pytest.mark.parametrize(("text", "dtype", "value"), [*LOST, *KEPT])
def test_what_a_float_loses_on_the_way_stays_lost(text: str, dtype: str, value: int) -> None:
    """f is an integer of 8 bits as a float; the whole goes back."""
    whole = text.format(f=f"cast(x, to='{dtype}')")
    left, right = sides(f"cast({whole}, to='int8') == x", 1)
    (x,) = set(_leaves(left))
    found = interpret(left, REALS, {x: np.array([value], np.int8)})[left[0]]
    kept = (text, dtype, value) in KEPT
    assert (int(found[0]) == value) == kept
    assert isinstance(prove_symbolic(left, right), Proved) == kept


def test_what_a_float_loses_of_a_size_stays_lost() -> None:
    """8 / 49 * 49 is below 8."""
    text = f"cast(mul(div(cast({N}, to='float64'), 49), 49), to='int64') == {N}"
    assert differs(text, 8)
    assert not isinstance(prove_symbolic(*sides(text, symbol("n"))), Proved)


def test_a_mean_divides_by_a_number_that_no_conversion_rounds() -> None:
    text = "reduce_mean(y, axes=(0, 1)) == reduce_mean(reduce_mean(y, axes=(0,)), axes=(1,))"
    assert isinstance(prove_symbolic(*sides(text, symbol("n"), symbol("m"), "float16")), Proved)
    converted = "reduce_mean(x, axes=(0,)) == div(reduce_sum(x, axes=(0,)), cast(size_of(x), to='float16'))"
    assert not isinstance(prove_symbolic(*sides(converted, symbol("n"), 0, "float16")), Proved)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_mean_of_more_elements_than_half_precision_counts(dtype: str) -> None:
    x = variable("x", Tensor(dtype, (70_000,)))
    mean = term("reduce_mean", x, axes=(0,), keepdims=0)
    values = np.full(70_000, 1.5, np.float32).astype(constant(0.0, dtype).attr("value").numpy().dtype)
    assert float(interpret([mean], REALS, {x: values})[mean]) == 1.5


def test_a_case_covers_no_dim_beyond_the_bound() -> None:
    """A proof for every size is one for sizes within the bounds."""
    text = f"cast(add(cast({N}, to='int32'), cast({N}, to='int32')), to='int64') == mul({N}, 2)"
    assert Proofs().of_sizes(Instance(*sides(text, LARGEST)))
    assert not Proofs().of_sizes(Instance(*sides(text, LARGEST + 1)))


# ---------------------------------------------------------------- bounds


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("n", 1, LARGEST),
        ("n*m", 1, ELEMENTS),
        ("n*n", 1, LARGEST**2),
        ("n*k", 1, LARGEST**2),
        ("i", 0, LARGEST - 1),
        ("i*m", 0, ELEMENTS),
        ("n*m - n", 1 - LARGEST, ELEMENTS - 1),
        ("(n)//(3)", 0, LARGEST // 3),
        ("n//k", 0, LARGEST),
        ("3*j", 0, 12),
    ],
)
def test_bounds_of_sizes_and_positions(text: str, low: int, high: int) -> None:
    """The tensor has the shape (n, m), with positions i below n and j below 5."""
    indices = Indices()
    indices.volumes = element_counts((symbol("n"), symbol("m")))
    indices.variable("i", symbol("n"))
    indices.variable("j", 5)
    found = size_bounds(indices, parse_dim(text))
    assert (found.low, found.high) == (low, high)


@pytest.mark.parametrize(
    ("text", "dtype", "fit"),
    [
        ("n", "int32", True),
        ("n + m", "int32", True),
        ("n - m", "int32", True),
        ("2*n + m", "int32", False),
        ("n*m", "int32", False),
        ("n*m", "int64", True),
        ("n*m*k", "int64", True),
        ("n*n*n", "int64", False),
        ("n - 3*m", "int32", False),
    ],
)
def test_which_sizes_fit(text: str, dtype: str, fit: bool) -> None:
    assert fits(parse_dim(text), dtype) == fit


# ---------------------------------------------------------------- values that a model computes from shapes

Step = tuple[str, tuple[Any, ...], dict[str, Any]]


def computed(steps: Sequence[Step], dims: Sequence[str | int] = ("n", "m")) -> onnx.ModelProto:
    """A model that computes y of the sizes n and m of x; an operand that is no name is a
    constant."""
    nodes = [
        h.make_node("Shape", ["x"], ["s"]),
        *(h.make_node("Gather", ["s", f"at{i}"], [name], axis=0) for i, name in enumerate("nm")),
    ]
    given = {f"at{i}": np.int64(i) for i in range(2)}
    for k, (op, operands, attributes) in enumerate(steps):
        names = [o if isinstance(o, str) else f"c{k}_{i}" for i, o in enumerate(operands)]
        given |= {name: o for name, o in zip(names, operands, strict=True) if not isinstance(o, str)}
        nodes.append(h.make_node(op, names, [f"t{k}" if k + 1 < len(steps) else "y"], **attributes))
    graph = h.make_graph(
        nodes,
        "g",
        [h.make_tensor_value_info("x", T.INT8, dims)],
        [h.make_empty_tensor_value_info("y")],
        [onnx.numpy_helper.from_array(np.asarray(v), name) for name, v in given.items()],
    )
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)


def cast(of: str, to: int) -> Step:
    return "Cast", (of,), {"to": to}


def halved(to: int, numpy: Any) -> list[Step]:
    """n // 2 as exporters of Resize compute it."""
    return [cast("n", to), ("Mul", ("t0", numpy(0.5)), {}), ("Floor", ("t1",), {}), cast("t2", T.INT64)]


LARGE = (2049, 65_519, 2**24 + 1, 2**24 + 3)
CHAINS: dict[str, tuple[list[Step], tuple[int, ...]]] = {
    "half precision": ([cast("n", T.FLOAT16), cast("t0", T.INT64)], LARGE),
    "float": ([cast("n", T.FLOAT), cast("t0", T.INT64)], LARGE),
    "double": ([cast("n", T.DOUBLE), cast("t0", T.INT64)], LARGE),
    "half of it in half precision": (halved(T.FLOAT16, np.float16), LARGE),
    "half of it as a float": (halved(T.FLOAT, np.float32), LARGE),
    "root": (
        [("Mul", ("n", "n"), {}), cast("t0", T.FLOAT), ("Sqrt", ("t1",), {}), cast("t2", T.INT64)],
        LARGE,
    ),
    "square in int32": (
        [cast("n", T.INT32), ("Mul", ("t0", "t0"), {}), cast("t1", T.INT64)],
        (46_341, 50_000, 65_537),
    ),
    "quotient of a square in int32": (
        [cast("n", T.INT32), ("Mul", ("t0", "t0"), {}), ("Div", ("t1", np.int32(7)), {}), cast("t2", T.INT64)],
        (46_341, 50_000, 65_537),
    ),
    "comparison of a square in int32": (
        [
            cast("n", T.INT32),
            ("Mul", ("t0", "t0"), {}),
            ("Equal", ("t1", np.int32(50_000**2 - 2**32)), {}),
            cast("t2", T.INT64),
        ],
        (50_000,),
    ),
    "sum in int32": (
        [cast("n", T.INT32), ("Add", ("t0", np.int32(2**31 - 1)), {}), cast("t1", T.INT64)],
        (0, 5),
    ),
    "range of a square in int32": (
        [
            cast("n", T.INT32),
            ("Mul", ("t0", "t0"), {}),
            ("Range", (np.int32(0), "t1", np.int32(1)), {}),
            ("Shape", ("t2",), {}),
        ],
        (65_537,),
    ),
    "vector in int32": (
        [
            cast("s", T.INT32),
            ("Mul", ("t0", np.array([2**16, 1], np.int32)), {}),
            ("Add", ("t1", np.array([5, 2**31 - 1], np.int32)), {}),
            cast("t2", T.INT64),
        ],
        (3, 2**16),
    ),
    "whether there is one": ([cast("m", T.BOOL), cast("t0", T.INT64)], (3,)),
    "fifth power": (
        [
            ("Mul", ("n", "n"), {}),
            ("Mul", ("t0", "t0"), {}),
            ("Mul", ("t1", "n"), {}),
            ("Div", ("t2", np.int64(3)), {}),
        ],
        (8_192, 10_000),
    ),
    "negative quotient": ([("Sub", ("n", np.int64(5)), {}), ("Div", ("t0", np.int64(2)), {})], (0, 2, 4, 9)),
    "quotient of a negative quotient": (
        [
            ("Sub", ("n", np.int64(5)), {}),
            ("Div", ("t0", np.int64(2)), {}),
            ("Div", ("t1", np.int64(2)), {}),
        ],
        (0, 2, 4, 9),
    ),
    "negative rest": ([("Sub", ("n", np.int64(5)), {}), ("Mod", ("t0", np.int64(3)), {})], (0, 2, 4, 9)),
    "range of floats": (
        [
            cast("n", T.FLOAT),
            ("Range", (np.float32(0), "t0", np.float32(1)), {}),
            ("ReduceMax", ("t1",), {"keepdims": 0}),
        ],
        (5, 2**24 - 1, 2**24 + 5),
    ),
}


def written(model: onnx.ModelProto) -> bytes:
    """The model as it is read, simplified and written."""
    read = from_ir(from_proto(model))
    outputs, _ = simplify(read.graph.outputs, Rules(laws()), Context(read.opsets, {}))
    return serialize(fold_weights(read.with_graph(outputs))[0])


@pytest.mark.parametrize("name", CHAINS)
def test_sizes_that_a_model_computes_are_those_of_the_runtime(name: str) -> None:
    steps, sizes = CHAINS[name]
    free = computed(steps)
    for n in sizes:
        feed = {"x": np.zeros((n, 0), np.int8)}
        for model in (free, computed(steps, (n, 0))):
            (old,), (new,) = (Session(c).run(feed) for c in (model.SerializeToString(), written(model)))
            assert np.array_equal(old, new), (n, old, new)


# ---------------------------------------------------------------- computed ahead


def converted(values: np.ndarray, *to: int) -> onnx.ModelProto:
    """Conversions of a weight, and a sum with x of the last dtype."""
    names = ["w", *(f"t{i}" for i in range(len(to)))]
    nodes = [h.make_node("Cast", [a], [b], to=t) for a, b, t in zip(names, names[1:], to, strict=False)]
    nodes += [h.make_node("Cast", ["x"], ["one"], to=to[-1]), h.make_node("Add", [names[-1], "one"], ["y"])]
    x, y = h.make_tensor_value_info("x", T.INT8, ["n"]), h.make_empty_tensor_value_info("y")
    weights = [onnx.numpy_helper.from_array(values, "w")]
    graph = h.make_graph(nodes, "g", [x], [y], weights)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)


COUNTED = np.arange(1500, 4500)


@pytest.mark.parametrize("count", [3000, 5, 1])
@pytest.mark.parametrize(
    ("values", "to"),
    [
        (COUNTED, (T.FLOAT16, T.INT64)),
        (COUNTED, (T.BFLOAT16, T.INT64)),
        (COUNTED * 2**14 + 1, (T.FLOAT, T.INT64)),
        (COUNTED.astype(np.float32), (T.FLOAT16, T.INT64)),
        (COUNTED.astype(np.float32), (T.FLOAT16, T.FLOAT)),
        (COUNTED.astype(np.float64) * 2**14 + 1, (T.FLOAT, T.INT64)),
        (COUNTED, (T.INT8, T.INT64)),
        (COUNTED * 2**30 + 7, (T.INT32, T.FLOAT)),
    ],
)
def test_conversions_of_weights_keep_what_they_round(values: np.ndarray, to: Sequence[int], count: int) -> None:
    model = converted(values[:count], *to)
    feed = {"x": np.zeros(count, np.int8)}
    (old,), (new,) = (Session(c).run(feed) for c in (model.SerializeToString(), written(model)))
    assert np.array_equal(old, new)


def test_what_overflows_in_half_precision_is_left_to_the_runtime() -> None:
    large = constant(np.array(60_000), "float16")
    assert fold_small(term("mul", large, large)).op == "mul"
    assert fold_small(term("add", large, constant(np.array(1), "float16"))).op == "constant"


@pytest.mark.parametrize("step", [0.1, -0.7, 1 / 3])
def test_a_range_of_floats_adds_its_step_as_the_runtime_does(step: float) -> None:
    start, stop = np.float32(0.3), np.float32(0.3 + step * 500)
    model = computed([("Range", (start, stop, np.float32(step)), {})])
    feed = {"x": np.zeros((1, 1), np.int8)}
    (old,), (new,) = (Session(c).run(feed) for c in (model.SerializeToString(), written(model)))
    assert np.array_equal(old, new)
