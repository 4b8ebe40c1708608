"""A concrete typing with its sizes replaced by symbols wherever the terms still have types, so that
a proof covers every size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from taso_mirage.errors import IllTyped, Undecidable, Unsupported
from taso_mirage.ir.dims import Dim, Symbolic, evaluate, symbol, symbols
from taso_mirage.ir.terms import ABSENT, LEAVES, Node, Tensor, topological
from taso_mirage.operators.ops import get, traits

ILLEGAL = (IllTyped, Undecidable, Unsupported, LookupError, TypeError, ValueError, ArithmeticError)
_Place = tuple[Node, int]
"""A leaf and one of its axes."""
TRIES = 200
SQUARE = "blocksize"
"""The attribute that is the side of a square of channels."""
PROBE = 20
"""The smallest size that represents a symbol, larger than the numbers of a typing."""


def lift(
    lhs: Sequence[Node], rhs: Sequence[Node], apart: bool = True, finest: bool = False
) -> tuple[tuple[Node, ...], tuple[Node, ...]] | None:
    """The two sides over leaves whose dims are symbols where these have a type; equal sizes become
    one symbol where they can.

    A size that attributes fix (groups, pads, kernels that must be numbers) stays a number. With
    `apart`, equal sizes that cannot vary together may vary alone; a guard on them may then fail.
    With `finest`, equal sizes vary alone wherever the terms have a type. None if no dim can be a
    symbol.
    """
    outputs = (*lhs, *rhs)
    order = topological(outputs)
    leaves = [n for n in order if n.op in LEAVES and isinstance(n.type, Tensor)]
    places = [(n, i) for n in leaves for i, d in enumerate(n.shape) if isinstance(d, int) and d > 1]
    search = _Search(outputs, order)
    for value in sorted({_size(p) for p in places}, reverse=True):
        search.widen([p for p in places if _size(p) == value], value, apart, finest)
    if not search.chosen or search.built is None:
        return None
    return search.built[: len(lhs)], search.built[len(lhs) :]


def _size(place: _Place) -> int:
    return int(place[0].shape[place[1]])


class _Search:
    """Dims chosen so far; `widen` adds those that still have a type."""

    def __init__(self, outputs: tuple[Node, ...], order: list[Node]) -> None:
        self.outputs, self.order = outputs, order
        self.chosen: dict[_Place, Dim] = {}
        self.built: tuple[Node, ...] | None = None
        self.tries = TRIES
        self.count = 0
        self.factors = _factors(order)
        self.known: dict[tuple[Node, tuple[Node, ...]], Node | None] = {}
        """Terms over new operands that were typed before; None where they have no type."""

    def widen(self, places: list[_Place], value: int, apart: bool, finest: bool) -> None:
        """All places of one size at once (not if `finest`), else the smallest sets of them that can
        vary alone."""
        if not (finest and len(places) > 1) and (self._try(places, value) or not apart):
            return
        left = list(places)
        for width in (1, 2, 3):
            for some in combinations(left, width):
                if self.tries <= 0:
                    return
                if width < len(places) and all(p in left for p in some) and self._try(list(some), value):
                    left = [p for p in left if p not in some]
        if finest and left:
            self._try(left, value)

    def _try(self, places: list[_Place], value: int) -> bool:
        for dim in self._dims(value):
            if self.tries <= 0:
                return False
            self.tries -= 1
            trial = {**self.chosen, **dict.fromkeys(places, dim)}
            built = self._rebuilt(trial)
            if built is not None:
                self.chosen, self.built = trial, built
                self.count += 1
                return True
        return False

    def _rebuilt(self, dims: Mapping[_Place, Dim]) -> tuple[Node, ...] | None:
        """The terms over the new leaves, if each has the type that the old one had up to symbols;
        both sides' types equal."""
        done: dict[Node, Node] = {}
        for node in self.order:
            term = self._term(node, done, dims)
            if term is None:
                return None
            done[node] = term
        built = tuple(done[o] for o in self.outputs)
        half = len(built) // 2
        same = all(a.type == b.type for a, b in zip(built[:half], built[half:], strict=True))
        return built if same and _legal_elsewhere(built) else None

    def _term(self, node: Node, done: Mapping[Node, Node], dims: Mapping[_Place, Dim]) -> Node | None:
        if node.op in LEAVES:
            shape = tuple(dims.get((node, i), d) for i, d in enumerate(node.shape))
            return Node(node.op, (), node.attrs, Tensor(node.dtype, shape))
        args = tuple([done[a] for a in node.args])
        if traits(node).resize is not None:  # also of a constant: its attributes may hold sizes
            return _typed(node, args, dims)
        if args == node.args:
            return node
        key = (node, args)
        if key not in self.known:
            self.known[key] = _typed(node, args, dims)
        return self.known[key]

    def _dims(self, value: int) -> Iterator[Dim]:
        """A symbol; where a reshape cuts this size, a product of two, or of a number and a
        symbol."""
        one, two = symbol(f"lifted.d{self.count}"), symbol(f"lifted.e{self.count}")
        yield one
        inner = [f for f in self.factors if value % f == 0 and f not in (1, value)]
        if inner:
            yield one * two
        for f in inner:
            yield one * f


def _factors(order: Sequence[Node]) -> list[int]:
    """The numbers in attributes that could divide a size: heads, groups, dims of a reshape."""
    found: set[int] = set()
    for node in order:
        for key, value in node.attrs if node.op not in (*LEAVES, "constant") else ():
            parts = [v for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, int) and v > 1]
            found |= {*parts, *(v * v for v in parts if key == SQUARE)}
    return sorted(found)


def rebound(outputs: Sequence[Node], dim: Callable[[Dim], Dim]) -> tuple[Node, ...]:
    """The terms with every symbolic dim of leaves and attributes replaced.

    Raises the errors of typing.
    """
    done: dict[Node, Node] = {}
    for node in topological(outputs):
        if node.op in LEAVES:
            shape = node.shape if isinstance(node.type, Tensor) and node.type.shape is not None else ()
            changed = tuple(map(dim, shape))
            done[node] = node if changed == shape else Node(node.op, (), node.attrs, Tensor(node.dtype, changed))
        elif node is ABSENT or node.op == "constant":
            done[node] = node
        else:
            args, attrs = tuple(done[a] for a in node.args), {k: _bound(v, dim) for k, v in node.attrs}
            same = args == node.args and attrs == dict(node.attrs)  # also of one that is no operator
            done[node] = node if same else get(node.op).term(*args, **attrs)
    return tuple(done[o] for o in outputs)


def _bound(value: Any, dim: Callable[[Dim], Dim]) -> Any:
    if isinstance(value, Symbolic):
        return dim(value)
    return tuple(_bound(v, dim) for v in value) if isinstance(value, tuple) else value


def _legal_elsewhere(outputs: Sequence[Node]) -> bool:
    """Whether the terms have a type at other sizes too: a symbol broadcasts against any number, a
    size does not."""
    order = topological(outputs)
    found = sorted({s for n in order if n.op in LEAVES for d in n.shape for s in symbols(d)})
    sizes = {name: 2 * PROBE + 6 * k + 1 for k, name in enumerate(found)}
    try:
        rebound(outputs, lambda dim: evaluate(dim, sizes))
    except ILLEGAL:
        return False
    return True


def _typed(node: Node, args: tuple[Node, ...], dims: Mapping[_Place, Dim]) -> Node | None:
    """The term over other operands, its attributes that hold sizes with them; None where it has no
    type."""
    old, new = ([a.shape if isinstance(a.type, Tensor) else () for a in some] for some in (node.args, args))
    resize = traits(node).resize
    try:
        attrs = dict(node.attrs)
        if resize is not None:
            attrs |= resize(attrs, old, new, {_size(p): d for p, d in dims.items()})
        return get(node.op).term(*args, **attrs)
    except ILLEGAL:
        return None
