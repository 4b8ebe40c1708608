"""Adversarial typings: typings that a rule's guard admits but for which it was not stated, each
case once. Uniform draws would miss most of them.

A valid typing is changed in one or two places: dtypes, dims of 0 and 1, ranks, signs of attributes
and constants, axes from the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from random import Random
from typing import Any

import numpy as np

from taso_mirage.ir.terms import (
    ABSENT,
    Graph,
    Node,
    Tensor,
    constant,
    is_float,
    numpy_dtype,
    substitute,
    topological,
    variable,
)
from taso_mirage.prove.rules.edges import defined_numbers, stated_numbers
from taso_mirage.prove.rules.fuzz import ILLEGAL, Typing, pools, typings, windows_meet_data
from taso_mirage.prove.rules.onnx_types import admitted
from taso_mirage.rewriting.equation import Equation, instantiate

OTHER_FLOATS = ("float16", "float64", "bfloat16")
INTEGER_DTYPES = ("int64", "int32", "int8", "uint8", "int16", "uint64", "uint32", "uint16")
STARTS = 8
"""The number of seeds that are tried for a first typing of a law that states none."""
TURNS = 6
"""The number of changes that are tried for each typing that is wanted."""
Names = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RuleStatement:
    """A rule as it is stated: the equation, one typing in letters if there is one, and the
    attributes there."""

    equation: Equation
    given: Sequence[tuple[str, Tensor]] = ()
    attributes: Sequence[tuple[str, Any]] = ()


def drawn(statement: RuleStatement, seed: int, wanted: int) -> Iterator[Typing]:
    """Up to `wanted` distinct typings that the guard admits: a quarter around the stated one, the
    others by a random walk from them."""
    rng = Random(seed)
    edges = (*stated_numbers(statement.equation), *defined_numbers(statement.equation))
    seen: set[tuple[Node, ...]] = set()
    pool: list[Typing] = []
    for typing in islice(
        chain(_started(statement, seed, wanted), _walk(statement.equation, pool, rng, edges, TURNS * wanted)),
        (TURNS + 1) * wanted,
    ):
        if typing is None or (*typing.lhs, *typing.rhs) in seen or not legal(typing):
            continue
        seen.add((*typing.lhs, *typing.rhs))
        pool.append(typing)
        yield typing
        if len(pool) >= wanted:
            return


def _started(statement: RuleStatement, seed: int, wanted: int) -> Iterator[Typing]:
    """Typings around the stated one. Where none is stated, those that operators' examples give; a
    seed may meet none of a narrow guard, so several are tried."""
    for turn in range(1 if statement.given else STARTS):
        found = typings(statement.equation, seed + STARTS * turn, wanted, statement.given, statement.attributes)
        met = False
        for typing in islice(found, max(wanted // 4, 1)):
            met = met or legal(typing)
            yield typing
        if met:
            return


def _walk(
    equation: Equation, pool: Sequence[Typing], rng: Random, edges: Sequence[float], tries: int
) -> Iterator[Typing | None]:
    for _ in range(tries if pool else 0):
        yield _changed(equation, dict(rng.choice(pool).names), rng, edges)


def legal(typing: Typing) -> bool:
    """Whether every operator may have these types, no size is below zero, and no window of a pool
    is all padding."""
    return all(_sized(n) and admitted(n) and _pools(n) for n in topological((*typing.lhs, *typing.rhs)))


def _sized(node: Node) -> bool:
    return not isinstance(node.type, Tensor) or all(isinstance(d, int) and d >= 0 for d in node.type.shape or ())


def _pools(node: Node) -> bool:
    return not pools(node) or windows_meet_data(node)


def _changed(equation: Equation, names: Names, rng: Random, edges: Sequence[float]) -> Typing | None:
    for change in rng.choices(CHANGES, k=rng.choice((1, 1, 2, 3, 4))):
        change(names, rng, edges)
    like = next((v.dtype for v in names.values() if isinstance(v, Node) and v.dtype != "bool"), "float32")
    try:
        if equation.where is not None and not equation.where(names):
            return None
        left, numbers = _shaped(equation, rng, like) if rng.random() < 0.2 else (equation.lhs, {})
        lhs, rhs = instantiate(left, {**names, **numbers}, like), instantiate(equation.rhs, names, like)
    except ILLEGAL:
        return None
    return Typing(lhs, rhs, names) if all(a.type == b.type for a, b in zip(lhs, rhs, strict=True)) else None


def _shaped(equation: Equation, rng: Random, like: str) -> tuple[Graph, Names]:
    """The left side with constants of other shapes for its numbers: a number of a pattern matches
    every constant whose elements it is."""
    splats = [n for n in equation.lhs if n.op == "splat"]
    made = {n: variable(f"number {i}") for i, n in enumerate(splats)}
    shapes = ((), (1,), (2,), (3,), (1, 1), (2, 2), (2, 1), (1, 2, 1))
    values = {
        v.attr("name"): constant(np.full(rng.choice(shapes), n.attr("value")).astype(numpy_dtype(like)))
        for n, v in made.items()
    }
    return Graph((), substitute(equation.lhs.outputs, made)), values


def _operands(names: Mapping[str, Any]) -> list[str]:
    return [n for n, v in names.items() if isinstance(v, Node) and v is not ABSENT]


def typed_leaf(node: Node, dtype: str, shape: Sequence[Any]) -> Node:
    """A leaf of another type; a constant keeps its number."""
    if node.op == "constant":
        value = node.attr("value").numpy().astype(np.float64)
        flat = value.flat[0] if value.size else 0.0
        with np.errstate(invalid="ignore", over="ignore"):  # a number that the dtype cannot hold is another constant
            return constant(np.full(tuple(shape), flat).astype(numpy_dtype(dtype)))
    return Node(node.op, (), node.attrs, Tensor(dtype, tuple(shape)))


# ---------------------------------------------------------------- changes


def _dtype(names: Names, rng: Random, edges: Sequence[float]) -> None:
    """Give all operands of one dtype another one, since most operators require equal dtypes."""
    found = sorted({names[n].dtype for n in _operands(names)})
    if not found:
        return
    old = rng.choice(found)
    if old == "bool":
        new = rng.choice(("bool", "int32"))
    else:
        new = rng.choice((*OTHER_FLOATS, *INTEGER_DTYPES, "bool") if is_float(old) else (*INTEGER_DTYPES, "float32"))
    for name in _operands(names):
        if names[name].dtype == old:
            names[name] = typed_leaf(names[name], new, names[name].shape)


def _shape(names: Names, rng: Random, edges: Sequence[float]) -> None:
    """Change the shape of one operand, or of several in the same way: dims of 1 and 0, lower and
    higher ranks."""
    operands = _operands(names)
    if not operands:
        return
    how = rng.random()
    chosen = [rng.choice(operands)] if how < 0.5 else [n for n in operands if how > 0.85 or rng.random() < 0.5]
    kind, place, size = rng.random(), rng.random(), rng.choice((1, 1, 2, 3))
    for name in chosen:
        shape = list(names[name].shape)
        at = int(place * len(shape))
        if kind < 0.35 and shape:
            shape[at] = 1
        elif kind < 0.42:
            shape = [1] * len(shape)
        elif kind < 0.48:
            shape = shape[len(shape) - 1 :] if place < 0.5 else [1] * (place < 0.75)
        elif kind < 0.65:
            del shape[: 1 + int(place * 2)]
        elif kind < 0.8:
            shape.insert(0, size)
        elif kind < 0.85 and shape:
            shape[at] = 0
        elif shape:
            shape[at] = size + 1
        names[name] = typed_leaf(names[name], names[name].dtype, shape)


def _level(names: Names, rng: Random, edges: Sequence[float]) -> None:
    """All dims but those of 1 are alike: then axes may be mistaken for each other."""
    size = rng.choice((2, 2, 3))
    for name in _operands(names):
        shape = [n if n in (0, 1) else size for n in names[name].shape]
        names[name] = typed_leaf(names[name], names[name].dtype, shape)


def _collapse(names: Names, rng: Random, edges: Sequence[float]) -> None:
    """Some operands are vectors or scalars that broadcast, and all dims of the others alike: a
    concatenation then has a type by accident."""
    _level(names, rng, edges)
    kept, ones = rng.choice((0, 1, 1, 1)), rng.random() < 0.7
    for name in _operands(names):
        if rng.random() < 0.45:
            shape = list(names[name].shape)
            shape = shape[len(shape) - min(kept, len(shape)) :]
            names[name] = typed_leaf(names[name], names[name].dtype, [1] * len(shape) if ones else shape)


def _places(names: Names) -> list[tuple[str, int]]:
    """Where sizes stand: the axes of operands, and the entries of attributes."""
    axes = [(n, i) for n in _operands(names) for i in range(len(names[n].shape))]
    return axes + [(n, i) for n, v in names.items() if _sizes(v) for i in range(len(v))]


def _sizes(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(v, int) for v in value)


def _read(names: Names, place: tuple[str, int]) -> Any:
    value = names[place[0]]
    return (value.shape if isinstance(value, Node) else value)[place[1]]


def _write(names: Names, place: tuple[str, int], size: Any) -> None:
    name, i = place
    value = names[name]
    if isinstance(value, Node) and isinstance(size, int) and size < 0:
        return  # an axis from the end is no size
    sizes = list(value.shape if isinstance(value, Node) else value)
    sizes[i] = size
    names[name] = typed_leaf(value, value.dtype, sizes) if isinstance(value, Node) else tuple(sizes)


def _balance(names: Names, rng: Random, edges: Sequence[float]) -> None:
    """Some elements of one axis are another's: a concatenation is as long as before, and cut
    elsewhere."""
    places = _places(names)
    if len(places) > 1:
        one, other = rng.sample(places, 2)
        count = rng.randint(1, 3)
        if count < _read(names, one):
            _write(names, one, _read(names, one) - count)
            _write(names, other, _read(names, other) + count)


def _meet(names: Names, rng: Random, edges: Sequence[float]) -> None:
    """Set one size to the value of another one."""
    places = _places(names)
    if len(places) > 1:
        one, other = rng.sample(places, 2)
        _write(names, one, _read(names, other))


def _attribute(names: Names, rng: Random, edges: Sequence[float]) -> None:
    """Change the value of one attribute: other signs, zero, one, numbers of a continuum, axes from
    the end."""
    values = [n for n, v in names.items() if not isinstance(v, Node)]
    if values:
        name = rng.choice(values)
        names[name] = _other(names[name], rng, edges)


def _other(value: Any, rng: Random, edges: Sequence[float]) -> Any:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return rng.choice((-value, value - 1, value + 1, -1, 0, 1, -2, 2))
    if isinstance(value, float):
        return _number(value, rng, edges)
    if isinstance(value, tuple) and value:
        if all(isinstance(v, int) for v in value) and rng.random() < 0.3:
            return tuple(rng.sample(value, len(value)))
        if isinstance(value[0], tuple) and len(value[0]) == 2 and isinstance(value[0][0], str):
            i = rng.randrange(len(value))
            return (*value[:i], (value[i][0], _other(value[i][1], rng, edges)), *value[i + 1 :])
        i = rng.randrange(len(value))
        return (*value[:i], _other(value[i], rng, edges), *value[i + 1 :])
    return value


def _number(value: float, rng: Random, edges: Sequence[float]) -> float:
    near = [e + d for e in edges for d in (0.0, 0.5, -0.5)]
    choices = (-value, 0.0, 1.0, -1.0, round(rng.uniform(-3, 3), 3), round(rng.uniform(-100, 100), 2), 2 * value, *near)
    return float(np.float32(rng.choice(choices)))


def _constants(names: Names, rng: Random, edges: Sequence[float]) -> None:
    """Change the number of one constant; integers also to the least and the largest."""
    found = [n for n in _operands(names) if names[n].op == "constant"]
    if not found:
        return
    name = rng.choice(found)
    array = names[name].attr("value").numpy()
    if array.size == 0:
        return
    if array.dtype.kind in "iu":
        limits = np.iinfo(array.dtype)
        whole = rng.choice((int(limits.min), int(limits.max), 0, 1, 2, 3, rng.randint(0, 9)))
        names[name] = constant(np.full(array.shape, whole, array.dtype))
    elif array.dtype.kind != "b":
        number = _number(float(array.flat[0]), rng, edges)
        with np.errstate(over="ignore"):
            names[name] = constant(np.full(array.shape, number).astype(array.dtype))


Change = Callable[[Names, Random, Sequence[float]], None]
CHANGES: tuple[Change, ...] = (
    *(
        _dtype,
        _dtype,
        _shape,
        _shape,
        _shape,
        _level,
        _collapse,
        _collapse,
        _balance,
        _meet,
        _attribute,
        _attribute,
        _constants,
    ),
)
