"""Terms as a reader finds them in the file that the writer makes of them: operators that a model's
opset lacks, which are written as several others, and attributes that mean the same as others."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import onnx.defs

from taso_mirage.errors import IllTyped, Undecidable, Unsupported
from taso_mirage.ir.terms import Node
from taso_mirage.operators.ops import Call, by_onnx, load_specs


def written_as(node: Node, opsets: Mapping[str, int]) -> Node | None:
    """The term of other operators as which a term is written at these opsets, if it is."""
    op = load_specs().get(node.op)
    if op is None or op.onnx is None or op.domain not in opsets or op.export_hook is None:
        return None
    call = op.to_onnx(node, opsets[op.domain])
    if call.op_type == op.onnx:
        return None
    return _read(call)


def read_as(node: Node, opsets: Mapping[str, int]) -> Node | None:
    """The other term that a reader finds where a term is written as one node, if it does: a slice
    of all elements, for example, has no axes there."""
    op = load_specs().get(node.op)
    if op is None or op.onnx is None or op.domain not in opsets:
        return None
    try:
        call = op.to_onnx(node, opsets[op.domain])
    except Unsupported:
        return None
    found = call.args[0] if (call.domain, call.op_type) == ("", "Identity") else _read(call)
    return None if found is node or found is None or found.type != node.type else found


def _read(call: Call) -> Node | None:
    """The term of a node."""
    for op in by_onnx().get((call.domain, call.op_type), ()):
        with suppress(Unsupported, IllTyped, Undecidable):
            return op.from_onnx(call)
    return None


def has_definition(node: Node) -> bool:
    """Whether ONNX defines a term's operator by a function of other operators."""
    op = load_specs().get(node.op)
    if op is None or op.onnx is None or op.domain:
        return False
    return bool(onnx.defs.has(op.onnx) and onnx.defs.get_schema(op.onnx).has_function)
