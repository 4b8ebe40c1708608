"""Group norms as PyTorch exports them become the CUDA provider's operators, and images between
convolutions have channels last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice

import numpy as np
import onnxruntime
import pytest
from fuzzed import fuzz
from small_models import ops
from stated_laws import stated

from taso_mirage.ir.model import Model, StoredWeight, random_inputs
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, topological, variable, weight
from taso_mirage.meanings.reals import EXACT
from taso_mirage.measure.target import CPU, CUDA, Target
from taso_mirage.onnx_io import from_ir, serialize, to_ir
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term
from taso_mirage.prove.rules.fuzz import typings
from taso_mirage.prove.rules.ladder import proved_at
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.rewriting.text import laws, parse_equation, show_equation
from taso_mirage.search.available import Available
from taso_mirage.search.passes import Context
from taso_mirage.search.rewriter import Rewriter
from taso_mirage.search.rulesets import rules
from taso_mirage.verdicts import Failure

pytestmark = pytest.mark.sampled(2)

HALF, OPSETS = "float16", {"": 20, "com.microsoft": 1}
CHANNELS, GROUPS, SIDE = 16, 4, 6
FUSED = {"nhwc_group_norm", "nhwc_skip_group_norm", "nhwc_skip_group_norm_sum"}


def parameter(name: str, *shape: int, dtype: str = HALF) -> Node:
    return weight(name, Tensor(dtype, shape))


def uniform(value: float, n: int, dtype: str = HALF) -> Node:
    return constant(np.full(n, value).astype(dtype))


def norm(x: Node, name: str, groups: int = GROUPS, scale: float = 1.0, epsilon: float = 1e-5) -> Node:
    """A group norm as PyTorch exports it."""
    n, c, h, width = map(int, x.shape)
    apart = term("reshape", x, shape=(n, groups, c * h * width // groups))
    one, zero = uniform(scale, groups, x.dtype), uniform(0.0, groups, x.dtype)
    back = term("reshape", term("instance_norm", apart, one, zero, epsilon=epsilon), shape=(n, c, h, width))
    affine = [parameter(f"{name}.{k}", c, 1, 1, dtype=x.dtype) for k in ("weight", "bias")]
    return term("add", term("mul", back, affine[0]), affine[1])


def silu(x: Node) -> Node:
    return term("mul", x, term("sigmoid", x))


def conv(x: Node, name: str, size: int = 3) -> Node:
    c = int(x.shape[1])
    attrs = {"strides": (1, 1), "pads": (size // 2,) * 4, "dilations": (1, 1), "group": 1}
    kernel, bias = (
        parameter(f"{name}.weight", CHANNELS, c, size, size, dtype=x.dtype),
        parameter(f"{name}.bias", CHANNELS),
    )
    return term("conv", x, kernel, bias, **attrs)


def made(inputs: Sequence[Node], outputs: Sequence[Node]) -> Model:
    rng = np.random.default_rng(0)
    weights = {
        n.attr("name"): StoredWeight((0.3 * rng.normal(size=[int(d) for d in n.shape])).astype(n.dtype))
        for n in topological(outputs)
        if n.op == "weight"
    }
    return from_ir(to_ir(standalone(Graph(tuple(inputs), tuple(outputs)), OPSETS, weights)))


def image(dtype: str = HALF, channels: int = CHANNELS) -> Node:
    return variable("x", Tensor(dtype, (2, channels, SIDE, SIDE)))


def residual(x: Node, time: Node, name: str) -> Node:
    """The residual block of a diffusion UNet."""
    inside = conv(silu(norm(x, f"{name}.norm")), f"{name}.conv")
    inside = term("add", inside, term("unsqueeze", time, axes=(2, 3)))
    return term("add", conv(silu(norm(inside, f"{name}.norm2")), f"{name}.conv2"), x)


def rows(x: Node, name: str) -> Node:
    """A residual product over the pixels, as attention has it."""
    n, c, h, width = map(int, x.shape)
    flat = term("reshape", conv(norm(x, f"{name}.norm", epsilon=1e-6), f"{name}.in", 1), shape=(n, c, h * width))
    normal = term("layer_norm", term("transpose", flat, perm=(0, 2, 1)), uniform(1.0, c), axis=2, epsilon=1e-5)
    product = term("matmul", normal, parameter(f"{name}.matrix", c, c))
    back = term("reshape", term("transpose", product, perm=(0, 2, 1)), shape=(n, c, h, width))
    return term("add", conv(back, f"{name}.out", 1), x)


def unet() -> Model:
    """Two residual blocks and a product over pixels, with a resolution in between and a skip."""
    sample, time = image(channels=4), variable("time", Tensor(HALF, (2, CHANNELS)))
    first = conv(sample, "first")
    inside = rows(residual(first, time, "a"), "b")
    joined = term("resize", term("concat", inside, first, axis=1), factors=(1, 1, 2, 2))
    last = residual(conv(silu(norm(joined, "join.norm")), "join"), time, "c")
    return made((sample, time), (conv(silu(norm(last, "norm")), "leave"),))


def passed(model: Model, target: Target = CUDA, available: Callable[[Node], bool] | None = lambda n: True) -> Model:
    rewriter = Rewriter(
        model, target, [({}, 1.0)], rules().equations, dict(model.weights), None, None, Proofs(None), available
    )
    return rewriter.passes()[2].model


@cache
def fused_unet() -> Model:
    return passed(unet())


def one(build: Callable[[Node], Node], dtype: str = HALF, channels: int = CHANNELS) -> Model:
    x = image(dtype, channels)
    return made((x,), (build(x),))


def exact(model: Model) -> list[np.ndarray]:
    """The outputs of a model in float64."""
    inputs = random_inputs(model, 0)
    leaves = {n: EXACT.load(inputs[n.attr("name")]) for n in model.graph.inputs}
    leaves |= {n: EXACT.load(model.weights[n.attr("name")].numpy()) for n in model.nodes() if n.op == "weight"}
    found = interpret(model.graph.outputs, EXACT, leaves)
    return [found[o] for o in model.graph.outputs]


# ---------------------------------------------------------------- what the passes make


def test_a_unet_has_channels_last_throughout() -> None:
    """Transposes are left behind the convolution of the input and at the output."""
    before, after = unet(), fused_unet()
    counts = Counter(ops(after.graph.outputs))
    assert counts == {
        **{"nhwc_group_norm": 3, "nhwc_skip_group_norm": 3, "nhwc_skip_group_norm_sum": 1, "nhwc_conv": 8, "conv": 1},
        **{"add": 1, "concat": 1, "resize": 1, "layer_norm": 1, "matmul": 1, "reshape": 2, "transpose": 2},
    }
    assert (len(ops(before.graph.outputs)), counts.total()) == (70, 25)
    # a norm's scale went into a kernel, which has half precision
    np.testing.assert_allclose(exact(after)[0], exact(before)[0], rtol=0, atol=1e-3)


def test_a_residual_block_is_six_operators() -> None:
    sample, time = image(), variable("time", Tensor(HALF, (2, CHANNELS)))
    before = made((sample, time), (residual(conv(sample, "a"), time, "b"),))
    after = passed(before)
    fused = ["nhwc_conv", "nhwc_conv", "nhwc_group_norm", "nhwc_skip_group_norm"]
    assert ops(after.graph.outputs) == ["add", "conv", *fused, "transpose", "transpose"]
    np.testing.assert_allclose(exact(after)[0], exact(before)[0], rtol=1e-9, atol=1e-9)


def test_nothing_changes_where_the_operators_are_missing() -> None:
    for target, available in ((CUDA, lambda n: n.op not in FUSED), (CPU, None)):
        assert not FUSED & set(ops(passed(unet(), target, available).graph.outputs))


def test_the_cpu_provider_reads_the_operators_and_has_no_kernel() -> None:
    model = fused_unet()
    context = Context(OPSETS, {}, target=CPU)
    fused = [n for n in model.nodes() if n.op in FUSED]
    assert {n.op for n in fused} == FUSED
    assert not any(map(Available((), context), fused))
    for node in fused:
        with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented, match=r"GroupNorm\(1\)"):
            onnxruntime.InferenceSession(serialize(alone(node)), providers=["CPUExecutionProvider"])


def alone(node: Node) -> Model:
    leaves = [variable(f"a{i}", a.tensor) for i, a in enumerate(node.args)]
    again = term(node.op, *leaves, **dict(node.attrs))
    parts = len(node.type) if isinstance(node.type, tuple) else 0
    outputs = [term("item", again, index=i) for i in range(parts)] or [again]
    return standalone(Graph(tuple(leaves), tuple(outputs)), OPSETS, {})


def test_they_are_read_as_they_were_written() -> None:
    model = fused_unet()
    again = from_ir(to_ir(model))
    assert Counter(ops(again.graph.outputs)) == Counter(ops(model.graph.outputs))
    np.testing.assert_array_equal(exact(again)[0], exact(model)[0])


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("build", "dtype", "channels"),
    [
        (lambda x: conv(norm(conv(x, "a"), "n", scale=0.5), "b"), HALF, CHANNELS),
        (lambda x: conv(norm(conv(x, "a"), "n", groups=CHANNELS), "b"), HALF, CHANNELS),
        (lambda x: norm(x, "n"), "float32", CHANNELS),
    ],
    ids=["groups that are scaled", "an odd number of channels", "single precision with channels first"],
)
def test_other_norms_stay(build: Callable[[Node], Node], dtype: str, channels: int) -> None:
    found = ops(passed(one(build, dtype, channels)).graph.outputs)
    assert "instance_norm" in found
    assert not FUSED & set(found)


def test_channels_last_around_a_norm_in_single_precision() -> None:
    x = variable("x", Tensor("float32", (2, SIDE, SIDE, CHANNELS)))
    last = term("transpose", norm(term("transpose", x, perm=(0, 3, 1, 2)), "n"), perm=(0, 2, 3, 1))
    model = made((x,), (silu(last),))
    after = passed(model)
    assert ops(after.graph.outputs) == ["nhwc_group_norm"]
    np.testing.assert_allclose(exact(after)[0], exact(model)[0], rtol=1e-12)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("activate", "activation"),
    [
        (silu, 1),
        (lambda y: term("mul", y, term("sigmoid", term("neg", y))), 0),
        (lambda y: term("mul", y, term("sigmoid", term("mul", y, constant(1.702, HALF)))), 0),
        (lambda y: term("relu", y), 0),
    ],
    ids=["SiLU", "another operand", "another factor", "relu"],
)
def test_only_silu_is_the_activation(activate: Callable[[Node], Node], activation: int) -> None:
    after = passed(one(lambda x: conv(activate(norm(conv(x, "a"), "n")), "b")))
    (fused,) = [n for n in after.nodes() if n.op in FUSED]
    assert fused.attr("activation") == activation


# ---------------------------------------------------------------- the operators' meaning


@pytest.mark.parametrize("activation", [0, 1])
@pytest.mark.parametrize("skip", [None, (2, 3, 5, 8), (2, 1, 1, 8), (2, 8)])
def test_the_operators_compute_their_documentation(activation: int, skip: tuple[int, ...] | None) -> None:
    """y = gamma * (s - mean) / sqrt(variance + epsilon) + beta with s = x + skip + bias, per image
    and group of channels."""
    rng = np.random.default_rng(0)
    shapes = [(2, 3, 5, 8), (8,), (8,), *([skip, (8,)] if skip else [])]
    arrays = [rng.normal(size=s) for s in shapes]
    leaves = [variable(f"a{i}", Tensor("float32", s)) for i, s in enumerate(shapes)]
    attrs = {"groups": 2, "activation": activation, "epsilon": 0.25}
    fused = term("nhwc_skip_group_norm_sum" if skip else "nhwc_group_norm", *leaves, **attrs)
    outputs = [term("item", fused, index=i) for i in (0, 1)] if skip else [fused]
    found = interpret(outputs, EXACT, dict(zip(leaves, arrays, strict=True)))
    x, gamma, beta, *added = arrays
    total = (
        x + added[0].reshape(2, *((3, 5) if len(skip) == 4 and skip[1] == 3 else (1, 1)), 8) + added[1] if skip else x
    )
    wanted = np.empty_like(total)
    for i in range(2):
        for group in (slice(0, 4), slice(4, 8)):
            part = total[i, :, :, group]
            wanted[i, :, :, group] = (part - part.mean()) / np.sqrt(part.var() + 0.25) * gamma[group] + beta[group]
    wanted = wanted / (1 + np.exp(-wanted)) if activation else wanted
    np.testing.assert_allclose(found[outputs[0]], wanted, rtol=1e-12, atol=1e-12)
    if skip:
        np.testing.assert_allclose(found[outputs[1]], total, rtol=1e-12)


# ---------------------------------------------------------------- wrong laws

WRONG = [
    ("nhwc_group_norm.0", "activation=0, epsilon=e", "activation=0, epsilon=0.5"),
    ("nhwc_group_norm.0", "activation=0", "activation=1"),
    ("nhwc_group_norm.0", "groups=s[1]", "groups=2*s[1]"),
    ("nhwc_group_norm.0", "groups=s[1]", "groups=1"),
    ("nhwc_group_norm.0", "value(u) == 1", "value(u) == 2"),
    ("nhwc_group_norm.0", "value(v) == 0", "value(v) == 1"),
    (
        "nhwc_group_norm.0",
        "nhwc_group_norm(transpose(x, perm=(0, 2, 3, 1))",
        "nhwc_group_norm(transpose(x, perm=(0, 3, 2, 1))",
    ),
    (
        "nhwc_group_norm.2",
        "cast(reshape(g, shape=(t[1],)), to='float32')",
        "cast(reshape(b, shape=(t[1],)), to='float32')",
    ),
    ("nhwc_group_norm.3", "groups=s[1]", "groups=2*s[1]"),
    ("nhwc_group_norm.4", "nhwc_group_norm(x, s, t, ", "nhwc_group_norm(x, t, s, "),
    ("nhwc_group_norm.6", "alpha=1.0", "alpha=2.0"),
    ("nhwc_group_norm.6", "activation=1", "activation=0"),
    ("nhwc_skip_group_norm.2", "nhwc_skip_group_norm(x, s, t, y, **a)", "nhwc_skip_group_norm(x, s, t, x, **a)"),
    ("nhwc_skip_group_norm_sum.0", "index=1", "index=0"),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "right", "wrong"), WRONG, ids=[f"{n} {wrong}" for n, _, wrong in WRONG])
def test_laws_near_these_are_refuted(name: str, right: str, wrong: str) -> None:
    law = next(each for each in laws() if each.name == name)
    text = show_equation(law)
    assert right in text
    other = replace(parse_equation(text.replace(right, wrong)), name="wrong")
    given, attributes = stated(law)
    found = fuzz(other, wanted=20, tries=400, given=given, attributes=attributes)
    assert found.counterexample is not None
    proofs = [proved_at(t.lhs, t.rhs) for t in islice(typings(other, 0, 100, given, attributes), 2)]
    assert any(isinstance(each, Failure) for each in proofs)
