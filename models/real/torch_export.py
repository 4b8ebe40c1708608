"""A torch module and its example inputs, and both of PyTorch's exporters."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx

from models import exporter

Axes = Mapping[int, str]
TORCHSCRIPT_OPSET = 17


@dataclass(frozen=True, slots=True)
class Subject:
    """A module to export: `call(module, **arguments)` gives the tensors that `outputs` names.

    `free` names the dynamic dimensions of inputs.
    """

    module: Any
    arguments: Mapping[str, Any]
    call: Callable[..., Any]
    outputs: tuple[str, ...]
    free: Mapping[str, Axes] = field(default_factory=dict)


def to_onnx(subject: Subject, which: str, seed: int = 0) -> onnx.ModelProto:
    """The subject with seeded random weights, exported by "dynamo" or by "torchscript"."""
    exporter.randomize(subject.module, seed)
    return exported(subject, which)


def exported(subject: Subject, which: str) -> onnx.ModelProto:
    """The subject with the weights that it has."""
    exporter.hand_over(_module(subject), subject.arguments)
    with exporter.quiet():
        model = EXPORTERS[which](subject)
    exporter.forget_places(model)
    return model


def _dynamo(subject: Subject) -> onnx.ModelProto:
    torch = exporter.require("torch")
    free = tuple(dict(subject.free.get(name, {})) or None for name in subject.arguments)
    program = torch.onnx.export(
        _module(subject),
        tuple(subject.arguments.values()),
        input_names=list(subject.arguments),
        output_names=list(subject.outputs),
        dynamic_shapes=(free,) if any(free) else None,
        dynamo=True,
        verbose=False,
    )
    model: onnx.ModelProto = program.model_proto
    return model


def _torchscript(subject: Subject) -> onnx.ModelProto:
    torch = exporter.require("torch")
    file = io.BytesIO()
    torch.onnx.export(
        _module(subject),
        tuple(subject.arguments.values()),
        file,
        input_names=list(subject.arguments),
        output_names=list(subject.outputs),
        dynamic_axes={name: dict(axes) for name, axes in subject.free.items()},
        opset_version=TORCHSCRIPT_OPSET,
        dynamo=False,
    )
    return onnx.load_from_string(file.getvalue())


EXPORTERS: Mapping[str, Callable[[Subject], onnx.ModelProto]] = {"dynamo": _dynamo, "torchscript": _torchscript}


def _module(subject: Subject) -> Any:
    """The subject as a module whose arguments are tensors in the order of its inputs."""
    torch = exporter.require("torch")

    class Called(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.module = subject.module

        def forward(self, *tensors: Any, **named: Any) -> Any:
            return subject.call(self.module, **dict(zip(subject.arguments, tensors, strict=not named)), **named)

    return Called().eval()
