"""Products of matrices in single precision on a GPU, with their epilogues.

    python bench/single_h100.py [ROW ...] [--programs 40]

Searched, generated and tuned, against eager PyTorch and torch.compile, which both multiply in
single precision as cuBLAS does (`allow_tf32` is off). Of each row also how far results are from
float64, ours and eager's: the norm of the difference over the norm. CUDA graphs on all sides, two
sets of inputs or more in turn, medians. Prints a line for each row and writes
bench/results/single_h100-DEVICE.json (microseconds).
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from kernels_h100 import searched  # noqa: E402

from taso_mirage import __version__  # noqa: E402
from taso_mirage.devices.cuda.device import H100  # noqa: E402
from taso_mirage.emit import compile_jobs, tune  # noqa: E402
from taso_mirage.emit.gpu.program import TritonProgram  # noqa: E402
from taso_mirage.ir.terms import Graph, Node, Tensor, variable  # noqa: E402
from taso_mirage.operators.ops import term  # noqa: E402

NEAR, ERRORS = 2.0, "error over eager's"
"""Results may be so many times as far from float64 as eager PyTorch's."""
ROWS: dict[str, tuple[tuple[int, ...], tuple[int, ...], str]] = {
    "1024x8192x8192, stored by columns, bias, relu": ((1024, 8192), (8192, 8192), "transposed bias relu"),
    "4096x4096x4096": ((4096, 4096), (4096, 4096), ""),
    "4096x4096x4096, both transposed": ((4096, 4096), (4096, 4096), "transposed both"),
    "256x256x524288": ((256, 524288), (524288, 256), ""),
    "32768x32768x64": ((32768, 64), (64, 32768), ""),
    "16 x 1024x2048x512": ((16, 1024, 2048), (16, 2048, 512), ""),
    "128x1024x1024, stored by columns, bias, relu": ((128, 1024), (1024, 1024), "transposed bias relu"),
}
"""The operands of each row, and its further properties."""


def goal(x: tuple[int, ...], w: tuple[int, ...], what: str) -> Graph:
    names = ["x", "w", *(["b"] if "bias" in what else [])]
    columns = w[-2] if "transposed" in what else w[-1]
    leaves = [variable(n, Tensor("float32", s)) for n, s in zip(names, (x, w, (columns,)), strict=False)]
    turned = [_turned(leaf, kind in what) for leaf, kind in zip(leaves, ("both", "transposed"), strict=False)]
    found = term("matmul", *turned)
    found = term("add", found, leaves[2]) if "bias" in what else found
    return Graph(tuple(leaves), (term("relu", found) if "relu" in what else found,))


def _turned(leaf: Node, turns: bool) -> Node:
    return term("transpose", leaf, perm=(1, 0)) if turns else leaf


def eager(what: str) -> Callable[..., Any]:
    def call(x: Any, w: Any, b: Any = None) -> Any:
        found = (x.mT if "both" in what else x) @ (w.mT if "transposed" in what else w)
        found = found if b is None else found + b
        return found.relu() if "relu" in what else found

    return call


def measured(case: str, programs: Sequence[TritonProgram], compiler: Any) -> dict[str, Any]:
    import torch

    call, known, errors = eager(ROWS[case][2]), dict[int, tuple[Any, float]](), list[float]()

    def check(inputs: Sequence[Any], results: Sequence[Any]) -> bool:
        if inputs[0].data_ptr() not in known:
            exact = call(*(each.double() for each in inputs))
            known[inputs[0].data_ptr()] = exact, _apart(call(*inputs), exact)
        exact, theirs = known[inputs[0].data_ptr()]
        errors.append(_apart(results[0], exact) / theirs)
        return math.isfinite(errors[-1]) and errors[-1] < NEAR

    best = tune.tuned_program(programs, compiler=compiler, check=check)
    own, refused = [e for e in errors if e < NEAR], sum(not e < NEAR for e in errors)
    theirs = max(error for _, error in known.values())
    known.clear()
    sets = tune.input_sets(best.program)
    ours: dict[str, float] = {}
    for trial in best.trials:
        used = _precision(trial.program)
        ours[used] = min(ours.get(used, math.inf), trial.seconds)
    peers = {"eager": call, "torch.compile": torch.compile(call)}
    times = {name: tune.measured(each, sets) * 1e6 for name, each in peers.items()}
    return {
        "case": case,
        "ours": best.seconds * 1e6,
        "baselines": times,
        "by precision": {x: seconds * 1e6 for x, seconds in ours.items() if math.isfinite(seconds)},
        ERRORS: [min(own), max(own)],
        "error of eager": theirs,
        "refused": refused,
        "programs": len(programs),
        "launches": [{"grid": x.grid, "loop": x.loop} | asdict(x.schedule) for x in best.program.launches],
    }


def _precision(program: TritonProgram) -> str:
    return next((x.schedule.precision for x in program.launches if x.precisions), "no dot")


def _apart(found: Any, exact: Any) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def shown(row: dict[str, Any]) -> str:
    times = ", ".join(f"{name} {us:.1f}" for name, us in [*row["baselines"].items(), *row["by precision"].items()])
    launches = "; ".join(
        f"{x['grid']} loop {x['loop']} w{x['warps']} s{x['stages']} {x['precision']}" for x in row["launches"]
    )
    ratio = min(row["baselines"].values()) / row["ours"]
    errors = " to ".join(f"{each:.2f}" for each in row[ERRORS])
    return f"{row['case']:46} {row['ours']:8.1f} us, {ratio:.2f} | {times} | {ERRORS} {errors} | {launches}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", help="parts of the names of rows")
    parser.add_argument("--programs", type=int, default=40, help="muGraphs of a row that are measured")
    parser.add_argument("--workers", type=int, default=max((os.cpu_count() or 2) - 2, 1))
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    device = tune.gpu_and_versions()
    short = device.removeprefix("NVIDIA ").split()[0]
    path = options.output or ROOT / "bench" / "results" / f"single_h100-{short}.json"
    rows: list[dict[str, Any]] = []
    spawn = multiprocessing.get_context("spawn")
    chosen = [case for case in ROWS if not options.rows or any(part in case for part in options.rows)]
    with (
        ProcessPoolExecutor(options.workers, spawn) as executor,
        closing(compile_jobs.compilers(options.workers)) as compiler,
    ):
        asked = [(case, executor.submit(searched, goal(*ROWS[case]), options.programs, H100, 60.0)) for case in chosen]
        for case, future in asked:
            try:
                rows.append(measured(case, future.result(), compiler))
            except Exception as error:  # the other rows are wanted all the same
                print(f"{case}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                continue
            print(shown(rows[-1]), flush=True)
            found = {"bench": "single_h100", "device": device, "unit": "us", "rows": rows}
            path.write_text(json.dumps(found | {"versions": {"taso-mirage": __version__}}, indent=1) + "\n")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # as quantized_h100.py
