"""From lazy tensors to loop nests: the choice of values in memory, and of shared loops.

A value is kept in memory if it is read across elements (by folds, products, merged axes), or if it
is expensive and read more than once. Stores over the same elements share one nest of loops, and a
value that only such a nest reads stays in a register.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from taso_mirage.emit.cpu.buffer_layouts import (
    loop_variables,
    memory_source,
    product_strides,
    strip,
    unmerged,
    without_views,
)
from taso_mirage.emit.cpu.index_text import opaque
from taso_mirage.emit.cpu.lazy_tensors import (
    Affine,
    AffineIndex,
    BufferSizes,
    Concat,
    Contract,
    CppBuffer,
    Flat,
    LoopConstant,
    LoopIota,
    LoopValue,
    LoopView,
    Map,
    Mapped,
    Reduce,
    Strides,
    base_value,
    contiguous,
)
from taso_mirage.emit.cpu.step_objects import StepObjects
from taso_mirage.ir.dims import bind
from taso_mirage.ir.mugraph import usual_size
from taso_mirage.ir.terms import topological
from taso_mirage.meanings.functions import ADD, Function
from taso_mirage.meanings.index_maps import position


@dataclass(eq=False, slots=True)
class StoreNest:
    """The store target[element] = value[element], over the elements of the value; with `fold` over
    `axes`, the value is the operand of the fold.

    `update`: the old value of the target is folded in (an accumulator).
    """

    value: LoopValue
    target: CppBuffer
    fold: Function | None = None
    axes: Strides = ()
    update: bool = False
    memory: Mapping[LoopValue, CppBuffer] | None = None
    """The values in memory when the store got its place among the others; the store computes all
    other values."""

    @property
    def space(self) -> BufferSizes:
        return tuple(n for n in self.value.shape if n != 1)

    @property
    def variables(self) -> AffineIndex:
        return loop_variables(self.value.shape)

    @property
    def folded(self) -> frozenset[str]:
        """The loop variables of the fold."""
        return frozenset(n for axis in self.axes for n, _ in self.variables[axis].terms)


@dataclass(eq=False, slots=True)
class Nest:
    """Stores over one space of loops, in order."""

    stores: list[StoreNest]


@dataclass(eq=False, slots=True)
class ContractionNest:
    """The statement target += contraction."""

    value: Contract
    target: CppBuffer
    update: bool


Item = Nest | ContractionNest
Root = tuple[LoopValue, CppBuffer | None, bool]
"""A value that is computed: into a buffer, or (None) into any memory, or (True) added to the
buffer."""


@dataclass
class Memory:
    """The memory of a block in all of its stages."""

    buffers: dict[LoopValue, CppBuffer] = field(default_factory=dict)
    """The places of computed values."""
    allocated: list[CppBuffer] = field(default_factory=list)
    mutable: set[str] = field(default_factory=set)
    """Buffers that are written more than once."""
    objects: StepObjects | None = None
    """The objects of the loop over steps whose step is computed."""

    def allocate(self, value: LoopValue, strides: BufferSizes | None = None, hint: str = "b") -> CppBuffer:
        """Memory for a value; `strides` if its axes have another order there."""
        name = f"{hint}{len(self.allocated)}"
        found = CppBuffer(value.dtype, value.shape, name, strides or contiguous(value.shape))
        self.allocated.append(found)
        return found


@dataclass
class LoopSchedule:
    """The loop nests of one stage of a kernel."""

    room: Memory
    items: list[Item] = field(default_factory=list)
    kept: set[LoopValue] = field(default_factory=set)
    _written: dict[str, int] = field(default_factory=dict)
    _read: dict[str, int] = field(default_factory=dict)

    # ------------------------------------------------------------ values in memory

    def run(self, roots: Sequence[Root], kept: Sequence[tuple[LoopValue, CppBuffer]] = ()) -> None:
        """Compute every root; before them the values that are `kept` in buffers, where roots read
        them."""
        self._decide([*(value for value, _ in kept), *(value for value, _, _ in roots)])
        for value, place in kept:
            self.keep(value, place)
        for value, target, update in roots:
            if target is None:
                self.memory(value)
            elif update:
                self._update(value, target)
            else:
                self.store(value, target)

    def keep(self, value: LoopValue, target: CppBuffer) -> None:
        """Compute a value into a buffer, where all others read it from now on."""
        if isinstance(value, (Map, Mapped)) and value not in self.room.buffers:
            self._add(StoreNest(value, target))
        else:
            self.store(value, target)
        if not isinstance(value, (CppBuffer, LoopConstant, LoopView)):
            self.room.buffers.setdefault(value, target)

    def _decide(self, roots: Sequence[LoopValue]) -> None:
        """Note the values that are worth memory: expensive, and with several readers or with a
        reader of more elements."""
        readers: dict[LoopValue, set[LoopValue]] = {}
        order = topological(roots, self.room.buffers)
        for value in order:
            for arg in value.args:
                if not isinstance(value, LoopView):
                    readers.setdefault(base_value(arg), set()).add(value)
        dear: set[LoopValue] = set()
        for value in order:
            if isinstance(value, Map):
                inner = [base_value(arg) for arg in value.args]
                if value.fn.dear or any(a in dear and a.count == value.count for a in inner):
                    dear.add(value)
        for value in dear:
            using = readers.get(value, set())
            if len(using) > 1 or any(usual_size(reader.count) > usual_size(value.count) for reader in using):
                self.kept.add(value)

    def memory(self, value: LoopValue) -> CppBuffer:
        """The buffer of a value, which is computed now if it is not yet in memory."""
        if isinstance(value, CppBuffer):
            return value
        if value not in self.room.buffers:
            strides = product_strides(value, self.room.buffers) if isinstance(value, Contract) else None
            target = self.room.allocate(value, strides)
            if isinstance(value, Contract):
                self.contract(value, target, False)
            elif isinstance(value, (Map, Mapped)):
                self._add(StoreNest(value, target))
            else:
                self.store(value, target)
            self.room.buffers[value] = target
            self._keep_products(value, target)
        return self.room.buffers[value]

    def _keep_products(self, value: LoopValue, target: CppBuffer) -> None:
        """Note the places of products side by side, which are not computed again."""
        if not isinstance(value, Concat):
            return
        for part, start in zip(value.args, value.starts(), strict=True):
            if isinstance(part, Contract):
                self.room.buffers.setdefault(part, target.part(part.shape, value.axis, start))

    def contract(self, value: Contract, target: CppBuffer, update: bool) -> None:
        """Compute a product into a buffer, and its operands into memory before."""
        reads = {self.address(arg).name for arg in value.args}
        self.items.append(ContractionNest(value, target, update))
        self._note(len(self.items) - 1, target.name, reads)

    def address(self, value: LoopValue) -> CppBuffer:
        """The memory of a value's elements, as a buffer of its shape."""
        inner, index = memory_source(value)
        buffer = self._flat(inner) if isinstance(inner, Flat) else self.memory(inner)
        return buffer.viewed(index, value.shape)

    def _flat(self, value: Flat) -> CppBuffer:
        """The memory of merged axes: that of the operand if it is stored row by row, else of a
        copy."""
        if value not in self.room.buffers:
            rows = self.address(value.arg)
            if not rows.dense:
                rows = self.room.allocate(value.arg)
                self.store(value.arg, rows)
            self.room.buffers[value] = replace(
                rows, dtype=value.dtype, shape=value.shape, strides=contiguous(value.shape)
            )
        return self.room.buffers[value]

    # ------------------------------------------------------------ stores

    def store(self, value: LoopValue, target: CppBuffer) -> None:
        """Store a value in a buffer of its shape.

        Parts of a concatenation, and merged axes, are stored at their final places.
        """
        if value in self.kept and value not in self.room.buffers:
            self.memory(value)
        if isinstance(value, LoopView) and not isinstance(value.arg, CppBuffer) and value.permutes:
            inverse = without_views(value, target)
            if inverse is not None:
                return self.store(value.arg, inverse)
        if value in self.room.buffers:
            return self._add(StoreNest(value, target))
        if isinstance(value, Flat) and value.arg not in self.room.buffers:
            strides = unmerged(value.arg.shape, value.shape, target.strides)
            if strides is not None:
                return self.store(value.arg, replace(target, shape=value.arg.shape, strides=strides))
        if isinstance(value, Concat):
            for part, start in zip(value.args, value.starts(), strict=True):
                self.store(part, target.part(part.shape, value.axis, start))
            return None
        if isinstance(value, Contract) and target.dtype == "float32" and _plain(value, target, self.room.buffers):
            return self.contract(value, target, False)
        if isinstance(value, Reduce):
            return self._add(StoreNest(value.arg, target, value.fn, value.axes))
        return self._add(StoreNest(value, target))

    def _update(self, value: LoopValue, target: CppBuffer) -> None:
        """Add a value to a target."""
        if isinstance(value, Contract) and value not in self.room.buffers:
            return self.contract(value, target, True)
        if isinstance(value, Reduce) and value.fn is ADD and value not in self.room.buffers:
            return self._add(StoreNest(value.arg, target, ADD, value.axes, True))
        return self._add(StoreNest(value, target, ADD, (), True))

    def _add(self, store: StoreNest) -> None:
        """Put a store into the first nest over the same elements at which all operands of the store
        are computed, else into a new one."""
        reads: dict[str, set[Affine]] = {}
        leaves = self.leaves(store)
        store.memory = dict(self.room.buffers)
        for leaf, index in leaves:
            if isinstance(leaf, CppBuffer):
                reads.setdefault(leaf.name, set()).add(leaf.offset(index))
        first = 0
        for name, places in reads.items():
            at = self._written.get(name, -1)
            first = max(first, at if at >= 0 and self._pointwise(at, name, places, store) else at + 1)
        name = store.target.name
        if name in self.room.mutable:
            first = max(first, self._written.get(name, -1) + 1, self._read.get(name, -1) + 1)
        place = next((i for i in range(first, len(self.items)) if self._fits(self.items[i], store)), len(self.items))
        if place == len(self.items):
            self.items.append(Nest([]))
        nest = self.items[place]
        assert isinstance(nest, Nest)
        nest.stores.append(store)
        self._note(place, name, set(reads))

    def _note(self, at: int, written: str, read: set[str]) -> None:
        self._written[written] = max(at, self._written.get(written, 0))
        for name in read:
            self._read[name] = max(at, self._read.get(name, 0))

    def _fits(self, item: Item, store: StoreNest) -> bool:
        if not isinstance(item, Nest) or item.stores[0].space != store.space:
            return False
        folds = {s.folded for s in (*item.stores, store) if s.folded}
        return len(folds) < 2

    def _pointwise(self, at: int, name: str, places: set[Affine], store: StoreNest) -> bool:
        """Whether a nest writes every element of the buffer just before the store would read it in
        the nest, at one of these places."""
        nest = self.items[at]
        if not isinstance(nest, Nest) or not self._fits(nest, store):
            return False
        writers = [s for s in nest.stores if s.target.name == name]
        return all(not w.folded and places == {w.target.offset(w.variables)} for w in writers)

    def leaves(self, store: StoreNest) -> list[tuple[LoopValue, AffineIndex]]:
        """The leaves of the computation of a store's elements: buffers, numbers, positions.

        Computes the values that must be in memory.
        """
        found = dict.fromkeys([self.resolve(store, store.value, store.variables, root=True)])
        waiting = list(found)
        while waiting:
            made, at = waiting.pop()
            for arg in made.args if isinstance(made, Map) else ():
                each = self.resolve(store, arg, at if arg.shape else ())
                if each not in found:
                    found[each] = None
                    waiting.append(each)
        plain = [each for each in found if not isinstance(each[0], (Map, Mapped))]
        read = [x for made, at in found if isinstance(made, Mapped) for x in self.mapped_reads(made, at)]
        return [*plain, *read]

    def mapped_reads(self, value: Mapped, index: AffineIndex) -> list[tuple[LoopValue, AffineIndex]]:
        """The buffers, and the places in them, that an element of an index map may be read from."""
        found = value.index_map
        buffers = dict(zip(found.sources, map(self.address, value.args), strict=True))
        places = {position(axis): at.dim for axis, at in enumerate(index)}
        read = [(buffers[x.source], opaque([bind(e, places) for e in x.index])) for x in found.pieces]
        rows = [buffers[row.source] for _, row in found.rows]
        anywhere = Affine(0, (("?", 1),))
        return [*read, *((x, (anywhere,) * len(x.shape)) for x in rows)]

    def resolve(
        self, store: StoreNest, value: LoopValue, index: AffineIndex, root: bool = False
    ) -> tuple[LoopValue, AffineIndex]:
        """The printed form of a value at an index in a store: a function of others, a number, a
        position, or a buffer's element."""
        buffers = self.room.buffers if store.memory is None else store.memory
        if (
            root
            and isinstance(value, (Map, Mapped))
            and not store.fold
            and buffers.get(value, store.target) is store.target
        ):
            return value, index
        value, index = strip(value, index)
        inline = value not in buffers and (store.memory is not None or value not in self.kept)
        if isinstance(value, (LoopConstant, LoopIota)) or (isinstance(value, (Map, Mapped)) and inline):
            return value, index
        if store.memory is not None:
            return value if isinstance(value, CppBuffer) else buffers[value], index
        return self._flat(value) if isinstance(value, Flat) else self.memory(value), index


def _plain(value: Contract, target: CppBuffer, buffers: Mapping[LoopValue, CppBuffer]) -> bool:
    """Whether the target has the layout of the product."""
    wanted = product_strides(value, buffers)
    return all(s == t or n == 1 for s, t, n in zip(target.strides, wanted, value.shape, strict=True))
