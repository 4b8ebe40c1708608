"""The decoder of an autoencoder of images (Rombach et al., CVPR'22, without attention): residual
blocks, and images that are enlarged twofold between them."""

from itertools import pairwise

import onnx
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, silu

from models import exporter

LATENTS = 4


class Residual(nn.Module):
    """Two convolutions with their norms, and the image beside them."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(8, n) for n in (channels, out)])
        self.convs = nn.ModuleList([nn.Conv2d(n, out, 3, padding=1) for n in (channels, out)])
        self.beside = nn.Identity() if channels == out else nn.Conv2d(channels, out, 1)

    def forward(self, image: Tensor) -> Tensor:
        inner = image
        for norm, conv in zip(self.norms, self.convs, strict=True):
            inner = conv(silu(norm(inner)))
        return self.beside(image) + inner


class Enlarged(nn.Module):
    """A convolution of an image in which each pixel is there four times."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        return self.conv(interpolate(image, scale_factor=2.0, mode="nearest"))


def decoder(*, small: bool = True, seed: int = 0, batch: int = 1) -> onnx.ModelProto:
    """Latents at 32 to an image at 128, or an eighth of the channels from 8 to 32."""
    share, side = (8, 8) if small else (1, 32)
    widths = [width // share for width in (256, 128, 64)]
    parts: list[nn.Module] = [nn.Conv2d(LATENTS, widths[0], 3, padding=1)]
    for channels, out in pairwise((widths[0], *widths)):
        parts += [Residual(channels, out), Residual(out, out), *([Enlarged(out)] if out != widths[-1] else [])]
    module = nn.Sequential(*parts, nn.GroupNorm(8, widths[-1]), nn.SiLU(), nn.Conv2d(widths[-1], 3, 3, padding=1))
    exporter.randomize(module, seed)
    return exporter.export(module, {"input": torch.zeros(batch, LATENTS, side, side)}, "image")
