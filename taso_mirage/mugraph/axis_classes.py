"""Axis classes by unification: axes that must be one get one label (einsum letters found for a
whole graph).

A dim is a tuple of labels, outermost first: one as a rule, none for a dim of size 1, several where
a reshape merges or splits dims. Two labels of one tensor never become one. Instead an operand is
renamed, and its inputs are used under two views.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import TypeAlias

from taso_mirage.errors import Unsupported

Label: TypeAlias = int
AxisLabels: TypeAlias = tuple[Label, ...]
LabelledAxes: TypeAlias = tuple[AxisLabels, ...]


class Unifier:
    """Labels with their sizes, which of them are one, and which are a product of others."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._parts: dict[Label, AxisLabels] = {}
        self._together: list[AxisLabels] = []

    def fresh(self, size: int) -> AxisLabels:
        """The axis of a dim of this size: a new label, none for 1.

        Raises Unsupported for one of no elements.
        """
        if size < 1:
            raise Unsupported(f"a dim of {size} elements has no label")
        if size == 1:
            return ()
        self.sizes.append(size)
        return (len(self.sizes) - 1,)

    def axis(self, labels: Iterable[Label]) -> AxisLabels:
        """The labels that some labels have been split into by now."""
        found: list[Label] = []
        for label in labels:
            parts = self._parts.get(label)
            found += [label] if parts is None else self.axis(parts)
        return tuple(found)

    def axes(self, axes: Iterable[AxisLabels]) -> LabelledAxes:
        return tuple([self.axis(axis) for axis in axes])

    def size(self, axis: AxisLabels) -> int:
        return prod(self.sizes[label] for label in axis)

    def together(self, labels: Iterable[Label]) -> None:
        """State that these labels differ: they are seen in one place.

        Raises Unsupported where two are one already.
        """
        seen = self.axis(labels)
        if len(set(seen)) < len(seen):
            raise Unsupported("one axis is met twice")
        self._together.append(seen)

    def unify(
        self, a: AxisLabels, b: AxisLabels, bound: tuple[AxisLabels, AxisLabels] = ((), ())
    ) -> list[tuple[Label, Label]]:
        """Make two axes of one size one.

        Labels that cannot be one are returned, as labels of `b` with those of `a` to rename them
        to.

        `bound`: the labels that either side is already summed over. One that the first side is, and
        that is free in the second (the residual of a block), stays apart, or the sum's roles and
        the result's would be the same.
        """
        if self.size(self.axis(a)) != self.size(self.axis(b)):
            raise Unsupported("axes of different sizes")
        self.refine(a, b)
        refused = []
        for x, y in zip(self.axis(a), self.axis(b), strict=True):
            x, y = self.axis((x,))[0], self.axis((y,))[0]  # the pair before may have been the same two labels
            if x == y:
                continue
            if any(x in place and y in place for place in map(self.axis, self._together)):
                refused.append((y, x))
            elif y in self.axis(bound[0]) and x not in self.axis(bound[1]):
                self.together((x, y))
                refused.append((y, x))
            else:
                self._parts[max(x, y)] = (min(x, y),)
        return refused

    def refine(self, a: AxisLabels, b: AxisLabels) -> None:
        """Split labels until both axes have labels of the same sizes."""
        while True:
            left, right = self.axis(a), self.axis(b)
            unequal = [(x, y) for x, y in zip(left, right, strict=False) if self.sizes[x] != self.sizes[y]]
            if not unequal:
                return
            larger, smaller = sorted(unequal[0], key=lambda label: -self.sizes[label])
            self.split(larger, self.sizes[smaller])

    def split(self, label: Label, outer: int) -> None:
        """Make a label of size n the product of one of size `outer` and one of n / outer."""
        if self.sizes[label] % outer:
            raise Unsupported(f"an axis of {self.sizes[label]} does not divide into parts of {outer}")
        self._parts[label] = (*self.fresh(outer), *self.fresh(self.sizes[label] // outer))

    def regroup(self, axes: Sequence[AxisLabels], shape: Sequence[int]) -> LabelledAxes:
        """The axes of a reshape: the labels in their order, cut where the new dims end."""
        cut: list[int] = []
        for n in shape:
            have = 1
            while have < n:
                left = self.axis([label for axis in axes for label in axis])
                if len(cut) == len(left):
                    raise Unsupported(f"no labels for the dims {tuple(shape)}")
                if (n // have) % self.sizes[left[len(cut)]]:
                    self.split(left[len(cut)], n // have)
                    continue
                have *= self.sizes[left[len(cut)]]
                cut.append(have)
            if have != n:
                raise Unsupported(f"dims that a reshape to {tuple(shape)} cuts across")
        labels = iter(self.axis([label for axis in axes for label in axis]))
        result: list[AxisLabels] = []
        for n in shape:
            axis: AxisLabels = ()
            while self.size(axis) < n:
                axis += (next(labels),)
            result.append(axis)
        return tuple(result)
