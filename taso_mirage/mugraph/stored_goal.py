"""Goals whose results consist of computed parts: each part is a result of its own, which a kernel
stores at its place (`operators/stores.py`).

    concat(a @ v, b @ w)     parts a @ v and b @ w; stored side by side

To push such a concatenation to the operands (`moved_goal.py`) computes every part for each element
of the result, which is wasteful where a part is a product or a fold, or most elements are copied: a
cache to which rows are appended.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from taso_mirage.errors import TasoMirageError, Unsupported
from taso_mirage.ir.dims import Dim, Shape, dim_product
from taso_mirage.ir.mugraph import Lowering, tile_count, tile_part
from taso_mirage.ir.terms import (
    Graph,
    Node,
    Tensor,
    constant,
    is_constant,
    is_part,
    numpy_dtype,
    substitute,
    topological,
    variable,
)
from taso_mirage.mugraph.moved_goal import FILLS, NUMBERED, core_labels
from taso_mirage.mugraph.movement_terms import movement_term
from taso_mirage.operators.movements import is_moved
from taso_mirage.operators.ops import term, traits
from taso_mirage.operators.stores import (
    LAYOUTS,
    PLACED_IN,
    PartLayout,
    StoredPart,
    fill_once,
    has_parts,
    is_scatter,
    part_args,
    part_layout,
    stored_parts,
    stores_elements,
    with_parts,
    writes_over,
)
from taso_mirage.prove.symbolic import Proved, prove_symbolic

COPIED = 4096
"""The largest number of elements that a block copies."""


@dataclass(frozen=True, slots=True)
class StoredGoal:
    """A `goal`; `parts`: the same inputs, with each computed part as a result; `outputs`: those of
    the goal, as concatenations of these parts, of inputs and of numbers. `named`: the same with
    names for the sizes that a run gives."""

    goal: Graph
    parts: Graph
    outputs: tuple[Node, ...]
    named: StoredGoal | None = None

    @property
    def stores(self) -> bool:
        """Whether a result consists of parts."""
        return self.parts.outputs != self.goal.outputs

    def restored(self, values: Sequence[Node]) -> tuple[Node, ...]:
        """The results for the values of the parts. What no kernel has made alone for its place is
        copied there: inputs, numbers, a part that is there twice or is a result itself."""
        made = dict(zip(self.parts.outputs, values, strict=True))
        taken = {made[x] for x in self.outputs if x in made}
        alone = self._alone(made)
        return tuple([made[x] if x in made else self._joined(x, made, taken, alone) for x in self.outputs])

    def _alone(self, made: Mapping[Node, Node]) -> set[Node]:
        """The values that are stored once and read by no kernel, and whose kernels read nothing
        that may be in memory in which others are stored over it."""
        places = Counter(made.get(x, x) for output in self.outputs for x in _values(output))
        read = {a for value in made.values() for n in topological([value]) for a in n.args}
        copied = [x for output in filter(writes_over, self.outputs) for x in _values(output) if x not in made]
        below = {leaf for x in copied for leaf in _leaves(x)}
        once = [x for x, count in places.items() if count == 1 and x not in read]
        return {x for x in once if below.isdisjoint(topological([x]))}

    def _joined(self, output: Node, made: Mapping[Node, Node], taken: set[Node], alone: set[Node]) -> Node:
        """A result of parts; `taken`: the values that lie elsewhere. If parts are stored over
        others, those are copied that are not `alone`, or whose kernel has several rows in a tile,
        or other results."""
        layouts = [part_layout(part) for part in stored_parts(_distinct(output))]
        over, stored = writes_over(output), list[Node]()
        for x, layout in zip(_values(output), layouts, strict=True):
            value = made.get(x, x)
            kept = x in made and value not in taken
            if over and kept:
                kept = value in alone and not is_part(value) and _fits(value, layout)
            stored.append(value if kept else _copied(value, len(taken), layout, over))
            taken.add(stored[-1])
        return with_parts(output, iter(stored))

    @property
    def joined(self) -> tuple[Node, ...]:
        """The results that consist of parts, over variables in place of these."""
        return tuple([_distinct(x) for x in self.outputs if x not in self.parts.outputs])

    def is_equal(self) -> bool:
        """Whether the results are proved equal to those of the goal for any values of the parts,
        and each is proved to be a partition into its parts, also by their places in memory; for all
        sizes, if some have names."""
        return self._is_equal() and (self.named is None or self.named._is_equal())

    def _is_equal(self) -> bool:
        fresh = {x: variable(f"part {i}", x.tensor) for i, x in enumerate(self.parts.outputs)}
        joined = [(new, old) for new, old in zip(self.outputs, self.goal.outputs, strict=True) if new not in fresh]
        for new, old in joined:
            sides = substitute([new], fresh), substitute([old], fresh)
            if sides[0] != sides[1] and not isinstance(prove_symbolic(*sides), Proved):
                return False
        return all(map(is_stored_once, self.joined))


def is_stored_once(result: Node) -> bool:
    """Whether the parts of a result are proved a partition of it, and their places in memory fill
    it, at fixed sizes of at most NUMBERED elements. If parts are stored over others: whether the
    stores, one after the other, give the result at such sizes; at others, whether each update is
    proved to be at its place."""
    parts = stored_parts(result)
    if writes_over(result):
        return _is_written(result, parts)
    if not is_partition(result, parts):
        return False
    count = dim_product(result.shape)
    if not isinstance(count, int) or count > NUMBERED:
        return True
    return fill_once(count, [(part.value.shape, part_layout(part)) for part in parts])


def _is_written(result: Node, parts: Sequence[StoredPart]) -> bool:
    count = dim_product(result.shape)
    if isinstance(count, int) and count <= NUMBERED:
        return all(stores_elements(result, parts, seed) for seed in range(2))
    whole = variable(PLACED_IN, result.tensor)
    found = [(substitute([part.place], {whole: result})[0], part.value) for part in parts if part_layout(part).rows]
    return all(isinstance(prove_symbolic([a], [b]), Proved) for a, b in found)


def is_partition(result: Node, parts: Sequence[StoredPart]) -> bool:
    """Whether storing each part at its place makes the result, and each element of the result is
    stored once: proved for all elements, as two equations.

        result(places of the whole) = whole        each place(result(parts)) = the part
    """
    whole = variable(PLACED_IN, result.tensor)
    if len({part.value for part in parts}) < len(parts):
        return False
    fresh = [variable(f"part {i}", part.value.tensor) for i, part in enumerate(parts)]
    made = _over(result, parts, fresh)
    if made is None or any(x is not whole for part in parts for x in topological([part.place]) if not x.args):
        return False
    again = _over(result, parts, [part.place for part in parts])
    equations = [(again, whole)]
    equations += [(substitute([part.place], {whole: made})[0], x) for part, x in zip(parts, fresh, strict=True)]
    return all(a is not None and isinstance(prove_symbolic([a], [b]), Proved) for a, b in equations)


def _over(result: Node, parts: Sequence[StoredPart], values: Sequence[Node]) -> Node | None:
    """The result with other values for its parts; None if these are not its parts."""
    replaced = {part.value: x for part, x in zip(parts, values, strict=True)}
    if any(old.type != new.type for old, new in replaced.items()):
        return None
    own = {part.value for part in stored_parts(result)}
    return substitute([result], replaced)[0] if own == replaced.keys() else None


def _distinct(node: Node, path: str = "part") -> Node:
    """A result over variables in place of its parts, each of its own."""
    values = [*_values(node)]
    return with_parts(node, iter([variable(f"{path} {i}", x.tensor) for i, x in enumerate(values)]))


# ---------------------------------------------------------------- the parts of a goal


@lru_cache(maxsize=1024)
def stored_goal(goal: Graph, named: Graph | None = None) -> StoredGoal:
    """The goal with its parts, where a result consists of parts and it is better to store them
    apart; `is_equal` tells whether it is the same goal. `named`: the goal with names for some
    sizes."""
    apart = [stores_parts(goal, _joins(output)) for output in goal.outputs]
    made = _in_parts(goal, apart)
    return made if named is None else replace(made, named=_in_parts(named, apart))


def _in_parts(goal: Graph, apart: Sequence[bool]) -> StoredGoal:
    outputs, parts = list[Node](), dict[Node, None]()
    for output, split in zip(goal.outputs, apart, strict=True):
        joined = _joins(output)
        outputs.append(joined if split else output)
        parts |= dict.fromkeys(x for x in _values(joined) if not _is_copied(x)) if split else {output: None}
    return StoredGoal(goal, Graph(goal.inputs, tuple(parts)), tuple(outputs))


def is_append(output: Node) -> bool:
    """Whether a result of fixed sizes is mostly an input: a concatenation of which inputs are more
    than half of the elements."""
    joined = _joins(output)
    copied = sum(int(dim_product(x.shape)) for x in _values(joined) if not x.args and not is_constant(x))
    return has_parts(joined) and not writes_over(joined) and 2 * copied > int(dim_product(output.shape))


def stores_parts(goal: Graph, output: Node) -> bool:
    """Whether the parts of a result are stored apart: where there are several tensors, and one is a
    product or a fold, or most elements are those of inputs while other results are computed, or
    where the concatenation does not reach the operands."""
    values = [*_values(output)]
    computed = [x for x in values if not _is_copied(x)]
    appended = len(goal.outputs) > 1 and is_append(output)
    if not has_parts(output) or not (computed or appended):
        return False
    several = sum(not all(map(is_constant, _leaves(x))) for x in values) > 1
    try:
        for part in stored_parts(_distinct(output)):
            part_layout(part)
        if appended or (core_labels(Graph(goal.inputs, tuple(computed))).reduced and several):
            return True
    except Unsupported:
        return False
    try:
        core_labels(Graph(goal.inputs, (output,)))
    except TasoMirageError:
        return True
    return False


def _leaves(x: Node) -> list[Node]:
    return [n for n in topological([x]) if not n.args]


def _values(output: Node) -> Iterator[Node]:
    if not has_parts(output):
        yield output
        return
    for i in part_args(output):
        yield from _values(output.args[i])


def _is_copied(x: Node) -> bool:
    """Whether a part is nothing that is computed."""
    return not x.args or is_moved(x)


def _joins(node: Node) -> Node:
    """A term in which concatenations and layouts of them are outermost, with pads as
    concatenations with numbers; other terms unchanged."""
    made = node if is_scatter(node) else movement_term(node) if node.args else None
    if made is None or not _joined_below(made):
        return node
    kind = traits(made).lowering
    if kind is Lowering.PAD:
        return _joins(_framed(made))
    args = [_joins(x) if i in part_args(made) else x for i, x in enumerate(made.args)]
    return term(made.op, *args, **dict(made.attrs))


def _joined_below(node: Node) -> bool:
    """Whether a term is a concatenation, a scatter or a pad of something, or a layout of one."""
    if is_scatter(node):
        return True
    made = movement_term(node) if node.args else None
    if made is None:
        return False
    kind = traits(made).lowering
    if kind is Lowering.PAD:
        return bool(made.attr("mode") == FILLS)
    return kind is Lowering.CONCAT or (kind in LAYOUTS and _joined_below(made.args[0]))


def _framed(node: Node) -> Node:
    """A pad with a number as concatenations with constants."""
    x, rank, pads = node.args[0], node.tensor.rank, node.attr("pads")
    number = constant(np.full([1] * rank, node.attr("value"), numpy_dtype(x.dtype)))
    for axis in range(rank):
        ends = [
            [term("expand", number, shape=(*x.shape[:axis], n, *x.shape[axis + 1 :]))] if n != 0 else []
            for n in (pads[axis], pads[rank + axis])
        ]
        x = term("concat", *ends[0], x, *ends[1], axis=axis) if any(ends) else x
    return x


# ---------------------------------------------------------------- copies


def _fits(value: Node, layout: PartLayout) -> bool:
    """Whether a kernel gives a value in tiles that have one row of those that are read first; a
    view of a kernel's result has no tiles."""
    body: Any = dict(value.attrs).get("body")
    return body is not None and all(body.outputs[0].shape[axis] == 1 for axis in layout.varying)


def _copied(x: Node, number: int, layout: PartLayout, over: bool) -> Node:
    """A copy of a part. That of an input below others is one of the tensor in memory, which the
    caller may give in the memory of the result."""
    if over and not layout.rows and traits(x).lowering in LAYOUTS:
        return term(x.op, _copied(x.args[0], number, layout, over), **dict(x.attrs))
    return copy_kernel(x, number, layout.varying)


def copy_kernel(x: Node, number: int = 0, rows: Collection[int] = ()) -> Node:
    """The kernel that gives a tensor as it is: for a part that is not computed. Kernels of other
    numbers are other terms, as a part has one place. A tile has one position along the axes
    `rows`."""
    free = any(not isinstance(n, int) for n in x.shape)
    if free and rows:
        raise Unsupported(f"a copy of {x.type} to rows that a run gives, of sizes that it gives")
    tile, counts = _free_copy(x.shape) if free else _fixed_copy([int(n) for n in x.shape], rows)
    cuts = sorted(counts)
    leaf = variable(f"t{number}", Tensor(x.dtype, tuple(tile)))
    maps, grid = (tuple(cuts) or (-1,),), tuple([counts[axis] for axis in cuts]) or (1,)
    return term(
        "kernel", x, body=Graph((leaf,), (leaf,)), grid=grid, loop=1, imap=maps, fmap=(-1,), omap=maps, cluster=1
    )


def _fixed_copy(tile: list[int], rows: Collection[int]) -> tuple[list[int], dict[int, int]]:
    """The tile of a copy of fixed sizes, and how many of them an axis has."""
    found = dict[int, int]()
    for axis in sorted(range(len(tile)), key=lambda axis: axis not in rows):
        n, elements = tile[axis], math.prod(tile)
        if (elements > COPIED or axis in rows) and len(found) < 3 and n != 1:
            counts = [d for d in range(1, n + 1) if n % d == 0 and (d == n or elements <= COPIED * d)]
            found[axis] = n if axis in rows else min(counts)
            tile[axis] //= found[axis]
    return tile, found


def _free_copy(shape: Shape) -> tuple[list[Dim], dict[int, Dim]]:
    """The tile of a copy where a run gives sizes: rows of the last such axis; and how many of them
    an axis has."""
    tile, found = list[Dim](shape), dict[int, Dim]()
    *others, last = [axis for axis, n in enumerate(shape) if not isinstance(n, int)]
    inner = int(dim_product(shape[last + 1 :]))
    tile[last] = tile_part(shape[last], max(COPIED // inner, 1))
    found[last] = tile_count(shape[last], tile[last])
    for axis in [*others[::-1], *range(last)]:
        if len(found) < 3 and shape[axis] != 1 and axis not in found:
            tile[axis], found[axis] = 1, shape[axis]
    return tile, found
