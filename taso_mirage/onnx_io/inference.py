"""Types that a file does not declare, inferred by the symbolic shape inference of the library
onnx-shape-inference."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any

import onnx_ir as ir

from taso_mirage.ir.dims import parse_dim, symbols

MICROSOFT = "com.microsoft"


def inferred(model: ir.Model) -> dict[str, ir.Value]:
    """The values of a model by name, with the types that were found; `model` is changed.

    A node on which the library fails keeps the types of the file. The result is empty if the
    library fails completely; missing types only make more nodes opaque.
    """
    try:
        _drop_texts(model)
        found = _library()(model, warn_on_missing=False)
    except Exception:
        return {}
    return {str(o.name): o for node in found.graph for o in node.outputs}


def _drop_texts(model: ir.Model) -> None:
    """Remove names of dims that are neither names nor sums and products of names. The library
    evaluates them as expressions, without end for 9**9**9**9."""
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
    for domain, op_type, opsets in [*registry.iter_supported()]:
        for opset in opsets:
            if (theirs := registry.get(domain, op_type, opset)) is not None:
                mend = MENDED.get((domain, op_type, opset))
                registry.register(domain, op_type, opset)(partial(_contained, theirs, mend))
    library: Callable[..., ir.Model] = infer_symbolic_shapes
    return library


def _contained(theirs: Callable[..., None], mend: Callable[..., None] | None, context: Any, node: ir.Node) -> None:
    """Apply the library's rule and its repair to a node. An error only loses the types of this
    node; for instance, the library (0.4.0) rejects a Loop without a condition, which ONNX
    allows."""
    with suppress(Exception):
        theirs(context, node)
        if mend is not None:
            mend(context, node)


def _quantized_product(context: Any, node: ir.Node) -> None:
    """Type the result of a quantized product by its zero point's dtype; the inference of onnx-ir
    0.4.0 takes the scale's."""
    zero_point = node.inputs[8] if len(node.inputs) > 8 else None
    if zero_point is not None and zero_point.type is not None:
        node.outputs[0].type = ir.TensorType(zero_point.type.dtype)


def _sliced(context: Any, node: ir.Node) -> None:
    """Type a slice of a free dim to a number: it has at most as many elements as the dim. The
    library (0.4.0) takes the number for the size, which is a gigabyte if an exporter writes
    1000000000 for "to the end"."""
    data, output = node.inputs[0], node.outputs[0]
    if data is None or data.shape is None or output.shape is None:
        return
    dims = [
        new if isinstance(old, int) or not isinstance(new, int) or new == 0 else context.new_symbolic_dim()
        for old, new in zip(data.shape, output.shape, strict=True)
    ]
    if dims != list(output.shape):
        output.shape = ir.Shape(dims)


def _expanded(context: Any, node: ir.Node) -> None:
    """Type an Expand to a computed shape: its rank is the length of the shape. The library (0.4.0)
    infers nothing, so all dependent values would have no rank."""
    data, target = node.inputs[:2]
    if node.outputs[0].shape is not None or data is None or data.shape is None:
        return
    length = None if target is None or target.shape is None or len(target.shape) != 1 else target.shape[0]
    if isinstance(length, int):
        rank = max(len(data.shape), length)
        context.set_shape(node.outputs[0], ir.Shape([context.new_symbolic_dim() for _ in range(rank)]))


MENDED = {(MICROSOFT, "QGemm", 1): _quantized_product, ("", "Slice", 10): _sliced, ("", "Expand", 8): _expanded}
"""Repairs after the library's own rule, by domain, operator and opset."""
