"""Parts of diffusion models of the `diffusers` library, small or at their real size."""

from __future__ import annotations

from typing import Any

import onnx

from models import exporter
from models.real.torch_export import Subject, to_onnx

FREE = {"sample": {0: "batch"}, "timestep": {0: "batch"}, "encoder_hidden_states": {0: "batch"}}


def unet(which: str, *, small: bool = True) -> onnx.ModelProto:
    """A UNet with cross attention: Stable Diffusion's at its real size."""
    torch, diffusers = exporter.require("torch"), exporter.require("diffusers")
    sizes = {
        "sample_size": 16,
        "block_out_channels": (32, 64),
        "layers_per_block": 1,
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
        "cross_attention_dim": 32,
        "attention_head_dim": 4,
        "norm_num_groups": 8,
    }
    real = {"sample_size": 64, "cross_attention_dim": 768}
    module = diffusers.UNet2DConditionModel(**(sizes if small else real)).eval()
    side, width = module.config.sample_size, module.config.cross_attention_dim
    arguments = {
        "sample": torch.zeros(2, 4, side, side),
        "timestep": torch.ones(2, dtype=torch.int64),
        "encoder_hidden_states": torch.zeros(2, 8 if small else 77, width),
    }
    return to_onnx(Subject(module, arguments, _sample, ("out_sample",), FREE), which)


def dit(which: str, *, small: bool = True) -> onnx.ModelProto:
    """A diffusion transformer with labels: DiT-XL/2 at its real size."""
    torch, diffusers = exporter.require("torch"), exporter.require("diffusers")
    sizes = {"num_attention_heads": 4, "attention_head_dim": 16, "num_layers": 2, "sample_size": 8}
    module = diffusers.DiTTransformer2DModel(**(sizes if small else {}), num_embeds_ada_norm=100).eval()
    side = module.config.sample_size

    def call(module: Any, sample: Any, timestep: Any, labels: Any) -> Any:
        return module(sample, timestep=timestep, class_labels=labels).sample

    arguments = {
        "sample": torch.zeros(2, module.config.in_channels, side, side),
        "timestep": torch.ones(2, dtype=torch.int64),
        "labels": torch.ones(2, dtype=torch.int64),
    }
    return to_onnx(Subject(module, arguments, call, ("out_sample",)), which)


def vae_decoder(which: str, *, small: bool = True) -> onnx.ModelProto:
    """The decoder of an autoencoder: latents to an image."""
    torch, diffusers = exporter.require("torch"), exporter.require("diffusers")
    blocks = 2 if small else 4
    module = diffusers.AutoencoderKL(
        block_out_channels=(16, 32) if small else (128, 256, 512, 512),
        down_block_types=("DownEncoderBlock2D",) * blocks,
        up_block_types=("UpDecoderBlock2D",) * blocks,
        layers_per_block=1 if small else 2,
        norm_num_groups=8 if small else 32,
        latent_channels=4,
    ).eval()
    side = 8 if small else 64

    def call(module: Any, sample: Any) -> Any:
        return module.decode(sample).sample

    arguments = {"sample": torch.zeros(2, 4, side, side)}
    return to_onnx(Subject(module, arguments, call, ("image",), {"sample": {0: "batch"}}), which)


def _sample(module: Any, sample: Any, timestep: Any, encoder_hidden_states: Any) -> Any:
    return module(sample, timestep, encoder_hidden_states).sample
