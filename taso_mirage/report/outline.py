"""The sections of a model as a page shows them: drawn, or listed where there are too many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from textwrap import shorten
from typing import Any

from taso_mirage.ir.dims import show_shape
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor
from taso_mirage.report.details import NodeDetails
from taso_mirage.report.drawing import attribute_texts, draw_graph
from taso_mirage.report.explanations import shortened
from taso_mirage.report.sections import ModelSection
from taso_mirage.system.terminal import duration

DRAWN = 64
"""The largest number of terms of a graph that is drawn; a larger graph is listed."""
PICTURES = 24
"""The largest number of sections that are drawn, sections with changes and the largest gains first;
others are listed."""
LONG = 160
"""The largest number of letters of a listed term."""
SPARK = 100.0
"""Units of the longest bar beside a section."""


def shown_sections(
    sections: Sequence[ModelSection],
    numbers: Mapping[int, Sequence[int]],
    seconds: Sequence[tuple[float, float]],
    details: NodeDetails,
) -> list[dict[str, Any]]:
    """The template's data for each section, in their order; `numbers` are those of its changes,
    `seconds` those of all its places."""
    longest = max((before for before, _ in seconds), default=0.0) or 1e-12
    order = sorted(range(len(sections)), key=lambda i: (not sections[i].changed, -abs(sections[i].gain)))
    drawn = set(order[:PICTURES])
    return [
        {
            "title": section_title(each),
            "places": len(each.places),
            "ends": shortened([names[0] if names else "" for names in each.places], 4),
            "changed": each.changed,
            "times": [duration(spent) for spent in seconds[i]],
            "spark": [min(spent / longest, 1.0) * SPARK for spent in seconds[i]],
            "changes": numbers.get(i + 1, ()),
            "before": _side(
                each.before, each.after, i in drawn, details.add(each.before, f"section-{i + 1}", each.real)
            ),
            "after": _side(each.after, each.before, i in drawn, details.add(each.after, f"section-{i + 1}", each.real))
            if each.changed
            else None,
            "names": [", ".join(names) for names in each.places],
        }
        for i, each in enumerate(sections)
    ]


def section_title(each: ModelSection) -> str:
    """The most frequent operators and their numbers."""
    sides = [Counter(n.op for n in side if n.args and n.op != "item") for side in (each.before, each.after)]
    counts = [str(side.total()) for side in sides]
    listed = ", ".join(name for name, _ in sides[0].most_common(4)) or "nothing"
    more = ", ..." if len(sides[0]) > 4 else ""
    total = counts[0] if not each.changed else " \N{RIGHTWARDS ARROW} ".join(counts)
    return f"{total} operator{'s' * (total != '1')}: {listed}{more}"


def _side(side: Graph, other: Graph, drawn: bool, numbers: Mapping[Node, int]) -> dict[str, Any]:
    """A drawing or a list; terms that the other side does not have are marked."""
    own = {n for n in set(side) - set(other) if n.args}
    if drawn and sum(1 for _ in side) <= DRAWN:
        return {"drawing": draw_graph(side, own, numbers), "rows": ()}
    return {"drawing": None, "rows": list(_rows(side, own, numbers))}


def _rows(side: Graph, own: set[Node], numbers: Mapping[Node, int]) -> Iterator[tuple[bool, str, str, int]]:
    """For each term: whether it is marked, its operator and operands, its shape, and its number
    in the details; operands are given by row numbers."""
    names: dict[Node, str] = {ABSENT: "none"}
    number = 0
    for node in side:
        if not node.args:
            names[node] = str(node.attr("name")) if node.op in ("input", "weight") else node.op
            continue
        number += 1
        names[node] = str(number)
        yield node in own, _row(node, [names[a] for a in node.args]), _shape(node), numbers[node]


def _row(node: Node, args: Sequence[str]) -> str:
    if node.op == "opaque":
        return f"{node.attr('call')}({', '.join(args)})"
    return shorten(f"{node.op}({', '.join([*args, *attribute_texts(node)])})", LONG, placeholder=" ...")


def _shape(node: Node) -> str:
    return show_shape(node.type.shape) if isinstance(node.type, Tensor) and node.type.shape is not None else ""
