"""An export of the corpus at one size, with nothing dynamic: its torch module, and its model. For
comparisons with PyTorch itself."""

from __future__ import annotations

from typing import Any

import onnx

from models import exporter
from models.real import KNOWN
from models.real.build import exported
from models.real.known import Export
from models.real.torch_export import EXPORTERS, Subject


def module(name: str, *, batch: int = 1, small: bool = True) -> tuple[Any, dict[str, Any]]:
    """The module behind the export `name`, and its inputs by name: `batch` along each first dim."""
    known = KNOWN[name if small else f"{name}_real"]
    if not isinstance(known.source, Export):
        raise ValueError(f"{name!r} comes out of a wheel: it has no torch module")
    try:
        with exporter.intercept():
            exported(known.source)
    except exporter.Intercepted as found:
        return found.module, {key: _batched(value, batch) for key, value in found.arguments.items()}
    raise AssertionError(f"the builder of {name!r} exports nothing")


def build(name: str, *, batch: int = 1, small: bool = True, half: bool = False) -> onnx.ModelProto:
    """The module as an ONNX model, by PyTorch's newer exporter; in half precision with `half`."""
    found, inputs = module(name, batch=batch, small=small)
    if half:
        found.half()
        inputs = {key: value.half() if value.is_floating_point() else value for key, value in inputs.items()}
    subject = Subject(found, inputs, lambda called, **given: called(*given.values()), ("output",))
    with exporter.quiet():
        model = EXPORTERS["dynamo"](subject)
    exporter.forget_places(model)
    return model


def _batched(value: Any, batch: int) -> Any:
    return value[:1].expand(batch, *value.shape[1:]).clone()
