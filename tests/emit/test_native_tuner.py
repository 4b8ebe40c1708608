"""muGraphs that the search finds for a CPU: all that are compiled compute the goal, and the fastest
comes first."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from math import inf
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scripts import ROOT

from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.emit.cpu import native_tuner
from taso_mirage.emit.cpu.native_tuner import FILE, different, tuned_native
from taso_mirage.errors import Unsupported
from taso_mirage.ir.terms import Graph, Tensor, topological, variable
from taso_mirage.meanings.reals import EXACT
from taso_mirage.mugraph.graph import KernelGraph, float32, new_graph
from taso_mirage.mugraph.search import superoptimize
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term


def norm_linear(rows: int) -> KernelGraph:
    g = new_graph()
    x, w = g.new_input((rows, 96), float32, "X"), g.new_input((96, 80), float32, "W")
    g.mark_output(g.matmul(g.rms_norm(x, g.new_input((96,), float32, "G"), 1e-6), w))
    return g


def attention() -> KernelGraph:
    g = new_graph()
    q, k = g.new_input((2, 3, 32), float32, "Q"), g.new_input((2, 96, 32), float32, "K")
    scores = g.add(g.mul(g.matmul(q, g.transpose(k, 0, 2, 1)), 0.3), g.new_input((3, 96), float32, "M"))
    g.mark_output(g.matmul(g.softmax(scores), g.new_input((2, 96, 32), float32, "V")))
    return g


def gelu() -> KernelGraph:
    g = new_graph()
    x = g.new_input((8, 48), float32, "X")
    g.mark_output(g.gelu(g.add(x, g.new_input((48,), float32, "B"))))
    return g


GOALS = {"norm_linear 1": norm_linear(1), "norm_linear 5": norm_linear(5), "attention": attention(), "gelu": gelu()}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "norm_linear 5")) for name in GOALS]
)
def test_what_the_search_finds_for_a_cpu_computes_the_goal(name: str, tmp_path: Path) -> None:
    goal = GOALS[name].graph()
    graphs = [each.graph for each in superoptimize(goal, best=12, device=CPU_DEVICE)]
    rng = np.random.default_rng(7)
    given = [rng.standard_normal([int(n) for n in x.shape]).astype(np.float32) for x in goal.inputs]
    loaded = {x: EXACT.load(v) for x, v in zip(goal.inputs, given, strict=True)}
    wanted = interpret(goal.outputs, EXACT, loaded)[goal.outputs[0]]
    made = tuned_native(graphs, 2, 0.0, tmp_path)
    assert len(made) > (FILE if name.startswith("norm") else 1)
    for each in made:
        (output,) = each.kernel(*given)
        assert np.abs(output - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_equal_programs_are_one_and_what_has_no_program_is_left_out(tmp_path: Path) -> None:
    x = variable("X", Tensor("float32", (4, 6)))
    relu, other, none = (Graph((x,), (term(op, x),)) for op in ("relu", "sigmoid", "atan"))
    assert different([none, relu, other, relu]) == [relu, other]
    assert {each.kernel.graph for each in tuned_native([none, relu, other, relu], 1, 0.0, tmp_path)} == {relu, other}
    with pytest.raises(Unsupported, match="arctan"):
        tuned_native([none], 1)
    with pytest.raises(Unsupported, match="budget"):
        tuned_native([], 1)


def test_large_kernels_keep_to_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that calls alone move: of many that take seconds the first has its turn."""
    now = 0.0

    def call(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(native_tuner.time, "perf_counter", lambda: now)
    assert native_tuner._quickest([partial(call, 3.0)] * 8, 0.5) == [3.0, *[inf] * 7]
    assert now == 3.0
    assert native_tuner._quickest([partial(call, seconds) for seconds in (2**-5, 2**-6, 2**-7)], 0.0) == [
        2**-5,
        2**-6,
        2**-7,
    ]


def test_free_sizes_are_measured_while_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones always; a program without a turn at later ones has no time there."""
    given: list[list[float]] = []
    monkeypatch.setattr(
        native_tuner, "compiled", lambda graphs, *rest: [SimpleNamespace(graph=graph) for graph in graphs]
    )
    monkeypatch.setattr(native_tuner, "different", list)
    monkeypatch.setattr(native_tuner, "layout", lambda graph: 0)
    monkeypatch.setattr(native_tuner, "_calls", lambda made, sizes: [])
    monkeypatch.setattr(native_tuner, "_quickest", lambda calls, seconds: given.pop(0))
    for first, second, last in (([2.0, 1.0], [1.0, inf], 1), ([2.0, inf], [1.0, 1.0], 0)):
        given[:] = [first, second]
        assert native_tuner.tuned_ranges([0, 1], 1, [{"n": 8}, {"n": 1}], 1.0) == (last, [])  # type: ignore[list-item]


def test_a_cpu_has_few_blocks_of_any_size() -> None:
    g = new_graph()
    x = g.new_input((96, 1000), float32)
    g.mark_output(g.softmax(x))
    found = superoptimize(g.graph(), best=8, device=CPU_DEVICE)
    blocks = [[np.prod(n.attr("grid")) for n in topological(f.graph.outputs) if n.op == "kernel"] for f in found]
    assert max(map(max, blocks)) <= 32
    assert any(96 % b == 0 and (96 // b) & (96 // b - 1) for each in blocks for b in each)


@pytest.mark.slow
def test_the_benchmark_says_where_its_mugraphs_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "bench")
    bench = import_module("kernels_cpu")
    fragment = bench.gelu(4, 32)
    kernel, origin = bench.generated(fragment, 1)
    assert (origin["source"], origin["candidates"] > 1) == ("search", True)
    x, bias = (np.linspace(-3, 3, n, dtype=np.float32).reshape(s) for n, s in ((128, (4, 32)), (32, (32,))))
    loaded = {a: EXACT.load(v) for a, v in zip(fragment.inputs, (x, bias), strict=True)}
    wanted = interpret([fragment.written], EXACT, loaded)[fragment.written]
    assert np.abs(kernel(x, bias)[0] - wanted).max() < 1e-6
    assert bench.generated(bench.rotary(2, 8, 16), 1)[1]["source"] == "written"
