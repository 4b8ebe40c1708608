"""The numbers at which a rule may change: those that its sides, its guard and its operators'
definitions state."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from types import CodeType
from typing import Any

from taso_mirage.ir.terms import ABSENT, Literal, Node
from taso_mirage.operators.expressions import Expr
from taso_mirage.operators.ops import get
from taso_mirage.rewriting.equation import Equation

FEW = 8
"""A constant of more elements states no numbers."""
LARGEST_SIZE = 64
"""The largest number that can be a size of a typing."""


@lru_cache(maxsize=1 << 12)
def stated_numbers(equation: Equation) -> tuple[float, ...]:
    """The finite numbers in the guard, in attributes and in constants of both sides."""
    found: dict[float, None] = {}
    guard = [equation.where] if equation.where is not None else []
    values = [v for side in (equation.lhs, equation.rhs) for n in side for _, v in n.attrs]
    for value in (*guard, *values):
        found |= dict.fromkeys(_numbers(value))
    return tuple(n for n in found if abs(n) < float("inf"))


@lru_cache(maxsize=1 << 12)
def defined_numbers(equation: Equation) -> tuple[float, ...]:
    """The numbers of the operators' definitions (the 1 at which a hard sigmoid is cut off), and the
    defaults of their attributes."""
    terms = (*equation.lhs_terms, *equation.rhs_terms)
    found = dict.fromkeys(number for n in terms for number in _of_operator(n))
    return tuple(found)


@lru_cache(maxsize=1 << 12)
def stated_sizes(equation: Equation) -> tuple[int, ...]:
    """The stated numbers that may be sizes, axes or ranks: from 2 to `LARGEST_SIZE`."""
    whole = {int(n) for n in stated_numbers(equation) if n == int(n)}
    return tuple(sorted(n for n in map(abs, whole) if 2 <= n <= LARGEST_SIZE))


@lru_cache(maxsize=1 << 12)
def reads_sizes(equation: Equation) -> bool:
    """Whether the guard or a computed attribute asks for sizes."""
    sources = [
        v.source for side in (equation.lhs, equation.rhs) for n in side for _, v in n.attrs if isinstance(v, Expr)
    ]
    sources += [equation.where.source] if equation.where is not None else []
    return any(call in s for s in sources for call in ("dim(", "shape(", "size("))


def _of_operator(node: Node) -> tuple[float, ...]:
    if not node.args or node is ABSENT or node.op == "item":
        return ()
    return _of_definition(node.op)


@cache
def _of_definition(name: str) -> tuple[float, ...]:
    op = get(name)
    code = getattr(op.body, "__code__", None)
    found = [*_constants(code)] if code is not None else []
    found += [d for _, d in op.attributes.values() if _is_number(d)]
    return tuple(dict.fromkeys(float(n) for n in found))


def _constants(code: CodeType) -> Iterator[float]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _constants(each)
        elif _is_number(each):
            yield each


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, Expr):
        tree = ast.walk(ast.parse(value.source, mode="eval"))
        constants = [n.value for n in tree if isinstance(n, ast.Constant)]
        yield from (float(n) for n in constants if isinstance(n, int | float) and _is_number(n))
    elif isinstance(value, Literal):
        array = value.numpy()
        if array.size <= FEW and array.dtype.kind in "fiu":
            yield from map(float, array.flat)
    elif isinstance(value, tuple):
        yield from _all(value)
    elif _is_number(value):
        yield float(value)


def _all(values: Iterable[Any]) -> Iterator[float]:
    for value in values:
        yield from _numbers(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
