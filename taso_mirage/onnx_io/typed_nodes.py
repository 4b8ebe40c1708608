"""Types of nodes that stay opaque, from our types of their operands: one rule for each ONNX
operator, in the tables beside this module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, TypeAlias

from taso_mirage.errors import Undecidable, Unsupported
from taso_mirage.ir.dims import Dim, Shape, Symbolic
from taso_mirage.ir.terms import ABSENT, Node, Tensor
from taso_mirage.onnx_io.attributes import meant
from taso_mirage.operators.ops import Call, Dims, Floats, known_elements

Size: TypeAlias = "Dim | str"
"""A size, or the name of a size that is known only at run time; within a node, one name is one
size."""
TypedOutput: TypeAlias = "tuple[str, tuple[Size, ...]]"
"""A dtype and a shape."""


@dataclass(frozen=True, slots=True)
class AskedNode:
    """A node whose outputs' types are wanted."""

    call: Call

    @property
    def opset(self) -> int:
        return self.call.opset

    def given(self, i: int) -> bool:
        return self.call.arg(i) is not ABSENT

    def shape(self, i: int) -> Shape:
        type = self._type(i)
        if type.shape is None:
            raise Unsupported(f"operand {i} of {self.call.op_type} has no known rank")
        return type.shape

    def rank(self, i: int) -> int:
        return len(self.shape(i))

    def dtype(self, i: int) -> str:
        return self._type(i).dtype

    def like(self, i: int) -> tuple[str, Shape]:
        return self.dtype(i), self.shape(i)

    def integers(self, i: int) -> Dims | None:
        """The elements of an integer operand that is known before the run."""
        return known_elements(self.call.arg(i))

    def numbers(self, i: int) -> Floats | None:
        """The numbers of any operand, if they are known; None where they cannot be expressed."""
        try:
            return self.call.numbers(i)
        except Unsupported:
            return None

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute's value.

        Raises Unsupported for a value that runtimes read differently.
        """
        return meant(name, self.call.attrs.get(name, default))

    def axis(self, default: int, rank: int) -> int:
        return on_axis(int(self.attr("axis", default)), rank)

    def _type(self, i: int) -> Tensor:
        node: Node = self.call.arg(i)
        if node is ABSENT or not isinstance(node.type, Tensor):
            raise Unsupported(f"operand {i} of {self.call.op_type} is left out")
        return node.type


TypeRule: TypeAlias = Callable[[AskedNode], Sequence[TypedOutput]]
"""A function from a node to the types of its outputs in their order, including optional ones."""


class TypeRules:
    """A table of rules by operator."""

    def __init__(self, domain: str = "") -> None:
        self.domain = domain
        self.rules: dict[tuple[str, str], TypeRule] = {}

    def __call__(self, *op_types: str) -> Callable[[TypeRule], TypeRule]:
        def register(rule: TypeRule) -> TypeRule:
            for op_type in op_types:
                if (self.domain, op_type) in self.rules:
                    raise ValueError(f"two rules for the types of {op_type}")
                self.rules[self.domain, op_type] = rule
            return rule

        return register

    def table(self, rules: Mapping[str, TypeRule]) -> None:
        """Rules of one expression, each under the names of its operators."""
        for op_types, rule in rules.items():
            self(*op_types.split())(rule)


FAILURES = (LookupError, ValueError, TypeError, AttributeError, ArithmeticError)
"""Errors that a rule raises on a damaged node."""


def typed(rules: Mapping[tuple[str, str], TypeRule], call: Call, outputs: int) -> tuple[TypedOutput, ...] | None:
    """The types of a number of outputs of a node; None if there is no rule for them."""
    rule = rules.get((call.domain, call.op_type))
    if rule is None:
        return None
    try:
        found = tuple(rule(AskedNode(call)))
    except (Unsupported, Undecidable, *FAILURES):
        return None
    known = all(_is_size(n) for _, shape in found for n in shape)
    return found[:outputs] if known and len(found) >= outputs else None


def _is_size(n: Any) -> bool:
    """Whether a dim from a rule is valid; an attribute may be missing, or not be a number."""
    return n >= 0 if isinstance(n, int) else isinstance(n, Symbolic | str)


def on_axis(axis: int, rank: int) -> int:
    """An axis counted from the front."""
    if not -rank <= axis < max(rank, 1):
        raise Unsupported(f"axis {axis} of rank {rank}")
    return axis + rank if axis < 0 else axis


def resized_at(shape: Iterable[Size], axis: int, n: Size) -> tuple[Size, ...]:
    """`shape` with another size at one axis."""
    return tuple(n if i == axis else d for i, d in enumerate(shape))


def equal_in_runs(dims: Iterable[Dim]) -> Dim:
    """The common size of dims that must be equal at run time: a fixed one if there is any."""
    every = list(dims)
    return next((d for d in every if isinstance(d, int)), every[0])


def broadcast(*shapes: Shape) -> tuple[Size, ...]:
    """The shape after broadcasting. Two sizes that differ in form are assumed to be equal at run
    time, unless one is 1."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple(_broadcast_dim(dims, f"broadcast_{i}") for i, dims in enumerate(zip(*padded, strict=True)))


def _broadcast_dim(dims: tuple[Dim, ...], name: str) -> Size:
    different = list(dict.fromkeys(d for d in dims if d != 1))
    if len(different) <= 1:
        return different[0] if different else 1
    sure = [d for d in different if _never_one(d)]
    return equal_in_runs(sure) if sure else name


def _never_one(dim: Dim) -> bool:
    if isinstance(dim, int):
        return dim != 1
    return gcd(*(c for _, c in dim.terms)) > 1


def window(n: Dim, size: Dim, stride: int, dilation: int, pads: tuple[int, int], ceil: bool = False) -> Size:
    """The number of windows that fit into `n` positions and padding, as ONNX counts them."""
    spare = n + sum(pads) - ((size - 1) * dilation + 1)
    if not ceil:
        return spare // stride + 1
    count = -(-spare // stride) + 1
    if isinstance(count, Symbolic) or isinstance(n, Symbolic):
        return count if stride == 1 else "windows"
    return count - 1 if (count - 1) * stride >= n + pads[0] else count
