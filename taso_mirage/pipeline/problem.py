"""The optimization problem: the original with its sizes, the rewriter for its target, and the
inputs and references that check a result."""

from __future__ import annotations

import math
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from taso_mirage.errors import InvalidModel, InvalidOption, OutOfTime, RunFailed
from taso_mirage.ir.model import Model, Weight
from taso_mirage.measure import session as runtime
from taso_mirage.measure.bulk import ROOM, bulk, evaluation_seconds, smaller
from taso_mirage.measure.check import CheckCase, check_cases, passes_checker, repeatable
from taso_mirage.measure.check_inputs import feed, names_of_integers, truncates_halves
from taso_mirage.measure.cost_cache import proofs_path
from taso_mirage.measure.loop_inputs import with_usual_draws
from taso_mirage.measure.native import Arrays
from taso_mirage.measure.reference import NoReference
from taso_mirage.measure.refusals import shown_sizes
from taso_mirage.measure.session import Session
from taso_mirage.measure.shapes import Workloads
from taso_mirage.measure.sizes import SEEDS
from taso_mirage.measure.target import Target
from taso_mirage.measure.whole import BY_RUNS, cases_by_runs
from taso_mirage.onnx_io.kernels import dropped
from taso_mirage.pipeline.fuse.order import LEAST_REGIONS
from taso_mirage.pipeline.levels import remarks_on_level
from taso_mirage.pipeline.shares import REFERENCE, REGIONS, load_seconds, slow_seconds
from taso_mirage.pipeline.stage import Job, Kept
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.search.config import settled_sizes, weighted_sizes
from taso_mirage.search.cost import Cost
from taso_mirage.search.rewriter import ModelCandidate, Rewriter
from taso_mirage.search.selection import steps_without
from taso_mirage.search.steps import RewriteStep, replay
from taso_mirage.search.weights import fold_weights
from taso_mirage.system.spending import Purpose, spent

SHORTEST_REFERENCE = 16.0
"""The budget below which the seconds for references do not shrink further."""
NEEDED, LONGEST = 0.5, 2.0
"""The share of the references' time, and the seconds in any case, for the references that every
check needs."""
REGIONAL = (
    "the check has no float64 reference of the whole model, which takes too long: regions that changed were checked in "
    "float64 on the original's values, and the whole model against the original's runs"
)
WAY, COUNTS = 4e-9, 0.1
"""Seconds per byte that is sent to a session, returned and compared, and the share of all seconds
from which on they are taken into account."""
LEAST_CHECK = 0.2
"""Seconds that are kept for a check at least."""


@dataclass(frozen=True, slots=True)
class Problem:
    """The original at the sizes with the largest weight.

    `weights` receives every folded weight, so that any prefix of steps can be replayed.
    """

    model: Model
    target: Target
    workloads: Workloads
    weights: dict[str, Weight]
    proofs: Proofs
    rewriter: Rewriter

    @property
    def sizes(self) -> Mapping[str, int]:
        return self.workloads[0][0]

    @property
    def cost(self) -> Cost:
        return self.rewriter.cost

    def after(self, steps: Sequence[RewriteStep]) -> tuple[Model, tuple[RewriteStep, ...]]:
        """The model after steps, and the steps to it."""
        return after(self.model, self.weights, steps)

    def without(
        self, candidate: ModelCandidate, steps: Sequence[RewriteStep], left_out: Container[int], name: str
    ) -> ModelCandidate:
        """A candidate without some of its steps, given by number."""
        model, rest = self.after(steps_without(self.model.graph.outputs, steps, left_out))
        model, folded = fold_weights(model, self.weights)
        self.weights.update(model.weights)
        cost = self.cost(model.graph.outputs)
        return replace(candidate, name=name, model=model, steps=(*rest, *folded), cost=cost)


def after(
    model: Model, weights: Mapping[str, Weight], steps: Sequence[RewriteStep]
) -> tuple[Model, tuple[RewriteStep, ...]]:
    """A model after steps, with the folded weights that they need, and the steps to it: an operand
    that the runtime takes as an initializer only is folded, though the step that does so may be a
    later one.
    """
    outputs = replay(model.graph.outputs, steps)
    made, folded = fold_weights(model.with_graph(outputs, weights), weights, needed=True)
    return made, (*steps, *folded)


def find_sizes(job: Job, model: Model, original: Session) -> tuple[Model, Workloads]:
    """The model with sizes and scalars at which the original runs, and all sets of sizes."""
    config = job.config
    settled = settled_sizes(model, original, config)
    job.remarks += settled.remarks
    model = replace(model, sizes=settled.workloads[0][0], integers=settled.integers)
    if not config.inputs:
        model, said = with_usual_draws(model, original, model.sizes)
        job.remarks += [] if said is None else [said]
    return model, settled.workloads


def pose(job: Job, model: Model, workloads: Workloads | None = None) -> Problem:
    """The problem of a model that was read, at sets of sizes; at those of the options, where none
    were found."""
    config = job.config
    workloads = weighted_sizes(model, config) if workloads is None else workloads
    model = replace(model, sizes=workloads[0][0])
    weights, proofs = dict(model.weights), Proofs(proofs_path(config.cache))
    cache = job.cache if config.measure else None
    equations = config.applied.equations
    rewriter = Rewriter(model, config.target, workloads, equations, weights, cache, None, proofs)
    said = dropped(model.header)
    job.remarks += [] if said is None else [said]
    return Problem(model, config.target, workloads, weights, proofs, rewriter)


def rewriter_for(job: Job, problem: Problem, target: Target, measured: bool = True) -> Rewriter:
    """The rewriter of the same problem for a target with other options, or by predicted costs
    alone. Both share the runtime's answers about operators and the values of weights."""
    known, cache = problem.rewriter, job.cache if job.config.measure and measured else None
    about = problem.model, target, problem.workloads, known.equations, problem.weights
    made = Rewriter(*about, cache, None, problem.proofs, known.known.available)
    made.known.holding = known.known.holding
    return made


def load_original(job: Job, model: Model) -> tuple[Session, bool]:
    """A session on the original, and whether onnx's checker takes it."""
    target = job.config.target
    job.deadline.demand("to load a model takes about as long as to read it", job.reading)
    session = runtime.original(model, target)
    job.config = replace(job.config, target=session.target)
    job.remarks += remarks_on_level(session.target)
    return session, passes_checker(model)


def refer(job: Job, problem: Problem, original: Session) -> tuple[list[CheckCase], list[Arrays]]:
    """The cases of the check, with their float64 references, and the inputs that are timed.

    Raises Kept where nothing can be checked.
    """
    config = job.config
    try:
        prepared = prepare_cases(job, problem, original)
    except NoReference as error:
        raise Kept(f"{error}; so no change can be checked: the model is kept as it is") from None
    feeds = [feed(problem.model, config.inputs, sizes) for sizes, _ in problem.workloads] if config.measure else []
    start = time.monotonic()
    same = repeatable(original, prepared[0])
    checked = (time.monotonic() - start) / 2
    job.running = running_seconds(original, prepared[0], checked)
    job.checking = load_seconds(job) + 2 * len(prepared) * checked + LEAST_CHECK
    if prepared[0].against == BY_RUNS:
        share = REGIONS * config.budget if math.isfinite(config.budget) else 0.0  # without a limit nothing is kept
        job.regions = load_seconds(job) + max(share, LEAST_REGIONS)
    job.deadline.closing = 2 * load_seconds(job) + slow_seconds(job) + job.checking
    if not same:
        raise Kept("the model gives other outputs at every run, so no change can be checked: it is kept as it is")
    return prepared, feeds


@spent(Purpose.CHECKS)
def running_seconds(session: Session, case: CheckCase, checked: float) -> float:
    """Seconds of a run; with `checked`, of a run whose outputs are compared here. For large arrays,
    the transfer can take longer than the run on a GPU."""
    moved = sum(each.nbytes for each in (*case.inputs.values(), *case.original) if isinstance(each, np.ndarray))
    if moved * WAY < COUNTS * checked:
        return checked
    run = session.prepared(case.inputs)
    return min(checked, run(), run())


@spent(Purpose.CHECKS)
def prepare_cases(job: Job, problem: Problem, original: Session) -> list[CheckCase]:
    """The cases on which the original runs, at every set of sizes, with their float64 references;
    where these take long, at smaller sizes, or if there are none the cases by the original's own
    runs: its regions are checked in float64 then."""
    fixed = {name for sizes, _ in job.config.shapes for name in sizes}
    given = job.config.inputs
    others = [sizes for sizes, _ in problem.workloads[1:]]
    seconds = REFERENCE * max(job.config.budget, SHORTEST_REFERENCE)
    most = max(job.config.effort.draws, len(given)) + truncates_halves(problem.model)
    most += bool(names_of_integers(problem.model)) and not given
    for sizes in _affordable(problem.model, problem.sizes, min(NEEDED * seconds, LONGEST)):
        first = sizes == problem.sizes
        remarks: list[str] = []
        try:
            more = others if first else []
            found = list(check_cases(problem.model, original, sizes, given, more, fixed, remarks, seconds, most))
        except OutOfTime:
            given = ()
            continue
        except (InvalidModel, InvalidOption, RunFailed, NoReference):
            if first:
                raise
            continue
        said = f"the check was done at smaller sizes than {shown_sizes(problem.sizes)}, at which the float64 reference"
        job.remarks += remarks if first else [*remarks, f"{said} takes too much time or memory"]
        return found
    job.remarks.append(REGIONAL)
    given = job.config.inputs
    return list(cases_by_runs(problem.model, original, problem.sizes, given, others, fixed, job.remarks, seconds))


def _affordable(model: Model, sizes: Mapping[str, int], seconds: float) -> Iterator[Mapping[str, int]]:
    """The sizes, and then smaller ones, at which there is room for a float64 evaluation and time
    for those that every check needs."""
    for each in (sizes, *smaller(model, sizes, ())):
        takes = len(SEEDS) * evaluation_seconds(model.nodes(), each)
        if takes <= seconds and (bulk(model, each).peak <= ROOM or not model.symbols()):
            yield each
