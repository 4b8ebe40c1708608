"""CSRNet (Li et al., 2018): the first ten layers of VGG-16, six dilated convolutions, and a density
map."""

import math
from collections.abc import Sequence

import onnx
import torch
from torch import nn

from models import exporter

FRONT = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512)
BACK = (512, 512, 512, 256, 128, 64)
POOL = 0
AFTER_RELU = math.sqrt(1 / (0.5 - 0.5 / math.pi))
"""Normal values of variance one have this to the power of -2 behind an activation."""


def layers(channels: int, widths: Sequence[int], dilation: int) -> list[nn.Module]:
    """Convolutions of size 3 that keep the image's size, with their activations, and pools between
    them."""
    found: list[nn.Module] = []
    for width in widths:
        if width == POOL:
            found.append(nn.MaxPool2d(2))
        else:
            found += [nn.Conv2d(channels, width, 3, padding=dilation, dilation=dilation), nn.ReLU()]
            channels = width
    return found


def csrnet(*, small: bool = True, seed: int = 0, batch: int = 1) -> onnx.ModelProto:
    """CSRNet at 112 (its dilated part at 14), or an eighth of its channels at 64."""
    share, image = (8, 64) if small else (1, 112)
    front, back = ([width // share for width in widths] for widths in (FRONT, BACK))
    module = nn.Sequential(*layers(3, front, 1), *layers(front[-1], back, 2), nn.Conv2d(back[-1], 1, 1))
    exporter.randomize(module, seed)
    with torch.no_grad():
        for part in module:
            if isinstance(
                part, nn.Conv2d
            ):  # there are no norms: a constant part must not grow, and an activation drops two thirds
                part.weight -= part.weight.mean((1, 2, 3), keepdim=True)
                part.weight *= AFTER_RELU
    return exporter.export(module, {"input": torch.zeros(batch, 3, image, image)}, "density")
