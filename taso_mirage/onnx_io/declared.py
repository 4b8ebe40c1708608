"""Types that a file declares for one value and that hold for another one with the same term."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from taso_mirage.ir.terms import Node, Tensor


def declared_elsewhere(terms: Mapping[ir.Value, Node]) -> dict[ir.Value, ir.Value]:
    """Map each value of a node without an operator to the value with the same term for which the
    file declares the most.

    `terms` are in the order of reading: the first value of a term gave it its type. Values for
    which the file declares no more than the term's type are left out.
    """
    values: dict[Node, list[ir.Value]] = {}
    for value, term in terms.items():
        if _is_opaque(term):
            values.setdefault(term, []).append(value)
    found: dict[ir.Value, ir.Value] = {}
    for term, same in values.items():
        best = max(same, key=_known_of)
        if best is not same[0] and isinstance(term.type, Tensor) and _known_of(best) > _known(term.type.shape):
            found |= dict.fromkeys(same, best)
    return found


def _is_opaque(term: Node) -> bool:
    return term.op == "opaque" or (term.op == "item" and term.args[0].op == "opaque")


def _known_of(value: ir.Value) -> int:
    return _known(value.shape)


def _known(shape: Iterable[object] | None) -> int:
    """The amount of declared information: one for the rank, and one for each size that is a
    number."""
    return 0 if shape is None else 1 + sum(isinstance(dim, int) for dim in shape)
