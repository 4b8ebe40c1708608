"""A plan with tile sizes as a muGraph: one `kernel` term for each of its kernels, over the goal's
own inputs.

A class is a tile with one axis for each of its labels, in one order for all; the grid label of a
split reduction is no axis where every block has one part of it. Kernels store classes, and the
stabilisers of those that are relative to a maximum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

import numpy as np

from taso_mirage.ir.dims import Dim, Shape, dim_product
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, variable
from taso_mirage.mugraph.block_axes import (
    LOWEST,
    BlockAxes,
    BlockMaxima,
    Labels,
    Stored,
    axis_of,
    converted_float,
    transposed,
    with_shape,
)
from taso_mirage.mugraph.closure import Closure
from taso_mirage.mugraph.derivations.kind import DerivationEdge, Written
from taso_mirage.mugraph.derivations.reductions import DOT, SUM_KIND
from taso_mirage.mugraph.goal import BYTES, body_dtype, in_a_byte, is_packed, stored_leaf
from taso_mirage.mugraph.kernel_bodies import AFTER, PlannedKernel
from taso_mirage.mugraph.means import NONE, weights
from taso_mirage.mugraph.scaled_sums import scaled_after_sums
from taso_mirage.mugraph.stabilised import Stabilisation, Stabiliser
from taso_mirage.operators.ops import extents, term

TiledKernel = tuple[PlannedKernel, Mapping[str, Dim]]
"""A kernel, and the tile of each of its labels."""


def assembled(
    plan: Sequence[TiledKernel],
    closure: Closure,
    safe: Sequence[Stabilisation],
    sizes: Mapping[str, Dim],
    inputs: Sequence[Node],
    leaves: Mapping[str, Node],
    results: Sequence[Shape],
    narrow: bool = True,
) -> Graph | None:
    """The muGraph over `inputs`; `leaves` are the terms of the goal's views, with the sizes of
    their labels, `results` the shapes of its outputs. `narrow`: whether kernels hand over means in
    half precision. None where a value cannot be kept relative to its stabiliser in this plan, or a
    block's part of a tensor is in several pieces."""
    stored: dict[int, Stored] = {}
    kept: dict[int, Stored] = {}
    for (kernel, tiles), stable in zip(plan, safe, strict=True):
        made = _Kernel(BlockAxes(kernel, closure, tiles, sizes), stable, leaves, stored, kept, narrow)
        if not made.possible():
            return None
        made.write()
    given = zip([stored[t].node for t in closure.targets], results, strict=True)
    return Graph(
        tuple(inputs), tuple([node if node.shape == n else term("reshape", node, shape=n) for node, n in given])
    )


@dataclass
class _Operands:
    """The tensors that a kernel reads, each with the leaf that is its tile."""

    block: BlockAxes
    known: list[tuple[Stored, Node]] = field(default_factory=list)

    def leaf(self, name: str, tensor: Stored, tile: Shape) -> Node:
        """The leaf of a tile; two views of a tensor that are cut alike are one."""
        cut = *self.block.grid, self.block.loop
        cuts = [axis_of(tensor.labels, x) for x in cut]
        for other, leaf in self.known:
            own = [axis_of(other.labels, x) for x in cut]
            if other.node is tensor.node and tuple(leaf.shape) == tile and own == cuts:
                return leaf
        leaf = variable(name, Tensor(tensor.node.dtype, tile))
        self.known.append((tensor, leaf))
        return leaf


@dataclass
class _Kernel:
    """The body of one kernel while it is written: the `values` of its classes with their `axes`,
    those of `bare` classes, and the `factors` by which values of earlier kernels are multiplied.

    `given`: the terms of the goal's views; `stored` and `kept`: the classes and the maxima that
    kernels have stored so far. `plainly`: whether a bare value is being written.
    """

    block: BlockAxes
    safe: Stabilisation
    given: Mapping[str, Node]
    stored: dict[int, Stored]
    kept: dict[int, Stored]
    narrow: bool
    values: dict[int, Node] = field(default_factory=dict)
    bare: dict[int, Node] = field(default_factory=dict)
    axes: dict[int, list[str]] = field(default_factory=dict)
    factors: dict[int, Node] = field(default_factory=dict)
    plainly: bool = False

    def __post_init__(self) -> None:
        self.body, self.closure, self.goal = self.block.body, self.block.closure, self.block.closure.goal
        self.operands = _Operands(self.block)
        self.maxima = BlockMaxima(self.block, self.safe.stabilisers, self.constant(LOWEST))
        self.edges = dict(self.body.chosen)
        self.uses = Counter([*self.body.targets, *(a for e in self.edges.values() for a in e.args)])
        self.joint = self.body.joint()

    @property
    def dtype(self) -> str:
        """The dtype of all floats of the body."""
        return body_dtype(self.goal)

    # ------------------------------------------------------------ operands

    def possible(self) -> bool:
        """Whether every stabiliser is available where it is needed, every result has the labels of
        the grid, and tiles are boxes."""
        stabilisers = self.safe.stabilisers
        whole = all(d.denominator == 1 for degrees in self.safe.degrees.values() for d in degrees.values())
        early = all(self.block.loop not in stabilisers[k].over for k in stabilisers if k in self.kept)
        early = early and all(d > 0 for leaf in self.body.leaves for d in self.safe.degrees[leaf].values())
        tensors = [self._given(view).labels for view in self.body.reads if view in self.given]
        tensors += [self._result_labels(t) for t in self.body.targets]
        kept = [stabilisers[k] for k in self._relative()]
        shared = all(
            g in each.labels or g not in self.closure.classes[each.of] for each in kept for g in self.block.grid
        )
        return whole and early and shared and all(map(self.block.contiguous, tensors))

    def write(self) -> None:
        """Make the kernel's term, and note the values that it stores."""
        for leaf in self.body.leaves:
            self.values[leaf], self.axes[leaf] = self._tile(f"t{leaf}", self.stored[leaf])
        self.factors = {c: x for c in self.body.leaves if (x := self._divided(c)) is not None}
        known = self.safe.stabilisers.keys() & self.kept.keys()
        for key in sorted(known):
            self._combine(key, self.safe.stabilisers[key])
        for leaf, factor in self.factors.items():
            self._scale(leaf, factor)
        for made, edge in self.body.chosen:
            self._compute(made, edge)
            if made in self.safe.stabilisers and made not in known:
                self.maxima.add(made, self.ordered(made))
        self.values |= self.bare
        keys = self._relative()
        results = [(self._result(t), self._result_labels(t)) for t in self.body.targets]
        results += [(self.maxima.final[k], self.block.stored(self.safe.stabilisers[k].labels)) for k in keys]
        outputs = [self.block.laid_out(value, labels) for value, labels in results]
        weights = self._weights()
        outputs = [term("narrow", x) if t in weights else x for t, x in zip_longest(self.body.targets, outputs)]
        tensors = self._term(outputs, [x for _, x in results])
        for target, tensor in zip(self.body.targets, tensors, strict=False):
            self.stored[target] = replace(tensor, weight=weights.get(target))
        for key, tensor in zip(keys, tensors[len(self.body.targets) :], strict=True):
            self.kept[key] = tensor

    def _relative(self) -> list[int]:
        """The stabilisers that results are stored relative to."""
        stored = [t for t in self.body.targets if t not in self.safe.bare]
        return list(dict.fromkeys(k for t in stored for k in self.safe.degrees[t]))

    def _compute(self, made: int, edge: DerivationEdge) -> None:
        """The value of a class, relative to maxima or bare or both, and its axes."""
        if made in self.safe.stable:
            own = {c: self.values[c] for c in edge.args if self._meets_joint(made, edge, c)}
            self.values |= {c: self._joint_value(c) for c in own}
            self.values[made], self.axes[made] = edge.kind.write(made, edge, self)
            self.values |= own
        if made in self.safe.bare:
            self.plainly, stable = True, dict(self.values)
            self.values |= self.bare
            self.bare[made], self.axes[made] = edge.kind.write(made, edge, self)
            self.plainly, self.values = False, {made: self.bare[made]} | stable

    def _meets_joint(self, made: int, edge: DerivationEdge, c: int) -> bool:
        """Whether a value relative to the maximum of a block meets one relative to its
        cluster's."""
        combines = edge.label is not None and edge.label == self.block.cluster
        return made in self.joint and c not in self.joint and not combines and bool(self.safe.degrees[c])

    def _joint_value(self, c: int) -> Node:
        """A value of a block relative to the maximum of its cluster."""
        value, labels = self.ordered(c), self.closure.classes[c]
        self.axes[c] = self.block.of(self.axes[c])
        for key, degree in self.safe.degrees[c].items():
            lag = term("sub", self.maxima.of(key, labels, known=True), self.maxima.of(key, labels, joint=True))
            for _ in range(abs(int(degree))):
                value = term("mul" if degree > 0 else "div", value, term("exp", lag))
        return value

    def _term(self, outputs: Sequence[Node], labels: Sequence[Labels]) -> list[Stored]:
        operands, tiles = [s for s, _ in self.operands.known], [leaf for _, leaf in self.operands.known]
        grid: list[str | None] = [*self.block.grid] or [None]
        body = Graph(tuple(tiles), tuple(outputs))
        made = term(
            "kernel",
            *[s.node for s in operands],
            body=scaled_after_sums(body) if self.narrow and self.block.loop is None else body,
            grid=tuple(self.block.grid.values()) or (1,),
            loop=self.block.count(self.block.loop) if self.block.loop is not None else 1,
            imap=tuple(tuple(axis_of(s.labels, g) for g in grid) for s in operands),
            fmap=tuple(axis_of(s.labels, self.block.loop) for s in operands),
            omap=tuple(tuple(axis_of(x, g) for g in grid) for x in labels),
            cluster=1 if self.block.cluster is None else self.block.grid[self.block.cluster],
        )
        found = [made] if len(outputs) == 1 else [term("item", made, index=i) for i in range(len(outputs))]
        return [Stored(node, x) for node, x in zip(found, labels, strict=True)]

    # ------------------------------------------------------------ operands and results

    def _given(self, name: str) -> Stored:
        return Stored(self.given[name], self.closure.goal.inputs[name])

    def _tile(self, name: str, tensor: Stored) -> Written:
        """A tile of an operand with the labels of its axes, in their own order."""
        tile = tuple(dim_product(self.block.size(x) for x in axis) for axis in tensor.labels)
        node, packed = tensor.node, in_a_byte(tensor.node)
        tile = (*tile[:-1], tile[-1] // packed) if packed > 1 else tile
        tensor = replace(tensor, node=stored_leaf(node)) if is_packed(node) else tensor
        value = leaf = self.operands.leaf(name, tensor, tile)
        if is_packed(node):
            value = term(node.op, leaf, **dict(node.attrs))
        if node.dtype in BYTES:
            value = term("cast", value, to=self.dtype)
        axes = [x for axis in tensor.labels for x in axis if x not in self.block.hidden]
        return self.converted(with_shape(value, [self.block.size(x) for x in axes])), axes

    def _result(self, target: int) -> Node:
        """A result as the goal has it; a value that another kernel reads has the body's dtype."""
        value, closure = self.ordered(target), self.closure
        if (weight := self._weights().get(target)) is not None:
            return term("div", value, self._weight(weight, target))
        if target not in closure.targets:
            return value
        return converted_float(value, self.goal.graph.outputs[closure.targets.index(target)].dtype)

    def _weights(self) -> dict[int, int]:
        return weights(self.closure, self.body.targets, self.safe, self.dtype) if self.narrow else {}

    def _weight(self, weight: int, of: int) -> Node:
        """The divisor of a weighted sum for its mean, with the axes of the sum."""
        total = term("add", self.ordered(weight), self.constant(NONE))
        return self.block.aligned(total, self.closure.classes[weight], self.closure.classes[of])

    def _divided(self, leaf: int) -> Node | None:
        """The divisor by which an earlier kernel divided a leaf, with the axes of the leaf."""
        weight = self.stored[leaf].weight
        if weight is None:
            return None
        if weight not in self.values:
            self.values[weight], self.axes[weight] = self._tile(f"t{weight}", self.stored[weight])
        return self._weight(weight, leaf)

    def _scale(self, leaf: int, factor: Node) -> None:
        self.values[leaf] = term("mul", self.ordered(leaf), factor)
        self.axes[leaf] = self.block.of(self.axes[leaf])

    def _result_labels(self, target: int) -> Labels:
        if target in self.closure.targets:
            return self.closure.goal.outputs[self.closure.targets.index(target)]
        return self.block.stored(self.closure.classes[target])

    # ------------------------------------------------------------ used by kinds to write

    def read(self, view: str) -> Written:
        return self._tile(view, self._given(view))

    def constant(self, value: float) -> Node:
        """A number without conversion to the goal's dtype: a conversion within a body does not
        round, and half precision does not represent 1e-5 and 100000."""
        return self.converted(constant(np.asarray(value, np.float32)))

    def integer(self, value: int) -> Node:
        return constant(np.asarray(value, np.int32))

    def converted(self, value: Node) -> Node:
        return converted_float(value, self.dtype)

    def count(self, label: str) -> Node:
        size = dim_product(self.block.sizes[part] for part in self.goal.whole(label))
        if isinstance(size, int) or not self.narrow:  # only kernels on a GPU have sizes as numbers
            return self.constant(int(size))
        return term("cast", extents((size,), scalar=True), to=self.dtype)

    def taken(self, c: int) -> Written:
        return self.values[c], self.axes[c]

    def ordered(self, c: int) -> Node:
        return transposed(self.values[c], self.axes[c], self.block.of(self.axes[c]))

    def aligned(self, c: int, made: int) -> Node:
        return self.block.aligned(self.ordered(c), self.closure.classes[c], self.closure.classes[made])

    def written(self, made: int, value: Node) -> Written:
        return value, self.block.of(self.closure.classes[made])

    def axis(self, c: int, label: str) -> int:
        return self.block.of(self.closure.classes[c]).index(label)

    def folded(self, c: int, label: str, operator: str) -> Node:
        value = self.ordered(c)
        return value if label == self.block.cluster else term(operator, value, axes=(self.axis(c, label),), keepdims=0)

    def combining(self, label: str) -> int | None:
        return int(self.block.grid[label]) if label == self.block.cluster else None

    def contracted(self, made: int, args: Sequence[int]) -> Node:
        a, b = args
        letters = {label: chr(ord("a") + i) for i, label in enumerate(self.block.order)}
        axes = self.axes[a], self.axes[b], self.block.of(self.closure.classes[made])
        spelled = ["".join(letters[x] for x in each) for each in axes]
        return term("einsum", self.values[a], self.values[b], equation=f"{spelled[0]},{spelled[1]}->{spelled[2]}")

    def summed(self, made: int, c: int) -> Node:
        while c in self.edges and self.uses[c] == 1 and not self._waits(c, self.edges[c]):
            if self.edges[c].kind is DOT:
                return self.contracted(made, self.edges[c].args)
            if self.edges[c].kind is not SUM_KIND:
                break
            (c,) = self.edges[c].args
        own, left = self.block.of(self.closure.classes[c]), self.block.of(self.closure.classes[made])
        axes = tuple(i for i, label in enumerate(own) if label not in left)
        return term("reduce_sum", self.ordered(c), axes=axes, keepdims=0)

    def _waits(self, made: int, edge: DerivationEdge) -> bool:
        """Whether a fold ends with the loop, or where the blocks of a cluster combine it."""
        return self.looped(made, edge) or (self.block.cluster is not None and edge.label == self.block.cluster)

    def looped(self, made: int, edge: DerivationEdge) -> bool:
        return self.block.phases.get(made) == AFTER and edge.label == self.block.loop

    def accumulated(self, made: int, edge: DerivationEdge, value: Node, over: str) -> Node:
        """Relative to a maximum that grows, a sum is rescaled, and so are those of blocks with
        maxima of their own."""
        if edge.label is not None and edge.label == self.block.cluster:
            return self._combined(made, edge, value, over)
        if not self.looped(made, edge):
            return value
        for key, degree in () if self.plainly else self.safe.degrees[made].items():
            if self.block.loop in self.safe.stabilisers[key].over:
                m = self.maxima.of(key, self.closure.classes[made])
                return term("accumulate", value, m, over="rescaled", degree=int(degree))
        return term("accumulate", value, over=over)

    def _combined(self, made: int, edge: DerivationEdge, value: Node, over: str) -> Node:
        alike = self.plainly or not self.joint.isdisjoint(edge.args)
        for key, degree in () if alike else self.safe.degrees[made].items():
            m = self.maxima.of(key, self.closure.classes[made], known=True)
            return term("combine", value, m, over="rescaled", degree=int(degree))
        return term("combine", value, over=over)

    def lowered(self, made: int, c: int) -> Node | None:
        if self.plainly or made not in self.safe.keys:
            return None
        known, key = self.block.phases.get(made) == AFTER, self.safe.keys[made]
        m = self.maxima.of(key, self.closure.classes[c], known, made in self.joint and key not in self.joint)
        return term("sub", self.ordered(c), m)

    # ------------------------------------------------------------ stabilisers

    def _combine(self, key: int, stabiliser: Stabiliser) -> None:
        """Combine the maxima that the blocks of an earlier kernel stored: its values become
        relative to the largest."""
        labels = {x for axis in self.kept[key].labels for x in axis}
        own, order = self._tile(f"m{key}", self.kept[key])
        own = transposed(own, order, self.block.of(labels))
        largest = self.maxima.combine(key, own, labels)
        if largest is own:  # all that this kernel reads of it is relative to this maximum
            return
        shift = term("exp", term("sub", own, self.block.aligned(largest, stabiliser.labels, labels)))
        for leaf in self.body.leaves:
            for _ in range(int(self.safe.degrees[leaf].get(key, 0))):
                factor = self.block.aligned(shift, labels, self.closure.classes[leaf])
                before = self.factors.pop(leaf, None)
                self._scale(leaf, factor if before is None else term("mul", before, factor))
