"""Whole models on ONNX Runtime's CPU provider, fp32: alone, after the substitutions, with the
kernels too; torch.compile as a peer.

    python bench/end_to_end_cpu.py [NAME ...] [--batch 1 8] [--seconds 6] [--budget 20] [--append]
    [--models DIR]

Prints a line for each model and writes bench/results/end_to_end_cpu-cpu2.json after it
(microseconds). All run in turn in one process on the same inputs. `prefill` is at 128 tokens, which
here takes as long as anyone wants to wait; `prefill_512` and `decode_bfloat16`, whose weights are
numbers of that format as if from such a checkpoint, are run when they are named. `floor` is a
roofline: the bytes that a run must move over the bandwidth of memory, or its operations over the
rate of the best matrix product, both measured here just before. Sessions are opened three times, as
how fast memory is differs from one to the next. `left` has the times of our result by operator,
from ONNX Runtime's profiler.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import end_to_end_common as common
import roofline
from end_to_end_common import COMPILED, ROOT, Case, Compiled
from roofline import Machine

from taso_mirage.devices.machine import cores
from taso_mirage.ir.model import StoredWeight
from taso_mirage.ir.terms import Graph, Tensor, variable, weight
from taso_mirage.measure import native
from taso_mirage.measure import session as runtime
from taso_mirage.onnx_io import serialize
from taso_mirage.onnx_io.build import standalone
from taso_mirage.operators.ops import term
from taso_mirage.report.result import Result
from taso_mirage.search.config import Config
from taso_mirage.targets.onnx_runtime import opened_session

MODELS = {
    "decode": ("llama_decode", {}),
    "prefill": ("llama", {}),
    "bert": ("bert", {}),
    "vit": ("vit", {}),
    "lora": ("llama_lora", {}),
    "prefill_512": ("llama", {"sequence": 512}),
    "decode_bfloat16": ("llama_decode", {"checkpoint": "bfloat16"}),
    "mini_transformer": ("mini_transformer", {}),
}
"""Our names, and the builders behind them with their options in the full size."""
DEFAULT = ("decode", "prefill", "bert", "vit", "lora")
NARROW = ("decode_bfloat16",)
"""Not in the means."""
STREAMED = 1 << 28
"""Bytes that are read to measure the memory: several times the last cache."""
DEPTH = 1024  # of the product of one row, which reads them in another way
PRODUCTS = ((128, 1024, 4096), (512, 2048, 2048), (2048, 2048, 2048))
"""Rows, depth and columns of the products of which the fastest gives the machine's peak."""
PROFILED, KINDS = 5, 8


def machine() -> Machine:
    """The rates of this machine, with as many threads as there are cores: the faster of two ways to
    read memory, and of some products."""
    parts = np.array_split(np.ones(STREAMED // 4, np.float32), cores())
    with ThreadPoolExecutor(cores()) as pool:
        read = roofline.fastest(lambda: list(pool.map(np.max, parts)), 20)
    read = min(read, _product(1, DEPTH, STREAMED // 4 // DEPTH))
    return Machine(STREAMED / read, max(2 * prod(sizes) / _product(*sizes) for sizes in PRODUCTS))


def _product(rows: int, depth: int, columns: int) -> float:
    """Seconds of a product with a weight in ONNX Runtime."""
    x, w = variable("x", Tensor("float32", (rows, depth))), weight("w", Tensor("float32", (depth, columns)))
    known = {"w": StoredWeight(np.ones((depth, columns), np.float32))}
    session = runtime.Session(serialize(standalone(Graph((x,), (term("matmul", x, w),)), {"": 17}, known)))
    run = session.bound({"x": np.ones((rows, depth), np.float32)})
    return min(run() for _ in range(20))


def left(result: Result, inputs: native.Arrays, taken: float) -> dict[str, Any]:
    """The operators that take most of a run with their shares, and the share that none takes."""
    import onnxruntime

    content = runtime.runnable(result.model, source=not result.changed)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        settings.profile_file_prefix = str(Path(folder) / "profile")
        profiled = opened_session(content, ["CPUExecutionProvider"], settings)
        for _ in range(PROFILED):
            profiled.run(None, dict(inputs))
        events = json.loads(Path(profiled.end_profiling()).read_text())
    spent: Counter[str] = Counter()
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            spent[event["args"]["op_name"]] += event["dur"]
    whole = sum(e["dur"] for e in events if e["name"] == "model_run")
    shares = {kind: round(t / whole, 3) for kind, t in spent.most_common(KINDS)}
    return {"operators": shares, "between": round(1 - spent.total() / whole, 3)}


def row(case: Case, options: Any, known: Machine) -> dict[str, Any]:
    """One model at one batch size."""
    model = common.imported(common.proto(case, options.models, options.small))
    peers = (
        {}
        if options.no_compile
        else {
            COMPILED: partial(Compiled, partial(common.torch_module, case, options.small), "cpu", "float32", "default")
        }
    )
    config = Config(budget=options.budget, seconds=min(2.0, options.seconds))
    return common.measured(model, config, options, peers, known, left)


def main(given: list[str] | None = None) -> None:
    parser = common.arguments(__doc__ or "", list(MODELS), DEFAULT)
    parser.set_defaults(sessions=3)
    options = parser.parse_args(given)
    cases = common.chosen(parser, options, MODELS)
    if options.build is not None:
        return common.build(cases, options.build, options.small)
    known = machine()
    print(f"memory {known.bandwidth / 1e9:.1f} GB/s, products {known.flops / 1e9:.0f} Gflop/s", flush=True)
    path = options.output or ROOT / "bench" / "results" / "end_to_end_cpu-cpu2.json"
    extra = () if options.no_compile else ("torch",)
    setting = common.setting("end_to_end_cpu", runtime.device(), extra)
    common.run(cases, partial(row, options=options, known=known), path, setting, options.append, NARROW)


if __name__ == "__main__":
    main()
