"""Small terms whose operands are known become constants, or sizes: an interpretation, with no case
per operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from taso_mirage.errors import Undecidable
from taso_mirage.ir.dims import Symbolic
from taso_mirage.ir.terms import ABSENT, Node, Tensor, constant, is_float, numpy_dtype
from taso_mirage.meanings.extents import EXTENTS, wrapped
from taso_mirage.meanings.reals import REALS
from taso_mirage.operators.exactness import agrees
from taso_mirage.operators.interpret import interpret, interpret_term
from taso_mirage.operators.ops import extents, term, traits
from taso_mirage.operators.static_values import is_known

SMALL = 1024


def fold_small(node: Node) -> Node:
    """The constant or the sizes that `node` always is, when its operands are known and it is small;
    else `node`."""
    if not node.args or not all(map(is_known, node.args)) or node.op in ("opaque", "item"):
        return node
    if traits(node).quantized:
        return node
    if not isinstance(node.type, Tensor) or not _small(node.type):
        return node
    operands = [a for a in node.args if a is not ABSENT]
    if all(a.op == "constant" for a in operands):
        values = _values(node, REALS)
        if not agrees(node, values):  # the runtime computes another number there
            return node
        found = np.asarray(interpret_term(node, REALS, values), numpy_dtype(node.dtype))
        return constant(found) if _finite([found]) or not _finite(values) else node
    return _fold_sizes(node) if node.dtype in ("int64", "int32", "bool") else node


def _finite(arrays: Sequence[Any]) -> bool:
    """Whether no number is infinite or none at all: half precisions overflow here where the runtime
    computes in float32."""
    return all(bool(np.isfinite(a).all()) for a in arrays if a is not None and is_float(a.dtype.name))


def _small(type: Tensor) -> bool:
    shape = type.shape or ()
    if any(isinstance(d, Symbolic) for d in shape) or type.dtype == "string":
        return False
    count = int(np.prod([int(d) for d in shape]))
    return count == 1 or (count <= SMALL and not is_float(type.dtype))


def _values(node: Node, xp: Any) -> list[Any]:
    return [None if a is ABSENT else interpret([a], xp, {})[a] for a in node.args]


def _fold_sizes(node: Node) -> Node:
    xp = EXTENTS["int32" if any(a.dtype == "int32" for a in node.args if a is not ABSENT) else "int64"]
    try:
        result = np.asarray(interpret_term(node, xp, _values(node, xp)))
        if not any(isinstance(v, Symbolic) for v in result.flat):
            return constant(wrapped(result, node.dtype))
    except (Undecidable, TypeError, ValueError, OverflowError):
        return node
    if result.ndim > 1:
        return node
    sizes = extents(result.ravel().tolist(), scalar=result.ndim == 0)
    return sizes if node.dtype == "int64" else term("cast", sizes, to=node.dtype)
