"""The user's own inputs: arrays by input name, from `.npz` files or from memory, that fit a
model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from taso_mirage.errors import InvalidOption
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Tensor, is_array, numpy_dtype
from taso_mirage.system.archives import BadArchive, read_arrays
from taso_mirage.system.wording import option


def read_inputs(model: Model, path: Path) -> dict[str, Any]:
    """Read the arrays of an .npz file.

    Raises InvalidOption if an input is missing, or if its dtype or shape differs from the model's.
    """
    if path.exists() and not path.is_file():
        raise InvalidOption(f"{option('inputs', path)}: no regular file (a folder, a device, a pipe or a socket)")
    try:
        arrays = read_arrays(path)
    except BadArchive as error:
        raise InvalidOption(
            f"{option('inputs', path)}: not a readable .npz file ({error}); numpy.savez writes one"
        ) from None
    return fitting(model, arrays, option("inputs", path))


def fitting(model: Model, arrays: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return an array for each input of the model; inputs that are left out have their defaults.
    `where` names the source of the arrays at the beginning of the message of InvalidOption."""
    arrays = {**model.default_inputs(), **arrays}
    for node in model.graph.inputs:
        name = node.attr("name")
        if not is_array(node.tensor):
            raise InvalidOption(
                f"{where}: the input {name!r} is no tensor ({node.tensor}), so arrays cannot be the model's inputs; leave them out"
            )
        if name not in arrays:
            raise InvalidOption(f"{where}: no array {name!r}; it has {', '.join(map(str, arrays)) or 'none'}")
        if not isinstance(arrays[name], np.ndarray | np.generic):
            kind = type(arrays[name]).__name__
            raise InvalidOption(f"{where}: {name!r} is of type {kind} and no array; the model expects {node.tensor}")
        if not _fits(arrays[name], node.tensor):
            raise InvalidOption(
                f"{where}: {name!r} is {arrays[name].dtype}{list(arrays[name].shape)}, the model expects {node.tensor}"
            )
    return {node.attr("name"): arrays[node.attr("name")] for node in model.graph.inputs}


def _fits(array: Any, type: Tensor) -> bool:
    texts = array.dtype.kind in "OUS"
    if texts or type.dtype == "string":
        same = texts and type.dtype == "string"
    else:
        same = array.dtype == numpy_dtype(type.dtype)
    if type.shape is None:
        return same
    dims = zip(type.shape, array.shape, strict=False)
    return same and array.ndim == len(type.shape) and all(not isinstance(d, int) or d == n for d, n in dims)
