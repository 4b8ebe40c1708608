"""Products with weights of few bits as kernels: they compute the same as the runtime and the
definition, on odd sizes and with every kind of zeros; which products of a model get them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from block_linear_models import case, exact, is_near, model, product
from fused_models import quick
from named_models import session, w, x
from native_kernels import QUICK, STRICT, complaints

from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.emit.cpp import generate_all
from taso_mirage.emit.cpu.native_kernel import NativeKernel, build
from taso_mirage.forms import linear
from taso_mirage.forms.base.form import CPU_GOALS
from taso_mirage.forms.linear import INTEGERS, WeightProducts, weight_products
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.terms import ABSENT, Graph, Node
from taso_mirage.meanings.reals import EXACT
from taso_mirage.mugraph.free import FreeSizes, with_free_names
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import optimize_model
from taso_mirage.pipeline.fuse import fused, kernel_check
from taso_mirage.regions.fragments import fragments
from taso_mirage.runtime.embed import EmbeddedRegion, embed
from taso_mirage.runtime.plan import cpu_kernel
from taso_mirage.search.config import Config
from taso_mirage.verdicts import Failure

pytestmark = pytest.mark.sampled(2)

CASES = (
    ((1, 1, 32), 16, 4, 16, ""),
    ((3, 45), 7, 4, 32, "whole, bias"),
    ((2, 4, 300), 70, 4, 128, "floating, sum"),
    ((1, 1), 1, 4, 16, "own bias, sum"),
    ((2, 513), 17, 8, 32, "whole, bias, sum"),
    ((2, 13, 390), 50, 4, 64, "whole, own bias"),
    ((9, 140), 33, 8, 128, "floating, bias, sum"),
    ((5, 256), 40, 8, 256, ""),
    ((3, 300), 40, 4, 32, "whole, level 4"),
    ((2, 260), 24, 8, 16, "level 4, sum"),
    ((1, 64), 16, 4, 32, "floating, level 4"),
)
BLOCKS = ((16, 8, 1), (64, 2, 2), (32, 6, 1), (48, 9, 3))
"""Blocks of few rows and of many."""


def drawn(graph: Graph, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    found = []
    for leaf in graph.inputs:
        shape = [int(n) for n in leaf.shape]
        whole = rng.integers(0, 256, shape).astype(np.uint8)
        found.append(whole if leaf.dtype == "uint8" else rng.normal(size=shape).astype(np.float32))
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(QUICK, id="native"),
        pytest.param((*QUICK, "-mno-avx512vnni"), id="without vnni", marks=pytest.mark.slow),
        pytest.param((*QUICK, "-mno-avx512f"), id="avx2"),
        pytest.param((*QUICK, "-mno-avx2", "-mno-avx512f"), id="avx", marks=pytest.mark.slow),
        pytest.param((*QUICK, "-mno-avx", "-Wno-psabi"), id="sse"),
    ],
)
def test_the_kernel_computes_the_product(flags: Sequence[str], every: bool) -> None:
    """At odd sizes, on two threads, with every kind of instructions and of zeros; columns and
    blocks that are not full; outliers too. Each case with two kinds of blocks, or with `every`."""
    graphs, goals = {}, {}
    for i, given in enumerate(CASES):
        for k, block in enumerate(BLOCKS):
            if not every and (i + k) % 2:
                continue
            made, goal = case(*given)
            graphs[f"case_{i}_{k}"] = Graph(goal.inputs, (made.mugraph(block),))
            goals[f"case_{i}_{k}"] = goal
    library = build(generate_all(graphs), None, flags)
    for name, graph in graphs.items():
        kernel = NativeKernel(graph, name, threads=2, library=library)
        rounding = 4e-6 if graph.outputs[0].attr("digits") == 3 else 2e-4
        given = drawn(graph)
        assert is_near(kernel(*given)[0], exact(goals[name], given), rounding)
        given[0].flat[::7] *= 1e4
        assert is_near(kernel(*given)[0], exact(goals[name], given), rounding)


@pytest.mark.parametrize("scale", [1e-42, 1e-36, 1e-20, 1.0, 1e20, 1e33])
def test_activations_of_every_size_keep_their_digits(scale: float) -> None:
    made, goal = case((2, 64), 16, 4, 32, "whole")
    given = drawn(goal)
    given[0] = (given[0] * scale).astype(np.float32)
    (found,) = NativeKernel(Graph(goal.inputs, (made.mugraph((16, 2, 1)),)), flags=STRICT)(*given)
    wanted = exact(goal, given)
    assert is_near(found, wanted, 4e-6 if scale > 1e-38 else 0.2)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("block", [(16, 2, 1), (16, 6, 1)], ids=["integers", "floats"])
def test_what_is_no_number_stays_none_in_its_row(block: tuple[int, int, int]) -> None:
    made, goal = case((2, 64), 5, 4, 32, "")
    kernel = NativeKernel(Graph(goal.inputs, (made.mugraph(block),)), flags=QUICK)
    for value in (np.nan, np.inf, -np.inf):
        given = drawn(goal)
        given[0][1, 3] = value
        (found,) = kernel(*given)
        assert np.isfinite(found[0]).all()
        assert not np.isfinite(found[1]).any()


def test_a_row_of_zeros_is_exact() -> None:
    made, goal = case((2, 64), 5, 4, 32, "whole, bias")
    given = drawn(goal)
    given[0][0] = 0
    (found,) = NativeKernel(Graph(goal.inputs, (made.mugraph((16, 2, 1)),)), flags=QUICK)(*given)
    np.testing.assert_array_equal(found[0], given[-1])


@pytest.mark.sampled(3)
def test_no_sanitizer_complains(tmp_path: Path) -> None:
    graphs = {}
    for i, given in enumerate(CASES):
        made, goal = case(*given)
        graphs[f"case_{i}"] = Graph(goal.inputs, (made.mugraph(BLOCKS[i % len(BLOCKS)]),))
    assert not complaints(graphs, tmp_path, ("0", "3.5", "100"))


def test_rows_may_be_free() -> None:
    """One kernel for every number of rows."""
    made, goal = case((8, 300), 40, 4, 32, "whole, bias, sum")
    rows = symbol("n0")
    shapes = [(rows, *leaf.shape[1:]) if leaf in (made.x, made.z) else leaf.shape for leaf in goal.inputs]
    for block in ((16, 4, 1), (32, 6, 2)):
        graph = Graph(goal.inputs, (made.mugraph(block),))
        kernel = NativeKernel(with_free_names(graph, FreeSizes(tuple(shapes), ((rows, 40),))), flags=QUICK, threads=2)
        for count in (1, 3, 8, 13, 64):
            other, wanted = case((count, 300), 40, 4, 32, "whole, bias, sum")
            given = drawn(wanted, count)
            assert is_near(kernel(*given)[0], exact(wanted, given))
            assert other.form == made.form


@pytest.mark.sampled(1)
@pytest.mark.parametrize("given", CASES, ids=str)
def test_a_goal_is_read_back_and_its_muGraphs_have_evidence(given: Any) -> None:
    made, goal = case(*given)
    assert weight_products(goal) == WeightProducts((made,))
    found = WeightProducts((made,)).mugraphs(goal, CPU_DEVICE)
    rows = made.rows
    wanted = {(columns, most) for columns, most in INTEGERS if most <= rows and (most > 1 or rows == 1)}
    assert {f.graph.outputs[0].attr("block")[:2] for f in found} >= wanted
    assert wanted
    assert all(f.evidence.tests >= 8 and f.evidence.bound < 1e-30 for f in found)


@pytest.mark.sampled(1)
def test_other_operands_are_refused() -> None:
    made, goal = case((2, 16), 16, 4, 16, "floating, bias")
    right = made.mugraph((16, 8, 1))
    leaves = list(right.args)
    how = {"bits": 4, "block_size": 16}

    def refused(*operands: Node, **others: Any) -> bool:
        return isinstance(verified_mugraph(Graph(goal.inputs, (term("linear", *operands, **how),)), goal), Failure)

    assert not refused(*leaves)
    assert refused(*leaves[:4], leaves[5], leaves[4])
    assert refused(*leaves[:5])
    assert refused(*leaves[:2], ABSENT, *leaves[3:])


def regions(*outputs: Node, **sizes: int) -> list[list[str]]:
    made = fragments(model(*outputs), sizes, prepared=CPU_GOALS)
    return [[n.op for n in graph if n.args] for graph in made if weight_products(graph) is not None]


def test_products_of_one_x_are_one_kernel() -> None:
    """The products may have other columns, zeros, or a summand."""
    data, z = x("x", 2, 512), x("z", 2, 640)
    one, two = product(2, 512, 512, data=data), product(2, 512, 640, data=data, zeros="uint8")
    whole = (one, term("add", two, z), product(2, 512, 1024, data=data, bias=w("b", 1024)))
    assert regions(*whole) == [["matmul_nbits", "matmul_nbits", "add", "matmul_nbits"]]
    assert len(regions(one, product(2, 512, 640, size=16, data=data))) == 2, "other blocks"
    assert len(regions(one, product(2, 512, 640, data=term("tanh", one)))) == 2, "another x"
    assert len(regions(one, term("add", product(2, 512, 512, data=data, zeros="uint8"), one))) == 2, (
        "it reads the other"
    )
    plain = model(*whole)
    ((graph, (site,)),) = fragments(plain, {}, prepared=CPU_GOALS).items()
    made = CPU_GOALS.prepared(graph, site.inputs)
    assert made is not None
    found = made.mugraphs(graph, CPU_DEVICE)
    kernels = [EmbeddedRegion(site.inputs, site.outputs, cpu_kernel(found[i].graph)) for i in (0, -1)]
    given = {name: drawn(Graph((leaf,), ()))[0] for name, leaf in (("x", data), ("z", z))}
    runs = [session(made, True).run(None, given) for made in (plain, *(embed(plain, [each]) for each in kernels))]
    for wanted, *others in zip(*runs, strict=True):
        for each in others:
            assert is_near(each, wanted)


def test_a_region_is_a_product_with_the_elementwise_operators_that_alone_read_it() -> None:
    made, z, bias = product(1, 512, 512), x("z", 1, 512), w("b", 512)
    assert regions(made) == [["matmul_nbits"]]
    assert regions(term("add", z, term("add", made, bias))) == [["matmul_nbits", "add", "add"]]
    own = product(1, 512, 512, bias=bias)
    assert regions(term("add", own, z)) == [["matmul_nbits", "add"]]
    assert regions(term("add", term("add", own, w("c", 512)), z)) == [["matmul_nbits", "add", "add"]]
    assert regions(term("tanh", made), made) == [["matmul_nbits"]]
    assert regions(product(symbol("n"), 512, 512), n=8) == [["matmul_nbits"]]
    assert regions(product(1, 64, 64)) == [], "small"


ROWS, ZEROS, LEVELS = (1, 3, 70), ("", "uint8", "float32"), (0, 1, 4)
KINDS = [
    pytest.param(rows, zeros, level, marks=[pytest.mark.slow] * ((i + j + k) % 3 > 0))
    for i, rows in enumerate(ROWS)
    for j, zeros in enumerate(ZEROS)
    for k, level in enumerate(LEVELS)
]
"""Each two together; in the slow test all three."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("rows", "zeros", "level"), KINDS)
def test_a_model_runs_its_product_with_the_library_and_without(
    rows: int, zeros: str, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel is at least as near to the definition in float64 as the runtime's own."""
    monkeypatch.setattr(linear, "LEAST", 1)
    plain = model(product(rows, 300, 71, level=level, zeros=zeros))
    ((graph, (site,)),) = fragments(plain, {}, prepared=CPU_GOALS).items()
    made = CPU_GOALS.prepared(graph, site.inputs)
    assert made is not None
    assert CPU_GOALS.prepared(graph, graph.inputs) is None, "weights of the run"
    kernel = cpu_kernel(made.mugraphs(graph, CPU_DEVICE)[0].graph)
    with_kernel = embed(plain, [EmbeddedRegion(site.inputs, site.outputs, kernel)])
    given = {"x": np.random.default_rng(1).normal(size=(rows, 300)).astype(np.float32)}
    leaves = {n: plain.weights[n.attr("name")].numpy() for n in plain.nodes() if n.op == "weight"}
    leaves[plain.graph.inputs[0]] = given["x"]
    (whole,) = site.outputs
    wanted = interpret([whole], EXACT, {n: EXACT.load(a) for n, a in leaves.items()})[whole]
    runs = [session(plain, False), session(with_kernel, False), session(with_kernel, True)]
    own, without, ours = (np.abs(each.run(None, given)[0] - wanted).max() for each in runs)
    assert without == own
    assert ours <= max(own, 2e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("share", [kernel_check.SHARE, 1e-6])
def test_a_kernel_that_rounds_is_checked_by_what_the_runtime_rounds(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a model of level 4: 15 bits are less than a 32nd of the runtime's error, and more than a
    millionth."""
    quick(monkeypatch)
    monkeypatch.setattr(kernel_check, "SHARE", share)
    plain = model(term("tanh", product(2, 512, 512, level=4)))
    result = fused(
        optimize_model(plain, Config(measure=False, budget=0.0)), Config(budget=1000.0, seconds=0.0), "search"
    )
    assert bool(result.kernels) == (share == 1 / 32), result.notes
    assert (result.failure is None) == bool(result.kernels)


def cpu_golden() -> Iterator[tuple[str, Graph]]:
    """The muGraphs whose programs are kept (`tests/golden`)."""
    for each in CASES:
        made, goal = case(*each)
        for block in BLOCKS[:3]:
            yield f"block linear/{each} block {block}", Graph(goal.inputs, (made.mugraph(block),))
