"""Products with a weight as kernels: their results, which products of a model they are for, and how
their weights lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fused_models import quick
from named_models import model, session, w, x
from native_kernels import QUICK, STRICT, complaints, computes, values

from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.emit.cpp import generate_all
from taso_mirage.emit.cpu.native_kernel import NativeKernel, build
from taso_mirage.errors import IllTyped, TasoMirageError
from taso_mirage.forms import linear
from taso_mirage.forms.base.form import CPU_GOALS
from taso_mirage.forms.linear import LEAST, WeightProduct, WeightProducts, weight_products
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.model import random_inputs
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, variable, weight
from taso_mirage.lowering.cpu import CpuLowering
from taso_mirage.measure.target import CPU
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import optimize_model
from taso_mirage.pipeline.fuse import fused, region_times
from taso_mirage.regions.fragments import RegionSite, fragments
from taso_mirage.runtime.embed import EmbeddedRegion, embed
from taso_mirage.runtime.plan import cpu_kernel
from taso_mirage.search.config import Config
from taso_mirage.verdicts import Failure

pytestmark = pytest.mark.sampled(2)

CASES = (
    ((1, 1, 7), 33, ""),
    ((3, 300), 64, "bias"),
    ((2, 4, 257), 70, "sum"),
    ((1, 1, 1), 1, "bias, sum"),
    ((2, 513), 17, "bias, sum"),
    ((2, 13, 390), 50, "bias, sum"),
    ((9, 40), 200, ""),
)


def case(shape: tuple[int, ...], n: int, follows: str) -> tuple[WeightProduct, Graph]:
    """A product, followed by the named operators, and its goal over inputs."""
    data, weights = x("x", *shape), x("w", shape[-1], n)
    bias = x("b", n) if "bias" in follows else ABSENT
    z = x("z", *shape[:-1], n) if "sum" in follows else ABSENT
    made = WeightProduct(data, weights, bias, z)
    return made, Graph(tuple([leaf for leaf in (data, weights, bias, z) if leaf is not ABSENT]), (made.goal(),))


def bfloat16(array: Any) -> Any:
    """The upper halves."""
    return (array.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def half(array: Any) -> Any:
    """Half precision, some of it subnormal."""
    made = array.astype(np.float16)
    made.flat[::3] *= np.float16(2**-14)
    return made.astype(np.float32)


FORMATS = {"single": lambda array: array, "bfloat16": bfloat16, "half": half}


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "flags", [QUICK, (*QUICK, "-mno-avx512f"), (*QUICK, "-mno-avx", "-Wno-psabi")], ids=["native", "8", "4"]
)
def test_the_kernel_computes_the_product(flags: Sequence[str], every: bool) -> None:
    """At odd sizes, on two threads, with vectors of 16, 8 and 4 numbers, of weights that are
    bfloat16 numbers too. Each case with one kind of blocks, or with `every`."""
    graphs, goals = {}, {}
    for i, given in enumerate(CASES):
        for k, block in enumerate(((16, 6, 1), (64, 8, 2), (48, 9, 3))):
            if not every and (i + k) % 3:
                continue
            made, goal = case(*given)
            graphs[f"case_{i}_{k}"] = Graph(goal.inputs, (made.mugraph(block),))
            goals[f"case_{i}_{k}"] = goal
    library = build(generate_all(graphs), None, flags)
    for name, graph in graphs.items():
        kernel = NativeKernel(graph, name, threads=2, library=library)
        given = values(goals[name])
        weights = graph.inputs[1]
        for make in FORMATS.values():
            assert computes(kernel, goals[name], given | {weights: make(given[weights])}, 4e-6)


@pytest.mark.parametrize("format", ["bfloat16", "half"])
def test_weights_of_a_narrow_format_take_half_the_bytes_and_give_the_same_results(format: str) -> None:
    """One number that is none of the format, and all lie as they are."""
    made, goal = case((2, 300), 40, "bias")
    kernel = NativeKernel(Graph(goal.inputs, (made.mugraph((16, 8, 1)),)), flags=STRICT)
    given = values(goal)
    weights = given[goal.inputs[1]] = FORMATS[format](given[goal.inputs[1]])
    (narrow,), (wanted,) = kernel.prepared(list(given.values())), kernel(*given.values())
    assert narrow.view(np.uint8)[0] == ["single", "bfloat16", "half"].index(format)
    row = weights[0, :16]
    bits = row.astype(np.float16).view(np.uint16) if format == "half" else row.view(np.uint32) >> 16
    np.testing.assert_array_equal(narrow.view(np.uint8)[64:96].view(np.uint16), bits)
    weights.view(np.uint32)[299, 39] |= 1
    (single,), (found,) = kernel.prepared(list(given.values())), kernel(*given.values())
    assert single.view(np.uint8)[0] == 0
    np.testing.assert_array_equal(single.view(np.uint8)[64:128].view(np.float32), row)
    np.testing.assert_array_equal(found[:, :39], wanted[:, :39])


@pytest.mark.parametrize(
    "value", [65504.0, 65536.0, 1e30, np.inf, np.nan, 2.0**-24, 2.0**-25, 0.0, 3.0e-38, 1.0 + 2.0**-10, 1.0 + 2.0**-11]
)
def test_a_weight_is_the_same_number_in_every_format(value: float) -> None:
    """A weight alone is the result of the product with one: largest, smallest, beyond the format,
    NaN."""
    made, goal = case((1, 1), 1, "")
    (found,) = NativeKernel(Graph(goal.inputs, (made.mugraph((16, 8, 1)),)), flags=QUICK)(
        np.ones((1, 1), np.float32), np.full((1, 1), value, np.float32)
    )
    np.testing.assert_array_equal(found, np.full((1, 1), value, np.float32))


def test_no_sanitizer_complains(tmp_path: Path) -> None:
    graphs = {}
    for i, given in enumerate(CASES):
        made, goal = case(*given)
        graphs[f"case_{i}"] = Graph(goal.inputs, (made.mugraph(((16, 8, 1), (48, 9, 2))[i % 2]),))
    assert not complaints(graphs, tmp_path, ("0", "0.3333333", "0x1p-24"))


def test_what_is_no_number_stays_none() -> None:
    made, goal = case((2, 9), 5, "")
    given = values(goal)
    given[goal.inputs[0]][1, 3] = np.nan
    (found,) = NativeKernel(Graph(goal.inputs, (made.mugraph((16, 8, 1)),)), flags=QUICK)(*given.values())
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[1]).all()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("given", CASES, ids=str)
def test_a_goal_is_read_back_and_its_muGraphs_have_evidence(given: tuple[tuple[int, ...], int, str]) -> None:
    made, goal = case(*given)
    assert weight_products(goal) == WeightProducts((made,))
    found = WeightProducts((made,)).mugraphs(goal, CPU_DEVICE)
    assert {f.graph.outputs[0].attr("block")[0] for f in found} == (
        {16, 32, 64} if np.prod(given[0][:-1]) <= 8 else {16, 32, 48, 64}
    )
    assert all(f.evidence.tests >= 8 and f.evidence.bound < 1e-30 for f in found)


@pytest.mark.sampled(1)
def test_other_operands_are_refused() -> None:
    made, goal = case((2, 3), 3, "bias, sum")

    def refused(*operands: Node) -> bool:
        return isinstance(verified_mugraph(Graph(goal.inputs, (term("linear", *operands),)), goal), Failure)

    assert not refused(made.x, made.w, made.b, made.z)
    assert refused(made.x, made.w, made.b, ABSENT)
    assert refused(made.x, made.w, ABSENT, made.z)
    assert refused(made.z, made.w, made.b, made.x)


@pytest.mark.sampled(1)
def test_operands_that_do_not_fit_are_ill_typed() -> None:
    data, weights = x("x", 1, 3), x("w", 3, 5)
    with pytest.raises(IllTyped, match="linear of"):
        term("linear", data, x("w", 2, 3, 5))
    with pytest.raises(IllTyped, match="added along axis -1"):
        term("linear", data, weights, x("b", 1))
    with pytest.raises(IllTyped, match="added to results"):
        term("linear", data, weights, ABSENT, x("z", 5))


def found(*outputs: Node, **sizes: int) -> list[list[str]]:
    """The operators of the regions that are products."""
    made = fragments(model(*outputs), sizes, prepared=CPU_GOALS)
    return [[n.op for n in graph if n.args] for graph in made if weight_products(graph) is not None]


def test_a_region_is_a_product_with_the_elementwise_operators_that_alone_read_it() -> None:
    data, weights, bias, z = x("x", 1, 1, 512), w("w", 512, 512), w("b", 512), x("z", 1, 1, 512)
    made = term("matmul", data, weights)
    assert found(made) == [["matmul"]]
    assert found(term("add", made, bias)) == [["matmul", "add"]]
    assert found(term("add", z, term("add", made, bias))) == [["matmul", "add", "add"]]
    assert found(term("add", z, made)) == [["matmul", "add"]]
    assert found(term("add", term("add", z, made), data)) == [["matmul", "add", "add"]]
    assert found(term("add", made, made)) == [["matmul", "add"]]
    assert found(term("gelu", term("add", made, bias))) == [["matmul", "add", "gelu"]]
    assert found(term("mul", made, x("s", 1, 1, 1))) == [["matmul", "mul"]]
    assert found(term("add", made, x("z", 3, 1, 512))) == [["matmul"]]
    assert found(term("tanh", made), made) == [["matmul"]]


def test_rows_may_be_free() -> None:
    free = variable("x", Tensor("float32", (symbol("n"), 512)))
    made = term("matmul", free, w("w", 512, 512))
    assert found(made, n=8) == [["matmul"]]


def test_rows_are_cut_where_there_are_few_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "cores", lambda: 8)
    monkeypatch.setattr(linear, "has_matrix_unit", lambda: False)
    for rows, columns, parts in ((1, 64, 1), (16, 48, 2), (128, 48, 8)):
        made, goal = case((rows, 8), 192, "")
        blocks = [f.graph.outputs[0].attr("block") for f in WeightProducts((made,)).mugraphs(goal, CPU_DEVICE)]
        assert blocks[0][::2] == (columns, parts)


@pytest.mark.parametrize(
    "made",
    [
        term("matmul", x("x", 1, 512), x("w", 512, 512)),
        term("matmul", x("x", 1, 512), w("w", 512, LEAST // 512 - 1)),
        term("matmul", x("x", 2, 1, 512), w("w", 2, 512, 512)),
        term("matmul", x("x", 512), w("w", 512, 512)),
    ],
    ids=["weights of the run", "small", "two weights", "a vector"],
)
def test_others_are_in_no_region(made: Node) -> None:
    assert found(made) == []


def test_a_model_runs_its_product_with_the_library_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "LEAST", 1)
    data, z = x("x", 1, 1, 300), x("z", 1, 1, 70)
    plain = model(term("add", z, term("matmul", data, w("w", 300, 70))))
    ((graph, (site,)),) = fragments(plain, {}, prepared=CPU_GOALS).items()
    made = CPU_GOALS.prepared(graph, site.inputs)
    assert made is not None
    assert CPU_GOALS.prepared(graph, graph.inputs) is None, "weights of the run"
    kernel = cpu_kernel(made.mugraphs(graph, CPU_DEVICE)[0].graph)
    with_kernel = embed(plain, [EmbeddedRegion(site.inputs, site.outputs, kernel)])
    wanted = session(plain, False)
    for each in (session(with_kernel, True), session(with_kernel, False)):
        for seed in range(3):
            feed = dict(random_inputs(plain, seed, {}))
            np.testing.assert_allclose(each.run(None, feed)[0], wanted.run(None, feed)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("prepares", [True, False])
def test_only_a_back_end_with_prepared_weights_gets_them(prepares: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A back end without them, such as a GPU's, searches a product of few rows as any other
    goal."""
    quick(monkeypatch)
    monkeypatch.setattr(CpuLowering, "prepared", CPU_GOALS if prepares else None)
    asked: list[Any] = []
    monkeypatch.setattr(WeightProducts, "mugraphs", lambda *given: asked.append(given) or [])
    made = model(term("add", term("matmul", x("x", 1, 1, 512), w("w", 512, 512)), w("b", 512)))
    fused(optimize_model(made, Config(measure=False, budget=0.0)), Config(budget=1.0, seconds=0.0), "search")
    assert bool(asked) == prepares


def test_small_weights_and_those_of_the_run_are_not_prepared() -> None:
    _, goal = case((1, 512), 512, "bias")
    known = [w(leaf.attr("name"), *[int(n) for n in leaf.shape]) for leaf in goal.inputs]
    assert CPU_GOALS.prepared(goal, known) is not None
    assert CPU_GOALS.prepared(goal, goal.inputs) is None
    _, small = case((1, 512), 511, "bias")
    known = [w(leaf.attr("name"), *[int(n) for n in leaf.shape]) for leaf in small.inputs]
    assert CPU_GOALS.prepared(small, known) is None


@pytest.mark.sampled(2)
def test_what_is_timed_in_place_of_the_operators_is_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the library is not loaded, the kernel's node runs its operators: both sides would be
    the same."""
    made, goal = case((8, 512), 512, "")
    given = (made.x, *(weight(leaf.attr("name"), leaf.tensor) for leaf in goal.inputs[1:]))
    products = CPU_GOALS.prepared(goal, given)
    assert products is not None
    kernel = cpu_kernel(products.mugraphs(goal, CPU_DEVICE)[0].graph)
    site, opsets = RegionSite(given, (), ()), {"": 20}
    monkeypatch.setattr(region_times, "SECONDS", 0.01)
    assert region_times.region_seconds(goal, site, kernel, opsets, CPU, prepares=True) is not None
    broken = replace(kernel, entry=f"{kernel.entry}_broken", source="#error no kernel")
    broken = replace(broken, plan=kernel.plan.replace(kernel.entry, broken.entry))
    with pytest.raises(TasoMirageError, match="no kernel"):
        region_times.region_seconds(goal, site, broken, opsets, CPU, prepares=True)


def cpu_golden() -> Iterator[tuple[str, Graph]]:
    """The muGraphs whose programs are kept (`tests/golden`)."""
    for each in CASES:
        made, goal = case(*each)
        for block in ((48, 9, 1), (16, 8, 2)):
            yield f"linear/{each} block {block}", Graph(goal.inputs, (made.mugraph(block),))
