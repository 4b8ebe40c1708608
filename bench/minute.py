"""Results of one minute: `taso-mirage optimize` by its defaults with 30 and 60 s, each in a fresh
process with fresh caches, beside ONNX Runtime alone and torch.compile (default, and max-autotune
with CUDA graphs), for models of 0.1 to 2.5 GB.

    python bench/minute.py [--device cuda] [--only NAME ...] [--budgets 30 60] [--seconds LIMIT]
    [--modes default max-autotune] [--builders 4] [--models DIR] [--small]
    python bench/minute.py --files DIR [--budgets 1 3 10 30 60] [--only NAME ...]

Prints a line for each model and writes bench/results/minute-DEVICE.json after it (microseconds,
lower quartiles of rounds in which all ran in turn). Models are built first (`minute_models.py`), so
that nothing runs beside the measurements. `--seconds` ends all after so long: a model without time
has no row, and the parts of a row that had none say so. `--files` measures the ONNX files of a
folder instead, at the sizes that our command settles on, without torch.compile, and writes
bench/results/minute-files-DEVICE.json. `--budgets` without `--modes` and `--race 0` is a profile:
the account of each command's seconds (`spending` of each row), and its own times.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import end_to_end_common as common
from end_to_end_common import ALONE, ROOT, Compiled
from rows import Rows

from taso_mirage.devices.stamp import read_stamp
from taso_mirage.ir.model import random_inputs
from taso_mirage.measure import native
from taso_mirage.measure import session as runtime
from taso_mirage.measure.target import target as named
from taso_mirage.onnx_io import load
from taso_mirage.runtime.register import metadata

MODES = ("default", "max-autotune")
"""Modes of torch.compile; the second has CUDA graphs."""
CACHES = ("TASO_MIRAGE_CACHE", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")
"""Variables that name folders of caches: each process has fresh ones."""
BUILDING, RACING = 300.0, 600.0
"""Seconds that one model may take to be built, and to be compiled by torch and timed."""
COMMAND = 2.0, 60.0
"""A command is ended after so many times its budget, and seconds more."""
ENDING = 20.0
"""Seconds before the end of all in which nothing more is begun."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The seconds that are left of a total."""

    end: float

    def left(self) -> float:
        return self.end - time.monotonic()

    def within(self, seconds: float) -> float:
        return max(min(seconds, self.left()), 1.0)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these models alone")
    parser.add_argument("--budgets", type=float, nargs="*", default=[30.0, 60.0], help="of our command")
    parser.add_argument("--modes", nargs="*", choices=MODES, default=[*MODES], help="of torch.compile")
    parser.add_argument("--race", type=float, default=4.0, metavar="SECONDS", help="timing of all in turn; 0: none")
    parser.add_argument("--seconds", type=float, default=float("inf"), metavar="LIMIT", help="for all")
    parser.add_argument("--builders", type=int, default=1, help="models that are built at once")
    parser.add_argument("--models", type=Path, metavar="DIR", help="where models lie, or are put")
    parser.add_argument("--files", type=Path, metavar="DIR", help="the ONNX files of this folder instead")
    parser.add_argument("--small", action="store_true", help="small forms, for a try")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--build", nargs=1, metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--timed", nargs=1, metavar="NAME", help=argparse.SUPPRESS)


# ---------------------------------------------------------------- in processes of their own


def build(name: str, options: argparse.Namespace) -> None:
    """Write a model, the inputs that it is timed with, and the bytes of its parameters."""
    import minute_models

    form, path = minute_models.FORMS[name], options.models / f"{name}.onnx"
    module, inputs = form(options.device, options.small)
    module, inputs = module.cpu(), {k: v.cpu() for k, v in inputs.items()}  # there attention stays one operator
    size = minute_models.export(module, inputs, path)
    if form.bits:
        minute_models.quantize(path, form.bits)
    np.savez(options.models / f"{name}.npz", **{k: v.numpy() for k, v in inputs.items()})
    (options.models / f"{name}.bytes").write_text(str(size))


def timed(name: str, options: argparse.Namespace) -> None:
    """Compile the module by torch, open the model and all results of ours, run all in turn, and
    print the times as JSON."""
    inputs = _inputs(name, options)
    found: dict[str, Any] = {"absent": {}, "compile_seconds": {}}
    runs = _opened(name, options, found)
    for mode in options.modes:
        start = time.perf_counter()
        try:
            runs[f"torch.compile {mode}"] = compiled(name, options, mode)
            runs[f"torch.compile {mode}"].prepared(inputs)()
            found["compile_seconds"][mode] = round(time.perf_counter() - start, 1)
        except Exception as error:  # a peer that fails has no figure
            runs.pop(f"torch.compile {mode}", None)
            found["absent"][f"torch.compile {mode}"] = f"{type(error).__name__}: {native.first_line(error)}"
    times = runtime.interleaved([*runs.values()], inputs, options.race, patience=np.inf)
    found["us"] = {k: round(float(np.percentile(t, 25)) * 1e6, 2) for k, t in zip(runs, times, strict=True)}
    found["runs"] = len(times[0])
    print(json.dumps(found))


def _inputs(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The inputs that a form was built with; for a file, random ones at the sizes of our
    command."""
    if options.files is None:
        with np.load(options.models / f"{name}.npz") as arrays:
            return dict(arrays)
    settled = json.loads(settled_path(options.models, name).read_text())
    return dict(random_inputs(replace(load(source_path(name, options)), **settled), 0))


def compiled(name: str, options: argparse.Namespace, mode: str) -> Compiled:
    import minute_models

    dtype = "float32" if options.device == "cpu" else "float16"
    return Compiled(lambda: minute_models.FORMS[name](options.device, options.small)[0], options.device, dtype, mode)


def _opened(name: str, options: argparse.Namespace, found: dict[str, Any]) -> dict[str, Any]:
    """Sessions on the original and on the results that are there."""
    paths = {ALONE: source_path(name, options)}
    paths |= {f"ours {budget:g}": result_path(options.models, name, budget) for budget in options.budgets}
    runs: dict[str, Any] = {}
    for key, path in paths.items():
        if path.exists():
            model = load(path, trust_kernels=True)
            runs[key] = runtime.open_in_child(model, target_of(path, options.device), source=True)
        else:
            found["absent"][key] = "the command wrote no file"
    return runs


def target_of(path: Path, device: str) -> Any:
    """The target with the options that a file was measured with."""
    target: Any = named(device)
    stamp = read_stamp(metadata(path))
    if stamp is None:
        return target
    unsaid = set(target.stamp.options) - set(target.options)
    return replace(target, options=tuple(each for each in stamp.options if each not in unsaid))


# ---------------------------------------------------------------- the rows


def source_path(name: str, options: argparse.Namespace) -> Path:
    folder: Path = options.files or options.models
    return folder / f"{name}.onnx"


def settled_path(folder: Path, name: str) -> Path:
    """Where the sizes and the integer inputs that our command settled on are put."""
    return folder / f"{name}.settled.json"


def result_path(folder: Path, name: str, budget: float) -> Path:
    return folder / f"{name}.{budget:g}.optimized.onnx"


def process(arguments: list[str], seconds: float, folder: Path) -> subprocess.CompletedProcess[str]:
    """A process with fresh caches, which is ended when its time is over; those that it started end
    with it."""
    caches = mkdtemp(dir=folder)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {name: f"{caches}/{name}" for name in CACHES} | {"PYTHONPATH": path}
    command = [sys.executable, *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=env)
    except subprocess.TimeoutExpired as late:
        said = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        return subprocess.CompletedProcess(command, 124, said, f"took longer than {seconds:.0f} s")
    finally:
        shutil.rmtree(caches, ignore_errors=True)


def own(*given: object) -> list[str]:
    return [str(Path(__file__).resolve()), *map(str, given)]


def common_options(options: argparse.Namespace, folder: Path) -> list[str]:
    files = ["--files", str(options.files)] if options.files else []
    return ["--device", options.device, "--models", str(folder), *files, *(["--small"] if options.small else [])]


def built(name: str, options: argparse.Namespace, folder: Path, clock: Clock) -> str:
    """Build a model unless it is there; why it could not be, else nothing."""
    if (folder / f"{name}.bytes").exists():
        return ""
    if options.files:
        data = source_path(name, options).with_suffix(".onnx.data")
        parts = [each.stat().st_size for each in (source_path(name, options), data) if each.exists()]
        (folder / f"{name}.bytes").write_text(str(sum(parts)))
        return ""
    asked = own("--build", name, *common_options(options, folder))
    done = process(asked, clock.within(BUILDING), folder)
    return "" if done.returncode == 0 else _last_line(done)


def optimized(
    name: str, budget: float, options: argparse.Namespace, folder: Path, clock: Clock, more: Sequence[str] = ()
) -> dict[str, Any]:
    """The result of a user's command, with `more` arguments: its wall seconds, and its report."""
    output = result_path(folder, name, budget)
    asked = [
        "-m",
        "taso_mirage.cli",
        "optimize",
        source_path(name, options),
        "-o",
        output,
        "--target",
        options.device,
        *more,
    ]
    start = time.monotonic()
    done = process(
        [*map(str, [*asked, "--budget", budget, "--json"])], clock.within(COMMAND[0] * budget + COMMAND[1]), folder
    )
    wall = round(time.monotonic() - start, 2)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    results = [each for each in lines if each["event"] == "result"]
    if not results:
        stages = [[each["stage"], round(each["seconds"], 2)] for each in lines if each["event"] == "stage"]
        return {"wall": wall, "failed": f"exit code {done.returncode}: {_last_line(done)}", "stages": stages}
    told = results[0]
    settled = {"sizes": told["sizes"][0]["sizes"] if told["sizes"] else {}, "integers": told["integers"]}
    settled_path(folder, name).write_text(json.dumps(settled))
    kept = {key: told[key] for key in ("changed", "time", "nodes", "search", "notes", "spending")}
    return {"wall": wall, **kept, "left": told.get("left")}


def row(name: str, options: argparse.Namespace, folder: Path, clock: Clock) -> dict[str, Any]:
    found: dict[str, Any] = {"case": name, "bytes": int((folder / f"{name}.bytes").read_text()), "ours": {}}
    for budget in options.budgets:
        if clock.left() > ENDING:
            found["ours"][f"{budget:g}"] = optimized(name, budget, options, folder, clock)
    if options.race and clock.left() > ENDING:
        asked = own("--timed", name, *common_options(options, folder), "--race", options.race)
        asked += ["--modes", *options.modes, "--budgets", *map(str, options.budgets)]
        done = process(asked, clock.within(RACING), folder)
        try:
            found |= json.loads(done.stdout.splitlines()[-1])
            found["ratios"] = ratios(found["us"])
        except (IndexError, ValueError):
            found["race"] = f"exit code {done.returncode}: {_last_line(done)}"
    for path in folder.glob(f"{name}.*.optimized.onnx*"):
        path.unlink()
    return found


def ratios(us: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """For each of our results, the ratios of the others' times to its time."""
    others = [key for key in us if not key.startswith("ours")]
    return {key: {other: round(us[other] / us[key], 4) for other in others} for key in us if key.startswith("ours")}


def means(rows: list[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Geometric means of the ratios, and the least of each."""
    found: dict[str, dict[str, list[float]]] = {}
    for each in rows:
        for key, over in each.get("ratios", {}).items():
            for other, ratio in over.items():
                found.setdefault(key, {}).setdefault(other, []).append(ratio)
    return {
        key: {
            name: number
            for other, values in over.items()
            for name, number in (
                (other, round(float(np.exp(np.mean(np.log(values)))), 4)),
                (f"least, {other}", min(values)),
            )
        }
        for key, over in found.items()
    }


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def show(found: Mapping[str, Any]) -> None:
    print(f"{found['case']}: {found.get('failed') or found.get('race') or found.get('us', '')}", flush=True)
    for budget, ours in found.get("ours", {}).items():
        spent = ", ".join(f"{k} {v:.1f}" for k, v in ours.get("spending", {}).get("spent", {}).items() if v >= 0.1)
        said = "; ".join(ours.get("notes", [ours.get("failed", "")]))
        gain = "" if not ours.get("time") else f"{ours['time']['ratio']:.3f} times as fast by itself; "
        print(f"  {budget} s: {ours['wall']} s of the clock; {gain}{spent}; {said[:400]}", flush=True)


def names_of(options: argparse.Namespace) -> list[str]:
    """The names of the models that can be asked for; files have no module that torch.compile
    takes."""
    if options.files is None:
        import minute_models

        return [*minute_models.FORMS]
    options.modes = []
    return sorted(file.stem for file in options.files.glob("*.onnx") if not file.stem.endswith(".optimized"))


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments(parser)
    options = parser.parse_args(given)
    if options.build or options.timed:
        return build(options.build[0], options) if options.build else timed(options.timed[0], options)
    known = names_of(options)
    names = options.only or known
    for folder in ("taso_mirage", "op_specs"):  # as pip does where it installs the package
        compileall.compile_dir(ROOT / folder, quiet=2)
    if unknown := set(names) - set(known):
        parser.error(f"no model is named {min(unknown)!r}; the names are {', '.join(known)}")
    device = runtime.device(named(options.device))
    short = "cpu2" if options.device == "cpu" else device.split()[1] if " " in device else device
    kind = "minute-files" if options.files else "minute"
    path = options.output or ROOT / "bench" / "results" / f"{kind}-{short}.json"
    setting = common.setting(kind, device, ("torch", "transformers", "triton", "onnxscript"))
    rows, clock = Rows(path, setting), Clock(time.monotonic() + options.seconds)
    with TemporaryDirectory() as own_folder:
        folder = options.models or Path(own_folder)
        folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(options.builders) as pool:
            wrong = dict(zip(names, pool.map(lambda name: built(name, options, folder, clock), names), strict=True))
        print(f"built {len(names)} models; {clock.left():.0f} s are left", flush=True)
        for name in names:
            if clock.left() <= ENDING:
                print(f"{name}: the time for all was over", flush=True)
                continue
            found = {"case": name, "failed": wrong[name]} if wrong[name] else row(name, options, folder, clock)
            rows.head["means"] = means([*rows.kept, found])
            rows.keep(found)
            show(found)


if __name__ == "__main__":
    main()
