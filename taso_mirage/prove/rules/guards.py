"""Guards from failures: the weakest conjunction of simple predicates that excludes every typing on
which a rule is false."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.terms import Graph, Node, topological, variable
from taso_mirage.operators.expressions import Expr
from taso_mirage.prove.counterexample import find_counterexample
from taso_mirage.prove.fingerprint import Agreed
from taso_mirage.prove.rules.fuzz import Typing, typings, verdicts
from taso_mirage.prove.rules.random_typings import VariableTypes
from taso_mirage.rewriting.equation import Equation
from taso_mirage.rewriting.patterns import REST
from taso_mirage.verdicts import Counterexample, Failure, FailureKind, failed

POOL: tuple[tuple[str, str], ...] = (
    ("x", "is_float({x})"),
    ("n", "{n} == {value}"),
    ("t", "{t} == {value}"),
    ("t", "len({t}) == {length}"),
    ("t", "max({t}) == 0"),
    ("t", "max({t}) == 1"),
    ("t", "min({t}) >= 0"),
    ("tu", "{t} == {u}"),
    ("tu", "{t} == inverse({u})"),
    ("ut", "{t} == inverse({u})"),
    ("nt", "{n} in {t}"),
    ("nt", "{n} not in {t}"),
    ("nt", "max({t}) < {n}"),
    ("nm", "{n} == {m}"),
    ("nm", "{n} != {m}"),
    ("n", "{n} >= 0"),
    ("n", "{n} > 0"),
    ("n", "{n} < 2"),
    ("tn", "{t}[{n}] == {n}"),
    ("nx", "{n} == rank({x}) - 1"),
    ("nx", "{n} < rank({x}) - 1"),
    ("nx", "{n} < rank({x}) - 2"),
    ("nx", "{n} < rank({x})"),
    ("tx", "max({t}) == rank({x}) - 1"),
    ("tx", "max({t}) < rank({x}) - 1"),
    ("tx", "{t}[-1] == rank({x}) - 1"),
    ("tx", "{t} == iota(rank({x}))"),
    ("tx", "{t}[:2] == (0, 1)"),
    ("xy", "shape({x}) == shape({y})"),
    ("xt", "shape({x}) == {t}"),
    ("t", "min({t}) > 0"),
    ("xy", "rank({x}) == rank({y})"),
    ("xy", "rank({x}) >= rank({y})"),
    ("yx", "rank({x}) >= rank({y})"),
    ("xy", "shape({x})[1:] == shape({y})[1:]"),
    ("xy", "shape({x})[2:] == shape({y})[2:]"),
    ("xy", "shape({x})[:rank({x}) - 1] == shape({y})[:rank({y}) - 1]"),
    ("xy", "shape({x})[:rank({x}) - 2] == shape({y})[:rank({y}) - 2]"),
    ("xyn", "without(shape({x}), {n}) == without(shape({y}), {n})"),
    ("x", "size({x}) == 1"),
    ("x", "rank({x}) == {rank}"),
    ("x", "rank({x}) >= {rank}"),
    ("x", "rank({x}) <= {rank}"),
    ("x", "shape({x})[2:] == {spatial}"),
    ("xiyj", "dim({x}, {i}) == dim({y}, {j})"),
    ("xij", "dim({x}, {i}) == dim({x}, {j})"),
    ("xi", "dim({x}, {i}) == {dim}"),
    ("xi", "dim({x}, {i}) % 2 == 1"),
    ("xyi", "shape({x}) == (dim({y}, {i}),)"),
    ("nxi", "{n} == dim({x}, {i})"),
    ("xytn", "prod(shape({x})[{n}:]) == prod(shape({y}))"),
)
"""The predicates of guards, simple ones first: the names over which a predicate ranges (x, y
tensors; i, j axes of x and of the last tensor; n, m numbers; t, u tuples), and its text. `value`,
`rank`, ... have their values at the given typing."""

TYPINGS, TRIALS, ROUNDS, TRIES = 500, 4, 10, 16
FAILURES = 40
"""The number of failing typings that are gathered before a guard is sought."""
DEPTH, BREADTH = 4, 8


@dataclass(frozen=True, slots=True)
class Condition:
    """A predicate on the names of a rule; `pinned` says that an attribute of a `**a` must have one
    value instead."""

    source: str
    pinned: tuple[str, str, Any] | None = None

    def __call__(self, env: Mapping[str, Any]) -> bool:
        if self.pinned is not None:
            name, key, value = self.pinned
            return bool(dict(env.get(name, ())).get(key, value) == value)  # absent where the equation states it already
        try:
            return bool(Expr(self.source)(env))
        except (TasoMirageError, LookupError, TypeError, ValueError):
            return False


@dataclass(frozen=True, slots=True)
class Settled:
    """The equation with the guard under which a number of random legal typings agreed and none did
    not."""

    equation: Equation
    typings: int
    trials: int = TRIALS
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """Typings that were fingerprinted: those that agreed, and those that did not."""

    passing: tuple[Typing, ...]
    failing: tuple[tuple[Typing, Failure], ...]

    @property
    def counterexample(self) -> Counterexample | None:
        """A counterexample from the smallest typing that failed, with values if one of the smaller
        ones has them."""
        found = None
        for typing, refuted in sorted(self.failing, key=lambda f: f[0].elements)[:4]:
            found = find_counterexample(typing.lhs, typing.rhs, refuted)
            if not found.note:
                break
        return found


def sample(
    equation: Equation,
    given: VariableTypes,
    attributes: Iterable[tuple[str, Any]],
    wanted: int,
    seed: int,
    failures: int = FAILURES,
    trials: int = TRIALS,
) -> Sample:
    """Typings until `wanted` agreed or `failures` failed."""
    found = typings(equation, seed, TRIES * wanted, given, attributes)
    return judged(found, wanted, seed, failures, trials)


def judged(found: Iterable[Typing], wanted: int, seed: int, failures: int = FAILURES, trials: int = TRIALS) -> Sample:
    """Fingerprints of some typings until `wanted` agreed or `failures` failed."""
    passing: list[Typing] = []
    failing: list[tuple[Typing, Failure]] = []
    for typing, verdict in verdicts(found, trials, seed):
        if failed(verdict, FailureKind.REFUTED):
            failing.append((typing, verdict))
        elif isinstance(verdict, Agreed):
            passing.append(typing)
        if len(passing) >= wanted or len(failing) >= failures:
            break
    return Sample(tuple(passing), tuple(failing))


def infer_guard(
    equation: Equation,
    given: VariableTypes,
    attributes: Sequence[tuple[str, Any]] = (),
    wanted: int = TYPINGS,
    seed: int = 0,
    infer: bool = True,
) -> Settled | Failure:
    """Fuzz until `wanted` typings agree and none fails, adding conditions to the guard for the
    failures.

    Where the typings that match are few, all that were found count: `Settled.typings` says how
    many. Rejected with a counterexample where no guard that holds at `given` excludes the failures
    (or `infer` is off).
    """
    current, chosen, known = equation, None, Sample((), ())
    attributes = stated_values(equation, attributes)
    for i in range(ROUNDS):
        found = sample(current, given, stated_values(current, attributes), wanted, seed + 7919 * i)
        if not found.failing and found.passing:
            return Settled(current, len(found.passing), TRIALS, chosen or ())
        known = Sample((*known.passing, *found.passing), (*known.failing, *found.failing))
        if not known.failing:
            return Failure(FailureKind.UNDECIDED, "no legal typing was found")
        chosen = weakest(equation, known, given, attributes) if infer else None
        if chosen is None:
            return Failure(FailureKind.REFUTED, "it is false on legal typings", known.counterexample)
        current = guarded(equation, chosen)
    return Failure(FailureKind.REFUTED, "every guard that was tried failed again", known.counterexample)


def stated_values(equation: Equation, attributes: Iterable[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    """The values at `given` without those that the equation states itself."""
    pinned = {str(v): {k for k, _ in n.attrs} for n in equation.lhs for key, v in n.attrs if key == REST}
    found: list[tuple[str, Any]] = []
    for name, value in attributes:
        found.append((name, tuple(p for p in value if p[0] not in pinned[name]) if name in pinned else value))
    return tuple(found)


def guarded(equation: Equation, conditions: Iterable[Condition]) -> Equation:
    """The equation under more conditions; those on an attribute of a `**a` are written into the
    terms."""
    parts = [c.source for c in conditions if c.pinned is None]
    own = equation.where.source if equation.where else ""
    own = f"({own})" if parts and " or " in own else own
    where = " and ".join([own, *parts] if own else parts)
    equation = replace(equation, where=Expr(where) if where else None)
    for condition in conditions:
        if condition.pinned is not None:
            sides = [_pin(side, *condition.pinned) for side in (equation.lhs, equation.rhs)]
            equation = replace(equation, lhs=sides[0], rhs=sides[1])
    return equation


def _pin(side: Graph, name: str, key: str, value: Any) -> Graph:
    done: dict[Node, Node] = {}
    for node in topological(side.outputs):
        attrs = node.attrs
        if any(k == REST and str(v) == name for k, v in attrs):
            attrs = (*((k, v) for k, v in attrs if k != REST), (key, value), *((k, v) for k, v in attrs if k == REST))
        done[node] = Node(node.op, tuple(done[a] for a in node.args), attrs, node.type)
    return Graph(side.inputs, tuple(done[o] for o in side.outputs))


# ---------------------------------------------------------------- inference


def weakest(
    equation: Equation,
    found: Sample,
    given: VariableTypes,
    attributes: Sequence[tuple[str, Any]] = (),
    allowed: Callable[[Condition], bool] = lambda c: True,
) -> tuple[Condition, ...] | None:
    """The conjunction that excludes every failing typing and keeps most of the others; None if
    there is none."""
    failing = [t.names for t, _ in found.failing]
    passing = [t.names for t in found.passing]
    useful: dict[tuple[int, int], Condition] = {}
    for condition in _conditions(equation, given, attributes):
        if not allowed(condition):
            continue
        kept = _mask(condition, failing)
        if kept != (1 << len(failing)) - 1:
            useful.setdefault((~kept & (1 << len(failing)) - 1, _mask(condition, passing)), condition)
    best: list[Any] = [0.0, None]
    _choose(list(useful), (1 << len(failing)) - 1, (1 << len(passing)) - 1, (), best)
    return None if best[1] is None else tuple(useful[key] for key in best[1])


def _mask(condition: Condition, envs: Sequence[Mapping[str, Any]]) -> int:
    mask = 0
    for i, env in enumerate(envs):
        mask |= condition(env) << i
    return mask


Key = tuple[int, int]


def _choose(keys: list[Key], left: int, kept: int, chosen: tuple[Key, ...], best: list[Any]) -> None:
    """Branch over the predicates that exclude the first remaining failing typing; each additional
    predicate must be worth its cost."""
    score = (kept.bit_count() + 0.5) * 0.9 ** len(chosen)
    if score <= best[0]:
        return
    if not left:
        best[:] = [score, chosen]
        return
    if len(chosen) == DEPTH:
        return
    first = left & -left
    options = [k for k in keys if k[0] & first]
    options.sort(key=lambda k: -(kept & k[1]).bit_count() - 0.5 * (k[0] & left).bit_count())
    for key in options[:BREADTH]:
        _choose(keys, left & ~key[0], kept & key[1], (*chosen, key), best)


def _conditions(equation: Equation, given: VariableTypes, attributes: Sequence[tuple[str, Any]]) -> Iterator[Condition]:
    """Every instance of the pool that holds at the given typing."""
    at_given: dict[str, Any] = {**dict(attributes), **{n: variable(n, t) for n, t in given}}
    rests = {str(v) for n in equation.lhs for k, v in n.attrs if k == REST}
    for name in sorted(rests):
        for key, value in at_given.get(name, ()):
            yield Condition(f"{key} == {value}", (name, key, value))
    for letters, template in POOL:
        for fields in _fields(letters, at_given, rests):
            condition = Condition(template.format(**fields))
            if condition(at_given):
                yield condition


def _fields(letters: str, env: Mapping[str, Any], rests: set[str]) -> Iterator[dict[str, Any]]:
    kinds = {
        "x": [n for n, v in env.items() if isinstance(v, Node)],
        "n": [n for n, v in env.items() if isinstance(v, int | float | str) and not isinstance(v, bool)],
        "t": [n for n, v in env.items() if isinstance(v, tuple) and n not in rests],
    }
    groups = [
        ("xy", kinds["x"]),
        ("nm", kinds["n"]),
        ("tu", kinds["t"]),
    ]
    chosen = [[c for c in letters if c in group] for group, _ in groups]
    pools = [combinations(pool, len(own)) for own, (_, pool) in zip(chosen, groups, strict=True)]
    for picked in product(*pools):
        fields = {
            c: name for own, names_ in zip(chosen, picked, strict=True) for c, name in zip(own, names_, strict=True)
        }
        yield from _with_axes(letters, fields, env)


def _with_axes(letters: str, fields: dict[str, Any], env: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    x = env.get(fields.get("x", ""))
    last = env.get(fields.get("y", fields.get("x", "")))
    axes = _axes(x) if "i" in letters else [None]
    others = _axes(last) if "j" in letters else [None]
    for i, j in product(axes, others):
        if i is not None and j is not None and "y" not in letters and i >= j:
            continue
        more: dict[str, Any] = {"i": i, "j": j}
        if isinstance(x, Node):
            more |= {"rank": len(x.shape), "spatial": x.shape[2:]}
            if i is not None:
                more["dim"] = x.shape[i]
        value = env.get(fields.get("n", fields.get("t", "")))
        more |= {"value": repr(value), "length": len(value) if isinstance(value, tuple) else 0}
        yield {**fields, **more}


def _axes(node: Any) -> list[int]:
    rank = len(node.shape)
    return [*range(rank), *range(-min(rank, 2), 0)]
