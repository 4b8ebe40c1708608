"""The meaning `torch`: tensors of PyTorch in the declared dtypes, so that a model's terms are a
function that Inductor compiles.

An operator of which PyTorch has an equal becomes that one (`TorchMeaning.own`): windows would have
many times the elements of their operand, and Inductor knows these operators. All others become
their definitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch.nn import functional

from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim, Shape
from taso_mirage.ir.terms import Literal
from taso_mirage.meanings.base import Meaning, Scalar, contraction, scalar_name
from taso_mirage.meanings.functions import ERROR_FUNCTION, NEVER, TRUNCATED_DIVIDE, Function

LARGEST = 1 << 28
"""The largest number of elements of windows, which may have to be written to memory."""
NAMES = {
    "equal": "eq",
    "invert": "bitwise_not",
    "left_shift": "bitwise_left_shift",
    "power": "pow",
    "right_shift": "bitwise_right_shift",
    "rint": "round",
}
"""PyTorch's names of numpy's functions, where they differ."""
FUNCTIONS: Mapping[Scalar, Callable[..., Any]] = {
    ERROR_FUNCTION.real: torch.erf,
    NEVER.real: lambda x: torch.zeros_like(x, dtype=torch.bool),
    TRUNCATED_DIVIDE.real: lambda a, b: torch.div(a, b, rounding_mode="trunc"),
}
"""Scalar functions that numpy does not have."""
FOLDS: Mapping[Scalar, Callable[[Any, list[int], bool], Any]] = {
    np.add: lambda a, axes, keep: a.sum(axes, keep, dtype=a.dtype),
    np.maximum: torch.amax,
    np.minimum: torch.amin,
}
REDUCED = {np.multiply: "prod", np.maximum: "amax", np.minimum: "amin"}
"""PyTorch's names of folds of an index."""
RUNNING: Mapping[Scalar, Callable[[Any, int], Any]] = {
    np.add: lambda a, axis: a.cumsum(axis, dtype=a.dtype),
    np.multiply: lambda a, axis: a.cumprod(axis, dtype=a.dtype),
    np.maximum: lambda a, axis: a.cummax(axis).values,
    np.minimum: lambda a, axis: a.cummin(axis).values,
}
CONVOLUTIONS = (functional.conv1d, functional.conv2d, functional.conv3d)
TRANSPOSED = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)
MAXIMA = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)
MEANS = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)
"""PyTorch's functions by the number of axes along which windows slide, from 1 on."""


# ------------------------------------------------------------ operators that PyTorch has


def _conv(
    xp: TorchMeaning, x: Any, w: Any, b: Any = None, *, strides: Any, pads: Any, dilations: Any, group: int = 1
) -> Any:
    n = len(strides)
    x, same = (x, pads[:n]) if _is_same(pads) else (_pad(xp, x, pads), 0)
    return CONVOLUTIONS[n - 1](x, w, b, strides, same, dilations, group)


def _conv_transpose(
    xp: TorchMeaning,
    x: Any,
    w: Any,
    b: Any = None,
    *,
    strides: Any,
    pads: Any,
    dilations: Any,
    output_padding: Any,
    group: int = 1,
) -> Any:
    """PyTorch's transposed convolution. Pads that it does not have are cut from the whole result,
    or are zeros around it."""
    n = len(strides)
    call = TRANSPOSED[n - 1]
    largest = map(max, zip(strides, dilations, strict=True))
    if _is_same(pads) and all(p < q for p, q in zip(output_padding, largest, strict=True)):
        return call(x, w, b, strides, pads[:n], output_padding, group, dilations)
    ends = [extra - p for extra, p in zip(output_padding, pads[n:], strict=True)]
    found = _pad(xp, call(x, w, None, strides, 0, 0, group, dilations), (*(-p for p in pads[:n]), *ends))
    return found if b is None else found + b.reshape(-1, *(1,) * n)


def _max_pool(xp: TorchMeaning, x: Any, *, kernel: Any, strides: Any, pads: Any, dilations: Any) -> Any:
    if not x.is_floating_point():
        return NotImplemented
    n = len(kernel)
    x, same = (x, pads[:n]) if _is_within(pads, kernel) else (_pad(xp, x, pads, -np.inf), 0)
    return MAXIMA[n - 1](x, kernel, strides, same, dilations)


def _average_pool(
    xp: TorchMeaning,
    x: Any,
    *,
    kernel: Any,
    strides: Any,
    pads: Any,
    dilations: Any,
    extra: Any,
    count_include_pad: int = 0,
) -> Any:
    if any(extra) or any(d != 1 for d in dilations) or not _is_within(pads, kernel) or not x.is_floating_point():
        return NotImplemented
    return MEANS[len(kernel) - 1](x, kernel, strides, pads[: len(kernel)], False, bool(count_include_pad))


def _is_same(pads: Sequence[int]) -> bool:
    """Whether both ends of each axis have the same pad, and nothing is cut off."""
    n = len(pads) // 2
    return tuple(pads[:n]) == tuple(pads[n:]) and min(pads) >= 0


def _is_within(pads: Sequence[int], kernel: Sequence[int]) -> bool:
    """Whether PyTorch's pools accept these pads: half of a window at most."""
    return _is_same(pads) and all(2 * p <= k for p, k in zip(pads, kernel, strict=False))


def _pad(xp: TorchMeaning, x: Any, pads: Sequence[int], value: float = 0) -> Any:
    n = len(pads) // 2
    return xp.pad(x, (0, 0, *pads[:n]), (0, 0, *pads[n:]), value)


def _reduce_mean(xp: TorchMeaning, x: Any, *, axes: Any, keepdims: int = 1) -> Any:
    """PyTorch's mean: a sum in half precision may overflow where the mean does not."""
    return x.mean(list(axes), bool(keepdims)) if x.is_floating_point() and axes else NotImplemented


def _layer_norm(
    xp: TorchMeaning,
    x: Any,
    scale: Any,
    bias: Any = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Any:
    shape = x.shape[axis:]
    scale, bias = (each if each is None else each.broadcast_to(shape) for each in (scale, bias))
    return functional.layer_norm(x, shape, scale, bias, epsilon)


# ------------------------------------------------------------ the primitives


class TorchMeaning(Meaning[Any]):
    """Tensors on a device.

    A term without a form in PyTorch raises Unsupported, or PyTorch's error.
    """

    own: ClassVar[Mapping[str, Callable[..., Any]]] = {
        "AveragePool": _average_pool,
        "Conv": _conv,
        "ConvTranspose": _conv_transpose,
        "Gelu": lambda xp, x, *, approximate="none": functional.gelu(x, approximate=approximate),
        "GroupNormalization": lambda xp, x, scale, bias, *, num_groups, epsilon=1e-5, stash_type=1: (
            functional.group_norm(x, num_groups, scale, bias, epsilon)
        ),
        "InstanceNormalization": lambda xp, x, scale, bias, *, epsilon=1e-5: functional.group_norm(
            x, x.shape[1], scale, bias, epsilon
        ),
        "LayerNormalization": _layer_norm,
        "LogSoftmax": lambda xp, x, *, axis=-1: x.log_softmax(axis),
        "MaxPool": _max_pool,
        "ReduceMean": _reduce_mean,
        "Softmax": lambda xp, x, *, axis=-1: x.softmax(axis),
    }

    def __init__(self, device: Any) -> None:
        self.device = device

    def shape(self, a: Any) -> Shape:
        return tuple(a.shape)

    def dtype(self, a: Any) -> str:
        return str(a.dtype).removeprefix("torch.")

    def constant(self, value: Literal) -> Any:
        array = value.numpy()
        if array.size == 0 or not is_uniform(array):
            return tensor_of(array, self.device)
        number = array.flat[0]
        number = number.item() if isinstance(number, np.bool | np.integer) else float(number)
        return torch.full(array.shape, number, dtype=torch_dtype(value.dtype), device=self.device)

    def extents(self, values: Sequence[Dim], scalar: bool = False) -> Any:
        sizes = np.array([int(n) for n in values], np.int64)
        return self.constant(Literal.of(sizes[0] if scalar else sizes))

    def iota(self, n: Dim, dtype: str = "int64") -> Any:
        return torch.arange(int(n), dtype=torch_dtype(dtype), device=self.device)

    def map(self, fn: Scalar, *xs: Any) -> Any:
        found = _function(fn)(*xs)
        became_float = found.is_floating_point() and not any(x.is_floating_point() for x in xs)
        return found.to(xs[0].dtype) if became_float else found

    def cast(self, a: Any, dtype: str) -> Any:
        return a.to(torch_dtype(dtype))

    def contract(self, equation: str, a: Any, b: Any) -> Any:
        left, right, result = contraction(equation, a.ndim, b.ndim)
        return a @ b if _is_product(left, right, result) else torch.einsum(f"{left},{right}->{result}", a, b)

    def reduce(self, fn: np.ufunc, a: Any, axes: Sequence[int], keepdims: bool = True) -> Any:
        if not axes:
            return a
        if fn is np.multiply:
            for axis in sorted(axes, reverse=True):
                a = a.prod(axis, keepdims, dtype=a.dtype)
            return a
        return FOLDS[fn](a, list(axes), keepdims)

    def cumulate(self, fn: np.ufunc, a: Any, axis: int) -> Any:
        return RUNNING[fn](a, axis)

    def reshape(self, a: Any, shape: Sequence[Dim]) -> Any:
        return a.reshape([int(n) for n in shape])

    def transpose(self, a: Any, perm: Sequence[int]) -> Any:
        return a.permute(tuple(perm))

    def expand(self, a: Any, shape: Sequence[Dim]) -> Any:
        return a.broadcast_to([int(n) for n in shape])

    def concat(self, xs: Sequence[Any], axis: int) -> Any:
        return torch.cat(list(xs), axis)

    def slice(self, a: Any, axis: int, start: Dim, stop: Dim, step: int = 1) -> Any:
        at = (slice(None),) * axis
        if step > 0:
            return a[(*at, slice(int(start), int(stop), step))]
        turned = a[(*at, slice(int(stop) + 1, int(start) + 1))].flip(axis)  # PyTorch has positive steps only
        return turned[(*at, slice(None, None, -step))]

    def pad(
        self, a: Any, low: Sequence[Dim], high: Sequence[Dim], value: float = 0, interior: Sequence[int] | None = None
    ) -> Any:
        for axis, count in enumerate(interior or ()):
            if count:
                between = [0, 0] * (a.ndim - axis - 1) + [0, count]
                apart = functional.pad(a.unsqueeze(axis + 1), between, value=value).flatten(axis, axis + 1)
                a = apart.narrow(axis, 0, max(apart.shape[axis] - count, 0))
        ends = [int(n) for pair in zip(reversed(low), reversed(high), strict=True) for n in pair]
        return functional.pad(a, ends, value=value) if any(ends) else a

    def window(
        self, a: Any, axes: Sequence[int], sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
    ) -> Any:
        for axis, size, stride, dilation in zip(axes, sizes, strides, dilations, strict=True):
            a = a.unfold(axis, (size - 1) * dilation + 1, stride)[..., ::dilation]
        if a.numel() > LARGEST:
            raise Unsupported(f"windows of {a.numel()} elements; {LARGEST} may be written")
        return a

    def take(self, a: Any, indices: Any, axis: int) -> Any:
        found = a[(*(slice(None),) * axis, indices.reshape(-1).long())]
        return found.reshape(*a.shape[:axis], *indices.shape, *a.shape[axis + 1 :])

    def take_along(self, a: Any, indices: Any, axis: int) -> Any:
        places = indices.long()
        return a.gather(axis, torch.where(places < 0, places + a.shape[axis], places))

    def put(self, a: Any, places: Sequence[Any], updates: Any, fn: np.ufunc | None = None) -> Any:
        at = [place.long() for place in places]
        if fn in (None, np.add):
            return a.index_put(tuple(at), updates, accumulate=fn is not None)
        if fn not in REDUCED:
            raise Unsupported(f"PyTorch has no scatter that folds by {scalar_name(fn)}")
        row, rows = torch.zeros_like(at[0]), 1
        for place, n in zip(at, a.shape, strict=False):
            row, rows = row * n + torch.where(place < 0, place + n, place), rows * n
        flat = updates.reshape(row.numel(), -1)
        at_each = row.reshape(-1, 1).expand(flat.shape)
        made = a.reshape(rows, -1).scatter_reduce(0, at_each, flat, REDUCED[fn])
        return made.reshape(a.shape)


def _function(fn: Scalar) -> Callable[..., Any]:
    """PyTorch's function of elements for numpy's, or for a record's."""
    real = fn.real if isinstance(fn, Function) else fn
    if real in FUNCTIONS:
        return FUNCTIONS[real]
    name = scalar_name(real)
    found = getattr(torch, NAMES.get(name, name), None) if getattr(np, name, None) is real else None
    if found is None:
        raise Unsupported(f"PyTorch has no function of elements {scalar_name(fn)}")
    made: Callable[..., Any] = found
    return made


def _is_product(left: str, right: str, result: str) -> bool:
    """Whether an einsum is a product of matrices like PyTorch's, with batches aligned at the
    right."""
    if min(len(left), len(right)) < 2:
        return False
    short, long = sorted((left[:-2], right[:-2]), key=len)
    return left[-1] == right[-2] and long.endswith(short) and result == long + left[-2] + right[-1]


def is_uniform(array: Any) -> bool:
    """Whether all elements are the same; zeros of both signs are not."""
    if not (array == array.flat[0]).all():
        return False
    signs = np.signbit(array.astype(np.float32))
    return bool(signs.all() == signs.any())


def torch_dtype(name: str) -> Any:
    """PyTorch's dtype of that name.

    Raises Unsupported if there is none.
    """
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise Unsupported(f"PyTorch has no dtype {name}")
    return found


def tensor_of(array: Any, device: Any) -> Any:
    """An array as a tensor on a device."""
    dtype = torch_dtype(array.dtype.name)
    dense = np.require(array, requirements=("C", "W"))
    own = dense.dtype.type.__module__ != np.__name__  # of ml_dtypes
    bits = dense.view(f"u{dense.itemsize}") if own else dense
    return torch.from_numpy(bits).view(dtype).reshape(array.shape).to(device)
