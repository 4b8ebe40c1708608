"""Convolutions with a kernel of one element on a processor's matrix unit: their results where there
is one and by vectors, numbers that its parts cannot hold, evidence, and where a model has them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from named_models import model, session, w, x
from native_kernels import QUICK, check, exact, sanitized, values

from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.devices.machine import has_matrix_unit
from taso_mirage.emit.cpp import generate_all
from taso_mirage.emit.cpu.native_kernel import NativeKernel, build
from taso_mirage.errors import IllTyped
from taso_mirage.forms import pointwise
from taso_mirage.forms.base.form import CPU_GOALS
from taso_mirage.forms.pointwise import PIXELS, PointwiseConvolution, pointwise_convolution
from taso_mirage.forms.winograd import convolution
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.model import random_inputs
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, variable
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.operators.ops import term
from taso_mirage.pipeline.fuse.region_kernels import RegionKernel
from taso_mirage.regions.fragments import fragments
from taso_mirage.runtime.embed import EmbeddedRegion, embed
from taso_mirage.runtime.plan import cpu_kernel
from taso_mirage.verdicts import Evidence, Failure

NO_PADS = (0, 0, 0, 0)


def conv(data: Node, kernel: Node, bias: Node = ABSENT, **others: Any) -> Node:
    attrs = {"strides": (1, 1), "pads": NO_PADS, "dilations": (1, 1), "group": 1} | others
    return term("conv", data, kernel, bias, **attrs)


def normalized(data: Node, scale: Node, shift: Node) -> Node:
    return term("relu", term("add", term("mul", data, scale), shift))


def case(shape: tuple[int, ...], channels: int, follows: str) -> tuple[PointwiseConvolution, Graph]:
    """A convolution, with the named operators, and its goal over inputs."""
    data, kernel = x("x", *shape), x("w", channels, shape[1], 1, 1)
    bias = x("b", channels) if "bias" in follows else ABSENT
    z = x("z", shape[0], channels, *shape[2:]) if "sum" in follows else ABSENT
    scale, shift = x("s", shape[1], 1, 1), x("t", 1, shape[1], 1, 1)
    leaves = [leaf for leaf in (data, kernel, bias, z) if leaf is not ABSENT]
    if "normalized" in follows:
        data, leaves = normalized(data, scale, shift), [*leaves, scale, shift]
    made = conv(data, kernel, bias)
    made = made if z is ABSENT else term("add", made, z)
    made = term("relu", made) if "relu" in follows else made
    made = term("mul", made, term("sigmoid", made)) if "silu" in follows else made
    goal = Graph(tuple(leaves), (made,))
    read = pointwise_convolution(goal)
    assert read is not None
    return read, goal


CASES = (
    ((1, 3, 9, 7), 5, "bias, sum, relu", (32, 1)),
    ((2, 40, 5, 11), 33, "", (64, 2)),
    ((2, 64, 8, 4), 70, "normalized, bias, sum", (32, 4)),
    ((1, 33, 4, 4), 64, "silu", (64, 1)),
    ((2, 31, 10, 11), 17, "normalized, relu, silu", (64, 1)),
)
"""Sizes of the data, output channels, operators around the convolution, and the block: strips that
are full, half full and cut, channels and sums that fill no tile, more parts than tiles."""


@cache
def library(*flags: str) -> Path:
    made = {f"case_{i}": mugraph(*given) for i, given in enumerate(CASES)}
    return build(generate_all(made), None, (*QUICK, *flags))


def mugraph(shape: tuple[int, ...], channels: int, follows: str, block: tuple[int, int]) -> Graph:
    made, goal = case(shape, channels, follows)
    return Graph(goal.inputs, (made.mugraph(block),))


def kernels(*flags: str) -> Iterator[tuple[NativeKernel, Graph]]:
    for i, given in enumerate(CASES):
        made = NativeKernel(mugraph(*given), f"case_{i}", threads=2, library=library(*flags))
        yield made, case(*given[:3])[1]


@pytest.mark.parametrize(
    "flags",
    [(), ("-mno-amx-bf16",), pytest.param(("-mno-avx512f", "-mno-amx-bf16"), marks=pytest.mark.slow)],
    ids=["native", "vectors", "8"],
)
def test_the_kernel_computes_the_convolution(flags: tuple[str, ...]) -> None:
    for kernel, goal in kernels(*flags):
        given = values(goal)
        check(kernel, goal, given, 1e-6)
        (prepared,) = kernel.prepared(list(given.values()))
        assert prepared[0] == (has_matrix_unit() and not flags)


def largest_error(kernel: NativeKernel, goal: Graph) -> float:
    """Relative, where a pixel has one number, so that a result is one product."""
    data, weights = values(goal).values()
    single, pixels = np.zeros_like(data), np.arange(data[0, 0].size)
    single.reshape(*data.shape[:2], -1)[:, pixels % data.shape[1], pixels] = 1 + np.abs(data[0, 0].reshape(-1))
    (found,) = kernel(single, weights)
    (wanted,) = exact(goal, dict(zip(goal.inputs, (single, weights), strict=True)))
    return float((np.abs(found - wanted) / np.abs(wanted)).max())


def test_each_result_has_the_digits_of_single_precision() -> None:
    assert largest_error(*list(kernels())[1]) < 2.0**-21


@pytest.mark.skipif(not has_matrix_unit(), reason="there is no matrix unit")
@pytest.mark.sampled(3)
def test_without_the_smallest_of_its_products_a_result_lacks_digits() -> None:
    graph, goal = mugraph(*CASES[1]), case(*CASES[1][:3])[1]
    source, dropped = generate_all({"mutant": graph}), "load_weights(w + 2 * PAIR), add_products<BOTH>();"
    assert source.count(dropped) == 1
    mutant = NativeKernel(
        graph, "mutant", library=build(source.replace(dropped, "load_weights(w + 2 * PAIR);"), None, QUICK)
    )
    assert largest_error(mutant, goal) > 2.0**-20


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3.4e38, 1e-30, 1e-42], ids=str)
def test_numbers_that_parts_do_not_hold_have_the_same_results(value: float) -> None:
    """In one pixel, of which a small number is the largest one; other pixels stay as they are."""
    kernel, goal = list(kernels())[1]
    data, weights = values(goal).values()
    weights = np.abs(weights) / 2 + np.float32(0.125)
    before = kernel(data, weights)[0]
    data[1, :, 0, 3] = np.float32(value) * np.linspace(0.5, 1, 40, dtype=np.float32) if value < 1 else 0
    data[1, 0, 0, 3] = value
    (found,) = kernel(data, weights)
    with np.errstate(all="ignore"):
        wanted = (weights[:, :, 0, 0].astype(float) @ data[1, :, 0, 3]).astype(np.float32)
    np.testing.assert_allclose(found[1, :, 0, 3], wanted, rtol=1e-6, atol=2e-44)
    found[1, :, 0, 3] = before[1, :, 0, 3]
    np.testing.assert_allclose(found, before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("value", [np.inf, np.nan, 3.4e38, 1e-30], ids=str)
def test_weights_that_parts_do_not_hold_lie_as_they_are(value: float) -> None:
    kernel, goal = list(kernels())[1]
    data, weights = values(goal).values()
    data, weights = np.abs(data) / 2 + np.float32(0.125), np.abs(weights)
    weights[3] = np.float32(value)
    weights = np.full_like(weights, value) if value < 1 else weights
    (prepared,), (found,) = kernel.prepared([data, weights]), kernel(data, weights)
    assert prepared[0] == 0
    with np.errstate(all="ignore"):
        (wanted,) = exact(goal, dict(zip(goal.inputs, (data, weights), strict=True)))
        np.testing.assert_allclose(found, wanted.astype(np.float32), rtol=1e-5)


def test_no_sanitizer_complains(tmp_path: Path) -> None:
    sanitized({f"case_{i}": mugraph(*CASES[i]) for i in (0, 4)}, tmp_path, ("0.3333333", "0x1p-100"))


# ---------------------------------------------------------------- evidence


def test_other_operands_are_refused() -> None:
    """Without the relu, without the sum, the bias left out or added to another channel, weights
    whose channels are exchanged: each is another function."""
    made, goal = case((2, 3, 2, 3), 3, "bias, sum, relu")

    def refused(*operands: Node, relu: int = 1) -> bool:
        mine = term("pointwise", *operands, relu=relu)
        return isinstance(verified_mugraph(Graph(goal.inputs, (mine,)), goal), Failure)

    operands = made.x, made.w, made.b, made.z
    turned = term("transpose", made.w, perm=(1, 0, 2, 3))
    assert not refused(*operands)
    assert refused(*operands, relu=0)
    assert refused(*operands[:3], ABSENT)
    assert refused(made.x, made.w, ABSENT, made.z)
    assert refused(made.x, turned, made.b, made.z)


def test_operands_that_do_not_fit_are_ill_typed() -> None:
    data = x("x", 1, 2, 5, 5)
    for bad in (x("w", 3, 2, 1, 2), x("w", 3, 3, 1, 1), x("w", 3, 2)):
        with pytest.raises(IllTyped, match="pointwise of"):
            term("pointwise", data, bad)
    with pytest.raises(IllTyped, match="added to results"):
        term("pointwise", data, x("w", 3, 2, 1, 1), ABSENT, x("z", 1, 3, 5, 4))


# ---------------------------------------------------------------- models


@pytest.fixture
def unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a matrix unit."""
    monkeypatch.setattr(pointwise, "has_matrix_unit", lambda: True)


def found(*outputs: Node) -> list[list[str]]:
    """The operators of the regions with a convolution."""
    made = fragments(model(*outputs), {}, prepared=CPU_GOALS)
    return [[n.op for n in graph if n.args] for graph in made if any(n.op == "conv" for n in graph)]


@pytest.mark.usefixtures("unit")
def test_a_region_is_a_convolution_with_the_elementwise_operators_around_it() -> None:
    data, kernel = x("x", 1, 32, 8, 6), w("w", 40, 32, 1, 1)
    before = normalized(data, w("s", 32, 1, 1), w("t", 32, 1, 1))
    after = term("relu", term("add", conv(data, kernel, w("b", 40)), x("z", 1, 40, 8, 6)))
    assert found(after) == [["conv", "add", "relu"]]
    assert found(conv(before, kernel)) == [["mul", "add", "relu", "conv"]]
    assert found(conv(before, kernel), before) == [["conv"]]
    assert found(conv(term("relu", conv(data, kernel)), w("v", 32, 40, 1, 1))) == [["conv", "relu"], ["conv"]]


@pytest.mark.usefixtures("unit")
@pytest.mark.parametrize(
    "made",
    [
        conv(x("x", 1, 32, 8, 8), w("w", 32, 32, 1, 1), strides=(2, 2)),
        conv(x("x", 1, 32, 8, 8), w("w", 32, 32, 1, 1), pads=(1, 1, 1, 1)),
        conv(x("x", 1, 64, 8, 8), w("w", 64, 32, 1, 1), group=2),
        conv(x("x", 1, 31, 8, 8), w("w", 32, 31, 1, 1)),
        conv(x("x", 1, 32, 5, 5), w("w", 32, 32, 1, 1)),
        conv(x("x", 1, 32, 8, 8), x("w", 32, 32, 1, 1)),
    ],
    ids=["strides", "pads", "groups", "few channels", "few pixels", "weights of the run"],
)
def test_others_are_in_no_region(made: Node) -> None:
    assert found(made) == []


def test_a_machine_without_a_matrix_unit_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    made = conv(x("x", 1, 32, 8, 8), w("w", 32, 32, 1, 1))
    for there in (True, False):
        monkeypatch.setattr(pointwise, "has_matrix_unit", lambda there=there: there)
        assert bool(found(made)) == there


@pytest.mark.usefixtures("unit")
def test_muGraphs_have_evidence_and_blocks_for_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pointwise, "cores", lambda: 2)
    made, goal = case((1, 64, 28, 28), 128, "normalized, bias, sum, relu")
    kernels = made.mugraphs(goal, CPU_DEVICE)
    assert [each.graph.outputs[0].attr("block") for each in kernels] == [(PIXELS[0], 1), (PIXELS[1], 2)]
    assert all(isinstance(each.evidence, Evidence) and each.evidence.bound < 1e-30 for each in kernels)


@pytest.mark.usefixtures("unit")
@pytest.mark.sampled(3)
def test_a_free_batch_runs_its_kernel_at_one_size_and_its_operators_at_others() -> None:
    batch = variable("x", Tensor("float32", (symbol("n"), 32, 7, 5)))
    plain = model(term("relu", conv(batch, w("w", 40, 32, 1, 1))))
    ((graph, (site,)),) = fragments(plain, {"n": 2}, prepared=CPU_GOALS).items()
    goal = pointwise_convolution(graph)
    assert goal is not None
    best = goal.mugraphs(graph, CPU_DEVICE)[0]
    fused = embed(plain, [EmbeddedRegion(site.inputs, site.outputs, cpu_kernel(best.graph))], {"n": 2})
    ours, wanted = session(fused, True), session(plain, False)
    for n in (2, 3, 2):
        feed = dict(random_inputs(plain, n, {"n": n}))
        np.testing.assert_allclose(ours.run(None, feed)[0], wanted.run(None, feed)[0], rtol=1e-4, atol=1e-4)


def test_a_kernel_is_tried_in_a_model_only_if_it_is_clearly_faster_alone() -> None:
    """The runtime's own convolution changes layouts when it is alone. Kernels by minimal filtering
    are another set."""
    made, _ = case((1, 64, 8, 8), 64, "relu")
    other = convolution(Graph((data := x("x", 1, 8, 8, 8), kernel := x("w", 8, 8, 3, 3)), (conv(data, kernel),)))
    assert other is not None
    assert made.together != other.together
    for seconds, faster in ((0.75, True), (0.9, False)):
        tried = RegionKernel((), (), {}, cast(Any, None), 1 - seconds, made, seconds)
        assert tried.faster == faster


def cpu_golden() -> Iterator[tuple[str, Graph]]:
    """The muGraphs whose programs are kept (`tests/golden`)."""
    for given in CASES:
        yield f"pointwise/{given}", mugraph(*given)
