"""Kernels of loops by chunks of steps beside kernels of the same loops step by step.

    python bench/chunked_loops.py [NAME ...] [--lengths 1 16 64 256 1024] [--rounds 40]

The loops are those of `recurrent.py` whose state is linear. Both kinds of kernels run in turn in
one process on two threads, each with all of its grids; the fastest grid counts. Errors are those
of the outputs against float64, relative to the largest element. Prints a line for each loop and
length, and writes bench/results/chunked_loops-cpu2.json; rows that are not named stay.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from recurrent import HEADER, MODELS, inputs  # noqa: E402
from rows import Rows  # noqa: E402

from taso_mirage.devices.cpu.device import CPU_DEVICE  # noqa: E402
from taso_mirage.emit.cpu.native_kernel import NativeKernel  # noqa: E402
from taso_mirage.forms.recurrence import recurrence  # noqa: E402
from taso_mirage.ir.mugraph import Lowering  # noqa: E402
from taso_mirage.ir.terms import Graph, Tensor, topological, variable  # noqa: E402
from taso_mirage.meanings.reals import REALS  # noqa: E402
from taso_mirage.onnx_io.files import from_memory  # noqa: E402
from taso_mirage.onnx_io.loops import with_scans  # noqa: E402
from taso_mirage.operators.interpret import interpret  # noqa: E402
from taso_mirage.operators.ops import term, traits  # noqa: E402
from taso_mirage.search.loops.behind import results_of  # noqa: E402

NAMES = ("linear attention", "gated linear attention", "delta rule", "gated delta rule", "RWKV-7", "Mamba-2")
LENGTHS = (1, 16, 64, 256, 1024)
THREADS = 2


def loop_of(model: onnx.ModelProto) -> Graph:
    """The loop of a model over inputs of its own."""
    (node,) = [n for n in with_scans(from_memory(model)).nodes() if traits(n).lowering is Lowering.STEPS]
    leaves = tuple(variable(f"x{i}", Tensor(a.dtype, a.shape)) for i, a in enumerate(node.args))
    return Graph(leaves, results_of(term(node.op, *leaves, **dict(node.attrs))))


def kernels(graph: Graph) -> dict[str, list[NativeKernel]]:
    """The verified kernels of a loop by their kind."""
    goal = recurrence(graph)
    made: dict[str, list[NativeKernel]] = {"steps": [], "chunks": []}
    for found in goal.mugraphs(graph, CPU_DEVICE) if goal else ():
        (kernel,) = [n for n in topological(found.graph.outputs) if traits(n).lowering is Lowering.KERNEL]
        chunked = any(n.op == "scan" and n.attr("chunk") for n in kernel.attr("body"))
        made["chunks" if chunked else "steps"].append(NativeKernel(found.graph, threads=THREADS))
    return made


def error(kernel: NativeKernel, given: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    """The largest error of an output, relative to its largest element."""
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(kernel(*given), wanted, strict=True))


def row(name: str, length: int, rounds: int) -> dict[str, Any]:
    """The times and errors of both kinds of kernels."""
    model = onnx.parser.parse_model(f"{HEADER}\n{MODELS[name](length)}")
    graph, given = loop_of(model), [*inputs(model).values()]
    both = kernels(graph)
    env = {leaf: x.astype(np.float64) for leaf, x in zip(graph.inputs, given, strict=True)}
    found = interpret(graph.outputs, REALS, env)
    wanted = [found[o] for o in graph.outputs]
    result: dict[str, Any] = {"length": length}
    best = {(kind, i): np.inf for kind, some in both.items() for i in range(len(some))}
    for _ in range(rounds):
        for kind, i in best:
            start = time.perf_counter()
            both[kind][i](*given)
            best[kind, i] = min(best[kind, i], time.perf_counter() - start)
    for kind, some in both.items():
        result[kind] = min(best[kind, i] for i in range(len(some)))
        result[f"{kind}_error"] = max(error(each, given, wanted) for each in some)
    return result | {"ratio": result["steps"] / result["chunks"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--rounds", type=int, default=40, help="runs of each kernel (40)")
    given = parser.parse_args()
    head = {"benchmark": "chunked_loops", "device": "cpu2"}
    rows = Rows(ROOT / "bench" / "results" / "chunked_loops-cpu2.json", head)
    for name in given.names or NAMES:
        for length in given.lengths:
            made = row(name, length, given.rounds)
            rows.keep({"case": f"{name} {length}", "model": name, **made})
            times = f"{1e3 * made['steps']:.3g} to {1e3 * made['chunks']:.3g} ms, {made['ratio']:.2f} times"
            print(f"{name} {length}: {times}, errors {made['steps_error']:.1e} {made['chunks_error']:.1e}", flush=True)


if __name__ == "__main__":
    main()
