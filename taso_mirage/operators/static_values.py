"""Facts about a term that hold before the model runs."""

from __future__ import annotations

from taso_mirage.ir.dims import Dim
from taso_mirage.ir.terms import ABSENT, Node, Tensor, is_constant
from taso_mirage.meanings.sizes import fits
from taso_mirage.operators.ops import known_elements, traits


def is_known(node: Node) -> bool:
    """Whether a term is an array, sizes, or sizes as int32."""
    return is_constant(node) or node is ABSENT or known_elements(node) is not None


def partly_known(node: Node) -> list[Dim | None] | None:
    """The elements of a vector of integers, None for those that only a run can tell; None where
    even their number is not known."""
    values = known_elements(node)
    if values is not None:
        return list(values)
    if traits(node).converts and node.dtype == "int64" and node.args[0].dtype == "int32":
        within = partly_known(node.args[0])
        return within and [v if v is not None and fits(v, "int32") else None for v in within]
    if traits(node).joins is not None:
        parts = [partly_known(a) for a in node.args]
        return None if None in parts else [v for part in parts if part is not None for v in part]
    type = node.type if isinstance(node.type, Tensor) else Tensor("", None)
    count = type.shape[0] if type.shape is not None and len(type.shape) == 1 else None
    return [None] * count if isinstance(count, int) else None
