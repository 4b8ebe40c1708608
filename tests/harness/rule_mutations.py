"""False rules made of true ones: deterministic mutants of every rule of the library and of every
law.

Some mutants are true (operands of a sum exchanged); `stranger.py` tells which are not.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

from stranger import as_rule, conjuncts, instances, refute

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, topological
from taso_mirage.operators.expressions import Expr, names_in_expression
from taso_mirage.operators.ops import get
from taso_mirage.rewriting import reversal
from taso_mirage.rewriting.equation import Equation
from taso_mirage.rewriting.library import Rule, load_rules
from taso_mirage.rewriting.text import laws, parse_equation, show_equation
from taso_mirage.verdicts import NO_EVIDENCE

SIMILAR = {
    "add": ("sub", "max"),
    "sub": ("add",),
    "mul": ("div", "add"),
    "div": ("mul",),
    "max": ("min",),
    "min": ("max",),
    "relu": ("abs", "neg"),
    "abs": ("relu",),
    "neg": ("abs",),
    "exp": ("softplus",),
    "sqrt": ("abs",),
    "sigmoid": ("tanh",),
    "tanh": ("erf",),
    "erf": ("tanh",),
    "gelu": ("swish",),
    "hard_swish": ("relu",),
    "softplus": ("relu",),
    "floor": ("ceil",),
    "reduce_sum": ("reduce_mean", "reduce_max"),
    "reduce_mean": ("reduce_sum",),
    "reduce_max": ("reduce_min",),
    "reduce_min": ("reduce_max",),
    "reduce_l1": ("reduce_l2",),
    "softmax": ("log_softmax",),
    "less": ("less_or_equal",),
    "greater": ("greater_or_equal",),
    "less_or_equal": ("less",),
    "greater_or_equal": ("greater",),
    "logical_and": ("logical_or",),
    "logical_or": ("logical_and",),
    "global_average_pool": ("global_max_pool",),
    "global_max_pool": ("global_average_pool",),
    "rms_norm": ("layer_norm",),
    "contrib_gelu": ("fast_gelu",),
}
"""Operators that take the same operands and attributes, and compute something else."""

Made = tuple[Graph, Graph, str | None, tuple[tuple[str, Tensor], ...]]
"""The two sides, the guard and the typing of a mutant."""
Site = tuple[str, Callable[[], Made]]


@cache
def originals() -> tuple[Rule, ...]:
    """Every rule of the library, and every law with a typing that it has instances at."""
    return load_rules() + tuple(filter(None, map(_typed, laws())))


def _typed(law: Equation) -> Rule | None:
    rule = as_rule(law)
    if rule.given:
        return rule
    for _, _, found in instances(rule, Random(law.name), 1, 2000, strict=False, plain=True, examples=2):
        given = tuple((n, v.tensor) for n, v in found.items() if isinstance(v, Node))
        attributes = tuple((n, v) for n, v in found.items() if not isinstance(v, Node))
        return replace(rule, given=given, attributes=attributes)
    return None


def mutants(seed: int = 0, count: int = 2000) -> Iterator[tuple[Rule, str]]:
    """`count` different mutants, each with its change; a seed always gives the same ones."""
    places = [(rule, site) for rule in originals() for site in sites(rule)]
    Random(seed).shuffle(places)
    seen = {show_equation(rule.equation) for rule in originals()}
    made = 0
    for rule, (description, make) in places:
        if made >= count:
            return
        mutant = _made(rule, description, make)
        if mutant is None:
            continue
        text = show_equation(mutant.equation)
        retyped = mutant.given != rule.given
        if text in seen and not retyped:
            continue
        seen.add(text)
        made += 1
        yield mutant, f"{rule.name}: {description}"


def _made(rule: Rule, description: str, make: Callable[[], Made]) -> Rule | None:
    try:
        lhs, rhs, guard, given = make()
        name = f"{rule.name}.{description.replace(' ', '_')}"
        written = show_equation(Equation(name, lhs, rhs, Expr(guard) if guard else None))
        equation = parse_equation(written, name, rule.equation.evidence)
    except (TasoMirageError, SyntaxError, LookupError, TypeError, ValueError, OverflowError):
        return None
    bound = reversal.bound_names(equation.lhs)
    needed = (
        reversal.free_names(equation.rhs)
        | reversal.free_names(equation.lhs)
        | (names_in_expression(guard) if guard else set())
    )
    if needed - bound or bound != {n for n, _ in (*given, *rule.attributes)}:
        return None
    return replace(rule, name=name, given=given, equation=equation, evidence=NO_EVIDENCE)


def sites(rule: Rule) -> Iterator[Site]:
    """Every place of a rule that is changed, and how."""
    yield from _of_guard(rule)
    yield from _of_typing(rule)
    for left in (False, True):
        side = rule.equation.lhs if left else rule.equation.rhs
        where = "left" if left else "right"
        for i, node in enumerate(topological(side.outputs)):
            for description, changed in (*_of_term(node), *(() if left else _of_operands(node, rule))):
                yield f"{description} in term {i} on the {where}", _in(rule, left, node, changed)


def _in(rule: Rule, left: bool, target: Node, changed: Node) -> Callable[[], Made]:
    def make() -> Made:
        lhs, rhs = rule.equation.lhs, rule.equation.rhs
        new = _replaced(lhs if left else rhs, target, changed)
        return (new, rhs, _guard(rule), rule.given) if left else (lhs, new, _guard(rule), rule.given)

    return make


def _guard(rule: Rule) -> str | None:
    return rule.equation.where.source if rule.equation.where is not None else None


def _replaced(side: Graph, target: Node, changed: Node) -> Graph:
    """A side with another term, over the same operands, in the place of one."""
    done: dict[Node, Node] = {}
    for node in topological(side.outputs):
        if node is target:
            done[node] = changed
        elif not node.args:
            done[node] = node
        else:
            done[node] = Node(node.op, tuple(done[a] for a in node.args), node.attrs)
    outputs = tuple(done[o] for o in side.outputs)
    return Graph(tuple(n for n in topological(outputs) if n.op == "input"), outputs)


def _of_guard(rule: Rule) -> Iterator[Site]:
    """One conjunct left out."""
    guard = _guard(rule)
    parts = [ast.unparse(p) for p in conjuncts(guard or "")]
    for i in range(len(parts)):
        kept = " and ".join(f"({p})" for p in parts[:i] + parts[i + 1 :])

        def make(kept: str = kept) -> Made:
            return rule.equation.lhs, rule.equation.rhs, kept or None, rule.given

        yield f"conjunct {i} left out", make


def _of_typing(rule: Rule) -> Iterator[Site]:
    """One dim of the typing set to one; the equation stays as it is."""
    for k, (name, type) in enumerate(rule.given):
        for axis, n in enumerate(type.shape or ()):
            if n == 1 or axis > 1:
                continue
            shape = (*(type.shape or ())[:axis], 1, *(type.shape or ())[axis + 1 :])
            given = (*rule.given[:k], (name, Tensor(type.dtype, shape)), *rule.given[k + 1 :])

            def make(given: tuple[tuple[str, Tensor], ...] = given) -> Made:
                return rule.equation.lhs, rule.equation.rhs, _guard(rule), given

            yield f"dim {axis} of {name} is 1", make


def _of_term(node: Node) -> Iterator[tuple[str, Node]]:
    """A term with exchanged operands, another sign, another number, another operator or other
    attributes."""
    if node.op == "splat":
        value = float(node.attr("value"))
        for other in (-value, value + 1, value * 2):
            if other != value:
                yield f"{value:g} is {other:g}", Node("splat", (), (("value", other),))
        return
    if not node.args or node is ABSENT:
        return
    if len(node.args) >= 2 and node.args[0] is not node.args[1]:
        yield "operands exchanged", Node(node.op, (node.args[1], node.args[0], *node.args[2:]), node.attrs)
    for other in SIMILAR.get(node.op, ()):
        if get(other).attributes.keys() >= {k for k, _ in node.attrs}:
            yield f"{node.op} is {other}", Node(other, node.args, node.attrs)
    for k, (key, value) in enumerate(node.attrs):
        for changed in _other_values(key, value):
            attrs = (*node.attrs[:k], (key, changed), *node.attrs[k + 1 :])
            yield f"{key} of {node.op} changed", Node(node.op, node.args, attrs)


def _of_operands(node: Node, rule: Rule) -> Iterator[tuple[str, Node]]:
    """An operand negated, or replaced by another variable of the same type."""
    types = dict(rule.given)
    for k, arg in enumerate(node.args):
        if arg is ABSENT or arg.op == "splat":
            continue
        if node.op != "item":
            yield f"operand {k} negated", _with(node, k, Node("neg", (arg,)))
        if arg.op != "input":
            continue
        name = arg.attr("name")
        for other in rule.equation.lhs.inputs:
            if other is not arg and types.get(other.attr("name")) == types.get(name):
                yield f"operand {name} is {other.attr('name')}", _with(node, k, other)


def _with(node: Node, k: int, operand: Node) -> Node:
    return Node(node.op, (*node.args[:k], operand, *node.args[k + 1 :]), node.attrs)


def _other_values(key: str, value: Any) -> Sequence[Any]:
    """Wrong values of an attribute: an axis moved, a permutation changed, a number changed, parts
    of a vector exchanged."""
    if isinstance(value, Expr):
        return _other_expressions(key, value.source)
    if key == "perm" and isinstance(value, tuple) and len(value) > 1:
        return [(value[1], value[0], *value[2:]), (*value[1:], value[0])]
    if key in ("axis", "index", "keepdims") and isinstance(value, int):
        return [value + 1, value - 1] if value > 0 and key != "keepdims" else [1 - value]
    if isinstance(value, tuple) and value and all(isinstance(v, int) for v in value):
        moved = [(value[0] + 1, *value[1:])]
        return [*moved, (value[1], value[0], *value[2:])] if len(value) > 1 and value[0] != value[1] else moved
    if isinstance(value, float):
        return [value + 1, -value] if value else [value + 1]
    return ()


def _other_expressions(key: str, source: str) -> list[Expr]:
    if key == reversal.REST_KEY:
        return []
    if key == "perm":
        return [Expr(f"inverse({source})"), Expr(f"compose({source}, {source})")]
    if key in ("axis", "group", "k"):
        return [Expr(f"{source} + 1"), Expr(f"{source} - 1")]
    if key in ("alpha", "beta", "bias", "lambd", "value", "scale"):
        return [Expr(f"-({source})"), Expr(f"({source}) * 2")]
    if key in ("starts", "ends", "split", "shape", "axes", "pads", "repeats"):
        return [Expr(f"reversed({source})")]
    return []


def falsely_accepted(
    accepts: Callable[[Rule], bool], seed: int = 0, count: int = 2000, draws: int = 400
) -> list[tuple[Rule, str, str]]:
    """The mutants that a verifier accepts and the oracle refutes: each with its change and the
    counterexample."""
    found = []
    for rule, description in mutants(seed, count):
        if accepts(rule):
            counterexample = refute(rule, draws=draws, strict=False)
            if counterexample is not None:
                found.append((rule, description, str(counterexample)))
    return found
