"""Convolutions of each channel alone as kernels for a GPU, with sums in single precision.

They contain no matrix product and are bound by memory. The kernel reads an image once, computes
several results for each load, and computes the epilogue.

A block has a tile of channels by positions of a plane; each position has results in a few adjacent
rows. A loaded row of the image stays in registers for all results that depend on it; elements that
neighbours in a row also read come from the first-level cache. The epilogue of the convolution is
computed on each sum, in registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from taso_mirage.emit.gpu.axes import power_of_two
from taso_mirage.emit.gpu.convolved_axes import ConvolvedAxis, convolved_axes
from taso_mirage.emit.gpu.dependent_launch import EARLY
from taso_mirage.emit.gpu.form_function import TENSOR_CORES, FusedFunction, flags
from taso_mirage.emit.gpu.forms import GpuProgram
from taso_mirage.emit.gpu.program import LaunchSchedule, Traffic, TritonLaunch
from taso_mirage.emit.statements import Expression, ExpressionLike, Statement, every, group, let, loop, tl, v, within
from taso_mirage.errors import Unsupported
from taso_mirage.forms.base.fused_convolution import FusedConvolution, fused_form, small_sides
from taso_mirage.forms.base.single_precision import FusedKind, MatchedNames, patterns
from taso_mirage.ir.mugraph import usual_size
from taso_mirage.ir.terms import Node, Tensor, variable
from taso_mirage.operators.ops import term

LANES = (128, 256, 512, 1024)
"""Channels times positions of a block."""
FLOATS = ("float32", "float16", "bfloat16")
ROWS = (1, 2, 4, 8)
"""Results of a position, one below the other."""


@dataclass(frozen=True, slots=True)
class DepthwiseConvolution(FusedConvolution):
    """A goal that is a `depthwise_conv`: (n,c,h,w), (m*c,1,i,j), and its epilogue."""

    @staticmethod
    def alone(x: Node, w: Node, attrs: Mapping[str, Any]) -> Node:
        """The convolution of a term with these attributes in operators of ONNX, without its
        epilogue."""
        how: dict[str, Any] = {name: attrs[name] for name in ("strides", "pads", "dilations")}
        return term("conv", x, w, **how, group=x.shape[1])

    def blocks(self) -> Iterator[tuple[int, ...]]:
        """The block sizes with few lanes beyond a plane; of small planes a block has several
        channels."""
        *outer, row = map(int, self.node.shape[2:])
        high, channels = outer[-1] if outer else 1, int(self.node.shape[1])
        for rows, lanes in product(ROWS, LANES):
            if rows > 1 and rows >= 2 * high:
                continue
            positions = min(power_of_two(-(-high // rows) * row), lanes)
            yield min(lanes // positions, power_of_two(channels)), positions, rows

    def _small_operands(self) -> tuple[Node, Node]:
        x, w = self.node.args[:2]
        kernel = tuple(map(int, w.shape[2:]))
        channels, each = min(int(x.shape[1]), 2), int(w.shape[0]) // int(x.shape[1])
        image = variable("x", Tensor("float32", (2, channels, *small_sides(self.node, kernel))))
        return image, variable("w", Tensor("float32", (channels * each, *w.shape[1:])))


# ---------------------------------------------------------------- the program


WRITTEN = 80
"""The largest number of products of a position that are written out. With more, there is a loop
along the row of the kernel, because compilation would take seconds."""
TALLEST = 256
"""The largest number of products of a position with one column of the kernel."""


class DepthwiseFunction(FusedFunction):
    """The function of one convolution.

    Raises Unsupported as FusedFunction does, and for kernels too tall to be written out.
    """

    floats = FLOATS

    def _loaded(self, at: Expression, *masks: Expression) -> Expression:
        """A tile as numbers of single precision."""
        made = tl.load(at, *masks)
        return made if self.node.dtype == "float32" else made.to(tl.float32)

    def _read_sizes(self) -> None:
        super()._read_sizes()
        node = self.node
        x, w = node.args[:2]
        self.channels = int(w.shape[0])
        self.each = self.channels // int(x.shape[1])
        self.deep, self.high, self.row = convolved_axes(node, w.shape[2:])
        self.beside, self.positions, self.rows = map(int, node.attr("block"))
        if self.high.kernel * self.rows > TALLEST:
            raise Unsupported(f"a kernel of {self.high.kernel} rows, for {self.rows} of the result")
        self._check_block((self.beside, self.positions, self.rows))

    # ------------------------------------------------------------ sizes

    @property
    def volume(self) -> int:
        """Elements of a channel of the data."""
        return self.deep.size * self.high.size * self.row.size

    @property
    def area_y(self) -> int:
        """Results of a plane."""
        return self.high.result * self.row.result

    @property
    def tiles(self) -> int:
        """The tiles of a plane."""
        return -(-(-(-self.high.result // self.rows) * self.row.result) // self.positions)

    @property
    def parts(self) -> int:
        """The parts into which the channels are divided."""
        return -(-self.channels // self.beside)

    @property
    def written(self) -> bool:
        """Whether each product is written out."""
        return self.high.kernel * self.row.kernel * self.rows <= WRITTEN

    @property
    def offsets(self) -> list[tuple[int, list[tuple[int, int]]]]:
        """Rows of the data, from the first that a position sees, each with the results and the
        elements of the kernel's column that it is of."""
        high, found = self.high, dict[int, list[tuple[int, int]]]()
        for r in range(self.rows):
            for i in range(high.kernel):
                found.setdefault(r * high.stride + i * high.dilation, []).append((r, i))
        return sorted(found.items())

    # ------------------------------------------------------------ the text

    def launch(self, schedule: LaunchSchedule | None) -> TritonLaunch:
        blocks = self.images * (self.parts * self.tiles * self.deep.result)
        lanes = self.beside * self.positions * self.rows
        return self._launched(schedule, blocks, lanes, self._traffic(usual_size(blocks)))

    def _traffic(self, blocks: int) -> Traffic:
        lanes, taps = self.beside * self.positions, self.deep.kernel * self.row.kernel
        loads, sums = taps * len(self.offsets), taps * self.rows * self.high.kernel
        seen = lanes * len(self.offsets) * self.row.stride * 4
        work = TENSOR_CORES * lanes * (2 * sums + 4 * loads) * blocks
        return Traffic(
            work, self.deep.kernel * seen * blocks + self._stored, seen, lanes * (self.rows + self.row.kernel)
        )

    def source(self) -> str:
        return self._text(flags("EARLY", "OVERLAP", "LATE"), [*EARLY, *self._places(), *self._sums(), *self._ends()])

    def _places(self) -> Iterator[Statement]:
        """The channels and the positions of a block."""
        yield let("at", tl.program_id(0))
        yield let("position", v.at % self.tiles * self.positions + tl.arange(0, self.positions))
        yield let("at", v.at // self.tiles)
        yield let("channel", v.at % self.parts * self.beside + tl.arange(0, self.beside))
        yield let("at", v.at // self.parts)
        yield let("plane", v.at % self.deep.result)
        yield let("image", (v.at // self.deep.result).to(tl.int64))
        yield let("top", v.position // self.row.result * self.rows)
        yield let("pixel", v.position % self.row.result)
        yield let("there", v.channel < self.channels)
        yield let("top_x", self.high.seen(v.top, 0))
        yield let("left", self.row.seen(v.pixel, 0))
        channel = (v.channel // self.each if self.each > 1 else v.channel) * self.volume
        yield let("at_x", self._alone(channel[:, None] + (v.top_x * self.row.size + v.left)[None, :]))
        for j in self._leaving() if self.written else ():
            yield let(f"beside_{j}", every(within(v.left + j * self.row.dilation, self.row.size)))

    def _alone(self, at: Expression) -> Expression:
        """Places that threads lie along, for loads and stores alike, so that none hands anything to
        another. They are said to lie beside each other, also where a row ends or has a stride: as
        the first may have any address, nothing is loaded or stored but one by one."""
        return tl.max_contiguous(tl.multiple_of(at, [1, 1]), [1, self.positions])

    def _leaving(self) -> list[int]:
        """Elements of the kernel's row that may see positions beside the image."""
        row, found = self.row, []
        for j in range(row.kernel):
            first = j * row.dilation - row.pad
            if first < 0 or first + (row.result - 1) * row.stride >= row.size:
                found.append(j)
        return found

    def _sums(self) -> Iterator[Statement]:
        for r in range(self.rows):
            yield let(f"sum_{r}", tl.zeros([self.beside, self.positions], tl.float32))
        if self.deep.kernel > 1:
            yield loop("low", v.range(self.deep.kernel), self._plane())
        else:
            yield let("low", 0)
            yield from self._plane()

    def _plane(self) -> Iterator[Statement]:
        """The products with a plane of the kernel."""
        whole, area = self.node.args[0].shape[1], self.high.size * self.row.size
        inside = v.there
        yield let("plane_x", self.deep.seen(v.plane, v.low))
        if self._leaves_planes():
            yield let("inside", every([v.there, *within(v.plane_x, self.deep.size)]))
            inside = v.inside
        yield let("x_at", v[self.names[0]] + v.image * (whole * self.volume) + v.plane_x * area)
        if not self.written:
            further = v.j * self.row.dilation
            beside = let("beside_0", every(within(v.left + further, self.row.size)))
            column = self._column(v.j, further, inside, v.seen & v.beside_0)
            yield loop("j", v.range(self.row.kernel), (beside, *column))
            return
        for j in range(self.row.kernel):
            seen = v.seen & f"beside_{j}" if j in self._leaving() else group(v.seen)
            yield from self._column(j, j * self.row.dilation, inside, seen)

    def _column(
        self, j: ExpressionLike, further: ExpressionLike, inside: Expression, seen: Expression
    ) -> Iterator[Statement]:
        """The products with a column of the kernel."""
        taps = self.high.kernel * self.row.kernel
        for i in range(self.high.kernel):
            at = v[self.names[1]] + v.channel * (self.deep.kernel * taps) + v.low * taps + i * self.row.kernel + j
            yield let(f"w_{i}", self._loaded(at, v.there)[:, None])
        for offset, results in self.offsets:
            yield let("seen", every(within(v.top_x + offset, self.high.size)))
            at = v.at_x + offset * self.row.size + further
            yield let("x_tile", self._loaded(v.x_at + at, inside[:, None], seen[None, :]))
            for r, i in results:
                yield let(f"sum_{r}", tl.fma(v.x_tile, f"w_{i}", f"sum_{r}"))

    def _leaves_planes(self) -> bool:
        deep: ConvolvedAxis = self.deep
        return deep.pad > 0 or (deep.result - 1) * deep.stride + (deep.kernel - 1) * deep.dilation >= deep.size

    def _ends(self) -> Iterator[Statement]:
        """The fused epilogue and the stores."""
        size = self.deep.result * self.area_y
        image = self.channels * size
        for name in self.epilogue.of_channels:
            place = self.epilogue.channel(name, v.image, v.channel)
            yield let(f"{name}_tile", self._loaded(v[name] + place, v.there))
        yield let("at_y", (v.plane * self.area_y + v.top * self.row.result + v.pixel)[None, :])
        yield let("at_y", self._alone((v.channel * size)[:, None] + v.at_y))
        for r in range(self.rows):
            yield let("kept", v.there[:, None] & (v.top + r < self.high.result)[None, :])
            yield let("place", v.at_y + r * self.row.result)
            yield let("result", f"sum_{r}")
            for name in self.epilogue.of_results:
                yield let(f"{name}_tile", self._loaded(v[name] + v.image * image + v.place, v.kept))
            yield from self.epilogue.statements("result", (self.beside, self.positions), self.taken)
            yield tl.store(v[self.names[-1]] + v.image * image + v.place, v.result, v.kept)

    def explained(self) -> list[str]:
        """The comment that explains the function."""
        shared = f"a position has results in {self.rows} rows, which share what is loaded of {len(self.offsets)}"
        return [f"{shared}; a block has {self.beside} channels and {self.positions} positions."]


def _attrs(names: MatchedNames) -> dict[str, Any] | None:
    """No attributes of its own where each channel is a group; None for other groups."""
    return {} if names["group"] == names["x"].shape[1] > 1 else None


KIND = FusedKind(
    patterns("conv(x, w, strides=strides, pads=pads, dilations=dilations, group=group)"),
    _attrs,
    floats=FLOATS,
)
FORM = fused_form(DepthwiseConvolution, GpuProgram("depthwise_conv", DepthwiseFunction), KIND)
