"""The layer of `torch.nn.TransformerEncoder`, which PyTorch runs as one operator where gradients
are not wanted, in parts that its exporter knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import Any

import torch
from torch.nn import functional

SEEN_BY = {0: (None, None), 1: (slice(None), None, None), 2: ()}
"""How a mask of each type, (n,n), (b,n) or (b,h,n,n), is one of scores, (b,h,n,n)."""


def _layer(
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
    """(b,n,width) -> (b,n,width); a mask is true where nothing is seen, and a row of which nothing
    is seen is not a number, as in PyTorch's own operator."""

    def attended(x: Any) -> Any:
        packed = functional.linear(x, qkv_weight, qkv_bias).chunk(3, -1)
        query, key, value = [each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in packed]
        scores = query @ key.transpose(-1, -2) * (width // heads) ** -0.5
        if mask is not None:
            hidden = mask.to(torch.bool)[SEEN_BY[mask_type or 0]]
            scores = scores + torch.where(hidden, -inf, 0.0).to(scores.dtype)
        joined = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
        return functional.linear(joined, out_weight, out_bias)

    def fed_forward(x: Any) -> Any:
        wide = functional.linear(x, wide_weight, wide_bias)
        wide = functional.gelu(wide) if use_gelu else functional.relu(wide)
        return functional.linear(wide, narrow_weight, narrow_bias)

    first = partial(functional.layer_norm, normalized_shape=(width,), weight=norm_weight_1, bias=norm_bias_1, eps=eps)
    second = partial(functional.layer_norm, normalized_shape=(width,), weight=norm_weight_2, bias=norm_bias_2, eps=eps)
    if norm_first:
        x = x + attended(first(x))
        return x + fed_forward(second(x))
    x = first(x + attended(x))
    return second(x + fed_forward(x))


ENCODERS: Mapping[Any, Callable[..., Any]] = {torch.ops.aten._transformer_encoder_layer_fwd.default: _layer}
"""PyTorch's operator and its parts."""
