"""Encoders and decoders of text from the `transformers` library, small or at their real size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx

from models import exporter
from models.real.caches import grown, names, tensors
from models.real.torch_export import Subject, to_onnx

SMALL: Mapping[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": 128,
}
GROUPED: Mapping[str, Any] = {**SMALL, "num_key_value_heads": 2, "head_dim": 16, "attention_dropout": 0.0}
TOKENS = {0: "batch", 1: "sequence"}


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model class, the sizes of its small and its real form, and the options of every form."""

    model: str
    config: str
    small: Mapping[str, Any]
    real: Mapping[str, Any]
    always: Mapping[str, Any]

    def build(self, small: bool) -> tuple[Any, Any]:
        transformers = exporter.require("transformers")
        sizes = self.small if small else self.real
        config = getattr(transformers, self.config)(**{**sizes, **self.always})
        return getattr(transformers, self.model)(config).eval(), config


T5: Mapping[str, Any] = {"use_cache": False, "attn_implementation": "eager"}
"""With the fused attention the dynamo exporter refuses dynamic sizes."""
T5_SMALL = {"vocab_size": 256, "d_model": 64, "d_kv": 16, "d_ff": 256, "num_layers": 2, "num_heads": 4}
MINILM = {
    "vocab_size": 30522,
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
}
QWEN3 = {
    "vocab_size": 151936,
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "intermediate_size": 3072,
    "head_dim": 128,
}
QWEN2 = {
    "vocab_size": 32000,
    "hidden_size": 896,
    "num_hidden_layers": 8,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "head_dim": 64,
}
LLAMA = {
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 2816,
}
DEBERTA = {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 32,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "position_biased_input": False,
    "type_vocab_size": 0,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}

ENCODERS: Mapping[str, Architecture] = {
    "bert": Architecture("BertModel", "BertConfig", SMALL, {}, {}),
    "minilm": Architecture(
        "BertModel", "BertConfig", {**MINILM, "vocab_size": 256, "num_hidden_layers": 2}, MINILM, {}
    ),
    "deberta": Architecture("DebertaV2Model", "DebertaV2Config", SMALL, {"vocab_size": 32000}, DEBERTA),
    "t5_encoder": Architecture("T5EncoderModel", "T5Config", T5_SMALL, {}, T5),
    "mamba": Architecture(
        "MambaModel",
        "MambaConfig",
        {"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8},
        {"num_hidden_layers": 8},
        {"use_cache": False},
    ),
}
DECODERS: Mapping[str, Architecture] = {
    "llama": Architecture("LlamaForCausalLM", "LlamaConfig", GROUPED, LLAMA, {"use_cache": True}),
    "qwen2": Architecture(
        "Qwen2ForCausalLM",
        "Qwen2Config",
        GROUPED,
        QWEN2,
        {"use_cache": True},
    ),
    "qwen3": Architecture("Qwen3ForCausalLM", "Qwen3Config", GROUPED, QWEN3, {"use_cache": True}),
    "moe": Architecture(
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        {**GROUPED, **EXPERTS},
        {**LLAMA, **EXPERTS},
        {"use_cache": True, "experts_implementation": "batched_mm"},
    ),
}


def encoder(which: str, *, name: str, small: bool = True) -> onnx.ModelProto:
    """Tokens of dynamic batch and length to the last hidden state; Mamba's length is fixed, as its
    scan is unrolled."""
    torch = exporter.require("torch")
    module, _ = ENCODERS[name].build(small)
    length = 8 if name == "mamba" else 16
    ids = {"input_ids": torch.ones(2, length, dtype=torch.int64)}
    if name != "mamba":
        ids["attention_mask"] = torch.ones(2, length, dtype=torch.int64)
    free = {} if name == "mamba" else dict.fromkeys(ids, TOKENS)
    return to_onnx(Subject(module, ids, _hidden, ("last_hidden_state",), free), which)


def t5_decoder(which: str, *, small: bool = True) -> onnx.ModelProto:
    """Decoder tokens and the encoder's states to logits, without a cache."""
    torch, transformers = exporter.require("torch"), exporter.require("transformers")
    outputs = exporter.require("transformers.modeling_outputs")
    config = transformers.T5Config(**{**(T5_SMALL if small else {}), **T5})
    module = transformers.T5ForConditionalGeneration(config).eval()

    def call(module: Any, decoder_input_ids: Any, encoder_hidden_states: Any) -> Any:
        encoded = outputs.BaseModelOutput(last_hidden_state=encoder_hidden_states)
        return module(decoder_input_ids=decoder_input_ids, encoder_outputs=encoded, use_cache=False).logits

    arguments = {
        "decoder_input_ids": torch.ones(2, 8, dtype=torch.int64),
        "encoder_hidden_states": torch.zeros(2, 16, config.d_model),
    }
    free = {
        "decoder_input_ids": {0: "batch", 1: "decoded"},
        "encoder_hidden_states": {0: "batch", 1: "sequence"},
    }
    return to_onnx(Subject(module, arguments, call, ("logits",), free), which)


def prefill(which: str, *, name: str, small: bool = True) -> onnx.ModelProto:
    """A prompt of dynamic length to logits and the cache."""
    torch = exporter.require("torch")
    module, config = DECODERS[name].build(small)
    ids = {"input_ids": torch.ones(2, 16, dtype=torch.int64)}
    ids["attention_mask"] = torch.ones(2, 16, dtype=torch.int64)
    subject = Subject(module, ids, _prompt, ("logits", *names("present", config)), dict.fromkeys(ids, TOKENS))
    return to_onnx(subject, which)


def decode(which: str, *, name: str, small: bool = True) -> onnx.ModelProto:
    """One token after a cache of dynamic length."""
    torch = exporter.require("torch")
    module, config = DECODERS[name].build(small)
    past = tensors(config, batch=2, length=16)
    arguments = {
        "input_ids": torch.ones(2, 1, dtype=torch.int64),
        "attention_mask": torch.ones(2, 17, dtype=torch.int64),
        **past,
    }
    free: dict[str, Mapping[int, str]] = {"input_ids": {0: "batch"}, "attention_mask": {0: "batch", 1: "total"}}
    free |= {key: {0: "batch", 2: "past"} for key in past}
    return to_onnx(Subject(module, arguments, grown, ("logits", *names("present", config)), free), which)


def _hidden(module: Any, **ids: Any) -> Any:
    return module(**ids).last_hidden_state


def _prompt(module: Any, input_ids: Any, attention_mask: Any) -> Any:
    return grown(module, input_ids, attention_mask)
