"""Transformers of the `transformers` library with seeded random weights: BERT, Llama with grouped queries, ViT."""

from collections.abc import Mapping
from typing import Any

import onnx

from models import exporter

TOKENS = {"batch": 0, "sequence": 1}


def bert(
    *,
    small: bool = True,
    seed: int = 0,
    dynamic: bool = False,
    batch: int = 1,
    sequence: int | None = None,
    configuration: Mapping[str, Any] | None = None,
) -> onnx.ModelProto:
    """BertModel without its pooler: BERT-base at 128 tokens, or two layers of 64 at 16 tokens.

    `configuration` overrides fields of BertConfig.
    """
    transformers = exporter.require("transformers")
    sequence = sequence or (16 if small else 128)
    sizes = (
        {
            "vocab_size": 256,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 256,
            "max_position_embeddings": max(64, sequence),
        }
        if small
        else {"max_position_embeddings": max(512, sequence)}
    )
    config = transformers.BertConfig(**{**sizes, **(configuration or {})})
    module = transformers.BertModel(config, add_pooling_layer=False)
    exporter.randomize(module, seed)
    return _language_model(module, "last_hidden_state", batch, sequence, dynamic)


def llama(
    *,
    small: bool = True,
    seed: int = 0,
    dynamic: bool = False,
    batch: int = 1,
    sequence: int | None = None,
    configuration: Mapping[str, Any] | None = None,
) -> onnx.ModelProto:
    """LlamaForCausalLM without a cache, four queries a key: 8 layers of 1024 at 128 tokens, or two of 64 at 16.

    `configuration` overrides fields of LlamaConfig.
    """
    transformers = exporter.require("transformers")
    sequence = sequence or (16 if small else 128)
    sizes = {
        "vocab_size": 256 if small else 32000,
        "hidden_size": 64 if small else 1024,
        "num_hidden_layers": 2 if small else 8,
        "num_attention_heads": 8 if small else 16,
        "num_key_value_heads": 2 if small else 4,
        "intermediate_size": 176 if small else 2816,
        "max_position_embeddings": max(2048, sequence),
        "use_cache": False,
    }
    module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**sizes, **(configuration or {})}))
    exporter.randomize(module, seed)
    return _language_model(module, "logits", batch, sequence, dynamic)


def vit(
    *, small: bool = True, seed: int = 0, batch: int = 1, configuration: Mapping[str, Any] | None = None
) -> onnx.ModelProto:
    """ViTModel without its pooler: ViT-base on images of 224, or two layers of 64 on images of 32.

    `configuration` overrides fields of ViTConfig.
    """
    torch = exporter.require("torch")
    transformers = exporter.require("transformers")
    sizes = (
        {
            "image_size": 32,
            "patch_size": 8,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 256,
        }
        if small
        else {}
    )
    config = transformers.ViTConfig(**{**sizes, **(configuration or {})})
    module = transformers.ViTModel(config, add_pooling_layer=False)
    exporter.randomize(module, seed)
    image = torch.zeros(batch, config.num_channels, config.image_size, config.image_size)
    return exporter.export(module, {"pixel_values": image}, "last_hidden_state")


def mini_transformer(*, small: bool = True, seed: int = 0) -> onnx.ModelProto:
    """The encoder kept in this repository: seven BERT layers of 64 at 16 tokens; `small` makes no difference here."""
    del small
    sizes = {"hidden_size": 64, "num_hidden_layers": 7, "intermediate_size": 256}
    return bert(seed=seed, sequence=16, configuration=sizes)


def _language_model(module: Any, output: str, batch: int, sequence: int, dynamic: bool) -> onnx.ModelProto:
    torch = exporter.require("torch")
    # The exporter takes a size of one for a constant.
    shape = (max(batch, 2), sequence) if dynamic else (batch, sequence)
    ids = {name: torch.ones(shape, dtype=torch.int64) for name in ("input_ids", "attention_mask")}
    axes = {position: name for name, position in TOKENS.items()}
    return exporter.export(module, ids, output, dynamic=dict.fromkeys(ids, axes) if dynamic else None)
