"""Folding of terms over constants: small terms become constants, large terms with equal elements
become an expanded number (a mask that masks nothing)."""

from __future__ import annotations

from taso_mirage.ir.terms import ABSENT, Node, Tensor, constant, numpy_dtype
from taso_mirage.operators.expressions import uniform_value
from taso_mirage.operators.folding import fold_small
from taso_mirage.operators.ops import get, traits
from taso_mirage.rewriting.derived_traits import elementwise


def fold_constants(node: Node) -> Node:
    """The constant, the sizes, or the expanded number that equals a term over known operands;
    `node` itself if there is none."""
    small = fold_small(node)
    return _uniform(node) if small is node else small


def _uniform(node: Node) -> Node:
    """The number that all elements of a term are, expanded; else `node`."""
    numbers = [a if a is ABSENT else _number(a) for a in node.args]
    if not node.args or not isinstance(node.type, Tensor) or None in numbers:
        return node
    if traits(node).repeats:
        return node if numbers[0] is node.args[0] else get(node.op).term(*numbers, shape=node.attr("shape"))
    if node.op == "constant" or not elementwise(node.op):
        return node
    number = fold_small(get(node.op).term(*numbers, **dict(node.attrs)))
    return get("expand").term(number, shape=node.shape) if number.op == "constant" else node


def _number(node: Node) -> Node | None:
    """The number that all elements of a term are, as a constant of rank 0; None where it is not
    known."""
    below = node.args[0] if traits(node).repeats else node
    value = uniform_value(below)
    if value is None or below.tensor.rank == 0:
        return None if value is None else below
    return constant(below.attr("value").numpy().reshape(-1)[:1].reshape(()).astype(numpy_dtype(node.dtype)))
