"""Exports with seeded random weights: a small form of each by both exporters where both can, and
the real sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from models.real.known import DIFFUSERS, ONNXSCRIPT, PYTORCH, TIMM, TRANSFORMERS, Export, Known

OPSETS = {"dynamo": 20, "torchscript": 17, "onnx": 22}
BOTH = ("dynamo", "torchscript")
RANDOM = "random weights; the architecture's code is Apache-2.0"
SIZES = {
    "batch": 2,
    "sequence": 16,
    "past": 16,
    "total": 17,
    "decoded": 8,
    "texts": 3,
    "images": 2,
    "steps": 12,
    "samples": 1600,
}

Row = tuple[str, str, Mapping[str, Any], str, tuple[str, ...]]

ROWS: tuple[Row, ...] = (
    *(
        (name, "text:encoder", {"name": name}, TRANSFORMERS, BOTH)
        for name in ("bert", "minilm", "deberta", "t5_encoder", "mamba")
    ),
    ("t5_decoder", "text:t5_decoder", {}, TRANSFORMERS, BOTH),
    *((f"{name}_prefill", "text:prefill", {"name": name}, TRANSFORMERS, BOTH) for name in ("llama", "qwen3", "moe")),
    *((f"{name}_decode", "text:decode", {"name": name}, TRANSFORMERS, BOTH) for name in ("llama", "qwen3", "moe")),
    *(
        (name, "vision:images", {"name": name}, TRANSFORMERS, BOTH)
        for name in ("dinov2", "segformer", "swin", "convnext", "sam_encoder")
    ),
    *((name, f"vision:{name}", {}, TRANSFORMERS, BOTH) for name in ("clip", "rtdetr", "wav2vec2")),
    *((name, f"vision:{name}", {}, TRANSFORMERS, BOTH) for name in ("whisper_encoder", "whisper_decoder")),
    *(
        (name, "vision:convolutional", {"name": name}, TIMM, BOTH)
        for name in ("efficientnet", "mobilenetv3", "resnext")
    ),
    *((name, f"diffusion:{name}", {}, DIFFUSERS, BOTH) for name in ("unet", "dit", "vae_decoder")),
    *((name, "recurrent:layer", {"kind": name.upper()}, "", BOTH) for name in ("lstm", "gru")),
    ("loop", "recurrent:loop", {}, "", ("torchscript",)),
)
"""Name, builder with its options, the library of the architecture, and the exporters that can."""
ONE_SIZE = ("lstm", "gru", "loop")


def _packages(library: str) -> tuple[str, ...]:
    return (PYTORCH, ONNXSCRIPT, library) if library else (PYTORCH, ONNXSCRIPT)


def _known(row: Row, exporter: str, small: bool) -> Known:
    name, builder, options, library, _ = row
    kind = "" if exporter == "dynamo" else f"_{exporter}"
    size = {} if row[0] in ONE_SIZE else {"small": small}
    source = Export(builder, exporter, {**options, **size}, _packages(library))
    title = f"{name}{kind}" if small else f"{name}_real"
    return Known(title, source, OPSETS[exporter], RANDOM, sizes=SIZES, small=small)


def _all() -> Iterator[Known]:
    for row in ROWS:
        yield from (_known(row, exporter, small=True) for exporter in row[4])
        if row[0] not in ONE_SIZE:
            yield _known(row, "dynamo", small=False)
    nasnet = Export("vision:convolutional", "dynamo", {"name": "nasnet_large", "small": False}, _packages(TIMM))
    yield Known("nasnet_large", nasnet, OPSETS["dynamo"], RANDOM, sizes=SIZES, small=False)
    wide = Export("recurrent:wide", "onnx", {}, ())
    yield Known(
        "wide", wide, OPSETS["onnx"], RANDOM, sizes=SIZES, small=False, note="2.1 GB of weights in a second file"
    )


EXPORTED: tuple[Known, ...] = tuple(_all())
