"""A block of a kernel in Gluon without a GPU: its generated functions run as Python, with numpy
in place of tiles and a thread in place of each group of warps.

Copies of `cp.async` are done as late as they may be, when they are waited for, or at once (`late`).
Barriers are as in PTX: an `mbarrier` has arrivals and bytes to come, and a wait is for the phase of
a parity; `bar.sync` and `bar.arrive` are of two groups. Layouts have no meaning here. The actions
of each group on barriers and shared memory are noted, in its order.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

LONGEST = 10.0
"""Seconds for a wait: longer is for ever."""
NAMED = re.compile(r"bar\.(sync|arrive) (\d+), 256")
MOVES = re.compile(r"(mov|shfl\.sync\.down)\.b32 \$(\d), \$(\d)(?:, (\d+), 31, -1)?;")
WARP = 32
"""Positions that a warp has, four of them in the registers of a thread."""
Event = tuple[Any, ...]
"""The actions of a group: ("wait", barrier, parity), ("arrive", barrier), ("expect", barrier),
("copy", barrier, memory, slot), ("begin", memory, slot) and ("end", memory, slot) of a read,
("write", memory, slot), ("sync", number) and ("pass", number) of a named barrier."""


class Hang(Exception):
    """A wait that nothing ends."""


class Tile(np.ndarray[Any, Any]):
    """Values of a group."""

    def to(self, dtype: Any) -> Tile:
        return self.astype(dtype).view(Tile)


def tile(x: Any) -> Tile:
    return np.asarray(x).view(Tile)


@dataclass
class Barrier:
    """An mbarrier: `count` arrivals end a phase, and the bytes that were said to come."""

    name: tuple[str, int]
    block: Block
    count: int = 0
    left: int = 0
    bytes: int = 0
    phase: int = 0

    def index(self, slot: int) -> Barrier:
        return self.block.barriers[self.name[0], slot]

    def change(self, arrivals: int, bytes: int) -> None:
        with self.block.changed:
            self.left -= arrivals
            self.bytes += bytes
            assert self.left >= 0, f"{self.name} has more arrivals than {self.count}"
            if self.left == 0 and self.bytes == 0:
                self.left, self.phase = self.count, self.phase + 1
            self.block.changed.notify_all()


@dataclass
class Memory:
    """Shared memory, of one slot or of a ring."""

    name: str
    array: Any
    block: Block
    slot: int = 0

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    def _part(self, array: Any, slot: int | None = None) -> Memory:
        return Memory(self.name, array, self.block, self.slot if slot is None else slot)

    def index(self, slot: int) -> Memory:
        return self._part(self.array[int(slot)], int(slot))

    def slice(self, first: int, rows: int) -> Memory:
        assert first + rows <= len(self.array)
        return self._part(self.array[first : first + rows])

    def permute(self, order: Sequence[int]) -> Memory:
        return self._part(self.array.transpose(order))

    def load(self, layout: Any) -> Tile:
        self.block.note("begin", self.name, self.slot)
        found = tile(self.array.copy())
        self.block.note("end", self.name, self.slot)
        return found

    def store(self, x: Any) -> None:
        self.block.note("write", self.name, self.slot)
        self.array[...] = x


@dataclass
class Matrix:
    """A tensor as a kernel copies it: in tiles of so many rows and columns."""

    array: Any
    tile: tuple[int, int]

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    @property
    def block_type(self) -> Any:
        return type("Tiles", (), {"nbytes": self.tile[0] * self.tile[1] * self.array.itemsize})


@dataclass
class Pointer:
    """Elements of a buffer."""

    buffer: Any
    at: Any = 0

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.buffer, self.at + offset)


@dataclass
class Block:
    """One block: its functions are those of a generated source. Without `blocks` no wait waits, so
    that only the order of each group's actions means something."""

    source: str
    ids: tuple[int, int, int] = (0, 0, 0)
    blocks: bool = True
    count: int = 1
    """Blocks along the first dim of the grid."""
    late: bool = True
    traces: list[list[Event]] = field(default_factory=list)
    barriers: dict[tuple[str, int], Barrier] = field(default_factory=dict)
    given: int = 0
    """How many allocations there were."""

    def __post_init__(self) -> None:
        self.changed, self.own = threading.Condition(), threading.local()
        self.turns: dict[int, int] = {8: 0, 9: 0}
        self.errors: list[BaseException] = []
        self.registers: tuple[list[int], list[int]] = ([], [])
        lines = [line for line in self.source.splitlines() if not line.startswith(("import triton", "from triton"))]
        self.names: dict[str, Any] = self._names()
        exec("\n".join(lines), self.names)

    def run(self, kernel: str, *arguments: Any, **constants: Any) -> None:
        """The kernel's function, in this thread, then its groups, each in its own. Raises the first
        error of one of them: Hang for a wait without end."""
        self.own.trace, self.own.pending, self.own.copies = [], [], [[]]
        self.traces.append(self.own.trace)
        self.names[kernel](*arguments, **constants)
        if self.errors:
            raise self.errors[0]

    def note(self, *event: Any) -> None:
        self.own.trace.append(event)

    # ------------------------------------------------------------ the meanings of Gluon's names

    def _names(self) -> dict[str, Any]:
        plain = {
            "constexpr": lambda x: x,
            "static_range": range,
            "static_assert": _asserted,
            "program_id": lambda i: self.ids[i],
            "num_programs": lambda i: self.count,
            "thread_barrier": lambda: None,
            "reshape": lambda x, shape: tile(np.reshape(x, shape)),
            "permute": lambda x, dims: tile(np.transpose(x, dims)),
            "join": lambda a, b: tile(np.stack([a, b], -1)),
            "where": lambda c, a, b: np.where(c, a, b)[()],
            "multiple_of": _multiples,
            "max_contiguous": _beside,
            "max_constancy": _constant,
            "load": _loaded,
            "cast": lambda x, dtype: dtype(x),
            "exp": lambda x: tile(np.exp(x)),
            "log": lambda x: tile(np.log(x)),
            "abs": lambda x: tile(np.abs(x)),
            "float32": np.float32,
            "int64": np.int64,
            "int32": np.int32,
            "zeros": lambda shape, dtype, layout: tile(np.zeros(shape, dtype)),
            "full": lambda shape, x, dtype, layout: tile(np.full(shape, x, dtype)),
            "arange": lambda a, b, layout: tile(np.arange(a, b)),
            "convert_layout": lambda x, layout, assert_trivial=False: x,
            "expand_dims": lambda x, axis: tile(np.expand_dims(x, axis)),
            "maximum": lambda a, b: tile(np.maximum(a, b)),
            "minimum": lambda a, b: tile(np.minimum(a, b)),
            "max": lambda x, axis: tile(np.max(x, axis)),
            "sum": lambda x, axis: tile(np.sum(x, axis)),
            "exp2": lambda x: tile(np.exp2(x)),
            "sqrt": lambda x: tile(np.sqrt(x)),
            "store": self._stored,
            "allocate_shared_memory": self._allocated,
            "inline_asm_elementwise": self._assembly,
            "warp_specialize": self._specialized,
        }
        layouts = (
            "NVMMASharedLayout NVMMADistributedLayout SwizzledSharedLayout SliceLayout BlockedLayout DotOperandLayout "
            "DistributedLinearLayout"
        )
        gl = type("gl", (), {k: staticmethod(v) for k, v in plain.items()} | dict.fromkeys(layouts.split(), _layout))
        barrier = {"MBarrierLayout": _barriers, "init": _init, "expect": self._expect, "arrive": self._arrive}
        barrier["wait"] = self._wait
        return {
            "gl": gl,
            "gl_mbarrier": _named(barrier),
            "tma": _named({"async_copy_global_to_shared": self._copy}),
            "async_copy": _named(
                {
                    "async_copy_global_to_shared": self._copied,
                    "commit_group": self._committed,
                    "wait_group": self._waited_for,
                }
            ),
            "warpgroup_mma": self._product,
            "warpgroup_mma_wait": self._waited,
            "fence_async_shared": lambda: None,
            "gluon": _named({"jit": lambda f=None, **_: f or (lambda own: own)}),
            "triton": _named({"jit": lambda f: f}),
            "tl": _named({"constexpr": None}),
        }

    def _allocated(self, dtype: Any, shape: Sequence[int], layout: Any) -> Any:
        name = NAMES[self.given]
        self.given += 1
        if layout is not _barriers:
            return Memory(name, np.full(shape, np.nan, dtype), self)
        slots = shape[0] if len(shape) > 1 else 1
        self.barriers |= {(name, slot): Barrier((name, slot), self) for slot in range(slots)}
        return self.barriers[name, 0]

    def _specialized(self, functions: Sequence[Any], warps: Sequence[int], registers: Sequence[int]) -> None:
        self.registers = list(warps), list(registers)
        self.traces += [[] for _ in functions]
        threads = [threading.Thread(target=self._group, args=(i, *each)) for i, each in enumerate(functions, 1)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    def _group(self, number: int, function: Callable[..., None], arguments: Sequence[Any]) -> None:
        self.own.trace, self.own.pending, self.own.copies = self.traces[number], [], [[]]
        try:
            with np.errstate(
                over="ignore", invalid="ignore", divide="ignore"
            ):  # of the least float, and of tiles that are not there yet
                function(*arguments)
        except BaseException as error:
            self.errors.append(error)
            with self.changed:
                self.changed.notify_all()

    def _wait_for(self, holds: Callable[[], bool], what: str) -> None:
        with self.changed:
            done = not self.blocks or self.changed.wait_for(lambda: holds() or bool(self.errors), LONGEST)
        if self.blocks and (self.errors or not done):
            raise Hang(what)

    def _wait(self, barrier: Barrier, parity: int) -> None:
        self.note("wait", barrier.name, parity)
        self._wait_for(lambda: barrier.phase % 2 != parity, f"{barrier.name} of parity {parity}")

    def _expect(self, barrier: Barrier, bytes: int) -> None:
        self.note("expect", barrier.name)
        if self.blocks:
            barrier.change(1, bytes)

    def _arrive(self, barrier: Barrier, count: int) -> None:
        assert count == 1
        self.note("arrive", barrier.name)
        if self.blocks:
            barrier.change(1, 0)

    def _copy(self, matrix: Matrix, place: Sequence[int], barrier: Barrier, to: Memory) -> None:
        self.note("copy", barrier.name, to.name, to.slot)
        (row, column), (rows, columns) = place, matrix.tile
        found = matrix.array[row : row + rows, column : column + columns]
        if self.blocks:
            assert found.shape == to.array.shape == matrix.tile, f"a tile at {place} of {matrix.array.shape}"
            to.array[...] = found
            barrier.change(0, -matrix.block_type.nbytes)

    def _copied(self, to: Memory, pointer: Pointer, mask: Any) -> None:
        found = _loaded(pointer, mask)
        assert found.shape == to.array.shape
        self.own.copies[-1].append((to.array, found))
        if not self.late:
            to.array[...] = found

    def _committed(self) -> None:
        self.own.copies.append([])

    def _waited_for(self, left: int) -> None:
        """All groups but so many are there; the last one of the list is not committed."""
        done = max(len(self.own.copies) - 1 - left, 0)
        for group in self.own.copies[:done]:
            for array, found in group:
                array[...] = found
        self.own.copies = self.own.copies[done:]

    def _product(self, a: Any, b: Any, c: Tile, use_acc: bool = True, is_async: bool = False) -> Tile:
        assert is_async
        for x in (a, b):
            if isinstance(x, Memory):
                self.note("begin", x.name, x.slot)
                self.own.pending.append(("end", x.name, x.slot))
        left, right = (np.asarray(x.array if isinstance(x, Memory) else x, np.float32) for x in (a, b))
        return tile(left @ right + (c if use_acc else 0))

    def _waited(self, left: int, deps: Sequence[Any]) -> Any:
        assert left == 0
        for each in self.own.pending:
            self.note(*each)
        self.own.pending = []
        return deps if len(deps) > 1 else deps[0]

    def _assembly(self, text: str, constraints: str, arguments: Sequence[Any], **options: Any) -> Any:
        found = NAMED.match(text)
        if found is None:
            return _computed(text, options["pack"], *arguments)
        number = int(found[2])
        if found[1] == "arrive":
            self.note("pass", number)
            with self.changed:
                assert not self.blocks or self.turns[number] == 0, f"bar.arrive {number} twice"
                self.turns[number] += 1
                self.changed.notify_all()
            return None
        self.note("sync", number)
        self._wait_for(lambda: self.turns[number] == 1, f"bar.sync {number}")
        with self.changed:
            self.turns[number] -= 1
        return None

    @staticmethod
    def _stored(pointer: Pointer, value: Any, mask: Any = None) -> None:
        if mask is not None:
            kept = np.broadcast_to(mask, value.shape)
            at = np.broadcast_to(pointer.at, value.shape)[kept]
            assert len(np.unique(at)) == len(at), "an element that is stored twice"
            pointer, value = Pointer(pointer.buffer, at), value[kept]
        assert np.min(pointer.at, initial=0) >= 0, "an element before the first one"
        assert np.isnan(pointer.buffer[pointer.at]).all(), "an element that is stored twice"
        pointer.buffer[pointer.at] = value


NAMES = "q k v scales q_full k_full v_full s_full k_free v_free".split()
"""The names of a kernel's allocations, in its order."""


def _layout(*_: Any) -> None:
    return None


def _barriers(*_: Any) -> Any:
    return _barriers


def _init(barrier: Barrier, count: int) -> None:
    barrier.count = barrier.left = count


def _named(names: Mapping[str, Any]) -> Any:
    return type("Names", (), {k: staticmethod(v) if callable(v) else v for k, v in names.items()})


def _asserted(holds: bool) -> None:
    assert holds


def rounded(x: Any) -> Any:
    """To the nearest number of TF32, of two the one further from zero (`cvt.rna.tf32.f32`)."""
    bits = np.ascontiguousarray(x, np.float32).view(np.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(np.float32)


def _computed(text: str, pack: int, x: Any) -> Any:
    """A rounding, or positions that are moved among four registers and the lanes of a warp: NaN
    where a lane beyond the last one has them."""
    if not text:
        return x
    if text.startswith("cvt.rna.tf32.f32"):
        return tile(rounded(x))
    moves = MOVES.findall(text)
    assert pack == len(moves) == 4
    assert "".join(MOVES.sub("", text)).strip() == ""
    given = np.asarray(x).reshape(-1, WARP // 4, 4, x.shape[1])  # (warp, lane / 4, register, column)
    found = np.full_like(given, np.nan)
    for _, to, source, lanes in moves:
        further = int(lanes or 0) // 4
        assert int(lanes or 0) % 4 == 0
        found[:, : WARP // 4 - further, int(to)] = given[:, further:, int(source) - 4]
    return tile(found.reshape(x.shape))


def _loaded(pointer: Pointer, mask: Any = True, other: float = 0.0) -> Tile:
    at = np.where(mask, pointer.at, 0)
    assert at.min() >= 0, "an element before the first one"
    return tile(np.where(mask, pointer.buffer[at], other))


def _multiples(x: Any, of: Sequence[int]) -> Any:
    assert not np.any(np.asarray(x)[:, :: of[1]] % of[1])
    return x


def _beside(x: Any, count: Sequence[int]) -> Any:
    parts = np.asarray(x).reshape(len(x), -1, count[1])
    assert np.array_equal(parts, parts[..., :1] + np.arange(count[1]))
    return x


def _constant(x: Any, count: Sequence[int]) -> Any:
    parts = np.asarray(x).reshape(len(x), -1, count[1])
    assert np.array_equal(parts, np.broadcast_to(parts[..., :1], parts.shape))
    return x
