"""Random legal typings of an equation: rung 2 of the evidence ladder.

Types and attributes start from the operators' examples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

import numpy as np

from taso_mirage.errors import IllTyped, Undecidable, Unsupported
from taso_mirage.ir.dims import dim_product
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, constant, topological, users, variable, weight
from taso_mirage.meanings.field import Field
from taso_mirage.operators.expressions import Expr, asks_for_number, asks_for_weight
from taso_mirage.operators.ops import Example, get, traits
from taso_mirage.prove.fingerprint import Agreed, fingerprint
from taso_mirage.prove.rules.attributes import REGROUPED
from taso_mirage.prove.rules.random_typings import NUMBERS, RandomTypings, VariableTypes
from taso_mirage.rewriting.equation import Equation, apply_equation, instantiate, match
from taso_mirage.rewriting.patterns import REST
from taso_mirage.rewriting.text import parse_type
from taso_mirage.verdicts import Failure

ILLEGAL = (IllTyped, Undecidable, Unsupported, LookupError, TypeError, ValueError, ArithmeticError)
"""Errors of typing for a drawn typing that is illegal."""


@dataclass(frozen=True, slots=True)
class Typing:
    """One typed instance of an equation: both sides over the same leaves, and the values of the
    names."""

    lhs: tuple[Node, ...]
    rhs: tuple[Node, ...]
    names: Mapping[str, Any] = field(default_factory=dict)

    @property
    def elements(self) -> int:
        """The size of a typing, for the choice of the smallest one; a typing with letters is larger
        than any drawn one."""
        terms = topological((*self.lhs, *self.rhs))
        sizes = [dim_product(n.shape) for n in terms if isinstance(n.type, Tensor) and n is not ABSENT]
        return sum(n if isinstance(n, int) else 1 << 30 for n in sizes)


def typings(
    equation: Equation,
    seed: int = 0,
    tries: int = 2000,
    given: VariableTypes = (),
    attributes: Iterable[tuple[str, Any]] = (),
) -> Iterator[Typing]:
    """Distinct legal instances on which the guard holds and both sides have a type, in at most
    `tries` draws.

    With `given` (one typing in letters, and the values of attribute names at it) they are drawn
    around that, otherwise from the operators' examples. Where only the right side has no type, the
    equation does not apply: no instance.
    """
    if given:
        return _around(equation, RandomTypings(equation, given, attributes), Random(seed), tries)
    return _from_examples(equation, seed, tries)


def _around(equation: Equation, drawn: RandomTypings, rng: Random, tries: int) -> Iterator[Typing]:
    seen: set[tuple[Node, ...]] = set()
    again = 0
    for _ in range(tries):
        try:
            names = drawn.draw(rng, wide=again > len(seen))
            lhs = None if names is None else instantiate(equation.lhs, names)
        except ILLEGAL:
            continue
        if names is None or lhs is None:
            continue
        if lhs in seen:
            again += 1
            continue
        seen.add(lhs)
        rhs = _right(equation, names, lhs)
        if rhs is not None:
            yield Typing(lhs, rhs, names)


def _right(equation: Equation, names: Mapping[str, Any], lhs: tuple[Node, ...]) -> tuple[Node, ...] | None:
    """The right side under the names that built the left side; an instance of a pattern always
    matches it under these names."""
    try:
        if equation.where is not None and not equation.where(names):
            return None
        rhs = instantiate(equation.rhs, names)
    except ILLEGAL:
        return None
    same = all(a.type == b.type for a, b in zip(lhs, rhs, strict=True))
    return rhs if same and all(_runs(n) for n in topological((*lhs, *rhs))) else None


def _runs(node: Node) -> bool:
    """Whether no tensor is empty and, as ONNX requires, no window of a pool is only padding."""
    if pools(node):
        return windows_meet_data(node)
    return not isinstance(node.type, Tensor) or 0 not in (node.type.shape or ())


def pools(node: Node) -> bool:
    """Whether it slides windows without a kernel."""
    own = traits(node)
    return own.windowed and own.kernel is None


def windows_meet_data(node: Node) -> bool:
    """Whether no window of a pool is all padding."""
    pads, kernel = node.attr("pads"), node.attr("kernel")
    sizes = zip(node.args[0].shape[2:], node.attr("dilations"), strict=True)
    return all(p < k for p, k in zip(pads, (*kernel, *kernel), strict=True)) and all(n >= d for n, d in sizes)


def _from_examples(equation: Equation, seed: int, tries: int) -> Iterator[Typing]:
    rng = np.random.default_rng(seed)
    seen: set[tuple[Node, ...]] = set()
    for i in range(tries + tries // 2):
        try:
            names = _draw_jointly(equation, rng) if i % 3 == 2 else _draw(equation, rng)
            lhs = instantiate(equation.lhs, names)
        except (IllTyped, Undecidable, LookupError, TypeError, ValueError):
            continue
        if lhs in seen:
            continue
        seen.add(lhs)
        found = match(equation, lhs[0], users(topological(lhs)))
        if isinstance(found, Failure) or found.outputs != lhs:
            continue
        rhs = apply_equation(equation, found)
        if not isinstance(rhs, Failure):
            yield Typing(lhs, rhs, found.names)


def _draw(equation: Equation, rng: np.random.Generator) -> dict[str, Any]:
    """Terms for the variables and values for the attribute names, from examples of the operators
    around them."""
    guard = equation.where.source if equation.where else ""
    pools: dict[str, list[Any]] = {}
    names: dict[str, Any] = {}
    chosen: dict[Node, Example] = {}
    resize = _resizing(rng)
    alike = _alike(rng)
    for node in reversed(equation.lhs_terms):
        example = _choose(node, rng, alike)
        if example is None:
            continue
        chosen[node] = example
        _draw_attributes(node, example, names, rng)
        for arg, operand in zip(node.args, example.operands, strict=False):
            for leaf in topological([arg]):
                if leaf.op == "input" and operand is not None:
                    pools.setdefault(leaf.attr("name"), []).append(operand)
    for name, pool in pools.items():
        operand = pool[rng.integers(len(pool))]
        names[name] = _leaf(name, operand, guard, resize, rng, thin=alike is None)
    for leaf in equation.lhs.inputs:
        names.setdefault(leaf.attr("name"), variable(leaf.attr("name"), Tensor("float32", (2, 3))))
    return names


def _draw_jointly(equation: Equation, rng: np.random.Generator) -> dict[str, Any]:
    """Terms for all variables of one operator from one of its examples, so that they fit; then
    attributes that fit those."""
    guard = equation.where.source if equation.where else ""
    resize = _resizing(rng)
    operands: dict[str, Any] = {}
    alike = _alike(rng)
    for node in (*reversed(equation.rhs_terms), *equation.lhs_terms):
        example = _choose(node, rng, alike)
        for arg, operand in zip(node.args, example.operands if example else (), strict=False):
            if arg.op == "input" and operand is not None:
                operands.setdefault(arg.attr("name"), operand)
    names = {name: _leaf(name, operand, guard, resize, rng, thin=alike is None) for name, operand in operands.items()}
    for leaf in equation.lhs.inputs:
        names.setdefault(leaf.attr("name"), variable(leaf.attr("name"), Tensor("float32", (2, 3))))
    for node in equation.lhs_terms:
        _draw_fitting_attributes(node, names, rng)
    return names


def _draw_fitting_attributes(node: Node, names: dict[str, Any], rng: np.random.Generator) -> None:
    """Attributes of one term from an example whose first operand has the rank of its own; shapes
    from its type."""
    if not node.args or not any(isinstance(v, Expr) for _, v in node.attrs):
        return
    first = instantiate(Graph((), node.args[:1]), names)[0]
    regrouped = next((k for k, v in get(node.op).traits.domains.items() if v == REGROUPED), None)
    if regrouped is not None:
        earlier = [v for v in names.values() if isinstance(v, tuple) and dim_product(v) == dim_product(first.shape)]
        again = bool(earlier) and rng.random() < 0.5
        shape = earlier[rng.integers(len(earlier))] if again else _reshaped(first.shape, rng)
        names.setdefault(str(node.attr(regrouped)), shape)
        return
    examples = [e for e in get(node.op).examples if _ranks(e)[:1] == [len(first.shape)]]
    if examples:
        _draw_attributes(node, examples[rng.integers(len(examples))], names, rng)


def _ranks(example: Example) -> list[int]:
    return [t.rank for t in operand_types(example.operands) if t is not None]


def _reshaped(shape: tuple[Any, ...], rng: np.random.Generator) -> tuple[Any, ...]:
    """One dim split in two, or two neighbours merged."""
    splits = [(i, f) for i, n in enumerate(shape) for f in range(2, int(n)) if n % f == 0]
    if splits and rng.random() < 0.5:
        i, factor = splits[rng.integers(len(splits))]
        return (*shape[:i], factor, shape[i] // factor, *shape[i + 1 :])
    i = int(rng.integers(max(len(shape) - 1, 1)))
    return (*shape[:i], shape[i] * shape[i + 1], *shape[i + 2 :]) if i + 1 < len(shape) else shape


def _alike(rng: np.random.Generator) -> dict[str, Example] | None:
    """Choose an example. In half of the draws all uses of an operator have the same example;
    otherwise rules with many equal terms would never match."""
    return {} if rng.random() < 0.5 else None


def _choose(node: Node, rng: np.random.Generator, alike: dict[str, Example] | None) -> Example | None:
    if node is ABSENT:
        return None
    op = get(node.op)
    fitting = [e for e in op.examples if op.variadic or len([o for o in e.operands if o is not None]) >= len(node.args)]
    example = fitting[rng.integers(len(fitting))] if fitting else None
    if alike is None or example is None:
        return example
    kept = alike.setdefault(node.op, example)
    return kept if kept in fitting else example


def _draw_attributes(node: Node, example: Example, names: dict[str, Any], rng: np.random.Generator) -> None:
    op = get(node.op)
    values = op.normalise(dict(example.attrs))
    for key, wanted in node.attrs:
        if key == REST and isinstance(wanted, Expr):
            given = {k for k, _ in node.attrs}
            names.setdefault(wanted.source, tuple(sorted((k, v) for k, v in values.items() if k not in given)))
        elif isinstance(wanted, Expr) and wanted.name is not None:
            value = values[key]
            if key == "perm":
                value = tuple(int(i) for i in rng.permutation(len(value)))
            names.setdefault(wanted.name, value)


def _leaf(name: str, operand: Any, guard: str, resize: Mapping[int, int], rng: np.random.Generator, thin: bool) -> Node:
    if asks_for_number(guard, name):
        shape = () if rng.random() < 0.6 else (1,)
        return constant(np.full(shape, NUMBERS[rng.integers(len(NUMBERS))], np.float32))
    if not isinstance(operand, str):
        return constant(np.asarray(operand, np.int64))
    type = _type(operand)
    type = Tensor(type.dtype, tuple(resize.get(int(d), int(d)) for d in type.shape or ()))
    if asks_for_weight(guard, name):
        return weight(name, _thinned(type, rng) if thin else type)
    return variable(name, _thinned(type, rng) if thin and rng.random() < 0.3 else type)


def _thinned(type: Tensor, rng: np.random.Generator) -> Tensor:
    """Sometimes lower the rank, or set some dims to 1, because wrong rules often fail for broadcast
    operands."""
    shape = list(type.shape or ())
    if rng.random() < 0.5 or not shape:
        return type
    if rng.random() < 0.4:
        return Tensor(type.dtype, tuple(shape[int(rng.integers(len(shape) + 1)) :]))
    return Tensor(type.dtype, tuple(1 if rng.random() < 0.5 else d for d in shape))


def _resizing(rng: np.random.Generator) -> dict[int, int]:
    """A random change of sizes: none; a one-to-one change, so that equal dims stay equal and
    different ones different; or one size for all."""
    sizes = [2, 3, 4, 5, 6, 7]
    kind = rng.random()
    if kind < 0.4:
        return {}
    if kind < 0.7:
        return dict(zip(sizes, (int(s) for s in rng.permutation(sizes)), strict=True))
    return dict.fromkeys(sizes, int(rng.integers(2, 5)))


def verdicts(found: Iterable[Typing], trials: int, seed: int) -> Iterator[tuple[Typing, Agreed | Failure]]:
    """The fingerprint of every typing; those without a legal run (an index beyond its dim) are left
    out."""
    xp = Field(trials, seed)
    for typing in found:
        try:
            yield typing, fingerprint(typing.lhs, typing.rhs, xp=xp)
        except (IndexError, ValueError):
            continue


@cache
def _type(text: str) -> Tensor:
    """A type by its text, memoized, because examples have few types."""
    return parse_type(text)


def operand_types(operands: Sequence[Any]) -> list[Tensor | None]:
    """The types of an example's operands."""
    return [_type(o) if isinstance(o, str) else None for o in operands]
