"""A loop over steps in a block of a kernel by chunks: the rows that a chunk of steps reads are
products with the state before it, and its sum of columns times rows is added once
(`meanings/linear_states.py`, `chunk.h`).

    for each step: columns that read (p) and write (u), the decay d
    scores g = p u with the decays between; y = p s with the decays before
    for each step: y += g w of the steps before, where a row w needs it; the row w
    y += g w for all other reads;  for each step: the outputs;  s = d s + u w
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from taso_mirage.emit.cpu.lazy_tensors import CppBuffer, LoopValue
from taso_mirage.emit.cpu.step_meaning import StepMeaning
from taso_mirage.emit.cpu.step_operands import KernelStages, StepOperands, named_pointer, values_of
from taso_mirage.emit.statements import Expression, For, Let, Statement, select, v
from taso_mirage.errors import Unsupported
from taso_mirage.ir.mugraph import product_factor
from taso_mirage.ir.terms import Graph, Node, topological
from taso_mirage.meanings.linear_states import LinearStates, LinearValue, OuterPair


@dataclass
class ChunkStates(LinearStates):
    """Linear states whose reads, and the rows that are added to the state, have places in
    memory."""

    row: Callable[[str, int], CppBuffer]
    """The place of a row, by the name of its kind and its number."""
    placed: bool = False
    """Whether the rows that are added are in memory, too."""
    columns: list[LoopValue] = field(default_factory=list)
    """The columns that read."""
    reads: list[LoopValue] = field(default_factory=list)
    writes: list[OuterPair] = field(default_factory=list)

    def reading(self, row: Any) -> Any:
        self.columns.append(row)
        self.reads.append(self.row("read", len(self.reads)))
        return self.reads[-1]

    def joined(self, pairs: tuple[OuterPair, ...]) -> tuple[OuterPair, ...]:
        before = len(self.writes)
        self.writes += pairs
        places = [self.row("written", before + i) if self.placed else w for i, (_, w) in enumerate(pairs)]
        return tuple([(u, w) for (u, _), w in zip(pairs, places, strict=True)])


def chunk_statements(
    function: KernelStages,
    node: Node,
    parts: Sequence[int],
    tiles: Mapping[Node, LoopValue],
    targets: Sequence[CppBuffer],
) -> list[Statement]:
    """The statements of `steps.step_statements`, for a loop with an attribute `chunk`.

    Raises Unsupported for a state with more axes than that of keys and that of values, and for
    columns or decays that depend on what a step reads.
    """
    return _Chunks(function, node, StepOperands(node, tiles), dict(zip(parts, targets, strict=True))).loop()


@dataclass
class _Chunks:
    """The statements of one loop.

    Its memory has parts of C columns or rows: "column" for each read, "added" for each pair that
    the state gets, "read" and "written" for the rows of both, and "score" for each read and pair.
    """

    function: KernelStages
    node: Node
    operands: StepOperands
    targets: Mapping[int, CppBuffer]
    """The places of the results, by their numbers."""

    def __post_init__(self) -> None:
        self.size, self.keys, self.values = self.node.attr("chunk")
        self.shape = self.operands.buffers[0].shape
        self.wide, self.long = (int(self.shape[axis]) for axis in (self.values, self.keys))
        if any(n != 1 for i, n in enumerate(self.shape) if i not in (self.keys, self.values)):
            raise Unsupported("several states in a block of a loop by chunks")
        _, linear, (last, *_) = self._step("column")
        if not isinstance(last, LinearValue) or not last.state or not linear.reads:
            raise Unsupported("a state that is not linear, or is not read, by chunks")
        fixed = [*linear.columns, *(u for u, _ in last.pairs), *([] if last.scale is None else [last.scale])]
        if set(topological(fixed)) & set(linear.reads):
            raise Unsupported("a column or a decay that depends on the state")
        rows = [w for _, w in linear.writes]
        self.reads, self.rows = range(len(linear.reads)), range(len(rows))
        self.pairs = [next(i for i, w in enumerate(rows) if w is own) for _, own in last.pairs]
        self.early = [r for r, y in enumerate(linear.reads) if y in set(topological(rows))]
        shape = () if last.scale is None else linear.shape(last.scale)
        self.decay = 0 if last.scale is None else int(shape[self.keys]) if shape else 1
        self.state, self.rooms = self._memory()

    def _memory(self) -> tuple[CppBuffer, dict[str, CppBuffer]]:
        """The places of the state, row by row of its keys, and of the parts."""
        first, allocate = self.operands.buffers[0], self.function.memory.allocate
        strides = tuple([self.wide if i == self.keys else int(i == self.values) for i in range(len(self.shape))])
        counts = {
            "column": len(self.reads) * self.size * self.long,
            "added": len(self.pairs) * self.size * self.long,
            "decay": self.size * self.decay,
            "decays": self.decay,
            "score": len(self.reads) * len(self.pairs) * self.size**2,
            "read": len(self.reads) * self.size * self.wide,
            "written": len(self.rows) * self.size * self.wide,
        }
        state = allocate(first, strides, "state")
        rooms = {k: allocate(CppBuffer("float32", (n,), k, (1,)), hint=k) for k, n in counts.items() if n}
        self.function.used |= {room.name for room in (state, *rooms.values())}
        return state, rooms

    def loop(self) -> list[Statement]:
        """All statements."""
        count, start = v[product_factor(self.operands.count)], v.chunk * self.size
        inside: list[Statement] = [
            Let("first", start, "const size_t"),
            Let("steps", select(v[self.size], start + self.size <= count, count - start), "const size_t"),
            _steps(self._columns()),
            *self._products(),
            _steps(self._rows()),
            *[self._added(r, s) for r in self.reads if r not in self.early for s in range(len(self.pairs))],
            _steps(self._outputs()),
            *self._update(),
        ]
        chunks = v[f"({count} + {self.size - 1}) / {self.size}"]
        before = self.function.stage([(self.operands.buffers[0], self.state, False)])
        ends = [(self.state, y, False) for part, y in self.targets.items() if part == 0]
        return [*before, For("chunk", v.numbers(chunks), tuple(inside)), *self.function.stage(ends)]

    def _step(self, name: str, placed: bool = False) -> tuple[list[Statement], ChunkStates, list[Any]]:
        """A step over its elements: the pointers to these, the states, and the values of the
        body's outputs."""
        body: Graph = self.node.attr("body")
        pointers, elements = self.operands.elements(v.first + v.step)
        lazy = StepMeaning(self.function.lazy.tables)
        state = CppBuffer("float32", self.shape, "state", self.shape)
        linear = ChunkStates(lazy, state, self.keys, self.values, self._row, placed)
        return (
            pointers,
            linear,
            values_of(linear, lazy.constant, body, [linear.first, *elements, *self.operands.others]),
        )

    # ---------------------------------------------------------------- statements of a step

    def _columns(self) -> list[Statement]:
        """Everything that does not depend on the state."""
        made, linear, (last, *_) = self._step("column")
        wanted = [("column", i, x, self.long) for i, x in enumerate(linear.columns)]
        wanted += [("added", i, u, self.long) for i, (u, _) in enumerate(last.pairs)]
        wanted += [("decay", 0, last.scale, self.decay)] if self.decay else []
        roots = list[tuple[LoopValue, CppBuffer, bool]]()
        for kind, i, value, size in wanted:
            place = self._place(kind, i, self.keys, size)
            made.append(self._pointer(place, kind, i, size))
            roots.append((linear.base.expand(value, place.shape), place, False))
        ahead = self.operands.ahead(v.first + v.step, self.size)
        return [*ahead, *made, *self.function.stage(roots)]

    def _rows(self) -> list[Statement]:
        """The rows that are added to the state, and before them the reads on which they depend."""
        made, linear, _ = self._step("row")
        for r in self.early:
            made += [self._added(r, s, "_row", "step") for s in range(len(self.pairs))]
            made.append(self._pointer(self._row("read", r), "read", r, self.wide))
        roots = []
        for i, (_, w) in enumerate(linear.writes):
            place = self._row("written", i)
            made.append(self._pointer(place, "written", i, self.wide))
            roots.append((linear.base.expand(w, place.shape), place, False))
        return [*made, *self.function.stage(roots)]

    def _outputs(self) -> list[Statement]:
        """The outputs of the step."""
        made, _, values = self._step("output", True)
        named = [("read", i) for i in self.reads] + [("written", i) for i in self.rows]
        made += [self._pointer(self._row(kind, i), kind, i, self.wide) for kind, i in named]
        roots = []
        for part, y in self.targets.items():
            if part > 0:
                at, place = self.operands.output(part, y, v.first + v.step)
                made.append(at)
                roots.append((values[part], place, False))
        return [*made, *self.function.stage(roots)]

    # ---------------------------------------------------------------- products of a chunk

    def _products(self) -> Iterator[Statement]:
        """The scores, and the rows that the state before the chunk gives."""
        pairs, sizes = range(len(self.pairs)), (self.size, self.long, self.decay)
        decay = self._at("decay", 0) if self.decay else v.nullptr
        for r in self.reads:
            for s in pairs:
                operands = self._at("column", r), self._at("added", s), decay
                yield _call("chunk_scores", sizes, v.steps, *operands, self._score(r, s))
        named = [("column", r, "false") for r in self.reads] + [("added", s, "true") for s in pairs]
        for kind, i, after in named if self.decay else ():
            yield _call("chunk_decayed", (*sizes, after), v.steps, decay, self._at(kind, i), self._at("decays", 0))
        for r in self.reads:
            operands = self._at("column", r), v[self.state.name], self._at("read", r)
            yield _call("chunk_read", (self.size, self.long, self.wide), v.steps, *operands)

    def _added(self, r: int, s: int, kind: str = "", steps: str = "steps") -> Statement:
        """The rows of the steps before by their scores, added to a read."""
        operands = self._score(r, s), self._at("written", self.pairs[s]), self._at("read", r)
        return _call(f"chunk_add{kind}", (self.size, self.wide), v[steps], *operands)

    def _update(self) -> Iterator[Statement]:
        """The state after the chunk."""
        sizes, state = (self.long, self.wide), v[self.state.name]
        if self.decay:
            yield _call("chunk_decay", (*sizes, self.decay), self._at("decays", 0), state)
        for s, i in enumerate(self.pairs):
            operands = self._at("added", s), self._at("written", i), state
            yield _call("chunk_write", (self.size, *sizes), v.steps, *operands)

    # ---------------------------------------------------------------- places

    def _row(self, kind: str, number: int) -> CppBuffer:
        return self._place(kind, number, self.values, self.wide)

    def _place(self, kind: str, number: int, axis: int, size: int) -> CppBuffer:
        """The memory of a column or a row of a step, along an axis of the state."""
        shape = tuple([size if i == axis else 1 for i in range(len(self.shape))])
        return CppBuffer("float32", shape, f"{kind}_{number}", tuple([int(i == axis) for i in range(len(shape))]))

    def _pointer(self, place: CppBuffer, kind: str, number: int, size: int) -> Let:
        return named_pointer(place.name, self._at(kind, number) + v.step * size, place, "")

    def _score(self, r: int, s: int) -> Expression:
        return self._at("score", r * len(self.pairs) + s)

    def _at(self, kind: str, number: int) -> Expression:
        """The first element of a part of the memory."""
        each = {"column": self.long, "added": self.long, "score": self.size}.get(kind, self.wide)
        start: Expression = v[self.rooms[kind].name]
        return start + number * self.size * each if number else start


def _call(name: str, sizes: Sequence[object], *args: object) -> Expression:
    return v[f"{name}<{', '.join(map(str, sizes))}>"](*args)


def _steps(made: Sequence[Statement]) -> For:
    return For("step", v.numbers(v.steps), tuple(made))
