"""Inputs that a caller may leave out, because an initializer of the same name is their default.

From IR version 4 on, a model that lists its weights among its inputs says that of all of them.
"""

from __future__ import annotations

from dataclasses import replace

from taso_mirage.ir.model import Model
from taso_mirage.onnx_io.read import as_data


def with_fixed_defaults(model: Model) -> Model:
    """The model read again with such inputs as weights, which no caller replaces any more; itself
    where it has none.

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
