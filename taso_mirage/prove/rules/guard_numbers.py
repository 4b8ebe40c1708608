"""Guards for facts that only the typing of a rule states: numbers among its dims, and attributes
that only one side has.

Untyped rules apply wherever both sides have the same type. The types may agree by accident (a
kernel of 2 for a rule found at 1, an output of size 1). Therefore the guard fixes such numbers,
unless the rule is proved with letters in their place. A large number represents a count (of
channels, of groups), so dims equal to it must be equal.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.dims import symbol
from taso_mirage.ir.terms import Graph, Tensor
from taso_mirage.operators.expressions import Expr, conjuncts, names_in_expression
from taso_mirage.prove.rules.guard_equalities import equality_guards
from taso_mirage.prove.rules.guard_ranks import rank_guards
from taso_mirage.prove.symbolic import Proved, prove_symbolic
from taso_mirage.rewriting.library import Rule
from taso_mirage.verdicts import Failure


def number_guards(rule: Rule, seed: int = 0) -> Rule | Failure:
    """The rule with every such number in its guard, or in letters; with the ties and ranks for
    which it was proved and tested."""
    anchors = _anchors(rule)
    open_names = [f"{n} == {_relative(v, anchors)}" for n, v in _one_sided(rule)]
    freed = _in_letters(rule)
    if freed is None:
        open_names += [
            f"dim({name}, {axis}) == {_relative(size, anchors)}"
            for name, type in rule.given
            for axis, size in enumerate(type.shape or ())
            if isinstance(size, int) and anchors.get(size) != f"dim({name}, {axis})"
        ]
    rule = _guarded(freed or rule, open_names)
    rule = _guarded(rule, [f"{p} == {q}" for p, q in equality_guards(rule)])
    rule = _guarded(rule, _bounded_ranks(rule))
    condition = rank_guards(rule, seed)
    if isinstance(condition, Failure):
        return condition
    return rule if condition is None else _guarded(rule, [condition])


def _bounded_ranks(rule: Rule) -> list[str]:
    """The ranks that a guard bounds an axis by: `i < rank(x) - 2`, inferred from failures at rank
    4, may say `i < 2` in truth, and failures at other ranks are rare among the typings."""
    bounding = {name for part in conjuncts(_guard(rule)) for name in _bounding(part)}
    return [f"rank({name}) == {type.rank}" for name, type in rule.given if name in bounding]


def _bounding(condition: ast.expr) -> Iterator[str]:
    """The variables whose rank, or a number less or more than it, is above something in a
    condition."""
    for node in ast.walk(condition):
        if isinstance(node, ast.Compare):
            for order, bound in zip(node.ops, node.comparators, strict=True):
                while isinstance(bound, ast.BinOp):
                    bound = bound.left
                match order, bound:
                    case ast.Lt(), ast.Call(func=ast.Name(id="rank"), args=[ast.Name(id=name)]):
                        yield name


COUNT = 4
"""Numbers from here on stand for counts: the generaliser takes them for the numbers of groups,
which must be numbers."""


def _anchors(rule: Rule) -> dict[int, str]:
    """For every count among the dims the first place that has it."""
    found: dict[int, str] = {}
    for name, type in rule.given:
        for axis, size in enumerate(type.shape or ()):
            if isinstance(size, int) and size >= COUNT:
                found.setdefault(size, f"dim({name}, {axis})")
    return found


def _relative(value: Any, anchors: dict[int, str]) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(_relative(v, anchors) for v in value)}{',' if len(value) == 1 else ''})"
    return anchors.get(value, repr(value)) if type(value) is int else repr(value)


def _guarded(rule: Rule, conditions: list[str]) -> Rule:
    """The rule with those of some conditions that its guard does not have yet."""
    guard = _guard(rule)
    parts = conjuncts(guard)
    known = {ast.unparse(part) for part in parts}
    added = dict.fromkeys(ast.unparse(part) for c in conditions for part in conjuncts(c))
    new = [c for c in added if c not in known]
    if not new:
        return rule
    alternatives = len(parts) == 1 and isinstance(parts[0], ast.BoolOp)
    stated = [f"({guard})" if alternatives else guard] if guard else []
    return replace(rule, equation=replace(rule.equation, where=Expr(" and ".join([*stated, *new]))))


def _guard(rule: Rule) -> str:
    return rule.equation.where.source if rule.equation.where is not None else ""


def _one_sided(rule: Rule) -> Iterator[tuple[str, Any]]:
    """Attributes that the right-hand side does not mention, with their values of plain numbers."""
    there = _mentioned(rule.equation.rhs)
    for name, value in rule.attributes:
        if name not in there and _plain(value):
            yield name, value


def _mentioned(side: Graph) -> set[str]:
    found: set[str] = set()
    for node in side:
        for _, value in node.attrs:
            if isinstance(value, Expr):
                found |= names_in_expression(value.source)
    return found


def _plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return bool(value) and all(_plain(v) and not isinstance(v, tuple) for v in value)
    return isinstance(value, int | float | str)


def _in_letters(rule: Rule) -> Rule | None:
    """The rule with a letter for each number in a dim (one letter for a number at an axis), if it
    is proved so."""
    if not any(isinstance(d, int) for _, t in rule.given for d in t.shape or ()):
        return rule
    given = tuple((name, Tensor(type.dtype, _lettered(type))) for name, type in rule.given)
    free = replace(rule, given=given)
    with suppress(TasoMirageError, LookupError, TypeError, ValueError, ArithmeticError):
        if isinstance(prove_symbolic(*free.instance()), Proved):
            return free
    return None


def _lettered(type: Tensor) -> tuple[Any, ...]:
    return tuple(symbol(f"k{axis}_{d}") if isinstance(d, int) else d for axis, d in enumerate(type.shape or ()))
