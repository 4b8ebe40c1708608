"""Warnings about the original itself: results that depend on the runtime's optimizations, outputs
that no input changes, weights that are stored twice, and weights that are inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from taso_mirage.errors import OutOfTime, TasoMirageError
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import is_float, topological
from taso_mirage.measure import session as runtime
from taso_mirage.measure.check import CheckCase, Difference, compare
from taso_mirage.measure.child import child
from taso_mirage.measure.target import CPU, UNOPTIMIZED, Target
from taso_mirage.measure.whole import BY_RUNS
from taso_mirage.operators.work import size
from taso_mirage.pipeline.problem import Problem
from taso_mirage.pipeline.shares import load_seconds
from taso_mirage.pipeline.stage import Job
from taso_mirage.search.duplicate_weights import duplicate_weights
from taso_mirage.system.deadline import Deadline
from taso_mirage.system.wording import option

FEW = 3
"""The smallest number of input sets of one shape on which an equal output may be constant."""
WASTED = 0.01
"""The smallest share of the bytes of all weights from which weights that are stored twice are
reported."""
SHARE = 0.1
"""The share of the budget for changes by the runtime's optimizations: they may take float64
references."""
LARGE, MANY = 1 << 30, 1 << 27
"""Bytes of weights from which the original is not loaded once more to be run without
optimizations: in no case, and where loading it took longer than that may take."""


def warn(job: Job, problem: Problem, cases: Sequence[CheckCase]) -> tuple[()]:
    """A remark about each oddity; of a part of a model, none."""
    model = problem.model
    if job.config.part:
        return ()
    around = child().deadline
    try:
        with child().within(Deadline(SHARE * job.config.budget, within=around)):
            if runtime.weight_bytes(model) <= MANY or load_seconds(job) <= SHARE * job.config.budget:
                job.remarks += _runtime_optimizations(model, problem.target, cases)
    except OutOfTime:
        if around.last() <= 0:
            raise
    job.remarks += [*_constant(model, cases), *_stored_again(model), *_replaceable(model)]
    return ()


def _runtime_optimizations(model: Model, target: Target, cases: Sequence[CheckCase]) -> Iterator[str]:
    """Whether the runtime's own optimizations change the original's results. Both are judged by the
    criterion of the check, each with the other in the place of the original: where the whole has a
    float64 reference."""
    case = replace(cases[0], plain=None)
    if target.name != CPU.name or runtime.weight_bytes(model) > LARGE or case.against == BY_RUNS:
        return
    try:
        outputs = runtime.open_in_child(model, UNOPTIMIZED, source=True).run(case.inputs)
    except TasoMirageError:
        return
    full = compare(model, _Known(case.original), [replace(case, original=outputs)])
    plain = compare(model, _Known(outputs), [case])
    bad = next((both for both in zip(full, plain, strict=True) if not all(d.passed for d in both)), None)
    if bad is not None:
        i = full.index(bad[0])
        finite = (
            np.isfinite(np.asarray(case.original[i], np.float64)).mean() if len(full) == len(case.original) else 1.0
        )
        yield _differs(*bad) if finite == 1 else _not_finite(bad[0].output, float(finite))


def _not_finite(name: str, share: float) -> str:
    """The remark on an output that is not finite on generated inputs."""
    return (
        f"{share:.0%} of the output {name!r} are finite on random inputs, and not the same with ONNX Runtime's "
        f"optimizations as without; inputs of the model's own range say more: {option('inputs')}"
    )


def _differs(full: Difference, plain: Difference) -> str:
    """The remark, with each result judged against the other one."""
    off = f": {plain.own:.3g} off float64 with them, {full.own:.3g} without" if max(plain.own, full.own) > 0 else ""
    return (
        "the original itself gives other results with ONNX Runtime's optimizations than without: output "
        f"{full.output!r}{off} (rounding changes a decision, or the runtime or the model has a bug; the original contains no rewrite)"
    )


class _Known(runtime.Session):
    """A session that ran already."""

    def __init__(self, outputs: list[object]) -> None:
        self._outputs = outputs

    def run(self, inputs: object) -> list[object]:
        return self._outputs


def _constant(model: Model, cases: Sequence[CheckCase]) -> Iterator[str]:
    """Outputs that depend on no input, or were the same on all."""
    for i, (name, node) in enumerate(zip(model.output_names, model.graph.outputs, strict=True)):
        if all(n.op not in ("input", "opaque") for n in topological([node])):
            yield f"the output {name!r} is constant: it depends on no input"
        elif count := _equal_outputs(cases, i):
            yield f"the output {name!r} was the same on {count} different inputs: it may be constant"


def _equal_outputs(cases: Sequence[CheckCase], output: int) -> int:
    """The number of different inputs on which a float output was equal bit by bit; 0 if it was not,
    or if there are few."""
    found = [case.original[output] for case in cases if any(is_float(a.dtype.name) for a in case.inputs.values())]
    first = next((each for each in found if isinstance(each, np.ndarray) and each.size), None)
    if first is None or not is_float(first.dtype.name):
        return 0
    alike = [each for each in found if isinstance(each, np.ndarray) and each.shape == first.shape]
    same = all(each.tobytes() == first.tobytes() for each in alike)
    return len(alike) if same and len(alike) >= FEW else 0


def _stored_again(model: Model) -> Iterator[str]:
    found = duplicate_weights(model)
    wasted = sum(size(node.tensor) for node in found)
    if wasted >= WASTED * runtime.weight_bytes(model) and found:
        duplicate, first = max(found.items(), key=lambda each: size(each[0].tensor))
        count = f"{len(found)} weights are" if len(found) > 1 else "a weight is"
        yield (
            f"{count} stored once more under another name, {wasted / 1e6:.3g} MB: {duplicate.attr('name')!r} is {first.attr('name')!r}; "
            "a changed model has each once"
        )


def _replaceable(model: Model) -> Iterator[str]:
    """Weights that are inputs."""
    if model.defaults:
        yield (
            f"{len(model.defaults)} of {len(model.graph.inputs)} inputs have an initializer as their default, which a caller may "
            "replace, so neither taso_mirage nor ONNX Runtime computes anything from them in advance; if no caller does, "
            f"{option('fix_defaults', True)} makes them weights"
        )
