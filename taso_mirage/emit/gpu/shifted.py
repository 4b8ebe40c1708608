"""A `shifted_conv` term as a Triton function: a row of the data times the elements of the kernel's
row, whose products are shifted and added.

Positions of the result are counted along rows as long as the range that a row of the kernel sees,
so a tile of them is loaded once, with zeros beyond the image, and the products of neighbouring
elements are those of neighbouring positions: a gather of rows adds them, once, behind the loop. The
epilogue of the convolution is computed on the sum, in registers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

from taso_mirage.emit.gpu.axes import power_of_two
from taso_mirage.emit.gpu.convolved_axes import ConvolvedAxis, convolved_axes
from taso_mirage.emit.gpu.dependent_launch import WAITING
from taso_mirage.emit.gpu.form_function import FusedFunction, flags
from taso_mirage.emit.gpu.program import (
    IEEE,
    TF32_PARTS,
    TF32_ROUNDED,
    LaunchSchedule,
    Traffic,
    TritonLaunch,
    guessed,
)
from taso_mirage.errors import Unsupported
from taso_mirage.ir.mugraph import usual_size

DOT = 16
"""Rows, columns and depth that a product on tensor cores has at least."""
ROUNDED = "tl.inline_asm_elementwise('cvt.rna.tf32.f32 $0, $1;', '=r,r', [{}], tl.float32, True, 1)"
"""The nearest number of TF32: the tensor cores cut the digits off that they do not take."""
CUT = "({0}.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)"
"""A number without those digits: the rest is exact in single precision."""
COUNTED = 1 << 31
"""Positions of a plane, with those of a tile beyond it: less than so many."""


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
        """Positions of a tile whose sums are whole."""
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
        lanes = self.pixels * self.width * self.shared
        traffic = self._traffic()
        guess = guessed(usual_size(self.images * self.blocks), self.steps, lanes, traffic.in_flight, False)
        guess = replace(guess, warps=8 if lanes > 1 << 15 else 4, stages=max(min(guess.stages, 3), 2))
        names = tuple([b.name for b in self.buffers])
        schedule = schedule or replace(guess, precision=TF32_PARTS)
        ways = (TF32_PARTS, TF32_ROUNDED)
        return TritonLaunch(
            self.name,
            (schedule.persistent or self.images * self.blocks,),
            max(self.steps, 2),
            names,
            schedule,
            traffic,
            self.free,
            precisions=ways,
        )

    def _traffic(self) -> Traffic:
        loads = (self.pixels + 2 * self.shared * self.width) * self.depth
        flops = 6 * self.pixels * self.width * self.shared * self.depth * self.steps
        blocks = usual_size(self.images * self.blocks)
        stored = sum(b.bytes for b in self.buffers[2:])
        live = self.pixels * self.width * self.shared + self.pixels * self.depth
        return Traffic(flops * blocks, loads * self.steps * 4 * blocks + stored, loads * 4, live)

    def source(self) -> str:
        lines = [*self._places(), *self._sum(), *self._ends()]
        own = "STAGES: tl.constexpr, PRECISION: tl.constexpr = 'ieee'"
        late = flags("OVERLAP", "LATE", "TURNS")
        names = ", ".join(self.names)
        turns = [f"for block in range(tl.program_id(0), ({self.images}) * {self.blocks}, tl.num_programs(0)):"]
        turns += [f"    {self.name}_block(block, {names}, STAGES, PRECISION)"]
        once = f"    {self.name}_block(tl.program_id(0), {names}, STAGES, PRECISION)"
        body = [*WAITING, "if TURNS:", *(f"    {line}" for line in turns), "else:", once]
        block = [f"@triton.jit\ndef {self.name}_block(block, {names}, {own}):", *(f"    {line}" for line in lines)]
        return "\n".join([*block, "", "", self._text(f"{own}, {late}", body)])

    def _places(self) -> Iterator[str]:
        """Lines for the positions and the columns of a block."""
        parts, tiles = -(-self.columns // self.width), -(-self.plane // self.kept)
        deep, high = self.outer
        yield f"columns = block % {parts}  # neighbours have other channels of the same pixels"
        yield f"at = block // {parts}"
        yield f"first = at % {tiles} * {self.kept}"
        yield f"at = at // {tiles}"
        for name, axis in (("high", high), ("deep", deep)):
            yield f"phase_{name} = at % {axis.phases}"
            yield f"at = at // {axis.phases}"
        yield f"plane = at % {deep.positions}"
        yield f"image = (at // {deep.positions}).to(tl.int64)"
        yield f"rows = tl.arange(0, {self.pixels})"
        yield "position = first + rows"
        yield f"top = position // {self.pitch}"
        yield f"pixel = position % {self.pitch}"
        yield f"left = {self._left()}"
        yield f"column = columns * {self.width} + tl.arange(0, {self.width})"
        yield f"depth = tl.arange(0, {self.depth})"

    def _left(self) -> str:
        """The pixel of a row that the first of the shared elements multiplies."""
        if self.row.transposed:
            return f"pixel - {self.row.origin}"
        return f"pixel * {self.row.stride} - {self.row.pad}" if self.row.stride != 1 else f"pixel - {self.row.pad}"

    def _sum(self) -> Iterator[str]:
        for j in range(self.shared):
            yield f"sum_{j} = tl.zeros([{self.pixels}, {self.width}], tl.float32)"
        deep, high = self.outer
        yield f"taps_high = {high.taps_of('phase_high')}"
        yield f"inner = {deep.taps_of('phase_deep')} * taps_high * {self.channels}"
        yield f"chunks = (inner + {self.depth - 1}) // {self.depth}"
        yield f"for t in tl.range(0, {f'{self.groups} * ' if self.groups > 1 else ''}chunks, num_stages=STAGES):"
        yield from (f"    {line}" for line in (*self._step(), *self._data(), *self._products()))

    def _step(self) -> Iterator[str]:
        """Lines for the elements of the kernel and the channels of a step."""
        group = self.groups > 1
        yield f"begin = {'t % chunks' if group else 't'} * {self.depth}"
        if group:
            yield f"across = t // chunks * {self.shared}"
        if self.apart:
            yield f"tap = begin // {self.channels}"
            yield f"c = tl.multiple_of(begin % {self.channels}, {self.depth}) + depth"
        else:
            yield f"tap = (begin + depth) // {self.channels}"
            yield f"c = (begin + depth) % {self.channels}"
        yield "low = tap // taps_high"
        yield "tap = tap % taps_high"

    def _data(self) -> Iterator[str]:
        """A tile of the data, with channels by positions."""
        deep, high = self.outer
        mark = "" if self.apart else "[:, None]"
        along = "" if self.apart else "[None, :]"
        yield f"plane_x = {deep.seen('plane', 'low', 'phase_deep')}"
        yield f"row_x = {high.seen(f'top{along}', f'tap{mark}', 'phase_high')}"
        across = f" + across * {self.row.dilation}" if self.groups > 1 else ""
        yield f"pixel_x = left{across}"
        seen = [f"(row_x >= 0) & (row_x < {high.size})"]
        if self._leaves(self.row):
            seen.append(f"((pixel_x >= 0) & (pixel_x < {self.row.size})){along}")
        if self._leaves(deep):
            seen.append(f"((plane_x >= 0) & (plane_x < {deep.size})){mark}")
        whole = " & ".join(seen)
        yield f"seen = ({whole})[None, :]" if self.apart else f"seen = {whole}"
        if not self.apart:
            yield "seen = seen & (begin + depth < inner)[:, None]"
        place = f"(c * {deep.size * high.size * self.row.size} + plane_x * {high.size * self.row.size}"
        rows = f"row_x * {self.row.size} + pixel_x"
        at = f"{place})[:, None] + ({rows})[None, :]" if self.apart else f"{place})[:, None] + {rows}[None, :]"
        size = self.channels * deep.size * high.size * self.row.size
        yield f"x_tile = tl.load({self.names[0]} + image * {size} + tl.max_contiguous({at}, [1, {self._beside()}]), mask=seen, other=0.0)"

    def _beside(self) -> int:
        """Positions that lie beside each other, as far as the layout of threads is concerned: each
        loads 4 bytes, whatever their address."""
        return self.pixels if self.row.stride == 1 or self.row.transposed else 1

    @staticmethod
    def _leaves(axis: ConvolvedAxis) -> bool:
        """Whether loaded positions may lie beyond the data."""
        if axis.transposed:
            return True
        last = (axis.positions - 1) * axis.stride - axis.pad + (axis.kernel - 1) * axis.dilation
        return axis.pad > 0 or last >= axis.size or axis.kernel > 1

    def _products(self) -> Iterator[str]:
        """Products with tiles of the weights, columns by depth."""
        deep, high = self.outer
        w = self.names[1]
        size = math.prod(map(int, self.node.args[1].shape[1:]))
        if deep.phases == high.phases == 1:
            yield "place_w = begin + depth"
        else:
            yield f"place_w = {deep.element('phase_deep', 'low')} * {high.kernel} + {high.element('phase_high', 'tap')}"
            yield f"place_w = place_w * {self.channels} + c"
        inside = [] if self.apart else ["(begin + depth < inner)[None, :]"]
        inside += [f"(column < {self.columns})[:, None]"] if self.columns % self.width else []
        yield "if PRECISION == 'tf32':"
        yield f"    x_tile = {ROUNDED.format('x_tile')}"
        yield "if PRECISION == 'tf32x3':"
        yield "    x_low = x_tile"
        yield f"    x_tile = {CUT.format('x_tile')}"
        yield "    x_low = x_low - x_tile"
        for j in range(self.shared):
            element = f"(across + {j})" if self.groups > 1 else str(j)
            own = [f"({element} < {self.row.kernel})"] if self.groups * self.shared > self.row.kernel else []
            mask = f", mask={' & '.join((*inside, *own))}, other=0.0" if inside or own else ""
            at = f"({element} * {self.columns} + column)[:, None] * {self.taps * self.channels} + place_w[None, :]"
            yield f"w_tile = tl.load({w} + {at}{mask})"
            yield "if PRECISION != 'tf32':"
            yield f"    w_low = tl.load({w} + {size} + {at}{mask})"
            yield "if PRECISION == 'tf32x3':  # apart: the sums of tensor cores lose digits"
            yield f"    part = {self._dot('x_tile', 'w_low', '')}"
            yield f"    part = {self._dot('x_low', 'w_tile', ', part')}"
            yield f"    sum_{j} += {self._dot('x_tile', 'w_tile', ', part')}"
            yield "if PRECISION == 'tf32':"
            yield f"    sum_{j} = {self._dot('x_tile', 'w_tile', f', sum_{j}')}"
            yield "if PRECISION == 'ieee':"
            yield f"    sum_{j} = {self._dot('x_tile', 'w_tile + w_low', f', sum_{j}', IEEE)}"

    @staticmethod
    def _dot(x: str, w: str, onto: str, precision: str = TF32_ROUNDED) -> str:
        return f"tl.dot(tl.trans({x}), tl.trans({w}){onto}, input_precision='{precision}')"

    # ------------------------------------------------------------ epilogue

    def _ends(self) -> Iterator[str]:
        """The sums of each phase of a row, the epilogue, and the stores."""
        deep, high = self.outer
        yield f"plane = {deep.made('plane', 'phase_deep')}"
        yield f"top_y = {high.made('top', 'phase_high')}"
        size = deep.result * high.result * self.row.result
        for phase, products in enumerate(self.shifts):
            parts = [self._shifted(j, shift) for j, shift in products]
            yield f"result = tl.trans({' + '.join(parts) or 'tl.zeros_like(sum_0)'})"
            yield f"pixel_y = {self.row.made('pixel', str(phase))}"
            kept = [f"(rows < {self.kept})", f"(top < {high.positions})", f"(pixel < {self.row.positions})"]
            kept += ["(top_y >= 0)", f"(top_y < {high.result})"] if high.transposed else []
            kept += ["(pixel_y >= 0)", f"(pixel_y < {self.row.result})"] if self.row.transposed else []
            kept += ["(plane >= 0)", f"(plane < {deep.result})"] if deep.transposed else []
            column = f" & (column < {self.columns})[:, None]" if self.columns % self.width else ""
            yield f"kept = ({' & '.join(kept)})[None, :]{column}"
            yield f"place = (plane * {high.result} + top_y) * {self.row.result} + pixel_y"
            beside = f"tl.max_contiguous(place, {self._beside()})"
            if self.row.phases > 1:  # threads lie along them, but no store may take several
                beside = f"tl.multiple_of({beside}, 1)"
            yield f"place = column[:, None] * {size} + {beside}[None, :]"
            yield from map(self._other, self.epilogue.names)
            yield from self.epilogue.lines("result", (self.width, self.pixels), self.taken)
            yield f"tl.store({self.names[-1]} + image * {self.columns * size} + place, result, mask=kept)"

    def _shifted(self, j: int, shift: int) -> str:
        if not shift:
            return f"sum_{j}"
        last = self.pixels - 1
        index = f"tl.minimum(rows + {shift}, {last})[:, None] + tl.zeros([1, {self.width}], tl.int32)"
        return f"tl.gather(sum_{j}, {index}, 0)"

    def _other(self, name: str) -> str:
        if name in self.epilogue.of_channels:
            mask = f", mask=column < {self.columns}, other=0.0" if self.columns % self.width else ""
            return f"{name}_tile = tl.load({name} + column{mask})"
        size = self.columns * math.prod(each.result for each in self.axes)
        return f"{name}_tile = tl.load({name} + image * {size} + place, mask=kept, other=0.0)"

    def explained(self) -> list[str]:
        """Why the function is as it is."""
        shared = f"a tile of {self.pixels} positions is loaded once for {self.shared} elements of the kernel's row"
        shifted = f", whose products are shifted by up to {self.reach} positions and added behind the loop"
        what = f"products of {self.pixels} x {self.depth} with {self.depth} x {self.width} on tensor cores"
        said = [f"{shared}{shifted if self.reach else ''}.", f"{what}; the weights have two parts, the first of TF32."]
        if self.row.transposed:
            said.append("of a transposed convolution each phase is a sum of its own products.")
        return said
