"""Inputs that a caller may leave out, because an initializer of the same name is their default.

From IR version 4 on, this holds for all weights that a model lists among its inputs.
"""

from __future__ import annotations

from dataclasses import replace

from taso_mirage.ir.model import Model
from taso_mirage.onnx_io.read import as_data


def with_fixed_defaults(model: Model) -> Model:
    """The model read again with such inputs as weights, which callers can no longer replace; the
    model itself if it has none.

    The model as it was read stays its `source`.
    """
    if not model.defaults:
        return model
    source = model.header
    copy = source.clone()
    copy.meta.update(source.meta)
    for value in [v for v in copy.graph.inputs if v.is_initializer()]:
        copy.graph.inputs.remove(value)
    return replace(as_data(copy, model.trusted), source=model.source or source)
