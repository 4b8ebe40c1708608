"""The rows of `kernels_h100.py` that are convolutions with channels last, in PyTorch, and their
peers: cuDNN through PyTorch in either layout, alone and in torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from taso_mirage.forms.channels_last import ChannelsLastConvolution
from taso_mirage.ir.terms import ABSENT, Graph, Tensor, variable

Function = Callable[..., Any]
Kind = tuple[str, Function, list[list[Any]]]
NAME = "convolution"


def goal(side: int, channels: int, group: int, batch: int = 16) -> Graph:
    """A convolution of 3 x 3 in half precision that keeps an image's size, and the relu."""
    shapes = (batch, side, side, channels), (3, 3, channels // group, channels), (channels,)
    x, w, b = (variable(name, Tensor("float16", shape)) for name, shape in zip("xwb", shapes, strict=True))
    made = ChannelsLastConvolution(x, w, b, ABSENT, (1, 1), (1, 1, 1, 1), (1, 1), group, 1, True)
    return Graph((x, w, b), (made.goal(),))


def convolution(x: Any, w: Any, b: Any) -> Any:
    """(n,h,w,g*c), (i,j,c,g*o), (g*o) -> (n,h,w,g*o)"""
    return _convolved(x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1), b).permute(0, 2, 3, 1)


def _convolved(x: Any, w: Any, b: Any) -> Any:
    import torch

    return torch.nn.functional.conv2d(x, w, b, padding=1, groups=x.shape[1] // w.shape[1]).relu()


def kinds(name: str, sets: Sequence[Sequence[Any]]) -> Iterator[Kind]:
    """The calls that compute a row, each with its label and its inputs, in the order of the layout,
    made ahead of time."""
    if name != NAME:
        return
    import torch

    compiled = partial(torch.compile, mode="max-autotune-no-cudagraphs", dynamic=False)
    for label, layout in (("channels last", torch.channels_last), ("channels first", torch.contiguous_format)):
        inputs = [[x.permute(0, 3, 1, 2).contiguous(memory_format=layout), _weights(w, layout), b] for x, w, b in sets]
        yield f"cuDNN, {label}", _turned(_convolved), inputs
        yield f"torch.compile, {label}", _turned(compiled(_convolved)), inputs


def _weights(w: Any, layout: Any) -> Any:
    return w.permute(3, 2, 0, 1).contiguous(memory_format=layout)


def _turned(call: Function) -> Function:
    """With the channels last in the shape, wherever they are in memory."""
    return lambda x, w, b: call(x, w, b).permute(0, 2, 3, 1)
