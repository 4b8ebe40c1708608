"""Convolutions as kernels for a GPU: with channels last, in half precision, with the elementwise
operators that follow.

Libraries are fast for convolutions of many channels, but far from the memory limit for groups of
few channels, and they run sums and activations as separate kernels. A goal is one term,
`implicit_gemm`, whose merged groups are those of the model; its muGraphs merge other numbers of
groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import gcd, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taso_mirage.devices.device import Device
from taso_mirage.emit.gpu.convolution import ConvolutionBlock, is_flat
from taso_mirage.emit.gpu.epilogue import has_triton
from taso_mirage.emit.gpu.forms import GpuProgram
from taso_mirage.emit.gpu.tiles import HALF_FLOATS
from taso_mirage.forms.base.blocked_goal import ranked_mugraphs
from taso_mirage.forms.base.conversion import Conversion, known_bias, stored_array
from taso_mirage.forms.base.epilogues import around, data_function, of_results_or_channels, scalar_function
from taso_mirage.forms.base.form import Form, IsWanted, ModelTerms, Users, own_terms
from taso_mirage.forms.base.in_operators import FIRST, INNERMOST, LAST, channels_first, dense_weights, of_channels
from taso_mirage.forms.base.members import summed_and_rectified
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, is_constant, variable
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.operators.ops import term
from taso_mirage.operators.work import size
from taso_mirage.rewriting.forms import RegionPattern
from taso_mirage.verdicts import Evidence, Failure

BLOCK = (64, 64, 64, 0)
"""The placeholder of a block in a goal, which is never launched."""
PIXELS, COLUMNS, DEPTHS = (32, 64, 128), (32, 64, 128), (32, 64)
"""The sizes of a block: pixels, output channels, and channels of a step of its sum."""
DIAGONALS = 16, 32, 64
"""The largest number of channels of groups that form one matrix."""
WRITTEN = 9
"""The largest number of steps of a sum that are written out."""
BEST = 16
"""The number of muGraphs that are compiled and run."""
BOUND = 8.0
"""The largest ratio of the time of one group's operations to the time of its memory traffic; beyond
it, libraries are faster. A single convolution of a library among kernels requires layout changes
before and after it."""
GROUPED = 5.0
"""The approximate ratio of a library's time to the time of the memory traffic for groups of few
channels."""
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
    """The number of groups that are merged in the model, whose weights have zeros for them."""
    relu: bool
    others: tuple[Node, ...] = ()
    body: Graph | None = None
    """The function of the result and the other tensors, if more follows than a sum and a relu."""
    prologue: Graph | None = None
    """The function of the data and the remaining tensors."""
    slack = 1.0
    """How many times as slow as the runtime's its kernel may be alone."""
    large, once, joins, by_values = True, False, False, False
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
        """The term with this number of merged groups and this block size."""
        how = {"group": self.group, "merged": merged, "block": block, "relu": int(self.relu)}
        how |= {"body": self.body, "prologue": self.prologue}
        return term(OPERATOR, self.x, self.w, self.b, self.z, *self.others, **self.attrs, **how)

    def small(self, merged: int) -> tuple[ChannelsLastConvolution, Graph]:
        """This convolution with few channels, groups and pixels, whose last pixels are cut in the
        same way; and its goal, in operators of ONNX. The functions around it are the same terms in
        both and are left out."""
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
        """The verified muGraphs of `graph`, from which this goal was read; the fastest by the model
        of the device first. None where libraries do it best."""
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
        given = [each for each in (self.x, self.w, self.z, *self.others) if each is not ABSENT]
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
    return ChannelsLastConvolution(x, w, b, z, others=node.args[4:], **{**attrs, "relu": bool(attrs["relu"])})


def is_half_convolution(node: Node) -> bool:
    """Whether a term of a model is a convolution of images in half precision, with stored weights
    and channels of fixed sizes."""
    found = next((names for each in CONVOLVED if (names := each.match(node)) is not None), None)
    if found is None or node.dtype not in HALF_FLOATS or len(node.shape) != 4 or found["w"].op != "weight":
        return False
    return min(found["pads"]) >= 0 and known_bias(found.get("b", ABSENT)) is not None


# ---------------------------------------------------------------- the model


def _members(node: Node, users: Users, wanted: IsWanted, position: Mapping[Node, int]) -> list[Node]:
    if not is_half_convolution(node):
        return []
    return around(node, users, wanted, of_results_or_channels, has_triton, is_half_convolution, position)


def _converted(members: Sequence[Node], model: Conversion) -> Node:
    """A convolution with its epilogue, whose last term the others read."""
    place = next(i for i, node in enumerate(members) if is_half_convolution(node))
    conv = members[place]
    w = conv.args[1]
    b = _bias(conv, model)
    array, whole = model.weights[w.attr("name")].numpy(), conv.attr("group")
    merged = parts_of_groups(array, whole)
    group = whole * merged
    packed = grouped_weights(array, group, whole).transpose(INNERMOST)

    def stands_for(made: Node) -> Node | None:
        return model.originals.get(dense_weights(made, group, merged))

    own = model.weight(f"channels_last_{group}_{merged}", packed, w, stands_for)
    model.originals[dense_weights(own, group, merged)] = w
    x, before = data_function(conv, members[:place])
    usual = summed_and_rectified(members[place:])
    after = scalar_function(members[place:]) if usual is None else None
    z, relu = usual or (ABSENT, False)
    others = [with_channels_last(a, model) for each in (after, before) if each is not None for a in each.others]
    functions = [None if each is None else each.body for each in (after, before)]
    image, z = (each if each is ABSENT else term("transpose", model.done[each], perm=LAST) for each in (x, z))
    strides, pads, dilations = (conv.attr(name) for name in ("strides", "pads", "dilations"))
    attrs = (strides, pads, dilations, group, merged, relu, tuple(others), *functions)
    made = ChannelsLastConvolution(image, own, b, z, *attrs)
    return term("transpose", made.goal(), perm=FIRST)


def with_channels_last(operand: Node, model: Conversion) -> Node:
    """An operand of an epilogue: a computed tensor, or a weight with a number for each channel."""
    if operand.op != "weight":
        return term("transpose", model.done[operand], perm=LAST)
    array = model.weights[operand.attr("name")].numpy().reshape(-1)
    own = model.weight("channels", array, operand, lambda made: model.originals.get(of_channels(made)))
    model.originals[of_channels(own)] = operand
    return own


def _bias(conv: Node, model: Conversion) -> Node:
    """The bias of such a convolution, as a weight where the model has a constant."""
    b = known_bias((*conv.args, ABSENT)[2])
    assert b is not None  # as asked before
    if not is_constant(b):
        return b
    own = model.weight("bias", stored_array(b, model.weights), b, model.originals.get)
    model.originals[own] = b
    return own


def parts_of_groups(array: NDArray[np.generic], group: int) -> int:
    """The largest number of groups into which each group of weights (g*o,c,i,j) can be divided:
    weights are zero where one of them would read the channels of another."""
    o, c = array.shape[:2]
    if array.reshape(group, o // group, c, -1)[:, 0, -1].any():  # the first sees the last
        return 1
    seen = (array != 0).reshape(group, o // group, c, -1).any(axis=(0, 3))
    common = gcd(o // group, c)
    for parts in sorted((d for d in range(1, common + 1) if common % d == 0), reverse=True):
        blocks = seen.reshape(parts, o // group // parts, parts, c // parts).any(axis=(1, 3))
        if not (blocks & ~np.eye(parts, dtype=bool)).any():
            return parts
    return 1


def grouped_weights(array: NDArray[np.generic], group: int, whole: int) -> NDArray[np.generic]:
    """(g*o,p*c,i,j) -> (g*o,c,i,j): weights of `whole` groups as those of so many."""
    o, c, *kernel = array.shape
    parts = group // whole
    if parts == 1:
        return array
    apart = array.reshape(whole, parts, o // group, parts, c // parts, *kernel)
    own = [apart[:, i, :, i] for i in range(parts)]
    return np.stack(own, axis=1).reshape(o, c // parts, *kernel)


FORM = Form(
    GpuProgram(OPERATOR, ConvolutionBlock),
    read_convolution,
    own_terms(OPERATOR),
    operators=channels_first,
    terms=ModelTerms(_members, _converted),
)
