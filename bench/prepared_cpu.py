"""Kernels that prepare weights (products, also of 4-bit weights, alone and with the norm, gate and
sum around them, and convolutions by minimal filtering) in ONNX Runtime, against its own operators,
fp32.

    python bench/prepared_cpu.py [NAME ...] [--rounds 5]

Each case is a model of so many copies that their weights come from memory, as in a whole model: the
fastest kernel, as `optimize` chooses it, in place of the operators, and the operators, run in turn.
Prints a table and writes bench/results/prepared_cpu-cpu2.json after each row (microseconds of one
copy; rows that are not named stay): medians of the rounds, and the least and the largest ratio of a
round.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from taso_mirage import __version__  # noqa: E402
from taso_mirage.devices.cpu.device import CPU_DEVICE as DEVICE  # noqa: E402
from taso_mirage.forms.base.form import CPU_GOALS  # noqa: E402
from taso_mirage.ir.terms import Graph, Node, Tensor, substitute, variable, weight  # noqa: E402
from taso_mirage.lowering import cpu as cpu  # noqa: E402
from taso_mirage.lowering.backend import Record  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402
from taso_mirage.measure.target import CPU  # noqa: E402
from taso_mirage.mugraph.search import Search, SearchOptions  # noqa: E402
from taso_mirage.onnx_io.build import standalone  # noqa: E402
from taso_mirage.operators.ops import term  # noqa: E402
from taso_mirage.operators.work import work  # noqa: E402
from taso_mirage.pipeline.fuse import region_times  # noqa: E402
from taso_mirage.pipeline.fuse.neighbours import Neighbours  # noqa: E402
from taso_mirage.pipeline.fuse.region_kernels import RegionKernel  # noqa: E402
from taso_mirage.regions.fragments import RegionSite, fragments  # noqa: E402

SECONDS = 1.0
"""The seconds of a round."""
OPSETS = {"": 20, "com.microsoft": 1}


def leaf(name: str, *shape: int) -> Node:
    return variable(name, Tensor("float32", shape))


def product(m: int, k: int, n: int) -> Graph:
    """A linear layer."""
    x, w = leaf("x", 1, m, k), leaf("w", k, n)
    return Graph((x, w), (term("matmul", x, w),))


def few_bits(m: int, k: int, n: int, size: int, level: int) -> Graph:
    """A linear layer of 4-bit weights in blocks, at an accuracy level."""
    x = leaf("x", 1, m, k)
    made = of_blocks(x, "", k, n, size, level)
    return Graph((x, *made.args[1:3]), (made,))


def of_blocks(x: Node, name: str, k: int, n: int, size: int, level: int) -> Node:
    """The product of x with 4-bit weights."""
    w = variable(f"w{name}", Tensor("uint8", (n, k // size, size // 2)))
    form = {"K": k, "N": n, "bits": 4, "block_size": size, "accuracy_level": level}
    return term("matmul_nbits", x, w, leaf(f"scales{name}", n, k // size), **form)


def gated(m: int, k: int, n: int, size: int, level: int) -> Graph:
    """A layer of a Llama or Qwen behind attention: the sum with its norm, gate and product, and the
    product back to k columns."""
    x, z, g = leaf("x", 1, m, k), leaf("z", 1, m, k), leaf("g", k)
    both = term("skip_rms_norm_sum", x, z, g, epsilon=1e-6)
    normed, total = (term("item", both, index=i) for i in (0, 1))
    gate, up = (of_blocks(normed, name, k, n, size, level) for name in ("gate", "up"))
    down = of_blocks(term("mul", term("quick_gelu", gate, alpha=1.0), up), "down", n, k, size, level)
    known = [leaf for made in (gate, up, down) for leaf in made.args[1:3]]
    return Graph((x, z, g, *known), (total, down))


def convolution(channels: int, side: int, results: int, height: int, width: int) -> Graph:
    """A convolution that keeps the image's size, and relu."""
    x, w = leaf("x", 1, channels, side, side), leaf("w", results, channels, height, width)
    pads = (height // 2, width // 2) * 2
    made = term("conv", x, w, strides=(1, 1), pads=pads, dilations=(1, 1), group=1)
    return Graph((x, w), (term("relu", made),))


PRODUCTS = (
    (128, 768, 768),
    (128, 768, 3072),
    (128, 3072, 768),
    (197, 768, 3072),
    (197, 3072, 768),
    (128, 1024, 2816),
    (128, 2816, 1024),
    (512, 2048, 5632),
    (1, 2048, 5632),
    (1, 1024, 1024),
)
CONVOLUTIONS = (
    (64, 56, 64, 3, 3),
    (256, 14, 256, 3, 3),
    (192, 17, 192, 1, 7),
    (192, 17, 192, 7, 1),
    (48, 35, 64, 5, 5),
    (384, 8, 384, 1, 3),
)
FEW_BITS = [
    (m, k, n, size, level)
    for k, n in ((4096, 4096), (1024, 4096))
    for m in (1, 8, 128)
    for size in (32, 128)
    for level in (0, 4)
]
GATED = [(m, 1024, n, size, level) for n in (2816, 4864) for m in (1, 8, 128) for size in (32, 128) for level in (0, 4)]
CASES: Mapping[str, Callable[[], Graph]] = {
    **{f"product {m}x{k}x{n}": lambda p=(m, k, n): product(*p) for m, k, n in PRODUCTS},
    **{
        f"4 bits {m}x{k}x{n}, blocks of {size}, level {level}": lambda p=(m, k, n, size, level): few_bits(*p)
        for m, k, n, size, level in FEW_BITS
    },
    **{
        f"4 bits gated {m}x{k}x{n}, blocks of {size}, level {level}": lambda p=(m, k, n, size, level): gated(*p)
        for m, k, n, size, level in GATED
    },
    **{
        f"convolution {h}x{w}, {c} to {o} channels, {s}x{s}": lambda p=(c, s, o, h, w): convolution(*p)
        for c, s, o, h, w in CONVOLUTIONS
    },
}


def joined(goal: Graph, given: tuple[Node, ...], backend: cpu.CpuLowering) -> tuple[Graph, RegionSite, Record]:
    """A goal whose parts have kernels, each the fastest, as one kernel of them all, with its
    record."""
    outputs = substitute(goal.outputs, dict(zip(goal.inputs, given, strict=True)))
    inputs = tuple([each for each in given if each.op == "input"])
    model = standalone(Graph(inputs, outputs), OPSETS, {})
    kinds = []
    for graph, sites in fragments(model, {}, prepared=CPU_GOALS).items():
        made = CPU_GOALS.prepared(graph, sites[0].inputs)
        found = made.mugraphs(graph, DEVICE) if made else Search(graph, SearchOptions(), DEVICE).run(24, 10.0)
        record = backend.fastest(graph, found, time.monotonic() + 60)
        kinds.append(RegionKernel((), tuple(sites), record, backend.kernel(record), 0.0, made and type(made)))
    ((whole, _),) = Neighbours(model, kinds).together(backend)
    (site,) = whole.sites
    leaves = tuple([variable(f"i{i}", node.tensor) for i, node in enumerate(site.inputs)])
    region = Graph(leaves, substitute(site.outputs, dict(zip(site.inputs, leaves, strict=True))))
    return region, site, whole.record


def row(name: str, rounds: int) -> dict[str, Any]:
    """One case: the fastest kernel alone, then both sides in turn."""
    goal = CASES[name]()
    known = [n for n in goal.inputs if n.dtype == "uint8" or n.attr("name").startswith(("w", "scales", "g"))]
    given = tuple([weight(n.attr("name"), n.tensor) if n in known else n for n in goal.inputs])
    backend = cpu.here()
    made, site = CPU_GOALS.prepared(goal, given), RegionSite(given, (), ())
    if made is None:
        goal, site, record = joined(goal, given, backend)
    else:
        record = backend.fastest(goal, made.mugraphs(goal, DEVICE), time.monotonic() + 60)
    kernel = backend.kernel(record)
    times = [region_times.region_seconds(goal, site, kernel, OPSETS, CPU, prepares=True) for _ in range(rounds)]
    both = np.array([t for t in times if t is not None]) * 1e6
    theirs, ours = np.median(both, axis=0)
    ratios = both[:, 0] / both[:, 1]
    flops = sum(work(n, {}).flops for n in goal if n.args)
    return {
        "case": name,
        "ours": round(float(ours), 1),
        "baselines": {"onnxruntime": round(float(theirs), 1)},
        "ratio": round(float(theirs / ours), 4),
        "range": [round(float(ratios.min()), 4), round(float(ratios.max()), 4)],
        "rounds": len(both),
        "gflops": round(flops / float(ours) / 1e3, 1),
        "block": next(line for line in record["mugraph"]["program"] if "block=" in line)
        .split("block=(")[1]
        .split(")")[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="cases whose name begins so; all if none is named")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "bench" / "results" / "prepared_cpu-cpu2.json")
    options = parser.parse_args()
    region_times.SECONDS = SECONDS
    earlier = json.loads(options.output.read_text())["rows"] if options.output.exists() else []
    rows = {r["case"]: r for r in earlier if r["case"] in CASES}
    versions = {"taso-mirage": __version__, "onnxruntime": runtime.child_version(), "numpy": np.__version__}
    for name in CASES:
        if options.names and not any(name.startswith(n) for n in options.names):
            continue
        rows[name] = found = row(name, options.rounds)
        span = "{:.2f} to {:.2f}".format(*found["range"])
        print(
            f"{name:44} {found['ours']:9.1f} us, ONNX Runtime {found['baselines']['onnxruntime']:9.1f}: {found['ratio']:.2f} ({span}), "
            f"{found['gflops']:.0f} Gflop/s, block {found['block']}",
            flush=True,
        )
        kept = [rows[n] for n in CASES if n in rows]
        mean = float(np.exp(np.mean([np.log(r["ratio"]) for r in kept])))
        head = {"bench": "prepared_cpu", "device": runtime.device(), "unit": "us", "versions": versions}
        options.output.write_text(json.dumps({**head, "mean": round(mean, 4), "rows": kept}, indent=1) + "\n")
    print(f"geometric mean {np.exp(np.mean([np.log(r['ratio']) for r in rows.values()])):.3f}")


if __name__ == "__main__":
    main()
