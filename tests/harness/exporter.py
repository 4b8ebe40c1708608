"""PyTorch's exporter in the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest


@contextmanager
def read_once() -> Iterator[None]:
    """For every model the exporter reads the sources of its 500 functions, in half of the time that
    a small one takes, and looks twice through all that PyTorch's libraries register, for each of
    their namespaces; here it does so once."""
    from torch.export import decomp_utils, exported_program
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", _remembered(ONNXRegistry.from_torchlib.__func__))
        for module in (decomp_utils, exported_program):
            patch.setattr(module, "_collect_all_valid_cia_ops", _composite_operators)
        yield


@cache
def _remembered(read: Callable[..., Any]) -> Any:
    return classmethod(cache(read))


def _composite_operators() -> Any:
    """The operators that are made of others, by the registrations: a test may register more."""
    import torch

    return _collected(*torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd"))


@cache
def _collected(*names: str) -> Any:
    from torch._export.utils import _collect_all_valid_cia_ops

    return _collect_all_valid_cia_ops()
