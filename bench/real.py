"""The corpus of real models (`python -m models.real FOLDER`), each through `taso-mirage optimize`
as a user would call it: no `--shape`, no `--inputs`.

    python bench/real.py FOLDER [NAME ...] [--small] [--budget 10] [--limit 120] [--kernels off]
    [--no-peers] [--seconds 3] [--sessions 2]

Prints a table and writes bench/results/real-cpu2.json after each row (rows of models that are not
named stay). A row says how the run ended, how many outputs passed the check, seconds against the
budget (of the wall, and of the processor, which other load does not lengthen), the peak memory of
the largest process against the size of the model, the ratio original / ours, or why the original
was kept. A run over `--limit` is interrupted, then killed; the row says how long it took to end.

Then the original, ours and the peers' results (`bench/peers.py`) are timed in turn, at the sizes
that the optimizer settled on. A peer's file goes through the check first; the row's note says why
one has no time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from peers import ALONE, CASES, KIND, OURS, figures, opened, peer_versions, right, timed  # noqa: E402
from rows import Rows  # noqa: E402

from models.real import KNOWN  # noqa: E402
from models.real.known import Known  # noqa: E402
from taso_mirage import __version__  # noqa: E402
from taso_mirage.errors import TasoMirageError  # noqa: E402
from taso_mirage.ir.model import random_inputs  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402
from taso_mirage.measure.check import check_cases  # noqa: E402
from taso_mirage.onnx_io import load  # noqa: E402
from taso_mirage.targets.protocol import Trusted  # noqa: E402

STOPS = ((signal.SIGINT, 0.0), (signal.SIGKILL, 15.0))
"""The signals to a run over the limit, and the seconds before each."""
TOO_SLOW = "over the limit"
PEERS = ("onnxslim", "onnxsim", "onnxscript", "onnxruntime.transformers")
LARGEST = 1e9
"""Bytes of a model that is loaded once for each peer, at most."""
KINDS = {
    "clip": "clip",
    "dinov2": "vit",
    "dit": "mmdit",
    "llama_decode": "gpt2",
    "llama_prefill": "gpt2",
    "moe_decode": "gpt2",
    "moe_prefill": "gpt2",
    "qwen3_decode": "qwen3",
    "qwen3_prefill": "qwen3",
    "sam_encoder": "vit",
    "segformer": "vit",
    "swin": "swin",
    "t5_decoder": "t5",
    "t5_encoder": "t5",
    "unet": "unet",
    "vae_decoder": "vae",
    "whisper_decoder": "bart",
    "whisper_encoder": "bart",
}
"""The model types for onnxruntime.transformers.optimizer, where they are not its usual."""


@dataclass(frozen=True, slots=True)
class Run:
    """One call of the command line: `code` is None where it had to be stopped."""

    code: int | None
    seconds: float
    processor: float
    peak: int
    output: str
    errors: str


def run(arguments: Sequence[str], limit: float) -> Run:
    """Call taso-mirage with its own process group, and stop the group when the limit is over."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        start = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "taso_mirage.cli", *arguments],
            stdout=output,
            stderr=errors,
            cwd=ROOT,
            start_new_session=True,
        )
        late = threading.Event()
        timers = [threading.Timer(limit + wait, _stop, (process.pid, kind, late)) for kind, wait in STOPS]
        for timer in timers:
            timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        for timer in timers:
            timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - start
        output.seek(0)
        errors.seek(0)
        code = None if late.is_set() else process.returncode
        return Run(code, seconds, usage.ru_utime + usage.ru_stime, _bytes(usage), output.read(), errors.read())


def _stop(group: int, kind: signal.Signals, late: threading.Event) -> None:
    late.set()
    with contextlib.suppress(ProcessLookupError):  # it ended just now
        os.killpg(group, kind)


def _bytes(usage: resource.struct_rusage) -> int:
    return int(usage.ru_maxrss) * (1 if sys.platform == "darwin" else 1024)


def size(file: Path) -> int:
    """Bytes of a model with its external data."""
    data = file.with_suffix(".onnx.data")
    return file.stat().st_size + (data.stat().st_size if data.exists() else 0)


def row(known: Known, options: argparse.Namespace) -> dict[str, Any]:
    """One model, optimized."""
    file = options.folder / f"{known.name}.onnx"
    with tempfile.TemporaryDirectory() as place:
        ours = Path(place) / "out.onnx"
        wanted = ["-o", str(ours), "--budget", str(options.budget), "--kernels", options.kernels, "--json"]
        done = run(["optimize", str(file.resolve()), *wanted], options.limit)
        found = {
            "case": known.name,
            "origin": known.origin,
            **told(done),
            "seconds": round(done.seconds, 1),
            "processor_seconds": round(done.processor, 1),
            "budget": options.budget,
            "peak_mb": round(done.peak / 1e6, 1),
            "model_mb": round(size(file) / 1e6, 3),
        }
        if options.peers and done.code == 0:
            found |= beside(known, file, ours, last_line(done.output), options)
    return found


def beside(
    known: Known, file: Path, ours: Path, said: Mapping[str, Any], options: argparse.Namespace
) -> dict[str, Any]:
    """The times of the original, of ours if it is another, and of the peers' results."""
    if size(file) > LARGEST:
        return {"peers": "too large for a session of each"}
    notes: list[str] = []
    model = replace(load(file), sizes=said["sizes"][0]["sizes"], integers=said["integers"])
    try:
        cases = list(islice(check_cases(model, runtime.Session(str(file)), model.sizes), CASES))
        kind = KINDS.get(re.sub("_(torchscript|real)$", "", known.name), KIND)
        names = dict(zip(PEERS, PEERS, strict=True))
        there = {ALONE: file, **right(names, file, model, cases, ours.parent, notes, kind, options.limit)}
        opening = opened({whose: str(each) for whose, each in there.items()})
        if said["changed"]:
            opening[OURS] = partial(runtime.Session, Trusted(str(ours)))  # its kernels were made here
        times = timed(opening, random_inputs(model, 0), options.seconds, options.sessions)
    except TasoMirageError as error:
        return {"peers": str(error)[:400]}
    return {"times": figures(times), "peers": "; ".join(notes)}


def last_line(output: str) -> dict[str, Any]:
    """The result, which `optimize --json` prints last."""
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def told(done: Run) -> dict[str, Any]:
    """The run's own report."""
    if done.code != 0:
        lines = [line for line in done.errors.strip().splitlines() if line.strip()]
        ended = TOO_SLOW if done.code is None else f"exit {done.code}"
        return {"ended": ended, "checked": None, "ratio": None, "note": " / ".join(lines[-3:])[:400]}
    said = last_line(done.output)
    passed = [each["passed"] for each in said["check"]]
    timed = said["time"] or {}
    return {
        "ended": "changed" if said["changed"] else "kept",
        "checked": f"{sum(passed)} of {len(passed)}",
        "ratio": timed.get("ratio") and round(timed["ratio"], 3),
        "quartiles": [round(q, 3) for q in timed.get("quartiles") or ()],
        "stages": {stage: round(seconds, 1) for stage, seconds in said["seconds"].items() if seconds >= 0.05},
        "equations": sum(said["equations"].values()),
        "note": "; ".join(said["notes"]),
    }


def show(r: dict[str, Any]) -> None:
    ratio = "-" if r["ratio"] is None else f"{r['ratio']:.3f}"
    print(
        f"{r['case']:24} {r['ended']:14} {r['checked'] or '-':>8} {r['seconds']:6.1f} s of {r['budget']:.0f} "
        f"({r['processor_seconds']:.1f} s) {r['peak_mb']:7.0f} MB of {r['model_mb']:.1f} ratio {ratio} {r['note']}",
        flush=True,
    )
    if "times" in r:
        own, alone = r["times"], r["times"]["baselines"][ALONE]
        peers = ", ".join(f"{k} {alone / us:.3f}" for k, us in own["baselines"].items() if k != ALONE)
        print(
            f"{'':24} in turn: ours {own['ratio']:.3f}, {peers}; {own['ratio_best_peer']:.3f} over the best", flush=True
        )
    if r.get("peers"):
        print(f"{'':24} {r['peers']}", flush=True)


def versions() -> dict[str, str]:
    found = {"taso-mirage": __version__, "onnxruntime": runtime.child_version(), **peer_versions(PEERS)}
    return {name: re.sub(r"\s.*", "", version) for name, version in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where `python -m models.real` put the models")
    parser.add_argument("names", nargs="*", help="these models only")
    parser.add_argument("--small", action="store_true", help="only those that are marked small")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds of search")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds after which a run is stopped")
    parser.add_argument("--kernels", choices=("off", "search", "cached"), default="off")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="without other tools")
    parser.add_argument("--seconds", type=float, default=3.0, help="timing of each model beside its peers")
    parser.add_argument("--sessions", type=int, default=2, help="times that all are opened for that timing")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "bench" / "results" / "real-cpu2.json")
    options = parser.parse_intermixed_args()
    if unknown := sorted(set(options.names) - set(KNOWN)):
        parser.error(f"no model is named {unknown[0]!r}; `python -m models.real --list` prints the names")
    chosen = [k for k in KNOWN.values() if k.name in options.names or not (options.names or (options.small > k.small))]
    head = {"bench": "real", "device": runtime.device(), "unit": "s", "versions": versions()}
    rows = Rows(options.output, {**head, "kernels": options.kernels})
    for known in chosen:
        if not (options.folder / f"{known.name}.onnx").exists():
            print(f"{known.name}: not in {options.folder}; `python -m models.real {options.folder} {known.name}`")
            continue
        found = row(known, options)
        rows.keep(found)
        show(found)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
