"""Equations between graphs (TASO's substitutions, PET's mutants, Mirage's kernels): matching with reasons, and application."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias

from taso_mirage.errors import IllTyped, Undecidable, Unsupported
from taso_mirage.expressions import Expr, is_weight, moved, replaced, splat_value
from taso_mirage.ir import ABSENT, Graph, Node, Tensor, constant, is_float, topological
from taso_mirage.ops import get

REST = "**"
"""The key under which a pattern term keeps the name that captures all attributes it does not mention."""


@dataclass(frozen=True, slots=True)
class NoMatch:
    """Why an equation does not apply somewhere."""

    reason: str

    def __bool__(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Match:
    """Where a left-hand side was found: the matched outputs, and what its variables and attribute names stand for."""

    outputs: tuple[Node, ...]
    operands: Mapping[str, Node]
    attributes: Mapping[str, Any]

    @property
    def names(self) -> dict[str, Any]:
        return {**self.attributes, **self.operands}


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
        for name, numbers in _moved(self.rhs).items():
            back = f"minus({name}, {numbers})"
            lhs, rhs = _mapped(lhs, partial(_bare, name)), _mapped(rhs, partial(replaced, name=name, by=back))
            where = where and replaced(where, name, back)
        loose = (_free_names(rhs) | _free_names(lhs)) - _bound_names(lhs)
        leaf = any(o.op in ("input", "splat") for o in lhs.outputs)
        if loose or leaf:
            return None
        return Equation(f"{self.name}~", lhs, rhs, Expr(where) if where else None, self.evidence)

    @cached_property
    def roots(self) -> tuple[str, ...]:
        """The operators at the outputs of the left-hand side."""
        return tuple(o.op for o in self.lhs.outputs)

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


def match(equation: Equation, node: Node, users: Mapping[Node, list[Node]] | None = None) -> Match | NoMatch:
    """The first match with `node` as the first output, or the reason why there is none."""
    reason = [f"{node.op} is not {equation.roots[0]}"]
    for found in matches(equation, node, users, reason):
        return found
    return NoMatch(reason[0])


def matches(
    equation: Equation,
    node: Node,
    users: Mapping[Node, list[Node]] | None = None,
    why: Reason = None,
) -> Iterator[Match]:
    """Every match with `node` as the first output; `users` of each term are needed for several outputs."""
    first, *others = equation.lhs.outputs
    for state in _match(first, node, _State({}, {}), why):
        for outputs, full in _match_others(others, (node,), state, users or {}, why):
            if _holds(equation, full, why):
                yield Match(outputs, full.operands, full.attributes)


def _match_others(
    patterns: list[Node], outputs: tuple[Node, ...], state: _State, users: Mapping[Node, list[Node]], why: Reason
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


Reason: TypeAlias = list[str] | None
"""Where the reason of a failure is kept, if it is asked for."""


def _note(why: Reason, reason: str, *values: Any) -> None:
    """Keep the reason that came furthest: a guard that failed says more than an operator that differs."""
    if why is not None and not why[0].startswith("the guard"):
        _overrule(why, reason, *values)


def _overrule(why: Reason, reason: str, *values: Any) -> None:
    if why is not None:
        why[0] = reason.format(*values)


def _match(pattern: Node, node: Node, state: _State, why: Reason) -> Iterator[_State]:
    if pattern.op == "input":
        name = pattern.attr("name")
        bound = state.operands.get(name)
        if bound is None:
            yield _State({**state.operands, name: node}, state.attributes, state.later)
        elif bound is node:
            yield state
        else:
            _note(why, "{} stands for two different terms", name)
        return
    if pattern.op == "splat":
        if splat_value(node) == pattern.attr("value"):
            yield state
        else:
            _note(why, "{} is not the constant {}", node.op, pattern.attr("value"))
        return
    if node.op != pattern.op or len(node.args) != len(pattern.args):
        _note(why, "{} with {} operands is not {} with {}", node.op, len(node.args), pattern.op, len(pattern.args))
        return
    started = _match_attributes(pattern, node, state, why)
    if started is None:
        return
    yield from _match_args(pattern.args, node.args, started, why)
    if len(node.args) == 2 and node.args[0] is not node.args[1] and get(node.op).commutative:
        yield from _match_args(pattern.args, node.args[::-1], started, why)


def _match_args(patterns: tuple[Node, ...], args: tuple[Node, ...], state: _State, why: Reason) -> Iterator[_State]:
    if not patterns:
        yield state
        return
    for found in _match(patterns[0], args[0], state, why):
        yield from _match_args(patterns[1:], args[1:], found, why)


def _match_attributes(pattern: Node, node: Node, state: _State, why: Reason) -> _State | None:
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
            _note(why, "{} has {}={}, not {}", node.op, key, value, wanted)
            return None
        elif name is not None and attributes.setdefault(name, value) != value:
            _note(why, "{} has {}={}, where {} is {}", node.op, key, value, name, attributes[name])
            return None
    return _State(state.operands, attributes, tuple(later))


def _holds(equation: Equation, state: _State, why: Reason) -> bool:
    names = {**state.attributes, **state.operands}
    try:
        for expression, value in state.later:
            if expression(names) != value:
                _overrule(why, "{} is {}, not {}", expression.source, expression(names), value)
                return False
        if equation.where is not None and not equation.where(names):
            _overrule(why, "the guard does not hold: {}", equation.where.source)
            return False
    except (Undecidable, LookupError, TypeError, ValueError) as error:
        _overrule(why, "the guard cannot be decided: {}", error)
        return False
    return True


def apply(equation: Equation, found: Match) -> tuple[Node, ...] | NoMatch:
    """The right-hand side on what was matched; NoMatch where it has no type or another type than the left-hand side."""
    like = next((n.dtype for n in found.outputs if isinstance(n.type, Tensor)), "float32")
    try:
        results = instantiate(equation.rhs, found.names, like)
    except (IllTyped, Undecidable, LookupError, TypeError, ValueError, Unsupported) as error:
        return NoMatch(f"the right-hand side does not fit: {error}")
    for old, new in zip(found.outputs, results, strict=True):
        if old.type != new.type:
            return NoMatch(f"the type would change from {old.type} to {new.type}")
    inside = topological((*found.outputs, *results), stop=set(found.operands.values()))
    truncated = next((n for n in inside if _truncates(n)), None)
    return (
        results
        if truncated is None
        else NoMatch(f"{truncated.op} truncates on {truncated.dtype}; laws are over the reals")
    )


def _truncates(node: Node) -> bool:
    integer = isinstance(node.type, Tensor) and not is_float(node.type.dtype)
    return integer and bool(node.args) and node.op not in ("opaque", "item") and get(node.op).truncates


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


def _moved(side: Graph) -> dict[str, str]:
    """Attribute names that a side has as `plus(name, numbers)`, always with the same numbers, and never alone."""
    found: dict[str, set[str]] = {}
    for node in side:
        for _, value in node.attrs:
            if isinstance(value, Expr):
                of_name = moved(value.source) or (value.source, "")
                found.setdefault(of_name[0], set()).add(of_name[1])
    return {name: min(numbers) for name, numbers in found.items() if len(numbers) == 1 and "" not in numbers}


def _bare(name: str, source: str) -> str:
    found = moved(source)
    return name if found is not None and found[0] == name else source


def _mapped(side: Graph, change: Callable[[str], str]) -> Graph:
    """A side with other texts for the expressions in its attributes."""
    done: dict[Node, Node] = {}
    for node in topological(side.outputs):
        attrs = tuple((k, Expr(change(v.source)) if isinstance(v, Expr) and k != REST else v) for k, v in node.attrs)
        done[node] = Node(node.op, tuple(done[a] for a in node.args), attrs, node.type)
    return Graph(side.inputs, tuple(done[o] for o in side.outputs))


def _free_names(graph: Graph) -> set[str]:
    from taso_mirage.expressions import names

    found = set()
    for node in graph:
        if node.op == "input":
            found.add(node.attr("name"))
        found |= {n for _, v in node.attrs if isinstance(v, Expr) for n in names(v.source)}
    return found


def _bound_names(graph: Graph) -> set[str]:
    found = {n.attr("name") for n in graph if n.op == "input"}
    return found | {v.name for n in graph for _, v in n.attrs if isinstance(v, Expr) and v.name}


@dataclass(frozen=True, slots=True)
class Application:
    """An equation at one place: what it matched, and the terms to put there."""

    equation: Equation
    found: Match
    results: tuple[Node, ...]


class Rules:
    """Equations indexed by the operators at their first output and two levels below, so that few are tried where they cannot match."""

    def __init__(self, equations: Iterable[Equation]) -> None:
        self.equations = tuple(equations)
        self._single: dict[str, list[Equation]] = {}
        self._joint: dict[str, list[Equation]] = {}
        for equation in self.equations:
            table = self._single if len(equation.roots) == 1 else self._joint
            table.setdefault(equation.roots[0], []).append(equation)
        self._near: dict[_Outline, tuple[list[Equation], list[Equation]]] = {}
        self._known: dict[Node, tuple[Application, ...]] = {}

    def applications(self, node: Node) -> tuple[Application, ...]:
        """Every application of a one-output equation at `node` that gives another term than those of the equations before.

        It depends on the term alone, so it is found once a term.
        """
        known = self._known.get(node)
        if known is None:
            found: dict[tuple[Node, ...], Application] = {}
            for equation in self._candidates(node)[0]:
                for where in matches(equation, node):
                    results = apply(equation, where)
                    if not isinstance(results, NoMatch) and results[0] is not node:
                        found.setdefault(results, Application(equation, where, results))
            known = self._known[node] = tuple(found.values())
        return known

    def joint_applications(self, node: Node, users: Mapping[Node, list[Node]]) -> Iterator[Application]:
        """Applications of equations with several outputs, `node` being the first; they depend on the graph around."""
        for equation in self._candidates(node)[1]:
            for found in matches(equation, node, users):
                results = apply(equation, found)
                if not isinstance(results, NoMatch) and results != found.outputs:
                    yield Application(equation, found, results)

    def _candidates(self, node: Node) -> tuple[list[Equation], list[Equation]]:
        """The equations with one and with several outputs whose first output looks like `node`, in their order."""
        outline = _outline(node, LEVELS)
        near = self._near.get(outline)
        if near is None:
            single, joint = (
                [e for e in table.get(node.op, ()) if _resembles(e.lhs.outputs[0], node, LEVELS)]
                for table in (self._single, self._joint)
            )
            near = self._near[outline] = single, joint
        return near


LEVELS = 2
"""How far below a term its operators take part in the index of `Rules`."""
_Outline: TypeAlias = tuple[Any, ...]


def _outline(node: Node, levels: int) -> _Outline:
    """All of a term that `_resembles` looks at."""
    below = tuple([_outline(a, levels - 1) for a in node.args]) if levels else len(node.args)
    return node.op, below


def _resembles(pattern: Node, node: Node, levels: int) -> bool:
    """Whether `pattern` could match by the operators of the first levels."""
    if pattern.op == "input":
        return True
    if pattern.op == "splat":
        return node.op == "constant"
    if node.op != pattern.op or len(node.args) != len(pattern.args):
        return False
    orders = [node.args, node.args[::-1]] if len(node.args) == 2 and get(node.op).commutative else [node.args]
    return levels == 0 or any(
        all(_resembles(p, a, levels - 1) for p, a in zip(pattern.args, args, strict=True)) for args in orders
    )


def work_terms(nodes: Iterable[Node]) -> list[Node]:
    """The terms that cost something at run time: no leaves, and nothing that hangs on weights only."""
    return [n for n in nodes if n.args and n is not ABSENT and n.op != "item" and not is_weight(n)]
