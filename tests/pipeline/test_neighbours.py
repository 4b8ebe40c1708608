"""Kernels of neighbouring regions as one: a norm, products with weights, a gate, a sum. They give
the same bits as apart, at every number of rows; wrong ones are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from block_linear_models import case, exact, is_near, model, product
from fused_models import clock, quick
from named_models import session, w, x

from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.emit.cpp import ALONE, SizeRange, generate_cpp, generate_ranges
from taso_mirage.emit.cpu.prepared import layout
from taso_mirage.errors import Unsupported
from taso_mirage.forms import linear
from taso_mirage.forms.base.form import CPU_GOALS
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Graph, Node, Tensor, variable
from taso_mirage.lowering.cpu import CpuLowering
from taso_mirage.mugraph.checkpoint import to_json
from taso_mirage.mugraph.free import with_free_names
from taso_mirage.mugraph.search import Search, SearchOptions
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import optimize_model
from taso_mirage.pipeline.fuse import comparisons, fused, model_trials
from taso_mirage.pipeline.fuse.neighbours import Neighbours, without
from taso_mirage.pipeline.fuse.region_kernels import RegionKernel
from taso_mirage.regions.free_regions import free_regions
from taso_mirage.runtime.embed import embed
from taso_mirage.search.config import Config
from taso_mirage.verdicts import Evidence, Failure

WIDTH, INNER = 256, 384
GATES = {"silu": lambda y: term("mul", y, term("sigmoid", y)), "gelu": lambda y: term("gelu", y)}


def layer(rows: Any, size: int = 32, level: int = 0, norm: str = "rms_norm", gate: str = "silu") -> list[Node]:
    """A gated layer: a summand of a norm of it behind two products, their gate and a third."""
    data = variable("x", Tensor("float32", (rows, WIDTH)))
    scale = [w("g", WIDTH), *([w("c", WIDTH)] if norm == "layer_norm" else [])]
    seen = term(norm, data, *scale, axis=1, epsilon=1e-5)
    how: dict[str, Any] = {"size": size, "level": level}
    left = product(rows, WIDTH, INNER, data=seen, **how)
    right = product(rows, WIDTH, INNER, data=seen, zeros="uint8", **how)
    inner = term("mul", GATES[gate](left), right)
    return [term("add", data, product(rows, INNER, WIDTH, data=inner, **how))]


def kinds(plain: Model, sizes: Mapping[str, int], most: int = 0) -> list[RegionKernel]:
    """The model's regions with a kernel each, the first that is found; products have another one
    for up to `most` rows."""
    backend, made = CpuLowering(), []
    for kind, sites in free_regions(plain, sizes, 1, False, CPU_GOALS)[0].items():
        goal = CPU_GOALS.prepared(kind.goal, sites[0].inputs)
        if goal is None:
            found = Search(kind.goal, SearchOptions(), CPU_DEVICE, 0, kind.free).run(1, 60.0)
        else:
            found = goal.mugraphs(kind.goal, CPU_DEVICE)
            found = [each for each in found if layout(each.graph) == layout(found[-1].graph)]
        named = [each.graph if kind.free is None else with_free_names(each.graph, kind.free) for each in found if goal]
        graphs = named or [each.graph if kind.free is None else each.free for each in found]
        last, first = graphs[-1], graphs[0]
        assert last is not None
        assert first is not None
        record: dict[str, Any] = {"mugraph": to_json(last)}
        if goal is not None and most:
            assert first != last
            record["before"] = [{"mugraph": to_json(first), "most": most}]
        operators = tuple([n.op for n in kind.goal if n.args])
        made.append(RegionKernel(operators, tuple(sites), record, backend.kernel(record), 0.0, goal))
    return made


def joined(plain: Model, apart: Sequence[RegionKernel]) -> list[RegionKernel]:
    """The kernels with all neighbours joined into one."""
    made = Neighbours(plain, apart).together(CpuLowering())
    return [*without(apart, [place for _, places in made for place in places]), *[kind for kind, _ in made]]


def placed(plain: Model, made: Sequence[RegionKernel]) -> Model:
    return embed(plain, [region for kind in made for region in kind.regions])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("rows", "size", "level", "norm", "gate"),
    [
        pytest.param(1, 32, 4, "rms_norm", "silu", marks=pytest.mark.slow),
        pytest.param(1, 128, 0, "layer_norm", "gelu", marks=pytest.mark.slow),
        pytest.param(3, 128, 4, "rms_norm", "silu", marks=pytest.mark.slow),
        pytest.param(70, 32, 0, "rms_norm", "gelu", marks=pytest.mark.slow),
        (70, 128, 4, "layer_norm", "silu"),
    ],
)
def test_one_kernel_has_the_bits_of_several(
    rows: int, size: int, level: int, norm: str, gate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel is as near to the definition in float64 as the runtime is; without the library the
    model runs its own operators."""
    monkeypatch.setattr(linear, "LEAST", 1)
    plain = model(*layer(rows, size, level, norm, gate))
    apart = kinds(plain, {})
    whole = joined(plain, apart)
    assert [kind.prepares is not None and kind.prepares.joins for kind in whole] == [True]
    assert len(apart) > 2
    given = {"x": np.random.default_rng(1).normal(size=(rows, WIDTH)).astype(np.float32)}
    several, one = placed(plain, apart), placed(plain, whole)
    runs = [session(*each).run(None, given)[0] for each in ((several, True), (one, True), (plain, False), (one, False))]
    np.testing.assert_array_equal(runs[0], runs[1])
    np.testing.assert_array_equal(runs[2], runs[3])
    goal = Graph((*plain.graph.inputs, *(n for n in plain.nodes() if n.op == "weight")), plain.graph.outputs)
    wanted = exact(goal, [given["x"], *(plain.weights[n.attr("name")].numpy() for n in goal.inputs[1:])])
    assert np.abs(runs[1] - wanted).max() <= max(np.abs(runs[2] - wanted).max(), 4e-6 * np.abs(wanted).max())


@pytest.mark.slow
@pytest.mark.parametrize("most", [0, 4])
def test_one_kernel_takes_every_number_of_rows(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A separate program for few rows reads the same prepared weights."""
    monkeypatch.setattr(linear, "LEAST", 1)
    plain = model(*layer(symbol("n")))
    apart = kinds(plain, {"n": 16}, most)
    whole = joined(plain, apart)
    assert len(whole) == 1
    assert whole[0].kernel.free
    assert [each["most"] for each in whole[0].record["before"]] == [most] * (most > 0)
    own, several, one = (session(placed(plain, each), True) for each in ([], apart, whole))
    for rows in (1, 4, 5, 64):
        given = {"x": np.random.default_rng(rows).normal(size=(rows, WIDTH)).astype(np.float32)}
        runs = [each.run(None, given)[0] for each in (own, several, one)]
        np.testing.assert_array_equal(runs[1], runs[2])
        assert is_near(runs[1], runs[0], 1e-5)


def test_programs_whose_weights_lie_otherwise_are_no_ranges() -> None:
    """Each program would read the weights that the other has prepared."""
    made, whole = case((4, 64), 40, 4, 32, "")
    narrow, wide, other = (
        Graph(whole.inputs, (made.mugraph(block),)) for block in ((16, 4, 1), (32, 4, 1), (16, 2, 1))
    )
    assert "kernel_prepare(" in generate_ranges(narrow, [SizeRange(other, 2)])
    with pytest.raises(Unsupported, match="prepared weights lie otherwise"):
        generate_ranges(narrow, [SizeRange(wide, 2)])


def test_wrong_kernels_are_refused() -> None:
    """The kernels are of a norm, two products and their gate, at small sizes."""
    data, g, z = x("x", 2, 19), x("g", 19), x("z", 2, 5)
    names = ("w", "v"), ("s", "t")
    codes = [variable(name, Tensor("uint8", (5, 2, 8))) for name in names[0]]
    scales = [x(name, 5, 2) for name in names[1]]
    how: dict[str, Any] = {"bits": 4, "block_size": 16}

    def gated(seen: Node, gate: str, order: tuple[int, int] = (0, 1), z: Node | None = z, ours: bool = True) -> Graph:
        def multiplied(i: int) -> Node:
            if ours:
                return term("linear", seen, codes[i], None, None, scales[i], None, block=(16, 8, 1), digits=2, **how)
            return term("matmul_nbits", seen, codes[i], scales[i], K=19, N=5, accuracy_level=4, **how)

        left, right = (multiplied(i) for i in order)
        made = term("mul", GATES[gate](left), right)
        return Graph((data, g, z_leaf, *codes, *scales), (made if z is None else term("add", made, z),))

    z_leaf = z
    seen = term("rms_norm", data, g, axis=1, epsilon=1e-5)
    goal = gated(seen, "silu", ours=False)
    assert isinstance(verified_mugraph(gated(seen, "silu"), goal), Evidence)
    plain = term("rms_norm", data, term("div", g, g), axis=1, epsilon=1e-5)
    wrong = {
        "gate and product exchanged": gated(seen, "silu", (1, 0)),
        "another gate": gated(seen, "gelu"),
        "no norm": gated(data, "silu"),
        "no scale of the norm": gated(plain, "silu"),
        "another epsilon": gated(term("rms_norm", data, g, axis=1, epsilon=1e-1), "silu"),
        "a mean taken off": gated(term("layer_norm", data, g, axis=1, epsilon=1e-5), "silu"),
        "no sum": gated(seen, "silu", z=None),
        "one product twice": gated(seen, "silu", (0, 0)),
    }
    for what, each in wrong.items():
        assert isinstance(verified_mugraph(each, goal), Failure), what


def test_what_hangs_on_what_it_gives_is_no_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gate that reads a product, and that product again behind an operator without a kernel."""
    monkeypatch.setattr(linear, "LEAST", 1)
    made = product(2, WIDTH, INNER)
    summed = term("trilu", made)
    plain = model(term("mul", term("tanh", made), term("sigmoid", summed)))
    apart = kinds(plain, {})
    assert len(joined(plain, apart)) == len(apart)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("gain", "one"), [(1.05, True), (1.0, False), pytest.param(0.9, False, marks=pytest.mark.slow)]
)
def test_the_measured_choice_keeps_what_was_faster(gain: float, one: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All kernels together come first; then they are one, if the whole model is faster so."""
    monkeypatch.setattr(linear, "LEAST", 1)
    quick(monkeypatch)
    plain = model(*layer(2))
    before = optimize_model(plain, Config(measure=False, budget=0.0))
    single = model_trials.ModelTrials._join
    monkeypatch.setattr(comparisons, "interleaved", clock([2.0]))

    def after(self: Any, kept: list[RegionKernel], opened: Any, tried: Any) -> list[RegionKernel]:
        monkeypatch.setattr(comparisons, "interleaved", clock([gain]))
        made = single(self, kept, opened, tried)
        monkeypatch.setattr(comparisons, "interleaved", clock([2.0]))
        return made

    monkeypatch.setattr(model_trials.ModelTrials, "_join", after)
    found = fused(before, Config(budget=1000.0, seconds=0.0), "search")
    assert found.failure is None
    assert found.kernels, found.notes
    longest = max(len(operators) for each in found.kernels for operators, _ in each.kinds)
    assert (longest > 6) == one


def test_a_weight_that_is_prepared_may_be_read_as_it_is_too() -> None:
    x = variable("x", Tensor("float32", (8, 8)))
    weight = w("w", 8, 32768)
    plain = model(term("add", term("matmul", x, weight), weight))
    apart = kinds(plain, {})
    assert any(kind.prepares for kind in apart)
    given = {"x": np.random.default_rng(1).normal(size=(8, 8)).astype(np.float32)}
    wanted, found = (session(*each).run(None, given)[0] for each in ((plain, False), (placed(plain, apart), True)))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_small_kernels_do_not_start_threads() -> None:
    for n in (ALONE // 16, ALONE):
        data = x("x", 1, n)
        (found, *_) = Search(Graph((data,), (term("sigmoid", data),)), SearchOptions(griddims=[(4,)]), CPU_DEVICE).run(
            1, 60.0
        )
        line = next(line for line in generate_cpp(found.graph).splitlines() if line.startswith("  run("))
        assert ("nullptr" in line) == (n < ALONE)
