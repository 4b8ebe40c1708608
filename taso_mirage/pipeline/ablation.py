"""Ablation of rewrites: the model runs in turn with itself without some kinds of rewrites, and
kinds without which it is faster are removed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property

from taso_mirage.errors import TasoMirageError
from taso_mirage.measure.session import weight_bytes
from taso_mirage.measure.timing import GAIN, Timing
from taso_mirage.pipeline.problem import Problem
from taso_mirage.search.rewriter import ModelCandidate
from taso_mirage.search.selection import ChangeKind, change_kinds, single_steps
from taso_mirage.search.steps import RewriteStep

Timed = Callable[[Sequence[ModelCandidate], int], list[Timing]]
"""The timings of candidates that run in turn for a number of rounds, the first against each
other."""
Bundle = tuple[ChangeKind, ...]
ROUNDS, SURE = 8, 24
"""The numbers of rounds of a first comparison, and of a second one in new sessions that confirms
it."""
WIDE = 6
"""The largest number of models that are compared with one model at once."""
BYTES = 1 << 30
"""The largest number of bytes of the weights of all models of one comparison."""


class Ablation:
    """The ablation of one candidate, within `seconds`; `pace` is how long one model takes for one
    round at first, opening included."""

    def __init__(self, problem: Problem, candidate: ModelCandidate, timed: Timed, seconds: float, pace: float) -> None:
        self.problem, self.timed, self.pace = problem, timed, pace
        self.end = time.monotonic() + seconds
        self.current, self.left_out = candidate, list[ChangeKind]()

    @cached_property
    def steps(self) -> list[RewriteStep]:
        """The candidate's steps, taken apart; computed only if there is time for a comparison."""
        return single_steps(self.problem.model.graph.outputs, self.current.steps)

    @cached_property
    def kinds(self) -> list[ChangeKind]:
        """The kinds of changes that the candidate's steps make."""
        return change_kinds(self.problem.model.graph.outputs, self.steps)

    def run(self) -> ModelCandidate | None:
        """The candidate without the kinds that do not pay; None where nothing is left out."""
        if self._wide(1) < 1:
            return None
        queue: list[tuple[float, Bundle]] = [(1.0, each) for each in split(self.kinds, self._wide(WIDE))]
        while queue and (wide := self._wide(len(queue))) > 0:
            queue.sort(key=lambda each: -each[0])
            look, queue = [bundle for _, bundle in queue[:wide]], queue[wide:]
            ratios, faster = self._look(look)
            self._leave_out([kind for bundle in look if bundle in faster and len(bundle) == 1 for kind in bundle])
            for bundle, ratio in zip(look, ratios, strict=True):
                queue += [(ratio, half) for half in split(bundle, 2)] if len(bundle) > 1 else []
        return self.current if self.left_out else None

    def _look(self, look: Sequence[Bundle]) -> tuple[list[float], list[Bundle]]:
        """The speed-up of the model without each bundle, and the bundles without which it seems
        faster."""
        tried = [self._without(bundle) for bundle in look]
        there = [each for each in tried if each is not None]
        timings = iter(self._timings(there, ROUNDS) or [])
        times = [None if each is None else next(timings, None) for each in tried]
        ratios = [0.0 if each is None else each.ratio for each in times]
        return ratios, [bundle for bundle, t in zip(look, times, strict=True) if t is not None and t.ratio >= GAIN]

    def _leave_out(self, kinds: Sequence[ChangeKind]) -> None:
        """Remove kinds if a second comparison confirms the gain: all together, otherwise a single
        one."""
        for each in [kinds] if len(kinds) == 1 else [kinds, *([kind] for kind in kinds)]:
            if not each or self._wide(1) < 1:
                return
            without = self._without(each)
            timings = None if without is None else self._timings([without], SURE)
            if without is not None and timings and timings[0].faster:
                self.current, self.left_out = without, [*self.left_out, *each]
                return

    def _timings(self, tried: Sequence[ModelCandidate], rounds: int) -> list[Timing] | None:
        """The timings; None if the runtime rejects one of the models."""
        start = time.monotonic()
        try:
            return self.timed([self.current, *tried], rounds) if tried else None
        except TasoMirageError:
            return None
        finally:
            self.pace = (time.monotonic() - start) / (rounds * (1 + len(tried)))

    def _without(self, kinds: Sequence[ChangeKind]) -> ModelCandidate | None:
        """The candidate without the kinds that were left out, and these; None where that changes
        nothing."""
        problem, gone = self.problem, {i for kind in (*self.left_out, *kinds) for i in kind.steps}
        found = problem.without(self.current, self.steps, gone, "what pays")
        same = (self.current.model.graph.outputs, problem.model.graph.outputs)
        return None if found.model.graph.outputs in same else found

    def _wide(self, most: int) -> int:
        """The number of models that fit into one comparison with the current one, by remaining time
        and memory."""
        fitting = BYTES // max(weight_bytes(self.current.model), 1)
        rounds = (self.end - time.monotonic()) / (ROUNDS * self.pace)  # infinite without a time limit
        return min(most, WIDE, max(fitting, 1), int(min(rounds, WIDE + 1)) - 1)


def split(kinds: Sequence[ChangeKind], parts: int) -> list[Bundle]:
    """Kinds in at most `parts` bundles, of numbers that differ by one at most."""
    count = max(min(parts, len(kinds)), 1)
    return [tuple(kinds[i::count]) for i in range(count) if kinds[i::count]]
