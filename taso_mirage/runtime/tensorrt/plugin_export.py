"""`export-plugin`: everything that TensorRT needs of a model with fused kernels, in one folder."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taso_mirage.errors import InvalidOption
from taso_mirage.ir.dims import evaluate, symbols
from taso_mirage.ir.model import Model, random_inputs
from taso_mirage.measure.check import difference
from taso_mirage.measure.reference import FloatReference
from taso_mirage.measure.session import Session
from taso_mirage.onnx_io import load
from taso_mirage.onnx_io.files import data_files
from taso_mirage.onnx_io.outputs import check_folder, check_outputs
from taso_mirage.runtime.tensorrt import python_plugin
from taso_mirage.runtime.tensorrt.plugin_attributes import PluginKernel
from taso_mirage.runtime.tensorrt.plugin_model import models, write_model
from taso_mirage.runtime.tensorrt.plugin_readme import readme
from taso_mirage.runtime.tensorrt.plugin_source import sources
from taso_mirage.system.files import write_file
from taso_mirage.system.wording import option

CHECKER = Path(__file__).parent / "check_samples.py"
SEED = 1
"""The seed of the sample inputs."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Inputs and expected outputs by tensor name. `tolerances`: the permitted distance of another
    runtime's output from the expected one."""

    inputs: Mapping[str, NDArray[Any]]
    outputs: Mapping[str, NDArray[Any]]
    tolerances: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export: the kernels by plugin name; the kernels that the Python module
    lacks, with reasons; other operators that TensorRT does not have; and the kernels that TensorRT
    cannot use, with reasons, which stay operators."""

    folder: Path
    kernels: Mapping[str, PluginKernel]
    not_in_python: Mapping[str, str]
    foreign: Sequence[str] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


def export(path: Path, folder: Path, sizes: Mapping[str, int]) -> Exported:
    """Write the plugins for an optimized model into `folder`. `sizes` are of its dynamic dims.

    Raises InvalidModel, Unsupported or OutputError; equal models give equal files.
    """
    model = load(path)
    _check(folder, path, model)
    made = models(path, _input_shapes(model, sizes))
    with TemporaryDirectory() as temporary:
        reference = Path(temporary) / "reference.onnx"
        write_model(made.reference, reference, path)
        found = samples(reference)
    python, missing = python_plugin.module(made.kernels)
    files = sources(made.kernels) | {f"triton/{name}": text for name, text in made.sources.items()}
    files |= {
        python_plugin.MODULE: python,
        CHECKER.name: CHECKER.read_text(),
        "README.md": readme(made, found.inputs, found.outputs, missing),
    }
    for name, text in files.items():
        write_file(folder / name, text)
    _write_samples(found, folder / "samples")
    write_model(made.plugin, folder / "model.onnx", path)
    write_model(made.reference, folder / "reference.onnx", path)
    return Exported(folder, made.kernels, missing, made.foreign, made.refused)


def _check(folder: Path, path: Path, model: Model) -> None:
    """Raise an error before the work if the folder cannot be written to, or if an output would
    overwrite the model that is read or its weights."""
    check_folder(folder)
    for name in ("model.onnx", "model.onnx.data", "reference.onnx", "reference.onnx.data") if folder.is_dir() else ():
        check_outputs({"output": folder / name}, {"the model that is read": path}, data_files(model))


def _input_shapes(model: Model, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """The shape of every input, by name. Raises InvalidOption where `sizes` lacks one of its
    dims."""
    for node in model.graph.inputs:
        for name in (name for dim in node.tensor.shape or () for name in symbols(dim)):
            if name not in sizes:
                raise InvalidOption(
                    f"the input {node.attr('name')!r} is {node.type}; plugins have fixed sizes: give {option('shape', name + ':N')}"
                )
    return {n.attr("name"): tuple(evaluate(d, sizes) for d in n.tensor.shape or ()) for n in model.graph.inputs}


def samples(path: Path) -> Samples:
    """Random inputs of a plain model, and ONNX Runtime's outputs on the CPU.

    Tolerances are those of the optimizer's check.
    """
    model = load(path)
    inputs = random_inputs(model, SEED)
    outputs = Session(str(path)).run(inputs)
    exact = FloatReference(model)(inputs)
    names = model.output_names
    pairs = zip(names, outputs, exact, strict=True)
    tolerances = {n: float(o + b) for n, o, b in ((n, *_errors(n, old, r)) for n, old, r in pairs)}
    return Samples(inputs, dict(zip(names, outputs, strict=True)), tolerances)


def _errors(name: str, output: Any, exact: Any) -> tuple[float, float]:
    """The error of the expected output against float64, and the permitted error of another one."""
    found = difference("samples", name, output, output, exact)
    return found.error, found.bound


def _write_samples(found: Samples, folder: Path) -> None:
    """Arrays as .npy, inputs also as the raw bytes that trtexec reads; `samples.json` says which
    tensor is in which file."""
    index: dict[str, dict[str, Any]] = {"inputs": {}, "outputs": {}}
    for i, (name, array) in enumerate(found.inputs.items()):
        write_file(folder / f"input{i}.npy", _npy(array))
        write_file(folder / f"input{i}.bin", np.ascontiguousarray(array).tobytes())
        index["inputs"][name] = {"file": f"input{i}.npy", "raw": f"input{i}.bin"}
    for i, (name, array) in enumerate(found.outputs.items()):
        write_file(folder / f"expected{i}.npy", _npy(array))
        index["outputs"][name] = {"file": f"expected{i}.npy", "tolerance": found.tolerances[name]}
    write_file(folder / "samples.json", json.dumps(index, indent=2) + "\n")


def _npy(array: NDArray[Any]) -> bytes:
    made = io.BytesIO()
    np.save(made, array, allow_pickle=False)
    return made.getvalue()
