"""A kernel of attention whose warps have roles, in Gluon, for Hopper (sm_90).

Four warps load tiles by TMA into a ring of slots and compute the divisors of keys; two groups of
four have 64 rows of queries each. The groups take turns at the softmax: two at a time take half as
long again, and hide no product of each other (FlashAttention-3, Shah et al. 2024, section 3.1;
measured on an H200, `docs/measured/warp_specialization.md`). It computes like `block.py`, with the
same roundings but one: where keys are divided by a number of their own, their scores are.

Why nothing waits for ever, and nothing is read that is not there (`tests/harness/barrier_states.py` goes
through all orders): tile t is in slot t % STAGES, in phase (t // STAGES) & 1 of its barriers. A
slot is asked for again when both groups have said that they read it, so nobody is two phases ahead
of another, which parities would not tell. Whoever says so has met its group before: one thread
arrives for 128. The divisors of keys are read before a group says that the keys are free, because
they are written again only after that. A turn is passed as often as it is taken: group 1 passes one
before its loop, and none in the last iteration. All copies are waited for, so none is on its way
when the block ends. Registers are shared out by `setmaxnreg`, whose sum is the block's total.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from taso_mirage.emit.gpu.attention_body import Operand, attention, demand, letters_of
from taso_mirage.emit.gpu.axes import TileAxes
from taso_mirage.emit.gpu.block import TritonBlock
from taso_mirage.emit.gpu.forms import own_names, reserved_names
from taso_mirage.emit.gpu.lines import Lines
from taso_mirage.emit.gpu.offsets import TileCut
from taso_mirage.emit.gpu.products import tile_product
from taso_mirage.emit.gpu.program import LaunchSchedule, TileMap, TritonLaunch
from taso_mirage.emit.gpu.tiles import HALF, LOG2_E, MAXIMUM_START, Tile, Tiles
from taso_mirage.emit.statements import GLUON
from taso_mirage.ir.dims import Dim
from taso_mirage.ir.mugraph import LoopPhase
from taso_mirage.ir.terms import Node
from taso_mirage.operators.interpret import interpret

GROUPS, ROWS = 2, 64
"""Groups that compute, and the rows of each: those of one product of the tensor cores."""
WIDTHS, KEYS = (64,), (64, 128)
"""The measured widths of heads, and of tiles of keys."""
REGISTERS = 144
"""Registers of a thread of a group that computes; those that load have the rest."""
DEPTHS = (3, 2, 4)
"""Slots of the ring that are tried, the first guess first."""
ITERATION = re.compile(r"\bt\b")
CHOICE = re.compile(r"([kKqQ])\| ?")
"""A line of a template for kernels whose keys (k) or queries (q) are divided, or are not (K, Q)."""
HELPERS = '''from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.language.nvidia.hopper import mbarrier as gl_mbarrier
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

TILED = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))


def tiles(x, shape, tile):
    """A tensor as a matrix that kernels copy in tiles."""
    return TensorDescriptor(x, list(shape), [shape[1], 1], list(tile), TILED.value)


@gluon.jit
def load_tile(matrix, slots, full, slot, row, column):
    gl_mbarrier.expect(full.index(slot), matrix.block_type.nbytes)
    tma.async_copy_global_to_shared(matrix, [row, column], full.index(slot), slots.index(slot))


@gluon.jit
def take_turn(group: gl.constexpr, complete):
    """Wait for a group's turn. The compiler moves no work before a wait for a barrier, also for one that is complete."""
    if group == 0:
        gl.inline_asm_elementwise("bar.sync 8, 256; mov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    else:
        gl.inline_asm_elementwise("bar.sync 9, 256; mov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    gl_mbarrier.wait(complete, 0)


@gluon.jit
def pass_turn(group: gl.constexpr):
    """It is the other group's turn."""
    if group == 0:
        gl.inline_asm_elementwise("bar.arrive 9, 256; mov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    else:
        gl.inline_asm_elementwise("bar.arrive 8, 256; mov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def here(x):
    """x, which is computed before what follows."""
    return gl.inline_asm_elementwise("", "=r,0", [x], dtype=x.dtype, is_pure=False, pack=2)
'''
MEMORY = "k, v, scales, q_full, k_full, v_full, s_full, k_free, v_free"
LOADS = '''@gluon.jit
def {name}_loads(keys, values, {memory}, g0, g1, g2, STAGES: gl.constexpr):
    """All tiles but the first ones, and what keys are divided by."""
k|     gl.static_assert(STAGES > 1)  # else the first wait below is for a tile that is asked for behind it
K|     for t in range(STAGES, {loop}):
K|         n = t - STAGES
k|     for i in range({loop}):
k|         gl_mbarrier.wait(k_full.index(i % STAGES), (i // STAGES) & 1)
k|         scales.index(i % STAGES).store({name}_of_keys({key_tile}))
k|         gl_mbarrier.arrive(s_full.index(i % STAGES), count=1)
k|         n = i - 1
k|         t = n + STAGES
k|         if n >= 0 and t < {loop}:
        {indent}gl_mbarrier.wait(k_free.index(t % STAGES), (n // STAGES) & 1)
        {indent}load_tile(keys, k, k_full, t % STAGES, {key_place})
        {indent}gl_mbarrier.wait(v_free.index(t % STAGES), (n // STAGES) & 1)
        {indent}load_tile(values, v, v_full, t % STAGES, {value_place})
'''
GROUP = '''@gluon.jit
def {name}_group(q_all, {memory}, {results}, g0, g1, g2, GROUP: gl.constexpr, STAGES: gl.constexpr):
    """{rows} rows of queries over all keys of the block."""
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {keys}, 16])
    out: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {width}, 16])
    mma_rows: gl.constexpr = gl.SliceLayout(1, mma)
    out_rows: gl.constexpr = gl.SliceLayout(1, out)
    first: gl.constexpr = GROUP * {rows}
    q = q_all.slice(first, {rows})
    acc = gl.zeros([{rows}, {width}], gl.float32, out)
    total = gl.zeros([{rows}], gl.float32, mma_rows)
    m = gl.full([{rows}], {lowest}, gl.float32, mma_rows)
    empty = gl.zeros([{rows}, {keys}], gl.float32, mma)
    gl_mbarrier.wait(q_full, 0)
q|     by_query = gl.convert_layout({name}_of_queries({query_tile}), mma_rows)
q|     factor = by_query * {log2_e}
    if GROUP == 1:
        pass_turn(GROUP)
    for t in range({loop}):
        slot = t % STAGES
        phase = (t // STAGES) & 1
        gl_mbarrier.wait(k_full.index(slot), phase)
        s = warpgroup_mma(q, {key_operand}, empty, use_acc=False, is_async=True)
k|         gl_mbarrier.wait(s_full.index(slot), phase)
k|         by_key = scales.index(slot).load(gl.SliceLayout(0, mma))
        s = warpgroup_mma_wait(0, deps=(s,))
        gl_mbarrier.arrive(k_free.index(slot), count=1)
        take_turn(GROUP, q_full)
k|         s = s * gl.expand_dims(by_key, 0)
        m_new = gl.maximum(m, gl.max(s, 1))
        top = gl.maximum(m_new * {factor}, {lowest})
        rescale = gl.exp2(gl.maximum(m * {factor}, {lowest}) - top)
        p = gl.exp2(s * {row_factor} - gl.expand_dims(top, 1))
        total = total * rescale + gl.sum(p, 1)
        m = m_new
        weights = here(p.to(v.dtype))
        acc = acc * gl.expand_dims(gl.convert_layout(rescale, out_rows), 1)
        gl_mbarrier.wait(v_full.index(slot), phase)
        if GROUP == 0:
            pass_turn(GROUP)
        elif t < {loop} - 1:
            pass_turn(GROUP)
        weights = gl.convert_layout(weights, gl.DotOperandLayout(0, out, 2))
        token = warpgroup_mma(weights, v.index(slot), acc, is_async=True)
        acc, weights = warpgroup_mma_wait(0, deps=(token, weights))
        gl_mbarrier.arrive(v_free.index(slot), count=1)
q|     m = m * by_query
    rows = first + gl.arange(0, {rows}, mma_rows)
    out_total = gl.convert_layout(total, out_rows)
    out_m = gl.convert_layout(m, out_rows)
    matrix_rows = gl.expand_dims(first + gl.arange(0, {rows}, out_rows), 1)
    matrix_columns = gl.expand_dims(gl.arange(0, {width}, gl.SliceLayout(0, out)), 0)
{stores}
'''
KERNEL = """@gluon.jit
def {name}({arguments}, STAGES: gl.constexpr, OVERLAP: gl.constexpr = False, LATE: gl.constexpr = False):
    g0 = gl.program_id(0)
    g1 = gl.program_id(1)
    g2 = gl.program_id(2)
    q = gl.allocate_shared_memory(queries.dtype, {query_shape}, TILED)
    k = gl.allocate_shared_memory(keys.dtype, [STAGES] + {key_shape}, TILED)
    v = gl.allocate_shared_memory(values.dtype, [STAGES] + {value_shape}, TILED)
    scales = gl.allocate_shared_memory(gl.float32, [STAGES, {keys}], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    q_full = gl.allocate_shared_memory(gl.int64, [1], gl_mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], gl_mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], gl_mbarrier.MBarrierLayout())
    s_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], gl_mbarrier.MBarrierLayout())
    k_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], gl_mbarrier.MBarrierLayout())
    v_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], gl_mbarrier.MBarrierLayout())
    gl_mbarrier.init(q_full, count=1)
    for i in gl.static_range(STAGES):
        gl_mbarrier.init(k_full.index(i), count=1)
        gl_mbarrier.init(v_full.index(i), count=1)
        gl_mbarrier.init(s_full.index(i), count=1)
        gl_mbarrier.init(k_free.index(i), count={groups})
        gl_mbarrier.init(v_free.index(i), count={groups})
    fence_async_shared()
    if OVERLAP:  # loads follow the wait for the kernel before
        tl.extra.cuda.gdc_wait()
    if OVERLAP and not LATE:  # the one after may start now, and waits as well; else at the end
        tl.extra.cuda.gdc_launch_dependents()
    gl_mbarrier.expect(q_full, queries.block_type.nbytes)
    tma.async_copy_global_to_shared(queries, [{query_place}], q_full, q)
    for t in gl.static_range(min(STAGES, {loop})):
        load_tile(keys, k, k_full, t, {key_place})
        load_tile(values, v, v_full, t, {value_place})
    gl.warp_specialize([
        ({name}_loads, (keys, values, {memory}, g0, g1, g2, STAGES)),
        ({name}_group, (q, {memory}, {results}, g0, g1, g2, 0, STAGES)),
        ({name}_group, (q, {memory}, {results}, g0, g1, g2, 1, STAGES)),
    ], [4, 4], [{registers}, {registers}])
"""


class WarpSpecializedBlock:
    """The functions of one kernel whose warps have roles: the terms are as `TritonBlock` read
    them."""

    specialized = True
    helpers = (HELPERS,)

    def __init__(self, block: TritonBlock) -> None:
        self.block, self.name, self.body, self.node = block, block.name, block.body, block.node
        demand(block.looped and block.cluster == 1 and not block.sizes.given, "a kernel without a loop of known sizes")
        demand(not any(b is not None and b.batched for b in (*block.reads, *block.writes)), "samples that a run counts")
        self.found = attention(block)
        self.operands = (self.found.queries.leaf, self.found.keys.leaf, self.found.values)
        self.dtype = self._dtype()
        self.rows, self.width = self._lengths(self.found.queries)
        self.keys, width = self._lengths(self.found.keys)
        demand(self.rows == GROUPS * ROWS, f"{self.rows} rows of queries in a block, not {GROUPS * ROWS}")
        demand(self.keys in KEYS, f"{self.keys} keys in a tile, not {' or '.join(map(str, KEYS))}")
        values = tuple(self.found.values.shape[-2:])
        demand(values == (self.keys, self.width) and width == self.width in WIDTHS, f"heads of {self.width}, not 64")
        demand(self._by_row(self.found.queries), "queries that lie in columns")
        self.maps = {x: self._map(x) for x in self.operands}

    def _dtype(self) -> str:
        dtypes: set[str] = {self.block.reads[self.body.inputs.index(x)].dtype for x in self.operands}
        demand(len(dtypes) == 1 and dtypes <= HALF, f"operands of {', '.join(sorted(dtypes))}")
        return dtypes.pop()

    def _lengths(self, x: Operand) -> tuple[int, int]:
        """(rows, width) of a side, rows of queries or keys."""
        _, result = letters_of(self.found.scores)
        shape = dict(zip(x.letters, x.x.shape, strict=True))
        mine = [c for c in x.letters if shape[c] != 1]
        rows = [c for c in mine if c in result]
        demand(len(mine) == 2 and len(rows) == 1, "a side of scores that is no matrix")
        (width,) = set(mine) - set(rows)
        return int(shape[rows[0]]), int(shape[width])

    def _by_row(self, x: Operand) -> bool:
        """Whether the summed dim is the last dim of a side's leaf: sizes may not tell, as tiles are
        square."""
        _, result = letters_of(self.found.scores)
        order = range(len(x.letters)) if x.x is x.leaf else x.x.attr("perm")
        return next(c for c, dim in zip(x.letters, order, strict=True) if dim == len(x.letters) - 1) not in result

    # ------------------------------------------------------------ memory

    def _map(self, leaf: Node) -> TileMap:
        """The operand as a matrix of rows of its last dim."""
        buffer = self.block.reads[self.body.inputs.index(leaf)]
        demand(buffer.order == tuple(range(len(buffer.shape))), f"{buffer.name} in another order of dims")
        demand(set(leaf.shape[:-2]) <= {1}, f"tiles of {leaf.shape}")
        rows = int(buffer.elements) // int(buffer.shape[-1])
        return TileMap((rows, int(buffer.shape[-1])), (int(leaf.shape[-2]), int(leaf.shape[-1])))

    def _place(self, leaf: Node, variable: str = "t") -> str:
        """Row and column of the tile of an iteration in the operand's matrix."""
        i = self.body.inputs.index(leaf)
        shape = [int(n) for n in self.block.reads[i].shape]
        starts, strides = _starts(self.block.cuts(i), shape), [1] * len(shape)
        for dim in reversed(range(len(shape) - 2)):
            strides[dim] = strides[dim + 1] * shape[dim + 1]
        rows = _sum([_times(each, strides[dim]) for dim in range(len(shape) - 1) for each in starts[dim]])
        return ITERATION.sub(variable, f"{rows}, {_sum(starts[-1])}")

    def _result(self, o: int) -> tuple[str, list[int]]:
        """The offset of a block in the buffer of a result, and the strides of its tile."""
        buffer, grid = self.block.writes[o], self.block.cuts(0)[: len(self.block.grid)]
        cuts = [(dim, *cut[1:]) for dim, cut in zip(self.node.attr("omap")[o], grid, strict=True)]
        demand(all(dim >= 0 or count == 1 for dim, count, _, _ in cuts), "a result that several blocks have")
        assert buffer is not None
        strides = [int(n) for n in buffer.strides]
        starts = _starts(cuts, [int(n) for n in buffer.shape])
        offset = _sum([_times(each, strides[dim]) for dim, terms in enumerate(starts) for each in terms])
        return offset, [s for s, n in zip(strides, self.body.outputs[o].shape, strict=True) if n != 1]

    def _stores(self) -> str:
        """Lines that store the accumulators: vectors of rows in the layout of the scores, matrices
        in that of the products."""
        axes, lines, found = TileAxes(), Lines(reserved_names() | own_names(self._text("")), False), list[str]()
        tiles = Tiles(axes, lines, tile_product)
        row, column = axes.fresh(self.rows), axes.fresh(self.width)
        known = {
            node: Tile(name, node.shape, _spread(node.shape, (row, column)), node.dtype, "float32")
            for node, name in ((self.found.sums, "total"), (self.found.largest, "m"), (self.found.products, "acc"))
        }
        apart = {n: x if n is self.found.products else replace(x, code=f"out_{x.code}") for n, x in known.items()}
        for o, output in enumerate(self.body.outputs):
            matrix = len([n for n in output.shape if n != 1]) > 1
            x = tiles.ready(interpret([output], tiles, apart if matrix else known)[output])
            at, (by_row, *by_column) = self._result(o)
            demand(len(x.present) == 1 + matrix, "a result that lacks a dim")
            place = f"matrix_rows * {by_row} + matrix_columns * {by_column[0]}" if matrix else f"rows * {by_row}"
            found.append(f"gl.store(result_{o} + {at} + {place}, {x.code})")
        text = [line.replace("tl.", "gl.") for line in GLUON.lines(lines.sections[LoopPhase.INVARIANT])]
        return "\n".join(f"    {line}" for line in [*text, *found])

    # ------------------------------------------------------------ the text

    def launch(self, schedule: LaunchSchedule | None) -> TritonLaunch:
        plain = self.block.launch(schedule)
        first = replace(plain.schedule, warps=4, stages=min(DEPTHS[0], self.block.loop), specialized=True)
        chosen = schedule or first
        demand(chosen.specialized and chosen.stages > 1, f"a schedule of {chosen.stages} slots for another form")
        maps = tuple(self.maps[x] for x in self.body.inputs)
        return replace(plain, schedule=chosen, maps=maps, registers=self.registers, rows=0, depths=DEPTHS)

    @property
    def registers(self) -> int:
        """Registers of a thread when the kernel starts; the kernel divides all of them anew
        afterwards. A warp has at least 24; dividing keys takes 48."""
        least = 24 if self.found.keys.divisor is None else 48
        return (GROUPS * REGISTERS + least) // (GROUPS + 1) // 8 * 8

    def source(self) -> str:
        return self._text(self._stores())

    def _text(self, stores: str) -> str:
        """The functions, with what is stored of the results."""
        parts = [self._divisors("queries", self.found.queries), self._divisors("keys", self.found.keys)]
        flags = ("K" if self.found.keys.divisor is None else "k") + ("Q" if self.found.queries.divisor is None else "q")
        parts += [
            _filled(template, flags, self._values(flags) | {"stores": stores}) for template in (LOADS, GROUP, KERNEL)
        ]
        return "\n\n".join(part for part in parts if part)

    def _values(self, flags: str) -> dict[str, object]:
        """Values for the fields of the templates."""
        body, (queries, keys, values) = self.found, self.operands
        names = {queries: "queries", keys: "keys", values: "values"}
        results = [f"result_{o}" for o in range(len(self.body.outputs))]
        tiles = {f"{name[:-1].replace('querie', 'query')}_shape": list(self.maps[x].tile) for x, name in names.items()}
        return tiles | {
            "name": self.name,
            "memory": MEMORY,
            "arguments": ", ".join([*(names[x] for x in self.body.inputs), *results]),
            "results": ", ".join(results),
            "loop": self.block.loop,
            "rows": ROWS,
            "keys": self.keys,
            "width": self.width,
            "groups": GROUPS,
            "registers": REGISTERS,
            "lowest": MAXIMUM_START,
            "log2_e": LOG2_E,
            "factor": "factor" if "q" in flags else LOG2_E,
            "row_factor": "gl.expand_dims(factor, 1)" if "q" in flags else LOG2_E,
            "indent": "    " if "k" in flags else "",
            "query_place": self._place(queries),
            "key_place": self._place(keys),
            "value_place": self._place(values),
            "query_tile": self._loaded(body.queries, "q"),
            "key_tile": self._loaded(body.keys, "k.index(i % STAGES)"),
            "key_operand": "k.index(slot).permute((1, 0))" if self._by_row(body.keys) else "k.index(slot)",
        }

    def _divisors(self, name: str, side: Operand) -> str:
        """A function of a tile: one over the divisor of its rows."""
        if side.divisor is None:
            return ""
        axes, lines = TileAxes(), Lines(reserved_names() | {"rows"}, False)
        tiles = Tiles(axes, lines, tile_product)
        own = tuple(None if n == 1 else axes.fresh(n) for n in side.x.shape)
        tile = Tile("rows", side.x.shape, own, side.leaf.dtype, self.dtype, LoopPhase.INVARIANT, True)
        found = tiles.ready(interpret([side.divisor], tiles, {side.x: tile})[side.divisor])
        demand(len(found.present) == 1 and not lines.ranges(), "a divisor that is no number of each row")
        body = [line.replace("tl.", "gl.") for line in GLUON.lines(lines.sections[LoopPhase.INVARIANT])]
        said = f'"""One over what each row of {name} is divided by."""'
        text = [f"@gluon.jit\ndef {self.name}_of_{name}(rows):", f"    {said}", *(f"    {line}" for line in body)]
        return "\n".join([*text, f"    return 1.0 / {found.code}"]) + "\n"

    def _loaded(self, side: Operand, memory: str) -> str:
        """A tile in registers, in the order of dims that its divisor was read with."""
        lanes = self.maps[side.leaf].tile[1] // 8
        if side.x is side.leaf:
            return f"{memory}.load(gl.BlockedLayout([1, 8], [{32 // lanes}, {lanes}], [4, 1], [1, 0]))"
        return f"{memory}.permute((1, 0)).load(gl.BlockedLayout([8, 1], [{lanes}, {32 // lanes}], [1, 4], [0, 1]))"

    def explained(self) -> list[str]:
        """Why the functions are as they are."""
        found = [
            f"four warps load tiles of {self.keys} keys; {GROUPS} groups of four have {ROWS} rows of queries each, "
            "and take turns at the softmax.",
            "tiles are copied by TMA, which takes what it knows of a tensor as an argument: for sm_90 alone.",
        ]
        divided = self.found.keys.divisor is not None
        return [*found, "scores are divided by what keys are divided by."] if divided else found


def _filled(template: str, flags: str, values: dict[str, object]) -> str:
    """A template with the lines that flags choose."""
    lines = []
    for line in template.splitlines():
        choice = CHOICE.match(line)
        if choice is None or choice[1] in flags:
            lines.append(line if choice is None else line[choice.end() :])
    return "\n".join(lines).format(**values) + "\n"


def _starts(cuts: Sequence[TileCut], shape: Sequence[int]) -> list[list[str]]:
    """For each dim where a tile starts, by grid and loop: terms of a sum."""
    found: list[list[str]] = [[] for _ in shape]
    left = list(shape)
    for dim, count, overlap, variable in cuts:
        if dim >= 0 and count != 1:
            demand(overlap is None, "tiles that overlap")
            left[dim] //= int(count)
            found[dim].append(_times(variable, left[dim]))
    return found


def _times(term: str, factor: int) -> str:
    head, star, last = term.rpartition(" * ")
    if factor == 1:
        return term
    return f"{head} * {int(last) * factor}" if star and last.isdigit() else f"{term} * {factor}"


def _spread(shape: Sequence[Dim], axes: Sequence[int]) -> tuple[int | None, ...]:
    """The axes of dims, one after the other, but for those of size 1."""
    left = iter(axes)
    return tuple(None if n == 1 else next(left) for n in shape)


def _sum(terms: Sequence[str]) -> str:
    return " + ".join(terms) or "0"
