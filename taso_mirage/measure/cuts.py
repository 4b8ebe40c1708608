"""Patches at smaller sizes: batches and rows along which a patch is independent are cut to a few.

The sizes that may vary are those that a proof of the patch would have as letters (`lift`). A cut is
used if the original's terms have the same values on the remaining rows; then no row depends on
another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from taso_mirage.ir.dims import Dim, Symbolic, bind, evaluate, learn, symbols
from taso_mirage.ir.terms import Node, Tensor, topological, variable
from taso_mirage.measure.bulk import UNTYPED, evaluation_seconds
from taso_mirage.measure.native import Arrays
from taso_mirage.measure.patches import over_leaves
from taso_mirage.operators.work import size
from taso_mirage.prove.rules.lift import lift, rebound

ROWS = 8
"""The size to which a batch, or a number of rows, is cut."""
LIFTING = 1e-3
"""The seconds per term that the search for variable sizes takes. A side that is evaluated in less
time is not cut."""
TOGETHER = 1 << 28
"""Bytes of weights and values of the sides that are joined."""
LONG = 0.5
"""Seconds of a float64 evaluation from which on a side is also cut along some of equal sizes."""


@dataclass(frozen=True, slots=True)
class Sides:
    """The two sides of a patch at fixed sizes, the values of its leaves, and the values of its
    original's terms in the run that the leaves come from."""

    before: tuple[Node, ...]
    after: tuple[Node, ...]
    inputs: Arrays
    found: tuple[Any, ...]

    @property
    def leaves(self) -> tuple[Node, ...]:
        return _leaves((*self.before, *self.after))

    def seconds(self) -> float:
        """The estimated seconds of a float64 evaluation of the original's side."""
        return evaluation_seconds(topological(self.before), {})

    def pays(self) -> bool:
        """Whether the search for a cut takes less time than an evaluation of all rows."""
        return self.seconds() > LIFTING * len(topological((*self.before, *self.after)))


def few_bytes(places: Sequence[Sides]) -> Iterator[list[Sides]]:
    """The sides in their order, in groups whose weights and values have at most TOGETHER bytes."""
    some, total = list[Sides](), 0
    for each in places:
        own = sum(size(n.tensor) for n in _leaves(each.after) if n.op == "weight")
        own += sum(np.asarray(value).nbytes for value in (*each.inputs.values(), *each.found))
        if some and total + own > TOGETHER:
            yield some
            some, total = [], 0
        some.append(each)
        total += own
    if some:
        yield some


def joined_sides(places: Sequence[Sides]) -> Sides:
    """The optimized terms of several sides as those of one, over inputs of their own."""
    after, inputs = list[Node](), dict[str, Any]()
    for i, each in enumerate(places):
        named = {n: variable(f"{n.attr('name')}_{i}", n.tensor) for n in _leaves(each.after) if n.op == "input"}
        after += over_leaves(each.after, named)
        inputs |= {new.attr("name"): each.inputs[old.attr("name")] for old, new in named.items()}
    return Sides((), tuple(after), inputs, tuple(value for each in places for value in each.found))


def fixed_sides(
    before: Sequence[Node], after: Sequence[Node], sizes: Mapping[str, int]
) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """The two sides with a number for each size; unchanged where their terms have no type at these
    sizes."""
    try:
        both = rebound((*before, *after), lambda dim: bind(dim, dict(sizes)))
    except UNTYPED:
        return tuple(before), tuple(after)
    return both[: len(before)], both[len(before) :]


def fewer_rows(sides: Sides) -> Iterator[Sides]:
    """The sides at smaller sizes, those first at which the most is cut: all rows and batches, or
    each alone. Equal sizes are one; those of a side that takes LONG also vary alone (queries, not
    keys). That a side is independent along them is for the caller to see."""
    whole, found = sides.seconds(), dict[tuple[Node, ...], _Smaller]()
    for finest in (False, True) if whole > LONG else (False,):
        found |= {each.before: each for each in _smaller(sides, finest)}
    for each in sorted(found.values(), key=lambda each: each.seconds):
        cut = _cut(each, sides) if each.seconds < whole / 2 else None
        if cut is not None:
            yield cut


@dataclass(frozen=True, slots=True)
class _Smaller:
    """The two sides at smaller sizes, and those over sizes that vary; the estimated seconds of a
    float64 evaluation."""

    before: tuple[Node, ...]
    after: tuple[Node, ...]
    lifted: tuple[Node, ...]
    sizes: Mapping[str, int]
    seconds: float


def _smaller(sides: Sides, finest: bool) -> Iterator[_Smaller]:
    lifted = _lifted(sides.before, sides.after, finest)
    if lifted is None:
        return
    both = (*lifted[0], *lifted[1])
    leaves, now = _leaves(both), dict[str, int]()
    for leaf in leaves:
        if leaf.attr("name") in sides.inputs and isinstance(leaf.type, Tensor):
            now = _sizes(leaf.shape, np.shape(sides.inputs[leaf.attr("name")])) | now
    kept = {s for n in leaves if n.op == "weight" for d in n.shape for s in symbols(d)}
    if any(s not in now for n in topological(both) for s in _named(n)):
        return  # a product of sizes, of which none is known
    free = [name for name, size in now.items() if name not in kept and size > ROWS]
    for some in ([free] if len(free) > 1 else []) + [[name] for name in free]:
        sizes = now | dict.fromkeys(some, ROWS)
        with suppress(*UNTYPED):
            made = rebound(both, lambda dim, sizes=sizes: bind(dim, dict(sizes)))  # type: ignore[misc]
            before, after = made[: len(lifted[0])], made[len(lifted[0]) :]
            yield _Smaller(before, after, both, sizes, evaluation_seconds(topological(before), {}))


def _sizes(shape: tuple[Dim, ...], actual: Sequence[int]) -> dict[str, int]:
    """The sizes that an actual shape tells, also by a multiple: heads times their numbers."""
    found: dict[str, int] = {}
    learn(shape, actual, found)
    for dim, n in zip(shape, actual, strict=False):
        if isinstance(dim, Symbolic) and len(names := list(symbols(dim))) == 1:
            times = evaluate(dim, {names[0]: 1})
            if times > 1 and n % times == 0 and evaluate(dim, {names[0]: n // times}) == n:
                found.setdefault(names[0], n // times)
    return found


@lru_cache(maxsize=2)
def _lifted(
    before: tuple[Node, ...], after: tuple[Node, ...], finest: bool
) -> tuple[tuple[Node, ...], tuple[Node, ...]] | None:
    """The two sides over sizes that may vary, so that values of different runs share one key."""
    return lift(before, after, finest=finest)


def _cut(smaller: _Smaller, sides: Sides) -> Sides | None:
    """Smaller sides over the first rows of all that goes in; None where they have no values."""
    leaves = [n for n in _leaves(smaller.lifted) if n.op == "input"]
    try:
        inputs = {
            leaf.attr("name"): _first(sides.inputs[leaf.attr("name")], [evaluate(d, smaller.sizes) for d in leaf.shape])
            for leaf in leaves
        }
        found = tuple(
            _first(each, [int(d) for d in n.shape]) for each, n in zip(sides.found, smaller.before, strict=True)
        )
    except UNTYPED:
        return None
    return Sides(smaller.before, smaller.after, inputs, found)


def _first(array: Any, shape: Sequence[int]) -> Any:
    """The first elements along each axis."""
    if len(shape) != np.ndim(array) or any(n > m for n, m in zip(shape, np.shape(array), strict=True)):
        raise ValueError(f"{shape} of {np.shape(array)}")
    return np.ascontiguousarray(array[tuple(slice(n) for n in shape)])


def _named(node: Node) -> Iterator[str]:
    """The sizes that a leaf or an attribute has."""
    dims = node.shape if node.op in ("input", "weight") and isinstance(node.type, Tensor) else ()
    for value in (*dims, *(each for _, each in node.attrs)):
        for part in value if isinstance(value, tuple) else (value,):
            yield from symbols(part) if isinstance(part, Symbolic) else ()


def _leaves(terms: Sequence[Node]) -> tuple[Node, ...]:
    return tuple(n for n in topological(terms) if n.op in ("input", "weight") and isinstance(n.type, Tensor))
