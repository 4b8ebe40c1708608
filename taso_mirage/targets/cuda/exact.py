"""Float64 on the GPU: what results of kernels are compared with, and large products of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from taso_mirage.ir.terms import Graph, Node, is_float, is_stored, numpy_dtype
from taso_mirage.meanings.reals import EXACT
from taso_mirage.measure.check import FLOOR
from taso_mirage.operators.interpret import interpret

LARGEST = 1 << 31
"""Bytes that a comparison, or a product, keeps on the GPU."""
SLOW, BUSY = 1e9, 64
"""A product of so many operations, and so many for each byte that goes to the GPU and back, is
faster there."""


class Right:
    """Whether results are a goal's in float64, by the norm of the difference: the share of it that
    rounding explains (see `check`)."""

    def __init__(self, goal: Graph) -> None:
        self.goal = goal
        self.wanted: dict[int, list[Any]] = {}

    def __call__(self, inputs: Sequence[Any], results: Sequence[Any]) -> bool:
        place = inputs[0].data_ptr()
        if place not in self.wanted:
            arrays = [_exact(tensor, node) for tensor, node in zip(inputs, self.goal.inputs, strict=True)]
            values = interpret(self.goal.outputs, EXACT, dict(zip(self.goal.inputs, arrays, strict=True)))
            self.wanted[place] = [_there(values[o], results[0]) for o in self.goal.outputs]
        pairs = zip(self.goal.outputs, results, self.wanted[place], strict=True)
        return all(_close(result, wanted, node) for node, result, wanted in pairs)


def _exact(tensor: Any, node: Node) -> Any:
    if is_stored(node.dtype):
        return tensor.float().cpu().numpy().astype(numpy_dtype(node.dtype))
    return EXACT.load((tensor.double() if is_float(node.dtype) else tensor).cpu().numpy())


def _there(value: Any, like: Any) -> Any:
    """A float64 array where a tensor is, to be compared there, if it is not too large."""
    if value.dtype != np.float64 or value.nbytes > LARGEST or not hasattr(like, "device"):
        return value
    return _tensor(value).to(like.device)


def _close(result: Any, wanted: Any, node: Node) -> bool:
    dtype = numpy_dtype(node.dtype)
    result = _exact(result, node) if isinstance(wanted, np.ndarray) else result.double()
    if not is_float(node.dtype):
        return bool(np.array_equal(result, wanted))
    allowed = FLOOR[dtype.itemsize] * float(ml_dtypes.finfo(dtype).eps)
    apart, most = (float(((x**2).sum()) ** 0.5) for x in (result - wanted, wanted))
    return apart <= allowed * most


def product_on_gpu(a: Any, b: Any) -> Any:
    """numpy's product of matrices; large ones in float64 on the GPU, which is as exact."""
    flops = 2 * a.size * b.shape[-1]
    moved = a.nbytes + b.nbytes + flops // max(2 * a.shape[-1], 1) * a.itemsize
    if a.dtype != np.float64 or b.dtype != np.float64 or flops < max(SLOW, BUSY * moved) or moved > LARGEST:
        return np.matmul(a, b)
    try:
        found = _tensor(a).cuda() @ _tensor(b).cuda()
        return found.cpu().numpy()
    except RuntimeError:  # no room: cuBLAS, too, says so in words of its own
        return np.matmul(a, b)


def _tensor(array: Any) -> Any:
    """The array as a tensor, over the same memory where PyTorch takes that: it refuses strides
    below 0, and warns of what may not be written to."""
    import torch

    return torch.from_numpy(np.require(array, requirements=("C", "W")))


def give_memory_back() -> None:
    """PyTorch keeps what it had of the GPU; the runtime asks for memory of its own."""
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
