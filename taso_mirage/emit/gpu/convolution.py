"""An `implicit_gemm` term as a Triton function: pixels of the result times its channels, summed
over the kernel's elements and the channels of the data.

A tile of the data is loaded with its pixels shifted, and masked where they leave the image, so
nothing is padded in memory. Groups that are merged are one tile of the weights, of which the
elements off the diagonal are not loaded. Of an image of few channels a row of the kernel is one
depth of the product, as its pixels lie beside each other in memory. Without channels to sum over (a
group has one) there is no product for tensor cores, but one of elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from taso_mirage.devices.cuda.device import H100
from taso_mirage.emit.gpu.axes import power_of_two
from taso_mirage.emit.gpu.dependent_launch import EARLY, WAITING
from taso_mirage.emit.gpu.form_function import FormFunction, flags
from taso_mirage.emit.gpu.pixels import first_seen, seen_pixels
from taso_mirage.emit.gpu.program import (
    BF16_PARTS,
    PRECISIONS,
    LaunchSchedule,
    Traffic,
    TritonLaunch,
    guessed,
)
from taso_mirage.emit.gpu.tiles import HALF
from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim, dim_product
from taso_mirage.ir.mugraph import product_factor, usual_size
from taso_mirage.ir.terms import ABSENT, Node, numpy_dtype

DOT = 16
"""Rows, columns and depth that a product on tensor cores has at least."""


def is_flat(node: Node) -> bool:
    """Whether a row of a convolution's kernel is one depth: of an image of few channels."""
    return bool(node.attr("group") == 1 and node.args[1].shape[2] < DOT and node.attr("dilations")[1] == 1)


class ConvolutionBlock(FormFunction):
    """The function of one convolution.

    Raises Unsupported for other floats than those of half and single precision, and for sizes that
    only a run knows of anything but the data.
    """

    def _read_sizes(self) -> None:
        node = self.node
        if wrong := next((b for b in self.buffers if b.dtype not in (*HALF, "float32") or b.batched), None):
            raise Unsupported(f"a convolution with {wrong.name} of {wrong.dtype}, which has no form in Triton")
        x, w = node.args[:2]
        if not all(isinstance(n, int) for n in (*w.shape, x.shape[3])):
            raise Unsupported(f"a convolution of {x.type} with {w.type}; channels and the kernel have fixed sizes")
        self.group, self.merged = int(node.attr("group")), int(node.attr("merged"))
        *self.kernel, self.inputs, self.outputs = (int(n) for n in w.shape)
        self.pixels, columns, depth, unrolled = map(int, node.attr("block"))
        self.unrolled = bool(unrolled)
        self.elementwise = self.inputs == self.merged == 1 < self.group
        self.flat = is_flat(node)
        least = 1 if self.elementwise else DOT
        self.width = self.outputs if self.elementwise else self.merged * (self.outputs // self.group)
        self.deep = (self.kernel[1] if self.flat else self.merged) * self.inputs
        self.columns = min(columns, max(least, power_of_two(self.width)))
        self.depth = min(depth, max(least, power_of_two(self.deep)))
        self._check_block((self.pixels, self.columns, self.depth), least)

    # ------------------------------------------------------------ sizes

    @property
    def steps(self) -> int:
        """The steps of the sum: the kernel's elements times the parts of the channels; the kernel's
        rows, where a group has one channel."""
        taps = self.kernel[0] if self.elementwise or self.flat else math.prod(self.kernel)
        return taps if self.elementwise else taps * -(-self.deep // self.depth)

    @property
    def single(self) -> bool:
        """Whether it multiplies matrices in single precision."""
        return self.buffers[0].dtype == "float32" and not self.elementwise

    @property
    def loop(self) -> int:
        return 1 if self.unrolled else self.steps

    @property
    def across(self) -> int:
        """Blocks that have the same pixels."""
        parts = 1 if self.elementwise else self.group // self.merged
        return parts * -(-self.width // self.columns)

    @property
    def grid(self) -> tuple[Dim, ...]:
        pixels = dim_product(self.node.shape[:3])
        return (self.across * ((pixels + self.pixels - 1) // self.pixels),)

    # ------------------------------------------------------------ the text

    def launch(self, schedule: LaunchSchedule | None) -> TritonLaunch:
        traffic = self._traffic()
        blocks = usual_size(self.grid[0])
        guess = guessed(blocks, self.loop, self.pixels * self.columns, traffic.in_flight, False)
        names = tuple([b.name for b in self.buffers])
        schedule = schedule or replace(guess, precision=BF16_PARTS)
        return TritonLaunch(
            self.name,
            self.grid,
            self.loop,
            names,
            schedule,
            traffic,
            self.free,
            precisions=PRECISIONS if self.single else (),
        )

    def _traffic(self) -> Traffic:
        size = numpy_dtype(self.buffers[0].dtype).itemsize
        blocks, steps = usual_size(self.grid[0]), self.steps
        if self.elementwise:
            loads = (self.pixels + 1) * self.columns * self.kernel[1]
            flops = 2 * self.pixels * self.columns * math.prod(self.kernel) * H100.elementwise
        else:
            loads = (self.pixels + self.columns) * self.depth
            flops = 2 * self.pixels * self.columns * self.depth * steps
        stored = sum(b.bytes for b, a in zip(self.buffers[2:], self._others(), strict=True) if a != "b")
        loads *= steps if self.unrolled else 1
        live = self.pixels * self.columns + loads * size // 4  # a register has two halves
        return Traffic(flops * blocks, self._loaded() * size * blocks + stored, loads * size, live)

    def _others(self) -> list[str]:
        """Names of the buffers after the data and the weights: a bias, a summand, the result."""
        given = [
            name for name, arg in zip("bz", (*self.node.args, ABSENT, ABSENT)[2:4], strict=True) if arg is not ABSENT
        ]
        return [*given, "out"]

    def _loaded(self) -> int:
        """Elements that a block loads from the second cache: rows shifted along an image are in the
        first one if they go through registers."""
        around = math.prod(self.kernel) * self.pixels
        if self.unrolled or self.elementwise:
            around = seen_pixels(self.node, self.kernel, self.pixels)
        channels = self.columns if self.elementwise else self.merged * self.inputs
        return around * channels + math.prod(self.kernel) * (self.columns * self.inputs)

    def source(self) -> str:
        own = "STAGES: tl.constexpr" if self.loop != 1 else flags("EARLY")
        own += ", PRECISION: tl.constexpr = 'ieee'" if self.single else ""
        waiting = WAITING if self.loop != 1 else EARLY
        lines = [*self._places(), *waiting, *self._sum(), *self._end()]
        return self._text(f"{own}, {flags('OVERLAP', 'LATE')}", lines)

    def _places(self) -> Iterator[str]:
        """Lines for the pixels and the channels of a block's results."""
        block = "tl.program_id(0)" + (".to(tl.int64)" if self.free else "")
        yield f"part = {block} % {self.across}  # neighbours have other channels of the same pixels"
        yield f"pixel = {block} // {self.across} * {self.pixels} + tl.arange(0, {self.pixels})"
        yield f"inside = pixel < {dim_product(self.node.shape[:3])}"
        yield from first_seen(self.node)
        blocks = -(-self.width // self.columns)
        first = f"part % {blocks} * {self.columns} + " if blocks > 1 else ""
        yield f"column = {first}tl.arange(0, {self.columns})"
        parts = "part" if blocks == 1 else f"part // {blocks}"
        yield "channel = column" if self.elementwise else f"channel = {parts} * {self.width} + column"

    def _sum(self) -> Iterator[str]:
        """The sum over the kernel's elements and the channels."""
        yield f"acc = tl.zeros([{self.pixels}, {self.columns}], tl.float32)"
        given = f"0, {self.steps}, num_stages=STAGES" if self.loop != 1 else f"{self.steps}"
        yield f"for t in {'tl.range' if self.loop != 1 else 'tl.static_range'}({given}):"
        yield from (f"    {line}" for line in (self._elements() if self.elementwise else self._product()))

    def _seen(self, row: str, column: str) -> Iterator[str]:
        """Where the pixels of a tile of the data are, and whether they are in the image."""
        _, high, wide, channels = self.node.args[0].shape
        (i, j), (h, w) = self.node.attr("dilations"), (product_factor(n) for n in (high, wide))
        yield f"high = top + {row} * {i}"
        yield f"wide = left + {column} * {j}"
        yield f"seen = inside & (high >= 0) & (high < {h}) & (wide >= 0) & (wide < {w})"
        yield f"at = ((image * {h} + high) * {w} + wide) * {channels}"

    def _elements(self) -> Iterator[str]:
        x, w = self.names[:2]
        yield f"for j in tl.static_range({self.kernel[1]}):"
        each, padded = self.outputs // self.group, self.outputs % self.columns
        source = "channel" if each == 1 else f"(channel // {each})"
        masks = [" & (column < {0})[None, :]", ", mask=column < {0}, other=0.0"]
        of_x, of_w = (m.format(self.outputs) if padded else "" for m in masks)
        lines = [
            *self._seen("t", "j"),
            f"x_tile = tl.load({x} + at[:, None] + {source}[None, :], mask=seen[:, None]{of_x}, other=0.0)",
            f"w_tile = tl.load({w} + (t * {self.kernel[1]} + j) * {self.outputs} + channel{of_w})",
            "acc += x_tile.to(tl.float32) * w_tile.to(tl.float32)[None, :]",
        ]
        yield from (f"    {line}" for line in lines)

    def _row(self, row: str) -> Iterator[str]:
        """Lines that load a row of the kernel: its pixels lie beside each other, with their
        channels."""
        _, high, wide, channels = self.node.args[0].shape
        h, w = product_factor(high), product_factor(wide)
        yield f"high = top + {row} * {self.node.attr('dilations')[0]}"
        yield f"wide = left[:, None] + (depth // {channels})[None, :]"
        yield f"seen = (inside & (high >= 0) & (high < {h}))[:, None] & (wide >= 0) & (wide < {w})"
        yield f"at = ((image * {h} + high) * {w} + left) * {channels}"

    def _product(self) -> Iterator[str]:
        (x, w), chunks = self.names[:2], -(-self.deep // self.depth)
        tap = "t" if chunks == 1 else f"(t // {chunks})"
        first = "" if chunks == 1 else f"t % {chunks} * {self.depth} + "
        yield f"depth = {first}tl.arange(0, {self.depth})"
        if self.flat:
            yield from self._row(tap)
        else:
            yield from self._seen(f"({tap} // {self.kernel[1]})", f"({tap} % {self.kernel[1]})")
        parts = self.across // -(-self.width // self.columns)
        group = "" if parts == 1 else f" + part // {self.across // parts} * {self.deep}"
        masks = [
            "seen" if self.flat else "seen[:, None]",
            *([f"(depth < {self.deep})[None, :]"] if self.deep % self.depth else []),
        ]
        yield f"x_tile = tl.load({x} + (at{group})[:, None] + depth[None, :], mask={' & '.join(masks)}, other=0.0)"
        masks = [f"(column < {self.width})[None, :]"] if self.width % self.columns else []
        masks += [f"(depth < {self.deep})[:, None]"] if self.deep % self.depth else []
        inner = f"{tap} * {self.deep if self.flat else self.inputs} + depth"
        if self.merged > 1:
            inner = f"{tap} * {self.inputs} + depth % {self.inputs}"
            masks.append(f"((depth // {self.inputs})[:, None] == (column // {self.outputs // self.group})[None, :])")
        mask = f", mask={' & '.join(masks)}, other=0.0" if masks else ""
        yield f"w_tile = tl.load({w} + (({inner}) * {self.outputs})[:, None] + channel[None, :]{mask})"
        precision = ", input_precision=PRECISION" if self.single else ""
        yield f"acc = tl.dot(x_tile, w_tile, acc{precision})"

    def _end(self) -> Iterator[str]:
        """Lines after the sum: bias, summand, activation, and the store."""
        padded = f"column < {self.width}" if self.width % self.columns else ""
        yield f"place = pixel[:, None] * {self.outputs} + channel[None, :]"
        yield f"kept = inside[:, None]{f' & ({padded})[None, :]' if padded else ''}"
        for name, kind in zip(self.names[2:], self._others(), strict=True):
            if kind == "b":
                mask = f", mask={padded}, other=0.0" if padded else ""
                yield f"acc += tl.load({name} + channel{mask}).to(tl.float32)[None, :]"
            elif kind == "z":
                yield f"acc += tl.load({name} + place, mask=kept, other=0.0).to(tl.float32)"
        if self.node.attr("relu"):
            yield "acc = tl.maximum(acc, 0.0)"
        yield f"tl.store({self.names[-1]} + place, acc, mask=kept)"

    def explained(self) -> list[str]:
        """Why the function is as it is."""
        shifted = "x is loaded with its pixels shifted for each of the kernel's elements, and masked where they leave the image."
        if self.elementwise:
            return [shifted, "a group has one channel: products of elements, in fp32."]
        if self.flat:
            shifted = "a row of the kernel is one depth: the pixels of x lie beside each other, with their channels."
        whole = f"products of {self.pixels} x {self.depth} with {self.depth} x {self.columns} on tensor cores"
        if self.merged == 1:
            return [shifted, f"{whole}."]
        each = f"{self.outputs // self.group} x {self.inputs}"
        return [shifted, f"{whole}: {self.merged} groups of {each} along a diagonal, the rest of which is not loaded."]
