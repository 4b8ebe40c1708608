"""Max pools with channels last as kernels for a GPU, between convolutions with channels last.

Alone such a kernel gains nothing; it saves the transpositions of the image before and after. A
block has some pixels and channels of the result, and takes the kernel's elements in turn: the first
cache serves elements that neighbours have loaded. Memory bounds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from taso_mirage.devices.device import Device
from taso_mirage.emit.gpu.axes import power_of_two
from taso_mirage.emit.gpu.convolved_axes import first_seen, seen_pixels
from taso_mirage.emit.gpu.dependent_launch import EARLY
from taso_mirage.emit.gpu.epilogue import Epilogue, has_triton
from taso_mirage.emit.gpu.form_function import FormFunction, flags
from taso_mirage.emit.gpu.forms import GpuProgram
from taso_mirage.emit.gpu.program import LaunchSchedule, Traffic, TritonLaunch
from taso_mirage.emit.gpu.tiles import HALF_FLOATS
from taso_mirage.emit.statements import Statement, every, expression, let, tl, v, within
from taso_mirage.errors import Unsupported
from taso_mirage.forms.base.blocked_goal import BlockedGoal, blocked_form
from taso_mirage.forms.base.conversion import Conversion
from taso_mirage.forms.base.epilogues import following, of_results_or_channels, scalar_function
from taso_mirage.forms.base.form import IsWanted, ModelTerms, Users
from taso_mirage.forms.base.in_operators import FIRST, LAST, followed_by
from taso_mirage.forms.channels_last import is_half_convolution, with_channels_last
from taso_mirage.ir.dims import dim_product
from taso_mirage.ir.mugraph import product_factor, usual_size
from taso_mirage.ir.terms import Graph, Node, Tensor, numpy_dtype, variable
from taso_mirage.operators.ops import term
from taso_mirage.operators.work import size

OPERATOR = "max_pool_last"
PIXELS, CHANNELS = (4, 8, 16, 32), (32, 64, 128)
"""Pixels and channels of a block."""
FEWEST, MOST = 256, 4096
"""Elements of a block. With all channels a block may have fewer than `FEWEST`."""
LARGEST = 49
"""Elements of a kernel, at most: each has lines of its own."""


# ---------------------------------------------------------------- the goal


@dataclass(frozen=True, slots=True)
class MaxPoolLast(BlockedGoal):
    """A goal that is a `max_pool_last`: (n,h,w,c)."""

    together = "channels last"

    def small(self) -> tuple[MaxPoolLast, Graph]:
        """This pool of an image of few channels and pixels, and the same in operators of ONNX."""
        attrs: dict[str, Any] = {**dict(self.node.attrs), "body": None}
        reach = [(k - 1) * d + 1 for k, d in zip(attrs["kernel"], attrs["dilations"], strict=True)]
        sides = [n + 2 * s for n, s in zip(reach, attrs["strides"], strict=True)]
        x = variable("x", Tensor("float32", (2, *sides, 2)))
        found = MaxPoolLast(term(OPERATOR, x, **attrs))
        return found, Graph((x,), (found.operators(),))

    def operators(self) -> Node:
        """The pool in operators of ONNX."""
        first = term("transpose", self.node.args[0], perm=FIRST)
        pool, others = term("max_pool", first, **_attrs(self.node)), self.node.args[1:]
        return term("transpose", followed_by(self.node.attr("body"), pool, others), perm=LAST)

    def blocks(self) -> Iterator[tuple[int, ...]]:
        """Pixels and channels of blocks that may be fast."""
        channels = power_of_two(int(self.node.shape[3]))
        for pixels, each in product(PIXELS, dict.fromkeys(min(n, channels) for n in CHANNELS)):
            if min(FEWEST, pixels * channels) <= pixels * each <= MOST:
                yield pixels, each

    def saved(self, device: Device) -> float:
        """Seconds that the kernel may save: those of two transpositions."""
        return float(2 * (size(self.node.args[0].type) + size(self.node.type))) / device.bandwidth


# ---------------------------------------------------------------- the model


def _attrs(node: Node) -> dict[str, Any]:
    return {name: node.attr(name) for name in ("kernel", "strides", "pads", "dilations")}


def _members(node: Node, users: Users, wanted: IsWanted, position: Mapping[Node, int]) -> list[Node]:
    """A pool of images in half precision beside a convolution: its image is a convolution's result,
    maybe behind one operator, or a convolution reads the pool."""
    if node.op != "max_pool" or node.dtype not in HALF_FLOATS or len(node.shape) != 4:
        return []
    x = node.args[0]
    fixed = isinstance(x.shape[1], int) and prod(node.attr("kernel")) <= LARGEST
    if not fixed or not any(map(is_half_convolution, (x, *x.args, *users(node)))):
        return []
    return following(node, users, wanted, of_results_or_channels, has_triton, position)


def _converted(members: Sequence[Node], model: Conversion) -> Node:
    node = members[0]
    last = term("transpose", model.done[node.args[0]], perm=LAST)
    if len(members) == 1:
        return term("transpose", term(OPERATOR, last, **_attrs(node)), perm=FIRST)
    made = scalar_function(members)
    others = [with_channels_last(each, model) for each in made.others]
    return term("transpose", term(OPERATOR, last, *others, body=made.body, **_attrs(node)), perm=FIRST)


# ---------------------------------------------------------------- the program


class MaxPoolFunction(FormFunction):
    """The function of one pool.

    Raises Unsupported for other floats than those of half and single precision, for channels that
    only a run knows, and for kernels too large to be written out.
    """

    others = 1

    def _read_sizes(self) -> None:
        node = self.node
        self.dtype = self.buffers[0].dtype
        self.kernel, (self.pixels, channels) = tuple(map(int, node.attr("kernel"))), map(int, node.attr("block"))
        x = node.args[0]
        if self.dtype not in (*HALF_FLOATS, "float32") or any(b.batched for b in self.buffers):
            raise Unsupported(f"{node.op} of {self.dtype}, which has no form in Triton")
        if not isinstance(x.shape[3], int) or prod(self.kernel) > LARGEST:
            raise Unsupported(f"{node.op} of {x.type} with a kernel of {self.kernel}; at most {LARGEST} elements")
        self.channels = int(x.shape[3])
        self.beside = min(channels, power_of_two(self.channels))
        self._check_block((self.pixels, self.beside))

    def _name_operands(self, names: list[str]) -> None:
        super()._name_operands(names)
        self.epilogue = Epilogue(self.node, names[1:-1], channels_last=True, first=1, images=True)

    @property
    def parts(self) -> int:
        """Blocks that have the same pixels."""
        return -(-self.channels // self.beside)

    def launch(self, schedule: LaunchSchedule | None) -> TritonLaunch:
        grid = self.parts * ((dim_product(self.node.shape[:3]) + self.pixels - 1) // self.pixels)
        lanes, blocks = self.pixels * self.beside, usual_size(grid)
        width = numpy_dtype(self.dtype).itemsize
        stored, seen = self.buffers[-1].bytes, seen_pixels(self.node, self.kernel, self.pixels) * self.beside * width
        traffic = Traffic(2 * lanes * prod(self.kernel) * blocks, seen * blocks + stored, seen, 2 * lanes)
        return self._launched(schedule, grid, lanes, traffic)

    def source(self) -> str:
        return self._text(flags("EARLY", "OVERLAP", "LATE"), [*self._places(), *EARLY, *self._largest()])

    def _places(self) -> Iterator[Statement]:
        """The pixels and the channels of a block's results."""
        block = tl.program_id(0)
        block = block.to(tl.int64) if self.free else block
        yield let("pixel", block // self.parts * self.pixels + tl.arange(0, self.pixels))
        yield let("channel", block % self.parts * self.beside + tl.arange(0, self.beside))
        yield from first_seen(self.node)
        beyond = [(v.channel < self.channels)[None, :]] if self.channels % self.beside else []
        yield let("kept", every([(v.pixel < dim_product(self.node.shape[:3]))[:, None], *beyond]))

    def _largest(self) -> Iterator[Statement]:
        """The largest element of each window, and the store."""
        x, result = expression(self.names[0]), expression(self.names[-1])
        high, wide = (product_factor(n) for n in self.node.args[0].shape[1:3])
        least = v.float("'-inf'")
        yield let("largest", tl.full([self.pixels, self.beside], least, tl[self.dtype]))
        for i, j in product(*map(range, self.kernel)):
            row, column = (n * d for n, d in zip((i, j), self.node.attr("dilations"), strict=True))
            yield let("row", v.top + row)
            yield let("column", v.left + column)
            yield let("seen", every([*within(v.row, high), *within(v.column, wide)]))
            yield let("at", ((v.image * high + v.row) * wide + v.column) * self.channels)
            yield let("tile", tl.load(x + v.at[:, None] + v.channel[None, :], v.kept, v.seen[:, None], other=least))
            yield let("largest", tl.maximum(v.largest, v.tile, propagate_nan=tl.PropagateNan.ALL))
        place = v.pixel[:, None] * self.channels + v.channel[None, :]
        inside = [v.channel < self.channels] if self.channels % self.beside else []
        if self.epilogue.body is not None:
            yield let("largest", v.largest.to(tl.float32))
        yield from self.epilogue.of_pixels("largest", (self.pixels, self.beside), self.taken, place, inside)
        yield tl.store(result + v.pixel[:, None] * self.channels + v.channel[None, :], v.largest, v.kept)

    def explained(self) -> list[str]:
        """The comment that explains the function."""
        return [f"a block has {self.pixels} pixels with {self.beside} channels; all of the kernel's elements in turn."]


FORM = blocked_form(MaxPoolLast, GpuProgram(OPERATOR, MaxPoolFunction), ModelTerms(_members, _converted))
