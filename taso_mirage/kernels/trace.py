"""The meaning `labels`: what an operator does on named axes, read off its definition. Values are axes and a term over scalars and folds."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from taso_mirage.dims import Dim, Shape
from taso_mirage.errors import Unsupported
from taso_mirage.ir import Literal, Node, Tensor, is_float
from taso_mirage.kernels.axes import Axes, Axis, Label, Unifier
from taso_mirage.meanings.base import Meaning, Scalar, contraction, scalar_name
from taso_mirage.meanings.shapes import SHAPES


@dataclass(frozen=True, eq=False, slots=True)
class Term:
    """`op`: input (node, axes), constant (value), an operator of ALGEBRA, scalar (a numpy function that is none of them, or a fold's
    count), function (an opaque operator: node), contract, sum, max, mean (over `labels`), rename (`pairs`, all at once)."""

    op: str
    args: tuple[Term, ...] = ()
    node: Node | None = None
    axes: Axes = ()
    labels: Axis = ()
    pairs: tuple[tuple[Label, Label], ...] = ()
    value: float = 0.0


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    axes: Axes
    dtype: str
    term: Term


ALGEBRA: dict[Scalar, str] = {
    np.add: "add",
    np.subtract: "sub",
    np.multiply: "mul",
    np.divide: "div",
    np.exp: "exp",
    np.sqrt: "sqrt",
    np.negative: "neg",
    np.reciprocal: "reciprocal",
    np.square: "square",
}
_POWERS = {1.0: "identity", 2.0: "square", 0.5: "sqrt", -1.0: "reciprocal"}


class Labels(Meaning[Value]):
    """Primitives that move elements (concat, slice, take, window...) have no meaning here: they raise Unsupported."""

    def __init__(self, unifier: Unifier) -> None:
        self.unifier = unifier

    def leaf(self, node: Node) -> Value:
        """An input: one new label for each dim that is not 1."""
        axes: list[Axis] = []
        for n in node.shape:
            if not isinstance(n, int):
                raise Unsupported(f"the dim {n} of {node!r}: sizes must be fixed")
            axes.append(self.unifier.fresh(n))
        return self.made(Term("input", node=node, axes=tuple(axes)), tuple(axes), node.dtype)

    def made(self, term: Term, axes: Axes, dtype: str) -> Value:
        self.unifier.together(label for axis in axes for label in axis)
        return Value(axes, dtype, term)

    def shape(self, a: Value) -> Shape:
        return tuple([self.unifier.size(self.unifier.axis(axis)) for axis in a.axes])

    def dtype(self, a: Value) -> str:
        return a.dtype

    def constant(self, value: Literal) -> Value:
        if prod(value.shape) != 1:
            raise Unsupported(f"a constant of shape {value.shape}")
        return Value(((),) * len(value.shape), value.dtype, Term("constant", value=float(value.numpy().item())))

    def extents(self, values: Sequence[Dim], scalar: bool = False) -> Value:
        raise Unsupported("a number computed from sizes")

    def count(self, a: Value, axes: Sequence[int]) -> Value:
        labels = tuple([label for i in axes for label in a.axes[i]])
        return Value((), a.dtype, Term("scalar", labels=labels) if labels else Term("constant", value=1.0))

    # ------------------------------------------------------------ elements

    def map(self, fn: Scalar, *xs: Value) -> Value:
        dtype = SHAPES.map(fn, *[Tensor(x.dtype, ()) for x in xs]).dtype
        if fn is np.divide and xs[1].term.op == "scalar" and xs[1].term.labels:
            return replace(xs[0], term=self._mean(xs[0].term, xs[1].term))
        op = ALGEBRA.get(fn, "scalar")
        if fn is np.power and xs[1].term.op == "constant" and xs[1].term.value in _POWERS:
            op, xs = _POWERS[xs[1].term.value], xs[:1]
        aligned, axes = self.broadcast(xs)
        terms = tuple([x.term for x in aligned])
        return self.made(terms[0] if op == "identity" else Term(op, terms), axes, dtype)

    def _mean(self, folded: Term, count: Term) -> Term:
        """A sum divided by how many elements it meets is a mean."""
        if folded.op != "sum" or set(self.unifier.axis(folded.labels)) != set(self.unifier.axis(count.labels)):
            raise Unsupported("a quotient by the size of an axis that is no mean")
        return Term("mean", folded.args, labels=folded.labels)

    def broadcast(self, xs: Sequence[Value]) -> tuple[list[Value], Axes]:
        """Operands under common labels, and the axes of a result of all of them; aligned at the right."""
        rank = max(len(x.axes) for x in xs)
        places = [list(range(rank - len(x.axes), rank)) for x in xs]
        values, found = self._placed(xs, places)
        return values, tuple([found.get(i, ()) for i in range(rank)])

    def _placed(
        self, xs: Sequence[Value], places: Sequence[Sequence[Hashable]]
    ) -> tuple[list[Value], dict[Hashable, Axis]]:
        """Give axes in one place one label; an operand that would then meet a label twice is renamed, the one with fewer folds."""
        found: dict[Hashable, Axis] = {}
        values = list(xs)
        folded: Axis = ()
        folds = [tuple([label for t in below(x.term) for label in t.labels]) for x in xs]
        for at in sorted(range(len(xs)), key=lambda i: -len(folds[i])):
            x, own = xs[at], places[at]
            if len(set(own)) < len(own):
                raise Unsupported("a diagonal")
            pairs: list[tuple[Label, Label]] = []
            for place, axis in zip(own, x.axes, strict=True):
                if axis and found.get(place):
                    pairs += self.unifier.unify(found[place], axis, (folded, folds[at]))
            images = {new for _, new in pairs} | set(
                self.unifier.axis(label for axis in found.values() for label in axis)
            )
            for place, axis in zip(own, x.axes, strict=True):
                if not found.get(place):  # a label of its own, which another place may have as well
                    pairs += [self._other(y) for y in self.unifier.axis(axis) if y in images]
            values[at] = self._renamed(x, pairs)
            for place, axis in zip(own, values[at].axes, strict=True):
                found[place] = found.get(place) or axis
            folded += folds[at]
        self.unifier.together(label for axis in found.values() for label in axis)
        return values, found

    def _other(self, label: Label) -> tuple[Label, Label]:
        (new,) = self.unifier.fresh(self.unifier.sizes[label])
        self.unifier.together((label, new))
        return label, new

    def _renamed(self, x: Value, pairs: Sequence[tuple[Label, Label]]) -> Value:
        if not pairs:
            return x
        names = dict(pairs)
        axes = tuple([tuple([names.get(label, label) for label in axis]) for axis in self.unifier.axes(x.axes)])
        return replace(x, axes=axes, term=Term("rename", (x.term,), pairs=tuple(pairs)))

    def cast(self, a: Value, dtype: str) -> Value:
        """Kernels keep what they compute in fp32: rounding is checked with numbers, not here."""
        if not is_float(dtype) and a.dtype != dtype:
            raise Unsupported(f"a conversion from {a.dtype} to {dtype}")
        return replace(a, dtype=dtype)

    # ------------------------------------------------------------ folds

    def contract(self, equation: str, a: Value, b: Value) -> Value:
        letters_a, letters_b, result = contraction(equation, len(a.axes), len(b.axes))
        (left, right), found = self._placed([a, b], [letters_a, letters_b])
        axes = tuple([found[letter] for letter in result])
        labels = tuple([label for letter, axis in found.items() if letter not in tuple(result) for label in axis])
        return self.made(Term("contract", (left.term, right.term), labels=labels), axes, a.dtype)

    def reduce(self, fn: np.ufunc, a: Value, axes: Sequence[int], keepdims: bool = True) -> Value:
        if fn not in (np.add, np.maximum):
            raise Unsupported(f"a fold of {scalar_name(fn)}")
        labels = tuple([label for i in axes for label in a.axes[i]])
        left: Axes = tuple([() if i in axes else axis for i, axis in enumerate(a.axes) if keepdims or i not in axes])
        term = Term("sum" if fn is np.add else "max", (a.term,), labels=labels)
        return Value(left, a.dtype, term)

    # ------------------------------------------------------------ structure

    def reshape(self, a: Value, shape: Sequence[Dim]) -> Value:
        return replace(a, axes=self.unifier.regroup(a.axes, [int(n) for n in shape]))

    def transpose(self, a: Value, perm: Sequence[int]) -> Value:
        return replace(a, axes=tuple([a.axes[i] for i in perm]))

    def expand(self, a: Value, shape: Sequence[Dim]) -> Value:
        axes = ((),) * (len(shape) - len(a.axes)) + a.axes
        wide = tuple([axis or self.unifier.fresh(int(n)) for axis, n in zip(axes, shape, strict=True)])
        return self.made(a.term, wide, a.dtype)

    def __getattribute__(self, name: str) -> object:
        if name in _NONE:
            raise Unsupported(f"{name} moves elements between axes")
        return super().__getattribute__(name)


_NONE = frozenset({"iota", "cumulate", "concat", "slice", "pad", "window", "take", "take_along"})


def below(term: Term) -> Iterator[Term]:
    """All terms of a term, each once."""
    seen: dict[int, Term] = {}
    stack = [term]
    while stack:
        each = stack.pop()
        if id(each) not in seen:
            seen[id(each)] = each
            stack += each.args
            yield each
