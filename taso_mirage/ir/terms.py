"""Tensor types, interned terms and graphs: the one program representation (TASO's graph, PET's
mutant, Mirage's muGraph)."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from taso_mirage.ir.dims import Shape, show_shape

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Tensor:
    """A type: `dtype` is numpy's or ml_dtypes' name (or ONNX's for values that are no tensors),
    `shape` None if unranked."""

    dtype: str
    shape: Shape | None

    @property
    def rank(self) -> int:
        return len(self.shape or ())

    def __str__(self) -> str:
        return self.dtype + ("[...]" if self.shape is None else show_shape(self.shape))


Type: TypeAlias = "Tensor | tuple[Tensor, ...] | None"
Attributes: TypeAlias = tuple[tuple[str, Hashable], ...]


@dataclass(frozen=True, slots=True)
class Literal:
    """A small constant array as a hashable value; equal means the same bytes, dtype and shape."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @staticmethod
    def of(array: NDArray[Any]) -> Literal:
        array = np.asarray(array)
        return Literal(array.dtype.name, array.shape, array.tobytes())

    def numpy(self) -> NDArray[Any]:
        return np.frombuffer(self.data, numpy_dtype(self.dtype)).reshape(self.shape)


class Node:
    """An immutable, interned term: equal terms are the same object, so `==` is `is` and hashing is
    free.

    `type` is a Tensor, a tuple of Tensors (read with the op `item`), or None in a pattern whose
    variables are untyped.
    """

    __slots__ = ("__weakref__", "args", "attrs", "is_weight", "op", "type")
    op: str
    args: tuple[Node, ...]
    attrs: Attributes
    type: Type
    is_weight: bool
    """The memo of `expressions.is_weight`; not set before its first call."""
    _pool: ClassVar[WeakValueDictionary[Any, Node]] = WeakValueDictionary()

    def __new__(
        cls,
        op: str,
        args: tuple[Node, ...] = (),
        attrs: Attributes = (),
        type: Type | Callable[[], Type] = None,
    ) -> Node:
        """Intern a term.

        A callable `type` is called only if the term is new; the key of a named leaf contains its
        type.
        """
        key = (op, args, attrs, type if op in LEAVES else None)
        node = cls._pool.get(key)
        if node is None:
            node = object.__new__(cls)
            node.op, node.args, node.attrs = op, args, attrs
            node.type = type() if callable(type) else type
            cls._pool[key] = node
        return node

    def __reduce__(self) -> tuple[Any, ...]:
        return Node, (self.op, self.args, self.attrs, self.type)

    @property
    def tensor(self) -> Tensor:
        """The type of a term that is one tensor."""
        if not isinstance(self.type, Tensor):
            raise TypeError(f"{self.op} has type {self.type}, not one tensor")
        return self.type

    @property
    def shape(self) -> Shape:
        shape = self.tensor.shape
        if shape is None:
            raise TypeError(f"{self.op} has a tensor of unknown rank")
        return shape

    @property
    def dtype(self) -> str:
        return self.tensor.dtype

    def attr(self, name: str) -> Any:
        """The value of one attribute; KeyError if there is none."""
        for key, value in self.attrs:
            if key == name:
                return value
        raise KeyError(f"{self.op} has no attribute {name}")

    def __repr__(self) -> str:
        shown = [arg.attr("name") if arg.op in LEAVES else f"<{arg.op}>" for arg in self.args]
        shown += [f"{key}={value!r}" for key, value in self.attrs]
        return f"{self.op}({', '.join(shown)})"


LEAVES = frozenset({"input", "weight"})
KINDS = LEAVES | {"constant", "splat", "extents", "absent", "opaque", "item"}
"""The kinds of nodes that are no operators. A `splat` is a number in a pattern."""


def variable(name: str, type: Tensor | None = None) -> Node:
    """A graph input; without a type, a pattern variable."""
    return Node("input", (), (("name", name),), type)


def weight(name: str, type: Tensor) -> Node:
    """A value that is known before the model runs and kept outside the term."""
    return Node("weight", (), (("name", name),), type)


def is_named_weight(node: Node) -> bool:
    """Whether a term is a result of `weight`."""
    return node.op == "weight"


def constant(array: NDArray[Any] | float | int | bool, dtype: str | None = None) -> Node:
    """A small constant, kept inside the term."""
    value = np.asarray(array, None if dtype is None else numpy_dtype(dtype))
    literal = Literal.of(value)
    return Node("constant", (), (("value", literal),), Tensor(literal.dtype, literal.shape))


def is_constant(node: Node) -> bool:
    """Whether a term is a constant that contains its array."""
    return node.op == "constant"


def is_part(node: Node) -> bool:
    """Whether a term reads one of the several results of its operand."""
    return bool(node.args) and isinstance(node.args[0].type, tuple)


ABSENT = Node("absent", (), (), Tensor("absent", ()))
"""The term for an optional operand that is left out."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A function from `inputs` to `outputs`; other leaves (weights, constants) are part of the
    terms."""

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]

    def __iter__(self) -> Iterator[Node]:
        return iter(topological(self.outputs))


class HasArgs(Protocol):
    """A value that is computed from others."""

    @property
    def args(self) -> tuple[Any, ...]: ...


_Term = TypeVar("_Term", bound=HasArgs)


def topological(outputs: Iterable[_Term], stop: Container[_Term] = ()) -> list[_Term]:
    """All terms below `outputs`, operands first; nothing below (or of) `stop`.

    Iterative: models are deep.
    """
    if not stop:
        return _all_below(outputs)
    order: list[_Term] = []
    seen: set[_Term] = set()
    stack: list[_Term] = []
    for output in outputs:
        stack.append(output)
        while stack:
            node = stack[-1]
            if node in seen or node in stop:
                stack.pop()
                continue
            waiting = [arg for arg in reversed(node.args) if arg not in seen and arg not in stop]
            if waiting:
                stack.extend(waiting)
                continue
            seen.add(stack.pop())
            order.append(node)
    return order


def _all_below(outputs: Iterable[_Term]) -> list[_Term]:
    """`topological` without `stop`, optimized because a search calls it most often."""
    seen: dict[_Term, None] = {}
    stack = list(outputs)[::-1]
    while stack:
        node = stack[-1]
        if node in seen:
            stack.pop()
            continue
        waiting = node.args and [arg for arg in node.args if arg not in seen]
        if waiting:
            stack += waiting[::-1]
            continue
        seen[node] = None
        stack.pop()
    return list(seen)


def users(nodes: Iterable[Node]) -> dict[Node, list[Node]]:
    """For every term the terms that use it, in the order of `nodes`."""
    found: dict[Node, list[Node]] = {}
    for node in nodes:
        for arg in dict.fromkeys(node.args):
            found.setdefault(arg, []).append(node)
    return found


def with_args(node: Node, args: tuple[Node, ...]) -> Node:
    """`node` over other operands of the same types."""
    return node if args == node.args else Node(node.op, args, node.attrs, node.type)


def substitute(
    outputs: Sequence[Node], mapping: Mapping[Node, Node], order: Iterable[Node] | None = None
) -> tuple[Node, ...]:
    """`outputs` with terms replaced by terms of the same type.

    The replacements are not searched again.

    `order`: the terms below the outputs, operands first, where they are at hand.
    """
    for old, new in mapping.items():
        if old.type != new.type:
            raise TypeError(f"{old.op} has type {old.type}; it cannot be replaced by {new.op} of type {new.type}")
    done: dict[Node, Node] = dict(mapping)  # and the terms above
    for node in topological(outputs, stop=mapping) if order is None else order:
        if node not in mapping and not done.keys().isdisjoint(node.args):
            done[node] = with_args(node, tuple([done.get(arg, arg) for arg in node.args]))
    return tuple([done.get(output, output) for output in outputs])


def numpy_dtype(name: str) -> np.dtype[Any]:
    """numpy's dtype for a name, with those of ml_dtypes (bfloat16, float8...)."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        if not hasattr(ml_dtypes, name):
            raise TypeError(f"numpy has no dtype {name}") from None
        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found


def is_array(type: Tensor) -> bool:
    """Whether a value of the type is an array. For a sequence, a map or an optional value, the
    reader writes the component types in place of a dtype."""
    if type.dtype == "string":
        return True
    try:
        numpy_dtype(type.dtype)
    except TypeError:
        return False
    return True


def integer_limits(name: str) -> tuple[int, int]:
    """The least and the largest number of an integer dtype, also of those of ml_dtypes."""
    import ml_dtypes

    found = ml_dtypes.iinfo(numpy_dtype(name))
    return int(found.min), int(found.max)


def is_float(dtype: str) -> bool:
    """Whether a dtype's values represent real numbers."""
    return "float" in dtype


def is_stored(dtype: str) -> bool:
    """Whether a dtype's values represent real numbers with which no operator computes: floats of at
    most 8 bits, which are only converted, moved and compared."""
    return dtype.startswith(("float8_", "float6_", "float4_"))


def is_computed(dtype: str) -> bool:
    """Whether operators compute with a dtype's values, which are floats."""
    return is_float(dtype) and not is_stored(dtype)
