"""Where the time of a model goes on a CPU, by kind of operator: our result for `--target cpu`, ONNX
Runtime, OpenVINO, and the least that this machine needs.

    python bench/regions_cpu.py [NAME ...] [--models DIR] [--small] [--budget 60] [--seconds 4]
    [--threads N]

A name is one of the models of `bench/optimize.py`, or of a file NAME.onnx in DIR. ONNX Runtime's
times are from its profiler, OpenVINO's from its counters; a node with operators of several kinds (a
product with an activation, a kernel of ours) counts for the first kind of KINDS. Whole runs are
timed apart, in turn, without either. The limit of a kind is its arithmetic over the rate of a
product in registers, or its weights over the bandwidth of a copy, if that is longer; both are
measured here first. A processor with a matrix unit (AMX) has a second rate: that of its products of
bfloat16 over six, as single precision takes six of them. Prints a table and writes
bench/results/regions_cpu-cpu2.json after each row (microseconds; rows of models that are not named
stay).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from machine_rates import Rates, rates  # noqa: E402
from optimize import MODELS, in_any_runtime  # noqa: E402
from roofline import operations  # noqa: E402
from rows import Rows  # noqa: E402
from runtimes_cpu import model_of  # noqa: E402

from taso_mirage import __version__  # noqa: E402
from taso_mirage.devices.machine import cores  # noqa: E402
from taso_mirage.ir.model import Model, random_inputs  # noqa: E402
from taso_mirage.ir.terms import Node  # noqa: E402
from taso_mirage.measure import native  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402
from taso_mirage.measure.child import in_child  # noqa: E402
from taso_mirage.measure.target import CPU, OPENVINO, on_threads, runtimes_beside  # noqa: E402
from taso_mirage.measure.tasks import device_key  # noqa: E402
from taso_mirage.onnx_io.serialization import serialize  # noqa: E402
from taso_mirage.operators.expressions import is_weight  # noqa: E402
from taso_mirage.operators.work import size  # noqa: E402
from taso_mirage.targets.openvino.session import compiled_model  # noqa: E402
from taso_mirage.targets.profile import without_own_time  # noqa: E402

KINDS: Mapping[str, tuple[str, ...]] = {
    "convolutions": ("conv", "convtranspose", "fusedconv", "convolution", "groupconvolution", "deconvolution"),
    "products": ("gemm", "fusedgemm", "fullyconnected", "matmulnbits", "linear"),
    "attention": ("attention", "multiheadattention", "softmax", "groupqueryattention", "matmul", "fusedmatmul"),
    "norms": ("layernormalization", "skiplayernormalization", "batchnormalization", "mvn", "rmsnormalization"),
    "pools": ("maxpool", "averagepool", "globalaveragepool", "globalmaxpool", "pooling", "reducemean", "reduce"),
    "layouts": ("transpose", "reorder", "reorderinput", "reorderoutput", "concat", "concatenation", "slice", "split"),
    "others": (),
}
"""The kinds of operators, the first of which names a node of several, with the names that ONNX, its
runtime and OpenVINO give them."""
OURS, PEERS = "ours", ("onnxruntime", "openvino")
COUNTED = 20
"""The runs of OpenVINO whose counters are read, after one that is not."""


def kind(operators: Iterable[str]) -> str:
    """The first kind that has one of some operators."""
    names = {name.lower() for name in operators}
    return next((each for each, known in KINDS.items() if names & {*known}), "others")


# ---------------------------------------------------------------- the runtimes


def in_onnx_runtime(model: Model, inputs: native.Arrays, options: argparse.Namespace, target: Any, source: bool) -> Any:
    """Microseconds by kind, from the profiler, without its own time."""
    nodes, whole = runtime.timed_nodes(model, inputs, options.seconds, target, source=source)
    made = {name for node in nodes for name in node.outputs} | {*inputs}
    functions = onnx.load_from_string(serialize(model, source)).functions
    inside = {each.name: [n.op_type for n in each.node] for each in functions}
    found: Counter[str] = Counter()
    for node in without_own_time(nodes, whole):
        own = inside.get(node.operator, [node.operator])
        weighted = own == ["MatMul"] and any(name not in made for name in node.inputs)
        found[kind(_weighted(own) if weighted or node.operator in inside else own)] += node.seconds * 1e6
    return found


def _weighted(operators: Iterable[str]) -> list[str]:
    """The operators, a product of which reads a weight unless a softmax is with it."""
    names = [*operators]
    return names if "Softmax" in names else ["Gemm" if name == "MatMul" else name for name in names]


def in_openvino(model: Model, inputs: native.Arrays, threads: int) -> Counter[str]:
    """Microseconds by kind, from the counters: lower quartiles of some runs."""
    target = on_threads(OPENVINO, threads)
    compiled = compiled_model(serialize(model, True), {**dict(target.options), "PERF_COUNT": "YES"})
    request = compiled.create_infer_request()
    feed = {port: inputs[next(n for n in port.get_names() if n in inputs)] for port in compiled.inputs}
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for run in range(COUNTED + 1):
        request.infer(feed)
        for each in request.profiling_info if run else ():
            times[each.node_name, each.node_type].append(each.real_time.total_seconds() * 1e6)
    found: Counter[str] = Counter()
    for (_, operator), taken in times.items():
        found[kind([operator])] += float(np.percentile(taken, 25))
    return found


def limits(model: Model, known: Rates) -> Counter[str]:
    """The least microseconds by kind: of each term its arithmetic or its weights, if they take
    longer."""
    found: Counter[str] = Counter()
    for node in model.nodes():
        if not node.args or is_weight(node):
            continue
        weights = [arg for arg in node.args if is_weight(arg)]
        moved = sum(size(arg.type) for arg in weights) / known.bandwidth
        found[_kind_of(node, bool(weights))] += max(operations(node) / known.flops, moved) * 1e6
    return found


def _kind_of(node: Node, weighted: bool) -> str:
    name = node.op.replace("_", "")
    return kind(["gemm" if weighted and name == "matmul" else name])


# ---------------------------------------------------------------- a row


def row(name: str, options: argparse.Namespace, known: Rates) -> dict[str, Any]:
    model = model_of(name, options)
    result = in_any_runtime(model, options, "cpu")
    model, target = result.original, on_threads(CPU, options.threads)
    inputs = random_inputs(model, 0)
    opening = {
        "onnxruntime": partial(runtime.open_in_child, model, target, source=True),
        "openvino": partial(runtime.open_in_child, model, runtimes_beside(target)[0], source=True),
        OURS: partial(runtime.open_in_child, result.model, target, source=not result.changed),
    }
    sessions = [opened() for opened in opening.values()]
    found = runtime.interleaved(sessions, inputs, options.seconds, patience=np.inf)
    whole = {whose: float(np.percentile(taken, 25)) * 1e6 for whose, taken in zip(opening, found, strict=True)}
    sessions.clear()
    columns = {
        "onnxruntime": in_onnx_runtime(model, inputs, options, target, True),
        "openvino": in_openvino(model, inputs, options.threads),
        OURS: in_onnx_runtime(result.model, inputs, options, target, not result.changed),
        "limit": limits(model, known),
    }
    return {
        "case": name,
        "whole": {whose: round(taken, 1) for whose, taken in whole.items()},
        "kinds": {each: {whose: round(column[each], 1) for whose, column in columns.items()} for each in KINDS},
        "load": round(os.getloadavg()[0], 2),
        "notes": [note for note in result.notes if "kernel" in note],
    }


def show(found: dict[str, Any]) -> None:
    """A line for each kind; all numbers in milliseconds."""
    print(f"{found['case']}: {', '.join(f'{k} {v / 1e3:.2f}' for k, v in found['whole'].items())} ms")
    for name, times in found["kinds"].items():
        print(f"  {name:14}" + "".join(f" {whose} {taken / 1e3:9.3f}" for whose, taken in times.items()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(MODELS))
    parser.add_argument("--models", type=Path, help="a folder of NAME.onnx")
    parser.add_argument("--small", action="store_true", help="build small configurations where there are any")
    parser.add_argument("--seconds", type=float, default=4.0, help="timing of each model, and of its profile")
    parser.add_argument("--budget", type=float, default=60.0, help="search of each model")
    parser.add_argument("--threads", type=int, default=cores(), help="of a run; default: one for each core")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "bench" / "results" / "regions_cpu-cpu2.json")
    options = parser.parse_args()
    known = rates(options.threads)
    there = in_child(device_key, OPENVINO, False).rpartition("openvino ")[2]
    versions = {"taso-mirage": __version__, "openvino": there, "onnxruntime": runtime.child_version()}
    head = {"bench": "regions_cpu", "device": runtime.device(), "versions": versions, "threads": options.threads}
    rows = Rows(options.output, {**head, "small": options.small})
    rows.head["rates"] = {name: float(f"{value:.4g}") for name, value in asdict(known).items()}
    rows.run(options.names, partial(row, options=options, known=known), show)


if __name__ == "__main__":
    main()
