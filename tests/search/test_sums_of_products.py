"""Work that an equation removes: sums, means and pools of linear terms, and results that are one
number. Each rewrite is proved, and gives ONNX Runtime's results of the original."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import onnxruntime
import pytest
from small_models import CONTEXT, F, model, searched, w, x

from taso_mirage.ir.terms import Node, Tensor, constant, topological, variable
from taso_mirage.onnx_io import serialize
from taso_mirage.operators.ops import term
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.rewriting.index import Rules
from taso_mirage.rewriting.text import laws
from taso_mirage.search.passes import pass_order, simplify
from taso_mirage.search.rulesets import rules
from taso_mirage.search.weights import fold_weights

PROVED = Rules(laws(), Proofs())


def rewrites(root: Node, *operators: str) -> Iterator[Node]:
    """The terms that the proved laws stated beside some operators make of a term."""
    for found in PROVED.applications(root):
        if found.equation.name.partition(".")[0] in operators:
            yield found.results[0]


def outputs(result: Node, like: Node) -> list[np.ndarray]:
    """A term and another one in ONNX Runtime, on the same data and weights."""
    inputs = tuple(n for n in topological((like,)) if n.op == "input")
    rng = np.random.default_rng(0)
    data = {n.attr("name"): rng.normal(size=[int(d) for d in n.shape]).astype(np.float32) for n in inputs}
    made = model(inputs, (like, result))
    folded, _ = fold_weights(made)
    return onnxruntime.InferenceSession(serialize(folded)).run(None, data)


def equal(result: Node, like: Node) -> None:
    one, other = outputs(result, like)
    np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)


def mean(of: Node, *axes: int, keepdims: int = 1) -> Node:
    return term("reduce_mean", of, axes=axes, keepdims=keepdims)


def transposed(spatial: int = 2, bias: bool = True, **more: Any) -> Node:
    group, kernel = more.get("group", 1), more.pop("taps", (3, 4, 3))[:spatial]
    attrs = {"strides": (1,), "pads": (0,), "dilations": (1,), "output_padding": (0,), "group": 1}
    attrs = {k: v * spatial * (1 + (k == "pads")) if isinstance(v, tuple) else v for k, v in attrs.items()} | more
    operands = (x(2, 4, *(7, 5, 6)[:spatial]), w(4, 3, *kernel), *((w(3 * group, name="b"),) if bias else ()))
    return term("conv_transpose", *operands, **attrs)


# ---------------------------------------------------------------- sums over columns


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("fold", "keepdims"), list(product(("reduce_sum", "reduce_mean"), (0, 1))))
@pytest.mark.parametrize("side", [{}, {"transB": 1}, {"transA": 1, "alpha": 0.5, "beta": 2.0}])
@pytest.mark.parametrize("bias", [None, (6,), (1, 6), (3, 6), (1,), (3, 1)])
def test_a_sum_over_the_columns_of_a_product_is_one_column(
    fold: str, keepdims: int, side: dict[str, Any], bias: tuple[int, ...] | None
) -> None:
    data = x(5, 3) if side.get("transA") else x(3, 5)
    weights = w(6, 5) if side.get("transB") else w(5, 6)
    added = () if bias is None else (w(*bias, name="c"),)
    root = term(fold, term("gemm", data, weights, *added, **side), axes=(1,), keepdims=keepdims)
    found = [each for each in rewrites(root, fold) if any(n.op == "gemm" for n in topological((each,)))]
    assert bool(found) == (bias is None or bias[-1] == 6)  # one number for all columns counts six times
    for each in found:
        (product_,) = (n for n in topological((each,)) if n.op == "gemm")
        assert product_.shape == (3, 1)
        equal(each, root)


@pytest.mark.parametrize(("axes", "keepdims"), list(product([(2,), (0,), (1,), (0, 1), (1, 2), (0, 1, 2)], (0, 1))))
def test_a_sum_over_any_axes_of_a_product(axes: tuple[int, ...], keepdims: int) -> None:
    for rows in (3, 0):  # the runtime multiplies no empty batch with a vector
        root = term("reduce_sum", term("matmul", x(2, rows, 5), w(5, 6)), axes=axes, keepdims=keepdims)
        found = [each for each in rewrites(root, "reduce_sum") if "matmul" in (each.op, each.args[0].op)]
        assert found
        for each in found:
            equal(each, root)


def half(name: str, *shape: int) -> Node:
    return variable(name, Tensor("float16", shape))


@pytest.mark.parametrize(
    "root",
    [
        term("reduce_sum", term("matmul", half("x", 9, 5), half("w", 5, 6)), axes=(0,)),
        term("mul", term("leaky_relu", half("x", 9), alpha=0.01), constant(64.0, "float16")),
    ],
)
def test_what_may_leave_the_range_of_half_precision_stays(root: Node) -> None:
    assert [each for each in rewrites(root, "reduce_sum", "leaky_relu") if each.op in ("matmul", "leaky_relu")] == []


def test_integers_have_no_mean_of_weights() -> None:
    data, weights = variable("x", Tensor("int64", (3, 5))), variable("w", Tensor("int64", (5, 6)))
    root = term("reduce_mean", term("matmul", data, weights), axes=(1,))
    assert [each for each in rewrites(root, "reduce_mean") if each.op == "matmul"] == []


# ---------------------------------------------------------------- pools


@pytest.mark.sampled(3)
@pytest.mark.parametrize("pads", [(0, 0), (1, 2)])
@pytest.mark.parametrize("counted", [0, 1])
@pytest.mark.parametrize(("kernel", "stride", "extra"), [(4, 4, 0), (3, 2, 0), (4, 3, 2)])
@pytest.mark.parametrize("columns", [0, 1])
def test_a_pool_over_columns_pools_the_weights(
    pads: tuple[int, int], counted: int, kernel: int, stride: int, extra: int, columns: int
) -> None:
    window = {"kernel": (kernel,), "strides": (stride,), "pads": pads, "dilations": (1,), "extra": (extra,)}
    weights = w(12, 5) if columns else w(5, 12)
    product_ = term("gemm", x(3, 5), weights, w(12, name="c"), transB=columns)
    root = term("average_pool", term("unsqueeze", product_, axes=(1,)), **window, count_include_pad=counted)
    if extra and (12 + sum(pads) - kernel) % stride == 0:
        pytest.skip("ceil adds no window")
    (found,) = (each for each in rewrites(root, "average_pool") if each.op == "unsqueeze")
    if not extra:
        equal(found, root)


@pytest.mark.parametrize("size", [(9, 11), (10, 8)])
@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 0, 2, 1)])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize(("kernel", "strides"), [((4, 4), (4, 4)), ((2, 3), (1, 2)), ((2, 2), (3, 3))])
def test_a_pool_of_a_convolution_is_a_convolution(
    size: tuple[int, int], pads: tuple[int, ...], group: int, kernel: tuple[int, int], strides: tuple[int, int]
) -> None:
    dense = {"strides": (1, 1), "dilations": (1, 1), "pads": pads, "group": group}
    inner = term("conv", x(2, 4, *size), w(6, 4 // group, 3, 2), w(6, name="b"), **dense)
    root = pooled(inner, kernel, strides)
    (found,) = convolutions(root)
    assert found.args[1].shape[2:] == (3 + kernel[0] - 1, 2 + kernel[1] - 1)
    equal(found, root)


def convolutions(root: Node) -> list[Node]:
    """The convolutions of the data themselves that laws make of a pool."""
    return [each for each in rewrites(root, "average_pool") if each.op == "conv" and each.args[0].op == "input"]


def pooled(of: Node, kernel: tuple[int, ...], strides: tuple[int, ...], **more: Any) -> Node:
    n = len(kernel)
    window = {"pads": (0,) * (2 * n), "dilations": (1,) * n, "extra": (0,) * n, "count_include_pad": 1}
    return term("average_pool", of, kernel=kernel, strides=strides, **window | more)


@pytest.mark.parametrize(
    ("conv", "pool"),
    [
        ({"strides": (2, 1)}, {}),
        ({"dilations": (1, 2)}, {}),
        ({}, {"pads": (0, 1, 0, 0)}),
        ({}, {"pads": (0, 1, 0, 0), "count_include_pad": 0}),
        ({}, {"extra": (1, 0)}),
        ({}, {"dilations": (2, 1)}),
    ],
)
def test_other_windows_stay(conv: dict[str, Any], pool: dict[str, Any]) -> None:
    dense = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0)} | conv
    root = pooled(term("conv", x(1, 2, 9, 9), w(3, 2, 3, 3), **dense), (2, 2), (2, 2), **pool)
    assert convolutions(root) == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("taps", "stride", "pad", "more", "window"),
    [
        (3, 2, 1, 0, 2),
        (3, 2, 1, 1, 2),
        (4, 2, 1, 0, 2),
        (5, 2, 0, 0, 2),
        (3, 2, 1, 1, 4),
        (5, 3, 1, 1, 3),
        (2, 2, 0, 0, 2),
    ],
)
@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_a_pool_with_the_stride_of_a_transposed_convolution(
    taps: int, stride: int, pad: int, more: int, window: int, spatial: int
) -> None:
    wide = {"strides": (stride,) * spatial, "pads": (pad,) * (2 * spatial), "output_padding": (more,) * spatial}
    root = pooled(transposed(spatial, taps=(taps,) * 3, **wide), (window,) * spatial, (window,) * spatial)
    (found,) = convolutions(root)
    assert found.attr("strides") == (window // stride,) * spatial
    equal(found, root)


def test_pools_of_pools_are_one() -> None:
    root = pooled(pooled(x(2, 3, 13, 14), (2, 2), (2, 2)), (3, 3), (3, 3))
    (found,) = (each for each in rewrites(root, "average_pool") if each.args[0].op == "input")
    assert found.attr("kernel") == (6, 6)
    equal(found, root)


# ---------------------------------------------------------------- transposed convolutions


@pytest.mark.sampled(2)
@pytest.mark.parametrize("spatial", [1, 2, 3])
@pytest.mark.parametrize("bias", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize(
    ("stride", "dilation", "more", "group"),
    [pytest.param(1, 1, 0, 1, marks=pytest.mark.slow), (2, 1, 1, 2), (3, 2, 2, 1)],
)
def test_the_mean_of_all_positions(spatial: int, bias: bool, stride: int, dilation: int, more: int, group: int) -> None:
    axes = tuple(range(2, spatial + 2))
    attrs = {"strides": (stride,), "dilations": (dilation,), "output_padding": (more,)}
    root = mean(transposed(spatial, bias, **{k: v * spatial for k, v in attrs.items()}, group=group), *axes)
    (found,) = (each for each in rewrites(root, "reduce_mean") if each.op == "conv_transpose")
    assert found.args[0].shape == (2, 4, *(1,) * spatial)
    equal(found, root)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("axis", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("stride", "pads", "more", "dilation"),
    [
        (2, (1, 1), 1, 1),
        (1, (0, 1), 0, 1),
        (1, (1, 1), 0, 2),
        *(pytest.param(*e, marks=pytest.mark.slow) for e in ((1, (1, 1), 0, 1), (2, (2, 1), 0, 1), (2, (0, 0), 1, 1))),
    ],
)
def test_the_mean_along_an_axis_knows_the_borders(
    axis: int, stride: int, pads: tuple[int, int], more: int, dilation: int
) -> None:
    def here(value: int, other: int) -> tuple[int, int]:
        return (value, other) if axis == 2 else (other, value)

    low, high = here(pads[0], 1), here(pads[1], 0)
    attrs = {"strides": here(stride, 2), "output_padding": here(more, 0), "dilations": here(dilation, 1)}
    for axes in ((axis,), (2, 3)):
        root = mean(transposed(**attrs, pads=low + high), *axes)
        found = [each for each in rewrites(root, "reduce_mean") if each.args[0].op == "conv_transpose"]
        shorter = [each for each in found if each.args[0].args[0].shape[axis] == 1]
        assert len(shorter) == 1
        equal(shorter[0], root)


@pytest.mark.parametrize("attrs", [{"pads": (2, 0, 0, 0)}, {"pads": (0, 0, 2, 0)}, {"pads": (1, 0, 0, 0), "group": 2}])
def test_borders_that_reach_further_stay(attrs: dict[str, Any]) -> None:
    root = mean(transposed(**attrs), 2)
    assert [each for each in rewrites(root, "reduce_mean") if each.args[0].op == "conv_transpose"] == []


def test_the_search_makes_a_global_mean_of_sums() -> None:
    attrs = {"strides": (2, 2), "pads": (1, 1, 1, 1), "output_padding": (1, 1)}
    operands = x(2, 16, 96, 96), w(16, 32, 3, 3), w(32, name="b")
    root = mean(term("conv_transpose", *operands, **attrs, dilations=(1, 1)), 2, 3)
    (found,) = searched((root,))
    (small,) = (n for n in topological((found,)) if n.op == "conv_transpose")
    assert small.shape == (2, 32, 1, 1)
    equal(found, root)


# ---------------------------------------------------------------- one number


def number(value: float) -> Node:
    return constant(value, F)


DATA = x(2, 4, 3, 5)
NORMAL = term("instance_norm", term("reshape", DATA, shape=(2, 2, 30)), w(2, name="s"), w(2, name="t"))


@pytest.mark.parametrize(
    "root",
    [
        term("sub", DATA, DATA),
        term("mul", DATA, number(0)),
        term("clip", term("min", DATA, number(0)), number(0), number(1)),
        term("clip", term("max", DATA, number(2)), number(0), number(1)),
        term("gelu", term("sub", DATA, DATA)),
        mean(term("instance_norm", DATA, w(4, name="s"), w(4, name="t")), 2, 3),
        mean(term("instance_norm", DATA, w(4, name="s"), w(4, name="t")), 2, 3, keepdims=0),
        mean(term("reshape", NORMAL, shape=(2, 4, 3, 5)), 1, 2, 3, keepdims=0),
    ],
)
def test_what_hangs_on_no_data_is_computed_ahead(root: Node) -> None:
    made = (root,)
    for stage in pass_order(list(rules().equations)):
        made, _ = simplify(made, stage, CONTEXT)
    assert not any(n.op == "input" for n in topological(made))
    equal(made[0], root)


@pytest.mark.parametrize(
    "root",
    [
        term("sub", DATA, term("neg", DATA)),
        term("clip", term("min", DATA, number(0.5)), number(0), number(1)),
        term("clip", term("max", DATA, number(0.5)), number(0), number(1)),
        mean(term("instance_norm", DATA, w(4, name="s"), w(4, name="t")), 1, 3),
        mean(term("instance_norm", DATA, w(4, name="s"), w(4, name="t")), 0, 2, 3),
    ],
)
def test_what_hangs_on_data_stays(root: Node) -> None:
    made = (root,)
    for stage in pass_order(list(rules().equations)):
        made, _ = simplify(made, stage, CONTEXT)
    assert any(n.op == "input" for n in topological(made))
