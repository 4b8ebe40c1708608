"""The memory of a loop over steps: values that are the same in all steps, and the order of the axes
of a state."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from taso_mirage.emit.cpu.lazy_tensors import (
    BufferSizes,
    Concat,
    Contract,
    CppBuffer,
    Flat,
    LoopValue,
    LoopView,
    Map,
    Mapped,
    Reduce,
    base_value,
    contiguous,
)
from taso_mirage.ir.dims import dim_product
from taso_mirage.ir.mugraph import usual_size
from taso_mirage.ir.terms import topological

VECTOR = 16
"""The least number of elements of an axis for which it becomes the last one in memory."""


def same_in_all_steps(values: Sequence[LoopValue], varying: Collection[LoopValue]) -> list[LoopValue]:
    """The computed values that depend on none of `varying`, and are read by values that do."""
    changes, found = set(varying), dict[LoopValue, None]()
    for value in topological(values):
        if value in changes or any(arg in changes for arg in value.args):
            changes.add(value)
    for value in changes:
        for arg in value.args if value not in varying else ():
            if arg not in changes:
                found.update(dict.fromkeys(_computed(arg)))
    return [x for x in topological(values) if x in found]


def _computed(value: LoopValue) -> Iterator[LoopValue]:
    """The computed values of which a value is made without a computation."""
    if isinstance(value, (Map, Mapped, Reduce, Contract)):
        if usual_size(value.count) > 1:
            yield value
    elif isinstance(value, (LoopView, Flat, Concat)):
        for arg in value.args:
            yield from _computed(arg)


def state_strides(values: Sequence[LoopValue], shape: BufferSizes) -> BufferSizes:
    """The strides of a state: row by row, or with the axes of its sums first, if these include the
    last one and other axes remain, whose elements are then neighbours in vectors of sums."""
    wide = [i for i, n in enumerate(shape) if n != 1]
    summed = set[int]()
    for value in topological(values):
        for x, axes in _sums(value):
            inner = base_value(x)
            if inner.shape == shape and isinstance(inner, (Map, CppBuffer)):
                summed |= _axes_under(x, axes)
    others = [i for i in wide if i not in summed]
    if not others or wide[-1] in others or usual_size(shape[others[-1]]) < VECTOR:
        return contiguous(shape)
    order = [*(i for i in range(len(shape)) if i not in others), *others]
    strides = {axis: dim_product(shape[a] for a in order[i + 1 :]) for i, axis in enumerate(order)}
    return tuple([strides[i] for i in range(len(shape))])


def _sums(value: LoopValue) -> Iterator[tuple[LoopValue, set[int]]]:
    """The operands of a sum or of a product with a vector, each with the axes of the sum."""
    if isinstance(value, Reduce):
        yield value.arg, set(value.axes)
    elif isinstance(value, Contract):
        kept = {c for c, n in zip(value.letters[2], value.shape, strict=True) if n != 1}
        for x, own in zip(value.args, value.letters, strict=False):
            if kept <= set(own):
                yield x, {i for i, c in enumerate(own) if c not in kept}


def _axes_under(value: LoopValue, axes: set[int]) -> set[int]:
    """The axes of the value under a view to which some axes of the view belong."""
    if not isinstance(value, LoopView):
        return axes
    return {i for i, (_, terms) in enumerate(value.axes) if any(axis in axes for axis, _ in terms)}
