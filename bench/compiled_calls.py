"""Functions of PyTorch after public reports of wrong results of torch.compile, for a CPU.

Most reports are those of the benchmark of arXiv 2604.08720 whose functions compute tensors, and
those that its authors made later. The functions are our own, after the titles; each shows the kind
of program that a report is about. A function may change its arguments in place. The modules
`compiled_reports_*` have the functions, and `compiled.py` judges them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Arguments = Callable[[], tuple[Any, ...]]
REPORTS: dict[str, Report] = {}


@dataclass(frozen=True, slots=True)
class Report:
    """A function, and the arguments of each call of it, one after the other; `dynamic` for sizes
    that the compiler must not fix."""

    function: Callable[..., Any]
    calls: tuple[Arguments, ...]
    dynamic: bool | None = None


def report(number: int, *calls: Arguments, dynamic: bool | None = None) -> Callable[[Any], Any]:
    def keep(function: Callable[..., Any]) -> Callable[..., Any]:
        REPORTS[f"pytorch {number}"] = Report(function, calls, dynamic)
        return function

    return keep


def floats(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normally distributed numbers of a seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def whole(low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Integers from `low` to below `high`, of a fixed seed."""
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def numbers(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)
