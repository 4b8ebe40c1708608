"""A `shifted_conv` whose weights stay in shared memory, in Gluon, for Hopper (sm_90): operands are
rounded to TF32.

One block for each processor loads the weights of its columns once (weight-stationary: Chen et al.,
Eyeriss, ISCA 2016, section IV). Two groups of four warps then have tiles of positions in turn, each
a ring of its own: a group waits for no other. A tile is 16 bytes of a row at a time, because rows
begin at multiples of 16 bytes here: the padding of a row lies between it and the next one.

Products are of a tile's positions, so tensor cores take the data from registers, along the sum, and
four neighbouring positions are four registers of a thread. A shift is then another name for a
register, or a number of the next lane; of a warp's 32 positions those whose sums would be another
warp's are loaded there, too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from taso_mirage.devices.cuda.device import H100
from taso_mirage.emit.gpu.axes import power_of_two
from taso_mirage.emit.gpu.epilogue import Epilogue
from taso_mirage.emit.gpu.forms import own_names, reserved_names
from taso_mirage.emit.gpu.program import TF32_ROUNDED, LaunchSchedule, Traffic, TritonLaunch, not_specialized
from taso_mirage.emit.gpu.shifted import COUNTED, ShiftedBlock
from taso_mirage.emit.gpu.stationary_text import ENTRY, GROUP_OF_WARPS, PLACES_AND_LOADS, ROUNDED_TILES
from taso_mirage.emit.statements import GLUON, v
from taso_mirage.errors import Unsupported
from taso_mirage.ir.mugraph import usual_size
from taso_mirage.ir.terms import Node

GROUPS, WARP, ROWS = 2, 32, 128
"""Groups of four warps, positions of a warp, and those of a group."""
CHUNK = 4
"""Numbers that are copied at once."""
STEP = 8
"""Channels of a product of the tensor cores."""
WIDTHS = (64, 32, 16)
"""Columns of a block."""
SUMS = 192
"""Registers of a thread for sums, and for results with the values computed of them, at most: with
more they go to memory."""
SLOW, MANY = re.compile(r"gl\.(?:exp|log|where|erf|sin|cos|sqrt)|/"), 5
"""Functions that take registers beside an element and its result; MANY of them need one more."""
REGISTERS = 240
"""Registers of a thread of the second group; the first has no fewer."""
MEMORY = 227 * 1024
"""Bytes of shared memory of a block."""
SCRATCH = 4 * 1024 + 512
"""Bytes of shared memory through which the results of a phase pass."""
DEEPEST, LEAST = 4, 3
"""Slots of a ring."""
BEYOND = -(1 << 30)
"""The row for positions beside the image: none."""


class StationaryBlock:
    """The functions of one convolution.

    Raises Unsupported for rows that do not begin at multiples of 16 bytes, or that a stride goes
    along, and for weights that shared memory has no room for beside the rings.
    """

    body: Sequence[Node] = ()
    specialized = True
    helpers = (ROUNDED_TILES,)

    def __init__(self, block: ShiftedBlock) -> None:
        self.block, self.name, self.node = block, block.name, block.node
        self.row, self.outer = block.row, block.outer
        self.sums = self.row.kernel
        if not self.row.transposed and self.row.stride != 1:
            raise Unsupported(f"weights that stay, and a row with stride {self.row.stride}")
        if self.row.size % CHUNK:
            raise Unsupported(f"rows of {self.row.size} numbers, not of multiples of {CHUNK}, that are copied at once")
        if any(each.transposed and (each.dilation != 1 or [] in each.products) for each in self.outer):
            raise Unsupported("weights that stay, and a transposed convolution with dilations beside the row")
        if self.row.phases not in (1, 2, 4):
            raise Unsupported(f"{self.row.phases} phases of a row; 1, 2 and 4 have a form")
        self.shifts = self.row.shifts(self.sums)
        self.reach = max(shift for phase in self.shifts for _, shift in phase)
        self.kept = WARP - _up(self.reach, CHUNK)
        if self.kept < WARP // 2:
            raise Unsupported(f"sums of {self.reach + 1} positions of a row, of which a warp has {WARP}")
        if self.tiles * 4 * self.kept >= COUNTED:
            raise Unsupported(f"{self.tiles} tiles of a plane, whose positions 32 bits count")
        self.channels = _up(block.channels, STEP)
        self.depth = 2 * STEP if self.channels % (2 * STEP) == 0 else STEP
        self.chunks = self.channels // self.depth
        self.others = [f"other_{i}" for i, _ in enumerate(self.node.args[2:], 1)]
        self.epilogue = Epilogue(self.node, self.others, channels_last=True)
        self.taken: frozenset[str] | None = reserved_names()
        self.width = WIDTHS[-1]
        self.width, self.stages = self._fitting()
        self.parts = -(-block.columns // self.width)
        self.taken = None
        self.taken = reserved_names() | own_names(self.source())

    def _fitting(self) -> tuple[int, int]:
        """The columns of a block, and the slots of a ring: as few parts as there can be, of which
        each loads the data."""
        columns, found = self.block.columns, []
        slow = len(SLOW.findall("".join(self._following("x", ROWS)))) >= MANY
        live = self.row.phases * (2 if self.epilogue.of_results else 1) + (2 if slow else 1)
        for width in WIDTHS:
            memory = MEMORY - SCRATCH * self.row.phases - self.elements * width * self.depth * 4
            slots = min(DEEPEST, memory // (GROUPS * self.depth * ROWS * 4))
            if max(self.sums, live) * width <= SUMS and slots >= LEAST:
                found.append((-(-columns // width) * (width + WIDTHS[-1]), width, slots))
        if not found or (found[0][1] < 2 * STEP * 2 and columns > found[0][1]):
            raise Unsupported(f"weights of {self.node.args[1].type}, which shared memory has no room for")
        _, width, slots = min(found)
        return width, slots

    # ------------------------------------------------------------ sizes

    @property
    def elements(self) -> int:
        """Tiles of the weights."""
        return self.sums * self.block.taps * self.chunks

    @property
    def gap(self) -> int:
        """Positions before a row, of zeros."""
        return _up(self.row.origin, CHUNK)

    @property
    def begin(self) -> int:
        """The position of a row's first result."""
        return self.gap - self.row.origin

    @property
    def pitch(self) -> int:
        """Positions of a row. A result sees the gap before the next one beyond them: zeros, as
        there."""
        end = self.begin + self.row.positions
        last = end + self.reach
        return _up(max(end, last - self.gap, min(self.row.size + self.gap, last)), CHUNK)

    @property
    def tiles(self) -> int:
        """The tiles of a plane of one phase."""
        return -(-self.outer[-1].positions * self.pitch // (4 * self.kept))

    @property
    def tiles_of_image(self) -> int:
        phases = math.prod(each.phases for each in self.outer)
        return self.tiles * phases * self.outer[0].positions

    # ------------------------------------------------------------ the text

    def launch(self, schedule: LaunchSchedule | None) -> TritonLaunch:
        plain = self.block.launch(None)
        processors = max(H100.processors // self.parts, 1) * self.parts
        own = LaunchSchedule(4, self.stages, specialized=True, precision=TF32_ROUNDED, persistent=processors)
        chosen = schedule or own
        whole = chosen.persistent > 0 and chosen.persistent % self.parts == 0 and 2 <= chosen.stages <= self.stages
        if not chosen.specialized or chosen.precision != TF32_ROUNDED or not whole:
            raise Unsupported(f"weights that stay, with a schedule of another form: {chosen}")
        loop = max(math.prod(each.taps for each in self.outer) * self.chunks, 2)
        return replace(
            plain,
            grid=(chosen.persistent,),
            loop=loop,
            schedule=chosen,
            traffic=self._traffic(loop),
            precisions=(TF32_ROUNDED,),
        )

    def _traffic(self, loop: int) -> Traffic:
        count = self.parts * self.tiles_of_image * usual_size(self.block.images)
        products = 2 * ROWS * self.width * self.sums * self.depth * loop
        moved = ROWS * self.depth * loop * 4
        stored = sum(b.bytes for b in self.block.buffers[2:])
        return Traffic(products * count, moved * count + stored, ROWS * self.depth * 4, ROWS * self.width * self.sums)

    def source(self) -> str:
        values = self._values()
        shifted = [_shifted(self.name, shift) for shift in sorted(self._moved())]
        return "\n\n".join(
            [*shifted, *(template.format(**values) for template in (PLACES_AND_LOADS, GROUP_OF_WARPS, ENTRY))]
        )

    def _moved(self) -> set[int]:
        return {shift for phase in self.shifts for _, shift in phase if shift}

    def _values(self) -> dict[str, object]:
        """Values for the fields of the templates."""
        block, high, sums = self.block, self.outer[1], range(self.sums)
        return {
            **self._sizes(),
            **self._layouts(),
            "name": self.name,
            "arguments": ", ".join(["x", "w", *self.others, "result"]),
            "sizes": "".join(f", {name}" for name in block.free),
            "free": not_specialized(block.free),
            "images": block.images,
            "taps_deep": self.outer[0].taps_of("phase_deep"),
            "taps_high": high.taps_of("phase_high"),
            "row": "top" if high.transposed else f"top * {high.stride} - {high.pad}",
            "further": "-tap" if high.transposed else f"tap * {high.dilation}",
            "plane_x": self.outer[0].seen(v.plane, v.low),
            "zeros": _indented([f"sum_{j} = gl.zeros([128, {self.width}], gl.float32, MMA)" for j in sums], 8),
            "place_w": self._element(),
            "products": _indented([self._product(j) for j in sums], 12),
            "sums": ", ".join(f"sum_{j}" for j in sums),
            "tokens": ", ".join(f"token_{j}" for j in sums),
            "ends": _indented(list(self._ends()), 8),
        }

    def _sizes(self) -> dict[str, object]:
        (deep, high), block = self.outer, self.block
        area = high.size * self.row.size
        return {
            "size": self.row.size,
            "height": high.size,
            "planes_x": deep.size,
            "area": area,
            "volume": deep.size * area,
            "image": block.channels * deep.size * area,
            "channels": block.channels,
            "all_columns": block.columns,
            "whole": block.taps * block.channels,
            "width": self.width,
            "depth": self.depth,
            "chunks": self.chunks,
            "parts": self.parts,
            "elements": self.elements,
            "elements_of_row": self.elements // self.sums,
            "pitch": self.pitch,
            "gap": self.gap,
            "beyond": BEYOND,
            "kept": self.kept,
            "step": 4 * self.kept,
            "tiles": self.tiles,
            "tiles_of_image": self.tiles_of_image,
            "planes": deep.positions,
            "phases_deep": deep.phases,
            "phases_high": high.phases,
            "results": ROWS * self.row.phases,
            "warp_chunks": WARP // CHUNK,
            "groups": GROUPS,
            "registers": REGISTERS,
        }

    def _layouts(self) -> dict[str, object]:
        """Bases of registers, lanes and warps: of a loaded tile (channels, positions), of sums by
        position, and of a stored one (positions of all phases, columns)."""
        phases = self.row.phases.bit_length() - 1
        positions = [[1 << i, 0] for i in range(5)]
        loaded = [[0, 1], [0, 2], *([1 << i, 0] for i in range(2, self.depth.bit_length() - 1))]
        summed = [[1, 0], [2, 0], [0, 1], *([0, 1 << i] for i in range(3, power_of_two(self.width).bit_length() - 1))]
        stored = [[0, 1 << i] for i in range(self.width.bit_length() - 1)] + [[32 << i, 0] for i in range(phases)]
        vector = CHUNK if self.block.channels % CHUNK == 0 else 1
        return {
            "loaded": f"{loaded}, {[[1, 0], [2, 0], [0, 4], [0, 8], [0, 16]]}, {[[0, 32], [0, 64]]}",
            "summed": f"{summed}, {[[0, 2], [0, 4], [4, 0], [8, 0], [16, 0]]}, {[[32, 0], [64, 0]]}",
            "stored": f"{stored}, {positions}, {[[32 << phases, 0], [64 << phases, 0]]}",
            "row_bytes": self.depth * 4,
            "weight_chunk": vector,
            "weight_lanes": f"{WARP * vector // self.depth}, {self.depth // vector}",
        }

    def _element(self) -> str:
        """The tile of the weights of a step, among those of one element of a row."""
        deep, high = self.outer
        if deep.phases == high.phases == 1:
            return "t"
        tap = f"t // {self.chunks}"
        low, tap = f"({tap} // own_taps)", f"({tap} % own_taps)"
        element = f"{deep.element('own_deep', low)} * {high.kernel} + {high.element('own_high', tap)}"
        return f"({element}) * {self.chunks} + t % {self.chunks}"

    def _product(self, j: int) -> str:
        at = f"{j * (self.elements // self.sums)} + place_w" if j else "place_w"
        return f"token_{j} = warpgroup_mma(tile_x, weights.index({at}).permute((1, 0)), sum_{j}, is_async=True)"

    # ------------------------------------------------------------ epilogue

    def _ends(self) -> Iterator[str]:
        """The sums of each phase of a row, the epilogue, and the store."""
        deep, high = self.outer
        row, size = self.row, math.prod(each.result for each in (*self.outer, self.row))
        for j in range(self.sums):
            yield f"sum_{j} = by_position(sum_{j}, {self.width}, SUMMED)"
        if not self.epilogue.of_results:  # where a thread has fewer columns
            yield f"column = columns + gl.arange(0, {self.width}, gl.SliceLayout(0, SUMMED))"
            yield from map(self._of_channels, self.others)
        for i, products in enumerate(self.shifts):
            parts = [f"{self.name}_moved_{s}(sum_{j})" if s else f"sum_{j}" for j, s in products]
            zeros = f"gl.zeros([{ROWS}, {self.width}], gl.float32, SUMMED)"
            yield f"phase_{i} = {' + '.join(parts) or zeros}"
            if not self.epilogue.of_results:
                yield from self._following(f"phase_{i}", ROWS)
        yield f"result_tile = gl.convert_layout({self._joined()}, STORED)"
        yield f"index = gl.arange(0, {ROWS * row.phases}, gl.SliceLayout(1, STORED))"
        yield f"column = columns + gl.arange(0, {self.width}, gl.SliceLayout(0, STORED))"
        yield f"place = index // {row.phases}"
        yield f"position = own_first + place // {WARP} * {self.kept} + place % {WARP}"
        yield f"top = position // {self.pitch}"
        yield f"pixel = position % {self.pitch} - {self.begin}"
        yield f"plane_y = {deep.made('own_plane', 'own_deep')}"
        yield f"top_y = {high.made('top', 'own_high')}"
        yield f"pixel_y = {row.made('pixel', f'index % {row.phases}')}"
        kept = [f"(place % {WARP} < {self.kept})", f"(top < {high.positions})"]
        kept += ["(pixel >= 0)", f"(pixel < {row.positions})"]
        kept += ["(top_y >= 0)", f"(top_y < {high.result})"] if high.transposed else []
        kept += ["(pixel_y >= 0)", f"(pixel_y < {row.result})"] if row.transposed else []
        kept += ["(plane_y >= 0)", f"(plane_y < {deep.result})"] if deep.transposed else []
        column = f" & gl.expand_dims(column < {self.block.columns}, 0)" if self.block.columns % self.width else ""
        yield f"kept = gl.expand_dims({' & '.join(kept)}, 1){column}"
        yield f"place_y = (plane_y * {high.result} + top_y) * {row.result} + pixel_y"
        yield f"place_y = gl.expand_dims(place_y, 1) + gl.expand_dims(column * {size}, 0)"
        yield f"own_image = own_image * {self.block.columns * size}"
        if self.epilogue.of_results:
            for name in self.others:
                yield self._added(name) if name in self.epilogue.of_results else self._of_channels(name)
            yield from self._following("result_tile", ROWS * row.phases)
        yield "gl.store(result + own_image + place_y, result_tile, mask=kept)"

    def _joined(self) -> str:
        """The results of all phases, each beside that of the next one."""
        count = self.row.phases
        pairs = [f"phase_{i}" for i in range(count)]
        while len(pairs) > 1:  # the last dim that is joined is that of neighbours
            half = len(pairs) // 2
            pairs = [f"gl.join({a}, {b})" for a, b in zip(pairs[:half], pairs[half:], strict=True)]
        dims = range(2, 2 + count.bit_length() - 1)
        whole = f"gl.reshape(gl.permute({pairs[0]}, {[0, *dims, 1]}), [{ROWS * count}, {self.width}])"
        return pairs[0] if count == 1 else whole

    def _following(self, name: str, count: int) -> Iterator[str]:
        """The lines of the epilogue, on so many positions by columns."""
        statements = self.epilogue.statements(name, (count, self.width), self.taken)
        return (line.replace("tl.", "gl.") for line in GLUON.lines(statements))

    def _of_channels(self, name: str) -> str:
        mask = f", mask=column < {self.block.columns}, other=0.0" if self.block.columns % self.width else ""
        return f"{name}_tile = gl.load({name} + column{mask})"

    def _added(self, name: str) -> str:
        return f"{name}_tile = gl.load({name} + own_image + place_y, mask=kept, other=0.0)"

    def explained(self) -> list[str]:
        """Why the functions are as they are."""
        return [
            f"a block for each processor keeps the weights of {self.width} columns in shared memory; two groups of four "
            f"warps have tiles of {4 * self.kept} positions in turn.",
            "operands are rounded to TF32; the data goes to tensor cores from registers: for sm_90 alone.",
        ]


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def _indented(lines: Sequence[str], spaces: int) -> str:
    return "\n".join(" " * spaces + line for line in lines)


def _shifted(name: str, shift: int) -> str:
    """A function of sums by position: those of positions further on, where a warp has them."""
    moves = []
    for i in range(CHUNK):
        lanes, register = divmod(i + shift, CHUNK)
        source = f"${CHUNK + register}"
        moves.append(
            f"shfl.sync.down.b32 ${i}, {source}, {CHUNK * lanes}, 31, -1;" if lanes else f"mov.b32 ${i}, {source};"
        )
    return f'''@gluon.jit
def {name}_moved_{shift}(x):
    return gl.inline_asm_elementwise(
        "{" ".join(moves)}",
        "=&r,=&r,=&r,=&r,r,r,r,r", [x], dtype=gl.float32, is_pure=False, pack=4)
'''
