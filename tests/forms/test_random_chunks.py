"""Random steps of a linear state by chunks: the programs compute the loops."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import numpy as np

from taso_mirage.emit.cpu.native_tuner import compiled
from taso_mirage.forms.recurrence import CHUNK, recurrence
from taso_mirage.ir.model import random_array
from taso_mirage.ir.terms import Graph, Node, Tensor, variable
from taso_mirage.meanings.reals import REALS
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term

KEYS, VALUES, HEADS = 5, 16, 2
STEPS = 2 * CHUNK + 5


def leaf(name: str, *shape: int) -> Node:
    return variable(name, Tensor("float32", shape))


class RandomStep:
    """A step that decays a state, reads it and adds products to it, in some order; the axis of keys
    is the last one or the one before."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.keys, self.values = random.sample([1, 2], 2)
        shape = [HEADS, 0, 0]
        shape[self.keys], shape[self.values] = KEYS, VALUES
        self.state, self.number, self.other = leaf("s", *shape), leaf("g", HEADS), leaf("o", KEYS)
        self.columns = [leaf(f"k{i}", HEADS, KEYS) for i in range(2)]
        self.row = leaf("v", HEADS, VALUES)
        self.rows = [term("unsqueeze", self.row, axes=(self.keys,))]

    def graph(self) -> Graph:
        """The step."""
        state = self.state
        for _ in range(self.random.randint(2, 6)):
            state = self.random.choice([self.decayed, self.added, self.added, self.read])(state)
        temporary = self.random.choice([state, self.added(state), self.state])
        output = term("relu", term("add", self.product(temporary), self.random.choice(self.rows)))
        inputs = (self.state, *self.columns, self.row, self.number, self.other)
        return Graph(inputs, (self.decayed(state), output, self.product(state)))

    def column(self) -> Node:
        k, more = self.columns
        found = self.random.choice([k, more, term("sigmoid", k), term("mul", more, self.other)])
        return term("unsqueeze", found, axes=(self.values,))

    def decayed(self, state: Node) -> Node:
        number = term("reshape", term("sigmoid", self.number), shape=(HEADS, 1, 1))
        factor = self.random.choice([number, term("sigmoid", self.column())])
        return term("mul", *self.random.sample([state, factor], 2))

    def added(self, state: Node) -> Node:
        pair = [self.column(), self.random.choice(self.rows)]
        both = term("matmul", *(pair if self.keys == 1 else pair[::-1]))
        outer = self.random.choice([term("mul", *self.random.sample(pair, 2)), both])
        return self.random.choice([term("add", outer, state), term("sub", state, outer), term("sub", outer, state)])

    def read(self, state: Node) -> Node:
        y = self.product(state)
        self.rows.append(self.random.choice([y, term("sub", self.rows[0], y), term("tanh", y)]))
        return state

    def product(self, state: Node) -> Node:
        column = self.column()
        if self.random.random() < 0.5:
            return term("reduce_sum", term("mul", state, column), axes=(self.keys,), keepdims=1)
        if self.keys == 2:
            return term("matmul", state, term("reshape", column, shape=(HEADS, KEYS, 1)))
        return term("matmul", term("reshape", column, shape=(HEADS, 1, KEYS)), state)


def goals() -> Iterator[tuple[Graph, Graph]]:
    """Loops, and their kernels by chunks."""
    for seed in range(4):
        random = Random(seed)
        body = RandomStep(random).graph()
        state, *elements, other = (x.tensor for x in body.inputs)
        sequences = [Tensor(x.dtype, (STEPS, *x.shape)) for x in elements]
        leaves = [variable(f"x{i}", type) for i, type in enumerate((state, *sequences, other))]
        node = term("scan", *leaves, body=body, states=1, sequences=len(sequences), backward=seed % 2)
        graph = Graph(tuple(leaves), tuple(term("item", node, index=i) for i in range(3)))
        right = recurrence(graph)
        assert right is not None
        cuts = right.chunk_cuts()
        assert cuts is not None
        yield graph, Graph(graph.inputs, right.results(right.kernel(cuts, right.chunk)))


def test_random_steps_by_chunks() -> None:
    found = [*goals()]
    for (graph, _), kernel in zip(found, compiled([made for _, made in found], 1), strict=True):
        rng = np.random.default_rng(0)
        given = [(random_array(x, rng, {}) / 2).astype(np.float32) for x in graph.inputs]
        wanted = interpret(graph.outputs, REALS, dict(zip(graph.inputs, given, strict=True)))
        for made, output in zip(kernel(*given), graph.outputs, strict=True):
            np.testing.assert_allclose(made, wanted[output], 0, 2e-5 * np.abs(wanted[output]).max())
