"""An `implicit_gemm` term as a Triton function: pixels of the result times its channels, summed
over the kernel's elements and the channels of the data.

A tile of the data is loaded with its pixels shifted, and masked where they leave the image, so
nothing is padded in memory. Merged groups are one tile of the weights, of which the elements off
the diagonal are not loaded. In an image of few channels a row of the kernel is one depth of the
product, as its pixels are contiguous in memory. Without channels to sum over (a group has one),
products are elementwise, without tensor cores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from taso_mirage.devices.cuda.device import H100
from taso_mirage.emit.gpu.axes import power_of_two
from taso_mirage.emit.gpu.convolved_axes import first_seen, seen_pixels
from taso_mirage.emit.gpu.dependent_launch import EARLY, WAITING
from taso_mirage.emit.gpu.epilogue import Epilogue
from taso_mirage.emit.gpu.form_function import FormFunction, flags
from taso_mirage.emit.gpu.program import (
    BF16_PARTS,
    PRECISIONS,
    LaunchSchedule,
    Traffic,
    TritonLaunch,
)
from taso_mirage.emit.gpu.tiles import HALF_FLOATS
from taso_mirage.emit.statements import Expression, Parameter, Statement, add, every, group, let, loop, tl, v, within
from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim, dim_product
from taso_mirage.ir.mugraph import product_factor, usual_size
from taso_mirage.ir.terms import ABSENT, Graph, Node, numpy_dtype

DOT = 16
"""The least rows, columns and depth of a product on tensor cores."""


def is_flat(node: Node) -> bool:
    """Whether a row of a convolution's kernel is one depth, for an image of few channels."""
    return bool(node.attr("group") == 1 and node.args[1].shape[2] < DOT and node.attr("dilations")[1] == 1)


class ConvolutionBlock(FormFunction):
    """The function of one convolution.

    Raises Unsupported for other floats than those of half and single precision, and for sizes that
    only a run knows of anything but the data.
    """

    def _read_sizes(self) -> None:
        node = self.node
        if wrong := next((b for b in self.buffers if b.dtype not in (*HALF_FLOATS, "float32") or b.batched), None):
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
        """Whether the function multiplies matrices in single precision."""
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
    def blocks(self) -> Dim:
        pixels = dim_product(self.node.shape[:3])
        return self.across * ((pixels + self.pixels - 1) // self.pixels)

    # ------------------------------------------------------------ the text

    def launch(self, schedule: LaunchSchedule | None) -> TritonLaunch:
        lanes = self.pixels * self.columns
        made = self._launched(schedule, self.blocks, lanes, self._traffic(), self.loop, precision=BF16_PARTS)
        return replace(made, precisions=PRECISIONS if self.single else ())

    def _traffic(self) -> Traffic:
        size = numpy_dtype(self.buffers[0].dtype).itemsize
        blocks, steps = usual_size(self.blocks), self.steps
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
        """Names of the buffers after the data and the weights: a bias, a summand, the operands of
        the epilogue, the result."""
        given = [
            name for name, arg in zip("bz", (*self.node.args, ABSENT, ABSENT)[2:4], strict=True) if arg is not ABSENT
        ]
        return [*given, *("epilogue" for _ in self.node.args[4:]), "out"]

    def _name_operands(self, names: list[str]) -> None:
        super()._name_operands(names)
        own = names[len(names) - 1 - len(self.node.args[4:]) : -1]
        body: Graph | None = self.node.attr("body")
        count = 0 if body is None else len(body.inputs) - 1
        self.epilogue = Epilogue(self.node, own[:count], channels_last=True, first=4, images=True)
        self.prologue = Epilogue(self.node, own[count:], True, 4 + count, True, "prologue")

    def _loaded(self) -> int:
        """The number of elements that a block loads from the second cache: rows shifted along an
        image are in the first cache if they go through registers."""
        around = math.prod(self.kernel) * self.pixels
        if self.unrolled or self.elementwise:
            around = seen_pixels(self.node, self.kernel, self.pixels)
        channels = self.columns if self.elementwise else self.merged * self.inputs
        return around * channels + math.prod(self.kernel) * (self.columns * self.inputs)

    def source(self) -> str:
        given = [Parameter("STAGES")] if self.loop != 1 else flags("EARLY")
        given += [Parameter("PRECISION", "'ieee'")] if self.single else []
        waiting = WAITING if self.loop != 1 else EARLY
        body = [*self._places(), *waiting, *self._sum(), *self._end()]
        return self._text([*given, *flags("OVERLAP", "LATE")], body)

    def _places(self) -> Iterator[Statement]:
        """The pixels and the channels of a block's results."""
        block, lanes = tl.program_id(0), tl.arange(0, self.columns)
        block = block.to(tl.int64) if self.free else block
        yield let("part", block % self.across, "neighbours have other channels of the same pixels")
        yield let("pixel", block // self.across * self.pixels + tl.arange(0, self.pixels))
        yield let("inside", v.pixel < dim_product(self.node.shape[:3]))
        yield from first_seen(self.node)
        blocks = -(-self.width // self.columns)
        yield let("column", v.part % blocks * self.columns + lanes if blocks > 1 else lanes)
        parts = v.part if blocks == 1 else v.part // blocks
        yield let("channel", v.column if self.elementwise else parts * self.width + v.column)

    def _sum(self) -> Iterator[Statement]:
        """The sum over the kernel's elements and the channels."""
        yield let("acc", tl.zeros([self.pixels, self.columns], tl.float32))
        pipelined = tl.range(0, self.steps, num_stages="STAGES")
        steps = pipelined if self.loop != 1 else tl.static_range(self.steps)
        yield loop("t", steps, self._elements() if self.elementwise else self._product())

    def _seen(self, row: Expression, column: Expression) -> Iterator[Statement]:
        """The places of the pixels of a tile of the data, and whether they are in the image."""
        (h, w, channels), (i, j) = self._image, self.node.attr("dilations")
        yield let("high", v.top + row * i)
        yield let("wide", v.left + column * j)
        yield let("seen", every([v.inside, *within(v.high, h), *within(v.wide, w)]))
        yield let("at", ((v.image * h + v.high) * w + v.wide) * channels)

    @property
    def _image(self) -> tuple[str, str, Dim]:
        """Rows, columns and channels of the data."""
        _, high, wide, channels = self.node.args[0].shape
        return product_factor(high), product_factor(wide), channels

    def _elements(self) -> Iterator[Statement]:
        yield loop("j", tl.static_range(self.kernel[1]), self._element())

    def _element(self) -> Iterator[Statement]:
        """The products with one element of the kernel, of each channel alone."""
        x, w = (v[name] for name in self.names[:2])
        each = self.outputs // self.group
        inside = [v.column < self.outputs] if self.outputs % self.columns else []
        source = v.channel if each == 1 else group(v.channel // each)
        yield from self._seen(v.t, v.j)
        place = x + v.at[:, None] + source[None, :]
        masks = [v.seen[:, None], *(each[None, :] for each in inside)]
        yield let("x_tile", tl.load(place, *masks))
        yield from self._prologue(source, v.at[:, None] + source[None, :], masks, self.columns)
        yield let("w_tile", tl.load(w + (v.t * self.kernel[1] + v.j) * self.outputs + v.channel, *inside))
        yield add("acc", v.x_tile.to(tl.float32) * v.w_tile.to(tl.float32)[None, :])

    def _row(self, row: Expression) -> Iterator[Statement]:
        """The place of a row of the kernel: its pixels are contiguous, with their channels."""
        h, w, channels = self._image
        yield let("high", v.top + row * self.node.attr("dilations")[0])
        yield let("wide", v.left[:, None] + (v.depth // channels)[None, :])
        seen = every([v.inside, *within(v.high, h)])
        yield let("seen", every([seen[:, None], *within(v.wide, w)]))
        yield let("at", ((v.image * h + v.high) * w + v.left) * channels)

    def _product(self) -> Iterator[Statement]:
        """The product with a tile of the weights, and the tiles."""
        x, w = (v[name] for name in self.names[:2])
        chunks, lanes = -(-self.deep // self.depth), tl.arange(0, self.depth)
        tap = v.t if chunks == 1 else group(v.t // chunks)
        yield let("depth", lanes if chunks == 1 else v.t % chunks * self.depth + lanes)
        if self.flat:
            yield from self._row(tap)
        else:
            yield from self._seen(group(tap // self.kernel[1]), group(tap % self.kernel[1]))
        parts = self.across // -(-self.width // self.columns)
        at = v.at if parts == 1 else v.at + v.part // (self.across // parts) * self.deep
        inside = [v.depth < self.deep] if self.deep % self.depth else []
        masks = [v.seen if self.flat else v.seen[:, None], *(each[None, :] for each in inside)]
        yield let("x_tile", tl.load(x + group(at)[:, None] + v.depth[None, :], *masks))
        first = 0 if parts == 1 else v.part // (self.across // parts) * self.deep
        channel = v.depth % self._image[2] if self.flat else first + v.depth
        yield from self._prologue(channel, group(at)[:, None] + v.depth[None, :], masks, self.depth)
        masks = [(v.column < self.width)[None, :]] if self.width % self.columns else []
        masks += [each[:, None] for each in inside]
        inner = tap * (self.deep if self.flat else self.inputs) + v.depth
        if self.merged > 1:
            inner = tap * self.inputs + v.depth % self.inputs
            own = (v.column // (self.outputs // self.group))[None, :]
            masks.append(group((v.depth // self.inputs)[:, None].equals(own)))
        yield let("w_tile", tl.load(w + (inner * self.outputs)[:, None] + v.channel[None, :], *masks))
        precision = {"input_precision": "PRECISION"} if self.single else {}
        yield let("acc", tl.dot(v.x_tile, v.w_tile, v.acc, **precision))

    def _end(self) -> Iterator[Statement]:
        """Bias, summand, activation, and the store."""
        inside = [v.column < self.width] if self.width % self.columns else []
        yield let("place", v.pixel[:, None] * self.outputs + v.channel[None, :])
        yield let("kept", every([v.inside[:, None], *(each[None, :] for each in inside)]))
        for name, kind in zip(self.names[2:], self._others(), strict=True):
            if kind == "b":
                yield add("acc", tl.load(v[name] + v.channel, *inside).to(tl.float32)[None, :])
            elif kind == "z":
                yield add("acc", tl.load(v[name] + v.place, v.kept).to(tl.float32))
        if self.node.attr("relu"):
            yield let("acc", tl.maximum(v.acc, 0.0))
        yield from self.epilogue.of_pixels("acc", (self.pixels, self.columns), self.taken, v.place, inside)
        yield tl.store(v[self.names[-1]] + v.place, v.acc, v.kept)

    def _prologue(
        self, channel: Expression, place: Expression, masks: list[Expression], wide: int
    ) -> Iterator[Statement]:
        """The function of a tile of the data, at these channels and places. The zeros around the
        image stay zero."""
        if self.prologue.body is None:
            return
        kept = every(masks)
        for name in self.prologue.names:
            at, own = place, [kept]
            if name in self.prologue.of_images:
                at = (v.image * self._image[2])[:, None] + group(channel)[None, :]
            elif name in self.prologue.of_channels:
                at, own = channel, [channel < self._image[2]]
            yield let(f"{name}_tile", tl.load(v[name] + at, *own))
        yield let("x_tile", v.x_tile.to(tl.float32))
        yield from self.prologue.statements("x_tile", (self.pixels, wide), self.taken)
        yield let("x_tile", tl.where(kept, v.x_tile, 0.0).to(tl[self.buffers[0].dtype]))

    def explained(self) -> list[str]:
        """The reasons for the form of the function."""
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
