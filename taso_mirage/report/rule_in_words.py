"""A rule in words: the terms that it replaces and their replacements, where it applies, its
savings, and its evidence."""

from __future__ import annotations

import ast
import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from taso_mirage.errors import InvalidOption, TasoMirageError
from taso_mirage.ir.dims import show_shape
from taso_mirage.ir.terms import ABSENT, Graph, Node, topological
from taso_mirage.measure.refusals import shown_sizes
from taso_mirage.onnx_io.pairs import rule_at_sizes, small_sizes
from taso_mirage.operators.expressions import conjuncts
from taso_mirage.operators.work import work
from taso_mirage.rewriting.equation import Equation
from taso_mirage.rewriting.library import Rule, rule_sides, show_attributes
from taso_mirage.verdicts import Evidence

GROUNDS = {
    "symbolic": "proved for every size",
    "bounded": "proved element by element at fixed sizes (Z3)",
}


def find_rule(rules: Sequence[Rule], name: str) -> Rule:
    """The rule of that name, or of which it is the only beginning.

    InvalidOption with the nearest names.
    """
    found = [r for r in rules if r.name == name] or [r for r in rules if r.name.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        shown = ", ".join(r.name for r in found[:8]) + (", ..." if len(found) > 8 else "")
        raise InvalidOption(f"{len(found)} rules begin with {name!r}: {shown}; write more of the name")
    names = [r.name for r in rules]
    near = [n for n in names if name in n][:5] or difflib.get_close_matches(name, names, 5, 0.4)
    hint = f"; did you mean {', '.join(near)}?" if near else "; `substitutions list` shows all"
    raise InvalidOption(f"no rule is called {name!r}{hint}")


def chosen(
    rules: Iterable[Rule], texts: Sequence[str], operators: Sequence[str], families: Sequence[str]
) -> list[Rule]:
    """The rules that hold every text (in name or equation) and every operator (on either side), of
    one of the families."""
    return [
        r
        for r in rules
        if (not families or r.family in families)
        and set(operators) <= {n.op for n in (*r.equation.lhs, *r.equation.rhs)}
        and all(t.lower() in f"{r.name} {equation_text(r)}".lower() for t in texts)
    ]


def equation_text(rule: Rule) -> str:
    """`lhs == rhs where guard` on one line."""
    guard = f"  where {rule.equation.where.source}" if rule.equation.where is not None else ""
    return " == ".join(rule_sides(rule.equation)) + guard


def rule_data(rule: Rule) -> dict[str, Any]:
    """A rule as JSON data."""
    lhs, rhs = rule_sides(rule.equation)
    proof = rule.evidence.proof
    return {
        "name": rule.name,
        "family": rule.family,
        "operators": rule.operators,
        "given": {name: str(type) for name, type in rule.given},
        "attributes": {name: show_attributes([(name, value)]).partition(": ")[2] for name, value in rule.attributes},
        "lhs": lhs,
        "rhs": rhs,
        "where": rule.equation.where.source if rule.equation.where is not None else None,
        "evidence": {
            "cases": rule.evidence.cases,
            "typings": rule.evidence.typings,
            "proof": None if proof is None else {"kind": proof.kind, "bound": proof.bound, "steps": proof.steps},
        },
    }


def shown_rule(rule: Rule) -> Iterator[str]:
    """Text, guard, typing and evidence, line by line."""
    lhs, rhs = rule_sides(rule.equation)
    yield rule.name
    yield f"     {lhs}"
    yield f"  == {rhs}"
    if rule.equation.where is not None:
        yield f"  where {rule.equation.where.source}"
    yield f"for example at {', '.join(f'{name}: {type}' for name, type in rule.given)}"
    if rule.attributes:
        yield f"with {show_attributes(rule.attributes)}"
    yield f"evidence: {grounds(rule.evidence)}"


def grounds(evidence: Evidence) -> str:
    """The evidence in words."""
    said = [f"{evidence.cases} cases"] if evidence.cases else []
    said += [f"{evidence.typings} random legal typings"] if evidence.typings else []
    if evidence.proof is not None:
        proof = evidence.proof
        said.append(f"{GROUNDS.get(proof.kind, proof.kind)}: {proof.bound} ({proof.steps} steps)")
    return "; ".join(said) or "none"


def words(rule: Rule) -> Iterator[str]:
    """A description of a rule, line by line: its terms, where it applies, and its work before and
    after."""
    before, after = (_count_operators(side) for side in (rule.equation.lhs, rule.equation.rhs))
    yield f"{rule.name} replaces {before} by {after}."
    if len(rule.equation.roots) > 1:
        yield f"It replaces {len(rule.equation.roots)} values at once."
    variables = ", ".join(f"{name} {show_shape(type.shape or ())}" for name, type in rule.given)
    yield f"Operands, at its typing: {variables}."
    conditions = list(_conditions(rule.equation))
    yield "It applies where:" if conditions else "It applies wherever the left side is found."
    yield from (f"  - {condition}" for condition in conditions)
    yield f"Evidence: {grounds(rule.evidence)}."
    yield _saving(rule)


def _count_operators(side: Graph) -> str:
    """`3 operators (concat of 2 conv)` in the order of the outputs."""
    names = Counter(n.op for n in reversed(list(side)) if n.op not in ("input", "splat", "item") and n is not ABSENT)
    total = sum(names.values())
    listed = ", ".join(name if count == 1 else f"{count} {name}" for name, count in names.items())
    if not total:
        return "a bare operand"
    return f"{total} operator{'s' * (total > 1)} ({listed})"


def _conditions(equation: Equation) -> Iterator[str]:
    """The parts of the guard, in words where they have any."""
    if equation.where is None:
        return
    yield from map(condition, conjuncts(equation.where.source))


def condition(tree: ast.expr) -> str:
    """A part of a guard in words, where there are any."""
    match tree:
        case ast.Call(func=ast.Name(id="is_weight"), args=[x]):
            return f"{ast.unparse(x)} is known before the model runs (a weight)"
        case ast.Call(func=ast.Name(id="is_constant"), args=[x]):
            return f"{ast.unparse(x)} is a constant whose elements are all equal"
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            return f"{_quantity(left)} equals {_quantity(right)}"
        case ast.Compare(left=left, ops=[ast.NotEq()], comparators=[right]):
            return f"{_quantity(left)} differs from {_quantity(right)}"
        case ast.Compare(left=left, ops=[order], comparators=[right]) if type(order) in ORDERS:
            return f"{_quantity(left)} is {ORDERS[type(order)]} {_quantity(right)}"
        case ast.Compare(left=left, ops=[ast.In()], comparators=[ast.Tuple(elts=values)]):
            return f"{_quantity(left)} is one of {', '.join(map(ast.unparse, values))}"
    return ast.unparse(tree)


ORDERS = {ast.Lt: "below", ast.Gt: "above", ast.LtE: "at most", ast.GtE: "at least"}


def _quantity(tree: ast.expr) -> str:
    match tree:
        case ast.Call(func=ast.Name(id="rank"), args=[x]):
            return f"the rank of {ast.unparse(x)}"
        case ast.Call(func=ast.Name(id="shape"), args=[x]):
            return f"the shape of {ast.unparse(x)}"
        case ast.Call(func=ast.Name(id="dim"), args=[x, axis]):
            return f"dimension {ast.unparse(axis)} of {ast.unparse(x)}"
        case ast.Tuple(elts=elements):
            return f"({', '.join(map(_quantity, elements))})"
    return ast.unparse(tree)


def _saving(rule: Rule) -> str:
    for sizes in small_sizes(rule):
        terms = rule_at_sizes(rule, sizes)
        if terms is not None:
            try:
                before, after = (_totals(side) for side in terms)
            except (TasoMirageError, LookupError, TypeError, ValueError) as error:
                return f"Work: it cannot be counted ({error})."
            at = shown_sizes(sizes) or "its fixed sizes"
            return f"Work at {at}: {before} before, {after} after (terms over weights alone cost nothing at run time)."
    return "Work: no small sizes of the typing are legal."


def _totals(outputs: Sequence[Node]) -> str:
    counted = [work(n, {}) for n in topological(outputs) if n.args and n.op != "item"]
    return f"{sum(w.flops for w in counted):,} operations and {sum(w.bytes for w in counted):,} bytes moved"
