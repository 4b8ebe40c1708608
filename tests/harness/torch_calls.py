"""Functions by `torch.compile` with the back end, and comparisons with eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from taso_mirage.torch.backend import CapturedGraph

QUICK = {"measure": False, "budget": 1}


def compiled(function: Callable[..., Any], **options: Any) -> tuple[Callable[..., Any], list[CapturedGraph]]:
    """The function under torch.compile, and the graphs that will be captured in it."""
    graphs: list[CapturedGraph] = []

    def kept(captured: Any, example: Any) -> CapturedGraph:
        graphs.append(CapturedGraph(captured, {**QUICK, **options}))
        return graphs[-1]

    return torch.compile(function, backend=kept), graphs


def same(found: Any, wanted: Any) -> None:
    """Equal in kind, shape, layout and numbers."""
    assert type(found) is type(wanted)
    if isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(found, wanted, equal_nan=True)
        strides = zip(found.stride(), wanted.stride(), found.shape, strict=True)
        assert all(a == b for a, b, n in strides if n > 1 and found.numel())
    elif isinstance(wanted, tuple | list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
    elif isinstance(wanted, dict):
        same(list(found.items()), list(wanted.items()))
    elif isinstance(wanted, Pair):
        same([found.first, found.second], [wanted.first, wanted.second])
    else:
        assert found == wanted


@dataclass
class Pair:
    first: Any
    second: Any
