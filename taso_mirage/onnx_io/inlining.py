"""Inlining of a model's functions, so that their bodies become ordinary terms."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir
from onnx_ir.passes import PassError

from taso_mirage.ir.model import Model
from taso_mirage.onnx_io.kernels import is_kernel
from taso_mirage.onnx_io.read import as_data
from taso_mirage.onnx_io.walk import inline


def without_functions(model: Model) -> Model:
    """The model read again with its functions inlined; the model itself if it has none, or if they
    cannot be inlined (a function of another opset). The model as it was read stays its `source`."""
    source: ir.Model = model.header
    if not any(map(_may_go, source.functions.values())):
        return model
    try:
        copy = source.clone()  # rejects a node that uses an undefined value
        copy.meta.update(source.meta)
        inline(copy, _may_go)
    except (PassError, ValueError, LookupError, RuntimeError):
        return model
    read = as_data(copy, model.trusted)
    return replace(read, sizes=model.sizes, integers=model.integers, source=model.source or source)


def _may_go(function: ir.Function) -> bool:
    """Whether a function is inlined: it is neither a kernel nor the definition of a standard
    operator."""
    return function.domain not in ("", "ai.onnx") and not is_kernel(function)
