"""Convolutions in other forms: transposed ones with stride 1 as plain ones with turned kernels,
those of lines as those of images of one row, those of enlarged images as transposed ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from small_models import F, changed, model, ops, w

from taso_mirage.ir.dims import symbol
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node, Tensor, constant, substitute, topological, variable
from taso_mirage.onnx_io import serialize
from taso_mirage.operators.ops import term
from taso_mirage.prove.fingerprint import fingerprint
from taso_mirage.prove.symbolic import Proved, prove_symbolic
from taso_mirage.rewriting.index import Rules
from taso_mirage.search.rulesets import rules
from taso_mirage.search.weights import fold_weights
from taso_mirage.verdicts import FailureKind, failed


def transposed(kernel: tuple[int, ...], pads: tuple[int, ...], bias: bool = True, **attrs: Any) -> Model:
    """Six channels, images of free sizes, and an operator behind."""
    ones = (1,) * len(kernel)
    group = attrs.setdefault("group", 1)
    zeros = (0,) * len(kernel)
    attrs = {"strides": ones, "dilations": ones, "output_padding": zeros, "pads": pads, **attrs}
    x = variable("image", Tensor(F, (symbol("batch"), 6, *[symbol(f"size{i}") for i in range(len(kernel))])))
    operands = [x, w(6, 4, *kernel, name="k"), *([w(4 * group, name="b")] if bias else [])]
    return model((x,), (term("relu", term("conv_transpose", *operands, **attrs)),))


def convolution(group: int, kernel: int, bias: bool = True, **attrs: Any) -> Model:
    """Six channels, lines of free lengths, and an operator behind."""
    attrs = {"strides": (1,), "dilations": (1,), "pads": (0, 0), "group": group, **attrs}
    x = variable("image", Tensor(F, (symbol("batch"), 6, symbol("length"))))
    operands = [x, w(12, 6 // group, kernel, name="k"), *([w(12, name="b")] if bias else [])]
    return model((x,), (term("relu", term("conv", *operands, **attrs)),))


def equal(made: Model, changed: Model, axes: int) -> None:
    """At two batches and sizes, in the runtime."""
    before, after = (onnxruntime.InferenceSession(serialize(each)) for each in (made, changed))
    for n, size in ((1, 5), (2, 8)):
        x = np.random.default_rng(0).normal(size=(n, 6, *range(size, size + axes))).astype(np.float32)
        was, now = (each.run(None, {"image": x})[0] for each in (before, after))
        assert was.size
        np.testing.assert_allclose(now, was, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("group", [1, 2, 6])
@pytest.mark.parametrize(
    ("kernel", "pads", "others"),
    [
        ((3,), (1, 0), {}),
        ((4,), (2, 5), {"dilations": (3,)}),
        ((3, 2), (0, 1, 2, 0), {}),
        ((3, 2), (4, 0, 3, 1), {"dilations": (2, 1)}),
        ((1, 1), (0, 0, 0, 0), {}),
        ((2, 3, 1), (1, 0, 0, 0, 2, 0), {}),
    ],
)
def test_the_same_at_every_size(kernel: Any, pads: Any, others: dict[str, Any], group: int, bias: bool) -> None:
    made = transposed(kernel, pads, bias, group=group, **others)
    found = changed(made.graph.outputs)
    folded, _ = fold_weights(made.with_graph(found), made.weights)
    assert sorted(n.op for n in folded.nodes() if n.args) == ["conv", "relu"]
    equal(made, folded, len(kernel))


@pytest.mark.parametrize(
    "same",
    [
        transposed((3, 3), (1, 1, 1, 1), strides=(1, 2)),
        transposed((3, 3), (3, 0, 0, 0)),  # more is cut off than the kernel reaches over the border
        transposed((3, 1), (0, 0, 0, 1)),
    ],
)
def test_what_a_plain_one_cannot_say_stays(same: Model) -> None:
    assert ops(changed(same.graph.outputs)) == ops(same.graph.outputs)


def test_a_computed_kernel_stays() -> None:
    x, k = variable("image", Tensor(F, (1, 6, 5))), variable("k", Tensor(F, (6, 4, 3)))
    attrs = {"strides": (1,), "dilations": (1,), "output_padding": (0,), "pads": (1, 1)}
    assert ops(changed((term("conv_transpose", x, k, **attrs),))) == ["conv_transpose"]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("group", [2, 6])
@pytest.mark.parametrize(
    ("kernel", "attrs"),
    [(1, {}), (3, {"pads": (2, 0)}), (2, {"strides": (3,)}), (3, {"dilations": (2,), "pads": (0, 1), "strides": (2,)})],
)
def test_groups_of_lines_are_groups_of_images(kernel: int, attrs: dict[str, Any], group: int, bias: bool) -> None:
    made = convolution(group, kernel, bias, **attrs)
    folded, _ = fold_weights(made.with_graph(changed(made.graph.outputs)), made.weights)
    (conv,) = (n for n in folded.nodes() if n.op == "conv")
    assert conv.args[1].shape == (12, 6 // group, 1, kernel)
    equal(made, folded, 1)


@pytest.mark.parametrize("group", [1, 3])
def test_lines_without_groups_are_left_to_the_search(group: int) -> None:
    made = convolution(group, 3)
    found = changed(made.graph.outputs)
    assert (ops(found) == ops(made.graph.outputs)) == (group == 1)
    (other,) = (
        each
        for node in made.nodes()
        for each in Rules(rules()).applications(node)
        if each.equation.name.startswith("conv.") and each.results[0].op == "squeeze"
    )
    assert other.results[0].args[0].tensor.rank == 4


def rewritten(made: Model, op: str) -> list[Node]:
    """The terms that laws make of the convolution of a model."""
    (conv,) = (n for n in made.nodes() if n.op == "conv")
    return [f.results[0] for f in Rules(rules()).applications(conv) if f.results[0].op == op]


def enlarged(
    factors: tuple[int, ...],
    kernel: tuple[int, ...],
    pads: tuple[int, ...],
    group: int = 1,
    bias: bool = True,
    free: bool = True,
) -> Model:
    """A convolution of an enlarged image."""
    ones, sizes = (1,) * len(kernel), range(5, 5 + len(kernel))
    dims = [symbol("batch"), 6, *[symbol(f"size{n}") for n in sizes]] if free else [1, 6, *sizes]
    x = variable("image", Tensor(F, tuple(dims)))
    operands = [w(4 * group, 6 // group, *kernel, name="k"), *([w(4 * group, name="b")] if bias else [])]
    attrs = {"strides": ones, "dilations": ones, "pads": pads, "group": group}
    return model((x,), (term("conv", term("resize", x, factors=(1, 1, *factors)), *operands, **attrs),))


ENLARGED: list[tuple[Any, Any, Any]] = [
    ((2,), (3,), (1, 1)),
    ((3,), (4,), (0, 3)),
    ((2, 2), (3, 3), (1, 1, 1, 1)),
    ((2, 3), (2, 5), (1, 4, 0, 2)),
    ((1, 2), (3, 1), (1, 0, 1, 0)),
    ((4, 4), (3, 3), (2, 1, 0, 1)),
    ((2, 1, 2), (3, 2, 2), (1, 0, 1, 1, 1, 0)),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("group", "bias"), [(1, True), (2, False), (6, True)])
@pytest.mark.parametrize(("factors", "kernel", "pads"), ENLARGED)
def test_a_convolution_of_an_enlarged_image(factors: Any, kernel: Any, pads: Any, group: int, bias: bool) -> None:
    made = enlarged(factors, kernel, pads, group, bias)
    (found,) = rewritten(made, "conv_transpose")
    assert isinstance(prove_symbolic(made.graph.outputs, (found,)), Proved)
    folded, _ = fold_weights(made.with_graph((found,)), made.weights)
    assert [n.op for n in folded.nodes() if n.args] == ["conv_transpose"]
    equal(made, folded, len(kernel))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("kernel", "pads"), [((3, 3), (1, 1, 1, 1)), ((2, 5), (0, 2, 1, 3)), ((4, 1), (3, 0, 0, 0)), ((6, 2), (5, 1, 5, 1))]
)
def test_twice_as_large_is_blocks_of_pixels_at_every_place(kernel: Any, pads: Any, bias: bool) -> None:
    made = enlarged((2, 2), kernel, pads, bias=bias)
    found = changed(made.graph.outputs)
    assert isinstance(prove_symbolic(made.graph.outputs, found), Proved)
    folded, _ = fold_weights(made.with_graph(found), made.weights)
    assert [n.op for n in folded.nodes() if n.args][:2] == ["conv", "depth_to_space"]
    equal(made, folded, 2)


@pytest.mark.parametrize(("factors", "group"), [((2, 3), 1), ((3, 3), 1), ((2, 2), 2)])
def test_other_enlarged_images_are_left_to_the_search(factors: Any, group: int) -> None:
    made = enlarged(factors, (3, 3), (1, 1, 1, 1), group)
    assert changed(made.graph.outputs) == made.graph.outputs
    assert rewritten(made, "conv_transpose")


@pytest.mark.parametrize(("group", "bias"), [(1, True), (2, False)])
@pytest.mark.parametrize("factors", [(3,), (2, 2), (1, 2, 2)])
def test_a_kernel_of_one_pixel_sees_the_image_before_it_is_enlarged(factors: Any, group: int, bias: bool) -> None:
    axes = len(factors)
    made = enlarged(factors, (1,) * axes, (0,) * (2 * axes), group, bias)
    (found,) = rewritten(made, "resize")
    assert found.args[0].op == "conv"
    assert isinstance(prove_symbolic(made.graph.outputs, (found,)), Proved)
    equal(made, made.with_graph((found,)), axes)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_channels_that_are_enlarged_have_a_convolution_of_their_own(first: bool, bias: bool) -> None:
    n, height, width = (symbol(name) for name in ("batch", "size0", "size1"))
    x = variable("image", Tensor(F, (n, 6, height, width)))
    larger = term("resize", x, factors=(1, 1, 2, 2))
    beside = term(
        "tanh", term("resize", term("slice", x, starts=(0,), ends=(2,), axes=(1,), steps=(1,)), factors=(1, 1, 2, 2))
    )
    joined = term("concat", *((larger, beside) if first else (beside, larger)), axis=1)
    operands = [w(5, 8, 3, 3, name="k"), *([w(5, name="b")] if bias else [])]
    made = model((x,), (term("conv", joined, *operands, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1)),))
    (found,) = rewritten(made, "add")
    assert isinstance(prove_symbolic(made.graph.outputs, (found,)), Proved)
    folded, _ = fold_weights(made.with_graph((found,)), made.weights)
    assert sorted(n.args[1].shape[1] for n in folded.nodes() if n.op == "conv") == [2, 6]
    equal(made, folded, 2)


STRIDED: list[tuple[Any, Any, Any]] = [
    ((4, 4), (1, 1, 1, 1), (0, 0)),
    ((2, 2), (0, 0, 0, 0), (0, 0)),
    ((3, 3), (1, 1, 1, 1), (1, 1)),
    ((3, 5), (0, 2, 1, 1), (0, 1)),
    ((1, 6), (0, 3, 0, 0), (1, 0)),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("kernel", "pads", "extra"), STRIDED)
def test_a_stride_of_two_is_blocks_of_pixels(kernel: Any, pads: Any, extra: Any, bias: bool) -> None:
    made = transposed(kernel, pads, bias, strides=(2, 2), output_padding=extra)
    (before,) = (n for n in made.nodes() if n.op == "conv_transpose")
    found = [f.results[0] for f in Rules(rules()).applications(before)]
    (found,) = (each for each in found if any(n.op == "depth_to_space" for n in topological((each,))))
    assert isinstance(prove_symbolic((before,), (found,)), Proved)
    folded, _ = fold_weights(made.with_graph((term("relu", found),)), made.weights)
    assert [n.op for n in folded.nodes() if n.args][:2] == ["conv", "depth_to_space"]
    equal(made, folded, 2)


@pytest.mark.parametrize(("kernel", "pads", "extra"), STRIDED)
def test_blocks_of_pixels_in_another_order_have_no_proof(kernel: Any, pads: Any, extra: Any) -> None:
    x = variable("image", Tensor(F, (1, 6, 5, 6)))
    attrs = {"strides": (2, 2), "dilations": (1, 1), "pads": pads, "output_padding": extra}
    before = term("conv_transpose", x, w(6, 4, *kernel, name="k"), **attrs)
    found = [f.results[0] for f in Rules(rules()).applications(before)]
    (cut,) = (each for each in found if any(n.op == "depth_to_space" for n in topological((each,))))
    (blocks,) = (n for n in topological((cut,)) if n.op == "depth_to_space")
    other = term("depth_to_space", blocks.args[0], blocksize=2, mode="CRD")
    wrong = substitute((cut,), {blocks: other})
    assert failed(prove_symbolic((before,), wrong), FailureKind.UNPROVED)
    assert failed(fingerprint((before,), wrong), FailureKind.REFUTED)


@pytest.mark.parametrize(
    ("factors", "kernel", "pads"),
    [
        ((1, 1), (3, 3), (1, 1, 1, 1)),
        ((2, 2), (1, 1), (0, 0, 0, 0)),  # before it is enlarged, it has fewer pixels
        ((2, 2), (3, 3), (3, 1, 1, 1)),  # a row of zeros, and nothing else, is seen
    ],
)
def test_others_stay(factors: Any, kernel: Any, pads: Any) -> None:
    assert rewritten(enlarged(factors, kernel, pads), "conv_transpose") == []


@pytest.mark.parametrize(("factors", "kernel", "pads"), ENLARGED)
def test_what_is_nearly_so_has_no_proof(factors: Any, kernel: Any, pads: Any) -> None:
    """The kernel not turned; half of it; one pixel off."""
    made = enlarged(factors, kernel, pads, free=False)
    (found,) = rewritten(made, "conv_transpose")
    x, k, *b = found.args
    attrs, axes = dict(found.attrs), len(kernel)
    at = tuple(range(2, axes + 2))
    back = {"starts": tuple(n - 1 for n in k.shape[2:]), "ends": (-1,) * axes, "axes": at, "steps": (-1,) * axes}
    low = attrs["pads"]
    moved = tuple(p + (1, -1)[i // axes] for i, p in enumerate(low))
    wrong = [
        term("conv_transpose", x, term("slice", k, **back), *b, **attrs),
        term("conv_transpose", x, term("mul", k, constant(0.5, F)), *b, **attrs),
        *([term("conv_transpose", x, k, *b, **{**attrs, "pads": moved})] if min(moved) >= 0 else []),
    ]
    for each in wrong:
        assert failed(prove_symbolic(made.graph.outputs, (each,)), FailureKind.UNPROVED)
        assert failed(fingerprint(made.graph.outputs, (each,)), FailureKind.REFUTED)
