"""Originals that the runtime's own optimizations break: they are optimized at the highest level of
these at which they load and run, and the result may be for the full level after all."""

from __future__ import annotations

from dataclasses import replace

from taso_mirage.devices.cpu.options import FULL_LEVEL
from taso_mirage.errors import TasoMirageError
from taso_mirage.measure import session as runtime
from taso_mirage.measure.check import compare
from taso_mirage.measure.target import Target, full_level
from taso_mirage.pipeline.stage import Job
from taso_mirage.report.result import Result

BROKEN = (
    "ONNX Runtime's own optimizations break the original: it runs, and all is measured and compared, at their level {}"
)
WHOLE = "the output loads and is right at the full level, too"
NEEDED = (
    "the output needs this level, too: `taso_mirage.session` opens it so; elsewhere set graph_optimization_level to {}"
)


def remarks_on_level(target: Target) -> list[str]:
    """The remark of an original at a lower level than the full one."""
    return [] if target.stamp.level == FULL_LEVEL else [BROKEN.format(target.stamp.level)]


def at_full_level(job: Job, result: Result) -> Result:
    """The result for the full level of the runtime's optimizations, if it loads and passes the
    check there."""
    if result.target.stamp.level == FULL_LEVEL:
        return result
    full = full_level(result.target)
    try:
        session = runtime.open_in_child(result.model, full, source=not result.changed)
        right = bool(result.cases) and all(d.passed for d in compare(result.original, session, result.cases))
    except TasoMirageError:
        right = False
    if not right:
        return result.noted(NEEDED.format(result.target.stamp.level))
    return replace(result, target=full).noted(WHOLE)
