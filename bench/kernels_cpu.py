"""Generated C++ kernels against ONNX Runtime on the same fragments, fp32, on as many threads as
there are cores.

    python bench/kernels_cpu.py [NAME ...] [--seconds 4]

Prints a table and writes bench/results/kernels_cpu-cpu2.json after each row (microseconds; rows of
fragments that are not named stay). `superoptimize` finds the muGraphs ("source": "search"): the
CANDIDATES best by its model are compiled and run in turn, and the fastest is the row's. One that
the search cannot label is written by hand below ("source": "written"). The peers are ONNX Runtime
with all optimizations on the fragment as exporters write it (`onnxruntime`), and on ONNX's own
operator for it where there is one (`onnxruntime_operator`); both have weights as initializers, and
inputs and outputs bound in place. The time of a call that does nothing is taken off each. `ratio`
is over the first, `ratio_best` over the better of both. All run in turn in one process.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from taso_mirage import __version__  # noqa: E402
from taso_mirage.devices.cpu.device import CPU_DEVICE  # noqa: E402
from taso_mirage.emit.cpu.native_kernel import NativeKernel, empty_aligned  # noqa: E402
from taso_mirage.emit.cpu.native_tuner import tuned_native  # noqa: E402
from taso_mirage.errors import RunFailed, Unsupported  # noqa: E402
from taso_mirage.ir.model import StoredWeight  # noqa: E402
from taso_mirage.ir.mugraph import tile  # noqa: E402
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, substitute, topological, variable, weight  # noqa: E402
from taso_mirage.meanings.reals import EXACT  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402
from taso_mirage.mugraph.search import superoptimize  # noqa: E402
from taso_mirage.onnx_io import serialize  # noqa: E402
from taso_mirage.onnx_io.build import standalone  # noqa: E402
from taso_mirage.operators.interpret import interpret  # noqa: E402
from taso_mirage.operators.ops import term  # noqa: E402

ALONE, OPERATOR = "onnxruntime", "onnxruntime_operator"
CANDIDATES = 64
RATIOS = ("ratio", "ratio_best", "median_ratio", "median_ratio_best")


def leaf(name: str, *shape: int) -> Node:
    return variable(name, Tensor("float32", shape))


def number(value: float) -> Node:
    return constant(np.float32(value))


@dataclass(frozen=True)
class Fragment:
    """A fragment as exporters write it and as one ONNX operator; `weights` are inputs that a model
    knows. `mugraph` is written by hand where the search has no labels for it."""

    inputs: tuple[Node, ...]
    written: Node
    operator: Node | None = None
    weights: Sequence[str] = field(default=())
    mugraph: Node | None = None

    @property
    def goal(self) -> Graph:
        return Graph(self.inputs, (self.written,))


# ---------------------------------------------------------------- the fragments


def rms(x: Node, gamma: Node) -> Node:
    mean = term("reduce_mean", term("pow", x, number(2)), axes=(len(x.shape) - 1,))
    return term("mul", term("div", x, term("sqrt", term("add", mean, number(1e-6)))), gamma)


def rms_norm(rows: int = 128, width: int = 2048) -> Fragment:
    x, gamma = leaf("x", rows, width), leaf("gamma", width)
    return Fragment((x, gamma), rms(x, gamma), term("rms_norm", x, gamma, axis=1, epsilon=1e-6), ("gamma",))


def rotary(heads: int = 16, rows: int = 256, width: int = 64) -> Fragment:
    half = width // 2
    x, cos, sin = leaf("x", 1, heads, rows, width), leaf("cos", 1, 1, rows, half), leaf("sin", 1, 1, rows, half)

    def part(x: Node, start: int, end: int) -> Node:
        return term("slice", x, starts=(start,), ends=(end,), axes=(3,), steps=(1,))

    turned = term("concat", term("neg", part(x, half, width)), part(x, 0, half), axis=3)
    double = [term("concat", t, t, axis=3) for t in (cos, sin)]
    written = term("add", term("mul", x, double[0]), term("mul", turned, double[1]))

    flat = [term("reshape", t, shape=(1, rows, half)) for t in (cos, sin)]
    made = turning(x, cos, sin, heads, 4)
    return Fragment((x, cos, sin), written, term("rotary_embedding", x, *flat), mugraph=made)


def turning(x: Node, cos: Node, sin: Node, heads: int, parts: int) -> Node:
    """Rotary embedding as a kernel of heads * parts blocks; concatenations and slices have no
    labels yet."""
    grid, imap = (heads, parts), ((1, 2), (-1, 2), (-1, 2))
    tiles = tuple(
        variable(n.attr("name"), tile(n.tensor, grid, m, -1, 1)) for n, m in zip((x, cos, sin), imap, strict=True)
    )
    whole, c, s = tiles
    half = int(c.shape[3])
    left, right = (term("slice", whole, starts=(i,), ends=(i + half,), axes=(3,), steps=(1,)) for i in (0, half))
    real = term("sub", term("mul", left, c), term("mul", right, s))
    made = term("concat", real, term("add", term("mul", left, s), term("mul", right, c)), axis=3)
    body = Graph(tiles, (made,))
    return term("kernel", x, cos, sin, body=body, grid=grid, loop=1, imap=imap, fmap=(-1, -1, -1), omap=((1, 2),))


def silu_gate(rows: int = 128, width: int = 5632) -> Fragment:
    gate, up = leaf("gate", rows, width), leaf("up", rows, width)
    return Fragment((gate, up), term("mul", term("mul", gate, term("sigmoid", gate)), up))


def gelu(rows: int = 128, width: int = 3072) -> Fragment:
    x, bias = leaf("x", rows, width), leaf("bias", width)
    y = term("add", x, bias)
    tail = term("add", term("erf", term("mul", y, number(0.70710678))), number(1))
    return Fragment((x, bias), term("mul", term("mul", y, number(0.5)), tail), term("gelu", y), ("bias",))


def softmax_mask(heads: int = 12, rows: int = 128, keys: int = 128) -> Fragment:
    x, mask = leaf("x", heads, rows, keys), leaf("mask", 1, rows, keys)
    return Fragment((x, mask), term("softmax", term("add", term("mul", x, number(0.125)), mask), axis=2))


def decode_attention(heads: int = 8, queries: int = 1, keys: int = 2048, width: int = 128) -> Fragment:
    q, k, v = leaf("q", heads, queries, width), leaf("k", heads, keys, width), leaf("v", heads, keys, width)
    scores = term("mul", term("matmul", q, term("transpose", k, perm=(0, 2, 1))), number(width**-0.5))
    four = [term("reshape", t, shape=(1, *t.shape)) for t in (q, k, v)]
    whole = term("reshape", term("attention", *four), shape=q.shape)
    return Fragment((q, k, v), term("matmul", term("softmax", scores, axis=2), v), whole)


def norm_linear(rows: int = 1, width: int = 768, columns: int = 2304) -> Fragment:
    x, gamma, w = leaf("x", rows, width), leaf("gamma", width), leaf("w", width, columns)
    whole = term("matmul", term("rms_norm", x, gamma, axis=1, epsilon=1e-6), w)
    return Fragment((x, gamma, w), term("matmul", rms(x, gamma), w), whole, ("gamma", "w"))


FRAGMENTS: Mapping[str, Callable[[], Fragment]] = {
    "rms_norm 128x2048": rms_norm,
    "rotary 16x256x64": rotary,
    "silu_gate 128x5632": silu_gate,
    "bias_gelu 128x3072": gelu,
    "softmax_mask 12x128x128": softmax_mask,
    "decode_attention 8x1x2048x128": decode_attention,
    "decode_attention 8x4x2048x128": lambda: decode_attention(queries=4),
    "attention 12x128x128x64": lambda: decode_attention(12, 128, 128, 64),
    "attention 12x197x197x64": lambda: decode_attention(12, 197, 197, 64),
    "norm_linear 1x768x2304": norm_linear,
    "norm_linear 4x768x2304": lambda: norm_linear(rows=4),
}


# ---------------------------------------------------------------- measuring


class Bound:
    """A session whose runs have inputs and outputs in place."""

    def __init__(self, session: runtime.Session, weights: Sequence[str]) -> None:
        self.session, self.weights = session, weights

    def prepared(self, inputs: Mapping[str, Any]) -> Callable[[], float]:
        return self.session.bound({k: v for k, v in inputs.items() if k not in self.weights})


class Ours:
    """A generated kernel, called as a session is."""

    def __init__(self, kernel: NativeKernel) -> None:
        self.kernel = kernel

    def prepared(self, inputs: Mapping[str, Any]) -> Callable[[], float]:
        arrays = [inputs[n.attr("name")] for n in self.kernel.graph.inputs]
        self.outputs = [empty_aligned([int(d) for d in o.shape], o.dtype) for o in self.kernel.graph.outputs]
        run = self.kernel.bound(arrays, self.outputs)

        def timed() -> float:
            start = time.perf_counter()
            run()
            return time.perf_counter() - start

        return timed


def session(
    inputs: Sequence[Node], output: Node, values: Mapping[str, Any], weights: Sequence[str], opset: int
) -> Bound:
    """ONNX Runtime on a term, its weights as initializers."""
    known = {x: weight(x.attr("name"), x.tensor) for x in inputs if x.attr("name") in weights}
    (moved,) = substitute((output,), known)
    graph = Graph(tuple(x for x in inputs if x not in known), (moved,))
    model = standalone(graph, {"": opset}, {name: StoredWeight(values[name]) for name in weights})
    return Bound(runtime.Session(serialize(model)), weights)


def generated(fragment: Fragment, threads: int) -> tuple[NativeKernel, dict[str, Any]]:
    """The fastest kernel for a fragment, and where it comes from; times in seconds."""
    start = time.perf_counter()
    try:
        graphs = [each.graph for each in superoptimize(fragment.goal, best=CANDIDATES, device=CPU_DEVICE)]
        source = {"source": "search"}
    except Unsupported:
        if fragment.mugraph is None:
            raise
        graphs, source = [Graph(fragment.inputs, (fragment.mugraph,))], {"source": "written"}
    searched = time.perf_counter()
    measured = tuned_native(graphs, threads)
    best = measured[0].kernel
    kernels = [n for n in topological(best.graph.outputs) if n.op == "kernel"]
    took = {"search": round(searched - start, 2), "tuning": round(time.perf_counter() - searched, 2)}
    shapes = [{"grid": n.attr("grid"), "loop": n.attr("loop")} for n in kernels]
    return best, source | {"candidates": len(measured), "seconds": took, "kernels": shapes}


def nothing(threads: int) -> tuple[float, float]:
    """Seconds of a session and of a generated kernel that do next to nothing: the cost of a call
    from Python."""
    x = leaf("x", 1)
    graph, given = Graph((x,), (term("relu", x),)), {"x": np.ones(1, np.float32)}
    calls = Ours(NativeKernel(graph, threads=threads)), session(graph.inputs, graph.outputs[0], {}, (), 17)
    theirs, ours = (float(np.median([run() for _ in range(2000)])) for run in (c.prepared(given) for c in calls[::-1]))
    return theirs, ours


def row(name: str, seconds: float, threads: int, empty: tuple[float, float]) -> dict[str, Any]:
    """One fragment: ours is compared with float64, then all are timed in turn."""
    fragment = FRAGMENTS[name]()
    rng = np.random.default_rng(0)
    values: dict[str, Any] = {}
    for x in fragment.inputs:
        values[x.attr("name")] = made = empty_aligned([int(n) for n in x.shape], np.float32)
        made[...] = rng.standard_normal(made.shape)
    runs: dict[str, Any] = {ALONE: session(fragment.inputs, fragment.written, values, fragment.weights, 17)}
    note = ""
    if fragment.operator is not None:
        try:
            runs[OPERATOR] = session(fragment.inputs, fragment.operator, values, fragment.weights, 23)
        except (RunFailed, Unsupported) as error:
            note = f"its operator does not load: {error}"
    kernel, origin = generated(fragment, threads)
    ours = runs["ours"] = Ours(kernel)
    times = dict(zip(runs, runtime.interleaved(list(runs.values()), values, seconds), strict=True))
    wanted = interpret([fragment.written], EXACT, {x: EXACT.load(values[x.attr("name")]) for x in fragment.inputs})
    exact = wanted[fragment.written]
    error = float(np.abs(ours.outputs[0] - exact).max() / np.abs(exact).max())
    assert error < 1e-5, f"{name} differs by {error:.1e}"
    found = {"case": name, **figures(times, empty), **origin}
    return found | {"error": error, "load": round(os.getloadavg()[0], 2), "note": note}


def figures(times: Mapping[str, list[float]], empty: tuple[float, float]) -> dict[str, Any]:
    """Lower quartiles in microseconds (others use the machine too), and the ratios of those and of
    medians."""
    spent = {k: np.asarray(t) - empty[k == "ours"] for k, t in times.items()}
    quiet, median = ({k: float(np.percentile(t, q)) * 1e6 for k, t in spent.items()} for q in (25, 50))
    low, high = (float(v) for v in np.percentile(spent[ALONE] / spent["ours"], (25, 75)))
    others = [k for k in times if k != "ours"]
    return {
        "ours": round(quiet["ours"], 2),
        "baselines": {k: round(quiet[k], 2) for k in others},
        "ratio": round(quiet[ALONE] / quiet["ours"], 4),
        "ratio_best": round(min(quiet[k] for k in others) / quiet["ours"], 4),
        "median_ratio": round(median[ALONE] / median["ours"], 4),
        "median_ratio_best": round(min(median[k] for k in others) / median["ours"], 4),
        "quartiles": [round(low, 4), round(high, 4)],
        "spread": round(high - low, 4),
        "runs": len(spent["ours"]),
    }


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    print(f"{'fragment':32} {'ours us':>9} {'written':>9} {'operator':>9} {'ratio':>6} {'quartiles':>14} {'best':>6}")
    for r in rows:
        operator = r["baselines"].get(OPERATOR)
        shown = f"{operator:9.1f}" if operator else " " * 9
        quartiles = "{:.2f} to {:.2f}".format(*r["quartiles"])
        times = f"{r['ours']:9.1f} {r['baselines'][ALONE]:9.1f} {shown}"
        origin = f"{r['source']} of {r['candidates']}"
        print(
            f"{r['case']:32} {times} {r['ratio']:6.2f} {quartiles:>14} {r['ratio_best']:6.2f}  {origin} {r['note']}",
            flush=True,
        )
    print("geometric means:", means(rows))


def means(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {k: round(float(np.exp(np.mean([np.log(r[k]) for r in rows]))), 4) for k in RATIOS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="fragments whose name begins so; all if none is named")
    parser.add_argument("--seconds", type=float, default=4, help="seconds of timing for each fragment")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "bench" / "results" / "kernels_cpu-cpu2.json")
    options = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    earlier = json.loads(options.output.read_text())["rows"] if options.output.exists() else []
    rows = {r["case"]: r for r in earlier if r["case"] in FRAGMENTS}
    empty = nothing(threads)
    print(
        "a session that does nothing: {:.1f} us; a kernel: {:.1f} us".format(*(1e6 * t for t in empty)),
        f"; {threads} threads",
    )
    versions = {"taso-mirage": __version__, "onnxruntime": runtime.child_version(), "numpy": np.__version__}
    for name in FRAGMENTS:
        if options.names and not any(name.startswith(n) for n in options.names):
            continue
        rows[name] = row(name, options.seconds, threads, empty)
        kept = [rows[n] for n in FRAGMENTS if n in rows]
        found = {
            "bench": "kernels_cpu",
            "device": runtime.device(),
            "versions": versions,
            "unit": "us",
            "threads": threads,
        }
        found |= {
            "session_us": round(empty[0] * 1e6, 2),
            "call_us": round(empty[1] * 1e6, 2),
            "means": means(kept),
            "rows": kept,
        }
        options.output.write_text(json.dumps(found, indent=1) + "\n")
        show([rows[name]])
    show([rows[n] for n in FRAGMENTS if n in rows])
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
