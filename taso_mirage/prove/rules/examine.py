"""The judgement of a rule as it is stated: its cases, from enumerated and adversarial typings, with
a proof or a counterexample for each (docs/soundness.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from random import Random
from typing import Any

import numpy as np

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.terms import Graph, Node, is_float, numpy_dtype, topological
from taso_mirage.meanings.arrays import Array
from taso_mirage.meanings.base import Scalar
from taso_mirage.meanings.functions import function_of
from taso_mirage.meanings.reals import EXACT, Reals
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import traits
from taso_mirage.prove.rules.enumeration import enumerated, typing_structure
from taso_mirage.prove.rules.fuzz import Typing
from taso_mirage.prove.rules.hostile import RuleStatement, drawn
from taso_mirage.prove.rules.proofs import CaseVerdict, Coverage, Proofs
from taso_mirage.rewriting.equation import Match
from taso_mirage.rewriting.index import Application
from taso_mirage.rewriting.text import show_graph
from taso_mirage.verdicts import Counterexample

RANGES = ((0.0, 1.0), (-2.0, 2.0), (1.0, 3.0), (-5.0, 5.0), (1.0, 40.0), (-100.0, 100.0))
"""The ranges from which floats are drawn. With positive ranges, roots, quotients and logarithms are
defined."""
TRIES = 4
ENOUGH = 24
"""The number of failed cases after which the examination ends."""
WORK = 400_000
"""The number of proof steps after which cases are only compared in numbers."""
COMPARED = 3
"""The number of typings that are enumerated for each one that is judged."""
GLANCES = ((-3.0, 3.0), (0.5, 4.0), (-100.0, 100.0), (-0.05, 0.05))
"""The range of the floats with which every enumerated typing is compared."""
APART = 1e-6
ROUNDED = 2e-4
"""The smallest difference that refutes, relative to the larger value or 1: in general, and if a
conversion rounds."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One case of a rule at a typing: its verdict, and numbers that refute it where there are
    some."""

    typing: Typing
    verdict: CaseVerdict
    counterexample: Counterexample | None = None

    @property
    def status(self) -> str:
        """`proved`, `bounded`, `refuted` or `unproved`."""
        if self.verdict:
            return "bounded" if self.verdict.covers is Coverage.HERE else "proved"
        return "unproved" if self.counterexample is None else "refuted"


@dataclass(frozen=True, slots=True)
class Examined:
    """All judged cases of a rule, each once, the number of typings in them, and the number of other
    kinds of typings that were only compared in numbers."""

    cases: tuple[Judged, ...]
    typings: int
    compared: int = 0

    def of(self, *status: str) -> list[Judged]:
        return [c for c in self.cases if c.status in status]

    @property
    def holds(self) -> bool:
        """Whether every case is proved, and there is one beside that of the rule's own typing."""
        return bool(self.cases) and self.typings > 0 and not self.of("refuted", "unproved")


def examine(statement: RuleStatement, proofs: Proofs, seed: int = 0, wanted: int = 512) -> Examined:
    """Judge the cases of `wanted` typings: half of them enumerated, the others drawn.

    More typings are enumerated (`COMPARED`) and compared in numbers. All that differ are judged
    first; of the others, as many as the half and the work of proofs (`WORK`) permit.
    """
    judging = _Judging(statement, proofs, seed)
    kinds = list(_by_structure(statement, islice(enumerated(statement, seed), COMPARED * wanted)))
    differ = [t for t in kinds if apart_somewhere(t, seed)]
    apart = {id(typing) for typing in differ}
    equal = [t for t in kinds if id(t) not in apart][: wanted // 2]
    for typing in (*differ[: ENOUGH // 2], *equal, *differ[ENOUGH // 2 :]):  # cases that hold show the guard, too
        if judging.over:
            break
        judging.look(typing)
    left = len(kinds) - judging.typings
    for typing in drawn(statement, seed, wanted - wanted // 2):
        if judging.over:
            break
        judging.look(typing)
    return Examined(tuple(judging.found.values()), judging.typings, left)


def _by_structure(statement: RuleStatement, typings: Iterable[Typing]) -> Iterator[Typing]:
    """One typing of each structure."""
    seen: set[tuple[Any, ...]] = set()
    for typing in typings:
        key = typing_structure(statement, typing)
        if key not in seen:
            seen.add(key)
            yield typing


class _Judging:
    """Cases of a rule that were judged so far, by their keys."""

    def __init__(self, statement: RuleStatement, proofs: Proofs, seed: int) -> None:
        self.statement, self.proofs, self.seed = statement, proofs, seed
        self.found: dict[str, Judged] = {}
        self.failed = self.typings = 0

    @property
    def over(self) -> bool:
        """Whether enough cases failed, or the proofs were as much work as one rule may be."""
        return self.failed >= ENOUGH or self.proofs.steps > WORK

    def look(self, typing: Typing) -> None:
        """Judge the case of a typing, unless it is known."""
        self.typings += 1
        verdict = self.proofs.of(application(self.statement, typing))
        known = self.found.get(verdict.case.key)
        if known is not None and (known.verdict or known.counterexample is not None):
            return
        wrong = None if verdict else refuted(typing, self.seed)
        if known is None or wrong is not None:
            self.found[verdict.case.key] = Judged(typing, verdict, wrong)
            self.failed += known is None and not verdict


def application(statement: RuleStatement, typing: Typing) -> Application:
    """The rule where its variables stand for the leaves of a typing."""
    variables = [n.attr("name") for n in statement.equation.lhs.inputs]
    operands = {n: typing.names[n] for n in variables}
    attributes = {n: v for n, v in typing.names.items() if n not in operands}
    return Application(statement.equation, Match(typing.lhs, operands, attributes), typing.rhs)


# ---------------------------------------------------------------- numbers


class _Divided(Reals):
    """The meaning `Reals`, except that an integer divided by zero is `by_zero`.

    None raises ZeroDivisionError. (Of numpy it is a number as any other.)
    """

    def __init__(self, by_zero: int | None, exact: bool = True) -> None:
        super().__init__(exact)
        self.by_zero = by_zero

    def map(self, fn: Scalar, *xs: Array) -> Array:
        result = super().map(fn, *xs)
        if function_of(fn).division is None or xs[1].dtype.kind not in "iu" or xs[1].all():
            return result
        if self.by_zero is None:
            raise ZeroDivisionError("an integer is divided by zero")
        return np.where(xs[1] == 0, result.dtype.type(self.by_zero), result)


DEFINED, DEFINED_ROUNDED = _Divided(None), _Divided(None, exact=False)
STANDING = (_Divided(37), _Divided(90))
"""Two numbers that represent a missing value. A result that depends on the choice between them has
no value either."""


def refuted(typing: Typing, seed: int = 0) -> Counterexample | None:
    """Inputs on which the sides differ: floats in float64, integers as their machine has them. Or
    one side has a value and the other, a NaN here, has none since it divides an integer by zero.

    None where none was found. Where both sides divide by zero nothing is claimed.
    """
    leaves = tuple(n for n in topological((*typing.lhs, *typing.rhs)) if n.op in ("input", "weight"))
    converts = any(traits(n).converts for n in topological((*typing.lhs, *typing.rhs)))
    meanings = ((DEFINED, APART), (DEFINED_ROUNDED, ROUNDED)) if converts else ((DEFINED, APART),)
    for (low, high), i in product(RANGES, range(TRIES)):
        rng = Random(f"{seed} {low} {high} {i}")
        arrays = {n: _array(n, rng, low, high, i) for n in leaves}
        apart = (_difference(typing, {n: m.load(a) for n, a in arrays.items()}, m, by) for m, by in meanings)
        found = next(filter(None, apart), None) or _value_missing(typing, arrays)
        if found is not None:
            inputs = tuple(n for n in leaves if n.op == "input")
            texts = show_graph(Graph(inputs, typing.lhs)), show_graph(Graph(inputs, typing.rhs))
            named = tuple((n.attr("name"), a.tolist()) for n, a in arrays.items())
            output, index, left, right = found
            return Counterexample(output, *texts, named, index, left, right)
    return None


def apart_somewhere(typing: Typing, seed: int = 0) -> bool:
    """Whether the sides differ on a few inputs that are drawn at once; a fast form of `refuted`."""
    leaves = tuple(n for n in topological((*typing.lhs, *typing.rhs)) if n.op in ("input", "weight"))
    rng = np.random.default_rng(seed)
    for i, (low, high) in enumerate(GLANCES):
        arrays = {n: EXACT.load(_drawn_array(n, rng, low, high, i)) for n in leaves}
        if _difference(typing, arrays, EXACT, APART) is not None:
            return True
    return False


def _drawn_array(node: Node, rng: np.random.Generator, low: float, high: float, i: int) -> Array:
    shape, dtype = tuple(int(n) for n in node.shape), numpy_dtype(node.dtype)
    if node.dtype == "bool":
        return rng.random(shape) < 0.5
    if is_float(node.dtype):
        values = rng.uniform(low, high, shape)
        return (np.round(values) if i == 0 else values).astype(dtype)
    limits = np.iinfo(dtype)
    if i < 2:  # legal indices of most tables, then small numbers
        return rng.integers(0 if i == 0 or limits.min == 0 else -5, 2 if i == 0 else 6, shape).astype(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def _array(node: Node, rng: Random, low: float, high: float, i: int) -> Array:
    shape = tuple(int(n) for n in node.shape)
    dtype = numpy_dtype(node.dtype)
    values = [_value(node.dtype, rng, low, high, i) for _ in range(int(np.prod(shape)))]
    return np.array(values, np.float64 if is_float(node.dtype) else dtype).astype(dtype).reshape(shape)


def _value(dtype: str, rng: Random, low: float, high: float, i: int) -> Any:
    if dtype == "bool":
        return rng.random() < 0.5
    if is_float(dtype):
        return float(rng.randint(int(low), int(high))) if i < 2 else rng.uniform(low, high)
    limits = np.iinfo(dtype)
    if i == 0:
        return rng.randint(0, 1)  # legal indices of most tables
    choices = (int(limits.min), int(limits.max), rng.randint(int(limits.min), int(limits.max)), rng.randint(0, 5))
    return rng.choice(choices) if i == 1 else max(int(limits.min), rng.randint(int(low), int(high)))


def _difference(
    typing: Typing, env: Mapping[Node, Array], meaning: Reals, apart: float
) -> tuple[int, tuple[int, ...], float, float] | None:
    values = _numbers((*typing.lhs, *typing.rhs), meaning, env)
    if values is None:
        return None
    for i, (left, right) in enumerate(zip(typing.lhs, typing.rhs, strict=True)):
        for one, other in zip(_parts(values[left]), _parts(values[right]), strict=True):
            place = _first(one, other, apart)
            if place is not None:
                return i, place, float(one[place]), float(other[place])
    return None


def _value_missing(typing: Typing, arrays: Mapping[Node, Array]) -> tuple[int, tuple[int, ...], float, float] | None:
    """The place where one side has a value and the other has none, if the first has a value at all
    elements."""
    env = {n: DEFINED.load(a) for n, a in arrays.items()}
    if _numbers((*typing.lhs, *typing.rhs), DEFINED, env) is not None:
        return None
    for divides, defined in ((typing.lhs, typing.rhs), (typing.rhs, typing.lhs)):
        values = _numbers(defined, DEFINED, env)
        one, other = (_numbers(divides, meaning, env) for meaning in STANDING)
        if values is None or one is None or other is None:
            continue
        for i, (node, there) in enumerate(zip(divides, defined, strict=True)):
            for a, b, value in zip(*map(_parts, (one[node], other[node], values[there])), strict=True):
                place = _first(a, b, APART)
                if place is not None:
                    pair = (float("nan"), float(value[place]))
                    return (i, place, *(pair if divides is typing.lhs else pair[::-1]))
    return None


def _numbers(outputs: Sequence[Node], meaning: Reals, env: Mapping[Node, Array]) -> dict[Node, Any] | None:
    """The values of terms; None where one has none."""
    try:
        with np.errstate(all="ignore"):
            return interpret(outputs, meaning, env)
    except (TasoMirageError, IndexError, ValueError, TypeError, ZeroDivisionError, OverflowError):
        return None


def _parts(value: Any) -> list[Array]:
    return [np.asarray(part) for part in (value if isinstance(value, tuple) else (value,))]


def _first(a: Array, b: Array, apart: float) -> tuple[int, ...] | None:
    if a.shape != b.shape:
        return None
    if not is_float(a.dtype.name):
        differ = a != b
    else:
        a, b = a.astype(np.float64), b.astype(np.float64)
        with np.errstate(all="ignore"):
            differ = np.abs(a - b) > apart * np.maximum(1, np.maximum(np.abs(a), np.abs(b)))
        differ &= np.isfinite(a) & np.isfinite(b)
    for place in np.argwhere(differ):
        return tuple(int(k) for k in place)
    return None


def classes(failed: Sequence[Judged]) -> Iterator[tuple[str, Judged]]:
    """The smallest failed case for each set of special properties."""
    best: dict[str, Judged] = {}
    for each in sorted(failed, key=lambda j: (j.counterexample is None, j.typing.elements)):
        best.setdefault(_class(each.typing), each)
    yield from best.items()


def _class(typing: Typing) -> str:
    leaves = [n for n in topological(typing.lhs) if n.op in ("input", "weight")]
    dtypes = sorted({n.dtype for n in leaves})
    dims = [d for n in leaves for d in n.shape]
    marks = [kind for kind, is_there in (("dims of 0", 0 in dims), ("dims of 1", 1 in dims)) if is_there]
    marks += ["different ranks"] if len({len(n.shape) for n in leaves}) > 1 else []
    negative = [n for n, v in typing.names.items() if not isinstance(v, Node) and _negative(v)]
    marks += [f"negative {', '.join(negative)}"] if negative else []
    return ", ".join([*dtypes, *marks])


def _negative(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_negative, value))
    return isinstance(value, int | float) and value < 0
