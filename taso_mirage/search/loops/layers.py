"""Loops that are recurrent layers: a loop whose step equals the step in an operator's definition
becomes the operator.

The operators are those whose definition is a loop. The gates of a step, with their weights, are
found by comparing its skeleton with that of the definition (`search/loops/cells.py`). Then the
first states and the outputs of a step are proved to be equal, for all states and at every place: by
induction both loops are equal (`onnx_io/content_terms.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import permutations, product

import numpy as np

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.dims import Dim, bind, symbols
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, constant, substitute, topological, variable
from taso_mirage.meanings.arrays import Array
from taso_mirage.meanings.reals import REALS
from taso_mirage.onnx_io.loops import STEP, state_leaves
from taso_mirage.onnx_io.states import is_zero
from taso_mirage.operators.interpret import interpret, retyped
from taso_mirage.operators.ops import Op, get, load_specs, term
from taso_mirage.operators.traits import Looping
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.rewriting.derived_traits import elementwise, moves
from taso_mirage.search.loops.behind import results_of
from taso_mirage.search.loops.cells import Cell, CellSum
from taso_mirage.search.loops.inductions import (
    INDUCTION,
    equal_loops,
    is_equal,
    loop_in,
    outputs_of_step,
    over_definition,
)
from taso_mirage.search.steps import RewriteStep

FIXED = 4
"""The operands of an operator before its first states: a sequence, both weights, and biases."""
FREE = 2
"""A free size, where numbers are compared."""
NAMES = 3
"""The largest number of different activations of a step."""


@dataclass(frozen=True, slots=True)
class Layer:
    """The terms over an operator in the place of a loop's results, and the equalities behind
    them."""

    results: tuple[Node, ...]
    operator: Node
    obligations: tuple[RewriteStep, ...]


@dataclass(frozen=True, slots=True)
class LayerCandidate:
    """A term of an operator that may be a loop, the terms over it for the loop's results, the
    places of these among the results of the loop in its definition, and the terms that a step reads
    besides its states."""

    layer: Node
    results: tuple[Node, ...]
    places: Mapping[int, int]
    fixed: tuple[Node, ...]


def layer_of(loop: Node, proofs: Proofs) -> Layer | None:
    """The operator that computes a loop; None where none is found, or none is proved."""
    for found in candidates(loop):
        made = proved_layer(loop, found, proofs)
        if made is not None:
            return made
    return None


def candidates(loop: Node) -> Iterator[LayerCandidate]:
    """The operators that give the same numbers as a loop."""
    operators = [each for each in load_specs().values() if each.traits.stays]
    for operator in operators:
        if operator.traits.of_loop is not None:
            yield from _by_sequences(operator, operator.traits.of_loop, loop)
    if loop.attr("counted") and not isinstance(loop.args[loop.attr("states")].shape[0], int):
        return  # after no step, a layer of ONNX Runtime does not have its first states
    try:
        outputs = outputs_of_step(loop)
        states = loop.attr("states")
        cell = Cell(outputs, state_leaves(loop.args[:states]), (), STEP)
    except TasoMirageError:
        return
    if all(each in outputs[:states] for each in outputs[states:]):
        for operator in operators:
            if operator.traits.of_loop is None:
                yield from _by_cells(operator, loop, cell)


# ---------------------------------------------------------------- operators of sequences


def _by_sequences(operator: Op, of_loop: Looping, loop: Node) -> Iterator[LayerCandidate]:
    """Operators over sequences of a loop, compared in two steps."""
    states, body = loop.attr("states"), loop.attr("body")
    end, read = states + loop.attr("sequences"), set(topological(body.outputs))
    used = [a for a, leaf in zip(loop.args[states:], body.inputs[states:], strict=True) if leaf in read]
    if not set(used) <= set(loop.args[states:end]):
        return
    firsts, sequences = loop.args[:states], [*dict.fromkeys(map(_without_dims, used))]
    leaves = [*dict.fromkeys(map(_below_function, sequences))]
    unused = [a for a in loop.args[states:end] if a not in used]
    table = {a: _in_steps(a, i) for i, a in enumerate([*leaves, *unused])} | {a: a for a in firsts}
    try:
        wanted = retyped(results_of(loop), table)
        smaller = of_loop(firsts, retyped(sequences, table))
        for (layer, results), (_, like) in zip(of_loop(firsts, sequences), smaller, strict=True):
            if len(results) == len(wanted) and _same_numbers(wanted, like, dict.fromkeys((*firsts, *table.values()))):
                zero = [a if a not in firsts or not is_zero(a) else ABSENT for a in layer.args]
                final = operator.term(*zero, **dict(layer.attrs))
                places = dict(enumerate(range(len(results))))
                yield LayerCandidate(final, substitute(results, {layer: final}), places, tuple(leaves))
    except TasoMirageError:
        return


def _without_dims(x: Node) -> Node:
    """The tensor to which operators add dims of 1, or from which they take some."""
    while len(x.args) == 1 and moves(x.op) and _sizes(x) == _sizes(x.args[0]):
        x = x.args[0]
    return x


def _sizes(x: Node) -> list[Dim]:
    return [n for n in x.shape if n != 1]


def _below_function(x: Node) -> Node:
    """The operand of a function of elements, or a term itself."""
    return x.args[0] if len(x.args) == 1 and elementwise(x.op) else x


def _in_steps(x: Node, number: int) -> Node:
    """A variable for a sequence, of two steps."""
    return variable(f"sequence {number}", Tensor(x.dtype, (2, *x.shape[1:])))


def _same_numbers(first: Sequence[Node], second: Sequence[Node], leaves: Collection[Node]) -> bool:
    env, sizes = _numbers(leaves)
    if [n.type for n in first] != [n.type for n in second]:
        return False
    here, there = (interpret(side, REALS, env, sizes=dict(sizes)) for side in (first, second))
    return all(np.allclose(here[a], there[b], 1e-9, 1e-9) for a, b in zip(first, second, strict=True))


def _numbers(leaves: Iterable[Node]) -> tuple[dict[Node, Array], dict[str, int]]:
    """Random numbers for some terms, and sizes for their letters."""
    leaves, rng = list(leaves), np.random.default_rng(0)
    sizes = {name: FREE for leaf in leaves for n in leaf.shape for name in symbols(n)}
    return {leaf: rng.normal(size=[int(bind(n, sizes)) for n in leaf.shape]) for leaf in leaves}, sizes


# ---------------------------------------------------------------- operators of cells


def _by_cells(operator: Op, loop: Node, cell: Cell) -> Iterator[LayerCandidate]:
    """Operators with weights whose cells give the same numbers."""
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
        if table is None:
            continue
        order = [cell.states.index(table[s]) for s in pattern.firsts]
        firsts = [ABSENT if is_zero(loop.args[i]) else term("unsqueeze", loop.args[i], axes=(0,)) for i in order]
        weights = pattern.weights_of(cell, table)
        made = operator.term(elements[0].args[0], *weights, *firsts, backward=loop.attr("backward"), **attrs)
        yield _with_results(made, cell, order, elements[0].args[0])


def _with_results(layer: Node, cell: Cell, order: Sequence[int], sequence: Node) -> LayerCandidate:
    """The candidate for a loop whose states have these places in the operator's order; its other
    results are the hidden states, the first of them."""
    states = len(order)
    places = {i: order.index(i) if i < states else states for i in range(len(cell.outputs))}
    last = [term("squeeze", term("item", layer, index=1 + places[i]), axes=(0,)) for i in range(states)]
    every = term("squeeze", term("item", layer, index=0), axes=(1,))
    results = (*last, *(every for _ in cell.outputs[states:]))
    return LayerCandidate(layer, results, places, (sequence, *cell.fixed))


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
        mine, sizes = _numbers(table)
        here = interpret(self.cell.skeleton, REALS, mine, sizes=sizes)
        there = interpret(cell.skeleton, REALS, {table[leaf]: value for leaf, value in mine.items()}, sizes=sizes)
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


# ---------------------------------------------------------------- proofs


def proved_layer(loop: Node, found: LayerCandidate, proofs: Proofs) -> Layer | None:
    """The layer, if it is proved to be the loop."""
    inner = loop_in(found.layer)
    obligations = equal_loops(loop, inner, found.places, found.fixed, proofs)
    if obligations is None:
        return None
    more = []
    for i, result in enumerate(found.results):
        here = over_definition(found.layer, result)
        part = term("item", inner, index=found.places[i])
        if here is not part and not is_equal(here, part, [part], proofs):
            return None
        more += [RewriteStep((INDUCTION,), (here,), (part,), over=frozenset((part,)))] if here is not part else []
    return Layer(found.results, found.layer, (*obligations, *dict.fromkeys(more)))
