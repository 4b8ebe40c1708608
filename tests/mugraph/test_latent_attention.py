"""Attention of one latent head, whose keys are its values: one tensor under two sets of labels,
read once; and parts of attention that are handed over as weighted means."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import in_turn
import numpy as np
import pytest

from models.workloads import BEYOND
from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.devices.cuda.device import H100
from taso_mirage.emit.compile import compiled
from taso_mirage.emit.cpp import generate_cpp
from taso_mirage.emit.gpu.products import chained
from taso_mirage.emit.gpu.program import LaunchSchedule
from taso_mirage.emit.triton import program
from taso_mirage.ir.mugraph import kernels
from taso_mirage.ir.terms import Graph, Node, Tensor, numpy_dtype, variable
from taso_mirage.meanings.reals import EXACT
from taso_mirage.mugraph.graph import KernelGraph, new_graph
from taso_mirage.mugraph.labels import label
from taso_mirage.mugraph.search import Search, SearchOptions, TiledPlan
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term
from taso_mirage.rewriting.text import show_graph
from taso_mirage.verdicts import Evidence

BOUND = 4e-3
"""Largest error relative to the largest element, in half precision."""
Plans = list[TiledPlan]


def latent() -> Graph:
    return BEYOND["latent_attention"](heads=32, width=64, rotary=16, keys=512).graph()


def masked(dtype: str = "float16", keys: int = 512) -> Graph:
    """softmax(Q K + M) V"""
    graph = KernelGraph()
    shapes = {"Q": (16, 32), "K": (32, keys), "V": (keys, 32), "M": (16, keys)}
    q, k, v, m = (graph.new_input(dims=dims, dtype=dtype, name=name) for name, dims in shapes.items())
    graph.mark_output(graph.matmul(graph.softmax(graph.add(graph.matmul(q, k), m)), v))
    return graph.graph()


@cache
def found(make: Callable[[], Graph]) -> tuple[Search, Plans]:
    search = Search(make(), SearchOptions())
    return search, search.candidates()


def first_bodies(plans: Plans) -> Iterator[tuple[TiledPlan, Graph, Node]]:
    """Each plan of two kernels with its muGraph and its first kernel."""
    for each in plans:
        graph = each.graph() if len(each.plan) == 2 and each.sizes.get("cg") else None
        if graph is not None:
            yield each, graph, kernels(graph.outputs)[0]


def names(kernel: Node) -> list[str]:
    return sorted(x.attr("name") for x in kernel.args if x.op == "input")


def drawn(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {x.attr("name"): rng.normal(size=x.shape).astype(numpy_dtype(x.dtype)) for x in graph.inputs}


def error(goal: Graph, values: dict[str, np.ndarray], result: np.ndarray) -> float:
    """The error relative to the largest element."""
    env = {x: EXACT.load(values[x.attr("name")]) for x in goal.inputs}
    with np.errstate(invalid="ignore"):
        wanted = interpret(goal.outputs, EXACT, env)[goal.outputs[0]]
    return float(np.abs(result - wanted).max() / np.abs(wanted).max())


# ---------------------------------------------------------------- labels and tiles


def test_the_columns_of_values_are_no_label_of_a_sum() -> None:
    goal = label(latent())
    assert goal.inputs["C"] == (("c",), ("b",))
    assert goal.inputs["C'"] == (("c",), ("e",))
    assert goal.outputs == ((("a",), ("e",)),)
    assert goal.reduced == {"b", "c", "d"}
    assert goal.leaves["C"] is goal.leaves["C'"]


def test_a_sum_within_an_operand_keeps_its_label() -> None:
    """A norm of rows in a product has one label for both, so that one loop does both."""
    graph = new_graph()
    x, w = (graph.new_input(dims=dims, name=name) for dims, name in (((8, 32), "X"), ((32, 16), "W")))
    graph.mark_output(graph.matmul(graph.rms_norm(x), w))
    assert label(graph.graph()).inputs == {"X": (("a",), ("b",)), "W": (("b",), ("c",))}


def test_keys_that_are_values_are_read_once_where_their_tiles_are_one() -> None:
    _, plans = found(latent)
    seen = set()
    for each, _, first in first_bodies(plans):
        tiles, loop = each.plan[0].tiles, each.plan[0].kernel.loop
        whole = tiles["b"] == tiles["e"] == 64 and loop != "b"  # a loop over b is done before values are read
        assert names(first) == (["C", "P", "Q", "R"] if whole else ["C", "C", "P", "Q", "R"])
        seen.add(whole)
    assert seen == {True, False}


def test_the_model_counts_one_tensor_once() -> None:
    """A block that has all columns holds as much as if the values cost nothing."""
    _, plans = found(latent)
    for each, _, _ in first_bodies(plans):
        tiles, kernel = each.plan[0].tiles, each.plan[0].kernel
        if tiles["b"] == tiles["e"] == 64 and kernel.loop == "ci" and each.sizes["ci"] > tiles["ci"]:
            held = 2 * 2 * (tiles["a"] + tiles["ci"]) * (64 + 16)
            sums = each.plan[0].held - held
            assert sums % 4 == 0 <= sums < 4 * tiles["a"] * (64 + 4 * tiles["ci"] + 4)
            return
    pytest.fail("no plan reads the keys in a loop")


# ---------------------------------------------------------------- means


def test_parts_are_handed_over_in_half_precision() -> None:
    for make, dtype in ((latent, "float16"), (lambda: masked("float32"), "float32")):
        _, plans = found(make) if make is latent else (None, Search(make(), SearchOptions()).candidates())
        _, graph, first = next(first_bodies(plans))
        narrow = [x for x in first.attr("body").outputs if x.op == "narrow"]
        assert len(narrow) == (dtype == "float16")
        parts = [b for b in program(graph).buffers if b.role == "scratch"]
        assert sorted(b.dtype for b in parts) == sorted([dtype, "float32", "float32"])


def test_a_cpu_keeps_parts_in_single_precision() -> None:
    """A CPU's programs have no other parts, and would divide for nothing."""
    plans = Search(masked(), SearchOptions(), CPU_DEVICE).candidates()
    graphs = (each.graph() for each in plans if len(each.plan) == 2 and each.sizes.get("cg"))
    graph = next(graph for graph in graphs if graph is not None)
    assert "narrow" not in show_graph(graph)
    assert "kernel" in generate_cpp(graph)


@pytest.mark.parametrize("centred", [False, True])
def test_a_mean_that_the_model_does_not_have_is_not_handed_over(centred: bool) -> None:
    """The mean of values less a zero may be small beside the mean of the values, which the kernel
    would round."""
    half = "float16"
    q, k, v, c = (
        variable(n, Tensor(half, s)) for n, s in zip("qkvc", [(4, 32), (32, 16384), (16384, 32), (1, 32)], strict=True)
    )
    values = term("sub", v, c) if centred else v
    goal = Graph((q, k, v, c)[: 3 + centred], (term("matmul", term("softmax", term("matmul", q, k), axis=-1), values),))
    best = Search(goal, SearchOptions()).candidates()[:12]
    narrow = [each for each in best if (graph := each.graph()) is not None and "narrow" in show_graph(graph)]
    assert bool(narrow) is not centred


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """The error of programs in Triton's interpreter."""
    folder = tmp_path_factory.mktemp("latent")
    cases: dict[str, tuple[Graph, Graph, dict[str, np.ndarray]]] = {}
    goal, (_, plans) = latent(), found(latent)
    kinds: dict[object, tuple[tuple[bool, int], Graph]] = {}
    for each, graph, first in first_bodies(plans):
        kernel, tiles = each.plan[0].kernel, each.plan[0].tiles
        parts = {label: each.sizes[label] // tile for label, tile in tiles.items()}
        once = kernel.loop is not None and parts[kernel.loop] == 1
        made = (once, math.prod(parts.values())), graph  # of each kind one that loops, if any, and has the fewest tiles
        kind = kernel.loop, len(first.args), tiles["a"] < 32
        kinds[kind] = min(kinds.get(kind, made), made, key=lambda given: given[0])
    cases |= {f"latent_{i}": (goal, graph, drawn(goal, i)) for i, (_, graph) in enumerate(kinds.values())}
    goal, (_, plans) = masked(), found(masked)
    graph = next(graph for each, graph, _ in first_bodies(plans) if each.sizes["cg"] == 4)
    values = drawn(goal)
    values["M"][2, :128] = -np.inf  # a part of which nothing is seen
    values["M"][5, 128:] = -np.inf  # one that alone is seen
    cases["hidden"] = goal, graph, values
    large = drawn(goal)
    large["V"][:] = 6e4  # a sum of two is no number of half precision
    cases["large"] = goal, graph, large
    small = drawn(goal)
    small["V"] = (1e-3 * small["V"]).astype(np.float16)
    cases["small"] = goal, graph, small
    programs = {
        name: (program(graph).source, graph, [values[x.attr("name")] for x in graph.inputs])
        for name, (_, graph, values) in cases.items()
    }
    in_turn.interpreted(folder, programs)
    return {name: error(goal, values, np.load(folder / f"{name}.npy")) for name, (goal, _, values) in cases.items()}


@pytest.mark.sampled(5, together=True)
def test_generated_programs_are_right(ran: dict[str, float]) -> None:
    assert len(ran) > 6
    assert {name: e for name, e in ran.items() if not e <= BOUND} == {}


@pytest.mark.sampled(3)
def test_kinds_of_plans_are_proved() -> None:
    for make in (latent, masked):
        search, plans = found(make)
        for each, _, _ in list(first_bodies(plans))[:6]:
            accepted = search.accepted(each)
            assert accepted is not None
            assert isinstance(accepted.evidence, Evidence)


# ---------------------------------------------------------------- warps


def test_warps_share_scores_where_they_are_more_than_their_rows() -> None:
    """Scores go on to the product with the values: the branch is there, and taken with more than
    four warps for 64 rows."""
    x, w = (variable(name, Tensor("float16", (64, 64))) for name in "XW")
    scores = term("einsum", x, w, equation="ab,cb->ac")
    values = term("einsum", term("exp", scores), w, equation="ac,cd->ad")
    body = Graph((x, w), (values,))
    assert chained(body, looped=False) == {scores}
    whole = {"body": body, "grid": (1,), "loop": 1, "imap": ((-1,),) * 2, "fmap": (-1, -1), "omap": ((0,),)}
    graph = Graph((x, w), (term("kernel", x, w, **whole, cluster=1),))
    for warps, apart in ((4, False), (8, True)):
        (launch,) = program(graph, [LaunchSchedule(warps)]).launches
        assert launch.rows == 64
        assert launch.constants.get("APART", False) == apart


def test_what_is_accumulated_in_a_loop_goes_on_to_nothing_in_it() -> None:
    x, w = (variable(name, Tensor("float16", (64, 64))) for name in "XW")
    scores = term("accumulate", term("einsum", x, w, equation="ab,cb->ac"))
    values = term("einsum", scores, w, equation="ac,cd->ad")
    body = Graph((x, w), (values,))
    assert chained(body, looped=True) == set()
    assert len(chained(body, looped=False)) == 1


# ---------------------------------------------------------------- at the size of the benchmark


@pytest.mark.sampled(3)
def test_it_compiles_for_hopper_within_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 heads, all 512 columns and 64 keys in an iteration: tensor cores of warp groups, the keys
    once in shared memory, nothing in local memory."""
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    plans = Search(BEYOND["latent_attention"]().graph(), SearchOptions()).candidates()
    wanted = {"a": 64, "b": 512, "d": 64, "e": 512, "cg": 1, "ci": 64}
    each = next(p for p in plans if p.plan[0].tiles == wanted and p.sizes["cg"] == 64 and p.plan[0].kernel.loop == "ci")
    graph = each.graph()
    assert graph is not None
    made = program(graph)
    first, second = compiled(made, 90, (LaunchSchedule(8, 2), made.launches[1].schedule))
    tiles = 2 * (64 + 2 * 64) * (512 + 64)
    assert tiles <= first.shared <= H100.shared
    assert first.shared - tiles < 2 * 64 * 512
    assert re.search(r"wgmma\.mma_async\S+m64n256k16", first.ptx)
    scores = re.findall(r"wgmma\.mma_async\S+m64n32k16", first.ptx)  # half of the keys for each of two warp groups
    assert len(scores) == (512 + 64) / 16
    assert not re.search(r"\.local\b", first.ptx)
    assert second.shared <= H100.shared
