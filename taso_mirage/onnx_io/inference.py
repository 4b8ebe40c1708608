"""Types that a file does not say, by the library's symbolic shape inference."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import onnx_ir as ir

from taso_mirage.ir.dims import parse_dim, symbols

MICROSOFT = "com.microsoft"


def inferred(model: ir.Model) -> dict[str, ir.Value]:
    """The values of a model by name, with the types that were found; `model` is changed.

    Empty where the library fails, which it does on exotic operators: a type that is missing only
    makes more nodes opaque.
    """
    try:
        _drop_texts(model)
        found = _library()(model, warn_on_missing=False)
    except Exception:
        return {}
    return {str(o.name): o for node in found.graph for o in node.outputs}


def _drop_texts(model: ir.Model) -> None:
    """Names of dims that are neither names nor sums and products of names become sizes without a
    name: the library computes with them, for ever with 9**9**9**9."""
    graphs = [
        model.graph,
        *model.graph.subgraphs(),
        *(g for f in model.functions.values() for g in (f.graph, *f.subgraphs())),
    ]
    for graph in graphs:
        for value in (*graph.inputs, *graph.initializers.values(), *(o for node in graph for o in node.outputs)):
            if value.shape is not None and not all(_computable(dim) for dim in value.shape):
                value.shape = ir.Shape([dim if _computable(dim) else None for dim in value.shape])


def _computable(dim: int | ir.SymbolicDim) -> bool:
    text = dim.value if isinstance(dim, ir.SymbolicDim) else None
    return text is None or all(name.isidentifier() for name in symbols(parse_dim(text)))


@cache
def _library() -> Callable[..., ir.Model]:
    from onnx_shape_inference import infer_symbolic_shapes, registry

    logging.getLogger("onnx_shape_inference").setLevel(logging.ERROR)
    registry.collect()
    theirs = registry.get(MICROSOFT, "QGemm", 1)

    def q_gemm(context: Any, node: ir.Node) -> None:
        """Its result has the dtype of its zero point; the library says that of its scale
        (0.4.0)."""
        theirs(context, node)
        zero_point = node.inputs[8] if len(node.inputs) > 8 else None
        if zero_point is not None and zero_point.type is not None:
            node.outputs[0].type = ir.TensorType(zero_point.type.dtype)

    if theirs is not None:
        registry.register(MICROSOFT, "QGemm", 1)(q_gemm)
    _mend_slices(registry)
    _mend_expand(registry)
    library: Callable[..., ir.Model] = infer_symbolic_shapes
    return library


def _mend_slices(registry: Any) -> None:
    """A slice to a number of a free dim has as many elements as the dim, where that is smaller; the
    library takes the number for the size (0.4.0): a gigabyte where an exporter writes 1000000000
    for "to the end"."""
    theirs = registry.get("", "Slice", 10)
    if theirs is None:
        return

    def sliced(context: Any, node: ir.Node) -> None:
        theirs(context, node)
        data, output = node.inputs[0], node.outputs[0]
        if data is None or data.shape is None or output.shape is None:
            return
        dims = [
            new if isinstance(old, int) or not isinstance(new, int) or new == 0 else context.new_symbolic_dim()
            for old, new in zip(data.shape, output.shape, strict=True)
        ]
        if dims != list(output.shape):
            output.shape = ir.Shape(dims)

    registry.register("", "Slice", 10)(sliced)


def _mend_expand(registry: Any) -> None:
    """An Expand to a shape that is computed has the rank that the shape's length tells; the library
    says nothing (0.4.0), and all that hangs on it stays without a rank."""
    theirs = registry.get("", "Expand", 8)
    if theirs is None:
        return

    def expanded(context: Any, node: ir.Node) -> None:
        theirs(context, node)
        data, target = node.inputs[:2]
        if node.outputs[0].shape is not None or data is None or data.shape is None:
            return
        length = None if target is None or target.shape is None or len(target.shape) != 1 else target.shape[0]
        if isinstance(length, int):
            rank = max(len(data.shape), length)
            context.set_shape(node.outputs[0], ir.Shape([context.new_symbolic_dim() for _ in range(rank)]))

    registry.register("", "Expand", 8)(expanded)
