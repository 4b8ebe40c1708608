"""A kernel's body as lazy tensors: the values computed before, in and after its for-loop, and the
accumulators over the iterations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from taso_mirage.emit.cpu.buffer_layouts import product_strides
from taso_mirage.emit.cpu.lazy_meaning import LazyMeaning
from taso_mirage.emit.cpu.lazy_tensors import (
    LOWEST_FLOAT32,
    Contract,
    CppBuffer,
    LoopConstant,
    LoopValue,
    Map,
    Reduce,
    Strides,
    base_value,
)
from taso_mirage.emit.cpu.loop_schedule import Memory, Root
from taso_mirage.emit.cpu.nests import cpp_number
from taso_mirage.emit.statements import Statement, loop, tl, v
from taso_mirage.ir.dims import Dim
from taso_mirage.ir.mugraph import LoopPhase, Lowering, loop_phases
from taso_mirage.ir.terms import ABSENT, Graph, Node, users
from taso_mirage.meanings.variance import merged_variance
from taso_mirage.operators.interpret import interpret_term
from taso_mirage.operators.ops import traits


@dataclass
class CarriedValues:
    """The values that a for-loop keeps from one iteration to the next."""

    lazy: LazyMeaning
    memory: Memory
    initial: list[Statement] = field(default_factory=list)
    """Statements before the loop."""
    first: list[Root] = field(default_factory=list)
    last: list[Root] = field(default_factory=list)
    """Values at the end of an iteration."""
    lags: dict[Node, LoopValue] = field(default_factory=dict)
    """The old less the new value of each running maximum."""
    scales: dict[tuple[Node, int], LoopValue] = field(default_factory=dict)

    def running(self, node: Node, x: LoopValue) -> LoopValue:
        """The maximum so far: `largest` has that of earlier iterations, which begins low but
        finite."""
        old = self._room(x, "largest", LOWEST_FLOAT32)
        new = self.lazy.map(np.maximum, old, x)
        self.lags[node] = self.lazy.map(np.subtract, old, new)
        self.first.append((new, None, False))
        self.last.append((new, old, False))
        return new

    def accumulated(self, node: Node, x: LoopValue, alone: bool) -> LoopValue:
        """The sum or maximum of `x` over the iterations; `alone`: nothing else reads `x`."""
        over, degree = node.attr("over"), node.attr("degree")
        target = self._room(x, "sum" if over != "max" else "largest", float("-inf") if over == "max" else 0.0)
        if over == "max":
            self.first.append((self.lazy.map(np.maximum, target, x), target, False))
            return target
        if over == "rescaled" and degree:
            scale = self.lazy.expand(self._scale(node.args[1], degree), x.shape)
            self.first.append((self.lazy.map(np.multiply, target, scale), target, False))
        if not alone and isinstance(x, (Contract, Reduce)):
            self.first.append((x, None, False))
        self.first.append((x, target, True))
        return target

    def variance(self, part: LoopValue, part_mean: LoopValue) -> LoopValue:
        """The variance in one pass: `variance` and `mean` have those of earlier iterations, `count`
        the number of these."""
        variance, mean = self._room(part, "variance", 0.0), self._room(part_mean, "mean", 0.0)
        one = LoopConstant(part.dtype, (), 1.0)
        count = self._room(one, "count", 0.0)
        more = self.lazy.map(np.add, count, one)
        new, new_mean = merged_variance(self.lazy, variance, mean, part, part_mean, more)
        self.first += [(part_mean, None, False), (new, variance, False)]
        self.last += [(new_mean, mean, False), (more, count, False)]
        return variance

    def _scale(self, m: Node, degree: int) -> LoopValue:
        """The factor of the accumulated value, e^(degree (m_old - m_new))."""
        if (m, degree) not in self.scales:
            lag = self.lags[m]
            scaled = lag if degree == 1 else self.lazy.map(np.multiply, lag, LoopConstant(lag.dtype, (), float(degree)))
            self.scales[m, degree] = self.lazy.map(np.exp, scaled)
        return self.scales[m, degree]

    def _room(self, x: LoopValue, hint: str, start: float) -> CppBuffer:
        """A buffer that is kept over the iterations."""
        strides = product_strides(x, self.memory.buffers) if isinstance(x, Contract) else None
        found = self.memory.allocate(x, strides, hint)
        self.memory.mutable.add(found.name)
        first = tl.store(v[found.name]["i"], cpp_number(start, found.dtype))
        self.initial.append(loop("i", v.numbers(found.count), [first]))
        return found


@dataclass
class LoweredBody:
    """A body's terms as lazy tensors."""

    carried: CarriedValues
    graph: Graph
    fmap: Strides
    loop: Dim
    found: dict[Node, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.phases = loop_phases(self.graph, self.fmap, self.loop)
        self.reads = users(self.graph)

    def values(self, tiles: Mapping[Node, LoopValue]) -> list[LoopValue]:
        """The values of the body's outputs."""
        self.found.update(tiles)
        for node in self.graph:
            if node not in self.found and node is not ABSENT:
                self.found[node] = self._value(node, [None if a is ABSENT else self.found[a] for a in node.args])
        return [self.found[o] for o in self.graph.outputs]

    def invariants(self) -> list[LoopValue]:
        """Values that do not change in the loop but are read in it, or before and after it, if they
        are computed at all."""
        read = []
        for node in self.graph:
            after = {self.phases[user] for user in self.reads.get(node, ())}
            if self.phases[node] is LoopPhase.INVARIANT and (
                LoopPhase.LOOP in after or {LoopPhase.INVARIANT, LoopPhase.AFTER} <= after
            ):
                read.append(node)
        values = [base_value(self.found[n]) for n in read if isinstance(self.found[n], LoopValue)]
        return [x for x in values if isinstance(x, (Map, Reduce, Contract))]

    def _value(self, node: Node, args: list[Any]) -> Any:
        lowering = traits(node).lowering
        if lowering not in (Lowering.RUNNING, Lowering.ACCUMULATE):
            return interpret_term(node, self.carried.lazy, args)
        if self.loop == 1 or all(self.phases[a] is not LoopPhase.LOOP for a in node.args):
            return args[0]
        if lowering is Lowering.RUNNING:
            return self.carried.running(node, args[0])
        if node.attr("over") == "variance":
            return self.carried.variance(*args)
        return self.carried.accumulated(node, args[0], len(self.reads[node.args[0]]) == 1)
