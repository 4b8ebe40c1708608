"""The stage that works inside of nodes: terms that no iteration of a loop changes move out of its
body. Then every body of an If, Loop or Scan is optimized and checked as a separate model, on inputs
observed in runs of the whole model."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.model import Model, Weight
from taso_mirage.ir.terms import Node, Tensor, substitute, weight
from taso_mirage.measure.check import CheckCase
from taso_mirage.measure.observation import BodyRun, Operands, body_runs, operands
from taso_mirage.measure.session import Session
from taso_mirage.onnx_io import serialize
from taso_mirage.onnx_io.bodies import Body, ChangedBody, bodies_of, has_bodies, label_of, own_weights, with_bodies
from taso_mirage.onnx_io.invariants import without_invariants
from taso_mirage.onnx_io.stacked import knows_more
from taso_mirage.pipeline.loops import reroll_chains, reroll_sums, rewrite_loops
from taso_mirage.pipeline.problem import Problem
from taso_mirage.pipeline.shares import search_seconds
from taso_mirage.pipeline.stage import Job
from taso_mirage.report.result import Result
from taso_mirage.rewriting.equation import work_terms
from taso_mirage.search.config import OFF, unseen
from taso_mirage.search.steps import BODIES, BodySteps, RewriteStep
from taso_mirage.system.files import file_name

LEAST = 0.02
"""The smallest share of a run's time with which a body is optimized."""
MOST = 0.9
"""The share of the searches' time for all bodies together."""
SHARED = 4096
"""Bytes of a weight from which it is stored once where several bodies have it."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A body with its runs, and how much of the searches' time it has."""

    term: Node
    body: Body
    runs: list[BodyRun]
    label: str
    share: float = 0.0

    @property
    def reached(self) -> bool:
        return any(run.reached for run in self.runs)


def work_inside(job: Job, problem: Problem, original: Session, cases: Sequence[CheckCase]) -> tuple[RewriteStep, ...]:
    """The steps that put optimized bodies in the place of others; the rest of the searches' time is
    for the stages after it."""
    model, moved = _move_out(job, problem.model)
    seconds_of = partial(_model_seconds, original, cases[0]) if cases else None
    model, rerolled = reroll_sums(job, problem, model, seconds_of)
    moved += rerolled
    model, chains = reroll_chains(job, problem, model, seconds_of)
    moved += chains
    model, loops = rewrite_loops(job, problem, model, seconds_of)
    moved += loops
    terms = [t for t in model.nodes() if has_bodies(t)]
    if not terms:
        return tuple(moved)
    seconds = search_seconds(job)
    places = _share_out(job, original, cases, _places(job, model, terms, cases))
    changed: dict[Node, list[ChangedBody]] = {}
    inside: dict[Node, list[BodySteps]] = {}
    for place in places:
        if job.stop.asked:
            break
        found = _optimize(job, place, place.share * seconds)
        if found is not None and found.changed:
            changed.setdefault(place.term, []).append(ChangedBody(place.body, found.model, {}))
            own = {m.equation.name: m.equation for m in found.mutations.found}
            done = BodySteps(place.body, found.model, found.steps, found.weights, own)
            inside.setdefault(place.term, []).append(done)
    return (*moved, *_steps(problem, changed, inside))


def _move_out(job: Job, model: Model) -> tuple[Model, list[RewriteStep]]:
    """The model after the invariants of loops have moved out of them, and the steps. The roofline
    does not model iterations, so only a measurement shows whether this gains."""
    if not job.config.measure:
        return model, []
    outputs, origins, steps = model.graph.outputs, dict(model.origins), list[RewriteStep]()
    for old, new in without_invariants(model):
        outputs = substitute(outputs, {old: new})
        origins |= {new: origins[old]} if old in origins else {}
        steps.append(RewriteStep((BODIES,), (old,), (new,)))
    found = replace(model.with_graph(outputs), origins=origins)
    job.remarks += [
        f"{label_of(found, step.new[0])}: terms that no iteration changes are computed once" for step in steps
    ]
    return found, steps


def _places(job: Job, model: Model, terms: Sequence[Node], cases: Sequence[CheckCase]) -> list[_Place]:
    """The bodies that can be run alone."""
    try:
        seen = operands(model, terms, [case.inputs for case in cases])
    except TasoMirageError as error:
        job.remarks.append(f"bodies of nodes were not optimized: their operands cannot be observed: {error}")
        return []
    found = []
    for term in terms:
        for body in bodies_of(model, term):
            label = f"{body.attribute} of {label_of(model, term)}"
            if len(work_terms(body.model.nodes())) < 2:
                continue
            runs = _that_run(job, model, term, body, seen, label)
            found += [_Place(term, body, runs, label)] if runs else []
    return found


def _that_run(job: Job, model: Model, term: Node, body: Body, seen: Sequence[Operands], label: str) -> list[BodyRun]:
    try:
        runs = body_runs(model, term, body, seen)
        session = Session(serialize(body.model, source=True))
    except (TasoMirageError, ValueError, IndexError) as error:
        job.remarks.append(f"{label}: unchanged; it cannot be run alone: {error}")
        return []
    good, why = [], ""
    for run in runs:
        try:
            session.run(run.inputs)
            good.append(run)
        except TasoMirageError as error:
            why = str(error)
    if not good:
        job.remarks.append(f"{label}: unchanged, since it runs alone on none of its observed inputs {why}".strip())
    return good


def _share_out(job: Job, original: Session, cases: Sequence[CheckCase], places: Sequence[_Place]) -> list[_Place]:
    """The bodies that take enough of a run, each with its share of the time."""
    if not job.config.measure:
        return [replace(place, share=MOST / len(places)) for place in places]
    whole = _seconds(original, cases[0])
    parts = [min(1.0, _seconds_of(place) / whole) for place in places]
    total = max(1.0, sum(parts))
    return [
        replace(place, share=MOST * part / total) for place, part in zip(places, parts, strict=True) if part >= LEAST
    ]


def _seconds(session: Session, case: CheckCase) -> float:
    run = session.prepared(case.inputs)
    run()
    return min(run() for _ in range(3))


def _model_seconds(original: Session, case: CheckCase, model: Model) -> float:
    """The time of a model on the original's target."""
    return _seconds(Session(serialize(model), original.target), case)


def _seconds_of(place: _Place) -> float:
    """Seconds in one run of the whole model."""
    first = place.runs[0]
    run = Session(serialize(place.body.model, source=True)).prepared(first.inputs)
    run()
    return max(1, first.trips) * min(run() for _ in range(3))


def _optimize(job: Job, place: _Place, seconds: float) -> Result | None:
    """The result of optimizing a body by itself; a line reports it."""
    config = replace(
        job.config,
        budget=seconds,
        inputs=tuple(run.inputs for run in place.runs),
        shapes=(({}, 1.0),),
        kernels=OFF,
        explain=False,
        may_grow=True,
        allow_rounding=None,
        part=place.reached,
        candidates=unseen,
        trace=None if job.config.trace is None else job.config.trace / "bodies" / file_name(place.label),
    )
    try:
        found = job.nested(place.body.model, config, partial(_progress, job, place.label), job.stop)
    except TasoMirageError as error:
        job.remarks.append(f"{place.label}: unchanged; {error}")
        return None
    if found.changed and knows_more(place.term, place.body, found.model):
        job.remarks.append(f"{place.label}: unchanged; a result of no steps would have other dims")
        return None
    job.remarks += _remarks(place, found)
    return found


def _progress(job: Job, label: str, stage: str, done: int, total: int) -> None:
    job.progress(f"{label}: {stage}", done, total)


def _remarks(place: _Place, found: Result) -> list[str]:
    inner = [line for line in found.remarks if " of If " in line or " of Loop " in line or " of Scan " in line]
    alone = "" if place.reached else "; no run of the model reaches it, so it was checked only by itself"
    if not found.changed:
        return [f"{place.label}: unchanged; {found.failure or found.kept}{alone}", *inner]
    gain = "" if found.timing is None else f"{found.timing.ratio:.3f} times as fast by itself, "
    count = f"{found.terms_after} operators instead of {found.terms_before}"
    failed = "" if found.failure is None else f"; {found.failure}"
    return [f"{place.label}: {gain}{count}{alone}{failed}", *inner]


# ---------------------------------------------------------------- steps


def _steps(
    problem: Problem, changed: Mapping[Node, Sequence[ChangedBody]], inside: Mapping[Node, Sequence[BodySteps]]
) -> tuple[RewriteStep, ...]:
    """A step for each node with other bodies; operands that changed before are the new ones."""
    changed = _store_once(problem, changed)
    steps: list[RewriteStep] = []
    table: dict[Node, Node] = {}
    for term, bodies in changed.items():
        (current,) = substitute((term,), table)
        table[term] = with_bodies(problem.model, current, bodies)
        steps.append(RewriteStep((BODIES,), (current,), (table[term],), inside=tuple(inside[term])))
    return tuple(steps)


def _store_once(problem: Problem, changed: Mapping[Node, Sequence[ChangedBody]]) -> dict[Node, list[ChangedBody]]:
    """The changed bodies with weights that several of them share stored once, in the outer
    graph."""
    every = [each for bodies in changed.values() for each in bodies]
    own = [{n: (w, _digest(w)) for n, w in own_weights(each.model, each.body).items()} for each in every]
    counts = Counter(digest for weights in own for _, digest in weights.values() if digest is not None)
    outside: dict[str, Node] = {}
    moved: list[dict[str, Node]] = []
    for weights in own:
        shared = {n: (w, d) for n, (w, d) in weights.items() if d is not None and counts[d] > 1}
        moved.append({n: _outside(problem, n, w, d, outside) for n, (w, d) in shared.items()})
    given = iter(moved)
    return {term: [replace(each, outside=next(given)) for each in bodies] for term, bodies in changed.items()}


def _outside(problem: Problem, name: str, value: Weight, digest: str, known: dict[str, Node]) -> Node:
    """The outer term of a weight."""
    if digest not in known:
        array, free = value.numpy(), name
        while free in problem.weights:
            free = f"{free}_shared"
        problem.weights[free] = value
        known[digest] = weight(free, Tensor(array.dtype.name, array.shape))
    return known[digest]


def _digest(value: Weight) -> str | None:
    """Equal for weights of the same numbers; None for small ones."""
    array = value.numpy()
    if array.nbytes < SHARED or array.dtype.kind in "OSU":
        return None
    content = hashlib.blake2b(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data, digest_size=16)
    return f"{array.dtype.name}{list(array.shape)}{content.hexdigest()}"
