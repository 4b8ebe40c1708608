"""The values of a state in all steps as terms of sequences: of a shift register, which holds the
last elements of a sequence, of a running sum, and of a product of exponentials.

They are found by numbers (`state_forms`); `search/loops/states.py` proves them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.dims import symbols
from taso_mirage.ir.model import random_array
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, substitute, topological
from taso_mirage.meanings.arrays import Array
from taso_mirage.meanings.reals import EXACT
from taso_mirage.onnx_io.loops import value_after, values_before
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term
from taso_mirage.rewriting.forms import RegionPattern

LONGEST = 64
"""The largest number of elements of a shift register."""
FREE = 3
"""The size of a free dimension, where numbers are compared."""
EXPONENTIAL = RegionPattern("exp(x)")
SUMMED = ("float32", "float64", "int32", "int64")
"""The types of running sums in ONNX Runtime."""


@dataclass(frozen=True, slots=True)
class AllValues:
    """The values of a state after each step, those before it, and the last one. `lemmas`: pairs of
    terms that are equal for all values of the terms beside them."""

    values: Node
    before: Node
    last: Node
    lemmas: tuple[tuple[Node, Node, tuple[Node, ...]], ...] = ()
    parts: tuple[Node, ...] = ()


class StateForm(Protocol):
    """A state that is a function of the state before and of a term that no state changes."""

    def new(self, before: Node, each: Node) -> Node:
        """The state after a step, by the one before it and the term."""

    def all(self, first: Node, every: Node, backward: int) -> AllValues:
        """The values in all steps, by the first one and the term in all steps."""


@dataclass(frozen=True, slots=True)
class Latest:
    """A state that is a term of the step."""

    def new(self, before: Node, each: Node) -> Node:
        del before
        return each

    def all(self, first: Node, every: Node, backward: int) -> AllValues:
        return AllValues(every, values_before(first, every, backward), value_after(first, every, backward))


@dataclass(frozen=True, slots=True)
class RunningSum:
    """A state to which a step adds a term."""

    def new(self, before: Node, each: Node) -> Node:
        return term("add", before, each)

    def all(self, first: Node, every: Node, backward: int) -> AllValues:
        """Sums of the first state and the terms, in the order of the steps."""
        count, start = every.shape[0], with_axis(first, 0)
        sums = term("cumsum", joined([every, start] if backward else [start, every]), axis=0, reverse=int(backward))
        before, values = (sliced(sums, i, i + count) for i in ((1, 0) if backward else (0, 1)))
        last = 0 if backward else count
        lemma = term("add", before, every), values, (first, every)
        return AllValues(values, before, term("squeeze", sliced(sums, last, last + 1), axes=(0,)), (lemma,))


@dataclass(frozen=True, slots=True)
class Decay:
    """A state that a step multiplies by the exponential of a term."""

    def new(self, before: Node, each: Node) -> Node:
        return term("mul", before, term("exp", each))

    def all(self, first: Node, every: Node, backward: int) -> AllValues:
        """The first state times the exponentials of the running sums of the terms: a sum whose
        exponential is a number of float32 is below 104, so it loses few digits."""
        nothing = constant(np.zeros([int(n) for n in every.shape[1:]]), every.dtype)
        sums, row = RunningSum().all(nothing, every, backward), with_axis(first, 0)
        before, values = (self.new(row, x) for x in (sums.before, sums.values))
        (added, _, _) = sums.lemmas[0]
        lemma = self.new(before, every), self.new(row, added), (first, sums.before, every)
        return AllValues(values, before, self.new(first, sums.last), (*sums.lemmas, lemma))


@dataclass(frozen=True, slots=True)
class ShiftRegister:
    """A state of `size` parts along an axis, of which a step drops the first and appends a term; or
    `reverse`, drops the last and puts the term before the others."""

    axis: int
    size: int
    reverse: bool

    def new(self, before: Node, each: Node) -> Node:
        start = int(not self.reverse)
        parts = [sliced(before, start, start + self.size - 1, self.axis), with_axis(each, self.axis)]
        return joined(parts[::-1] if self.reverse else parts, self.axis)

    def all(self, first: Node, every: Node, backward: int) -> AllValues:
        """Shifted parts of one sequence: the parts of the first state, oldest first, and the terms;
        or from the last step on, the terms and the parts."""
        count, rank = every.shape[0], first.tensor.rank
        front = (self.axis, *(i for i in range(rank) if i != self.axis))
        moved = term("transpose", first, perm=front)
        oldest = _flipped(moved) if self.reverse else moved
        whole = joined([every, _flipped(oldest)] if backward else [oldest, every])
        shifted = [
            every if i == (0 if backward else self.size) else sliced(whole, i, i + count) for i in range(self.size + 1)
        ]
        if backward:
            shifted.reverse()
        before, values = (self._columns(part) for part in (shifted[:-1], shifted[1:]))
        end = sliced(whole, 0, self.size) if backward else sliced(whole, count, count + self.size)
        last = _flipped(end) if bool(backward) != self.reverse else end
        back = tuple(front.index(i) for i in range(rank))
        return AllValues(values, before, term("transpose", last, perm=back), parts=tuple(shifted))

    def _columns(self, parts: Sequence[Node]) -> Node:
        found = [with_axis(part, self.axis + 1) for part in parts]
        return joined(found[::-1] if self.reverse else found, self.axis + 1)


def sliced(x: Node, start: object, end: object, axis: int = 0) -> Node:
    """Some elements along an axis."""
    return term("slice", x, starts=(start,), ends=(end,), axes=(axis,), steps=(1,))


def joined(parts: Sequence[Node], axis: int = 0) -> Node:
    """Terms one after the other."""
    return parts[0] if len(parts) == 1 else term("concat", *parts, axis=axis)


def with_axis(x: Node, axis: int) -> Node:
    """A term with one more axis."""
    return term("unsqueeze", x, axes=(axis,))


def _flipped(x: Node) -> Node:
    return term("slice", x, starts=(x.shape[0] - 1,), ends=(-1,), axes=(0,), steps=(-1,))


# ---------------------------------------------------------------- candidates


def state_forms(body: Graph, states: int, state: int) -> Iterator[tuple[StateForm, Node]]:
    """The forms that give the numbers of a state after a step, with the term of a step that no
    state changes."""
    new, given = body.outputs[state], body.inputs[:states]
    below = topological([new])
    read = [leaf for leaf in given if leaf in below]
    if not read:
        yield Latest(), new
    elif read == [body.inputs[state]]:
        try:
            found = _Numbers(body, below, state)
        except (TasoMirageError, ArithmeticError, ValueError, TypeError, LookupError):
            return
        yield from found.registers()
        yield from found.sums()
        yield from found.products()


class _Numbers:
    """The values of the terms of a step in two steps that differ in one state only."""

    def __init__(self, body: Graph, below: Sequence[Node], state: int) -> None:
        self.leaf, self.new = body.inputs[state], body.outputs[state]
        rng, sizes = np.random.default_rng(0), {name: FREE for n in body.inputs for d in n.shape for name in symbols(d)}
        given = [n for n in below if n in body.inputs]
        self.steps: list[Mapping[Node, Array]] = []
        env = {n: EXACT.load(random_array(n, rng, sizes)) for n in given}
        for _ in range(2):
            env[self.leaf] = EXACT.load(random_array(self.leaf, rng, sizes, wide=True))
            self.steps.append(interpret(list(below), EXACT, dict(env), sizes=dict(sizes)))
        varying = {self.leaf}
        self.each = []
        for node in below:
            if not varying.isdisjoint(node.args):
                varying.add(node)
            elif node is not self.leaf and isinstance(node.type, Tensor):
                self.each.append(node)

    def _holds(self, found: list[Array], node: Node) -> bool:
        return all(
            a.size == b.size and np.array_equal(a, np.asarray(b).reshape(a.shape))
            for a, b in zip(found, [step[node] for step in self.steps], strict=True)
        )

    def registers(self) -> Iterator[tuple[StateForm, Node]]:
        """Shift registers along each axis."""
        pairs = [(np.asarray(step[self.leaf]), np.asarray(step[self.new])) for step in self.steps]
        for axis, size in enumerate(self.leaf.shape):
            if not isinstance(size, int) or not 1 < size <= LONGEST:
                continue
            rest = tuple(n for i, n in enumerate(self.leaf.shape) if i != axis)
            for reverse in (False, True):
                start = int(not reverse)
                kept = [
                    (np.take(a, range(start, start + size - 1), axis), np.take(b, range(1 - start, size - start), axis))
                    for a, b in pairs
                ]
                if not all(np.array_equal(a, b) for a, b in kept):
                    continue
                fresh = [np.take(b, 0 if reverse else size - 1, axis) for _, b in pairs]
                for node in self.each:
                    if self._holds(fresh, node):
                        each = node if node.shape == rest else term("reshape", node, shape=rest)
                        yield ShiftRegister(axis, size, reverse), each

    def sums(self) -> Iterator[tuple[StateForm, Node]]:
        """A running sum of a term, or of the step's result for a state of zeros."""
        if self.leaf.dtype not in SUMMED:
            return
        added = [np.asarray(step[self.new]) - np.asarray(step[self.leaf]) for step in self.steps]
        if not np.allclose(added[0], added[1], 1e-9, 1e-9) or not all(np.isfinite(a).all() for a in added):
            return
        for node in self.each:
            if node.type == self.leaf.type and all(
                np.allclose(a, step[node], 1e-9, 1e-9) for a, step in zip(added, self.steps, strict=True)
            ):
                yield RunningSum(), node
                return
        if all(isinstance(n, int) for n in self.leaf.shape):
            zeros = constant(np.zeros([int(n) for n in self.leaf.shape]), self.leaf.dtype)
            yield RunningSum(), substitute((self.new,), {self.leaf: zeros})[0]

    def products(self) -> Iterator[tuple[StateForm, Node]]:
        """A product with the exponential of a term of the same sizes."""
        if self.leaf.dtype not in SUMMED or not all(isinstance(n, int) for n in self.leaf.shape):
            return
        for node in self.each:
            read = EXPONENTIAL.match(node) if node.type == self.leaf.type else None
            if read is not None:
                products = [np.asarray(step[self.leaf]) * np.asarray(step[node]) for step in self.steps]
                if all(
                    np.allclose(a, step[self.new], 1e-9, 1e-9) for a, step in zip(products, self.steps, strict=True)
                ):
                    yield Decay(), read["x"]
                    return
