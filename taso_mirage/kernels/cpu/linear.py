"""Products with a weight as kernels for the CPU, with the sums that follow: the weights lie as they
are read.

A runtime's product of one row waits for its weights, and those for the translation of their
addresses: they come 1.2 times as fast from large pages, in which a kernel may keep them, and twice
as fast where they are numbers of half the width, as a checkpoint's often are. One of more rows is
bound by arithmetic, which a runtime is good at, but not at every size (bench/README.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, prod

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.dims import fixed
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, variable
from taso_mirage.kernels.patterns import ADDED, RegionPattern
from taso_mirage.kernels.search import FoundMuGraph
from taso_mirage.kernels.verify import verified_mugraph
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.ops import term
from taso_mirage.operators.work import work
from taso_mirage.targets.device import Device
from taso_mirage.targets.machine import cores
from taso_mirage.verdicts import Evidence, Failure

FEW = 8
"""Rows up to which weights may lie in their narrow format (`linear.h`)."""
THIN, WIDE = ((64, FEW), (32, FEW), (16, FEW)), ((48, 9), (64, 6), (32, 12), (16, 6))
"""Columns of a strip of the weights, multiples of the longest vectors, and rows of a tile: of few
rows, and of more."""
TASKS = 4
"""Blocks for every core, at least, where the rows can be cut."""
LEAST = 1 << 18
"""Elements of the weights: fewer stay in caches."""
MULTIPLIED = RegionPattern("matmul(x, w)")
SUMS = RegionPattern("add(add(matmul(x, w), p), q)"), RegionPattern("add(matmul(x, w), p)"), MULTIPLIED
SAVED = 0.2, 0.1
"""About what is saved of the time in which weights come from memory, and of that of the
arithmetic."""


@dataclass(frozen=True, slots=True)
class WeightProduct:
    """A goal that is a product with a weight: its operands, in the order of the operator
    `linear`."""

    x: Node
    w: Node
    b: Node
    z: Node

    def goal(self) -> Node:
        """As the model has it."""
        made = term("matmul", self.x, self.w)
        for other in (self.b, self.z):
            made = made if other is ABSENT else term("add", made, other)
        return made

    def mugraph(self, block: tuple[int, int, int]) -> Node:
        """With prepared weights."""
        return term("linear", self.x, self.w, self.b, self.z, block=block)

    def mugraphs(self, graph: Graph, device: Device) -> list[FoundMuGraph]:
        """The verified muGraphs of the goal `graph`, which this is; the model tells them not
        apart."""
        evidence = _evidence(len(self.x.shape), self.b is not ABSENT, self.z is not ABSENT)
        if not isinstance(evidence, Evidence):
            return []
        seconds = max(self._seconds(device))
        graphs = [Graph(graph.inputs, (self.mugraph(block),)) for block in self._blocks()]
        return [FoundMuGraph(each, graph, seconds, device.name, evidence) for each in graphs]

    def saved(self, device: Device) -> float:
        """Seconds that the kernel may save."""
        return max(share * seconds for share, seconds in zip(SAVED, self._seconds(device), strict=True))

    @property
    def large(self) -> bool:
        """Whether no cache keeps its weights."""
        return prod(map(int, self.w.shape)) >= LEAST

    @property
    def slack(self) -> float:
        """How many times as slow as the runtime's its kernel may be alone: of memory, the whole
        model says more."""
        return inf if self.thin else 1.0

    @property
    def thin(self) -> bool:
        """Whether it has so few rows that it waits for its weights."""
        return prod(map(int, self.x.shape[:-1])) <= FEW

    def _seconds(self, device: Device) -> tuple[float, float]:
        """For the weights to come from memory, and for the arithmetic."""
        return 4 * prod(map(int, self.w.shape)) / device.bandwidth, work(self.goal(), {}).flops / device.flops

    def _blocks(self) -> Iterator[tuple[int, int, int]]:
        rows = prod(map(int, self.x.shape[:-1]))
        for columns, most in THIN if self.thin else WIDE:
            strips, tiles, parts = -(-int(self.w.shape[1]) // columns), -(-rows // most), 1
            while strips * parts < TASKS * cores() and 2 * parts <= tiles:
                parts *= 2
            yield columns, most, parts


def is_product(node: Node, sizes: Mapping[str, int]) -> bool:
    """Whether a term of a model is one that there are kernels for, its symbols at these sizes."""
    found = _multiplied(node, sizes)
    return found is not None and is_weight(found[1]) and prod(map(int, found[1].shape)) >= LEAST


def _multiplied(node: Node, sizes: Mapping[str, int]) -> tuple[Node, Node] | None:
    """The operands of a product in single precision of some rows with a matrix; None for others."""
    names = MULTIPLIED.match(node)
    if names is None or node.dtype != "float32":
        return None
    x, w = names["x"], names["w"]
    try:
        rows = prod(fixed(x.shape, sizes)[:-1])
    except (LookupError, TasoMirageError):  # a size that hangs on the data
        return None
    fits = len(x.shape) > 1 and len(w.shape) == 2 and all(isinstance(n, int) for n in w.shape) and rows > 0
    return (x, w) if fits else None


def followed_product(node: Node, users: Callable[[Node], Sequence[Node]], wanted: Callable[[Node], bool]) -> list[Node]:
    """A product of a model with the sums that alone read it: of a bias, then of what has the shape
    of the result."""
    members = [node]
    for added in ((node.dtype, node.shape[-1:]), (node.dtype, node.shape)):
        last = members[-1]
        readers = users(last)
        if wanted(last) or len(readers) != 1 or ADDED.match(readers[0]) is None or readers[0].type != node.type:
            continue
        others = [a for a in readers[0].args if a is not last]
        if len(others) == 1 and (others[0].dtype, others[0].shape) == added:
            members.append(readers[0])
    return members


def weight_product(goal: Graph) -> WeightProduct | None:
    """What a goal is that `followed_product` gave; None for others."""
    whole = goal.outputs[0]
    names = next((found for each in SUMS if (found := each.match(whole)) is not None), None)
    if names is None or len(goal.outputs) != 1:
        return None
    x, w, more = names["x"], names["w"], [names[name] for name in "qp" if name in names]
    node = term("matmul", x, w)
    if _multiplied(node, {}) is None or node.type != whole.type or not {x, w, *more} <= {*goal.inputs}:
        return None
    b = more.pop() if more and more[-1].shape == node.shape[-1:] else ABSENT
    z = more.pop() if more else ABSENT
    return None if more or (z is not ABSENT and z.type != node.type) else WeightProduct(x, w, b, z)


@lru_cache
def _evidence(rank: int, bias: bool, sum: bool) -> Evidence | Failure:
    """At small sizes: the algebra hangs on none of them."""
    rows = (2,) * (rank - 1)
    x, w = variable("x", Tensor("float32", (*rows, 3))), variable("w", Tensor("float32", (3, 5)))
    b = variable("b", Tensor("float32", (5,))) if bias else ABSENT
    z = variable("z", Tensor("float32", (*rows, 5))) if sum else ABSENT
    made, leaves = WeightProduct(x, w, b, z), tuple([leaf for leaf in (x, w, b, z) if leaf is not ABSENT])
    return verified_mugraph(Graph(leaves, (made.mugraph((16, 8, 1)),)), Graph(leaves, (made.goal(),)))
