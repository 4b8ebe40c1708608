"""Every operator, on every example of its specification: one definition, and all meanings of it
agree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from operator_uses import ON_A_GPU, build, opsets, uses

from taso_mirage.errors import IllTyped
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.terms import ABSENT, Tensor, is_float, numpy_dtype, variable
from taso_mirage.meanings.degree import DEGREE
from taso_mirage.meanings.field import Field, Residues
from taso_mirage.meanings.reals import EXACT, REALS
from taso_mirage.meanings.typed import Typed
from taso_mirage.measure.session import Session, working_providers
from taso_mirage.measure.target import CPU, CUDA
from taso_mirage.onnx_io import from_ir, serialize, to_ir
from taso_mirage.onnx_io.build import standalone
from taso_mirage.onnx_io.loops import with_scans
from taso_mirage.operators.interpret import interpret, interpret_term
from taso_mirage.operators.ops import Op, get, load_specs
from taso_mirage.operators.work import count, size, work
from taso_mirage.rewriting.text import parse_graph, show_graph

SIMPLIFIED_BY_IMPORT = frozenset(
    "sum mean cast_like identity dropout squeeze unsqueeze group_norm slice average_pool resize upsample shape_of size_of "
    "constant_of_shape range scaler".split()
)
"""Importing these gives simpler terms (a sum is additions, the shape of a known type is a
constant)."""


def test_there_is_an_example_of_every_operator() -> None:
    assert [op.name for op in load_specs().values() if not op.examples and op.onnx is not None] == []


@pytest.mark.parametrize(("op", "i"), uses())
def test_the_type_is_what_numpy_computes(op: Op, i: int) -> None:
    use = build(op, i)
    values = interpret(use.outputs, REALS, use.values)
    for output in use.outputs:
        assert values[output].shape == output.shape
        assert values[output].dtype == numpy_dtype(output.dtype)


def with_initializers(content: bytes, feed: dict[str, Any]) -> bytes:
    """The model with all inputs but the first as initializers, taken out of `feed`."""
    model = onnx.load_from_string(content)
    for each in list(model.graph.input)[1:]:
        model.graph.initializer.append(onnx.numpy_helper.from_array(feed.pop(each.name), each.name))
        model.graph.input.remove(each)
    result: bytes = model.SerializeToString()
    return result


@pytest.mark.parametrize(("op", "i"), [u for u in uses() if u.values[0].onnx is not None])
def test_the_reals_are_what_onnx_runtime_computes(op: Op, i: int) -> None:
    use = build(op, i)
    values = interpret(use.outputs, REALS, use.values)
    content = serialize(standalone(use.graph, opsets(use)))
    if op.domain == "":
        onnx.checker.check_model(content, full_check=True)
    feed = {n.attr("name"): v for n, v in use.values.items()}
    if op.name in ON_A_GPU and CUDA.provider not in working_providers():
        pytest.skip("the runtime has this operator on a GPU only")
    if op.traits.initializer:
        content = with_initializers(content, feed)
    session = Session(content, CUDA if op.name in ON_A_GPU else CPU)
    half = any(n.dtype in ("float16", "bfloat16") for n in (*use.values, *use.outputs))
    for output, expected in zip(use.outputs, session.run(feed), strict=True):
        tolerance = 2e-2 if half else 1e-4
        np.testing.assert_allclose(
            values[output].astype(np.float64) if is_float(output.dtype) else values[output],
            expected.astype(np.float64) if is_float(output.dtype) else expected,
            rtol=tolerance,
            atol=tolerance / 10,
        )


class Recorder(Typed[None]):
    """A meaning that records the elementwise functions that a definition uses."""

    def __init__(self) -> None:
        self.functions: set[Any] = set()

    def note(self, primitive: str, fn: Any, notes: Any, operands: Any, result: Tensor) -> None:
        if primitive in ("map", "reduce", "cumulate"):
            self.functions.add(fn)
        if primitive == "cast" and fn not in ("float32", "float64"):
            self.functions.add("cast")


RATIONAL = {np.add, np.subtract, np.multiply, np.negative, np.divide, np.square, np.maximum, np.minimum, np.where}
RATIONAL |= {np.abs, np.sign, np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("op", "i"), uses())
def test_the_field_is_the_reals_on_integers(op: Op, i: int) -> None:
    use = build(op, i, integers=True)
    recorder = Recorder()
    interpret(use.outputs, recorder, {n: (n.tensor, None) for n in use.values})
    xp = Field(trials=2, seed=3)
    values = interpret(use.outputs, xp, {n: xp.load(v) for n, v in use.values.items()})
    exact = interpret(use.outputs, EXACT, {n: EXACT.load(v) for n, v in use.values.items()})
    for output in use.outputs:
        assert values[output].shape == output.shape
        if recorder.functions <= RATIONAL:
            _assert_residues(xp, values[output], exact[output])


def _assert_residues(xp: Field, found: Residues, exact: Any) -> None:
    """Residues of numbers that floats hold exactly; a quotient such as 1/3 is compared through its
    residue times 3."""
    scale = 2520.0**2  # every denominator that the small integers of the examples can give
    scaled = np.asarray(exact, np.float64) * scale
    whole = np.abs(scaled - np.round(scaled)) < 1e-3
    small = whole & (np.abs(scaled) < 2**50) & np.isfinite(scaled)
    expected = xp.load(np.where(small, np.round(scaled), 0.0))
    ours = (
        found.data
        * xp.load(np.asarray(scale)).data.reshape(2, 2, *(1,) * np.ndim(exact))
        % np.array([65063, 32531]).reshape(2, 1, *(1,) * np.ndim(exact))
    )
    valid = found.valid
    assert np.array_equal(ours[:, valid][..., small], expected.data[:, valid][..., small])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("op", "i"), uses())
def test_what_is_printed_parses_back(op: Op, i: int) -> None:
    graph = build(op, i).graph
    assert parse_graph(show_graph(graph)) == graph


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("op", "i"), [u for u in uses() if u.values[0].onnx and not u.values[0].traits.stays])
def test_onnx_round_trip_gives_the_same_term(op: Op, i: int) -> None:
    use = build(op, i)
    found = with_scans(from_ir(to_ir(standalone(use.graph, opsets(use))))).graph
    if found != use.graph:
        assert op.name in SIMPLIFIED_BY_IMPORT or all(a.op == "constant" for a in use.term.args)
        ours, back = interpret(use.outputs, REALS, use.values), interpret(found.outputs, REALS, use.values)
        for output, imported in zip(use.outputs, found.outputs, strict=True):
            assert output.type == imported.type
            np.testing.assert_array_equal(ours[output], back[imported])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("op", "i"), uses())
def test_work_and_degree_are_sane(op: Op, i: int) -> None:
    use = build(op, i)
    if not use.values:
        return
    found = work(use.term, {})
    operands = sum(size(a.type) for a in use.term.args if a is not ABSENT)
    assert found.bytes == operands + size(use.term.type)
    assert 0 <= found.flops < 1e7
    noted = {n: (n.tensor, {n.attr("name"): 1.0}) for n in use.values}
    for output in use.outputs:
        type, degrees = interpret(use.outputs, DEGREE, noted)[output]
        assert type == output.tensor
        assert set(degrees) <= {n.attr("name") for n in use.values}


def test_flops_of_a_matrix_product_and_a_convolution() -> None:
    a, b = variable("a", Tensor("float32", (7, 5))), variable("b", Tensor("float32", (5, 3)))
    assert work(get("matmul").term(a, b), {}).flops == 2 * 7 * 5 * 3
    x, w = variable("x", Tensor("float32", (2, 4, 9, 9))), variable("w", Tensor("float32", (6, 2, 3, 3)))
    conv = get("conv").term(x, w, group=2, strides=(1, 1), dilations=(1, 1), pads=(1, 1, 1, 1))
    assert work(conv, {}).flops == 2 * 2 * 6 * 81 * 2 * 9


def test_a_transposed_convolution_multiplies_no_zeros_that_its_stride_puts_between() -> None:
    x, w = variable("x", Tensor("float32", (1, 3, 5, 5))), variable("w", Tensor("float32", (3, 4, 2, 2)))
    attrs = {"pads": (0, 0, 0, 0), "dilations": (1, 1), "output_padding": (0, 0), "group": 1}
    wide, dense = (get("conv_transpose").term(x, w, strides=(s, s), **attrs) for s in (2, 1))
    assert work(wide, {}).flops == round(2 * 100 * 3 * 4 * 4 * 25 / 81)  # 25 of the 9 x 9 are no zeros
    assert work(dense, {}).flops == 2 * 36 * 3 * 4 * 4


def test_degree_tells_what_is_linear() -> None:
    a, b = variable("a", Tensor("float32", (4, 4))), variable("b", Tensor("float32", (4, 4)))
    product = get("matmul").term(a, b)
    noted = {n: (n.tensor, {n.attr("name"): 1.0}) for n in (a, b)}
    assert interpret([product], DEGREE, noted)[product][1] == {"a": 1, "b": 1}
    squared = get("mul").term(product, a)
    assert interpret([squared], DEGREE, noted)[squared][1] == {"a": 2, "b": 1}
    assert interpret([get("relu").term(a)], DEGREE, noted)[get("relu").term(a)][1] == {"a": float("inf")}
    assert interpret_term(get("neg").term(a), DEGREE, [noted[a]])[1] == {"a": 1}
    assert count(a.tensor) == 16


WINDOW = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}
REFUSED: list[tuple[str, list[tuple[int, ...]], dict[str, Any], dict[str, Any]]] = [
    ("conv", [(1, 2, 4, 4), (3, 2, 1, 1), (1, 3)], {**WINDOW, "group": 1}, {}),
    ("conv_transpose", [(1, 2, 4, 4), (2, 3, 1, 1), (1, 3)], {**WINDOW, "group": 1, "output_padding": (0, 0)}, {}),
    ("max_pool", [(2, 3)], {"kernel": (), "strides": (), "pads": (), "dilations": ()}, {"kernel_shape": (1,)}),
    ("skip_layer_norm", [(1, 1, 2, 4), (1, 1, 2, 4), (4,)], {}, {}),
    ("skip_layer_norm", [(1, 2, 4), (1, 2, 4), (1, 4)], {}, {}),
    ("skip_rms_norm", [(1, 2, 4), (1, 2, 4), (1,)], {}, {}),
    ("attention", [(1, 2, 3, 4)] * 3, {"q_num_heads": 1, "kv_num_heads": 1}, {"q_num_heads": 1, "kv_num_heads": 1}),
    ("attention", [(3, 4), (1, 2, 3, 4), (1, 2, 3, 4)], {}, {}),
    ("batch_norm", [(1, 2, 3, 3), (2,), (2,), (), (2,)], {}, {}),
    ("instance_norm", [(1, 2, 3, 3), (2, 1), (2,)], {}, {}),
    ("rotary_embedding", [(1, 2, 3, 4), (3, 2), (3, 2)], {}, {}),
    ("rotary_embedding", [(1, 2, 3, 4), (1, 3, 1), (1, 3, 1)], {}, {}),
    ("rotary_embedding", [(1, 2, 4), (1, 2, 1), (1, 2, 1)], {"num_heads": -1}, {"num_heads": -1}),
    ("multi_head_attention", [(1, 2, 4)] * 3, {"num_heads": -1}, {"num_heads": -1}),
    ("softmax", [(2, 3)], {"axis": 2}, {"axis": 2}),
    ("log_softmax", [(2, 3)], {"axis": -3}, {"axis": -3}),
]


@pytest.mark.parametrize(("name", "shapes", "attributes", "stated"), REFUSED)
def test_what_the_runtime_refuses_has_no_type(
    name: str, shapes: list[tuple[int, ...]], attributes: dict[str, Any], stated: dict[str, Any]
) -> None:
    op = get(name)
    leaves = [variable(f"x{i}", Tensor("float32", shape)) for i, shape in enumerate(shapes)]
    with pytest.raises(IllTyped):
        op.term(*leaves, **attributes)
    names = [f"x{i}" for i in range(len(shapes))]
    node = onnx.helper.make_node(op.onnx or "", names, ["y"], domain=op.domain, **stated)
    inputs = [onnx.helper.make_tensor_value_info(n, 1, s) for n, s in zip(names, shapes, strict=True)]
    outputs = [onnx.helper.make_tensor_value_info("y", 1, None)]
    opset = [onnx.helper.make_opsetid("", 23), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", inputs, outputs), opset_imports=opset, ir_version=10
    )
    values = {n: np.ones(s, np.float32) for n, s in zip(names, shapes, strict=True)}
    with pytest.raises(Exception, match=r"ONNXRuntimeError"):
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, values)


def test_a_kernel_may_have_a_symbolic_size() -> None:
    n, k = symbol("n"), symbol("k")
    x, w = variable("x", Tensor("float32", (1, 2, n, 5))), variable("w", Tensor("float32", (3, 2, k, 3)))
    assert get("conv").term(x, w, **WINDOW).shape == (1, 3, n - k + 1, 3)


def test_an_order_between_numbers_equal_modulo_p_alone_decides_nothing() -> None:
    """Otherwise max(x, y) and max(y, x) would differ modulo q."""
    xp = Field(3)
    x = xp.fresh(Tensor("float32", (3,)))
    data = x.data.copy()
    data[0, 1, 0] = data[0, 1, 1]
    data[0, 2, 2] = 0
    tied = replace(x, data=data)
    assert list(xp.reduce(np.maximum, tied, [0]).valid) == [True, data[0, 1, 2] > data[0, 1, 0], True]
    first, second = xp.slice(tied, 0, 0, 1), xp.slice(tied, 0, 1, 2)
    assert list(xp.map(np.minimum, first, second).valid) == [True, False, True]
    assert list(xp.map(np.abs, tied).valid) == [True, True, False]
    assert xp.map(np.abs, replace(tied, full=False)).valid.all()
    assert xp.map(np.less, first, second).valid.all()
