"""Loops that are recurrent layers: a loop whose step equals the step in an operator's definition
becomes the operator.

The operators are those whose definition is a loop. The gates of a step, with their weights, are
found by comparing its skeleton with that of the definition (`search/cells.py`). Then the first
states and the outputs of a step are proved to be equal, for all states and at every place: by
induction both loops are equal (`onnx_io/content_terms.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import permutations, product

import numpy as np

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, constant, is_constant, substitute, topological, variable
from taso_mirage.meanings.reals import REALS
from taso_mirage.onnx_io.loops import STEP, state_leaves, step_leaves
from taso_mirage.onnx_io.states import is_zero
from taso_mirage.operators.interpret import definition, interpret
from taso_mirage.operators.ops import Op, get, load_specs, term, traits
from taso_mirage.prove.rules.cases import cut_free
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.search.cells import Cell, CellSum
from taso_mirage.search.steps import RewriteStep

LAYER = "a loop as an operator"
"""The name of the equalities, among those of a step."""
FIXED = 4
"""The operands of an operator before its first states: a sequence, both weights, and biases."""
NAMES = 3
"""The largest number of different activations of a step."""


@dataclass(frozen=True, slots=True)
class Layer:
    """The terms over an operator in the place of a loop's results, and the equalities behind
    them."""

    results: tuple[Node, ...]
    operator: Node
    obligations: tuple[RewriteStep, ...]


def layer_of(loop: Node, proofs: Proofs) -> Layer | None:
    """The operator that computes a loop; None where none is found, or none is proved."""
    if loop.attr("counted") and not isinstance(loop.args[loop.attr("states")].shape[0], int):
        return None  # after no step, a layer of ONNX Runtime does not have its first states
    try:
        cell = cell_of(loop)
    except TasoMirageError:
        return None
    for operator in load_specs().values():
        for found in _candidates(operator, loop, cell) if operator.traits.stays else ():
            made = proved_layer(loop, cell, found, proofs)
            if made is not None:
                return made
    return None


def cell_of(loop: Node) -> Cell:
    """The step of a loop, over variables for its states and the place `STEP` of its sequences."""
    step, leaves = step_leaves(loop, loop.args)
    body: Graph = loop.attr("body")
    outputs = substitute(body.outputs, dict(zip(body.inputs, leaves, strict=True)))
    return Cell(outputs, leaves[: loop.attr("states")], (), step)


# ---------------------------------------------------------------- candidates


@dataclass(frozen=True, slots=True)
class LayerCandidate:
    """A term of an operator, with the places of its states among the loop's."""

    layer: Node
    order: tuple[int, ...]


def _candidates(operator: Op, loop: Node, cell: Cell) -> Iterator[LayerCandidate]:
    """Terms of an operator whose cells give the same numbers."""
    elements = cell.sequences
    if len(cell.states) != len(operator.operands) - FIXED or len(elements) != 1:
        return
    gates = sum(elements[0] in each.factors for each in cell.sums.values())
    for attrs in _attributes(operator, cell):
        try:
            pattern = _Pattern.of(operator, elements[0], cell.states[0], gates, attrs)
        except TasoMirageError:
            continue
        table = pattern.matched(cell)
        if table is not None:
            order = tuple(cell.states.index(table[s]) for s in pattern.firsts)
            weights = pattern.weights_of(cell, table)
            firsts = [ABSENT if is_zero(loop.args[i]) else term("unsqueeze", loop.args[i], axes=(0,)) for i in order]
            backward = loop.attr("backward")
            made = operator.term(elements[0].args[0], *weights, *firsts, backward=backward, **attrs)
            yield LayerCandidate(made, order)


def _attributes(operator: Op, cell: Cell) -> Iterator[dict[str, object]]:
    """The attributes that a cell may have: its activations are among the functions of the step."""
    usual = str(operator.attributes["activations"][1])
    unary = {get(n.op).onnx for n in topological(cell.skeleton) if len(n.args) == 1}
    names = sorted(n for n in unary if n)[:NAMES]
    chosen = [usual, *(" ".join(c) for c in product(names, repeat=len(usual.split())))]
    flags = [n for n in operator.attributes if n not in ("activations", "backward")]
    for activations in dict.fromkeys(chosen):
        if set(activations.split()) <= set(names):
            for values in product((0, 1), repeat=len(flags)):
                yield {"activations": activations, **dict(zip(flags, values, strict=True))}


@dataclass(frozen=True, slots=True)
class _Pattern:
    """The cell in an operator's definition, over variables: its states, an element, and for each
    gate the matrices of both products and two vectors."""

    cell: Cell
    gates: int
    weights: Sequence[Node]

    @property
    def firsts(self) -> Sequence[Node]:
        """The states."""
        return self.cell.states

    @staticmethod
    def of(operator: Op, element: Node, state: Node, gates: int, attrs: Mapping[str, object]) -> _Pattern:
        """The cell for an element and a state like these."""
        dtype, (batch, width), size = state.dtype, element.shape, state.shape[1]
        shapes = [(1, batch, width), (1, gates * size, width), (1, gates * size, size), (1, 2 * gates * size)]
        shapes += [(1, batch, size)] * (len(operator.operands) - FIXED)
        leaves = [variable(f"x{i}", Tensor(dtype, shape)) for i, shape in enumerate(shapes)]
        loop = loop_in(operator.term(*leaves, **attrs))
        body: Graph = loop.attr("body")
        states = loop.attr("states")
        first, (x, *weights) = body.inputs[:states], body.inputs[states:]
        return _Pattern(Cell(body.outputs, first, (x,)), gates, weights)

    def matched(self, cell: Cell) -> dict[Node, Node] | None:
        """The states and sums of another cell for those of this one; None where the cells do not
        give the same numbers."""
        for order in permutations(cell.states):
            mine, theirs = _by_kind(self.cell, self.firsts), _by_kind(cell, order)
            if {k: len(v) for k, v in mine.items()} != {k: len(v) for k, v in theirs.items()}:
                continue
            for chosen in product(*(permutations(theirs[kind]) for kind in mine)):
                table = dict(zip(self.firsts, order, strict=True))
                for kind, sums in zip(mine, chosen, strict=True):
                    table |= zip(mine[kind], sums, strict=True)
                if self._same_numbers(cell, table):
                    return table
        return None

    def _same_numbers(self, cell: Cell, table: Mapping[Node, Node]) -> bool:
        rng = np.random.default_rng(0)
        mine = {leaf: rng.normal(size=[int(n) for n in leaf.shape]) for leaf in table}
        here = interpret(self.cell.skeleton, REALS, mine)
        there = interpret(cell.skeleton, REALS, {table[leaf]: value for leaf, value in mine.items()})
        order = [cell.states.index(table[s]) for s in self.firsts]
        pairs = zip(self.cell.skeleton, (cell.skeleton[i] for i in order), strict=True)
        return all(np.allclose(here[a], there[b], 1e-9, 1e-9) for a, b in pairs)

    def weights_of(self, cell: Cell, table: Mapping[Node, Node]) -> list[Node]:
        """The operator's weights with those of another cell."""
        found: dict[Node, Node] = {}
        for leaf, mine in self.cell.sums.items():
            theirs = cell.sums[table[leaf]]
            for factor, matrix in mine.products:
                found[matrix] = term("transpose", _matrix(cell, theirs, table.get(factor)), perm=(1, 0))
            own = [n for n in topological(mine.vectors) if n in self.weights]
            if own and theirs.vectors:
                found[own[0]] = reduce(partial(term, "add"), theirs.vectors)
        zero = constant(np.zeros(cell.states[0].shape[1]), cell.states[0].dtype)
        biases = [found.get(b, zero) for b in self.weights[2 * self.gates :]]
        matrices = self.weights[: self.gates], self.weights[self.gates : 2 * self.gates]
        bias = ABSENT if all(b is zero for b in biases) else _beside(biases)
        return [*(_beside([found[w] for w in each]) for each in matrices), bias]


def _by_kind(cell: Cell, order: Sequence[Node]) -> dict[tuple[str, ...], list[Node]]:
    """The sums by the kinds of their leaves: a state, by its number, an element, or another
    term."""
    found: dict[tuple[str, ...], list[Node]] = {}
    for leaf, each in cell.sums.items():
        kinds = [
            f"state {order.index(f)}" if f in order else "element" if cell.is_element(f) else "" for f in each.factors
        ]
        found.setdefault(tuple(sorted(kinds)), []).append(leaf)
    return found


def _matrix(cell: Cell, found: CellSum, state: Node | None) -> Node:
    """The matrix of a state, or else of the only leaf that is none."""
    return next(m for leaf, m in found.products if leaf is state or (state is None and leaf not in cell.states))


def _beside(parts: Sequence[Node]) -> Node:
    whole = parts[0] if len(parts) == 1 else term("concat", *parts, axis=0)
    return term("unsqueeze", whole, axes=(0,))


def loop_in(layer: Node) -> Node:
    """The loop in the definition of a term."""
    inner = definition(term("item", layer, index=0), parts=True)
    return next(n for n in topological([] if inner is None else [inner]) if traits(n).lowering is Lowering.STEPS)


# ---------------------------------------------------------------- proofs


def proved_layer(loop: Node, cell: Cell, found: LayerCandidate, proofs: Proofs) -> Layer | None:
    """The layer, if its first states and its step are proved to be the loop's."""
    inner, states, outputs = loop_in(found.layer), len(found.order), cell.outputs
    if _steps(inner) != _steps(loop):
        return None
    body: Graph = inner.attr("body")
    names = zip(state_leaves(inner.args[:states]), (cell.states[i] for i in found.order), strict=True)
    made = substitute(body.outputs, dict(zip(body.inputs, step_leaves(inner, inner.args)[1], strict=True)))
    new = substitute(made, dict(names))
    if any(each is not outputs[found.order[0]] for each in outputs[states:]):
        return None
    cut = [*cell.states, STEP, *(e.args[0] for e in cell.sequences), *_read_by(outputs, cell.fixed)]
    pairs: list[tuple[Node, Node, list[Node]]] = [
        (loop.args[at], inner.args[i], [] if is_zero(loop.args[at]) else [loop.args[at]])
        for i, at in enumerate(found.order)
    ]
    pairs += [(outputs[at], new[i], cut) for i, at in enumerate(found.order)]
    pairs = [(old, new, _cut(leaves)) for old, new, leaves in pairs if old is not new]
    if not all(_equal(*each, proofs) for each in pairs):
        return None
    steps = [RewriteStep((LAYER,), (old,), (new,), over=frozenset(leaves)) for old, new, leaves in pairs]
    at = [1 + found.order.index(i) for i in range(states)] + [0] * (len(outputs) - states)
    results, more = [], []
    for index in at:
        part = term("item", found.layer, index=index)
        results.append(term("squeeze", part, axes=(0 if index else 1,)))
        inside = term("item", inner, index=index - 1 if index else states)
        more.append(RewriteStep((LAYER,), (_of(results[-1], part, inside, index),), (inside,)))
    return Layer(tuple(results), found.layer, (*steps, *dict.fromkeys(more)))


def _steps(loop: Node) -> tuple[object, ...]:
    """The number of steps and their direction."""
    return loop.args[loop.attr("states")].shape[0], loop.attr("backward")


def _of(result: Node, part: Node, inside: Node, index: int) -> Node:
    """A result over the loop of the operator's definition."""
    return substitute((result,), {part: term("unsqueeze", inside, axes=(0 if index else 1,))})[0]


def _read_by(outputs: Sequence[Node], fixed: Iterable[Node]) -> list[Node]:
    """The highest terms below some, which may be these, that outputs read."""
    below, found, waiting = set(topological(outputs)), list[Node](), list(fixed)
    while waiting:
        node = waiting.pop()
        (found if node in below else waiting).extend([node] if node in below else node.args)
    return found


def _cut(leaves: Sequence[Node]) -> list[Node]:
    return [a for a in dict.fromkeys(leaves) if a is not ABSENT and not is_constant(a)]


def _equal(old: Node, new: Node, leaves: Sequence[Node], proofs: Proofs) -> bool:
    """Whether two terms are equal for all values of some leaves."""
    try:
        return bool(
            proofs.judge(cut_free((old,), (new,), {a: variable(f"x{i}", a.tensor) for i, a in enumerate(leaves)}))
        )
    except TasoMirageError:
        return False
