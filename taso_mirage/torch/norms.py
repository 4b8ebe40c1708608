"""Batch norms in training, which PyTorch's exporter writes as those of inference, in parts that
ONNX has: the statistics of the batch, and a norm of inference with these."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch


def _normalized(x: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, Any, Any]:
    """(n,c,...) -> the norm, and the mean and the variance of each channel, (c).

    Values in half precision are summed in single, as in PyTorch: squares would end at 65504.
    """
    wide, weight, bias = (each.float() if _is_half(each) else each for each in (x, weight, bias))
    axes = [0, *range(2, x.ndim)]
    mean = wide.mean(axes, keepdim=True)
    centred = wide - mean
    mean, variance = mean.reshape(-1), (centred * centred).mean(axes)
    norm = torch.ops.aten._native_batch_norm_legit_no_training(wide, weight, bias, mean, variance, 0.0, eps)[0]
    return norm.to(x.dtype), mean, variance


def _is_half(x: Any) -> bool:
    return x is not None and x.dtype in (torch.float16, torch.bfloat16)


def _functional(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, ...]:
    if not training:
        norm = torch.ops.aten._native_batch_norm_legit_no_training(x, weight, bias, mean, variance, momentum, eps)
        return (*norm, mean.clone(), variance.clone())
    norm, now, spread = _normalized(x, weight, bias, eps)
    count = math.prod(x.shape) // x.shape[1]
    moved = now * momentum + mean * (1 - momentum)
    unbiased = spread * (count / (count - 1))
    spread_moved = unbiased * momentum + variance * (1 - momentum)
    return norm, now, (spread + eps).rsqrt(), moved.to(mean.dtype), spread_moved.to(variance.dtype)


def _without_statistics(
    x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, Any, Any]:
    norm, mean, variance = _normalized(x, weight, bias, eps)
    return norm, mean, (variance + eps).rsqrt()


TRAINING_NORMS: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten._native_batch_norm_legit_functional.default: _functional,
    torch.ops.aten._native_batch_norm_legit.no_stats: _without_statistics,
}
"""The operators that PyTorch calls for them once nothing changes in place, and their
decompositions."""


NORMS = frozenset((torch.batch_norm.__name__, torch.instance_norm.__name__))
STATISTICS = 5
"""The place of the flag that says whether those of the batch are meant."""

HOLDING = frozenset((torch.ops.aten.detach_.default,))
"""Operators that are said to change an operand in place, but for its numbers: constants of a graph
go through them."""


def trains(node: Any) -> bool:
    """Whether a node of a graph is a norm with the statistics of its batch."""
    name = getattr(node.target, "__name__", "").partition(".")[0]
    return name in NORMS and len(node.args) > STATISTICS and bool(node.args[STATISTICS])


def may_change(node: Any) -> bool:
    """Whether a node of a graph of ATen may change the elements of an operand in place, or trains.

    A schema names the operands that an operator changes, except for the running statistics of
    norms. A graph inside of the graph, or an operator of others, may be anything.
    """
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OperatorBase):
        return bool(node.op == "call_module")
    if node.target in HOLDING:
        return False
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.name.startswith("aten::"):
        return True
    return bool(schema.is_mutable) or any(argument.name.startswith("running_") for argument in schema.arguments)
