"""The goals of `kernels_h100.py` in PyTorch: in eager, and by SDPA in the layout that it
prefers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import convolution_peer
import float8_peer
import latent_peer

Function = Callable[..., Any]


def rms(x: Any, gamma: Any = None) -> Any:
    import torch

    return torch.nn.functional.rms_norm(x, x.shape[-1:], gamma, 0.0)


def silu(x: Any) -> Any:
    return x * x.sigmoid()


def attention(q: Any, k: Any, v: Any, mask: Any = 0.0, scale: float = 1.0) -> Any:
    return ((q @ k) * scale + mask).softmax(-1) @ v


EAGER: dict[str, Function] = {
    "gated_mlp": lambda x, gate, up: silu(x @ gate) * (x @ up),
    "gated_mlp_down": lambda x, gate, up, down: (silu(x @ gate) * (x @ up)) @ down,
    "lora": lambda x, w, a, b: x @ w + (x @ a) @ b,
    "rmsnorm_linear": lambda x, w: rms(x) @ w,
    "rmsnorm_gamma_linear": lambda x, gamma, w, bias: rms(x, gamma) @ w + bias,
    "ntrans": lambda x, h, a: rms(x + a * (rms(h) - x)),
    "gqa": attention,
    "long_attention": attention,
    "masked_attention": lambda q, k, v, m: attention(q, k, v, m, q.shape[-1] ** -0.5),
    "qknorm": lambda q, k, v: attention(rms(q), rms(k).transpose(1, 2), v),
    "rotary_attention": lambda q, r, cos, sin, k, v: attention(q * cos + r * sin, k, v),
    "latent_attention": latent_peer.attention,
    "float8_linear": float8_peer.linear,
    "float8_attention": float8_peer.attention,
    convolution_peer.NAME: convolution_peer.convolution,
}


def sdpa(q: Any, k: Any, v: Any, mask: Any = None, scale: float = 1.0) -> Any:
    """All operands have the shape (heads, rows, width)."""
    import torch

    mask = None if mask is None else mask[None, None]
    found = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask, scale=scale)
    return found[0]


PREPARE: dict[str, Function] = {
    "qknorm": lambda q, k, v: (rms(q), rms(k), v),
    "rotary_attention": lambda q, r, cos, sin, k, v: (q * cos + r * sin, k, v),
}
"""Functions that run before the attention."""
SDPA: dict[str, Function] = {
    "gqa": sdpa,
    "long_attention": sdpa,
    "masked_attention": lambda q, k, v, m: sdpa(q, k, v, m, q.shape[-1] ** -0.5),
    "qknorm": lambda *inputs: sdpa(*PREPARE["qknorm"](*inputs)),
    "rotary_attention": lambda *inputs: sdpa(*PREPARE["rotary_attention"](*inputs)),
    "latent_attention": sdpa,
}


def for_sdpa(name: str, inputs: Sequence[Any]) -> list[Any]:
    """The inputs with rows outermost, the queries of a group as rows of their head; of a latent
    head the keys as one tensor, whose first columns are the values."""
    if name == "qknorm":
        return list(inputs)
    if name == "latent_attention":
        return latent_peer.joined(inputs)
    k = -2 if name != "masked_attention" else 1
    keys = inputs[k].transpose(-1, -2).contiguous()
    found = [keys if x is inputs[k] else x for x in inputs]
    if name == "long_attention":
        return [x.reshape(x.shape[0], -1, x.shape[-1]) for x in found]
    return found
