"""The stage that checks the chosen candidate against the original's float64 reference, and finds
the first rewrite that breaks it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from taso_mirage.errors import OutOfTime, TasoMirageError
from taso_mirage.ir.model import Model
from taso_mirage.measure import session as runtime
from taso_mirage.measure.check import FINE_CASE, CheckCase, Difference, compare, first_bad
from taso_mirage.measure.fine import Fine
from taso_mirage.measure.native import Arrays
from taso_mirage.measure.reference import FloatReference
from taso_mirage.measure.session import Session
from taso_mirage.measure.target import Target
from taso_mirage.operators.ops import traits
from taso_mirage.pipeline.candidates import Start
from taso_mirage.pipeline.choice import Choice, choose
from taso_mirage.pipeline.problem import Problem
from taso_mirage.pipeline.stage import Job
from taso_mirage.search.rewriter import ModelCandidate
from taso_mirage.search.selection import single_steps
from taso_mirage.search.steps import RewriteStep

Differences = tuple[Difference, ...]
TURNS = 6
"""So many times rewrites that turn a decision are left out of one candidate."""


def check_candidates(
    job: Job,
    problem: Problem,
    start: Start,
    original: Session,
    valid: bool,
    cases: Sequence[CheckCase],
    feeds: Sequence[Arrays],
    choice: Choice,
) -> tuple[Choice, Differences]:
    """The choice if it passes the check; else the longest prefix of its steps that does, if that is
    measured faster too."""
    if choice.candidate is None:
        return choice, ()
    checking = _Checking(job, problem, valid, cases)
    differences = checking.differences(choice.candidate.model, choice.candidate.target)
    bad = next((d for d in differences if not d.passed), None)
    if bad is None:
        return choice, differences
    good, differences = checking.fallen_back(choice.candidate, bad)
    if good is None:
        return Choice(), ()
    fallen = choose(job, problem, start, original, cases, feeds, [good])
    return Choice(fallen.candidate, fallen.timing), differences


class _InFloat64:
    """A model that runs as the reference does, and the cases on which it is to give what that
    gave; all floats are in the dtypes of the original's outputs."""

    def __init__(self, job: Job, model: Model, cases: Sequence[CheckCase]) -> None:
        self.evaluate = FloatReference(model)
        self.cases = [replace(case, original=_like(case.reference, case), resolution=None, fine=None) for case in cases]
        self.step = partial(job.deadline.demand, "a rewrite that fails the check was evaluated in float64")

    def run(self, inputs: Arrays) -> list[Any]:
        """The outputs on the inputs of one of the cases."""
        case = next(each for each in self.cases if each.inputs is inputs)
        return _like(self.evaluate(inputs, self.step), case)


def _like(found: Sequence[Any], case: CheckCase) -> list[Any]:
    """Results in the dtypes of a case's outputs."""
    return [
        new.astype(old.dtype) if isinstance(old, np.ndarray) and isinstance(new, np.ndarray) else new
        for new, old in zip(found, case.original, strict=True)
    ]


class _Checking:
    def __init__(self, job: Job, problem: Problem, valid: bool, cases: Sequence[CheckCase]) -> None:
        self.job, self.problem, self.valid, self.cases = job, problem, valid, cases
        self.fine = Fine.of(problem.model)

    def differences(self, model: Model, target: Target) -> Differences:
        """onnx's checker (where the original passes it), loading, and the criterion on every output
        of every case."""
        try:
            session = runtime.open_in_child(model, target, check=self.valid)
            fine = None if self.fine is None else self.fine.opened(model, target)
        except OutOfTime:
            raise
        except TasoMirageError as error:
            return (Difference(str(error), "any", np.inf, 0.0, 0.0),)
        return tuple(compare(self.problem.model, session, self.cases, fine))

    def fallen_back(self, chosen: ModelCandidate, bad: Difference) -> tuple[ModelCandidate | None, Differences]:
        """The steps before the first one that breaks the model, which is named; where it only turns
        a decision, all steps but such ones."""
        if not chosen.steps:  # the same graph, folded as it was read, or with other options
            self.job.failure = f"the check failed with {dict(chosen.target.options)} ({bad}): the original is kept"
            return None, ()
        try:
            k = self._first_bad(chosen)
        except OutOfTime:
            self.job.failure = f"the check failed ({bad}), and there was no time to find the rewrite: please report it"
            return None, ()
        if not self._only_turns(chosen, k, bad):
            return self._before(chosen, k)
        found = self._without_turns(chosen, k)
        names, after = found[2] if found else _names(chosen, k), "" if found else " and those after it"
        self.job.remarks.append(
            f"left out: {', '.join(map(repr, dict.fromkeys(names)))}{after}; right in float64, but it rounds otherwise "
            f"than the original before a quantized operator, and so turns a decision of it ({bad})"
        )
        return found[:2] if found else self._before(chosen, k)

    def _only_turns(self, chosen: ModelCandidate, k: int, bad: Difference) -> bool:
        """Whether the step that breaks the model turns a decision; else it is reported."""
        if self._turns_a_decision(chosen.steps[:k], chosen.target):
            return True
        culprit = ", ".join(_names(chosen, k))
        self.job.failure = (
            f"the check failed ({bad}); the first rewrite that breaks it is {culprit!r} (step {k}): please report it"
        )
        return False

    def _without_turns(self, chosen: ModelCandidate, k: int) -> tuple[ModelCandidate, Differences, list[str]] | None:
        """The candidate without the equations of step k, at all their places, and without those of
        others that turn decisions; None where that leaves nothing, or there is no time."""
        outputs, names = self.problem.model.graph.outputs, list[str]()
        try:
            for _ in range(TURNS):
                names += _names(chosen, k)
                steps = single_steps(outputs, chosen.steps)
                gone = {i for i, step in enumerate(steps) if not set(names).isdisjoint(step.equations)}
                chosen = self.problem.without(chosen, steps, gone, "what turns no decision")
                differences = self.differences(chosen.model, chosen.target)
                bad = next((d for d in differences if not d.passed), None)
                if chosen.model.graph.outputs == outputs:
                    return None
                if bad is None:
                    return chosen, differences, names
                k = self._first_bad(chosen)
                if not self._only_turns(chosen, k, bad):
                    return None
        except OutOfTime:
            pass
        return None

    def _before(self, chosen: ModelCandidate, k: int) -> tuple[ModelCandidate | None, Differences]:
        return self._kept(chosen, chosen.steps[: k - 1]) if k > 1 else (None, ())

    def _first_bad(self, chosen: ModelCandidate) -> int:
        return first_bad(len(chosen.steps), lambda k: self._passes(chosen.steps[:k], chosen.target))

    def _passes(self, steps: Sequence[RewriteStep], target: Target) -> bool:
        return all(d.passed for d in self.differences(self.problem.after(steps)[0], target))

    def _turns_a_decision(self, steps: Sequence[RewriteStep], target: Target) -> bool:
        """Whether a model is equal to the original in float64 on the inputs where it fails: what
        quantizes decides there as in the reference, so only roundings of its own make it fail."""
        model, _ = self.problem.after(steps)
        if not any(traits(node).decides for node in model.nodes()):
            return False
        failed = {d.case.removesuffix(FINE_CASE) for d in self.differences(model, target) if not d.passed}
        try:
            evaluated = _InFloat64(self.job, model, [case for case in self.cases if case.name in failed])
            exact = compare(self.problem.model, evaluated, evaluated.cases)
        except TasoMirageError:  # no time, or nothing that can be evaluated
            return False
        return bool(exact) and all(d.passed for d in exact)

    def _kept(self, chosen: ModelCandidate, before: Sequence[RewriteStep]) -> tuple[ModelCandidate | None, Differences]:
        """The candidate of the steps before the first bad one, if they change the model and it
        passes."""
        problem = self.problem
        good, steps = problem.after(before)
        problem.weights.update(good.weights)
        differences = self.differences(good, chosen.target)
        if good.graph == problem.model.graph or not all(d.passed for d in differences):
            return None, ()
        cost = problem.cost(good.graph.outputs)
        return ModelCandidate("the steps before the first bad one", good, steps, cost, chosen.target), differences


def _names(chosen: ModelCandidate, k: int) -> tuple[str, ...]:
    """The equations of a step."""
    return tuple(chosen.steps[k - 1].equations)
