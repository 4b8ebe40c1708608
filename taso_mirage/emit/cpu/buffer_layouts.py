"""The places of elements: offsets into buffers, and a buffer in another shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from taso_mirage.emit.cpu.lazy_tensors import (
    Affine,
    AffineIndex,
    BufferSizes,
    Contract,
    CppBuffer,
    LoopConstant,
    LoopIota,
    LoopValue,
    LoopView,
    contiguous,
    shape_axes,
)
from taso_mirage.ir.dims import Dim, dim_product, gathered
from taso_mirage.ir.mugraph import usual_size


def loop_variables(shape: Sequence[Dim]) -> AffineIndex:
    """One loop variable for each axis, numbered over the axes that are not 1."""
    found: list[Affine] = []
    i = 0
    for n in shape:
        found.append(Affine() if n == 1 else Affine(0, ((f"i{i}", 1),)))
        i += n != 1
    return tuple(found)


def strip(value: LoopValue, index: AffineIndex) -> tuple[LoopValue, AffineIndex]:
    """The value under all views of a value, and the index in it."""
    while isinstance(value, LoopView):
        index = value.inner(index)
        value = value.arg
    return value, index


def memory_source(value: LoopValue) -> tuple[LoopValue, AffineIndex]:
    """The value whose memory has the elements of another, and the index in it by variables "0",
    "1"...; numbers and positions have no memory, so a view of them is stored itself."""
    axes = shape_axes(value.shape)
    inner, index = strip(value, axes)
    return (value, axes) if isinstance(inner, (LoopConstant, LoopIota)) else (inner, index)


def layout(value: LoopValue, buffers: Mapping[LoopValue, CppBuffer]) -> CppBuffer:
    """The place of a value; before it is computed, its later place without a name."""
    inner, index = memory_source(value)
    if isinstance(inner, CppBuffer):
        return inner.viewed(index, value.shape)
    strides = product_strides(inner, buffers) if isinstance(inner, Contract) else contiguous(inner.shape)
    return buffers.get(inner, CppBuffer(inner.dtype, inner.shape, "", strides)).viewed(index, value.shape)


def product_strides(value: Contract, buffers: Mapping[LoopValue, CppBuffer]) -> BufferSizes:
    """The layout of a product: the axis along which an operand is contiguous comes last."""
    result = value.letters[2]
    order = list(range(len(result)))
    for arg, letters in zip(value.args[::-1], value.letters[1::-1], strict=True):
        steps = strides_of(arg, letters, buffers)
        side = [a for a in order if value.shape[a] != 1 and steps.get(result[a]) == 1]
        if side:
            order.remove(side[-1])
            order.append(side[-1])
            break
    strides: list[Dim] = [0] * len(result)
    for i, axis in enumerate(order):
        strides[axis] = dim_product(value.shape[a] for a in order[i + 1 :])
    return tuple(strides)


def strides_of(value: LoopValue, letters: str, buffers: Mapping[LoopValue, CppBuffer]) -> dict[str, Dim]:
    """The stride of an operand of a product by letter; 0 where the operand does not vary."""
    found: dict[str, Dim] = dict.fromkeys(letters, 0)
    for letter, step, n in zip(letters, layout(value, buffers).strides, value.shape, strict=True):
        found[letter] = found[letter] + (step if n != 1 else 0)
    return found


def without_views(view: LoopView, target: CppBuffer) -> CppBuffer | None:
    """The target as a buffer of the shape of the view's operand."""
    strides: list[Dim] = []
    for (_, terms), n in zip(view.axes, view.arg.shape, strict=True):
        if n == 1:
            strides.append(0)
            continue
        inner: Dim = 1
        step: Dim = 0
        for axis, k in sorted(terms, key=lambda t: usual_size(t[1])):
            if step == 0:
                step = target.strides[axis]
            if k != inner or target.strides[axis] != step * k:
                return None
            inner = inner * view.shape[axis]
        strides.append(step)
    return replace(target, shape=view.arg.shape, strides=tuple(strides))


def unmerged(have: BufferSizes, want: BufferSizes, strides: BufferSizes) -> BufferSizes | None:
    """The strides of the axes `have` that `want` merges row by row; None if an axis of `have` is
    cut otherwise."""
    groups = gathered(have, want)
    if groups is None:
        return None
    found: list[Dim] = [0] * len(have)
    for axes, stride in zip(groups, strides, strict=True):
        for j in axes:
            found[j] = stride * dim_product(have[j + 1 : axes.stop])
    return tuple(found)
