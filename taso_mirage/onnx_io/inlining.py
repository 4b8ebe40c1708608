"""Functions of a model in the place of their calls: their bodies are then terms like any other."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir
from onnx_ir.passes import PassError
from onnx_ir.passes.common import InlinePass

from taso_mirage.ir.model import Model
from taso_mirage.onnx_io.kernels import is_kernel
from taso_mirage.onnx_io.read import as_data


def without_functions(model: Model) -> Model:
    """The model read again with its functions in the place of their calls; itself where it has
    none, or where that cannot be done (a function of another opset). The model as it was read stays
    its `source`."""
    source: ir.Model = model.header
    if not any(map(_may_go, source.functions.values())):
        return model
    try:
        copy = source.clone()  # refuses a node that uses a value that nothing gives
        copy.meta.update(source.meta)
        InlinePass(criteria=_may_go)(copy)
    except (PassError, ValueError, LookupError, RuntimeError):
        return model
    read = as_data(copy, model.trusted)
    return replace(read, sizes=model.sizes, integers=model.integers, source=model.source or source)


def _may_go(function: ir.Function) -> bool:
    """Not a kernel, and not a function in place of one of the standard's operators."""
    return function.domain not in ("", "ai.onnx") and not is_kernel(function)
