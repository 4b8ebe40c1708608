"""Common parts of the end-to-end benchmarks: models at a size, the three stages, peers, figures,
floors, and the file of rows."""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from roofline import Machine, floor  # noqa: E402

import models  # noqa: E402
from models.__main__ import write as write_model  # noqa: E402
from models.real import fixed  # noqa: E402
from taso_mirage import __version__  # noqa: E402
from taso_mirage.errors import TasoMirageError  # noqa: E402
from taso_mirage.ir.model import Model, random_inputs  # noqa: E402
from taso_mirage.lowering.backend import here  # noqa: E402
from taso_mirage.measure import native  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402
from taso_mirage.onnx_io import from_ir  # noqa: E402
from taso_mirage.pipeline import optimize_model  # noqa: E402
from taso_mirage.pipeline.fuse import fused  # noqa: E402
from taso_mirage.report.result import Result  # noqa: E402
from taso_mirage.search.config import Config  # noqa: E402

ALONE, SUBSTITUTIONS, KERNELS = "onnxruntime", "substitutions", "kernels"
COMPILED = "torch.compile"
CORPUS = "real:"
WARM = 3


class Absent(Exception):
    """A peer that cannot be had here: the text says why."""


# ---------------------------------------------------------------- models


@dataclass(frozen=True)
class Case:
    """A model at a batch size: our name, the builder, and its options in the full size."""

    name: str
    builder: str
    batch: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name} b{self.batch}"

    @property
    def file(self) -> str:
        return f"{self.name}-b{self.batch}.onnx"

    def chosen(self, small: bool) -> dict[str, Any]:
        """The options of the builder."""
        batch = {} if self.batch == 1 else {"batch": self.batch}
        return {"small": small, **({} if small else self.options), **batch}


def proto(case: Case, folder: Path | None, small: bool, half: bool = False) -> onnx.ModelProto:
    """The model, read from DIR/NAME-bBATCH.onnx where that is, else built.

    In half precision by onnxruntime's own conversion, but a model of the corpus that is exported
    here is exported in it: the conversion takes no more than the 2 GB of one protobuf message.
    """
    file = None if folder is None else folder / case.file
    if file is not None and file.exists():
        model = onnx.load(file)
    elif half and case.builder.startswith(CORPUS):
        return fixed.build(case.builder.removeprefix(CORPUS), half=True, **case.chosen(small))
    else:
        model = built(case, small)
    return halved(model) if half else model


def built(case: Case, small: bool) -> onnx.ModelProto:
    """The model; a builder `real:NAME` is of the corpus."""
    name = case.builder.removeprefix(CORPUS)
    return (models.build if name == case.builder else fixed.build)(name, **case.chosen(small))


def torch_module(case: Case, small: bool) -> Any:
    """The torch module that it was exported from."""
    name = case.builder.removeprefix(CORPUS)
    return (models.module if name == case.builder else fixed.module)(name, **case.chosen(small))[0]


def halved(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in half precision, by onnxruntime's own conversion."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    result: onnx.ModelProto = convert_float_to_float16(model, disable_shape_infer=True)
    return result


def imported(model: onnx.ModelProto) -> Model:
    return from_ir(ir.from_proto(model))


def build(cases: Iterable[Case], folder: Path, small: bool) -> None:
    """Write every model to a folder, for a machine that cannot build them."""
    folder.mkdir(parents=True, exist_ok=True)
    for case in cases:
        written = write_model(built(case, small), folder / case.file)
        print(f"{folder / case.file}: {written / 1e6:.0f} MB", flush=True)


# ---------------------------------------------------------------- ours


def stages(
    model: Model, config: Config, mode: str, budget: float
) -> tuple[dict[str, Result], dict[str, float], list[str]]:
    """The results after the substitutions and after the kernels (`budget` is theirs), the seconds
    that each took, and the errors.

    Where the kernels' stage fails, its result is that of the substitutions. The back end of a GPU
    is there from the start, as in a command that searches kernels: it computes references, too.
    """
    backend = None
    if not config.target.on_cores:
        with suppress(TasoMirageError):  # the kernels' stage says why there is none
            backend = here(config.target)
            backend.start()
    wrong: list[str] = []
    with nullcontext() if backend is None else closing(backend):
        start = time.perf_counter()
        result = optimize_model(model, config)
        searched = time.perf_counter()
        try:
            whole = fused(result, replace(config, budget=budget), mode, backend=backend)
        except Exception as error:  # the substitutions alone are worth a row
            whole, wrong = result, [f"no kernels: {type(error).__name__}: {native.first_line(error)}"]
    took = {SUBSTITUTIONS: searched - start, KERNELS: time.perf_counter() - searched}
    return {SUBSTITUTIONS: result, KERNELS: whole}, {k: round(v, 2) for k, v in took.items()}, wrong


def opened(
    model: Model, config: Config, found: Mapping[str, Result]
) -> tuple[dict[str, runtime.Session], dict[str, str]]:
    """A session on the original and on every result that differs from those before; and for the
    others, the one they are equal to.

    A graph timed against itself would show noise as a gain or a loss.
    """
    sessions = {ALONE: runtime.open_in_child(model, config.target, source=True)}
    known = {(model.graph, config.target): ALONE}
    same: dict[str, str] = {}
    for name, result in found.items():
        key = (result.model.graph, result.target)
        if key in known:
            same[name] = known[key]
            continue
        known[key] = name
        sessions[name] = runtime.open_in_child(result.model, result.target, source=not result.changed)
    return sessions, same


# ---------------------------------------------------------------- torch.compile


class Compiled:
    """torch.compile's result, called as a session is: weights and inputs stay on the device.

    `make` gives the module, `changed` changes it, on the device and in its dtype, before.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        device: str,
        dtype: str,
        mode: str,
        changed: Callable[[Any], Any] | None = None,
    ) -> None:
        try:
            import torch

            self.torch, self.device, self.dtype = torch, device, getattr(torch, dtype)
            torch._dynamo.reset()
            module = make().to(device, self.dtype)
            module = module if changed is None else changed(module)
        except ImportError as error:
            raise Absent(f"{type(error).__name__}: {native.first_line(error)}") from None
        self.call = torch.compile(module, mode=mode)

    def prepared(self, inputs: native.Arrays) -> Callable[[], float]:
        torch = self.torch
        given = {k: torch.from_numpy(np.ascontiguousarray(v)).to(self.device) for k, v in inputs.items()}
        given = {k: v.to(self.dtype) if v.is_floating_point() else v for k, v in given.items()}
        wait = torch.cuda.synchronize if self.device == "cuda" else lambda: None

        def timed() -> float:
            wait()
            start = time.perf_counter()
            with torch.inference_mode():
                self.call(**given)
            wait()
            return time.perf_counter() - start

        for _ in range(WARM):
            timed()
        return timed


Peer = Callable[[], Any]


def present(peers: Mapping[str, Peer], inputs: native.Arrays) -> tuple[dict[str, Any], dict[str, str]]:
    """The peers that run on these inputs, and why the others do not."""
    there: dict[str, Any] = {}
    absent: dict[str, str] = {}
    for name, make in peers.items():
        try:
            there[name] = made = make()
            made.prepared(inputs)()
        except Exception as error:  # a peer that fails has no figure, whatever it failed by
            there.pop(name, None)
            kind = "" if isinstance(error, Absent) else f"{type(error).__name__}: "
            absent[name] = kind + native.first_line(error)
    return there, absent


# ---------------------------------------------------------------- figures


def figures(times: Mapping[str, Sequence[float]], same: Mapping[str, str]) -> dict[str, Any]:
    """Lower quartiles in microseconds (others use the machine too), and each one's ratio over ONNX
    Runtime alone.

    A ratio is of lower quartiles; its quartiles are those of the rounds, in which all ran in turn.
    """
    whole = dict(times) | {name: times[other] for name, other in same.items()}
    quiet = {k: float(np.percentile(t, 25)) * 1e6 for k, t in whole.items()}
    ratios = {k: _ratio(whole[ALONE], t) for k, t in whole.items() if k != ALONE}
    return {
        "ours": round(quiet[KERNELS], 2),
        "baselines": {k: round(v, 2) for k, v in quiet.items() if k != KERNELS},
        "ratio": ratios[KERNELS]["ratio"],
        "quartiles": ratios[KERNELS]["quartiles"],
        "ratios": ratios,
        "over_compiled": round(quiet[COMPILED] / quiet[KERNELS], 4) if COMPILED in quiet else None,
        "kept": [name for name, other in same.items() if other == ALONE],
        "runs": len(times[ALONE]),
    }


def _ratio(alone: Sequence[float], other: Sequence[float]) -> dict[str, Any]:
    quiet = np.percentile(alone, 25) / np.percentile(other, 25)
    low, high = np.percentile(np.asarray(alone) / np.asarray(other), (25, 75))
    return {"ratio": round(float(quiet), 4), "quartiles": [round(float(low), 4), round(float(high), 4)]}


# ---------------------------------------------------------------- rows


Left = Callable[[Result, native.Arrays, float], dict[str, Any]]
"""Where the time of a result goes, given inputs and the microseconds of a run."""


def measured(
    model: Model, config: Config, options: argparse.Namespace, peers: Mapping[str, Peer], machine: Machine, left: Left
) -> dict[str, Any]:
    """A model's row: its stages, then all in turn on the same inputs, each time that they are
    opened anew in its share of the seconds."""
    found, took, wrong = stages(model, config, options.kernels, options.kernel_budget)
    inputs = random_inputs(model, 0)
    there, absent = present(peers, inputs)
    times: dict[str, list[float]] = {}
    for _ in range(options.sessions):
        sessions, same = opened(model, config, found)
        runs = {**sessions, **there}
        share = options.seconds / options.sessions
        for name, taken in zip(
            runs, runtime.interleaved([*runs.values()], inputs, share, patience=np.inf), strict=True
        ):
            times.setdefault(name, []).extend(taken)
        del runs
    numbers = figures(times, same)
    numbers["baselines"] |= dict.fromkeys(absent)
    del there
    result = found[KERNELS]
    return {
        **numbers,
        "floor": floor(model, machine, numbers["ours"]),
        "left": left(result, inputs, numbers["ours"]),
        "absent": absent,
        **({"graphs": {name: s.captures for name, s in sessions.items()}} if not config.target.on_cores else {}),
        "seconds": took,
        "nodes": [result.terms_before, result.terms_after],
        "checked": sum(d.passed for d in result.differences),
        "note": "; ".join([*result.notes, *wrong]),
    }


Measure = Callable[[Case], dict[str, Any]]


def setting(bench: str, device: str, extra: Sequence[str] = ()) -> dict[str, Any]:
    """The head of a file of rows: `extra` names packages besides ours and the runtime."""
    from importlib import metadata

    versions = {"taso-mirage": __version__, "onnxruntime": runtime.child_version(), "numpy": np.__version__}
    for name in extra:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {"bench": bench, "device": device, "unit": "us", "versions": versions}


def kept(path: Path, common: Mapping[str, Any], key: str = "case") -> dict[str, dict[str, Any]]:
    """The rows of an earlier run in the same setting, by their `key`."""
    if not path.exists():
        return {}
    found = json.loads(path.read_text())
    same = all(found.get(k) == v for k, v in common.items())
    return {r[key]: r for r in found["rows"]} if same else {}


def means(rows: Iterable[Mapping[str, Any]], without: Collection[str] = ()) -> dict[str, Any]:
    """Geometric means at batch 1, and the least ratio of all rows, but those of the models
    `without`."""
    timed = [r for r in rows if "failed" not in r and r["case"].split()[0] not in without]
    first = [r for r in timed if r["case"].endswith(" b1")]
    found: dict[str, Any] = {}
    for key, values in (
        ("ratio", [r["ratio"] for r in first]),
        ("substitutions", [r["ratios"][SUBSTITUTIONS]["ratio"] for r in first]),
        ("over_compiled", [r["over_compiled"] for r in first if r["over_compiled"] is not None]),
    ):
        if values:
            found[key] = round(float(np.exp(np.mean(np.log(values)))), 4)
    return found | ({"least": min(r["ratio"] for r in timed)} if timed else {})


def run(
    cases: Sequence[Case],
    measure: Measure,
    path: Path,
    common: Mapping[str, Any],
    append: bool,
    without: Collection[str] = (),
) -> None:
    """Every case in turn; the file is written after each.

    A case that fails is a row with its error.
    """
    done = kept(path, common) if append else {}
    for case in cases:
        try:
            found = {"case": str(case), **measure(case), "load": round(os.getloadavg()[0], 2)}
        except Exception as error:  # the others are worth having
            found = {"case": str(case), "failed": f"{type(error).__name__}: {native.first_line(error)}"}
        done.pop(str(case), None)
        done[str(case)] = found
        show(found)
        rows = list(done.values())
        path.write_text(json.dumps({**common, "means": means(rows, without), "rows": rows}, indent=1) + "\n")
        gc.collect()
    print("geometric means at batch 1:", means(done.values(), without))


def show(row: Mapping[str, Any]) -> None:
    if "failed" in row:
        print(f"{row['case']:14} failed: {row['failed']}", flush=True)
        return
    others = ", ".join(f"{k} {v / 1e3:.2f}" for k, v in row["baselines"].items() if v is not None)
    low, high = row["quartiles"]
    print(
        f"{row['case']:14} ours {row['ours'] / 1e3:.2f} ms; {others}; ratio {row['ratio']:.3f} ({low:.2f} to {high:.2f}); "
        f"floor {row['floor']['us'] / 1e3:.2f}; {row['seconds']}; {row['note']}",
        flush=True,
    )


def arguments(description: str, names: Sequence[str], default: Sequence[str]) -> argparse.ArgumentParser:
    """The options that both benchmarks have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(default), help=f"of {', '.join(names)}")
    parser.add_argument("--batch", type=int, nargs="*", default=[1])
    parser.add_argument("--models", type=Path, help="a folder of NAME-bBATCH.onnx")
    parser.add_argument("--build", type=Path, metavar="DIR", help="write the models there, and end")
    parser.add_argument("--small", action="store_true", help="small configurations, for a try")
    parser.add_argument("--seconds", type=float, default=6.0, help="timing of each model")
    parser.add_argument("--sessions", type=int, default=1, help="times that all are opened, as a session's luck lasts")
    parser.add_argument("--budget", type=float, default=20.0, help="search of each model")
    parser.add_argument("--kernel-budget", type=float, default=60.0, help="search and choice of its kernels")
    parser.add_argument("--kernels", default="search", help="as in `taso-mirage optimize`")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--append", action="store_true", help="keep the file's other rows, if they are of this setting")
    parser.add_argument("-o", "--output", type=Path)
    return parser


def chosen(
    parser: argparse.ArgumentParser, options: argparse.Namespace, known: Mapping[str, tuple[str, Mapping[str, Any]]]
) -> list[Case]:
    """The cases that were asked for, of the known models with their builders and options."""
    if unknown := set(options.names) - set(known):
        parser.error(f"no model is named {min(unknown)!r}; the names are {', '.join(known)}")
    return [Case(name, known[name][0], batch, known[name][1]) for batch in options.batch for name in options.names]
