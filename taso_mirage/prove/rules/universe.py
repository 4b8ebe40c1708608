"""The dims, attributes and constants that typings of a rule use: the stated typing and the numbers
around it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, islice, permutations, product
from math import prod
from typing import Any

import numpy as np

from taso_mirage.ir.dims import Symbolic, evaluate, fixed, symbols
from taso_mirage.ir.terms import Node, Tensor, constant, integer_limits, is_float, numpy_dtype, variable, weight
from taso_mirage.operators.expressions import asks_for_number, asks_for_weight
from taso_mirage.operators.ops import get
from taso_mirage.prove.rules.attributes import examples_of
from taso_mirage.prove.rules.edges import defined_numbers, stated_numbers, stated_sizes
from taso_mirage.prove.rules.fuzz import ILLEGAL, Typing
from taso_mirage.prove.rules.hostile import Names, RuleStatement, legal
from taso_mirage.rewriting.equation import instantiate

ELEMENTS = 1024
"""The largest number of elements of an operand that is tried."""
LARGE = 4096
"""Elements of one operand where a number that the rule states is a size."""
GUARD_TRIES = 400
"""The number of numbers that are tried for the constants that a guard reads."""
FIRST_SIZES = (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)


def _letters(value: Any) -> set[str]:
    """The names of sizes in a dim or an attribute."""
    if isinstance(value, tuple):
        return {name for each in value for name in _letters(each)}
    return set(symbols(value)) if isinstance(value, Symbolic) else set()


@dataclass(frozen=True)
class Universe:
    """The stated typing of a rule, and other values of its dims and attributes."""

    statement: RuleStatement
    seed: int

    @cached_property
    def given(self) -> tuple[tuple[str, str, tuple[Any, ...]], ...]:
        """Name, dtype and dims of each operand; a number among the dims is a slot."""
        stated = [(n, t) for n, t in self.statement.given if isinstance(t, Tensor) and t.shape is not None]
        return tuple((n, t.dtype, tuple(_slot(n, i, d) for i, d in enumerate(t.shape or ()))) for n, t in stated)

    @cached_property
    def stated(self) -> Mapping[Any, int]:
        """The letters and slots, each with its size at the typing that comes first."""
        slots = dict.fromkeys(d for _, _, dims in self.given for d in dims if isinstance(d, tuple))
        dims = [d for _, _, shape in self.given for d in shape if not isinstance(d, tuple)]
        letters = sorted(_letters((*dims, *(value for _, value in self.statement.attributes))))
        free = (n for n in FIRST_SIZES if n not in {size for _, size in slots})
        return {slot: slot[1] for slot in slots} | dict(zip(letters, free, strict=False))

    @property
    def sizes(self) -> tuple[int, ...]:
        return stated_sizes(self.statement.equation)

    @cached_property
    def numbers(self) -> tuple[float, ...]:
        """The numbers that replace a number of the rule: at, next to and far from stated and
        defined ones."""
        stated = dict.fromkeys(n for e in stated_numbers(self.statement.equation) for n in (e, -e))
        near = [e + d for e in stated for d in (0.0, 0.5, -0.5, 1.0, -1.0)]
        far = [f for e in stated for f in (2 * e, 3 * e + 1, e / 2, 1 / e if e else 0.0)]
        usual = (0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 1e-3, 10.0, -10.0, 1000.0)
        defined = defined_numbers(self.statement.equation)
        return tuple(dict.fromkeys(float(np.float32(n)) for n in (*near, *usual, *far, *defined)))

    def at(self, sizes: Mapping[Any, int]) -> Names:
        """The names of the stated typing at other sizes."""
        return self._at(sizes, self.read)

    def _at(self, sizes: Mapping[Any, int], read: Mapping[str, float]) -> Names:
        letters = {k: v for k, v in sizes.items() if isinstance(k, str)}
        names: Names = {}
        for name, dtype, dims in self.given:
            shape = tuple(sizes[d] if isinstance(d, tuple) else evaluate(d, letters) for d in dims)
            names[name] = self.leaf(name, dtype, shape, read.get(name, 2.0))
        return names | {n: fixed(v, letters) for n, v in self.statement.attributes}

    def leaf(self, name: str, dtype: str, shape: tuple[int, ...], number: float | None = None) -> Node:
        if asks_for_number(self.guard, name):
            value = self.read.get(name, 2.0) if number is None else number
            return constant(np.full(shape, value).astype(numpy_dtype(dtype)))
        type = Tensor(dtype, shape)
        return weight(name, type) if asks_for_weight(self.guard, name) else variable(name, type)

    @property
    def guard(self) -> str:
        where = self.statement.equation.where
        return where.source if where is not None else ""

    @cached_property
    def read(self) -> Mapping[str, float]:
        """Numbers for the constants that the guard reads, under which it holds at the stated
        typing."""
        asked = [(n, dtype) for n, dtype, _ in self.given if asks_for_number(self.guard, n)]
        if not asked or self.statement.equation.where is None:
            return {}
        with suppress(*ILLEGAL):
            names = self._at(self.stated, {n: 2.0 for n, _ in asked})
            for chosen in islice(product(self.numbers, repeat=len(asked)), GUARD_TRIES):
                found = dict(zip((n for n, _ in asked), chosen, strict=True))
                names |= {n: self.leaf(n, dtype, tuple(names[n].shape), found[n]) for n, dtype in asked}
                if self.statement.equation.where(names):
                    return found
        return {}

    @cached_property
    def first(self) -> Names:
        return self.at(self.stated)

    @cached_property
    def level(self) -> Names:
        """All sizes alike: then axes may be mistaken for each other."""
        size = max(self.joined & {3, 4}, default=2)
        return self.at({k: v if isinstance(k, tuple) and v == 1 else size for k, v in self.stated.items()})

    def typed(self, names: Names) -> Typing | None:
        """The two sides under names, where the guard holds and both have a type."""
        equation = self.statement.equation
        operands = [v for v in names.values() if isinstance(v, Node) and isinstance(v.type, Tensor)]
        if any(prod(v.shape) > LARGE or (prod(v.shape) > ELEMENTS and not self.sizes) for v in operands):
            return None
        like = next((v.dtype for v in operands if v.dtype != "bool"), "float32")
        try:
            if equation.where is not None and not equation.where(names):
                return None
            lhs, rhs = instantiate(equation.lhs, names, like), instantiate(equation.rhs, names, like)
            typing = Typing(lhs, rhs, names)
            same = all(a.type == b.type for a, b in zip(lhs, rhs, strict=True))
            return typing if same and legal(typing) else None
        except ILLEGAL:
            return None

    def values(self, name: str, value: Any) -> Iterator[Any]:
        """Other values of an attribute or a constant, including all examples of it at the rule's
        operators."""
        terms = [(n.op, key) for n in self.statement.equation.lhs_terms for key, v in n.attrs if str(v) == name]
        examples = [e for op, key in terms if key in get(op).attributes for e in examples_of(op, key)]
        yield from dict.fromkeys((*values_of(self, value), *examples))

    @cached_property
    def domains(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """The small shapes of each operand, those of its stated rank first."""
        return tuple(tuple(self._small(dims)) for _, _, dims in self.given)

    def _small(self, dims: Sequence[Any]) -> Iterator[tuple[int, ...]]:
        own = sorted({*(d[1] for d in dims if isinstance(d, tuple)), *self.joined} & {3, 4})
        rank = len(dims)
        for r in sorted(range(min(max(rank, 1) + 1, 5) + 1), key=lambda r: (abs(r - rank), r)):
            yield from product((2, 1, *(own if r <= 3 else ())), repeat=r)

    @property
    def joined(self) -> set[int]:
        """How many terms are joined: so long are vectors of one element then."""
        equation = self.statement.equation
        return {len(n.args) for n in (*equation.lhs_terms, *equation.rhs_terms) if n.args and get(n.op).variadic}

    @property
    def combinations(self) -> int:
        return prod(len(d) for d in self.domains)


def _slot(name: str, axis: int, dim: Any) -> Any:
    """A number above 1 is one slot wherever it stands; each 1 is a slot of its own."""
    if not isinstance(dim, int):
        return dim
    return ("", dim) if dim > 1 else (f"{name}@{axis}", dim)


def values_of(universe: Universe, value: Any) -> Iterator[Any]:
    if isinstance(value, Node):
        if value.op == "constant":
            yield from _constants(universe, value)
    elif isinstance(value, bool | str) or value is None:
        return
    elif isinstance(value, int):
        yield from dict.fromkeys((0, 1, -1, 2, -2, 3, -3, -value, *universe.sizes, *(-s for s in universe.sizes)))
    elif isinstance(value, float):
        yield from dict.fromkeys((*universe.numbers, -value, 2 * value))
    elif is_integers(value):
        yield from dict.fromkeys(_tuples(universe, value))
    elif isinstance(value, tuple):
        for i, part in enumerate(value):
            if isinstance(part, tuple) and len(part) == 2 and isinstance(part[0], str):
                for other in values_of(universe, part[1]):
                    yield (*value[:i], (part[0], other), *value[i + 1 :])


def _tuples(universe: Universe, value: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if sorted(value) == list(range(len(value))):
        yield from islice(permutations(value), 24)
    for one, other in permutations(range(len(value)), 2):  # one end grows and another shrinks
        yield tuple(v + (i == one) - (i == other) for i, v in enumerate(value))
        yield tuple((i == one) - (i == other) for i in range(len(value)))
    for v in (0, 1, 2, 3, *universe.sizes):
        yield (v,) * len(value)
    for i, v in product(range(len(value)), (0, 1, 2, 3, -1)):
        yield (*value[:i], v, *value[i + 1 :])
    for i, step in product(range(len(value)), (1, -1)):
        yield (*value[:i], value[i] + step, *value[i + 1 :])
    if len(set(value)) > 1:
        yield from islice(permutations(value), 24)
    for length in (1, 2, 3):
        yield from combinations(range(4), length)


def _constants(universe: Universe, node: Node) -> Iterator[Node]:
    if is_float(node.dtype):
        numbers: Iterable[float] = universe.numbers
    else:
        numbers = (*integer_limits(node.dtype), 0, 1, 2, 3, *universe.sizes) if node.dtype != "bool" else (0, 1)
    for number in dict.fromkeys(numbers):
        with np.errstate(over="ignore", invalid="ignore"):
            try:
                yield constant(np.full(node.shape, number).astype(numpy_dtype(node.dtype)))
            except OverflowError:
                continue


def is_integers(value: Any) -> bool:
    """Whether a value is a tuple of integers."""
    return (
        isinstance(value, tuple) and bool(value) and all(isinstance(v, int) and not isinstance(v, bool) for v in value)
    )
