"""The expression language of guards and computed attributes: Python syntax, parsed with `ast`,
never executed as Python."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np

from taso_mirage.errors import SyntaxProblem
from taso_mirage.ir.dims import Dim, Symbolic, dim_product
from taso_mirage.ir.terms import Node, integer_limits, is_float, topological
from taso_mirage.operators.ops import Opaque, traits

Environment = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Expr(Opaque):
    """An expression by its source text. `name` is set when it is one bare name."""

    source: str

    @property
    def name(self) -> str | None:
        return self.source if self.source.isidentifier() else None

    def __call__(self, env: Environment) -> Any:
        return _compiled(self.source)(env)

    def __repr__(self) -> str:
        return self.source

    __str__ = __repr__


def is_weight(node: Node) -> bool:
    """Whether a term is computed before the model runs: it depends on weights and constants only,
    and on nothing quantized.

    Memoised: one visit a term.
    """
    try:
        return node.is_weight
    except AttributeError:
        for each in topological([node], stop=_ASKED):
            runs = each.op in ("input", "opaque", "extents") or traits(each).quantized or _holds_symbol(each)
            each.is_weight = not runs and all(a.is_weight for a in each.args)
        return node.is_weight


class _Asked:
    """The terms that were already decided."""

    def __contains__(self, node: object) -> bool:
        return hasattr(node, "is_weight")


_ASKED = _Asked()


def _holds_symbol(node: Node) -> bool:
    """Whether attributes contain a size that is known only at run time (an Expand to the batch
    size)."""
    return any(
        isinstance(part, Symbolic)
        for _, value in node.attrs
        for part in (value if isinstance(value, tuple) else (value,))
    )


def uniform_value(node: Node) -> float | None:
    """The number that all elements of a constant equal exactly; None if they differ."""
    if node.op != "constant":
        return None
    array = node.attr("value").numpy()
    if array.size == 0 or array.dtype.kind not in "fiubV":
        return None
    first = array.flat[0]
    if array.size > 1 and not bool((array == first).all()):
        return None
    number = float(first)
    return int(first) if array.dtype.kind in "iu" and number != int(first) else number  # beyond 2^53


def _value(node: Node) -> float:
    number = uniform_value(node)
    if number is None:
        raise LookupError("not a constant of one value")
    return number


def _limits(node: Node) -> tuple[int, int]:
    if is_float(node.dtype) or node.dtype in ("bool", "string"):
        raise LookupError(f"{node.dtype} is no dtype of integers")
    return integer_limits(node.dtype)


def _dim(node: Node, axis: int) -> Dim:
    return node.shape[axis]


def _ascending(axes: Sequence[int]) -> bool:
    return list(axes) == sorted(axes)


def _nested(inner: Sequence[int], outer: Sequence[int], rank: int) -> tuple[int, ...]:
    """The axes of two nested reductions of a rank, where the inner ones count the axes that are not
    outer ones."""
    others = [k for k in range(rank) if k not in outer]
    return tuple(sorted((*outer, *(others[k] for k in inner))))


EXPRESSION_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "rank": lambda x: len(x.shape),
    "shape": lambda x: x.shape,
    "dim": _dim,
    "dtype": lambda x: x.dtype,
    "is_float": lambda x: is_float(x.dtype),
    "size": lambda x: dim_product(x.shape),
    "is_weight": is_weight,
    "is_constant": lambda x: uniform_value(x) is not None,
    "value": _value,
    "compose": lambda p, q: tuple(p[i] for i in q),
    "inverse": lambda p: tuple(int(i) for i in np.argsort(p)),
    "iota": lambda n: _iota(n),
    "len": len,
    "min": min,
    "max": max,
    "sum": sum,
    "prod": dim_product,
    "sqrt": math.sqrt,
    "abs": abs,
    "lowest": lambda x: _limits(x)[0],
    "highest": lambda x: _limits(x)[1],
    "close": lambda a, b: math.isclose(a, b, rel_tol=1e-6),
    "reversed": lambda xs: tuple(reversed(xs)),
    "plus": lambda xs, ys: tuple(x + y for x, y in zip(xs, ys, strict=True)),
    "minus": lambda xs, ys: tuple(x - y for x, y in zip(xs, ys, strict=True)),
    "times": lambda xs, ys: tuple(x * y for x, y in zip(xs, ys, strict=True)),
    "without": lambda xs, i: tuple(x for k, x in enumerate(xs) if k != i),
    "at": lambda xs, indices: tuple(xs[i] for i in indices),
    "nested": lambda i, j, rank: _nested(i, j, rank),
    "moves_ones": lambda p, shape: _ascending([i for i in p if shape[i] != 1]),
    "proved": lambda: True,
}
"""The functions that an expression may call.

Names of functions are reserved: no variable of a rule may be called so. `proved()` says that the
rule claims no more than its proved cases: the optimizer asks for the proof of each application
whatever the guard says, so it holds wherever a rule applies.
"""

BITS, ITEMS = 4096, 4096
"""The largest number of bits of a number, and of items of a sequence, in an expression. Expressions
come from files, and their evaluation must end."""


def _bounded(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > BITS:
        raise OverflowError(f"a number of more than {BITS} bits in an expression")
    return value


def _multiplied(a: Any, b: Any) -> Any:
    for sequence, count in ((a, b), (b, a)):
        if isinstance(sequence, str | bytes | tuple) and len(sequence) * max(count, 0) > ITEMS:
            raise OverflowError(f"a sequence of more than {ITEMS} items in an expression")
    return _bounded(a * b)


def _raised(base: Any, exponent: Any) -> Any:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > BITS:
        raise OverflowError(f"a number of more than {BITS} bits in an expression")
    return base**exponent


def _remainder(a: Any, b: Any) -> Any:
    if isinstance(a, str | bytes):
        raise TypeError("% is for numbers")
    return a % b


def _iota(n: int) -> tuple[int, ...]:
    if n > ITEMS:
        raise OverflowError(f"a sequence of more than {ITEMS} items in an expression")
    return tuple(range(n))


_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: _multiplied,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: _remainder,
    ast.Pow: _raised,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.USub: operator.neg, ast.Not: operator.not_}

Compiled = Callable[[Environment], Any]
_PARSING = Lock()
"""A lock for `ast.parse`, which is not thread-safe before Python 3.11.8 (python/cpython#106905);
outputs are checked in several threads."""


@lru_cache(maxsize=1 << 16)
def _compiled(source: str) -> Compiled:
    try:
        with _PARSING:
            tree = ast.parse(source, mode="eval")
        return _compile(tree.body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SyntaxProblem(f"{source[:200]!r}: {getattr(error, 'msg', 'too deep') or error}") from None


def _compile(tree: ast.expr) -> Compiled:
    match tree:
        case ast.Constant(value=value):
            return lambda env: value
        case ast.Name(id="inf"):
            return lambda env: math.inf
        case ast.Name(id=name):
            return lambda env: env[name]
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            parts = [_compile(e) for e in elements]
            return lambda env: tuple(p(env) for p in parts)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            apply, inner = _UNARY[type(op)], _compile(operand)
            return lambda env: apply(inner(env))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            combine, first, second = _BINARY[type(op)], _compile(left), _compile(right)
            return lambda env: combine(first(env), second(env))
        case ast.BoolOp(op=op, values=values):
            terms = [_compile(v) for v in values]
            fold = all if isinstance(op, ast.And) else any
            return lambda env: fold(t(env) for t in terms)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            condition, yes, no = _compile(test), _compile(body), _compile(orelse)
            return lambda env: yes(env) if condition(env) else no(env)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            return _compile_comparison(left, ops, comparators)
        case ast.Subscript(value=value, slice=index):
            array, position = _compile(value), _compile_index(index)
            return lambda env: array(env)[position(env)]
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in EXPRESSION_FUNCTIONS:
            function, operands = EXPRESSION_FUNCTIONS[name], [_compile(a) for a in args]
            return lambda env: function(*[o(env) for o in operands])
    raise SyntaxProblem(f"{ast.unparse(tree)!r} is not allowed in a guard or attribute")


def _compile_comparison(left: ast.expr, ops: list[ast.cmpop], comparators: list[ast.expr]) -> Compiled:
    if not all(type(op) in _COMPARE for op in ops):
        raise SyntaxProblem("`is` is not allowed in a guard or attribute")
    tests = [_COMPARE[type(op)] for op in ops]
    values = [_compile(v) for v in (left, *comparators)]

    def compare(env: Environment) -> bool:
        found = [v(env) for v in values]
        return all(test(a, b) for test, a, b in zip(tests, found, found[1:], strict=False))

    return compare


def _compile_index(tree: ast.expr) -> Compiled:
    if not isinstance(tree, ast.Slice):
        return _compile(tree)
    bounds = [None if b is None else _compile(b) for b in (tree.lower, tree.upper, tree.step)]
    return lambda env: slice(*[None if b is None else b(env) for b in bounds])


@lru_cache(maxsize=1 << 16)
def names_in_expression(source: str) -> frozenset[str]:
    """The free names of an expression."""
    names = {n.id for n in ast.walk(ast.parse(source, mode="eval")) if isinstance(n, ast.Name)}
    return frozenset(names - EXPRESSION_FUNCTIONS.keys() - {"inf"})


@lru_cache(maxsize=1 << 16)
def questions(source: str) -> frozenset[tuple[str, str]]:
    """The calls of functions on bare names in an expression, as (function, name): `value(x)` gives
    ("value", "x")."""
    calls = [n for n in ast.walk(ast.parse(source or "0", mode="eval")) if isinstance(n, ast.Call)]
    return frozenset(
        (call.func.id, arg.id)
        for call in calls
        if isinstance(call.func, ast.Name)
        for arg in call.args
        if isinstance(arg, ast.Name)
    )


def conjuncts(source: str) -> list[ast.expr]:
    """The parts of a guard that `and` joins; none of an empty one."""
    if not source:
        return []
    tree = ast.parse(source, mode="eval").body
    return tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]


def question(source: str) -> str | None:
    """The function of an expression that is one call; None of any other."""
    tree = ast.parse(source, mode="eval").body
    return tree.func.id if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) else None


def claims_proved_cases(source: str) -> bool:
    """Whether a guard has `proved()` as one of its conditions."""
    return any(question(ast.unparse(part)) == "proved" for part in conjuncts(source))


def asks_for_number(source: str, name: str) -> bool:
    """Whether a guard holds for constants alone in the place of a name."""
    return not {("value", name), ("is_constant", name)}.isdisjoint(questions(source))


def asked_number(source: str, name: str) -> float | None:
    """The number in a guard's condition `value(NAME) == number`; None if there is no such
    condition."""
    for part in conjuncts(source):
        match part:
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Constant(value=int() | float() as number)]):
                if ast.unparse(left) == f"value({name})":
                    return float(number)
    return None


def asks_for_weight(source: str, name: str) -> bool:
    """Whether a guard holds for weights alone in the place of a name."""
    return ("is_weight", name) in questions(source)


def replaced(source: str, name: str, by: str) -> str:
    """An expression with another one for a name."""

    class Replace(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return ast.parse(by, mode="eval").body if node.id == name else node

    return ast.unparse(Replace().visit(ast.parse(source, mode="eval")))


def shifted_attribute(source: str) -> tuple[str, str] | None:
    """The name and the numbers of `plus(p, (1, 0))`."""
    match ast.parse(source, mode="eval").body:
        case ast.Call(func=ast.Name(id="plus"), args=[ast.Name(id=name), ast.Tuple() as numbers]):
            return name, ast.unparse(numbers)
    return None
