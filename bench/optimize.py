"""Original against optimized and against other tools' results on ONNX Runtime's CPU provider at
ORT_ENABLE_ALL, and against OpenVINO.

    python bench/optimize.py [NAME ...] [--models DIR] [--small] [--seconds 6] [--sessions 3]
    [--budget 60] [--again 30] [--threads N]

Prints a table and writes bench/results/optimize-cpu2.json after each row (microseconds; rows of
models that are not named stay). A model is read from DIR/NAME.onnx where that exists, else built
(extra `models`). The peers are ONNX Runtime alone, and after onnxslim, onnxsim and onnxscript's
`optimize_for_ort`, and OpenVINO in single precision, where they are installed. Every result, ours
and the peers', goes through the check; a wrong one has no time. All sessions run in turn in one
process, and are opened `--sessions` times, as luck (where memory lies) lasts as long as one. Ours
is the result of `taso-mirage optimize`: with kernels where the model is faster so; the result of
substitutions alone is timed beside it, and so is that of `--target auto`, in its own runtime.
Kernels that were searched on this machine before are not searched again.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from peers import ALONE, CASES, OURS, PLAIN, Opening, figures, peer_versions, right, timed  # noqa: E402

import models  # noqa: E402
from taso_mirage import __version__  # noqa: E402
from taso_mirage.errors import TasoMirageError  # noqa: E402
from taso_mirage.ir.model import Model, random_inputs  # noqa: E402
from taso_mirage.measure import native  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402
from taso_mirage.measure.check import CheckCase, check_cases, compare  # noqa: E402
from taso_mirage.measure.target import CPU, on_threads, runtimes_beside  # noqa: E402
from taso_mirage.onnx_io import from_ir  # noqa: E402
from taso_mirage.optimize_options import Options  # noqa: E402
from taso_mirage.pipeline import fuse, optimize_model  # noqa: E402
from taso_mirage.report.result import Result  # noqa: E402
from taso_mirage.runtime.embed import DOMAIN  # noqa: E402
from taso_mirage.search.config import KERNELS, Config, representative  # noqa: E402
from taso_mirage.targets.onnx_runtime import opened_session  # noqa: E402
from taso_mirage.targets.protocol import Source, Target  # noqa: E402

MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "bert": ("bert", {}),
    "bert_dynamic": ("bert", {"dynamic": True}),
    "llama": ("llama", {}),
    "llama_decode": ("llama_decode", {}),
    "vit": ("vit", {}),
    "resnet50": ("resnet50", {}),
    "resnext50": ("resnext50", {}),
    "inception_v3": ("inception_v3", {}),
    "squeezenet": ("light_squeezenet", {}),
    "densenet121": ("light_densenet121", {}),
    "nasnet_a": ("nasnet_a", {}),
    "shufflenet": ("light_shufflenet", {}),
    "decoder": ("decoder", {}),
}
"""Our names, and the builders behind them with their options."""
SEQUENCE = {False: 128, True: 16}
"""Tokens at which a dynamic model is timed, by whether it is small: those of the static one."""
PEERS = {"onnxslim": "onnxslim", "onnxsim": "onnxsim", "onnxscript": "optimize_for_ort"}
"""Our names of the tools."""
RATIOS = ("ratio", "median_ratio", "ratio_best_peer", "median_ratio_best_peer", "auto_ratio", "auto_ratio_best_peer")
OPENVINO, AUTO = "openvino", "auto"
PROFILED_RUNS, PROFILED_KINDS = 5, 6


# ---------------------------------------------------------------- one model


def loaded(name: str, folder: Path | None, small: bool) -> bytes:
    """The model's file, from a folder or built."""
    file = None if folder is None else folder / f"{name}.onnx"
    if file is not None and file.exists():
        return file.read_bytes()
    builder, options = MODELS[name]
    content: bytes = models.build(builder, small=small, **options).SerializeToString()
    return content


def row(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One model: search it twice, cold and with the costs measured then, and time the first result
    against the peers."""
    content = loaded(name, options.models, options.small)
    model = from_ir(ir.from_proto(onnx.load_from_string(content)))
    sizes = {"batch": 1, "sequence": SEQUENCE[options.small]}
    target = CPU if options.threads is None else on_threads(CPU, options.threads)
    shapes = (({k: sizes[k] for k in model.symbols()}, 1.0),)
    config = Config(budget=options.budget, shapes=shapes, target=target)
    model = replace(model, sizes=representative(model, config))
    plain, searches = searched(model, config, options.again)
    result = fuse.fused(plain, replace(config, budget=options.kernel_budget), options.kernels)
    everywhere = in_any_runtime(model, options)
    notes: list[str] = [*result.notes, *(note for note in everywhere.notes if note.startswith("runtimes"))]
    prepared = list(islice(check_cases(model, runtime.Session(content), model.sizes), CASES))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "model.onnx"
        source.write_bytes(content)
        there = {ALONE: source, **right(PEERS, source, model, prepared, Path(folder), notes)}
        opening = {whose: partial(runtime.Session, file.read_bytes(), target) for whose, file in there.items()}
    opening |= in_openvino(model, prepared, target, notes)
    ours = runtime.runnable(result.model, source=not result.changed)
    # the original timed against itself would show noise as a gain or a loss
    for whose, each in ((PLAIN, plain), (OURS, result)):
        if each.changed and (whose == PLAIN or result.model is not plain.model):
            opening[whose] = partial(runtime.open_in_child, each.model, target)
    if everywhere.changed:
        opening[AUTO] = partial(runtime.open_in_child, everywhere.model, everywhere.target)
    inputs = random_inputs(model, 0)
    times = timed(opening, inputs, options.seconds, options.sessions)
    return {
        "case": name,
        **figures({whose: taken for whose, taken in times.items() if whose != AUTO}),
        **automatic(times),
        "load": round(os.getloadavg()[0], 2),
        "kept": not result.changed,
        "nodes": [result.terms_before, result.terms_after],
        "equations": sum(result.equations.values()),
        **searches,
        "kernels": sum(n.op == "opaque" and DOMAIN in str(n.attr("call")) for n in result.model.nodes()),
        "stages": {k: round(v, 2) for k, v in result.seconds.items()},
        "checked": sum(d.passed for d in result.differences),
        "operators": shares(ours, inputs),
        "note": "; ".join(notes),
    }


def in_any_runtime(model: Model, options: argparse.Namespace, target: str = "auto") -> Result:
    """The result of `--target auto`, or of another target, with the defaults and an empty cache of
    costs."""
    sizes = {"batch": 1, "sequence": SEQUENCE[options.small]}
    known = {name: size for name, size in sizes.items() if name in model.symbols()}
    asked = Options(target=target, budget=options.budget, threads=options.threads).config(model)
    with tempfile.TemporaryDirectory() as folder:
        config = replace(asked, cache=Path(folder) / "costs.sqlite", shapes=((known, 1.0),))
        return optimize_model(replace(model, sizes=representative(model, config)), config)


def in_openvino(model: Model, cases: Sequence[CheckCase], target: Target, notes: list[str]) -> dict[str, Opening]:
    """How the original is opened in OpenVINO; the notes say why it is not timed there."""
    opening = partial(runtime.open_in_child, model, runtimes_beside(target)[0], source=True)
    try:
        wrong = next((d for d in compare(model, opening(), cases) if not d.passed), None)
    except TasoMirageError as error:
        notes.append(f"{OPENVINO} has no time: {native.first_line(error)[:160]}")
        return {}
    if wrong is not None:
        notes.append(f"{OPENVINO} is wrong: {wrong}")
    return {} if wrong is not None else {OPENVINO: opening}


def automatic(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The lower quartile of `--target auto` in microseconds, and its ratios over ONNX Runtime alone
    and over the best peer."""
    quiet = {whose: float(np.percentile(taken, 25)) * 1e6 for whose, taken in times.items()}
    own = quiet.get(AUTO, quiet[ALONE])
    best = min(taken for whose, taken in quiet.items() if whose not in (OURS, PLAIN, AUTO))
    return {AUTO: own, "auto_ratio": round(quiet[ALONE] / own, 4), "auto_ratio_best_peer": round(best / own, 4)}


def searched(model: Model, config: Config, again: float) -> tuple[Result, dict[str, Any]]:
    """The result with an empty cost cache, and seconds of the search and of the whole job, cold and
    warm: then the budget is `again`."""
    with tempfile.TemporaryDirectory() as folder:
        config = replace(config, cache=Path(folder) / "costs.sqlite")
        whole, search = [], []
        results = []
        for each in (config, replace(config, budget=again)):
            start = time.perf_counter()
            results.append(optimize_model(model, each))
            whole.append(round(time.perf_counter() - start, 2))
            search.append(round(results[-1].searched, 2))
    return results[0], {"search_seconds": search, "whole_seconds": whole}


def shares(content: Source, inputs: native.Arrays) -> dict[str, float]:
    """The operators that take most of the time of a run, with their shares, by ONNX Runtime's own
    profiler."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        settings.profile_file_prefix = str(Path(folder) / "profile")
        session = opened_session(content, ["CPUExecutionProvider"], settings)
        for _ in range(PROFILED_RUNS):
            session.run(None, dict(inputs))
        events = json.loads(Path(session.end_profiling()).read_text())
    spent: Counter[str] = Counter()
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            spent[event["args"]["op_name"]] += event["dur"]
    return {kind: round(taken / spent.total(), 3) for kind, taken in spent.most_common(PROFILED_KINDS)}


# ---------------------------------------------------------------- the whole


def mean(values: Iterator[float] | Sequence[float]) -> float:
    """The geometric mean."""
    return float(np.exp(np.mean(np.log(list(values)))))


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """A line for each row; all numbers in milliseconds."""
    names = [ALONE, *PEERS, OPENVINO]
    print(
        f"{'model':14} {'ours':>8} {'auto':>8}"
        + "".join(f"{n:>12}" for n in names)
        + "  ratio   best  quartiles     search s"
    )
    for r in rows:
        peers = "".join(f"{r['baselines'][n] / 1e3:12.2f}" if n in r["baselines"] else f"{'-':>12}" for n in names)
        own = f"{r['ours'] / 1e3:8.2f} {r[AUTO] / 1e3:8.2f}"
        ratios = (
            f"{r['ratio']:6.3f} {r['ratio_best_peer']:6.3f} {r['auto_ratio']:6.3f} {r['auto_ratio_best_peer']:6.3f}"
        )
        low, high = r["quartiles"]
        print(
            f"{r['case']:14} {own}{peers} {ratios} {low:5.2f} {high:5.2f}  {r['search_seconds']} nodes {r['nodes']} {r['note']}",
            flush=True,
        )


def versions() -> dict[str, str]:
    found = {"taso-mirage": __version__, "onnxruntime": runtime.child_version(), "numpy": np.__version__}
    return {**found, **peer_versions((*PEERS, OPENVINO))}


def setting(options: argparse.Namespace) -> dict[str, Any]:
    """The head of a file of rows."""
    return {
        "bench": "optimize",
        "device": runtime.device(),
        "unit": "us",
        "versions": versions(),
        "small": options.small,
        "threads": options.threads,
    }


def earlier(path: Path, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The rows that the file has from a run in the same setting: models that are not named again
    keep theirs."""
    if not path.exists():
        return {}
    found = json.loads(path.read_text())
    same = all(found.get(k) == v for k, v in setting(options).items())
    return {r["case"]: r for r in found["rows"]} if same else {}


def write(path: Path, done: Mapping[str, dict[str, Any]], options: argparse.Namespace) -> None:
    rows = [done[name] for name in MODELS if name in done]
    timed = [r for r in rows if "failed" not in r]
    means = {k: round(mean(r[k] for r in timed), 4) for k in RATIOS if timed}
    path.write_text(json.dumps({**setting(options), "means": means, "rows": rows}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--models", type=Path, help="a folder of NAME.onnx")
    parser.add_argument("--small", action="store_true", help="build small configurations where there are any")
    parser.add_argument("--seconds", type=float, default=6.0, help="timing of each model")
    parser.add_argument("--budget", type=float, default=60.0, help="search of each model, with an empty cost cache")
    parser.add_argument("--again", type=float, default=30.0, help="the second search, with the costs of the first")
    parser.add_argument("--sessions", type=int, default=3, help="times that all models are opened for the timing")
    parser.add_argument("--kernels", choices=KERNELS, default="search")
    parser.add_argument("--kernel-budget", type=float, default=60.0, help="search of each model's kernels")
    parser.add_argument("--threads", type=int, help="of a run; default: one for each core")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "bench" / "results" / "optimize-cpu2.json")
    options = parser.parse_args()
    if unknown := set(options.names) - set(MODELS):
        parser.error(f"no model is named {sorted(unknown)[0]!r}; the names are {', '.join(MODELS)}")
    done = earlier(options.output, options)
    for name in options.names:
        done.pop(name, None)
        try:
            chosen = {
                k: getattr(options, k) for k in ("seconds", "sessions", "budget", "again", "kernels", "kernel_budget")
            }
            done[name] = row(name, options) | {"options": chosen}
            show([done[name]])
        except Exception as error:  # the others are worth having: this one is named in the file as failed
            done[name] = {"case": name, "failed": f"{type(error).__name__}: {native.first_line(error)}"}
            print(f"{name}: {done[name]['failed']}", flush=True)
        write(options.output, done, options)
        gc.collect()
    rows = [r for r in done.values() if "failed" not in r]
    print()
    show(rows)
    for key in RATIOS:
        print(f"{key}: geometric mean {mean(r[key] for r in rows):.3f}, least {min(r[key] for r in rows):.3f}")


if __name__ == "__main__":
    main()
