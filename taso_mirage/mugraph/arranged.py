"""Pre-transposed weights: weights that are contiguous along the summed dim, and 8-bit weights with
the sums of their columns.

Tensor cores read bytes, and single precision as TF32, only if both operands are contiguous along
the summed dim. Otherwise each tile of a weight is transposed in registers in every run, and the
zero point of another operand of bytes requires the sum of each column. For a weight of a model,
both are computed once in advance: the goal is written over the stored arrays, which are terms over
the weight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taso_mirage.ir.model import Model, Weight
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import Graph, Node, Tensor, is_named_weight, substitute, topological, variable, weight
from taso_mirage.meanings.reals import REALS
from taso_mirage.mugraph.goal import BYTES, Labelled, is_packed, stored_leaf
from taso_mirage.mugraph.integer_operands import of_integers_or_floats
from taso_mirage.mugraph.labels import label
from taso_mirage.mugraph.moved_goal import moved_goal
from taso_mirage.mugraph.roles import inlined
from taso_mirage.mugraph.stored_goal import stored_goal
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.interpret import interpret
from taso_mirage.operators.ops import term, traits

ALONG = (*BYTES, "float32")
"""The dtypes of weights that are better stored contiguous along the summed dim."""
MANY = 64
"""The smallest number of rows of a product with a single-precision weight for which this pays; with
fewer rows, memory limits the product."""
Perm = tuple[int, ...]
"""The order of axes that `transpose` takes."""


@dataclass(frozen=True, slots=True)
class ArrangedGoal:
    """A goal over weights in another storage order. `terms` has, for each of its inputs, the term
    over the inputs of the previous goal; first the terms that replace these inputs, then the
    sums."""

    graph: Graph
    terms: tuple[Node, ...]
    perms: Mapping[int, Perm]

    def inputs(self, goal: Graph, given: Sequence[Node]) -> tuple[Node, ...]:
        """The inputs of this goal, given the terms of the model that the goal before reads; their
        free dims may differ."""
        places = dict(zip(goal.inputs, given, strict=True))
        weights = {x: node for x, node in places.items() if is_named_weight(node)}
        return tuple([places.get(each) or substitute([each], weights)[0] for each in self.terms])

    def operators(self, whole: Graph) -> Graph:
        """The operators of a goal over the same inputs, of which they read no sums."""
        leaves, outputs = _turned_back(whole, self.perms)
        return Graph((*leaves, *self.graph.inputs[len(leaves) :]), outputs)


def arranged(goal: Graph, given: Sequence[Node]) -> ArrangedGoal | None:
    """A goal over pre-transposed weights, if some of the terms `given` are such weights of a model;
    None if nothing is gained, if parts of them are read, or if parts of the results are stored
    apart."""
    if moved_goal(goal).moves or stored_goal(goal).stores:
        return None
    perms = turns(label(goal), given)
    leaves, outputs = _turned_back(goal, perms)
    known = {leaf for leaf, node in zip(leaves, given, strict=True) if is_named_weight(node)}
    sums = _sums(outputs, known)
    if not perms and not sums:
        return None
    more = {node: variable(f"sum{i}", node.tensor) for i, node in enumerate(sums)}
    if more:
        outputs = substitute(_integers(outputs), {node: term("whole", leaf) for node, leaf in more.items()})
    back = {leaf: _turned(x, perms.get(i)) for i, (leaf, x) in enumerate(zip(leaves, goal.inputs, strict=True))}
    terms = (*back.values(), *substitute(sums, back))
    return ArrangedGoal(Graph((*leaves, *more.values()), outputs), terms, perms)


def turns(goal: Labelled, given: Sequence[Node]) -> dict[int, Perm]:
    """The places of a goal's inputs that are better stored otherwise, each with the order of its
    axes: of those that are weights of a model (`given`), and are multiplied with operands of bytes
    like themselves, or with many rows of single precision like themselves."""
    of = [stored_leaf(leaf) for leaf in goal.leaves.values()]
    axes = {name: own for name, own in goal.inputs.items() if stored_leaf(goal.leaves[name]).dtype in ALONG}
    found = {}
    for name, own in axes.items():
        leaf = goal.leaves[name]
        place = goal.graph.inputs.index(stored_leaf(leaf))
        packed = traits(leaf).lowering is Lowering.UNPACK or of.count(stored_leaf(leaf)) > 1
        others = {
            x
            for other, axis in axes.items()
            if other != name and _multiplies(goal, other, name)
            for each in axis
            for x in each
        }
        summed = [i for i, axis in enumerate(own) if axis and goal.reduced & others >= {*axis}]
        perm = (*(i for i in range(len(own)) if i not in summed), *summed)
        if is_named_weight(given[place]) and not packed and 0 < len(summed) < len(own) and list(perm) != sorted(perm):
            found[place] = perm
    return found


def _multiplies(goal: Labelled, other: str, name: str) -> bool:
    """Whether transposing the view `other` pays for its product with the view `name`: both are
    bytes, or many rows of single precision."""
    types = [stored_leaf(goal.leaves[x]).dtype in BYTES for x in (other, name)]
    own, its = ({x for axis in goal.inputs[view] for x in axis} for view in (name, other))
    return types[0] == types[1] and (types[0] or math.prod(goal.sizes.get(x, 1) for x in its - own) >= MANY)


def _turned_back(goal: Graph, perms: Mapping[int, Perm]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Inputs in this storage order, (n,k) in place of (k,n) for the order (1, 0), and the outputs
    over them."""
    leaves = tuple(
        [
            variable(x.attr("name"), Tensor(x.dtype, tuple([x.shape[d] for d in perms[i]]))) if i in perms else x
            for i, x in enumerate(goal.inputs)
        ]
    )
    back = {goal.inputs[i]: _turned(leaves[i], inverse(perm)) for i, perm in perms.items()}
    return leaves, substitute(goal.outputs, back)


def _turned(node: Node, perm: Perm | None) -> Node:
    return node if perm is None else term("transpose", node, perm=perm)


def inverse(perm: Perm) -> Perm:
    """The inverse of an order."""
    return tuple(sorted(range(len(perm)), key=perm.__getitem__))


def _integers(outputs: Sequence[Node]) -> tuple[Node, ...]:
    return of_integers_or_floats(inlined(outputs))


def _sums(outputs: Sequence[Node], known: set[Node]) -> list[Node]:
    """The sums of whole numbers of these leaves."""
    found = []
    for node in topological(_integers(outputs)):
        if traits(node).lowering is Lowering.SUM and node.dtype == "int32":
            below = topological([node])
            if any(map(is_packed, below)) and all(n.args or n in known for n in below):
                found.append(node)
    return found


# ---------------------------------------------------------------- in a model


@dataclass(frozen=True, slots=True, weakref_slot=True)
class ArrangedWeight:
    """The value of a term over one weight, which may lie in a file: computed when it is asked
    for."""

    term: Node
    leaf: Node
    weight: Weight

    def numpy(self) -> NDArray[Any]:
        """The array, in its own memory."""
        return np.ascontiguousarray(interpret([self.term], REALS, {self.leaf: self.weight.numpy()})[self.term])


def is_turned(node: Node) -> bool:
    """Whether a term is a weight in another order of its axes."""
    moved = traits(node).lowering is Lowering.TRANSPOSE and is_named_weight(node.args[0])
    return moved and node.dtype in ALONG


def _is_sum(node: Node) -> bool:
    """Whether a term is a sum of the whole numbers of a weight."""
    return traits(node).lowering is Lowering.SUM and node.dtype == "int32" and is_weight(node)


def over_inputs(inputs: Sequence[Node], outputs: Sequence[Node]) -> tuple[Node, ...]:
    """The outputs of a part of a model as terms over its inputs: where an input is a weight in
    another order, the weight is that input turned back."""
    back = {x.args[0]: _turned(x, inverse(x.attr("perm"))) for x in inputs if is_turned(x)}
    return substitute(outputs, back | {x: x for x in inputs}) if back else tuple(outputs)


def with_arranged(model: Model, inputs: Sequence[Node]) -> tuple[Model, dict[Node, Node]]:
    """The model with new weights for the given terms that are pre-transposed weights, and the new
    weights by term. Each weight is stored once for all of its readers. A transposition that the
    model has itself stays a term, which the runtime computes once: so a certificate need not know
    its values."""
    weights, names, stored = dict(model.weights), dict(model.names), dict[Node, Node]()
    own = {*model.nodes()}
    for node in dict.fromkeys(x for x in inputs if x not in own and (is_turned(x) or _is_sum(x))):
        leaf = next(n for n in topological([node]) if is_named_weight(n))
        of = f"{'turned' if is_turned(node) else 'sums'}_{leaf.attr('name')}"
        name = next(n for i in range(len(weights) + 1) if (n := f"{of}{f'_{i}' * (i > 0)}") not in weights)
        weights[name] = ArrangedWeight(node, leaf, model.weights[leaf.attr("name")])
        stored[node] = weight(name, node.tensor)
        names[stored[node]] = name
    return replace(model, weights=weights, names=names), stored


def without_unread(model: Model) -> Model:
    """The model without the weights that nothing reads."""
    read = {n.attr("name") for n in topological(model.graph.outputs) if is_named_weight(n)}
    return replace(model, weights={name: value for name, value in model.weights.items() if name in read})
