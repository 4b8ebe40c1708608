"""Rules and graphs as pictures: small layered graphs, which templates write as SVG.

The layout is Sugiyama's: layers, order by medians, places.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.dims import show_shape
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor
from taso_mirage.operators.expressions import is_weight, uniform_value
from taso_mirage.operators.ops import get
from taso_mirage.report.pages import render_template
from taso_mirage.rewriting.equation import instantiate
from taso_mirage.rewriting.library import Rule
from taso_mirage.rewriting.patterns import REST

LETTER = 7.3
"""The width of a letter at 12 px."""
LINE, PAD, GAP, RISE = 16.0, 9.0, 22.0, 38.0
"""Height of a line of text, space around it, space between boxes of one layer and between
layers."""
SWEEPS = 8


@dataclass(eq=False)
class _Box:
    """A drawn box: its text, its layer, and the boxes of its operands above.

    A box without lines is a bend of an edge. `number` is that of its term in the details of a page.
    """

    kind: str
    lines: tuple[str, ...]
    layer: int
    above: list[_Box] = field(default_factory=list)
    below: list[_Box] = field(default_factory=list)
    x: float = 0.0
    y: float = 0.0
    marked: bool = False
    number: int | None = None

    @property
    def width(self) -> float:
        return max((len(t) for t in self.lines), default=0) * LETTER + 2 * PAD if self.lines else 4.0

    @property
    def height(self) -> float:
        return len(self.lines) * LINE + PAD if self.lines else 0.0

    @property
    def left(self) -> float:
        return self.x - self.width / 2

    @property
    def top(self) -> float:
        return self.y - self.height / 2

    @property
    def rows(self) -> list[tuple[float, str]]:
        """The position of each line of text, and the line."""
        return [(self.top + PAD / 2 + 12 + i * LINE, line) for i, line in enumerate(self.lines)]


@dataclass(frozen=True, slots=True)
class Drawing:
    """One laid-out graph, and where its left upper corner stands in the picture."""

    boxes: list[_Box]
    x: float = 0.0
    y: float = 0.0

    @property
    def width(self) -> float:
        return max(b.x + b.width / 2 for b in self.boxes)

    @property
    def height(self) -> float:
        return max(b.y + b.height / 2 for b in self.boxes)

    @property
    def shapes(self) -> list[_Box]:
        """The boxes that are visible."""
        return [b for b in self.boxes if b.lines]

    @property
    def edges(self) -> list[str]:
        """The path of every edge."""
        return [path for b in self.boxes for path in _edges(b)]


def draw(rule: Rule) -> str:
    """The rule as an SVG document: the two sides side by side, inputs with shapes, operators with
    attributes, and the guard."""
    types = _types(rule)
    left, right = (_layout(side, types) for side in (rule.equation.lhs, rule.equation.rhs))
    text = rule.equation.where.source if rule.equation.where is not None else ""
    return _beside(left, right, rule.name, "=", f"where {text}" if text else "")


def draw_change(before: Graph, after: Graph, name: str) -> str:
    """Two graphs of typed terms as an SVG document: the first, and the second that replaces it."""
    left, right = (_layout(side, {node: node.type for node in side}) for side in (before, after))
    return _beside(left, right, name, "→")


def _beside(left: Drawing, right: Drawing, name: str, sign: str, note: str = "") -> str:
    """Two drawings beside each other, with their name above, a sign between them, and a note
    below."""
    high, middle = max(left.height, right.height), 90.0
    columns = int((left.width + right.width + middle) / LETTER)
    notes = textwrap.wrap(note, max(columns, 40), subsequent_indent="      ")
    width = max(left.width + right.width + middle, *(len(n) * LETTER for n in (*notes, name))) + 2 * GAP
    top, begin = GAP + 2 * LINE, (width - left.width - right.width - middle) / 2

    def centred(side: Drawing, x: float) -> Drawing:
        return replace(side, x=x, y=top + (high - side.height) / 2)

    return render_template(
        "rule.svg",
        width=width,
        height=high + 3 * LINE + len(notes) * LINE + 2 * GAP,
        name=name,
        title=(GAP, GAP + 6),
        left=centred(left, begin),
        sign=sign,
        between=(begin + left.width + middle / 2, top + high / 2 + 10),
        right=centred(right, begin + left.width + middle),
        notes=[((GAP, top + high + 2 * LINE + i * LINE), line) for i, line in enumerate(notes)],
    )


def draw_graph(
    graph: Graph, marked: Collection[Node] = (), numbers: Mapping[Node, int] = MappingProxyType({})
) -> Drawing:
    """A graph of typed terms for a page, which has the template `graph.svg` write it.

    Parts have classes, so that a page may colour them: `paper`, `edge`, and the kinds of boxes;
    terms that are `marked` have that class, too, and terms with `numbers` have those.
    """
    drawing = _layout(graph, {node: node.type for node in graph}, marked, numbers)
    return replace(drawing, x=GAP, y=GAP)


def _types(rule: Rule) -> dict[Node, Any]:
    """The type of every term of both sides at the rule's typing, as far as it has one."""
    names = dict(rule.attributes) | {name: rule.operand(name, type) for name, type in rule.given}
    like = next((type.dtype for _, type in rule.given), "float32")
    found: dict[Node, Any] = {}
    for node in (*rule.equation.lhs, *rule.equation.rhs):
        try:
            found[node] = instantiate(Graph((), (node,)), names, like)[0].type
        except (TasoMirageError, LookupError, TypeError, ValueError):
            continue
    return found


# ---------------------------------------------------------------- boxes


def _boxes(side: Graph, types: Mapping[Node, Any], marked: Collection[Node], numbers: Mapping[Node, int]) -> list[_Box]:
    """A box for every term and every output; an operand stands just above its first use."""
    found: dict[Node, _Box] = {}
    for node in side:
        if node is ABSENT:
            continue
        above = [found[a] for a in node.args if a is not ABSENT]
        layer = 1 + max((b.layer for b in above), default=-1)
        found[node] = _Box(_kind(node), _lines(node, types.get(node)), layer, above, marked=node in marked)
        found[node].number = numbers.get(node)
    several = len(side.outputs) > 1
    outputs = [
        _Box("output", (f"output {i + 1}" if several else "output",), found[o].layer + 1, [found[o]])
        for i, o in enumerate(side.outputs)
    ]
    last = max(b.layer for b in outputs)
    for output in outputs:
        output.layer = last
    boxes = [*found.values(), *outputs]
    for box in boxes:
        if not box.above:
            box.layer = min(b.layer for b in boxes if box in b.above) - 1
    return boxes


def _kind(node: Node) -> str:
    return KINDS.get(node.op) or ("ahead" if is_weight(node) else "operator")


KINDS = {"input": "operand", "weight": "weight", "splat": "number", "constant": "number", "extents": "number"}


def _lines(node: Node, type: Any) -> tuple[str, ...]:
    shape = show_shape(type.shape) if isinstance(type, Tensor) and type.shape is not None else ""
    if node.op in ("input", "weight"):
        name = str(node.attr("name"))
        return (f"{name} {shape}",) if shape else (name,)
    if node.op == "splat":
        return (f"{node.attr('value'):g}",)
    if node.op == "constant":
        value = uniform_value(node)
        return (f"constant {shape}" if value is None else f"{value:g} {shape}".removesuffix(" []"),)
    if node.op == "extents":
        return (f"sizes {show_shape(node.attr('values'))}",)
    if node.op == "opaque":
        return tuple(t for t in (str(node.attr("call")), shape) if t)
    if node.op == "item":
        return (f"part {node.attr('index')} {shape}".strip(),)
    return tuple(t for t in (node.op, *_attribute_lines(node), shape) if t)


def _attribute_lines(node: Node) -> Iterator[str]:
    for text in attribute_texts(node):
        yield from textwrap.wrap(text, 34, subsequent_indent="  ", max_lines=8)


def attribute_texts(node: Node) -> Iterator[str]:
    """The attributes that are not the operator's default."""
    defaults = {name: default for name, (_, default) in get(node.op).attributes.items()}
    for key, value in node.attrs:
        if key == REST:
            yield f"**{value}"
        elif value is not None and value != defaults[key]:
            yield f"{key}={shown_value(value)}"


def shown_value(value: Any) -> str:
    """The value of an attribute; numbers to the digits of single precision."""
    if isinstance(value, float):
        return f"{value:.7g}"
    return f"({', '.join(map(shown_value, value))})" if isinstance(value, tuple) and len(value) > 1 else str(value)


# ---------------------------------------------------------------- places


def _layout(
    side: Graph,
    types: Mapping[Node, Any],
    marked: Collection[Node] = (),
    numbers: Mapping[Node, int] = MappingProxyType({}),
) -> Drawing:
    """All boxes of one side, bends included, with their places; the left upper corner is the
    origin."""
    boxes = _boxes(side, types, marked, numbers)
    boxes += _bends(boxes)
    layers: list[list[_Box]] = [[] for _ in range(1 + max(b.layer for b in boxes))]
    for box in boxes:
        layers[box.layer].append(box)
        for each in box.above:
            each.below.append(box)
    for i in range(SWEEPS):
        _order(layers, downwards=i % 2 == 0)
    for layer in layers:
        _pack(layer, [0.0] * len(layer))
    for i in range(4 * SWEEPS):
        for layer in layers if i % 2 == 0 else reversed(layers):
            _pack(layer, [_mean(b, (b.above or b.below) if i % 2 == 0 else (b.below or b.above)) for b in layer])
    _stack(layers)
    left = min(b.left for b in boxes)
    for box in boxes:
        box.x -= left
    return Drawing(boxes)


def _bends(boxes: Iterable[_Box]) -> list[_Box]:
    """Edges over several layers get a bend in each, so that they go around the boxes between."""
    bends: list[_Box] = []
    for box in boxes:
        for i, start in enumerate(box.above):
            end = start
            for layer in range(start.layer + 1, box.layer):
                bend = _Box("bend", (), layer, [end])
                bends.append(bend)
                end = bend
            box.above[i] = end
    return bends


def _order(layers: list[list[_Box]], downwards: bool) -> None:
    """Sort every layer by the mean place of the operands of its boxes, operands in their order;
    ties keep theirs."""
    for k in range(len(layers)) if downwards else reversed(range(len(layers))):
        other = layers[k - 1] if downwards and k else layers[k + 1] if not downwards and k + 1 < len(layers) else []
        place = {id(b): i for i, b in enumerate(other)}

        def key(item: tuple[int, _Box], place: dict[int, int] = place) -> float:
            i, box = item
            near = [float(place[id(b)]) for b in box.above if id(b) in place]
            near += [place[id(b)] + b.above.index(box) / len(b.above) / 2 for b in box.below if id(b) in place]
            return sum(near) / len(near) if near else float(i)

        layers[k][:] = [box for _, box in sorted(enumerate(layers[k]), key=key)]


def _mean(box: _Box, others: list[_Box]) -> float:
    return sum(o.x for o in others) / len(others) if others else box.x


def _pack(layer: list[_Box], wanted: list[float]) -> None:
    """Place boxes as close to their wanted positions as order and gaps permit: pushed right from
    the left, then back by their mean excess."""
    edge = float("-inf")
    for box, x in zip(layer, wanted, strict=True):
        box.x = max(x, edge + GAP + box.width / 2)
        edge = box.x + box.width / 2
    excess = sum(b.x - x for b, x in zip(layer, wanted, strict=True)) / max(len(layer), 1)
    for box in layer:
        box.x -= excess


def _stack(layers: list[list[_Box]]) -> None:
    y = 0.0
    for layer in layers:
        height = max(b.height for b in layer)
        for box in layer:
            box.y = y + height / 2
        y += height + RISE


# ---------------------------------------------------------------- edges


def _edges(box: _Box) -> Iterator[str]:
    """Lines into a box, at one place each along its upper side, in the order of the operands; bends
    are passed smoothly."""
    if box.kind == "bend":
        return
    count = len(box.above)
    span = min(box.width - 2 * PAD, 26.0 * (count - 1))
    for i, end in enumerate(box.above):
        port = box.x + (span * i / (count - 1) - span / 2 if count > 1 else 0.0)
        points = [(port, box.top)]
        while end.kind == "bend":
            points.append((end.x, end.y))
            (end,) = end.above
        points.append((end.x, end.y + end.height / 2))
        yield _curve(points[::-1])


def _curve(points: list[tuple[float, float]]) -> str:
    path = f"M{points[0][0]:.1f},{points[0][1]:.1f}"
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        half = (y0 + y1) / 2
        if x0 == x1:
            path += f" V{y1:.1f}"
            continue
        path += f" C{x0:.1f},{half:.1f} {x1:.1f},{half:.1f} {x1:.1f},{y1:.1f}"
    return path
