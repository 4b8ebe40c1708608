"""Small terms whose operands are known become constants, or sizes: an interpretation, with no case
per operator."""

from __future__ import annotations

from typing import Any

import numpy as np

from taso_mirage.errors import Undecidable
from taso_mirage.ir.dims import Symbolic
from taso_mirage.ir.terms import ABSENT, Node, Tensor, constant, is_float, numpy_dtype
from taso_mirage.meanings.extents import EXTENTS
from taso_mirage.meanings.reals import REALS
from taso_mirage.operators.exactness import agrees
from taso_mirage.operators.interpret import interpret, interpret_term
from taso_mirage.operators.known import is_known
from taso_mirage.operators.ops import extents, term, traits

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
        return constant(np.asarray(interpret_term(node, REALS, values), numpy_dtype(node.dtype)))
    return _fold_sizes(node) if node.dtype in ("int64", "int32", "bool") else node


def _small(type: Tensor) -> bool:
    shape = type.shape or ()
    if any(isinstance(d, Symbolic) for d in shape) or type.dtype == "string":
        return False
    count = int(np.prod([int(d) for d in shape]))
    return count == 1 or (count <= SMALL and not is_float(type.dtype))


def _values(node: Node, xp: Any) -> list[Any]:
    return [None if a is ABSENT else interpret([a], xp, {})[a] for a in node.args]


def _fold_sizes(node: Node) -> Node:
    try:
        result = np.asarray(interpret_term(node, EXTENTS, _values(node, EXTENTS)))
    except (Undecidable, TypeError, ValueError):
        return node
    if not any(isinstance(v, Symbolic) for v in result.flat):
        return constant(np.asarray(result, numpy_dtype(node.dtype)))
    if result.ndim > 1:
        return node
    sizes = extents(result.ravel().tolist(), scalar=result.ndim == 0)
    return sizes if node.dtype == "int64" else term("cast", sizes, to=node.dtype)
