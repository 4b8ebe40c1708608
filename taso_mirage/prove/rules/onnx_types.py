"""The types that ONNX and ONNX Runtime permit for an operator; other typings of a rule are not
cases."""

from __future__ import annotations

from functools import cache
from typing import Any

from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.terms import ABSENT, Node, Tensor, is_float
from taso_mirage.operators.ops import Call, get

OPSET = 21
"""The opset whose types are used; for an operator that was removed before, the types of its last
opset."""
NEWEST = 23
"""The first opset of the newest operators that are known here."""
NAMES = {
    **{"float32": "float", "float64": "double", "absent": ""},
    **{"float8_e4m3fn": "float8e4m3fn", "float8_e5m2": "float8e5m2"},
}
"""ONNX's names of dtypes that differ from numpy's."""


def admitted(node: Node) -> bool:
    """Whether the operator of a term may have operands of these dtypes.

    Operators of our own have floats.
    """
    if not node.args or node.op in ("item", "opaque") or node is ABSENT:
        return True
    op = get(node.op)
    if op.onnx is None:
        return all(is_float(a.dtype) for a in node.args if isinstance(a.type, Tensor) and a is not ABSENT)
    opsets = (min(OPSET, op.until), op.since, NEWEST) if op.domain == "" else (1,)
    for opset in opsets:
        try:
            return _fits(op.to_onnx(node, opset), op.domain)
        except (Unsupported, IllTyped, OverflowError):  # the dtype has no such number
            continue
    return False  # ONNX has no such operator with these attributes


def _fits(call: Call, domain: str) -> bool:
    wanted = _types(domain or call.domain, call.op_type, call.opset)
    if wanted is None:
        return True
    for i, arg in enumerate(call.args):
        allowed = wanted[min(i, len(wanted) - 1)]
        if arg is not ABSENT and isinstance(arg.type, Tensor) and f"tensor({_name(arg.dtype)})" not in allowed:
            return False
    return True


def _name(dtype: str) -> str:
    return NAMES.get(dtype, dtype)


@cache
def _types(domain: str, name: str, opset: int) -> tuple[frozenset[str], ...] | None:
    """The types of each input; None for an unknown operator."""
    if domain in ("", "ai.onnx"):
        import onnx

        try:
            schema: Any = onnx.defs.get_schema(name, opset, "")
        except onnx.defs.SchemaError:
            return None
        kinds = {c.type_param_str: frozenset(c.allowed_type_strs) for c in schema.type_constraints}
        return tuple(kinds.get(i.type_str, frozenset({i.type_str})) for i in schema.inputs)
    return _contributed().get((domain, name))


@cache
def _contributed() -> dict[tuple[str, str], tuple[frozenset[str], ...]]:
    """The operators of the runtime's own, as it describes them."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    found: dict[tuple[str, str], tuple[frozenset[str], ...]] = {}
    for schema in getattr(state, "get_all_operator_schema", list)():
        kinds = {c.type_param_str: frozenset(c.allowed_type_strs) for c in schema.type_constraints}
        types = tuple(kinds.get(i.typeStr, frozenset({i.typeStr})) for i in schema.inputs)
        found[(schema.domain, schema.name)] = types
    return found
