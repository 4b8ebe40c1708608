"""MobileNet-v2 (Sandler et al., 2018) as inverted residual blocks."""

import onnx
from torch import Tensor, nn

from models import blocks

EXPANSION = 6
# Channels, blocks and the stride of the first, for each stage.
STAGES = ((24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2), (320, 1, 1))


class Inverted(nn.Module):
    """A wider 1x1, a depthwise 3x3 and a narrow 1x1 convolution, around a shortcut where the shape
    stays."""

    def __init__(self, channels: int, out: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = channels * expansion
        wider = [*blocks.conv_norm(channels, inner), nn.ReLU6()] if expansion > 1 else []
        depthwise = [*blocks.conv_norm(inner, inner, 3, stride, groups=inner), nn.ReLU6()]
        self.body = nn.Sequential(*wider, *depthwise, *blocks.conv_norm(inner, out))
        self.stays = stride == 1 and channels == out

    def forward(self, image: Tensor) -> Tensor:
        out: Tensor = self.body(image)
        return out + image if self.stays else out


def mobilenet_v2(*, small: bool = True, seed: int = 0, batch: int = 1, keep_norms: bool = True) -> onnx.ModelProto:
    """MobileNet-v2 at 224, or its first two stages at a quarter of the channels, at 32."""
    share, stages, side, classes, last = (4, STAGES[:2], 32, 10, 64) if small else (1, STAGES, 224, 1000, 1280)
    channels = 16 // share
    layers = [*blocks.conv_norm(3, 32 // share, 3, 2), nn.ReLU6(), Inverted(32 // share, channels, 1, 1)]
    for out, depth, stride in stages:
        for block in range(depth):
            layers.append(Inverted(channels, out // share, stride if block == 0 else 1, EXPANSION))
            channels = out // share
    layers += [*blocks.conv_norm(channels, last), nn.ReLU6(), *blocks.head(last, classes)]
    return blocks.to_onnx(nn.Sequential(*layers), (3, side, side), batch, seed, keep_norms)
