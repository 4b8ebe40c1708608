"""Changes of an optimization: every step as two small graphs over common operands, equal ones
counted once."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Graph, Node, Tensor, substitute, topological, users, variable, weight, with_args
from taso_mirage.operators.expressions import is_weight
from taso_mirage.rewriting.equation import Equation, apply_equation, directed, matches
from taso_mirage.search.steps import BODIES, FOLDING, RewriteStep
from taso_mirage.search.weights import HALVES
from taso_mirage.verdicts import Failure

MOST = 64
"""The largest depth of a region whose operands are not known from a match; a deeper term is an
operand."""
BARE = ("constant", "extents", "absent")
Pairs = tuple[tuple[Node, Node], ...]


@dataclass(frozen=True, slots=True)
class ReportedChange:
    """A rewrite that happened at `places` (names of the original's values): `before` became
    `after`, over the same inputs.

    Leaves have canonical names, so the same rewrite in twelve layers is one change of twelve
    places. `called`: what `before` is in words, where it is many terms.
    """

    equations: tuple[str, ...]
    before: Graph
    after: Graph
    places: tuple[str, ...]
    called: str = ""

    @property
    def count(self) -> int:
        return len(self.places)


@dataclass(frozen=True, slots=True)
class Explanation:
    """A change with the seconds of one place before and after: predicted, and measured as separate
    models (None: not measured).

    `ground` is the evidence of the change at these sizes: a proof, or the check of the whole model.
    `within`: the seconds of all its places in runs of both models; with those of the changes that
    share its regions, which are `part_of` it.
    """

    change: ReportedChange
    predicted: tuple[float, float]
    measured: tuple[float, float] | None
    ground: str = ""
    within: tuple[float, float] | None = None
    part_of: ReportedChange | None = None

    @property
    def gain(self) -> float:
        """The seconds that it saves by itself at all places: measured separately, or predicted."""
        before, after = self.measured or self.predicted
        return self.change.count * (before - after)

    @property
    def counted(self) -> float:
        """The saved seconds at all places that count for this change: measured in the model, or by
        itself, or predicted; none for a part of another change."""
        if self.within is not None:
            return self.within[0] - self.within[1]
        return 0.0 if self.part_of is not None else self.gain


def by_counted_gain(listed: Iterable[Explanation]) -> list[Explanation]:
    """The largest counted gain first; the parts of a change follow it."""
    alone = sorted((each for each in listed if each.part_of is None), key=lambda each: -each.counted)
    parts = sorted((each for each in listed if each.part_of is not None), key=lambda each: -each.gain)
    return [each for head in alone for each in (head, *(p for p in parts if p.part_of is head.change))]


@dataclass(frozen=True, slots=True)
class ChangedRegion:
    """Terms that were replaced at one place, the operands (if a match gave them) below which
    nothing changed, and what the old terms are in words, where they are many."""

    equations: tuple[str, ...]
    pairs: Pairs
    operands: frozenset[Node] | None
    called: str = ""

    @property
    def news(self) -> tuple[Node, ...]:
        return tuple(new for _, new in self.pairs)

    @property
    def olds(self) -> tuple[Node, ...]:
        return tuple(old for old, _ in self.pairs)


def region_leaves(region: ChangedRegion, heights: Heights, most: int = MOST) -> frozenset[Node]:
    """The operands of a region: those of a match, or the highest terms that both sides reach, below
    `most` terms."""
    return _boundary(region, heights, most) if region.operands is None else region.operands


def changes(
    original: Model,
    steps: Sequence[RewriteStep],
    equations: Mapping[str, Equation],
    more: Iterable[ChangedRegion] = (),
) -> list[ReportedChange]:
    """The distinct changes of the steps from the original's terms, in the order of their first
    places, after those of `more` regions.

    `equations` are those that the steps name, by name; the reverse of one is called `name~`.
    """
    names = carry_names(original, steps)
    pairs = [pair for step in steps if step.shown for pair in zip(step.shown, step.old, strict=True)]
    names = {**{shown: names[old] for shown, old in reversed(pairs) if old in names}, **names}
    heights = Heights()
    found: dict[tuple[tuple[str, ...], Graph, Graph, str], list[str]] = {}
    for region in (*more, *_chain(r for step in steps for r in changed_regions(step, equations))):
        leaves = region_leaves(region, heights)
        before, after = canonical_sides(region, leaves)
        if before != after:
            key = (region.equations, before, after, region.called)
            found.setdefault(key, []).append(place_of(region, leaves, names))
    return [
        ReportedChange(equations, before, after, tuple(places), called)
        for (equations, before, after, called), places in found.items()
    ]


def _chain(regions: Iterable[ChangedRegion]) -> Iterator[ChangedRegion]:
    """Merge successive regions of which each replaces exactly the result of the previous one: from
    the first old terms to the last new ones."""
    current: ChangedRegion | None = None
    for region in regions:
        if current is not None and current.news == region.olds:
            pairs = tuple(zip(current.olds, region.news, strict=True))
            current = ChangedRegion((*current.equations, *region.equations), pairs, None)
            continue
        if current is not None:
            yield current
        current = region
    if current is not None:
        yield current


def change_of(step: RewriteStep, equations: Mapping[str, Equation]) -> ChangedRegion | None:
    """Everything that a step replaced as one region; None if it only replaced bodies of nodes."""
    regions = list(changed_regions(step, equations))
    if len(regions) < 2:
        return regions[0] if regions else None
    return ChangedRegion(step.equations, tuple(pair for region in regions for pair in region.pairs), None)


# ---------------------------------------------------------------- regions


def changed_regions(step: RewriteStep, equations: Mapping[str, Equation]) -> Iterator[ChangedRegion]:
    """The regions that a step replaced, each without the unchanged context above it."""
    if step.equations == (BODIES,):  # changes inside are a result of their own
        return
    pairs = tuple(step.table.items())
    if step.equations in ((FOLDING,), (HALVES,)):
        yield from (ChangedRegion(step.equations, (pair,), None) for pair in pairs)
        return
    if step.over is not None:
        yield ChangedRegion(step.equations, pairs, step.over)
        return
    taken = [_in_direction(name, equations) for name in step.equations if name != FOLDING]
    known = [e for e in taken if e is not None]
    inner = _innermost(pairs, known if len(known) == len(taken) else ())
    if inner:
        exact = _application(known[0], inner) if len(known) == len(step.equations) == 1 else None
        yield exact or ChangedRegion(step.equations, inner, None)


def _in_direction(name: str, equations: Mapping[str, Equation]) -> Equation | None:
    stated, backward = directed(name)
    equation = equations.get(stated)
    return _reverse(equation) if equation is not None and backward else equation


@lru_cache(maxsize=1 << 14)
def _reverse(equation: Equation) -> Equation | None:
    return equation.reverse()


def _innermost(pairs: Pairs, equations: Sequence[Equation]) -> Pairs:
    """The pairs below the context.

    A term that no equation rewrote and that differs only in its operands is context; its operands
    are equal one by one, because they were rewritten and the term was rebuilt over the results.
    """
    found: dict[tuple[Node, Node], None] = {}
    seen: set[tuple[Node, Node]] = set()
    pending = list(reversed(pairs))
    while pending:
        old, new = pair = pending.pop()
        if old is new or pair in seen:
            continue
        seen.add(pair)
        inner = (old.args[0], new.args[0]) if old.op == new.op == "item" else pair  # a region's outputs are tensors
        if _is_context(*pair, equations) and (inner == pair or _is_context(*inner, equations)):
            pending += reversed(list(zip(inner[0].args, inner[1].args, strict=True)))
        else:
            found[pair] = None
    return tuple(found)


def _is_context(old: Node, new: Node, equations: Sequence[Equation]) -> bool:
    same = old.op == new.op and old.attrs == new.attrs and len(old.args) == len(new.args)
    if not same or not equations or any(a.type != b.type for a, b in zip(old.args, new.args, strict=True)):
        return False
    first, *later = equations
    if later:
        return not _matches_alone(first, old) and not any(old.op in e.roots for e in later)
    return not (_turns(first, old, new) if len(first.roots) == 1 else _matches_alone(first, old))


def _turns(equation: Equation, old: Node, new: Node) -> bool:
    """Whether an equation with one output rewrites one term to the other."""
    return any(apply_equation(equation, found) == (new,) for found in matches(equation, old))


def _matches_alone(equation: Equation, node: Node) -> bool:
    """Whether a term has the operators of one of the outputs of the left-hand side; attributes and
    guards are ignored."""
    sides = (Graph(equation.lhs.inputs, (_bare(o),)) for o in equation.lhs.outputs if o.op == node.op)
    return any(next(matches(Equation("", side, side), node), None) is not None for side in sides)


@lru_cache(maxsize=1 << 14)
def _bare(pattern: Node) -> Node:
    if pattern.op in ("input", "splat") or not pattern.args:
        return pattern
    return Node(pattern.op, tuple(map(_bare, pattern.args)))


def _application(equation: Equation, pairs: Pairs) -> ChangedRegion | None:
    """The application of the equation that turned the old terms into the new ones, with the values
    of its variables."""
    olds, news = (tuple(side) for side in zip(*pairs, strict=True))
    nodes, around = list(olds), {}
    if len(equation.roots) > 1:  # its outputs may be deeper: terms above them look like one of them
        order, kept = topological(olds), set(topological(news))
        nodes += [n for n in reversed(order) if n not in kept]
        around = users(order)
    for node in nodes:
        for found in matches(equation, node, around):
            results = apply_equation(equation, found)
            if isinstance(results, Failure):
                continue
            table = {old: new for old, new in zip(found.outputs, results, strict=True) if old is not new}
            if table and substitute(olds, table) == news:
                return ChangedRegion((equation.name,), tuple(table.items()), frozenset(found.operands.values()))
    return None


class Heights(dict[Node, int]):
    """The length of the longest path from a term down to a leaf."""

    def __missing__(self, node: Node) -> int:
        for each in topological([node], stop=self):
            self[each] = 1 + max((self[a] for a in each.args), default=-1)
        return self[node]


OLD, NEW = 1, 2


def _boundary(region: ChangedRegion, heights: Heights, most: int) -> frozenset[Node]:
    """The highest terms that both sides reach, or leaves; or those below `most` terms. Terms are
    visited from above, each after all terms above it."""
    marks: dict[Node, int] = {}
    heap: list[tuple[int, int, Node]] = []

    def reach(node: Node, mark: int) -> None:
        if node not in marks:
            heapq.heappush(heap, (-heights[node], len(marks), node))
        marks[node] = marks.get(node, 0) | mark

    for side, mark in ((region.olds, OLD), (region.news, NEW)):
        for node in side:
            reach(node, mark)
    roots = {*region.olds, *region.news}
    leaves: set[Node] = set()
    inside = 0
    while heap:
        _, _, node = heapq.heappop(heap)
        both = marks[node] == OLD | NEW and isinstance(node.type, Tensor) and node not in roots
        if both or inside >= most or not node.args or _opaque(node):
            leaves.add(node)
            continue
        inside += 1
        for arg in node.args:
            reach(arg, marks[node])
    return frozenset(leaves)


def _opaque(node: Node) -> bool:
    return node.op == "opaque" or (node.op == "item" and node.args[0].op == "opaque")


# ---------------------------------------------------------------- canonical form and names


def canonical_sides(region: ChangedRegion, leaves: frozenset[Node]) -> tuple[Graph, Graph]:
    """The two sides over leaves that are named in the order in which they are met."""
    done: dict[Node, Node] = {}
    inputs: list[Node] = []
    weights = 0
    for node in with_leaves((*region.olds, *region.news), leaves):
        if node not in leaves:
            done[node] = with_args(node, tuple(done[a] for a in node.args))
        elif node.op in BARE or not isinstance(node.type, Tensor):
            done[node] = node
        elif is_weight(node):
            weights += 1
            done[node] = weight(f"w{weights}", node.type)
        else:
            done[node] = variable(f"x{len(inputs) + 1}", node.type)
            inputs.append(done[node])
    before, after = (tuple(done[n] for n in side) for side in (region.olds, region.news))
    return Graph(tuple(inputs), before), Graph(tuple(inputs), after)


def with_leaves(outputs: Sequence[Node], leaves: frozenset[Node]) -> Iterator[Node]:
    """All terms down to the leaves, operands first, the leaves too, each once."""
    given: set[Node] = set()
    for node in topological(outputs, stop=leaves):
        for arg in node.args:
            if arg in leaves and arg not in given:
                given.add(arg)
                yield arg
        yield node
    yield from (n for n in dict.fromkeys(outputs) if n in leaves and n not in given)


def place_of(region: ChangedRegion, leaves: frozenset[Node], names: Mapping[Node, str]) -> str:
    """The name of the value that was replaced; where it has none, that of a weight beside it."""
    for old in region.olds:
        if old in names:
            return names[old]
    for node in with_leaves(region.olds, leaves):
        if node.op == "weight" and node in names:
            return f"near {names[node]}"
    return ""


def carry_names(original: Model, steps: Sequence[RewriteStep]) -> dict[Node, str]:
    """Names of the original's values, and of the terms that they became on the way."""
    names: dict[Node, str] = dict(original.names)
    names.update(zip(original.graph.outputs, original.output_names, strict=True))
    current = original.graph.outputs
    for sweep, group in groupby(steps, key=lambda step: step.sweep):
        tables = [step.table for step in group]
        if sweep:
            tables = [{old: new for table in tables for old, new in table.items()}]
        for table in tables:
            current = replay_names(current, table, bool(sweep), names)
    return names


def replay_names(
    outputs: tuple[Node, ...], table: Mapping[Node, Node], sweep: bool, names: dict[Node, str]
) -> tuple[Node, ...]:
    """The outputs after a replay of the table, as in `steps.replay`; terms hand their names on to
    their replacements, in `names`."""
    done: dict[Node, Node] = {}
    for node in topological(outputs):
        new = node if node in table and not sweep else with_args(node, tuple(done[a] for a in node.args))
        met = [new]
        while new in table and (sweep or len(met) == 1) and table[new] not in met:
            new = table[new]
            met.append(new)
        if node in names and node.args:
            for each in met:
                names.setdefault(each, names[node])
        done[node] = new
    return tuple(done[o] for o in outputs)
