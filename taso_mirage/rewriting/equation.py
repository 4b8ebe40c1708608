"""Equations between graphs (TASO's substitutions, PET's mutants, Mirage's kernels): matching with reasons, and application."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from taso_mirage.errors import IllTyped, Undecidable, Unsupported
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, constant, topological
from taso_mirage.operators.exactness import differs, truncates
from taso_mirage.operators.expressions import Expr, is_weight, replaced, uniform_value
from taso_mirage.operators.ops import get
from taso_mirage.rewriting import reversal
from taso_mirage.rewriting.match_keys import MATCHED_LEVELS, upper
from taso_mirage.rewriting.match_reason import UNASKED, MatchReason
from taso_mirage.verdicts import Failure, FailureKind

REST = reversal.REST_KEY


@dataclass(frozen=True, slots=True)
class Match:
    """Where a left-hand side was found: the matched outputs, and what its variables and attribute names stand for."""

    outputs: tuple[Node, ...]
    operands: Mapping[str, Node]
    attributes: Mapping[str, Any]

    @property
    def names(self) -> dict[str, Any]:
        return {**self.attributes, **self.operands}


BACKWARD = "~"
"""Behind the name of a rule: read from right to left."""


def directed(name: str) -> tuple[str, bool]:
    """The name of a rule as it is stated, and whether it was read from right to left."""
    return name.removesuffix(BACKWARD), name.endswith(BACKWARD)


@dataclass(frozen=True)
class Equation:
    """lhs = rhs for all typings on which `where` holds. Variables are untyped inputs; both sides have as many outputs."""

    name: str
    lhs: Graph
    rhs: Graph
    where: Expr | None = None
    evidence: str = "law"

    def reverse(self) -> Equation | None:
        """The equation read from right to left; None where the right side does not determine the left. Pads that the right side has
        as `plus(p, (1, 1))` are p there, and `minus(p, (1, 1))` on the left."""
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


@dataclass(frozen=True, slots=True)
class _State:
    operands: dict[str, Node]
    attributes: dict[str, Any]
    later: tuple[tuple[Expr, Any], ...] = ()


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
    """Every match with `node` as the first output; `users` of each term are needed for several outputs."""
    first, *others = equation.lhs.outputs
    for state in _match(first, node, _State({}, {}), why):
        for outputs, full in _match_others(others, (node,), state, users or {}, why):
            if _holds(equation, full, why):
                yield Match(outputs, full.operands, full.attributes)


def _match_others(
    patterns: list[Node], outputs: tuple[Node, ...], state: _State, users: Mapping[Node, list[Node]], why: MatchReason
) -> Iterator[tuple[tuple[Node, ...], _State]]:
    if not patterns:
        yield outputs, state
        return
    pattern, *others = patterns
    for candidate in _candidates(pattern, state, users):
        if candidate in outputs:
            continue
        for found in _match(pattern, candidate, state, why):
            yield from _match_others(others, (*outputs, candidate), found, users, why)


def _candidates(pattern: Node, state: _State, users: Mapping[Node, list[Node]]) -> list[Node]:
    """The terms that could be `pattern`: climb from a variable that is already bound."""
    path = _path_to_bound(pattern, state)
    if path is None:
        return []
    found = [state.operands[path[0].attr("name")]]
    for step in path[1:]:
        found = [u for n in found for u in users.get(n, ()) if u.op == step.op]
    return list(dict.fromkeys(found))


def _path_to_bound(pattern: Node, state: _State) -> list[Node] | None:
    if pattern.op == "input":
        return [pattern] if pattern.attr("name") in state.operands else None
    for arg in pattern.args:
        path = _path_to_bound(arg, state)
        if path is not None:
            return [*path, pattern]
    return None


def _match(pattern: Node, node: Node, state: _State, why: MatchReason) -> Iterator[_State]:
    if pattern.op == "input":
        name = pattern.attr("name")
        bound = state.operands.get(name)
        if node is ABSENT:  # equations are proved with the operand there
            why.note("{} stands for an operand, which is absent", name)
        elif bound is None:
            yield _State({**state.operands, name: node}, state.attributes, state.later)
        elif bound is node:
            yield state
        else:
            why.note("{} stands for two different terms", name)
        return
    if pattern.op == "splat":
        if uniform_value(node) == pattern.attr("value"):
            yield state
        else:
            why.note("{} is not the constant {}", node.op, pattern.attr("value"))
        return
    if node.op != pattern.op or len(node.args) != len(pattern.args):
        why.note("{} with {} operands is not {} with {}", node.op, len(node.args), pattern.op, len(pattern.args))
        return
    started = _match_attributes(pattern, node, state, why)
    if started is None:
        return
    yield from _match_args(pattern.args, node.args, started, why)
    if len(node.args) == 2 and node.args[0] is not node.args[1] and get(node.op).commutative:
        yield from _match_args(pattern.args, node.args[::-1], started, why)


def _match_args(
    patterns: tuple[Node, ...], args: tuple[Node, ...], state: _State, why: MatchReason
) -> Iterator[_State]:
    if not patterns:
        yield state
        return
    for found in _match(patterns[0], args[0], state, why):
        yield from _match_args(patterns[1:], args[1:], found, why)


def _match_attributes(pattern: Node, node: Node, state: _State, why: MatchReason) -> _State | None:
    if not pattern.attrs:
        return state
    attributes, later = dict(state.attributes), list(state.later)
    actual = dict(node.attrs)
    for key, wanted in pattern.attrs:
        value: Any = tuple(sorted(actual.items())) if key == REST else actual.pop(key)
        name = wanted.name if isinstance(wanted, Expr) else None
        if isinstance(wanted, Expr) and name is None:
            later.append((wanted, value))
        elif name is None and wanted != value:
            why.note("{} has {}={}, not {}", node.op, key, value, wanted)
            return None
        elif name is not None and attributes.setdefault(name, value) != value:
            why.note("{} has {}={}, where {} is {}", node.op, key, value, name, attributes[name])
            return None
    return _State(state.operands, attributes, tuple(later))


def _holds(equation: Equation, state: _State, why: MatchReason) -> bool:
    names = {**state.attributes, **state.operands}
    try:
        for expression, value in state.later:
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
    """The right-hand side on what was matched; a failure where it has no type or another type than the left-hand side."""
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
    """The results, unless integers would be divided, or summed by another kernel of the runtime's that rounds them."""
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
    return results


def instantiate(side: Graph, names: Mapping[str, Any], like: str = "float32") -> tuple[Node, ...]:
    """One side of an equation with terms for its variables and values for its attribute names. Raises what typing raises."""
    done: dict[Node, Node] = {}
    for node in topological(side.outputs):
        done[node] = _instantiate(node, done, names, like)
    return tuple(done[o] for o in side.outputs)


def _instantiate(node: Node, done: Mapping[Node, Node], names: Mapping[str, Any], like: str) -> Node:
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
        dtype = next((d for d in siblings if d != "bool"), siblings[0])  # the condition of a where says nothing
        args = [
            constant(p.attr("value"), dtype) if p.op == "splat" else a for a, p in zip(args, node.args, strict=True)
        ]
    return get(node.op).term(*args, **attrs)


def resembles(pattern: Node, node: Node) -> bool:
    """Whether a pattern matches, without computed attributes and guards."""
    return next(_match(pattern, node, _State({}, {}), UNASKED), None) is not None


def work_terms(nodes: Iterable[Node]) -> list[Node]:
    """The terms that cost something at run time: no leaves, and nothing that hangs on weights only."""
    return [n for n in nodes if n.args and n is not ABSENT and n.op != "item" and not is_weight(n)]
