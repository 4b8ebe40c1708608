"""Float64 on the GPU: references for results of kernels, and the large terms of a model's reference
(matrix products and convolutions)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from taso_mirage.forms.base.form import form_of
from taso_mirage.forms.base.in_operators import CUT, nearest_tf32
from taso_mirage.ir.terms import Graph, Node, is_float, is_stored, numpy_dtype, variable
from taso_mirage.meanings.arrays import Array, pairwise_in_parts
from taso_mirage.meanings.reals import EXACT
from taso_mirage.measure.check import FLOOR
from taso_mirage.operators.interpret import interpret, retyped

LARGEST = 1 << 31
"""The largest number of bytes that a comparison or a product holds on the GPU."""
SLOW, BUSY = 1e9, 64
"""The number of operations from which a product is faster on the GPU, in total and per transferred
byte."""

ROUNDED = 2.0**-12
"""The error of the tensor cores' sums of products of rounded operands, relative to the norm: they
cut digits off at each step."""


class Float64Oracle:
    """An oracle that judges results by the goal in float64: the norm of the difference must be
    within the share that rounding explains (see `check`). Where convolutions round their operands
    to TF32 (`rounds`), the goal is of such operands: the check compares the model with kernels that
    round none, which may be others."""

    def __init__(self, goal: Graph, rounds: bool = False) -> None:
        self.goal = goal
        self.wanted: dict[int, list[Any]] = {}
        self._conv: Node | None = None
        self._alone: Node | None = None
        self._parts = False
        for output in goal.outputs:
            form = form_of(output)
            if form is not None and form.alone is not None and self._conv is None:
                self._conv, self._alone, self._parts = output, form.alone(output), form.in_parts
        self.rounds = rounds and self._parts
        self._read = () if self._conv is None else set(self._conv.args[:2]).difference(self._conv.args[2:])

    def prepare(self, inputs: Sequence[Any]) -> None:
        """Weights that are given in two parts as numbers of TF32 and the differences from these."""
        if self._conv is not None and self._parts:
            high, low = inputs[self.goal.inputs.index(self._conv.args[1])]
            near = nearest_tf32(high.cpu().numpy())
            low.copy_(high - (rounded := _tensor(near).to(high.device)))
            high.copy_(rounded)

    def _convolved(self, given: Mapping[Node, Any]) -> tuple[tuple[Node, ...], dict[Node, Any]]:
        """The terms to compute, and the known values: a convolution is computed in float64 on the
        GPU, since numpy would copy each element once for each element of the kernel."""
        if self._conv is None or self._alone is None:
            return self.goal.outputs, {}
        x, w, *others = self._conv.args
        body = self._conv.attr("body")
        y = variable("y", self._alone.tensor)
        outputs = retyped(body.outputs, dict(zip(body.inputs, (y, *others), strict=True)))
        image = _nearest(given[x]) if self.rounds else given[x]
        parts = _first_part(given[w]) if self.rounds else given[w]
        weights = interpret((self._alone.args[1],), EXACT, {w: _exact(parts, w)})
        return outputs, {y: _convolution(self._alone, image, weights[self._alone.args[1]])}

    def __call__(self, inputs: Sequence[Any], results: Sequence[Any]) -> bool:
        place = inputs[0].data_ptr()
        if place not in self.wanted:
            given = dict(zip(self.goal.inputs, inputs, strict=True))
            outputs, values = self._convolved(given)
            arrays = {node: _exact(tensor, node) for node, tensor in given.items() if node not in self._read}
            found = interpret(outputs, EXACT, {**arrays, **values})
            self.wanted[place] = [_there(found[o], results[0]) for o in outputs]
        pairs = zip(self.goal.outputs, results, self.wanted[place], strict=True)
        return all(_close(result, wanted, node, self.rounds) for node, result, wanted in pairs)


def _convolution(node: Node, x: Any, w: Array) -> Any:
    """A convolution of ONNX, or a transposed one, of a tensor with an array, in float64."""
    import torch

    attrs: dict[str, Any] = dict(node.attrs)
    count, extra, x = x.dim() - 2, attrs.get("output_padding", ()), x.double()
    weights = _tensor(w).to(x.device)
    low, high = attrs["pads"][:count], attrs["pads"][count:]
    strides, dilations, none = attrs["strides"], attrs["dilations"], (0,) * count
    if extra:  # one of all results, and those in between
        found = torch.convolution(x, weights, None, strides, none, dilations, True, none, attrs["group"])
        more = [max(e - b, 0) for e, b in zip(extra, high, strict=True)]
        found = torch.nn.functional.pad(found, [n for e in reversed(more) for n in (0, e)])
        sides = [slice(a, a + int(n)) for a, n in zip(low, node.shape[2:], strict=True)]
        return found[(..., *sides)].cpu().numpy()
    around = [n for pair in zip(reversed(low), reversed(high), strict=True) for n in pair]
    x = torch.nn.functional.pad(x, around)
    return torch.convolution(x, weights, None, strides, none, dilations, False, none, attrs["group"]).cpu().numpy()


def _first_part(w: Any) -> Any:
    """Weights in parts, of which the others are zero."""
    made = w.clone()
    made[1:] = 0
    return made


def _nearest(x: Any) -> Any:
    """`nearest_tf32` of a tensor."""
    import torch

    return ((x.contiguous().view(torch.int32) + (CUT + 1) // 2) & ~CUT).view(torch.float32)


def _exact(tensor: Any, node: Node) -> Any:
    if is_stored(node.dtype):
        return tensor.float().cpu().numpy().astype(numpy_dtype(node.dtype))
    here = tensor.cpu()
    return here.double().numpy() if is_float(node.dtype) else EXACT.load(here.numpy())


def _there(value: Any, like: Any) -> Any:
    """A float64 array where a tensor is, to be compared there, if it is not too large."""
    if value.dtype != np.float64 or value.nbytes > LARGEST or not hasattr(like, "device"):
        return value
    return _tensor(value).to(like.device)


def _close(result: Any, wanted: Any, node: Node, rounds: bool = False) -> bool:
    dtype = numpy_dtype(node.dtype)
    result = _exact(result, node) if isinstance(wanted, np.ndarray) else result.double()
    if not is_float(node.dtype):
        return bool(np.array_equal(result, wanted))
    allowed = FLOOR[dtype.itemsize] * float(ml_dtypes.finfo(dtype).eps)
    allowed = max(allowed, ROUNDED) if rounds else allowed
    apart, most = (float(((x**2).sum()) ** 0.5) for x in (result - wanted, wanted))
    return apart <= allowed * most


def contracted_on_gpu(a: Array, b: Array, letters_a: str, letters_b: str, result: str) -> Array:
    """`pairwise_in_parts`; large ones in float64 on the GPU, which is as exact. Windows of an image
    are views of it, so it is sent once."""
    sizes = dict(zip(letters_a, a.shape, strict=True)) | dict(zip(letters_b, b.shape, strict=True))
    flops = 2 * math.prod(sizes.values())
    moved = _span(a) + _span(b) + a.itemsize * math.prod([sizes[c] for c in result])
    small = flops < max(SLOW, BUSY * moved) or moved > LARGEST
    if small or a.dtype != np.float64 or b.dtype != np.float64:
        return pairwise_in_parts(a, b, letters_a, letters_b, result)
    try:
        return pairwise_in_parts(a, b, letters_a, letters_b, result, LARGEST, _einsum_there)
    except RuntimeError:  # out of memory; cuBLAS reports this with its own message
        return pairwise_in_parts(a, b, letters_a, letters_b, result)


def _einsum_there(a: Array, b: Array, letters_a: str, letters_b: str, result: str) -> Array:
    import torch

    found: Array = torch.einsum(f"{letters_a},{letters_b}->{result}", _sent(a), _sent(b)).cpu().numpy()
    return found


def _span(array: Array) -> int:
    """The number of transferred bytes of an array: the range from its first to its last element, if
    that is smaller than the array."""
    steps = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
    if min(steps, default=0) < 0 or any(stride % array.itemsize for stride in array.strides):
        return array.nbytes
    return min(int(sum(steps)) + array.itemsize, array.nbytes)


def _sent(array: Array) -> Any:
    """The tensor on the GPU."""
    if (size := _span(array)) == array.nbytes:
        return _tensor(array).cuda()
    flat = np.lib.stride_tricks.as_strided(array, (size // array.itemsize,), (array.itemsize,))
    return _tensor(flat).cuda().as_strided(array.shape, [stride // array.itemsize for stride in array.strides])


def _tensor(array: Any) -> Any:
    """The array as a tensor, over the same memory where PyTorch takes that: it refuses strides
    below 0, and warns of arrays that may not be written to."""
    import torch

    whole = np.require(array, requirements=("C", "W"))  # this includes an axis of one element with a negative stride
    return torch.from_numpy(whole.copy() if min(whole.strides, default=0) < 0 else whole)


def give_memory_back() -> None:
    """Release PyTorch's cached GPU memory, because the runtime allocates its own."""
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
