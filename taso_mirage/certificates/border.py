"""The interface of two models: everything that a caller sees except the values of outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from taso_mirage.errors import CheckFailed
from taso_mirage.ir.model import Model
from taso_mirage.onnx_io.content import array_digest
from taso_mirage.onnx_io.protos import MAP_TYPES
from taso_mirage.onnx_io.write import ANNOTATION

OVERRIDABLE = 4
"""The IR version from which an initializer that is also an input is a default, and any other
initializer is a weight that callers cannot replace."""


def same_border(original: Model, optimized: Model) -> None:
    """Raise CheckFailed with the first difference of the interfaces of two models: inputs and
    outputs in their order, with names, types, dims, defaults, quantization annotations and
    metadata; versions of operators; metadata of the model."""
    for what, before, after in _differences(original, optimized):
        raise CheckFailed(f"{what} is {before} in the original and {after} in the optimized model")


def _differences(original: Model, optimized: Model) -> Iterator[tuple[str, str, str]]:
    first, second = original.header, optimized.header
    for kind in ("inputs", "outputs"):
        absent: tuple[str, dict[str, Any]] = ("", {})
        pairs = zip_longest(_values(original, kind), _values(optimized, kind), fillvalue=absent)
        for i, ((name, before), (other, after)) in enumerate(pairs):
            if name != other:
                yield f"{kind[:-1]} {i + 1}", repr(name) if name else "missing", repr(other) if other else "missing"
            yield from _apart(f"of the {kind[:-1]} {name!r} the", before, after)
    yield from _apart("the model's", _of_model(first), _of_model(second))
    known = {_plain(d): v for d, v in second.opset_imports.items()}
    versions = {_plain(d): v for d, v in first.opset_imports.items()}
    yield from _apart("the version of operators of the domain", versions, {d: known.get(d) for d in versions})


def _apart(what: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name in (*before, *(n for n in after if n not in before)):
        if before.get(name) != after.get(name):
            yield f"{what} {name}", _said(before.get(name)), _said(after.get(name))


def _values(model: Model, kind: str) -> list[tuple[str, dict[str, Any]]]:
    """Inputs or outputs as a caller sees them."""
    graph = model.header.graph
    values = list(graph.inputs if kind == "inputs" else graph.outputs)
    if kind == "inputs" and model.header.ir_version < OVERRIDABLE:
        values = [v for v in values if not v.is_initializer()]
    return [(str(v.name), _of_value(model, v, kind)) for v in values]


def _of_value(model: Model, value: Any, kind: str) -> dict[str, Any]:
    shape = value.shape
    default = model.defaults.get(str(value.name)) if kind == "inputs" else None
    return {
        "type": None if value.type is None else str(value.type),
        "map type": model.header.meta.get(MAP_TYPES, {}).get(value.name),
        "shape": None if shape is None else [d if isinstance(d, int) else d.value for d in shape],
        "meaning of dims": None if shape is None else [shape.get_denotation(i) for i in range(len(shape))],
        "meaning": None if value.type is None else value.type.denotation,
        "default": None if default is None else _content(default),
        "quantization": _annotation(model, value),
        "metadata": dict(value.metadata_props),
    }


def _annotation(model: Model, value: Any) -> dict[str, Any]:
    """The tensors of a value's quantization annotation, by their content."""
    weights = model.header.graph.initializers
    named = (value.meta.get(ANNOTATION) or {}).items()
    found = {key: weights[name].const_value if name in weights else None for key, name in named}
    return {key: None if tensor is None else _content(tensor) for key, tensor in found.items()}


def _content(tensor: Any) -> str:
    """A text of a tensor that differs if a bit differs."""
    array = tensor.numpy()
    return f"{array.dtype}{list(array.shape)} with the digest {array_digest(array)}"


def _of_model(header: Any) -> dict[str, Any]:
    return {
        "domain": header.domain or None,
        "version": header.model_version or None,
        **{f"metadata {key!r}": text for key, text in header.metadata_props.items()},
        **{f"metadata of the graph {key!r}": text for key, text in header.graph.metadata_props.items()},
    }


def _plain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _said(value: Any) -> str:
    return "missing" if value is None else f"{str(value)[:60]!r}"
