"""The rows of `kernels_h100.py` over 8-bit floats in PyTorch, and their peers: cuBLAS's product of
8-bit floats (`torch._scaled_mm`), and PyTorch's attention in half precision.

Operands are e4m3. Scales are of one tensor, or of rows and columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

Function = Callable[..., Any]
Kind = tuple[str, Function, list[list[Any]]]


def linear(x: Any, w: Any, s: Any, t: Any) -> Any:
    """(m,k), (n,k), their scales: of the whole, or of rows -> (m,n)"""
    wide = s.dtype
    return (x.to(wide) * _of_rows(s)) @ (w.to(wide) * _of_rows(t)).T


def attention(q: Any, k: Any, v: Any, sq: Any, sk: Any, sv: Any) -> Any:
    """(h,g,d), (h,n,d), (h,n,d), their scales -> (h,g,d)"""
    wide = sq.dtype
    q, k, v = (x.to(wide) * s for x, s in zip((q, k, v), (sq, sk, sv), strict=True))
    return (q @ k.transpose(1, 2)).softmax(-1) @ v


def _of_rows(scale: Any) -> Any:
    return scale[:, None] if scale.dim() else scale


def kinds(name: str, sets: Sequence[Sequence[Any]]) -> Iterator[Kind]:
    """The calls that compute a row, each with its label and its inputs, which are made ahead of
    time."""
    if name == "float8_linear":
        yield from _products(sets)
    elif name == "float8_attention":
        yield from _attention(sets)


def _products(sets: Sequence[Sequence[Any]]) -> Iterator[Kind]:
    import torch

    def scaled(x: Any, w: Any, s: Any, t: Any, fast: bool, dtype: Any) -> Any:
        return torch._scaled_mm(x, w.T, s, t, out_dtype=dtype, use_fast_accum=fast)

    inputs = [[x, w, _single(s), _single(t).T if t.dim() else _single(t)] for x, w, s, t in sets]
    for dtype in (torch.float16, torch.bfloat16):
        for fast in (False, True):
            label = f"cuBLAS 8 bits to {str(dtype).removeprefix('torch.')}{', fast sums' if fast else ''}"
            yield label, lambda *xs, fast=fast, dtype=dtype: scaled(*xs, fast, dtype), inputs
    halves = [[(x.half() * _of_rows(s)), (w.half() * _of_rows(t))] for x, w, s, t in sets]
    yield "cuBLAS in half precision", lambda x, w: x @ w.T, halves


def _single(scale: Any) -> Any:
    """A scale as the product wants it: a number, or a column."""
    return _of_rows(scale).float().contiguous()


def _attention(sets: Sequence[Sequence[Any]]) -> Iterator[Kind]:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    halves = [[(x.half() * s)[None] for x, s in zip(inputs[:3], inputs[3:], strict=True)] for inputs in sets]
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):

        def call(q: Any, k: Any, v: Any, backend: Any = backend) -> Any:
            with sdpa_kernel([backend]):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=1.0)[0]

        yield f"SDPA {backend.name.split('_')[0].lower()} in half precision", call, halves
