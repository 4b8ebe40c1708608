"""Weights of 8 bits that are stored with the dims innermost that their products sum over.

Tensor cores take bytes only where both operands lie along the sum. Where a weight does not, each
tile of it is turned in registers in every run; one that a model knows is turned once, ahead of it.
The goal then has a transpose of what is stored, which only names axes otherwise; that both
transposes undo each other is a law of `transpose`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taso_mirage.ir.dims import Shape
from taso_mirage.ir.model import Model, Weight
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import Graph, Node, Tensor, substitute, topological, variable, weight
from taso_mirage.kernels.goal import BYTES, Labelled, stored_leaf
from taso_mirage.operators.ops import term, traits

Perm = tuple[int, ...]
"""The order of axes that `transpose` takes."""


@dataclass(frozen=True, slots=True)
class TurnedWeight:
    """A weight with its axes in another order; it is as large as the one that it is made of, which
    may lie in a file, and is made when it is asked for."""

    weight: Weight
    perm: Perm

    def numpy(self) -> NDArray[Any]:
        """The array, in its own memory."""
        return np.ascontiguousarray(self.weight.numpy().transpose(self.perm))


def turns(goal: Labelled, given: Sequence[Node]) -> dict[int, Perm]:
    """The places of a goal's inputs that are better stored otherwise, each with the order of its
    axes: of those that are weights of a model (`given`), and bytes that are multiplied with
    bytes."""
    of = [stored_leaf(leaf) for leaf in goal.leaves.values()]
    axes = {name: own for name, own in goal.inputs.items() if stored_leaf(goal.leaves[name]).dtype in BYTES}
    found = {}
    for name, own in axes.items():
        leaf = goal.leaves[name]
        place = goal.graph.inputs.index(stored_leaf(leaf))
        packed = traits(leaf).lowering is Lowering.UNPACK or of.count(stored_leaf(leaf)) > 1
        others = {x for other, axis in axes.items() if other != name for each in axis for x in each}
        summed = [i for i, axis in enumerate(own) if axis and goal.reduced & others >= {*axis}]
        perm = (*(i for i in range(len(own)) if i not in summed), *summed)
        if given[place].op == "weight" and not packed and 0 < len(summed) < len(own) and list(perm) != sorted(perm):
            found[place] = perm
    return found


def turned(node: Node, perm: Perm) -> Node:
    """A weight as it is stored then."""
    return term("transpose", node, perm=perm)


def is_turned(node: Node) -> bool:
    """Whether a term is a weight in another order of its axes."""
    return traits(node).lowering is Lowering.TRANSPOSE and node.args[0].op == "weight"


def turned_goal(goal: Graph, perms: Mapping[int, Perm]) -> Graph:
    """A goal of inputs that are stored so: (n,k) in place of (k,n) for the order (1, 0)."""
    leaves = [
        variable(x.attr("name"), Tensor(x.dtype, ordered(x.shape, perms[i]))) if i in perms else x
        for i, x in enumerate(goal.inputs)
    ]
    back = {goal.inputs[i]: turned(leaves[i], inverse(perm)) for i, perm in perms.items()}
    return Graph(tuple(leaves), substitute(goal.outputs, back))


def inverse(perm: Perm) -> Perm:
    """The order that undoes another one."""
    return tuple(sorted(range(len(perm)), key=perm.__getitem__))


def ordered(shape: Shape, perm: Perm) -> Shape:
    """Dims in another order."""
    return tuple([shape[i] for i in perm])


def over_inputs(inputs: Sequence[Node], outputs: Sequence[Node]) -> tuple[Node, ...]:
    """What a part of a model computes of its inputs: where one of them is a weight in another
    order, the weight is that one turned back."""
    back = {x.args[0]: turned(x, inverse(x.attr("perm"))) for x in inputs if is_turned(x)}
    return substitute(outputs, back | {x: x for x in inputs}) if back else tuple(outputs)


def with_turned(model: Model, inputs: Sequence[Node]) -> tuple[Model, dict[Node, Node]]:
    """The model with weights of its own for those of some terms that are weights in another order,
    and those by the terms; each is there once, however many read it."""
    weights, names, stored = dict(model.weights), dict(model.names), dict[Node, Node]()
    for node in dict.fromkeys(x for x in inputs if is_turned(x)):
        of = node.args[0].attr("name")
        name = next(n for i in range(len(weights) + 1) if (n := f"turned_{of}{f'_{i}' * (i > 0)}") not in weights)
        weights[name] = TurnedWeight(model.weights[of], node.attr("perm"))
        stored[node] = weight(name, node.tensor)
        names[stored[node]] = name
    return replace(model, weights=weights, names=names), stored


def without_unread(model: Model) -> Model:
    """The model without the weights that nothing reads."""
    read = {n.attr("name") for n in topological(model.graph.outputs) if n.op == "weight"}
    return replace(model, weights={name: value for name, value in model.weights.items() if name in read})
