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
from taso_mirage.emit.cpu.step_operands import KernelStages, StepOperands, pointer, values_of
from taso_mirage.emit.statements import Expression, For, Let, Statement, select, v
from taso_mirage.errors import Unsupported
from taso_mirage.ir.mugraph import product_factor
from taso_mirage.ir.terms import Graph, Node, topological
from taso_mirage.meanings.linear_states import LinearStates, LinearValue, Pair


@dataclass
class ChunkStates(LinearStates):
    """Linear states whose reads, and the rows that are added to the state, have places in memory."""

    row: Callable[[str, int], CppBuffer]
    """The place of a row, by the name of its kind and its number."""
    placed: bool = False
    """Whether the rows that are added are in memory, too."""
    columns: list[LoopValue] = field(default_factory=list)
    """The columns that read."""
    reads: list[LoopValue] = field(default_factory=list)
    writes: list[Pair] = field(default_factory=list)

    def reading(self, row: Any) -> Any:
        self.columns.append(row)
        self.reads.append(self.row("read", len(self.reads)))
        return self.reads[-1]

    def joined(self, pairs: tuple[Pair, ...]) -> tuple[Pair, ...]:
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
    """As `steps.step_statements`, for a loop with an attribute `chunk`.

    Raises Unsupported for a state with more axes than that of keys and that of values, and for
    columns or decays that depend on what a step reads.
    """
    return _Chunks(function, node, StepOperands(node, tiles), dict(zip(parts, targets, strict=True))).loop()


@dataclass
class _Chunks:
    function: KernelStages
    node: Node
    operands: StepOperands
    targets: Mapping[int, CppBuffer]
    """The places of the results, by their numbers."""

    def __post_init__(self) -> None:
        self.size, self.keys, self.values = self.node.attr("chunk")
        shape = self.operands.buffers[0].shape
        self.counts = [int(shape[axis]) for axis in (self.keys, self.values)]
        if any(n != 1 for i, n in enumerate(shape) if i not in (self.keys, self.values)):
            raise Unsupported("several states in a block of a loop by chunks")

    def loop(self) -> list[Statement]:
        """All statements."""
        (keys, values), size = self.counts, self.size
        strides = tuple(values if i == self.keys else int(i == self.values) for i in range(len(self._shape())))
        first = self.operands.buffers[0]
        self.state = self.function.memory.allocate(first, strides, "state")
        self.function.used.add(self.state.name)
        made = self.function.stage([(first, self.state, False)])
        self._find()
        count = product_factor(self.operands.count)
        start = v.chunk * size
        inside: list[Statement] = [
            Let("first", start, "const size_t"),
            Let("steps", select(v[size], start + size <= v[count], v[count] - start), "const size_t"),
            self._steps(self._columns()),
            *self._products(),
            self._steps(self._rows()),
            *[self._call("chunk_add", [size, values], g, w, y) for r, y in self._late() for g, w in self._scored(r)],
            self._steps(self._outputs()),
        ]
        if self.decay:
            inside.append(self._call("chunk_decay", [keys, values, self.decay], "decays", self.state.name, steps=False))
        for s, u in enumerate(self.pairs):
            inside.append(
                self._call(
                    "chunk_write", [size, keys, values], self._at("added", s), self._at("written", u), self.state.name
                )
            )
        chunks = v[f"({count} + {size - 1}) / {size}"]
        made.append(For("chunk", v.numbers(chunks), tuple(inside)))
        ends = [(self.state, y, False) for part, y in self.targets.items() if part == 0]
        return [*made, *self.function.stage(ends)]

    def _shape(self) -> tuple[Any, ...]:
        return self.operands.buffers[0].shape

    def _find(self) -> None:
        """What a step reads and writes, and the memory for it."""
        _, linear, values = self._step("column")
        last = values[0]
        if not isinstance(last, LinearValue) or not last.state or not linear.reads:
            raise Unsupported("a state that is not linear, or is not read, by chunks")
        fixed = [*linear.columns, *(u for u, _ in last.pairs), *([] if last.scale is None else [last.scale])]
        if set(topological(fixed)) & set(linear.reads):
            raise Unsupported("a column or a decay that depends on the state")
        rows = [w for _, w in linear.writes]
        self.pairs = [next(i for i, w in enumerate(rows) if w is own) for _, own in last.pairs]
        self.early = [r for r, y in enumerate(linear.reads) if y in set(topological(rows))]
        shape = () if last.scale is None else linear.shape(last.scale)
        self.decay = 0 if last.scale is None else int(shape[self.keys]) if shape else 1
        (keys, values_), size = self.counts, self.size
        self.rooms = {}
        counts = {
            "column": len(linear.reads) * size * keys,
            "added": len(self.pairs) * size * keys,
            "decay": size * self.decay,
            "decays": self.decay,
            "score": len(linear.reads) * len(self.pairs) * size * size,
            "read": len(linear.reads) * size * values_,
            "written": len(rows) * size * values_,
        }
        for name, n in counts.items():
            if n:
                self.rooms[name] = self.function.memory.allocate(CppBuffer("float32", (n,), name, (1,)), hint=name)
                self.function.used.add(self.rooms[name].name)
        self.reads, self.rows = len(linear.reads), len(rows)

    def _step(self, name: str, placed: bool = False) -> tuple[list[Statement], ChunkStates, list[Any]]:
        """A step over its elements: the pointers to these, the states, and the values of the
        body's outputs."""
        body: Graph = self.node.attr("body")
        pointers, elements = self.operands.elements(v.first + v.step)
        lazy = StepMeaning(self.function.lazy.tables)
        state = CppBuffer("float32", self._shape(), "state", self._shape())
        linear = ChunkStates(lazy, state, self.keys, self.values, self._row, placed)
        values = values_of(linear, lazy.constant, body, [linear.first, *elements, *self.operands.others])
        return pointers, linear, values

    def _row(self, kind: str, number: int) -> CppBuffer:
        """The place of a row of a step."""
        shape = tuple(1 if i == self.keys else n for i, n in enumerate(self._shape()))
        return CppBuffer("float32", shape, f"{kind}_{number}", tuple(int(i == self.values) for i in range(len(shape))))

    def _column(self, kind: str, number: int, size: int) -> CppBuffer:
        shape = tuple(size if i == self.keys else 1 for i in range(len(self._shape())))
        return CppBuffer("float32", shape, f"{kind}_{number}", tuple(int(i == self.keys) for i in range(len(shape))))

    def _columns(self) -> list[Statement]:
        """The statements of a step for what does not depend on the state."""
        made, linear, values = self._step("column")
        keys = self.counts[0]
        last, roots = values[0], list[tuple[LoopValue, CppBuffer, bool]]()
        wanted = [("column", x, keys) for x in linear.columns] + [("added", u, keys) for u, _ in last.pairs]
        wanted += [("decay", last.scale, self.decay)] if self.decay else []
        numbers: dict[str, int] = {}
        for kind, value, size in wanted:
            number = numbers[kind] = numbers.get(kind, -1) + 1
            place = self._column(kind, number, size)
            made.append(self._pointer(place, kind, number, size))
            roots.append((linear.base.expand(value, place.shape), place, False))
        ahead = self.operands.ahead(v.first + v.step, self.size)
        return [*ahead, *made, *self.function.stage(roots)]

    def _rows(self) -> list[Statement]:
        """The statements of a step for the rows that are added to the state."""
        values = self.counts[1]
        made, linear, _ = self._step("row")
        for r in self.early:
            y = self._at("read", r)
            made += [
                self._call("chunk_add_row", [self.size, values], g, w, y, steps="step") for g, w in self._scored(r)
            ]
            made.append(self._pointer(self._row("read", r), "read", r, values))
        places = [self._row("written", i) for i in range(self.rows)]
        made += [self._pointer(place, "written", i, values) for i, place in enumerate(places)]
        shape = places[0].shape if places else ()
        kept = [(linear.base.expand(w, shape), p) for (_, w), p in zip(linear.writes, places, strict=True)]
        return [*made, *self.function.stage([(w, p, False) for w, p in kept])]

    def _outputs(self) -> list[Statement]:
        """The statements of a step for its outputs."""
        made, _, values = self._step("output", True)
        for kind, count in (("read", self.reads), ("written", self.rows)):
            made += [self._pointer(self._row(kind, i), kind, i, self.counts[1]) for i in range(count)]
        roots = []
        for part, y in self.targets.items():
            if part > 0:
                at, place = self.operands.output(part, y, v.first + v.step)
                made.append(at)
                roots.append((values[part], place, False))
        return [*made, *self.function.stage(roots)]

    def _products(self) -> Iterator[Statement]:
        """The scores, and the rows that the state before the chunk gives."""
        keys, values = self.counts
        for r in range(self.reads):
            for s in range(len(self.pairs)):
                g = self._at("score", r * len(self.pairs) + s)
                p, u = self._at("column", r), self._at("added", s)
                yield self._call("chunk_scores", [self.size, keys, self.decay], p, u, self._decay(), g)
        named = [("column", r, "false") for r in range(self.reads)] + [
            ("added", s, "true") for s in range(len(self.pairs))
        ]
        for kind, i, after in named if self.decay else ():
            sizes = [self.size, keys, self.decay, after]
            yield self._call("chunk_decayed", sizes, self._decay(), self._at(kind, i), self.rooms["decays"].name)
        for r in range(self.reads):
            at = self._at("column", r), self.state.name, self._at("read", r)
            yield self._call("chunk_read", [self.size, keys, values], *at)

    def _late(self) -> list[tuple[int, Expression]]:
        return [(r, self._at("read", r)) for r in range(self.reads) if r not in self.early]

    def _scored(self, r: int) -> list[tuple[Expression, Expression]]:
        """The scores of a read with the rows to which they belong."""
        count = len(self.pairs)
        return [(self._at("score", r * count + s), self._at("written", i)) for s, i in enumerate(self.pairs)]

    def _decay(self) -> Expression:
        return v[self.rooms["decay"].name] if self.decay else v.nullptr

    def _at(self, kind: str, number: int) -> Expression:
        """The first element of the numbered part of a room."""
        each = {"column": self.counts[0], "added": self.counts[0], "score": self.size}.get(kind, self.counts[1])
        start = number * self.size * each
        return v[self.rooms[kind].name] + start if start else v[self.rooms[kind].name]

    def _pointer(self, place: CppBuffer, kind: str, number: int, size: int) -> Let:
        return pointer(place.name, self._at(kind, number) + v.step * size, place, "")

    def _call(self, name: str, sizes: Sequence[object], *args: object, steps: object = "steps") -> Expression:
        if name == "chunk_decay":
            args = (self.rooms["decays"].name, *args[1:])
        given = [v[steps]] if steps else []
        return v[f"{name}<{', '.join(map(str, sizes))}>"](*given, *args)

    def _steps(self, made: Sequence[Statement]) -> For:
        return For("step", v.numbers(v.steps), tuple(made))
