"""Quantized models and the float32 models that they come from: `python -m models.quantized FOLDER
[NAME ...]`.

ONNX Runtime's own tools quantize them, as its documentation says: statically into pairs of
QuantizeLinear and DequantizeLinear (QDQ) with entropy calibration on seeded random inputs,
dynamically into int8, and weights into 4 bits in blocks for MatMulNBits with activations in int8
(accuracy level 4).
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import onnx

import models
from models import exporter
from models.real import text, vision
from models.real.build import save

SAMPLES = 4
"""Inputs of a calibration."""
ACTIVATIONS_IN_INT8 = 4
"""The accuracy level of MatMulNBits that multiplies in integers."""

Build = Callable[[bool], onnx.ModelProto]
Quantize = Callable[[Path, Path, "Original"], None]


@dataclass(frozen=True, slots=True)
class Original:
    """A model in float32; `build(small)` makes it, `sizes` are those of its free dims."""

    build: Build
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Quantized:
    """A model that `quantize` makes of the original of that name."""

    original: str
    quantize: Quantize


def _plain(name: str, **options: Any) -> Original:
    return Original(lambda small: models.build(name, small=small, **options))


ORIGINALS: Mapping[str, Original] = {
    "mobilenet_v2": _plain("mobilenet_v2", keep_norms=False),
    "resnet50": _plain("resnet50", keep_norms=False),
    "bert": _plain("bert"),
    "minilm": Original(lambda small: text.encoder("dynamo", name="minilm", small=small), {"batch": 1, "sequence": 128}),
    "llama_decode": _plain("llama_decode"),
    "llama_prefill": _plain("llama"),
    "qwen2_decode": Original(
        lambda small: text.decode("dynamo", name="qwen2", small=small), {"batch": 1, "past": 128, "total": 129}
    ),
    "qwen2_prefill": Original(
        lambda small: text.prefill("dynamo", name="qwen2", small=small), {"batch": 1, "sequence": 128}
    ),
    "whisper_decoder": Original(lambda small: vision.whisper_decoder("dynamo", small=small), {"past": 64}),
}
LANGUAGE = tuple(f"{form}_{kind}" for form in ("llama", "qwen2") for kind in ("decode", "prefill"))
BLOCKS = (32, 128)


def qdq(source: Path, target: Path, original: Original, *, per_channel: bool = False) -> None:
    """Statically: scales by entropy, on seeded random inputs."""
    quantization = exporter.require("onnxruntime.quantization")
    shape_inference = exporter.require("onnxruntime.quantization.shape_inference")
    samples = _samples(onnx.load(source), original.sizes)

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def get_next(self) -> Any:
            return next(samples, None)

    with tempfile.TemporaryDirectory() as place:
        prepared = Path(place) / "prepared.onnx"
        shape_inference.quant_pre_process(source, prepared, skip_symbolic_shape=True)
        quantization.quantize_static(
            prepared,
            target,
            Reader(),
            per_channel=per_channel,
            calibrate_method=quantization.CalibrationMethod.Entropy,
        )


def dynamic_int8(source: Path, target: Path, original: Original) -> None:
    """Dynamically: weights in int8, activations by their range at every run."""
    exporter.require("onnxruntime.quantization").quantize_dynamic(source, target)


def int4(source: Path, target: Path, original: Original, *, block: int) -> None:
    """Weights of products in 4 bits, in blocks of one scale."""
    quantizer = exporter.require("onnxruntime.quantization.matmul_nbits_quantizer").MatMulNBitsQuantizer(
        onnx.load(source), block_size=block, is_symmetric=True, accuracy_level=ACTIVATIONS_IN_INT8
    )
    quantizer.process()
    save(quantizer.model.model, target)


QUANTIZED: Mapping[str, Quantized] = {
    **{f"{name}_qdq": Quantized(name, partial(qdq, per_channel=True)) for name in ("mobilenet_v2", "resnet50")},
    "bert_qdq": Quantized("bert", qdq),
    **{f"{name}_int8": Quantized(name, dynamic_int8) for name in ("bert", "minilm", "whisper_decoder")},
    **{f"{name}_int4_{block}": Quantized(name, partial(int4, block=block)) for name in LANGUAGE for block in BLOCKS},
}


def put(name: str, folder: Path, *, small: bool = False) -> tuple[Path, Path]:
    """The files of a quantized model and of its original in a folder; existing files are kept."""
    wanted = QUANTIZED[name]
    original = ORIGINALS[wanted.original]
    source, target = folder / f"{wanted.original}.onnx", folder / f"{name}.onnx"
    folder.mkdir(parents=True, exist_ok=True)
    if not source.exists():
        save(original.build(small), source)
    if not target.exists():
        part = target.with_suffix(".part")
        with _quiet():
            wanted.quantize(source, part, original)
        part.replace(target)
    return target, source


def _samples(model: onnx.ModelProto, sizes: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    return (models.inputs(model, seed, sizes) for seed in range(SAMPLES))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The tools log their actions, and set the levels of logging when they are imported."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with exporter.quiet():
            yield
    finally:
        logging.disable(before)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; the result is the exit status."""
    parser = argparse.ArgumentParser(prog="python -m models.quantized", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the models go")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"these only, of {', '.join(QUANTIZED)}")
    parser.add_argument("--small", action="store_true", help="small forms, which take seconds")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.names) - set(QUANTIZED)):
        print(f"error: no model is named {', '.join(unknown)}; the names are {', '.join(QUANTIZED)}", file=sys.stderr)
        return 2
    for name in options.names or QUANTIZED:
        target, source = put(name, options.folder, small=options.small)
        print(f"{target}: {size(target) / 1e6:.1f} MB, {size(source) / 1e6:.1f} in float32", flush=True)
    return 0


def size(file: Path) -> int:
    """Bytes of a model with its external data."""
    data = file.with_suffix(".onnx.data")
    return file.stat().st_size + (data.stat().st_size if data.exists() else 0)


if __name__ == "__main__":
    sys.exit(main())
