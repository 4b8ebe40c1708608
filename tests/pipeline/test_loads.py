"""How often whole models are loaded: a large one no more often than its result needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from taso_mirage.ir.model import Model, StoredWeight
from taso_mirage.ir.terms import Graph, Node, Tensor, variable, weight
from taso_mirage.measure.cost_cache import CostCache
from taso_mirage.measure.load import Load
from taso_mirage.measure.session import FEW, Session, open_in_child
from taso_mirage.measure.target import CPU, Target
from taso_mirage.onnx_io import from_ir, to_ir
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import choice, optimize_model, problem, shares
from taso_mirage.pipeline.fuse import comparisons
from taso_mirage.pipeline.layouts import saved_seconds
from taso_mirage.pipeline.stage import Job
from taso_mirage.search.config import OFF, Config, Stop, quiet
from taso_mirage.search.passes import Context
from taso_mirage.search.rewriter import ModelCandidate
from taso_mirage.system.deadline import Deadline
from taso_mirage.system.spending import accounting
from taso_mirage.targets.cuda.target import CUDA

WIDTH, LAYERS = 64, 8
MOST = 3
"""Loads of a large model in one run."""


def layered(layers: int = LAYERS) -> Model:
    """Equal layers, each with a product that rewrites save."""
    rng = np.random.default_rng(0)
    value = start = variable("x", Tensor("float32", (16, WIDTH)))
    weights: dict[str, StoredWeight] = {}

    def drawn(*shape: int) -> Node:
        name = f"w{len(weights)}"
        weights[name] = StoredWeight((rng.normal(size=shape) / WIDTH**0.5).astype(np.float32))
        return weight(name, Tensor("float32", shape))

    for _ in range(layers):
        left, right = (term("matmul", value, drawn(WIDTH, WIDTH)) for _ in range(2))
        value = term("relu", term("add", term("add", left, right), term("neg", term("neg", drawn(16, WIDTH)))))
    return from_ir(to_ir(standalone(Graph((start,), (value,)), {"": 20}, weights)))


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> Model:
    """A model that takes long to run, as far as the pipeline sees, on a quiet machine; all others
    are twice as fast."""

    def halved(sessions: Sequence[Session], *_: object) -> list[list[float]]:
        return [[2.0] * FEW, *([1.0] * FEW for _ in sessions[1:])]

    monkeypatch.setattr(shares, "slow_seconds", lambda job: 2.0)
    monkeypatch.setattr(choice, "observed_load", Load)
    monkeypatch.setattr(choice.runtime, "interleaved", halved)
    return layered()


def loads_of(model: Model, folder: Path) -> tuple[dict[str, int], bool]:
    """Whole models that each stage loaded, and whether there is a faster one."""
    found = optimize_model(model, Config(budget=60.0, kernels=OFF, cache=folder / "costs"))
    return dict(found.spending.loads), found.changed


@pytest.mark.sampled(3)
def test_a_large_model_is_loaded_no_more_often_than_its_result_needs(large: Model, tmp_path: Path) -> None:
    """The original, and the candidate that prices choose, whose session also checks it."""
    loads, changed = loads_of(large, tmp_path)
    assert changed
    assert sum(loads.values()) <= MOST, loads
    assert "check" not in loads


@pytest.mark.sampled(2)
def test_regions_of_a_large_model_are_observed_in_one_load(
    large: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problem, "evaluation_seconds", lambda nodes, sizes: 1e9)
    loads, changed = loads_of(large, tmp_path)
    assert changed
    assert sum(loads.values()) <= MOST, loads


def test_a_model_that_is_open_is_not_loaded_again_unless_it_is_asked_for_anew() -> None:
    model = layered()
    with accounting() as account:
        first = open_in_child(model, CPU, source=True)
        assert open_in_child(model, CPU, source=True) is first
        assert open_in_child(model, CPU, source=True, anew=True) is not first
        del first
        open_in_child(model, CPU, source=True)
    assert sum(account.spending().loads.values()) == 3


def test_models_with_kernels_are_compared_in_sessions_that_are_there(
    large: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside other processes, where all are timed on one thread: the trial's session is there, and
    so is the original's when the model is compared without the library of kernels."""
    monkeypatch.setattr(comparisons, "observed_load", lambda fresh: Load(0.5, 2))
    monkeypatch.setattr(comparisons, "interleaved", lambda sessions, *_, **__: [[2.0] * FEW, [1.0] * FEW])
    tried, elsewhere = layered(), layered()
    made = comparisons.Comparisons(CPU, [{}], [1.0], 1.0)
    opened = tuple(open_in_child(each, CPU) for each in (large, tried))
    trial = made.opened(tried)
    with accounting() as account:
        assert made.whole(large, tried, (opened[0], opened[1]), lambda: False).faster
        assert made.whole(large, elsewhere, (opened[0], opened[1]), lambda: False).as_fast
    assert trial.target == CPU.serial
    assert sum(account.spending().loads.values()) == 2


@pytest.mark.parametrize(
    ("load", "seconds", "first"), [(1.0, 60.0, "measured"), (0.5, 60.0, "predicted"), (1.0, 8.0, "predicted")]
)
def test_a_large_models_first_trial_is_by_costs_that_can_be_believed(
    large: Model, monkeypatch: pytest.MonkeyPatch, load: float, seconds: float, first: str
) -> None:
    """Measured costs are so on a quiet machine, with time for a second trial."""
    monkeypatch.setattr(choice, "observed_load", lambda: Load(load, 2))
    measured = ModelCandidate("measured", layered(2), (), 1.0, CPU)
    predicted = ModelCandidate("predicted", layered(3), (), 2.0, CPU)
    job = Job(Config(budget=seconds), quiet, Stop(), CostCache(None), deadline=Deadline(seconds, lambda: 0.0))
    job.seconds["load the original"] = 5.0
    posed = problem.pose(job, large)
    choosing = choice.Choosing(job, posed, measured, {}, [{}], [predicted.model.graph])
    names = [[each.name for each in trial] for trial in choosing._likely([measured, predicted])]
    assert names[0] == [first]
    assert len(names) == 2


def images(dtype: str = "float16", group: int = 1, tokens: int = 0, depthwise: bool = False) -> Model:
    """A convolution of images, and products of so many tokens or a convolution of each channel
    beside it."""
    weights = {"k": StoredWeight(np.ones((64, 64 // group, 3, 3), dtype))}
    x = variable("x", Tensor(dtype, (2, 64, 32, 32)))
    window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": group}
    inputs, outputs = [x], [term("conv", x, weight("k", Tensor(dtype, (64, 64 // group, 3, 3))), **window)]
    if tokens:
        inputs.append(variable("y", Tensor(dtype, (tokens, tokens))))
        outputs.append(term("matmul", inputs[1], inputs[1]))
    if depthwise:
        weights["d"] = StoredWeight(np.ones((64, 1, 3, 3), dtype))
        outputs.append(term("conv", x, weight("d", Tensor(dtype, (64, 1, 3, 3))), **{**window, "group": 64}))
    return standalone(Graph(tuple(inputs), tuple(outputs)), {"": 20}, weights)


@pytest.mark.parametrize(
    ("model", "gains"),
    [
        (images(), True),
        (images("float32"), False),
        (images(group=64), False),
        (images(tokens=2048), False),
        (images(depthwise=True), False),
    ],
)
def test_convolutions_of_half_precision_decide_the_layout_that_is_tried_first(model: Model, gains: bool) -> None:
    """A GPU copies images for these alone, and few of them decide nothing."""
    wide = next(each for each in CUDA.variants if not each.mixes_layouts)
    context = Context({"": 20}, {}, target=CUDA)
    assert (saved_seconds(model, wide, context) > 0) == gains
    assert [saved_seconds(model, each, context) for each in (CUDA, CUDA.variants[0])] == [0.0, 0.0]
    assert saved_seconds(model, wide, Context({"": 20}, {}, target=wide)) == 0.0


@pytest.mark.parametrize("seconds", [60.0, 6.0])
def test_the_options_that_are_predicted_to_gain_are_tried_first(large: Model, seconds: float) -> None:
    """The order holds where there is time for one candidate alone, too."""
    found, usual, wide = layered(3), CPU, replace(CPU, options=(("wide", "1"),))
    job = Job(Config(budget=seconds), quiet, Stop(), CostCache(None), deadline=Deadline(seconds, lambda: 0.0))
    job.seconds["load the original"] = 5.0
    passed = ModelCandidate("passed", found, (), 1.0, usual)
    choosing = choice.Choosing(job, problem.pose(job, large), passed, {}, [{}], [found.graph])
    for cost, first in ((0.9, wide), (1.0, usual)):
        candidates = [passed, replace(passed, target=wide, cost=cost)]
        (trial,) = choosing._likely(candidates)
        assert {each.target for each in trial} == {usual, wide}
        other = replace(passed, target=replace(CPU, options=(("other", "1"),)))
        (wider,) = choosing._likely([*candidates, other])
        assert (other in wider) == (cost == 1.0)  # others that gain nothing cost a load each
        assert choosing._in_time(trial)[0].target == first
    assert len(choosing._in_time(trial)) == (2 if seconds == 60.0 else 1)


def test_channels_last_is_tried_where_it_is_predicted_to_gain(large: Model) -> None:
    """Each trial of a large model takes long. The same graph with other options is the model after
    the passes, too."""
    chosen, wide = CUDA.variants
    job = Job(Config(budget=60.0), quiet, Stop(), CostCache(None), deadline=Deadline(60.0, lambda: 0.0))
    posed = replace(problem.pose(job, large), target=CUDA)
    passed = ModelCandidate("passed", layered(3), (), 1.0, CUDA)
    choosing = choice.Choosing(job, posed, passed, {}, [{}], [passed.model.graph])
    for cost, first in ((0.9, {wide, CUDA}), (1.0, {chosen, CUDA})):
        candidates = [passed, replace(passed, target=chosen), replace(passed, target=wide, cost=cost)]
        (trial,) = choosing._likely(candidates)
        assert {each.target for each in trial} == first


def test_a_model_with_other_options_runs_beside_the_original_with_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users have the original with the runtime's own options now."""
    opened: list[Target] = []
    monkeypatch.setattr(comparisons.runtime, "open_in_child", lambda model, target, **_: opened.append(target))
    chosen = CUDA.variants[0]
    made = comparisons.Comparisons(chosen, [{}], [1.0], 1.0)
    for own, target in ((CUDA, chosen), (chosen, chosen)):
        made.beside(layered(), SimpleNamespace(target=own))  # type: ignore[arg-type]
        assert opened.pop() == target
    on_one_thread = comparisons.Comparisons(CPU, [{}], [1.0], 1.0)
    on_one_thread.beside(layered(), SimpleNamespace(target=CPU.serial))  # type: ignore[arg-type]
    assert opened == [CPU.serial]
