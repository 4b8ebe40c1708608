"""The two models side by side in sections. A section contains the terms that a value needs and that
no earlier section computes."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, topological, variable, weight, with_args
from taso_mirage.operators.expressions import is_weight
from taso_mirage.report.changes import BARE, carry_names
from taso_mirage.report.result import OperatorTimes, Result

LEAST, MOST, SECTIONS = 8, 6, 300
"""The smallest number of terms of a section, the factor for its largest number, and the largest
number of sections of a model."""
SHOWN = 12
"""The largest number of places of a section whose terms a page describes."""
Anchor = tuple[tuple[Node, Node], ...]
"""Values of the original, each with the term that computes it in the result."""
PieceTerms = tuple[list[Node], list[Node]]
"""Terms of the original and of the result."""


@dataclass(slots=True)
class ModelSection:
    """A piece of both models, over leaves with canonical names, wherever it stands.

    `places` has, for each place, the names of the original's values that it computes, the last one
    first; `terms` the terms there, before and after; `spent` their predicted seconds; `order` the
    numbers of the places in the model. `real` has the terms of the first places for those of the
    graphs.
    """

    before: Graph
    after: Graph
    places: list[tuple[str, ...]] = field(default_factory=list)
    terms: list[PieceTerms] = field(default_factory=list)
    spent: list[tuple[float, float]] = field(default_factory=list)
    real: list[dict[Node, Node]] = field(default_factory=list)
    order: list[int] = field(default_factory=list)

    @property
    def seconds(self) -> tuple[float, float]:
        """Predicted seconds of all places, before and after."""
        return sum(each[0] for each in self.spent), sum(each[1] for each in self.spent)

    @property
    def changed(self) -> bool:
        return self.before != self.after

    @property
    def gain(self) -> float:
        return self.seconds[0] - self.seconds[1]


def model_sections(result: Result, times: OperatorTimes) -> list[ModelSection]:
    """The sections in the order of the model, equal ones as one.

    A model is cut at values that the result computes as well. Linear in the number of terms.
    """
    names = carry_names(result.original, result.steps)
    found: dict[tuple[Graph, Graph], ModelSection] = {}
    for number, (anchor, sides) in enumerate(model_pieces(result, names)):
        before, after, real = _canonical(anchor, sides, names)
        section = found.setdefault((before, after), ModelSection(before, after))
        section.places.append(tuple(names[n] for n in reversed(sides[0]) if n in names))
        section.terms.append(sides)
        section.order.append(number)
        section.spent.append((_spent(times.before, sides[0]), _spent(times.after, sides[1])))
        if len(section.real) < SHOWN:
            section.real.append(real)
    return list(found.values())


def _spent(times: Mapping[Node, float], side: Sequence[Node]) -> float:
    return sum(times.get(n, 0.0) for n in side)


def model_pieces(result: Result, names: Mapping[Node, str], least: int = LEAST) -> Iterator[tuple[Anchor, PieceTerms]]:
    """The terms between values of both models, at least so many; each term is in one piece."""
    done: set[Node] = set()
    for anchor in _anchors(result, names, least):
        before, after = (_section_terms([pair[k] for pair in anchor], done) for k in (0, 1))
        done.update(before, after)
        yield anchor, (before, after)


def _anchors(result: Result, names: Mapping[Node, str], least: int) -> Iterator[Anchor]:
    """Values of both models where few others are live, and then the outputs; for `least` 1 all
    values of both models."""
    there = {names[n]: n for n in topological(result.model.graph.outputs) if n in names}
    outputs = result.original.graph.outputs
    order = [n for n in topological(outputs) if n.args and not is_weight(n)]
    common = [i for i, n in enumerate(order) if isinstance(n.type, Tensor) and names.get(n) in there]
    wanted = max(least, -(-len(order) // SECTIONS))
    for i in common if least == 1 else _ends(common, _live(order, outputs), wanted):
        yield ((order[i], there[names[order[i]]]),)
    yield tuple(zip(outputs, result.model.graph.outputs, strict=True))


def _live(order: Sequence[Node], outputs: Sequence[Node]) -> list[int]:
    """For each place, the number of values computed before it that are used after it."""
    place = {node: i for i, node in enumerate(order)}
    last = dict(place)
    for i, node in enumerate(order):
        last.update((arg, i) for arg in node.args if arg in place)
    last |= dict.fromkeys(outputs, len(order))
    change = Counter(range(len(order)))
    change.subtract(last[node] for node in order)
    return list(accumulate(change[i] for i in range(len(order))))


def _ends(common: Sequence[int], live: Sequence[int], least: int) -> Iterator[int]:
    """The ends of sections: at the narrowest place, and among those at the first. The rule only
    looks ahead, so that equal layers are cut in the same way."""
    start = 0
    while (first := bisect_left(common, start + least - 1)) < len(common):
        window = common[first : max(first + 1, bisect_left(common, start + MOST * least))]
        end = min(window, key=lambda i: (live[i], i))
        yield end
        start = end + 1


def _section_terms(ends: Sequence[Node], done: set[Node]) -> list[Node]:
    """The terms that the ends need, except those that are done and those that depend on weights
    alone."""
    return [n for n in topological(ends, stop=done) if n.args and n not in done and not is_weight(n)]


def _canonical(
    anchor: Anchor, sides: Sequence[Sequence[Node]], names: Mapping[Node, str]
) -> tuple[Graph, Graph, dict[Node, Node]]:
    """The two sides over leaves that are named in the order in which they are met: the same value
    has one name on both; and the terms that theirs stand for."""
    leaves: dict[Node | str, Node] = {}
    counts = {"x": 0, "w": 0}
    graphs = []
    real: dict[Node, Node] = {}
    for k, side in enumerate(sides):
        new: dict[Node, Node] = {}
        for node in side:
            for arg in node.args:
                if arg not in new:
                    new[arg] = _leaf(arg, leaves, counts, names)
            new[node] = with_args(node, tuple(new[a] for a in node.args))
        ends = [pair[k] for pair in anchor]
        outputs = tuple(new.get(end) or _leaf(end, leaves, counts, names) for end in ends)
        graphs.append(outputs)
        for node, made in new.items():
            real.setdefault(made, node)
    inputs = tuple(n for n in leaves.values() if n.op == "input")
    return Graph(inputs, graphs[0]), Graph(inputs, graphs[1]), real


def _leaf(node: Node, leaves: dict[Node | str, Node], counts: dict[str, int], names: Mapping[Node, str]) -> Node:
    if node is ABSENT or node.op in BARE or not isinstance(node.type, Tensor):
        return node
    key = names.get(node, node)
    if key not in leaves:
        letter = "w" if is_weight(node) else "x"
        counts[letter] += 1
        name = f"{letter}{counts[letter]}"
        leaves[key] = weight(name, node.type) if letter == "w" else variable(name, node.type)
    return leaves[key]
