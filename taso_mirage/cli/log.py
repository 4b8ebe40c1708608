"""The output of `optimize --json`: one JSON object per line, and nothing else on stdout.

The types are the schema (`taso-mirage schema log`, which `docs/schemas.py` writes from them).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import typer
from typing_extensions import TypedDict

from taso_mirage.cli.interrupt import CtrlC
from taso_mirage.errors import CheckFailed, TasoMirageError
from taso_mirage.folder_report import FolderReport
from taso_mirage.measure.timing import Timing
from taso_mirage.report.data import ResultData, Times, or_null, times_data
from taso_mirage.search.config import SPENT
from taso_mirage.system.terminal import say
from taso_mirage.version import __version__

PAUSE = 0.2
"""Seconds between two lines that say how far a stage is."""


class StartLine(TypedDict):
    """The first line."""

    event: Literal["start"]
    version: str
    model: str
    """The model, or the folder of models."""
    models: int
    """How many are to be done."""
    budget: float | None
    """Seconds that each may take; null: without a limit."""


class StageLine(TypedDict):
    """A stage begins."""

    event: Literal["stage"]
    model: str
    stage: str
    seconds: float
    """Since the model was begun."""


class ProgressLine(TypedDict):
    """How far a stage is; of `budget`: seconds."""

    event: Literal["progress"]
    model: str
    stage: str
    done: int
    total: int
    """0: not known."""


class CandidateLine(TypedDict):
    """A model that was tried: rewritten by substitutions, without kernels."""

    event: Literal["candidate"]
    model: str
    name: str
    cost: float
    """Predicted seconds."""
    time: Times | None
    """Against the original; null where it was not measured."""
    dropped: str | None
    """Why the runtime does not take it."""


class WarningLine(TypedDict):
    """A note on the result for its user."""

    event: Literal["warning"]
    model: str
    message: str


class ResultLine(ResultData):
    """The last line of a model that was done; its `error` says which rewrite failed the check."""

    event: Literal["result"]


class ErrorLine(TypedDict):
    """The reason why a model was not done, or failed the check; the same text is on stderr."""

    event: Literal["error"]
    model: str
    message: str
    exit_code: int
    """The exit code of the command, or of this model of a folder."""


class FolderLine(FolderReport):
    """The last line of a folder, of an interrupted one, too: its report, as in `index.json`."""

    event: Literal["folder"]
    exit_code: int


LogLine = StartLine | StageLine | ProgressLine | CandidateLine | WarningLine | ResultLine | ErrorLine | FolderLine


class Log:
    """The lines of one model after the other. `progress` and `candidates` are the options of
    `api.optimize`."""

    def __init__(self, model: Path) -> None:
        self.begin(model)

    def begin(self, model: Path) -> None:
        """The lines that follow are of this model."""
        self.model, self._begun, self._stage, self._last = str(model), time.monotonic(), "", -PAUSE
        self._ended = False

    def start(self, models: int, budget: float) -> None:
        said = or_null(float(budget))
        _print({"event": "start", "version": __version__, "model": self.model, "models": models, "budget": said})

    def progress(self, stage: str, done: int, total: int) -> None:
        """A line where a stage begins, and one where it goes on, but not many a second."""
        now = time.monotonic()
        if stage not in (SPENT, self._stage):
            self._stage = stage
            _print({"event": "stage", "model": self.model, "stage": stage, "seconds": now - self._begun})
        if (done or total) and (stage == SPENT or now - self._last >= PAUSE):
            self._last = now
            _print({"event": "progress", "model": self.model, "stage": stage, "done": done, "total": total})

    def candidates(self, name: str, cost: float, timing: Timing | None, dropped: str | None) -> None:
        times = None if timing is None else times_data(timing)
        said: CandidateLine = {
            "event": "candidate",
            "model": self.model,
            "name": name,
            "cost": cost,
            "time": times,
            "dropped": dropped,
        }
        _print(said)

    def result(self, data: ResultData) -> None:
        """The notes as warnings, the failure of the check as an error, and the result."""
        for note in data["notes"]:
            _print({"event": "warning", "model": self.model, "message": note})
        if data["failure"] is not None:
            self.error(data["failure"], CheckFailed.exit_code)
        _print({**data, "event": "result"})
        self._ended = True

    def error(self, message: str, exit_code: int) -> None:
        _print({"event": "error", "model": self.model, "message": message, "exit_code": exit_code})

    def folder(self, report: FolderReport, exit_code: int) -> None:
        _print({**report, "event": "folder", "exit_code": exit_code})
        self._ended = True

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Print a last line for any error that ends the command, unless its last line is
        printed."""
        try:
            yield
        except typer.Exit:  # all is said
            raise
        except TasoMirageError as error:
            self._end(str(error), error.exit_code)
            raise
        except CtrlC as given_up:
            self._end(str(given_up) or "interrupted; nothing was written", 130)
            raise
        except Exception as error:
            self._end(f"{type(error).__name__}: {error}"[:400], 1)
            raise

    def _end(self, message: str, exit_code: int) -> None:
        if not self._ended:
            self.error(message, exit_code)


def _print(line: LogLine) -> None:
    ordered: dict[str, Any] = {"event": line["event"]} | {**line}
    say(json.dumps(ordered, allow_nan=False))
