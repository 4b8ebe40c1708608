"""NASNet-A (Zoph et al., 2017), mobile form: normal and reduction cells of separable
convolutions."""

import onnx
import torch
from torch import Tensor, nn

from models import blocks

Images = tuple[Tensor, Tensor]


def separable(channels: int, out: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Twice ReLU, depthwise and pointwise convolution, batch norm; the first time with the
    stride."""
    parts: list[nn.Module] = []
    for source, step in ((channels, stride), (out, 1)):
        parts += [
            nn.ReLU(),
            nn.Conv2d(source, source, kernel, step, kernel // 2, groups=source, bias=False),
            *blocks.conv_norm(source, out),
        ]
    return nn.Sequential(*parts)


def average(stride: int = 1) -> nn.AvgPool2d:
    return nn.AvgPool2d(3, stride, 1, count_include_pad=False)


def project(channels: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.ReLU(), *blocks.conv_norm(channels, out))


class HalfSize(nn.Module):
    """Half the image's size from its even and its odd pixels, half of the channels from each
    (factorized reduction)."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.even = nn.Sequential(nn.AvgPool2d(1, 2), nn.Conv2d(channels, out // 2, 1, bias=False))
        self.shift = nn.ZeroPad2d((-1, 1, -1, 1))
        self.odd = nn.Sequential(nn.AvgPool2d(1, 2), nn.Conv2d(channels, out - out // 2, 1, bias=False))
        self.norm = nn.BatchNorm2d(out, eps=1e-3)

    def forward(self, image: Tensor) -> Tensor:
        image = self.relu(image)
        out: Tensor = self.norm(torch.cat([self.even(image), self.odd(self.shift(image))], 1))
        return out


class NormalCell(nn.Module):
    """Five sums of pairs and the older input, concatenated: (previous, current) -> six times
    `width` channels."""

    def __init__(self, previous: nn.Module, current: nn.Module, width: int) -> None:
        super().__init__()
        self.previous, self.current = previous, current
        self.current_5 = separable(width, width, 5)
        self.previous_3a = separable(width, width, 3)
        self.previous_5 = separable(width, width, 5)
        self.previous_3b = separable(width, width, 3)
        self.current_3 = separable(width, width, 3)
        self.average = average()

    def forward(self, images: Images) -> Images:
        old, new = self.previous(images[0]), self.current(images[1])
        sums = [
            self.current_5(new) + self.previous_3a(old),
            self.previous_5(old) + self.previous_3b(old),
            self.average(new) + old,
            self.average(old) + self.average(old),
            self.current_3(new) + new,
        ]
        return images[1], torch.cat([old, *sums], 1)


class ReductionCell(nn.Module):
    """Five sums of pairs at half the image's size: (previous, current) -> four times `width`
    channels."""

    def __init__(self, previous: nn.Module, current: nn.Module, old_channels: int, width: int) -> None:
        super().__init__()
        self.previous, self.current = previous, current
        self.current_5 = separable(width, width, 5, 2)
        self.previous_7a = separable(old_channels, width, 7, 2)
        self.previous_7b = separable(old_channels, width, 7, 2)
        self.previous_5 = separable(old_channels, width, 5, 2)
        self.inner_3 = separable(width, width, 3)
        self.maximum = nn.MaxPool2d(3, 2, 1)
        self.average = average(2)
        self.inner_average = average()

    def forward(self, images: Images) -> Images:
        old, new = self.previous(images[0]), self.current(images[1])
        first = self.current_5(new) + self.previous_7a(old)
        second = self.maximum(new) + self.previous_7b(old)
        third = self.average(new) + self.previous_5(old)
        fourth = self.inner_average(first) + second
        fifth = self.inner_3(first) + self.maximum(new)
        return images[1], torch.cat([second, third, fourth, fifth], 1)


class NasNet(nn.Module):
    """Stem and two stem cells, then three groups of `depth` normal cells with a reduction cell
    between groups."""

    def __init__(self, depth: int, stem: int, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(*blocks.conv_norm(3, stem, 3, 2, pad=False))
        quarter, half = width // 4, width // 2
        cells: list[nn.Module] = [
            ReductionCell(nn.Identity(), project(stem, quarter), stem, quarter),
            ReductionCell(HalfSize(stem, half), project(4 * quarter, half), half, half),
        ]
        old, new = 4 * quarter, 4 * half
        for group in range(3):
            size = width * 2**group
            if group > 0:
                cells.append(ReductionCell(project(old, size), project(new, size), size, size))
                old, new = new, 4 * size
            for index in range(depth):
                previous = HalfSize(old, size) if index == 0 else project(old, size)
                cells.append(NormalCell(previous, project(new, size), size))
                old, new = new, 6 * size
        self.cells = nn.Sequential(*cells)
        self.head = nn.Sequential(nn.ReLU(), *blocks.head(new, classes))

    def forward(self, input: Tensor) -> Tensor:
        start = self.stem(input)
        out: Tensor = self.head(self.cells((start, start))[1])
        return out


def nasnet_a(*, small: bool = True, seed: int = 0, batch: int = 1, keep_norms: bool = True) -> onnx.ModelProto:
    """NASNet-A (4 @ 1056) at 224, or one normal cell a group and 8 filters at 32."""
    module, size = (NasNet(1, 8, 8, 10), 32) if small else (NasNet(4, 32, 44, 1000), 224)
    return blocks.to_onnx(module, (3, size, size), batch, seed, keep_norms)
