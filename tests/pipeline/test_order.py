"""Kernels of regions and their trials in the model: the best first, and made kernels are tried,
whatever the time. A clock that the works turn stands for time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from taso_mirage.ir.terms import Graph, Tensor, variable
from taso_mirage.operators.ops import term
from taso_mirage.pipeline.fuse.order import KERNEL, KernelOrder
from taso_mirage.pipeline.fuse.region_kernels import RegionKernel
from taso_mirage.regions.batches import EqualRegions
from taso_mirage.regions.fragments import RegionSite

PLANTED = {"attention": 24e-5, **{f"odd {i}": 1e-6 + i * 1e-8 for i in range(60)}}
"""Seconds that kernels may save in all places: attention of 24 layers, and 60 odd regions."""


def kind(name: str) -> EqualRegions:
    x = variable(name, Tensor("float32", (2,)))
    goal = Graph((x,), (term("neg", x),))
    return EqualRegions(goal, goal)


KINDS = {name: kind(name) for name in PLANTED}
NODES = {name: each.goal for name, each in KINDS.items()}
NAMES = {each: name for name, each in KINDS.items()}


def kernel(name: str, saved: float) -> RegionKernel:
    placed: Any = None
    goal = NODES[name]
    return RegionKernel(
        (name,), (RegionSite(goal.inputs, goal.outputs, ()),), {"name": name}, placed, saved, None, 1e-5
    )


@dataclass
class Planted:
    """A model in which kernels save as much as they promise, but for `bad` ones, which make it
    slower.

    A region takes `region` seconds, or those that it is given, and is `late` then; a trial takes
    `trial`. The kernels that are `predicted` save a half of the possible seconds, and take one
    second together.
    """

    budget: float
    trial: float = 2.0
    region: float = KERNEL
    late: float = 0.0
    bad: frozenset[str] = frozenset()
    once: bool = False
    predicted: Sequence[str] = ()
    now: float = 0.0
    made: list[str] = field(default_factory=list)
    trials: list[list[str]] = field(default_factory=list)
    model: list[str] = field(default_factory=list)

    def left(self) -> float:
        return self.budget - self.now

    def first(self) -> dict[EqualRegions, RegionKernel]:
        self.now += 1.0 if self.predicted else 0.0
        return {KINDS[name]: kernel(name, PLANTED[name] / 2) for name in self.predicted}

    def make(self, each: EqualRegions, seconds: float) -> Sequence[RegionKernel]:
        self.now += min(self.region, seconds) + self.late
        self.made.append(NAMES[each])
        return [kernel(NAMES[each], PLANTED[NAMES[each]])]

    def place(self, kinds: Sequence[RegionKernel]) -> bool:
        self.now += self.trial
        names = [each.operators[0] for each in kinds]
        self.trials.append(names)
        if self.bad & {*names}:
            return False
        self.model = [*(each for each in self.model if each not in names), *names]
        return True

    def run(self) -> Planted:
        possible = {KINDS[name]: gain for name, gain in reversed(PLANTED.items())}
        KernelOrder(possible, (), self.first, self.make, self.place, lambda: self.trial, self.left, self.once).run(
            lambda: True
        )
        return self

    @property
    def saved(self) -> float:
        return sum(PLANTED[name] for name in self.model)


BUDGETS = [7.0, 12.0, 20.0, 33.0, 60.0, 100.0, 200.0, 400.0]


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("trial", [0.1, 2.0, 12.0])
def test_the_attention_of_all_layers_is_made_first_and_what_is_made_is_tried(budget: float, trial: float) -> None:
    planted = Planted(max(budget, KERNEL + trial + 1), trial).run()
    assert planted.made[0] == "attention"
    assert sorted(planted.model) == sorted(planted.made)  # none was made for nothing
    assert planted.now <= planted.budget


@pytest.mark.parametrize("trial", [0.1, 2.0, 12.0])
def test_more_time_gains_no_less(trial: float) -> None:
    saved = [Planted(budget, trial).run().saved for budget in range(18, 300, 6)]
    assert all(b >= a for a, b in pairwise(saved))
    assert saved[0] >= PLANTED["attention"]


def test_the_first_complete_answer_is_early() -> None:
    """The attention is in the model before another kernel is made."""
    assert Planted(60.0).run().trials[0] == ["attention"]


@pytest.mark.parametrize("budget", [12.0, 33.0, 60.0, 200.0])
def test_kernels_of_a_large_model_are_tried_once(budget: float) -> None:
    """A trial takes no less time than a kernel: more of these are in the model."""
    once, often = (Planted(budget, trial=4.0, once=each).run() for each in (True, False))
    assert len(once.trials) == 1
    assert once.model == once.made
    assert once.made[0] == "attention"
    assert once.now <= once.budget
    assert once.saved >= often.saved


def test_the_best_kind_leaves_time_for_the_others() -> None:
    """The best kind's kernel could be tuned as long as there is time."""
    planted = Planted(60.0, region=1e6).run()
    assert planted.made[0] == "attention"
    assert len(planted.made) > 4
    assert planted.trials[0] == ["attention"]


def test_the_last_kind_gets_no_more_time_than_its_savings_deserve() -> None:
    """Nothing else waits, but longer tuning of a kernel that saves little gains nothing."""
    given: dict[str, float] = {}
    savings = {KINDS["attention"]: 24e-5, KINDS["odd 1"]: 4e-6}

    def make(each: EqualRegions, seconds: float) -> Sequence[RegionKernel]:
        given[NAMES[each]] = seconds
        return []

    KernelOrder(savings, (), dict, make, lambda kinds: False, lambda: 0.1, lambda: 60.0).run(lambda: True)
    assert given["attention"] > 4 * KERNEL
    assert given["odd 1"] == KERNEL


def test_where_a_trial_takes_long_there_are_few_of_them() -> None:
    quick, slow = Planted(200.0, trial=0.1).run(), Planted(200.0, trial=20.0).run()
    assert len(slow.trials) < 6 < len(quick.trials)
    assert len(slow.model) == len(slow.made) > 10


def test_what_is_slower_in_the_model_keeps_no_other_kernel_out() -> None:
    planted = Planted(1000.0, bad=frozenset({"odd 7", "attention"})).run()
    assert set(planted.model) == PLANTED.keys() - planted.bad


def test_without_the_time_to_try_a_kernel_none_is_made() -> None:
    assert not Planted(5.0, trial=5.0).run().made


def test_kernels_that_take_longer_than_they_are_given_are_tried_all_the_same() -> None:
    planted = Planted(40.0, trial=3.0, region=11.0, late=4.0).run()
    assert len(planted.made) > 1
    assert sorted(planted.model) == sorted(planted.made)


@pytest.mark.parametrize("budget", [5.0, 20.0, 60.0])
def test_predicted_kernels_of_all_kinds_are_one_set_before_any_is_tuned(budget: float) -> None:
    planted = Planted(budget, predicted=list(PLANTED)).run()
    assert sorted(planted.trials[0]) == sorted(PLANTED)
    assert sorted(planted.model) == sorted(PLANTED)
    assert planted.now <= planted.budget
    assert bool(planted.made) == (budget > 5.0)


def test_a_tuned_kernel_takes_the_place_of_the_predicted_one() -> None:
    """The tuned kernels are tried alone, against the model with the predicted kernels of all
    kinds."""
    planted = Planted(20.0, predicted=list(PLANTED)).run()
    assert planted.trials[1] == planted.made[: len(planted.trials[1])]
    assert len(planted.model) == len({*planted.model}) == len(PLANTED)


@pytest.mark.parametrize("bad", [{"odd 7"}, {"odd 7", "attention"}, {"odd 3", "odd 4", "odd 50"}])
def test_of_a_refused_set_halves_are_tried(bad: set[str]) -> None:
    """All predicted kernels but those that make the model slower end in it, without a trial for
    each."""
    planted = Planted(200.0, trial=2.0, bad=frozenset(bad), region=1e6, predicted=list(PLANTED)).run()
    assert set(planted.model) >= PLANTED.keys() - bad - {*planted.made}
    assert len(planted.trials) < len(PLANTED)
    assert not bad & {*planted.model}


def test_with_once_tuned_and_predicted_kernels_are_tried_together() -> None:
    planted = Planted(40.0, trial=4.0, once=True, predicted=list(PLANTED)).run()
    assert len(planted.made) > 2
    assert [sorted(each) for each in planted.trials] == [sorted(PLANTED)]
