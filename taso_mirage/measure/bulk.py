"""Sizes at which a model has no float64 reference: a tensor is too large to be made, or a window
does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from taso_mirage.errors import IllTyped, Undecidable
from taso_mirage.ir.dims import evaluate
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import ABSENT, Node, Tensor, is_float, numpy_dtype
from taso_mirage.meanings.shapes import SHAPES
from taso_mirage.operators.interpret import interpret_term
from taso_mirage.operators.ops import traits
from taso_mirage.operators.work import sized

LARGEST_TENSOR = 4e9
"""Bytes of one tensor in the float64 reference. Larger ones fill the memory, or come from a size
that nobody meant: a slice to 1000000000 that was taken for a dim."""


def too_large(model: Model, sizes: Mapping[str, int]) -> str | None:
    """Says which node makes a tensor that is too large at these sizes, with its dims and bytes;
    None where none does. Types that hang on other sizes are not asked."""
    for node in model.nodes():
        types = node.type if isinstance(node.type, tuple) else (node.type,)
        for type in types if node.op != "weight" else ():
            if not isinstance(type, Tensor):
                continue
            dims = _dims(type, sizes)
            if dims is not None and (count := _bytes(type.dtype) * prod(dims)) > LARGEST_TENSOR:
                shown = ", ".join(map(str, dims))
                return (
                    f"{_called(model, node)} gives {type.dtype}[{shown}], {count / 1e9:.1f} GB in the float64 reference"
                )
    return None


def too_small(model: Model, sizes: Mapping[str, int]) -> str | None:
    """Says which node has windows that do not fit at these sizes: the runtime may give something
    there, without an error. None where all fit."""
    for node in model.nodes():
        if traits(node).windowed:
            try:
                args = [None if a is ABSENT else sized(a.type, sizes) for a in node.args]
                interpret_term(node, SHAPES, args, sizes)
            except IllTyped as error:
                return f"{_called(model, node)}: {error}"
            except (KeyError, ArithmeticError, Undecidable):
                continue
    return None


def _dims(type: Tensor, sizes: Mapping[str, int]) -> list[int] | None:
    try:
        return [evaluate(dim, sizes) for dim in type.shape or ()]
    except (KeyError, ArithmeticError, Undecidable):
        return None


def _bytes(dtype: str) -> int:
    if is_float(dtype):
        return 8
    try:
        return int(numpy_dtype(dtype).itemsize)
    except TypeError:
        return 1


def _called(model: Model, node: Node) -> str:
    if node.op == "input":
        return f"the input {node.attr('name')!r}"
    origin = model.origins.get(node)
    name = origin.name if origin is not None and origin.name else model.names.get(node)
    kind = str(node.attr("call")) if node.op == "opaque" else node.op
    return f"the node {name!r} ({kind})" if name else f"a node {kind}"
