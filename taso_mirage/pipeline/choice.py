"""The stage that chooses: candidates run in turn with the original, and one that is certainly
faster is chosen. If the runs do not decide, predicted costs do.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.terms import Graph
from taso_mirage.measure import session as runtime
from taso_mirage.measure.check import CheckCase
from taso_mirage.measure.load import Load, observed_load
from taso_mirage.measure.native import Arrays
from taso_mirage.measure.session import ROUNDS, Session
from taso_mirage.measure.target import Target
from taso_mirage.measure.timing import GAIN, PAIRS, Ends, Timing, Verdict, clear, compared_times, has_verdict, pooled
from taso_mirage.onnx_io.write import has_fixed_inputs
from taso_mirage.operators.ops import traits
from taso_mirage.pipeline.ablation import Ablation
from taso_mirage.pipeline.candidates import BY_PREDICTION, Start
from taso_mirage.pipeline.growth import NOT_TRIED
from taso_mirage.pipeline.problem import Problem
from taso_mirage.pipeline.shares import (
    after_choice,
    compared_seconds,
    comparison_seconds,
    kernels_first,
    large,
    load_seconds,
    measures_last,
    next_comparison_seconds,
    parts_seconds,
    slow_seconds,
)
from taso_mirage.pipeline.stage import Job
from taso_mirage.search.config import OFF
from taso_mirage.search.finalists import SAME_COST
from taso_mirage.search.rewriter import ModelCandidate
from taso_mirage.search.steps import BODIES
from taso_mirage.search.survival import surviving
from taso_mirage.system.wording import option

KEPT = "the original's graph is kept"
FIXED = "no equation was applied: inputs that had a default are weights, which ONNX Runtime computes ahead of"
FOLDED = "no equation was applied: terms of sizes and constants alone were folded"
INTERRUPTED = (
    "interrupted: there was no time to measure whether the model is faster; it was chosen by its predicted cost"
)
UNMEASURED = "the model was not measured: no time was left; it was chosen by its predicted cost"
PREDICTED = "the runs do not show for sure which one is faster: predicted costs decided"
DROPPED = " was dropped: "
"""The part of a note between a candidate and the reason why it did not run."""
PROMISING = 0.98
"""The share of a cost below which a predicted cost counts as faster."""
LIKELY = 2
"""The largest number of candidates for a large model that are loaded for each set of the target's
options."""
PATIENCE = 4.0
"""The factor of its seconds that a comparison of slow models may take."""
OPENING = 0.02
"""Seconds that the first round takes longer because it opens the models."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen candidate (None: the original), the times of the best, and the original after the
    passes if it was measured to be no slower. `session`: an existing session on the candidate,
    which the check and the trials of kernels use instead of another load. If it `waits`, it is
    compared with its kernels, or without any (`pipeline/unmeasured.py`)."""

    candidate: ModelCandidate | None = None
    timing: Timing | None = None
    normal: ModelCandidate | None = None
    session: Session | None = field(default=None, compare=False)
    waits: bool = False


def choose(
    job: Job,
    problem: Problem,
    start: Start,
    original: Session,
    cases: Sequence[CheckCase],
    feeds: Sequence[Arrays],
    candidates: Sequence[ModelCandidate],
) -> Choice:
    """The fastest candidate by measurement, or by the prediction where nothing is measured."""
    if not candidates:
        job.kept = f"{_without_candidates(job, start)}: {KEPT}"
        return Choice()
    ahead = [each.model.graph for each in start.first if each.name == BY_PREDICTION]
    choosing = Choosing(job, problem, start.passed, cases[0].inputs, feeds, ahead)
    if not job.config.measure:
        return choosing.predicted(candidates)
    if job.deadline.last() < load_seconds(job) + slow_seconds(job) + job.checking:
        job.remarks.append(UNMEASURED)
        usual = [c for c in candidates if choosing.by_prediction(c) and c.target == problem.target]
        return choosing.predicted(usual or candidates)
    return choosing.of_large(candidates, original) if large(job) else choosing.fastest(candidates, original)


def _without_candidates(job: Job, start: Start) -> str:
    """The reason why there are no candidates."""
    if not start.looked:
        return f"the time was over before the search had seen any graph ({option('budget')} gives more)"
    larger = any(each.startswith(NOT_TRIED) for each in job.remarks)
    return "no other equation applies" if larger else "no equation applies"


class Choosing:
    """One choice: the state that its parts share."""

    def __init__(
        self,
        job: Job,
        problem: Problem,
        passed: ModelCandidate,
        inputs: Arrays,
        feeds: Sequence[Arrays],
        ahead: Sequence[Graph] = (),
    ) -> None:
        self.job, self.problem, self.passed, self.inputs, self.feeds = job, problem, passed, inputs, feeds
        self.load, self.ahead = Load(), ahead
        self.sessions: list[Session] = []

    def by_prediction(self, candidate: ModelCandidate) -> bool:
        """Whether a candidate was made by predicted costs alone, with any options of the target."""
        return candidate.model.graph in self.ahead

    def predicted(self, candidates: Sequence[ModelCandidate]) -> Choice:
        """The candidate with the lowest predicted cost, if that is no higher than the
        original's."""
        best = min(candidates, key=lambda c: c.cost)
        before = self.problem.cost(self.problem.model.graph.outputs)
        for candidate in candidates:
            self.job.config.candidates(candidate.name, candidate.cost, None, None)
        if best.cost <= before:
            return Choice(self._surviving(best)[0])
        self.job.kept = f"predicted slower ({best.cost:.3g} s against {before:.3g} s): {KEPT}"
        return Choice()

    def of_large(self, candidates: Sequence[ModelCandidate], original: Session) -> Choice:
        """The first candidate that is faster, of the few that are predicted to be. Each is loaded
        once and compared once with the original. Where that can wait (`measures_last`), the first
        one is not compared here."""
        taken, trials = Choice(), self._likely(candidates)
        first = trials[0][0]
        if measures_last(self.job) and len(trials[0]) == 1 and first.steps and not _has_loops(first):
            return self._unmeasured(first)
        for likely in trials:
            self.job.kept = None
            choice = self.fastest(likely, original, once=True)
            taken = replace(choice, normal=taken.normal or choice.normal)
            enough = taken.normal is not None and kernels_first(self.job)  # kernels gain more in this time
            if choice.candidate is not None or enough or self._left() < self._trial():
                break
        return taken

    def _unmeasured(self, candidate: ModelCandidate) -> Choice:
        """The candidate without times, if the runtime accepts it."""
        sessions, alive = self._alive([candidate])
        return Choice(alive[0], None, alive[0], sessions[0], True) if alive else Choice()

    def _trial(self) -> float:
        """Seconds of one load and one comparison."""
        return load_seconds(self.job) + compared_seconds(self.job)

    def _likely(self, candidates: Sequence[ModelCandidate]) -> list[list[ModelCandidate]]:
        """The candidates in the order of trials: the predicted fastest for each set of the target's
        options, then the next ones.

        The candidate that was made without measurements comes first if the costs of the others
        differ by less than measurements vary, if other processes use the cores, or if there is no
        time for two trials, because measured costs may then be wrong.
        """
        candidates = self._with_known_gains(candidates)
        steady = self._left() >= 2 * self._trial() and not self._observe().busy
        least = min(candidate.cost for candidate in candidates)
        bar = SAME_COST * least if steady else math.inf
        order = sorted(candidates, key=lambda c: (c.cost > bar, not self.by_prediction(c), c.cost))
        ranks = [sum(other.target == each.target for other in order[:i]) for i, each in enumerate(order)]
        found = [[each for each, rank in zip(order, ranks, strict=True) if rank == trial] for trial in range(LIKELY)]
        return [each for each in found if each]

    def _with_known_gains(self, candidates: Sequence[ModelCandidate]) -> Sequence[ModelCandidate]:
        """The candidates without the options that are not predicted to gain, where others are, and
        without another layout for the whole model that is not."""
        plain = self.problem.target
        usual = min((each.cost for each in candidates if each.target == plain), default=0.0)
        gaining = {each.target for each in candidates if each.target != plain and each.cost < usual}
        others = {each.target for each in candidates if each.target.mixes_layouts == plain.mixes_layouts}
        return [each for each in candidates if each.target in {plain, *(gaining or others)}]

    def fastest(self, candidates: Sequence[ModelCandidate], original: Session, once: bool = False) -> Choice:
        """The candidate that was measured to be the fastest, or is predicted to be if the runs do
        not decide; the original if none is faster. `once`: no model is loaded again for another
        comparison, and this one ends once it decides where kernels follow: they are compared with
        the original, too."""
        target = original.target
        alive, times, pace = self._first_look(self._in_time(candidates), original, once)
        if not alive:
            return Choice()
        timings = self._compare(times)
        for candidate, each in zip(alive, timings, strict=True):
            self.job.config.candidates(candidate.name, candidate.cost, each, None)
        passed = self.passed.model.graph
        usable = (c for c, t in zip(alive, timings, strict=True) if c.model.graph == passed and t.as_fast)
        normal = next(usable, None)
        best = self._champion(alive, times)
        candidate, timing = alive[best], timings[best]
        kept, self.sessions = self.sessions[best], []
        if not once:
            timing = self._sure(candidate, timing, target)
            candidate, timing = self._what_pays(candidate, timing, pace, target)
        session = kept if candidate is alive[best] else None
        if self.load.busy and (said := self.load.said(target)) not in self.job.remarks:
            self.job.remarks.append(said)
        if self.job.stop.asked and self._unclear(candidate, timing):
            self.job.remarks.append(INTERRUPTED)
            return Choice(candidate, timing, normal, session)
        if not self._taken(candidate, timing) and target == self.problem.target:  # otherwise it does not load
            self.job.kept = f"measured {timing.ratio:.3f} times as fast{_chance(timing)}: {KEPT}"
            return Choice(None, timing, normal)
        if not timing.faster:
            self.job.remarks.append(PREDICTED)
        if not candidate.steps and candidate.target == self.problem.target:
            self.job.remarks.append(FIXED if has_fixed_inputs(self.problem.model) else FOLDED)
        return Choice(candidate, timing, normal, session)

    def _first_look(
        self, candidates: Sequence[ModelCandidate], original: Session, once: bool = False
    ) -> tuple[list[ModelCandidate], list[list[list[float]]], float]:
        """The candidates that the runtime accepts, their times and those of the original, and the
        seconds of a session for a round.

        If other processes began to use the cores, all run again with the other clock, except with
        `once`. The sessions of the candidates are kept.
        """
        for _ in range(2):
            self.load, self.sessions = self._observe(), []
            if (clock := self.load.clock(original.target)) != original.target:
                original = runtime.open_in_child(self.problem.model, clock, source=True)
            self.sessions, alive = self._alive(candidates)
            if not alive:
                return [], [], 0.0
            start, ends = time.monotonic(), has_verdict if once and self.job.config.kernels != OFF else clear
            times = self._times([original, *self.sessions], ends)
            pace = (time.monotonic() - start) / max((1 + len(alive)) * len(times[0][0]), 1)
            if once or self._works() or not self._disturbed():
                break
        return alive, times, pace

    def _observe(self) -> Load:
        """The load of the machine, where there is another clock for a busy one."""
        return Load() if self.problem.target.serial is None else observed_load()

    def _disturbed(self) -> bool:
        """Whether other processes use the cores now, and there is another clock and time to use
        it."""
        found = self._observe()
        wanted = found.clock(self.problem.target) != self.problem.target
        return wanted and self._left() >= comparison_seconds(self.job)

    def _champion(self, alive: Sequence[ModelCandidate], times: list[list[list[float]]]) -> int:
        """The candidate that is predicted to be the fastest, or one that is certainly faster."""
        order = sorted(range(len(alive)), key=lambda i: alive[i].cost)
        best = order[0]
        for i in order[1:]:
            (timing,) = self._compare([[each[1 + best], each[1 + i]] for each in times])
            best = i if timing.faster else best
        return best

    def _taken(self, candidate: ModelCandidate, timing: Timing) -> bool:
        """Whether a candidate is faster than the original by the verdict; without a verdict, by the
        prediction, if the runs do not exclude a gain."""
        return timing.faster or (timing.as_fast and timing.high >= GAIN and self._predicted_faster(candidate))

    def _what_pays(
        self, best: ModelCandidate, timing: Timing, pace: float, target: Target
    ) -> tuple[ModelCandidate, Timing]:
        """The best candidate without the kinds of rewrites without which it is faster, and its
        times against the original; the best itself if there are none, or if the rest is not faster.
        `pace`: the seconds of a session for a round."""
        if self.job.stop.asked or not best.steps:
            return best, timing
        seconds = parts_seconds(self.job, self._left())
        ablation = Ablation(self.problem, best, self._in_turn, seconds, pace + OPENING)
        rest = ablation.run()
        if rest is None:
            return best, timing
        again = self._confirm(rest, [], target)
        if not again.faster:
            return best, timing
        said = "; ".join(map(str, ablation.left_out))
        self.job.remarks.append(f"left out, as the model was measured faster without: {said}")
        return rest, again

    def _in_turn(self, candidates: Sequence[ModelCandidate], rounds: int) -> list[Timing]:
        """The first candidate against each of the others, in new sessions, for a number of
        rounds."""
        clock = self.load.clock
        sessions = [runtime.open_in_child(each.model, clock(each.target), anew=True) for each in candidates]
        return self._compare([runtime.interleaved(sessions, inputs, 1e-3, rounds, math.inf) for inputs in self.feeds])

    def _left(self) -> float:
        """Seconds that the choice may still take."""
        return self.job.deadline.left() - after_choice(self.job)

    def _in_time(self, candidates: Sequence[ModelCandidate], least: int = 1) -> Sequence[ModelCandidate]:
        """The candidates that can be loaded before the comparison, at `least` so many: all, or the
        predicted fastest. The first of these is independent of the machine's load."""
        loads = (self._left() - self._comparing()) / max(load_seconds(self.job), 1e-3)
        if loads >= len(candidates):
            return candidates
        kept = sorted(candidates, key=lambda c: (not self.by_prediction(c), c.cost))[: max(int(loads), least)]
        if len(kept) < len(candidates):
            left = len(candidates) - len(kept)
            said = f"{left} candidates were" if left > 1 else "1 candidate was"
            self.job.remarks.append(f"{said} not measured: no time was left")
        return kept

    def _comparing(self) -> float:
        """Seconds of the next comparison."""
        return next_comparison_seconds(self.job, self._left())

    def _unclear(self, candidate: ModelCandidate, timing: Timing) -> bool:
        """Whether a few rounds show neither that a candidate is faster, as predicted, nor that it
        is slower."""
        return timing.verdict is Verdict.UNDECIDED and self._predicted_faster(candidate)

    def _predicted_faster(self, candidate: ModelCandidate) -> bool:
        """Whether a candidate's predicted cost is lower than the original's. Changes inside of
        nodes have no prediction and were faster by themselves."""
        return _has_bodies(candidate) or candidate.cost < PROMISING * self.problem.cost(
            self.problem.model.graph.outputs
        )

    def _alive(self, candidates: Sequence[ModelCandidate]) -> tuple[list[Session], list[ModelCandidate]]:
        """The candidates that the runtime accepts, with their sessions."""
        sessions: list[Session] = []
        alive: list[ModelCandidate] = []
        waiting = list(candidates)
        while waiting:
            candidate, began = waiting.pop(0), time.monotonic()
            try:
                survivor, session = self._surviving(replace(candidate, target=self.load.clock(candidate.target)))
                self.job.loading = time.monotonic() - began
                if survivor is not None and session is not None:
                    sessions.append(session)
                    same = survivor.model.graph == candidate.model.graph
                    alive.append(candidate if same else replace(survivor, target=candidate.target))
            except TasoMirageError as error:
                options = [
                    f" {k}={v}" for k, v in candidate.target.options if (k, v) not in self.problem.target.options
                ]
                self.job.config.candidates(candidate.name, candidate.cost, None, str(error))
                self.job.remarks.append(f"candidate {candidate.name!r}{''.join(options)}{DROPPED}{error}")
            if alive and waiting:  # the first run may take longer than was known
                waiting = [*self._in_time(waiting, 0)]
        return sessions, alive

    def _sure(self, best: ModelCandidate, timing: Timing, target: Target) -> Timing:
        """The times of the best candidate, from more sessions if the existing ones do not decide
        whether it gains."""
        hopeful = timing.ratio >= GAIN or self._predicted_faster(best)
        return self._confirm(best, [timing], target) if hopeful else timing

    def _surviving(self, candidate: ModelCandidate) -> tuple[ModelCandidate | None, Session | None]:
        problem = self.problem
        cost = lambda model: problem.cost(model.graph.outputs)  # noqa: E731
        return surviving(candidate, self.inputs, problem.after, cost, self.job.remarks.append)

    def _confirm(self, candidate: ModelCandidate, looks: list[Timing], target: Target) -> Timing:
        """The original and one candidate in pairs of new sessions, in addition to the existing
        `looks`, until the verdict is clear or there were PAIRS, because the memory placement of a
        session affects all of its runs.

        If wall time does not decide, CPU time is used last.
        """
        least = comparison_seconds(self.job) / 2 + 2 * load_seconds(self.job)
        for _ in range(len(looks), PAIRS):
            if looks and self._ends(pooled(looks), least):
                break
            self.load = self._observe()
            looks = _alike([*looks, self._look(candidate, target, self.load.clock)])
        timing = pooled(looks)
        if timing.works or target.serial is None or self._ends(timing, least):
            return timing
        second = self._look(candidate, target, lambda each: each.serial or each)
        return timing if second.verdict is Verdict.UNDECIDED else second

    def _ends(self, timing: Timing, least: float) -> bool:
        """Whether no further comparison is needed or possible within the time."""
        return timing.verdict is not Verdict.UNDECIDED or self.job.stop.asked or self._left() < least

    def _look(self, candidate: ModelCandidate, target: Target, clock: Callable[[Target], Target]) -> Timing:
        """The original against a candidate in new sessions, by a clock."""
        sessions = [
            runtime.open_in_child(self.problem.model, clock(target), source=True, anew=True),
            runtime.open_in_child(candidate.model, clock(candidate.target), anew=True),
        ]
        return self._compare(self._times(sessions), clock(target) != target)[0]

    def _times(self, sessions: Sequence[Session], ends: Ends = clear) -> list[list[list[float]]]:
        """For each workload, the times of every session, in the seconds of a comparison, or until
        it `ends`; slow models may take more, as far as there is time."""
        seconds = self._comparing() / len(self.feeds)
        patience = min(max(self._left() / len(self.feeds) / max(seconds, 1e-9), 1.0), PATIENCE)
        return [runtime.interleaved(sessions, inputs, seconds, ROUNDS, patience, ends) for inputs in self.feeds]

    def _compare(self, times: list[list[list[float]]], works: bool | None = None) -> list[Timing]:
        """The first session against each of the others, over all workloads. `works`: by CPU time;
        otherwise by the clock for the current load."""
        first, *others = zip(*times, strict=True)
        shares = [share for _, share in self.problem.workloads]
        works = self._works() if works is None else works
        return [compared_times(first, other, shares, works) for other in others]

    def _works(self) -> bool:
        return self.load.clock(self.problem.target) != self.problem.target


def _has_bodies(candidate: ModelCandidate) -> bool:
    """Whether steps changed the inside of nodes."""
    return any(step.equations == (BODIES,) for step in candidate.steps)


def _has_loops(candidate: ModelCandidate) -> bool:
    """Whether the model has operators over sequences, or nodes whose inside was changed."""
    return _has_bodies(candidate) or any(traits(node).stays for node in candidate.model.nodes())


def _alike(looks: Sequence[Timing]) -> list[Timing]:
    """The comparisons with the clock of the last one, because the two clocks give different
    seconds."""
    return [each for each in looks if each.works == looks[-1].works]


def _chance(timing: Timing) -> str:
    """The interval of an undecided measurement, in words; empty where it is decided."""
    return f" ({timing.low:.3f} to {timing.high:.3f})" if timing.verdict is Verdict.UNDECIDED else ""
