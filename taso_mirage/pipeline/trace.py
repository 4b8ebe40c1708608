"""The trace of an optimization: the graph after every stage and after every applied rule."""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node, topological
from taso_mirage.onnx_io.kernels import carried_programs
from taso_mirage.pipeline.candidates import Start
from taso_mirage.pipeline.choice import Choice
from taso_mirage.pipeline.problem import Problem
from taso_mirage.report.changes import (
    ChangedRegion,
    Heights,
    canonical_sides,
    change_of,
    place_of,
    region_leaves,
    replay_names,
)
from taso_mirage.report.result import Result
from taso_mirage.report.trace_files import TraceFiles
from taso_mirage.rewriting.equation import Equation, work_terms
from taso_mirage.rewriting.text import show_graph
from taso_mirage.search.mutations import Mutations
from taso_mirage.search.rewriter import ModelCandidate
from taso_mirage.search.steps import RewriteStep
from taso_mirage.system.files import file_name

WHOLE = 8 << 20
"""Bytes of text that whole graphs after rules may take; of later rules the change is written."""


@dataclass(frozen=True, slots=True)
class TracedModel:
    """A model that a stage gives, with the steps from the original to it; the only one of a stage
    is called ""."""

    name: str
    model: Model
    steps: Sequence[RewriteStep] = ()


def traced_models(made: Mapping[str, Any], problem: Problem) -> Iterator[TracedModel]:
    """The models among the values that a stage gives, by the names of these."""
    for name, value in made.items():
        match value:
            case Problem(model=model):
                yield TracedModel("", model)
            case Start(normal=normal, steps=steps, passed=passed, first=first):
                yield TracedModel("before the search", normal, steps)
                yield from map(_trace_model, (passed, *first))
            case Choice(candidate=ModelCandidate() as candidate):
                yield replace(_trace_model(candidate), name="")
            case Result(model=model, steps=steps):
                yield TracedModel("", model, steps)
            case [ModelCandidate(), *_]:
                yield from map(_trace_model, value)
            case [RewriteStep(), *_] if name == "inside":
                yield TracedModel("", problem.after(value)[0], value)


def _trace_model(candidate: ModelCandidate) -> TracedModel:
    return TracedModel(candidate.name, candidate.model, candidate.steps)


@dataclass(slots=True)
class _Chain:
    """Steps from the original, the outputs before them, and those after each; None where no graph
    was replayed any more."""

    steps: Sequence[RewriteStep]
    outputs: list[tuple[Node, ...] | None]

    def common(self, steps: Sequence[RewriteStep]) -> int:
        """How many of the first steps are those of another chain; no sweep is divided."""
        count = 0
        for one, other in zip(self.steps, steps, strict=False):
            if one is not other and one != other:
                break
            count += 1
        sweep = steps[count].sweep if count < len(steps) else 0
        while sweep and count and steps[count - 1].sweep == sweep:
            count -= 1
        return count


class Trace:
    """Writes the results of the stages of one optimization. `stages` are the names of all that
    there are: their numbers are the same in every run."""

    def __init__(self, folder: Path, stages: Sequence[str]) -> None:
        self.files = TraceFiles(folder)
        self.numbers = {name: i for i, name in enumerate(stages, 1)}
        self.left = WHOLE
        self.problem: Problem | None = None
        self.equations: dict[str, Equation] = {}
        self.names: dict[Node, str] = {}
        """Names of the original's values, and of the terms that they became on the way."""
        self.chains: list[_Chain] = []
        self.heights = Heights()
        self.programs: set[str] = set()
        """The programs of kernels that were written."""

    def __call__(self, stage: str, made: Mapping[str, Any], seconds: float) -> None:
        """Write the models among the values of a stage, after the rules that led to them."""
        for each in made.values():
            if isinstance(each, Problem):
                self._begin(each)
            elif isinstance(each, Mutations):
                self.equations |= {m.equation.name: m.equation for m in each.found}
        writing = _Stage(self, stage, f"{self.numbers[stage]:02}-{file_name(stage)}", f"{seconds:.3f}")
        try:
            writing.write([] if self.problem is None else list(traced_models(made, self.problem)))
        finally:
            self.files.flush()

    def _begin(self, problem: Problem) -> None:
        original = problem.model
        self.problem = problem
        self.equations = {each.name: each for each in problem.rewriter.equations}
        self.names = {**original.names, **dict(zip(original.graph.outputs, original.output_names, strict=True))}
        self.chains = [_Chain((), [original.graph.outputs])]


@dataclass(slots=True)
class _Stage:
    """The files of one stage: they begin with its `stem`. `rules`: how many were written."""

    trace: Trace
    name: str
    stem: str
    seconds: str
    rules: int = 0

    def write(self, models: Sequence[TracedModel]) -> None:
        if not models:
            self._index({"seconds": self.seconds})
        taken = Counter[str]()
        for each in models:
            self._steps(each)
            taken[each.name] += 1
            number = f"-{taken[each.name]}" if taken[each.name] > 1 else ""
            file = f"{self.stem}{f'.{file_name(each.name)}' if each.name else ''}{number}.txt"
            self.trace.files.write(file, self._text(each, each.model.graph.outputs))
            self._index({"file": file, "candidate": each.name, "seconds": self.seconds}, each.model.graph.outputs)
            for name, program in carried_programs(each.model.header).items():
                if name not in self.trace.programs:
                    self.trace.programs.add(name)
                    self.trace.files.write(f"{self.stem}/{file_name(name)}", program)

    def _steps(self, traced: TracedModel) -> None:
        """Write each step that no earlier model had."""
        trace, steps = self.trace, traced.steps
        start = max(trace.chains, key=lambda chain: chain.common(steps))
        count = start.common(steps)
        chain = _Chain(steps, start.outputs[: count + 1])
        for sweep, group in groupby(steps[count:], key=lambda step: step.sweep):
            batch = list(group)
            while batch and trace.left > 0 and (before := chain.outputs[-1]) is not None:
                step = batch.pop(0)
                chain.outputs.append(replay_names(before, step.table, bool(sweep), trace.names))
                self._step(traced, step, before)
            chain.outputs += [self._after(batch, chain.outputs[-1])] * len(batch)
            for step in batch:
                self._change(traced, step)
        trace.chains.append(chain)

    def _after(self, batch: Sequence[RewriteStep], before: tuple[Node, ...] | None) -> tuple[Node, ...] | None:
        """The outputs after the rest of a sweep, replayed at once: one step alone takes a walk of
        the whole graph. None after steps outside of sweeps."""
        if not batch or before is None or not batch[0].sweep:
            return None
        table = {old: new for step in batch for old, new in step.table.items()}
        return replay_names(before, table, True, self.trace.names)

    def _step(self, traced: TracedModel, step: RewriteStep, outputs: tuple[Node, ...]) -> None:
        """Write the graph after each rule of a step on these outputs."""
        for each in step.details or (step,):
            if self.trace.left <= 0:
                self._change(traced, each)
                continue
            outputs = replay_names(outputs, each.table, bool(each.sweep), self.trace.names)
            text = self._text(traced, outputs)
            self.trace.left -= len(text)
            place = self._place(each, change_of(each, self.trace.equations))
            self._rule(traced, each, "", text, outputs, place)

    def _change(self, traced: TracedModel, step: RewriteStep) -> None:
        """Write the terms that a rule replaced, and those in their place over the same leaves."""
        region = change_of(step, self.trace.equations)
        if region is None:
            self._rule(traced, step, "", "", (), self._place(step, None))
            return
        before, after = canonical_sides(region, region_leaves(region, self.trace.heights))
        text = show_graph(before, "before", short=True) + "\n\n" + show_graph(after, "after", short=True)
        self._rule(traced, step, ".change", text, after.outputs, self._place(step, region))

    def _rule(
        self, traced: TracedModel, step: RewriteStep, kind: str, text: str, outputs: Sequence[Node], place: str
    ) -> None:
        """Write the file of one rule, if it has a text, and its row."""
        self.rules += 1
        rule = " + ".join(step.equations)
        file = f"{self.stem}/{self.rules:05}-{file_name(rule)}{kind}.txt" if text else ""
        if text:
            self.trace.files.write(file, text)
        self._index({"file": file, "candidate": traced.name, "rule": rule, "place": place}, outputs)

    def _place(self, step: RewriteStep, region: ChangedRegion | None) -> str:
        if region is None:
            return next((self.trace.names[node] for node in step.old if node in self.trace.names), "")
        return place_of(region, region_leaves(region, self.trace.heights), self.trace.names)

    def _text(self, traced: TracedModel, outputs: tuple[Node, ...]) -> str:
        assert self.trace.problem is not None
        weights = ChainMap(self.trace.problem.weights, dict(traced.model.weights))  # folded ones are added
        return self.trace.files.text(
            traced.model, outputs, weights, ChainMap(self.trace.names, dict(traced.model.names))
        )

    def _index(self, row: Mapping[str, str], outputs: Sequence[Node] = ()) -> None:
        """Add a row; predicted seconds are those of a roofline, to which a node without a
        definition adds nothing."""
        counted: dict[str, str] = {}
        if outputs and self.trace.problem is not None:
            nodes = work_terms(topological(outputs))
            estimate = self.trace.problem.rewriter.context.estimate
            predicted = sum(estimate(n) for n in nodes if n.op != "opaque")
            counted = {"terms": str(len(nodes)), "predicted_s": f"{predicted:.4g}"}
        self.trace.files.index({"stage": self.name, **counted, **row})
