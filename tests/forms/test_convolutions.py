"""Convolutions as kernels: they compute the convolution, in the field and at float32; where a model
has them; how their weights are prepared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fused_models import TRYING, clock, quick, together
from named_models import model, session, w, x
from native_kernels import QUICK, STRICT, complaints, computes, values

import op_specs.winograd as spec
from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.emit.cpp import generate_all, generate_cpp
from taso_mirage.emit.cpu.native_kernel import NativeKernel, build
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.forms.base.form import CPU_GOALS
from taso_mirage.forms.winograd import TILES, Convolution, _evidence, convolution
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.model import random_inputs
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, variable
from taso_mirage.meanings.reals import EXACT
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.mugraph.verification import SINGLE, verified_mugraph
from taso_mirage.onnx_io import from_ir, from_proto
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import optimize_model
from taso_mirage.pipeline.fuse import comparisons, fused
from taso_mirage.regions.fragments import fragments
from taso_mirage.runtime.embed import EmbeddedRegion, embed
from taso_mirage.runtime.plan import cpu_kernel
from taso_mirage.search.config import Config
from taso_mirage.search.rewriter import ModelCandidate
from taso_mirage.verdicts import Evidence, Failure

pytestmark = pytest.mark.sampled(2)

PADS = (1, 1, 1, 1)


def conv(data: Node, kernel: Node, bias: Node = ABSENT, **others: Any) -> Node:
    attrs = {"strides": (1, 1), "pads": PADS, "dilations": (1, 1), "group": 1} | others
    return term("conv", data, kernel, bias, **attrs)


def case(
    shape: tuple[int, ...], channels: int, pads: tuple[int, ...], follows: str, sides: tuple[int, int] = (3, 3)
) -> tuple[Convolution, Graph]:
    """A convolution, followed by the named operators, and its goal over inputs."""
    n, c, height, width = shape
    group = 3 if "groups" in follows else 1
    data, kernel = x("x", *shape), x("w", channels, c // group, *sides)
    result = (n, channels, height + pads[0] + pads[2] - sides[0] + 1, width + pads[1] + pads[3] - sides[1] + 1)
    bias = x("b", channels) if "bias" in follows else ABSENT
    z = x("z", *result) if "sum" in follows else ABSENT
    made = Convolution(data, kernel, bias, z, pads, "relu" in follows, group)
    leaves = tuple([leaf for leaf in (data, kernel, bias, z) if leaf is not ABSENT])
    return made, Graph(leaves, (made.goal(),))


CASES = (
    ((1, 3, 9, 7), 5, PADS, "bias, sum, relu"),
    ((2, 5, 6, 11), 20, (0, 0, 0, 0), ""),
    ((2, 4, 13, 17), 33, (1, 0, 2, 1), "bias, sum"),
    ((1, 4, 4, 4), 9, PADS, "sum, relu"),
    ((1, 1, 3, 3), 1, (0, 0, 0, 0), "relu"),
    ((1, 2, 1, 2), 17, (2, 3, 4, 3), "bias"),
    ((3, 2, 20, 3), 4, (0, 1, 0, 1), "bias, relu"),
    ((2, 12, 9, 21), 15, PADS, "groups, bias, sum, relu"),
    ((1, 3, 5, 40), 54, (0, 1, 2, 0), "groups"),
    ((1, 3, 17, 17), 18, (0, 3, 0, 3), "bias, relu", (1, 7)),
    ((2, 3, 17, 5), 7, (3, 0, 3, 0), "sum", (7, 1)),
    ((1, 4, 9, 11), 6, (2, 2, 2, 1), "bias, sum, relu", (5, 5)),
    ((1, 2, 3, 9), 3, (0, 1, 0, 1), "", (1, 3)),
    ((1, 2, 8, 6), 3, (1, 2, 2, 1), "", (3, 5)),
)


def tiles(made: Convolution) -> list[tuple[int, int]]:
    """Small and large."""
    height, width = (TILES[k] for k in made.kernel)
    return list(dict.fromkeys(zip(height, width, strict=True)))[::-1]


def compiled(flags: Sequence[str], threads: int = 1) -> Iterator[tuple[NativeKernel, Graph]]:
    """All cases, each with a tile and blocks of its own, from one file; and their goals."""
    graphs, goals = {}, {}
    for i, given in enumerate(CASES):
        for k, tile in enumerate(tiles(case(*given)[0])):
            made, goal = case(*given)
            block = (16, 1) if (i + k) % 2 else (32, 3)
            graphs[f"case_{i}_{k}"] = Graph(goal.inputs, (made.mugraph(tile, block),))
            goals[f"case_{i}_{k}"] = goal
    library = build(generate_all(graphs), None, flags)
    for name, graph in graphs.items():
        yield NativeKernel(graph, name, threads=threads, library=library), goals[name]


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(QUICK, id="native"),
        pytest.param((*QUICK, "-mno-avx512f"), id="8", marks=pytest.mark.slow),
        pytest.param((*QUICK, "-mno-avx", "-Wno-psabi"), id="4"),
    ],
)
def test_the_kernel_computes_the_convolution(flags: Sequence[str]) -> None:
    """At odd sizes, where tiles leave the image, blocks are not full, and there are more parts than
    channels; on two threads, and with vectors of 16, 8 and 4 numbers."""
    for made, goal in compiled(flags, 2):
        assert computes(made, goal, values(goal), 4e-6)


def test_the_kernel_as_models_have_it() -> None:
    made, goal = case((2, 19, 13, 17), 33, PADS, "bias, sum, relu")
    graph = Graph(goal.inputs, (made.mugraph((4, 4), (32, 2)),))
    assert computes(NativeKernel(graph, flags=STRICT, threads=2), goal, values(graph), 4e-6)


@pytest.mark.parametrize("which", [(0, 11), pytest.param((0, 3, 4, 7, 8, 11), marks=pytest.mark.slow)])
def test_no_sanitizer_complains(which: Sequence[int], tmp_path: Path) -> None:
    """Nothing outside of the tensors is read or written: they have the sizes that the types say, to
    the byte."""
    assert not complaints({k.name: k.graph for i, (k, _) in enumerate(compiled(QUICK)) if i % 12 in which}, tmp_path)


@pytest.mark.sampled(1)
def test_a_value_that_is_no_number_stays_one() -> None:
    made, goal = case((1, 2, 4, 4), 3, PADS, "relu")
    given = values(goal)
    next(iter(given.values()))[0, 0, 1, 1] = np.nan
    graph = Graph(goal.inputs, (made.mugraph((2, 2), (16, 1)),))
    (found,) = NativeKernel(graph, flags=QUICK)(*given.values())
    assert np.isnan(found[0, :, 1, 1]).all()


# ---------------------------------------------------------------- evidence


def mugraphs(goal: Graph) -> list[FoundMuGraph]:
    made = convolution(goal)
    return [] if made is None else made.mugraphs(goal, CPU_DEVICE)


def test_muGraphs_come_with_evidence_and_the_fewest_multiplications_first() -> None:
    _, goal = case((1, 64, 14, 15), 48, PADS, "bias, sum, relu")
    found = mugraphs(goal)
    assert [f.seconds for f in found] == sorted(f.seconds for f in found)
    assert {f.graph.outputs[0].attr("tile") for f in found} == {(2, 2), (4, 4)}
    assert all(f.evidence.tests >= 8 and f.evidence.bound < 1e-30 for f in found)


@pytest.mark.parametrize("pads", [(3, 3, 3, 3), (8, 0, 5, 7), (0, 0, 0, 0)], ids=str)
@pytest.mark.parametrize("side", [9, 16, 21])
def test_wide_pads_have_evidence_too(pads: tuple[int, ...], side: int) -> None:
    made, goal = case((1, 8, side, side), 8, pads, "bias")
    assert {f.graph.outputs[0].attr("tile") for f in mugraphs(goal)} == {(2, 2), (4, 4)}
    for tile in ((2, 2), (4, 4)):
        small, leaves = made.small(tile)
        assert all(int(n) > 0 for leaf in leaves for n in leaf.shape)
        assert small.goal().shape[2] % tile[0] == goal.outputs[0].shape[2] % tile[0]


def error(graph: Graph, given: Any) -> float:
    """The error of float32 against float64, relative to the largest result."""
    exact, single = (
        interpret(graph.outputs, xp, {n: xp.load(a) for n, a in given.items()})[graph.outputs[0]]
        for xp in (EXACT, SINGLE)
    )
    return float(np.abs(single - exact).max() / np.abs(exact).max())


@pytest.mark.parametrize(
    ("sides", "pads", "points", "much"),
    [
        ((3, 3), PADS, (1, -1, 2, -2), 3.0),
        ((5, 5), (2, 2, 2, 2), (1, -1, 2, -2), 3.0),
        ((1, 7), (0, 3, 0, 3), (1, -1, 2, -2, Fraction(1, 2), -Fraction(1, 2), 3, -3), 1.5),
    ],
    ids=str,
)
def test_tiles_round_nearly_as_the_direct_sum_does(
    sides: tuple[int, int], pads: tuple[int, ...], points: tuple[Any, ...], much: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check of models allows four times the direct sum, and 64 roundings; 12 are enough for
    these numbers.

    How the direct sum rounds depends on the processor's products: its error is between 2.8e-7 and
    4.5e-7 for the kernel of 1 by 7. With other points, which are usual, so many times as much.
    """
    made, goal = case((1, 64, 16, 16), 16, pads, "", sides)
    given = values(goal)
    mine = Graph(goal.inputs, (made.mugraph(tiles(made)[-1], (16, 1)),))
    direct, ours = error(goal, given), error(mine, given)
    monkeypatch.setitem(spec.POINTS, len(points) + 1, list(map(Fraction, points)))
    usual = error(mine, given)
    assert ours < 4 * direct + 12 * float(np.finfo(np.float32).eps)
    assert much * ours < usual


@pytest.mark.parametrize("others", [{"strides": (2, 2)}, {"dilations": (2, 2)}], ids=str)
def test_a_goal_of_another_convolution_has_no_muGraphs(others: dict[str, Any]) -> None:
    data, kernel = x("x", 1, 8, 9, 9), x("w", 8, 8, 3, 3)
    assert convolution(Graph((data, kernel), (conv(data, kernel),))) is not None
    assert mugraphs(Graph((data, kernel), (conv(data, kernel, **others),))) == []


def test_what_is_no_convolution_has_no_muGraphs() -> None:
    data = x("x", 1, 8, 4, 4)
    assert mugraphs(Graph((data,), (term("relu", data),))) == []
    assert convolution(Graph((data,), (term("add", data, data),))) is None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("row", range(3))
def test_a_wrong_transform_is_refused(tile: int, row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One number of one matrix changed: of the data's, the weights' and the results'."""
    right = spec.transforms(tile, 3)

    def wrong(tile: int, kernel: int) -> Any:
        made = [[list(line) for line in matrix] for matrix in right]
        made[row][1][1] += Fraction(1, 36)
        return made

    made, _ = case(*CASES[0])
    monkeypatch.setattr(spec, "transforms", wrong)
    _evidence.cache_clear()
    assert isinstance(_evidence(made.small((tile, tile)), (tile, tile)), Failure)
    monkeypatch.undo()
    _evidence.cache_clear()
    assert isinstance(_evidence(made.small((tile, tile)), (tile, tile)), Evidence)


@pytest.mark.sampled(1)
def test_other_operands_are_refused() -> None:
    """Without the relu, without the sum, padded on the other side, the bias added twice: each is
    another function."""
    made, goal = case((1, 3, 6, 6), 3, (0, 1, 2, 1), "bias, sum, relu")

    def refused(*operands: Node, pads: tuple[int, ...] = made.pads, relu: int = 1) -> bool:
        mine = term("winograd", *operands, pads=pads, tile=(2, 2), block=(16, 1), relu=relu)
        return isinstance(verified_mugraph(Graph(goal.inputs, (mine,)), goal), Failure)

    operands = made.x, made.w, made.b, made.z
    assert not refused(*operands)
    assert refused(*operands, relu=0)
    assert refused(*operands[:3], ABSENT)
    assert refused(*operands, pads=(2, 1, 0, 1))
    assert refused(made.x, made.w, ABSENT, made.z)


def test_operands_that_do_not_fit_are_ill_typed() -> None:
    data, kernel = x("x", 1, 2, 5, 5), x("w", 3, 2, 3, 3)
    for bad in ({"tile": (3, 3)}, {"tile": (2,)}, {"pads": (1, 1)}):
        with pytest.raises(IllTyped, match="winograd of"):
            term("winograd", data, kernel, **{"pads": PADS, **bad})
    with pytest.raises(IllTyped, match="added to results"):
        term("winograd", data, kernel, ABSENT, x("z", 1, 3, 4, 5), pads=PADS)
    made = term("winograd", data, kernel, pads=PADS, block=(8, 1))
    with pytest.raises(Unsupported, match="multiple of 16"):
        generate_cpp(Graph((data, kernel), (made,)))


# ---------------------------------------------------------------- models


def found(*outputs: Node) -> list[list[str]]:
    """The operators of the regions with a convolution."""
    made = fragments(model(*outputs), {}, prepared=CPU_GOALS)
    return [[n.op for n in graph if n.args] for graph in made if any(n.op == "conv" for n in graph)]


def test_a_region_is_a_convolution_with_the_elementwise_operators_that_alone_read_it() -> None:
    data, kernel, bias = x("x", 1, 8, 6, 6), w("w", 8, 8, 3, 3), w("b", 8)
    made = conv(data, kernel, bias)
    assert found(term("relu", made)) == [["conv", "relu"]]
    assert found(term("relu", term("add", data, made))) == [["conv", "add", "relu"]]
    assert found(term("relu", made), made) == [["conv"]]
    assert found(term("relu", made), term("neg", made)) == [["conv"]]
    assert found(term("relu", term("add", made, w("z", 1, 8, 6, 6)))) == [["conv"]]
    assert found(term("add", made, x("z", 1, 8, 1, 1))) == [["conv", "add"]]
    assert found(term("add", made, x("z", 1, 1, 6, 6))) == [["conv"]]
    assert found(term("tanh", made)) == [["conv", "tanh"]]
    assert found(term("add", made, made)) == [["conv", "add"]]
    assert found(term("mul", made, term("sigmoid", made))) == [["conv", "sigmoid", "mul"]]
    assert found(term("mul", made, term("sigmoid", made)), term("sigmoid", made)) == [["conv"]]
    assert found(term("softmax", made, axis=1)) == [["conv"]]


def test_convolutions_in_groups_are_regions() -> None:
    grouped = conv(x("x", 1, 16, 6, 6), w("w", 16, 4, 3, 3), group=4)
    assert found(term("relu", grouped)) == [["conv", "relu"]]


def test_two_convolutions_that_are_added_are_two_regions() -> None:
    data, other = x("x", 1, 8, 6, 6), x("y", 1, 8, 6, 6)
    total = term("add", conv(data, w("v", 8, 8, 3, 3)), conv(other, w("w", 8, 8, 3, 3)))
    assert sorted(found(term("relu", total))) == [["conv"], ["conv", "add", "relu"]]


@pytest.mark.parametrize(
    "made",
    [
        conv(x("x", 1, 8, 6, 6), w("w", 8, 8, 3, 3), strides=(2, 2)),
        conv(x("x", 1, 8, 9, 9), w("w", 8, 8, 3, 3), dilations=(2, 2)),
        conv(x("x", 1, 8, 6, 6), w("w", 8, 1, 3, 3), group=8),
        conv(x("x", 1, 8, 6, 6), w("w", 8, 8, 1, 1)),
        conv(x("x", 1, 8, 9, 9), w("w", 8, 8, 2, 3)),
        conv(x("x", 1, 8, 9, 9), w("w", 8, 8, 7, 7)),
        conv(x("x", 1, 3, 6, 6), w("w", 8, 3, 3, 3)),
        conv(x("x", 1, 8, 6, 6), x("w", 8, 8, 3, 3)),
        conv(x("x", 1, 8, 6), w("w", 8, 8, 3), strides=(1,), pads=(1, 1), dilations=(1,)),
    ],
    ids=[
        "strides",
        "dilations",
        "groups",
        "one pixel",
        "even",
        "large",
        "few channels",
        "weights of the run",
        "one axis",
    ],
)
def test_others_are_in_no_region(made: Node) -> None:
    assert found(term("relu", made)) == []


@pytest.mark.parametrize("constant", [True, False], ids=["weights", "inputs"])
def test_weights_are_prepared_once_where_they_are_constant(constant: bool) -> None:
    """Where they are inputs of the run, every run has its own."""
    data, z = x("x", 1, 8, 7, 5), x("z", 1, 9, 7, 5)
    kernel, bias = (w if constant else x)("w", 9, 8, 3, 3), (w if constant else x)("b", 9)
    goal = term("relu", term("add", z, conv(data, kernel, bias)))
    plain = model(goal)
    inputs = tuple(n for n in Graph((), (goal,)) if n.op in ("input", "weight"))
    leaves = tuple(x(f"i{k}", *[int(d) for d in n.shape]) for k, n in enumerate(inputs))
    mapping = dict(zip((n.attr("name") for n in inputs), leaves, strict=True))
    made = Convolution(*(mapping[name] for name in "xwbz"), PADS, True)
    fused = embed(plain, [EmbeddedRegion(inputs, (goal,), cpu_kernel(Graph(leaves, (made.mugraph((4, 4), (16, 1)),))))])
    ours, without, wanted = session(fused, True), session(fused, False), session(plain, False)
    for seed in range(3):
        feed = dict(random_inputs(plain, seed, {}))
        for each in (ours, without):
            np.testing.assert_allclose(each.run(None, feed)[0], wanted.run(None, feed)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.sampled(3)
def test_a_model_gets_kernels_after_the_passes_where_nothing_else_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch normalizations are in the weights then, so that relu is in the kernel; all
    convolutions are tried together first."""
    quick(monkeypatch)
    together(monkeypatch)
    data, channels = x("x", 1, 8, 6, 6), [w(name, 8) for name in ("scale", "shift", "mean")]
    first = conv(data, w("v", 8, 8, 3, 3))
    normal = term("batch_norm", first, *channels, term("abs", w("variance", 8)))
    second = term("relu", conv(term("relu", normal), w("w", 9, 8, 3, 3)))
    result = optimize_model(model(second), Config(measure=False, budget=0.0))
    passed = ModelCandidate("passes", result.model, result.steps, result.cost_after, result.target)
    kept = replace(result, model=result.original, steps=(), changed=False, normal=passed)
    tried: list[int] = []
    monkeypatch.setattr(comparisons, "interleaved", counted(comparisons.interleaved, tried))
    found = fused(kept, Config(budget=1000.0, seconds=0.0), "search", trying=TRYING)
    assert found.changed
    assert found.steps == result.steps
    assert all(d.passed for d in found.differences)
    operators = [n.op for n in found.model.nodes() if n.args]
    assert operators.count("opaque") == 2
    assert not {"conv", "batch_norm", "relu"} & set(operators)
    assert len(tried) == 3, "both kinds in the model at once, then the whole with and without the library"
    monkeypatch.setattr(comparisons, "interleaved", clock([1.0]))
    none = fused(kept, Config(budget=1000.0, seconds=0.0), "search")
    assert none.model is kept.model
    assert none.steps == ()


def counted(timed: Any, calls: list[int]) -> Any:
    def wrapper(*args: Any, **named: Any) -> Any:
        calls.append(1)
        return timed(*args, **named)

    return wrapper


def test_a_free_batch_runs_its_kernel_at_one_size_and_its_operators_at_others() -> None:
    batch = variable("x", Tensor("float32", (symbol("n"), 8, 7, 5)))
    kernel = w("w", 9, 8, 3, 3)
    goal = term("relu", conv(batch, kernel))
    plain = model(goal)
    ((graph, (site,)),) = fragments(plain, {"n": 2}, prepared=CPU_GOALS).items()
    (best, *_) = mugraphs(graph)
    fused = embed(plain, [EmbeddedRegion(site.inputs, site.outputs, cpu_kernel(best.graph))], {"n": 2})
    ours, wanted = session(fused, True), session(plain, False)
    for n in (2, 3, 2):
        feed = dict(random_inputs(plain, n, {"n": n}))
        np.testing.assert_allclose(ours.run(None, feed)[0], wanted.run(None, feed)[0], rtol=1e-4, atol=1e-4)


def test_a_convolution_of_data_whose_size_hangs_on_its_values_is_in_no_region() -> None:
    weights, kind = np.ones((8, 8, 3, 3), np.float32), onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Compress", ["x", "which"], ["some"], axis=2),
            onnx.helper.make_node("Conv", ["some", "w"], ["y"], pads=[1, 1, 1, 1]),
        ],
        "graph",
        [
            onnx.helper.make_tensor_value_info("x", kind, (1, 8, 9, 9)),
            onnx.helper.make_tensor_value_info("which", onnx.TensorProto.BOOL, (9,)),
        ],
        [onnx.helper.make_tensor_value_info("y", kind, (1, 8, None, 9))],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    made = from_ir(
        from_proto(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10))
    )
    assert any(n.op == "conv" for n in made.nodes())
    assert fragments(made, {}, prepared=CPU_GOALS) == {}


def cpu_golden() -> Iterator[tuple[str, Graph]]:
    """The muGraphs whose programs are kept (`tests/golden`)."""
    for each in CASES:
        made, goal = case(*each)
        for tile in tiles(made):
            yield f"winograd/{each} tile {tile}", Graph(goal.inputs, (made.mugraph(tile, (16, 1)),))
