"""A `shifted_conv` term as a Triton function: a row of the data times the elements of the kernel's
row, whose products are shifted and added.

Positions of the result are counted along rows as long as the range that a row of the kernel reads.
So a tile of them is loaded once, with zeros beyond the image, and the products of neighbouring
elements are those of neighbouring positions: a gather of rows adds them, once, after the loop. The
epilogue of the convolution is computed on the sum, in registers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from taso_mirage.emit.gpu.axes import power_of_two
from taso_mirage.emit.gpu.convolved_axes import ConvolvedAxis, convolved_axes
from taso_mirage.emit.gpu.dependent_launch import WAITING
from taso_mirage.emit.gpu.form_function import FusedFunction, flags
from taso_mirage.emit.gpu.program import TF32_PARTS, TF32_ROUNDED, LaunchSchedule, Traffic, TritonLaunch
from taso_mirage.emit.quotes import quoted, quoted_body
from taso_mirage.emit.statements import (
    TRITON,
    Expression,
    Statement,
    every,
    expression,
    group,
    let,
    sum_of,
    tl,
    v,
    within,
)
from taso_mirage.errors import Unsupported
from taso_mirage.ir.mugraph import usual_size

DOT = 16
"""The least rows, columns and depth of a product on tensor cores."""
COUNTED = 1 << 31
"""The exclusive limit of the positions of a plane, with those of a tile beyond it."""
FUNCTIONS = """def KERNEL_block(block, *OPERANDS, STAGES: tl.constexpr, PRECISION: tl.constexpr = 'ieee'):
    columns = block % {parts}  # neighbours have other channels of the same pixels
    at = block // {parts}
    first = at % {tiles} * {form.kept}
    at = at // {tiles}
    phase_high = at % {high.phases}
    at = at // {high.phases}
    phase_deep = at % {deep.phases}
    at = at // {deep.phases}
    plane = at % {deep.positions}
    image = (at // {deep.positions}).to(tl.int64)
    rows = tl.arange(0, {form.pixels})
    position = first + rows
    top = position // {form.pitch}
    pixel = position % {form.pitch}
    left = {left}
    column = columns * {form.width} + tl.arange(0, {form.width})
    depth = tl.arange(0, {form.depth})
    {sums}
    taps_high = {high.taps_of(v.phase_high)}
    inner = {deep.taps_of(v.phase_deep)} * taps_high * {form.channels}
    chunks = (inner + {form.depth - 1}) // {form.depth}
    for t in tl.range(0, {steps}, num_stages=STAGES):
        begin = {step} * {form.depth}
        if {several}:
            across = t // chunks * {form.shared}
        if {form.apart}:
            tap = begin // {form.channels}
            c = tl.multiple_of(begin % {form.channels}, {form.depth}) + depth
        else:
            tap = (begin + depth) // {form.channels}
            c = (begin + depth) % {form.channels}
        low = tap // taps_high
        tap = tap % taps_high
        {data}
        if {deep.phases == high.phases == 1}:
            place_w = begin + depth
        else:
            place_w = {deep.element(v.phase_deep, v.low)} * {high.kernel} + {high.element(v.phase_high, v.tap)}
            place_w = place_w * {form.channels} + c
        if PRECISION == 'tf32':
            x_tile = tl.inline_asm_elementwise('cvt.rna.tf32.f32 $0, $1;', '=r,r', [x_tile], tl.float32, True, 1)
        if PRECISION == 'tf32x3':
            x_low = x_tile
            x_tile = (x_tile.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
            x_low = x_low - x_tile
        {products}
    {ends}


def KERNEL():
    {waiting}
    if TURNS:
        for block in range(tl.program_id(0), {images} * {form.blocks}, tl.num_programs(0)):
            KERNEL_block(block, {*OPERANDS}, STAGES, PRECISION)
    else:
        KERNEL_block(tl.program_id(0), {*OPERANDS}, STAGES, PRECISION)
"""
"""The function of a block, and that of the kernel: blocks take tiles in turn, or each has one tile.
The tensor cores drop the digits that TF32 lacks, so x is rounded before, or divided into a number
without these digits and a rest, which is exact in single precision."""
PRODUCT = """w_tile = {high}
if PRECISION != 'tf32':
    w_low = {low}
if PRECISION == 'tf32x3':  # apart: the sums of tensor cores lose digits
    part = tl.dot(tl.trans(x_tile), tl.trans(w_low), input_precision='tf32')
    part = tl.dot(tl.trans(x_low), tl.trans(w_tile), part, input_precision='tf32')
    SUM += tl.dot(tl.trans(x_tile), tl.trans(w_tile), part, input_precision='tf32')
if PRECISION == 'tf32':
    SUM = tl.dot(tl.trans(x_tile), tl.trans(w_tile), SUM, input_precision='tf32')
if PRECISION == 'ieee':
    SUM = tl.dot(tl.trans(x_tile), tl.trans(w_tile + w_low), SUM, input_precision='ieee')
"""
"""The products of x with a tile of the weights, which have two parts."""


class ShiftedBlock(FusedFunction):
    """The function of one convolution.

    Raises Unsupported as FusedFunction does, and for groups of the kernel's row where pixels do
    not lie beside each other.
    """

    def _read_sizes(self) -> None:
        super()._read_sizes()
        node = self.node
        x, w = node.args[:2]
        self.channels, self.columns = int(x.shape[1]), int(w.shape[2])
        self.axes = convolved_axes(node, (*w.shape[3:-1], w.shape[1]), bool(node.attr("extra")))
        self.pixels, columns, depth, shared = map(int, node.attr("block"))
        self.width = min(columns, max(DOT, power_of_two(self.columns)))
        *outer, row = self.axes
        self.row, self.outer = row, outer
        self.shared = row.kernel if row.transposed else min(shared, row.kernel)
        if self.shared > 1 and row.stride != 1 and not row.transposed:
            raise Unsupported(f"a row of the kernel with stride {row.stride} for one load")
        self.taps = math.prod(each.kernel for each in outer)
        whole = self.taps * self.channels
        self.depth = min(depth, max(DOT, power_of_two(whole)))
        self.apart = self.channels % self.depth == 0
        self._check_block((self.pixels, self.width, self.depth), DOT)
        if self.kept < 1:
            raise Unsupported(f"a convolution with blocks of {self.pixels} pixels, of which {self.reach} are shifted")
        if self.plane + self.pixels >= COUNTED:
            raise Unsupported(f"a convolution with {self.plane} positions of a plane, which 32 bits count")

    # ------------------------------------------------------------ sizes

    @property
    def groups(self) -> int:
        """The groups into which the elements of the kernel's row are divided."""
        return 1 if self.row.transposed else -(-self.row.kernel // self.shared)

    @cached_property
    def shifts(self) -> list[list[tuple[int, int]]]:
        """For each phase of a row its products, by their numbers, with the positions by which they
        are shifted."""
        return self.row.shifts(self.shared)

    @property
    def reach(self) -> int:
        """The largest shift."""
        return max(shift for phase in self.shifts for _, shift in phase)

    @property
    def pitch(self) -> int:
        """Positions of a row."""
        return self.row.positions + self.reach

    @property
    def kept(self) -> int:
        """Positions of a tile whose sums are complete."""
        return self.pixels - self.reach

    @property
    def plane(self) -> int:
        """Positions of a plane."""
        return self.outer[-1].positions * self.pitch

    @property
    def steps(self) -> int:
        """The largest number of steps of the sum."""
        parts = math.prod(each.taps for each in self.outer) * self.channels
        return self.groups * -(-parts // self.depth)

    @property
    def blocks(self) -> int:
        """The blocks of one image: parts of the columns, tiles of a plane, phases and planes."""
        phases = math.prod(each.phases for each in self.outer)
        return -(-self.columns // self.width) * -(-self.plane // self.kept) * phases * self.outer[0].positions

    # ------------------------------------------------------------ the text

    def launch(self, schedule: LaunchSchedule | None) -> TritonLaunch:
        lanes, steps = self.pixels * self.width * self.shared, max(self.steps, 2)
        guess = self._launched(None, self.images * self.blocks, lanes, self._traffic(), self.steps).schedule
        stages = max(min(guess.stages, 3), 2)
        chosen = schedule or replace(guess, warps=8 if lanes > 1 << 15 else 4, stages=stages, precision=TF32_PARTS)
        made = self._launched(chosen, chosen.persistent or self.images * self.blocks, lanes, self._traffic(), steps)
        return replace(made, precisions=(TF32_PARTS, TF32_ROUNDED))

    def _traffic(self) -> Traffic:
        loads = (self.pixels + 2 * self.shared * self.width) * self.depth
        flops = 6 * self.pixels * self.width * self.shared * self.depth * self.steps
        blocks = usual_size(self.images * self.blocks)
        live = self.pixels * self.width * self.shared + self.pixels * self.depth
        return Traffic(flops * blocks, loads * self.steps * 4 * blocks + self._stored, loads * 4, live)

    def source(self) -> str:
        deep, high, left = *self.outer, v.pixel
        if self.row.stride != 1 and not self.row.transposed:
            left = left * self.row.stride
        several = self.groups > 1
        block, kernel = quoted(
            FUNCTIONS.replace("KERNEL", self.name),
            **{"form": self, "deep": deep, "high": high, "v": v, "OPERANDS": self.names, "waiting": WAITING},
            parts=-(-self.columns // self.width),
            tiles=-(-self.plane // self.kept),
            images=group(self.images),
            several=several,
            steps=self.groups * v.chunks if several else v.chunks,
            step=v.t % v.chunks if several else v.t,
            left=left - (self.row.origin if self.row.transposed else self.row.pad),
            sums=[let(f"sum_{j}", tl.zeros([self.pixels, self.width], tl.float32)) for j in range(self.shared)],
            data=self._data(),
            products=[statement for j in range(self.shared) for statement in self._product(j)],
            ends=self._ends(),
        )
        given = [*block.parameters[-2:], *flags("OVERLAP", "LATE", "TURNS")]
        return f"{TRITON.function(block)}\n\n{self._text(given, kernel.body)}"

    def _data(self) -> Iterator[Statement]:
        """A tile of the data, with channels by positions."""
        deep, high = self.outer

        def deep_by(x: Expression) -> Expression:
            return x if self.apart else x[:, None]

        def along(x: Expression) -> Expression:
            return x if self.apart else x[None, :]

        yield let("plane_x", deep.seen(v.plane, v.low, v.phase_deep))
        yield let("row_x", high.seen(along(v.top), deep_by(v.tap), v.phase_high))
        yield let("pixel_x", v.left + v.across * self.row.dilation if self.groups > 1 else v.left)
        seen = within(v.row_x, high.size)
        seen += [along(every(within(v.pixel_x, self.row.size)))] if self._leaves(self.row) else []
        seen += [deep_by(every(within(v.plane_x, deep.size)))] if self._leaves(deep) else []
        whole = every(seen)
        yield let("seen", whole[None, :] if self.apart else whole)
        if not self.apart:
            yield let("seen", v.seen & (v.begin + v.depth < v.inner)[:, None])
        place = v.c * (deep.size * high.size * self.row.size) + v.plane_x * (high.size * self.row.size)
        rows = v.row_x * self.row.size
        at = place[:, None]
        at = at + (rows + v.pixel_x)[None, :] if self.apart else at + rows + v.pixel_x[None, :]
        image = v.image * (self.channels * deep.size * high.size * self.row.size)
        tile = v[self.names[0]] + image + tl.max_contiguous(at, [1, self._beside()])
        yield let("x_tile", tl.load(tile, v.seen))

    def _beside(self) -> int:
        """Positions that are contiguous for the layout of threads: each thread loads 4 bytes, at
        any address."""
        return self.pixels if self.row.stride == 1 or self.row.transposed else 1

    @staticmethod
    def _leaves(axis: ConvolvedAxis) -> bool:
        """Whether loaded positions may lie beyond the data."""
        if axis.transposed:
            return True
        last = (axis.positions - 1) * axis.stride - axis.pad + (axis.kernel - 1) * axis.dilation
        return axis.pad > 0 or last >= axis.size or axis.kernel > 1

    def _product(self, j: int) -> Sequence[Statement]:
        """The products with tile number j of the weights for one load."""
        w, taps = v[self.names[1]], self.taps * self.channels
        element = group(v.across + j) if self.groups > 1 else expression(j)
        inside = [] if self.apart else [(v.begin + v.depth < v.inner)[None, :]]
        inside += [(v.column < self.columns)[:, None]] if self.columns % self.width else []
        inside += [element < self.row.kernel] if self.groups * self.shared > self.row.kernel else []
        column = (element * self.columns + v.column)[:, None] * taps
        size = math.prod(map(int, self.node.args[1].shape[1:]))
        high = tl.load(w + column + v.place_w[None, :], *inside)
        low = tl.load(w + size + column + v.place_w[None, :], *inside)
        return quoted_body(PRODUCT.replace("SUM", f"sum_{j}"), high=high, low=low)

    # ------------------------------------------------------------ epilogue

    def _ends(self) -> Iterator[Statement]:
        """The sums of each phase of a row, the epilogue, and the stores."""
        deep, high = self.outer
        yield let("plane", deep.made(v.plane, v.phase_deep))
        yield let("top_y", high.made(v.top, v.phase_high))
        for phase, products in enumerate(self.shifts):
            parts = [self._shifted(j, shift) for j, shift in products]
            yield let("result", tl.trans(sum_of(parts or [tl.zeros_like(v.sum_0)])))
            yield from self._place_of_result(phase)
            yield from map(self._other, self.epilogue.names)
            yield from self.epilogue.statements("result", (self.width, self.pixels), self.taken)
            yield tl.store(v[self.names[-1]] + self._image_of_result + v.place, v.result, v.kept)

    def _place_of_result(self, phase: int) -> Iterator[Statement]:
        """The places of the results of a phase, and which results are complete and in the image."""
        deep, high = self.outer
        yield let("pixel_y", self.row.made(v.pixel, phase))
        kept = [v.rows < self.kept, v.top < high.positions, v.pixel < self.row.positions]
        kept += within(v.top_y, high.result) if high.transposed else []
        kept += within(v.pixel_y, self.row.result) if self.row.transposed else []
        kept += within(v.plane, deep.result) if deep.transposed else []
        column = [(v.column < self.columns)[:, None]] if self.columns % self.width else []
        yield let("kept", every([every(kept)[None, :], *column]))
        yield let("place", (v.plane * high.result + v.top_y) * self.row.result + v.pixel_y)
        beside = tl.max_contiguous(v.place, self._beside())
        if self.row.phases > 1:  # threads are along positions, but no store may have several
            beside = tl.multiple_of(beside, 1)
        yield let("place", v.column[:, None] * self._channel + beside[None, :])

    @property
    def _channel(self) -> int:
        """Elements of a channel of the result."""
        return math.prod(each.result for each in self.axes)

    @property
    def _image_of_result(self) -> Expression:
        """The start of the results of a block's image."""
        return v.image * (self.columns * self._channel)

    def _shifted(self, j: int, shift: int) -> Expression:
        if not shift:
            return v[f"sum_{j}"]
        rows = tl.minimum(v.rows + shift, self.pixels - 1)[:, None]
        return tl.gather(v[f"sum_{j}"], rows + tl.zeros([1, self.width], tl.int32), 0)

    def _other(self, name: str) -> Statement:
        if name in self.epilogue.of_channels:
            inside = [v.column < self.columns] if self.columns % self.width else []
            place = self.epilogue.channel(name, v.image, v.column)
            return let(f"{name}_tile", tl.load(v[name] + place, *inside))
        return let(f"{name}_tile", tl.load(v[name] + self._image_of_result + v.place, v.kept))

    def explained(self) -> list[str]:
        """The reasons for the form of the function."""
        shared = f"a tile of {self.pixels} positions is loaded once for {self.shared} elements of the kernel's row"
        shifted = f", whose products are shifted by up to {self.reach} positions and added behind the loop"
        what = f"products of {self.pixels} x {self.depth} with {self.depth} x {self.width} on tensor cores"
        said = [f"{shared}{shifted if self.reach else ''}.", f"{what}; the weights have two parts, the first of TF32."]
        if self.row.transposed:
            said.append("of a transposed convolution each phase is a sum of its own products.")
        return said
