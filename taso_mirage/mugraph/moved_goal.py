"""Goals that move elements: movements are pushed to the operands, which kernels then load by an
index map (`meanings/index_maps.py`).

A movement along one axis is a vector: for each new position the old one, or ANY where a selection
takes another operand. It passes through every operator whose result at a position of the axis
depends on its operands at that position alone, which the operator's labels say
(`label_trace.py`): elementwise operators, products along their rows and columns, folds over other
axes, layouts. At the inputs it is a movement term over them, which is to the search an input of
its own. A concatenation of computed parts is a selection among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from taso_mirage.errors import TasoMirageError, Unsupported
from taso_mirage.ir.dims import Shape
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import (
    ABSENT,
    LEAVES,
    Graph,
    Node,
    constant,
    is_constant,
    is_float,
    numpy_dtype,
    substitute,
    topological,
    variable,
)
from taso_mirage.mugraph.axis_classes import AxisLabels, Unifier
from taso_mirage.mugraph.collapsed import same_results
from taso_mirage.mugraph.congruence import proved_moved
from taso_mirage.mugraph.derivations.scalar_terms import below
from taso_mirage.mugraph.goal import Labelled, is_packed, refuse
from taso_mirage.mugraph.label_trace import LabelledValue, LabelsMeaning
from taso_mirage.mugraph.labels import label
from taso_mirage.mugraph.movement_terms import movements, moves_elements
from taso_mirage.mugraph.opaque_functions import is_scalar
from taso_mirage.mugraph.refusals import named_refusal
from taso_mirage.mugraph.roles import inlined
from taso_mirage.operators.interpret import interpret_term
from taso_mirage.operators.movements import index_map, is_index_map, is_moved
from taso_mirage.operators.ops import term, traits
from taso_mirage.operators.work import work

Positions = NDArray[np.int64]
ANY = -1
"""The old position of a new one whose element nothing reads."""
FILLS = "constant"
"""The mode of a pad with a number."""
COMPUTED = 2**30
"""The largest number of operations of a goal that is computed to be compared."""
NUMBERED = 2**22
"""The largest number of elements of an axis along which computed terms move, and of an operand
whose index map is compared at each of them."""
READ = 2**24
"""The largest number of elements of the inputs of a goal that is computed to be compared, or whose
operands are."""


@dataclass(frozen=True, slots=True)
class MovedGoal:
    """A `goal`, and the same computation, `core`, in which nothing moves: each of its inputs is the
    term of `operands` at the same place, an input of the goal or a movement of inputs."""

    goal: Graph
    core: Graph
    operands: tuple[Node, ...]
    spread: bool = False
    """Whether computed terms that are repeated are multiplied by ones."""

    @property
    def moves(self) -> bool:
        """Whether the goal has movements."""
        return self.core != self.goal

    def restored(self, graph: Graph) -> Graph:
        """A graph over the inputs of `core` as one over those of the goal."""
        if not self.moves:
            return graph
        return Graph(
            self.goal.inputs, substitute(graph.outputs, dict(zip(self.core.inputs, self.operands, strict=True)))
        )

    def is_equal(self) -> bool:
        """Whether the core over its operands is proved equal to the goal; for gathers, of which the
        prover knows too little, whether their numbers are equal at the sizes that they have. And
        whether the index map of each operand gives its elements."""
        other = self.restored(self.core)
        if not proved_moved(self.goal.outputs, other.outputs):
            few = sum(work(n, {}).flops for n in (*self.goal, *other) if n.args) <= COMPUTED
            if not few or _read([*self.goal.inputs]) > READ or not same_results(self.goal, other):
                return False
        compared = [x for x in self.operands if x.args and prod(x.shape) <= NUMBERED and _read([x]) <= READ]
        return all(is_index_map(x, index_map(x)) for x in compared)


def _read(nodes: Sequence[Node]) -> int:
    """The number of elements of the leaves of some terms."""
    return sum(prod(map(int, x.shape)) for x in topological(nodes) if not x.args)


@lru_cache(maxsize=1024)
def moved_goal(goal: Graph, spread: bool = False) -> MovedGoal:
    """The goal with its movements at the operands; `is_equal` tells whether it is the same goal.
    With `spread`, a computed term that is repeated is multiplied by ones, which have labels of
    their own: a result may be repeated.

    Raises Unsupported, which names the operator and its lack, where a movement does not
    reach the operands.
    """
    same = MovedGoal(goal, goal, goal.inputs)
    whole = movements(inlined(goal.outputs))
    if not any(moves_elements(n) or (spread and _repeats(n)) for n in topological(whole)):
        return same
    names = frozenset(n.attr("name") for n in topological(whole) if n.op in LEAVES)
    pushing = _Pushing(names, spread)
    outputs = tuple([pushing.built(output) for output in whole])
    if outputs == whole:
        return same
    read = [n for n in topological(outputs) if n.op in LEAVES]
    given = {**{x: x for x in goal.inputs}, **{leaf: moved for moved, leaf in pushing.operands.items()}}
    inputs = tuple([leaf for leaf in given if leaf in read])
    return MovedGoal(goal, Graph(inputs, outputs), tuple([given[leaf] for leaf in inputs]), spread)


def labelled_goal(goal: Graph) -> tuple[MovedGoal, Labelled]:
    """A goal of fixed sizes and the labels of its core, in which computed terms are spread over
    ones if a result needs it.

    Raises Unsupported, which names the operator, its shapes and what is missing.
    """
    try:
        return _labelled(goal)
    except Unsupported as error:
        raise named_refusal(goal, error, _labelled) from None


def _labelled(goal: Graph) -> tuple[MovedGoal, Labelled]:
    found = _spread_labels(goal)
    refuse(found[0].core)
    return found


def _spread_labels(goal: Graph) -> tuple[MovedGoal, Labelled]:
    moved = moved_goal(goal)
    try:
        return moved, label(moved.core)
    except Unsupported:
        spread = moved_goal(goal, spread=True)
        if spread.core == moved.core:
            raise
        return spread, label(spread.core)


def core_labels(goal: Graph) -> Labelled:
    """The labels of a goal of fixed sizes without its movements.

    Raises Unsupported, as `label` and `moved_goal` do.
    """
    return label(moved_goal(goal).core)


@dataclass(slots=True)
class _Pushing:
    """`operands`: the input of the core for each movement term; its name is none of `names`."""

    names: frozenset[str]
    spread: bool = False
    operands: dict[Node, Node] = field(default_factory=dict)
    built_: dict[Node, Node] = field(default_factory=dict)
    _pushed: dict[tuple[Node, int, bytes], Node] = field(default_factory=dict)

    def built(self, node: Node) -> Node:
        """A term in which no operator moves elements."""
        for each in topological([node], stop=self.built_):
            self.built_[each] = self._built(each)
        return self.built_[node]

    def _built(self, node: Node) -> Node:
        if not node.args or is_packed(node):
            return node
        args = [self.built_.get(a, a) for a in node.args]
        if self.spread and _repeats(node) and is_float(node.dtype):
            return self._spread(args[0], node.shape)
        if not moves_elements(node):
            return term(node.op, *args, **dict(node.attrs))
        if is_moved(node):
            return self._operand(node)
        match traits(node).lowering:
            case Lowering.SLICE:
                return self._sliced(node, args[0])
            case Lowering.CONCAT:
                return self._joined(args, node.attr("axis"))
            case Lowering.PAD:
                return self._padded(node, args[0])
        return self._gathered(node, args)

    def _operand(self, moved: Node) -> Node:
        """The input of the core for a movement of inputs."""
        if moved not in self.operands:
            names = sorted({n.attr("name") for n in topological([moved]) if n.op in LEAVES})
            said = f"{'_'.join(names) or 'mask'}_{len(self.operands)}"
            while said in self.names:
                said += "_"
            self.operands[moved] = variable(said, moved.tensor)
        return self.operands[moved]

    def _spread(self, x: Node, shape: Shape) -> Node:
        lead = len(shape) - x.tensor.rank
        more = tuple([n if i < lead or x.shape[i - lead] != n else 1 for i, n in enumerate(shape)])
        ones = term("expand", constant(np.ones([1] * len(shape), numpy_dtype(x.dtype))), shape=more)
        return term("mul", x, self._operand(ones))

    # ------------------------------------------------------------ movements of computed terms

    def _sliced(self, node: Node, x: Node) -> Node:
        attrs = ("axes", "starts", "ends", "steps")
        for axis, start, end, step in zip(*(node.attr(name) for name in attrs), strict=True):
            positions = np.arange(_size(x, axis))[slice(start, None if end < 0 else end, step)]
            x = self.pushed(x, axis, positions)
        return x

    def _joined(self, parts: Sequence[Node], axis: int) -> Node:
        """Parts side by side: the elements of each where it is, else those of the parts after
        it."""
        sizes = [_size(x, axis) for x in parts]
        starts = np.cumsum([0, *sizes])
        made: Node | None = None
        for x, start, size in reversed([*zip(parts, starts, sizes, strict=False)]):
            positions = np.full(starts[-1], ANY)
            positions[start : start + size] = np.arange(size)
            own = self.pushed(x, axis, positions)
            made = own if made is None else term("where", self._mask(positions, x.tensor.rank, axis), own, made)
        assert made is not None
        return made

    def _padded(self, node: Node, x: Node) -> Node:
        if node.attr("mode") != FILLS:
            raise Unsupported(f"a pad of mode {node.attr('mode')} of a computed term")
        rank, pads = x.tensor.rank, node.attr("pads")
        for axis in range(rank):
            low, high, n = pads[axis], pads[rank + axis], _size(x, axis)
            _size(node, axis)
            positions = np.arange(-low, n + high)
            positions[(positions < 0) | (positions >= n)] = ANY
            if low or high:
                moved = self.pushed(x, axis, positions)
                fill = constant(node.attr("value"), x.dtype)
                x = term("where", self._mask(positions, rank, axis), moved, fill)
        return x

    def _gathered(self, node: Node, args: Sequence[Node]) -> Node:
        x, indices = args
        if not is_constant(indices) or traits(node).lowering is Lowering.PICK:
            raise Unsupported(f"{node.op} {node.type} of computed rows ({x.op}) by indices of a run")
        axis, rows = node.attr("axis"), indices.attr("value").numpy().astype(np.int64)
        found = self.pushed(x, axis, np.where(rows < 0, rows + _size(x, axis), rows).reshape(-1))
        return found if found.shape == node.shape else term("reshape", found, shape=node.shape)

    def _mask(self, positions: Positions, rank: int, axis: int) -> Node:
        """Whether a position is that of a part: truth values along an axis, as an operand."""
        n, known = len(positions), np.flatnonzero(positions != ANY)
        start, end = int(known[0]), int(known[-1]) + 1
        shape = [1] * rank
        inside = term("expand", constant(np.ones(shape, bool)), shape=(*shape[:axis], end - start, *shape[axis + 1 :]))
        pads = [0] * (2 * rank)
        pads[axis], pads[rank + axis] = start, n - end
        return self._operand(term("pad", inside, pads=tuple(pads), value=0.0))

    # ------------------------------------------------------------ through operators

    def pushed(self, node: Node, axis: int, positions: Positions) -> Node:
        """The elements of a term at other positions of an axis.

        Raises Unsupported, which names the operator that the movement does not pass.
        """
        if len(positions) == _size(node, axis) and np.array_equal(positions, np.arange(len(positions))):
            return node
        key = node, axis, positions.tobytes()
        if key not in self._pushed:
            self._pushed[key] = self._moved(node, axis, positions)
        return self._pushed[key]

    def _moved(self, node: Node, axis: int, positions: Positions) -> Node:
        back = {leaf: moved for moved, leaf in self.operands.items()}
        if not node.args or is_packed(node):
            return self._operand(_movement(back.get(node, node), axis, positions))
        unifier = Unifier()
        meaning = LabelsMeaning(unifier)
        leaves = {a: meaning.leaf(a) for a in node.args if a is not ABSENT and not is_scalar(a)}
        values = {
            a: leaves[a] if a in leaves else meaning.constant(a.attr("value")) for a in node.args if a is not ABSENT
        }
        try:
            result: LabelledValue = interpret_term(
                node, meaning, [None if a is ABSENT else values[a] for a in node.args]
            )
        except TasoMirageError as error:
            raise Unsupported(f"{node.op}, of which a part is taken, has no labels: {error}") from None
        own = unifier.axis(result.axes[axis])
        if not own:  # its one element is at every position
            return term("expand", node, shape=(*node.shape[:axis], len(positions), *node.shape[axis + 1 :]))
        label, moved = own[0], _of_first(positions, [unifier.sizes[x] for x in own], node)
        if any(label in unifier.axis((*t.labels, *(x for pair in t.pairs for x in pair))) for t in below(result.term)):
            raise Unsupported(f"{node.op} {node.type} needs all elements along the axis of which a part is taken")
        args = [a if a not in leaves else self._argument(a, leaves[a], unifier, label, moved) for a in node.args]
        attrs = dict(node.attrs)
        if "shape" in attrs:
            attrs["shape"] = (*node.shape[:axis], len(positions), *node.shape[axis + 1 :])
        made = term(node.op, *args, **attrs)
        wanted = (*node.shape[:axis], len(positions), *node.shape[axis + 1 :])
        if made.shape != wanted:
            raise Unsupported(f"{node.op} {node.type} has sizes of its own")
        return made

    def _argument(self, arg: Node, value: LabelledValue, unifier: Unifier, label: int, moved: Positions) -> Node:
        """An operand at other positions of the axes that have a label."""
        for axis, labels in enumerate(unifier.axes(value.axes)):
            if label in labels:
                arg = self.pushed(arg, axis, _of_axis(labels, label, moved, unifier))
        return arg


def _repeats(node: Node) -> bool:
    return traits(node).lowering is Lowering.EXPAND


def _size(node: Node, axis: int) -> int:
    size = node.shape[axis]
    if not isinstance(size, int):
        raise Unsupported(f"the dim {size}: sizes must be fixed")
    if size > NUMBERED:
        raise Unsupported(f"a movement along {size} elements, of {node.op}: it lists at most {NUMBERED}")
    return size


def _of_first(positions: Positions, sizes: Sequence[int], node: Node) -> Positions:
    """The positions along the first of some labels, of which an axis consists."""
    inner = prod(sizes[1:])
    if inner == 1:
        return positions
    rows = positions.reshape(-1, inner) if len(positions) % inner == 0 else None
    if (
        rows is None
        or not all(np.array_equal(row - row[0], np.arange(inner)) for row in rows)
        or (rows[:, 0] % inner).any()
    ):
        raise Unsupported(f"{node.op} {node.type} merges dims, of which a part is taken that is no part of one")
    return rows[:, 0] // inner


def _of_axis(labels: AxisLabels, label: int, moved: Positions, unifier: Unifier) -> Positions:
    """The positions along an axis of several labels, of which one is moved."""
    if (size := unifier.size(labels)) > NUMBERED:
        raise Unsupported(f"a movement along {size} elements of merged dims: it lists at most {NUMBERED}")
    axes = [moved if x == label else np.arange(unifier.sizes[x]) for x in labels]
    found, valid = np.zeros((), np.int64), np.ones((), bool)
    for x, own in zip(labels, axes, strict=True):
        found = found[..., None] * unifier.sizes[x] + own
        valid = valid[..., None] & (own != ANY)
    return np.where(valid, found, ANY).reshape(-1)


def _movement(x: Node, axis: int, positions: Positions) -> Node:
    """The simplest term for a movement of a tensor along an axis: a slice, with a pad around it, or
    a gather."""
    known = np.flatnonzero(positions != ANY)
    if not len(known):
        raise Unsupported("a part of which nothing is read")
    first, last = int(known[0]), int(known[-1])
    inside = positions[first : last + 1]
    step = int(inside[1] - inside[0]) if len(inside) > 1 else 1
    if (inside != ANY).all() and step != 0 and (np.diff(inside) == step).all():
        end = int(inside[-1]) + (1 if step > 0 else -1)
        whole = step == 1 and len(inside) == x.shape[axis]
        made = x if whole else term("slice", x, axes=(axis,), starts=(int(inside[0]),), ends=(end,), steps=(step,))
    else:
        rows = constant(np.where(inside == ANY, 0, inside))
        made = term("gather", x, rows, axis=axis)
    rank = x.tensor.rank
    pads = [0] * (2 * rank)
    pads[axis], pads[rank + axis] = first, len(positions) - 1 - last
    return term("pad", made, pads=tuple(pads), value=0.0) if any(pads) else made
