"""Convolutions as kernels for the CPU: 3 x 3 with stride 1 by minimal filtering, with the sum and the relu that follow.

What they have in common with other goals is the evidence: a muGraph is verified against its goal, at small sizes, as its algebra hangs on
neither the channels nor how many tiles there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

from taso_mirage.expressions import is_weight
from taso_mirage.gpu import Device
from taso_mirage.ir import ABSENT, Graph, Node, Tensor, variable
from taso_mirage.kernels.search import Found
from taso_mirage.kernels.verify import Evidence, verified
from taso_mirage.meanings.work import work
from taso_mirage.ops import term
from taso_mirage.verify.refused import Refused

TILES = (4, 2)
"""Results of a tile along an axis."""
COUNTS, PARTS = (16, 32), (1, 2, 4)
"""Tiles of a block, and parts of the output channels; with more than one part there are at most BLOCKS blocks."""
BLOCKS = 16
LEAST = 4
"""Channels of a group, of data and of results: with fewer the transforms are nearly all of the work."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """A goal that is a convolution: its operands, and what follows."""

    x: Node
    w: Node
    b: Node
    z: Node
    pads: tuple[int, ...]
    relu: bool
    group: int = 1

    def goal(self) -> Node:
        """As the model has it."""
        attrs = {"strides": (1, 1), "pads": self.pads, "dilations": (1, 1), "group": self.group}
        made = term("conv", self.x, self.w, self.b, **attrs)
        made = made if self.z is ABSENT else term("add", made, self.z)
        return term("relu", made) if self.relu else made

    def mugraph(self, tile: int, block: tuple[int, int]) -> Node:
        """By minimal filtering."""
        operands = (self.x, self.w, self.b, self.z)
        how = {"pads": self.pads, "group": self.group, "tile": tile, "block": block, "relu": int(self.relu)}
        return term("winograd", *operands, **how)

    def small(self, tile: int) -> tuple[Convolution, tuple[Node, ...]]:
        """The same with few channels, groups and tiles, the last of which are cut as here; and its leaves."""
        groups = min(self.group, 2)
        sides = []
        for i, size in enumerate(self.x.shape[2:]):
            around = self.pads[i] + self.pads[i + 2] - 2
            results = int(size) + around
            side = tile + (results - 1) % tile + 1 - around
            sides.append(side + tile * max(0, -(-(3 - side) // tile)))
        leaves = {
            "x": Tensor("float32", (2, 2 * groups, *sides)),
            "w": Tensor("float32", (3 * groups, 2, 3, 3)),
            "b": Tensor("float32", (3 * groups,)),
            "z": Tensor(
                "float32", (2, 3 * groups, *(n + self.pads[i] + self.pads[i + 2] - 2 for i, n in enumerate(sides)))
            ),
        }
        x, w, b, z = (
            ABSENT if getattr(self, name) is ABSENT else variable(name, type) for name, type in leaves.items()
        )
        made = Convolution(x, w, b, z, self.pads, self.relu, groups)
        return made, tuple([leaf for leaf in (x, w, b, z) if leaf is not ABSENT])

    def mugraphs(self, graph: Graph, device: Device) -> list[Found]:
        """The verified muGraphs of the goal `graph`, which this is; by the model, that is by their multiplications, the fastest first."""
        found = []
        for tile, block in _blocks(self):
            evidence = _evidence(self.small(tile), tile)
            if isinstance(evidence, Evidence):
                made = Graph(graph.inputs, (self.mugraph(tile, block),))
                products = prod(map(int, (self.x.shape[0], *self.w.shape[:2]))) * _tiles(self, tile) * (tile + 2) ** 2
                seconds = 2 * products / device.flops
                found.append(Found(made, graph, seconds, device.name, evidence))
        return sorted(found, key=lambda each: each.seconds)

    def saved(self, device: Device) -> float:
        """Seconds that the kernel may save: half of those of the direct sum."""
        return work(self.goal(), {}).flops / 2 / device.flops


def is_convolution(node: Node) -> bool:
    """Whether a term of a model is one that there are kernels for."""
    if node.op != "conv" or node.dtype != "float32" or len(node.shape) != 4:
        return False
    (o, c, *_), group = node.args[1].shape, node.attr("group")
    return _fits(node) and min(o // group, c) >= LEAST and all(is_weight(a) for a in node.args[1:])


def _fits(node: Node) -> bool:
    """Whether a convolution is one that `Convolution` says: 3 x 3 with stride 1, no dilation and no negative pads."""
    same = all(node.attr(name) == (1, 1) for name in ("strides", "dilations"))
    return same and node.args[1].shape[2:] == (3, 3) and min(node.attr("pads")) >= 0


def followed(node: Node, users: Callable[[Node], Sequence[Node]], wanted: Callable[[Node], bool]) -> list[Node]:
    """A convolution of a model with the sum and the relu that alone read it."""
    members = [node]
    for op in ("add", "relu"):
        last = members[-1]
        readers = users(last)
        if wanted(last) or len(readers) != 1 or readers[0].op != op or readers[0].type != node.type:
            continue
        others = [a for a in readers[0].args if a is not last]
        if op == "relu" or (len(others) == 1 and others[0].type == node.type and not is_weight(others[0])):
            members.append(readers[0])
    return members


def convolution(goal: Graph) -> Convolution | None:
    """What a goal is that `followed` gave; None for others."""
    node = goal.outputs[0]
    relu = node.op == "relu"
    node = node.args[0] if relu else node
    z = ABSENT
    if node.op == "add":
        first = node.args[0].op != "conv"
        node, z = node.args[first], node.args[not first]
    if len(goal.outputs) != 1 or node.op != "conv" or not _fits(node):
        return None
    x, w, b = (*node.args, ABSENT)[:3]
    return Convolution(x, w, b, z, node.attr("pads"), relu, node.attr("group"))


@lru_cache(maxsize=256)
def _evidence(small: tuple[Convolution, tuple[Node, ...]], tile: int) -> Evidence | Refused:
    made, leaves = small
    mine, goal = made.mugraph(tile, (COUNTS[0], 1)), made.goal()
    return verified(Graph(leaves, (mine,)), Graph(leaves, (goal,)))


def _tiles(made: Convolution, tile: int) -> int:
    """Of one image."""
    sides = (int(n) + made.pads[i] + made.pads[i + 2] - 2 for i, n in enumerate(made.x.shape[2:]))
    return prod(-(-n // tile) for n in sides)


def _blocks(made: Convolution) -> Iterator[tuple[int, tuple[int, int]]]:
    for tile, count, parts in product(TILES, COUNTS, PARTS):
        blocks = int(made.x.shape[0]) * -(-_tiles(made, tile) // count)
        if parts == 1 or blocks * parts <= BLOCKS:
            yield tile, (count, parts)
