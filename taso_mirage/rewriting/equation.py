"""Equations between graphs (TASO's substitutions, PET's mutants, Mirage's kernels): matching with
reasons, and application."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from taso_mirage.errors import IllTyped, Undecidable, Unsupported
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, constant, topological, variable
from taso_mirage.meanings.reals import REALS
from taso_mirage.operators.exactness import differs, truncates
from taso_mirage.operators.expressions import Expr, is_weight, replaced
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import get, traits
from taso_mirage.rewriting import patterns, reversal
from taso_mirage.rewriting.match_keys import MATCHED_LEVELS, upper
from taso_mirage.rewriting.match_reason import UNASKED, MatchReason
from taso_mirage.rewriting.patterns import REST
from taso_mirage.verdicts import Failure, FailureKind


@dataclass(frozen=True, slots=True)
class Match:
    """A match of a left-hand side: the matched outputs, and the values of its variables and
    attribute names."""

    outputs: tuple[Node, ...]
    operands: Mapping[str, Node]
    attributes: Mapping[str, Any]

    @property
    def names(self) -> dict[str, Any]:
        return {**self.attributes, **self.operands}


BACKWARD = "~"
"""The suffix of a rule's name for its application from right to left."""


def directed(name: str) -> tuple[str, bool]:
    """The stated name of a rule, and whether it is applied from right to left."""
    return name.removesuffix(BACKWARD), name.endswith(BACKWARD)


@dataclass(frozen=True)
class Equation:
    """lhs = rhs for all typings on which `where` holds.

    Variables are untyped inputs; both sides have as many outputs. `together`: it is tried at all of
    its places at once (`search/simultaneous.py`). `last`: among the passes it comes after large
    fusions, whose patterns have the operator that it removes. `moving`: it moves a change of layout
    towards the outputs, as the passes do at all places at once where that takes enough away in the
    end.
    """

    name: str
    lhs: Graph
    rhs: Graph
    where: Expr | None = None
    evidence: str = "law"
    together: bool = False
    last: bool = False
    moving: bool = False

    def reverse(self) -> Equation | None:
        """The equation from right to left; None if the right side does not determine the left side.
        Pads that are `plus(p, (1, 1))` on the right side become p there, and `minus(p, (1, 1))` on
        the left."""
        lhs, rhs, where = self.rhs, self.lhs, self.where.source if self.where else None
        for name, numbers in reversal.shifted_names(self.rhs).items():
            back = f"minus({name}, {numbers})"
            lhs, rhs = (
                reversal.mapped(lhs, partial(reversal.unshifted, name)),
                reversal.mapped(rhs, partial(replaced, name=name, by=back)),
            )
            where = where and replaced(where, name, back)
        loose = (reversal.free_names(rhs) | reversal.free_names(lhs)) - reversal.bound_names(lhs)
        leaf = any(o.op in ("input", "splat") for o in lhs.outputs)
        if loose or leaf:
            return None
        return Equation(f"{self.name}{BACKWARD}", lhs, rhs, Expr(where) if where else None, self.evidence)

    @property
    def backward(self) -> bool:
        """Whether it is the reverse of a rule."""
        return directed(self.name)[1]

    @cached_property
    def dropped(self) -> frozenset[str]:
        """The variables that the right-hand side leaves out although the left-hand side is NaN if
        they are: x in x - x = 0. Found with numbers, at rank 0."""
        left, right = (frozenset(n.attr("name") for n in side if n.op == "input") for side in (self.lhs, self.rhs))
        return frozenset(x for x in left - right if self._is_nan(left, x))

    def _is_nan(self, names: frozenset[str], unknown: str) -> bool:
        """Whether the left-hand side is NaN on ones and one operand that is NaN."""
        terms = {name: variable(name, Tensor("float32", ())) for name in names}
        values = {terms[name]: np.array(np.nan if name == unknown else 1, np.float32) for name in names}
        try:
            outputs = interpret(instantiate(self.lhs, terms), REALS, values)
        except (IllTyped, Undecidable, LookupError, TypeError, ValueError, ArithmeticError, Unsupported):
            return False
        return any(np.isnan(each).any() for each in outputs.values())

    @cached_property
    def roots(self) -> tuple[str, ...]:
        """The operators at the outputs of the left-hand side."""
        return tuple(o.op for o in self.lhs.outputs)

    @cached_property
    def needs(self) -> frozenset[str]:
        """The operators of the upper part of the left-hand side's first output."""
        return frozenset(n.op for n in topological([upper(self.lhs.outputs[0], MATCHED_LEVELS)]) if n.args)

    @cached_property
    def lhs_terms(self) -> tuple[Node, ...]:
        return tuple(n for n in self.lhs if n.op not in ("input", "splat"))

    @cached_property
    def rhs_terms(self) -> tuple[Node, ...]:
        return tuple(n for n in self.rhs if n.op not in ("input", "splat"))


def match(equation: Equation, node: Node, users: Mapping[Node, list[Node]] | None = None) -> Match | Failure:
    """The first match with `node` as the first output, or the reason why there is none."""
    reason = MatchReason(f"{node.op} is not {equation.roots[0]}")
    for found in matches(equation, node, users, reason):
        return found
    return _no_match(reason.text)


def matches(
    equation: Equation,
    node: Node,
    users: Mapping[Node, list[Node]] | None = None,
    why: MatchReason = UNASKED,
) -> Iterator[Match]:
    """Every match with `node` as the first output; `users` of each term are needed for several
    outputs."""
    for found in patterns.found_at(equation.lhs.outputs, node, patterns.Terms(users or {}), why=why):
        if _holds(equation, found.bindings, why):
            yield Match(found.outputs, found.bindings.operands, found.bindings.attributes)


def _holds(equation: Equation, found: patterns.Bindings[Node], why: MatchReason) -> bool:
    names = {**found.attributes, **found.operands}
    try:
        for expression, value in found.later:
            if expression(names) != value:
                why.overrule("{} is {}, not {}", expression.source, expression(names), value)
                return False
        if equation.where is not None and not equation.where(names):
            why.overrule("the guard does not hold: {}", equation.where.source, guard=True)
            return False
    except (Undecidable, LookupError, TypeError, ValueError, ArithmeticError) as error:
        why.overrule("the guard cannot be decided: {}", error, guard=True)
        return False
    return True


def _no_match(reason: str) -> Failure:
    return Failure(FailureKind.NO_MATCH, reason)


def apply_equation(equation: Equation, found: Match) -> tuple[Node, ...] | Failure:
    """The right-hand side on the matched terms; a failure where it has no type or another type than
    the left-hand side."""
    like = next((n.dtype for n in found.outputs if isinstance(n.type, Tensor)), "float32")
    try:
        results = instantiate(equation.rhs, found.names, like)
    except (IllTyped, Undecidable, LookupError, TypeError, ValueError, ArithmeticError, Unsupported) as error:
        return _no_match(f"the right-hand side does not fit: {error}")
    for old, new in zip(found.outputs, results, strict=True):
        if old.type != new.type:
            return _no_match(f"the type would change from {old.type} to {new.type}")
    return _legal(found, results)


def _legal(found: Match, results: tuple[Node, ...]) -> tuple[Node, ...] | Failure:
    """The results, unless the application divides integers, sums them by another kernel of the
    runtime that rounds them, or introduces indices that the runtime requires to be within
    bounds."""
    leaves = set(found.operands.values())
    before, after = (topological(side, stop=leaves) for side in (found.outputs, results))
    truncated = next((n for n in (*before, *after) if truncates(n)), None)
    if truncated is not None:
        why = f"{truncated.op} truncates on {truncated.dtype}; laws are over the reals"
        return Failure(FailureKind.EXCLUDED, why)
    moved = next(iter({n for n in before if differs(n)} ^ {n for n in after if differs(n)}), None)
    if moved is not None:
        why = f"{moved.op} of the runtime rounds {moved.dtype} and saturates where the law wraps"
        return Failure(FailureKind.INACCURATE, why)
    asked = {indices: n for n in after if (indices := _inside(n)) is not None and not is_weight(indices)}
    anew = next(iter(asked.keys() - set(map(_inside, before))), None)
    if anew is not None:
        why = f"{asked[anew].op} of the runtime takes no indices from the end, and only a run tells these"
        return Failure(FailureKind.EXCLUDED, why)
    return results


def _inside(node: Node) -> Node | None:
    """The operand of a term whose indices the runtime requires to be within bounds."""
    place = traits(node).inside
    return node.args[place] if place is not None and place < len(node.args) and node.args[place] is not ABSENT else None


def instantiate(side: Graph, names: Mapping[str, Any], like: str = "float32") -> tuple[Node, ...]:
    """One side of an equation with terms for its variables and values for its attribute names.

    Raises the errors of typing.
    """
    done: dict[Node, Node] = {}
    order = topological(side.outputs)
    conditions = _conditions(order)
    for node in order:
        known = "bool" if node in conditions else like
        done[node] = _instantiate(node, done, names, known, conditions)
    return tuple(done[o] for o in side.outputs)


def _conditions(order: Sequence[Node]) -> frozenset[Node]:
    """The numbers of a pattern that are conditions: operands, possibly expanded, that are booleans
    in every example of the operator."""
    if all(n.op != "splat" for n in order):
        return frozenset()
    operands = [(n.op, i, topological([a])) for n in order for i, a in enumerate(n.args)]
    numbers = [each for each in operands if not any(n.op == "input" or "dtype" in dict(n.attrs) for n in each[2])]
    return frozenset(n for op, i, inside in numbers if _takes_booleans(op, i) for n in inside if n.op == "splat")


def _takes_booleans(op: str, operand: int) -> bool:
    found = [e.operands[operand] for e in get(op).examples if operand < len(e.operands)]
    return bool(found) and all(isinstance(each, str) and each.startswith("bool") for each in found)


def _instantiate(
    node: Node, done: Mapping[Node, Node], names: Mapping[str, Any], like: str, conditions: Container[Node] = ()
) -> Node:
    if node.op == "input":
        bound: Node = names[node.attr("name")]
        return bound
    if node.op == "splat":
        return constant(node.attr("value"), like)
    if node is ABSENT:
        return node
    attrs: dict[str, Any] = {}
    for key, value in node.attrs:
        if key == REST:
            attrs.update(names[str(value)])
        else:
            attrs[key] = value(names) if isinstance(value, Expr) else value
    args = [done[a] for a in node.args]
    siblings = [a.dtype for a, p in zip(args, node.args, strict=True) if p.op != "splat" and isinstance(a.type, Tensor)]
    if siblings:
        dtype = next((d for d in siblings if d != "bool"), siblings[0])  # the condition of a `where` is no information
        args = [
            constant(p.attr("value"), dtype) if p.op == "splat" and p not in conditions else a
            for a, p in zip(args, node.args, strict=True)
        ]
    return get(node.op).term(*args, **attrs)


def resembles(pattern: Node, node: Node) -> bool:
    """Whether a pattern matches, without computed attributes and guards."""
    return next(patterns.found_at((pattern,), node, patterns.Terms({})), None) is not None


def work_terms(nodes: Iterable[Node]) -> list[Node]:
    """The terms that are computed at run time: neither leaves nor terms that depend on weights
    only."""
    return [n for n in nodes if n.args and n is not ABSENT and n.op != "item" and not is_weight(n)]
