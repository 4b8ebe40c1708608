"""The runtime's nodes by the parts of a model that they compute: where the time of a run went, and
the gain of a change in the model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from taso_mirage.ir.terms import Node
from taso_mirage.onnx_io.write import value_names
from taso_mirage.report.changes import Explanation, carry_names
from taso_mirage.report.result import OperatorProfile, Result
from taso_mirage.report.sections import ModelSection, PieceTerms, model_pieces
from taso_mirage.targets.profile import TimedNode

FUSED = 64
"""The largest number of terms of a node that the runtime fused."""
SectionPlace = tuple[int, int]
"""A section by its number from 0, and one of its places."""


@dataclass(frozen=True, slots=True)
class Span:
    """Nodes that follow each other in a run and belong to one place; None: to no known one. `nodes`
    is their number."""

    place: SectionPlace | None
    seconds: float
    nodes: int = 1


def heads(nodes: Sequence[TimedNode], known: Collection[str]) -> list[int | None]:
    """For each node of a run the nearest node with a known value: itself, one that reads it, or one
    that it reads. Linear."""
    found = [i if any(name in known for name in node.outputs) else None for i, node in enumerate(nodes)]
    reader: dict[str, int] = {}
    for i in reversed(range(len(nodes))):
        if found[i] is None:
            found[i] = next((reader[name] for name in nodes[i].outputs if name in reader), None)
        mine = found[i]
        if mine is not None:
            reader.update(dict.fromkeys(nodes[i].inputs, mine))
    maker: dict[str, int] = {}
    for i, node in enumerate(nodes):
        if found[i] is None:
            found[i] = next((maker[name] for name in node.inputs if name in maker), None)
        mine = found[i]
        if mine is not None:
            maker.update(dict.fromkeys(node.outputs, mine))
    return found


def owners(nodes: Sequence[TimedNode], known: Mapping[str, int]) -> list[int | None]:
    """The number of the part that each node of a run computes, by the names of values."""
    found = heads(nodes, known)
    return [None if i is None else next(known[n] for n in nodes[i].outputs if n in known) for i in found]


def value_terms(result: Result) -> tuple[dict[str, Node], dict[str, Node]]:
    """The names of values in the files of both models, each with its term."""
    original = result.original
    before = {name: node for node, name in original.names.items()}
    before |= zip(original.output_names, original.graph.outputs, strict=True)
    return before, value_names(result.model)


def known_parts(terms: Mapping[str, Node], parts: Iterable[Sequence[Node]]) -> dict[str, int]:
    """The names of values with the number of the part whose terms have them."""
    of_term = {n: i for i, part in enumerate(parts) for n in part}
    return {name: of_term[n] for name, n in terms.items() if n in of_term}


def run_spans(result: Result, sections: Sequence[ModelSection]) -> tuple[list[Span], list[Span]]:
    """Where the time of both models goes, in the order of a run: measured with a profile, else
    predicted in the order of the model."""
    places = [(i, j) for i, each in enumerate(sections) for j in range(len(each.places))]
    if result.profile is None:
        return _predicted(sections, places, 0), _predicted(sections, places, 1)
    sides = [sections[i].terms[j] for i, j in places]
    before, after = (known_parts(terms, [each[k] for each in sides]) for k, terms in enumerate(value_terms(result)))
    return _measured(result.profile.before, before, places), _measured(result.profile.after, after, places)


def _predicted(sections: Sequence[ModelSection], places: Sequence[SectionPlace], side: int) -> list[Span]:
    inorder = sorted(places, key=lambda place: sections[place[0]].order[place[1]])
    return [Span((i, j), sections[i].spent[j][side]) for i, j in inorder]


def _measured(nodes: Sequence[TimedNode], known: Mapping[str, int], places: Sequence[SectionPlace]) -> list[Span]:
    spans: list[Span] = []
    for node, owner in zip(nodes, owners(nodes, known), strict=True):
        place = None if owner is None else places[owner]
        if spans and spans[-1].place == place:
            spans[-1] = Span(place, spans[-1].seconds + node.seconds, spans[-1].nodes + 1)
        else:
            spans.append(Span(place, node.seconds))
    return spans


def section_seconds(spans: Sequence[Span], count: int) -> list[float]:
    """The seconds of each of so many sections, at all its places."""
    found = [0.0] * count
    for span in spans:
        if span.place is not None:
            found[span.place[0]] += span.seconds
    return found


# ---------------------------------------------------------------- changes in the model


@dataclass(slots=True)
class _Sets:
    """Disjoint sets of numbers."""

    parent: dict[int, int] = field(default_factory=dict)

    def find(self, i: int) -> int:
        while self.parent.get(i, i) != i:
            self.parent[i] = self.parent.get(self.parent[i], self.parent[i])
            i = self.parent[i]
        return i

    def join(self, a: int, b: int) -> None:
        self.parent[self.find(a)] = self.find(b)


def placed_in_model(result: Result, listed: Sequence[Explanation], profile: OperatorProfile) -> list[Explanation]:
    """The changes with the seconds that the profiler measured for them in the runs of both models.

    Changes that share a region have one time together, which the one with the largest gain of its
    own has. Changes of a model with kernels have none: the kernels may cover the same terms.
    """
    if result.kernels or not listed:
        return list(listed)
    names = carry_names(result.original, result.steps)
    parts = list(model_pieces(result, names, 1))
    regions = _regions([sides for _, sides in parts], {v for anchor, _ in parts for pair in anchor for v in pair})
    spent: list[tuple[int, int, float]] = []
    for k, (nodes, terms) in enumerate(zip((profile.before, profile.after), value_terms(result), strict=True)):
        known = known_parts(terms, [sides[k] for _, sides in parts])
        _join_fused(nodes, terms, {n: i for i, (_, sides) in enumerate(parts) for n in sides[k]}, regions)
        spent += [(o, k, n.seconds) for n, o in zip(nodes, owners(nodes, known), strict=True) if o is not None]
    at = {names[n]: i for i, (_, sides) in enumerate(parts) for n in sides[0] if n in names}
    together, of_region = _Sets(), dict[int, int]()
    for number, each in enumerate(listed):
        for place in filter(at.__contains__, each.change.places):
            together.join(number, of_region.setdefault(regions.find(at[place]), number))
    sums: dict[int, list[float]] = {}
    for part, k, seconds in spent:
        if regions.find(part) in of_region:
            sums.setdefault(together.find(of_region[regions.find(part)]), [0.0, 0.0])[k] += seconds
    return _with_leaders(listed, together, sums)


def _join_fused(
    nodes: Sequence[TimedNode], terms: Mapping[str, Node], part: Mapping[Node, int], regions: _Sets
) -> None:
    """A node that the runtime fused belongs to all parts whose terms it computes: their times
    cannot be told apart."""
    read: dict[int, set[Node]] = {}
    for node, head in zip(nodes, heads(nodes, terms), strict=True):
        if head is not None:
            read.setdefault(head, set()).update(terms[name] for name in node.inputs if name in terms)
    covered = {terms[name] for node in nodes for name in node.outputs if name in terms}
    for head, stop in read.items():
        pending = [terms[name] for name in nodes[head].outputs if name in terms and terms[name] not in stop]
        seen: set[Node] = set()
        first = next((part[n] for n in pending if n in part), None)
        while pending and first is not None and len(seen) < FUSED:
            term = pending.pop()
            if term in part and term not in seen:
                seen.add(term)
                regions.join(part[term], first)
                pending += [arg for arg in term.args if arg not in stop]
        covered |= seen
    for term in part.keys() - covered:  # the runtime fused it with the node before it
        for arg in term.args:
            if arg in part:
                regions.join(part[term], part[arg])


def _with_leaders(
    listed: Sequence[Explanation], sets: _Sets, spent: Mapping[int, Sequence[float]]
) -> list[Explanation]:
    leaders: dict[int, int] = {}
    for number in sorted(range(len(listed)), key=lambda i: -listed[i].gain):
        leaders.setdefault(sets.find(number), number)
    found = []
    for number, each in enumerate(listed):
        key = sets.find(number)
        if key not in spent:
            found.append(each)
        elif leaders[key] == number:
            found.append(replace(each, within=(spent[key][0], spent[key][1])))
        else:
            found.append(replace(each, part_of=listed[leaders[key]].change))
    return found


def _regions(parts: Sequence[PieceTerms], anchors: Collection[Node]) -> _Sets:
    """The regions as sets of parts: parts belong together if one reads a term of the other that is
    no value of both models."""
    sets = _Sets()
    owner = {n: i for i, sides in enumerate(parts) for side in sides for n in side}
    for i, sides in enumerate(parts):
        for node in (n for side in sides for n in side):
            for arg in node.args:
                if arg not in anchors and owner.get(arg, i) != i:
                    sets.join(i, owner[arg])
    return sets
