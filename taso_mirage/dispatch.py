"""Dispatch of `taso_mirage.optimize` on its argument: an ONNX model or a PyTorch module."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Literal, overload

from typing_extensions import Unpack

from taso_mirage import api
from taso_mirage.api import Given
from taso_mirage.errors import InvalidOption
from taso_mirage.option_types import ModuleOptions, OptimizeOptions
from taso_mirage.report.result import Result


@overload
def optimize(
    model: Given,
    example_inputs: None = None,
    *,
    return_result: Literal[False] = False,
    **options: Unpack[OptimizeOptions],
) -> Given: ...
@overload
def optimize(
    model: Given, example_inputs: None = None, *, return_result: Literal[True], **options: Unpack[OptimizeOptions]
) -> tuple[Given, Result]: ...
@overload
def optimize(
    model: Any, example_inputs: Any, *, return_result: Literal[False] = False, **options: Unpack[ModuleOptions]
) -> Any: ...
@overload
def optimize(
    model: Any, example_inputs: Any, *, return_result: Literal[True], **options: Unpack[ModuleOptions]
) -> tuple[Any, tuple[Result, ...]]: ...
def optimize(model: Any, example_inputs: Any = None, **options: Any) -> Any:
    """Return a model of the same type that computes the same results and is no slower.

    `taso_mirage.api.optimize` describes ONNX models and the options. For a `torch.nn.Module`, the
    result is a module for inference. `example_inputs` are a tensor, a tuple of arguments, or a
    mapping of named arguments, on the device on which the module will run. Sizes and weights may
    change later; the module is then compiled again. `dynamic=True` treats all sizes as free from
    the start. `fallback="inductor"` or `"eager"` selects the alternatives with which graphs are
    compared and by which they run if that is faster; `.ways` of the module lists the choices. With
    `return_result` the result is a pair: the module, and a tuple with a `Result` for each graph
    that PyTorch captured.
    """
    module = getattr(sys.modules.get("torch.nn"), "Module", None)  # none while a thread imports torch
    if module is None or not isinstance(model, module):
        if example_inputs is not None:
            raise InvalidOption("example_inputs are for a torch.nn.Module; an ONNX model takes inputs=[...]")
        return api.optimize(model, **options)
    if example_inputs is None:
        raise InvalidOption("a torch.nn.Module needs example_inputs: a tensor, a tuple, or a mapping")
    return_result = options.pop("return_result", False)
    found = import_module("taso_mirage.torch.modules").optimize_module(model, example_inputs, **options)
    return (found, found.results) if return_result else found
