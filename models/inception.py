"""Inception-v3 (Szegedy et al., 2015) without its auxiliary classifier, as a table of parallel
branches."""

from collections.abc import Callable, Iterable

import onnx
from torch import nn

from models import blocks

Layer = tuple[int, int | tuple[int, int]]

ROW, COLUMN = (1, 7), (7, 1)


def chain(channels: int, layers: Iterable[Layer], stride: int = 1) -> nn.Sequential:
    """Convolutions with norm and ReLU; a stride above one belongs to the last, which then does not
    pad."""
    layers = list(layers)
    parts: list[nn.Module] = []
    for index, (out, kernel) in enumerate(layers):
        step = stride if index == len(layers) - 1 else 1
        parts += [*blocks.conv_norm(channels, out, kernel, step, pad=step == 1), nn.ReLU()]
        channels = out
    return nn.Sequential(*parts)


def pooled(channels: int, out: int) -> nn.Sequential:
    """Average over 3x3, then a 1x1 convolution."""
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), chain(channels, [(out, 1)]))


def forked(channels: int, layers: Iterable[Layer], out: int) -> nn.Sequential:
    """A chain that ends in a 1x3 and a 3x1 convolution side by side."""
    layers = list(layers)
    last = layers[-1][0]
    return nn.Sequential(chain(channels, layers), blocks.Concat(*(chain(last, [(out, k)]) for k in ((1, 3), (3, 1)))))


def block_a(channels: int, scale: Callable[[int], int], pool: int) -> nn.Module:
    return blocks.Concat(
        chain(channels, [(scale(64), 1)]),
        chain(channels, [(scale(48), 1), (scale(64), 5)]),
        chain(channels, [(scale(64), 1), (scale(96), 3), (scale(96), 3)]),
        pooled(channels, scale(pool)),
    )


def reduction_b(channels: int, scale: Callable[[int], int]) -> nn.Module:
    return blocks.Concat(
        chain(channels, [(scale(384), 3)], 2),
        chain(channels, [(scale(64), 1), (scale(96), 3), (scale(96), 3)], 2),
        nn.MaxPool2d(3, 2),
    )


def block_c(channels: int, scale: Callable[[int], int], inner: int) -> nn.Module:
    mid, out = scale(inner), scale(192)
    return blocks.Concat(
        chain(channels, [(out, 1)]),
        chain(channels, [(mid, 1), (mid, ROW), (out, COLUMN)]),
        chain(channels, [(mid, 1), (mid, COLUMN), (mid, ROW), (mid, COLUMN), (out, ROW)]),
        pooled(channels, out),
    )


def reduction_d(channels: int, scale: Callable[[int], int]) -> nn.Module:
    mid = scale(192)
    return blocks.Concat(
        chain(channels, [(mid, 1), (scale(320), 3)], 2),
        chain(channels, [(mid, 1), (mid, ROW), (mid, COLUMN), (mid, 3)], 2),
        nn.MaxPool2d(3, 2),
    )


def block_e(channels: int, scale: Callable[[int], int]) -> nn.Module:
    return blocks.Concat(
        chain(channels, [(scale(320), 1)]),
        forked(channels, [(scale(384), 1)], scale(384)),
        forked(channels, [(scale(448), 1), (scale(384), 3)], scale(384)),
        pooled(channels, scale(192)),
    )


def stem(scale: Callable[[int], int]) -> list[nn.Module]:
    return [
        chain(3, [(scale(32), 3)], 2),
        *blocks.conv_norm(scale(32), scale(32), 3, pad=False),
        nn.ReLU(),
        chain(scale(32), [(scale(64), 3)]),
        nn.MaxPool2d(3, 2),
        chain(scale(64), [(scale(80), 1)]),
        *blocks.conv_norm(scale(80), scale(192), 3, pad=False),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
    ]


def network(divisor: int, pools: tuple[int, ...], inners: tuple[int, ...], last: int, classes: int) -> nn.Sequential:
    """Channels divided by `divisor`; a block A for each of `pools`, a C for each of `inners`,
    `last` blocks E."""

    def scale(channels: int) -> int:
        return channels // divisor

    layers = stem(scale)
    channels = scale(192)
    for pool in pools:
        layers.append(block_a(channels, scale, pool))
        channels = scale(64) + scale(64) + scale(96) + scale(pool)
    layers.append(reduction_b(channels, scale))
    channels += scale(384) + scale(96)
    for inner in inners:
        layers.append(block_c(channels, scale, inner))
        channels = 4 * scale(192)
    layers.append(reduction_d(channels, scale))
    channels += scale(320) + scale(192)
    for _ in range(last):
        layers.append(block_e(channels, scale))
        channels = scale(320) + 4 * scale(384) + scale(192)
    return nn.Sequential(*layers, *blocks.head(channels, classes))


def inception_v3(*, small: bool = True, seed: int = 0, batch: int = 1, keep_norms: bool = True) -> onnx.ModelProto:
    """Inception-v3 at 299, or one block of each kind with a sixteenth of the channels at 79."""
    if small:
        module, size = network(16, (32,), (128,), 1, 10), 79
    else:
        module, size = network(1, (32, 64, 64), (128, 160, 160, 192), 2, 1000), 299
    return blocks.to_onnx(module, (3, size, size), batch, seed, keep_norms)
