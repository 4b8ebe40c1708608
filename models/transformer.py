"""Transformers of the `transformers` library with seeded random weights: BERT, Llama with grouped
queries and with adapters, ViT."""

from collections.abc import Mapping
from typing import Any

import onnx

from models import exporter

TOKENS = {"batch": 0, "sequence": 1}
RANK, SCALE = 16, 0.25
"""Parameters of the LoRA adapters (Hu et al., 2021): their inner size, and alpha / rank; small, so
that attention stays as wide as without them."""


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
    """LlamaForCausalLM without a cache, four queries a key: 8 layers of 1024 at 128 tokens, or two
    of 64 at 16.

    `configuration` overrides fields of LlamaConfig.
    """
    transformers = exporter.require("transformers")
    sequence = sequence or (16 if small else 128)
    config = _llama_config(small, sequence, {"use_cache": False, **(configuration or {})})
    module = transformers.LlamaForCausalLM(config)
    exporter.randomize(module, seed)
    return _language_model(module, "logits", batch, sequence, dynamic)


def llama_decode(
    *,
    small: bool = True,
    seed: int = 0,
    batch: int = 1,
    past: int | None = None,
    configuration: Mapping[str, Any] | None = None,
) -> onnx.ModelProto:
    """One token of the `llama` model after `past` cached positions: 128, or 16.

    Inputs are `input_ids` (batch, 1), `attention_mask` (batch, past + 1), and for each layer i
    `past_key_i` and `past_value_i` (batch, key heads, past, head size); outputs are `logits` and
    each layer's `present_key_i` and `present_value_i`, one position longer. `configuration`
    overrides fields of LlamaConfig.
    """
    past = past or (16 if small else 128)
    model = _cached_llama(small, past, configuration)
    exporter.randomize(model, seed)
    return _one_token(model, batch, past)


def llama_lora(
    *,
    small: bool = True,
    seed: int = 0,
    batch: int = 1,
    past: int | None = None,
    rank: int = RANK,
    configuration: Mapping[str, Any] | None = None,
) -> onnx.ModelProto:
    """`llama_decode` with a LoRA adapter at every linear map of its layers, kept apart: x W + SCALE
    (x A) B."""
    past = past or (16 if small else 128)
    model = _cached_llama(small, past, configuration)
    _adapt(model.model.layers, rank)
    exporter.randomize(model, seed)
    return _one_token(model, batch, past)


def vit(
    *,
    small: bool = True,
    seed: int = 0,
    dynamic: bool = False,
    batch: int = 1,
    configuration: Mapping[str, Any] | None = None,
) -> onnx.ModelProto:
    """ViTModel without its pooler: ViT-base on images of 224, or two layers of 64 on images of 32.

    `dynamic` frees the batch.

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
    # The exporter takes a size of one for a constant.
    image = torch.zeros(max(batch, 2) if dynamic else batch, config.num_channels, config.image_size, config.image_size)
    free = {"pixel_values": {0: "batch"}} if dynamic else None
    return exporter.export(module, {"pixel_values": image}, "last_hidden_state", dynamic=free)


def mini_transformer(*, small: bool = True, seed: int = 0) -> onnx.ModelProto:
    """The encoder kept in this repository: seven BERT layers of 64 at 16 tokens; `small` makes no
    difference here."""
    del small
    sizes = {"hidden_size": 64, "num_hidden_layers": 7, "intermediate_size": 256}
    return bert(seed=seed, sequence=16, configuration=sizes)


def _llama_config(small: bool, positions: int, overrides: Mapping[str, Any]) -> Any:
    sizes = {
        "vocab_size": 256 if small else 32000,
        "hidden_size": 64 if small else 1024,
        "num_hidden_layers": 2 if small else 8,
        "num_attention_heads": 8 if small else 16,
        "num_key_value_heads": 2 if small else 4,
        "intermediate_size": 176 if small else 2816,
        "max_position_embeddings": max(2048, positions),
    }
    return exporter.require("transformers").LlamaConfig(**{**sizes, **overrides})


def _cached_llama(small: bool, past: int, overrides: Mapping[str, Any] | None) -> Any:
    config = _llama_config(small, past + 1, {"use_cache": True, **(overrides or {})})
    return exporter.require("transformers").LlamaForCausalLM(config)


def _adapt(layers: Any, rank: int) -> None:
    """Put an adapted map in the place of every linear map."""
    torch = exporter.require("torch")

    class Adapted(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, base: Any) -> None:
            super().__init__()
            self.base = base
            self.down = torch.nn.Linear(base.in_features, rank, bias=False)
            self.up = torch.nn.Linear(rank, base.out_features, bias=False)

        def forward(self, x: Any) -> Any:
            return self.base(x) + SCALE * self.up(self.down(x))

    for parent in list(layers.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, torch.nn.Linear):
                setattr(parent, name, Adapted(child))


def _one_token(model: Any, batch: int, past: int) -> onnx.ModelProto:
    torch = exporter.require("torch")
    arguments = {
        "input_ids": torch.ones(batch, 1, dtype=torch.int64),
        "attention_mask": torch.ones(batch, past + 1, dtype=torch.int64),
    }
    config = model.config
    names = [f"{kind}_{layer}" for layer in range(config.num_hidden_layers) for kind in ("key", "value")]
    shape = (batch, config.num_key_value_heads, past, config.head_dim)
    arguments |= {f"past_{name}": torch.zeros(shape) for name in names}
    exported = exporter.export(_cached(model), arguments, "logits")
    return _with_output_names(exported, ["logits", *(f"present_{name}" for name in names)])


def _cached(model: Any) -> Any:
    """The model as a function of tensors: keys and values of the layers in turn, before and
    after."""
    torch = exporter.require("torch")
    cache = exporter.require("transformers").DynamicCache

    class Cached(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, **past: Any) -> tuple[Any, ...]:
            tensors = list(past.values())
            given = cache(list(zip(tensors[::2], tensors[1::2], strict=True)))
            # By its place: releases of transformers differ in the argument's name. The model
            # extends `given` itself.
            logits = self.model(input_ids, attention_mask, None, given, use_cache=True).logits
            return logits, *(t for layer in given.layers for t in (layer.keys, layer.values))

    return Cached()


def _with_output_names(model: onnx.ModelProto, names: list[str]) -> onnx.ModelProto:
    """The exporter names the first output only."""
    new = dict(zip((value.name for value in model.graph.output), names, strict=True))
    for node in model.graph.node:
        for values in (node.input, node.output):
            values[:] = [new.get(value, value) for value in values]
    for value in model.graph.output:
        value.name = new[value.name]
    return model


def _language_model(module: Any, output: str, batch: int, sequence: int, dynamic: bool) -> onnx.ModelProto:
    torch = exporter.require("torch")
    # The exporter takes a size of one for a constant.
    shape = (max(batch, 2), sequence) if dynamic else (batch, sequence)
    ids = {name: torch.ones(shape, dtype=torch.int64) for name in ("input_ids", "attention_mask")}
    axes = {position: name for name, position in TOKENS.items()}
    return exporter.export(module, ids, output, dynamic=dict.fromkeys(ids, axes) if dynamic else None)
