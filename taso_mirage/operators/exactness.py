"""Integers in the runtime: the kernels that do not compute them as ONNX defines them, and the
conditions under which the result is the same.

ONNX Runtime adds, multiplies and divides rows of integers as doubles: numbers beyond 2^53 are
rounded, and numbers beyond the type saturate where numpy wraps. The bits of a result therefore
depend on these kernels and their operands. No rewrite may replace such a kernel by another one or
the reverse, nor compute it in advance if the result would differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from taso_mirage.ir.terms import ABSENT, Node, Tensor, is_float
from taso_mirage.operators.ops import get, traits

EXACT = 1 << 53
"""The bound below which every integer is a double."""


def differs(node: Node) -> bool:
    """Whether the runtime's kernel of a term may give other integers than its definition, or end
    the process (when the smallest integer is divided by -1)."""
    if not _of_integers(node):
        return False
    return traits(node).rounds or get(node.op).truncates


def truncates(node: Node) -> bool:
    """Whether a term of integers is no ring arithmetic, so that laws over the reals do not hold
    there."""
    return _of_integers(node) and get(node.op).truncates


def _of_integers(node: Node) -> bool:
    integer = isinstance(node.type, Tensor) and not is_float(node.type.dtype)
    return integer and bool(node.args) and node is not ABSENT and node.op not in ("opaque", "item")


def agrees(node: Node, operands: Sequence[Any]) -> bool:
    """Whether the runtime's result equals that of the definition on these operands: no intermediate
    number leaves the type or is rounded, and nothing is divided by zero."""
    if not differs(node):
        return True
    numbers = [[int(v) for v in np.asarray(a).flat] for a in operands if a is not None]
    below = min(EXACT, 2 if node.dtype == "bool" else np.iinfo(node.dtype).max + 1)
    return all(numbers) and (traits(node).exact or _sums)(numbers, below)  # no elements: a mean of an empty set


def _sums(numbers: Sequence[Sequence[int]], below: int) -> bool:
    """Whether the absolute values of some numbers add up to less than a bound: then a sum of them,
    in any order, is exact."""
    return sum(abs(v) for each in numbers for v in each) < below
