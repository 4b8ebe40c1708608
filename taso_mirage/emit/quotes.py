"""Quoted programs: texts of functions that are read as statements.

A function that is nearly the same for all sizes is easiest to read as its generated text. Parts in
braces are computed when the text is read: an expression; statements, on a line of their own; or, as
a condition, whether statements are included. `{*names}` are several arguments; so are a parameter
or a target with a star. Comments, parentheses, and the ends of lines within a call are kept.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from textwrap import indent
from typing import Any

from taso_mirage.emit.statements import (
    Expression,
    For,
    If,
    Let,
    Parameter,
    ProgramFunction,
    Return,
    Roles,
    Scope,
    Statement,
    expression,
    group,
    on_new_line,
)

LANGUAGES = ("tl", "gl")
"""The name of the language itself in a quoted text."""
OPERATORS: dict[type[ast.AST], str] = {
    **{ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%", ast.BitAnd: "&", ast.And: "and"},
    **{ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="},
}
"""The operators of generated programs."""
COMPUTED: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul},
    **{ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod},
}
"""The arithmetic that braces may have."""


def quoted(text: str, **known: Any) -> list[ProgramFunction]:
    """The functions of a text, with these values for its braces."""
    quote = _Quote(text.splitlines(), known)
    return [quote.function(node) for node in _parsed(text) if isinstance(node, ast.FunctionDef)]


@lru_cache(maxsize=64)
def _parsed(text: str) -> list[ast.stmt]:
    return ast.parse(text).body


@dataclass(frozen=True, slots=True)
class _Quote:
    lines: Sequence[str]
    known: dict[str, Any]

    def function(self, node: ast.FunctionDef) -> ProgramFunction:
        why = ast.get_docstring(node, clean=False) or ""
        body = tuple(self._statements(node.body[bool(why) :]))
        return ProgramFunction(node.name, tuple(self._parameters(node)), body, why=why)

    def _parameters(self, node: ast.FunctionDef) -> Iterator[str | Parameter]:
        """The parameters; several where one has a star."""
        given, star = node.args, node.args.vararg
        defaults = [*[None] * (len(given.args) - len(given.defaults)), *given.defaults]
        named = [*zip(given.args, defaults, strict=True), (star, None)]
        for arg, default in (*named, *zip(given.kwonlyargs, given.kw_defaults, strict=True)):
            if arg is star:
                yield from self.known[arg.arg] if arg is not None else ()
            elif arg is not None:
                text = "" if default is None else str(self._value(default))
                yield arg.arg if arg.annotation is None else Parameter(arg.arg, text)

    def _statements(self, nodes: Iterable[ast.stmt]) -> Iterator[Statement]:
        for node in nodes:
            why = self.lines[node.lineno - 1].partition("  # ")[2]
            match node:
                case ast.Expr(ast.Set([inner])):
                    yield from self._computed(inner)
                case ast.If(ast.Set([inner]), body, otherwise):
                    yield from self._statements(body if self._computed(inner) else otherwise)
                case ast.Expr(ast.Call(ast.Attribute(_, "warp_specialize"), args)):
                    yield self._roles(*map(self._value, args))
                case ast.Expr(value):
                    made = self._value(value)
                    yield Scope((made,), True, why) if why else made
                case _:
                    yield replace(self._statement(node), why=why)

    def _statement(self, node: ast.stmt) -> Let | Return | For | If:
        match node:
            case ast.Assign([target], value):
                return Let(", ".join(map(str, self._values(_parts(target)))), self._value(value))
            case ast.AnnAssign(ast.Name(name), _, ast.expr() as value):
                return Let(name, self._value(value), "constexpr")
            case ast.AugAssign(ast.Name(name), ast.Add(), value):
                return Let(name, self._value(value), op="+=")
            case ast.Return(ast.expr() as value):
                return Return(self._value(value))
            case ast.For(ast.Name(name), over, body):
                return For(name, self._value(over), tuple(self._statements(body)))
            case ast.If(test, body, otherwise):
                return If(self._value(test), tuple(self._statements(body)), tuple(self._statements(otherwise)))
        raise SyntaxError(f"no statement of a generated program: {ast.unparse(node)}")

    def _roles(self, groups: Expression, warps: Expression, registers: Expression) -> Roles:
        """Groups of warps: pairs of a function and its arguments."""
        calls = [function(*given.args) for function, given in (each.args for each in groups.args)]
        each, own = (tuple([int(n.text) for n in x.args]) for x in (warps, registers))
        return Roles(tuple(calls), each, own)

    def _values(self, nodes: Iterable[ast.expr]) -> Iterator[Expression]:
        """The values of arguments; several where one has a star."""
        for node in nodes:
            match node:
                case ast.Set([ast.Starred(inner)]) | ast.Starred(inner):
                    yield from map(expression, self._computed(inner))
                case _:
                    yield self._value(node)

    def _computed(self, node: ast.expr) -> Any:
        """The value of an expression in braces: arithmetic of known names, their attributes and
        their methods."""
        match node:
            case ast.Name(name):
                return self.known[name]
            case ast.Constant(value):
                return value
            case ast.Attribute(value, member):
                return getattr(self._computed(value), member)
            case ast.Call(function, args):
                return self._computed(function)(*map(self._computed, args))
            case ast.BinOp(left, sign, right):
                return COMPUTED[type(sign)](self._computed(left), self._computed(right))
            case ast.Compare(left, signs, others) if all(isinstance(each, ast.Eq) for each in signs):
                first = self._computed(left)
                return all(first == self._computed(each) for each in others)
        raise SyntaxError(f"no expression in braces: {ast.unparse(node)}")

    def _value(self, node: ast.expr) -> Expression:
        match node:
            case ast.Set([inner]):
                return expression(self._computed(inner))
            case ast.Attribute(ast.Name(name), member) if name in LANGUAGES:
                return Expression("own", (), member)
            case ast.Attribute(value, member):
                return Expression("member", (self._value(value),), member)
            case ast.BinOp(left, sign, right) | ast.Compare(left, [sign], [right]) | ast.BoolOp(sign, [left, right]):
                a, b = self._value(left), self._value(right)
                a = a if left.col_offset == node.col_offset else group(a)
                b = b if right.end_col_offset == node.end_col_offset else group(b)
                return Expression(OPERATORS[type(sign)], (a, b))
            case ast.UnaryOp(ast.USub(), ast.Name() as value):
                return -self._value(value)
            case ast.List(elements) | ast.Tuple(elements):
                return Expression("list" if isinstance(node, ast.List) else "several", tuple(self._values(elements)))
            case ast.Call():
                return self._call(node)
        line = self.lines[node.lineno - 1].encode()  # columns count bytes
        return expression(line[node.col_offset : node.end_col_offset].decode())

    def _call(self, node: ast.Call) -> Expression:
        values, line = list[Expression](), node.func.end_lineno
        for each in node.args:
            first, *more = self._values([each])
            values += [on_new_line(first) if each.lineno != line else first, *more]
            line = each.end_lineno
        named = {each.arg: self._value(each.value) for each in node.keywords if each.arg is not None}
        return self._value(node.func)(*values, **named)


def quoted_body(text: str, **known: Any) -> tuple[Statement, ...]:
    """The statements of a text."""
    (made,) = quoted(f"def body():\n{indent(text, '    ')}", **known)
    return made.body


def _parts(target: ast.expr) -> list[ast.expr]:
    return target.elts if isinstance(target, ast.Tuple) else [target]
