"""Kernels for the CPU: muGraphs are compiled as C++ and run on this machine's cores; the C++
travels with the model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from taso_mirage.devices.cpu.device import CPU_DEVICE
from taso_mirage.devices.device import Device
from taso_mirage.devices.machine import cores, has_matrix_unit
from taso_mirage.emit.cpp import SizeRange
from taso_mirage.emit.cpu.native_kernel import FLAGS, build
from taso_mirage.emit.cpu.native_tuner import tuned_native, tuned_ranges
from taso_mirage.errors import TasoMirageError, Unsupported
from taso_mirage.forms.base.form import CPU_GOALS, PreparedKinds
from taso_mirage.ir.terms import Graph
from taso_mirage.lowering.backend import MeasuredSizes, Record, at_most
from taso_mirage.mugraph.checkpoint import from_json, to_json
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.mugraph.horizontal import FusedGoal, together
from taso_mirage.runtime.compilation import compile_kernels, library
from taso_mirage.runtime.plan import PlannedNode, cpu_kernel
from taso_mirage.system.spending import Purpose, spent
from taso_mirage.targets.cpu.target import CPU as TARGET

SECONDS = 1.0
"""The largest number of seconds for running the muGraphs of a region in turn."""


class CpuLowering:
    """The back end of this machine's CPU."""

    device: Device = CPU_DEVICE
    batched = False
    prepared: PreparedKinds | None = CPU_GOALS
    arranged = False
    searching = 0
    lanes = 1

    def __init__(self, threads: int = 0) -> None:
        self._threads = threads or cores()
        machine = f"{TARGET.machine} with a matrix unit" if has_matrix_unit() else TARGET.machine
        self.key = f"{machine} threads={threads}" if threads else machine
        self._compilers: ThreadPoolExecutor | None = None

    def predicted(
        self, goal: Graph, found: Sequence[FoundMuGraph], measured: Sequence[MeasuredSizes] = ()
    ) -> Callable[[], Record]:
        """The first muGraph with C++, compiled as in a model while others are searched."""
        graphs = [graph for each in found if (graph := each.free if measured else each.graph) is not None]
        record, source = self._first(graphs)
        self._compilers = self._compilers or ThreadPoolExecutor(cores())
        compiling = self._compilers.submit(compile_kernels, [source], FLAGS)

        def compiled() -> Record:
            with spent(Purpose.COMPILING):
                compiling.result()
            return record

        return compiled

    def _first(self, graphs: Sequence[Graph]) -> tuple[Record, str]:
        """The choice of the first muGraph with C++, and that."""
        problem = Unsupported("there is no muGraph to compile; raise the budget of the search")
        for graph in graphs:
            try:
                record = {"mugraph": to_json(graph)}
                return record, self.kernel(record).source
            except Unsupported as error:
                problem = error
        raise problem

    def fastest(
        self, goal: Graph, found: Sequence[FoundMuGraph], end: float, measured: Sequence[MeasuredSizes] = ()
    ) -> Record:
        """The fastest muGraph with C++; with free sizes, a table of the fastest at each of the
        measured sizes, the smallest first."""
        seconds = min(SECONDS, max(end - time.monotonic(), 0.0))
        if not measured:
            best = tuned_native([f.graph for f in found], self._threads, seconds)[0]
            return {"mugraph": to_json(best.kernel.graph)}
        ranges = tuned_ranges([f.free for f in found if f.free is not None], self._threads, measured, seconds)
        before = [{"mugraph": to_json(each.graph), "most": each.most} for each in ranges[1]]
        return {"mugraph": to_json(ranges[0]), "before": before}

    def joined(self, goal: Graph, parts: Sequence[FusedGoal], records: Sequence[Record]) -> Record:
        """One muGraph of all lanes. A limit of one is one of all."""

        def joined(most: int | None) -> dict[str, Any]:
            graphs = [from_json(at_most(each, most)["mugraph"]) for each in records]
            return {"mugraph": to_json(together(goal, parts, graphs)[0])}

        limits = sorted({each["most"] for record in records for each in record.get("before", ())})
        before = [joined(most) | {"most": most} for most in limits]
        return joined(None) | ({"before": before} if before else {})

    def kernel(self, record: Record) -> PlannedNode:
        """The kernel as C++, which is compiled when the model is loaded."""
        before = [SizeRange(from_json(each["mugraph"]), int(each["most"])) for each in record.get("before", ())]
        return cpu_kernel(from_json(record["mugraph"]), before)

    def begin_shipping(self, record: Record) -> None:
        """Nothing to begin: C++ runs everywhere."""

    def shipped(self, records: Sequence[Record]) -> list[PlannedNode]:
        """The kernels for all machines: the same as for this one, since C++ runs everywhere."""
        return [self.kernel(record) for record in records]

    def end_shipping(self) -> None:
        """Nothing to end: C++ runs everywhere."""

    def rounding(self) -> CpuLowering:
        """This back end: no operands are rounded here."""
        return self

    def fine(self, record: Record) -> Record:
        """The record unchanged: nothing is rounded here."""
        return record

    def start(self) -> None:
        """Compile the kernels' library, if this was not done before."""
        with suppress(TasoMirageError):  # reported when a kernel is run
            library()

    def close(self) -> None:
        """End the compilers, but for those that run."""
        if self._compilers is not None:
            self._compilers.shutdown(wait=False, cancel_futures=True)
            self._compilers = None


def here(threads: int = 0) -> CpuLowering:
    """The back end of this machine, for runs on so many threads; 0: as many as there are cores.

    Raises RuntimeUnavailable without a C++ compiler that works.
    """
    build("int works;")
    return CpuLowering(threads)
