"""Programs as values: the expressions and the statements of generated code, and their text in
Triton and Gluon.

An expression is built with Python's operators from names and numbers, so a line of a form reads
like the line that it becomes: `let("at", v.pixel % wide * 2 + v.left)`. A printer sets the
parentheses, the indentation and the prefix of a language's own functions (`tl.`, `gl.`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from textwrap import indent
from typing import TypeAlias

_WORD = re.compile(r"\w+")
CONDITIONAL, COMPARED, UNARY, POSTFIX = -1, 1, 8, 9
"""The binding strength of a choice, a comparison and a negative, and of calls, elements and
names."""
RANKS = {
    "and": 0,
    **dict.fromkeys(("!=", "==", "<", "<=", ">", ">="), COMPARED),
    **{"|": 2, "^": 3, "&": 4, "<<": 5, ">>": 5, "+": 6, "-": 6},
    **dict.fromkeys(("*", "/", "//", "%"), 7),
}
"""The binding strength of operators."""

ExpressionLike: TypeAlias = object
"""An expression, or a value that `expression` converts to one: a number, the size of a dim, text, a
list."""


def _operators(*names: str) -> list[Callable[[Expression, ExpressionLike], Expression]]:
    """Methods that apply binary operators."""

    def method(name: str) -> Callable[[Expression, ExpressionLike], Expression]:
        return lambda a, b: Expression(name, (a, expression(b)))

    return list(map(method, names))


@dataclass(frozen=True, slots=True)
class Expression:
    """A value that a program computes: an operator of RANKS over `args`, or

    - "name": `text`, which is one word or in parentheses; "own": the same of the language itself
    - "call": the first argument with the others, of which the last ones are `named`
    - "item": the first argument at the others; "member": `text` of the argument
    - "list", "several": the arguments; "group": one in parentheses; "choice": a, if b, else c

    `equals` and `differs` are the comparisons of programs: `==` compares expressions themselves.
    """

    op: str
    args: tuple[Expression, ...] = ()
    text: str = ""
    named: tuple[str, ...] = ()

    __add__, __sub__, __mul__, __truediv__ = _operators("+", "-", "*", "/")
    __floordiv__, __mod__, __lshift__, __rshift__ = _operators("//", "%", "<<", ">>")
    __and__, __or__, __xor__ = _operators("&", "|", "^")
    equals, differs = _operators("==", "!=")
    __lt__, __le__, __gt__, __ge__ = _operators("<", "<=", ">", ">=")

    def __radd__(self, other: ExpressionLike) -> Expression:
        return expression(other) + self

    def __rsub__(self, other: ExpressionLike) -> Expression:
        return expression(other) - self

    def __rmul__(self, other: ExpressionLike) -> Expression:
        return expression(other) * self

    def __rtruediv__(self, other: ExpressionLike) -> Expression:
        return expression(other) / self

    def __neg__(self) -> Expression:
        return Expression("negative", (self,))

    def __bool__(self) -> bool:
        """Raises TypeError: a comparison says nothing before the program runs."""
        raise TypeError("the truth of a generated expression")

    def __getitem__(self, at: ExpressionLike) -> Expression:
        """An element, or a tile with more axes: `x[:, None]`."""
        marks = at if isinstance(at, tuple) else (at,)
        return Expression("item", (self, *(expression(":" if isinstance(m, slice) else m) for m in marks)))

    def __getattr__(self, member: str) -> Expression:
        if member.startswith("__"):
            raise AttributeError(member)
        return Expression("member", (self,), member)

    def __call__(self, *args: ExpressionLike, **named: ExpressionLike) -> Expression:
        values = (self, *args, *named.values())
        return Expression("call", tuple(map(expression, values)), named=tuple(named))

    def __str__(self) -> str:
        return TRITON.expression(self)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Names as expressions: any attribute is the name itself."""

    op: str

    def __getattr__(self, text: str) -> Expression:
        return Expression(self.op, (), text)

    def __getitem__(self, text: ExpressionLike) -> Expression:
        return Expression(self.op, (), str(text))


class Language(Vocabulary):
    """The names of the language itself, with any prefix."""

    def load(
        self, pointer: ExpressionLike, *masks: ExpressionLike, other: ExpressionLike = 0.0, **more: ExpressionLike
    ) -> Expression:
        """The elements of memory; `other` where a mask does not hold."""
        return self["load"](pointer, **({"mask": every(masks), "other": other} if masks else {}), **more)

    def store(self, pointer: ExpressionLike, value: ExpressionLike, *masks: ExpressionLike) -> Expression:
        """Write elements where all masks hold."""
        return self["store"](pointer, value, **({"mask": every(masks)} if masks else {}))


v, tl = Vocabulary("name"), Language("own")
"""The names of a program, and those of its language."""


def expression(value: ExpressionLike) -> Expression:
    """A value as an expression: text stands as it is."""
    if isinstance(value, Expression):
        return value
    if isinstance(value, list | tuple):
        return Expression("list" if isinstance(value, list) else "several", tuple(map(expression, value)))
    return Expression("name", (), repr(value) if isinstance(value, float) else str(value))


def group(value: ExpressionLike) -> Expression:
    """A value in parentheses, even if none are needed."""
    return Expression("group", (expression(value),))


def select(value: ExpressionLike, condition: ExpressionLike, otherwise: ExpressionLike) -> Expression:
    """A value if a condition holds, else another one."""
    return Expression("choice", (expression(value), expression(condition), expression(otherwise)))


def on_new_line(value: ExpressionLike) -> Expression:
    """An argument on a line of its own, for a call that is long otherwise."""
    return Expression("name", (), f"\n    {value}")


def sum_of(terms: Iterable[ExpressionLike]) -> Expression:
    """The sum of at least one term."""
    return reduce(lambda a, b: a + b, map(expression, terms))


def every(conditions: Iterable[ExpressionLike]) -> Expression:
    """Whether all of at least one condition hold."""
    return reduce(lambda a, b: a & b, map(expression, conditions))


def within(value: Expression, size: ExpressionLike) -> list[Expression]:
    """The conditions for a place among so many."""
    return [value >= 0, value < size]


# ---------------------------------------------------------------- statements


@dataclass(frozen=True, slots=True)
class Let:
    """The statement that gives `name` a value, with `type` as a declaration. `op` is for example
    "+=", which adds the value to the old one. `why` is a comment after it, as of all statements."""

    name: str
    value: Expression
    type: str = ""
    op: str = "="
    why: str = ""


@dataclass(frozen=True, slots=True)
class For:
    """Statements for each number of a range, `over`."""

    variable: str
    over: Expression
    body: tuple[Statement, ...]
    why: str = ""


@dataclass(frozen=True, slots=True)
class If:
    """Statements for a condition that holds, and others if it does not."""

    condition: Expression
    body: tuple[Statement, ...]
    otherwise: tuple[Statement, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Return:
    """The end of a function, with a value."""

    value: Expression
    why: str = ""


@dataclass(frozen=True, slots=True)
class Scope:
    """Statements with names of their own; with `line`, statements on one line. Only C++ has them,
    and functions within statements."""

    body: tuple[Statement, ...]
    line: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Roles:
    """Groups of warps with a function each (warp specialization): their functions; and for all but
    the first, the number of warps and of the registers of a thread."""

    groups: tuple[Expression, ...]
    warps: tuple[int, ...]
    registers: tuple[int, ...]
    why: str = ""


Statement: TypeAlias = "Let | Expression | For | If | Return | Scope | Roles | ProgramFunction"
"""A call for its effect: a store, a barrier, a copy."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument that is known when a function is compiled."""

    name: str
    default: str = ""


@dataclass(frozen=True, slots=True)
class ProgramFunction:
    """A function of a generated module. `decoration`: the arguments of its decorator in Python; in
    C++ the type of its result, with the words before it."""

    name: str
    parameters: Sequence[str | Parameter]
    body: tuple[Statement, ...]
    decoration: str = ""
    why: str = ""


def let(name: str, value: ExpressionLike, why: str = "") -> Let:
    """The statement that names a value."""
    return Let(name, expression(value), why=why)


def compile_time(name: str, value: ExpressionLike) -> Let:
    """The statement that names a value that is known when the program is compiled."""
    return Let(name, expression(value), "constexpr")


def add(name: str, value: ExpressionLike) -> Let:
    """The statement that adds a value."""
    return Let(name, expression(value), op="+=")


def loop(variable: str, over: Expression, body: Iterable[Statement]) -> For:
    """The statement that repeats others."""
    return For(variable, over, tuple(body))


def when(condition: ExpressionLike, *body: Statement, otherwise: Iterable[Statement] = (), why: str = "") -> If:
    """The statement that does others where a condition holds."""
    return If(expression(condition), body, tuple(otherwise), why)


def mentioned(x: Expression | Statement) -> Iterator[str]:
    """The names in an expression, or in a statement."""
    match x:
        case Expression(_, args, text):
            yield from _WORD.findall(text)
            parts: tuple[Expression | Statement, ...] = args
        case Let(name, value):
            yield from _WORD.findall(name)
            parts = (value,)
        case For(_, over, body):
            parts = (over, *body)
        case If(condition, body, otherwise):
            parts = (condition, *body, *otherwise)
        case Scope(body) | ProgramFunction(_, _, body):
            parts = body
        case Roles(groups):
            parts = groups
        case Return(value):
            parts = (value,)
    for each in parts:
        yield from mentioned(each)


# ---------------------------------------------------------------- printers


@dataclass(frozen=True, slots=True)
class PythonPrinter:
    """The text of programs in a language within Python. `prefix`: that of its own names;
    `decorator`: that of its functions, empty for plain Python."""

    decorator: str
    prefix: str

    def function(self, made: ProgramFunction) -> str:
        """A function with a newline after its last line."""
        given = _listed(map(self._parameter, made.parameters))
        doc = [f'    """{made.why}"""'] if made.why else []
        lines = self._inner(made.body)
        head = [f"@{self.decorator}{made.decoration}"] if self.decorator else []
        return "\n".join([*head, f"def {made.name}({given}):", *doc, *lines]) + "\n"

    def _parameter(self, given: str | Parameter) -> str:
        if not isinstance(given, Parameter):
            return given
        default = f" = {given.default}" if given.default else ""
        return f"{given.name}: {self.prefix}constexpr{default}"

    def lines(self, statements: Iterable[Statement]) -> Iterator[str]:
        """The lines of statements, without indentation around them."""
        for each in statements:
            first, *more = self._statement(each)
            why = "" if isinstance(each, Expression) else each.why
            yield f"{first}  # {why}" if why else first
            yield from more

    def _statement(self, each: Statement) -> Iterator[str]:
        match each:
            case Let(name, value, type, op):
                yield f"{name}{f': {self.prefix}{type}' if type else ''} {op} {self._bare(value)}"
            case Expression():
                yield self.expression(each)
            case Return(value):
                yield f"return {self._bare(value)}"
            case Scope((one,), True):
                yield from self._statement(one)
            case Roles(groups, warps, registers):
                yield f"{self.prefix}warp_specialize(["
                for function, *args in (call.args for call in groups):
                    yield f"    ({self.expression(function)}, ({', '.join(map(self.expression, args))})),"
                yield f"], {list(warps)}, {list(registers)})"
            case For(variable, over, body):
                yield f"for {variable} in {self.expression(over)}:"
                yield from self._inner(body)
            case If(condition, body, otherwise):
                yield f"if {self.expression(condition)}:"
                yield from self._inner(body)
                yield from self._otherwise(otherwise)

    def _otherwise(self, body: Sequence[Statement]) -> Iterator[str]:
        if len(body) == 1 and isinstance(body[0], If):
            first, *more = self.lines(body)
            yield from (f"el{first}", *more)
        elif body:
            yield "else:"
            yield from self._inner(body)

    def _inner(self, body: Sequence[Statement]) -> Iterator[str]:
        return (indent(line, "    ") for line in self.lines(body))

    def expression(self, x: Expression) -> str:
        """The text of an expression."""
        shown = [self.expression(a) for a in x.args]

        def part(i: int, least: int) -> str:
            return shown[i] if _rank(x.args[i]) >= least else f"({shown[i]})"

        match x.op:
            case "name":
                return x.text.replace("tl.", self.prefix)
            case "own":
                return f"{self.prefix}{x.text}"
            case "list":
                return f"[{', '.join(shown)}]"
            case "several":
                return f"({', '.join(shown)}{',' if len(shown) == 1 else ''})"
            case "group":
                return f"({shown[0]})"
            case "choice":
                return f"{part(0, 0)} if {part(1, 0)} else {shown[2]}"
            case "negative":
                return f"-{part(0, UNARY)}"
            case "member":
                return f"{part(0, POSTFIX)}.{x.text}"
            case "item":
                return f"{part(0, POSTFIX)}[{', '.join(shown[1:])}]"
            case "call":
                plain = len(shown) - len(x.named)
                given = (*shown[1:plain], *(f"{n}={a}" for n, a in zip(x.named, shown[plain:], strict=True)))
                return f"{part(0, POSTFIX)}({_listed(given)})"
            case operator:
                rank = RANKS[operator]
                return f"{part(0, rank + (rank == COMPARED))} {operator} {part(1, rank + 1)}"

    def _bare(self, x: Expression) -> str:
        """The text of a value, or of several."""
        values = x.args if x == Expression("several", x.args) else (x,)
        return ", ".join(map(self.expression, values))


def _rank(x: Expression) -> int:
    """How strongly the outer operator of an expression binds."""
    return {"choice": CONDITIONAL, "negative": UNARY}.get(x.op, RANKS.get(x.op, POSTFIX))


def _listed(arguments: Iterable[str]) -> str:
    return ", ".join(arguments).replace(", \n", ",\n")


TRITON = PythonPrinter("triton.jit", "tl.")
GLUON = PythonPrinter("gluon.jit", "gl.")
PYTHON = PythonPrinter("", "")
