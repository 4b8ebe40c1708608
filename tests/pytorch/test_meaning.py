"""Terms over tensors of PyTorch: every operator, on every example of its specification, gives the
float64 reference's results."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from operator_uses import build, uses

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from taso_mirage.errors import Unsupported  # noqa: E402
from taso_mirage.ir.dims import fixed, symbol  # noqa: E402
from taso_mirage.ir.terms import Graph, Literal, Tensor, is_float, numpy_dtype, variable  # noqa: E402
from taso_mirage.meanings.functions.record import Function  # noqa: E402
from taso_mirage.meanings.reals import EXACT, REALS  # noqa: E402
from taso_mirage.onnx_io.build import standalone  # noqa: E402
from taso_mirage.operators.interpret import interpret  # noqa: E402
from taso_mirage.operators.ops import Op, term  # noqa: E402
from taso_mirage.torch import meaning  # noqa: E402
from taso_mirage.torch.meaning import TorchMeaning, tensor_of  # noqa: E402
from taso_mirage.torch.norms import with_group_norms, with_variances  # noqa: E402

TORCH = TorchMeaning(torch.device("cpu"))
NONE = {("bit_shift", 1)}
"""PyTorch shifts no unsigned integers of 32 bits."""
ROUNDINGS = 64


def array(tensor: Any) -> Any:
    return (tensor.double() if tensor.is_floating_point() else tensor).numpy()


def near(found: Any, exact: Any, dtype: str) -> None:
    assert str(found.dtype) == f"torch.{dtype}"
    if not is_float(dtype):
        np.testing.assert_array_equal(array(found), exact)
        return
    rounding = ROUNDINGS * float(ml_dtypes.finfo(numpy_dtype(dtype)).eps)
    exact = exact.astype(np.float64)
    largest = np.abs(exact[np.isfinite(exact)]).max(initial=0.0)
    np.testing.assert_allclose(array(found), exact, rtol=rounding, atol=rounding * largest)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("op", "i"), [each for each in uses() if (each.values[0].name, each.values[1]) not in NONE])
def test_every_operator_is_what_it_is_in_float64(op: Op, i: int) -> None:
    use = build(op, i)
    exact = interpret(use.outputs, EXACT, {leaf: EXACT.load(value) for leaf, value in use.values.items()})
    found = interpret(use.outputs, TORCH, {leaf: tensor_of(value, "cpu") for leaf, value in use.values.items()})
    for output in use.outputs:
        assert tuple(found[output].shape) == output.shape
        near(found[output], exact[output], output.dtype)


def of(name: str, *arrays: Any, **attrs: Any) -> tuple[Any, Any]:
    """A term of these operands over tensors, and in float64."""
    leaves = [variable(f"x{i}", Tensor(each.dtype.name, each.shape)) for i, each in enumerate(arrays)]
    made = term(name, *leaves, **attrs)
    exact = interpret([made], EXACT, dict(zip(leaves, map(EXACT.load, arrays), strict=True)))
    given = {x: tensor_of(a, "cpu") for x, a in zip(leaves, arrays, strict=True)}
    return interpret([made], TORCH, given)[made], exact[made]


RNG = np.random.default_rng(0)
IMAGE = RNG.normal(size=(2, 4, 6, 7)).astype(np.float32)
KERNEL = RNG.normal(size=(4, 3, 3, 2)).astype(np.float32)
BIAS = RNG.normal(size=6).astype(np.float32)
ONES = {"strides": (1, 1), "dilations": (1, 1)}


@pytest.mark.parametrize("pads", [(1, 1, 1, 1), (0, 1, 2, 0), (-1, 0, -1, 0), (0, 0, 0, 0), (0, 3, 1, 2)])
@pytest.mark.parametrize("extra", [(0, 0), (1, 0), (1, 2)])
def test_transposed_convolutions_have_any_pads(pads: tuple[int, ...], extra: tuple[int, ...]) -> None:
    attrs = {"pads": pads, "strides": (2, 3), "dilations": (1, 1), "output_padding": extra, "group": 2}
    near(*of("conv_transpose", IMAGE, KERNEL, BIAS, **attrs), "float32")


@pytest.mark.parametrize("pads", [(1, 1, 1, 1), (2, 0, 1, 1), (-1, 0, -1, 0), (2, 2, 2, 2)])
def test_windows_have_any_pads(pads: tuple[int, ...]) -> None:
    near(*of("conv", IMAGE, KERNEL.reshape(4, 3, 3, 2)[:, :2], pads=pads, group=2, **ONES), "float32")
    near(*of("max_pool", IMAGE, kernel=(3, 4), pads=pads, **ONES), "float32")
    if min(pads) >= 0:
        for counted in (0, 1):
            attrs = {"pads": pads, "extra": (0, 0), "count_include_pad": counted, **ONES}
            near(*of("average_pool", IMAGE, kernel=(3, 4), **attrs), "float32")


def test_a_mean_in_half_precision_is_no_sum() -> None:
    found, exact = of("reduce_mean", np.full((1, 4096), 100, np.float16), axes=(1,))
    near(found, exact, "float16")


def test_zeros_keep_their_signs() -> None:
    for values in ([0.0, -0.0], [-0.0, -0.0], [0.0, 0.0]):
        given = np.array(values, np.float32)
        assert np.array_equal(np.signbit(TORCH.constant(Literal.of(given)).numpy()), np.signbit(given))


def test_slices_go_backwards_in_steps() -> None:
    x = torch.arange(10)
    for start, stop, step in ((9, -1, -1), (9, -1, -3), (8, 2, -2), (3, 3, -1), (1, 8, 3)):
        wanted = REALS.slice(x.numpy(), 0, start, stop, step)
        np.testing.assert_array_equal(TORCH.slice(x, 0, start, stop, step).numpy(), wanted)


def test_products_are_those_of_pytorch_where_it_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "einsum", None)
    a, b = torch.randn(2, 5, 3, 4), torch.randn(5, 4, 6)
    torch.testing.assert_close(TORCH.contract("...mk,...kn->...mn", a, b), a @ b)
    for equation, ranks in (("bmk,bkn->mbn", (3, 3)), ("bmk,bnk->bmn", (3, 3)), ("mk,k->m", (2, 1))):
        cubes = [torch.ones((2,) * rank) for rank in ranks]
        with pytest.raises(TypeError):
            TORCH.contract(equation, *cubes)


@pytest.mark.parametrize(
    ("shape", "parts", "norms"),
    [
        ((2, 6, 4, 5), (2, 3, 40), 1),
        ((symbol("n"), 6, 4), (symbol("n"), 2, 12), 1),
        ((2, 6, 4), (2, 4, 6), 0),
        ((2, 6, 4), (4, 3, 4), 0),
        ((6, 4), (6, 2, 2), 0),
    ],
)
def test_norms_of_groups_are_one_operator(shape: Any, parts: Any, norms: int) -> None:
    x = variable("x", Tensor("float32", shape))
    scale, bias = (variable(name, Tensor("float32", (parts[1],))) for name in "sb")
    made = x
    for _ in range(2):
        made = term("instance_norm", term("reshape", made, shape=parts), scale, bias, epsilon=0.1)
        made = term("reshape", made, shape=shape)
    model = standalone(Graph((x, scale, bias), (made,)), {"": 20})
    found = with_group_norms(model)
    assert [n.op for n in found.nodes()].count("group_norm") == 2 * norms
    leaves = {each: RNG.normal(size=fixed(each.shape, {"n": 2})).astype(np.float32) for each in (x, scale, bias)}
    exact = interpret([made], EXACT, {leaf: EXACT.load(each) for leaf, each in leaves.items()}, sizes={"n": 2})[made]
    tensors = {leaf: tensor_of(each, "cpu") for leaf, each in leaves.items()}
    (output,) = found.graph.outputs
    near(interpret([output], TORCH, tensors, sizes={"n": 2})[output], exact, "float32")


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(("around", "variances"), [((0, 2), 1), ((0,), 0)])
def test_variances_are_read_once(keepdims: bool, around: tuple[int, ...], variances: int) -> None:
    def function(x: Any) -> Any:
        mean = x.mean(around, True)
        centred = x - mean
        return (centred * centred).mean((0, 2), keepdims), centred, mean, (x * x).mean((0, 2))

    x = torch.randn(4, 3, 5) + 7
    made = make_fx(function)(x)
    torch.testing.assert_close(with_variances(made)(x), function(x), rtol=1e-4, atol=1e-5)
    targets = [node.target for node in made.graph.nodes]
    assert targets.count(torch.ops.aten.var_mean.correction) == variances
    assert targets.count(torch.ops.aten.mean.dim) == 3 - 2 * variances


def test_sizes_are_those_of_the_run() -> None:
    x = variable("x", Tensor("float32", (symbol("n"), 3)))
    made = term("reshape", x, shape=(symbol("n") * 3,))
    given = torch.randn(4, 3)
    torch.testing.assert_close(interpret([made], TORCH, {x: given}, sizes={"n": 4})[made], given.reshape(12))


def test_what_has_no_form_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    norm = Function("norm", lambda x: x)  # PyTorch's is a fold
    with pytest.raises(Unsupported, match="no function of elements norm"):
        TORCH.map(norm, torch.ones(3))
    with pytest.raises(Unsupported, match="no dtype int4"):
        TORCH.cast(torch.ones(3), "int4_of_others")
    monkeypatch.setattr(meaning, "LARGEST", 10)
    with pytest.raises(Unsupported, match="windows of 12 elements"):
        TORCH.window(torch.ones(6), [0], [3], [1], [1])


def test_a_constant_of_one_number_is_not_written() -> None:
    assert TORCH.constant(Literal.of(np.full((2, 2), 3.0, np.float32))).tolist() == [[3.0, 3.0]] * 2
    for dtype in ("bool", "int64", "float16", "bfloat16"):
        each = np.ones(3).astype(numpy_dtype(dtype))
        near(TORCH.constant(Literal.of(each)), each, dtype)
