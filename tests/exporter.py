"""PyTorch's exporter in the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest


@contextmanager
def read_once() -> Iterator[None]:
    """The exporter reads the sources of its 500 functions for every model, in half of the time that
    a small one takes; here it reads them once."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", _remembered(ONNXRegistry.from_torchlib.__func__))
        yield


@cache
def _remembered(read: Callable[..., Any]) -> Any:
    return classmethod(cache(read))
