"""Models of transformers, torchvision, timm and diffusers from PyTorch: eager, torch.compile with
Inductor, and with this package's backend (extra `torch`, with transformers, torchvision, timm,
diffusers, and a C++ compiler for Inductor).

    python bench/torch_models.py [NAME ...] [--device cuda] [--seconds 5] [--budget 10] [--compile]

Prints a line and writes bench/results/torch-DEVICE.json after each row (microseconds; rows of
models that are not named stay). Small configurations with random weights. All run in turn in one
process: on a CPU after a pause in which the others' threads fall asleep, on a GPU from idle to
idle, with Inductor's CUDA graphs as one peer more. Medians, and ratios round by round. Each result
is compared with eager, also at the other sizes, which come after the first; `compiling` has the
seconds of the first call at each. `--compile` is that alone: no other way is compiled, and nothing
is timed; such rows have files of their own. A graph that runs by Inductor, as that is faster, has a
ratio of 1 over it by construction; the code that Inductor compiled before is in its cache then, so
the seconds to compile ours have little of it.
"""

from __future__ import annotations

import argparse
import copy
import gc
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from rows import Rows  # noqa: E402

from taso_mirage import __version__  # noqa: E402
from taso_mirage.measure import native  # noqa: E402
from taso_mirage.measure import session as runtime  # noqa: E402
from taso_mirage.torch.backend import CapturedGraph  # noqa: E402

EAGER, INDUCTOR, OURS, GRAPHS = "eager", "inductor", "ours", "inductor graphs"
TEXT = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
TOKENS, IMAGES = ((1, 128), (2, 48)), ((1, 3, 224, 224), (2, 3, 224, 224))


def transformer(name: str, **options: Any) -> Callable[[], Any]:
    """A model of transformers by the name of its class, with options of its configuration."""

    def build() -> Any:
        import transformers

        kind = getattr(transformers, name)
        return kind(kind.config_class(**options))

    return build


def vision(package: str, name: str) -> Callable[[], Any]:
    """A model of torchvision or timm, without trained weights."""

    def build() -> Any:
        if package == "timm":
            import timm

            return timm.create_model(name, pretrained=False)
        import torchvision

        return getattr(torchvision.models, name)(weights=None)

    return build


def unet() -> Any:
    """A small denoiser with cross attention, at a fixed step and text."""
    import diffusers

    blocks = {
        "block_out_channels": (64, 128),
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
        "layers_per_block": 1,
        "norm_num_groups": 16,
    }
    return Denoiser(diffusers.UNet2DConditionModel(sample_size=32, cross_attention_dim=128, **blocks))


class Denoiser(torch.nn.Module):
    """(b,4,h,w) -> (b,4,h,w)."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("text", torch.randn(1, 16, 128))

    def forward(self, x: Any) -> Any:
        text = self.text.expand(x.shape[0], -1, -1)
        return self.net(x, 5, text, return_dict=False)[0]


@dataclass(frozen=True)
class Case:
    """A builder, and the sizes of its inputs: tokens have two, images four."""

    build: Callable[[], Any]
    sizes: Sequence[tuple[int, ...]] = TOKENS

    def inputs(self, size: tuple[int, ...]) -> tuple[Any, ...]:
        generator = torch.Generator().manual_seed(len(size) + sum(size))
        if len(size) == 2:
            return (torch.randint(0, 1000, size, generator=generator),)
        return (torch.randn(size, generator=generator),)

    def on(self, device: str) -> list[tuple[Any, ...]]:
        """The inputs of all sizes there."""
        return [tuple(each.to(device) for each in self.inputs(size)) for size in self.sizes]


CASES = {
    "bert": Case(transformer("BertModel", **TEXT)),
    "distilbert": Case(transformer("DistilBertModel", dim=256, n_layers=4, n_heads=4, hidden_dim=1024)),
    "gpt2": Case(transformer("GPT2Model", n_embd=256, n_layer=4, n_head=4)),
    "llama": Case(transformer("LlamaModel", **TEXT, num_key_value_heads=2, vocab_size=4000)),
    "t5 encoder": Case(transformer("T5EncoderModel", d_model=256, num_layers=4, num_heads=4, d_kv=64, d_ff=1024)),
    "vit": Case(transformer("ViTModel", **TEXT), IMAGES),
    "resnet18": Case(vision("torchvision", "resnet18"), IMAGES),
    "mobilenet_v3_small": Case(vision("torchvision", "mobilenet_v3_small"), IMAGES),
    "gpt2 small": Case(transformer("GPT2Model"), ((1, 64), (1, 96), (1, 200))),
    "swin tiny": Case(transformer("SwinModel"), IMAGES[:1]),
    "unet": Case(unet, ((1, 4, 32, 32), (2, 4, 32, 32))),
    "convnext_atto": Case(vision("timm", "convnext_atto"), IMAGES),
    "efficientnet_lite0": Case(vision("timm", "efficientnet_lite0"), IMAGES),
}


@dataclass
class Backend:
    """The package's backend, which keeps the graphs that it was given."""

    budget: float
    graphs: list[CapturedGraph] = field(default_factory=list)

    def __call__(self, captured: Any, example: Any) -> CapturedGraph:
        self.graphs.append(CapturedGraph(captured, {"budget": self.budget}))
        return self.graphs[-1]


def tensors(found: Any) -> list[Any]:
    """The tensors of a result, however they are packed."""
    if isinstance(found, torch.Tensor):
        return [found]
    if hasattr(found, "to_tuple"):
        found = found.to_tuple()
    return [each for part in found for each in tensors(part)] if isinstance(found, tuple | list) else []


def difference(found: Any, wanted: Any) -> float:
    """The largest difference of two results, as a share of the largest number."""
    pairs = list(zip(tensors(found), tensors(wanted), strict=True))
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def timed(call: Callable[..., Any], inputs: tuple[Any, ...], device: str) -> Callable[[], float]:
    def run() -> float:
        start = time.perf_counter()
        call(*inputs)
        return time.perf_counter() - start

    def until_idle() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        call(*inputs)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    return run if device == "cpu" else until_idle


def interleaved(runs: Sequence[Callable[[], float]], seconds: float, pause: float, least: int = 15) -> np.ndarray:
    """A row of times for every round, in turn forwards and backwards, with seconds of pause
    before each."""
    rounds: list[list[float]] = []
    began = time.perf_counter()
    while len(rounds) < least or time.perf_counter() < began + seconds:
        found = [0.0] * len(runs)
        for i in range(len(runs)) if len(rounds) % 2 else reversed(range(len(runs))):
            time.sleep(pause)
            found[i] = native.turn(runs[i])
        rounds.append(found)
    return np.array(rounds)


def row(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """A model: compiled both ways, compared at all sizes, and timed at the first."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    backend = Backend(options.budget)
    model = CASES[name].build().eval().to(options.device)
    if options.compile:
        return compiled(name, model, backend, options)
    calls = {
        EAGER: model,
        INDUCTOR: torch.compile(copy.deepcopy(model)),
        OURS: torch.compile(copy.deepcopy(model), backend=backend),
    }
    if options.device == "cuda":
        calls[GRAPHS] = torch.compile(copy.deepcopy(model), mode="reduce-overhead")
    with torch.inference_mode():
        return measured(name, calls, backend, options)


def compiled(name: str, model: Any, backend: Backend, options: argparse.Namespace) -> dict[str, Any]:
    """A model compiled by ours alone, at all sizes."""
    ours = torch.compile(copy.deepcopy(model), backend=backend)
    with torch.inference_mode():
        seconds, differences = at_sizes(ours, model, CASES[name].on(options.device))
    ways = [way.by for graph in backend.graphs for way in graph.ways]
    return {
        "case": name,
        "compiling": seconds,
        "ways": ways,
        "sizes": [list(size) for size in CASES[name].sizes],
        "differences": differences,
        "load": round(os.getloadavg()[0], 2),
    }


def at_sizes(
    ours: Callable[..., Any], eager: Callable[..., Any], given: Sequence[tuple[Any, ...]]
) -> tuple[list[float], list[float]]:
    """Seconds of the first call at each of these inputs, and its differences from eager's."""
    seconds, differences = [], []
    for inputs in given:
        start = time.perf_counter()
        found = ours(*inputs)
        seconds.append(round(time.perf_counter() - start, 1))
        differences.append(float(f"{difference(found, eager(*inputs)):.2g}"))
    return seconds, differences


def measured(
    name: str, calls: dict[str, Callable[..., Any]], backend: Backend, options: argparse.Namespace
) -> dict[str, Any]:
    case = CASES[name]
    inputs, *others = case.on(options.device)
    took: dict[str, float] = {}
    for whose, call in calls.items():
        start = time.perf_counter()
        call(*inputs)
        took[whose] = round(time.perf_counter() - start, 1)
    pause = native.SPINNING if options.device == "cpu" else 0.0
    times = interleaved([timed(call, inputs, options.device) for call in calls.values()], options.seconds, pause)
    ways = [way.by for graph in backend.graphs for way in graph.ways]
    seconds, differences = at_sizes(calls[OURS], calls[EAGER], (inputs, *others))
    median = dict(zip(calls, map(float, np.median(times, axis=0) * 1e6), strict=True))
    return {
        "case": name,
        "ours": round(median[OURS], 1),
        "baselines": {k: round(v, 1) for k, v in median.items() if k != OURS},
        "ratio": _ratio(times[:, 0] / times[:, 2]),
        "ratio_inductor": _ratio(times[:, 1] / times[:, 2]),
        **({"ratio_graphs": _ratio(times[:, 3] / times[:, 2])} if GRAPHS in calls else {}),
        "runs": len(times),
        "seconds": took,
        "compiling": [took[OURS], *seconds[1:]],
        "graphs": len(ways),
        "eager_graphs": ways.count("eager"),
        "inductor_graphs": ways.count("inductor"),
        "composed_graphs": ways.count("composed"),
        "sizes": [list(size) for size in case.sizes],
        "differences": differences,
        "load": round(os.getloadavg()[0], 2),
    }


def version(package: str) -> str:
    """The version of a package; "none" where it is missing, which only its models need."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def _ratio(rounds: np.ndarray) -> list[float]:
    """The median, and the quartiles."""
    return [round(float(np.percentile(rounds, p)), 4) for p in (50, 25, 75)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--seconds", type=float, default=5.0, help="timing of each model")
    parser.add_argument("--budget", type=float, default=10.0, help="search of each graph")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--compile", action="store_true", help="seconds to compile, by ours alone")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_intermixed_args()
    if unknown := set(options.names) - set(CASES):
        parser.error(f"no model is named {min(unknown)!r}; the names are {', '.join(CASES)}")
    versions = {
        name: version(name) for name in ("torch", "transformers", "torchvision", "timm", "diffusers", "onnxscript")
    }
    versions = {"taso-mirage": __version__, "onnxruntime": runtime.child_version(), **versions}
    device = torch.cuda.get_device_name() if options.device == "cuda" else runtime.device()
    head = {"bench": "torch", "device": device, "threads": torch.get_num_threads(), "versions": versions}
    short = "cpu2" if options.device == "cpu" else device.split()[1]
    rows = Rows(
        options.output or ROOT / "bench" / "results" / f"torch-{'compile-' * options.compile}{short}.json",
        {**head, "unit": "s" if options.compile else "us", "budget": options.budget},
    )
    for name in options.names:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            found = row(name, options)
        rows.keep(found)
        print(found, flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
