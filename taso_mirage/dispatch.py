"""Dispatch of `taso_mirage.optimize` on its argument: an ONNX model or a PyTorch module."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Literal, overload

from taso_mirage import api
from taso_mirage.api import Given
from taso_mirage.errors import InvalidOption
from taso_mirage.report.result import Result


@overload
def optimize(
    model: Given, example_inputs: None = None, *, return_result: Literal[False] = False, **options: Any
) -> Given: ...
@overload
def optimize(
    model: Given, example_inputs: None = None, *, return_result: Literal[True], **options: Any
) -> tuple[Given, Result]: ...
@overload
def optimize(model: Any, example_inputs: Any, **options: Any) -> Any: ...
def optimize(model: Any, example_inputs: Any = None, **options: Any) -> Any:
    """A model that computes the same and is no slower, of the kind that was given: see
    `taso_mirage.api.optimize` for those of ONNX and for the options.

    Of a `torch.nn.Module` a module for inference comes back. `example_inputs` are a tensor, a tuple
    of arguments, or a mapping of named ones, on the device on which the module is to run. Sizes may
    differ later, and weights may change: then it compiles again. `dynamic=True` takes all sizes to
    be free at once. `fallback="inductor"` or `"eager"` names the way beside which graphs are
    measured, and by which they run where it is faster; `.ways` of the module lists the ways. With
    `return_result` a pair: the module, and a tuple of a `Result` for each graph that PyTorch
    captured in it.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        if example_inputs is not None:
            raise InvalidOption("example_inputs are for a torch.nn.Module; an ONNX model takes inputs=[...]")
        return api.optimize(model, **options)
    if example_inputs is None:
        raise InvalidOption("a torch.nn.Module needs example_inputs: a tensor, a tuple, or a mapping")
    return_result = options.pop("return_result", False)
    found = import_module("taso_mirage.torch.modules").optimized(model, example_inputs, **options)
    return (found, found.results) if return_result else found
