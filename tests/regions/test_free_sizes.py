"""Kernels whose sizes a run gives: they compute the goal at every size, on one session, with whole
tiles and with the rest."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import length_goals
import numpy as np
import onnx
import onnxruntime
import pytest
from free_models import FREE, WIDTH, K, N, S, attention, model, norm
from fused_models import CONFIG, fresh_cache, kernels, quick, run
from native_kernels import QUICK, STRICT, exact

from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.emit.cpp import SizeRange, generate_ranges
from taso_mirage.emit.cpu.native_kernel import NativeKernel, build, empty_aligned
from taso_mirage.emit.cpu.native_tuner import tuned_ranges
from taso_mirage.errors import Unsupported
from taso_mirage.forms.base.form import CPU_GOALS
from taso_mirage.ir.dims import evaluate, parse_dim, symbol
from taso_mirage.ir.model import random_inputs
from taso_mirage.ir.mugraph import kernels as kernels_of
from taso_mirage.ir.mugraph import part_of, tile_count, tile_part
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, variable, weight
from taso_mirage.lowering.cpu import CpuLowering
from taso_mirage.mugraph.checkpoint import from_json, to_json
from taso_mirage.mugraph.free import FreeSizes, at_sizes, free_sizes, instance, part_sizes, with_free_names
from taso_mirage.mugraph.labels import label
from taso_mirage.mugraph.search import Search, SearchOptions
from taso_mirage.onnx_io import from_ir, from_proto, serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import optimize_model
from taso_mirage.pipeline.fuse import fused, region_times, searches
from taso_mirage.pipeline.fuse.choices import KernelChoices
from taso_mirage.pipeline.fuse.searches import Searches
from taso_mirage.regions.batches import EqualRegions, resized
from taso_mirage.regions.fragments import RegionSite
from taso_mirage.regions.free_regions import free_kind, free_regions
from taso_mirage.report.result import Result
from taso_mirage.runtime import register
from taso_mirage.runtime.embed import EmbeddedRegion, embed
from taso_mirage.runtime.plan import PlannedNode, cpu_kernel
from taso_mirage.search.search import Budget

pytestmark = pytest.mark.sampled(2)

SIZES = (1, 1, 1), (1, 2, 3), (3, 7, 1), (2, 64, 256), (1, 17, 31), (2, 37, 129), (1, 130, 257)
"""Batch, queries and keys: ones, primes, the instance, and larger ones."""


INSTANCE = {"n0": 2, "n1": 64, "n2": 256}


def check(made: NativeKernel, goal: Callable[..., Graph], *sizes: int) -> None:
    whole, rng = goal(*sizes), np.random.default_rng(sum(sizes))
    given = {x: rng.standard_normal(x.shape).astype(np.float32) * 4 for x in whole.inputs}
    for output, wanted in zip(made(*given.values()), exact(whole, given), strict=True):
        assert output.shape == wanted.shape, sizes
        assert np.abs(output - wanted).max() <= 3e-6 * np.abs(wanted).max(), sizes


@pytest.mark.sampled(2)
def test_runs_that_are_bound_one_after_the_other_keep_their_sizes() -> None:
    """Timing uses several copies of the inputs, each with the memory between its parts."""
    search = Search(attention(*INSTANCE.values()), SearchOptions(), CPU_DEVICE, free=FREE)
    assert search.free is not None
    made = next(g for each in search.candidates() if (g := each.free(search.free)) is not None)
    kernel, rng = NativeKernel(made, flags=STRICT), np.random.default_rng(0)
    bound = []
    for sizes in ((1, 3, 7), (2, 64, 256), (1, 1, 1), (2, 37, 129)):
        whole = attention(*sizes)
        given = {x: rng.standard_normal(x.shape).astype(np.float32) for x in whole.inputs}
        outputs = [empty_aligned(whole.outputs[0].shape, "float32")]
        bound.append((kernel.bound(list(given.values()), outputs), outputs[0], exact(whole, given)[0]))
    for once, found, wanted in reversed(bound):
        once()
        assert np.abs(found - wanted).max() <= 3e-6 * np.abs(wanted).max()


# ---------------------------------------------------------------- muGraphs


def test_parts_of_a_free_size() -> None:
    tile = tile_part(N, 8)
    assert part_of(tile) == (N, 8)
    assert part_of(N) is None
    assert part_of(8) is None
    assert [evaluate(tile_count(N, tile), {"n0": n}) for n in (0, 1, 8, 9)] == [0, 1, 1, 2]
    assert tile_count(N, 1) == N
    assert tile_count(N, N) == 1
    assert part_of(tile_part(N, 8, 2)) == (N, 8)
    assert tile_part(N, 8, 2) != tile


@pytest.mark.sampled(2)
def test_two_labels_of_one_size_that_are_cut_alike() -> None:
    """The model has as many queries as keys, in tiles of 64: the last tile of one meets whole tiles
    of the other."""
    free = FreeSizes(((N, 4, S, 16), (N, 4, 16, S), (N, 4, S, 16), (N, 1, 1, S)), ((N, 4, S, 16),))
    search = Search(attention(2, 256, 256), SearchOptions(), CPU_DEVICE, free=free)
    assert search.free is not None
    same = [label for label, name in search.free.items() if name == S]

    def alike(each: Any) -> bool:
        return any([kernel.tiles.get(label) for label in same] == [64, 64] for kernel in each.plan)

    found = (each.free(search.free) for each in search.candidates() if alike(each))
    made = next(graph for graph in found if graph is not None)
    assert "n1_by_64_2" in str(to_json(made))
    kernel = NativeKernel(made, flags=STRICT)
    for b, s in ((1, 1), (2, 67), (1, 129), (1, 64)):
        check(kernel, lambda *n: attention(n[0], n[1], n[1]), b, s)


@pytest.mark.parametrize(("size", "searched"), [(1, 2), (2, 2), (3, 4), (11, 16), (17, 32), (100, 128), (128, 128)])
def test_an_instance_has_tiles(size: int, searched: int) -> None:
    assert instance(size) == searched


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "every"), [((*QUICK, "-Wno-type-limits"), False), (STRICT, True)])
def test_every_form_of_a_mugraph_runs_at_every_size(flags: Sequence[str], every: bool) -> None:
    """One of each: loops, grids along free labels or not, one kernel or two.

    Not `every` pair of kernels, but every loop and every grid that a first and a second one has.
    """
    search = Search(attention(2, 64, 256), SearchOptions(), CPU_DEVICE, free=FREE)
    assert search.free is not None
    forms: dict[tuple[Any, ...], Any] = {}
    for each in search.candidates():
        made = each.free(search.free)
        if made is not None:
            key = tuple((k.attr("loop") != 1, len(k.attr("grid"))) for k in kernels_of(made.outputs))
            if key not in forms:
                forms[key] = made, each.graph()
    seen = set[object]()
    for form in list(forms):
        parts = {(len(form), place, own) for place, kernel in enumerate(form) for own in enumerate(kernel)}
        if parts <= seen and not every:
            del forms[form]
        seen |= parts
    assert {len(form) for form in forms} == {1, 2}
    assert {loop for form in forms for loop, _ in form} == {True, False}
    for made, graph in forms.values():
        assert at_sizes(made, part_sizes(made, INSTANCE)) == graph
        assert from_json(to_json(made)) == made
        kernel = NativeKernel(made, flags=flags)
        for sizes in SIZES:
            check(kernel, attention, *sizes)


@pytest.mark.sampled(1)
def test_the_search_gives_free_mugraphs_whose_instances_were_verified() -> None:
    goal = norm(2, 16)
    free = FreeSizes(((N, S, 64), (N, S, 64)), ((N, S, 64),))
    found = Search(goal, SearchOptions(), CPU_DEVICE, free=free).run(8, 20)
    assert found
    assert all(
        f.free is not None and at_sizes(f.free, part_sizes(f.free, {"n0": 2, "n1": 16})) == f.graph for f in found
    )
    again = type(found[0]).of_json(json.loads(json.dumps(found[0].as_json())), goal)
    assert again.free == found[0].free
    cut = next(f.free for f in found if f.free is not None and "n1_by_" in str(to_json(f.free)))
    with pytest.raises(Unsupported, match="no multiple"):
        part_sizes(cut, {"n0": 1, "n1": 7})
    for sizes in ((1, 1), (3, 5), (2, 16), (1, 67)):
        check(NativeKernel(cut, flags=STRICT), norm, *sizes)


def test_dims_of_one_label_have_one_name() -> None:
    goal = label(attention(2, 64, 256))
    assert FREE.labels(goal) is not None
    other = FreeSizes(((N, 4, S, 16), (N, 4, 16, K), (N, 4, symbol("n3"), 16), (N, 1, 1, K)), FREE.outputs)
    assert other.labels(goal) is None  # a run may give those two sizes
    half = FreeSizes(((2, 4, S, 16), *FREE.inputs[1:]), FREE.outputs)
    assert half.labels(goal) is None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_what_hangs_on_its_size_has_no_free_form(every: bool) -> None:
    """A mean over rows is a sum over their number."""
    free = FreeSizes(FREE.inputs, ((N, 4, 1, 16),))
    search = Search(attention(2, 16, 32, mean=True), SearchOptions(), CPU_DEVICE, free=free)
    assert search.free is not None
    assert all(each.free(search.free) is None for each in search.candidates()[:: 1 if every else 20])
    assert not every or search.run(4, 10) == []
    fixed = FreeSizes(((2, 4, 16, 16), (2, 4, 16, K), (2, 4, K, 16), (2, 1, 1, K)), ((2, 4, 1, 16),))
    (found, *_) = Search(attention(2, 16, 32, mean=True), SearchOptions(), CPU_DEVICE, free=fixed).run(1, 60)
    assert found.free is not None


@pytest.mark.parametrize(
    ("shapes", "wanted"),
    [
        ((("b", "s", 8),), ((N, S, 8),)),
        ((("b", "s", 8), ("b*s", 8)), ((N, S, 8), (N * S, 8))),
        ((("p + s", 8), ("s", 8)), ((N, 8), (S, 8))),
        ((("b*s", 8), ("b", "s", 8)), ((N, 8), (S, K, 8))),
        (((2, 8),), ((2, 8),)),
    ],
)
def test_names_for_what_a_model_calls_its_dims(shapes: Any, wanted: Any) -> None:
    read = [tuple(parse_dim(n) if isinstance(n, str) else n for n in shape) for shape in shapes]
    found = free_sizes(read, read[:1])
    assert found is not None
    assert found.inputs == wanted
    assert free_sizes(read, [(symbol("unknown"),)]) is None


# ---------------------------------------------------------------- prepared weights


@pytest.mark.sampled(2)
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_products_and_convolutions_take_any_number_of_rows_or_images(every: bool) -> None:
    x, w, b = (variable(n, Tensor("float32", s)) for n, s in (("x", (2, 3, 65)), ("w", (65, 70)), ("b", (70,))))
    goal = Graph((x, w, b), (term("add", term("matmul", x, w), b),))
    free = FreeSizes(((N, S, 65), (65, 70), (70,)), ((N, S, 70),))
    for block in ((64, 8, 1), (48, 9, 2), (16, 8, 2), (32, 12, 4))[: None if every else 2]:
        made = Graph(goal.inputs, (term("linear", x, w, b, block=block),))
        kernel = NativeKernel(with_free_names(made, free), flags=STRICT)
        for rows in ((1, 1), (1, 7), (2, 4), (3, 3), (1, 13), (5, 101)):
            check(kernel, lambda *n: at_sizes(with_free_names(goal, free), {"n0": n[0], "n1": n[1]}), *rows)
    x, w = (variable(n, Tensor("float32", s)) for n, s in (("x", (1, 8, 9, 7)), ("w", (6, 8, 3, 3))))
    how = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
    images = Graph((x, w), (term("relu", term("conv", x, w, **how)),))
    batch = FreeSizes(((N, 8, 9, 7), (6, 8, 3, 3)), ((N, 6, 9, 7),))
    w_known = weight("w", w.tensor)
    found = CPU_GOALS.prepared(images, (x, w_known))
    assert found is not None
    for each in found.mugraphs(images, CPU_DEVICE)[: 3 if every else 1]:
        kernel = NativeKernel(with_free_names(each.graph, batch), flags=(*STRICT, "-Wno-type-limits"))
        for n in (1, 2, 3, 7):
            whole = at_sizes(with_free_names(images, batch), {"n0": n})
            given = {
                leaf: np.random.default_rng(n).standard_normal(leaf.shape).astype(np.float32) for leaf in whole.inputs
            }
            wanted = exact(whole, given)[0]
            assert np.abs(kernel(*given.values())[0] - wanted).max() <= 1e-5 * np.abs(wanted).max()
    with pytest.raises(Unsupported, match="fixed sizes"):  # of images of any size there is no code
        NativeKernel(
            with_free_names(
                found.mugraphs(images, CPU_DEVICE)[0].graph, FreeSizes(((1, 8, N, 7), (6, 8, 3, 3)), ((1, 6, N, 7),))
            )
        )


# ---------------------------------------------------------------- ranges


def scaled(by: float) -> Graph:
    x = variable("x", Tensor("float32", (N, S)))
    return Graph((x,), (term("mul", x, constant(by, "float32")),))


def test_the_sizes_of_a_run_choose_a_range(tmp_path: Path) -> None:
    before = [SizeRange(scaled(1.0), 4), SizeRange(scaled(2.0), 10)]
    library = build(generate_ranges(scaled(3.0), before), tmp_path)
    made = NativeKernel(scaled(3.0), library=library)
    for rows, wanted in ((1, 1), (2, 1), (3, 2), (5, 2), (6, 3), (50, 3)):
        assert (made(np.ones((rows, 2), np.float32))[0] == wanted).all()


def test_each_range_has_what_was_fastest_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = [scaled(1.0), scaled(2.0)]
    times = iter([[1.0, 2.0], [1.0, 0.5], [1.0, 0.99]])
    monkeypatch.setattr("taso_mirage.emit.cpu.native_tuner._quickest", lambda calls, seconds: next(times))
    measured = [{"n0": 8, "n1": 2}, {"n0": 1, "n1": 1}, {"n0": 16, "n1": 4}]
    last, before = tuned_ranges(graphs, 1, measured, 0.1, tmp_path)
    assert last == graphs[0]
    assert before == [SizeRange(graphs[1], 4)]


def test_programs_that_are_raced_share_their_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gigabyte of results at twice the sizes is there once, not for every program."""
    taken: list[tuple[int, int]] = []
    plain = NativeKernel.bound

    def bound(kernel: NativeKernel, inputs: Any, outputs: Any, prepared: Any = (), scratch: Any = None) -> Any:
        taken.append((outputs[0].ctypes.data, scratch.ctypes.data))
        return plain(kernel, inputs, outputs, prepared, scratch)

    monkeypatch.setattr(NativeKernel, "bound", bound)
    tuned_ranges([scaled(1.0), scaled(2.0)], 1, [{"n0": 8, "n1": 2}], 0.1, tmp_path)
    assert len(taken) == 2
    assert taken[0] == taken[1]


# ---------------------------------------------------------------- models


@pytest.fixture(scope="module")
def optimized(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Result, Result]]:
    with pytest.MonkeyPatch.context() as patch:
        fresh_cache(patch, tmp_path_factory.mktemp("free"))
        quick(patch)
        sizes = replace(CONFIG, default_size=8)
        plain = optimize_model(model(), replace(sizes, measure=False, budget=0.0))
        plain = replace(plain, model=plain.original, steps=(), changed=False)
        yield plain, fused(plain, sizes, "search")


def ran(session: Any) -> set[str]:
    events: list[dict[str, Any]] = json.loads(Path(session.end_profiling()).read_text())
    return {e["args"]["op_name"] for e in events if "op_name" in e.get("args", {})}


@pytest.mark.sampled(3)
def test_a_model_runs_its_kernels_at_all_sizes(optimized: tuple[Result, Result], tmp_path: Path) -> None:
    before, found = optimized
    assert kernels(found) >= 2
    assert "kernels run at every size" in found.notes
    assert len(found.differences) > 2
    assert all(d.passed for d in found.differences)
    content = serialize(found.model)
    for b, s in ((1, 1), (2, 2), (1, 3), (3, 7), (8, 8), (1, 13), (2, 31), (1, 64), (5, 129), (1, 300)):
        options = onnxruntime.SessionOptions()
        options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / f"profile_{b}_{s}")
        register(options, content, cuda=False)
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        inputs = dict(random_inputs(before.original, s, {"batch": b, "sequence": s}))
        (wanted,) = run(serialize(before.original), inputs)
        for (got,) in (session.run(None, inputs), run(content, inputs)):
            assert got.shape == (b, s, WIDTH)
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
        names = ran(session)
        assert sum(name.startswith("CpuKernel") for name in names) == kernels(found), names
        assert not names & {"Softmax", "If"}


@pytest.mark.sampled(2)
def test_a_kernel_that_is_slower_at_larger_sizes_is_for_the_sizes_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh_cache(monkeypatch, tmp_path)
    quick(monkeypatch)

    def slower(graph: Graph, site: object, kernel: PlannedNode, *more: object) -> tuple[float, float]:
        return (1.0, 2.0) if kernel.free and graph.inputs[0].shape[0] == 16 else (2.0, 1.0)

    monkeypatch.setattr(region_times, "region_seconds", slower)
    sizes = replace(CONFIG, default_size=8)
    x = variable("x", Tensor("float32", (symbol("n"), WIDTH)))
    goal = Graph((x,), (term("softmax", term("gelu", x), axis=1),))
    made = from_ir(from_proto(onnx.load_from_string(serialize(standalone(goal, {"": 20})))))
    plain = optimize_model(made, replace(sizes, measure=False, budget=0.0))
    found = fused(replace(plain, model=plain.original, steps=(), changed=False), sizes, "search")
    assert kernels(found) == 1
    assert "kernels run at n=8; at all other sizes the model runs its own operators" in found.notes


def test_one_session_takes_changing_sizes(optimized: tuple[Result, Result]) -> None:
    content, options = serialize(optimized[1].model), onnxruntime.SessionOptions()
    register(options, content, cuda=False)
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    original = serialize(optimized[0].original)
    for b, s in ((1, 40), (2, 3), (1, 1), (1, 40), (0, 5)):
        inputs = dict(random_inputs(optimized[0].original, s, {"batch": b, "sequence": s}))
        np.testing.assert_allclose(session.run(None, inputs)[0], run(original, inputs)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(1)
def test_a_sum_over_no_element_is_refused() -> None:
    x = variable("x", Tensor("float32", (N, 4)))
    goal = Graph((x,), (term("reduce_sum", x, axes=(0,), keepdims=1),))
    made = standalone(goal, {"": 20})
    content = serialize(embed(made, [EmbeddedRegion(goal.inputs, goal.outputs, cpu_kernel(goal))]))
    options = onnxruntime.SessionOptions()
    register(options, content, cuda=False)
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.ones((3, 4), np.float32)})[0].tolist() == [[3.0] * 4]
    with pytest.raises(Exception, match="size n0, over which its kernel sums, is 0"):
        session.run(None, {"x": np.ones((0, 4), np.float32)})


def kind_of(n: int, output: Node, *inputs: Node) -> EqualRegions | None:
    site = RegionSite(inputs, (output,), ())
    return free_kind(site, resized(site, {"n": instance(n)}), {"n": n}, {}, CPU_GOALS)


def test_a_region_has_a_kernel_for_all_sizes_only_if_its_labels_hang_on_none() -> None:
    n = symbol("n")
    x, y, z = (variable(f"i{i}", Tensor("float32", shape)) for i, shape in enumerate([(n, 6), (n, 6), (1, 6)]))
    found = kind_of(3, term("softmax", term("add", x, y), axis=1), x, y)
    assert found is not None
    assert found.sizes == [{"n0": 3}, {"n0": 1}, {"n0": 6}]
    turned = term("softmax", term("reshape", term("add", x, y), shape=(6, n)), axis=1)
    assert kind_of(3, turned, x, y) is None  # an instance has factors that others have not
    spread = term("reduce_sum", term("mul", term("expand", z, shape=(n, 6)), z), axes=(0,), keepdims=1)
    assert kind_of(3, spread, z) is None  # nothing tells the size that is summed over
    assert kind_of(3, term("mul", spread, x), x, z) is None  # nor one that has its size by another label


def test_one_session_runs_from_an_empty_cache_to_a_long_one() -> None:
    """A decoder's step: the kernel in the file reads a cache of any length and the new element, and
    its function without the library gives the same."""
    goal = length_goals.step(N, S)
    search = Search(length_goals.step(2, 255), SearchOptions(), CPU_DEVICE, free=FreeSizes.of_goal(goal))
    (found,) = search.run(1, 20)
    assert found.free is not None
    made = standalone(goal, {"": 20})
    content = serialize(embed(made, [EmbeddedRegion(goal.inputs, goal.outputs, cpu_kernel(found.free))]))
    options = onnxruntime.SessionOptions()
    register(options, content, cuda=False)
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    for batch, length in ((1, 0), (2, 1), (1, 15), (3, 16), (1, 17), (2, 63), (1, 64), (1, 255), (1, 8192), (2, 0)):
        whole = length_goals.step(batch, length)
        inputs = {x.attr("name"): rng.standard_normal(x.shape).astype(np.float32) for x in whole.inputs}
        (wanted,) = run(serialize(made), inputs)
        for (got,) in (session.run(None, inputs), run(content, inputs)):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(Exception, match="was made for"):
        session.run(None, inputs | {"mask": np.zeros((2, 1, 1, 4), np.float32)})


def test_a_cache_is_in_the_kernel_of_its_attention(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The region of a decoder's step has the results that are mostly a cache: one node reads cache
    and new rows, and copies them, at every length."""
    made = standalone(length_goals.decoder_step(symbol("batch"), symbol("past")), {"": 20})
    ((kind, (site,)),) = free_regions(made, {"batch": 1, "past": 127}, 1, False)[0].items()
    assert [o.op for o in site.outputs] == ["concat", "concat", "matmul"]
    assert kind.free is not None
    fresh_cache(monkeypatch, tmp_path)
    monkeypatch.setattr(CpuLowering, "fastest", lambda self, goal, found, *rest: {"mugraph": to_json(found[0].free)})
    choices = KernelChoices("cpu", CpuLowering(), {}, True, Budget(100))
    (goal,) = choices.unknown(kind)
    assert len(goal[0].outputs) == 1
    choices.searches = Searches([goal], CPU_DEVICE, 10, 0, {})
    monkeypatch.setattr(searches, "BEST", 1)
    _, planned = choices.fastest(kind, 20) or (None, None)
    assert planned is not None
    content = serialize(embed(made, [EmbeddedRegion(site.inputs, site.outputs, planned)]))
    options = onnxruntime.SessionOptions()
    register(options, content, cuda=False)
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    for batch, past in ((1, 0), (2, 1), (1, 15), (3, 16), (1, 17), (2, 63), (1, 8192), (2, 0)):
        whole = length_goals.decoder_step(batch, past)
        inputs = {x.attr("name"): rng.standard_normal(x.shape).astype(np.float32) for x in whole.inputs}
        wanted = run(serialize(made), inputs)
        for results in (session.run(None, inputs), run(content, inputs)):
            for got, right in zip(results, wanted, strict=True):
                np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-5)
