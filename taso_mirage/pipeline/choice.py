"""The stage that chooses: candidates run in turn with the original, and the fastest is taken where
it surely gains."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from taso_mirage.errors import TasoMirageError
from taso_mirage.measure import session as runtime
from taso_mirage.measure.check import CheckCase
from taso_mirage.measure.native import Arrays
from taso_mirage.measure.session import ROUNDS, Session
from taso_mirage.measure.timing import AS_FAST, Timing, compared_times
from taso_mirage.onnx_io.write import has_fixed_inputs
from taso_mirage.pipeline.candidates import Start
from taso_mirage.pipeline.growth import NOT_TRIED
from taso_mirage.pipeline.payoff import Payoff
from taso_mirage.pipeline.problem import Problem
from taso_mirage.pipeline.shares import after_choice, comparison_seconds, load_seconds, slow_seconds
from taso_mirage.pipeline.stage import Job
from taso_mirage.search.rewriter import ModelCandidate
from taso_mirage.search.steps import BODIES
from taso_mirage.search.survival import surviving

KEPT = "the original's graph is kept"
UNSEARCHED = f"the time was over before the search had seen any graph (--budget gives more): {KEPT}"
FIXED = "no equation was applied: inputs that had a default are weights, which ONNX Runtime computes ahead of"
FOLDED = "no equation was applied: what the model computes of sizes and constants was folded"
INTERRUPTED = "interrupted: there was no time to measure whether the model gains; it is taken by its predicted cost"
UNMEASURED = "the model was not measured: no time was left; it is taken by its predicted cost"
LOOKS = 3
"""A gain that may be chance is measured so often, at most."""
PROMISING = 0.98
"""Of the cost after the passes: a candidate that is predicted to cost less is not given up for one
measurement."""
PATIENCE = 4.0
"""How many times its seconds a comparison of slow models may take."""
OPENING = 0.02
"""Seconds that a round takes longer by what it takes to open the models."""
KEEP_BELOW = 1.01
"""A candidate must be measured this many times faster than the original, or the original is
kept."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidate that is taken (None: the original is), the times of the best, and the original
    after the passes where it was measured no slower."""

    candidate: ModelCandidate | None = None
    timing: Timing | None = None
    normal: ModelCandidate | None = None


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
        larger = any(each.startswith(NOT_TRIED) for each in job.remarks)
        job.kept = f"no other equation applies: {KEPT}" if larger else f"no equation applies: {KEPT}"
        job.kept = job.kept if start.looked else UNSEARCHED
        return Choice()
    choosing = Choosing(job, problem, start.passed, cases[0].inputs, feeds)
    if not job.config.measure:
        return choosing.predicted(candidates)
    if job.deadline.last() < load_seconds(job) + slow_seconds(job) + job.checking:
        job.remarks.append(UNMEASURED)
        return choosing.predicted(candidates)
    return choosing.fastest(candidates, original)


class Choosing:
    """One choice: what its parts share."""

    def __init__(
        self,
        job: Job,
        problem: Problem,
        passed: ModelCandidate,
        inputs: Arrays,
        feeds: Sequence[Arrays],
    ) -> None:
        self.job, self.problem, self.passed, self.inputs, self.feeds = job, problem, passed, inputs, feeds

    def predicted(self, candidates: Sequence[ModelCandidate]) -> Choice:
        """The one that is predicted to cost the least, if that is no more than the original."""
        best = min(candidates, key=lambda c: c.cost)
        before = self.problem.cost(self.problem.model.graph.outputs)
        for candidate in candidates:
            self.job.config.candidates(candidate.name, candidate.cost, None, None)
        if best.cost <= before:
            return Choice(self._surviving(best)[0])
        self.job.kept = f"predicted slower ({best.cost:.3g} s against {before:.3g} s): {KEPT}"
        return Choice()

    def fastest(self, candidates: Sequence[ModelCandidate], original: Session) -> Choice:
        """The one that was measured to be the fastest, if it is so by more than chance gives."""
        sessions, alive = self._alive(self._in_time(candidates), original)
        if not alive:
            return Choice()
        start = time.monotonic()
        times = self._times(sessions)
        pace = (time.monotonic() - start) / max(len(sessions) * len(times[0][0]), 1)
        timings = self._compared(times)
        for candidate, each in zip(alive, timings, strict=True):
            self.job.config.candidates(candidate.name, candidate.cost, each, None)
        usable = (c for c, t in zip(alive, timings, strict=True) if c is self.passed and not t.slower)
        normal = next(usable, None)
        best = max(range(len(timings)), key=lambda i: timings[i].ratio)
        sessions.clear()
        if self.job.config.part and timings[best].ratio >= AS_FAST and self._predicted_faster(alive[best]):
            return Choice(alive[best], timings[best], normal)
        timing = self._sure(alive[best], timings[best], [[each[0], each[1 + best]] for each in times])
        candidate, timing = self._what_pays(alive[best], timing, pace)
        if self.job.stop.asked and self._unclear(candidate, timing):
            self.job.remarks.append(INTERRUPTED)
            return Choice(candidate, timing, normal)
        if not gains(timing) and original.target == self.problem.target:  # else it does not load
            chance = "" if timing.ratio < KEEP_BELOW else ", which may be chance"
            self.job.kept = f"measured {timing.ratio:.3f} times as fast{chance}: {KEPT}"
            return Choice(None, timing, normal)
        if not candidate.steps and candidate.target == self.problem.target:
            self.job.remarks.append(FIXED if has_fixed_inputs(self.problem.model) else FOLDED)
        return Choice(candidate, timing, normal)

    def _what_pays(self, best: ModelCandidate, timing: Timing, pace: float) -> tuple[ModelCandidate, Timing]:
        """The best without the kinds of rewrites that it is faster without, and its times against
        the original; the best itself where there are none, or where the rest does not gain.
        `pace`: how many seconds a session took for a round."""
        if self.job.stop.asked or not best.steps:
            return best, timing
        payoff = Payoff(self.problem, best, self._in_turn, self._for_parts(), pace + OPENING)
        rest = payoff.run()
        if rest is None:
            return best, timing
        again = self._confirmed(rest, [[[], []] for _ in self.feeds])
        if not gains(again):
            return best, timing
        said = "; ".join(map(str, payoff.left_out))
        self.job.remarks.append(f"left out, as the model was measured faster without: {said}")
        return rest, again

    def _in_turn(self, candidates: Sequence[ModelCandidate], rounds: int) -> list[Timing]:
        """The first candidate against each of the others, in new sessions and so many rounds."""
        sessions = [runtime.open_in_child(each.model, each.target) for each in candidates]
        return self._compared([runtime.interleaved(sessions, inputs, 1e-3, rounds, math.inf) for inputs in self.feeds])

    def _for_parts(self) -> float:
        """Seconds to look for parts that do not pay: what is left but for a comparison, which
        follows."""
        return max(self._left() - comparison_seconds(self.job), 0.0)

    def _left(self) -> float:
        """Seconds that the choice may still take."""
        return self.job.deadline.left() - after_choice(self.job)

    def _in_time(self, candidates: Sequence[ModelCandidate]) -> Sequence[ModelCandidate]:
        """Those that can be loaded before the comparison: all, or the ones that are predicted to be
        the fastest."""
        loads = (self._left() - comparison_seconds(self.job)) / max(load_seconds(self.job), 1e-3)
        if loads >= len(candidates):
            return candidates
        kept = sorted(candidates, key=lambda c: c.cost)[: max(int(loads), 1)]
        if len(kept) < len(candidates):
            left = len(candidates) - len(kept)
            said = f"{left} candidates were" if left > 1 else "1 candidate was"
            self.job.remarks.append(f"{said} not measured: no time was left")
        return kept

    def _unclear(self, candidate: ModelCandidate, timing: Timing) -> bool:
        """Whether a few rounds do not tell that a candidate is faster, as is predicted, nor that it
        is slower."""
        return not gains(timing) and not timing.slower and self._predicted_faster(candidate)

    def _predicted_faster(self, candidate: ModelCandidate) -> bool:
        """Whether it costs less than the original by the prediction; what happened inside of nodes
        has none, and was faster by itself."""
        inside = any(step.equations == (BODIES,) for step in candidate.steps)
        return inside or candidate.cost < self.problem.cost(self.problem.model.graph.outputs)

    def _alive(
        self, candidates: Sequence[ModelCandidate], original: Session
    ) -> tuple[list[Session], list[ModelCandidate]]:
        """The original's session with those of the candidates that the runtime takes, and these
        candidates."""
        sessions: list[Session] = [original]
        alive: list[ModelCandidate] = []
        for candidate in candidates:
            try:
                survivor, session = self._surviving(candidate)
                if survivor is not None and session is not None:
                    sessions.append(session)
                    alive.append(survivor)
            except TasoMirageError as error:
                options = [
                    f" {k}={v}" for k, v in candidate.target.options if (k, v) not in self.problem.target.options
                ]
                self.job.config.candidates(candidate.name, candidate.cost, None, str(error))
                self.job.remarks.append(f"candidate {candidate.name!r}{''.join(options)} was dropped: {error}")
        return sessions, alive

    def _sure(self, best: ModelCandidate, timing: Timing, times: list[list[list[float]]]) -> Timing:
        """The times of the best, of more sessions where those seen leave it open whether it
        gains."""
        if timing.ratio >= KEEP_BELOW and not (timing.certain and timing.low >= KEEP_BELOW):
            return self._confirmed(best, [[[], []] for _ in times])
        if timing.ratio < KEEP_BELOW and best.cost < PROMISING * self.passed.cost:
            return self._confirmed(best, times)
        return timing

    def _surviving(self, candidate: ModelCandidate) -> tuple[ModelCandidate | None, Session | None]:
        problem = self.problem
        cost = lambda model: problem.cost(model.graph.outputs)  # noqa: E731
        return surviving(candidate, self.inputs, problem.after, cost, self.job.remarks.append)

    def _confirmed(self, candidate: ModelCandidate, times: list[list[list[float]]]) -> Timing:
        """The original and one candidate anew, each time in other sessions, beside `times` that
        count as well: the best of several is so by luck, too, a promising one looks slower by bad
        luck, and a session's luck lasts. On a busy machine it takes several looks until a gain is
        told from chance."""
        hopeful = any(map(any, times))
        least = comparison_seconds(self.job) / 2 + 2 * load_seconds(self.job)
        timing = self._compared(times)[0] if hopeful else None
        for _ in range(LOOKS):
            if timing is not None and self._left() < least:
                break
            sessions = [
                runtime.original(self.problem.model, self.problem.target),
                runtime.open_in_child(candidate.model, candidate.target),
            ]
            for known, more in zip(times, self._times(sessions), strict=True):
                for rounds, each in zip(known, more, strict=True):
                    rounds += each
            sessions.clear()
            (timing,) = self._compared(times)
            gain = timing.ratio >= KEEP_BELOW and timing.wins >= 0.5
            hoping = hopeful and not self.job.stop.asked
            if (gain and timing.certain) or timing.slower or not (gain or hoping):
                break
        assert timing is not None  # LOOKS is above 0
        return timing

    def _times(self, sessions: Sequence[Session]) -> list[list[list[float]]]:
        """Of each workload the times of every session, in the seconds of a comparison; slow models
        may take more, as far as there is time."""
        seconds = comparison_seconds(self.job) / len(self.feeds)
        patience = min(max(self._left() / len(self.feeds) / max(seconds, 1e-9), 1.0), PATIENCE)
        return [runtime.interleaved(sessions, inputs, seconds, ROUNDS, patience) for inputs in self.feeds]

    def _compared(self, times: list[list[list[float]]]) -> list[Timing]:
        """The first session against each of the others, over all workloads."""
        first, *others = zip(*times, strict=True)
        return [compared_times(first, other, [share for _, share in self.problem.workloads]) for other in others]


def gains(timing: Timing) -> bool:
    """Whether a model is faster than the original by more than chance gives."""
    return timing.ratio >= KEEP_BELOW and timing.certain
