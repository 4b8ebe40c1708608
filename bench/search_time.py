"""How long a search takes: each model three times, with an empty cache and with the results of the
runs before: costs and mutants (no kernels).

    python bench/search_time.py [NAME ...] [--budget 240] [--models DIR]

Prints a table and writes bench/results/search_time-cpu2.json after each row (seconds; rows of
models that are not named stay). A model is read from DIR/NAME.onnx where that exists, else built in
its full size (extra `models`). A search (passes and mutants are in its time) ends by itself or
after its budget: `ended` counts the parts by the reason for their end. A second run measures the
terms that the first had no time for; where all costs are known, a third takes the time of the
search itself. Each is a process of its own in which the rules are loaded.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from rows import Rows  # noqa: E402

import models  # noqa: E402
from taso_mirage import __version__  # noqa: E402
from taso_mirage.devices.machine import cores  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402
from taso_mirage.onnx_io import from_ir  # noqa: E402
from taso_mirage.pipeline import optimize_model  # noqa: E402
from taso_mirage.search.config import Config  # noqa: E402
from taso_mirage.search.rulesets import rules  # noqa: E402

NAMES = ("light_squeezenet", "light_vgg19", "bert", "resnet50", "vit", "llama_decode", "inception_v3")
RUNS = ("cold", "second", "third")


def searched(name: str, budget: float, folder: Path | None, cache: Path) -> dict[str, Any]:
    """One search, in a process of its own."""
    file = None if folder is None else folder / f"{name}.onnx"
    proto = onnx.load(file) if file is not None and file.exists() else models.build(name, small=False)
    model = from_ir(ir.from_proto(proto))
    rules()
    start = time.perf_counter()
    result = optimize_model(model, Config(budget=budget, seconds=1.0, cache=cache))
    return {
        "search": round(result.searched, 2),
        "whole": round(time.perf_counter() - start, 2),
        "mutants": round(result.mutations.seconds, 2),
        "states": result.statistics.states,
        "matches": result.statistics.matches,
        "ended": result.statistics.ended,
    }


def row(name: str, budget: float, folder: Path | None) -> dict[str, Any]:
    """The runs of a case, one after the other with the same cache."""
    found: dict[str, Any] = {"case": name, "budget": budget}
    with (
        tempfile.TemporaryDirectory() as cache,
        ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as fresh,
    ):
        for kind in RUNS:
            found[kind] = fresh.submit(searched, name, budget, folder, Path(cache) / "costs.sqlite").result()
    return found


def show(r: dict[str, Any]) -> None:
    runs = [f"{kind} {r[kind]['search']:.1f} s of {r[kind]['whole']:.1f}, {r[kind]['ended']}" for kind in RUNS]
    print(f"{r['case']:20} search {'; '.join(runs)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--budget", type=float, default=240.0, help="seconds of a search, at most")
    parser.add_argument("--models", type=Path, help="a folder of NAME.onnx")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    path = options.output or ROOT / "bench" / "results" / f"search_time-cpu{cores()}.json"
    versions = {"taso-mirage": __version__, "onnxruntime": runtime.child_version()}
    head = {"bench": "search_time", "device": runtime.device(), "versions": versions, "unit": "s"}
    rows = Rows(path, head)
    for name in options.names:
        made = row(name, options.budget, options.models)
        show(made)
        rows.keep(made)


if __name__ == "__main__":
    main()
