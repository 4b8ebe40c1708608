"""The comparison of the two sides of a patch, each as a model of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TypeAlias

from taso_mirage.errors import OutOfTime
from taso_mirage.ir.model import Model, Weight
from taso_mirage.ir.terms import Graph, Node
from taso_mirage.measure.beside import beside_case, scaled_case
from taso_mirage.measure.bulk import bulk
from taso_mirage.measure.check import CheckCase, Difference, case_on, compare, plausible
from taso_mirage.measure.cuts import Sides
from taso_mirage.measure.early import Compute
from taso_mirage.measure.evaluation import WRONG
from taso_mirage.measure.fine import Fine
from taso_mirage.measure.in_float64 import InFloat64
from taso_mirage.measure.joint import Ran, run_together
from taso_mirage.measure.patches import Claims
from taso_mirage.measure.perturbation import Perturbed
from taso_mirage.measure.reference import FloatReference
from taso_mirage.measure.session import Session, open_part
from taso_mirage.measure.target import Target
from taso_mirage.onnx_io.build import excerpt

EvaluatedCut: TypeAlias = tuple[Sides, Callable[[], CheckCase]]
"""A smaller form of the two sides, and a function that gives its case."""


@dataclass(frozen=True, slots=True)
class ClaimedModel:
    """An optimized model with the claims that its rewrites make, and the terms that its new weights
    were computed from; `computed` has the weights on the way there, which neither model has."""

    model: Model
    target: Target
    claims: Claims
    made: Mapping[Node, Node]
    computed: Mapping[str, Weight] = field(default_factory=dict)


class SidesCompared:
    """A comparison of the two sides of a patch, each as a model of its own."""

    def __init__(self, model: Model, optimized: ClaimedModel, step: Callable[[], None], share: float) -> None:
        self.model, self.optimized, self.step, self.share = model, optimized, step, share
        self.weights = {**model.weights, **optimized.model.weights}
        self.sessions: dict[tuple[Node, ...], Session] = {}
        self.excerpts: dict[tuple[bool, tuple[Node, ...], tuple[Node, ...]], Model] = {}
        self.case_there: CheckCase | None = None
        """The case of the last inputs."""

    def few_rows(self, cuts: Iterable[EvaluatedCut]) -> tuple[CheckCase, Sides] | None:
        """The first cut at which the original's side gives in float64 the values of the run, with
        its case; None if there is none."""
        for sides, evaluated in cuts:
            try:
                case = evaluated()
            except OutOfTime:
                raise
            except WRONG:  # indices into the part that was cut
                continue
            if plausible(sides.found, case.reference):
                self.case_there = case
                return case, sides
        return None

    def case(self, name: str, sides: Sides) -> CheckCase:
        """The check case of the original's side, with its float64 reference and its outputs as they
        ran."""
        self.case_there = self.evaluation(name, sides)[0](self.step)
        return self.case_there

    def evaluation(self, name: str, sides: Sides) -> tuple[Compute[CheckCase], int | None]:
        """A function that gives the case of the original's side, and the bytes that it holds; None
        if the runtime computes some of its terms, so that it is not for another thread."""
        before = self._excerpt(self.model, sides, sides.before)
        reference = FloatReference(before)

        def made(step: Callable[[], None]) -> CheckCase:
            return case_on(name, before, sides.inputs, list(sides.found), reference(sides.inputs, step))

        return made, None if reference.asks_the_runtime else bulk(before, {}).total

    def exactly(self, case: CheckCase, sides: Sides, ran: Ran | None = None) -> list[Difference]:
        """The differences of the optimized side from float64; `ran`: a run of it, if there is
        one."""
        before, after = self._excerpt(self.model, sides, sides.before), self._after(sides)
        fine, finely = Fine.of(before), None
        if fine is not None:
            case = replace(case, fine=fine.opened(before, self.optimized.target).run(sides.inputs))
            finely = fine.opened(after, self.optimized.target)
        return compare(after, ran or self.opened(sides), [case], finely, self.share)

    def equal_in_float64(self, sides: Sides) -> bool:
        """Whether both sides are equal where neither rounds."""
        after = self._after(sides)
        evaluated = InFloat64(after, [self.case("in float64", sides)], self.step)
        return all(each.passed for each in compare(after, evaluated, evaluated.cases))

    def perturbed(self, name: str, whole: Sides) -> CheckCase:
        """The case of the original's run, where roundings of its side are no fault."""
        moved = Perturbed(self._excerpt(self.model, whole, whole.before), self.optimized.target)
        resolution = cache(lambda: moved(whole.inputs, whole.found))
        self.case_there = beside_case(name, whole, [0.0] * len(whole.found), resolution)
        return self.case_there

    def beside(self, case: CheckCase, whole: Sides, ran: Ran | None = None) -> list[Difference]:
        """The differences of the optimized side from the original's run."""
        after = self._after(whole)
        return compare(after, ran or self.opened(whole), [case])

    def together(self, case: CheckCase, places: Sequence[Sides], ran: Sequence[Ran | None] = ()) -> list[bool]:
        """Whether each of equal sides is as close to the original's run as `case`, relative to the
        size of its numbers; many sides run in one session, unless `ran` has their runs."""
        ran = ran if ran and None not in ran else run_together(places, self.opened)
        near = list[bool]()
        for sides, each in zip(places, ran, strict=True):
            self.step()
            near.append(all(d.passed for d in self.beside(scaled_case(case, sides), sides, each)))
        return near

    def opened(self, sides: Sides) -> Session:
        """A session on the optimized side."""
        if sides.after not in self.sessions:
            self.sessions[sides.after] = open_part(self._after(sides), self.optimized.target)
        return self.sessions[sides.after]

    def _after(self, sides: Sides) -> Model:
        return self._excerpt(self.optimized.model, sides, sides.after)

    def _excerpt(self, model: Model, sides: Sides, terms: tuple[Node, ...]) -> Model:
        inputs = tuple(n for n in sides.leaves if n.op == "input")
        key = model is self.model, inputs, terms
        if key not in self.excerpts:
            self.excerpts[key] = excerpt(model, Graph(inputs, terms), self.weights)
        return self.excerpts[key]
