"""Writing to computed positions: random cases against ONNX Runtime at all opsets, and constant
indices that are a part of the data."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, topological, variable
from taso_mirage.meanings.reals import EXACT
from taso_mirage.onnx_io import from_proto, serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.onnx_io.read import from_ir
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import Call, get, term
from taso_mirage.prove.symbolic import Proved, prove_symbolic

REDUCTIONS = {"add": 16, "mul": 16, "max": 18, "min": 18}
OPSETS = {
    "Scatter": (9, 10),
    "ScatterND": (11, 13, 16, 18, 24),
    "ScatterElements": (11, 13, 16, 18, 24),
    "TensorScatter": (24, 26),
}
DATA = {
    np.dtype("float32"): TensorProto.FLOAT,
    np.dtype("int64"): TensorProto.INT64,
    np.dtype("int32"): TensorProto.INT32,
}


def model(op: str, opset: int, arrays: dict[str, Any], fixed: bool, **attrs: Any) -> onnx.ModelProto:
    """A model of one node; `fixed`: its indices are an initializer."""
    given = {name: x for name, x in arrays.items() if not (fixed and name == "i")}
    inputs = [helper.make_tensor_value_info(n, DATA[x.dtype], x.shape) for n, x in given.items()]
    result = helper.make_tensor_value_info("y", DATA[arrays["x"].dtype], arrays["x"].shape)
    known = [numpy_helper.from_array(arrays["i"], "i")] if fixed else []
    graph = helper.make_graph([helper.make_node(op, [*arrays], ["y"], **attrs)], "g", inputs, [result], known)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def drawn(op: str, rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    """Random operands and attributes: indices that count from both ends, without equal places."""
    shape = [int(n) for n in rng.integers(2, 6, rng.integers(2, 4))]
    x = rng.integers(-9, 9, shape).astype(rng.choice(["float32", "int64"]))
    index = rng.choice(["int64", "int32"])
    if op == "ScatterND":
        index = "int64"
        depth = int(rng.integers(1, len(shape) + 1))
        whole = int(np.prod(shape[:depth]))
        flat = rng.permutation(whole)[: rng.integers(1, whole + 1)]
        places = np.stack(np.unravel_index(flat, shape[:depth]), -1)
        places = np.where(rng.random(places.shape) < 0.3, places - np.array(shape[:depth]), places)
        return {
            "x": x,
            "i": places.astype(index),
            "u": rng.integers(-9, 9, (len(flat), *shape[depth:])).astype(x.dtype),
        }, {}
    axis = int(rng.integers(op == "TensorScatter", len(shape)))
    updated = [int(rng.integers(1, n + 1)) if k == axis or op != "TensorScatter" else n for k, n in enumerate(shape)]
    u = rng.integers(-9, 9, updated).astype(x.dtype)
    if op == "TensorScatter":
        starts = rng.integers(0, shape[axis] - updated[axis] + 1, shape[0])
        return {"x": x, "u": u, "i": starts.astype("int64")}, {"axis": axis}
    rows = rng.random((*updated[:axis], shape[axis], *updated[axis + 1 :])).argsort(axis)
    rows = rows[(slice(None),) * axis + (slice(updated[axis]),)]
    rows = np.where(rng.random(rows.shape) < 0.3, rows - shape[axis], rows)
    return {"x": x, "i": rows.astype(index), "u": u}, {"axis": axis - len(shape) if rng.random() < 0.3 else axis}


def check(proto: onnx.ModelProto, arrays: dict[str, Any]) -> Graph:
    """Compare the imported model, and the model that is written from it, with ONNX Runtime."""
    feed = {i.name: arrays[i.name] for i in proto.graph.input}
    expected = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feed)[0]
    found = from_ir(from_proto(proto))
    graph = found.graph
    given = {n: EXACT.load(arrays[n.attr("name")]) for n in topological(graph.outputs) if n.op in ("input", "weight")}
    np.testing.assert_array_equal(interpret(graph.outputs, EXACT, given)[graph.outputs[0]], expected)
    written = onnxruntime.InferenceSession(serialize(found))
    np.testing.assert_array_equal(written.run(None, feed)[0], expected)
    return graph


@pytest.mark.parametrize("op", OPSETS)
def test_random_scatters_are_those_of_onnx_runtime(op: str) -> None:
    rng = np.random.default_rng(len(op))
    for i in range(24):
        opset = OPSETS[op][i % len(OPSETS[op])]
        arrays, attrs = drawn(op, rng)
        if op != "TensorScatter" and (choices := [r for r, since in REDUCTIONS.items() if opset >= since]) and i % 2:
            attrs["reduction"] = str(rng.choice(choices))
        graph = check(model(op, opset, arrays, bool(i % 3 == 0), **attrs), arrays)
        assert not any(n.op == "opaque" for n in topological(graph.outputs))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_equal_places_are_folded_in_turn(reduction: str) -> None:
    x, u = np.arange(12, dtype=np.float32).reshape(4, 3), np.full((3, 3), 2.0, np.float32)
    arrays = {"x": x, "i": np.array([[1], [-3], [1]]), "u": u}
    graph = check(model("ScatterND", 18, arrays, True, reduction=reduction), arrays)
    assert graph.outputs[0].op == "scatter_nd"


PARTS: dict[str, tuple[str, Any, tuple[int, ...], int]] = {
    "first rows": ("ScatterND", [[0], [1]], (2, 4), 0),
    "inner rows": ("ScatterND", [[2], [-3]], (2, 4), 0),
    "last rows": ("ScatterND", [[-2], [-1]], (2, 4), 0),
    "all rows": ("ScatterND", [[i] for i in range(6)], (6, 4), 0),
    "columns": ("ScatterND", [[[i, j] for j in (1, 2)] for i in range(6)], (6, 2), 0),
    "elements of columns": ("ScatterElements", [[1, 2]] * 6, (6, 2), 1),
    "elements of rows": ("ScatterElements", [[4] * 4, [-1] * 4], (2, 4), 0),
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("reduction", ["none", *REDUCTIONS])
def test_constant_indices_of_a_part_are_a_concatenation(name: str, reduction: str) -> None:
    op, rows, updated, axis = PARTS[name]
    rng = np.random.default_rng(1)
    arrays = {
        "x": rng.integers(-9, 9, (6, 4)).astype(np.float32),
        "i": np.array(rows),
        "u": rng.integers(-9, 9, updated).astype(np.float32),
    }
    attrs = {"axis": axis} if op == "ScatterElements" else {}
    graph = check(model(op, 18, arrays, True, reduction=reduction, **attrs), arrays)
    assert not any("scatter" in n.op for n in topological(graph.outputs))
    if len(rows) <= 2:
        x, u = (variable(n, Tensor("float32", arrays[n].shape)) for n in "xu")
        name = "scatter_nd" if op == "ScatterND" else "scatter_elements"
        scattered = term(name, x, constant(arrays["i"]), u, reduction=reduction, **attrs)
        placed = get(name).from_onnx(Call(op, (x, constant(arrays["i"]), u), {"reduction": reduction, **attrs}, 18))
        assert isinstance(prove_symbolic([scattered], [placed]), Proved)


D = symbol("d")
X, U = variable("x", Tensor("float32", (6, 4))), variable("u", Tensor("float32", (2, 4)))


def rows(low: int, high: int) -> Node:
    return term("slice", X, axes=(0,), starts=(low,), ends=(high,), steps=(1,))


WRONG = {
    "one row later": term("concat", rows(0, 3), U, rows(5, 6), axis=0),
    "other rows behind": term("concat", rows(0, 2), U, rows(3, 5), axis=0),
    "other rows before": term("concat", rows(1, 3), U, rows(4, 6), axis=0),
    "exchanged": term("concat", rows(4, 6), U, rows(0, 2), axis=0),
    "backwards": term(
        "concat", rows(0, 2), term("slice", U, axes=(0,), starts=(1,), ends=(-1,), steps=(-1,)), rows(4, 6), axis=0
    ),
    "added": term("concat", rows(0, 2), term("add", U, rows(2, 4)), rows(4, 6), axis=0),
    "the data alone": X,
}


def test_wrong_parts_are_refused() -> None:
    scattered = term("scatter_nd", X, constant(np.array([[2], [3]])), U)
    right = term("concat", rows(0, 2), U, rows(4, 6), axis=0)
    assert isinstance(prove_symbolic([scattered], [right]), Proved)
    assert [name for name, wrong in WRONG.items() if isinstance(prove_symbolic([scattered], [wrong]), Proved)] == []


def test_a_row_at_a_position_of_a_run_is_proved() -> None:
    """The row that was written is read back; not another one, and not where two may be equal."""
    cache, new = variable("cache", Tensor("float32", (6, D))), variable("new", Tensor("float32", (1, D)))
    at, other = (variable(name, Tensor("int64", (1,))) for name in ("at", "other"))

    def row(x: Node, i: Node) -> Node:
        return term("gather", x, i, axis=0)

    written = term("scatter_nd", cache, term("reshape", at, shape=(1, 1)), new)
    assert isinstance(prove_symbolic([row(written, at)], [new]), Proved)
    assert not isinstance(prove_symbolic([row(written, other)], [new]), Proved)
    assert not isinstance(prove_symbolic([row(written, other)], [row(cache, other)]), Proved)
    assert not isinstance(prove_symbolic([written], [cache]), Proved)


@pytest.mark.parametrize(
    ("rows", "updated"),
    [([[[0]]], (1, 4)), ([[0, 0, 0]], (1,)), ([[0], [1]], (1, 4)), (np.zeros((2, 0), np.int64), (2, 6, 4))],
)
def test_other_shapes_have_no_type(rows: Any, updated: tuple[int, ...]) -> None:
    with pytest.raises(IllTyped, match="scatter_nd"):
        term("scatter_nd", X, constant(np.array(rows)), variable("u", Tensor("float32", updated)))


def test_a_reduction_is_not_written_before_the_opset_that_has_it() -> None:
    folded = term("scatter_nd", X, constant(np.array([[2], [2]])), U, reduction="max")
    with pytest.raises(Unsupported, match="max at opset 16"):
        get("scatter_nd").to_onnx(folded, 16)
    assert b"ScatterND" in serialize(standalone(Graph((X, U), (folded,)), {"": 18}))


def test_sizes_of_a_run() -> None:
    """A row of a cache whose sizes a run gives, at all sizes that it may have."""
    arrays = {"x": np.zeros((2, 3), np.float32), "i": np.zeros((1, 1), np.int64), "u": np.zeros((1, 3), np.float32)}
    proto = model("ScatterND", 18, arrays, False)
    shapes = (("n", "d"), (1, 1), (1, "d"), ("n", "d"))
    for value, dims in zip((*proto.graph.input, *proto.graph.output), shapes, strict=True):
        for dim, n in zip(value.type.tensor_type.shape.dim, dims, strict=True):
            dim.CopyFrom(onnx.TensorShapeProto.Dimension(**{"dim_value" if isinstance(n, int) else "dim_param": n}))
    for n, d, at in ((4, 3, 2), (1, 5, 0), (7, 1, -7)):
        x, u = np.arange(n * d, dtype=np.float32).reshape(n, d), np.full((1, d), -1, np.float32)
        graph = check(proto, {"x": x, "i": np.array([[at]]), "u": u})
        assert [str(size) for size in graph.outputs[0].shape] == ["n", "d"]


@pytest.mark.parametrize("heads", [32, 64, symbol("h")])
def test_rows_of_any_number_of_heads_are_proved(heads: Any) -> None:
    """New rows of 32 heads of 64, or of any number, as ScatterElements writes them."""
    cache, new = variable("cache", Tensor("float32", (heads, 6, D))), variable("new", Tensor("float32", (32, 1, D)))
    at, other = (
        term("expand", variable(name, Tensor("int64", (1, 1, 1))), shape=(32, 1, D)) for name in ("at", "other")
    )
    written = term("scatter_elements", cache, at, new, axis=1)

    def rows(x: Node, i: Node) -> Node:
        return term("gather_elements", x, i, axis=1)

    def last(x: Node) -> Node:
        return term("slice", x, axes=(0,), starts=(32,), ends=(64,), steps=(1,))

    assert isinstance(prove_symbolic([rows(written, at)], [new]), Proved)
    assert not isinstance(prove_symbolic([rows(written, other)], [new]), Proved)
    assert not isinstance(prove_symbolic([rows(written, other)], [rows(cache, other)]), Proved)
    if heads == 64:
        assert isinstance(prove_symbolic([last(written)], [last(cache)]), Proved)
