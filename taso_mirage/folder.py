"""A folder of models: each is optimized separately, and one report has a row for each.

The report's data of a model contain the digests of all files that were read and written, so they
show whether the result is up to date.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from taso_mirage import api
from taso_mirage.errors import InvalidModel, InvalidOption, OutputError, RuntimeUnavailable, TasoMirageError
from taso_mirage.folder_report import FolderReport, ModelRow, earlier_digests, new_row, shown_row
from taso_mirage.measure.cluster import Cluster, NotBegun
from taso_mirage.onnx_io.files import data_beside, files_of
from taso_mirage.optimize_options import Options, options_of
from taso_mirage.report.data import or_null
from taso_mirage.report.pages import render_template
from taso_mirage.report.result import Result
from taso_mirage.search.config import Candidates, Progress, Stop, quiet, unseen
from taso_mirage.system.files import file_digests, write_file
from taso_mirage.system.locks import locked
from taso_mirage.system.terminal import plural
from taso_mirage.system.toml import read_json
from taso_mirage.system.wording import option
from taso_mirage.version import __version__

PAGE, DATA = "index.html", "index.json"
MINUTES = 120
"""The number of seconds from which times are given in minutes."""
APART = {"output", "report", "certificate", "trace", "progress", "candidates", "stop", "command", "began", "scheduler"}
"""Options that do not affect a result, or that a folder sets for each model."""

AHEAD, FEW = 2, 8
"""Models for each worker, and in all at least, whose files are sent before a worker is free."""


class Folder:
    """The models below `source`, whose results go to the same paths below `output`; `options` are
    those of `optimize`, for each of them.

    `rows` has the state of each: a model is done if an earlier run did it with these options and
    nothing has changed since. InvalidOption where there are no models, where the results would be
    written over something else, or where options are wrong for every model.
    """

    def __init__(
        self,
        source: Path,
        output: Path | None = None,
        options: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self.source, self.output = source, output or _beside(source)
        self.options = {k: v for k, v in (options or {}).items() if k not in APART}
        self.scheduler: str | None = (options or {}).get("scheduler")
        self._began: float | None = (options or {}).get("began")
        self._ending: float | None = None
        self._digest = _digest_of(self.options)
        if self.source.resolve().is_relative_to(self.output.resolve()):
            raise InvalidOption(
                f"{option('output', self.output)} would overwrite models of {source}; name another folder"
            )
        asked = self._asked()
        self._budget, self.target = asked.budget, asked.place
        self.rows: dict[str, ModelRow] = {}
        try:
            self._look()
        except InvalidOption:
            if not self.output.is_dir():
                raise
            with locked(self.output):  # another run may be writing, which is reported then
                self._look()

    def _asked(self) -> Options:
        """Check the options as far as they do not depend on a model. Raises InvalidOption."""
        asked = options_of(self.options | {"scheduler": self.scheduler})
        asked.config()
        return asked

    def _look(self) -> None:
        """Find the models of the folder, and the results of earlier runs."""
        names = list(self._found())
        if not names:
            raise InvalidOption(f"{self.source} has no .onnx files; name a folder that has")
        self._earlier = self._known()
        self.rows = {name: self._row(name, self._earlier.get(name)) for name in names}
        self._refuse_foreign()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder of the results against other runs and read its earlier results. Raises
        OutputError if another run has the lock, or if the folder cannot be created."""
        _make(self.output)
        with locked(self.output):
            if self._known() != self._earlier:
                self._look()
            yield

    def _found(self) -> Iterator[str]:
        """The paths of all models, without results."""
        inside = self.output.resolve()
        for path in sorted(self.source.rglob("*.onnx")):
            if not path.is_dir() and not path.resolve().is_relative_to(inside):
                yield path.relative_to(self.source).as_posix()

    def _known(self) -> dict[str, ModelRow]:
        """The rows of an earlier run."""
        page, data = self.output / PAGE, self.output / DATA
        try:
            report = cast(FolderReport, read_json(data))
            return {row["model"]: row for row in report["models"]}
        except (OSError, ValueError, LookupError, TypeError):
            if page.exists() or data.exists():
                raise InvalidOption(
                    f"{option('output', self.output)} has an index that is not of an earlier run; name another folder"
                ) from None
            return {}

    def _row(self, name: str, known: ModelRow | None) -> ModelRow:
        if known is not None and self._done(name, known):
            return known
        row = new_row(name, "waiting", self._digest)
        return row | {"read": earlier_digests(known, "read"), "written": earlier_digests(known, "written")}

    def _refuse_foreign(self) -> None:
        """Raise InvalidOption if a result would overwrite a file that no earlier run wrote, or that
        was changed since."""
        for name in self.waiting:
            try:
                there = self._there(name)
            except OSError as error:
                raise OutputError(f"cannot read {error.filename}: {error.strerror}") from None
            for path, digest in there.items():
                if self.rows[name]["written"].get(path) != digest:
                    raise InvalidOption(
                        f"{self.output / path} is no result of an earlier run, or was changed since; "
                        f"name another folder with {option('output')}, or delete that file"
                    )

    def _there(self, name: str) -> dict[str, str]:
        """The files that are at the places of a model's results."""
        output = self.output / name
        places = (output, _page(output), *data_beside(output))
        return file_digests(self.output, [place for place in places if os.path.isfile(place)])

    def _done(self, name: str, row: ModelRow) -> bool:
        """Whether a row's result is there, and nothing that it was made from has changed."""
        try:
            return (
                row["state"] in ("faster", "kept", "check failed")
                and row["options"] == self._digest
                and row["read"] == self._read(name)
                and row["written"] == file_digests(self.output, [self.output / each for each in row["written"]])
            )
        except (InvalidModel, LookupError, TypeError, ValueError, OSError):
            return False

    def _read(self, name: str) -> dict[str, str]:
        return file_digests(self.source, files_of(self.source / name))

    def _readable(self, name: str) -> dict[str, str]:
        """The digests of a model's files; for a file that is no model, or lacks files, only its own
        digest, because the reader reports the problem."""
        with suppress(InvalidModel, OSError, ValueError):
            return self._read(name)
        with suppress(OSError):
            return file_digests(self.source, [self.source / name])
        return {}

    # ------------------------------------------------------------ the work

    @property
    def waiting(self) -> list[str]:
        """The models that are still to be done, in their order."""
        return [name for name, row in self.rows.items() if row["state"] == "waiting"]

    def optimize(
        self, name: str, progress: Progress = quiet, stop: Stop | None = None, candidates: Candidates = unseen
    ) -> tuple[ModelRow, Result | None]:
        """Optimize one model; its row contains an error.

        The report is written again. Raises OutputError if that fails.
        """
        begun = self.clock()
        heard: dict[str, Any] = {"progress": progress, "stop": stop, "candidates": candidates}
        made = self._made(name, heard | {"began": begun, "budget": self._share(begun)})
        self._record(made[0])
        return made

    def optimize_on(self, there: Cluster, stop: Stop | None = None) -> Iterator[tuple[ModelRow, Result | None]]:
        """Optimize all waiting models on workers, each with the whole budget; their rows come as
        the workers end. A model that an interrupt kept from being begun has no row."""
        threads = ThreadPoolExecutor(max(AHEAD * there.count, FEW))
        heard = {"stop": stop, "budget": self.budget}
        try:
            made = [threads.submit(self._made, name, heard, there) for name in self.waiting]
            for each in as_completed(made):
                with suppress(NotBegun):
                    self._record(each.result()[0])
                    yield each.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    def _made(
        self, name: str, heard: Mapping[str, Any], there: Cluster | None = None
    ) -> tuple[ModelRow, Result | None]:
        """Optimize one model; its row contains an error."""
        begun, result, read = self.clock(), None, dict[str, str]()
        try:
            read = self._readable(name)
            result = self._optimized(name, heard, there)
            row = self._row_of(name, result, heard.get("stop")) | {"read": read}
        except NotBegun:
            raise
        except Exception as error:  # also a bug, which must not stop the other models
            row = self._failed(name, read, error)
        row["seconds"] = result.spending.seconds if result and there else self.clock() - begun
        return row, result

    def _record(self, row: ModelRow) -> None:
        self.rows[row["model"]] = row
        self.write()

    def _share(self, now: float) -> float:
        """Seconds for the next model: the budget, or less if earlier models were late, so that all
        together take no longer than announced."""
        left = max(len(self.waiting), 1)
        if self._ending is None:
            self._ending = (now if self._began is None else self._began) + left * self.budget
        share = max(self._ending - now, 0.0) / left
        return min(self.budget, share if math.isinf(share) else int(share * 10) / 10)

    def _failed(self, name: str, read: Mapping[str, str], error: Exception) -> ModelRow:
        """The row of a failed model.

        An earlier result of other files is removed. An earlier result of the same files stays, and
        so does any result if the model may be valid: the error is in an option, the machine, or
        this program.
        """
        said, code = f"internal error: {type(error).__name__}: {error} (please report it)"[:400], 1
        if isinstance(error, TasoMirageError):
            said, code = str(error), error.exit_code
        elif isinstance(error, MemoryError):
            said = "not enough memory for this model"
        earlier, there = self.rows[name], self._there(name)
        of_model = isinstance(error, TasoMirageError) and not isinstance(error, InvalidOption | RuntimeUnavailable)
        if of_model and any(read.get(each, digest) != digest for each, digest in earlier["read"].items()):
            with suppress(OSError):
                for path in there:
                    if earlier["written"].get(path) == there[path]:
                        (self.output / path).unlink()
            there = self._there(name)
        row = new_row(name, "failed", self._digest) | {"error": said, "exit_code": code}
        old = there.items() <= earlier["written"].items()
        return row | {"read": earlier["read"] if old else dict(read), "written": there}

    def _optimized(self, name: str, heard: Mapping[str, Any], there: Cluster | None) -> Result:
        source, output = self.source / name, self.output / name
        _make(output.parent)
        command = ["taso-mirage", "optimize", str(source), "-o", str(output)]
        files = {"output": output, "report": _page(output), "command": command}
        options = {**self.options, **files, **heard}
        if there is not None:
            return api.optimize_on(there, source, options_of(options))
        return api.optimize(source, return_result=True, **options)[1]

    def _row_of(self, name: str, result: Result, stop: Stop | None) -> ModelRow:
        timing = result.timing
        cost = (result.cost_before, result.cost_after)
        before, after = cost if timing is None else (timing.original, timing.optimized)
        ratio = timing.ratio if timing is not None else before / after if after else 1.0
        page = _page(Path(name)).as_posix()
        row = new_row(name, "faster" if result.changed else "kept", self._digest)
        row |= {"before": before, "after": after, "ratio": ratio, "measured": timing is not None, "report": page}
        row |= {"machine": result.machine}
        row |= {"notes": list(result.notes), "written": self._there(name)}
        if not result.changed:
            row |= {"after": before, "ratio": 1.0}
        if result.failure is not None:
            row |= {"state": "check failed", "error": str(result.failure), "exit_code": result.failure.exit_code}
        if stop is not None and stop.asked:
            row["state"] = "interrupted"
        return row

    # ------------------------------------------------------------ the report

    @property
    def exit_code(self) -> int:
        """The exit code: 0 if all models succeeded, otherwise that of the failed models, or 1 if
        these differ."""
        codes = {row["exit_code"] for row in self.rows.values()} - {0}
        return codes.pop() if len(codes) == 1 else int(bool(codes))

    @property
    def gain(self) -> float:
        """The geometric mean of the speed-ups of all written models."""
        ratios = [row["ratio"] for row in self.rows.values() if row["ratio"]]
        return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0

    def counts(self) -> dict[str, int]:
        """How many models there are of each state that occurs."""
        states = [row["state"] for row in self.rows.values()]
        return {state: states.count(state) for state in dict.fromkeys(sorted(states))}

    @property
    def budget(self) -> float:
        """Seconds for each model."""
        return float(self._budget)

    @property
    def plan(self) -> str:
        """One line about the remaining models and the time that they may take."""
        count, left = len(self.rows), len(self.waiting)
        said = f"{plural(count, 'model')}: {count - left} done before, {left} to do, "
        if math.isinf(self.budget):
            return f"{said}without a time limit"
        if self.scheduler is not None:
            return f"{said}at most {self.budget:g} s each, on the workers of {self.scheduler}"
        total = left * self.budget
        together = f"{total:g} s" if total < MINUTES else f"{total / 60:.3g} minutes"
        return f"{said}at most {self.budget:g} s each ({together} in total)"

    def said(self) -> list[str]:
        """The results of all models, as lines."""
        states = ", ".join(f"{count} {state}" for state, count in self.counts().items())
        gained = f"{plural(len(self.rows), 'model')}: {states}; {self.gain:.3f} times as fast, as a geometric mean"
        return [gained, f"wrote {self.output / PAGE}"]

    def as_data(self) -> FolderReport:
        """The content of `index.json`."""
        return {
            "taso_mirage": __version__,
            "folder": str(self.source),
            "budget": or_null(self.budget),
            "models": list(self.rows.values()),
        }

    def write(self) -> None:
        """Write both forms of the report, each completely or not at all."""
        write_file(self.output / DATA, json.dumps(self.as_data(), indent=2, allow_nan=False) + "\n")
        rows = [{**row, **shown_row(row)} for row in self.rows.values()]
        said = ", ".join(f"{count} {state}" for state, count in self.counts().items())
        page = render_template(
            "index.html", title=f"{self.source.resolve().name}: {said}", rows=rows, gain=self.gain, said=said
        )
        write_file(self.output / PAGE, page.encode(errors="replace"))


def _page(output: Path) -> Path:
    """The report of a model, by the path of its result."""
    return output.with_name(f"{output.name}.html")


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise OutputError(f"cannot make the folder {folder}: it is a file; name another output") from None
    except OSError as error:
        raise OutputError(f"cannot make {folder}: {error.strerror or error}; name another output") from None


def _beside(source: Path) -> Path:
    """The default folder of the results."""
    given = source.resolve() if source.name in ("", "..") else source
    if not given.name:
        raise InvalidOption(f"{source} has no name to put the results beside it; name a folder with {option('output')}")
    return given.with_name(f"{given.name}.optimized")


def _digest_of(options: Mapping[str, Any]) -> str:
    """A digest of the version, the options, and the content of files that they name."""
    said = {
        name: [*map(_content, value)] if isinstance(value, list | tuple) else str(value)
        for name, value in options.items()
    }
    return hashlib.sha256(json.dumps([__version__, said], sort_keys=True).encode()).hexdigest()


def _content(value: Any) -> str:
    if isinstance(value, Path) and value.is_file():
        return hashlib.sha256(value.read_bytes()).hexdigest()
    return str(value)
