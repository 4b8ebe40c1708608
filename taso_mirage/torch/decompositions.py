"""Differences between PyTorch's exporter and eager PyTorch, as one table of decompositions and two
edits of an exported program.

The table has the operators that the exporter does not know, or whose exported form overflows, loses
the sign, or has a wrong shape. It gives each as operators that the exporter writes as eager PyTorch
computes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import Any

import torch
from torch._decomp import get_decompositions
from torch.nn import functional

ATEN = torch.ops.aten


# ------------------------------------------------------------ arithmetic


def _log_sigmoid(x: Any) -> Any:
    """min(x, 0) - log(1 + exp(-|x|)), like PyTorch."""
    return x.clamp(max=0) - torch.log1p(torch.exp(-x.abs()))


def _remainder(x: Any, y: Any) -> Any:
    """The remainder with the sign of y; the exporter writes that of integers."""
    if not (dtype := torch.result_type(x, y)).is_floating_point:
        return NotImplemented
    x, y = _convert(x, dtype), _convert(y, dtype)
    rest = torch.fmod(x, y)
    return torch.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


def _divide(x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return torch.floor_divide(x, y)
    if rounding_mode is None or torch.result_type(x, y).is_floating_point:
        return NotImplemented
    down = torch.floor_divide(x, y)
    return down + ((x != down * y) & ((x < 0) != (y < 0))).to(down.dtype)


def _floor_divide(x: Any, y: Any) -> Any:
    """The quotient (x - (x mod y)) / y, which is whole but for rounding; x / y where y is 0."""
    if not (dtype := torch.result_type(x, y)).is_floating_point:
        return NotImplemented
    x, y = _convert(x, dtype), _convert(y, dtype)
    whole = torch.round((x - _remainder(x, y)) / y)
    if isinstance(y, torch.Tensor):
        return torch.where(y == 0, x / y, whole)
    return whole if y else x / y


def _convert(x: Any, dtype: Any) -> Any:
    return x.to(dtype) if isinstance(x, torch.Tensor) else float(x)


def _conv3d(x: Any, w: Any, bias: Any = None, *how: Any) -> Any:
    """The convolution without a bias: the exporter writes a bias of a wrong shape."""
    if bias is not None:
        return NotImplemented
    ones = [1] * (w.dim() - 2)
    defaults: tuple[Any, ...] = (ones, [0] * len(ones), ones, 1)
    stride, pad, dilation, groups = (*how, *defaults[len(how) :])
    return ATEN.convolution.default(x, w, None, stride, pad, dilation, False, [0] * len(ones), groups)


# ------------------------------------------------------------ batch norms in training


def _batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, ...]:
    """The norm, the statistics that it saves, and the running statistics, moved."""
    if not training:
        norm = ATEN._native_batch_norm_legit_no_training(x, weight, bias, mean, variance, momentum, eps)
        return (*norm, mean.clone(), variance.clone())
    norm, now, spread = _normalize(x, weight, bias, eps)
    count = math.prod(x.shape) // x.shape[1]
    moved = now * momentum + mean * (1 - momentum)
    unbiased = spread * (count / (count - 1))
    spread_moved = unbiased * momentum + variance * (1 - momentum)
    return norm, now, (spread + eps).rsqrt(), moved.to(mean.dtype), spread_moved.to(variance.dtype)


def _batch_norm_without_statistics(
    x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, Any, Any]:
    norm, mean, variance = _normalize(x, weight, bias, eps)
    return norm, mean, (variance + eps).rsqrt()


def _normalize(x: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, Any, Any]:
    """(n,c,...) -> the norm, and the mean and the variance of each channel, (c).

    Values in half precision are summed in single, as in PyTorch: squares would end at 65504.
    """
    half = torch.float16, torch.bfloat16
    wide, weight, bias = (
        each.float() if each is not None and each.dtype in half else each for each in (x, weight, bias)
    )
    axes = [0, *range(2, x.ndim)]
    mean = wide.mean(axes, keepdim=True)
    centred = wide - mean
    mean, variance = mean.reshape(-1), (centred * centred).mean(axes)
    norm = ATEN._native_batch_norm_legit_no_training(wide, weight, bias, mean, variance, 0.0, eps)[0]
    return norm.to(x.dtype), mean, variance


# ------------------------------------------------------------ torch.nn.TransformerEncoderLayer


MASK_DIMS = {0: (None, None), 1: (slice(None), None, None), 2: ()}
"""For each type of mask, (n,n), (b,n) or (b,h,n,n), the mask of scores, (b,h,n,n)."""


def _encoder_layer(
    x: Any,
    width: int,
    heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    out_weight: Any,
    out_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Any,
    norm_bias_1: Any,
    norm_weight_2: Any,
    norm_bias_2: Any,
    wide_weight: Any,
    wide_bias: Any,
    narrow_weight: Any,
    narrow_bias: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    """(b,n,width) -> (b,n,width). A mask is true where a key is hidden, and a row whose keys are
    all hidden is not a number, as in PyTorch's own operator."""

    def attend(x: Any) -> Any:
        packed = functional.linear(x, qkv_weight, qkv_bias).chunk(3, -1)
        query, key, value = [each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in packed]
        scores = query @ key.transpose(-1, -2) * (width // heads) ** -0.5
        if mask is not None:
            hidden = mask.to(torch.bool)[MASK_DIMS[mask_type or 0]]
            scores = scores + torch.where(hidden, -inf, 0.0).to(scores.dtype)
        joined = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
        return functional.linear(joined, out_weight, out_bias)

    def feed_forward(x: Any) -> Any:
        wide = functional.linear(x, wide_weight, wide_bias)
        wide = functional.gelu(wide) if use_gelu else functional.relu(wide)
        return functional.linear(wide, narrow_weight, narrow_bias)

    norm = partial(functional.layer_norm, normalized_shape=(width,), eps=eps)
    first = partial(norm, weight=norm_weight_1, bias=norm_bias_1)
    second = partial(norm, weight=norm_weight_2, bias=norm_bias_2)
    if norm_first:
        x = x + attend(first(x))
        return x + feed_forward(second(x))
    x = first(x + attend(x))
    return second(x + feed_forward(x))


# ------------------------------------------------------------ the table


DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    **get_decompositions(
        [ATEN.logaddexp.default, ATEN.logaddexp2.default, ATEN.binary_cross_entropy_with_logits.default]
    ),
    ATEN.log_sigmoid.default: _log_sigmoid,
    ATEN.log_sigmoid_forward.default: lambda x: (_log_sigmoid(x), torch.exp(-x.abs())),
    ATEN.isinf.default: lambda x: x.abs() == inf,
    ATEN.isposinf.default: lambda x: x == inf,
    ATEN.isneginf.default: lambda x: x == -inf,
    ATEN.remainder.Tensor: _remainder,
    ATEN.remainder.Scalar: _remainder,
    ATEN.div.Tensor_mode: _divide,
    ATEN.div.Scalar_mode: _divide,
    ATEN.floor_divide.default: _floor_divide,
    ATEN.floor_divide.Scalar: _floor_divide,
    ATEN.conv3d.default: _conv3d,
    ATEN._native_batch_norm_legit_functional.default: _batch_norm,
    ATEN._native_batch_norm_legit.no_stats: _batch_norm_without_statistics,
    ATEN._transformer_encoder_layer_fwd.default: _encoder_layer,
}
"""Functions that compute the same as PyTorch's operators, by operators that its exporter knows."""
EAGER_ONLY: Mapping[Any, str] = {
    ATEN.logcumsumexp.default: "overflows, as PyTorch exports it, where a row has numbers far from its greatest"
}
"""Operators without a decomposition, and why they stay in eager PyTorch."""


# ------------------------------------------------------------ edits of an exported program


LAYOUTS = (ATEN.contiguous.default, ATEN.clone.default)
JOINS = (ATEN.reshape.default, ATEN.view.default, ATEN.flatten.using_ints)


def zero_hidden_rows(program: Any) -> None:
    """Write zeros for rows of attention whose keys are all hidden, as eager PyTorch does, for every
    mask that depends on inputs. The exporter makes them the mean of all values, or not a number.

    They are written after the heads, (b,h,n,d), are joined again, (b,n,h*d), so that attention
    stays a pattern for which runtimes have one operator.
    """
    given, depends = set(program.graph_signature.user_inputs), set[Any]()
    for node in list(program.graph.nodes):
        if node.name in given or not depends.isdisjoint(node.all_input_nodes):
            depends.add(node)
        if node.target is ATEN.scaled_dot_product_attention.default:
            mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
            if mask in depends:
                _zero(program, node, mask)


def _zero(program: Any, attention: Any, mask: Any) -> None:
    value = mask.meta["val"]
    joined = _join_of(attention) if value.ndim == 4 and value.shape[1] == 1 else None
    last = joined or attention
    add = partial(_insert, program.graph, last.next)
    seen = mask if value.dtype == torch.bool else add(ATEN.ne.Scalar, mask, -inf)
    seen = add(ATEN.any.dim, seen, -1, True)
    seen = add(ATEN.squeeze.dim, seen, 1) if joined else seen
    zeroed = add(ATEN.where.ScalarOther, seen, last, 0.0)
    last.replace_all_uses_with(zeroed, delete_user_cb=lambda user: user is not zeroed)
    program.graph_signature.replace_all_uses(last.name, zeroed.name)


def _join_of(attention: Any) -> Any:
    """The node that joins the heads of attention, if nothing else reads them."""
    node = attention
    while len(node.users) == 1:
        (user,) = node.users
        if user.target in JOINS and node is not attention:
            shape = user.meta["val"].shape
            return user if len(shape) == 3 and shape[:2] == node.meta["val"].shape[:2] else None
        is_transposed = user.target is ATEN.transpose.int and user.args[1:] == (1, 2)
        if not (is_transposed if node is attention else user.target in LAYOUTS):
            return None
        node = user
    return None


def convert_subtracted(program: Any) -> None:
    """Convert integers that are subtracted from a float, as in `1.0 - mask`, which the exporter
    does not do."""
    for node in list(program.graph.nodes):
        if node.target is not ATEN.rsub.Scalar or not isinstance(node.args[1], float):
            continue
        dtype, operand = node.meta["val"].dtype, node.args[0]
        if operand.meta["val"].dtype != dtype:
            node.replace_input_with(operand, _insert(program.graph, node, ATEN._to_copy.default, operand, dtype=dtype))


def _insert(graph: Any, place: Any, target: Any, *operands: Any, **options: Any) -> Any:
    """A new node before `place`, with the stand-in for its value."""
    with graph.inserting_before(place):
        node = graph.call_function(target, operands, options)
    values = [each.meta["val"] if isinstance(each, torch.fx.Node) else each for each in operands]
    with values[0].fake_mode:
        node.meta["val"] = target(*values, **options)
    return node
