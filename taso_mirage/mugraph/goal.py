"""A goal over named axes: the result of `labels`, and the subject of the search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias

from taso_mirage.errors import Unsupported
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import LEAVES, Graph, Node, is_computed, topological
from taso_mirage.meanings.base import Scalar
from taso_mirage.mugraph.abstract import Algebra
from taso_mirage.mugraph.atoms import AbstractExpression
from taso_mirage.operators.ops import traits
from taso_mirage.rewriting.derived_traits import multiplies

LabelNames: TypeAlias = tuple[tuple[str, ...], ...]
"""For each axis the labels that make it up, outermost first: one as a rule, none for an axis of
size 1."""


@dataclass(frozen=True, slots=True)
class LabelledTerm:
    """A term of the goal (after operators were replaced by their definitions), its axes, and its
    sketch."""

    node: Node
    axes: LabelNames
    sketch: AbstractExpression


@dataclass(frozen=True, slots=True)
class Labelled:
    """A goal over named axes.

    `inputs`: the axes of every view; a leaf that is used under two sets of labels has two views,
    called x and x'. `leaves`: the leaf of every view; of a leaf with several numbers in a byte the
    term that has them apart. `constants`: the value of each scalar by its
    name. `functions`: an example term of each opaque function by its name. `split`: the grid part
    and the inner part of a label; `sizes` has the whole label. `reduced`: labels that are summed
    over. Integers, of int32, are whole numbers as constants, and terms `whole` as leaves.
    """

    graph: Graph
    inputs: Mapping[str, LabelNames]
    leaves: Mapping[str, Node]
    outputs: tuple[LabelNames, ...]
    sizes: Mapping[str, int]
    constants: Mapping[str, float]
    functions: Mapping[str, Node]
    split: Mapping[str, tuple[str, str]]
    reduced: frozenset[str]
    algebra: Algebra = field(repr=False)
    views: Mapping[str, AbstractExpression] = field(repr=False)
    """The sketch of every view and constant by its name."""
    sketches: tuple[AbstractExpression, ...] = field(repr=False)
    known: tuple[LabelledTerm, ...] = field(repr=False)
    scalars: frozenset[Scalar] = field(repr=False)
    """The arithmetic, element by element, that the goal is written with."""
    outer: bool = False
    """Whether the operation is used with two operands of which neither has all labels of the
    other."""
    scales: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """In a goal of several products the leaves that are multiplied with floats of 8 bits, which are
    summed, each with the names of those."""
    runs: tuple[tuple[str, ...], ...] = ()
    """Labels that always lie side by side (`collapsed.py`)."""
    results: tuple[LabelNames, ...] = ()
    """The axes of every output as the goal has it: of labels that are joined the others have
    none."""

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels of the inputs, in order of appearance."""
        return tuple(dict.fromkeys(label for axes in self.inputs.values() for axis in axes for label in axis))

    @property
    def integers(self) -> bool:
        """Whether there are sums of integers, which blocks of a cluster do not exchange."""
        return any(traits(leaf).lowering is Lowering.WHOLE for leaf in self.leaves.values())

    @property
    def scaled(self) -> int:
        """The number of weights that are one value with their scales, as a part of reading them."""
        return sum(traits(each.node).lowering is Lowering.SCALE for each in self.known)

    def inside(self) -> dict[str, frozenset[str]]:
        """For each of at least three folded labels of the same terms (such as the dims of a
        volume), the labels that lie inside of it: they are folded from the innermost on.

        The grid part of a split label lies outside of all.
        """
        terms = [*self.inputs.values(), *self.outputs, *[each.axes for each in self.known]]
        labels = [{x for axis in axes for x in axis} for axes in terms]
        parts = [outer for outer, _ in self.split.values()]
        folded = [
            x for x in (*parts, *self.labels) if x in self.reduced or any(x in each for each in self.split.values())
        ]
        alike: dict[tuple[bool, ...], list[str]] = {}
        for x in dict.fromkeys(folded):
            alike.setdefault(tuple([x in each for each in labels]), []).append(x)
        groups = [group for group in alike.values() if len(group) > 2]
        return {x: frozenset(group[i + 1 :]) for group in groups for i, x in enumerate(group)}

    @property
    def steps(self) -> dict[str, int]:
        """The number of values in a byte for each label along which bytes hold several: tiles have
        whole bytes."""
        packed = (
            (axes[-1][-1], in_a_byte(self.leaves[name])) for name, axes in self.inputs.items() if axes and axes[-1]
        )
        return {label: n for label, n in packed if n > 1}

    def within(self, label: str) -> int:
        """The number of adjacent elements in one step along a label, if its axis consists of
        several labels."""
        axes = [axis[axis.index(label) + 1 :] for own in self.inputs.values() for axis in own if label in axis]
        return max([prod(self.sizes[x] for x in inner if x in self.sizes) for inner in axes], default=1)

    def denser(self, label: str) -> int:
        """The number of elements along a label that take as many bytes as one in half precision."""
        views = [name for name, own in self.inputs.items() if any(label in axis for axis in own)]
        return max([int(2 / (self.stored(name) or 2)) for name in views], default=1)

    def stored(self, view: str) -> float | None:
        """The bytes of an element of a view, where they are not those of the floats of the goal."""
        leaf = self.leaves.get(view)
        return None if leaf is None or stored_leaf(leaf).dtype not in BYTES else 1 / in_a_byte(leaf)

    def whole(self, label: str) -> tuple[str, ...]:
        """The labels that a fold over one is about: both parts for the grid part of a split one."""
        return next((pair for pair in self.split.values() if pair[0] == label), (label,))


COMPUTED = ("float16", "bfloat16", "float32")
"""The dtypes that kernels compute with."""
BYTES = ("int8", "uint8", "float8_e4m3fn", "float8_e5m2")
"""Dtypes that products also load, to compute with the floats, or the integers, of these numbers."""
LOADED = (*COMPUTED, *BYTES, "bool")
MADE = (*COMPUTED, "float64", "bool", "int32")
"""The dtypes of results of a region's operators."""


def is_packed(node: Node) -> bool:
    """Whether a term is the numbers that the bytes of a leaf hold, of a few bits or as integers: to
    the search, a leaf."""
    return traits(node).lowering in (Lowering.UNPACK, Lowering.WHOLE) and node.args[0].op in LEAVES


def stored_leaf(leaf: Node) -> Node:
    """The input or weight that a goal's leaf is, or is packed in."""
    return leaf.args[0] if leaf.args else leaf


def whole_leaf(leaf: Node) -> Node:
    """A goal's leaf with all its dims, where it has one for several."""
    return leaf.args[0] if traits(leaf).lowering is Lowering.RESHAPE else leaf


def in_a_byte(leaf: Node) -> int:
    """The number of elements of a goal's leaf in a byte of memory; 1 except for packed leaves."""
    return 8 // int(leaf.attr("bits")) if traits(leaf).lowering is Lowering.UNPACK else 1


def refuse(goal: Graph) -> None:
    """Raise Unsupported if a goal has numbers with which kernels do not compute, or computes
    nothing."""
    order = topological([*goal.inputs, *goal.outputs])
    whole = {stored_leaf(node) for node in order if is_packed(node)}
    for node in order:
        if node.op in LEAVES and node.dtype not in LOADED and node not in whole:
            raise Unsupported(f"{node.attr('name')} is {node.dtype}; kernels compute with {', '.join(COMPUTED)}")
    for i, output in enumerate(goal.outputs):
        if not any(node.op in LEAVES for node in topological([output])):
            raise Unsupported(f"output {i} depends on no input; leave it out of the graph")


def moves(labelled: Labelled) -> bool:
    """Whether a goal only gives its input another shape or another order of its axes."""
    return len(labelled.views) == 1 and set(labelled.sketches) == set(labelled.views.values())


def views(labelled: Labelled) -> bool:
    """Whether a goal only gives its input another shape: nothing has to run for it."""
    flat = [[x for axis in axes for x in axis] for axes in (*labelled.inputs.values(), *labelled.outputs)]
    return moves(labelled) and all(each == flat[0] for each in flat)


def body_dtype(goal: Labelled) -> str:
    """The float type of all floats in bodies: that of the goal's products, which decides how they
    are computed, or else of its first input. A conversion within a body does not round."""
    ends = [*goal.leaves.values(), *goal.graph.outputs]
    known = [node.dtype for node in ends if is_computed(node.dtype)]
    products = [each.node.args[0].dtype for each in goal.known if multiplies(each.node.op)]
    return next((dtype for dtype in (*products, *known) if dtype in known), "float32")
