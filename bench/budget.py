"""Seconds of the command, from the start of its process to its end, beside the `--budget` that was
given.

    python bench/budget.py [--budgets 2 5 10 30] [--only NAME ...] [--busy 2]

Of the repository's own model, of those of 300 and 3,000 nodes that bench/quick.py makes, of a chain
of 20,000 nodes, and of a folder of three; each with a report and a certificate, and a cache that is
empty. `--busy` processes compute beside it. Prints a table and writes
bench/results/budget-cpu2.json after each row; a row says whether the command ended within a tenth
and 2 s, its outcome, and the processor's seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from quick import LAYERS, MINI, Encoder  # noqa: E402
from real import Run, run, versions  # noqa: E402
from rows import Rows  # noqa: E402

from taso_mirage.measure import session as runtime  # noqa: E402

CHAIN = 20_000
BUDGETS = (2.0, 5.0, 10.0, 30.0)
TENTH, MORE = 1.1, 2.0
"""How many times its budget a command may take, and how many seconds more."""
FOLDER = "folder of 3"
LATE = 120.0
"""Seconds after the budget at which a command is stopped."""


def chain(nodes: int) -> onnx.ModelProto:
    """Sums, activations and products by turns, one after the other."""
    kinds = ("Add", "Relu", "Mul", "Tanh")
    given, made = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 8)) for name in ("v0", f"v{nodes}"))
    found = []
    for i in range(nodes):
        kind = kinds[i % len(kinds)]
        found.append(helper.make_node(kind, [f"v{i}", "v0"][: 1 + (kind in ("Add", "Mul"))], [f"v{i + 1}"]))
    graph = helper.make_graph(found, "chain", [given], [made])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sources(place: Path) -> dict[str, Path]:
    """All models, and the folder, by their names."""
    found = {"mini_transformer": MINI}
    for name, layers in LAYERS.items():
        found[name] = place / f"{name}.onnx"
        onnx.save(Encoder().model(layers), found[name])
    found[f"chain_{CHAIN}"] = place / "chain.onnx"
    onnx.save(chain(CHAIN), found[f"chain_{CHAIN}"])
    found[FOLDER] = place / "zoo"
    found[FOLDER].mkdir()
    for name in ("mini_transformer", *LAYERS):
        shutil.copy(found[name], found[FOLDER] / f"{name}.onnx")
    return found


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Run busy processes during the block."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for each in others:
            each.kill()
            each.wait()


def row(name: str, source: Path, budget: float, kernels: str) -> dict[str, Any]:
    """One command."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        files = [] if source.is_dir() else ["--report", str(place / "r.html"), "--certificate", str(place / "c.json")]
        command = ["optimize", str(source), "-o", str(place / "out"), "--budget", f"{budget:g}", "--kernels", kernels]
        os.environ["TASO_MIRAGE_CACHE"] = str(place / "cache")
        asked = budget * (len(list(source.glob("*.onnx"))) if source.is_dir() else 1)
        done = run([*command, *files, "--json"], asked + LATE)
    return {
        "case": f"{name}, {budget:g} s",
        "asked": asked,
        "seconds": round(done.seconds, 2),
        "processor_seconds": round(done.processor, 2),
        "within": done.seconds <= TENTH * asked + MORE,
        "ended": ended(done),
    }


def ended(done: Run) -> str:
    """The outcome for the model, or for each model of a folder."""
    if done.code != 0:
        return f"exit {done.code}: {done.errors.strip()[-200:]}"
    said = json.loads(done.output.splitlines()[-1])
    if "models" in said:
        return ", ".join(each["state"] for each in said["models"])
    return f"{'changed' if said['changed'] else 'kept'}: {'; '.join(said['notes'])[:300]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budgets", type=float, nargs="+", default=BUDGETS)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these models only")
    parser.add_argument("--busy", type=int, default=0, help="processes that compute beside it")
    parser.add_argument("--kernels", choices=("off", "search"), default="search")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "bench" / "results" / "budget-cpu2.json")
    options = parser.parse_args()
    head = {"bench": "budget", "device": runtime.device(), "unit": "s", "busy": options.busy, "versions": versions()}
    rows = Rows(options.output, {**head, "kernels": options.kernels})
    with tempfile.TemporaryDirectory() as folder, busy(options.busy):
        there = sources(Path(folder))
        if unknown := sorted(set(options.only) - there.keys()):
            parser.error(f"no model {unknown[0]!r}: {', '.join(there)}")
        for name in options.only or there:
            for budget in options.budgets:
                found = row(name, there[name], budget, options.kernels)
                rows.keep(found)
                late = "" if found["within"] else "LATE "
                print(
                    f"{found['case']:28} {late}{found['seconds']:6.1f} s of {found['asked']:g} "
                    f"(processor {found['processor_seconds']:.1f}) {found['ended']}",
                    flush=True,
                )
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
