"""Terms over weights as a reader finds them in a file: it knows the numbers of small ones, such as
indices that were computed in advance."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from taso_mirage.errors import IllTyped, Undecidable, Unsupported
from taso_mirage.ir.model import Weight
from taso_mirage.ir.terms import Node, with_args
from taso_mirage.operators.ops import by_onnx, load_specs


def over_weights(
    node: Node, args: tuple[Node, ...], opsets: Mapping[str, int], weights: Mapping[str, Weight]
) -> Node | None:
    """The other term that a reader finds for a term's operator over these operands, if some are
    weights: an update of all elements, for example, is the new ones."""
    op = load_specs().get(node.op)
    if op is None or op.onnx is None or op.domain not in opsets or all(a.op != "weight" for a in args):
        return None
    with suppress(Unsupported, IllTyped, Undecidable):
        call = replace(op.to_onnx(with_args(node, args), opsets[op.domain]), weights=weights)
        for each in by_onnx().get((call.domain, call.op_type), ()):
            with suppress(Unsupported, IllTyped, Undecidable):
                found = each.from_onnx(call)
                return None if found is node or found.type != node.type else found
    return None
