"""Random typings of a rule around one that is given: sizes of its letters, mutated shapes, and
other attribute values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

import numpy as np

from taso_mirage.ir.dims import Dim, Symbolic, dim_product, evaluate, fixed, symbols
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, integer_limits, is_float, numpy_dtype, variable, weight
from taso_mirage.operators.expressions import Expr, asked_number, asks_for_number, asks_for_weight
from taso_mirage.operators.ops import traits
from taso_mirage.prove.rules.attributes import draw_attributes
from taso_mirage.rewriting.derived_traits import multiplies
from taso_mirage.rewriting.equation import Equation, instantiate

Sizes = dict[str, int]
_Shapes = dict[str, list[int]]
VariableTypes = Sequence[tuple[str, Tensor]]

ELEMENTS = 256
"""The largest number of elements of a drawn variable; larger ones would show nothing more."""
SMALL = (1, 2, 2, 3, 3, 4, 5, 6)
FEW = (1, 2, 2, 3)
"""Sizes that often coincide, so that a wrong rule has a type on both sides."""
LARGE = tuple(range(1, 25))
NUMBERS = (0.5, 2.0, 3.0, -1.0, 0.125)


class RandomTypings:
    """Random names (terms of the variables, values of the attribute names) for an equation with one
    typing in letters."""

    def __init__(self, equation: Equation, given: VariableTypes, attributes: Iterable[tuple[str, Any]]) -> None:
        self.guard = equation.where.source if equation.where else ""
        self.given = [(n, t.dtype, tuple(_lettered(d, i) for i, d in enumerate(t.shape or ()))) for n, t in given]
        self.attributes = dict(attributes)
        self.sized = {n: v for n, v in self.attributes.items() if _holds_symbol(v)}
        self.ranks = {n: len(shape) for n, _, shape in self.given}
        self.free = [n for n in equation.lhs_terms if any(isinstance(v, Expr) and v.name for _, v in n.attrs)]
        self.kernels = _kernels(equation)
        self.windowed = any(traits(n).windowed for n in equation.lhs_terms)
        found: dict[str, None] = {}
        for _, _, shape in self.given:
            for dim in shape:
                found |= dict.fromkeys(sorted(symbols(dim)) if not isinstance(dim, tuple) else [_key(dim)])
        self.letters = tuple(found)
        self.channels = {s for n, _, shape in self.given if n in self.kernels for d in shape[:2] for s in _symbols(d)}

    def draw(self, rng: Random, wide: bool = False) -> dict[str, Any] | None:
        """Names of one typing, which need not be legal; None where it is too large.

        Raises the errors of typing.

        `wide`: larger sizes, where the small ones are used up.
        """
        sizes, factor = self._sizes(rng, LARGE if wide else SMALL if rng.random() < 0.5 else FEW)
        shapes = {n: [_at(d, sizes) for d in shape] for n, _, shape in self.given}
        if factor > 1:
            self._regroup(shapes, factor)
        alike = len(set(sizes.values())) == 1
        if rng.random() < 0.3:
            rng.choice((_drop_one, _lead) if alike else (_lead,))(shapes, rng)
        while rng.random() < 0.4:
            rng.choice(MUTATIONS)(shapes, rng)
        if rng.random() < 0.12:
            _level(shapes, rng)
        if self.windowed and rng.random() < 0.08:
            _respatial(shapes, rng.choice((-1, 1)))
        names: dict[str, Any] = {}
        for name, dtype, _ in self.given:
            shape = tuple(shapes[name])
            if int(dim_product(shape)) > ELEMENTS:
                return None
            names[name] = self._leaf(name, Tensor(dtype, shape), rng)
        values = {**self.attributes, **{n: fixed(v, sizes) for n, v in self.sized.items()}}
        for node in self.free:
            operands = instantiate(Graph((), node.args), names)
            draw_attributes(node, operands, names, values, rng)
        return names

    def _sizes(self, rng: Random, choices: Sequence[int]) -> tuple[Sizes, int]:
        """Sizes of the letters, sometimes all alike; letters of channels are multiples of the
        factor that groups need."""
        factor = rng.choice((1, 1, 1, 2, 2, 3)) if self.channels else 1
        alike = rng.choice(choices) if rng.random() < 0.2 else 0
        sizes: Sizes = {}
        for letter in self.letters:
            value, at, _ = letter.partition("@")
            if at:  # a number of the given typing: kept, or another one wherever it stands on this axis
                sizes[letter] = int(value) if rng.random() < 0.5 else rng.randint(1, 4)
            elif letter in self.channels:
                sizes[letter] = factor * (alike or rng.choice((1, 1, 2, 3)))
            else:
                sizes[letter] = alike or rng.choice(choices)
        return sizes, factor

    def _regroup(self, shapes: _Shapes, factor: int) -> None:
        """Kernels that see a part of the channels, or several of them where they saw one."""
        for name in self.kernels:
            dim = shapes[name][1] if len(shapes[name]) > 1 else 1
            if dim % factor == 0:
                shapes[name][1] = dim // factor
            elif dim == 1:
                shapes[name][1] = factor

    def _leaf(self, name: str, type: Tensor, rng: Random) -> Node:
        if asks_for_number(self.guard, name):
            asked = asked_number(self.guard, name)
            number = _number(type.dtype, rng) if asked is None else asked
            return constant(np.full(type.shape or (), number).astype(numpy_dtype(type.dtype)))
        return weight(name, type) if asks_for_weight(self.guard, name) else variable(name, type)


def _number(dtype: str, rng: Random) -> float:
    """A random value for a constant; for an integer dtype also its least or its largest number."""
    return rng.choice(NUMBERS if is_float(dtype) else (*integer_limits(dtype), 0, 3))


def _lettered(dim: Dim, axis: int) -> Any:
    """A number above 1 is varied too, alike wherever it stands on that axis: the 3 of a 3x3
    kernel."""
    return (dim, axis) if isinstance(dim, int) and dim > 1 else dim


def _key(lettered: tuple[int, int]) -> str:
    return f"{lettered[0]}@{lettered[1]}"


def _symbols(dim: Any) -> set[str]:
    return set() if isinstance(dim, tuple) else symbols(dim)


def _holds_symbol(value: Any) -> bool:
    return any(map(_holds_symbol, value)) if isinstance(value, tuple) else isinstance(value, Symbolic)


def _at(dim: Any, sizes: Sizes) -> int:
    return sizes[_key(dim)] if isinstance(dim, tuple) else evaluate(dim, sizes)


def _kernels(equation: Equation) -> tuple[str, ...]:
    """The variables below the kernels of convolutions."""
    found: dict[str, None] = {}
    terms = [(n, traits(n)) for n in (*equation.lhs_terms, *equation.rhs_terms)]
    stack = [n.args[t.kernel] for n, t in terms if t.windowed and t.kernel is not None]
    while stack:
        node = stack.pop()
        if node.op == "input":
            found[node.attr("name")] = None
        elif not multiplies(node.op):
            stack += node.args
    return tuple(n.attr("name") for n in equation.lhs.inputs if n.attr("name") in found)


# ---------------------------------------------------------------- shapes


def _size(shapes: _Shapes, rng: Random) -> int:
    """A size, preferably an existing one: equal sizes give both sides of a wrong rule a type."""
    present = [n for shape in shapes.values() for n in shape]
    return rng.choice(present) if present and rng.random() < 0.6 else rng.choice(SMALL)


def _change(shapes: _Shapes, rng: Random) -> None:
    """Change one dim of one variable, which violates equalities that a guard must require."""
    shape = shapes[rng.choice(list(shapes))]
    if shape:
        shape[rng.randrange(len(shape))] = _size(shapes, rng)


def _thin(shapes: _Shapes, rng: Random) -> None:
    """Dims of 1: broadcasting."""
    shape = shapes[rng.choice(list(shapes))]
    share = rng.choice((0.4, 1.0))
    shape[:] = [1 if rng.random() < share else n for n in shape]


def _drop(shapes: _Shapes, rng: Random) -> None:
    """A lower rank, of one variable or of all of as high a one."""
    name = rng.choice(list(shapes))
    rank = len(shapes[name])
    count = rng.randint(1, 2)
    alike = rng.random() < 0.5
    for other, shape in shapes.items():
        if other == name or (alike and len(shape) == rank):
            del shape[:count]


def _drop_one(shapes: _Shapes, rng: Random) -> None:
    """A vector for a matrix: with all sizes alike, other axes meet."""
    shape = shapes[rng.choice(list(shapes))]
    del shape[:1]


def _lead(shapes: _Shapes, rng: Random) -> None:
    """Dims more in front, the same ones of some of the variables, or of all."""
    chosen = [n for n in shapes if rng.random() < 0.6] or list(shapes)
    sizes = [_size(shapes, rng) for _ in range(rng.choice((1, 1, 2)))]
    for name in chosen:
        shapes[name][:0] = sizes


def _trail(shapes: _Shapes, rng: Random) -> None:
    """A dim more at the end of all variables."""
    size = rng.choice((1, 2, 3))
    for shape in shapes.values():
        shape.append(size)


def _copy(shapes: _Shapes, rng: Random) -> None:
    """One variable shaped as another."""
    shapes[rng.choice(list(shapes))][:] = list(shapes[rng.choice(list(shapes))])


def _level(shapes: _Shapes, rng: Random) -> None:
    """Set all dims except those of 1 to one size, for all ranks, so that axes may be confused."""
    size = rng.choice((2, 2, 3))
    for shape in shapes.values():
        shape[:] = [1 if n == 1 else size for n in shape]


def _suffix(shapes: _Shapes, rng: Random) -> None:
    """One variable with the last dims of another, some of them 1: a shape that broadcasts."""
    name, other = rng.choice(list(shapes)), rng.choice(list(shapes))
    if name != other and shapes[other]:
        kept = shapes[other][-rng.randint(1, len(shapes[other])) :]
        shapes[name] = [1 if rng.random() < 0.3 else n for n in kept]


def _swap(shapes: _Shapes, rng: Random) -> None:
    shape = shapes[rng.choice(list(shapes))]
    rng.shuffle(shape)


MUTATIONS: tuple[Callable[[_Shapes, Random], None], ...] = (
    *(_change, _change, _thin, _thin, _drop, _lead, _trail, _copy, _swap, _suffix, _suffix),
)


def _respatial(shapes: _Shapes, step: int) -> None:
    """Images and kernels over one axis less or more."""
    for shape in shapes.values():
        if len(shape) >= 3 and step < 0:
            shape.pop()
        elif len(shape) >= 3 and len(shape) < 5:
            shape.append(2)
