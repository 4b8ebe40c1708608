"""Kernels that prepare weights (products, also of 4-bit weights, and convolutions by minimal
filtering) in ONNX Runtime, against its own operators, fp32.

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
from taso_mirage.ir.terms import Graph, Node, Tensor, variable, weight  # noqa: E402
from taso_mirage.kernels.cpu.prepared import prepared  # noqa: E402
from taso_mirage.kernels.regions import RegionSite  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402
from taso_mirage.measure.target import CPU  # noqa: E402
from taso_mirage.operators.ops import term  # noqa: E402
from taso_mirage.operators.work import work  # noqa: E402
from taso_mirage.pipeline.fuse import alone  # noqa: E402
from taso_mirage.targets.cpu import lowering as cpu  # noqa: E402
from taso_mirage.targets.cpu.device import CPU_DEVICE as DEVICE  # noqa: E402

SECONDS = 1.0
"""Of a round."""


def leaf(name: str, *shape: int) -> Node:
    return variable(name, Tensor("float32", shape))


def product(m: int, k: int, n: int) -> Graph:
    """A linear layer."""
    x, w = leaf("x", 1, m, k), leaf("w", k, n)
    return Graph((x, w), (term("matmul", x, w),))


def few_bits(m: int, k: int, n: int, size: int, level: int) -> Graph:
    """A linear layer of 4-bit weights in blocks, at an accuracy level."""
    blocks = k // size
    x, scales = leaf("x", 1, m, k), leaf("scales", n, blocks)
    w = variable("w", Tensor("uint8", (n, blocks, size // 2)))
    form = {"K": k, "N": n, "bits": 4, "block_size": size, "accuracy_level": level}
    return Graph((x, w, scales), (term("matmul_nbits", x, w, scales, **form),))


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
CASES: Mapping[str, Callable[[], Graph]] = {
    **{f"product {m}x{k}x{n}": lambda p=(m, k, n): product(*p) for m, k, n in PRODUCTS},
    **{
        f"4 bits {m}x{k}x{n}, blocks of {size}, level {level}": lambda p=(m, k, n, size, level): few_bits(*p)
        for m, k, n, size, level in FEW_BITS
    },
    **{
        f"convolution {h}x{w}, {c} to {o} channels, {s}x{s}": lambda p=(c, s, o, h, w): convolution(*p)
        for c, s, o, h, w in CONVOLUTIONS
    },
}


def row(name: str, rounds: int) -> dict[str, Any]:
    """One case: the fastest kernel alone, then both sides in turn."""
    goal = CASES[name]()
    x, *weights = goal.inputs
    given = (x, *(weight(w.attr("name"), w.tensor) for w in weights))
    made = prepared(goal, given)
    assert made is not None, f"{name} is none of this kind"
    backend = cpu.here()
    record = backend.fastest(goal, made.mugraphs(goal, DEVICE), time.monotonic() + 60)
    kernel, spot = backend.kernel(record), RegionSite(given, (), ())
    times = [
        alone.region_seconds(goal, spot, kernel, {"": 20, "com.microsoft": 1}, CPU, prepares=True)
        for _ in range(rounds)
    ]
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
    alone.SECONDS = SECONDS
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
