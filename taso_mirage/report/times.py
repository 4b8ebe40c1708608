"""Times by operator: predicted seconds of every operator of both models, measured seconds of the
runtime's operators, and the machine's peaks, for a roofline (Williams et al., CACM'09)."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from taso_mirage.devices.device import Device
from taso_mirage.ir.terms import Node, Tensor, is_float, numpy_dtype, variable
from taso_mirage.onnx_io.kernels import KERNEL
from taso_mirage.operators.ops import get
from taso_mirage.operators.work import work
from taso_mirage.report.inspection import CountedWork
from taso_mirage.report.result import MeasuredPeaks, OperatorProfile, OperatorTimes, Result
from taso_mirage.search.config import Config, measuring
from taso_mirage.search.cost import Cost, Weighted, ahead
from taso_mirage.search.passes import Context

LONG, LARGEST = 3e-3, 1 << 26
"""The intended seconds of the measurement of a peak, by the description of the device, and the
largest number of elements of its operands."""
SECONDS = 0.5
"""The seconds for which the peaks are measured."""
IN_KERNELS = "fused kernels"
"""The row of all kernels in tables of operators."""


@dataclass(slots=True)
class OperatorTotals:
    """The totals of all terms of one operator: their number, seconds, operations, and bytes."""

    count: int = 0
    seconds: float = 0.0
    flops: int = 0
    bytes: int = 0

    def add(self, seconds: float, flops: int, moved: int) -> None:
        self.count += 1
        self.seconds += seconds
        self.flops += flops
        self.bytes += moved


@dataclass(frozen=True, slots=True)
class OperatorPair:
    """The totals of one operator in the two models."""

    name: str
    before: OperatorTotals = field(default_factory=OperatorTotals)
    after: OperatorTotals = field(default_factory=OperatorTotals)

    @property
    def seconds(self) -> float:
        return self.before.seconds + self.after.seconds


@contextmanager
def result_costs(result: Result, config: Config, seconds: float) -> Iterator[tuple[Weighted, float]]:
    """The costs of terms of a result's models, and the time of `time.monotonic` at which measuring
    ends, after so many seconds; without any, the costs are predicted as those of the search."""
    opsets = {"com.microsoft": 1, **result.original.opsets}
    context = Context(opsets, result.original.sizes, target=result.target)
    with measuring(config) as cache:
        term = Weighted(
            context,
            result.workloads,
            cache if config.measure else None,
            by=ahead if seconds <= 0 else lambda measured: measured,
        )
        end = time.monotonic() + seconds
        term.measure_until(end)
        yield term, end


def operator_times(result: Result, config: Config, seconds: float = math.inf) -> OperatorTimes:
    """The predicted seconds of both models, by term, and the peaks of the machine that measures.

    After the time limit nothing more is measured.
    """
    with result_costs(result, config, seconds) as (term, end):
        cost = Cost(term)
        before = dict(cost.each(result.original.graph.outputs))
        after = dict(cost.each(result.model.graph.outputs)) if result.model is not result.original else before
        late = end - time.monotonic() < SECONDS
        return OperatorTimes(
            before, after, None if late else measured_peaks(term, _dtype(before), result.target.device)
        )


def _dtype(times: Mapping[Node, float]) -> str:
    """The dtype of the floats in which most of the time is spent."""
    spent: dict[str, float] = {}
    for node, seconds in times.items():
        if isinstance(node.type, Tensor) and is_float(node.type.dtype):
            spent[node.type.dtype] = spent.get(node.type.dtype, 0.0) + seconds
    return max(spent, key=spent.__getitem__, default="float32")


def measured_peaks(term: Weighted, dtype: str, device: Device) -> MeasuredPeaks | None:
    """One product and one sum that are large for the device; None where nothing is measured."""
    if not term.measured:
        return None
    side = 64 * max(1, round((device.flops * LONG / 2) ** (1 / 3) / 64))
    elements = int(device.bandwidth * LONG / numpy_dtype(dtype).itemsize / 3)
    products = [variable(name, Tensor(dtype, (side, side))) for name in ("x", "y")]
    summands = [variable(name, Tensor(dtype, (min(elements, LARGEST),))) for name in ("x", "y")]
    large = get("matmul").term(*products), get("add").term(*summands)
    times = term.in_turn([[each] for each in large], SECONDS)
    if times is None:
        return None
    done = [work(each, {}) for each in large]
    return MeasuredPeaks(done[0].flops / times[0], done[1].bytes / times[1], dtype)


def by_operator(times: OperatorTimes, sizes: Mapping[str, int]) -> list[OperatorPair]:
    """Every operator that runs, the one with the most time in both models first."""
    found: dict[str, OperatorPair] = {}
    counted_work = CountedWork(sizes)
    for side, nodes in (("before", times.before), ("after", times.after)):
        for node, seconds in nodes.items():
            pair = found.setdefault(node.op, OperatorPair(node.op))
            getattr(pair, side).add(seconds, *counted_work(node))
    return sorted(found.values(), key=lambda pair: -pair.seconds)


def profiled_pairs(profile: OperatorProfile) -> list[OperatorPair]:
    """The runtime's operators with their measured seconds, in the same order; the fused kernels of
    a model are one."""
    found: dict[str, OperatorPair] = {}
    for side, nodes in (("before", profile.before), ("after", profile.after)):
        for node in nodes:
            name = IN_KERNELS if KERNEL.fullmatch(node.operator) else node.operator
            getattr(found.setdefault(name, OperatorPair(name)), side).add(node.seconds, 0, 0)
    return sorted(found.values(), key=lambda pair: -pair.seconds)
