"""Optional operands of laws: one text that stands for two equations, with an operand and without
it.

A star marks the operand: `conv(neg(x), w, *b, **a)`. `law_variants` expands the text when the law
is read, and each variant is an equation of its own, with its own proof. An optional operand adds
something (a bias, a mask), so leaving it out is adding nothing, and the variant without it follows:

- An operator that may do without the operand is called without it (`None` in the middle of a call).
- A sum is its other operand: `add(y, *m)` is `y`.
- Any other term that has the operand goes with it: so `mul(*b, c)`, where a call has that as its
  bias.
- A condition of the guard that names the operand is left out, and so is its typing.

All operands with a star are there, or none of them is. These rules only write the variant: whether
it holds is for the verifier to say.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from taso_mirage.errors import SyntaxProblem
from taso_mirage.operators.ops import Op, get


@dataclass(frozen=True, slots=True)
class LawVariant:
    """The text of one equation, and its typing in letters."""

    text: str
    typing: str


def law_parts(text: str) -> tuple[ast.expr, ast.expr, str]:
    """The two sides of `lhs == rhs where guard`, and the guard ("" if there is none)."""
    body, _, guard = " ".join(text.split()).partition(" where ")
    try:
        tree = ast.parse(body.strip(), mode="eval").body
    except SyntaxError as error:
        raise SyntaxProblem(f"{text!r}: {error.msg}") from None
    match tree:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            return left, right, guard.strip()
    raise SyntaxProblem(f"{text!r} is no equation; write lhs == rhs")


def law_variants(text: str, typing: str = "") -> tuple[LawVariant, ...]:
    """The equations of a law: without the operands that have a star, then with them.

    A law without a star is one.
    """
    left, right, guard = law_parts(text)
    leaves = [*_leaves(left), *_leaves(right)]
    names = frozenset(_starred_name(leaf) for leaf in leaves if isinstance(leaf, ast.Starred))
    if not names:
        return (LawVariant(text, typing),)
    for leaf in leaves:
        if isinstance(leaf, ast.Name) and leaf.id in names:
            raise SyntaxProblem(f"{text!r}: {leaf.id} has a star in one place and none in another")
    with_all = _Unstarred().visit(left), _Unstarred().visit(right), guard
    without = *_sides_without(text, names), _remaining_guard(guard, names)
    return LawVariant(_shown(*without), _remaining_typing(typing, names)), LawVariant(_shown(*with_all), typing)


def _sides_without(text: str, names: frozenset[str]) -> tuple[ast.expr, ast.expr]:
    """The two sides of a law without its optional operands. Raises SyntaxProblem where they are no
    equation."""
    first, second, _ = law_parts(text)
    try:
        left, right = _without(first), _without(second)
    except KeyError as error:
        raise SyntaxProblem(f"{text!r}: {error.args[0]}") from None
    if left is None or right is None or (_names(left) | _names(right)) & names:
        raise SyntaxProblem(f"{text!r}: a side is no term without {', '.join(sorted(names))}; write two laws")
    return left, right


class _Unstarred(ast.NodeTransformer):
    """A side with its operands as plain variables; attributes stay as they are."""

    def visit_Starred(self, node: ast.Starred) -> ast.expr:
        return node.value

    def visit_keyword(self, node: ast.keyword) -> ast.keyword:
        return node


def _leaves(tree: ast.expr) -> Iterator[ast.expr]:
    """The operands at the leaves of a side."""
    match tree:
        case ast.Tuple(elts=parts) | ast.Call(args=parts):
            for part in parts:
                yield from _leaves(part)
        case _:
            yield tree


def _starred_name(leaf: ast.Starred) -> str:
    if not isinstance(leaf.value, ast.Name):
        raise SyntaxProblem(f"{ast.unparse(leaf)}: a star marks a variable")
    return leaf.value.id


def _names(tree: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _without(tree: ast.expr) -> ast.expr | None:
    """A term without the operands that have a star; None where it goes with them."""
    match tree:
        case ast.Starred():
            return None
        case ast.Tuple(elts=elements):
            kept = [part for part in map(_without, elements) if part is not None]
            return ast.Tuple(kept, ast.Load()) if len(kept) == len(elements) else None
        case ast.Call(func=ast.Name(id=name) as func, args=args, keywords=keywords):
            operands = [_without(arg) for arg in args]
            if None not in operands:
                return ast.Call(func, [each for each in operands if each is not None], keywords)
            op = get(name)
            if op.traits.sums:
                return next((each for each in operands if each is not None), None)
            if not {i for i, each in enumerate(operands) if each is None} <= optional_places(op):
                return None
            return ast.Call(func, _called(operands), keywords)
    return tree


@cache
def optional_places(op: Op) -> frozenset[int]:
    """The places of the operands that an operator may do without: the signature of its definition
    has None there."""
    parameters = list(inspect.signature(op.body).parameters.values())[1:]
    return frozenset(i for i, p in enumerate(parameters) if p.kind is not p.KEYWORD_ONLY and p.default is None)


def _called(operands: list[ast.expr | None]) -> list[ast.expr]:
    """The operands of a call: `None` for one that is left out before others."""
    found = [ast.Constant(None) if each is None else each for each in operands]
    while found and isinstance(found[-1], ast.Constant) and found[-1].value is None:
        found.pop()
    return found


def _remaining_guard(guard: str, names: frozenset[str]) -> str:
    """The conditions that name none of the operands."""
    if not guard:
        return ""
    tree = ast.parse(guard, mode="eval").body
    parts = tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]
    kept = [part for part in parts if not _names(part) & names]
    if len(kept) == len(parts):
        return guard
    return " and ".join(
        f"({ast.unparse(p)})" if isinstance(p, ast.BoolOp | ast.IfExp) else ast.unparse(p) for p in kept
    )


def _remaining_typing(typing: str, names: frozenset[str]) -> str:
    """`x: (n, c), b: (c) | g: 1` without the types of the operands."""
    given, bar, attributes = typing.partition("|")
    tree = ast.parse(f"{{{given}}}", mode="eval").body
    if not isinstance(tree, ast.Dict):
        return typing
    pairs = [(ast.unparse(k), ast.unparse(v)) for k, v in zip(tree.keys, tree.values, strict=True) if k is not None]
    return ", ".join(f"{k}: {v}" for k, v in pairs if k not in names) + (f" {bar}{attributes}" if bar else "")


def _shown(left: ast.expr, right: ast.expr, guard: str) -> str:
    return f"{ast.unparse(left)} == {ast.unparse(right)}" + (f" where {guard}" if guard else "")
