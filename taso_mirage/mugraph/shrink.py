"""muGraphs and their goals at small sizes that distinguish labels, grid from loop, and both from
broadcast dims.

A muGraph is its roles; the field tests it where every label that is cut into tiles has a small
composite size, one that is cut to 1 a small one, so that a test runs few blocks (Mirage, OSDI'25,
section 5, tests at the real sizes).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, is_constant, topological, weight
from taso_mirage.mugraph.field_check import tied
from taso_mirage.mugraph.goal import Labelled, in_a_byte, is_packed, whole_leaf
from taso_mirage.mugraph.opaque_functions import is_scalar
from taso_mirage.mugraph.tile_work import TileSizes
from taso_mirage.mugraph.tilings import Tiled
from taso_mirage.operators.ops import term

ONE, PART, WHOLE, UNEVEN = range(4)
Cuts = Mapping[str, int]
"""For each label of a kernel: cut to 1, cut into equal tiles, whole, or cut into tiles that
overlap."""
SMALL = (2, 3, 5, 7, 11, 13, 17, 19)
COMPOSITE = (4, 6, 9, 8, 10, 15, 12, 14)
ODD = (9, 15, 21, 25, 27, 33, 35, 39)
"""Sizes of labels that some kernel cuts into tiles that overlap, two of half of one more; another
kernel may cut them into equal ones."""

ALONE = 16
"""The factor for the size of a goal's only label, because with few elements a function may be near
0 for all of them."""


def cuts(tiled: Tiled, sizes: TileSizes, open: Collection[str] = ()) -> dict[str, int]:
    """How the kernel cuts each of its labels; one that is `open` has any number of tiles, though
    here it may have one."""
    return {
        x: ONE
        if n == 1 < sizes[x]
        else PART
        if x in open
        else WHOLE
        if n == sizes[x]
        else UNEVEN
        if sizes[x] % n
        else PART
        if n > 1
        else ONE
        for x, n in tiled.tiles.items()
    }


def shrunk_sizes(goal: Labelled, kernels: Sequence[Cuts]) -> dict[str, int]:
    """A size for every label; labels that must have one size (of views of one tensor) have one,
    others differ."""
    groups, products = tied(goal)
    members: dict[str, list[str]] = {}
    for label, group in groups.items():
        members.setdefault(group, []).append(label)
    left, steps = {UNEVEN: iter(ODD), PART: iter(COMPOSITE), ONE: iter(SMALL)}, goal.steps
    times = ALONE if len(members) == 1 else 1
    sizes: dict[str, int] = {}
    for labels in (own for group, own in members.items() if group not in products):
        cut = {each.get(label) for each in kernels for label in labels}
        kind = next((kind for kind in (UNEVEN, PART) if kind in cut), ONE)
        step = times * max(steps.get(label, 1) for label in labels)
        sizes |= dict.fromkeys(labels, next(step * n for n in left[kind] if step * n not in sizes.values()))
    for whole, (outer, inner) in goal.split.items():
        sizes |= {outer: 2, whole: 2 * sizes[inner]}
    for group, parts in products.items():
        sizes |= dict.fromkeys(members[group], prod(sizes[part] for part in parts))
    return sizes


def shrunk(plan: Sequence[Tiled], kernels: Sequence[Cuts], sizes: TileSizes) -> list[Tiled]:
    """The plan with other sizes of the labels, which are cut in the same way."""
    return [
        Tiled(each.kernel, {x: _tile(sizes[x], cut) for x, cut in own.items()}, each.seconds)
        for each, own in zip(plan, kernels, strict=True)
    ]


def _tile(size: int, cut: int) -> int:
    whole = {ONE: 1, WHOLE: size, UNEVEN: (size + 1) // 2}
    return whole.get(cut) or size // next(d for d in range(2, size + 1) if size % d == 0)


def resized_goal(goal: Labelled, sizes: TileSizes) -> tuple[Graph, dict[str, Node]]:
    """The goal with other sizes of its labels, and the leaf of every view."""
    axes = {each.node: each.axes for each in goal.known}
    done: dict[Node, Node] = {ABSENT: ABSENT}
    for packed in filter(is_packed, goal.leaves.values()):
        shape = tuple(prod(sizes[x] for x in axis) for axis in axes[packed])
        stored, n = packed.args[0], in_a_byte(packed)
        shape = (*shape[:-1], shape[-1] // n) if n > 1 else shape
        done[stored] = Node(stored.op, (), stored.attrs, Tensor(stored.dtype, shape))
    for node in topological(axes):
        shape = tuple(prod(sizes[x] for x in axis) for axis in axes.get(node, ()))
        if node in done or (is_scalar(node)):
            done.setdefault(node, node)
        elif is_constant(node):  # of this size it would hold other numbers: any will do
            done[node] = weight(f"constant {len(done)}", Tensor(node.dtype, shape))
        elif not node.args:
            done[node] = Node(node.op, (), node.attrs, Tensor(node.dtype, shape))
        else:
            attrs = dict(node.attrs) | ({"shape": shape} if "shape" in dict(node.attrs) else {})
            done[node] = term(node.op, *[done[a] for a in node.args], **attrs)
    dtypes = [each.dtype for each in goal.graph.outputs]  # a conversion has the sketch of its operand
    wanted = zip(goal.sketches, goal.results, dtypes, strict=True)
    results = [next(k.node for k in goal.known if (k.sketch, k.axes, k.node.dtype) == each) for each in wanted]
    inputs = tuple(done.get(i, i) for i in goal.graph.inputs)
    leaves = {}
    for name, leaf in goal.leaves.items():
        shape = tuple(prod(sizes[x] for x in axis) for axis in goal.inputs[name])
        leaves[name] = done[leaf] if whole_leaf(leaf) is leaf else term("reshape", done[whole_leaf(leaf)], shape=shape)
    return Graph(inputs, tuple(done[r] for r in results)), leaves
