"""The models of `minute.py`: torch modules with random weights, of `transformers` where it has the
form and written here where it needs other packages, with inputs that they take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from decoders import BLOCK, Built, adapted, of, room, step, tokens
from image_models import dit, efficientnet, unet
from torch import nn

Inputs = dict[str, torch.Tensor]
SEED = 0


@dataclass(frozen=True)
class Form:
    """A model's builder with its options: for the real size, for a CPU, where weights take twice
    the bytes, and for a small model as a trial. `bits`: those of the linear layers' weights in the
    ONNX file, where they are not floats."""

    build: Callable[..., Built]
    options: Mapping[str, Any] = field(default_factory=dict)
    cpu: Mapping[str, Any] = field(default_factory=dict)
    small: Mapping[str, Any] = field(default_factory=dict)
    bits: int = 0

    def __call__(self, device: str, small: bool = False) -> Built:
        """The module and its inputs on the device: in half precision on a GPU."""
        torch.manual_seed(SEED)
        chosen = {**self.options, **(self.cpu if device == "cpu" else {}), **(self.small if small else {})}
        with torch.device(device):
            module, inputs = self.build(**chosen)
        dtype = torch.float32 if device == "cpu" else torch.float16
        given = {k: v.to(device, dtype if v.is_floating_point() else v.dtype) for k, v in inputs.items()}
        return module.eval().to(device, dtype), given


def export(module: nn.Module, inputs: Inputs, path: Path) -> int:
    """Write the module as an ONNX model by torch's newer exporter, or by the older one where that
    fails or onnxscript is not there; the bytes of its parameters."""
    try:
        program = torch.onnx.export(module, kwargs=dict(inputs), input_names=[*inputs], dynamo=True, verbose=False)
        assert program is not None
        program.save(path, external_data=True)
    except Exception:  # whatever the newer one cannot do
        given = *inputs.values(), {}
        torch.onnx.export(Placed(module, [*inputs]), given, path, input_names=[*inputs], opset_version=17, dynamo=False)
    return sum(p.numel() * p.element_size() for p in module.parameters())


def quantize(path: Path, bits: int) -> None:
    """Round the weights of a file's linear layers, with ONNX Runtime's own quantizer, to so many
    bits in blocks."""
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    made = MatMulNBitsQuantizer(onnx.load(path), bits=bits, block_size=BLOCK, is_symmetric=True)
    made.process()
    for each in (path, path.with_name(f"{path.name}.data")):
        each.unlink(missing_ok=True)
    made.model.save_model_to_file(str(path), use_external_data_format=True)


class Placed(nn.Module):
    """A module whose inputs have places instead of names."""

    def __init__(self, module: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.module, self.names = module, names

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.module(**dict(zip(self.names, tensors, strict=True)))


# ---------------------------------------------------------------- of transformers


class Called(nn.Module):
    """A module that is called with some of its arguments and gives one of its results."""

    def __init__(self, module: nn.Module, result: str, **fixed: Any) -> None:
        super().__init__()
        self.module, self.result, self.fixed = module, result, fixed

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = getattr(self.module(**inputs, **self.fixed), self.result)
        return found


def text(kind: str, batch: int = 1, length: int = 128, result: str = "last_hidden_state", **options: Any) -> Built:
    module = Called(of(kind, options), result)
    return module, {"input_ids": tokens(batch, length), "attention_mask": torch.ones(batch, length, dtype=torch.int64)}


def images(kind: str, batch: int = 1, side: int = 224, **options: Any) -> Built:
    return Called(of(kind, options), "last_hidden_state"), {"pixel_values": torch.randn(batch, 3, side, side)}


def sound(kind: str, name: str, shape: tuple[int, ...], batch: int = 1, encoder: bool = False, **options: Any) -> Built:
    module = of(kind, options)
    return Called(module.get_encoder() if encoder else module, "last_hidden_state"), {name: torch.randn(batch, *shape)}


class WhisperStep(nn.Module):
    """Whisper's decoder over its encoder's results."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.decoder = module.get_decoder()

    def forward(self, input_ids: torch.Tensor, encoder_hidden_states: torch.Tensor) -> torch.Tensor:
        given = {"input_ids": input_ids, "encoder_hidden_states": encoder_hidden_states, "use_cache": False}
        found: torch.Tensor = self.decoder(**given).last_hidden_state
        return found


def dictation(length: int = 32, frames: int = 1500, **options: Any) -> Built:
    module = of("WhisperModel", options)
    heard = torch.randn(1, frames, module.config.d_model)
    return WhisperStep(module), {"input_ids": tokens(1, length), "encoder_hidden_states": heard}


# ---------------------------------------------------------------- all of them

LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 4096,
}
QWEN2 = {
    "vocab_size": 32000,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 8,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
}
EXPERTS = {
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "moe_intermediate_size": 768,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 64,
}
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
FEW = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
TINY = {**FEW, "vocab_size": 128}
GROUPED = {**TINY, "num_key_value_heads": 2, "past": 16}
ROOM = {**TINY, "num_key_value_heads": 2, "length": 64}
PICTURE = {**FEW, "image_size": 32, "patch_size": 8, "side": 32}
WHISPER = {"d_model": 1024, "vocab_size": 1000, "pad_token_id": 0, "max_source_positions": 1500} | {
    f"{part}_{what}": n
    for part in ("encoder", "decoder")
    for what, n in (("layers", 24), ("attention_heads", 16), ("ffn_dim", 4096))
}
HUSH = {"d_model": 64, "vocab_size": 64, "pad_token_id": 0, "max_source_positions": 16} | {
    f"{part}_{what}": n
    for part in ("encoder", "decoder")
    for what, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 128))
}
FORMS: dict[str, Form] = {
    "llama_step": Form(step, {"kind": "LlamaForCausalLM", "past": 1024, **LLAMA}, {"num_hidden_layers": 8}, GROUPED),
    "llama_decode": Form(room, {"kind": "LlamaForCausalLM", **LLAMA}, {"num_hidden_layers": 4}, ROOM),
    "llama_decode_b8": Form(room, {"kind": "LlamaForCausalLM", "batch": 8, **LLAMA}, {"num_hidden_layers": 4}, ROOM),
    "lora_decode": Form(adapted, {"kind": "LlamaForCausalLM", **LLAMA}, {"num_hidden_layers": 4}, ROOM),
    "qwen2_decode": Form(room, {"kind": "Qwen2ForCausalLM", **QWEN2}, {}, ROOM),
    "int4_decode": Form(room, {"kind": "LlamaForCausalLM", **LLAMA}, {"num_hidden_layers": 4}, ROOM, bits=4),
    "moe_decode": Form(
        room,
        {"kind": "Qwen3MoeForCausalLM", **EXPERTS},
        {"num_hidden_layers": 2},
        {**ROOM, "head_dim": 16} | {"moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2},
    ),
    "llama_prompt": Form(
        text,
        {"kind": "LlamaForCausalLM", "length": 512, "result": "logits", "use_cache": False, **LLAMA},
        {"num_hidden_layers": 8, "length": 128},
        {**TINY, "num_key_value_heads": 2, "length": 16},
    ),
    "qwen2_step": Form(step, {"kind": "Qwen2ForCausalLM", "past": 512, **QWEN2}, {}, GROUPED),
    "gpt2": Form(
        text,
        {
            "kind": "GPT2LMHeadModel",
            "result": "logits",
            "n_embd": 1024,
            "n_layer": 24,
            "n_head": 16,
            "use_cache": False,
        },
        {},
        {"n_embd": 64, "n_layer": 2, "n_head": 4, "length": 16, "vocab_size": 128},
    ),
    "vit_large": Form(images, {"kind": "ViTModel", **LARGE, "patch_size": 14}, {}, PICTURE),
    "vit_large_b8": Form(images, {"kind": "ViTModel", **LARGE, "patch_size": 14, "batch": 8}, {"batch": 2}, PICTURE),
    "vit_base_b8": Form(images, {"kind": "ViTModel", "batch": 8}, {}, PICTURE),
    "dinov2": Form(images, {"kind": "Dinov2Model", "image_size": 224}, {}, {**PICTURE, "batch": 2}),
    "swin_b8": Form(
        images,
        {"kind": "SwinModel", "embed_dim": 128, "depths": [2, 2, 18, 2], "num_heads": [4, 8, 16, 32], "batch": 8},
        {"batch": 1},
        {"image_size": 64, "side": 64, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
    ),
    "unet": Form(
        unet,
        {},
        {"widths": (160, 320, 640, 640), "side": 32},
        {"widths": (32, 64), "blocks": 1, "side": 16, "text": 32, "groups": 8},
    ),
    "dit": Form(dit, {}, {"layers": 14}, {"width": 64, "layers": 2, "heads": 4, "side": 8}),
    "efficientnet_b0": Form(efficientnet, {}, {}, {"side": 64, "scale": 0.25}),
    "efficientnet_b5_b8": Form(
        efficientnet, {"scale": 1.6, "deeper": 2, "side": 456, "batch": 8}, {"batch": 1}, {"side": 64, "scale": 0.25}
    ),
    "convnext_b8": Form(
        images,
        {"kind": "ConvNextModel", "hidden_sizes": [128, 256, 512, 1024], "depths": [3, 3, 27, 3], "batch": 8},
        {"batch": 1},
        {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1], "side": 64},
    ),
    "resnet152_b8": Form(
        images,
        {"kind": "ResNetModel", "depths": [3, 8, 36, 3], "batch": 8},
        {"batch": 1},
        {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "side": 64},
    ),
    "bert_large": Form(text, {"kind": "BertModel", **LARGE}, {}, TINY),
    "bert_base_b8": Form(text, {"kind": "BertModel", "batch": 8}, {}, {**TINY, "batch": 2}),
    "modernbert": Form(
        text,
        {"kind": "ModernBertModel", "length": 512},
        {},
        {**TINY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
        | {"length": 32},
    ),
    "t5_encoder": Form(
        text,
        {"kind": "T5EncoderModel", "d_model": 1024, "num_layers": 24, "num_heads": 16, "d_kv": 64, "d_ff": 4096},
        {},
        {"d_model": 64, "num_layers": 2, "num_heads": 4, "d_kv": 16, "d_ff": 128, "vocab_size": 128},
    ),
    "whisper_encoder": Form(
        sound,
        {"kind": "WhisperModel", "name": "input_features", "shape": (80, 3000), "encoder": True, **WHISPER},
        {},
        {"shape": (80, 32), **HUSH},
    ),
    "whisper_decoder": Form(dictation, WHISPER, {}, {**HUSH, "frames": 16, "length": 8}),
    "wav2vec2": Form(
        sound,
        {"kind": "Wav2Vec2Model", "name": "input_values", "shape": (80000,), **LARGE},
        {"shape": (32000,)},
        {**FEW, "shape": (4000,), "conv_dim": (32,) * 7},
    ),
}
"""By name."""
