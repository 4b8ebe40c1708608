"""A decoder's step with a cache of any length: the model before and after `taso-mirage optimize`,
its results at several lengths of the cache, and the time of a run.

    python bench/decoder_step.py --build STEP.onnx [--half] [--width 512]
    python bench/decoder_step.py STEP.onnx OPTIMIZED.onnx [--target cuda] [--past 128 1024]
        [--right 0 1 17 128 1000] [-o FILE]

The model is a Llama of two layers with two queries to a key, whose batch and cache have any size
(`models/real/text.py`). Both models run with inputs and outputs bound to memory of the device, in
turn; a time is the median of `--rounds` runs of one session for all lengths. An error is the
largest difference of a result, over its largest element.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

import taso_mirage  # noqa: E402

Arrays = Mapping[str, Any]
NUMPY = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64}


def built(path: Path, half: bool, width: int) -> None:
    """Write the model."""
    from end_to_end_common import halved

    from models.real import text
    from models.real.text import GROUPED, Architecture

    sizes = {
        **GROUPED,
        "hidden_size": width,
        "num_attention_heads": width // 64,
        "num_key_value_heads": width // 128,
        "head_dim": 64,
        "intermediate_size": 2 * width,
        "vocab_size": 1024,
        "max_position_embeddings": 1 << 14,
    }
    text.DECODERS = {"step": Architecture("LlamaForCausalLM", "LlamaConfig", sizes, {}, {"use_cache": True})}
    model = text.decode("dynamo", name="step")
    onnx.save(halved(model) if half else model, path)


def inputs(session: Any, past: int) -> dict[str, Any]:
    """Random caches of a length for one sequence, a token, and a mask of ones."""
    rng, sizes = np.random.default_rng(past), {"batch": 1, "past": past, "total": past + 1}
    given = {}
    for each in session.get_inputs():
        shape = [sizes.get(dim, dim) for dim in each.shape]
        dtype = NUMPY[each.type]
        floats = dtype is not np.int64
        given[each.name] = rng.standard_normal(shape).astype(dtype) if floats else np.ones(shape, np.int64)
    return given


class Bound:
    """One session's run for these inputs, with results in memory of the device."""

    def __init__(self, session: Any, given: Arrays, device: str) -> None:
        self.session, self.binding = session, session.io_binding()
        for name, value in given.items():
            self.binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(value, device, 0))
        for each in session.get_outputs():
            self.binding.bind_output(each.name, device, 0)
        self.run()
        results = self.binding.get_outputs()
        for each, value in zip(session.get_outputs(), results, strict=True):
            self.binding.bind_ortvalue_output(each.name, value)

    def run(self) -> float:
        """The seconds of a run."""
        self.binding.synchronize_inputs()
        start = time.perf_counter()
        self.session.run_with_iobinding(self.binding)
        self.binding.synchronize_outputs()
        return time.perf_counter() - start

    def results(self) -> Sequence[Any]:
        return [value.numpy() for value in self.binding.get_outputs()]


def error(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    pairs = [(a.astype(np.float64), b.astype(np.float64)) for a, b in zip(found, wanted, strict=True)]
    if any(a.shape != b.shape or not np.isfinite(a).all() for a, b in pairs):
        return float("inf")
    return float(max(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30) for a, b in pairs))


def compared(files: Sequence[Path], options: argparse.Namespace) -> dict[str, Any]:
    """The errors of the second model by length, and the microseconds of both."""
    target = options.target
    device = "cuda" if target == "cuda" else "cpu"
    providers = ["CUDAExecutionProvider"] * (device == "cuda") + ["CPUExecutionProvider"]
    before = onnxruntime.InferenceSession(str(files[0]), providers=providers)
    after = taso_mirage.session(files[1], trust_kernels=True)
    found: dict[str, Any] = {"errors": {}, "us": {}}
    for past in options.right:
        given = inputs(before, past)
        results = [Bound(each, given, device).results() for each in (before, after)]
        found["errors"][past] = error(results[1], results[0])
        print(f"past {past}: error {found['errors'][past]:.2g}", flush=True)
    for past in options.past:
        given = inputs(before, past)
        sides = [Bound(each, given, device) for each in (before, after)]
        times = np.array([[side.run() for side in sides] for _ in range(options.rounds)])[options.rounds // 10 :]
        middle = [float(x) * 1e6 for x in np.median(times, axis=0)]
        found["us"][past] = dict(zip(("before", "after"), middle, strict=True))
        print(f"past {past}: {middle[0]:.1f} us, {middle[1]:.1f} us, ratio {middle[0] / middle[1]:.2f}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--build", type=Path, metavar="FILE", help="write the model")
    parser.add_argument("--half", action="store_true", help="in half precision")
    parser.add_argument("--width", type=int, default=512, help="the width of its layers, a multiple of 128")
    parser.add_argument("--target", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--past", nargs="*", type=int, default=[128, 1024], help="lengths that are timed")
    parser.add_argument("--right", nargs="*", type=int, default=[0, 1, 17, 128, 1000], help="lengths that are compared")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.build is not None:
        built(options.build, options.half, options.width)
        return
    found = compared(options.files, options)
    if options.output:
        options.output.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
