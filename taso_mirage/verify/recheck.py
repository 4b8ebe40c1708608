"""The evidence ladder on a whole library, over processes: what `taso-mirage substitutions verify` does."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import dataclass
from statistics import median
from types import TracebackType
from typing import Any

from taso_mirage.errors import TasoMirageError
from taso_mirage.library import PROOF_KINDS, Evidence, Rule


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one rule fared: the evidence found, or the problem (a counterexample, or why there is no proof); seconds it took."""

    name: str
    evidence: Evidence | None
    problem: str
    seconds: float

    @property
    def kind(self) -> str:
        return self.evidence.proof.kind if self.evidence is not None and self.evidence.proof is not None else "failed"

    def as_dict(self) -> dict[str, Any]:
        """The verdict as JSON data."""
        found = self.evidence or Evidence()
        bound = found.proof.bound if found.proof is not None else None
        return {
            "name": self.name,
            "proof": self.kind,
            "bound": bound,
            "trials": found.trials,
            "typings": found.typings,
            "problem": self.problem or None,
            "seconds": round(self.seconds, 3),
        }


def recheck(
    rules: Sequence[Rule], seed: int, typings: int, workers: int, progress: Callable[[Verdict], None] = lambda v: None
) -> Iterator[Verdict]:
    """A verdict for every rule, in their order; the same for every number of workers."""
    if workers == 1 or len(rules) < 2:
        for rule in rules:
            verdict = verdict_of(rule, seed, typings)
            progress(verdict)
            yield verdict
        return
    size = max(1, min(8, len(rules) // (4 * workers)))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(rules)), context, _follow_parent) as pool:
        parts = [pool.submit(_verdicts, rules[i : i + size], seed, typings) for i in range(0, len(rules), size)]
        try:
            for part in parts:
                for verdict in part.result():
                    progress(verdict)
                    yield verdict
        except BrokenExecutor:
            raise TasoMirageError("a worker process ended (out of memory?); try fewer --workers") from None
        except BaseException:
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def _follow_parent() -> None:
    """An interrupt is for the process that the user started; a worker ends with it, however it ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


def _verdicts(rules: Sequence[Rule], seed: int, typings: int) -> list[Verdict]:
    return [verdict_of(rule, seed, typings) for rule in rules]


def verdict_of(rule: Rule, seed: int, typings: int) -> Verdict:
    """Climb the ladder with one rule. A rule without a proof has failed."""
    from taso_mirage.verify.ladder import climb

    start = time.perf_counter()
    try:
        outcome: Any = climb(rule, seed=seed, typings=typings)
    except (TasoMirageError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        return Verdict(rule.name, None, f"cannot be verified: {type(error).__name__}: {error}", _since(start))
    evidence = getattr(outcome, "evidence", outcome)
    if isinstance(evidence, Evidence) and evidence.proof is not None:
        return Verdict(rule.name, evidence, "", _since(start))
    return Verdict(rule.name, None, _problem(outcome), _since(start))


def _since(start: float) -> float:
    return time.perf_counter() - start


def _problem(outcome: Any) -> str:
    counterexample = getattr(outcome, "counterexample", None)
    if counterexample is None:
        return f"has no proof: {getattr(outcome, 'why', 'the typings agree, but nothing shows every one')}"
    if isinstance(counterexample, Mapping):
        return "is wrong:\n" + "\n".join(f"  {name}: {value}" for name, value in counterexample.items())
    return f"is wrong: {counterexample}"


def failures(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return [v for v in verdicts if v.problem]


def table(verdicts: Sequence[Verdict]) -> str:
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
    seconds = [v.seconds for v in verdicts]
    lines.append(f"median {median(seconds):.3f} s, slowest {max(seconds):.2f} s, all {sum(seconds):.1f} s")
    return "\n".join(lines)


class Progress:
    """A bar on stderr with the rules done; silent when stderr is no terminal."""

    def __init__(self, total: int, quiet: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self.bar = Bar(*columns, console=Console(stderr=True), disable=quiet or not sys.stderr.isatty())
        self.task = self.bar.add_task("rules", total=total)

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def __call__(self, verdict: Verdict) -> None:
        self.bar.update(self.task, advance=1)
