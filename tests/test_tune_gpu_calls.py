"""How many calls a CUDA graph has that is timed, with a clock instead of a GPU."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from taso_mirage.codegen import tune

if TYPE_CHECKING:
    from collections.abc import Iterator

torch = pytest.importorskip("torch")
STARTING = 7e-6


class Machine:
    """Calls take `seconds`, and a graph STARTING before its first one."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.now, self.captured = seconds, 0.0, 0
        self.capturing = False
        self.alive = self.most = 0

    def call(self, *inputs: Any) -> Any:
        if self.capturing:
            self.captured += 1
        else:
            self.now += self.seconds
        return Result(self)

    def replay(self) -> None:
        self.now += STARTING + self.captured * self.seconds


class Result:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        machine.alive += 1
        machine.most = max(machine.most, machine.alive)

    def __del__(self) -> None:
        self.machine.alive -= 1


@pytest.fixture
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(request.param)

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.at = 0.0

        def record(self) -> None:
            self.at = made.now

        def elapsed_time(self, other: Event) -> float:
            return 1000 * (other.at - self.at)

    class Graph:
        replay = made.replay

    @contextmanager
    def capture(graph: Graph) -> Iterator[None]:
        made.capturing = True
        yield
        made.capturing = False

    @contextmanager
    def stream(side: object) -> Iterator[None]:
        yield

    for name, value in {
        "Event": Event,
        "Stream": object,
        "stream": stream,
        "graph": capture,
        "CUDAGraph": Graph,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return made


@pytest.mark.parametrize(
    ("machine", "sets", "calls"), [(20e-6, 3, 66), (20e-6, 100, 100), (1e-3, 2, 6), (1.0, 2, 2)], indirect=["machine"]
)
def test_a_graph_has_enough_calls_and_no_more(machine: Machine, sets: int, calls: int) -> None:
    """Its start counts for less than a percent, slow calls are not repeated, and results of one round are kept."""
    found = tune.measured(machine.call, [[i] for i in range(sets)])
    assert machine.captured == calls
    assert machine.seconds < found < 1.01 * machine.seconds
    assert machine.most <= sets + 1
