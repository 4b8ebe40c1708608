"""The parts that the convolutional networks share: convolution with batch norm, parallel branches,
and the export."""

from collections.abc import Sequence

import onnx
import torch
from torch import Tensor, nn

from models import exporter

LOGITS = "logits"


def conv_norm(
    channels: int, out: int, kernel: int | tuple[int, int] = 1, stride: int = 1, pad: bool = True, groups: int = 1
) -> list[nn.Module]:
    """A convolution without bias and its batch norm; `pad` keeps the image's size at stride one."""
    height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = (height // 2, width // 2) if pad else (0, 0)
    conv = nn.Conv2d(channels, out, (height, width), stride, padding, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(out, eps=1e-3)]


class Concat(nn.Module):
    """Branches over the same input, concatenated along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, image: Tensor) -> Tensor:
        return torch.cat([branch(image) for branch in self.branches], 1)


def head(channels: int, classes: int) -> list[nn.Module]:
    """Average over the image, then a linear layer to the classes."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]


def to_onnx(module: nn.Module, image: Sequence[int], batch: int, seed: int, keep_norms: bool) -> onnx.ModelProto:
    """The network with seeded weights and settled norms, exported for a batch of images of shape
    (channels, h, w)."""
    exporter.randomize(module, seed)
    # A small network ends in a single pixel, of which it takes many images to know the mean and
    # variance.
    exporter.settle_norms(module, (4 if min(image[1:]) >= 128 else 32, *image), seed)
    return exporter.export(module, {"input": torch.zeros(batch, *image)}, LOGITS, keep_norms=keep_norms)
