"""The check of regions against wrong rewrites that hide: behind an equal region on which they are
right, and behind the end of the time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from deep_mutants import Change, Sizes, Transformer

from taso_mirage.errors import OutOfTime
from taso_mirage.ir.model import StoredWeight
from taso_mirage.ir.terms import Node
from taso_mirage.measure import regional
from taso_mirage.measure.check import CheckCase
from taso_mirage.measure.regional import ClaimedModel, RegionalCheck
from taso_mirage.measure.session import open_in_child
from taso_mirage.measure.target import CPU
from taso_mirage.measure.whole import cases_by_runs
from taso_mirage.search.steps import RewriteStep, claimed, replay

SIZES = Sizes(layers=3)


def without_bias(f: Transformer, i: int, t: dict[str, Node]) -> tuple[Node, Node]:
    """The output product of a layer, its bias left out."""
    return t["out"], t["out"].args[0]


def at_layers(made: Transformer, change: Change, layers: Sequence[int]) -> ClaimedModel:
    """A model with one wrong rewrite in several layers, of which the deepest is first."""
    outputs = made.model.graph.outputs
    steps = [
        RewriteStep(("planted",), (old,), (new,)) for old, new in (change(made, i, made.layers[i]) for i in layers)
    ]
    model = made.model.with_graph(replay(outputs, steps), made.weights)
    return ClaimedModel(model, CPU, claimed(outputs, steps), {})


def cases_of(made: Transformer) -> list[CheckCase]:
    return list(cases_by_runs(made.model, open_in_child(made.model, CPU), {}))


def test_a_region_of_special_weights_vouches_for_no_other() -> None:
    """A bias that is zero in one layer of equal ones may be left out there, and in no other."""
    made = Transformer(SIZES)
    for i in (0, 1):
        name = f"bo.{i}"
        made.weights[name] = StoredWeight(np.zeros_like(made.weights[name].array))
    made.model = made.model.with_graph(made.model.graph.outputs, made.weights)
    check = RegionalCheck(made.model, cases_of(made)[:1])
    assert all(each.passed for each in check.differences(at_layers(made, without_bias, [1, 0])))
    found = check.differences(at_layers(made, without_bias, [2, 1, 0]))
    assert any(not each.passed for each in found)


def test_what_failed_before_the_end_of_the_time_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A region that is wrong on the first inputs is wrong, though there was no time for others."""
    made = Transformer(SIZES)
    check = RegionalCheck(made.model, cases_of(made))
    assert len(check.cases) > 1
    given = RegionalCheck._on

    def ending(self: RegionalCheck, patch: object, compared: object, run: int):  # type: ignore[no-untyped-def]
        if run:
            raise OutOfTime("the time is over")
        return given(self, patch, compared, run)  # type: ignore[arg-type]

    monkeypatch.setattr(regional.RegionalCheck, "_on", ending)
    found = check.differences(at_layers(made, without_bias, [2]))
    assert any(not each.passed for each in found)
    assert list(check.alone) == ["there was no time"]
