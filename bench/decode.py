"""Generation of tokens: a decoder's step with caches of a fixed length (`decoders.Room`), as
PyTorch exports it, optimized by the defaults in a fresh process, beside ONNX Runtime and
torch.compile, and beside the seconds in which the weights are read once.

    python bench/decode.py [--device cuda] [--only NAME ...] [--past 1024] [--tokens 128]
        [--budget 60] [--effort thorough] [--models DIR] [--small]
        [--pasts 1 64 1024 ...] [--soak 10000]

After a prompt of `--past` random tokens, each runtime generates so many tokens for each sequence of
the batch: caches stay on the device and are written in place, and the next tokens, which the step
finds as the largest logits, go to the host and back. Then each runtime gets the tokens that the
module in single precision generates, and its logits are compared with those: the mean
Kullback-Leibler divergence, the mean negative log-likelihood of these tokens, and the number of
tokens that are the same. On a GPU it also lists the kernels of a step of each ONNX model
(`step_timeline.py`). With `--pasts` a step is also measured at these positions, with `--soak` our
model also runs so many steps, then in several sessions and threads at once (`decode_runs.py`).
Writes bench/results/decode-DEVICE.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import numpy as np
import onnxruntime

sys.path.insert(0, str(Path(__file__).parent))

import decode_runs
import end_to_end_common as common
import minute
import step_timeline
from decode_runs import Tokens
from end_to_end_common import ALONE, ROOT
from rows import Rows

import taso_mirage
from taso_mirage.measure import native
from taso_mirage.measure import session as runtime
from taso_mirage.measure.target import target as named

NAMES = ("llama_decode", "qwen2_decode", "int4_decode", "moe_decode", "llama_decode_b8", "lora_decode")
COPIED = 1 << 30
"""The bytes that are copied for the bandwidth of the device."""
LONG = 1200.0
"""Seconds in which a model is opened by all and generates."""


class Step(Protocol):
    """A runtime's step for the tokens of all sequences at a position. Logits are of shape
    (batch, vocabulary)."""

    def __call__(self, tokens: Tokens, position: int) -> Tokens: ...

    def logits(self, tokens: Tokens, position: int) -> np.ndarray[Any, Any]: ...


class Bound:
    """A session's steps: caches in memory of the device, which each run writes in place."""

    def __init__(self, session: Any, device: str, caches: Mapping[str, Any]) -> None:
        self.session, self.binding = session, session.io_binding()
        # On a CPU a value has the array's own memory, which each step would write.
        kept = {k: onnxruntime.OrtValue.ortvalue_from_numpy(v.copy(), device, 0) for k, v in caches.items()}
        batch = len(next(iter(caches.values())))
        self.given = {
            name: onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.int64), device, 0)
            for name, shape in (("input_ids", (batch, 1)), ("position", (1,)))
        }
        for name, value in {**self.given, **kept}.items():
            self.binding.bind_ortvalue_input(name, value)
        following, logits, *written = session.get_outputs()
        dtype = np.float16 if "float16" in logits.type else np.float32
        self.following = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(following.shape, np.int64), device, 0)
        self.scores = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(logits.shape, dtype), device, 0)
        values = self.following, self.scores, *kept.values()
        for each, value in zip((following, logits, *written), values, strict=True):
            self.binding.bind_ortvalue_output(each.name, value)

    def __call__(self, tokens: Tokens, position: int) -> Tokens:
        self.given["input_ids"].update_inplace(tokens[:, None])
        self.given["position"].update_inplace(np.array([position]))
        self.binding.synchronize_inputs()
        self.run()
        found: Tokens = self.following.numpy().reshape(-1)
        return found

    def logits(self, tokens: Tokens, position: int) -> np.ndarray[Any, Any]:
        self(tokens, position)
        found: np.ndarray[Any, Any] = self.scores.numpy().reshape(len(tokens), -1)
        return found

    def run(self) -> None:
        """The step again, with the inputs and caches that are there."""
        self.session.run_with_iobinding(self.binding)
        self.binding.synchronize_outputs()


class Module:
    """A torch module's steps, compiled with a mode or eager; it writes its caches in place."""

    def __init__(self, module: Any, caches: Mapping[str, Any], mode: str | None) -> None:
        import torch

        self.torch, self.device = torch, next(module.parameters()).device
        self.caches = {k: v.clone() for k, v in caches.items()}
        for each in self.caches.values():
            torch._dynamo.mark_static_address(each)
        batch = len(next(iter(caches.values())))
        self.given = torch.zeros(batch, 1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
        self.given = tuple(each.to(self.device) for each in self.given)

        def step(token: Any, position: Any) -> Any:
            return module.step(token, position, self.caches, torch.Tensor.index_copy_)[1:]

        self.call = step if mode is None else torch.compile(step, mode=mode)

    def __call__(self, tokens: Tokens, position: int) -> Tokens:
        found: Tokens = self.run(tokens, position)[1].reshape(-1).cpu().numpy()
        return found

    def logits(self, tokens: Tokens, position: int) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = self.run(tokens, position)[0].reshape(len(tokens), -1).cpu().numpy()
        return found

    def run(self, tokens: Tokens, position: int) -> Any:
        with self.torch.inference_mode():
            self.given[0].copy_(self.torch.from_numpy(tokens)[:, None])
            self.given[1].fill_(position)
            return self.call(*self.given)


# ---------------------------------------------------------------- generation


def generate(step: Step, first: Tokens, past: int, count: int) -> tuple[list[Tokens], float]:
    """The tokens that follow, and the median seconds of a step."""
    tokens, times = [first], []
    for i in range(count):
        start = time.perf_counter()
        tokens.append(step(tokens[-1], past + i))
        times.append(time.perf_counter() - start)
    return tokens[1:], float(np.median(times))


def logits_of(step: Step, tokens: Sequence[Tokens], past: int) -> np.ndarray[Any, Any]:
    """The logits after each of these tokens: a row for each step and sequence."""
    return np.concatenate([step.logits(each, past + i).astype(np.float64) for i, each in enumerate(tokens)])


def quality(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> dict[str, float]:
    """How far logits are from those of the reference, whose largest ones are the right tokens."""
    ours, theirs = log_softmax(found), log_softmax(wanted)
    right, rows = wanted.argmax(1), np.arange(len(wanted))
    return {
        "divergence": float((np.exp(theirs) * (theirs - ours)).sum(1).mean()),
        "likelihood": float(-ours[rows, right].mean()),
        "reference likelihood": float(-theirs[rows, right].mean()),
        "same": int((found.argmax(1) == right).sum()),
    }


def log_softmax(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    shifted: np.ndarray[Any, Any] = x - x.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def bandwidth(device: str) -> float:
    """Bytes a second that a copy reads and writes."""
    import torch

    source = torch.zeros(COPIED // 4, device=device)
    target, best = torch.empty_like(source), float("inf")
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    for _ in range(5):
        wait()
        start = time.perf_counter()
        target.copy_(source)
        wait()
        best = min(best, time.perf_counter() - start)
    return 2 * COPIED / best


def generated(name: str, options: argparse.Namespace) -> None:
    """Let all runtimes generate, and print their times and what their logits are worth as JSON."""
    import decoders
    import minute_models
    import torch

    found: dict[str, Any] = {"absent": {}, "us": {}, "quality": {}, "timeline": {}, "pasts": {}}
    module, inputs = minute_models.FORMS[name](options.device, options.small)
    batch, _, length, _ = inputs["past_key_0"].shape
    past = min(options.past, length - options.tokens - 1)
    empty = {k: v for k, v in inputs.items() if k.startswith("past")}
    prompt = np.random.default_rng(0).integers(0, module.module.config.vocab_size, (batch, past + 1))
    before, first = torch.from_numpy(prompt[:, :past]), prompt[:, past].copy()
    with torch.inference_mode():
        caches = prefilled(module, before, empty)
        single = minute_models.FORMS[name](options.device, options.small)[0].float()
        filled = prefilled(single, before, {k: v.float() for k, v in empty.items()})
        reference = Module(single, filled, None)
        tokens, _ = generate(reference, first, past, options.tokens)
        tokens = [first, *tokens[:-1]]
        wanted = logits_of(reference, tokens, past)
        del single, reference, filled
    arrays = {k: v.cpu().numpy() for k, v in caches.items()}
    for key, opened in runtimes(name, options, module, caches, arrays).items():
        try:
            step = opened()
            found["quality"][key] = quality(logits_of(step, tokens, past), wanted)
            found["us"][key] = round(1e6 * min(generate(step, first, past, options.tokens)[1] for _ in "123"), 1)
            if options.pasts:
                found["pasts"][key] = decode_runs.at_positions(step, first, options.pasts, length)
            if options.device == "cuda" and isinstance(step, Bound):
                found["timeline"][key] = step_timeline.timeline(step.run)
        except Exception as error:  # a peer that fails has no figure
            found["absent"][key] = f"{type(error).__name__}: {native.first_line(error)}"
        step = None  # two runtimes at once need the memory of both
    if options.soak:
        found["soak"] = soaked(name, options, arrays, first, past, length)
    found["bytes"] = decoders.bytes_of_a_step(module, batch, past, minute_models.FORMS[name].bits)
    found["floor_us"] = round(1e6 * found["bytes"] / bandwidth(options.device), 1)
    print(json.dumps({**found, "batch": batch, "past": past, "tokens": options.tokens}))


def soaked(
    name: str, options: argparse.Namespace, arrays: Mapping[str, Any], first: Tokens, past: int, length: int
) -> dict[str, Any]:
    """The findings of a soak of our model, or the error that ended it. Sessions capture no CUDA
    graph, which would have the addresses of one thread's caches."""
    path = minute.result_path(options.models, name, options.budget)

    class Ours:
        def session(self) -> Any:
            return taso_mirage.session(path, trust_kernels=True)

        def step(self, session: Any) -> Step:
            return Bound(session, options.device, arrays)

    try:
        return decode_runs.soak(Ours(), first, past, length, options.soak, options.device)
    except Exception as error:  # the row is kept
        return {"failed": f"{type(error).__name__}: {native.first_line(error)}"}


def prefilled(module: Any, prompt: Any, empty: Mapping[str, Any]) -> dict[str, Any]:
    """The caches after a prompt: (batch, past) tokens."""
    kept, device = {k: v.clone() for k, v in empty.items()}, next(iter(empty.values())).device
    import decoders
    import torch

    place = torch.arange(prompt.shape[1], device=device)
    decoders.gather_experts(module.module, False)
    found = module.module(input_ids=prompt.to(device), use_cache=True).past_key_values
    decoders.gather_experts(module.module, True)
    pairs = [each for layer in found.layers for each in (layer.keys, layer.values)]
    for cache, new in zip(kept.values(), pairs, strict=True):
        cache.index_copy_(2, place, new)
    return kept


def runtimes(
    name: str, options: argparse.Namespace, module: Any, caches: Mapping[str, Any], arrays: Mapping[str, Any]
) -> dict[str, Callable[[], Step]]:
    """Functions that open each runtime, by its name: PyTorch where the model is not quantized."""
    from minute_models import FORMS

    source, ours = options.models / f"{name}.onnx", minute.result_path(options.models, name, options.budget)
    graph = {"enable_cuda_graph": "1"} if options.device == "cuda" else {}
    provider = "CUDAExecutionProvider" if options.device == "cuda" else "CPUExecutionProvider"

    def alone() -> Step:
        return Bound(onnxruntime.InferenceSession(source, providers=[(provider, graph)]), options.device, arrays)

    def optimized() -> Step:
        opened = taso_mirage.session(ours, trust_kernels=True, cuda_graph=bool(graph))
        return Bound(opened, options.device, arrays)

    found: dict[str, Callable[[], Step]] = {ALONE: alone}
    found |= {"ours": optimized} if ours.exists() else {}
    if FORMS[name].bits:  # torch has the weights as floats
        return found
    found["eager"] = lambda: Module(module, caches, None)
    return found | {f"torch.compile {mode}": (lambda mode=mode: Module(module, caches, mode)) for mode in options.modes}


# ---------------------------------------------------------------- rows


def row(name: str, options: argparse.Namespace, clock: minute.Clock) -> dict[str, Any]:
    if wrong := minute.built(name, options, options.models, clock):
        return {"case": name, "failed": wrong}
    found: dict[str, Any] = {"case": name}
    effort = [] if options.effort is None else ["--effort", options.effort]
    found["ours"] = minute.optimized(name, options.budget, options, options.models, clock, effort)
    asked = [str(Path(__file__).resolve()), "--generate", name, "--budget", str(options.budget)]
    asked += [*minute.common_options(options, options.models), "--modes", *options.modes]
    asked += ["--past", str(options.past), "--tokens", str(options.tokens)]
    asked += ["--soak", str(options.soak), "--pasts", *map(str, options.pasts)]
    done = minute.process(asked, clock.within(LONG), options.models)
    try:
        found |= json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        found["failed"] = f"exit code {done.returncode}: {done.stderr.strip()[-300:]}"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--past", type=int, default=1024, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=128, help="tokens that are generated")
    parser.add_argument("--pasts", type=int, nargs="*", default=[], help="positions at which a step is measured")
    parser.add_argument("--soak", type=int, default=0, metavar="STEPS", help="run so many steps of our model")
    parser.add_argument("--budget", type=float, default=60.0, help="of our command")
    parser.add_argument("--effort", help="of our command")
    parser.add_argument("--modes", nargs="*", choices=minute.MODES, default=["max-autotune"], help="of torch.compile")
    parser.add_argument("--seconds", type=float, default=float("inf"), metavar="LIMIT", help="for all")
    parser.add_argument("--models", type=Path, metavar="DIR", help="where models lie, or are put")
    parser.add_argument("--small", action="store_true", help="small forms, for a trial")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--generate", choices=NAMES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.files = None
    if options.generate:
        generated(options.generate, options)
        return
    device = runtime.device(named(options.device))
    short = "cpu2" if options.device == "cpu" else device.split()[1] if " " in device else device
    setting = common.setting("decode", device, ("torch", "transformers", "triton", "onnxscript"))
    rows = Rows(options.output or ROOT / "bench" / "results" / f"decode-{short}.json", setting)
    clock = minute.Clock(time.monotonic() + options.seconds)
    with TemporaryDirectory() as own:
        options.models = options.models or Path(own)
        options.models.mkdir(parents=True, exist_ok=True)
        for name in options.only:
            found = row(name, options, clock)
            rows.keep(found)
            print(
                f"{name}: {found.get('failed') or json.dumps({k: found[k] for k in ('us', 'floor_us', 'quality', 'absent')})}"
            )


if __name__ == "__main__":
    main()
