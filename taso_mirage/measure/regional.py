"""The check of a large model: each patch is compared on the values that it reads in one run of the
original.

A patch is compared with the float64 evaluation of the original's terms by the criterion of `check`,
one of equal ones, and cut to few rows and batches where it is independent along them; then the
optimized terms are compared at full size with the values of the original's run. Equal patches with
other weights are compared with that run, too, and in float64 where they are further off than the
one that was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from taso_mirage.devices.machine import cores
from taso_mirage.errors import OutOfTime
from taso_mirage.ir.dims import learn
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node, topological
from taso_mirage.measure.beside import scaled_case
from taso_mirage.measure.bulk import evaluation_seconds
from taso_mirage.measure.check import CheckCase, Difference
from taso_mirage.measure.compared import ClaimedModel, EvaluatedCut, SidesCompared
from taso_mirage.measure.cuts import Sides, fewer_rows, fixed_sides
from taso_mirage.measure.early import EarlyValues
from taso_mirage.measure.evaluation import WRONG
from taso_mirage.measure.joint import Ran, opens_slowly, run_together
from taso_mirage.measure.magnitudes import rounds, uniform_number
from taso_mirage.measure.patches import Patch, patches
from taso_mirage.measure.session import open_in_child
from taso_mirage.measure.target import Target
from taso_mirage.onnx_io.build import observing
from taso_mirage.operators.work import size, sized

DEAR = 20.0
"""The largest number of seconds of a float64 evaluation of all rows of a patch."""
RUNS = 2
"""The number of input sets on whose values patches are compared."""
GIVEN = 1 << 30
"""Bytes of values that one run of the original gives."""
OTHERS = 1 << 27
"""Bytes of the values of all those of equal patches that are compared beside one of them."""
HELD = 1 << 31
"""Bytes of the float64 evaluations of patches that are computed at once, or kept for their
comparison."""
_Place: TypeAlias = tuple[Target, tuple[Node, ...], tuple[Node, ...]]
_Run: TypeAlias = tuple[tuple[Node, ...], int, tuple[Node, ...]]
"""The terms of the original that a patch stands for, the input set, and the optimized terms at the
sizes that ran."""
NO_TIME = "there was no time"
FULL = " at full size"


class RegionalCheck:
    """The patches of any optimized models of one original; of equal ones one is compared in
    float64.

    Patches that are not compared before it is `late` are compared in the whole model only. `share`:
    the share of the original's rounding of operands that kernels may round (`check.compare`).
    `values`: those of the original's terms that are known, which gets others as far as there is
    room.
    """

    def __init__(
        self,
        model: Model,
        cases: Sequence[CheckCase],
        late: Callable[[], bool] = lambda: False,
        share: float = 0.0,
        values: dict[Node, list[Any]] | None = None,
    ) -> None:
        self.model, self.late, self.share = model, late, share
        base = cases[0].inputs
        alike = [c for c in cases if all(np.shape(c.inputs[n]) == np.shape(base[n]) for n in base)]
        self.cases = _differing(alike)[:RUNS]
        self.values, self.keeps = {} if values is None else values, values is not None
        self.known: dict[_Place, list[Difference]] = {}
        """The differences of each patch that was compared; none where an equal one passed and it is
        as near."""
        self.few: dict[_Run, tuple[CheckCase, Sides] | None] = {}
        """The cut of a patch on the values of a run, where it was looked for ahead."""
        self.early = EarlyValues[tuple[Any, ...], CheckCase](0, 0, self._step)
        """Float64 evaluations of patches and of their first cuts, in threads."""
        self.ran: dict[_Run, Ran] = {}
        """Runs of patches that were in one session with others, at full size and cut."""
        self.others = 0
        """Bytes of the values of equal patches that were asked for."""
        self.alone: dict[str, None] = {}
        """Why patches were compared in the whole model only."""

    def differences(self, optimized: ClaimedModel) -> list[Difference]:
        """The differences of every output of every kind of patch, those first that take the least
        time for each place."""
        kinds = self._kinds(optimized)
        try:
            self._compare(kinds, optimized)
        except OutOfTime:
            self.alone[NO_TIME] = None
        return [d for each in kinds for place in each for d in self.known.get(place, ())]

    def equal_in_float64(self, optimized: ClaimedModel) -> bool:
        """Whether the patches that fail compute the original's terms when nothing is rounded."""
        every = [each for kind in self._kinds(optimized) for each in kind.items()]
        failed = [patch for place, patch in every if any(not d.passed for d in self.known.get(place, ()))]
        self._observe(failed, optimized.target)
        sides = [self._sides(patch, run) for patch in failed for run in range(len(self.cases))]
        self.values.clear()
        compared = SidesCompared(self.model, optimized, self._step, self.share)
        return all(each.seconds() <= DEAR and compared.equal_in_float64(each) for each in sides)

    def _kinds(self, optimized: ClaimedModel) -> list[dict[_Place, Patch]]:
        """Equal patches, those first whose float64 evaluation takes the least for each place; one
        of those with the same weights."""
        alike: dict[Any, list[Patch]] = {}
        weights = {**optimized.computed, **self.model.weights, **optimized.model.weights}
        uniform = cache(lambda node: uniform_number(weights[node.attr("name")].numpy()))
        for patch in patches(self.model.graph.outputs, optimized.model.graph.outputs, optimized.claims):
            alike.setdefault(patch.key(optimized.made, uniform), []).append(patch)
        sizes = self.model.sizes
        every = sorted(alike.values(), key=lambda e: evaluation_seconds(topological(e[0].before), sizes) / len(e))
        return [{_place(patch, optimized): patch for patch in each} for each in every]

    def _compare(self, kinds: Sequence[Mapping[_Place, Patch]], optimized: ClaimedModel) -> None:
        """Compare the patches that are not known."""
        new = [[patch for place, patch in each.items() if place not in self.known] for each in kinds]
        wanted: Sequence[Sequence[Patch]] = [each for each in new if each]
        while wanted:
            self._step()
            now, wanted = self._fitting(wanted, optimized)
            self._observe([patch for each in now for patch in each], optimized.target)
            with closing(EarlyValues(max(cores() // 2, 1), HELD, self._step)) as self.early:
                if opens_slowly(optimized.target):
                    self._run_ahead(now, optimized)
                for first, *others in now:
                    self._step()
                    self._look(first, others, optimized)
            self.few.clear()
            self.ran.clear()
            if wanted or not self.keeps:
                self.values.clear()

    def _run_ahead(self, now: Sequence[Sequence[Patch]], optimized: ClaimedModel) -> None:
        """Run all patches at full size in few sessions, and then the cuts of the first of each
        kind. Meanwhile threads evaluate cuts, and then patches without a cut, in float64."""
        compared, last = SidesCompared(self.model, optimized, self._step, self.share), len(self.cases) - 1
        firsts = [(first, run) for first, *_ in now for run in range(len(self.cases))]
        wholes = [*firsts, *((patch, last) for _, *others in now for patch in others)]
        tried = [(patch.terms, run, *self._begun(patch, run, compared)) for patch, run in firsts]
        for terms, run, whole, few in tried:
            with suppress(*WRONG):
                if few is None and whole.seconds() <= DEAR:
                    self._add((terms, run, whole.after), compared, self.cases[run].name, whole)
        self._keep_runs([(patch.terms, run, self._sides(patch, run)) for patch, run in wholes], compared)
        cuts: list[tuple[tuple[Node, ...], int, Sides]] = []
        for terms, run, whole, few in tried:
            if self.late():
                break
            with suppress(*WRONG):
                found = self.few[terms, run, whole.after] = compared.few_rows(few or ())
                cuts += [] if found is None else [(terms, run, found[1])]
        self._keep_runs(cuts, compared)

    def _begun(self, patch: Patch, run: int, compared: SidesCompared) -> tuple[Sides, Iterator[EvaluatedCut] | None]:
        """A patch on the values of a run, and its cuts, of which a thread evaluates the first; None
        if there is none."""
        whole, name = self._sides(patch, run), self.cases[run].name
        cuts = self._cuts(compared, name, whole)
        first: EvaluatedCut | None = None
        with suppress(*WRONG):
            if (first := next(cuts, None)) is not None:
                key = patch.terms, run, first[0].after, "cut"
                if self._add(key, compared, name, first[0]):
                    first = first[0], partial(self.early.take, key)
        return whole, None if first is None else chain([first], cuts)

    def _add(self, key: tuple[Any, ...], compared: SidesCompared, name: str, sides: Sides) -> bool:
        """Let a thread evaluate a patch in float64, if one can."""
        compute, held = compared.evaluation(name, sides)
        if held is not None:
            self.early.add(key, compute, held)
        return held is not None

    def _keep_runs(self, places: Sequence[tuple[tuple[Node, ...], int, Sides]], compared: SidesCompared) -> None:
        ran = run_together([sides for *_, sides in places], compared.opened)
        kept = {(t, run, s.after): each for (t, run, s), each in zip(places, ran, strict=True) if each is not None}
        self.ran |= kept

    def _look(self, first: Patch, others: Sequence[Patch], optimized: ClaimedModel) -> None:
        """Compare a patch; where it passes, also those of equal ones that are further off than it
        is, until one fails."""
        compared = self._record(first, optimized)
        if compared is None:
            return
        further = self._further(others, compared)
        self.known |= {_place(patch, optimized): [] for patch in others if patch not in further}
        for patch in further:
            self._step()
            if self._record(patch, optimized) is None:
                return

    def _further(self, others: Sequence[Patch], compared: SidesCompared) -> list[Patch]:
        """The patches that are further from the original's run than an equal one that passed: a
        rewrite may be right for its weights (an identity, say) and wrong for theirs.
        """
        if compared.case_there is None:
            return []
        try:
            last = len(self.cases) - 1
            places = [self._sides(patch, last) for patch in others]
            ran = [self.ran.get((p.terms, last, s.after)) for p, s in zip(others, places, strict=True)]
            near = compared.together(compared.case_there, places, ran)
        except OutOfTime:
            raise
        except WRONG:
            return list(others)
        return [patch for patch, passed in zip(others, near, strict=True) if not passed]

    def _record(self, patch: Patch, optimized: ClaimedModel) -> SidesCompared | None:
        """Collect the results of a patch. If the time ends early, only failed results are kept.
        None if nothing was compared."""
        given: list[Difference] = []
        compared, place = SidesCompared(self.model, optimized, self._step, self.share), _place(patch, optimized)
        try:
            given += self._compared(patch, compared)
        except OutOfTime:
            if any(not each.passed for each in given):
                self.known[place] = given
            raise
        self.known[place] = given
        return compared if all(each.passed for each in given) else None

    def _step(self) -> None:
        if self.late():
            raise OutOfTime("regions were checked in float64")

    # ------------------------------------------------------------ values

    def _observe(self, wanted: Sequence[Patch], target: Target) -> None:
        """The values that patches read and give, in one run of the original on each input set."""
        self.values |= {n: [c.inputs[n.attr("name")] for c in self.cases] for n in self.model.graph.inputs}
        terms = [n for n in _values(wanted) if n not in self.values]
        if terms:
            session = open_in_child(observing(self.model, terms), target)
            runs = [session.run(case.inputs) for case in self.cases]
            self.values |= {n: [run[i] for run in runs] for i, n in enumerate(terms)}

    def _fitting(
        self, wanted: Sequence[Sequence[Patch]], optimized: ClaimedModel
    ) -> tuple[list[list[Patch]], Sequence[Sequence[Patch]]]:
        """One of equal patches of as many kinds as there is room for the values of, with as many of
        the others as have room beside them, and the other kinds."""
        total, now = 0, list[list[Patch]]()
        for each in wanted:
            total += self._room(each[0])
            if total > GIVEN and now:
                break
            now.append([each[0]])
        for few, each in zip(now, wanted, strict=False):
            for patch in each[1:]:
                self.others += self._room(patch)
                if self.others <= OTHERS:
                    few.append(patch)
                    continue
                self.known[_place(patch, optimized)] = []
                self.alone["equal ones have more values than one run may give"] = None
        return now, wanted[len(now) :]

    def _room(self, patch: Patch) -> int:
        return sum(self._bytes(n) for n in _values([patch]))

    def _bytes(self, term: Node) -> int:
        try:
            return size(sized(term.tensor, self.model.sizes))
        except (LookupError, ArithmeticError):  # only a run can tell
            return 0

    # ------------------------------------------------------------ one patch

    def _compared(self, patch: Patch, compared: SidesCompared) -> Iterator[Difference]:
        try:
            for i in range(len(self.cases)):
                yield from self._on(patch, compared, i)
        except OutOfTime:
            raise
        except WRONG as error:  # it is no model of its own
            self.alone[str(error)] = None

    def _on(self, patch: Patch, compared: SidesCompared, run: int) -> Iterator[Difference]:
        """The differences of one patch on the values of one run: on a few rows, and then at full
        size against the run. If the patch is not independent along rows, or fails on a few (whose
        values may not be valid operands), it is compared on all rows."""
        whole, name = self._sides(patch, run), self.cases[run].name
        dear, ran = whole.seconds() > DEAR, self.ran.get((patch.terms, run, whole.after))
        few = self._few_rows(patch, compared, run, whole)
        if few is not None:
            case, sides = few
            differences = compared.exactly(case, sides, self.ran.get((patch.terms, run, sides.after)))
            if dear or all(each.passed for each in differences):
                yield from self._named(patch, differences)
                yield from self._named(patch, compared.beside(scaled_case(case, whole), whole, ran), FULL)
                return
        if dear:
            yield from self._named(patch, compared.beside(compared.perturbed(name, whole), whole, ran), FULL)
        else:
            yield from self._named(patch, compared.exactly(self._case(patch, compared, run, whole), whole, ran))

    def _few_rows(
        self, patch: Patch, compared: SidesCompared, run: int, whole: Sides
    ) -> tuple[CheckCase, Sides] | None:
        """The cut of a patch, which may have been found ahead."""
        place = patch.terms, run, whole.after
        if place not in self.few:
            return compared.few_rows(self._cuts(compared, self.cases[run].name, whole))
        found = self.few[place]
        compared.case_there = compared.case_there if found is None else found[0]
        return found

    def _case(self, patch: Patch, compared: SidesCompared, run: int, whole: Sides) -> CheckCase:
        """The float64 evaluation of all of a patch, which a thread may have."""
        place = patch.terms, run, whole.after
        if place not in self.early:
            return compared.case(self.cases[run].name, whole)
        compared.case_there = found = self.early.take(place)
        return found

    def _cuts(self, compared: SidesCompared, name: str, whole: Sides) -> Iterator[EvaluatedCut]:
        """The smaller forms of a patch, with their evaluations, where that pays."""
        for sides in fewer_rows(whole) if whole.pays() else ():
            yield sides, partial(compared.case, name, sides)

    def _sides(self, patch: Patch, run: int) -> Sides:
        inputs = {leaf.attr("name"): self.values[old][run] for leaf, old in patch.values.items()}
        sizes = dict(self.model.sizes)
        met: dict[str, int] = {}
        for leaf in patch.values:
            learn(leaf.tensor.shape, np.shape(inputs[leaf.attr("name")]), met)
        before, after = fixed_sides(patch.before, patch.after, sizes | met)
        return Sides(before, after, inputs, tuple(self.values[n][run] for n in patch.terms))

    # ------------------------------------------------------------ names

    def _named(self, patch: Patch, differences: Sequence[Difference], how: str = "") -> list[Difference]:
        region = f", in the region of {self._called(patch.terms[-1])!r}{how}"
        names = {f"value_{i}": self._called(n) for i, n in enumerate(patch.terms)}
        return [replace(each, output=names.get(each.output, each.output), region=region) for each in differences]

    def _called(self, term: Node) -> str:
        outputs = dict(zip(self.model.graph.outputs, self.model.output_names, strict=True))
        return outputs.get(term) or self.model.names.get(term) or term.op


def _place(patch: Patch, optimized: ClaimedModel) -> _Place:
    return optimized.target, patch.before, patch.after


def _differing(cases: Sequence[CheckCase]) -> list[CheckCase]:
    """The cases, those first whose numbers and flags that choose a branch no case before has."""
    met, later = dict[tuple[Any, ...], CheckCase](), list[CheckCase]()
    for case in cases:
        chosen = tuple(
            np.asarray(v).item() for v in case.inputs.values() if np.size(v) == 1 and not rounds(np.asarray(v))
        )
        if met.setdefault(chosen, case) is not case:
            later.append(case)
    return [*met.values(), *later]


def _values(patches: Sequence[Patch]) -> list[Node]:
    """The original's terms of which patches need the values."""
    return list(dict.fromkeys(n for patch in patches for n in (*patch.values.values(), *patch.terms)))
