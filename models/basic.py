"""ResNet-18 (He et al., 2015) and its form for clips, ResNet3D-18 (Tran et al., 2018), as stacks of
basic blocks."""

from collections.abc import Sequence

import onnx
from torch import Tensor, nn

from models import blocks

CONV = {2: nn.Conv2d, 3: nn.Conv3d}
NORM = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
POOL = {2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}


def conv_norm(
    axes: int, channels: int, out: int, kernel: int | Sequence[int], stride: int | Sequence[int] = 1
) -> list[nn.Module]:
    """A convolution over so many axes without bias, which keeps the size at stride one, and its
    batch norm."""
    sizes = (kernel,) * axes if isinstance(kernel, int) else tuple(kernel)
    padding = tuple(k // 2 for k in sizes)
    return [CONV[axes](channels, out, sizes, stride, padding, bias=False), NORM[axes](out, eps=1e-3)]


class Basic(nn.Module):
    """Two convolutions of size 3 around a shortcut, which is a convolution where the shape
    changes."""

    def __init__(self, axes: int, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*conv_norm(axes, channels, out, 3, stride), nn.ReLU(), *conv_norm(axes, out, out, 3))
        changes = stride != 1 or channels != out
        self.shortcut = nn.Sequential(*conv_norm(axes, channels, out, 1, stride)) if changes else nn.Identity()
        self.relu = nn.ReLU()

    def forward(self, image: Tensor) -> Tensor:
        out: Tensor = self.relu(self.body(image) + self.shortcut(image))
        return out


def network(axes: int, depths: Sequence[int], width: int, classes: int) -> nn.Sequential:
    """The stem (with a pool over images, without one over clips), then one stage a depth at twice
    the channels of the last."""
    if axes == 2:
        layers = [*conv_norm(2, 3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    else:
        layers = [*conv_norm(3, 3, width, (3, 7, 7), (1, 2, 2)), nn.ReLU()]
    channels = width
    for stage, depth in enumerate(depths):
        for block in range(depth):
            out = width * 2**stage
            layers.append(Basic(axes, channels, out, 2 if stage > 0 and block == 0 else 1))
            channels = out
    return nn.Sequential(*layers, POOL[axes](1), nn.Flatten(), nn.Linear(channels, classes))


def resnet18(*, small: bool = True, seed: int = 0, batch: int = 1, keep_norms: bool = True) -> onnx.ModelProto:
    """ResNet-18 at 224, or two stages of one block, 16 channels at the stem, at 32."""
    module = network(2, (1, 1), 16, 10) if small else network(2, (2, 2, 2, 2), 64, 1000)
    return blocks.to_onnx(module, (3, 32, 32) if small else (3, 224, 224), batch, seed, keep_norms)


def resnet3d18(*, small: bool = True, seed: int = 0, batch: int = 1, keep_norms: bool = True) -> onnx.ModelProto:
    """ResNet3D-18 over clips of 16 frames at 112, or two stages of one block, 8 channels at the
    stem, over 4 frames at 16."""
    module = network(3, (1, 1), 8, 10) if small else network(3, (2, 2, 2, 2), 64, 400)
    return blocks.to_onnx(module, (3, 4, 16, 16) if small else (3, 16, 112, 112), batch, seed, keep_norms)
