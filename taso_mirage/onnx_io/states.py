"""Initial states of recurrent operators that are zero, which is the default if they are left out.
Exporters compute such states from the batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from taso_mirage.ir.terms import ABSENT, Node
from taso_mirage.operators.expressions import uniform_value
from taso_mirage.rewriting.derived_traits import moves

STATES: Mapping[tuple[str, str], Sequence[int]] = {
    ("", "LSTM"): (5, 6),
    ("", "GRU"): (5,),
    ("", "RNN"): (5,),
    ("com.microsoft", "DynamicQuantizeLSTM"): (5, 6),
}
"""Operators, by domain and name, with the places of their initial states."""


def without_zeros(node: ir.Node, operands: Sequence[Node]) -> list[Node]:
    """The operands of a node; initial states of zeros are left out."""
    places = STATES.get((node.domain, node.op_type), ())
    return [ABSENT if i in places and is_zero(each) else each for i, each in enumerate(operands)]


def is_zero(term: Node) -> bool:
    """Whether all elements are known to be zero."""
    if term.op == "constant":
        return uniform_value(term) == 0
    return bool(term.args) and moves(term.op) and all(map(is_zero, term.args))
