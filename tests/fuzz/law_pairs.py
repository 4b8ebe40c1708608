"""Rules and laws as pairs of terms: both sides of an application that the optimizer would make, at
typings of every dtype and rank, and inputs that the assumptions of docs/soundness.md admit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle, islice
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taso_mirage.ir.terms import ABSENT, LEAVES, Node, Tensor, constant, is_float, numpy_dtype, topological
from taso_mirage.prove.rules.examine import application
from taso_mirage.prove.rules.fuzz import ILLEGAL, Typing
from taso_mirage.prove.rules.hostile import RuleStatement, drawn, legal
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.prove.rules.recheck import law_rules
from taso_mirage.rewriting.derived_traits import selects
from taso_mirage.rewriting.equation import apply_equation, instantiate
from taso_mirage.rewriting.library import Rule, load_rules
from taso_mirage.verdicts import Failure

Inputs = dict[str, NDArray[Any]]
FLOATS = ("float32", "float16", "float64", "bfloat16")
INTEGERS = ("int64", "int32", "int8", "uint8", "int16", "uint16", "uint32", "uint64")
RANKS = 6
"""The highest rank that is drawn."""
MANY = 160
"""Typings that are asked for where few draws are legal."""
ELEMENTS = 4096
"""Larger terms are not run: they show nothing that smaller ones do not."""


@cache
def subjects() -> Mapping[str, Rule]:
    """Every rule of the library and every law beside an operator, by name."""
    return {rule.name: rule for rule in (*load_rules(), *law_rules())}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a typing is not compared: the rule does not apply (`excluded`), or has no proof
    (`unproved`)."""

    why: str


def typings(rule: Rule, seed: int, count: int) -> Iterator[Typing]:
    """Up to `count` typings that the guard admits, in a random order: those that the verifier
    draws, each with the same one in another dtype, and with more axes in front."""
    rng = Random(f"{rule.name} {seed}")
    statement = RuleStatement(rule.equation, rule.given, rule.attributes)
    found: dict[tuple[Node, ...], Typing] = {}
    for wanted in (2 * count, MANY):
        for typing in drawn(statement, rng.randrange(1 << 30), wanted):
            found |= {(*t.lhs, *t.rhs): t for t in (typing, *_others(rule, typing, rng)) if _small(t)}
            if len(found) >= 1.5 * count:
                break
        if len(found) >= count:
            break
    yield from rng.sample([*found.values()], min(count, len(found)))


def _small(typing: Typing) -> bool:
    sizes = [n.type.shape for n in topological((*typing.lhs, *typing.rhs)) if isinstance(n.type, Tensor)]
    return all(int(np.prod(shape or ())) <= ELEMENTS for shape in sizes)


def _others(rule: Rule, typing: Typing, rng: Random) -> Iterator[Typing]:
    changes = (lambda: _recast(typing.names, rng), lambda: _raised(typing.names, rng))
    for change in rng.sample(changes, rng.choice((1, 1, 2))):
        made = _typed(rule, change())
        if made is not None:
            yield made


def _typed(rule: Rule, names: Mapping[str, Any]) -> Typing | None:
    """The typing with these names; None where the guard or the operators do not admit them."""
    like = next((v.dtype for v in names.values() if isinstance(v, Node) and v.dtype != "bool"), "float32")
    try:
        if rule.equation.where is not None and not rule.equation.where(names):
            return None
        made = Typing(
            instantiate(rule.equation.lhs, names, like), instantiate(rule.equation.rhs, names, like), dict(names)
        )
        same = all(a.type == b.type for a, b in zip(made.lhs, made.rhs, strict=True))
        return made if same and legal(made) else None
    except ILLEGAL:
        return None


def _recast(names: Mapping[str, Any], rng: Random) -> dict[str, Any]:
    """Change the dtype of all operands of floats, or of all operands."""
    floats, every = rng.choice(FLOATS), rng.random() < 0.3
    other = rng.choice((*INTEGERS, "bool"))
    return {n: _like(v, other if every else floats, (), every) for n, v in names.items()}


def _raised(names: Mapping[str, Any], rng: Random) -> dict[str, Any]:
    """Add leading axes to all operands, or to those of the highest rank; half of the time axes and
    permutations move with them."""
    ranks = [len(v.shape) for v in names.values() if isinstance(v, Node) and v is not ABSENT]
    most = max(ranks, default=0)
    if most >= RANKS:
        return dict(names)
    more = [rng.choice((1, 1, 2, 0, 3)) for _ in range(rng.randint(1, RANKS - most))]
    every, moved = rng.random() < 0.5, rng.random() < 0.5
    raised: dict[str, Any] = {}
    for name, value in names.items():
        if not isinstance(value, Node):
            raised[name] = _moved(value, len(more), most) if moved else value
        else:
            higher = every or (value is not ABSENT and len(value.shape) == most)
            raised[name] = _like(value, "", more, True) if higher else value
    return raised


def _moved(value: Any, by: int, rank: int) -> Any:
    """An axis, axes or a permutation behind so many new axes; other attributes stay."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value + by if 0 <= value < rank else value
    if not isinstance(value, tuple) or not value or not all(isinstance(v, int) for v in value):
        return value
    if sorted(value) == list(range(rank)):
        return (*range(by), *(v + by for v in value))
    return tuple(_moved(v, by, rank) for v in value)


def _like(value: Any, dtype: str, more: Sequence[int], every: bool) -> Any:
    """An operand in another dtype ("" keeps it; not `every`: of floats only), with more axes in
    front; a value that is no operand stays."""
    if not isinstance(value, Node) or value is ABSENT:
        return value
    wanted = dtype if dtype and (every or is_float(value.dtype)) else value.dtype
    shape = (*more, *value.shape)
    if value.op != "constant":
        return Node(value.op, (), value.attrs, Tensor(wanted, shape))
    array = value.attr("value").numpy()
    flat = array.astype(np.float64).flat[0] if array.size else 0.0
    with np.errstate(all="ignore"):
        return constant(np.full(shape, flat).astype(numpy_dtype(wanted)))


def applied(rule: Rule, typing: Typing, proofs: Proofs) -> Typing | Refusal:
    """The two sides as the optimizer would exchange them at a typing, or why it would not."""
    asked = application(RuleStatement(rule.equation, rule.given, rule.attributes), typing)
    results = apply_equation(rule.equation, asked.found)
    if isinstance(results, Failure):
        return Refusal("excluded")
    return typing if proofs.of(asked) else Refusal("unproved")


# ---------------------------------------------------------------- inputs


@dataclass(frozen=True, slots=True)
class Style:
    """How numbers are drawn: floats from a range or whole, integers up to `high` or the ends of
    their type, or with infinities and NaN."""

    low: float
    high: float
    whole: bool = False
    ends: bool = False
    special: bool = False


STYLES = (
    Style(-2, 2),
    Style(0.25, 3),
    Style(-3, 3, whole=True),
    Style(0, 1, whole=True),
    Style(-30, 30),
    Style(-100, 100, whole=True, ends=True),
)
SPECIAL = Style(-2, 2, ends=True, special=True)
"""Only where both sides do nothing but move elements: elsewhere inputs are finite, as proofs
assume."""


def leaves(typing: Typing) -> list[Node]:
    """The inputs and weights of both sides."""
    return [n for n in topological((*typing.lhs, *typing.rhs)) if n.op in LEAVES and n.op != "constant"]


def moves_only(typing: Typing) -> bool:
    """Whether both sides give elements of their operands and compute nothing."""
    terms = [n for n in topological((*typing.lhs, *typing.rhs)) if n.args and n.op != "item"]
    return all(selects(n.op) for n in terms)


def styles(typing: Typing, rng: Random, count: int) -> list[Style]:
    """How the numbers of so many runs are drawn: each way once before any comes again."""
    chosen = list(islice(cycle(rng.sample(STYLES, len(STYLES))), count))
    return [SPECIAL, *chosen[1:]] if moves_only(typing) else chosen


def numbers(node: Node, style: Style, rng: np.random.Generator) -> NDArray[Any]:
    """An array of the type of a leaf."""
    shape, dtype = tuple(int(n) for n in node.shape), numpy_dtype(node.dtype)
    if node.dtype == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    if is_float(node.dtype):
        drawn = rng.uniform(style.low, style.high, shape)
        drawn = np.rint(drawn) if style.whole else drawn
        if style.special:
            odd = rng.choice([np.nan, np.inf, -np.inf, -0.0, 0.0], shape)
            drawn = np.where(rng.random(shape) < 0.4, odd, drawn)
        return np.asarray(drawn).astype(dtype)
    limits = np.iinfo(dtype)
    if style.ends:
        odd = np.array([limits.min, limits.max, 0, 1, limits.max - 1, limits.min + 1], dtype)
        return np.asarray(rng.choice(odd, shape))
    low = max(int(limits.min), int(np.floor(style.low)))
    return np.asarray(rng.integers(low, int(style.high) + 1, shape)).astype(dtype)
