"""The meaning `labels`: the effect of an operator on named axes, derived from its definition.

Values are axes and a term over scalars and folds.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim, Shape
from taso_mirage.ir.terms import Literal, Node, Tensor, is_computed
from taso_mirage.meanings.base import Meaning, Scalar, contraction, scalar_name
from taso_mirage.meanings.shapes import SHAPES
from taso_mirage.mugraph.axis_classes import AxisLabels, Label, LabelledAxes, Unifier
from taso_mirage.mugraph.derivations import reductions
from taso_mirage.mugraph.derivations.arithmetic import (
    ADD_KIND,
    ARITHMETIC,
    MUL,
    NEG,
    RECIPROCAL_KIND,
    SQRT_KIND,
    SQUARE,
    SUB,
)
from taso_mirage.mugraph.derivations.kind import DerivationKind
from taso_mirage.mugraph.derivations.reductions import DOT, MEAN_KIND, SUM_KIND
from taso_mirage.mugraph.derivations.scalar_terms import ScalarTerm, TermForm, below, seen
from taso_mirage.mugraph.integer_operands import SUMMED


@dataclass(frozen=True, eq=False, slots=True)
class LabelledValue:
    axes: LabelledAxes
    dtype: str
    term: ScalarTerm


INTEGERS = "int32"
"""The dtype in which products of numbers of 8 bits are summed."""
ALGEBRA: dict[Scalar, DerivationKind] = {kind.scalar: kind for kind in ARITHMETIC}
RING = (ADD_KIND, SUB, MUL, NEG)
"""The arithmetic of integers, which is exact modulo 2^32."""
_POWERS: dict[float, DerivationKind | None] = {1.0: None, 2.0: SQUARE, 0.5: SQRT_KIND, -1.0: RECIPROCAL_KIND}
"""The derivation of a power with a constant exponent; for 1, its operand."""


class Moving:
    """A primitive that moves elements between axes: it raises Unsupported."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type) -> Any:
        raise Unsupported(f"{self.name} moves elements between axes")


class LabelsMeaning(Meaning[LabelledValue]):
    """Primitives that move elements have no meaning here."""

    iota: Any = Moving()
    cumulate: Any = Moving()
    concat: Any = Moving()
    slice: Any = Moving()
    pad: Any = Moving()
    window: Any = Moving()
    take: Any = Moving()
    take_along: Any = Moving()
    put: Any = Moving()

    def __init__(self, unifier: Unifier) -> None:
        self.unifier = unifier

    def leaf(self, node: Node) -> LabelledValue:
        """An input: one new label for each dim that is not 1."""
        axes: list[AxisLabels] = []
        for n in node.shape:
            if not isinstance(n, int):
                raise Unsupported(f"the dim {n} of {node!r}: sizes must be fixed")
            axes.append(self.unifier.fresh(n))
        return self.made(ScalarTerm(TermForm.LEAF, node=node, axes=tuple(axes)), tuple(axes), node.dtype)

    def made(self, term: ScalarTerm, axes: LabelledAxes, dtype: str) -> LabelledValue:
        self.unifier.together(label for axis in axes for label in axis)
        return LabelledValue(axes, dtype, term)

    def shape(self, a: LabelledValue) -> Shape:
        return tuple([self.unifier.size(self.unifier.axis(axis)) for axis in a.axes])

    def dtype(self, a: LabelledValue) -> str:
        return a.dtype

    def constant(self, value: Literal) -> LabelledValue:
        if prod(value.shape) != 1:
            raise Unsupported(f"a constant of shape {value.shape}")
        number = value.numpy().item()
        own = int(number) if value.dtype == INTEGERS else float(number)
        return LabelledValue(((),) * len(value.shape), value.dtype, ScalarTerm(TermForm.CONSTANT, value=own))

    def extents(self, values: Sequence[Dim], scalar: bool = False) -> LabelledValue:
        raise Unsupported("a number computed from sizes")

    def count(self, a: LabelledValue, axes: Sequence[int]) -> LabelledValue:
        labels = tuple([label for i in axes for label in a.axes[i]])
        return LabelledValue(
            (),
            a.dtype,
            ScalarTerm(TermForm.SCALAR, labels=labels) if labels else ScalarTerm(TermForm.CONSTANT, value=1.0),
        )

    # ------------------------------------------------------------ elements

    def map(self, fn: Scalar, *xs: LabelledValue) -> LabelledValue:
        if ALGEBRA.get(fn) not in RING or not all(map(_is_whole, xs)):
            _refuse_integers(*xs)
        dtype = SHAPES.map(fn, *[Tensor(x.dtype, ()) for x in xs]).dtype
        if fn is np.divide and xs[1].term.kind is TermForm.SCALAR and xs[1].term.labels:
            return replace(xs[0], term=self._mean(xs[0].term, xs[1].term))
        kind: TermForm | DerivationKind | None = ALGEBRA.get(fn, TermForm.SCALAR)
        if fn is np.power and xs[1].term.kind is TermForm.CONSTANT and xs[1].term.value in _POWERS:
            kind, xs = _POWERS[xs[1].term.value], xs[:1]
        aligned, axes = self.broadcast(xs)
        terms = tuple([x.term for x in aligned])
        return self.made(terms[0] if kind is None else ScalarTerm(kind, terms), axes, dtype)

    def _mean(self, folded: ScalarTerm, count: ScalarTerm) -> ScalarTerm:
        """A sum divided by the number of its elements is a mean."""
        if folded.kind is not SUM_KIND or set(self.unifier.axis(folded.labels)) != set(self.unifier.axis(count.labels)):
            raise Unsupported("a quotient by the size of an axis that is no mean")
        return ScalarTerm(MEAN_KIND, folded.args, labels=folded.labels)

    def broadcast(self, xs: Sequence[LabelledValue]) -> tuple[list[LabelledValue], LabelledAxes]:
        """Operands under common labels, and the axes of a result of all of them; aligned at the
        right."""
        rank = max(len(x.axes) for x in xs)
        places = [list(range(rank - len(x.axes), rank)) for x in xs]
        values, found = self._placed(xs, places)
        return values, tuple([found.get(i, ()) for i in range(rank)])

    def _placed(
        self, xs: Sequence[LabelledValue], places: Sequence[Sequence[Hashable]], apart: bool = False
    ) -> tuple[list[LabelledValue], dict[Hashable, AxisLabels]]:
        """Give axes in one place one label; an operand that would then meet a label twice is
        renamed, the one with fewer folds.

        So is, with `apart`, one that has a place for itself and a label there that another one was
        summed over (keys that are values, too): it would be a label of the result that no grid may
        cut.
        """
        found: dict[Hashable, AxisLabels] = {}
        values = list(xs)
        folded: AxisLabels = ()
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
            if apart:
                images |= {*self.unifier.axis(folded)} - {*self.unifier.axis(folds[at])}
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

    def _renamed(self, x: LabelledValue, pairs: Sequence[tuple[Label, Label]]) -> LabelledValue:
        if not pairs:
            return x
        names = dict(pairs)
        axes = tuple([tuple([names.get(label, label) for label in axis]) for axis in self.unifier.axes(x.axes)])
        return replace(x, axes=axes, term=ScalarTerm(TermForm.RENAME, (x.term,), pairs=tuple(pairs)))

    def cast(self, a: LabelledValue, dtype: str) -> LabelledValue:
        """Kernels keep computed values in fp32: rounding is checked with numbers, not here. A whole
        number may have more digits than fp32: its conversion is a function."""
        if not is_computed(dtype) and a.dtype != dtype:
            raise Unsupported(f"a conversion from {a.dtype} to {dtype}")
        if a.dtype == INTEGERS and is_computed(dtype):
            if a.term.kind is not TermForm.CONSTANT:
                return replace(a, dtype=dtype, term=ScalarTerm(TermForm.SCALAR, (a.term,)))
            a = replace(a, term=replace(a.term, value=float(a.term.value)))
        return replace(a, dtype=dtype)

    # ------------------------------------------------------------ folds

    def contract(self, equation: str, a: LabelledValue, b: LabelledValue) -> LabelledValue:
        whole = _is_whole(a) and _is_whole(b)
        if not whole:
            _refuse_integers(a, b)
        letters_a, letters_b, result = contraction(equation, len(a.axes), len(b.axes))
        (left, right), found = self._placed([a, b], [letters_a, letters_b], apart=True)
        axes = tuple([found[letter] for letter in result])
        labels = tuple([label for letter, axis in found.items() if letter not in tuple(result) for label in axis])
        made = ScalarTerm(DOT, (left.term, right.term), labels=labels)
        if whole:
            self._refuse_long(made)
        return self.made(made, axes, a.dtype)

    def reduce(self, fn: np.ufunc, a: LabelledValue, axes: Sequence[int], keepdims: bool = True) -> LabelledValue:
        if fn is not np.add or not _is_whole(a):
            _refuse_integers(a)
        if fn is np.minimum:
            if a.dtype == "bool":
                raise Unsupported("a fold of minimum over truth values")
            largest = self.reduce(np.maximum, self.map(np.negative, a), axes, keepdims)
            return self.map(np.negative, largest)
        kind = next((each for each in reductions.REDUCTIONS if each.fold is fn), None)
        if kind is None:
            raise Unsupported(f"a fold of {scalar_name(fn)}")
        labels = tuple([label for i in axes for label in a.axes[i]])
        left: LabelledAxes = tuple(
            [() if i in axes else axis for i, axis in enumerate(a.axes) if keepdims or i not in axes]
        )
        made = ScalarTerm(kind, (a.term,), labels=labels)
        if _is_whole(a):
            self._refuse_long(made)
        return LabelledValue(left, a.dtype, made)

    def _refuse_long(self, total: ScalarTerm) -> None:
        """Raise Unsupported where a sum of integers, with the sums below it, has more products than
        tensor cores sum without saturating."""
        labels = {label for each in below(total) for label in self.unifier.axis(each.labels)}
        if (count := prod(self.unifier.sizes[label] for label in labels)) >= SUMMED:
            raise Unsupported(f"a sum of {count} products of integers: of {SUMMED} and more it may not be in int32")

    # ------------------------------------------------------------ structure

    def reshape(self, a: LabelledValue, shape: Sequence[Dim]) -> LabelledValue:
        return replace(a, axes=self.unifier.regroup(a.axes, [int(n) for n in shape]))

    def transpose(self, a: LabelledValue, perm: Sequence[int]) -> LabelledValue:
        return replace(a, axes=tuple([a.axes[i] for i in perm]))

    def expand(self, a: LabelledValue, shape: Sequence[Dim]) -> LabelledValue:
        axes = ((),) * (len(shape) - len(a.axes)) + a.axes
        wide = tuple([axis or self.unifier.fresh(int(n)) for axis, n in zip(axes, shape, strict=True)])
        return self.made(a.term, wide, a.dtype)


def _is_whole(x: LabelledValue) -> bool:
    """Whether a value is a number, or is computed from whole numbers; other integers are not known
    to come from bytes."""
    leaf = seen(x.term)
    return x.dtype == INTEGERS and not (leaf.kind is TermForm.LEAF and leaf.node is not None and not leaf.node.args)


def _refuse_integers(*values: LabelledValue) -> None:
    """Raise Unsupported where an operand is of integers, which may wrap, or of floats that nothing
    computes with."""
    for each in values:
        if not is_computed(each.dtype) and each.dtype != "bool":
            raise Unsupported(f"arithmetic of {each.dtype}")
