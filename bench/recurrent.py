"""Recurrences written as a loop beside ONNX Runtime on the same file, at several lengths.

    python bench/recurrent.py [NAME ...] [--lengths 1 64 1024] [--budget 60] [--without-torch]
        [--device cuda] [--workers 1] [-o FILE]

The models (`recurrent_models.py`) are the loops of recurrent layers as exporters write them, with
their weights in the file. Each is optimized with a certificate, which the checker follows, and both
files run in turn, on a CPU on two threads. Prints a table and writes
bench/results/recurrent-DEVICE.json; rows that are not named stay. Where ONNX Runtime has an
operator for the recurrence (LinearAttention), a model of that operator runs too. PyTorch runs the
loop in Python, eager and with a step by torch.compile (`recurrent_torch.py`), on a GPU also with
all compiled steps in one CUDA graph. With several workers so many models are optimized at once and
timed after that, so that nothing runs beside the measurements; then other searches run beside each
search."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from recurrent_models import MODELS, RULES, agree, has_loop, inputs, own_operator, with_weights  # noqa: E402
from rows import Rows  # noqa: E402

import taso_mirage  # noqa: E402
from taso_mirage.certificates.follow import follow  # noqa: E402
from taso_mirage.certificates.judge import CaseJudge  # noqa: E402
from taso_mirage.measure import native  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402
from taso_mirage.measure.target import target  # noqa: E402
from taso_mirage.onnx_io import load  # noqa: E402

LENGTHS = (1, 64, 1024)
SECONDS = 2.0
"""Seconds for the runs of a file."""


def optimized(name: str, t: int, budget: float, device: str, folder: Path) -> dict[str, Any]:
    """The account of one model at one length, whose files before.onnx and after.onnx are
    written."""
    before, after, said = (folder / each for each in ("before.onnx", "after.onnx", "steps.json"))
    onnx.save(with_weights(name, t), before)
    start = time.perf_counter()
    asked = {"output": after, "certificate": said, "budget": budget, "target": device}
    _, result = taso_mirage.optimize(before, return_result=True, **asked)
    took = time.perf_counter() - start
    followed = follow(load(before), load(after), json.loads(said.read_text()), CaseJudge())
    return {
        "kernels": len(result.kernels),
        "equalities": sum(followed.equalities.values()),
        "by_the_prover_alone": len(followed.alone),
        "seconds": took,
    }


def best(session: Any, feed: dict[str, np.ndarray]) -> float:
    """The least seconds of a run."""
    session.run(None, feed)
    found, end = [], time.perf_counter() + SECONDS
    while len(found) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        session.run(None, feed)
        found.append(time.perf_counter() - start)
    return min(found)


def threads() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    return options


def in_torch(model: onnx.ModelProto, feed: dict[str, np.ndarray], wanted: list[np.ndarray]) -> dict[str, Any]:
    """The times of PyTorch on a loop, eager and with a compiled step."""
    import torch
    from recurrent_torch import Runs

    torch.set_num_threads(2)
    found: dict[str, Any] = {"torch": torch.__version__}
    for name, compiled in (("eager", False), ("compiled", True)):
        there = Runs(model, feed, compiled)
        agree(wanted, there.run(None, feed))
        found[name] = best(there, feed)
    return found


def timed(name: str, t: int, folder: Path, with_torch: bool) -> dict[str, Any]:
    """The times on a CPU of one model at one length."""
    before, after = folder / "before.onnx", folder / "after.onnx"
    model = onnx.load(before)
    feed = inputs(model)
    original = onnxruntime.InferenceSession(str(before), threads())
    ours = taso_mirage.session(after, trust_kernels=True, options=threads())
    wanted = original.run(None, feed)
    agree(wanted, ours.run(None, feed))
    found: dict[str, Any] = {"original": best(original, feed), "ours": best(ours, feed)}
    if with_torch and has_loop(model):
        found |= in_torch(model, feed, wanted)
    if name in RULES:
        own, given = own_operator(RULES[name], t)
        found["operator"] = best(onnxruntime.InferenceSession(own.SerializeToString(), threads()), given)
    return found


Made = tuple[str, int, dict[str, Any] | Exception]
"""A model, its length, and its account or why there is none."""


def made(given: argparse.Namespace, folder: Path) -> Iterator[list[Made]]:
    """All models, as many at a time as there are workers."""
    cases = [*product(given.names or MODELS, given.lengths)]
    with ProcessPoolExecutor(given.workers, get_context("spawn")) as pool:
        for start in range(0, len(cases), given.workers):
            some, jobs = cases[start : start + given.workers], []
            for name, t in some:
                own = folder / f"{name} {t}"
                own.mkdir()
                jobs.append(pool.submit(optimized, name, t, given.budget, given.device, own))
            yield [(name, t, job.exception() or job.result()) for (name, t), job in zip(some, jobs, strict=True)]


def row(name: str, t: int, account: dict[str, Any], folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """The times of one model at one length, with its account."""
    if given.device == "cuda":
        import recurrent_cuda

        found = recurrent_cuda.timed(name, t, folder, not given.without_torch)
    else:
        found = timed(name, t, folder, not given.without_torch)
    return {"length": t, **found, "ratio": found["original"] / found["ours"], **account}


def show(found: dict[str, Any]) -> None:
    before, after = (1e3 * found[each] for each in ("original", "ours"))
    own = f", LinearAttention {1e3 * found['operator']:.3g} ms" if "operator" in found else ""
    own += "".join(f", torch {k} {1e3 * found[k]:.3g} ms" for k in ("eager", "compiled", "captured") if k in found)
    print(f"{found['case']}: {before:.3g} to {after:.3g} ms, {found['ratio']:.2f} times{own}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--without-torch", action="store_true", help="no columns of PyTorch")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--workers", type=int, default=1, help="models that are optimized at once")
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    device = runtime.device(target(given.device))
    short = "cpu2" if given.device == "cpu" else device.split()[1] if " " in device else device
    head = {"benchmark": "recurrent", "device": short, "versions": {"onnxruntime": onnxruntime.__version__}}
    rows = Rows(given.output or ROOT / "bench" / "results" / f"recurrent-{short}.json", head)
    with tempfile.TemporaryDirectory() as folder:
        for some in made(given, Path(folder)):
            for name, t, account in some:
                case = {"case": f"{name} {t}", "model": name}
                try:
                    if isinstance(account, Exception):
                        raise account
                    found = case | row(name, t, account, Path(folder) / case["case"], given)
                except Exception as error:  # the others are worth having
                    print(f"{case['case']}: {type(error).__name__}: {native.first_line(error)}", flush=True)
                    continue
                rows.keep(found)
                show(found)


if __name__ == "__main__":
    main()
