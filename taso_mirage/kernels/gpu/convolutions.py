"""Convolutions as kernels for a GPU: with channels last, in half precision, with the sum and the
relu that follow.

Libraries are good at convolutions of many channels, far from the limit of memory at groups of few,
and leave sums and activations to kernels of their own. A goal is one term, `implicit_gemm`, whose
merged groups are those that are one in the model; its muGraphs are the same with others merged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, variable
from taso_mirage.kernels.codegen.gpu.convolution import is_flat
from taso_mirage.kernels.conversion import known_bias
from taso_mirage.kernels.gpu.in_operators import channels_first
from taso_mirage.kernels.gpu.ranking import ranked_mugraphs
from taso_mirage.kernels.search import FoundMuGraph
from taso_mirage.kernels.verify import verified_mugraph
from taso_mirage.operators.ops import term
from taso_mirage.operators.work import size
from taso_mirage.rewriting.forms import RegionPattern
from taso_mirage.targets.device import Device
from taso_mirage.verdicts import Evidence, Failure

HALF_FLOATS = ("float16", "bfloat16")
BLOCK = (64, 64, 64, 0)
"""The block of a goal, which is launched with none."""
PIXELS, COLUMNS, DEPTHS = (32, 64, 128), (32, 64, 128), (32, 64)
"""The sizes of a block: pixels, output channels, and channels of a step of its sum."""
DIAGONALS = 16, 32, 64
"""Channels of groups that are one matrix, at most."""
WRITTEN = 9
"""Steps of a sum that may be written one by one."""
BEST = 16
"""The number of muGraphs that are compiled and run."""
BOUND = 8.0
"""How many times as long as memory the operations of one group may take: libraries are good at
more. Where one convolution among kernels stays theirs, its layout is turned before and after."""
GROUPED = 5.0
"""About how many times as long as memory libraries take for groups of few channels."""
OPERATOR = "implicit_gemm"
CONVOLVED = tuple(
    RegionPattern(f"conv({operands}, strides=strides, pads=pads, dilations=dilations, group=group)")
    for operands in ("x, w, b", "x, w")
)


@dataclass(frozen=True, slots=True)
class ChannelsLastConvolution:
    """A goal that is a convolution: (n,h,w,g*c), (i,j,c,g*o), and its epilogue."""

    x: Node
    w: Node
    b: Node
    z: Node
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    group: int
    merged: int
    """The number of groups that are one in the model, whose weights have zeros for them."""
    relu: bool
    slack = 1.0
    """How many times as slow as the runtime's its kernel may be alone."""
    large, once, joins = True, False, False
    together = "channels last"

    @property
    def known(self) -> list[Node]:
        """The operands that are weights."""
        return [each for each in (self.w, self.b) if each is not ABSENT]

    @property
    def attrs(self) -> dict[str, Any]:
        """The attributes of the convolution without its groups."""
        return {"strides": self.strides, "pads": self.pads, "dilations": self.dilations}

    def goal(self) -> Node:
        """The convolution as a model writes it."""
        return self.mugraph(self.merged, BLOCK)

    def mugraph(self, merged: int, block: tuple[int, ...]) -> Node:
        """With so many groups as one, and blocks of this size."""
        how = {"group": self.group, "merged": merged, "block": block, "relu": int(self.relu)}
        return term(OPERATOR, self.x, self.w, self.b, self.z, **self.attrs, **how)

    def small(self, merged: int) -> tuple[ChannelsLastConvolution, Graph]:
        """This convolution with few channels, groups and pixels, whose last pixels are cut in the
        same way; and its goal, in operators of ONNX."""
        group = min(self.group // merged, 2) * merged
        own = 1 if self.merged == 1 else group
        *kernel, c, o = (int(n) for n in self.w.shape)
        few, made = min(c, 2), group * min(o // self.group, 3)
        sides = [self._side(i, kernel[i]) for i in range(2)]
        leaves = {"x": (2, *sides, group * few), "w": (*kernel, few, made), "b": (made,)}
        names = {"x": self.x, "w": self.w, "b": self.b}
        x, w, b = (
            ABSENT if names[name] is ABSENT else variable(name, Tensor("float32", shape))
            for name, shape in leaves.items()
        )
        attrs = (self.strides, self.pads, self.dilations, group, own)
        found = ChannelsLastConvolution(x, w, b, ABSENT, *attrs, self.relu)
        if self.z is not ABSENT:
            found = replace(found, z=variable("z", Tensor("float32", found.goal().shape)))
        given = tuple([each for each in (x, w, b, found.z) if each is not ABSENT])
        return found, Graph(given, (channels_first(found.goal()),))

    def _side(self, i: int, kernel: int) -> int:
        """An image's side that gives three results and leaves as much over as here."""
        around = self.pads[i] + self.pads[i + 2]
        reach = (kernel - 1) * self.dilations[i] + 1
        over = (int(self.x.shape[i + 1]) + around - reach) % self.strides[i]
        return max(2 * self.strides[i] + reach + over - around, 1)

    def mugraphs(self, graph: Graph, device: Device) -> list[FoundMuGraph]:
        """The verified muGraphs of the goal `graph`, which this is; by the model the fastest
        first. None where libraries do it best."""
        if self.saved(device) == 0:
            return []
        known = ((form, _evidence(*self.small(form[0]), form[0])) for form in self._forms())
        verified = ((self.mugraph(*form), found) for form, found in known if isinstance(found, Evidence))
        return ranked_mugraphs(verified, graph, device, BEST)

    def _forms(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Groups that are one matrix, and blocks."""
        *kernel, c, o = (int(n) for n in self.w.shape)
        each = o // self.group
        merged = dict.fromkeys(_largest_divisor(self.group, most // max(c, each)) for most in DIAGONALS)
        for m, pixels in product(merged, PIXELS):
            alone, flat = c == m == 1 < self.group, is_flat(self.goal())
            deep, taps = (kernel[1] * c if flat else m * c), (kernel[0] if alone or flat else prod(kernel))
            width, steps = (o if alone else m * each), (taps if alone else taps * -(-deep // DEPTHS[0]))
            columns = [n for n in COLUMNS if n < 2 * width] or COLUMNS[:1]
            depths = [1] if alone else [n for n in DEPTHS if n < 2 * deep] or DEPTHS[:1]
            for n, depth in product(columns if m == 1 else columns[-1:], depths if m == 1 else depths[-1:]):
                yield from ((m, (pixels, n, depth, one)) for one in (0, 1) if steps <= WRITTEN or not one)

    def saved(self, device: Device) -> float:
        """Seconds that the kernel may save: the movement of sums and activations, and the time of
        libraries for groups. None of one group that is bound by operations."""
        given = [each for each in (self.x, self.w, self.z) if each is not ABSENT]
        memory = sum(size(each.type) for each in (*given, self.goal())) / device.bandwidth
        if self.group > 1:
            return GROUPED * memory
        operations = 2 * prod(map(int, (*self.goal().shape[:3], *self.w.shape)))
        return memory if operations < BOUND * memory * device.flops else 0.0


def _largest_divisor(n: int, most: int) -> int:
    return max(d for d in range(1, max(min(n, most), 1) + 1) if n % d == 0)


@lru_cache(maxsize=256)
def _evidence(small: ChannelsLastConvolution, goal: Graph, merged: int) -> Evidence | Failure:
    block = (PIXELS[0], COLUMNS[0], DEPTHS[0], 0)
    return verified_mugraph(Graph(goal.inputs, (small.mugraph(merged, block),)), goal)


def read_convolution(goal: Graph) -> ChannelsLastConvolution | None:
    """Read a goal of a convolution with channels last; None for other goals."""
    if len(goal.outputs) != 1 or goal.outputs[0].op != OPERATOR or goal.outputs[0].dtype not in HALF_FLOATS:
        return None
    (node,) = goal.outputs
    x, w, b, z = (*node.args, ABSENT, ABSENT)[:4]
    attrs: dict[str, Any] = {name: value for name, value in node.attrs if name != "block"}
    return ChannelsLastConvolution(x, w, b, z, **{**attrs, "relu": bool(attrs["relu"])})


def is_half_convolution(node: Node) -> bool:
    """Whether a term of a model is a convolution of images in half precision, with stored weights
    and channels of fixed sizes."""
    found = next((names for each in CONVOLVED if (names := each.match(node)) is not None), None)
    if found is None or node.dtype not in HALF_FLOATS or len(node.shape) != 4 or found["w"].op != "weight":
        return False
    return min(found["pads"]) >= 0 and known_bias(found.get("b", ABSENT)) is not None
