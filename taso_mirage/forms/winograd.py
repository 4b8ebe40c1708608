"""Convolutions as kernels for the CPU: with stride 1 by minimal filtering, with the elementwise
operators that follow.

The evidence is that of other goals: a muGraph is verified against its goal at small sizes, because
its algebra depends neither on the channels nor on the number of tiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod

from taso_mirage.devices.device import Device
from taso_mirage.emit.cpu.elementwise import has_cpp
from taso_mirage.emit.cpu.prepared import CpuProgram, TemplateInstance
from taso_mirage.forms.base.epilogues import ScalarFunction, around, of_results_or_channels, read_functions
from taso_mirage.forms.base.form import Form, IsWanted, Users
from taso_mirage.forms.base.members import RECTIFIED
from taso_mirage.ir.dims import Symbolic
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, variable
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.ops import term
from taso_mirage.operators.work import work
from taso_mirage.rewriting.forms import ADDED, RegionPattern
from taso_mirage.verdicts import Evidence, Failure

TILES: dict[int, tuple[int, ...]] = {1: (1, 1), 3: (4, 2), 5: (2, 2), 7: (4, 4)}
"""Results of a tile along an axis, by the kernel's size there: large ones and small ones."""
LARGEST = 25
"""The largest number of elements of a kernel; for larger kernels, only small tiles give results as
accurate as the direct sum."""
COUNTS, PARTS = (16, 32), (1, 2, 4)
"""Tiles of a block, and parts of the output channels; with more than one part there are at most
BLOCKS blocks."""
BLOCKS = 16
CONVOLVED = tuple(
    RegionPattern(f"conv({operands}, strides=(1, 1), pads=pads, dilations=(1, 1), group=group)")
    for operands in ("x, w, b", "x, w")
)
LEAST = 4
"""The smallest numbers of data channels and result channels of a group; with fewer, the transforms
are nearly all of the work."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """A goal that is a convolution: its operands, and its epilogue."""

    x: Node
    w: Node
    b: Node
    z: Node
    pads: tuple[int, ...]
    relu: bool
    group: int = 1
    follows: ScalarFunction | None = None
    """The function of the result, if more follows than a sum and a relu."""
    precedes: ScalarFunction | None = None
    """The function of the data."""
    slack = 1.0
    """The largest slow-down of the kernel alone, relative to the runtime."""
    large, once, joins, by_values = True, False, False, False
    together = "minimal filtering"

    @property
    def known(self) -> list[Node]:
        """The operands that are weights."""
        return [self.w]

    @property
    def kernel(self) -> tuple[int, ...]:
        """The kernel's height and width."""
        return tuple(map(int, self.w.shape[2:]))

    def _results(self, sides: Sequence[int]) -> list[int]:
        """The sizes of the results of such an image."""
        return [n + self.pads[i] + self.pads[i + 2] - self.kernel[i] + 1 for i, n in enumerate(sides)]

    def tiles(self, tile: tuple[int, int]) -> int:
        """The number of tiles of one image."""
        sides = self._results([int(n) for n in self.x.shape[2:]])
        return prod(-(-n // m) for n, m in zip(sides, tile, strict=True))

    def goal(self) -> Node:
        """The convolution as a model writes it."""
        attrs = {"strides": (1, 1), "pads": self.pads, "dilations": (1, 1), "group": self.group}
        x = self.x if self.precedes is None else self.precedes.of(self.x)
        made = term("conv", x, self.w, self.b, **attrs)
        made = made if self.z is ABSENT else term("add", made, self.z)
        made = term("relu", made) if self.relu else made
        return made if self.follows is None else self.follows.of(made)

    def mugraph(self, tile: tuple[int, int], block: tuple[int, int]) -> Node:
        """The term by minimal filtering."""
        operands = (self.x, self.w, self.b, self.z, *self.others)
        how = {"pads": self.pads, "group": self.group, "tile": tile, "block": block, "relu": int(self.relu)}
        body, prologue = (None if each is None else each.body for each in (self.follows, self.precedes))
        return term("winograd", *operands, body=body, prologue=prologue, **how)

    @property
    def others(self) -> tuple[Node, ...]:
        """The operands of both functions."""
        return tuple([a for each in (self.follows, self.precedes) if each is not None for a in each.others])

    def small(self, tile: tuple[int, int]) -> tuple[Convolution, tuple[Node, ...]]:
        """This convolution with few channels, groups and tiles, whose last tiles are cut in the
        same way, without the functions around it, which are the same terms in the goal; and its
        leaves."""
        groups = min(self.group, 2)
        kernel, sides = self.kernel, []
        for i, size in enumerate(self.x.shape[2:]):
            around, m = self.pads[i] + self.pads[i + 2] - kernel[i] + 1, tile[i]
            results = int(size) + around
            side = m + (results - 1) % m + 1 - around
            sides.append(side + m * max(0, -(-(kernel[i] - side) // m)))
        leaves = {
            "x": Tensor("float32", (2, 2 * groups, *sides)),
            "w": Tensor("float32", (3 * groups, 2, *kernel)),
            "b": Tensor("float32", (3 * groups,)),
            "z": Tensor("float32", (2, 3 * groups, *self._results(sides))),
        }
        x, w, b, z = (
            ABSENT if getattr(self, name) is ABSENT else variable(name, type) for name, type in leaves.items()
        )
        made = Convolution(x, w, b, z, self.pads, self.relu, groups)
        return made, tuple([leaf for leaf in (x, w, b, z) if leaf is not ABSENT])

    def mugraphs(self, graph: Graph, device: Device) -> list[FoundMuGraph]:
        """The verified muGraphs of `graph`, from which this goal was read; those with the fewest
        multiplications first."""
        found = []
        for tile, block in _blocks(self):
            evidence = _evidence(self.small(tile), tile)
            if isinstance(evidence, Evidence):
                made = Graph(graph.inputs, (self.mugraph(tile, block),))
                products = prod(map(int, (self.x.shape[0], *self.w.shape[:2]))) * self.tiles(tile)
                products *= prod(m + k - 1 for m, k in zip(tile, self.kernel, strict=True))
                seconds = 2 * products / device.flops
                found.append(FoundMuGraph(made, graph, seconds, device.name, evidence))
        return sorted(found, key=lambda each: each.seconds)

    def saved(self, device: Device) -> float:
        """Seconds that the kernel may save: half of those of the direct sum."""
        return work(self.goal(), {}).flops / 2 / device.flops


def is_convolution(node: Node) -> bool:
    """Whether a term of a model is one that there are kernels for."""
    if not isinstance(node.type, Tensor) or node.dtype != "float32" or len(node.tensor.shape or ()) != 4:
        return False
    found = _convolved(node)
    if found is None or min(found.w.shape[0] // found.group, found.w.shape[1]) < LEAST:
        return False
    return all(is_weight(a) for a in node.args[1:])


def _convolved(node: Node, z: Node = ABSENT, relu: bool = False) -> Convolution | None:
    """A convolution with its epilogue; None for other terms.

    It is of a kernel with tiles, with stride 1, no dilation and no negative pads.
    """
    names = next((found for each in CONVOLVED if (found := each.match(node)) is not None), None)
    if names is None or min(names["pads"]) < 0:
        return None
    kernel = names["w"].shape[2:]
    tiled = len(kernel) == 2 and set(kernel) <= set(TILES) and 1 < prod(map(int, kernel)) <= LARGEST
    operands = names["x"], names["w"], names.get("b", ABSENT)
    return Convolution(*operands, z, names["pads"], relu, names["group"]) if tiled else None


def convolution(goal: Graph) -> Convolution | None:
    """Read a goal of a convolution and its epilogue; None for other goals."""
    if len(goal.outputs) != 1:
        return None
    rectified = RECTIFIED.match(goal.outputs[0])
    node: Node = goal.outputs[0] if rectified is None else rectified["y"]
    summands = node.args if ADDED.match(node) is not None else ()
    sums = [(node, ABSENT), *zip(summands, summands[::-1], strict=True)]
    made = (_convolved(each, z, rectified is not None) for each, z in sums)
    given = {ABSENT, *(x for x in goal.inputs if x.type == node.type)}
    usual = next((each for each in made if each is not None and each.x in goal.inputs and each.z in given), None)
    return _followed(goal) if usual is None else usual


def _followed(goal: Graph) -> Convolution | None:
    """A convolution and any functions of its result, its data and given tensors."""
    (whole,) = goal.outputs
    found = read_functions(whole, lambda node: _convolved(node) is not None)
    made = None if found is None else _convolved(found[0])
    if found is None or made is None:
        return None
    _, follows, (data, precedes) = found
    made = replace(made, x=data, follows=follows, precedes=precedes)
    return made if made.goal() == whole and {made.x, *made.others} <= {*goal.inputs} else None


@lru_cache(maxsize=256)
def _evidence(small: tuple[Convolution, tuple[Node, ...]], tile: tuple[int, int]) -> Evidence | Failure:
    made, leaves = small
    mine, goal = made.mugraph(tile, (COUNTS[0], 1)), made.goal()
    return verified_mugraph(Graph(leaves, (mine,)), Graph(leaves, (goal,)))


def _blocks(made: Convolution) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    height, width = (TILES[k] for k in made.kernel)
    for tile, count, parts in product(dict.fromkeys(zip(height, width, strict=True)), COUNTS, PARTS):
        blocks = int(made.x.shape[0]) * -(-made.tiles(tile) // count)
        if parts == 1 or blocks * parts <= BLOCKS:
            yield tile, (count, parts)


# ---------------------------------------------------------------- the program


def _instance(node: Node) -> TemplateInstance:
    x, w = node.args[:2]
    group, tile, block = node.attr("group"), node.attr("tile"), node.attr("block")
    images, *sides = x.shape[0], *x.shape[2:]
    free = isinstance(images, Symbolic)
    data = 1 if free else images, group, w.shape[1], *sides
    result = w.shape[0] // group, *w.shape[2:], *node.shape[2:]
    return TemplateInstance(
        headers=("room.h", "winograd.h"),
        name="Winograd",
        block=block[0],
        sizes=(*data, *result, *node.attr("pads")[:2], *tile, *block),
        layout=(*tile, block[0]),
        sides=tile,
        switches=(bool(node.attr("relu")),),
        fixed=x.shape[1:],
        columns=2,
        results=f"Planes<{', '.join(map(str, (group, result[0], *node.shape[2:], *tile, *block)))}>",
        times=images if free else 1,
    )


def _members(node: Node, users: Users, wanted: IsWanted, sizes: Mapping[str, int]) -> list[Node]:
    if not is_convolution(node):
        return []
    return around(node, users, wanted, of_results_or_channels, has_cpp, is_convolution)


FORM = Form(CpuProgram("winograd", _instance), convolution, _members)
