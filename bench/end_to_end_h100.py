"""Whole models in half precision on one NVIDIA GPU, with CUDA graphs everywhere: onnxruntime-gpu
alone, after the substitutions, with the kernels too; torch.compile (max-autotune) and TensorRT as
peers.

    python bench/end_to_end_h100.py [NAME ...] [--batch 1 8] [--models DIR] [--no-compile]
    [--no-tensorrt] [--append]

Prints a line for each model and writes bench/results/end_to_end_h100-DEVICE.json after it
(microseconds). A model is built, or read from DIR/NAME-bBATCH.onnx (`--build DIR` writes those);
half precision is onnxruntime's own conversion, and the exporter's for models of the corpus. A peer
that is not there has no figure; `absent` says why. `floor` is a roofline: the bytes that a run must
move over the bandwidth of a copy, or its operations over the rate of a large product, both measured
just before. `left` is the time on the GPU by kernel, and the share in which none runs: less than
nothing where kernels run beside each other, or begin while the one before ends, and the time that
they wait is theirs too.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import end_to_end_common as common
import roofline
from end_to_end_common import COMPILED, ROOT, WARM, Absent, Case, Compiled
from roofline import Machine

from taso_mirage.emit import tune
from taso_mirage.errors import RuntimeUnavailable
from taso_mirage.ir.model import Model
from taso_mirage.measure import native
from taso_mirage.measure import session as runtime
from taso_mirage.measure.target import CUDA, Target
from taso_mirage.onnx_io import serialize
from taso_mirage.report.result import Result
from taso_mirage.search.config import Config

DECODER = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
}
"""Eight layers of the width of a model of 1.1 billion weights."""
MODELS = {
    "decode": ("llama_decode", {"past": 512, "configuration": DECODER}),
    "prefill": ("llama", {"sequence": 512, "configuration": DECODER}),
    "bert": ("bert", {}),
    "vit": ("vit", {}),
    "lora": ("llama_lora", {"past": 512, "configuration": DECODER}),
}
"""Our names, and the builders behind them with their options in the full size."""
REAL = {
    name: (f"{common.CORPUS}{name}", {})
    for name in (
        *("minilm", "t5_encoder", "clip", "whisper_encoder", "wav2vec2"),
        *("dinov2", "segformer", "swin", "convnext", "efficientnet", "mobilenetv3", "resnext"),
        *("unet", "dit", "vae_decoder"),
    )
}
"""Models of the corpus (`python -m models.real --list`), at their real sizes; they run only if they
are named."""
IMAGES = {name: (name, {}) for name in ("resnet50", "resnext50", "mobilenet_v2")}
"""Convolutional networks of ours, which run where they are named, too."""
TENSORRT = "tensorrt"
COPIED, PRODUCT = 1 << 30, 8192
"""Bytes of the copy, and rows of the product, that give the machine's peaks."""
PROFILED, KINDS, NAMED = 20, 10, 60


# ---------------------------------------------------------------- TensorRT


class Engine:
    """A TensorRT engine of an ONNX file, captured as a CUDA graph, and called as a session is."""

    def __init__(self, content: bytes) -> None:
        try:
            import tensorrt as trt
            import torch
        except ImportError as error:
            raise Absent(f"{type(error).__name__}: {native.first_line(error)}") from None
        self.torch, self.trt, logger = torch, trt, trt.Logger(trt.Logger.ERROR)
        builder = trt.Builder(logger)
        explicit = getattr(trt.NetworkDefinitionCreationFlag, "EXPLICIT_BATCH", None)  # gone in later versions
        network = builder.create_network(0 if explicit is None else 1 << int(explicit))
        parser = trt.OnnxParser(network, logger)
        if not parser.parse(content):
            raise Absent(f"the parser of TensorRT {trt.__version__}: {parser.get_error(0).desc()}")
        settings = builder.create_builder_config()
        if hasattr(trt.BuilderFlag, "FP16"):  # later versions take the types of the model as they are
            settings.set_flag(trt.BuilderFlag.FP16)
        plan = builder.build_serialized_network(network, settings)
        if plan is None:
            raise Absent(f"TensorRT {trt.__version__} builds no engine")
        self.runtime = trt.Runtime(logger)
        self.engine = self.runtime.deserialize_cuda_engine(plan)
        self.context = self.engine.create_execution_context()

    def prepared(self, inputs: native.Arrays) -> Callable[[], float]:
        torch, engine = self.torch, self.engine
        self.held = {}
        for name in (engine.get_tensor_name(i) for i in range(engine.num_io_tensors)):
            dtype = np.dtype(self.trt.nptype(engine.get_tensor_dtype(name)))
            given = inputs.get(name, np.zeros(tuple(engine.get_tensor_shape(name)), dtype))
            self.held[name] = torch.from_numpy(np.ascontiguousarray(given.astype(dtype))).cuda()
            self.context.set_tensor_address(name, self.held[name].data_ptr())
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        for _ in range(WARM):
            self._enqueued(stream)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            self._enqueued(stream)

        def replayed() -> None:
            graph.replay()
            torch.cuda.synchronize()

        return lambda: roofline.fastest(replayed, 1)

    def _enqueued(self, stream: Any) -> None:
        if not self.context.execute_async_v3(stream.cuda_stream):
            raise Absent("TensorRT does not run its engine")


# ---------------------------------------------------------------- the machine


def machine() -> Machine:
    """The GPU: a copy, which reads and writes, and a product in half precision."""
    import torch

    source = torch.ones(COPIED, dtype=torch.uint8, device="cuda")
    a = torch.randn(PRODUCT, PRODUCT, dtype=torch.float16, device="cuda")
    copied, multiplied = (_fastest(run) for run in (source.clone, lambda: a @ a))
    torch.cuda.empty_cache()
    return Machine(2 * COPIED / copied, 2 * PRODUCT**3 / multiplied)


def _fastest(run: Callable[[], Any]) -> float:
    import torch

    def waited() -> None:
        run()
        torch.cuda.synchronize()

    waited()
    return roofline.fastest(waited)


def left(result: Result, inputs: native.Arrays, taken: float) -> dict[str, Any]:
    """The kernels that take most of a run with their shares, the share in which none runs, and how
    many there are.

    The profiler sees this process alone, so the model is opened here too.
    """
    try:
        import torch
        from torch.profiler import ProfilerActivity, profile

        content = runtime.runnable(result.model, source=not result.changed)
        run = result.target.open(content, False, {}).prepared(inputs)
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            for _ in range(PROFILED):
                run()
            torch.cuda.synchronize()
        return shares([(e.key, e.self_device_time_total, e.count) for e in profiled.key_averages()], taken)
    except Exception as error:  # a machine that lets nobody profile
        return {"absent": f"{type(error).__name__}: {native.first_line(error)}"}


def shares(events: list[tuple[str, float, int]], taken: float) -> dict[str, Any]:
    """The shares of a run that takes `taken`, from the kernels' names, microseconds and counts in
    all runs together."""
    spent: Counter[str] = Counter()
    for name, microseconds, _ in events:
        spent[named(name)] += microseconds
    if not spent.total():
        return {"absent": "the profiler saw no kernel"}
    whole = taken * PROFILED
    launches = sum(count for _, microseconds, count in events if microseconds) / PROFILED
    kinds = {kind: round(t / whole, 3) for kind, t in spent.most_common(KINDS) if t}
    return {"operators": kinds, "between": round(1 - spent.total() / whole, 3), "launches": round(launches, 1)}


def named(kernel: str) -> str:
    """A kernel's name without return type, template arguments and parameters."""
    name = kernel.removeprefix("void ").partition("(anonymous namespace)::")
    plain = (name[2] or name[0]).partition("<")[0].partition("(")[0]
    return plain.rpartition("::")[2][:NAMED]


# ---------------------------------------------------------------- rows


def row(case: Case, options: argparse.Namespace, known: Machine, target: Target) -> dict[str, Any]:
    """One model at one batch size in half precision; on the CPU target as it is, without peers that
    need a GPU."""
    model = common.imported(common.proto(case, options.models, options.small, half=not target.on_cores))
    config = Config(budget=options.budget, target=target, seconds=min(2.0, options.seconds))
    found = common.measured(model, config, options, peers(case, model, options, target), known, left)
    return {**found, "mode": options.mode, "budgets": [options.budget, options.kernel_budget]}


def peers(case: Case, model: Model, options: argparse.Namespace, target: Target) -> dict[str, common.Peer]:
    found: dict[str, common.Peer] = {}
    if not options.no_tensorrt:
        found[TENSORRT] = lambda: Engine(serialize(model, source=True))
    if not options.no_compile:
        device, dtype = ("cpu", "float32") if target.on_cores else ("cuda", "float16")
        found[COMPILED] = partial(
            Compiled, partial(common.torch_module, case, options.small), device, dtype, options.mode
        )
    return found


def main(given: list[str] | None = None, target: Target = CUDA) -> None:
    """Run the command line.

    On another target than CUDA it shows that all works, and measures nothing of interest.
    """
    parser = common.arguments(__doc__ or "", list(MODELS | REAL | IMAGES), list(MODELS))
    parser.add_argument("--no-tensorrt", action="store_true", help="without TensorRT")
    parser.add_argument("--mode", default="max-autotune", help="of torch.compile")
    options = parser.parse_args(given)
    cases = common.chosen(parser, options, MODELS | REAL | IMAGES)
    if options.build is not None:
        return common.build(cases, options.build, options.small)
    if not target.on_cores:
        try:
            tune.gpu_and_versions()
        except RuntimeUnavailable as error:
            parser.error(str(error))
    device = runtime.device(target)
    known = Machine(1e10, 1e11) if target.on_cores else machine()
    short = device.split()[1] if " " in device else device
    path = options.output or ROOT / "bench" / "results" / f"end_to_end_h100-{short}.json"
    setting = common.setting("end_to_end_h100", device, ("torch", "triton", "tensorrt"))
    measure = partial(row, options=options, known=known, target=target)
    common.run(cases, measure, path, setting, options.append)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    # Torch's profiler leaves CUPTI a callback that it calls when torch is gone: a usual exit aborts
    # (free(): invalid pointer).
    os._exit(0)
