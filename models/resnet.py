"""ResNet-50 (He et al., 2015) and ResNeXt-50 32x4d (Xie et al., 2016) as bottleneck stacks."""

from dataclasses import dataclass

import onnx
from torch import Tensor, nn

from models import blocks

EXPANSION = 4


@dataclass(frozen=True, slots=True)
class Sizes:
    """Blocks a stage, channels of the stem, groups of the 3x3 convolutions and their width a group
    at 64 channels."""

    depths: tuple[int, ...]
    stem: int
    groups: int
    width: int
    image: int
    classes: int


class Bottleneck(nn.Module):
    """1x1, 3x3 (grouped), 1x1 convolutions around a shortcut, which is a convolution where the
    shape changes."""

    def __init__(self, channels: int, inner: int, out: int, stride: int, groups: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *blocks.conv_norm(channels, inner),
            nn.ReLU(),
            *blocks.conv_norm(inner, inner, 3, stride, groups=groups),
            nn.ReLU(),
            *blocks.conv_norm(inner, out),
        )
        changes = stride != 1 or channels != out
        self.shortcut = nn.Sequential(*blocks.conv_norm(channels, out, 1, stride)) if changes else nn.Identity()
        self.relu = nn.ReLU()

    def forward(self, image: Tensor) -> Tensor:
        out: Tensor = self.relu(self.body(image) + self.shortcut(image))
        return out


def network(sizes: Sizes) -> nn.Sequential:
    """The stem, then one stage a depth, each at twice the channels and half the image of the
    last."""
    layers = [*blocks.conv_norm(3, sizes.stem, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = sizes.stem
    for stage, depth in enumerate(sizes.depths):
        planes = sizes.stem * 2**stage
        inner = planes * sizes.groups * sizes.width // 64
        for block in range(depth):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(Bottleneck(channels, inner, planes * EXPANSION, stride, sizes.groups))
            channels = planes * EXPANSION
    return nn.Sequential(*layers, *blocks.head(channels, sizes.classes))


def resnet50(*, small: bool = True, seed: int = 0, batch: int = 1, keep_norms: bool = True) -> onnx.ModelProto:
    """ResNet-50 at 224, or two stages of one and two blocks, 16 channels at the stem, at 32."""
    sizes = Sizes((1, 2), 16, 1, 64, 32, 10) if small else Sizes((3, 4, 6, 3), 64, 1, 64, 224, 1000)
    return blocks.to_onnx(network(sizes), (3, sizes.image, sizes.image), batch, seed, keep_norms)


def resnext50(*, small: bool = True, seed: int = 0, batch: int = 1, keep_norms: bool = True) -> onnx.ModelProto:
    """ResNeXt-50 32x4d at 224, or the small ResNet with 8 groups at 32."""
    sizes = Sizes((1, 2), 16, 8, 16, 32, 10) if small else Sizes((3, 4, 6, 3), 64, 32, 4, 224, 1000)
    return blocks.to_onnx(network(sizes), (3, sizes.image, sizes.image), batch, seed, keep_norms)
