"""The stage that chooses: candidates run in turn with the original, and the fastest is taken where
it surely gains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taso_mirage.errors import TasoMirageError
from taso_mirage.measure import session as runtime
from taso_mirage.measure.check import CheckCase
from taso_mirage.measure.native import Arrays
from taso_mirage.measure.session import Session
from taso_mirage.measure.timing import AS_FAST, Timing, compared_times
from taso_mirage.pipeline.candidates import Start
from taso_mirage.pipeline.problem import Problem
from taso_mirage.pipeline.stage import Job
from taso_mirage.search.rewriter import ModelCandidate
from taso_mirage.search.steps import BODIES
from taso_mirage.search.survival import surviving

KEPT = "the original's graph is kept"
LOOKS = 3
"""A gain that may be chance is measured so often, at most."""
PROMISING = 0.98
"""Of the cost after the passes: a candidate that is predicted to cost less is not given up for one
measurement."""
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
        job.kept = f"no equation applies: {KEPT}"
        return Choice()
    choosing = Choosing(job, problem, start.passed, cases[0].inputs, feeds)
    return choosing.fastest(candidates, original) if job.config.measure else choosing.predicted(candidates)


class Choosing:
    """One choice: what its parts share."""

    def __init__(
        self, job: Job, problem: Problem, passed: ModelCandidate, inputs: Arrays, feeds: Sequence[Arrays]
    ) -> None:
        self.job, self.problem, self.passed, self.inputs, self.feeds = job, problem, passed, inputs, feeds

    def predicted(self, candidates: Sequence[ModelCandidate]) -> Choice:
        """The one that is predicted to cost the least, if that is no more than the original."""
        best = min(candidates, key=lambda c: c.cost)
        before = self.problem.cost(self.problem.model.graph.outputs)
        if best.cost <= before:
            return Choice(self._surviving(best)[0])
        self.job.kept = f"predicted slower ({best.cost:.3g} s against {before:.3g} s): {KEPT}"
        return Choice()

    def fastest(self, candidates: Sequence[ModelCandidate], original: Session) -> Choice:
        """The one that was measured to be the fastest, if it is so by more than chance gives."""
        sessions, alive = self._alive(candidates, original)
        if not alive:
            return Choice()
        times = self._times(sessions, self.job.config.seconds)
        timings = self._compared(times)
        usable = (c for c, t in zip(alive, timings, strict=True) if c is self.passed and not t.slower)
        normal = next(usable, None)
        best = max(range(len(timings)), key=lambda i: timings[i].ratio)
        sessions.clear()
        if self.job.config.part and timings[best].ratio >= AS_FAST and self._predicted_faster(alive[best]):
            return Choice(alive[best], timings[best], normal)
        timing = self._sure(alive[best], timings[best], [[each[0], each[1 + best]] for each in times])
        if timing.ratio < KEEP_BELOW or not timing.certain:
            chance = "" if timing.ratio < KEEP_BELOW else ", which may be chance"
            self.job.kept = f"measured {timing.ratio:.3f} times as fast{chance}: {KEPT}"
            return Choice(None, timing, normal)
        return Choice(alive[best], timing, normal)

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
        for _ in range(LOOKS):
            sessions = [
                runtime.open_in_child(self.problem.model, self.problem.target, source=True),
                runtime.open_in_child(candidate.model, candidate.target),
            ]
            for known, more in zip(times, self._times(sessions, self.job.config.seconds), strict=True):
                for rounds, each in zip(known, more, strict=True):
                    rounds += each
            sessions.clear()
            (timing,) = self._compared(times)
            gain = timing.ratio >= KEEP_BELOW and timing.wins >= 0.5
            hoping = hopeful and not self.job.stop.asked
            if (gain and timing.certain) or timing.slower or not (gain or hoping):
                break
        return timing

    def _times(self, sessions: Sequence[Session], seconds: float) -> list[list[list[float]]]:
        """Of each workload the times of every session."""
        return [runtime.interleaved(sessions, inputs, seconds / len(self.feeds)) for inputs in self.feeds]

    def _compared(self, times: list[list[list[float]]]) -> list[Timing]:
        """The first session against each of the others, over all workloads."""
        first, *others = zip(*times, strict=True)
        return [compared_times(first, other, [share for _, share in self.problem.workloads]) for other in others]
