"""Records of `optimize` for `logging`, in the logger "taso_mirage": the stages, the outcome and the
notes at INFO, and the models that were tried at DEBUG."""

from __future__ import annotations

import logging

from taso_mirage.measure.timing import Timing
from taso_mirage.report.result import Result
from taso_mirage.search.config import SPENT, Candidates, Progress
from taso_mirage.system.terminal import duration, one_line

LOGGER = logging.getLogger("taso_mirage")
LOGGER.addHandler(logging.NullHandler())


def with_stages(model: str, heard: Progress) -> Progress:
    """The progress function `heard`, with a record where a stage of the model begins."""
    last = ""

    def progress(stage: str, done: int, total: int) -> None:
        nonlocal last
        if stage not in (SPENT, last) and not stage.endswith(f": {SPENT}"):
            last = stage
            LOGGER.info("%s: %s", one_line(model), one_line(stage))
        heard(stage, done, total)

    return progress


def with_candidates(model: str, seen: Candidates) -> Candidates:
    """The function `seen` for candidates, with a record of each."""

    def candidate(name: str, cost: float, timing: Timing | None, dropped: str | None) -> None:
        said = f"predicted {duration(cost)}" if timing is None else str(timing)
        said += "" if dropped is None else f"; dropped: {dropped}"
        LOGGER.debug("%s: tried %s: %s", one_line(model), one_line(name), one_line(said))
        seen(name, cost, timing, dropped)

    return candidate


def log_result(model: str, result: Result) -> None:
    """The outcome, and each note."""
    LOGGER.info("%s: %s", one_line(model), one_line(result.outcome))
    for note in result.notes:
        LOGGER.info("%s: note: %s", one_line(model), one_line(note))
