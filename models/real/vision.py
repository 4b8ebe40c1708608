"""Image and sound models of the `transformers` library and timm, small or at their real size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx

from models import exporter
from models.real.torch_export import Subject, exported, to_onnx

BATCH = {0: "batch"}
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
TEXT = {**SIZES, "vocab_size": 256, "max_position_embeddings": 32}

# model, configuration, small sizes, side of the small and of the real image, inputs
Row = tuple[str, str, Mapping[str, Any], int, int, str]
IMAGES: Mapping[str, Row] = {
    "dinov2": (
        "Dinov2Model",
        "Dinov2Config",
        {"image_size": 32, "patch_size": 8, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
        32,
        224,
        "last_hidden_state",
    ),
    "segformer": (
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        {
            "depths": [1, 1, 1, 1],
            "hidden_sizes": [16, 32, 48, 64],
            "num_attention_heads": [1, 2, 3, 4],
            "decoder_hidden_size": 32,
            "num_labels": 8,
        },
        64,
        512,
        "logits",
    ),
    "swin": (
        "SwinModel",
        "SwinConfig",
        {"image_size": 64, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
        64,
        224,
        "last_hidden_state",
    ),
    "convnext": (
        "ConvNextModel",
        "ConvNextConfig",
        {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1]},
        64,
        224,
        "last_hidden_state",
    ),
    "sam_encoder": (
        "SamVisionModel",
        "SamVisionConfig",
        {
            **{key: value for key, value in SIZES.items() if key != "intermediate_size"},
            "output_channels": 32,
            "image_size": 64,
            "patch_size": 8,
            "window_size": 3,
            "global_attn_indexes": [1],
            "mlp_dim": 256,
        },
        64,
        1024,
        "last_hidden_state",
    ),
}
EAGER = ("swin",)
"""With their fused attention the dynamo exporter refuses a dynamic batch."""
TIMM: Mapping[str, tuple[str, int, int]] = {
    "efficientnet": ("efficientnet_b0", 64, 224),
    "mobilenetv3": ("mobilenetv3_small_100", 64, 224),
    "resnext": ("resnext50_32x4d", 64, 224),
    "nasnet_large": ("nasnetalarge", 331, 331),
}


def images(which: str, *, name: str, small: bool = True) -> onnx.ModelProto:
    """Images of a fixed size and a dynamic batch to features or logits."""
    transformers, torch = exporter.require("transformers"), exporter.require("torch")
    model, config, sizes, little, large, read = IMAGES[name]
    side = little if small else large
    eager = {"attn_implementation": "eager"} if name in EAGER else {}
    module = getattr(transformers, model)(getattr(transformers, config)(**(sizes if small else {}), **eager)).eval()
    arguments = {"pixel_values": torch.zeros(2, 3, side, side)}
    return to_onnx(Subject(module, arguments, _reading(read), (read,), {"pixel_values": BATCH}), which)


def convolutional(which: str, *, name: str, small: bool = True) -> onnx.ModelProto:
    """A network of timm, its batch normalizations settled on random images."""
    torch, timm = exporter.require("torch"), exporter.require("timm")
    network, little, large = TIMM[name]
    side = little if small else large
    module = timm.create_model(network, pretrained=False)
    exporter.randomize(module, 0)
    exporter.settle_norms(module, (8, 3, side, side), 0)
    arguments = {"image": torch.zeros(2, 3, side, side)}
    return exported(Subject(module, arguments, lambda m, image: m(image), ("logits",), {"image": BATCH}), which)


def clip(which: str, *, small: bool = True) -> onnx.ModelProto:
    """The two towers of CLIP: an image and texts to their similarities."""
    transformers, torch = exporter.require("transformers"), exporter.require("torch")
    sizes = {
        "text_config": {**TEXT, "projection_dim": 32},
        "vision_config": {**SIZES, "image_size": 32, "patch_size": 8},
        "projection_dim": 32,
    }
    config = transformers.CLIPConfig(**(sizes if small else {}))
    side, length = config.vision_config.image_size, config.text_config.max_position_embeddings
    arguments = {
        "input_ids": torch.ones(3, length, dtype=torch.int64),
        "attention_mask": torch.ones(3, length, dtype=torch.int64),
        "pixel_values": torch.zeros(2, 3, side, side),
    }
    free = {"input_ids": {0: "texts"}, "attention_mask": {0: "texts"}, "pixel_values": {0: "images"}}
    read = _reading("logits_per_image")
    return to_onnx(Subject(transformers.CLIPModel(config), arguments, read, ("logits_per_image",), free), which)


def rtdetr(which: str, *, small: bool = True) -> onnx.ModelProto:
    """RT-DETR with a ResNet: a hybrid encoder and a decoder with deformable attention."""
    transformers, torch = exporter.require("transformers"), exporter.require("torch")
    backbone = transformers.RTDetrResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 32, 48, 64],
        depths=[1, 1, 1, 1],
        out_features=["stage2", "stage3", "stage4"],
    )
    sizes = {
        "backbone_config": backbone,
        "encoder_hidden_dim": 32,
        "encoder_in_channels": [32, 48, 64],
        "encoder_ffn_dim": 64,
        "encoder_attention_heads": 4,
        "d_model": 32,
        "decoder_in_channels": [32, 32, 32],
        "decoder_layers": 2,
        "decoder_attention_heads": 4,
        "decoder_ffn_dim": 64,
        "num_queries": 20,
        "num_labels": 8,
    }
    module = transformers.RTDetrForObjectDetection(transformers.RTDetrConfig(**(sizes if small else {}))).eval()
    side = 64 if small else 640
    names = ("logits", "pred_boxes")
    arguments = {"pixel_values": torch.zeros(1, 3, side, side)}
    return to_onnx(Subject(module, arguments, _reading(*names), names), which)


def wav2vec2(which: str, *, small: bool = True) -> onnx.ModelProto:
    """Sound of dynamic length to hidden states."""
    transformers, torch = exporter.require("transformers"), exporter.require("torch")
    sizes = {
        **SIZES,
        "conv_dim": (32, 32, 32),
        "conv_stride": (5, 4, 4),
        "conv_kernel": (10, 5, 4),
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 4,
        "vocab_size": 32,
    }
    module = transformers.Wav2Vec2Model(transformers.Wav2Vec2Config(**(sizes if small else {}))).eval()
    arguments = {"input_values": torch.zeros(2, 1600 if small else 16000)}
    read = "last_hidden_state"
    free = {"input_values": {0: "batch", 1: "samples"}}
    return to_onnx(Subject(module, arguments, _reading(read), (read,), free), which)


def whisper_encoder(which: str, *, small: bool = True) -> onnx.ModelProto:
    """A spectrogram of the length that the positions fix to hidden states."""
    torch = exporter.require("torch")
    module, config = _whisper(small)
    arguments = {"input_features": torch.zeros(2, config.num_mel_bins, 2 * config.max_source_positions)}
    read = "last_hidden_state"
    return to_onnx(Subject(module.encoder, arguments, _reading(read), (read,), {"input_features": BATCH}), which)


def whisper_decoder(which: str, *, small: bool = True) -> onnx.ModelProto:
    """One token after a cache of dynamic length, with the keys and values of the encoder's
    states."""
    torch, transformers = exporter.require("torch"), exporter.require("transformers")
    module, config = _whisper(small)
    heads, layers = config.decoder_attention_heads, range(config.decoder_layers)
    size = config.d_model // heads
    kinds = [f"{kind}_{i}" for i in layers for kind in ("key", "value")]
    own = {f"past_{name}": torch.zeros(2, heads, 8, size) for name in kinds}
    cross = {f"cross_{name}": torch.zeros(2, heads, config.max_source_positions, size) for name in kinds}

    def call(module: Any, input_ids: Any, **caches: Any) -> Any:
        past, other = ([v for k, v in caches.items() if k.startswith(start)] for start in ("past", "cross"))
        held, encoded = (transformers.DynamicCache(list(zip(c[::2], c[1::2], strict=True))) for c in (past, other))
        hidden = module(
            input_ids=input_ids,
            encoder_hidden_states=torch.zeros(2, config.max_source_positions, config.d_model),
            past_key_values=transformers.EncoderDecoderCache(held, encoded),
            use_cache=True,
        ).last_hidden_state
        return hidden, *(t for layer in held.layers for t in (layer.keys, layer.values))

    arguments = {"input_ids": torch.ones(2, 1, dtype=torch.int64), **own, **cross}
    names = ("last_hidden_state", *(f"present_{name}" for name in kinds))
    return to_onnx(Subject(module.decoder, arguments, call, names, {key: {2: "past"} for key in own}), which)


def _whisper(small: bool) -> tuple[Any, Any]:
    transformers = exporter.require("transformers")
    sizes = {
        "vocab_size": 256,
        "num_mel_bins": 16,
        "d_model": 64,
        **{f"{part}_layers": 2 for part in ("encoder", "decoder")},
        **{f"{part}_attention_heads": 4 for part in ("encoder", "decoder")},
        **{f"{part}_ffn_dim": 256 for part in ("encoder", "decoder")},
        "max_source_positions": 50,
        "max_target_positions": 64,
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 0),
    }
    config = transformers.WhisperConfig(**(sizes if small else {}))
    return transformers.WhisperModel(config).eval(), config


def _reading(*names: str) -> Callable[..., Any]:
    """A call whose result is one or more fields of the model's output."""

    def call(module: Any, **arguments: Any) -> Any:
        found = module(**arguments)
        return tuple(getattr(found, name) for name in names) if len(names) > 1 else getattr(found, names[0])

    return call
