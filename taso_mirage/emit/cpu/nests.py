"""Loop nests as C++: order of the loops, the depth of each computation, registers, and the blocks
of dot products."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from taso_mirage.emit.cpu.dots import fill, product_statements
from taso_mirage.emit.cpu.index_text import holds, integer, offset, row
from taso_mirage.emit.cpu.lazy_tensors import (
    Affine,
    AffineIndex,
    CppBuffer,
    LoopConstant,
    LoopIota,
    LoopValue,
    Map,
    Mapped,
)
from taso_mirage.emit.cpu.loop_schedule import ContractionNest, LoopSchedule, Nest, StoreNest
from taso_mirage.emit.cpu.printer import static_cast
from taso_mirage.emit.statements import Expression, Let, Scope, Statement, every, expression, let, loop, select, tl, v
from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim, bind, symbol
from taso_mirage.ir.terms import is_float
from taso_mirage.meanings.conditions import index_names
from taso_mirage.meanings.functions import Fold
from taso_mirage.meanings.index_maps import position

C_TYPES = {"float32": "float", "float16": "_Float16", "bool": "bool", "int64": "int64_t", "int32": "int32_t"}


def register_type(dtype: str) -> str:
    """The C++ type of one element in computations: floats are fp32."""
    return "float" if is_float(dtype) else memory_type(dtype)


def memory_type(dtype: str) -> str:
    """The C++ type of an element in memory."""
    if dtype not in C_TYPES:
        raise Unsupported(f"no C++ for tensors of {dtype}; kernels take {', '.join(C_TYPES)}")
    return C_TYPES[dtype]


def cpp_number(value: float, dtype: str) -> str:
    """A constant as C++ spells it."""
    if dtype == "bool":
        return "true" if value else "false"
    if not is_float(dtype):
        return f"{memory_type(dtype)}{{{int(value)}}}"
    if value != value or value in (float("inf"), float("-inf")):
        return {"nan": "NAN", "inf": "INFINITY", "-inf": "(-INFINITY)"}[str(value)]
    return f"{value:.9g}" + ("" if any(c in f"{value:.9g}" for c in ".e") else ".0") + "f"


Register = tuple[str, int]
"""The name of an element's register (or its constant), and the depth of loops from which on it is
known."""


@dataclass
class NestStatements:
    """The statements of one nest of loops: those before and after the inner loops, for every
    depth."""

    schedule: LoopSchedule
    order: list[str]
    """The loop variables, the outermost first."""
    dropped: frozenset[str]
    before: list[list[Statement]]
    after: list[list[Statement]]
    known: dict[tuple[LoopValue, AffineIndex], Register] = field(default_factory=dict)
    stored: dict[tuple[str, Affine], Register] = field(default_factory=dict)
    """Stored values that are still in a register, by their places."""
    folds: list[str] = field(default_factory=list)
    """The inner loop's folds into registers, as clauses of OpenMP."""
    depths: dict[str, int] = field(default_factory=dict)
    """The depth of loops from which on a row or a condition is known, by its name."""
    integers: dict[str, str] = field(default_factory=dict)
    """The names of rows and conditions by their text."""
    count: int = 0

    def store(self, item: StoreNest) -> None:
        """Compute a value and store it."""
        text, known = self._value(item, item.value, item.variables, root=True)
        inner = self.before[len(self.order)]
        at = item.target.offset(_target(item))
        place = v[item.target.name][at]
        depth = len(self.order) - len(item.folded)
        if not item.folded:
            if not item.update:
                self.stored[item.target.name, at] = text, known
            if item.target.name not in self.dropped:
                inner.append(tl.store(place, _combined(item, place, text)))
            return
        if set(self.order[depth:]) != item.folded:
            inner.append(tl.store(place, _combine(item, place, text)))
            return
        name = self._fresh("s")
        self.before[depth].append(Let(name, expression(_folded(item).cpp), "float"))
        inner.append(let(name, _combine(item, name, text)))
        self.folds.append(f"{_folded(item).clause}: {name}")
        self.after[depth].append(tl.store(place, _combined(item, place, name)))

    def _value(self, item: StoreNest, value: LoopValue, index: AffineIndex, root: bool = False) -> Register:
        value, index = self.schedule.resolve(item, value, index, root)
        if isinstance(value, LoopConstant):
            return cpp_number(value.value, value.dtype), 0
        key = (value, index)
        if key not in self.known:
            self.known[key] = self._made(item, value, index)
        return self.known[key]

    def _made(self, item: StoreNest, value: LoopValue, index: AffineIndex) -> Register:
        if isinstance(value, CppBuffer):
            return self._load(value, index)
        if isinstance(value, LoopIota):
            return self._named(value, static_cast(register_type(value.dtype), index[0]), self._from(index[0]))
        if isinstance(value, Mapped):
            return self._chosen(value, index)
        assert isinstance(value, Map)
        if not value.fn.cpp:
            raise Unsupported(f"no C++ for the function {value.fn.name}; keep its operator outside of kernels")
        args = [self._value(item, arg, index if arg.shape else ()) for arg in value.args]
        depth = max((d for _, d in args), default=0)
        text = value.fn.cpp.format(*[t for t, _ in args]).replace("--", "- -")  # a negative number's negative
        return self._named(value, expression(text), depth)

    def _chosen(self, value: Mapped, index: AffineIndex) -> Register:
        """The element of the piece whose conditions hold, else the number that fills the rest."""
        found, wanted = value.index_map, register_type(value.dtype)
        buffers = dict(zip(found.sources, map(self.schedule.address, value.args), strict=True))
        places: dict[str, Dim] = {position(axis): at.dim for axis, at in enumerate(index)}
        for name, each in found.rows:
            reads = [bind(e, places) for e in (*each.index, *each.conditions)]
            places[name] = symbol(self._known_once("row", row(each, buffers[each.source], places), "size_t", reads))
        made = None if found.fill is None else expression(cpp_number(found.fill, value.dtype))
        depth = 0
        for piece in found.pieces:
            buffer, conditions = buffers[piece.source], [bind(e, places) for e in piece.conditions]
            at = offset(buffer, [bind(e, places) for e in piece.index])
            load = v[buffer.name][integer(at)]
            load = load if wanted == memory_type(buffer.dtype) else static_cast(wanted, load)
            depth = max(depth, self._depth([at, *conditions]))
            here = [self._known_once("c", holds(e), "bool", [e]) for e in conditions if made is not None]
            made = select(load, every(here), made) if made is not None and here else load
        assert made is not None
        return self._named(value, made, depth)

    def _known_once(self, hint: str, made: Expression, type: str, read: Sequence[Dim]) -> str:
        """The name of a row or of a condition, which depends on the integers `read`."""
        key = f"{type} {made}"
        if key not in self.integers:
            name, depth = self._fresh(hint), self._depth(read)
            self.before[depth].append(Let(name, made, f"const {type}"))
            self.integers[key], self.depths[name] = name, depth
        return self.integers[key]

    def _depth(self, read: Iterable[Dim]) -> int:
        """The depth of loops from which on integers are known."""
        loops = {name: i + 1 for i, name in enumerate(self.order)} | self.depths
        return max((loops.get(name, 0) for e in read for name in index_names(e)), default=0)

    def _load(self, value: CppBuffer, index: AffineIndex) -> Register:
        at = value.offset(index)
        if (value.name, at) in self.stored:
            return self.stored[value.name, at]
        wanted, element = register_type(value.dtype), v[value.name][at]
        same = wanted == memory_type(value.dtype)
        return self._named(value, element if same else static_cast(wanted, element), self._from(at))

    def _named(self, value: LoopValue, made: Expression, depth: int) -> Register:
        name = self._fresh("v")
        self.before[depth].append(Let(name, made, f"const {register_type(value.dtype)}"))
        return name, depth

    def _from(self, at: Affine) -> int:
        return max((self.order.index(name) + 1 for name, _ in at.terms), default=0)

    def _fresh(self, hint: str) -> str:
        self.count += 1
        return f"{hint}{self.count - 1}"


def nest_scope(schedule: LoopSchedule, nest: Nest, dropped: frozenset[str]) -> Scope:
    """A nest of loops; the buffers `dropped` are registers."""
    order, sizes = loop_order(schedule, nest, dropped), _sizes(nest)
    depths = range(len(order) + 1)
    made = NestStatements(schedule, order, dropped, [[] for _ in depths], [[] for _ in depths])
    for item in nest.stores:
        made.store(item)
    body = made.before[-1]
    for depth in reversed(range(len(order))):
        n = sizes[order[depth]]
        over = v.vectors(n, *made.folds) if depth == len(order) - 1 else v.numbers(n)
        body = [*made.before[depth], loop(order[depth], over, body), *made.after[depth]]
    return Scope(tuple(body))


def _sizes(nest: Nest) -> dict[str, object]:
    return {f"i{i}": n for i, n in enumerate(nest.stores[0].space)}


def loop_order(schedule: LoopSchedule, nest: Nest, dropped: frozenset[str] = frozenset()) -> list[str]:
    """The loop variables of a nest, the outermost first: the inner loop is the one along which most
    buffers are contiguous; folds into registers are inside."""
    names = list(_sizes(nest))
    folded = next((s.folded for s in nest.stores if s.folded), frozenset())
    side = dict.fromkeys(names, 0)
    for item in nest.stores:
        for leaf, index in (*schedule.leaves(item), (item.target, _target(item))):
            if isinstance(leaf, CppBuffer) and leaf.name not in dropped:
                for name, k in leaf.offset(index).terms:
                    side[name] = side.get(name, 0) + (k in (1, -1))
    if not names:
        return []
    inner = max(names, key=lambda n: (side[n], names.index(n)))
    rest = [n for n in names if n != inner]
    if inner in folded:
        rest.sort(key=lambda n: n in folded)
    return [*rest, inner]


def _target(item: StoreNest) -> AffineIndex:
    """The place of a store's element: folded axes have a single place."""
    return tuple(Affine() if i in item.axes else v for i, v in enumerate(item.variables))


def _combined(item: StoreNest, place: Expression, text: str) -> Expression:
    """The value that a place gets: a new one, or a new one folded into the old one."""
    if item.update:
        return _combine(item, place, text)
    wanted = memory_type(item.target.dtype)
    return expression(text) if wanted == register_type(item.value.dtype) else static_cast(wanted, text)


def _combine(item: StoreNest, a: Expression | str, b: str) -> Expression:
    """The fold with one more element."""
    assert item.fold is not None
    return expression(item.fold.cpp.format(a, b))


def _folded(item: StoreNest) -> Fold:
    """The fold of a store's function in C++."""
    found = None if item.fold is None else item.fold.fold
    if not is_float(item.value.dtype):
        raise Unsupported(f"a fold of elements of {item.value.dtype} in a kernel, whose folds are of floats")
    if found is None:
        raise Unsupported("a fold that has no C++; keep its operator outside of kernels")
    return found


# ---------------------------------------------------------------- a stage


def phase_statements(schedule: LoopSchedule, needed: frozenset[str]) -> tuple[list[Statement], set[str]]:
    """The statements of a stage, and the buffers that they use. `needed`: buffers that others
    read."""
    made: list[Statement] = []
    used: set[str] = set()
    names = [_used(schedule, item) for item in schedule.items]
    dropped = _registers(schedule, names, needed)
    for item, own in zip(schedule.items, names, strict=True):
        if isinstance(item, ContractionNest):
            made += product_statements(item, schedule)
            used |= own
        else:
            made += [*_identities(item, schedule), nest_scope(schedule, item, dropped)]
            used |= own - dropped
    for value in [x for x, b in schedule.room.buffers.items() if b.name in dropped]:
        del schedule.room.buffers[value]  # its register is not available any more
    return made, used


def _identities(nest: Nest, schedule: LoopSchedule) -> Iterator[Statement]:
    """The start of folds along outer loops: they go through memory, which begins with the fold's
    identity."""
    loops = loop_order(schedule, nest)
    for item in nest.stores:
        folded = item.folded
        if folded and not item.update and set(loops[len(loops) - len(folded) :]) != folded:
            shape = tuple([1 if i in item.axes else n for i, n in enumerate(item.value.shape)])
            yield fill(replace(item.target, shape=shape), _folded(item).cpp)


def _used(schedule: LoopSchedule, item: Nest | ContractionNest) -> set[str]:
    """The names of the buffers that a nest reads or writes."""
    if isinstance(item, ContractionNest):
        return {item.target.name, *(schedule.address(a).name for a in item.value.args)}
    leaves = (b for s in item.stores for b, _ in schedule.leaves(s))
    return {s.target.name for s in item.stores} | {b.name for b in leaves if isinstance(b, CppBuffer)}


def _registers(schedule: LoopSchedule, names: Sequence[set[str]], needed: frozenset[str]) -> frozenset[str]:
    """Buffers that only their writing nest reads; `names` are those of the buffers that each nest
    uses."""
    stores = [s for item in schedule.items if isinstance(item, Nest) for s in item.stores]
    folds = {s.target.name for s in stores if s.folded or s.update}
    folds |= {item.target.name for item in schedule.items if isinstance(item, ContractionNest)}
    uses = Counter(name for own in names for name in own)
    mine = {b.name for b in schedule.room.buffers.values()} - folds - needed - schedule.room.mutable
    return frozenset(name for name in mine if uses[name] == 1)
