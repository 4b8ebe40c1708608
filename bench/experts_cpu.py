"""Layers of experts on a CPU, as `taso-mirage optimize` makes them, against ONNX Runtime on the
same file and against its operator com.microsoft.MoE.

    python bench/experts_cpu.py [NAME ...] [--budget 60] [--rounds 30]

A case has its experts, the number of those that a router chooses for each token, and tokens; the
model computes every expert ("every") or gathers the weights of the chosen ones ("gathered"). Models
are of `models/experts.py`: width 512, hidden width 1024 for 8 experts and 512 for 64. Sessions run
in turn on one thread. Prints a table and writes bench/results/experts_cpu-cpu2.json after each row:
medians of the processor's time in microseconds, which other processes disturb least, and ratios of
medians. Rows that are not named stay.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import taso_mirage  # noqa: E402
from models.experts import experts  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402

SIZES = {8: (8, 2, 512, 1024), 64: (64, 8, 512, 512)}
CASES = {
    f"{SIZES[count][1]} of {count}, {tokens} tokens, {form}": (count, tokens, form)
    for count in SIZES
    for tokens in (1, 16, 256)
    for form in ("every", "gathered")
    if (tokens, form) != (256, "gathered")  # gigabytes of gathered weights
}


def fused(model: onnx.ModelProto, top: int, tokens: int) -> onnx.ModelProto:
    """A layer by the runtime's own operator, which reads gate and up in turn."""
    arrays = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    count, width, hidden = arrays["gate"].shape
    both = np.stack([arrays["gate"], arrays["up"]], -1).reshape(count, width, 2 * hidden)
    stored = {
        "router": arrays["router.weight"].T,
        "first": both.transpose(0, 2, 1),
        "last": arrays["down"].transpose(0, 2, 1),
    }
    how = {"activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.0, "activation_beta": 0.0}
    how |= {"swiglu_limit": 1e30, "k": top, "normalize_routing_weights": 1}
    given = ["tokens", "logits", "first", "", "last"]
    nodes = [
        helper.make_node("MatMul", ["tokens", "router"], ["logits"]),
        helper.make_node("MoE", given, ["result"], domain="com.microsoft", **how),
    ]
    input, output = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [tokens, width]) for name in ("tokens", "result")
    )
    weights = [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in stored.items()]
    graph = helper.make_graph(nodes, "experts", [input], [output], weights)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def row(name: str, budget: float, rounds: int, folder: Path) -> dict[str, Any]:
    """One case: the three sessions in turn, and the largest difference of the results relative to
    the largest number."""
    count, tokens, form = CASES[name]
    model = experts(batch=tokens, sizes=SIZES[count], gathered=form == "gathered")
    every = model if form == "every" else experts(batch=tokens, sizes=SIZES[count])
    onnx.save(taso_mirage.optimize(model, budget=budget), folder / "ours.onnx")
    options, own = onnxruntime.SessionOptions(), onnxruntime.SessionOptions()
    options.intra_op_num_threads = own.intra_op_num_threads = 1
    made, providers = onnx.load(folder / "ours.onnx"), ["CPUExecutionProvider"]
    sessions: dict[str, Any] = {"ours": taso_mirage.session(folder / "ours.onnx", trust_kernels=True, options=own)}
    for key, each in (("onnxruntime", model), ("MoE", fused(every, SIZES[count][1], tokens))):
        sessions[key] = onnxruntime.InferenceSession(each.SerializeToString(), options, providers=providers)
    feed = {"tokens": np.random.default_rng(0).standard_normal((tokens, SIZES[count][2])).astype(np.float32)}
    results = {key: each.run(None, feed)[0] for key, each in sessions.items()}
    times: dict[str, list[float]] = {key: [] for key in sessions}
    for _ in range(rounds):
        for key, each in sessions.items():
            start = time.process_time()
            each.run(None, feed)
            times[key].append(time.process_time() - start)
    medians = {key: float(np.median(each)) * 1e6 for key, each in times.items()}
    wanted = results["onnxruntime"]
    errors = {key: float(np.abs(each - wanted).max() / np.abs(wanted).max()) for key, each in results.items()}
    return {
        "case": name,
        "ours": round(medians["ours"], 1),
        "baselines": {key: round(medians[key], 1) for key in ("onnxruntime", "MoE")},
        "ratio": round(medians["onnxruntime"] / medians["ours"], 3),
        "ratio_moe": round(medians["MoE"] / medians["ours"], 3),
        "error": max(errors.values()),
        "kernel": any(each.op_type.startswith("kernel_") for each in made.graph.node),
        "budget": budget,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="cases whose name contains one of these; all if none is named")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for each optimization (60)")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "bench" / "results" / "experts_cpu-cpu2.json")
    options = parser.parse_args()
    earlier = json.loads(options.output.read_text())["rows"] if options.output.exists() else []
    rows = {r["case"]: r for r in earlier if r["case"] in CASES}
    versions = {"taso-mirage": taso_mirage.__version__, "onnxruntime": runtime.child_version(), "numpy": np.__version__}
    head = {"bench": "experts_cpu", "device": runtime.device(), "unit": "us", "versions": versions}
    for name in CASES:
        if options.names and not any(each in name for each in options.names):
            continue
        with tempfile.TemporaryDirectory() as folder:
            rows[name] = found = row(name, options.budget, options.rounds, Path(folder))
        print(
            f"{name:34} {found['ours']:9.0f} us, ONNX Runtime {found['baselines']['onnxruntime']:9.0f}: {found['ratio']:.2f}, "
            f"MoE {found['baselines']['MoE']:9.0f}: {found['ratio_moe']:.2f}, error {found['error']:.1e}, kernel: {found['kernel']}",
            flush=True,
        )
        kept = [rows[n] for n in CASES if n in rows]
        options.output.write_text(json.dumps({**head, "rows": kept}, indent=1) + "\n")


if __name__ == "__main__":
    main()
