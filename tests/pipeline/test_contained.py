"""An error with one region costs that region only, in whatever stage of the kernels it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from fused_models import CONFIG, fresh_cache, plain, quick

from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import dim_product, symbol
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Graph, Node, Tensor, variable
from taso_mirage.lowering.cpu import CpuLowering
from taso_mirage.measure.child import child
from taso_mirage.mugraph.axis_classes import Unifier
from taso_mirage.mugraph.checkpoint import to_json
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term
from taso_mirage.pipeline.fuse import (
    choices,
    comparisons,
    fused,
    kernel_check,
    kinds,
    model_trials,
    region_times,
    searches,
)
from taso_mirage.regions import fragments as regions
from taso_mirage.regions import free_regions
from taso_mirage.report.result import Result

pytestmark = pytest.mark.sampled(2, together=True)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Result]:
    """softmax(gelu(x + b) W) * b: the region of the gelu, and that of the softmax."""
    with pytest.MonkeyPatch.context() as patch:
        fresh_cache(patch, tmp_path_factory.mktemp("contained"))
        quick(patch)
        child().stop()
        found = plain()
        fused(found, CONFIG, "search")
        yield found


def mentions(value: Any) -> bool:
    """Whether a call's argument is of the region with the gelu."""
    if isinstance(value, Model):
        return False
    if isinstance(value, str | Node):
        return "gelu" in (value if isinstance(value, str) else value.op)
    if isinstance(value, Graph):
        return any(map(mentions, value))
    if is_dataclass(value):
        return any(mentions(getattr(value, each.name)) for each in fields(value))
    if isinstance(value, Mapping):
        return mentions([*value.values()])
    return isinstance(value, Sequence | set) and any(map(mentions, value))


def planted(function: Callable[..., Any], mentioned: Callable[[Any], bool] = mentions) -> Callable[..., Any]:
    """The function with a bug that this region alone meets."""

    def broken(*args: Any, **options: Any) -> Any:
        if any(mentioned(each) for each in args):
            raise ZeroDivisionError("planted")
        return function(*args, **options)

    return broken


def seeds(value: Any) -> bool:
    return isinstance(value, Node) and value.op in ("gelu", "add")


PLACES: dict[str, tuple[Any, str, Callable[[Any], bool]]] = {
    "what an operator is": (regions._Growing, "_kind", mentions),
    "growth": (regions._Growing, "_grown", seeds),
    "a place in the model": (regions, "_site", mentions),
    "its kernel's sizes": (free_regions, "_other", mentions),
    "its variants": (kinds, "variants", mentions),
    "what it may save": (kinds, "possible_seconds", mentions),
    "its lanes": (choices, "fused_goals", mentions),
    "the search": (searches, "Search", mentions),
    "the prediction": (CpuLowering, "predicted", mentions),
    "the choice": (CpuLowering, "fastest", mentions),
    "its kernel": (CpuLowering, "kernel", mentions),
    "measuring it alone": (region_times, "region_seconds", mentions),
    "the model with it": (model_trials, "embed", mentions),
    "kernels for other machines": (CpuLowering, "shipped", mentions),
}


@pytest.mark.parametrize("place", PLACES)
def test_an_error_costs_one_region(place: str, before: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, mentioned = PLACES[place]
    fresh_cache(monkeypatch, tmp_path)
    quick(monkeypatch)
    child().stop()
    monkeypatch.setattr(where, name, planted(getattr(where, name), mentioned))
    found = fused(before, CONFIG, "search")
    assert found.changed
    assert found.records
    made = [operators for each in found.kernels for operators, _ in each.kinds]
    assert any("softmax" in operators for operators in made)
    if name == "shipped":  # it was tried in the model before
        assert len(found.records) == 1
    elif name in ("predicted", "fastest"):  # one of both finds a kernel
        assert any("gelu" in operators for operators in made)
    else:
        assert not any("gelu" in operators for operators in made)
    notes = [each for each in found.notes if "planted" in each]
    assert notes
    assert all("gelu" in note or "add" in note for note in notes)
    assert all("internal error, please report it: ZeroDivisionError: planted" in note for note in notes)


def test_an_error_of_a_process_that_searches_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    x = variable("x", Tensor("float32", (4, 8)))
    goal = Graph((x,), (term("softmax", x, axis=1),))
    monkeypatch.setattr(searches, "Search", planted(searches.Search, lambda value: isinstance(value, Graph)))
    job = {"goal": to_json(goal), "free": None, "device": asdict(CPU_DEVICE), "best": 1, "seconds": 1.0}
    answer = searches.search_goal(job)
    assert answer == "ZeroDivisionError: planted"
    future: Future[Any] = Future()
    future.set_result(answer)
    asked = searches.Searches((), CPU_DEVICE, 1.0, 0, {})
    asked.futures[goal, None] = future
    with pytest.raises(RuntimeError, match="in a process that searches: ZeroDivisionError: planted"):
        asked(goal, 1.0, lambda *progress: None)


def test_an_error_of_the_last_check_leaves_the_model_without_kernels(
    before: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh_cache(monkeypatch, tmp_path)
    quick(monkeypatch)
    child().stop()
    monkeypatch.setattr(kernel_check, "compare", planted(kernel_check.compare, lambda value: True))
    found = fused(before, CONFIG, "search")
    assert found.model is before.model
    assert "no kernel for the model: internal error, please report it: ZeroDivisionError: planted" in found.notes


def test_a_model_that_does_not_open_is_left_without_kernels(
    before: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh_cache(monkeypatch, tmp_path)
    quick(monkeypatch)
    child().stop()
    monkeypatch.setattr(comparisons.Comparisons, "opened", planted(comparisons.Comparisons.opened, lambda value: True))
    found = fused(before, CONFIG, "search")
    assert found.model is before.model
    assert "no kernel for the model: internal error, please report it: ZeroDivisionError: planted" in found.notes


# ---------------------------------------------------------------- sizes that are tried


def pooled() -> Model:
    """A group norm as PyTorch writes it, and a gate, of an image after two poolings: its dims are
    quarters of the input's."""
    x, scale, bias = (
        variable(name, Tensor("float32", shape))
        for name, shape in (("x", (1, 8, symbol("h"), symbol("w"))), ("s", (4,)), ("b", (4,)))
    )
    y = x
    for _ in range(2):
        y = term("max_pool", y, kernel=(2, 2), strides=(2, 2), pads=(0, 0, 0, 0), dilations=(1, 1))
    groups = term("reshape", y, shape=(1, 4, dim_product((2, *y.shape[2:]))))
    normed = term("reshape", term("instance_norm", groups, scale, bias, epsilon=1e-5), shape=y.shape)
    return standalone(Graph((x, scale, bias), (term("mul", term("sigmoid", normed), normed),)), {"": 20})


def test_quotients_of_free_sizes_have_elements_where_a_goal_is_compared() -> None:
    model = pooled()
    found, left_out = free_regions.free_regions(model, {"h": 64, "w": 64}, 1, False)
    assert [kind.free is not None for kind in found] == [True]
    assert not left_out
    (sites,) = found.values()
    assert free_regions.fitting_sizes(sites[0], {"h": 2, "w": 3}) == {"h": 8, "w": 12}
    assert free_regions.fitting_sizes(sites[0], {"h": 7, "w": 30}) == {"h": 14, "w": 60}
    assert free_regions.fitting_sizes(sites[0], {"h": 0, "w": 30}) is None


def test_an_axis_without_elements_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="a dim of 0 elements has no label"):
        Unifier().fresh(0)
