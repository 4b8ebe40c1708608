"""Kernels for free sizes on one NVIDIA GPU: right at ten sizes against torch in float64, and their
time against that of kernels for one size each, and of torch, in turn in CUDA graphs.

    python bench/free_sizes_cuda.py [GOAL ...] [--seconds 10]

Needs torch and triton. Writes bench/results/free_sizes-DEVICE.json after each goal (microseconds).
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from rows import Rows  # noqa: E402

from taso_mirage.devices.cuda.device import here  # noqa: E402
from taso_mirage.emit import tune  # noqa: E402
from taso_mirage.emit.compile import load_source  # noqa: E402
from taso_mirage.ir.dims import symbol  # noqa: E402
from taso_mirage.ir.terms import Graph, Tensor, constant, variable  # noqa: E402
from taso_mirage.lowering.cuda import CudaLowering, _program  # noqa: E402
from taso_mirage.mugraph.free import FreeSizes, instance  # noqa: E402
from taso_mirage.mugraph.search import Search, SearchOptions  # noqa: E402
from taso_mirage.operators.ops import term  # noqa: E402

N, S = symbol("n0"), symbol("n1")
HALF = "float16"


def x(name, *shape):
    return variable(name, Tensor(HALF, shape))


def attention(b, s, heads=12, width=64):
    """(b, s, heads*width) queries, keys and values, a mask, as exporters write it."""
    q, k, v, m = (*(x(n, b, s, heads * width) for n in "qkv"), x("m", b, 1, 1, s))

    def apart(y, *perm):
        return term("transpose", term("reshape", y, shape=(b, s, heads, width)), perm=perm)

    scores = term("mul", term("matmul", apart(q, 0, 2, 1, 3), apart(k, 0, 2, 3, 1)), constant(np.float16(0.125)))
    mixed = term("matmul", term("softmax", term("add", scores, m), axis=3), apart(v, 0, 2, 1, 3))
    return Graph(
        (q, k, v, m), (term("reshape", term("transpose", mixed, perm=(0, 2, 1, 3)), shape=(b, s, heads * width)),)
    )


def attention_torch(q, k, v, m, heads=12):
    b, s, w = q.shape
    a, c, d = (y.reshape(b, s, heads, w // heads).transpose(1, 2) for y in (q, k, v))
    p = torch.softmax(a @ c.transpose(2, 3) * 0.125 + m, 3)
    return (p @ d).transpose(1, 2).reshape(b, s, w)


def norm(b, s, width=768):
    """The sum of two, and its norm."""
    a, c, g = x("a", b, s, width), x("c", b, s, width), x("g", width)
    total = term("add", a, c)
    return Graph((a, c, g), (term("rms_norm", total, g, axis=-1, epsilon=1e-5), total))


def norm_torch(a, c, g):
    t = a + c
    return t / torch.sqrt((t * t).mean(-1, keepdim=True) + 1e-5) * g, t


def norm_linear(b, s, width=1024, columns=1024):
    h, g, w = x("h", b, s, width), x("g", width), x("w", width, columns)
    return Graph((h, g, w), (term("matmul", term("rms_norm", h, g, axis=-1, epsilon=1e-5), w),))


def norm_linear_torch(h, g, w):
    return (h / torch.sqrt((h * h).mean(-1, keepdim=True) + 1e-5) * g) @ w


def gated(b, s, width=3072):
    """silu(a) * c."""
    a, c = x("a", b, s, width), x("c", b, s, width)
    return Graph((a, c), (term("mul", term("mul", a, term("sigmoid", a)), c),))


def gated_torch(a, c):
    return a * torch.sigmoid(a) * c


def gated_mlp(b, s, width=768, columns=1024):
    h, w, u = x("h", b, s, width), x("w", width, columns), x("u", width, columns)
    gate = term("matmul", h, w)
    return Graph((h, w, u), (term("mul", term("mul", gate, term("sigmoid", gate)), term("matmul", h, u)),))


def gated_mlp_torch(h, w, u):
    g = h @ w
    return g * torch.sigmoid(g) * (h @ u)


GOALS = {  # goal, the same in torch, usual sizes, sizes to time
    "attention": (attention, attention_torch, (2, 512), [(1, 128), (2, 512), (4, 1024)]),
    "norm": (norm, norm_torch, (2, 512), [(1, 16), (2, 512), (8, 1024)]),
    "norm_linear": (norm_linear, norm_linear_torch, (1, 16), [(1, 1), (1, 16), (1, 64)]),
    "gated": (gated, gated_torch, (2, 512), [(1, 16), (2, 512), (8, 1024)]),
    "gated_mlp": (gated_mlp, gated_mlp_torch, (1, 16), [(1, 1), (1, 16), (1, 64)]),
}
CHECKED = [(1, 1), (1, 2), (3, 15), (1, 16), (1, 17), (2, 63), (1, 64), (1, 65), (2, 257), (1, 1031)]
BOUND = 4e-3  # of the largest, in half precision


def shapes(goal):
    named = goal(N, S)
    return FreeSizes(tuple(i.shape for i in named.inputs), tuple(o.shape for o in named.outputs))


def drawn(graph, seed=0):
    made = torch.Generator(device="cuda").manual_seed(seed)
    found = [torch.randn([int(n) for n in i.shape], generator=made, device="cuda") for i in graph.inputs]
    return [(y * (y.shape[-2] ** -0.5) if y.dim() == 2 else y).half() for y in found]


def listed(result):
    return list(result) if isinstance(result, tuple) else [result]


def launcher(program, folder, name):
    module = load_source(program.source, folder, name)
    options = [launch.options for launch in program.launches]
    return lambda *inputs: module.launch(*inputs, options=options)


def free_calls(record, folder, name):
    """The call for sizes: as the plan's ranges say it."""
    parts = [*record.get("before", ()), record]
    calls = [
        (part.get("most", math.inf), launcher(_program(part), folder, f"{name}_{i}")) for i, part in enumerate(parts)
    ]
    return lambda sizes: next(call for most, call in calls if math.prod(sizes) <= most)


def checked(goal, reference, call_for):
    rows = []
    for sizes in CHECKED:
        inputs = drawn(goal(*sizes))
        wanted = listed(reference(*[y.double() for y in inputs]))
        got = listed(call_for(sizes)(*inputs))
        again = listed(call_for(sizes)(*inputs))
        error = max(float((g.double() - w).abs().max() / w.abs().max()) for g, w in zip(got, wanted, strict=True))
        torch_error = max(
            float((g.double() - w).abs().max() / w.abs().max())
            for g, w in zip(listed(reference(*inputs)), wanted, strict=True)
        )
        same = all(torch.equal(a, b) for a, b in zip(got, again, strict=True))
        rows.append({"sizes": sizes, "error": error, "torch": torch_error, "right": error < BOUND and same})
    return rows


def graph_of(call, sets, rounds):
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call(*sets[0])
    torch.cuda.synchronize()
    made = torch.cuda.CUDAGraph()
    kept = []
    with torch.cuda.graph(made):
        for _ in range(rounds):
            for inputs in sets:
                kept = call(*inputs)
    return made, kept


def seconds(graphs, calls):
    """Medians of replays in turn."""
    times = {name: [] for name in graphs}
    for turn in range(40):
        for name, (graph, _) in graphs.items():
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            stop.record()
            torch.cuda.synchronize()
            if turn >= 5:
                times[name].append(start.elapsed_time(stop) * 1e3 / calls[name])
    return {name: statistics.median(own) for name, own in times.items()}


def timed(goal, reference, call_for, fixed, sizes):
    """Microseconds of free, fixed and torch."""
    graph = goal(*sizes)
    bytes_ = sum(math.prod(int(n) for n in i.shape) * 2 for i in graph.inputs)
    count = max(2, min(64, math.ceil(1.5e8 / bytes_)))
    sets = [drawn(graph, seed) for seed in range(count)]
    rounds = max(1, 64 // count)
    calls = {"free": call_for(sizes), "fixed": fixed, "torch": reference}
    graphs = {name: graph_of(call, sets, rounds) for name, call in calls.items() if call is not None}
    found = seconds(graphs, dict.fromkeys(graphs, rounds * count))
    return {"sizes": sizes, **found, "free/fixed": found["free"] / found["fixed"] if "fixed" in found else None}


def row(name, gpu, device, each, folder):
    """One goal: searched with free sizes, tuned at three, checked at ten, timed at three."""
    goal, reference, usual, timed_at = GOALS[name]
    found = Search(goal(*map(instance, usual)), SearchOptions(), device, free=shapes(goal)).run(12, 20.0)
    measured = [{"n0": usual[0], "n1": usual[1]}, {"n0": 1, "n1": 1}, {"n0": 2 * usual[0], "n1": 2 * usual[1]}]
    record = gpu.fastest(goal(*map(instance, usual)), found, time.monotonic() + each, measured)
    call_for = free_calls(record, folder, name)
    rows = []
    for i, at in enumerate(timed_at):
        fixed = Search(goal(*at), SearchOptions(), device).run(8, 20.0)
        best = gpu.fastest(goal(*at), fixed, time.monotonic() + each)
        rows.append(timed(goal, reference, call_for, launcher(_program(best), folder, f"{name}_fixed_{i}"), at))
    tests = checked(goal, reference, call_for)
    ranges = [each["most"] for each in record["before"]]
    return {"case": name, "ranges": ranges, "right": all(t["right"] for t in tests), "checked": tests, "timed": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("goals", nargs="*", default=list(GOALS), help=f"of {', '.join(GOALS)}")
    parser.add_argument("--seconds", type=float, default=10.0, help="tuning of each program")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    major, minor = torch.cuda.get_device_capability()
    device, versions = here(), tune.gpu_and_versions()
    gpu = CudaLowering(device, versions, 10 * major + minor)
    name = torch.cuda.get_device_name()
    path = options.output or ROOT / "bench" / "results" / f"free_sizes-{name.split()[1]}.json"
    rows = Rows(path, {"bench": "free_sizes", "device": name, "unit": "us", "versions": {"torch": torch.__version__}})
    folder = Path(tempfile.mkdtemp())
    for goal in options.goals:
        found = row(goal, gpu, device, options.seconds, folder)
        rows.keep(found)
        print(goal, "right" if found["right"] else "WRONG", found["timed"], flush=True)
    gpu.close()


if __name__ == "__main__":
    main()
