"""Why an optimized model is faster and right: for every distinct change its gain, predicted and measured, and its equations with proofs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from taso_mirage import library, ops
from taso_mirage.dims import fixed
from taso_mirage.equation import work_terms
from taso_mirage.errors import TasoMirageError
from taso_mirage.explain import grounds
from taso_mirage.expressions import is_weight
from taso_mirage.ir import Graph, Node, topological, with_args
from taso_mirage.meanings.work import size, sized
from taso_mirage.model import Array, random_array
from taso_mirage.onnx_io import serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.optimize.cache import CostCache, cache_path
from taso_mirage.optimize.changes import FOLDING, Change, changes
from taso_mirage.optimize.cost import Cost, Measured, Roofline
from taso_mirage.optimize.passes import Context
from taso_mirage.optimize.pipeline import Config, Progress, Result, rules
from taso_mirage.optimize.session import Session, interleaved
from taso_mirage.text import laws, show_equation, show_graph

MEASURING = 30.0
"""Seconds that measuring all changes may take together; the rest are left unmeasured."""
EACH, LEAST = 0.1, 7
LARGEST = 1 << 29
"""Bytes of operands up to which a change is measured."""


@dataclass(frozen=True, slots=True)
class Statement:
    """An equation in the direction in which it was taken, its guard, and what it stands on."""

    name: str
    text: str
    where: str
    evidence: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """A change with the seconds of one place before and after: predicted, and measured as models of their own (None: not measured)."""

    change: Change
    predicted: tuple[float, float]
    measured: tuple[float, float] | None

    @property
    def gain(self) -> float:
        """Predicted seconds won at all places."""
        return self.change.count * (self.predicted[0] - self.predicted[1])


def explained(result: Result, config: Config, progress: Progress, seconds: float = MEASURING) -> list[Explanation]:
    """The distinct changes of a result, the largest predicted gain first. Measures for about `seconds` at most."""
    found = changes(result.original, result.steps, {e.name: e for e in rules()})
    with closing(CostCache(cache_path() if config.measure else None)) as cache:
        cost = _cost(result, config, cache)
        predicted = {c: (cost(c.before.outputs), cost(c.after.outputs)) for c in found}
    found.sort(key=lambda c: c.count * (predicted[c][1] - predicted[c][0]))
    end = time.monotonic() + seconds
    listed: list[Explanation] = []
    for i, change in enumerate(found):
        progress("explain", i, len(found))
        timed = config.measure and time.monotonic() < end
        listed.append(Explanation(change, predicted[change], measured_seconds(change, result) if timed else None))
    return listed


def _cost(result: Result, config: Config, cache: CostCache) -> Cost:
    """The cost by which the result was chosen."""
    opsets = {"com.microsoft": 1, **result.original.opsets}
    context = Context(opsets, result.original.sizes, target=result.target)
    return Cost(Measured(context, cache) if config.measure else Roofline(context))


# ---------------------------------------------------------------- measuring


def measured_seconds(change: Change, result: Result) -> tuple[float, float] | None:
    """Lower quartiles of interleaved runs of both sides as models of their own; None where one cannot be built, loaded or run."""
    if not work_terms(change.before):
        return None  # computed ahead: it takes no time at a run
    sizes = result.original.sizes
    try:
        before, after = at_sizes(change.before, sizes), at_sizes(change.after, sizes)
        leaves = {n.attr("name"): n for n in (*before, *after) if n.op == "weight"}
        if sum(size(n.type) for n in (*leaves.values(), *before.inputs)) > LARGEST:
            return None
        rng = np.random.default_rng(0)
        weights = {name: Array(random_array(n, rng, {})) for name, n in leaves.items()}
        feed = {n.attr("name"): random_array(n, rng, {}) for n in before.inputs}
        opsets = {"": 17, "com.microsoft": 1, **result.original.opsets}
        sessions = [Session(serialize(standalone(side, opsets, weights)), result.target) for side in (before, after)]
        for session in sessions:
            session.run(feed)  # says what is wrong, where the timed runs would not
        times = interleaved(sessions, feed, EACH, LEAST)
    except (TasoMirageError, LookupError, TypeError, ValueError):
        return None
    low, other = (float(np.percentile(t, 25)) for t in times)
    return low, other


def at_sizes(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """The graph with every symbol at its size. Raises what typing raises."""
    done: dict[Node, Node] = {}
    for node in topological((*graph.inputs, *graph.outputs)):
        done[node] = _at_sizes(node, tuple(done[a] for a in node.args), sizes)
    return Graph(tuple(done[n] for n in graph.inputs), tuple(done[n] for n in graph.outputs))


def _at_sizes(node: Node, args: tuple[Node, ...], sizes: Mapping[str, int]) -> Node:
    if node.op in ("input", "weight"):
        return Node(node.op, (), node.attrs, sized(node.type, sizes))
    if node.op == "extents":
        return ops.extents(fixed(node.attr("values"), sizes), bool(node.attr("scalar")))
    if node.op in ("constant", "absent", "opaque"):
        return with_args(node, args)
    return ops.term(node.op, *args, **{k: fixed(v, sizes) for k, v in node.attrs})


# ---------------------------------------------------------------- equations


@cache
def statements() -> Mapping[str, Statement]:
    """Every equation that the optimizer may apply, by name."""
    found = {law.name: _of_law(law.name, show_equation(law)) for law in laws()}
    for rule in library.load():
        evidence = f"generated rule of substitutions/{rule.family}.toml: {grounds(rule.evidence)}"
        found[rule.name] = _statement(rule.name, show_equation(rule.equation), evidence)
    return found


def _of_law(name: str, text: str) -> Statement:
    file = ops.get(name.rpartition(".")[0]).body.__module__.replace(".", "/")
    evidence = f"law stated beside its operator ({file}.py): fuzzed on random legal typings and, where possible, proved by the tests"
    return _statement(name, text, evidence)


def _statement(name: str, text: str, evidence: str) -> Statement:
    body, _, guard = text.partition(" where ")
    return Statement(name, body, guard, evidence)


def statement(name: str) -> Statement:
    """The equation of a step's name; `name~` is the reverse of one."""
    if name == FOLDING:
        return Statement(name, "terms over weights alone become weights", "", "computed ahead in float64")
    forward = statements().get(name.removesuffix("~"))
    if forward is None:
        return Statement(name, "", "", "no equation of that name is known here")
    if not name.endswith("~"):
        return forward
    backward = next(e for e in rules() if e.name == forward.name).reverse()
    if backward is None:
        return forward
    return _statement(name, show_equation(backward), f"{forward.evidence} (read from right to left)")


# ---------------------------------------------------------------- as data and text


def as_data(listed: Sequence[Explanation]) -> list[dict[str, Any]]:
    """The changes as JSON data; seconds are of one place."""
    return [
        {
            "count": each.change.count,
            "places": list(each.change.places),
            "equations": [_fields(statement(name)) for name in each.change.equations],
            "predicted": {"before": each.predicted[0], "after": each.predicted[1]},
            "measured": None if each.measured is None else {"before": each.measured[0], "after": each.measured[1]},
            "before": show_graph(each.change.before),
            "after": show_graph(each.change.after),
        }
        for each in listed
    ]


def _fields(each: Statement) -> dict[str, str]:
    return {"name": each.name, "equation": each.text, "where": each.where, "evidence": each.evidence}


def as_lines(listed: Sequence[Explanation]) -> Iterator[str]:
    """The changes as text; an equation is stated where it comes first."""
    total = sum(each.change.count for each in listed)
    yield (
        f"{len(listed)} distinct changes at {total} places, the largest predicted gain first" if total else "no changes"
    )
    stated: set[str] = set()
    for i, each in enumerate(listed, 1):
        yield ""
        yield f"{i}. {each.change.count} x {outline(each.change)}"
        yield f"   at {shortened(each.change.places)}"
        yield f"   {gains(each)}"
        for name in dict.fromkeys(each.change.equations):
            yield f"   by {name}" + (" (above)" if name in stated else "")
            if name not in stated:
                stated.add(name)
                yield from (f"      {line}" for line in _stated(statement(name)))


def _stated(each: Statement) -> Iterator[str]:
    yield each.text
    if each.where:
        yield f"where {each.where}"
    yield f"evidence: {each.evidence}"


def outline(change: Change) -> str:
    """The operators that went and came, those on both sides left out: `add, layer_norm -> skip_layer_norm`."""
    sides = (_operators(change.before, change.after), _operators(change.after, change.before))
    return " -> ".join(side or "nothing" for side in sides)


def _operators(side: Graph, other: Graph) -> str:
    """The operators of one side that are not, term for term, on the other; those over weights alone only if there are no others."""
    common = set(other)
    own = [n for n in side if n.args and n.op != "item" and n not in common]
    shown = [n for n in own if not is_weight(n)] or own
    if not shown:
        shown = [n for n in side.outputs if n.op in ("weight", "constant", "extents")]
    return ", ".join(op if n == 1 else f"{n} {op}" for op, n in Counter(n.op for n in shown).items())


def shortened(places: Sequence[str], most: int = 6) -> str:
    """The first few places by name, and how many more there are."""
    named = [p for p in places if p][:most]
    rest = len(places) - len(named)
    if not named:
        return f"{rest} places without a name" if rest > 1 else "a place without a name"
    return ", ".join(named) + (f" and {rest} more" if rest else "")


def gains(each: Explanation) -> str:
    """Predicted and measured seconds of one place, in words."""
    if not work_terms(each.change.before):
        return "computed ahead: it takes no time at a run"
    text = f"predicted {duration(each.predicted[0])} -> {duration(each.predicted[1])} a place"
    if each.change.count > 1:
        text += f", {duration(each.gain)} won in all"
    if each.measured is None:
        return text + "; not measured"
    before, after = each.measured
    return text + f"; measured alone {duration(before)} -> {duration(after)}, {before / after:.2f} times as fast"


def duration(seconds: float) -> str:
    """`12.3 us`."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"
