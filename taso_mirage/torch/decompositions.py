"""Operators that PyTorch's exporter writes by their definition, where eager PyTorch computes them
otherwise: logarithms of sums of exponentials, which overflow; remainders and whole quotients, which
are not those of the rounded quotient; numbers that are infinite in double precision, not in single;
and convolutions without a bias, for which it writes one of a wrong shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

import torch
from torch._decomp import get_decompositions

ATEN = torch.ops.aten


def _log_sigmoid(x: Any) -> Any:
    """min(x, 0) - log(1 + exp(-|x|)), as PyTorch has it."""
    return x.clamp(max=0) - torch.log1p(torch.exp(-x.abs()))


def _log_sigmoid_forward(x: Any) -> tuple[Any, Any]:
    return _log_sigmoid(x), torch.exp(-x.abs())


def _remainder(x: Any, y: Any) -> Any:
    """With the sign of y; the exporter has that of integers."""
    if not (dtype := torch.result_type(x, y)).is_floating_point:
        return NotImplemented
    x, y = _converted(x, dtype), _converted(y, dtype)
    rest = torch.fmod(x, y)
    return torch.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


def _divided(x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return torch.floor_divide(x, y)
    if rounding_mode is None or torch.result_type(x, y).is_floating_point:
        return NotImplemented
    down = torch.floor_divide(x, y)
    return down + ((x != down * y) & ((x < 0) != (y < 0))).to(down.dtype)


def _floor_divided(x: Any, y: Any) -> Any:
    """(x - (x mod y)) / y is whole but for rounding; x / y where y is 0."""
    if not (dtype := torch.result_type(x, y)).is_floating_point:
        return NotImplemented
    x, y = _converted(x, dtype), _converted(y, dtype)
    whole = torch.round((x - _remainder(x, y)) / y)
    if isinstance(y, torch.Tensor):
        return torch.where(y == 0, x / y, whole)
    return whole if y else x / y


def _without_bias(x: Any, w: Any, bias: Any = None, *how: Any) -> Any:
    if bias is not None:
        return NotImplemented
    ones = [1] * (w.dim() - 2)
    defaults: tuple[Any, ...] = (ones, [0] * len(ones), ones, 1)
    stride, pad, dilation, groups = (*how, *defaults[len(how) :])
    return ATEN.convolution.default(x, w, None, stride, pad, dilation, False, [0] * len(ones), groups)


def _is_infinite(x: Any) -> Any:
    return x.abs() == inf


def _is_positively_infinite(x: Any) -> Any:
    return x == inf


def _is_negatively_infinite(x: Any) -> Any:
    return x == -inf


def _converted(x: Any, dtype: Any) -> Any:
    return x.to(dtype) if isinstance(x, torch.Tensor) else float(x)


FAITHFUL: Mapping[Any, Callable[..., Any]] = {
    **get_decompositions(
        [ATEN.logaddexp.default, ATEN.logaddexp2.default, ATEN.binary_cross_entropy_with_logits.default]
    ),
    ATEN.conv3d.default: _without_bias,
    ATEN.log_sigmoid.default: _log_sigmoid,
    ATEN.log_sigmoid_forward.default: _log_sigmoid_forward,
    ATEN.isinf.default: _is_infinite,
    ATEN.isposinf.default: _is_positively_infinite,
    ATEN.isneginf.default: _is_negatively_infinite,
    ATEN.remainder.Tensor: _remainder,
    ATEN.remainder.Scalar: _remainder,
    ATEN.div.Tensor_mode: _divided,
    ATEN.div.Scalar_mode: _divided,
    ATEN.floor_divide.default: _floor_divided,
    ATEN.floor_divide.Scalar: _floor_divided,
}
"""PyTorch's operators in parts that it computes them by."""
ALONE: Mapping[Any, str] = {
    ATEN.logcumsumexp.default: "overflows, as PyTorch exports it, where a row has numbers far from its greatest"
}
"""Operators of which there are no such parts, and why they stay in eager PyTorch."""
