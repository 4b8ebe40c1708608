"""Random multi-linear programs and random mutants of them, for the tests of partial equivalence."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from taso_mirage.ir.terms import Graph, Node, Tensor, substitute, topological, variable, weight
from taso_mirage.operators.ops import term
from taso_mirage.operators.slicing import sizes
from taso_mirage.operators.traits import Box
from taso_mirage.search.partial.agreement import Agreement, differing_elements, program_leaves

Draw = np.random.Generator


def image(*shape: int, name: str = "x") -> Node:
    return variable(name, Tensor("float32", shape))


def kernel(*shape: int, name: str = "w") -> Node:
    return weight(name, Tensor("float32", shape))


def conv(x: Node, w: Node, stride: int = 1, pad: int = 1, dilation: int = 1, group: int = 1) -> Node:
    n = len(sizes(x)) - 2
    return term("conv", x, w, strides=(stride,) * n, pads=(pad,) * (2 * n), dilations=(dilation,) * n, group=group)


def graph(*outputs: Node) -> Graph:
    return Graph(tuple(n for n in topological(outputs) if n.op == "input"), outputs)


def part(x: Node, axis: int, start: int, end: int, step: int = 1) -> Node:
    return term("slice", x, starts=(start,), ends=(end,), axes=(axis,), steps=(step,))


# ---------------------------------------------------------------- programs


def program(draw: Draw) -> Graph:
    """A few operators over one or two inputs and weights, of up to some hundred elements."""
    n, c, h, w = (int(draw.integers(*span)) for span in ((1, 4), (1, 3), (4, 8), (4, 8)))
    x = value = image(n, 2 * c, h, w)
    for i in range(int(draw.integers(1, 5))):
        value = STEPS[int(draw.integers(len(STEPS)))](draw, value, i)
    return graph(value) if x in topological([value]) else program(draw)


def _conv(draw: Draw, x: Node, i: int) -> Node:
    c, *spatial = sizes(x)[1:]
    size = int(min(draw.integers(1, 4), *spatial))
    group = 2 if c % 2 == 0 and draw.random() < 0.4 else 1
    pads = draw.integers(0, size, 4) if size > 1 else np.zeros(4, int)
    dilation = 2 if size == 2 and min(spatial) >= 4 else 1
    w = kernel(2 * group, c // group, size, size, name=f"w{i}")
    bias = (kernel(2 * group, name=f"b{i}"),) if draw.random() < 0.3 else ()
    attrs = {"strides": (int(draw.integers(1, 3)), 1), "pads": pads, "dilations": (dilation,) * 2, "group": group}
    return term("conv", x, w, *bias, **attrs)


def _matmul(draw: Draw, x: Node, i: int) -> Node:
    return term("matmul", x, kernel(sizes(x)[-1], int(draw.integers(3, 6)), name=f"w{i}"))


def _add(draw: Draw, x: Node, i: int) -> Node:
    other = image(*sizes(x), name=f"y{i}") if draw.random() < 0.5 else kernel(1, sizes(x)[1], 1, 1, name=f"b{i}")
    return term(str(draw.choice(["add", "sub"])), x, other)


def _pad(draw: Draw, x: Node, i: int) -> Node:
    low, high = draw.integers(0, 2, (2, 2))
    return term("pad", x, pads=(0, 0, *low, 0, 0, *high), value=float(draw.integers(0, 2)))


def _slice(draw: Draw, x: Node, i: int) -> Node:
    axis = int(draw.integers(2, 4))
    n = sizes(x)[axis]
    if n < 3:
        return x
    return part(x, axis, n - 1, -1, -1) if draw.random() < 0.3 else part(x, axis, 1, n, int(draw.integers(1, 3)))


def _concat(draw: Draw, x: Node, i: int) -> Node:
    axis = int(draw.integers(4))
    return term("concat", x, part(x, 2, sizes(x)[2] - 1, -1, -1), axis=axis)


def _reshape(draw: Draw, x: Node, i: int) -> Node:
    n, c, h, w = sizes(x)
    return term("reshape", x, shape=((n, c, w, h), (1, n * c, h, w), (n, c, 1, h * w))[int(draw.integers(3))])


def _transpose(draw: Draw, x: Node, i: int) -> Node:
    return term("transpose", x, perm=((1, 0, 2, 3), (0, 1, 3, 2), (0, 2, 1, 3))[int(draw.integers(3))])


def _pool(draw: Draw, x: Node, i: int) -> Node:
    if min(sizes(x)[2:]) < 3:
        return x
    attrs = {"kernel": (3, 3), "strides": (1, int(draw.integers(1, 3))), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    return term("average_pool", x, **attrs, extra=(0, 0), count_include_pad=int(draw.integers(2)))


STEPS: list[Callable[[Draw, Node, int], Node]] = [
    *(_conv, _conv, _conv),
    *(_matmul, _add, _pad, _slice, _concat, _reshape, _transpose, _pool),
]


# ---------------------------------------------------------------- mutants


def mutant(draw: Draw, original: Graph) -> Graph | None:
    """One term replaced by another of its type; None if no mutation fits any term."""
    places = [n for n in topological(original.outputs) if n.op in MUTATIONS]
    for i in draw.permutation(len(places)):
        node = places[i]
        found = [m for mutate in MUTATIONS[node.op] for m in mutate(node)]
        fitting = [m for m in found if m.type == node.type and m is not node]
        if fitting:
            return graph(*substitute(original.outputs, {node: fitting[int(draw.integers(len(fitting)))]}))
    return None


def changed(node: Node, **attrs: object) -> Node:
    return term(node.op, *node.args, **{**dict(node.attrs), **attrs})


def _other_pads(node: Node) -> list[Node]:
    """Moved by one position along one axis."""
    a, b, c, d = node.attr("pads")
    return [
        *([changed(node, pads=(a - 1, b, c + 1, d))] if a > 0 else []),
        *([changed(node, pads=(a, b + 1, c, d - 1))] if d > 0 else []),
    ]


def _other_strides(node: Node) -> list[Node]:
    """Every position, and the even ones of them: right; or the odd ones."""
    stride = node.attr("strides")[0]
    dense = changed(node, strides=(1, node.attr("strides")[1]))
    n, wanted = sizes(dense)[2], sizes(node)[2]
    return [part(dense, 2, i, n, stride) for i in range(2) if stride > 1 and len(range(i, n, stride)) == wanted]


def _merged(node: Node) -> list[Node]:
    """The batch beside each other in width, or below each other in height."""
    x, *rest = node.args
    n, c, h, w = sizes(x)
    _, o, i, j = sizes(node)
    wide = term("reshape", term("transpose", x, perm=(1, 2, 0, 3)), shape=(1, c, h, n * w))
    high = term("reshape", term("transpose", x, perm=(1, 0, 2, 3)), shape=(1, c, n * h, w))
    found = []
    if n > 1 and j == w and node.attr("strides")[1] == 1:
        result = term("conv", wide, *rest, **dict(node.attrs))
        result = term("reshape", result, shape=(o, i, n, j)) if sizes(result)[3] == n * j else result
        found.append(term("transpose", result, perm=(2, 0, 1, 3)) if sizes(result)[2] == n else result)
    if n > 1 and i == h and node.attr("strides")[0] == 1:
        result = term("conv", high, *rest, **dict(node.attrs))
        result = term("reshape", result, shape=(o, n, i, j)) if sizes(result)[2] == n * i else result
        found.append(term("transpose", result, perm=(1, 0, 2, 3)) if sizes(result)[1] == n else result)
    return found


def _groups(node: Node) -> list[Node]:
    """Two groups as one whose weights are 0 across, and with the second group's weights used for
    both."""
    x, w, *bias = node.args
    if node.attr("group") != 2:
        return []
    o, c = sizes(w)[0] // 2, sizes(w)[1]
    halves = part(w, 0, 0, o), part(w, 0, o, 2 * o)
    rows = [term("pad", half, pads=(0, k * c, 0, 0, 0, (1 - k) * c, 0, 0), value=0.0) for k, half in enumerate(halves)]
    dense = term("conv", x, term("concat", *rows, axis=0), *bias, **{**dict(node.attrs), "group": 1})
    return [dense, term("conv", x, term("concat", halves[1], halves[1], axis=0), *bias, **dict(node.attrs))]


def _other_order(node: Node) -> list[Node]:
    """A reshape of other rows."""
    (x,) = node.args
    return [term("reshape", term("transpose", x, perm=p), shape=sizes(node)) for p in ((0, 1, 3, 2), (1, 0, 2, 3))]


def _other_border(node: Node) -> list[Node]:
    return [changed(node, count_include_pad=1 - node.attr("count_include_pad"))]


def _other_place(node: Node) -> list[Node]:
    """Mutants that exchange the padding before and after."""
    a, b, c, d = (node.attr("pads")[k] for k in (2, 3, 6, 7))
    return [changed(node, pads=(0, 0, c, b, 0, 0, a, d)), changed(node, value=1.0 - node.attr("value"))]


def _swapped(node: Node) -> list[Node]:
    return [term("concat", *node.args[::-1], axis=node.attr("axis"))]


MUTATIONS: dict[str, list[Callable[[Node], list[Node]]]] = {
    "conv": [_other_pads, _other_strides, _merged, _groups],
    "average_pool": [_other_pads, _other_border],
    "reshape": [_other_order],
    "pad": [_other_place],
    "concat": [_swapped],
}


def differing(left: Graph, right: Graph, seed: int) -> np.ndarray:
    """The elements of the one output that differ in any of four trials."""
    leaves = program_leaves(left.outputs)
    return np.any([w.any(axis=0) for _, w in differing_elements(left.outputs, right.outputs, leaves, 4, seed)], axis=0)


def inside(box: Box) -> tuple[slice, ...]:
    return tuple(slice(*interval) for interval in box)


def assert_region(original: Graph, other: Graph, found: Agreement) -> None:
    """The programs differ in every box that fails and nowhere else."""
    wrong = differing(original, other, seed=90)
    for box in found.regions[0].boxes(True):
        assert not wrong[inside(box)].any(), box
    for box in found.regions[0].boxes(False):
        assert wrong[inside(box)].any(), box


def side_by_side(x: Node, w: Node) -> Node:
    n, c, h, m = (int(d) for d in x.shape)
    wide = conv(term("reshape", term("transpose", x, perm=(1, 2, 0, 3)), shape=(1, c, h, n * m)), w)
    return term("transpose", term("reshape", wide, shape=(int(w.shape[0]), h, n, m)), perm=(2, 0, 1, 3))
