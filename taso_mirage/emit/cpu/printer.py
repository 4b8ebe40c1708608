"""The text of programs that are values (`statements`) in C++.

A list is written as `{a, b}`, `tl.store(place, value)` as an assignment, and a loop or a condition
over one statement on its line. A statement's comment is the line above it. A function within
statements is a lambda. A loop is over `v.numbers(n)`, or over `v.vectors(n, ...)`, several numbers
at a time, with OpenMP's reductions. `v.array(n)` is room for n elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from taso_mirage.emit.statements import (
    COMPARED,
    POSTFIX,
    RANKS,
    Expression,
    ExpressionLike,
    For,
    If,
    Let,
    ProgramFunction,
    Return,
    Scope,
    Statement,
    mentioned,
    v,
)

INDENT = "  "
BINDS = {op: rank for op, rank in RANKS.items() if op != "//"} | {"&": 0, "choice": -1}
"""The binding strength of operators in C++; "&" is between conditions, and `//` begins a
comment."""


def static_cast(dtype: str, value: ExpressionLike) -> Expression:
    """A value in another C++ type."""
    return v[f"static_cast<{dtype}>"](value)


def function_text(made: ProgramFunction) -> str:
    """The text of a function; a body of a single line is on that line."""
    head = f"{made.decoration} {made.name}({', '.join(map(str, made.parameters))})"
    comment = [f"// {made.why}"] if made.why else []
    inner = list(lines(made.body))
    whole = [f"{head} {{ {inner[0]} }}"] if len(inner) == 1 else _braced(head, inner)
    return "\n".join([*comment, *whole])


def lines(statements: Iterable[Statement]) -> Iterator[str]:
    """The lines of statements, without indentation around them."""
    for each in statements:
        if not isinstance(each, Expression) and each.why:
            yield f"// {each.why}"
        yield from _statement(each)


def _statement(each: Statement) -> Iterator[str]:
    match each:
        case Let(name, Expression("call", (Expression(_, (), "array"), size)), type):
            yield f"{type} {name}[{expression_text(size)}];"
        case Let(name, value, type, op):
            many = {"list": "[]"}.get(value.op, "")
            yield f"{type} {name}{many} {op} {expression_text(value)};".lstrip()
        case Expression("call", (Expression("own", (), "store"), place, value)):
            yield f"{expression_text(place)} = {expression_text(value)};"
        case Expression():
            yield f"{expression_text(each)};"
        case Return(value):
            yield f"return {expression_text(value)};"
        case For(variable, over, body):
            kind, count, *folds = map(expression_text, over.args)
            if kind == "vectors":
                yield "#pragma omp simd" + "".join(f" reduction({fold})" for fold in folds)
            head = f"for (size_t {variable} = 0; {variable} < {count}; ++{variable})"
            yield from _headed(head, body, kind != "vectors")
        case If(condition, body, otherwise):
            yield from _headed(f"if ({expression_text(condition)})", body)
            yield from _headed("else", otherwise) if otherwise else ()
        case ProgramFunction(name, parameters, body):
            *whole, end = _braced(f"const auto {name} = [&]({', '.join(map(str, parameters))})", lines(body))
            yield from (*whole, f"{end};")
        case Scope(body, line):
            inner = lines(body)
            yield from [" ".join(inner)] if line else ["{", *(INDENT + each for each in inner), "}"]


def _headed(head: str, body: Sequence[Statement], short: bool = True) -> Iterable[str]:
    """A head and statements; a single line follows the head on its line if it is `short`."""
    inner = list(lines(body))
    return [f"{head} {inner[0]}"] if short and len(inner) == 1 else _braced(head, inner)


def _braced(head: str, inner: Iterable[str]) -> list[str]:
    """Lines in braces; a directive stays at the margin of its scope."""
    return [f"{head} {{", *(line if line.startswith("#") else INDENT + line for line in inner), "}"]


def expression_text(x: Expression) -> str:
    """The text of an expression."""
    shown = [expression_text(a) for a in x.args]
    match x.op:
        case "name" | "own":
            return x.text
        case "list":
            return f"{{{', '.join(shown)}}}"
        case "group":
            return f"({shown[0]})"
        case "choice":
            return f"{shown[1]} ? {shown[0]} : {shown[2]}"
        case "item":
            return f"{shown[0]}[{shown[1]}]"
        case "call":
            return f"{shown[0]}({', '.join(shown[1:])})"
    rank, sign = BINDS[x.op], {"&": "&&"}.get(x.op, x.op)
    left, right = (BINDS.get(each.op, POSTFIX) for each in x.args)
    first = shown[0] if left >= rank + (rank == COMPARED) else f"({shown[0]})"
    return f"{first} {sign} {shown[1] if right > rank else f'({shown[1]})'}"


def swept(statements: Sequence[Statement], used: set[str]) -> tuple[Statement, ...]:
    """Statements without the constants that no later statement reads; `used` are the names that
    later ones read, to which theirs are added."""
    kept: list[Statement] = []
    for each in reversed(statements):
        if isinstance(each, Let) and each.type.startswith("const ") and each.name not in used:
            continue
        made = replace(each, body=swept(each.body, used)) if isinstance(each, For | ProgramFunction) else each
        used.update(mentioned(made))
        kept.append(made)
    return tuple(kept[::-1])
