"""Transposed convolutions in groups of few channels on a GPU, in single precision.

Libraries compute the groups one after the other, or each as a product of matrices with few rows,
although memory bounds such convolutions. A block has some channels and positions of the result, and
takes the elements of the kernel in turn. A position sees an element of the kernel where the stride
leads to a place in the image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, product
from math import prod
from typing import Any

from taso_mirage.emit.gpu.axes import power_of_two
from taso_mirage.emit.gpu.convolved_axes import ConvolvedAxis, convolved_axes
from taso_mirage.emit.gpu.dependent_launch import EARLY
from taso_mirage.emit.gpu.form_function import TENSOR_CORES, FusedFunction, flags
from taso_mirage.emit.gpu.forms import GpuProgram
from taso_mirage.emit.gpu.program import LaunchSchedule, Traffic, TritonLaunch
from taso_mirage.emit.statements import Expression, Statement, every, let, loop, tl, v, within
from taso_mirage.errors import Unsupported
from taso_mirage.forms.base.fused_convolution import FusedConvolution, fused_form, small_transposed
from taso_mirage.forms.base.single_precision import FusedKind, MatchedNames, patterns
from taso_mirage.ir.mugraph import usual_size
from taso_mirage.ir.terms import Node, Tensor, variable
from taso_mirage.operators.ops import term

LANES = (128, 256, 512, 1024)
"""Channels times positions of a block."""
WRITTEN = 64
"""The largest number of elements of a kernel, because each is written out."""
PRODUCTS = 64
"""The largest product of the numbers of data channels and result channels of a group; libraries are
faster beyond it."""


@dataclass(frozen=True, slots=True)
class GroupedTransposed(FusedConvolution):
    """A goal that is a `grouped_conv_transpose` of an image (n,g*c,h,w) with weights (g*c,o,i,j),
    and its epilogue."""

    @staticmethod
    def alone(x: Node, w: Node, attrs: Mapping[str, Any]) -> Node:
        """The convolution of a term with these attributes in operators of ONNX, without its
        epilogue."""
        how: dict[str, Any] = {name: attrs[name] for name in ("strides", "pads", "dilations")}
        group = int(x.shape[1]) // attrs["each"]
        return term("conv_transpose", x, w, **how, output_padding=attrs["extra"], group=group)

    def blocks(self) -> Iterator[tuple[int, ...]]:
        """Channels and positions of blocks that have few lanes beyond an image; several channels of
        small images."""
        volume, channels = prod(map(int, self.node.shape[2:])), int(self.node.shape[1])
        for lanes in LANES:
            positions = min(power_of_two(volume), lanes)
            yield min(lanes // positions, power_of_two(channels)), positions

    def _small_operands(self) -> tuple[Node, Node]:
        w, each = self.node.args[1], int(self.node.attr("each"))
        kernel = tuple(map(int, w.shape[2:]))
        image = variable("x", Tensor("float32", (2, 2 * each, *small_transposed(self.node, kernel))))
        return image, variable("w", Tensor("float32", (2 * each, min(int(w.shape[1]), 2), *kernel)))


class GroupedTransposedFunction(FusedFunction):
    """The function of one convolution.

    Raises Unsupported as FusedFunction does, and for kernels too large to be written out.
    """

    def _read_sizes(self) -> None:
        super()._read_sizes()
        node = self.node
        w = node.args[1]
        self.channels, self.each, self.results = int(node.shape[1]), int(node.attr("each")), int(w.shape[1])
        self.axes = convolved_axes(node, w.shape[2:], transposed=True)
        self.beside, self.positions = map(int, node.attr("block"))
        if self.taps > WRITTEN:
            raise Unsupported(f"a kernel of {self.taps} elements; at most {WRITTEN} have a form in Triton")
        self._check_block((self.beside, self.positions))

    # ------------------------------------------------------------ sizes

    @property
    def taps(self) -> int:
        """Elements of the kernel."""
        return prod(axis.kernel for axis in self.axes)

    @property
    def volume(self) -> int:
        """Elements of a channel of the data."""
        return prod(axis.size for axis in self.axes)

    @property
    def volume_y(self) -> int:
        """Elements of a channel of the result."""
        return prod(axis.result for axis in self.axes)

    @property
    def tiles(self) -> int:
        """The tiles of the positions of an image."""
        return -(-self.volume_y // self.positions)

    @property
    def parts(self) -> int:
        """The parts into which the channels are divided."""
        return -(-self.channels // self.beside)

    # ------------------------------------------------------------ the text

    def launch(self, schedule: LaunchSchedule | None) -> TritonLaunch:
        blocks, lanes = self.images * (self.parts * self.tiles), self.beside * self.positions
        seen = self.each * lanes * 4 * self.taps // prod(axis.phases for axis in self.axes)
        count = usual_size(blocks)
        work = TENSOR_CORES * lanes * 6 * self.each * self.taps * count
        traffic = Traffic(work, min(seen, 4 * self.each * lanes) * count + self._stored, seen, 2 * lanes)
        return self._launched(schedule, blocks, lanes, traffic)

    def source(self) -> str:
        return self._text(flags("EARLY", "OVERLAP", "LATE"), [*self._places(), *EARLY, *self._sum(), *self._ends()])

    def _places(self) -> Iterator[Statement]:
        """The channels and the positions of a block."""
        _, high, row = self.axes
        yield let("at", tl.program_id(0))
        yield let("position", v.at % self.tiles * self.positions + tl.arange(0, self.positions))
        yield let("at", v.at // self.tiles)
        yield let("channel", v.at % self.parts * self.beside + tl.arange(0, self.beside))
        yield let("image", (v.at // self.parts).to(tl.int64))
        yield let("there", v.channel < self.channels)
        yield let("kept", v.there[:, None] & (v.position < self.volume_y)[None, :])
        yield let("plane", v.position // (high.result * row.result))
        yield let("top", v.position // row.result % high.result)
        yield let("pixel", v.position % row.result)
        yield let("first", v.channel // self.results * self.each)

    def _sum(self) -> Iterator[Statement]:
        """The sum over the channels of a group and the elements of the kernel."""
        image = int(self.node.args[0].shape[1]) * self.volume
        yield let("result", tl.zeros([self.beside, self.positions], tl.float32))
        yield let("x_at", v[self.names[0]] + v.image * image)
        taps = enumerate(product(*(range(axis.kernel) for axis in self.axes)))
        yield loop("c", v.range(self.each), chain.from_iterable(self._element(*each) for each in taps))

    def _element(self, tap: int, places: tuple[int, ...]) -> Iterator[Statement]:
        """The products with one element of the kernel, number `tap`, at these places."""
        _, high, row = self.axes
        seen, found = list[Expression](), list[Expression]()
        for axis, name, place in zip(self.axes, ("plane", "top", "pixel"), places, strict=True):
            at = v[f"{name}_x"]
            yield let(f"{name}_x", v[name] + (axis.pad - place * axis.dilation))
            seen += _seen(axis, at)
            if axis.stride > 1:
                yield let(f"{name}_y", at // axis.stride)
            found.append(v[f"{name}_y"] if axis.stride > 1 else at)
        plane, top, pixel = found
        yield let("seen", every(seen or [v.position < self.volume_y]))
        pixels = (plane * high.size + top) * row.size + pixel
        at = v.x_at + ((v.first + v.c) * self.volume)[:, None] + pixels[None, :]
        yield let("x_tile", tl.load(at, v.kept, v.seen[None, :]))
        weights = v[self.names[1]] + ((v.first + v.c) * self.results + v.channel % self.results) * self.taps + tap
        yield let("w_tile", tl.load(weights, v.there))
        yield let("result", tl.fma(v.x_tile, v.w_tile[:, None], v.result))

    def _ends(self) -> Iterator[Statement]:
        """The epilogue and the store."""
        yield let("place", (v.channel * self.volume_y)[:, None] + v.position[None, :])
        if self.epilogue.of_images:
            yield let("number", v.image)
        yield let("image", v.image * (self.channels * self.volume_y))
        for name in self.epilogue.of_channels:
            place = self.epilogue.channel(name, v.number, v.channel)
            yield let(f"{name}_tile", tl.load(v[name] + place, v.there))
        for name in self.epilogue.of_results:
            yield let(f"{name}_tile", tl.load(v[name] + v.image + v.place, v.kept))
        yield from self.epilogue.statements("result", (self.beside, self.positions), self.taken)
        yield tl.store(v[self.names[-1]] + v.image + v.place, v.result, v.kept)

    def explained(self) -> list[str]:
        """The comment that explains the function."""
        groups = f"a group has {self.each} channels of x and {self.results} of the result"
        return [f"{groups}; a block has {self.beside} channels and {self.positions} positions."]


def _seen(axis: ConvolvedAxis, at: Expression) -> list[Expression]:
    """Conditions for a place along an axis, on which the elements of the image are a stride apart,
    to have an element; none for an axis of size 1."""
    if axis == ConvolvedAxis(1, 1, 1, 1, 0, 1):
        return []
    found = within(at, (axis.size - 1) * axis.stride + 1)
    return [*found, (at % axis.stride).equals(0)] if axis.stride > 1 else found


def _attrs(names: MatchedNames) -> dict[str, Any] | None:
    """The output padding and the channels of a group; None where a group has many channels."""
    each = int(names["w"].shape[0]) // names["group"]
    few = names["group"] > 1 and each * int(names["w"].shape[1]) <= PRODUCTS
    return {"extra": tuple(names["extra"]), "each": each} if few else None


KIND = FusedKind(
    patterns(
        "conv_transpose(x, w, strides=strides, pads=pads, dilations=dilations, output_padding=extra, group=group)"
    ),
    _attrs,
)
FORM = fused_form(GroupedTransposed, GpuProgram("grouped_conv_transpose", GroupedTransposedFunction), KIND)
