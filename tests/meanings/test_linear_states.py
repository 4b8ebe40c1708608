"""Linear states: every operation commutes with the elements of a value, by the prover and by the
checker, so a chunk of steps computes the steps; wrong operations are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from linear_mutants import Added, Doubled, EarlyMask, Forgetful, LateDecay, OldState, Undecayed

from taso_mirage import checker
from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim, Shape
from taso_mirage.ir.terms import Graph, Literal, Node, Tensor, constant, variable
from taso_mirage.meanings.base import Meaning
from taso_mirage.meanings.linear_states import LinearStates, LinearValue
from taso_mirage.operators.ops import term
from taso_mirage.rewriting.text import show_graph

HEADS, KEYS, VALUES = 2, 3, 4
FUNCTIONS = {np.multiply: "mul", np.add: "add", np.subtract: "sub", np.negative: "neg"}


class Terms(Meaning[Node]):
    """The primitives that linear states need, as terms."""

    def shape(self, a: Node) -> Shape:
        return a.shape

    def dtype(self, a: Node) -> str:
        return a.dtype

    def constant(self, value: Literal) -> Node:
        return constant(value.numpy(), value.dtype)

    def map(self, fn: Any, *xs: Node) -> Node:
        return term(FUNCTIONS[fn], *xs)

    def contract(self, equation: str, a: Node, b: Node) -> Node:
        assert equation == "...mk,...kn->...mn"
        return term("matmul", a, b)

    def reduce(self, fn: Any, a: Node, axes: Sequence[int], keepdims: bool = True) -> Node:
        assert fn is np.add
        return term("reduce_sum", a, axes=tuple(axes), keepdims=int(keepdims))

    def reshape(self, a: Node, shape: Sequence[Dim]) -> Node:
        return a if a.shape == tuple(shape) else term("reshape", a, shape=tuple(shape))

    def expand(self, a: Node, shape: Sequence[Dim]) -> Node:
        return a if a.shape == tuple(shape) else term("expand", a, shape=tuple(shape))

    def transpose(self, a: Node, perm: Sequence[int]) -> Node:
        return a if list(perm) == sorted(perm) else term("transpose", a, perm=tuple(perm))


TERMS = Terms()
Operation = Callable[[Meaning[Any], Any], Any]


def leaf(name: str, *shape: int) -> Node:
    return variable(name, Tensor("float32", shape))


STATE = leaf("s", HEADS, KEYS, VALUES)
COLUMN, NUMBER, ROW = leaf("d", HEADS, KEYS, 1), leaf("g", HEADS, 1, 1), leaf("r", HEADS, 1, VALUES)
READER = leaf("p", HEADS, 1, KEYS)
OPERATIONS: dict[str, Operation] = {
    "the state": lambda xp, x: x,
    "a decay of each key": lambda xp, x: xp.mul(x, COLUMN),
    "a decay of all keys": lambda xp, x: xp.mul(NUMBER, x),
    "a sum": lambda xp, x: xp.add(x, xp.mul(COLUMN, ROW)),
    "a difference": lambda xp, x: xp.sub(x, xp.mul(ROW, COLUMN)),
    "another difference": lambda xp, x: xp.sub(xp.mul(ROW, COLUMN), x),
    "a negative": lambda xp, x: xp.map(np.negative, x),
    "a product": lambda xp, x: xp.contract("...mk,...kn->...mn", READER, x),
    "a sum over keys": lambda xp, x: xp.reduce(np.add, x, [1], False),
    "a sum of products": lambda xp, x: xp.reduce(np.add, xp.mul(x, COLUMN), [1]),
    "what a step of the delta rule adds": lambda xp, x: xp.mul(
        COLUMN, xp.mul(NUMBER, xp.sub(ROW, xp.contract("...mk,...kn->...mn", READER, x)))
    ),
}


def sides(kind: type[LinearStates], operation: Operation) -> tuple[Node, Node]:
    """The elements after an operation on a value, and the operation on the elements of the
    value."""
    linear = kind(TERMS, STATE, 1, 2)
    pairs = tuple((leaf(f"u{i}", HEADS, KEYS, 1), leaf(f"w{i}", HEADS, 1, VALUES)) for i in range(2))
    value = LinearValue(True, leaf("a", HEADS, KEYS, 1), pairs)
    return linear.total(operation(linear, value)), operation(TERMS, linear.total(value))


def accepted(left: Node, right: Node) -> bool:
    leaves = tuple(dict.fromkeys(n for side in (left, right) for n in Graph((), (side,)) if n.op == "input"))
    texts = [show_graph(Graph(leaves, (side,))) for side in (left, right)]
    return isinstance(checker.check(*texts), checker.Accepted)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_commutes_with_the_elements(name: str) -> None:
    assert accepted(*sides(LinearStates, OPERATIONS[name]))


def test_the_elements_before_all_steps_are_the_state() -> None:
    linear = LinearStates(TERMS, STATE, 1, 2)
    assert linear.total(linear.first) is STATE


FALSE = {
    LateDecay: ("a decay of each key", "a decay of all keys", "a sum of products"),
    EarlyMask: ("a product", "a sum over keys", "what a step of the delta rule adds"),
    OldState: ("a product", "a sum over keys"),
    Undecayed: ("a product", "a sum of products"),
    Added: ("a difference", "another difference", "a negative"),
    Forgetful: ("a sum", "a difference"),
    Doubled: ("a decay of each key", "a sum"),
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in FALSE.items() for name in names])
def test_a_wrong_operation_is_refused(kind: type[LinearStates], name: str) -> None:
    assert not accepted(*sides(kind, OPERATIONS[name]))


OTHERS: dict[str, Operation] = {
    "a product over values": lambda xp, x: xp.contract("...mk,...kn->...mn", x, leaf("q", HEADS, VALUES, 1)),
    "a square": lambda xp, x: xp.mul(x, x),
    "a weight of each element": lambda xp, x: xp.mul(x, leaf("m", HEADS, KEYS, VALUES)),
    "a number added to each": lambda xp, x: xp.add(x, COLUMN),
    "a sum over values": lambda xp, x: xp.reduce(np.add, x, [2]),
    "a sum over heads": lambda xp, x: xp.reduce(np.add, x, [0]),
    "another order": lambda xp, x: xp.transpose(x, (0, 2, 1)),
    "two states": lambda xp, x: xp.add(x, x),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_use_of_a_state_is_refused(name: str) -> None:
    linear = LinearStates(TERMS, STATE, 1, 2)
    with pytest.raises(Unsupported):
        OTHERS[name](linear, linear.first)
