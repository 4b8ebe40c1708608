"""The command `taso-mirage mutants`: the mutants of a costly part, where they are right, and their
costs. Heavy modules are imported when the command runs."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent, wrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taso_mirage.cli.interrupt import FOUND, interruptible
from taso_mirage.cli.options import LARGEST_COUNT, JsonOption, ModelFile, ShapeOption
from taso_mirage.system.terminal import plural, say
from taso_mirage.verdicts import Evidence, Failure

if TYPE_CHECKING:
    from taso_mirage.ir.model import Model
    from taso_mirage.ir.terms import Graph, Node
    from taso_mirage.measure.cost_cache import CostCache
    from taso_mirage.report.summary import Stages
    from taso_mirage.search.config import Config, Stop
    from taso_mirage.search.cost import Cost, Weighted
    from taso_mirage.search.partial.agreement import Agreement
    from taso_mirage.search.partial.families import Mutant
    from taso_mirage.search.partial.parts import CostlyPart
    from taso_mirage.search.ranking import Ranked

WIDTH = 100
MADE = 0.2
"""The share of the budget after which no more mutants of several steps are made."""
SEARCHED = 0.7
"""The share of the budget after which no more mutants are tried, and those found are verified."""
PLACES = 3
"""The number of equal parts that are named."""


def mutants_command(
    model: ModelFile,
    node: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A node, or a value that it writes (default: list the costly parts)."),
    ] = None,
    depth: Annotated[
        int, typer.Option(min=1, max=LARGEST_COUNT, metavar="N", help="Largest number of mutation steps.")
    ] = 1,
    limit: Annotated[
        int,
        typer.Option(
            min=1, max=LARGEST_COUNT, metavar="N", help="Number of mutants to show and verify, the cheapest first."
        ),
    ] = 10,
    target: Annotated[
        str, typer.Option(metavar="cpu|cuda", help="Target on which the model will run: cpu or cuda.")
    ] = "cpu",
    shape: ShapeOption = None,
    measure: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Measure operators, or estimate costs by a roofline.")
    ] = True,
    budget: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Time limit in seconds; steps in progress are completed.")
    ] = 60.0,
    as_json: JsonOption = False,
) -> None:
    """List the mutants of a costly part of MODEL.onnx: programs that are right on a part of its
    result, and corrected elsewhere.

    Each mutant is shown with a picture of where it is right, its cost without and with correction,
    and whether the corrected program was verified.
    """
    from taso_mirage.measure.shapes import parse_shape
    from taso_mirage.measure.target import target as named
    from taso_mirage.onnx_io import load
    from taso_mirage.report.summary import Stages
    from taso_mirage.search.config import Config, measuring, representative
    from taso_mirage.search.cost import Cost
    from taso_mirage.search.partial.parts import costly_parts, part

    loaded = load(model)
    config = Config(measure=measure, shapes=((parse_shape(loaded, shape or []), 1.0),), target=named(target))
    about = _About(model, loaded, representative(loaded, config), measure, limit)
    chosen = None if node is None else part(loaded, node, about.sizes)
    with Stages(quiet=as_json) as stages, interruptible(FOUND, begun=True) as stop, measuring(config) as cache:
        term = _term(about, config, cache)
        clock = _Clock(budget, stop)
        found: _Listed | _Found
        if chosen is None:
            found = _listed(about, costly_parts(loaded, about.sizes), term, stages, clock)
        else:
            found = _searched(about, chosen, depth, Cost(term), stages, clock)
    say(json.dumps(found.as_data(), indent=2) if as_json else "\n".join(found.lines()))


@dataclass(frozen=True)
class _About:
    """The request of the command: the file, its model, the sizes of dynamic dims, whether costs are
    measured, and how many parts to show."""

    path: Path
    model: Model
    sizes: Mapping[str, int]
    measure: bool
    limit: int

    @property
    def title(self) -> str:
        shown = f" at {', '.join(f'{k}={v}' for k, v in self.sizes.items())}" if self.sizes else ""
        return f"{self.path.name}{shown}"

    @property
    def how(self) -> str:
        return "measured" if self.measure else "estimated"

    def places(self, part: CostlyPart) -> list[str]:
        """A name of every place of a part."""
        from taso_mirage.search.partial.parts import part_names

        return [(part_names(self.model, node) or ["a node without a name"])[0] for node in part.nodes]

    def data(self) -> dict[str, Any]:
        return {"model": str(self.path), "sizes": dict(self.sizes), "costs": self.how}


class _Clock:
    """Whether the command is late: Ctrl-C was pressed, or a share of the budget is over."""

    def __init__(self, budget: float, stop: Stop) -> None:
        self.budget, self.stop, self.start = budget, stop, time.monotonic()

    def late(self, share: float = 1.0) -> bool:
        return self.stop.asked or time.monotonic() - self.start > share * self.budget


def _term(about: _About, config: Config, cache: CostCache) -> Weighted:
    """The optimizer's cost of terms.

    Raises RuntimeUnavailable where the target cannot be measured here.
    """
    from taso_mirage.measure.tasks import overhead
    from taso_mirage.search.cost import Weighted
    from taso_mirage.search.passes import Context

    if about.measure:
        overhead(config.target)
    context = Context({"com.microsoft": 1, **about.model.opsets}, about.sizes, target=config.target)
    return Weighted(context, [(about.sizes, 1.0)], cache if about.measure else None)


# ---------------------------------------------------------------- the costly parts


@dataclass(frozen=True)
class _Listed:
    """The costly parts with the seconds of one place, the dearest first; `total`: seconds of all
    operators, each alone. `estimated`: the number of operators that were not measured for lack of
    time."""

    about: _About
    parts: Sequence[tuple[CostlyPart, float]]
    total: float
    estimated: int

    def share(self, part: CostlyPart, seconds: float) -> float:
        return len(part.nodes) * seconds / self.total if self.total else 0.0

    def as_data(self) -> dict[str, Any]:
        from taso_mirage.rewriting.text import show_graph

        rows = [
            {"nodes": self.about.places(p), "share": self.share(p, s), "cost": s, "program": show_graph(p.program)}
            for p, s in self.parts
        ]
        return {**self.about.data(), "total": self.total, "estimated": self.estimated, "parts": rows}

    def lines(self) -> Iterator[str]:
        from taso_mirage.search.partial.families import begins
        from taso_mirage.system.terminal import duration

        if not self.parts:
            yield f"{self.about.title}: no costly part, which is a convolution, a matmul or an average pool of floats"
            return
        apart = [
            (p, s) for p, s in self.parts if len(begins(p.program.outputs[0])) == 1
        ]  # else its operands are parts, too
        yield (
            f"{self.about.title}: {plural(len(self.parts), 'costly part')} in "
            f"{plural(sum(len(p.nodes) for p, _ in self.parts), 'place')}, {sum(self.share(*r) for r in apart):.0%} of "
            f"{duration(self.total)} ({self.about.how}, each operator alone)"
        )
        if self.estimated:
            yield f"For lack of time {plural(self.estimated, 'operator')} were estimated, not measured."
        for part, seconds in self.parts[: self.about.limit]:
            first, *others = self.about.places(part)
            count = f"{len(part.nodes)} x " if others else ""
            yield from _wrapped(
                f"{self.share(part, seconds):6.1%}  ", f"{count}{duration(seconds)}, {_outline(part.program)}"
            )
            yield from _wrapped(" " * 8, f"--node {first}{_also(others)}")
        if len(self.parts) > self.about.limit:
            yield f"... and {len(self.parts) - self.about.limit} more (--limit)"


def _listed(about: _About, parts: Sequence[CostlyPart], term: Weighted, stages: Stages, clock: _Clock) -> _Listed:
    from taso_mirage.search.cost import Cost

    cost, total, estimated = Cost(term), 0.0, 0
    order = about.model.nodes()
    for i, node in enumerate(order):
        stages("cost", i, len(order))
        if clock.late():
            term.measure_until(0.0)
            estimated += about.measure and bool(node.args)
        total += cost.of(node)
    rows = [(p, cost(p.program.outputs)) for p in parts]
    rows.sort(key=lambda row: -len(row[0].nodes) * row[1])
    return _Listed(about, rows, total, estimated)


# ---------------------------------------------------------------- the mutants of one


@dataclass(frozen=True)
class _Found:
    """The mutants of a part, in their order, and the seconds of the part as it is; `left` mutants
    were not tried."""

    about: _About
    part: CostlyPart
    seconds: float
    mutants: Sequence[Ranked]
    left: int

    def as_data(self) -> dict[str, Any]:
        from taso_mirage.rewriting.text import show_graph

        return {
            **self.about.data(),
            "nodes": self.about.places(self.part),
            "program": show_graph(self.part.program),
            "cost": self.seconds,
            "mutants": [_data(each) for each in self.mutants],
            "left": self.left,
        }

    def lines(self) -> Iterator[str]:
        from taso_mirage.system.terminal import duration

        first, *others = self.about.places(self.part)
        yield from _wrapped("", f"{self.about.title}, {first}{_also(others)}")
        yield from _wrapped(
            "  ", f"{duration(self.seconds)} as it is ({self.about.how}): {_outline(self.part.program)}"
        )
        yield from _wrapped("", self._counts())
        for i, each in enumerate(self.mutants[: self.about.limit], 1):
            yield ""
            yield from _mutant(i, each, self.seconds)
        if len(self.mutants) > self.about.limit:
            yield f"\n... and {len(self.mutants) - self.about.limit} more (--limit)"

    def _counts(self) -> str:
        refused = sum(each.corrected is None for each in self.mutants)
        total = sum(each.total for each in self.mutants)
        left = f"; {self.left} more were not tried (--budget, or Ctrl-C)" if self.left else ""
        text = (
            f"{plural(len(self.mutants), 'mutant')}: {total} right everywhere, {len(self.mutants) - total - refused} corrected, "
            f"{refused} without a correction{left}."
        )
        return text + (" In pictures . is right, # is wrong." if refused + total < len(self.mutants) else "")


def _searched(about: _About, part: CostlyPart, depth: int, cost: Cost, stages: Stages, clock: _Clock) -> _Found:
    from taso_mirage.search.ranking import costed, proved, ranked_mutants

    stages("mutants", 0, 0)
    program, found = part.program, []
    every = _made(program, depth, lambda: clock.late(MADE))
    seconds = cost(program.outputs)
    for each in costed(program, every, cost, lambda: clock.late(SEARCHED)):
        found.append(each)
        stages("mutants", len(found), len(every))
    order = ranked_mutants(found)
    shown, rest = order[: about.limit], order[about.limit :]
    checked: list[Ranked] = []
    for each in proved(program, shown, clock.late):
        checked.append(each)
        stages("verify", len(checked), len(shown))
    return _Found(about, part, seconds, [*checked, *rest], len(every) - len(found))


def _made(program: Graph, depth: int, late: Callable[[], bool]) -> list[Mutant]:
    """The mutants of one step, and those of more until it is late: every step multiplies them."""
    from taso_mirage.search.partial.families import mutants_of

    found = []
    for each in mutants_of(program, depth):
        if len(each.families) > 1 and late():
            break
        found.append(each)
    return found


def _mutant(i: int, each: Ranked, before: float) -> Iterator[str]:
    from taso_mirage.search.partial.picture import picture
    from taso_mirage.system.terminal import duration

    name = f"{i}. {', then '.join(each.mutant.families)}: "
    without = f"{duration(each.without)} without correction"
    if each.corrected is None:
        yield from _wrapped("", f"{name}no correction; {without}")
        yield from _wrapped("   ", str(each.refused and each.refused.reason))
    else:
        gain = f"{duration(each.cost)} corrected, {before / each.cost:.2f} times as fast" if each.cost else "no cost"
        yield from _wrapped("", name + (gain.replace(" corrected", "") if each.total else f"{gain}; {without}"))
    yield from _wrapped("   ", _right(each))
    yield from _wrapped("   runs ", _outline(each.corrected or each.mutant.graph))
    if each.corrected is not None:
        yield from _wrapped("   ", _evidence(each))
    if each.agreement is not None and not each.total:
        for region in each.agreement.regions:
            yield indent(picture(region), "     ")


def _right(each: Ranked) -> str:
    """Where a mutant is right, and the correction of the rest."""
    if each.agreement is None:
        return "unknown where it is right"
    points = "" if each.agreement.whole else " (compared at points of each box)"
    if each.total:
        return f"right everywhere{points}"
    text = f"right in {each.share:.1%} of the elements{points}"
    if each.corrected is None:
        return text
    one = ", joined to one operator" if each.joined else ""
    return f"{text}; the original corrects {plural(each.pieces, 'box', 'boxes')}{one}"


def _evidence(each: Ranked) -> str:
    from taso_mirage.search.partial.whole import tests_in_words

    if each.evidence is None:
        return "not verified for lack of time (--budget, or Ctrl-C)"
    if isinstance(each.evidence, Failure):
        return f"WRONG, not to be used: {each.evidence.reason}"
    return f"verified: {tests_in_words(each.evidence)}"


# ---------------------------------------------------------------- text and data


def _outline(program: Graph) -> str:
    """One line about a program: its products and pools with their shapes, and the number of the
    other operators."""
    from taso_mirage.ir.terms import topological
    from taso_mirage.operators.expressions import is_weight
    from taso_mirage.search.partial.families import begins

    runs = [n for n in topological(program.outputs) if n.args and not is_weight(n)]
    main = Counter(_operator(n) for n in runs if begins(n) == {n})
    rest = Counter(n.op for n in runs if begins(n) != {n})
    texts = [[text if n == 1 else f"{n} {text}" for text, n in each.items()] for each in (main, rest)]
    return "; ".join(text for text in (" + ".join(texts[0]), ", ".join(texts[1])) if text)


def _operator(node: Node) -> str:
    """`conv [1,64,56,56] x [64,64,3,3] strides 2,2`; attributes that do nothing are left out."""
    from taso_mirage.ir.dims import show_shape
    from taso_mirage.ir.terms import ABSENT

    shapes = " x ".join(show_shape(a.shape).replace(" ", "") for a in node.args if a is not ABSENT)
    attrs = {k: v if isinstance(v, tuple) else (v,) for k, v in node.attrs}
    idle = {k: 0 if k in ("pads", "extra", "count_include_pad") else 1 for k in attrs}
    texts = [f"{k} {','.join(map(str, v))}" for k, v in attrs.items() if any(n != idle[k] for n in v)]
    return " ".join([node.op, shapes, *texts])


def _data(each: Ranked) -> dict[str, Any]:
    """Costs are seconds; null where there is no correction."""
    from taso_mirage.rewriting.text import show_graph

    problem, evidence = (each.evidence, None) if isinstance(each.evidence, Failure) else (each.refused, each.evidence)
    return {
        "families": list(each.mutant.families),
        "right": each.share,
        "agreement": None if each.agreement is None else _region_data(each.agreement),
        "cost": {"without": each.without, "corrected": None if each.corrected is None else each.cost},
        "joined": each.joined,
        "corrections": each.pieces,
        "mutant": show_graph(each.mutant.graph),
        "corrected": None if each.corrected is None else show_graph(each.corrected),
        "verified": evidence is not None,
        "evidence": None if evidence is None else _tests_data(evidence),
        "refused": None if problem is None else problem.reason,
    }


def _tests_data(evidence: Evidence) -> dict[str, Any]:
    (worst,) = evidence.measured
    return {"trials": evidence.tests, "bound": evidence.bound, "error": worst.error, "allowed": worst.allowed}


def _region_data(found: Agreement) -> dict[str, Any]:
    """For each output the ends of the intervals of each dim, and for each box whether it is right:
    nested lists."""
    from taso_mirage.search.partial.pieces import coarse

    cut = [coarse(region.same, region.edges) for region in found.regions]
    regions = [{"edges": [list(own) for own in edges], "right": grid.tolist()} for grid, edges in cut]
    return {"regions": regions, "trials": found.trials, "bound": found.bound, "whole": found.whole}


def _wrapped(start: str, text: str) -> list[str]:
    """Lines of up to WIDTH columns; those after the first begin below the text."""
    return wrap(
        text, WIDTH, initial_indent=start, subsequent_indent=" " * max(len(start), 3), break_on_hyphens=False
    ) or [start]


def _also(others: Sequence[str]) -> str:
    """A note that names the other places of a part; empty where there are none."""
    if not others:
        return ""
    more = f" and {len(others) - PLACES} more" if len(others) > PLACES else ""
    return f" (also at {', '.join(others[:PLACES])}{more})"
