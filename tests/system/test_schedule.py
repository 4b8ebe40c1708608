"""The work of the highest gain per second is done first, whatever the time; a clock that the tests
turn stands for time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from taso_mirage.system.schedule import Schedule, ScheduledWork


@dataclass
class Planted:
    """A clock, works that turn it, and the gains by their times."""

    budget: float
    now: float = 0.0
    gained: float = 0.0
    done: list[str] = field(default_factory=list)

    def left(self) -> float:
        return self.budget - self.now

    def work(
        self,
        name: str,
        gain: float,
        seconds: float,
        took: float | None = None,
        found: float | None = None,
        sort: str = "",
    ) -> ScheduledWork:
        def run(given: float) -> float:
            self.now += seconds if took is None else took
            self.done.append(name)
            self.gained += gain if found is None else found
            return gain if found is None else found

        return ScheduledWork(name, gain, seconds, run, sort, seconds)

    def schedule(self, works: Callable[[Planted], list[ScheduledWork]]) -> Schedule:
        made = Schedule(self.left, lambda: self.now)
        made.add(works(self))
        return made


def layers(planted: Planted) -> list[ScheduledWork]:
    """A model of 24 layers: its attention is one kind in 24 places, beside 60 odd regions."""
    odd = [planted.work(f"odd {i}", 1.0 + i / 100, 2.0) for i in range(60)]
    return [*odd[:30], planted.work("attention", 24 * 5.0, 8.0), *odd[30:]]


@pytest.mark.parametrize("budget", [8.0, 20.0, 60.0, 1000.0])
def test_the_attention_of_all_layers_comes_before_the_odd_regions(budget: float) -> None:
    planted = Planted(budget)
    planted.schedule(layers).run()
    assert planted.done[0] == "attention"
    assert planted.now <= budget


def test_the_gain_grows_with_the_budget() -> None:
    gains = []
    for budget in range(8, 140, 4):
        planted = Planted(float(budget))
        planted.schedule(layers).run()
        gains.append(planted.gained)
    assert gains == sorted(gains)
    assert gains[-1] == pytest.approx(120 + sum(1 + i / 100 for i in range(60)))


def test_with_half_the_time_the_best_was_done() -> None:
    whole, half = Planted(40.0), Planted(20.0)
    for each in (whole, half):
        each.schedule(layers).run()
    assert whole.done[: len(half.done)] == half.done
    assert half.gained > 0.8 * whole.gained


def test_what_works_took_corrects_what_is_expected_of_others_of_their_sort() -> None:
    """Four times slower than expected, they come after works that were expected to gain half as
    much."""

    def works(planted: Planted) -> list[ScheduledWork]:
        slow = [planted.work(f"slow {i}", 8.0, 1.0, took=8.0, sort="slow") for i in range(4)]
        return [*slow, *(planted.work(f"sure {i}", 4.0, 1.0, sort="sure") for i in range(3))]

    planted = Planted(100.0)
    planted.schedule(works).run()
    assert planted.done[:4] == ["slow 0", "sure 0", "sure 1", "sure 2"]


def test_what_works_gained_corrects_it_too() -> None:
    def works(planted: Planted) -> list[ScheduledWork]:
        idle = [planted.work(f"idle {i}", 8.0, 1.0, found=0.0, sort="idle") for i in range(4)]
        return [*idle, *(planted.work(f"sure {i}", 3.0, 1.0, sort="sure") for i in range(3))]

    planted = Planted(100.0)
    planted.schedule(works).run()
    assert planted.done[:5] == ["idle 0", "idle 1", "sure 0", "sure 1", "sure 2"]


def test_time_that_a_work_leaves_goes_to_the_others() -> None:
    """Nothing is kept for a work: where one takes less than was expected, more of them are done."""
    short, long = Planted(10.0), Planted(10.0)
    short.schedule(lambda p: [p.work(str(i), 1.0, 4.0, took=1.0) for i in range(9)]).run()
    long.schedule(lambda p: [p.work(str(i), 1.0, 4.0) for i in range(9)]).run()
    assert len(short.done) > 2 * len(long.done)


def test_much_time_is_shared_by_gain() -> None:
    given = dict[str, float]()

    def noting(name: str) -> Callable[[float], float]:
        def run(seconds: float) -> float:
            given[name] = seconds
            return 0.0

        return run

    schedule = Schedule(lambda: 100.0, lambda: 0.0)
    schedule.add([ScheduledWork("much", 3.0, 1.0, noting("much")), ScheduledWork("little", 1.0, 1.0, noting("little"))])
    schedule.run()
    assert given == {"much": 75.0, "little": 100.0}


def test_what_does_not_fit_is_not_begun_and_waits() -> None:
    planted = Planted(5.0)
    schedule = planted.schedule(lambda p: [p.work("long", 100.0, 6.0), p.work("short", 1.0, 2.0)])
    schedule.run()
    assert planted.done == ["short"]
    assert [each.name for each in schedule.waiting] == ["long"]
