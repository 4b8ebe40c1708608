"""Equations as mathematics: trees that the template `math.html` writes as MathML.

The notation of a term follows from the first line of its operator's docstring, which is the type in
mathematics: a term that gives `x + y` is a sum. A term that none of these forms fits is a function
with its attributes below.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.terms import ABSENT, Node, topological
from taso_mirage.operators.expressions import conjuncts
from taso_mirage.operators.ops import get
from taso_mirage.report.drawing import shown_value
from taso_mirage.report.rule_in_words import condition
from taso_mirage.rewriting.equation import Equation
from taso_mirage.rewriting.patterns import REST
from taso_mirage.rewriting.text import parse_equation

WIDE, SHORT = 40, 10
"""The largest number of letters of a line, and the smallest number with which a term may get a name
and its own line."""
LONG = 100
"""The smallest number of letters of an attribute whose parts get names."""
LOOSE, SUM, PRODUCT, DOT, TIGHT, ATOM = range(6)
"""The binding strength of a term; a term that binds less tightly than its place requires gets
parentheses."""
UNREADABLE = (TasoMirageError, SyntaxError, LookupError, TypeError, ValueError, RecursionError)


@dataclass(frozen=True, slots=True)
class MathTree:
    """A piece of a formula.

    `name`, `word`, `number` and `sign` have a text; `row`, `fraction`, `root`, `above` and `below`
    (a base with its exponent, or its index) have parts.
    """

    kind: str
    text: str = ""
    parts: tuple[MathTree, ...] = ()
    binds: int = ATOM

    @property
    def width(self) -> int:
        """The approximate number of letters on a line."""
        widths = [part.width for part in self.parts]
        return max(widths) if self.kind == "fraction" else len(self.text) + sum(widths)


@dataclass(frozen=True, slots=True)
class Formula:
    """An equation as mathematics: both sides, and the names in them that stand for long terms."""

    left: MathTree
    right: MathTree
    names: tuple[tuple[MathTree, MathTree], ...]


def formula(text: str) -> Formula | None:
    """The formula of an equation's text; None where the text is prose."""
    try:
        return stated_formula(parse_equation(text))
    except UNREADABLE:
        return None


def stated_formula(equation: Equation) -> Formula:
    """The formula of an equation: its sides, with lines of their own for subterms that would not
    fit or occur twice."""
    sides = equation.lhs.outputs, equation.rhs.outputs
    order = topological((*sides[0], *sides[1]))
    uses = Counter(a for node in order for a in node.args)
    writer = _Writer({str(n.attr("name")) for n in order if n.op == "input"})
    for node in order:
        writer.write(node, often=uses[node] > 1)
    left, right = (writer.side(side) for side in sides)
    return Formula(left, right, tuple(writer.names))


def conditions(where: str) -> tuple[str, ...]:
    """A guard in words, part by part; its text if it cannot be described."""
    try:
        return tuple(condition(each) for each in conjuncts(where))
    except UNREADABLE:
        return (where,)


class _Writer:
    """Terms as mathematics, operands first."""

    def __init__(self, taken: set[str]) -> None:
        self.letters = (letter for letter in _letters() if letter not in taken)
        self.done: dict[Node, MathTree] = {}
        self.names: list[tuple[MathTree, MathTree]] = []

    def write(self, node: Node, often: bool) -> None:
        """Give the longest operand a name if the line would be too long."""
        shown = self._shorten(node)
        while (tree := _term(shown, [self.done[a] for a in node.args])).width > WIDE:
            widest = max(node.args, key=lambda a: self.done[a].width, default=node)
            if widest is node or self.done[widest].width <= SHORT:
                break
            self._name(widest)
        self.done[node] = tree
        if often and tree.width > SHORT:
            self._name(node)

    def _shorten(self, node: Node) -> Node:
        """With texts in place of long attributes, whose longest parts have names."""
        attrs = [(k, v if len(shown_value(v)) <= LONG else self._parted(shown_value(v))) for k, v in node.attrs]
        return Node(node.op, node.args, tuple(attrs), node.type)

    def _parted(self, text: str) -> str:
        """A long expression, with names for parts that occur twice, and for long elements of it."""
        whole = ast.parse(text, mode="eval").body
        while len(text) > LONG and (part := _part_to_name(whole)):
            name = next(self.letters)
            self.names.append((MathTree("name", name), MathTree("word", self._parted(part))))
            whole = _Replaced(part, name).visit(whole)
            text = ast.unparse(whole)
        return text

    def side(self, outputs: Sequence[Node]) -> MathTree:
        found = [self.done[o] for o in outputs]
        return _at(SUM, found[0]) if len(found) == 1 else _row("(", *_listed(found), ")")

    def _name(self, node: Node) -> None:
        name = MathTree("name", next(self.letters))
        self.names.append((name, self.done[node]))
        self.done[node] = name


class _Replaced(ast.NodeTransformer):
    """An expression with a name for one of its parts, wherever that is."""

    def __init__(self, part: str, name: str) -> None:
        self._part, self._name = part, name

    def visit(self, node: ast.AST) -> Any:
        return ast.Name(self._name) if ast.unparse(node) == self._part else self.generic_visit(node)


def _part_to_name(whole: ast.AST) -> str | None:
    """The longest part that is there twice, else the longest that is an element of several."""
    inside = [node for node in ast.walk(whole) if node is not whole and isinstance(node, ast.BinOp | ast.Call)]
    times = Counter(ast.unparse(node) for node in inside)
    twice = [part for part, count in times.items() if count > 1 and len(part) > WIDE]
    elements = [ast.unparse(each) for node in ast.walk(whole) if isinstance(node, ast.Tuple) for each in node.elts]
    return max(twice or [part for part in elements if len(part) > WIDE], key=len, default=None)


def _letters() -> Iterator[str]:
    """Greek letters that look like no Latin ones, then numbered ones."""
    yield from "αβγδεζηθλμξπρστφχψω"
    yield from (f"τ{i}" for i in range(1, 1 << 16))


# ---------------------------------------------------------------- terms

TermNotation = Callable[[Node, Sequence[MathTree]], MathTree]


def _term(node: Node, args: Sequence[MathTree]) -> MathTree:
    if node.op == "input":
        return MathTree("name", str(node.attr("name")))
    if node is ABSENT:
        return MathTree("sign", "\N{EN DASH}")
    if node.op == "splat":
        return _number(node.attr("value"))
    said = re.split(r"; | in |, booleans", get(node.op).doc.partition("\n")[0])[0]
    count, form = FORMS.get(said, (0, _function))
    return form(node, args) if count in (0, len(args)) else _function(node, args)


def _function(node: Node, args: Sequence[MathTree]) -> MathTree:
    return _row(_indexed(MathTree("word", node.op), node), "(", *_listed(args), ")")


def _infix(sign: str, binds: int, node: Node, args: Sequence[MathTree]) -> MathTree:
    """The second operand binds more tightly: signs are read from the left."""
    return _row(_at(binds, args[0]), sign, _at(binds + 1, args[1]), binds=binds)


def _around(texts: Sequence[str], binds: int, inner: int, node: Node, args: Sequence[MathTree]) -> MathTree:
    """Signs, with the operands where their numbers stand."""
    return _row(*(_at(inner, args[int(t)]) if t.isdigit() else t for t in texts), binds=binds)


def _quotient(node: Node, args: Sequence[MathTree]) -> MathTree:
    over = args[0] if len(args) == 2 else _number(1)
    return MathTree("fraction", "", (over, args[-1]), TIGHT)


def _power(node: Node, args: Sequence[MathTree]) -> MathTree:
    base, exponent = (MathTree("name", "e"), args[0]) if len(args) == 1 else (_at(ATOM, args[0]), args[1])
    return MathTree("above", "", (base, exponent), TIGHT)


def _turned(node: Node, args: Sequence[MathTree]) -> MathTree:
    power = MathTree("word", " ".join(("T", *_attributes(node))))
    return MathTree("above", "", (_at(ATOM, args[0]), power), TIGHT)


SUMMATION = MathTree("sign", "\N{N-ARY SUMMATION}")
FORMS: Mapping[str, tuple[int, TermNotation]] = {
    "x, y -> x + y": (2, partial(_infix, "+", SUM)),
    "x, y -> x - y": (2, partial(_infix, "\N{MINUS SIGN}", SUM)),
    "x, y -> x * y": (2, partial(_infix, "⊙", PRODUCT)),
    "(...,m,k), (...,k,n) -> (...,m,n)": (2, partial(_infix, "·", DOT)),
    "x, y -> x = y": (2, partial(_infix, "=", LOOSE)),
    "x, y -> x > y": (2, partial(_infix, ">", LOOSE)),
    "x, y -> x < y": (2, partial(_infix, "<", LOOSE)),
    "x, y -> x >= y": (2, partial(_infix, "≥", LOOSE)),
    "x, y -> x <= y": (2, partial(_infix, "≤", LOOSE)),
    "x, y -> x and y": (2, partial(_infix, "∧", LOOSE)),
    "x, y -> x or y": (2, partial(_infix, "\N{LOGICAL OR}", LOOSE)),
    "x -> not x": (1, partial(_around, ("¬", "0"), TIGHT, ATOM)),
    "x -> -x": (1, partial(_around, ("\N{MINUS SIGN}", "0"), SUM, PRODUCT)),
    "x -> |x|": (1, partial(_around, ("|", "0", "|"), ATOM, LOOSE)),
    "c, x, y -> x where c, else y": (3, partial(_around, ("1", " where ", "0", ", else ", "2"), LOOSE, SUM)),
    "x, y -> x / y": (2, _quotient),
    "x -> 1 / x": (1, _quotient),
    "x -> sqrt(x)": (1, lambda node, args: MathTree("root", "", tuple(args))),
    "x -> e^x": (1, _power),
    "x, y -> x^y": (2, _power),
    "axis i of the result is axis perm[i] of the operand": (1, _turned),
    "(...,n,...), (...,m,...), ... -> (...,n+m+...,...) along `axis`": (
        0,
        lambda node, args: _indexed(_row("[", *_listed(args), "]"), node),
    ),
    "(a, b, ...) -> the part at `index`": (1, lambda node, args: _indexed(args[0], node)),
    "x -> the sum over `axes`": (
        1,
        lambda node, args: _row(_indexed(SUMMATION, node), _at(PRODUCT, args[0]), binds=PRODUCT),
    ),
}
"""The notation of a term by its operator's docstring; for how many operands (0: any)."""


# ---------------------------------------------------------------- pieces


def _row(*pieces: MathTree | str, binds: int = ATOM) -> MathTree:
    return MathTree("row", "", tuple(MathTree("sign", p) if isinstance(p, str) else p for p in pieces), binds)


def _at(binds: int, tree: MathTree) -> MathTree:
    """A term in a place that requires this binding strength."""
    return tree if tree.binds >= binds else _row("(", tree, ")")


def _listed(trees: Sequence[MathTree]) -> Iterator[MathTree]:
    for i, tree in enumerate(trees):
        yield from (MathTree("sign", ", "), tree) if i else (tree,)


def _indexed(base: MathTree, node: Node) -> MathTree:
    said = ", ".join(_attributes(node))
    return MathTree("below", "", (base, MathTree("word", said))) if said else base


def _attributes(node: Node) -> Iterator[str]:
    """The attributes that say something: no defaults, and no name before the only one."""
    defaults = {name: default for name, (_, default) in get(node.op).attributes.items()}
    own = [(name, value) for name, value in node.attrs if name == REST or value not in (None, defaults[name])]
    for name, value in own:
        bare = name == REST or len(own) == 1
        yield shown_value(value) if bare else f"{name}={shown_value(value)}"


def _number(value: float) -> MathTree:
    text = f"{value:g}".replace("inf", "∞").replace("-", "\N{MINUS SIGN}")
    return MathTree("number", text, binds=SUM if value < 0 else ATOM)
