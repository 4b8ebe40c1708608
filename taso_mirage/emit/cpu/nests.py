"""Loop nests as C++: order of the loops, the depth of each computation, registers, and the blocks
of dot products."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from taso_mirage.emit.cpu.dots import fill, product_lines
from taso_mirage.emit.cpu.layouts import offset
from taso_mirage.emit.cpu.schedule import ContractionNest, LoopSchedule, Nest, StoreNest
from taso_mirage.emit.cpu.values import (
    Affine,
    AffineIndex,
    CppBuffer,
    LoopConstant,
    LoopIota,
    LoopValue,
    Map,
)
from taso_mirage.errors import Unsupported
from taso_mirage.ir.terms import is_float
from taso_mirage.meanings.functions import Fold

C_TYPES = {"float32": "float", "float16": "_Float16", "bool": "bool", "int64": "int64_t", "int32": "int32_t"}
INDENT = "  "


def register_type(dtype: str) -> str:
    """The C++ type of one element while it is computed with: floats are fp32."""
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


@dataclass
class Printer:
    """One nest of loops. Lines before and after the loops inside, for every depth."""

    schedule: LoopSchedule
    nest: Nest
    dropped: frozenset[str]
    order: list[str] = field(default_factory=list)
    before: list[list[str]] = field(default_factory=list)
    after: list[list[str]] = field(default_factory=list)
    known: dict[tuple[LoopValue, AffineIndex], tuple[str, int]] = field(default_factory=dict)
    stored: dict[tuple[str, Affine], tuple[str, int]] = field(default_factory=dict)
    """Stored values that are still in a register, by their places."""
    sums: dict[int, list[str]] = field(default_factory=dict)
    count: int = 0

    def lines(self) -> list[str]:
        """The nest, in braces of its own."""
        space = self.nest.stores[0].space
        self.sizes = {f"i{i}": n for i, n in enumerate(space)}
        self.order = self._ordered()
        self.before = [[] for _ in range(len(space) + 1)]
        self.after = [[] for _ in range(len(space) + 1)]
        for store in self.nest.stores:
            self._print(store)
        return ["{", *(INDENT + line for line in self._depth(0)), "}"]

    def _depth(self, depth: int) -> Iterator[str]:
        yield from self.before[depth]
        if depth < len(self.order):
            name = self.order[depth]
            if depth == len(self.order) - 1:
                sums = self.sums.get(depth, [])
                yield "#pragma omp simd" + "".join(f" reduction({s})" for s in sums)
            yield f"for (size_t {name} = 0; {name} < {self.sizes[name]}; ++{name}) {{"
            yield from (INDENT + line if not line.startswith("#") else line for line in self._depth(depth + 1))
            yield "}"
        yield from self.after[depth]

    # ------------------------------------------------------------ the order of the loops

    def _ordered(self) -> list[str]:
        """The loop along which most elements lie side by side is the inner one; folds into
        registers are inside."""
        names = list(self.sizes)
        folded = next((s.folded for s in self.nest.stores if s.folded), frozenset())
        side = dict.fromkeys(names, 0)
        for store in self.nest.stores:
            places = [(leaf, index) for leaf, index in self.schedule.leaves(store)]
            places.append((store.target, _target(store)))
            for leaf, index in places:
                if isinstance(leaf, CppBuffer) and leaf.name not in self.dropped:
                    for name, k in offset(leaf, index).terms:
                        side[name] += k in (1, -1)
        if not names:
            return []
        inner = max(names, key=lambda n: (side[n], names.index(n)))
        rest = [n for n in names if n != inner]
        if inner in folded:
            rest.sort(key=lambda n: n in folded)
        return [*rest, inner]

    # ------------------------------------------------------------ statements

    def _print(self, store: StoreNest) -> None:
        text, known = self._value(store, store.value, store.variables, root=True)
        inner = self.before[len(self.order)]
        place = f"{store.target.name}[{offset(store.target, _target(store))}]"
        folded = store.folded
        if not folded:
            if not store.update:
                self.stored[store.target.name, offset(store.target, _target(store))] = text, known
            if store.target.name not in self.dropped:
                inner.append(f"{place} = {self._combined(store, place, text)};")
            return
        depth = len(self.order) - len(folded)
        if set(self.order[depth:]) != folded:
            inner.append(f"{place} = {_combine(store, place, text)};")
            return
        name = self._fresh("s")
        self.before[depth].append(f"float {name} = {_folded(store).cpp};")
        inner.append(f"{name} = {_combine(store, name, text)};")
        self.sums.setdefault(len(self.order) - 1, []).append(f"{_folded(store).clause}: {name}")
        self.after[depth].append(f"{place} = {self._combined(store, place, name)};")

    def _combined(self, store: StoreNest, place: str, text: str) -> str:
        if store.update:
            return _combine(store, place, text)
        wanted = memory_type(store.target.dtype)
        return text if wanted == register_type(store.value.dtype) else f"static_cast<{wanted}>({text})"

    def _value(self, store: StoreNest, value: LoopValue, index: AffineIndex, root: bool = False) -> tuple[str, int]:
        """The name of an element's register (or its constant), and the depth from which on it is
        known."""
        value, index = self.schedule.resolve(store, value, index, root)
        if isinstance(value, LoopConstant):
            return cpp_number(value.value, value.dtype), 0
        key = (value, index)
        if key not in self.known:
            self.known[key] = self._made(store, value, index)
        return self.known[key]

    def _made(self, store: StoreNest, value: LoopValue, index: AffineIndex) -> tuple[str, int]:
        if isinstance(value, CppBuffer):
            return self._load(value, index)
        if isinstance(value, LoopIota):
            depth = self._from(index[0])
            return self._named(value, f"static_cast<{register_type(value.dtype)}>({index[0]})", depth)
        assert isinstance(value, Map)
        if not value.fn.cpp:
            raise Unsupported(f"no C++ for the function {value.fn.name}; keep its operator outside of kernels")
        args = [self._value(store, arg, index if arg.shape else ()) for arg in value.operands]
        depth = max((d for _, d in args), default=0)
        return self._named(value, value.fn.cpp.format(*[t for t, _ in args]), depth)

    def _load(self, value: CppBuffer, index: AffineIndex) -> tuple[str, int]:
        at = offset(value, index)
        if (value.name, at) in self.stored:
            return self.stored[value.name, at]
        wanted, have = register_type(value.dtype), memory_type(value.dtype)
        text = f"{value.name}[{at}]"
        return self._named(value, text if wanted == have else f"static_cast<{wanted}>({text})", self._from(at))

    def _named(self, value: LoopValue, text: str, depth: int) -> tuple[str, int]:
        name = self._fresh("v")
        self.before[depth].append(f"const {register_type(value.dtype)} {name} = {text};")
        return name, depth

    def _from(self, at: Affine) -> int:
        return max((self.order.index(name) + 1 for name, _ in at.terms), default=0)

    def _fresh(self, hint: str) -> str:
        self.count += 1
        return f"{hint}{self.count - 1}"


def _target(store: StoreNest) -> AffineIndex:
    """Where a store goes: the folded axes have one place."""
    return tuple(Affine() if i in store.axes else v for i, v in enumerate(store.variables))


def _combine(store: StoreNest, a: str, b: str) -> str:
    """One element more in a fold."""
    assert store.fold is not None
    return store.fold.cpp.format(a, b)


def _folded(store: StoreNest) -> Fold:
    """How C++ folds with the function of a store."""
    found = None if store.fold is None else store.fold.fold
    if found is None:
        raise Unsupported("a fold that has no C++; keep its operator outside of kernels")
    return found


# ---------------------------------------------------------------- a stage


def phase_lines(schedule: LoopSchedule, needed: frozenset[str]) -> tuple[list[str], set[str]]:
    """The lines of a stage, and which buffers they use. `needed`: buffers that others read."""
    lines: list[str] = []
    used: set[str] = set()
    dropped = frozenset(_registers(schedule, needed))
    for item in schedule.items:
        if isinstance(item, ContractionNest):
            lines += product_lines(item, schedule)
            used |= {item.target.name, *(schedule.address(a)[0].name for a in item.value.operands)}
            continue
        lines += filled(item, schedule)
        lines += Printer(schedule, item, dropped).lines()
        used |= _used(schedule, item) - dropped
    for value in [v for v, b in schedule.room.buffers.items() if b.name in dropped]:
        del schedule.room.buffers[value]  # it was in a register, and is there no longer
    return lines, used


def filled(nest: Nest, schedule: LoopSchedule) -> Iterator[str]:
    """Folds along outer loops go through memory, which begins with the fold's identity."""
    order = Printer(schedule, nest, frozenset())
    order.sizes = {f"i{i}": n for i, n in enumerate(nest.stores[0].space)}
    loops = order._ordered()
    for store in nest.stores:
        folded = store.folded
        if folded and not store.update and set(loops[len(loops) - len(folded) :]) != folded:
            shape = [1 if i in store.axes else n for i, n in enumerate(store.value.shape)]
            yield from fill(
                CppBuffer(
                    store.target.dtype, tuple(shape), store.target.name, store.target.strides, store.target.start
                ),
                _folded(store).cpp,
            )


def _used(schedule: LoopSchedule, nest: Nest) -> set[str]:
    found = {s.target.name for s in nest.stores}
    for store in nest.stores:
        found |= {b.name for b, _ in schedule.leaves(store) if isinstance(b, CppBuffer)}
    return found


def _registers(schedule: LoopSchedule, needed: frozenset[str]) -> Iterator[str]:
    """Buffers that only the nest that writes them reads."""
    home: dict[str, set[int]] = {}
    folds: set[str] = set()
    for i, item in enumerate(schedule.items):
        if isinstance(item, ContractionNest):
            names = {item.target.name, *(schedule.address(a)[0].name for a in item.value.operands)}
            folds.add(item.target.name)
        else:
            names = _used(schedule, item)
            folds |= {s.target.name for s in item.stores if s.folded or s.update}
        for name in names:
            home.setdefault(name, set()).add(i)
    mine = {b.name for b in schedule.room.buffers.values()}
    yield from (
        n for n, at in home.items() if len(at) == 1 and n not in folds | needed | schedule.room.mutable and n in mine
    )
