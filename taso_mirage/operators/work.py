"""The meaning `work`: floating-point operations, counted by the primitives of a definition, and
bytes of its operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from taso_mirage.ir.dims import Dim, evaluate, fixed
from taso_mirage.ir.terms import ABSENT, Node, Tensor, numpy_dtype
from taso_mirage.meanings.base import R, contraction
from taso_mirage.meanings.typed import Typed


class Flops(Typed[float]):
    """A meaning that counts operations while it types: one per mapped element, two per
    multiply-add, one per folded element.

    A note is the share of a value's elements that are not zeros which a pad put between others:
    transposed convolutions multiply the others alone.
    """

    def __init__(self) -> None:
        self.total = 0

    def note(
        self, primitive: str, fn: Any, notes: Sequence[float], operands: Sequence[Tensor], result: Tensor
    ) -> float:
        if primitive == "map":
            self.total += count(result)
        elif primitive in ("reduce", "cumulate"):
            self.total += count(operands[0])
        elif primitive == "put" and fn is not None:
            self.total += count(operands[1])
        elif primitive == "contract":
            letters_a, letters_b, _ = contraction(fn, operands[0].rank, operands[1].rank)
            sizes: dict[str, int] = {}
            for letters, operand in ((letters_a, operands[0]), (letters_b, operands[1])):
                for letter, n in zip(letters, operand.shape or (), strict=True):
                    sizes[letter] = max(int(n), sizes.get(letter, 1))
            dense = 2 * int(np.prod(list(sizes.values()), dtype=object))
            self.total += dense if min(notes) == 1 else round(dense * min(notes))
        elif notes:
            return max(notes)
        return 1.0

    def pad(
        self,
        a: tuple[Tensor, float],
        low: Sequence[Dim],
        high: Sequence[Dim],
        value: float = 0,
        interior: Sequence[int] | None = None,
    ) -> tuple[Tensor, float]:
        padded, share = super().pad(a, low, high, value, interior)
        if value != 0 or interior is None:
            return padded, share
        sizes = [(max(int(n), 1), between) for n, between in zip(a[0].shape or (), interior, strict=True)]
        return padded, share * math.prod(n / (n + (n - 1) * between) for n, between in sizes)

    def each(self, n: int, fn: Callable[[int], R]) -> list[R]:
        before = self.total
        found = super().each(n, fn)
        self.total = before + n * (self.total - before)
        return found


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one term: operations (of all blocks of a kernel), and bytes read and written,
    each operand's once."""

    flops: int
    bytes: int


def work(node: Node, sizes: Mapping[str, int]) -> Work:
    """The work of one term with every symbol at its size. Raises the errors of typing."""
    from taso_mirage.operators.ops import get

    flops = Flops()
    types = [None if a is ABSENT else sized(a.type, sizes) for a in node.args]
    values = [None if t is None else _noted(t) for t in types]
    result = get(node.op).body(flops, *values, **{k: fixed(v, sizes) for k, v in node.attrs})
    moved = sum(size(t) for t in (*types, _types(result)) if t is not None)
    return Work(flops.total, moved)


def sized(type: Any, sizes: Mapping[str, Dim]) -> Any:
    """A type with every symbol at its size."""
    if isinstance(type, tuple):
        return tuple(sized(t, sizes) for t in type)
    return Tensor(type.dtype, None if type.shape is None else tuple(evaluate(d, sizes) for d in type.shape))


def count(type: Tensor) -> int:
    """The number of elements of a type without symbols; 0 if a dim is negative, as at sizes at
    which the model does not run."""
    return int(np.prod([max(int(d), 0) for d in type.shape or ()], dtype=object))


def size(type: Any) -> int:
    """Bytes of a type, or of all types of a tuple."""
    if isinstance(type, tuple):
        return sum(size(t) for t in type)
    return count(type) * (numpy_dtype(type.dtype).itemsize if type.dtype != "string" else 8)


def _noted(type: Any) -> Any:
    return tuple((t, 1.0) for t in type) if isinstance(type, tuple) else (type, 1.0)


def _types(result: Any) -> Any:
    return tuple(t for t, _ in result) if isinstance(result[0], tuple) else result[0]
