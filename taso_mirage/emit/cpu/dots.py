"""Contractions as blocks of dot products in registers (`vector.h`), chosen by the contiguous
axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from taso_mirage.emit.cpu.buffer_layouts import strides_of
from taso_mirage.emit.cpu.lazy_tensors import Affine, BestColumn, CppBuffer
from taso_mirage.emit.cpu.loop_schedule import ContractionNest, LoopSchedule
from taso_mirage.emit.cpu.printer import expression_text, static_cast
from taso_mirage.emit.cpu.step_objects import StepObjects
from taso_mirage.emit.statements import Expression, Let, Scope, Statement, loop, sum_of, tl, v
from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim
from taso_mirage.ir.mugraph import product_factor, usual_size

NARROW = 128
"""The number of columns up to which a block of rows has all of its results in registers while it
goes through all of k."""
TEAM, TEAM_MOST = 1 << 16, 1 << 25
"""The bytes of a matrix of which two threads read a half each in every step of a loop: smaller ones
are read faster than the threads wait for each other, and larger ones stay in no cache, so a copy is
no faster (`team.h`)."""
TEAM_COLUMNS = 32
"""The number of columns that two halves of whole vectors have."""
VECTOR = 4
"""The least number of contiguous elements for which a vector is worth it."""


@dataclass(frozen=True, slots=True)
class Side:
    """An operand or the result of a contraction: a pointer, and its strides by letter."""

    pointer: Expression
    steps: Mapping[str, Dim]

    def at(self, letters: Iterable[str]) -> Expression:
        """The pointer at the loop variables of these letters."""
        moved = [v[f"j_{x}"] * product_factor(self.steps[x]) for x in letters if self.step(x) != 0]
        return sum_of([self.pointer, *moved])

    def step(self, letter: str | None) -> Dim:
        return self.steps.get(letter, 0) if letter else 0


def product_statements(item: ContractionNest, schedule: LoopSchedule) -> list[Statement]:
    """A product by blocks in registers if elements are contiguous, else element by element."""
    value, target = item.value, item.target
    if isinstance(value, BestColumn):
        return [_best_columns(value, schedule.address(value.arg), target)]
    pairs = list(zip(value.args, value.letters, strict=False))
    left, right = (Side(_pointer(schedule.address(x)), strides_of(x, each, schedule.room.buffers)) for x, each in pairs)
    made = Side(_pointer(target), dict(zip(value.letters[2], target.strides, strict=True)))
    sizes = {x: n for arg, letters in pairs for x, n in zip(letters, arg.shape, strict=True) if n != 1}
    result = [x for x in sizes if x in value.letters[2]]
    objects = None if item.update else schedule.room.objects
    fixed = [objects if objects is not None and schedule.address(x) in objects else None for x in value.args]
    ways = (
        found
        for a, b, own in ((left, right, fixed[1]), (right, left, fixed[0]))
        for found in (_columns(sizes, result, a, b, made, own), _rows(sizes, result, a, b, made))
    )
    product = next((found for found in ways if found is not None), None) or _single(sizes, result, left, right, made)
    named = f"{','.join(value.letters[:2])}->{value.letters[2]}, {', '.join(f'{x} = {n}' for x, n in sizes.items())}"
    first = [] if item.update else [fill(target, "0.0f")]
    return [*first, replace(product, why=f"{named}: {product.why}")]


def _best_columns(value: BestColumn, rows: CppBuffer, target: CppBuffer) -> Statement:
    """The column of each row. Raises Unsupported for rows that do not lie in memory element by
    element."""
    if rows.strides[1] != 1:
        raise Unsupported("the largest of the products of a row whose elements lie apart")
    at, to = (v.row * product_factor(x.strides[0]) for x in (rows, target))
    found = v[value.finder](_pointer(rows) + at)
    return Scope((loop("row", v.numbers(rows.shape[0]), [tl.store(v[target.name][to + target.start], found)]),), True)


def _call(name: str, sizes: Sequence[Dim], args: Sequence[object]) -> Expression:
    """Sizes that only a run knows are operands, whose types contain the numbers of a whole tile."""
    if all(isinstance(n, int) for n in sizes):
        return v[f"{name}<{', '.join(map(str, sizes))}>"](*args)
    said = [v[f"constant<{n}>"]() if isinstance(n, int) else n for n in sizes]
    return v[f"{name}_of"](*said, *args)


def _long(size: Dim) -> bool:
    return usual_size(size) >= VECTOR


def _columns(
    sizes: Mapping[str, Dim], result: list[str], a: Side, b: Side, c: Side, fixed: StepObjects | None = None
) -> Scope | None:
    """Contiguous elements of b and of the result, along a letter that a lacks. `fixed`: those of b
    where it is the same in all steps."""
    wide = [x for x in result if _long(sizes[x]) and b.step(x) == 1 and c.step(x) == 1 and a.step(x) == 0]
    if not wide:
        return None
    n = wide[0]
    k = _largest(sizes, lambda x: x not in result)
    m = _largest(sizes, lambda x: x in result and x != n and a.step(x) != 0 and b.step(x) == 0)
    outer = [x for x in sizes if x not in (n, k, m)]
    args = (a.at(outer), a.step(m), a.step(k), b.at(outer), b.step(k), c.at(outer), c.step(m))
    narrow = usual_size(sizes[n]) <= NARROW
    shape = sizes.get(m or "", 1), sizes[n], sizes.get(k or "", 1)
    if fixed is not None and fixed.together and not narrow and not outer and _has_halves(shape):
        added = v[f"{fixed.matrix(b.pointer, b.step(k), *shape[1:])}.add"](a.pointer, a.step(k), c.pointer)
        return _looped(outer, sizes, added, "half of it by each thread")
    call = _call("columns" if narrow else "streamed", shape, args)
    why = "results in registers" if narrow else "long rows, few of them at a time"
    return _looped(outer, sizes, call, f"vectors along {n}, {why}")


def _has_halves(shape: Sequence[Dim]) -> bool:
    """Whether two threads can share the product of one row with a matrix."""
    rows, columns, depth = shape
    known = rows == 1 and isinstance(columns, int) and isinstance(depth, int)
    return known and TEAM <= 4 * usual_size(columns) * usual_size(depth) <= TEAM_MOST and columns % TEAM_COLUMNS == 0


def _rows(sizes: Mapping[str, Dim], result: list[str], a: Side, b: Side, c: Side) -> Scope | None:
    """Contiguous elements of both operands, along a letter that the result lacks."""
    inner = [x for x in sizes if x not in result and _long(sizes[x]) and a.step(x) == 1 and b.step(x) == 1]
    if not inner:
        return None
    k = inner[0]
    m = _largest(sizes, lambda x: x in result and a.step(x) != 0 and b.step(x) == 0)
    n = _largest(sizes, lambda x: x in result and b.step(x) != 0 and a.step(x) == 0)
    if usual_size(sizes.get(m or "", 1)) > usual_size(sizes.get(n or "", 1)):
        return None  # the other way round: the larger operand is read once
    outer = [x for x in sizes if x not in (n, k, m)]
    args = (a.at(outer), a.step(m), b.at(outer), b.step(n), c.at(outer), c.step(m), c.step(n))
    call = _call("rows", (sizes.get(m or "", 1), sizes.get(n or "", 1), sizes[k]), args)
    return _looped(outer, sizes, call, f"vectors along {k}")


def _single(sizes: Mapping[str, Dim], result: list[str], a: Side, b: Side, c: Side) -> Scope:
    order = sorted(sizes, key=lambda x: x in result)
    to, x, y = (v["*"](side.at(order)) for side in (c, a, b))
    made = static_cast("float", x) * static_cast("float", y)
    added = Let(expression_text(to), made, op="+=")
    return _looped(order, sizes, added, "nothing lies side by side, or too little")


def _largest(sizes: Mapping[str, Dim], fits: Callable[[str], bool]) -> str | None:
    return max((x for x in sizes if fits(x)), key=lambda x: usual_size(sizes[x]), default=None)


def _pointer(buffer: CppBuffer) -> Expression:
    return v[buffer.name] + buffer.start if buffer.start != 0 else v[buffer.name]


def _looped(letters: Iterable[str], sizes: Mapping[str, Dim], made: Statement, why: str) -> Scope:
    """A statement for all values of the loop variables of some letters; the comment is `why`."""
    return Scope((_nested({f"j_{x}": sizes[x] for x in letters}, made),), True, why)


def _nested(sizes: dict[str, Dim], made: Statement) -> Statement:
    """A statement for all values of some loop variables, the outermost first."""
    for name, n in reversed(sizes.items()):
        made = loop(name, v.numbers(n), [made])
    return made


def fill(target: CppBuffer, value: str) -> Statement:
    """Set every element of a buffer."""
    names = {f"i{i}": n for i, n in enumerate(target.shape) if n != 1}
    index = [Affine(0, ((f"i{i}", 1),)) if n != 1 else Affine() for i, n in enumerate(target.shape)]
    return _nested(names, tl.store(v[target.name][target.offset(tuple(index))], value))
