"""A plan with tile sizes as a muGraph: one `kernel` term for each of its kernels, over the goal's
own inputs.

A class is a tile with one axis for each of its labels, in one order for all; the grid label of a
split reduction is no axis where every block has one part of it. Kernels store classes, and the
stabilisers of those that are relative to a maximum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

import numpy as np

from taso_mirage.ir.dims import Dim, Shape, dim_product
from taso_mirage.ir.mugraph import part_of, tile_count
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, variable
from taso_mirage.mugraph.closure import Closure
from taso_mirage.mugraph.derivations.kind import DerivationEdge, Written
from taso_mirage.mugraph.derivations.reductions import DOT, SUM_KIND
from taso_mirage.mugraph.goal import BYTES, body_dtype, in_a_byte, is_packed, stored_leaf
from taso_mirage.mugraph.means import NONE, weights
from taso_mirage.mugraph.stabilised import Stabilisation, Stabiliser
from taso_mirage.mugraph.stored import LOWEST, Labels, Stored, axes_order, converted_float
from taso_mirage.mugraph.structures import AFTER, PlannedKernel, class_phases
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
    maxima: dict[int, Stored] = {}
    for (kernel, tiles), stable in zip(plan, safe, strict=True):
        made = _Kernel(kernel, tiles, closure, stable, sizes, leaves, stored, maxima, narrow)
        if not made.possible():
            return None
        made.write()
    given = zip([stored[t].node for t in closure.targets], results, strict=True)
    return Graph(
        tuple(inputs), tuple([node if node.shape == n else term("reshape", node, shape=n) for node, n in given])
    )


@dataclass
class _Kernel:
    """The body of one kernel while it is written.

    `hidden` labels have one element in a block, and no axis.
    """

    kernel: PlannedKernel
    tiles: Mapping[str, Dim]
    closure: Closure
    safe: Stabilisation
    sizes: Mapping[str, Dim]
    given: Mapping[str, Node]
    stored: dict[int, Stored]
    maxima: dict[int, Stored]
    narrow: bool
    values: dict[int, Node] = field(default_factory=dict)
    bare: dict[int, Node] = field(default_factory=dict)
    axes: dict[int, list[str]] = field(default_factory=dict)
    operands: list[tuple[Stored, Node]] = field(default_factory=list)
    edges: dict[int, DerivationEdge] = field(default_factory=dict)
    uses: Counter[int] = field(default_factory=Counter)
    largest: dict[int, Node] = field(default_factory=dict)
    final: dict[int, Node] = field(default_factory=dict)
    factors: dict[int, Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.goal = self.closure.goal
        self.body, self.loop, self.plainly = self.kernel.body, self.kernel.loop, False
        self.order, self.edges = axes_order(self.closure), dict(self.body.chosen)
        self.uses = Counter([*self.body.targets, *(a for e in self.edges.values() for a in e.args)])
        self.stages = (class_phases(self.body, self.closure, self.loop) if self.loop is not None else None) or {}
        reads = {label for c, e in self.body.chosen if e.kind.reads is not None for label in self.closure.classes[c]}
        self.hidden = {outer for outer, _ in self.goal.split.values() if outer in self.body.grid and outer in reads}
        counts = {x: self._count(x) for x in self.body.grid if x in self.tiles}
        self.cluster, self.joint = self.body.cluster, self.body.joint()
        order = sorted(self.order, key=lambda label: label == self.cluster)  # the last one is that of a cluster
        self.grid = {label: counts[label] for label in order if counts.get(label, 1) != 1}
        self.dtype = body_dtype(self.goal)

    # ------------------------------------------------------------ operands

    def possible(self) -> bool:
        """Whether every stabiliser is available where it is needed, every result has the labels of
        the grid, and tiles are boxes."""
        stabilisers = self.safe.stabilisers
        whole = all(d.denominator == 1 for degrees in self.safe.degrees.values() for d in degrees.values())
        early = all(self.loop not in stabilisers[k].over for k in stabilisers if k in self.maxima)
        early = early and all(d > 0 for leaf in self.body.leaves for d in self.safe.degrees[leaf].values())
        tensors = [self._given(view).labels for view in self.body.reads if view in self.given]
        tensors += [self._result_labels(t) for t in self.body.targets]
        kept = [stabilisers[k] for k in self._relative()]
        shared = all(g in each.labels or g not in self.closure.classes[each.of] for each in kept for g in self.grid)
        return whole and early and shared and all(map(self._contiguous, tensors))

    def write(self) -> None:
        """Make the kernel's term, and note the values that it stores."""
        for leaf in self.body.leaves:
            self.values[leaf], self.axes[leaf] = self._tile(f"t{leaf}", self.stored[leaf])
        self.factors = {c: x for c in self.body.leaves if (x := self._divided(c)) is not None}
        known = self.safe.stabilisers.keys() & self.maxima.keys()
        for key in sorted(known):
            self._combine(key, self.safe.stabilisers[key])
        for leaf, factor in self.factors.items():
            self._scale(leaf, factor)
        for made, edge in self.body.chosen:
            self._compute(made, edge)
            if made in self.safe.stabilisers and made not in known:
                self._stabilise(made, self.safe.stabilisers[made])
        self.values |= self.bare
        keys = self._relative()
        results = [(self._result(t), self._result_labels(t)) for t in self.body.targets]
        results += [(self.final[k], self._stored_labels(self.safe.stabilisers[k].labels)) for k in keys]
        outputs = [self._laid_out(value, labels) for value, labels in results]
        weights = self._weights()
        outputs = [term("narrow", x) if t in weights else x for t, x in zip_longest(self.body.targets, outputs)]
        tensors = self._term(outputs, [x for _, x in results])
        for target, tensor in zip(self.body.targets, tensors, strict=False):
            self.stored[target] = replace(tensor, weight=weights.get(target))
        for key, tensor in zip(keys, tensors[len(self.body.targets) :], strict=True):
            self.maxima[key] = tensor

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
        combines = edge.label is not None and edge.label == self.cluster
        return made in self.joint and c not in self.joint and not combines and bool(self.safe.degrees[c])

    def _joint_value(self, c: int) -> Node:
        """A value of a block relative to the maximum of its cluster."""
        value, labels = self.ordered(c), self.closure.classes[c]
        self.axes[c] = self._axes(self.axes[c])
        for key, degree in self.safe.degrees[c].items():
            lag = term("sub", self._stabiliser(key, labels, known=True), self._stabiliser(key, labels, joint=True))
            for _ in range(abs(int(degree))):
                value = term("mul" if degree > 0 else "div", value, term("exp", lag))
        return value

    def _term(self, outputs: Sequence[Node], labels: Sequence[Labels]) -> list[Stored]:
        operands, tiles = [s for s, _ in self.operands], [leaf for _, leaf in self.operands]
        grid: list[str | None] = [*self.grid] or [None]
        made = term(
            "kernel",
            *[s.node for s in operands],
            body=Graph(tuple(tiles), tuple(outputs)),
            grid=tuple(self.grid.values()) or (1,),
            loop=self._count(self.loop) if self.loop is not None else 1,
            imap=tuple(tuple(self._axis(s.labels, g) for g in grid) for s in operands),
            fmap=tuple(self._axis(s.labels, self.loop) for s in operands),
            omap=tuple(tuple(self._axis(x, g) for g in grid) for x in labels),
            cluster=1 if self.cluster is None else self.grid[self.cluster],
        )
        found = [made] if len(outputs) == 1 else [term("item", made, index=i) for i in range(len(outputs))]
        return [Stored(node, x) for node, x in zip(found, labels, strict=True)]

    def _axis(self, labels: Labels, label: str | None) -> int:
        """The axis that a label cuts, -1 if none."""
        return next((i for i, axis in enumerate(labels) if label in axis), -1)

    def _contiguous(self, labels: Labels) -> bool:
        """Whether a block's part of every axis is in one piece: dims outside of a label that is cut
        are cut to 1; and a label whose tiles overlap has axes of its own."""
        cut = {*self.grid, self.loop}
        overlapping = {x for x in cut if x is not None and self._uneven(x)}
        return all(
            self._size(outer) == 1 for axis in labels for i, x in enumerate(axis) if x in cut for outer in axis[:i]
        ) and all(len(axis) == 1 or overlapping.isdisjoint(axis) for axis in labels)

    # ------------------------------------------------------------ operands and results

    def _axes(self, labels: Iterable[str]) -> list[str]:
        have = set(labels) - self.hidden
        return [label for label in self.order if label in have]

    def _size(self, label: str) -> Dim:
        return self.tiles.get(label, self.sizes[label])

    def _count(self, label: str) -> Dim:
        """How many tiles it has."""
        size, tile = self.sizes[label], self.tiles[label]
        return -(-size // tile) if isinstance(size, int) else tile_count(size, tile)

    def _uneven(self, label: str) -> bool:
        """Whether not all of its tiles are next to each other and have one size."""
        size, tile = self.sizes[label], self._size(label)
        whole = isinstance(size, int) and isinstance(tile, int) and size % tile != 0
        return whole or part_of(tile) is not None

    def _given(self, name: str) -> Stored:
        return Stored(self.given[name], self.closure.goal.inputs[name])

    def _tile(self, name: str, tensor: Stored) -> Written:
        """A tile of an operand with the labels of its axes, in their own order."""
        tile = tuple(dim_product(self._size(x) for x in axis) for axis in tensor.labels)
        node, packed = tensor.node, in_a_byte(tensor.node)
        tile = (*tile[:-1], tile[-1] // packed) if packed > 1 else tile
        tensor = replace(tensor, node=stored_leaf(node)) if is_packed(node) else tensor
        value = leaf = self._operand(name, tensor, tile)
        if is_packed(node):
            value = term(node.op, leaf, **dict(node.attrs))
        if node.dtype in BYTES:
            value = term("cast", value, to=self.dtype)
        axes = [x for axis in tensor.labels for x in axis if x not in self.hidden]
        return self.converted(self._reshaped(value, [self._size(x) for x in axes])), axes

    def _operand(self, name: str, tensor: Stored, tile: Shape) -> Node:
        """The leaf of a tile; two views of a tensor that are cut alike are one."""
        cuts = [self._axis(tensor.labels, x) for x in (*self.grid, self.loop)]
        for known, leaf in self.operands:
            own = [self._axis(known.labels, x) for x in (*self.grid, self.loop)]
            if known.node is tensor.node and tuple(leaf.shape) == tile and own == cuts:
                return leaf
        leaf = variable(name, Tensor(tensor.node.dtype, tile))
        self.operands.append((tensor, leaf))
        return leaf

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
        return self._aligned(total, self.closure.classes[weight], self.closure.classes[of])

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
        self.axes[leaf] = self._axes(self.axes[leaf])

    def _transposed(self, value: Node, axes: Sequence[str], wanted: Sequence[str]) -> Node:
        perm = tuple(axes.index(x) for x in wanted)
        return value if perm == tuple(range(len(perm))) else term("transpose", value, perm=perm)

    def _result_labels(self, target: int) -> Labels:
        if target in self.closure.targets:
            return self.closure.goal.outputs[self.closure.targets.index(target)]
        return self._stored_labels(self.closure.classes[target])

    def _stored_labels(self, labels: Iterable[str]) -> Labels:
        have = set(labels)
        return tuple((label,) for label in self.order if label in have)

    def _laid_out(self, value: Node, labels: Labels) -> Node:
        """A result's tile with the axes that its tensor has."""
        axes = [x for axis in labels for x in axis if x not in self.hidden]
        value = self._transposed(value, self._axes(axes), axes)
        return self._reshaped(value, [dim_product(self._size(x) for x in axis) for axis in labels])

    def _reshaped(self, value: Node, shape: Sequence[Dim]) -> Node:
        return value if tuple(value.shape) == tuple(shape) else term("reshape", value, shape=tuple(shape))

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
        size = dim_product(self.sizes[part] for part in self.goal.whole(label))
        if isinstance(size, int) or not self.narrow:  # only kernels on a GPU have sizes as numbers
            return self.constant(int(size))
        return term("cast", extents((size,), scalar=True), to=self.dtype)

    def taken(self, c: int) -> Written:
        return self.values[c], self.axes[c]

    def ordered(self, c: int) -> Node:
        return self._transposed(self.values[c], self.axes[c], self._axes(self.axes[c]))

    def aligned(self, c: int, made: int) -> Node:
        return self._aligned(self.ordered(c), self.closure.classes[c], self.closure.classes[made])

    def written(self, made: int, value: Node) -> Written:
        return value, self._axes(self.closure.classes[made])

    def axis(self, c: int, label: str) -> int:
        return self._axes(self.closure.classes[c]).index(label)

    def folded(self, c: int, label: str, operator: str) -> Node:
        value = self.ordered(c)
        return value if label == self.cluster else term(operator, value, axes=(self.axis(c, label),), keepdims=0)

    def combining(self, label: str) -> int | None:
        return int(self.grid[label]) if label == self.cluster else None

    def contracted(self, made: int, args: Sequence[int]) -> Node:
        a, b = args
        letters = {label: chr(ord("a") + i) for i, label in enumerate(self.order)}
        axes = self.axes[a], self.axes[b], self._axes(self.closure.classes[made])
        spelled = ["".join(letters[x] for x in each) for each in axes]
        return term("einsum", self.values[a], self.values[b], equation=f"{spelled[0]},{spelled[1]}->{spelled[2]}")

    def summed(self, made: int, c: int) -> Node:
        while c in self.edges and self.uses[c] == 1 and not self._waits(c, self.edges[c]):
            if self.edges[c].kind is DOT:
                return self.contracted(made, self.edges[c].args)
            if self.edges[c].kind is not SUM_KIND:
                break
            (c,) = self.edges[c].args
        own, left = self._axes(self.closure.classes[c]), self._axes(self.closure.classes[made])
        axes = tuple(i for i, label in enumerate(own) if label not in left)
        return term("reduce_sum", self.ordered(c), axes=axes, keepdims=0)

    def _waits(self, made: int, edge: DerivationEdge) -> bool:
        """Whether a fold ends with the loop, or where the blocks of a cluster combine it."""
        return self.looped(made, edge) or (self.cluster is not None and edge.label == self.cluster)

    def looped(self, made: int, edge: DerivationEdge) -> bool:
        return self.stages.get(made) == AFTER and edge.label == self.loop

    def accumulated(self, made: int, edge: DerivationEdge, value: Node, over: str) -> Node:
        """Relative to a maximum that grows, a sum is rescaled, and so are those of blocks with
        maxima of their own."""
        if edge.label is not None and edge.label == self.cluster:
            return self._combined(made, edge, value, over)
        if not self.looped(made, edge):
            return value
        for key, degree in () if self.plainly else self.safe.degrees[made].items():
            if self.loop in self.safe.stabilisers[key].over:
                m = self._stabiliser(key, self.closure.classes[made])
                return term("accumulate", value, m, over="rescaled", degree=int(degree))
        return term("accumulate", value, over=over)

    def _combined(self, made: int, edge: DerivationEdge, value: Node, over: str) -> Node:
        alike = self.plainly or not self.joint.isdisjoint(edge.args)
        for key, degree in () if alike else self.safe.degrees[made].items():
            m = self._stabiliser(key, self.closure.classes[made], known=True)
            return term("combine", value, m, over="rescaled", degree=int(degree))
        return term("combine", value, over=over)

    def lowered(self, made: int, c: int) -> Node | None:
        if self.plainly or made not in self.safe.keys:
            return None
        known, key = self.stages.get(made) == AFTER, self.safe.keys[made]
        m = self._stabiliser(key, self.closure.classes[c], known, made in self.joint and key not in self.joint)
        return term("sub", self.ordered(c), m)

    def _aligned(self, value: Node, labels: Iterable[str], to: Iterable[str]) -> Node:
        """A value with axes of size 1 where it lacks a label of another."""
        have, wanted = self._axes(labels), self._axes(to)
        return self._reshaped(value, [self._size(x) if x in have else 1 for x in wanted]) if have else value

    # ------------------------------------------------------------ stabilisers

    def _stabilise(self, key: int, stabiliser: Stabiliser) -> None:
        """The maximum of a class that is exponentiated: of this iteration and those before, and of
        all."""
        axes = tuple(i for i, x in enumerate(self._axes(self.closure.classes[key])) if x in stabiliser.over)
        largest = term("reduce_max", self.ordered(key), axes=axes, keepdims=0) if axes else self.ordered(key)
        self.largest[key] = term("max", largest, self.constant(LOWEST))  # of a tile that is masked whole it is -inf
        looped = self.loop in stabiliser.over
        self.final[key] = term("accumulate", self.largest[key], over="max") if looped else self.largest[key]

    def _stabiliser(self, key: int, labels: Iterable[str], known: bool = False, joint: bool = False) -> Node:
        """The maximum so far, or, where it is `known`, of all iterations, or a `joint` one, of all
        blocks of a cluster, with the axes of some labels."""
        stabiliser = self.safe.stabilisers[key]
        own = (self.final if known or joint else self.largest)[key]
        m = self._aligned(term("combine", own, over="max") if joint else own, stabiliser.labels, labels)
        return term("running_max", m) if self.loop in stabiliser.over and not (known or joint) else m

    def _combine(self, key: int, stabiliser: Stabiliser) -> None:
        """Combine the maxima that the blocks of an earlier kernel stored: its values become
        relative to the largest."""
        labels = {x for axis in self.maxima[key].labels for x in axis}
        own, order = self._tile(f"m{key}", self.maxima[key])
        own = self._transposed(own, order, self._axes(labels))
        axes = tuple(i for i, x in enumerate(self._axes(labels)) if x in stabiliser.over)
        largest = term("reduce_max", own, axes=axes, keepdims=0) if axes else own
        self.largest[key] = self.final[key] = largest
        if not axes:  # all that this kernel reads of it is relative to this maximum
            return
        shift = term("exp", term("sub", own, self._aligned(largest, stabiliser.labels, labels)))
        for leaf in self.body.leaves:
            for _ in range(int(self.safe.degrees[leaf].get(key, 0))):
                factor = self._aligned(shift, labels, self.closure.classes[leaf])
                before = self.factors.pop(leaf, None)
                self._scale(leaf, factor if before is None else term("mul", before, factor))
