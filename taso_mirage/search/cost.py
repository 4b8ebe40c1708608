"""Cost: seconds of a graph on the target, from measured operators in the context in which the
runtime runs them, or by a roofline.

A *fusion context* is a term with the producers that the runtime fuses it with, or keeps in the same
layout: a convolution and the activation behind it. The term costs the seconds that it adds to them.
The runtime decides which terms belong together: it reports the nodes into which it turns a small
model. Therefore no list of its fusions is needed.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from taso_mirage.errors import RuntimeUnavailable, TasoMirageError
from taso_mirage.ir.terms import Node, topological
from taso_mirage.measure import tasks
from taso_mirage.measure.child import in_child
from taso_mirage.measure.cost_cache import CostCache
from taso_mirage.measure.load import observed_load
from taso_mirage.measure.shapes import Workloads
from taso_mirage.measure.target import Target
from taso_mirage.measure.target import target_for as placed
from taso_mirage.onnx_io import serialize, serialize_apart
from taso_mirage.onnx_io.external import FileOfZeros
from taso_mirage.operators.expressions import is_weight
from taso_mirage.rewriting.match_keys import MatchKey, canonical_terms, match_key
from taso_mirage.search.fusion_context import (
    UNREAD,
    FusionContext,
    Pattern,
    Running,
    concrete,
    context_model,
    described_terms,
    description,
    running,
)
from taso_mirage.search.orders import in_one_order
from taso_mirage.search.passes import Context
from taso_mirage.search.prediction import PredictedCost, correction_of, fusion_label
from taso_mirage.system.spending import Purpose, spent
from taso_mirage.targets.protocol import ZEROS
from taso_mirage.version import __version__

FREE = frozenset({"input", "weight", "constant", "extents", "item", "absent", "opaque"})
FRESH = 10.0
"""Seconds for which a reading of the load holds: the rewriters of one command agree."""
DEPTH = 3
"""How many terms in a row take part in a fusion context."""
SMALL, COPIES = 1 << 20, 8
"""The number of bytes below which a fusion context is measured in COPIES copies at once, because
one copy takes less time than the start of a run."""
ENOUGH = 8
"""The number of measured terms that determine the error of rooflines on this machine."""
CONTEST, GAIN = 0.4, 1.02
"""Seconds for measuring the cheapest states of a part, and the factor by which a state must be
faster than an earlier one."""
UNMEASURABLE = (RuntimeUnavailable, TasoMirageError, LookupError, TypeError, ValueError)


class TermCost(Protocol):
    """Seconds of terms, given their sizes."""

    def seconds(self, fusion: FusionContext) -> float:
        """The seconds that the fusion context's term adds to its producers."""
        ...

    def joined(self, producer: FusionContext, node: Node) -> bool:
        """Whether the runtime runs a term and its producer, which has no other user, as one node,
        or keeps a layout between them."""
        ...


@dataclass
class Cost:
    """Seconds of a graph: the sum over its terms. Terms that depend on weights only are computed
    once, before the run, and cost nothing."""

    term: TermCost
    _placed: dict[tuple[Node, tuple[FusionContext, ...]], tuple[FusionContext, float]] = field(default_factory=dict)
    _alike: dict[tuple[MatchKey, Pattern], tuple[tuple[int, ...], float]] = field(default_factory=dict)

    def __call__(self, outputs: Sequence[Node]) -> float:
        return math.fsum(seconds for _, seconds in self.each(outputs))  # independent of the order of the terms

    def each(self, outputs: Sequence[Node]) -> Iterator[tuple[Node, float]]:
        """Every term that runs, operands first, and the seconds that it adds to the graph."""
        order = topological(outputs)
        uses = Counter(a for n in order for a in set(n.args))
        uses.update(outputs)
        fusions: dict[Node, FusionContext] = {}
        for node in order:
            if not _runs(node):
                continue
            sole = tuple([fusions[a] for a in dict.fromkeys(node.args) if uses[a] == 1 and a in fusions])
            fusions[node], seconds = self._placed.get((node, sole)) or self._place(node, sole)
            yield node, seconds

    def of(self, node: Node) -> float:
        """Seconds of one term alone."""
        return self._place(node, ())[1] if _runs(node) else 0.0

    def _place(self, node: Node, sole: tuple[FusionContext, ...]) -> tuple[FusionContext, float]:
        """The fusion context of a term over producers that only it uses, and the seconds that it
        adds to them. The answer is computed once for all terms with the same context."""
        near = tuple([s.cut(DEPTH - 1) for s in sole])
        row, terms = match_key(node, DEPTH)
        key = row, tuple([(terms.index(s.node), s.pattern(terms)) for s in near])
        if key not in self._alike:
            self._alike[key] = self._asked(node, near, dict(zip(terms, canonical_terms(row, terms), strict=True)))
        joined, seconds = self._alike[key]
        self._placed[node, sole] = found = FusionContext(node, tuple([near[i] for i in joined])), seconds
        return found

    def _asked(
        self, node: Node, near: Sequence[FusionContext], to: Mapping[Node, Node]
    ) -> tuple[tuple[int, ...], float]:
        """The indices of the producers that the runtime joins with a term, and the seconds that it
        adds, over canonical terms."""
        producers = [s.over(to) for s in near]
        joined = tuple(i for i, s in enumerate(producers) if self.term.joined(s, to[node]))
        return joined, self.term.seconds(FusionContext(to[node], tuple(producers[i] for i in joined)))


def _runs(node: Node) -> bool:
    return node.op not in FREE and not is_weight(node)


class Roofline:
    """An analytic cost, for machines and operators that cannot be measured."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def seconds(self, fusion: FusionContext) -> float:
        slow = self.context.target.device.operator.slow.get(fusion.node.op, 1.0)
        return slow * self.context.estimate(fusion.node)

    def joined(self, producer: FusionContext, node: Node) -> bool:
        return False


class MeasuredCost:
    """The cost of fusion contexts measured on ONNX Runtime, by the child process or by an executor.

    If that is impossible, the cost is the roofline times the error of the roofline at the measured
    terms, so measured and predicted terms of a graph are on one scale.
    """

    def __init__(self, context: Context, cache: CostCache, executor: Executor | None = None) -> None:
        self.context, self.cache, self.executor = context, cache, executor
        self.target = context.target if executor is not None else _clocked(context.target)
        self.fallback = Roofline(context)
        self._ratios: list[float] = []
        """Measured seconds over the roofline, of the measured terms."""
        self.measured = 0
        self.deadline = math.inf
        """The monotonic time from which nothing more is measured, only looked up: a new term then
        costs its roofline."""
        self._known: dict[FusionContext, float] = {}
        self._described: dict[FusionContext, str | None] = {}
        self._seconds: dict[str, float | None] = {}
        self._joined: dict[tuple[FusionContext, Node], bool] = {}
        self._keys: dict[Target, str] = {}

    def seconds(self, fusion: FusionContext) -> float:
        if fusion not in self._known:
            self._known[fusion] = self._added(fusion)
        return self._known[fusion]

    def _added(self, fusion: FusionContext) -> float:
        whole = self._time(fusion)
        parts = [self._time(p) for p in fusion.producers]
        if whole is None or None in parts:
            alone = FusionContext(fusion.node)
            return self.seconds(alone) if fusion.producers else self._scaled(fusion)
        if not parts:
            self._ratios.append(whole / self.fallback.seconds(fusion))
        return max(whole - sum(p for p in parts if p is not None), 0.0)

    def _scaled(self, fusion: FusionContext) -> float:
        usual = float(np.median(self._ratios)) if len(self._ratios) >= ENOUGH else 1.0
        return usual * self.fallback.seconds(fusion)

    def joined(self, producer: FusionContext, node: Node) -> bool:
        key = producer, node
        if key not in self._joined:
            counts = [self._count(s) for s in (FusionContext(node, (producer,)), producer, FusionContext(node))]
            whole, *parts = counts
            self._joined[key] = whole is not None and None not in parts and whole < sum(p for p in parts if p)
        return self._joined[key]

    def _time(self, fusion: FusionContext) -> float | None:
        if not fusion.producers:
            fusion = FusionContext(in_one_order(fusion.node))
        return self._measured("seconds", fusion, COPIES if self._moved(fusion) < SMALL else 1)

    def _count(self, fusion: FusionContext) -> float | None:
        return self._measured("kernels", fusion, 1)

    def _moved(self, fusion: FusionContext) -> int:
        counted = [self.context.work(n) for n in fusion.terms]
        return sum(w.bytes for w in counted if w is not None)

    def _measured(self, what: str, fusion: FusionContext, copies: int) -> float | None:
        """The measurement for a key: from memory, from disk, or made now. None if the runtime does
        not support the fusion context."""
        if (described := self._description(fusion)) is None:
            return None
        key = f"{what} {copies} {described}"
        if key not in self._seconds:
            target = placed(self.target, [n.op for n in fusion.terms])
            late = time.monotonic() > self.deadline
            if late and target not in self._keys:  # not even the device is queried
                return None
            found = self.cache.get(self.device(target), key)
            if found is None and late:
                return None
            if found is None:
                found = self._now(what, fusion, copies, target)
                if found is not None:
                    self.cache.put(self.device(target), key, found)
            self._seconds[key] = found
        return self._seconds[key]

    def _description(self, fusion: FusionContext) -> str | None:
        """None if a size is known only at run time."""
        if fusion not in self._described:
            try:
                self._described[fusion] = description(fusion, self.context)
            except UNMEASURABLE:
                self._described[fusion] = None
        return self._described[fusion]

    def _now(self, what: str, fusion: FusionContext, copies: int, target: Target) -> float | None:
        try:
            self.measured += 1
            if what == "kernels":
                return self._counted(fusion, target)
            content = serialize(context_model(fusion, self.context, copies))
            return _number(self._run(tasks.operator_seconds, content, target)) / copies
        except UNMEASURABLE:
            return None

    def _counted(self, fusion: FusionContext, target: Target) -> float:
        """The number of nodes of a fusion context. The runtime is not asked to run them, so large
        weights are zeros where it takes them from a file."""
        if not target.shares:
            return _number(self._run(tasks.counted_nodes, serialize(context_model(fusion, self.context)), target))
        zeros = FileOfZeros(ZEROS)
        content, _ = serialize_apart(context_model(fusion, self.context, valued=False), above=UNREAD, files=zeros)
        return _number(self._run(tasks.counted_nodes, content, target, zeros.size))

    def device(self, target: Target | None = None) -> str:
        """The machine that measures, by a target, and this version, as a key."""
        target = target or self.target
        if target not in self._keys:
            self._keys[target] = f"{self._run(tasks.device_key, target)} | taso-mirage {__version__}"
        return self._keys[target]

    @spent(Purpose.OPERATORS)
    def _run(self, function: Any, *args: Any) -> Any:
        return in_child(function, *args) if self.executor is None else self.executor.submit(function, *args).result()

    def in_turn(self, states: Sequence[Sequence[Node]], seconds: float) -> list[float] | None:
        """Seconds of several equal graphs as they are, measured in turn for the given time; None if
        the runtime does not support one of them."""
        try:
            described = "\n".join(described_terms(running(s), s, self.context) for s in states)
            name = hashlib.sha256(described.encode()).hexdigest()
            known = [self.cache.get(self.device(), f"in turn {name} {i}") for i in range(len(states))]
            times = [t for t in known if t is not None]
            if len(times) < len(states):
                contents = [serialize(concrete(s, Running(), self.context)) for s in states]
                times = [*map(_number, self._run(tasks.in_turn, contents, self.target, seconds))]
                if len(times) != len(states):
                    raise ValueError(f"{len(times)} times of {len(states)} models")
                for i, taken in enumerate(times):
                    self.cache.put(self.device(), f"in turn {name} {i}", taken)
        except UNMEASURABLE:
            return None
        return times


def _clocked(target: Target) -> Target:
    """The target with the clock that this machine can use now. The choice holds for a whole
    command, because times of two clocks cannot be added."""
    return target if target.serial is None else observed_load(FRESH).clock(target)


def _number(answer: Any) -> float:
    """Validate a measurement. Raises ValueError or
    TypeError if it is not a number of seconds or nodes."""
    number = float(answer)
    if not 0 <= number < math.inf:
        raise ValueError(f"a measurement of {number}")
    return number


class AheadCost:
    """Predicted seconds in which the runtime says which terms it fuses. This needs no measurement,
    so the cost is the same every time.

    The runtime is not asked about terms whose fusion is always the same, nor if no time is left.
    """

    def __init__(self, predicted: PredictedCost, measured: MeasuredCost) -> None:
        self.predicted, self.measured = predicted, measured

    def seconds(self, fusion: FusionContext) -> float:
        return self.predicted.seconds(fusion)

    def joined(self, producer: FusionContext, node: Node) -> bool:
        surely = self.predicted.correction.surely_joined(fusion_label(FusionContext(node, (producer,))))
        if surely is None and time.monotonic() <= self.measured.deadline:
            return self.measured.joined(producer, node)
        return self.predicted.joined(producer, node)


def ahead(measured: MeasuredCost) -> TermCost:
    """The predicted form of a measured cost; the cost itself, where no machine of its kind is
    known."""
    known = correction_of(measured.context.target.name)
    return measured if known is None else AheadCost(PredictedCost(measured.context, known), measured)


class Weighted:
    """The cost at several sets of sizes: its cost at each, times the share of that set.

    Measured with a cache, else rooflines.

    `workloads` are the sets with their shares, which sum to 1; the rest of `context` holds for all.
    `by`: the cost of the terms that could be measured.
    """

    def __init__(
        self,
        context: Context,
        workloads: Workloads,
        cache: CostCache | None,
        executor: Executor | None = None,
        by: Callable[[MeasuredCost], TermCost] = lambda measured: measured,
    ) -> None:
        contexts = [Context(context.opsets, sizes, context.available, context.target) for sizes, _ in workloads]
        self.shares = [share for _, share in workloads]
        self.measured = [] if cache is None else [MeasuredCost(c, cache, executor) for c in contexts]
        self.terms: Sequence[TermCost] = [*map(by, self.measured)] or [Roofline(c) for c in contexts]

    def seconds(self, fusion: FusionContext) -> float:
        return self._sum([term.seconds(fusion) for term in self.terms])

    def joined(self, producer: FusionContext, node: Node) -> bool:
        """Whether the terms are fused at some of the sizes; at the others, the term's own cost is
        added."""
        return any(term.joined(producer, node) for term in self.terms)

    def device(self) -> str:
        """Where it measures; empty where it does not."""
        return self.measured[0].device() if self.measured else ""

    @property
    def late(self) -> bool:
        """Whether nothing more is measured."""
        return any(time.monotonic() > each.deadline for each in self.measured)

    def measure_until(self, deadline: float) -> None:
        """Set the monotonic time after which nothing is measured."""
        for each in self.measured:
            each.deadline = deadline

    def in_turn(self, states: Sequence[Sequence[Node]], seconds: float = CONTEST) -> list[float] | None:
        """Seconds of several equal graphs, measured in turn at every set of sizes; None where that
        cannot be done."""
        times = [each.in_turn(states, seconds / len(self.measured)) for each in self.measured]
        found = [t for t in times if t is not None]
        return [self._sum(each) for each in zip(*found, strict=True)] if found and None not in times else None

    def fastest(self, states: Sequence[Sequence[Node]]) -> int:
        """The index of the graph that is measured fastest among equal ones: the first of those that
        none is faster than by GAIN."""
        times = self.in_turn(states) or [1.0]
        return next(i for i, each in enumerate(times) if each <= GAIN * min(times))

    def _sum(self, seconds: Sequence[float]) -> float:
        return sum(share * each for share, each in zip(self.shares, seconds, strict=True))
