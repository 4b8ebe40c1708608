"""How many calls a CUDA graph has that is timed, with a clock instead of a GPU."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from taso_mirage.emit import compile_jobs, tune
from taso_mirage.emit.gpu.program import LaunchSchedule, Traffic, TritonLaunch

if TYPE_CHECKING:
    from collections.abc import Iterator

torch = pytest.importorskip("torch")
STARTING, HOST = 7e-6, 3e-4


class Machine:
    """Calls take `seconds`, a graph STARTING before its first one, and launching a call by itself
    HOST at least."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.now = seconds, 0.0
        self.captured: list[Any] | None = None
        self.graphs: list[list[Any]] = []
        self.alive = self.most = 0

    def call(self, *inputs: Any) -> Any:
        if self.captured is None:
            self.now += max(self.seconds, HOST)
        else:
            self.captured += inputs
        return Result(self)


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
        def __init__(self) -> None:
            self.calls: list[Any] = []

        def replay(self) -> None:
            made.now += STARTING + len(self.calls) * made.seconds

    @contextmanager
    def capture(graph: Graph) -> Iterator[None]:
        made.captured = graph.calls
        made.graphs.append(graph.calls)
        yield
        made.captured = None

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
    """The calls go round the inputs; the graph's start counts for less than a percent, slow calls
    are not repeated, whatever the host takes to launch one, and results of one round are kept."""
    found = tune.measured(machine.call, [[i] for i in range(sets)])
    assert machine.graphs[-1] == [i % sets for i in range(calls)]
    assert machine.seconds < found < 1.01 * machine.seconds
    assert machine.most == sets + (calls > sets)


@pytest.mark.parametrize(
    ("loop", "in_flight", "depths"),
    [(64, 10_240, [3, 4, 5, 6, 8]), (64, 100_000, [2]), (4, 10_240, [2, 3, 4]), (64, 200_000, [1])],
)
def test_the_deepest_pipelines_that_fit_are_tried(loop: int, in_flight: int, depths: list[int]) -> None:
    launch = TritonLaunch("kernel_0", (128,), loop, ("x",), LaunchSchedule(4, depths[-1]), Traffic(1, 1, in_flight))
    assert sorted({schedule.stages for schedule in tune.schedules(launch)}) == depths


def test_few_processes_compile_on_a_machine_of_many_cores() -> None:
    for cores, processes in ((2, 2), (64, compile_jobs.COMPILERS)):
        workers = compile_jobs.compilers(cores)
        assert workers._threads._max_workers == processes
        workers.close()


def test_a_launch_that_the_driver_refuses_costs_its_program_alone() -> None:
    """After other errors of the driver the process runs nothing on the GPU any more."""
    refused, fatal = ("Triton Error [CUDA]: invalid argument", "Triton Error [CUDA]: an illegal memory access")
    assert compile_jobs.is_triton(RuntimeError(refused))
    assert not compile_jobs.is_triton(RuntimeError(fatal))
