"""A kernel of attention whose warps have roles, in Gluon, for Hopper (sm_90).

Four warps load tiles by TMA into a ring of slots and compute the divisors of keys; two groups of
four have 64 rows of queries each. The groups take turns at the softmax: two at a time take half as
long again, and hide no product of each other (FlashAttention-3, Shah et al. 2024, section 3.1;
measured on an H200, `docs/measured/warp_specialization.md`). It computes like `block.py`, with the
same roundings but one: where keys are divided by a number of their own, their scores are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from taso_mirage.emit.gpu.attention_body import Operand, attention, demand, letters_of
from taso_mirage.emit.gpu.axes import TileAxes
from taso_mirage.emit.gpu.block import TritonBlock
from taso_mirage.emit.gpu.dependent_launch import WAITING
from taso_mirage.emit.gpu.form_function import flags
from taso_mirage.emit.gpu.forms import LaunchedFunction, own_names, reserved_names
from taso_mirage.emit.gpu.lines import Lines
from taso_mirage.emit.gpu.offsets import TileCut
from taso_mirage.emit.gpu.products import tile_product
from taso_mirage.emit.gpu.program import LaunchSchedule, TileMap, TritonBuffer, TritonLaunch
from taso_mirage.emit.gpu.tiles import HALF_FLOATS, LOG2_E, MAXIMUM_START, Tile, Tiles
from taso_mirage.emit.gpu.warp_specialized_text import ATTENTION_FUNCTIONS, HELPERS
from taso_mirage.emit.quotes import quoted
from taso_mirage.emit.statements import GLUON, Expression, ProgramFunction, Return, Statement, expression, sum_of, tl, v
from taso_mirage.ir.dims import Dim
from taso_mirage.ir.mugraph import LoopPhase
from taso_mirage.ir.terms import Graph, Node
from taso_mirage.operators.interpret import interpret

GROUPS, ROWS = 2, 64
"""Groups that compute, and the rows of each: those of one product of the tensor cores."""
WIDTHS, KEYS = (64,), (64, 128)
"""The measured widths of heads, and of tiles of keys."""
REGISTERS = 144
"""Registers of a thread of a group that computes; those that load have the rest."""
DEPTHS = (3, 2, 4)
"""Slots of the ring that are tried, the first guess first."""
MEMORY = "k v scales q_full k_full v_full s_full k_free v_free".split()
"""The names of the memory that groups share: tiles, divisors of keys, and barriers."""


class WarpSpecializedBlock(LaunchedFunction):
    """The functions of one kernel whose warps have roles: the terms are as `TritonBlock` read
    them."""

    specialized = True
    helpers = (HELPERS,)
    body: Graph

    def __init__(self, block: TritonBlock) -> None:
        self.block, self.term, self.body, term = block, block.term, block.body, block.term
        demand(term.looped and term.cluster == 1 and not term.sizes.given, "a kernel without a loop of known sizes")
        reads = [b for b in term.reads if isinstance(b, TritonBuffer)]
        demand(len(reads) == len(term.reads), "operands that are moved elements")
        demand(not any(b is not None and b.batched for b in (*reads, *term.writes)), "samples that a run counts")
        demand(not any(b is not None and b.part for b in (*reads, *term.writes)), "parts of a result")
        self.reads = reads
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
        dtypes: set[str] = {self.reads[self.body.inputs.index(x)].dtype for x in self.operands}
        demand(len(dtypes) == 1 and dtypes <= HALF_FLOATS, f"operands of {', '.join(sorted(dtypes))}")
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
        buffer = self.reads[self.body.inputs.index(leaf)]
        demand(buffer.order == tuple(range(len(buffer.shape))), f"{buffer.name} in another order of dims")
        demand(set(leaf.shape[:-2]) <= {1}, f"tiles of {leaf.shape}")
        rows = int(buffer.elements) // int(buffer.shape[-1])
        return TileMap((rows, int(buffer.shape[-1])), (int(leaf.shape[-2]), int(leaf.shape[-1])))

    def _place(self, leaf: Node) -> list[Expression]:
        """Row and column of the tile of an iteration in the operand's matrix."""
        i = self.body.inputs.index(leaf)
        shape = [int(n) for n in self.reads[i].shape]
        starts, strides = _starts(self.term.cuts(i), shape), [1] * len(shape)
        for dim in reversed(range(len(shape) - 2)):
            strides[dim] = strides[dim + 1] * shape[dim + 1]
        return [_offset(starts[:-1], strides), _offset(starts[-1:], [1])]

    def _result(self, o: int) -> tuple[Expression, list[int]]:
        """The offset of a block in the buffer of a result, and the strides of its tile."""
        buffer, cuts = self.term.writes[o], self.term.result_cuts(o)
        demand(all(dim >= 0 or count == 1 for dim, count, _, _ in cuts), "a result that several blocks have")
        assert buffer is not None
        strides = [int(n) for n in buffer.strides]
        offset = _offset(_starts(cuts, [int(n) for n in buffer.shape]), strides, v[f"result_{o}"])
        return offset, [s for s, n in zip(strides, self.body.outputs[o].shape, strict=True) if n != 1]

    def _stores(self) -> list[Statement]:
        """Store the accumulators: vectors of rows in the layout of the scores, matrices in that of
        the products."""
        axes, lines, found = TileAxes(), Lines(reserved_names() | own_names(self._text([])), False), list[Statement]()
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
            rows = v.matrix_rows if matrix else v.rows
            found.append(tl.store(sum_of([at, rows * by_row, *(v.matrix_columns * n for n in by_column)]), x.code))
        return [*lines.sections[LoopPhase.INVARIANT], *found]

    # ------------------------------------------------------------ the text

    def launch(self, schedule: LaunchSchedule | None) -> TritonLaunch:
        plain = self.block.launch(schedule)
        first = replace(plain.schedule, warps=4, stages=min(DEPTHS[0], int(self.term.loop)), specialized=True)
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

    def _text(self, stores: Sequence[Statement]) -> str:
        """The functions, with the statements that store the results."""
        body, (queries, keys, values) = self.found, self.operands
        names = {queries: "queries", keys: "keys", values: "values"}
        results = [f"result_{o}" for o in range(len(self.body.outputs))]
        by_query = body.queries.divisor is not None
        key = v.k.index("slot")
        *functions, kernel = quoted(
            ATTENTION_FUNCTIONS.replace("KERNEL", self.term.name),
            MEMORY=MEMORY,
            SHARED=[*MEMORY, *results],
            ARGUMENTS=[*(names[x] for x in self.body.inputs), *results],
            by_key=body.keys.divisor is not None,
            by_query=by_query,
            query_tile=self._loaded(body.queries, v.q),
            key_tile=self._loaded(body.keys, v.k.index(v.i % "STAGES")),
            key_operand=key.permute((1, 0)) if self._by_row(body.keys) else key,
            factor="factor" if by_query else LOG2_E,
            row_factor=tl.expand_dims("factor", 1) if by_query else LOG2_E,
            **{f"{n}_place": self._place(x) for n, x in zip(("query", "key", "value"), self.operands, strict=True)},
            **{
                f"{n}_shape": list(self.maps[x].tile)
                for n, x in zip(("query", "key", "value"), self.operands, strict=True)
            },
            **{"loop": self.term.loop, "rows": ROWS, "keys": self.keys, "width": self.width, "groups": GROUPS},
            **{"registers": REGISTERS, "lowest": MAXIMUM_START, "log2_e": LOG2_E, "waiting": WAITING, "stores": stores},
        )
        kernel = replace(kernel, parameters=(*kernel.parameters, *flags("OVERLAP", "LATE")))
        made = [*self._divisors("queries", body.queries), *self._divisors("keys", body.keys), *functions, kernel]
        return "\n\n".join(map(GLUON.function, made))

    def _divisors(self, name: str, side: Operand) -> Iterator[ProgramFunction]:
        """A function of a tile: one over the divisor of its rows, if they have one."""
        if side.divisor is None:
            return
        axes, lines = TileAxes(), Lines(reserved_names() | {"rows"}, False)
        tiles = Tiles(axes, lines, tile_product)
        own = tuple(None if n == 1 else axes.fresh(n) for n in side.x.shape)
        tile = Tile("rows", side.x.shape, own, side.leaf.dtype, self.dtype, LoopPhase.INVARIANT, True)
        found = tiles.ready(interpret([side.divisor], tiles, {side.x: tile})[side.divisor])
        demand(len(found.present) == 1 and not lines.ranges(), "a divisor that is no number of each row")
        body = (*lines.sections[LoopPhase.INVARIANT], Return(1.0 / expression(found.code)))
        yield ProgramFunction(
            f"{self.term.name}_of_{name}", ("rows",), body, why=f"One over what each row of {name} is divided by."
        )

    def _loaded(self, side: Operand, memory: Expression) -> Expression:
        """A tile in registers, in the order of dims that its divisor was read with."""
        lanes = self.maps[side.leaf].tile[1] // 8
        if side.x is side.leaf:
            return memory.load(tl.BlockedLayout([1, 8], [32 // lanes, lanes], [4, 1], [1, 0]))
        return memory.permute((1, 0)).load(tl.BlockedLayout([8, 1], [lanes, 32 // lanes], [1, 4], [0, 1]))

    def explained(self) -> list[str]:
        """The reasons for the form of the functions."""
        found = [
            f"four warps load tiles of {self.keys} keys; {GROUPS} groups of four have {ROWS} rows of queries each, "
            "and take turns at the softmax.",
            "tiles are copied by TMA, which takes what it knows of a tensor as an argument: for sm_90 alone.",
        ]
        divided = self.found.keys.divisor is not None
        return [*found, "scores are divided by what keys are divided by."] if divided else found


def _starts(cuts: Sequence[TileCut], shape: Sequence[int]) -> list[list[tuple[str, int]]]:
    """The start of a tile along each dim, by grid and loop: variables, and the elements of one step
    of each."""
    found: list[list[tuple[str, int]]] = [[] for _ in shape]
    left = list(shape)
    for dim, count, overlap, variable in cuts:
        if dim >= 0 and count != 1:
            demand(overlap is None, "tiles that overlap")
            left[dim] //= int(count)
            found[dim].append((variable, left[dim]))
    return found


def _offset(starts: Sequence[Sequence[tuple[str, int]]], strides: Sequence[int], *pointer: Expression) -> Expression:
    """A pointer to the start of a tile, or the offset of the start."""
    steps = [(v[n], each * stride) for terms, stride in zip(starts, strides, strict=False) for n, each in terms]
    terms = [variable if factor == 1 else variable * factor for variable, factor in steps]
    return sum_of([*pointer, *(terms or [expression(0)])])


def _spread(shape: Sequence[Dim], axes: Sequence[int]) -> tuple[int | None, ...]:
    """The axes of dims, one after the other, except for dims of size 1."""
    left = iter(axes)
    return tuple(None if n == 1 else next(left) for n in shape)
