"""The stage that checks the chosen candidate against the original's float64 reference, and finds
the first rewrite that breaks it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np

from taso_mirage.errors import OutOfTime, TasoMirageError
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node
from taso_mirage.measure import session as runtime
from taso_mirage.measure.check import FINE_CASE, UNEXPLAINED, CheckCase, Difference, compare, first_bad
from taso_mirage.measure.compared import ClaimedModel
from taso_mirage.measure.fine import Fine
from taso_mirage.measure.in_float64 import InFloat64
from taso_mirage.measure.native import Arrays
from taso_mirage.measure.regional import RegionalCheck
from taso_mirage.measure.rounding import LetThrough, OutputRounding, furthest, output_rounding
from taso_mirage.measure.session import Session
from taso_mirage.measure.target import Target, lower_levels
from taso_mirage.measure.whole import BY_RUNS
from taso_mirage.operators.ops import traits
from taso_mirage.pipeline.candidates import Start
from taso_mirage.pipeline.choice import Choice, choose
from taso_mirage.pipeline.problem import Problem
from taso_mirage.pipeline.stage import Job
from taso_mirage.rewriting.equation import directed
from taso_mirage.search.rewriter import ModelCandidate
from taso_mirage.search.selection import single_steps
from taso_mirage.search.steps import FOLDING, RewriteStep, claimed, folded_from
from taso_mirage.search.weights import fold_weights
from taso_mirage.system.wording import option

Differences = tuple[Difference, ...]
TURNS = 8
"""The largest number of times that rewrites which change a decision are left out of one
candidate."""
LOOKS = 3
"""The number of different kinds of places; an equation that changes decisions at more of them is
left out everywhere."""
DEEP = 3
"""The depth, in terms, of the description of a place."""
_Look: TypeAlias = tuple[Any, ...]
ONCE = "equal nodes stay: computed once, they round differently ({}), and the original is kept"
LAST = 1.0
"""Seconds that are kept for the check of the whole model at least."""


def check_candidates(
    job: Job,
    problem: Problem,
    start: Start,
    original: Session,
    valid: bool,
    cases: Sequence[CheckCase],
    feeds: Sequence[Arrays],
    choice: Choice,
) -> tuple[Choice, Differences, Sequence[CheckCase], LetThrough | None]:
    """The choice, if it passes the check or fails only because of permitted changes of decisions;
    otherwise the longest prefix of its steps that passes, if that is also measured to be faster.

    The cases are for later checks; after permitted roundings, they contain its results in place of
    the original's.
    """
    if choice.candidate is None:
        return choice, (), cases, None
    checking = _Checking(job, problem, valid, cases)
    differences = checking.of(choice.candidate)
    job.remarks += checking.only_whole()
    bad = next((d for d in differences if not d.passed), None)
    if bad is None:
        return choice, differences, cases, None
    good, differences = checking.fallen_back(choice.candidate, bad)
    if good is None:
        return Choice(), (), cases, None
    if good is not choice.candidate:
        choice = choose(job, problem, start, original, cases, feeds, [good])
        choice = Choice(choice.candidate, choice.timing, waits=choice.waits)
    if choice.candidate is None or checking.let_through is None:
        return choice, differences, cases, None
    job.remarks.append(str(checking.let_through))
    return choice, differences, checking.rebased(choice.candidate), checking.let_through


@dataclass(frozen=True, slots=True)
class _Turned:
    """Equations that turn decisions of a candidate: whether these are all of them, and the
    candidate without them that passes the check, if there is one."""

    names: tuple[str, ...]
    whole: bool
    rest: tuple[ModelCandidate | None, Differences] | None = None


class _Checking:
    def __init__(self, job: Job, problem: Problem, valid: bool, cases: Sequence[CheckCase]) -> None:
        self.job, self.problem, self.valid, self.cases = job, problem, valid, cases
        self.fine = Fine.of(problem.model)
        self.let_through: LetThrough | None = None
        self.kept = max(2 * job.checking, LAST)
        """Seconds that are kept for the check of a whole model behind that of its regions."""
        self.folds = False
        """Whether weights are computed ahead after any number of steps."""
        by_runs = cases[0].against == BY_RUNS
        self.regions = RegionalCheck(problem.model, cases, self._late) if by_runs else None

    def _late(self) -> bool:
        """Whether the remaining time is reserved for later work."""
        return self.job.deadline.last() < self.kept

    def only_whole(self) -> list[str]:
        """A note that regions cannot be separate models, with the reason."""
        alone = {} if self.regions is None else self.regions.alone
        return [f"some regions were compared only in the whole model, not in float64: {why}" for why in alone]

    def of(self, candidate: ModelCandidate) -> Differences:
        """The differences of a candidate: first those of the whole model, which must be checked in
        any case."""
        whole = self._whole(candidate.model, candidate.target)
        if self.regions is None or not all(d.passed for d in whole):
            return whole
        around, self.kept = self.kept, LAST
        regions = self.regions.differences(self._claim(candidate.model, candidate.steps, candidate.target))
        self.kept = around
        return (*regions, *whole)

    def differences(self, model: Model, steps: Sequence[RewriteStep], target: Target) -> Differences:
        """The differences of the regions that the steps changed, where the whole model has no
        float64 reference; if they pass, also those of the whole model."""
        regions: Differences = ()
        if self.regions is not None:
            regions = tuple(self.regions.differences(self._claim(model, steps, target)))
        return (*regions, *self._whole(model, target)) if all(d.passed for d in regions) else regions

    def _claim(self, model: Model, steps: Sequence[RewriteStep], target: Target) -> ClaimedModel:
        claims = claimed(self.problem.model.graph.outputs, steps)
        return ClaimedModel(model, target, claims, folded_from(steps), self.problem.weights)

    def _whole(self, model: Model, target: Target) -> Differences:
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
        """The steps before the first step that breaks the model, which is reported. If that step
        only changes a decision, all steps except such ones."""
        if not chosen.steps:  # the same graph, folded as it was read, or with other options
            if chosen.target == self.problem.target:
                self.job.remarks.append(ONCE.format(bad))
            else:
                self.job.failure = f"the check failed with {dict(chosen.target.options)} ({bad}): the original is kept"
            return None, ()
        try:
            k = self._first_bad(chosen)
        except OutOfTime:
            self.job.failure = f"the check failed ({bad}), and there was no time to find the rewrite: please report it"
            return None, ()
        if not self._only_turns(chosen, k, bad):
            return self._before(chosen, k)
        turned = self._without_turns(chosen, k)
        refused = f"{option('allow_rounding', 'STEPS')} permits that"
        if self.job.config.allow_rounding is not None and turned.whole:
            allowed = self._allow(chosen, turned.names)
            if not isinstance(allowed, str):
                return allowed
            refused = allowed
        gone = ", ".join(map(repr, dict.fromkeys(_names(chosen, k)))) + " and those after it"
        if turned.rest is not None and turned.rest[0] is not None:
            before, stay = _places(chosen.steps), _places(turned.rest[0].steps)
            gone = ", ".join(
                f"{name!r} in {before[name] - stay[name]} of {before[name]} places" for name in turned.names
            )
        self.job.remarks.append(
            f"left out: {gone}; right in float64, but it rounds differently from the original before a quantized operator, "
            f"which changes a decision of that operator ({bad}); {refused}"
        )
        return turned.rest or self._before(chosen, k)

    def _only_turns(self, chosen: ModelCandidate, k: int, bad: Difference) -> bool:
        """Whether the step that breaks the model only changes a decision; otherwise it is reported,
        as a failure where the runtime's own optimizations are not the cause."""
        if self._turns_a_decision(chosen.steps[:k], chosen.target):
            return True
        culprit = ", ".join(_names(chosen, k))
        if self._passes_as_written(chosen, k):
            self.job.remarks.append(
                f"left out: {culprit!r} and the steps after it; right as written, but ONNX Runtime's own optimizations "
                f"change the result ({bad})"
            )
            return False
        self.job.failure = (
            f"the check failed ({bad}); the first rewrite that breaks it is {culprit!r} (step {k}): please report it"
        )
        return False

    def _without_turns(self, chosen: ModelCandidate, k: int) -> _Turned:
        """The candidate without step k at all equal places, and without other rewrites that change
        decisions; without an equation everywhere, if it did so at several kinds of places."""
        outputs, left_out = self.problem.model.graph.outputs, dict[str, set[_Look] | None]()
        try:
            for _ in range(TURNS if self.job.config.allow_rounding is None else len(chosen.steps)):
                for name, looks in _looks(chosen.steps[k - 1]).items():
                    known = left_out.get(name, set())
                    left_out[name] = None if known is None or len(known | looks) > LOOKS else known | looks
                chosen = self._without(chosen, left_out)
                differences = self.of(chosen)
                bad = next((d for d in differences if not d.passed), None)
                if bad is None:
                    left = chosen.model.graph.outputs != outputs
                    return _Turned(tuple(left_out), True, (chosen, differences) if left else None)
                k = self._first_bad(chosen)
                if not self._only_turns(chosen, k, bad):
                    break
        except OutOfTime:
            pass
        return _Turned(tuple(left_out), False)

    def _without(self, chosen: ModelCandidate, left_out: Mapping[str, set[_Look] | None]) -> ModelCandidate:
        """A candidate without equations at places of this kind, or everywhere (None)."""
        steps = single_steps(self.problem.model.graph.outputs, chosen.steps)

        def goes(step: RewriteStep) -> bool:
            return any(n in left_out and (left_out[n] or looks) & looks for n, looks in _looks(step).items())

        gone = {i for i, step in enumerate(steps) if goes(step)}
        return self.problem.without(chosen, steps, gone, "without turned decisions")

    def _allow(self, chosen: ModelCandidate, names: Sequence[str]) -> tuple[ModelCandidate, Differences] | str:
        """The candidate with the equations that are permitted to change decisions, if it is right
        in float64 and its results are close enough; otherwise the reason."""
        allowed = self.job.config.allow_rounding
        rules = [name for name in names if name != FOLDING]
        permitted = [name for name in rules if allowed is not None and allowed.permits(directed(name)[0])]
        if allowed is None or not permitted:
            return f"{option('allow_rounding', str(allowed))} does not name it"
        if refused := set(rules) - set(permitted):
            chosen = self._without(chosen, dict.fromkeys(refused))
        try:
            differences = self.of(chosen)
            failed = [d for d in differences if not d.passed]
            if failed and not self._equal_in_float64(chosen.model, chosen.steps, chosen.target, failed):
                return "together with other rewrites it is not right in float64"
            if any(d.region for d in failed):  # the effect of these on the outputs
                differences = self._whole(chosen.model, chosen.target)
                failed = [d for d in differences if not d.passed]
            found = list(self._in_steps(chosen, failed))
        except TasoMirageError as error:
            return f"how far it moves the outputs is not known ({error})"
        if far := [each for each in found if not each.steps <= allowed.steps]:
            return f"{option('allow_rounding', str(allowed))} allows less: {max(far, key=lambda each: each.steps)}"
        if found:
            self.let_through = LetThrough(tuple(permitted), allowed, furthest(found))
        widened = {id(d): each.within(d, allowed) for d, each in zip(failed, found, strict=True)}
        return chosen, tuple(widened.get(id(d), d) for d in differences)

    def _in_steps(self, chosen: ModelCandidate, failed: Sequence[Difference]) -> Iterator[OutputRounding]:
        """The errors of the outputs that differ by more than the criterion allows."""
        results = cache(partial(self._results, chosen))
        for found in failed:
            fine = found.case.endswith(FINE_CASE)
            i = self.problem.model.output_names.index(found.output)
            case = next(each for each in self.cases if each.name == found.case.removesuffix(FINE_CASE))
            originals = case.fine if fine else case.original
            target = case.reference[i] if found.against != UNEXPLAINED else (originals or case.original)[i]
            yield output_rounding(found, found.case, results(fine)[case.name][i], target)

    def _results(self, chosen: ModelCandidate, fine: bool) -> dict[str, list[Any]]:
        """The outputs of a candidate on every case; if `fine`, those without rounding of
        operands."""
        if fine and self.fine is not None:
            session = self.fine.opened(chosen.model, chosen.target)
        else:
            session = runtime.open_in_child(chosen.model, chosen.target, check=self.valid)
        return {case.name: session.run(case.inputs) for case in self.cases}

    def rebased(self, chosen: ModelCandidate) -> list[CheckCase]:
        """The cases with the candidate's results in the place of the original's."""
        plain, fine = (self._results(chosen, each) if self.fine or not each else {} for each in (False, True))
        return [
            replace(c, original=plain[c.name], fine=fine.get(c.name) if c.fine else None, plain=None)
            for c in self.cases
        ]

    def _before(self, chosen: ModelCandidate, k: int) -> tuple[ModelCandidate | None, Differences]:
        return self._keep_before(chosen, chosen.steps[: k - 1]) if k > 1 else (None, ())

    def _first_bad(self, chosen: ModelCandidate) -> int:
        """The number of the first bad step. A step that only computes weights in advance is
        skipped, because it lets the runtime fuse terms of an earlier step."""
        k = first_bad(len(chosen.steps), lambda k: self._passes(chosen.steps[:k], chosen.target))
        if self.folds or chosen.steps[k - 1].equations != (FOLDING,):
            return k
        self.folds = True
        self.folds = self._passes((), chosen.target)
        return self._first_bad(chosen) if self.folds else k

    def _passes(self, steps: Sequence[RewriteStep], target: Target) -> bool:
        return all(d.passed for d in self.differences(*self._after(steps), target))

    def _passes_as_written(self, chosen: ModelCandidate, k: int) -> bool:
        """Whether the model after k steps passes without the runtime's own optimizations, which
        round a scale in double precision to single precision, for instance."""
        lower = lower_levels(chosen.target)
        try:
            return bool(lower) and self._passes(chosen.steps[:k], lower[-1])
        except OutOfTime:
            return False

    def _after(self, steps: Sequence[RewriteStep]) -> tuple[Model, tuple[RewriteStep, ...]]:
        """The model after steps, and the steps to it."""
        model, made = self.problem.after(steps)
        if not self.folds:
            return model, made
        model, folded = fold_weights(model, self.problem.weights)
        return model, (*made, *folded)

    def _turns_a_decision(self, steps: Sequence[RewriteStep], target: Target) -> bool:
        """Whether a model equals the original in float64 on the inputs where it fails. Its
        quantizers then decide as in the reference, so it fails only because of its own
        roundings."""
        model, made = self._after(steps)
        if not any(traits(node).decides for node in model.nodes()):
            return False
        failed = [d for d in self.differences(model, made, target) if not d.passed]
        return self._equal_in_float64(model, made, target, failed)

    def _equal_in_float64(
        self, model: Model, steps: Sequence[RewriteStep], target: Target, failed: Sequence[Difference]
    ) -> bool:
        """Whether a model is equal to the original in float64 on the cases of some differences;
        where the whole model has no such evaluation, in its regions."""
        names = {d.case.removesuffix(FINE_CASE) for d in failed}
        try:
            if self.regions is not None:
                return self.regions.equal_in_float64(self._claim(model, steps, target))
            step = partial(self.job.deadline.demand, "a rewrite that fails the check was evaluated in float64")
            evaluated = InFloat64(model, [case for case in self.cases if case.name in names], step)
            exact = compare(self.problem.model, evaluated, evaluated.cases)
        except TasoMirageError:  # no time, or nothing that can be evaluated
            return False
        return bool(exact) and all(d.passed for d in exact)

    def _keep_before(
        self, chosen: ModelCandidate, before: Sequence[RewriteStep]
    ) -> tuple[ModelCandidate | None, Differences]:
        """The candidate of the steps before the first bad one, if they change the model and it
        passes."""
        problem = self.problem
        good, steps = problem.after(before)
        problem.weights.update(good.weights)
        differences = self.differences(good, steps, chosen.target)
        if good.graph == problem.model.graph or not all(d.passed for d in differences):
            return None, ()
        cost = problem.cost(good.graph.outputs)
        return ModelCandidate("the steps before the first bad one", good, steps, cost, chosen.target), differences


def _places(steps: Sequence[RewriteStep]) -> Counter[str]:
    """The number of applications of each equation."""
    return Counter(name for step in steps for each in step.details or (step,) for name in each.equations)


def _looks(step: RewriteStep) -> dict[str, set[_Look]]:
    """For each equation of a step, the shapes of its places: operators, DEEP terms in a row."""
    found: dict[str, set[_Look]] = {}
    for each in step.details or (step,):
        for name in each.equations:
            found.setdefault(name, set()).update(_look(node, DEEP) for node in each.old)
    return found


def _look(node: Node, depth: int) -> _Look:
    return (node.op, *(_look(a, depth - 1) for a in node.args if depth > 1))


def _names(chosen: ModelCandidate, k: int) -> tuple[str, ...]:
    """The equations of a step."""
    return tuple(chosen.steps[k - 1].equations)
