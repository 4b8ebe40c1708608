"""Time as a promise: ends of a command, references within a time, smaller sizes where there is no
room. Clocks are made up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from set_clock import Clock
from small_models import F, model, w, x

from taso_mirage.errors import OutOfTime
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Tensor, variable
from taso_mirage.meanings.arrays import pairwise, pairwise_in_parts
from taso_mirage.measure.bulk import bulk, smaller
from taso_mirage.measure.child import child
from taso_mirage.measure.evaluation import Evaluation, Evaluations, Left
from taso_mirage.measure.reference import NoReference
from taso_mirage.measure.sizes import SEEDS
from taso_mirage.operators.ops import term
from taso_mirage.pipeline import problem, stages
from taso_mirage.pipeline.stage import Job
from taso_mirage.pipeline.stages import optimize_model
from taso_mirage.search import saturate
from taso_mirage.search.config import SEARCH, Config, Stop, quiet
from taso_mirage.search.cost import CostCache, MeasuredCost
from taso_mirage.system import deadline as system
from taso_mirage.system.deadline import Deadline

SHIPPED = system.GRACE


# ---------------------------------------------------------------- ends


@pytest.mark.parametrize("seconds", [0.0, 2.0, 5.0, 10.0, 30.0, 60.0, 600.0])
def test_all_work_ends_before_a_tenth_and_two_seconds_more(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "GRACE", SHIPPED)
    clock = Clock()
    deadline = Deadline(seconds, clock)
    assert deadline.left() == seconds
    assert seconds <= deadline.last() <= 1.1 * seconds + 2.0 - 0.5
    clock.now = deadline.last() - 0.01
    deadline.demand("work")
    clock.now += 0.02
    with pytest.raises(OutOfTime, match="the time is over: work"):
        deadline.demand("work")


def test_a_command_began_before_its_deadline_was_known() -> None:
    """The start of Python counts."""
    clock = Clock()
    clock.now = 103.0
    deadline = Deadline(10.0, clock, began=100.0)
    assert (deadline.spent, deadline.left()) == (3.0, 7.0)


def test_what_follows_has_its_time_kept() -> None:
    clock = Clock()
    whole = Deadline(60.0, clock)
    clock.now = 10.0
    before = whole.earlier(4.0)
    assert (before.left(), before.spent, before.seconds) == (46.0, 10.0, 60.0)
    assert before.last() == pytest.approx(whole.last() - 4.0)


def test_what_takes_longer_than_is_left_does_not_begin() -> None:
    deadline = Deadline(10.0, Clock())
    deadline.demand("a load", deadline.last() - 0.1)
    with pytest.raises(OutOfTime, match="a load"):
        deadline.demand("a load", deadline.last() + 0.1)


def test_an_interrupt_moves_both_ends_up_and_never_back() -> None:
    clock = Clock()
    deadline = Deadline(60.0, clock)
    deadline.hasten()
    assert (deadline.left(), deadline.last()) == (1.5, 4.0)
    clock.now = 3.0
    deadline.hasten()
    assert (deadline.left(), deadline.last()) == (0.0, 1.0)


def test_an_interrupt_leaves_what_a_load_and_a_check_took() -> None:
    deadline = Deadline(600.0, Clock())
    deadline.closing = 20.0
    deadline.hasten()
    assert (deadline.left(), deadline.last()) == (21.5, 44.0)


def test_a_command_within_another_ends_with_it() -> None:
    """A body of a node is optimized as a model of its own, in a part of the time."""
    clock = Clock()
    outer = Deadline(60.0, clock)
    clock.now = 58.0
    inner = Deadline(10.0, clock, within=outer)
    assert (inner.left(), inner.last()) == (2.0, outer.last())
    assert Deadline(1.0, clock, within=outer).left() == 1.0


def test_an_interrupt_inside_hastens_the_command_around_it() -> None:
    stop, clock = Stop(), Clock()
    stop.deadline = outer = Deadline(60.0, clock)
    stop.deadline = Deadline(10.0, clock, within=outer)
    stop()
    assert outer.left() == 60.0
    stop.deadline = outer  # the part is done
    assert outer.left() == 1.5


def test_extras_end_soon_after_the_budget_and_with_an_interrupt() -> None:
    """Work that only adds to a result is given up before all else."""
    clock = Clock()
    deadline = Deadline(60.0, clock)
    clock.now = 50.0
    extras = deadline.of_extras()
    assert extras.left() == 10.0 < extras.last() < deadline.last()
    deadline.hasten()
    assert extras.last() == 4.0


def test_kernels_are_such_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    around = child().deadline

    def fused(*_: object) -> None:
        seen.append(child().deadline.last())
        raise OutOfTime("no time")

    monkeypatch.setattr(stages, "fused", fused)
    monkeypatch.setattr(stages, "with_loops", lambda result: None)
    clock = Clock()
    job = Job(Config(budget=60.0, kernels=SEARCH), quiet, Stop(), CostCache(None), deadline=Deadline(60.0, clock))
    result: Any = SimpleNamespace(target=job.config.target, noted=lambda said: said)
    clock.now = 50.0
    original: Any = SimpleNamespace(target=job.config.target)
    assert stages.fuse(job, result, original, None) == "no kernels: no time"  # type: ignore[comparison-overlap]
    assert seen == [job.deadline.of_extras().last()]
    assert child().deadline is around


@pytest.mark.parametrize("strategy", ["best-first", "saturate"])
def test_a_search_without_an_end_searches(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The remainder of an endless time less a part of it is no number, in a model of several
    parts."""
    monkeypatch.setattr(saturate, "NODES", 300)
    value = given = x(4, 8)
    for i in range(16):
        products = [term("matmul", value, w(8, 8, name=f"{c}{i}")) for c in "ab"]
        value = term("tanh", term("add", *products))
    config = Config(measure=False, budget=float("inf"), strategy=strategy, partial=False)
    found = optimize_model(model((given,), (value,)), config)
    assert found.statistics is not None
    assert found.statistics.parts > 1
    assert found.statistics.states > 0
    assert "time" not in found.statistics.ended


def test_an_interrupt_before_the_deadline_is_known_counts() -> None:
    stop, clock = Stop(), Clock()
    stop()
    stop.deadline = deadline = Deadline(60.0, clock)
    assert deadline.left() == 1.5


# ---------------------------------------------------------------- references


class Paced:
    """Evaluations that take so many seconds of a clock each."""

    def __init__(self, *takes: float) -> None:
        self.clock, self.takes, self.done = Clock(), takes, list[int]()

    def one(self, i: int) -> Callable[[Callable[[], None]], Any]:
        def compute(step: Callable[[], None]) -> int:
            self.clock.now += self.takes[i]
            self.done.append(i)
            return i

        return compute

    def __call__(self, seconds: float, *after: int) -> list[Any]:
        wanted = [Evaluation(self.one(i), self.takes[i], order) for i, order in enumerate(after)]
        return Evaluations(seconds, 1, self.clock)(wanted)


def test_all_are_computed_where_there_is_time() -> None:
    assert Paced(1, 1, 1, 1)(10, 0, 0, 1, 2) == [0, 1, 2, 3]


def test_what_every_check_needs_is_computed_though_it_is_late() -> None:
    """Three references of a second each, in a second: all, since they may take two and are there;
    the others are left out and not even begun."""
    paced = Paced(0.6, 0.6, 0.6, 0.6, 0.6)
    found = paced(1, 0, 0, 0, 1, 2)
    assert found[:3] == [0, 1, 2]
    assert all(isinstance(each, Left) for each in found[3:])
    assert paced.done == [0, 1, 2]


def test_what_is_needed_and_too_slow_is_no_check() -> None:
    """One that is left out would be a check of fewer inputs than every other has."""
    with pytest.raises(OutOfTime):
        Paced(1.5, 1.5, 1.5)(1, 0, 0, 0)


def test_other_sizes_come_before_other_values() -> None:
    paced = Paced(1, 1, 1)
    found = paced(2.5, 0, 2, 1)
    assert found[2] == 2
    assert isinstance(found[1], Left)


def test_an_evaluation_ends_when_nobody_waits() -> None:
    ended = threading.Event()

    def endless(step: Callable[[], None]) -> None:
        try:
            while True:
                step()
        finally:
            ended.set()

    with pytest.raises(OutOfTime):
        Evaluations(0.0)([Evaluation(endless)])
    assert ended.wait(600)


def test_a_wrong_evaluation_is_given_back_and_an_interrupt_raised() -> None:
    def raising(error: BaseException) -> Evaluation:
        def compute(step: Callable[[], None]) -> None:
            raise error

        return Evaluation(compute)

    (found,) = Evaluations(1.0)([raising(ValueError("no"))])
    assert isinstance(found, ValueError)
    with pytest.raises(KeyboardInterrupt):
        Evaluations(1.0)([raising(KeyboardInterrupt())])


def test_every_changed_model_was_checked_on_three_draws_however_short_the_time() -> None:
    a = x(8, 8)
    result = optimize_model(
        model((a,), (term("neg", term("neg", term("relu", a))),)), Config(measure=False, budget=0.01)
    )
    assert result.changed
    assert len({d.case for d in result.differences}) >= len(SEEDS)


# ---------------------------------------------------------------- room


def rows() -> Model:
    """A product of rows with themselves, quadratic in their number."""
    a = variable("x", Tensor(F, (symbol("batch"), symbol("rows"), 64)))
    return model((a,), (term("matmul", a, term("transpose", a, perm=(0, 2, 1))),))


def test_the_most_that_is_there_at_once_is_counted() -> None:
    made = bulk(rows(), {"batch": 2, "rows": 100})
    inputs, turned, product = (8 * 2 * n for n in (6400, 6400, 10000))
    assert made.peak == inputs + turned + product
    assert made.total == inputs + turned + product


def test_smaller_sizes_are_a_batch_of_one_and_then_halves() -> None:
    found = list(smaller(rows(), {"batch": 8, "rows": 256}, ()))
    assert found[:3] == [{"batch": 1, "rows": 256}, {"batch": 1, "rows": 128}, {"batch": 1, "rows": 64}]
    assert min(each["rows"] for each in found) >= 8


def test_what_the_user_chose_stays() -> None:
    assert all(each["rows"] == 256 for each in smaller(rows(), {"batch": 8, "rows": 256}, ("rows",)))


@pytest.mark.parametrize(("left", "right", "result"), [("ij", "jk", "ik"), ("bij", "bjk", "bik"), ("ij", "ij", "")])
def test_a_product_in_parts_is_the_product(left: str, right: str, result: str) -> None:
    sizes, rng = {"b": 3, "i": 5, "j": 7, "k": 4}, np.random.default_rng(0)
    a, b = (rng.normal(size=[sizes[c] for c in letters]) for letters in (left, right))
    expected = pairwise(a, b, left, right, result)
    for part in (8, 64, 200, 1 << 20):
        assert np.allclose(pairwise_in_parts(a, b, left, right, result, part), expected, rtol=1e-12)


def test_the_cost_of_what_is_kept_is_not_measured_beyond_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no reference was found, nothing had been measured before, and nothing is."""
    measured: list[float] = []

    def slow(self: MeasuredCost, *_: object) -> float:
        measured.append(time.monotonic())
        time.sleep(0.1)
        return 1e-6

    def none(job: Job, *_: object) -> list[object]:
        job.deadline.hasten()  # 1.5 s are left
        raise NoReference("no float64 reference")

    monkeypatch.setattr(MeasuredCost, "_now", slow)
    monkeypatch.setattr(problem, "prepare_cases", none)
    made = variable("x", Tensor(F, (4,)))
    outputs = made
    for _ in range(60):
        outputs = term("concat", outputs, variable("x", Tensor(F, (4,))), axis=0)
    result = optimize_model(model((made,), (outputs,)), Config(budget=30.0, cache=None))
    assert not result.changed
    assert "no float64 reference" in str(result.kept)
    assert not measured
