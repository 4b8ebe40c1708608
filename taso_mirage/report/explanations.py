"""The explanation why an optimized model is faster and right: for every distinct change its gain,
predicted and measured, and its equations with proofs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from typing_extensions import TypedDict

from taso_mirage.ir.terms import Graph
from taso_mirage.measure.cost_cache import proofs_path
from taso_mirage.measure.shapes import Workloads
from taso_mirage.operators import ops
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.work import size, sized
from taso_mirage.prove.rules.cases import Instance
from taso_mirage.prove.rules.proofs import Coverage, Proofs
from taso_mirage.report.changes import Explanation, ReportedChange, by_counted_gain
from taso_mirage.report.loop_changes import LOOPS
from taso_mirage.report.result import Result
from taso_mirage.report.rule_in_words import grounds
from taso_mirage.report.times import result_costs
from taso_mirage.rewriting import library
from taso_mirage.rewriting.equation import directed, work_terms
from taso_mirage.rewriting.text import laws, show_equation, show_graph
from taso_mirage.search.config import Config, Progress
from taso_mirage.search.cost import UNMEASURABLE, Cost, Weighted
from taso_mirage.search.loops.inductions import INDUCTION
from taso_mirage.search.partial.source import Mutation
from taso_mirage.search.steps import FOLDING
from taso_mirage.search.weights import HALVES
from taso_mirage.system.terminal import duration, plural

MEASURING = 30.0
"""The largest number of seconds for measuring all changes; the remaining changes are not
measured."""
EACH, LARGEST = 0.1, 1 << 29
"""The seconds of the measurement of a change, and the largest number of bytes of operands of a
measured change."""


UNNAMED = {
    LOOPS: "equal steps are a loop, which is equal to another one in each step",
    INDUCTION: "movements of elements to where they were are left out",
}
"""The names of changes that are no equations, and what they are in words."""


@dataclass(frozen=True, slots=True)
class StatedEquation:
    """An equation in the direction of its application, its guard, and its evidence.

    `region`: for a corrected mutant, a picture of the part that is right without corrections.
    """

    name: str
    text: str
    where: str
    evidence: str
    region: str = ""


def explained(result: Result, config: Config, progress: Progress, seconds: float = MEASURING) -> list[Explanation]:
    """The distinct changes of a result, the largest gain first: measured alone, else predicted.

    Measures for about `seconds` at most.
    """
    found = result.changes
    proofs = Proofs(proofs_path())
    with result_costs(result, config, seconds) as (term, end):
        cost = Cost(term)
        predicted = {c: (cost(c.before.outputs), cost(c.after.outputs)) for c in found}
        found.sort(key=lambda c: c.count * (predicted[c][1] - predicted[c][0]))
        listed: list[Explanation] = []
        for i, change in enumerate(found):
            progress("explain", i, len(found))
            timed = config.measure and time.monotonic() < end
            measured = measured_seconds(change, term, result.workloads) if timed else None
            listed.append(Explanation(change, predicted[change], measured, ground(change, proofs)))
    proofs.close()
    return by_counted_gain(listed)


def ground(change: ReportedChange, proofs: Proofs) -> str:
    """The evidence of a change: the verdict on its case (docs/soundness.md)."""
    if change.equations in ((FOLDING,), (HALVES,)):
        return "computed from constants and weights"
    if change.equations == (LOOPS,):
        return "proved by the definition of a loop, by induction over its steps, and by equalities that are proved"
    verdict = proofs.judge(Instance(change.before.outputs, change.after.outputs))
    if verdict:
        return "proved for these sizes" if verdict.covers is Coverage.HERE else "proved for every size of its case"
    return "not proved as a whole: each of its equations was proved where it was applied, or the check of the model compares it"


def measured_seconds(change: ReportedChange, term: Weighted, workloads: Workloads) -> tuple[float, float] | None:
    """Seconds of both sides as separate models, run in turn if `term` measures; None if that is not
    possible."""
    if not work_terms(change.before):
        return None  # computed in advance: it takes no time in a run
    leaves = {n for side in (change.before, change.after) for n in (*side, *side.inputs) if n.op in ("input", "weight")}
    try:
        largest = max(sum(size(sized(n.type, sizes)) for n in leaves) for sizes, _ in workloads)
    except UNMEASURABLE:  # a size that is known only at run time
        return None
    if largest > LARGEST:
        return None
    times = term.in_turn((change.before.outputs, change.after.outputs), EACH)
    return None if times is None else (times[0], times[1])


# ---------------------------------------------------------------- equations


@cache
def statements() -> Mapping[str, StatedEquation]:
    """Every equation that the optimizer may apply, by name."""
    found = {law.name: _of_law(law.name, show_equation(law)) for law in laws()}
    for rule in library.load_rules():
        evidence = f"generated rule of substitutions/{rule.family}.toml: {grounds(rule.evidence)}"
        found[rule.name] = _statement(rule.name, show_equation(rule.equation), evidence)
    return found


def _of_law(name: str, text: str) -> StatedEquation:
    file = ops.get(name.rpartition(".")[0]).body.__module__.replace(".", "/")
    evidence = f"law stated beside its operator ({file}.py); each application has a proof or a check of its own, which the change names"
    return _statement(name, text, evidence)


def _of_mutant(each: Mutation) -> StatedEquation:
    """The equation of a program of fixed sizes and its corrected mutant, described in words because
    the text of both would fill a page."""
    what = f"a mutant of this program ({', then '.join(each.families)})"
    corrected = f", right for {each.right:.1%} of its elements, the rest corrected" if each.region else ""
    return StatedEquation(each.equation.name, f"{what}{corrected}", "", each.equation.evidence, each.region)


def _statement(name: str, text: str, evidence: str) -> StatedEquation:
    body, _, guard = text.partition(" where ")
    return StatedEquation(name, body, guard, evidence)


def statement(name: str, result: Result) -> StatedEquation:
    """The equation of a step's name, in the direction of its application.

    Mutants and the user's own rules come from the result.
    """
    mutants = result.mutations.by_name
    if name in mutants:
        return _of_mutant(mutants[name])
    if name == FOLDING:
        return StatedEquation(name, "terms over weights alone become weights", "", "computed in advance in float64")
    if name in UNNAMED:
        return StatedEquation(name, UNNAMED[name], "", "proved where it was applied")
    stated, backward = directed(name)
    equation = result.named.get(stated)
    if equation is None:
        return StatedEquation(name, "", "", "no equation of that name is known here")
    own = _statement(stated, show_equation(equation), "a rule of yours, proved where it was applied")
    forward = statements().get(stated, own)
    reverse = equation.reverse() if backward else None
    if reverse is None:
        return forward
    return _statement(name, show_equation(reverse), f"{forward.evidence} (read from right to left)")


# ---------------------------------------------------------------- as data and text


class ChangeData(TypedDict):
    """One distinct change of a model; seconds are of one place. Graphs are printed as functions."""

    count: int
    called: str
    """The old terms in words, where they are many; otherwise empty."""
    places: list[str]
    equations: list[dict[str, str]]
    predicted: dict[str, float]
    measured: dict[str, float] | None
    in_model: dict[str, float] | None
    """Measured in runs of both models, for all places and for the parts of the change together."""
    part: bool
    """True for a part of another change, which has its seconds in the model."""
    ground: str
    before: str
    after: str


def explanation_data(listed: Sequence[Explanation], result: Result) -> list[ChangeData]:
    """The changes as JSON data; seconds are of one place."""
    return [
        {
            "count": each.change.count,
            "called": each.change.called,
            "places": list(each.change.places),
            "equations": [_fields(statement(name, result)) for name in each.change.equations],
            "predicted": {"before": each.predicted[0], "after": each.predicted[1]},
            "measured": None if each.measured is None else {"before": each.measured[0], "after": each.measured[1]},
            "in_model": None if each.within is None else {"before": each.within[0], "after": each.within[1]},
            "part": each.part_of is not None,
            "ground": each.ground,
            "before": show_graph(each.change.before),
            "after": show_graph(each.change.after),
        }
        for each in listed
    ]


def _fields(each: StatedEquation) -> dict[str, str]:
    found = {"name": each.name, "equation": each.text, "where": each.where, "evidence": each.evidence}
    return found | ({"right without correction": each.region} if each.region else {})


def as_lines(listed: Sequence[Explanation], result: Result) -> Iterator[str]:
    """The changes as text; an equation is stated where it comes first."""
    total = sum(each.change.count for each in listed)
    changes, places = plural(len(listed), "distinct change"), plural(total, "place")
    yield (f"{changes} at {places}, the largest gain first" if total else "no changes")
    stated: set[str] = set()
    for i, each in enumerate(listed, 1):
        yield ""
        yield f"{i}. {each.change.count} x {explanation_lines(each.change)}"
        yield f"   at {shortened(each.change.places)}"
        yield f"   {gains(each)}"
        if each.ground:
            yield f"   {each.ground}"
        for name in dict.fromkeys(each.change.equations):
            yield f"   by {name}" + (" (above)" if name in stated else "")
            if name not in stated:
                stated.add(name)
                yield from (f"      {line}" for line in _statement_lines(statement(name, result)))


def _statement_lines(each: StatedEquation) -> Iterator[str]:
    yield each.text
    if each.where:
        yield f"where {each.where}"
    yield f"evidence: {each.evidence}"
    if each.region:
        yield "right without correction (.), corrected (#):"
        yield from each.region.splitlines()


def explanation_lines(change: ReportedChange) -> str:
    """The removed operators, or what they are in words, and the added ones, without those on both
    sides: `add, layer_norm -> skip_layer_norm`."""
    sides = (change.called or _operators(change.before, change.after), _operators(change.after, change.before))
    return " -> ".join(side or "nothing" for side in sides)


def _operators(side: Graph, other: Graph) -> str:
    """The operators of one side that are not, term for term, on the other; those over weights alone
    only if there are no others."""
    common = set(other)
    own = [n for n in side if n.args and n.op != "item" and n not in common]
    shown = [n for n in own if not is_weight(n)] or own
    if not shown:
        shown = [n for n in side.outputs if n.op in ("weight", "constant", "extents")]
    return ", ".join(op if n == 1 else f"{n} {op}" for op, n in Counter(n.op for n in shown).items())


def shortened(places: Sequence[str], most: int = 6) -> str:
    """The first few places by name, and the number of others."""
    named = [p for p in places if p][:most]
    rest = len(places) - len(named)
    if not named:
        return f"{rest} places without a name" if rest > 1 else "a place without a name"
    return ", ".join(named) + (f" and {rest} more" if rest else "")


def gains(each: Explanation) -> str:
    """Predicted and measured seconds of one place, in words."""
    if not work_terms(each.change.before):
        return "computed in advance: it takes no time in a run"
    text = f"predicted {duration(each.predicted[0])} -> {duration(each.predicted[1])} a place"
    if each.measured is None:
        text += "; not measured"
    else:
        before, after = each.measured
        text += f"; measured alone {duration(before)} -> {duration(after)}, {before / after:.2f} times as fast"
    if each.within is not None:
        text += f"; in the model {duration(each.within[0])} -> {duration(each.within[1])} for all places"
    if each.part_of is not None:
        return f"{text}; its gain in the model counts in the change to {explanation_lines(each.part_of)}"
    return text + (f"; {duration(each.counted)} saved in all" if each.change.count > 1 else "")
