"""The Python API for ONNX models: `taso_mirage.optimize`, which the command line also calls."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, Literal, TypeVar, overload

from typing_extensions import Unpack

from taso_mirage.errors import InvalidModel, InvalidOption
from taso_mirage.ir.model import Model
from taso_mirage.measure.cluster import Cluster, Line, cluster
from taso_mirage.measure.cost_cache import proofs_path
from taso_mirage.measure.native import device_key
from taso_mirage.measure.session import begin_runtime, weight_bytes
from taso_mirage.onnx_io.defaults import with_fixed_defaults
from taso_mirage.onnx_io.files import data_files, files_of, from_memory, like, load, save
from taso_mirage.onnx_io.outputs import check_empty, check_outputs, check_space, same_file
from taso_mirage.optimize_options import Options, options_of, several
from taso_mirage.option_types import OptimizeOptions
from taso_mirage.pipeline import stages
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.report import certificate as certificates
from taso_mirage.report import html, logs
from taso_mirage.report.result import Result
from taso_mirage.report.sent import packed, unpacked
from taso_mirage.search.config import Stop, quiet, unseen
from taso_mirage.system.deadline import Deadline
from taso_mirage.system.files import write_file
from taso_mirage.system.locks import locked
from taso_mirage.system.spending import Purpose, accounting, spent, staged
from taso_mirage.system.wording import option

Given = TypeVar("Given")
"""The type of a user's model: an `onnx.ModelProto`, an `onnx_ir.Model`, a `str` or a `Path`."""


@overload
def optimize(model: Given, *, return_result: Literal[False] = False, **options: Unpack[OptimizeOptions]) -> Given: ...
@overload
def optimize(
    model: Given, *, return_result: Literal[True], **options: Unpack[OptimizeOptions]
) -> tuple[Given, Result]: ...
def optimize(model: Any, *, return_result: bool = False, **options: Any) -> Any:
    """Return a model of the same type that computes the same results and is no slower.

    `model` is an `onnx.ModelProto`, an `onnx_ir.Model`, or a path. For a path, the optimized model
    is written to `output` (default: `MODEL.optimized.onnx`), and its path is returned. The options
    are those of `taso_mirage.option_types.OptimizeOptions`, with the names of the command-line
    options.
    Of shape, inputs and rules one may stand without a list around it.

    With effort="quick" an exporter may call this function on every model: it takes seconds, gives
    the same bytes every time, prints nothing, and writes no file for a model in memory.

    The logger "taso_mirage" of `logging` has the stages, the outcome and the notes (INFO), and all
    models that were tried (DEBUG).

    With `return_result` the result is a pair: the model, and a `Result` with its changes, times,
    evidence and notes. A rewrite that fails the check is left out; `result.failure` names it, or a
    warning if `return_result` is false. Raises TasoMirageError.
    """
    if isinstance(model, str) and not model:
        raise InvalidModel("the path of the model is empty; name the file")
    began = time.monotonic()
    asked = options_of(options)
    found = _run(model, asked, Deadline(asked.budget, began=began if asked.began is None else asked.began))
    if isinstance(model, str | Path):
        written: Any = type(model)(found.written[0])
    else:
        written = like(found.model, model, source=not found.changed)
    if return_result:
        return written, found
    if found.failure is not None:
        warnings.warn(str(found.failure), stacklevel=2)
    return written


FILE = 0.04
"""The shares of the budget for the report and for the certificate."""


def _run(given: Any, options: Options, deadline: Deadline) -> Result:
    """The result in the user's type, with all requested files and the account of all seconds; on a
    worker, where the options name a scheduler."""
    name = str(given) if isinstance(given, str | Path) else "model"
    heard, seen = logs.with_stages(name, options.progress), logs.with_candidates(name, options.candidates)
    options = replace(options, progress=heard, candidates=seen)
    if options.scheduler is not None:
        with cluster(options.scheduler, options.place) as there:
            result = optimize_on(there, given, options, spread=True)
    else:
        with accounting() as account:
            result = _with_files(given, options, deadline)
            result = replace(result, spending=account.spending())
    logs.log_result(name, result)
    return result


@dataclass(frozen=True, slots=True)
class _Files:
    """A user's model, and the places of all files: `model` is read from `path`, or has its name."""

    path: Path
    model: Model
    output: Path | None
    page: Path | None
    certificate: Path | None

    @property
    def written(self) -> tuple[Path, ...]:
        return tuple(each for each in (self.output, self.page, self.certificate) if each is not None)


def _opened(given: Any, options: Options) -> _Files:
    """The model, read, and the files that may be written. Raises InvalidModel and OutputError."""
    if isinstance(given, str | Path):
        path = Path(given)
        with staged("open the file"), spent(Purpose.FILES):
            model = load(path, options.trust_kernels)
        output: Path | None = _output(path, options)
    else:
        model = from_memory(given, options.trust_kernels)
        path = Path(given.graph.name or "model")
        output = _in_memory(options)
    model = with_fixed_defaults(model) if options.fix_defaults else model
    page, certified = (None if each is None else Path(each) for each in (options.report, options.certificate))
    read = {option("inputs", file): Path(file) for file in several(options.inputs) if isinstance(file, str | Path)}
    check_outputs(
        {"output": output, "report": page, "certificate": certified},
        read | ({"the model": path} if isinstance(given, str | Path) else {}),
        data_files(model),
        options.in_place,
    )
    if output is not None:
        check_space(output, weight_bytes(model))
    if options.trace is not None:
        check_empty(Path(options.trace), (output, page, certified))
    return _Files(path, model, output, page, certified)


def _with_files(given: Any, options: Options, deadline: Deadline, shown: _Shown | None = None) -> Result:
    """The result with its files; the page names the files of `shown`, if they will be elsewhere."""
    opened = time.monotonic()
    if isinstance(given, str | Path):
        begin_runtime(options.place)
    asked = _opened(given, options)
    reading = time.monotonic() - opened
    with locked(*asked.written):
        config, heard = options.config(asked.model), (options.progress, options.stop)
        each_file = FILE * deadline.seconds if math.isfinite(deadline.seconds) else 0.0
        files = deadline.earlier(each_file * sum(each is not None for each in (asked.page, asked.certificate)))
        result = stages.optimize_model(asked.model, config, *heard, asked.output, files, reading)
        result = replace(result, machine=device_key(config.target, options=False) if config.measure else None)
        if asked.certificate is not None:
            with staged("certificate"):
                certificates.write_certificate(asked.certificate, result, Proofs(proofs_path()))
        if asked.page is not None:
            source, written = (asked.path, result.written) if shown is None else shown
            with staged("report"):
                html.write_page(asked.page, result, result.explanations, source, written, options.command)
    return result


# ---------------------------------------------------------------- on a worker

_Shown = tuple[Path, Sequence[Path]]
"""The model and the written files that a page names."""
MODEL, PAGE, CERTIFICATE, TRACE = "model.onnx", "page.html", "certificate.json", "trace"
"""The names of a task's files."""
_TERMS = Lock()
"""Held by the thread of this process that makes terms, which are interned without a lock."""
OFTEN = 0.2
"""Seconds between two messages about one stage."""


def optimize_on(there: Cluster, given: Any, options: Options, spread: bool = False) -> Result:
    """The result with its files, made by a worker, which gets the contents of the model's files;
    this process reads the model and writes the results. With `spread`, other workers tune kernels
    for it."""
    if callable(options.may_grow):
        raise InvalidOption("may_grow: a worker of scheduler cannot call a function; give True or False")
    with _TERMS:
        asked = _opened(given, options)
        own = replace(options, kernels=None).config(asked.model)
    with locked(*asked.written), TemporaryDirectory() as folder:
        sent = replace(
            options,
            scheduler=None,
            inputs=own.inputs,
            rules=own.rules,
            output=None,
            in_place=False,
            report=asked.page and PAGE,
            certificate=asked.certificate and CERTIFICATE,
            trace=options.trace and TRACE,
            progress=quiet,
            candidates=unseen,
            stop=None,
            began=None,
        )
        shown = (asked.path, () if asked.output is None else (asked.output,))
        content, files = there.run(
            _on_worker,
            _contents(asked, Path(folder) / "given", isinstance(given, str | Path)),
            sent,
            shown,
            hear=partial(_hear, options),
            stop=options.stop,
            spread=spread,
        )
        _write_all(Path(folder), files)
        with _TERMS:
            model = load(Path(folder) / MODEL, options.trust_kernels)
            result = unpacked(content, asked.model, model)
            if asked.output is not None:
                result = replace(result, written=tuple(save(model, asked.output, source=True)))
        for path, name in ((asked.page, PAGE), (asked.certificate, CERTIFICATE)):
            if path is not None:
                write_file(path, files[name])
        if options.trace is not None:
            _write_all(Path(options.trace), {k.removeprefix(f"{TRACE}/"): v for k, v in files.items() if TRACE in k})
        return result


def _contents(asked: _Files, folder: Path, from_file: bool) -> dict[str, bytes]:
    """The files of a model by name: the model is MODEL, and its weights have their own names."""
    if from_file and not asked.path.is_symlink():
        files = files_of(asked.path)
    else:
        folder.mkdir()
        files = [*reversed(save(asked.model, folder / MODEL, source=True))]
    base = files[0].parent
    return {MODEL if file == files[0] else file.relative_to(base).as_posix(): file.read_bytes() for file in files}


def _hear(options: Options, kind: str, *message: Any) -> None:
    if kind == "candidate":
        return options.candidates(*message)
    *progress, began = message
    if options.stop is not None:
        options.stop.began |= began
    return options.progress(*progress)


def _on_worker(
    line: Line, contents: Mapping[str, bytes], options: Options, shown: _Shown
) -> tuple[bytes, dict[str, bytes]]:
    """On a worker: the result of a model as bytes, and the written files by name."""
    stop, told = Stop(), ("", 0.0)
    line.stops.append(stop)

    def progress(stage: str, done: int, total: int) -> None:
        nonlocal told
        now = time.monotonic()
        if stage != told[0] or now > told[1] + OFTEN:
            told = stage, now
            line.tell("progress", stage, done, total, stop.began)

    with TemporaryDirectory() as folder:
        given, made = Path(folder) / "given", Path(folder) / "made"
        _write_all(given, contents)
        made.mkdir()
        files: dict[str, Any] = {
            name: None if getattr(options, name) is None else made / getattr(options, name)
            for name in ("report", "certificate", "trace")
        }
        own = replace(
            options,
            **files,
            output=made / MODEL,
            progress=progress,
            candidates=partial(line.tell, "candidate"),
            stop=stop,
        )
        with accounting() as account:
            result = _with_files(given / MODEL, own, Deadline(own.budget), shown)
            result = replace(result, spending=account.spending())
        written = [each for each in made.rglob("*") if each.is_file()]
        return packed(result), {each.relative_to(made).as_posix(): each.read_bytes() for each in written}


def _write_all(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content, lasting=False)


def _output(path: Path, options: Options) -> Path:
    """The output path for a model from a path. With `in_place` it is the file that a link points
    to, so the link stays."""
    if options.in_place:
        if options.output is not None and not same_file(Path(options.output), path):
            raise InvalidOption(
                f"{option('in_place', True)} writes onto the model {path}; leave {option('output')} out"
            )
        return Path(options.output or path).resolve()
    return Path(options.output or path.with_name(f"{path.stem}.optimized.onnx"))


def _in_memory(options: Options) -> Path | None:
    if options.in_place:
        raise InvalidOption(f"{option('in_place', True)} is for a model in a file; one in memory is returned")
    return None if options.output is None else Path(options.output)
