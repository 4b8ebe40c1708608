"""The node tests of ONNX, with operands that are known before a run."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir


@functools.cache
def collected() -> list[Any]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(collect_testcases(None))


def _copied(proto: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return copy


def binding_choices(graph: onnx.GraphProto, inputs: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """The choices of inputs to fix: none; then the small integer ones (axes, shapes, pads); then
    all but the first."""
    named = {i.name: np.asarray(v) for i, v in zip(graph.input, inputs, strict=False) if isinstance(v, np.ndarray)}
    yield {}
    small = {k: v for k, v in named.items() if v.dtype.kind in "iub" and v.ndim <= 1 and v.size <= 64}
    if small and len(small) < len(named):
        yield small
    rest = dict(list(named.items())[1:])
    if rest and rest.keys() != small.keys():
        yield rest
    if small == named and small:
        yield small


def bind(proto: onnx.ModelProto, values: dict[str, Any]) -> onnx.ModelProto:
    """The model with some inputs turned into initializers."""
    bound = _copied(proto)
    kept = [i for i in bound.graph.input if i.name not in values]
    types = {i.name: i.type.tensor_type.elem_type for i in bound.graph.input}
    del bound.graph.input[:]
    bound.graph.input.extend(kept)
    for name, array in values.items():
        strings = array.dtype.kind in "OUST"
        tensor = (
            onnx.numpy_helper.from_array(array) if strings else ir.to_proto(ir.tensor(array, ir.DataType(types[name])))
        )
        tensor.name = name
        bound.graph.initializer.append(tensor)
    return bound
