"""Samples of the GraphNet corpus (github.com/PaddlePaddle/GraphNet) as torch modules and as ONNX.

A sample is a folder of a clone, below `samples/`: the code of a graph that PyTorch captured
(`model.py`), and the shapes, types and statistics of its inputs and weights (`weight_meta.py`).
Numbers have the recorded mean and deviation. (GraphNet's own benchmark draws a fifth of the
deviation, so that each weight is nearly constant, and errors in early layers cancel.) No weight is
constant: many samples are untrained, and their zeros and ones would make whole blocks removable.
**`load` runs `model.py`, which is a program of others**; the statistics are only parsed.
`export.put` loads in a process of its own with limits of time and memory, which protects from hangs
and crashes, and not from malice.
"""

from __future__ import annotations

import ast
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from models import exporter
from models.real.torch_export import Subject

META = "weight_meta.py"
LARGEST = 100.0
"""The largest magnitude of a number whose tensor has no recorded range."""
LEAST = 5e-4
"""The deviation of constant floats: statistics have three decimals."""
UNKNOWN = 0.1
"""The deviation of a tensor that has none in its statistics."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """The shape, torch's name of the type, and the numbers, or the statistics, of a tensor."""

    name: str
    shape: Sequence[int]
    dtype: str
    mean: float | None = None
    std: float | None = None
    data: Sequence[float] | None = None
    min_val: float | None = None
    max_val: float | None = None

    def drawn(self, generator: np.random.Generator) -> Any:
        """A torch tensor of seeded numbers."""
        torch = exporter.require("torch")
        dtype = getattr(torch, self.dtype)
        if self.data is not None and not self._constant():
            return torch.tensor(self.data, dtype=dtype).reshape(tuple(self.shape))
        if dtype == torch.bool:
            values = generator.random(self.shape) > 0.5
        elif not dtype.is_floating_point and self.min_val is not None and self.max_val is not None:
            values = generator.integers(int(self.min_val), int(self.max_val) + 1, self.shape)
        else:
            values = self._reals(generator)
        return torch.from_numpy(np.asarray(values)).to(dtype)

    def _constant(self) -> bool:
        """Whether all of several floats are equal."""
        data = self.data if self.data is not None and "float" in self.dtype else ()
        return len(data) > 1 and len({*data}) == 1 and math.isfinite(data[0])

    def _reals(self, generator: np.random.Generator) -> Any:
        """Normal numbers, or, where none is negative (the variances of a normalization),
        log-normal ones: a clipped variance of zero would be the factor of a whole channel.
        Constants become slightly larger numbers, since they may be variances, too."""
        middle = self.mean if self.mean is not None and math.isfinite(self.mean) else 0.0
        deviation = self.std if self.std is not None and math.isfinite(self.std) else UNKNOWN
        normal = generator.standard_normal(tuple(self.shape))
        if self._constant() or deviation == 0:
            return (self.data[0] if self.data else middle) + LEAST * np.abs(normal)
        low, high = (self.min_val, self.max_val)
        if low is not None and low >= 0 and middle > 0:
            variance = math.log1p((deviation / middle) ** 2)
            values = middle * np.exp(math.sqrt(variance) * normal - variance / 2)
            return np.clip(values, low, math.inf if high is None else high)
        return np.clip(normal * deviation + middle, -LARGEST if low is None else low, LARGEST if high is None else high)


@dataclass(frozen=True, slots=True)
class Sample:
    """A captured graph as a module, and all its arguments by name; `inputs` are those that a caller
    gives, and the others are weights and integers."""

    module: Any
    arguments: Mapping[str, Any]
    inputs: Sequence[str]

    def run(self, **inputs: Any) -> list[Any]:
        """The tensors among the outputs, which the order of the graph has."""
        return _tensors(self.module(**{**self.arguments, **inputs}))

    def with_weights(self) -> Any:
        """A module that has the weights, from the inputs, in order, to the list of tensors."""
        torch = exporter.require("torch")
        held = {name: each for name, each in self.arguments.items() if name not in self.inputs}

        class Held(torch.nn.Module):  # type: ignore[misc, name-defined]
            def __init__(this) -> None:
                super().__init__()
                this.graph = self.module
                for name, each in held.items():
                    if isinstance(each, torch.Tensor):
                        this.register_buffer(name, each)

            def forward(this, *inputs: Any) -> Any:
                weights = {name: getattr(this, name) if name in this._buffers else held[name] for name in held}
                return _tensors(this.graph(**weights, **dict(zip(self.inputs, inputs, strict=True))))

        return Held().eval()

    def subject(self) -> Subject:
        """For the exporters; runs the graph once to count its outputs."""
        given = {name: self.arguments[name] for name in self.inputs}
        with exporter.require("torch").no_grad():
            outputs = tuple(f"output_{i}" for i, _ in enumerate(self.run(**given)))
        return Subject(self.module, given, lambda _, **inputs: tuple(self.run(**inputs)), outputs)


def samples(corpus: Path) -> list[str]:
    """The names of all samples of a clone, sorted: their folders below `samples/`."""
    root = corpus / "samples"
    return sorted(str(each.parent.relative_to(root)) for each in root.rglob(META))


def spread(corpus: Path, most: float = math.inf) -> list[str]:
    """The samples with at most so many `parameters`, in an order in which every beginning contains
    each kind (the first folder of a name) and each size in proportion: sorted by both, and taken in
    van der Corput's order."""
    sizes = {name: parameters(corpus / "samples" / name) for name in samples(corpus)}
    kept = sorted((name for name in sizes if sizes[name] <= most), key=lambda n: (n.partition("/")[0], sizes[n], n))
    bits = max(len(kept) - 1, 0).bit_length()
    reversed_bits = (int(f"{number:0{bits}b}"[::-1], 2) for number in range(1 << bits))
    return [kept[index] for index in reversed_bits if index < len(kept)]


def statistics(sample: Path) -> list[Statistics]:
    """The tensors of a sample, from its text; nothing is executed."""
    fields = {"name", "shape", "dtype", "mean", "std", "data", "min_val", "max_val"}
    found = []
    for each in ast.parse((sample / META).read_text()).body:
        if isinstance(each, ast.ClassDef):
            lines = [line for line in each.body if isinstance(line, ast.Assign)]
            values = {line.targets[0].id: _value(line.value) for line in lines if isinstance(line.targets[0], ast.Name)}
            values["dtype"] = values["dtype"].removeprefix("torch.")
            found.append(Statistics(**{name: value for name, value in values.items() if name in fields}))
    return found


def parameters(sample: Path) -> int:
    """The number of elements of all weights and inputs, from the text of the statistics."""
    shapes = re.findall(r"^\s*shape = \[([\d, ]*)\]", (sample / META).read_text(), re.MULTILINE)
    return sum(math.prod(int(size) for size in shape.split(",") if size.strip()) for shape in shapes)


def load(sample: Path, seed: int = 0, device: str = "cpu") -> Sample:
    """The sample with seeded numbers on a device of torch. Runs its code; raises what that
    raises."""
    code = ModuleType("graphnet_sample")
    sys.modules[code.__name__] = code  # torch.compile looks it up
    there = code.__dict__
    exec(compile((sample / "model.py").read_text(), str(sample / "model.py"), "exec"), there)
    torch = exporter.require("torch")
    there["device"] = lambda *_, **__: torch.device(device)  # not those of the capture
    module = there["GraphModule"]().eval()
    generator = np.random.default_rng(seed)
    drawn = {each.name: each.drawn(generator).to(device) for each in statistics(sample)}
    asked = {name: str(kind) for name, kind in module.forward.__annotations__.items() if name != "return"}
    integers = {name for name, kind in asked.items() if "SymInt" in kind}
    arguments = {name: int(drawn[name]) if name in integers else drawn[name] for name in asked}
    inputs = [name for name in asked if name not in integers and not name.startswith("L_self_")]
    if not inputs:
        raise ValueError("the sample has no inputs")
    return Sample(module, arguments, inputs)


def _tensors(outputs: Any) -> list[Any]:
    """The tensors of nested tuples, lists and dicts, in their order."""
    if isinstance(outputs, exporter.require("torch").Tensor):
        return [outputs]
    parts = outputs.values() if isinstance(outputs, dict) else outputs if isinstance(outputs, tuple | list) else ()
    return [tensor for part in parts for tensor in _tensors(part)]


def _value(node: ast.expr) -> Any:
    """A literal, or `float("nan")` and the like, also in lists."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "float":
        return float(ast.literal_eval(node.args[0]))
    if isinstance(node, ast.List):
        return [_value(each) for each in node.elts]
    return ast.literal_eval(node)
