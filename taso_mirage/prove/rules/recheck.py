"""The judgement of all rules of a library as they are stated, in several processes, for
`taso-mirage substitutions verify`."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from statistics import median
from textwrap import indent
from typing import TYPE_CHECKING, Any

from taso_mirage.errors import TasoMirageError
from taso_mirage.rewriting.library import PROOF_KINDS, Rule, parse_attributes, parse_given
from taso_mirage.rewriting.text import StatedLaw, show_equation, stated_laws
from taso_mirage.system.workers import process_pool
from taso_mirage.verdicts import NO_EVIDENCE, Evidence, Failure, FailureKind

if TYPE_CHECKING:
    from taso_mirage.prove.rules.examine import Examined


@dataclass(frozen=True, slots=True)
class RuleVerdict:
    """The result for one rule: the numbers of proved, bounded, refuted and unproved cases; the
    evidence if the rule holds as it is stated, otherwise the reason, with a counterexample for each
    class of failing cases and a correct guard; the seconds; and the number of enumerated cases that
    were only compared in numbers."""

    name: str
    found: Evidence | Failure
    seconds: float
    cases: Mapping[str, int] = field(default_factory=dict)
    compared: int = 0

    @property
    def evidence(self) -> Evidence:
        """The evidence for the rule; empty where the recheck failed."""
        return NO_EVIDENCE if isinstance(self.found, Failure) else self.found

    @property
    def problem(self) -> str:
        """Why it failed; empty where it holds."""
        return self.found.reason if isinstance(self.found, Failure) else ""

    @property
    def kind(self) -> str:
        return self.evidence.proof.kind if self.evidence.proof is not None else "failed"

    def as_dict(self) -> dict[str, Any]:
        """The verdict as JSON data."""
        found = self.evidence
        bound = found.proof.bound if found.proof is not None else None
        return {
            "name": self.name,
            "proof": self.kind,
            "bound": bound,
            "cases": dict(self.cases),
            "compared": self.compared,
            "typings": found.typings,
            "problem": self.problem or None,
            "seconds": round(self.seconds, 3),
        }


def recheck_rules(
    rules: Sequence[Rule],
    seed: int,
    typings: int,
    workers: int,
    progress: Callable[[RuleVerdict], None] = lambda v: None,
    laws: bool = False,
    there: Executor | None = None,
) -> Iterator[RuleVerdict]:
    """A verdict for every rule, or law, in their order; the same for every number of workers, which
    are processes of this machine, or those of another executor (`there`)."""
    if there is None and (workers == 1 or len(rules) < 2):
        for rule in rules:
            verdict = verdict_of(rule, seed, typings, laws)
            progress(verdict)
            yield verdict
        return
    size = max(1, min(8, len(rules) // (4 * workers)))
    with process_pool(min(workers, len(rules))) if there is None else nullcontext(there) as processes:
        parts = [
            processes.submit(_verdicts, rules[i : i + size], seed, typings, laws) for i in range(0, len(rules), size)
        ]
        try:
            for part in parts:
                for verdict in part.result():
                    progress(verdict)
                    yield verdict
        except BrokenExecutor:
            raise TasoMirageError("a worker process ended (out of memory?); try fewer --workers") from None


def _verdicts(rules: Sequence[Rule], seed: int, typings: int, laws: bool) -> list[RuleVerdict]:
    return [verdict_of(rule, seed, typings, laws) for rule in rules]


def verdict_of(rule: Rule, seed: int, typings: int, laws: bool = False) -> RuleVerdict:
    """Judge one rule as it is stated. A rule without a proof of every case fails.

    Nothing that its file says of it (`evidence`) is read. A rule whose guard says `proved()` claims
    its proved cases alone: the others are counted as excluded. One of a library is worth having
    where its own typing and most cases are proved, a law where one is.
    """
    from taso_mirage.prove.rules.ladder import claims_proved, evidence, examined, excludes
    from taso_mirage.prove.rules.proofs import Proofs

    start, proofs = time.perf_counter(), Proofs()
    try:
        found = examined(rule, proofs, seed, typings)
        cases = dict(Counter(c.status for c in found.cases))
        worth = bool(found.of("proved", "bounded")) if laws else excludes(found)
        if claims_proved(rule) and worth:
            cases = {"proved": cases.get("proved", 0), "bounded": cases.get("bounded", 0)}
            cases["excluded"] = len(found.cases) - cases["proved"] - cases["bounded"]
            return RuleVerdict(rule.name, evidence(found, proofs), _since(start), cases, found.compared)
        judged = evidence(found, proofs) if found.holds else _failed(rule, found)
        return RuleVerdict(rule.name, judged, _since(start), cases, found.compared)
    except (TasoMirageError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        why = f"cannot be verified: {type(error).__name__}: {error}"
        return RuleVerdict(rule.name, Failure(FailureKind.EXCLUDED, why), _since(start))


def _failed(rule: Rule, found: Examined) -> Failure:
    return Failure(FailureKind.REFUTED if found.of("refuted") else FailureKind.UNPROVED, problem(rule, found))


def _since(start: float) -> float:
    return time.perf_counter() - start


def problem(rule: Rule, found: Examined) -> str:
    """Why a rule does not hold as it is stated: its cases, one counterexample for each class, the
    guard that would be right."""
    from taso_mirage.prove.rules.examine import classes
    from taso_mirage.prove.rules.guards import guarded
    from taso_mirage.prove.rules.ladder import missing_guard

    if not found.cases or not found.typings:
        return "has no proof: no legal typing was found"
    counts = Counter(c.status for c in found.cases)
    shown = ", ".join(
        f"{counts[status]} {status}" for status in ("proved", "bounded", "refuted", "unproved") if counts[status]
    )
    lines = [f"{'is wrong' if counts['refuted'] else 'has no proof'} as it is stated; of its cases {shown}"]
    for kind, each in islice(classes(found.of("refuted", "unproved")), CLASSES):
        lines.append(f"{each.status} ({kind})")
        if each.counterexample is None:
            lines.append(indent(f"{each.verdict.why}, and no counterexample\n{each.verdict.case.instance}", "  "))
        else:
            lines.append(indent("\n".join(f"{k}: {v}" for k, v in each.counterexample.fields().items()), "  "))
    chosen = missing_guard(rule, found)
    if chosen is None:
        lines.append("no guard was found under which all cases hold")
    else:
        right = guarded(rule.equation, chosen)
        lines.append(f"on the drawn typings it holds under: {show_equation(right)}")
    return "\n".join(lines)


CLASSES = 6
"""The number of classes of cases that are shown, the smallest case of each."""


def law_rules() -> list[Rule]:
    """The laws beside the operators, with the typings that are stated below them.

    Laws claim their proved cases alone.
    """
    from taso_mirage.prove.rules.ladder import where_proved

    return [where_proved(law_rule(law)) for law in stated_laws().values()]


def law_rule(law: StatedLaw) -> Rule:
    """A law as a rule of a library, with the typing that is stated below it."""
    given, _, attributes = law.typing.partition("|")
    return Rule(law.equation.name, 0, parse_given(given), parse_attributes(attributes), law.equation)


def failures(verdicts: Sequence[RuleVerdict]) -> list[RuleVerdict]:
    return [v for v in verdicts if isinstance(v.found, Failure)]


def exclusions(verdicts: Sequence[RuleVerdict]) -> Iterator[str]:
    """For each rule that claims its proved cases alone: in how many of those that were met it
    applies."""
    for verdict in verdicts:
        if excluded := verdict.cases.get("excluded"):
            met = sum(verdict.cases.values())
            yield f"{verdict.name} applies in {met - excluded} of {met} cases: the others are not proved"


def verdict_table(verdicts: Sequence[RuleVerdict]) -> str:
    """Counts by family and kind of proof, and the time that rules took."""
    counts = Counter((v.name.partition(".")[0], v.kind) for v in verdicts)
    kinds = (*PROOF_KINDS, "failed")
    rows = [["family", *kinds, "rules"]]
    for family in sorted({f for f, _ in counts}):
        row = [counts[family, kind] for kind in kinds]
        rows.append([family, *map(str, row), str(sum(row))])
    totals = [sum(counts[f, kind] for f in {f for f, _ in counts}) for kind in kinds]
    rows.append(["all", *map(str, totals), str(sum(totals))])
    width = max(len(row[0]) for row in rows)
    lines = [f"{row[0]:{width}}" + "".join(f"{cell:>10}" for cell in row[1:]) for row in rows]
    cases: Counter[str] = Counter()
    for verdict in verdicts:
        cases.update(verdict.cases)
    words = {"proved": "proved for every size"}
    lines.append("cases: " + ", ".join(f"{n} {words.get(status, status)}" for status, n in cases.most_common() if n))
    if compared := sum(verdict.compared for verdict in verdicts):
        judged = sum(cases.values())
        lines.append(f"bounded: {judged} of {judged + compared} cases, the others compared in numbers")
    seconds = [v.seconds for v in verdicts]
    lines.append(
        f"time of a rule: median {median(seconds):.3f} s, slowest {max(seconds):.2f} s, all {sum(seconds):.1f} s"
    )
    return "\n".join(lines)


@contextmanager
def recheck_bar(total: int, quiet: bool = False) -> Iterator[Callable[[RuleVerdict], None]]:
    """A bar on stderr with the rules done, which is told each verdict; silent when stderr is no
    terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from taso_mirage.system.console import Console

    times = TimeElapsedColumn(), TimeRemainingColumn()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *times
    with Bar(*columns, console=Console(stderr=True), disable=quiet or not sys.stderr.isatty()) as bar:
        task = bar.add_task("rules", total=total)
        yield lambda verdict: bar.update(task, advance=1)
