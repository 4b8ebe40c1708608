"""The row of `kernels_h100.py` with one latent head in PyTorch, in the layout that it likes: each
query and each key is one tensor of both parts, and the values are the first columns of the keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

Function = Callable[..., Any]
Kind = tuple[str, Function, list[list[Any]]]


def attention(q: Any, p: Any, c: Any, r: Any) -> Any:
    """(h,d), (h,e), (n,d), (n,e) -> (h,d)"""
    return (q @ c.T + p @ r.T).softmax(-1) @ c


def joined(inputs: Sequence[Any]) -> list[Any]:
    """(h,d), (h,e), (n,d), (n,e) -> (1,h,d+e), (1,n,d+e), and of the keys the first d columns"""
    import torch

    q, p, c, r = inputs
    queries, keys = (torch.cat(parts, -1)[None] for parts in ((q, p), (c, r)))
    return [queries, keys, keys[..., : c.shape[-1]]]


def kinds(name: str, arranged: Sequence[Sequence[Any]]) -> Iterator[Kind]:
    """The calls that compute the row from the result of `joined`, each with its label and its
    inputs."""
    if name != "latent_attention":
        return
    import torch

    compiled = partial(torch.compile, mode="max-autotune-no-cudagraphs", dynamic=False)
    inputs = [list(each) for each in arranged]
    yield "eager, one tensor of keys", _joined, inputs
    yield "torch.compile, one tensor of keys", compiled(_joined), inputs


def _joined(q: Any, k: Any, v: Any) -> Any:
    return (q @ k.transpose(1, 2)).softmax(-1) @ v
