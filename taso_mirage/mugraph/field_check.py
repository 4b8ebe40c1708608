"""Every edge of a closure checked in the field against the goal's own operators (Mirage, OSDI'25,
section 5).

Edges are checked instead of whole muGraphs: there are few of them, and all muGraphs share them.

Leaves are independent random residues at small sizes that distinguish labels. A class that is a
term of the goal has the value that the goal's operators give it, any other the value of its first
derivation; an edge that gives another value is wrong. So every derivation of an output over the
edges that remain computes the goal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from taso_mirage.ir.terms import ABSENT, Node, Tensor, is_computed, is_float, topological
from taso_mirage.meanings.arrays import Array
from taso_mirage.meanings.field import Field, Residues, agree
from taso_mirage.meanings.residues import moduli
from taso_mirage.mugraph.atoms import AbstractExpression
from taso_mirage.mugraph.derivations.kind import DerivationEdge
from taso_mirage.mugraph.goal import BYTES, Labelled, LabelNames, is_packed, whole_leaf
from taso_mirage.mugraph.opaque_functions import is_scalar
from taso_mirage.operators.ops import get

TESTS = 8
"""Trials without a zero denominator on which an edge has to agree."""
ROUNDS = 6


def refuted_derivations(
    goal: Labelled, classes: Sequence[AbstractExpression], edges: Sequence[Sequence[DerivationEdge]], seed: int
) -> set[tuple[int, DerivationEdge]]:
    """The edges that the field refutes, or for which too few trials decide.

    Sizes change from round to round.
    """
    wrong: set[tuple[int, DerivationEdge]] = set()
    agreed: Counter[tuple[int, DerivationEdge]] = Counter()
    waiting = [(i, e) for i, made in enumerate(edges) for e in made if e.kind.reads is None]
    for round_ in range(ROUNDS):
        if round_ >= 2 and not waiting:
            break
        values = _Values(goal, classes, edges, Field32(TESTS, seed * ROUNDS + round_), round_)
        for key in waiting:
            i, edge = key
            valid = values.agreement(i, edge)
            if valid is None:
                wrong.add(key)
            else:
                agreed[key] += valid
        waiting = [key for key in waiting if key not in wrong and (round_ < 1 or agreed[key] < TESTS)]
    return wrong | set(waiting)


class Field32(Field):
    """The field with one dtype for all floats, because rounding between them is not part of a
    kernel's meaning.

    Bytes have any values.
    """

    def fresh(self, type: Tensor) -> Residues:
        if type.dtype not in BYTES or is_float(type.dtype):
            return super().fresh(type)
        limits, shape = np.iinfo(type.dtype), tuple(int(n) for n in type.shape or ())
        data = self.rng.integers(limits.min, limits.max + 1, (self.trials, *shape))
        return self._make(data[None] % moduli(len(shape)), type.dtype)

    def load(self, array: Array) -> Residues:
        found = super().load(array)
        return replace(found, dtype="float32") if is_computed(found.dtype) else found

    def cast(self, a: Residues, dtype: str) -> Residues:
        if is_computed(dtype):
            dtype = "float32"
        return a if a.dtype == dtype else super().cast(a, dtype)


class _Values:
    """The value of every class in one round; the axes of a value are its labels in alphabetical
    order."""

    def __init__(
        self,
        goal: Labelled,
        classes: Sequence[AbstractExpression],
        edges: Sequence[Sequence[DerivationEdge]],
        xp: Field,
        round_: int,
    ) -> None:
        self.goal, self.xp = goal, xp
        self.free = [tuple(sorted(goal.algebra.free(sketch))) for sketch in classes]
        self.sizes = sizes_apart(goal, round_)
        letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
        self.letters = dict(zip(sorted(self.sizes), letters, strict=False))
        known = self._known()
        self.values: list[Residues] = []
        self._inverse: dict[int, Residues] = {}
        for sketch, made in zip(classes, edges, strict=True):
            self.values.append(known[sketch] if sketch in known else self.evaluate(made[0]))

    def agreement(self, i: int, edge: DerivationEdge) -> int | None:
        """The number of valid trials on which an edge agrees with its class; None if it differs on
        one."""
        found, expected = self.evaluate(edge), self.values[i]
        same = agree(found, expected)
        return None if same is False else int((found.valid & expected.valid).sum()) if same else 0

    def _known(self) -> dict[AbstractExpression, Residues]:
        """The goal's own terms, by its own operators, at small sizes."""
        nodes = {each.node: each for each in self.goal.known}
        values: dict[Node, Residues | None] = {ABSENT: None}
        found: dict[AbstractExpression, Residues] = {}
        leaves = {*self.goal.leaves.values()}
        packed = [leaf for leaf in leaves if is_packed(leaf)]
        for node in (*packed, *topological((each.node for each in self.goal.known), stop=packed)):
            if node is ABSENT:
                continue
            axes = nodes[node].axes if node in nodes else ((),) * len(node.shape)
            values[node] = value = self._run(node, self._shape(axes), values)
            labels = [label for axis in axes for label in axis]
            if node in nodes and self.goal.algebra.free(nodes[node].sketch) == set(labels):
                found.setdefault(nodes[node].sketch, self._named(value, axes))
        for name, leaf in self.goal.leaves.items():
            input_ = values[whole_leaf(leaf)]
            assert input_ is not None
            found[self.goal.views[name]] = self._named(input_, self.goal.inputs[name])
        for name, number in self.goal.constants.items():
            dtype = np.int32 if isinstance(number, int) else np.float64
            found[self.goal.views[name]] = self.xp.load(np.asarray(number, dtype))
        return found

    def _shape(self, axes: LabelNames) -> tuple[int, ...]:
        return tuple([prod(self.sizes[label] for label in axis) for axis in axes])

    def _run(self, node: Node, shape: tuple[int, ...], values: Mapping[Node, Residues | None]) -> Residues:
        if is_scalar(node):
            return self.xp.constant(node.attr("value"))
        if (node.dtype in BYTES and node in self.goal.leaves.values()) or is_packed(node):  # any numbers
            return replace(self.xp.fresh(Tensor("float32", shape)), dtype=node.dtype)
        if not node.args:
            return self.xp.fresh(Tensor("float32" if is_float(node.dtype) else node.dtype, shape))
        attrs: dict[str, Any] = dict(node.attrs)
        if "shape" in attrs:
            attrs["shape"] = shape
        result: Residues = get(node.op).body(self.xp, *[values[a] for a in node.args], **attrs)
        return result

    def _named(self, value: Residues, axes: LabelNames) -> Residues:
        """A tensor of the goal as a value over labels; of integers as the floats that they are."""
        value = self.xp.cast(value, "float32") if value.dtype in BYTES else value
        labels = [label for axis in axes for label in axis]
        apart = self.xp.reshape(value, [self.sizes[label] for label in labels])
        return self.xp.transpose(apart, [labels.index(label) for label in sorted(labels)])

    def evaluate(self, edge: DerivationEdge) -> Residues:
        """The value that an edge gives its class."""
        return edge.kind.evaluate(edge, self)

    # ------------------------------------------------------------ used by kinds to evaluate

    def value(self, i: int) -> Residues:
        return self.values[i]

    def axis(self, i: int, label: str) -> int:
        return self.free[i].index(label)

    def aligned(self, args: Sequence[int]) -> list[Residues]:
        return self._aligned(args, [self.values[i] for i in args])

    def divided(self, above: int, below: int) -> Residues:
        return self.xp.map(np.multiply, *self._aligned([above, below], [self.values[above], self.inverted(below)]))

    def inverted(self, i: int) -> Residues:
        if i not in self._inverse:
            self._inverse[i] = self.xp.map(np.reciprocal, self.values[i])
        return self._inverse[i]

    def contracted(self, args: Sequence[int], label: str) -> Residues:
        a, b = args
        result = sorted({*self.free[a], *self.free[b]} - {label})
        spelled = ["".join([self.letters[x] for x in own]) for own in (self.free[a], self.free[b], result)]
        return self.xp.contract(f"{spelled[0]},{spelled[1]}->{spelled[2]}", self.values[a], self.values[b])

    def count(self, label: str) -> Residues:
        return self.xp.load(np.asarray(prod(self.sizes[part] for part in self.goal.whole(label)), np.float64))

    def _aligned(self, args: Sequence[int], values: Sequence[Residues]) -> list[Residues]:
        labels = sorted({label for i in args for label in self.free[i]})
        shapes = [[self.sizes[x] if x in self.free[i] else 1 for x in labels] for i in args]
        return [self.xp.reshape(value, shape) for value, shape in zip(values, shapes, strict=True)]


def tied(goal: Labelled) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """Labels that have one size, as views of one leaf do: of each label the one that stands for it,
    and which of those are the product of the two parts of a split one."""
    groups: dict[str, str] = {}
    products: dict[str, tuple[str, str]] = {}
    wholes = {outer: whole for whole, (outer, _) in goal.split.items()}
    inner = {part for _, part in goal.split.values()}

    def group(label: str) -> str:
        while label in groups:
            label = groups[label]
        return label

    first: dict[Node, LabelNames] = {each.node: each.axes for each in goal.known if not each.node.args}
    pairs: list[tuple[str, str]] = []
    for name, axes in goal.inputs.items():
        before = first.setdefault(whole_leaf(goal.leaves[name]), axes)
        named = [[wholes.get(x, x) for axis in each for x in axis if x not in inner] for each in (before, axes)]
        pairs += zip(*named, strict=True)
    for x, y in pairs:
        if x not in goal.split and y not in goal.split and group(x) != group(y):
            groups[group(y)] = group(x)
    for x, y in pairs:
        for whole, other in ((x, y), (y, x)):
            if whole in goal.split and other not in goal.split:
                products[group(other)] = goal.split[whole]
    labels = dict.fromkeys([*goal.labels, *(label for each in goal.known for axis in each.axes for label in axis)])
    return {label: group(label) for label in labels}, products


def sizes_apart(goal: Labelled, round_: int) -> dict[str, int]:
    """A size of its own for every label, from 2 on; in every other round the other way round.

    Views of one leaf share theirs.
    """
    groups, products = tied(goal)
    distinct = [label for label in dict.fromkeys(groups.values()) if label not in products]
    order = distinct if round_ % 2 == 0 else distinct[::-1]
    sizes = {label: 2 + i for i, label in enumerate(order)}
    sizes |= {label: prod(sizes[groups[part]] for part in parts) for label, parts in products.items()}
    return {label: sizes[group] for label, group in groups.items()}
