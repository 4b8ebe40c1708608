"""A UNet, a diffusion transformer and EfficientNet as modules that need no other package than
PyTorch, for `minute_models.py`."""

from __future__ import annotations

import torch
from decoders import Built
from torch import nn
from torch.nn import functional as F

# ---------------------------------------------------------------- diffusion


class Attention(nn.Module):
    """Attention of tokens among each other, or over others."""

    def __init__(self, width: int, heads: int, other: int | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key, self.value = (nn.Linear(other or width, width, bias=False) for _ in range(2))
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        q, k, v = self._heads(self.query(x)), self._heads(self.key(other)), self._heads(self.value(other))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        found: torch.Tensor = self.out(mixed)
        return found

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class Residual(nn.Module):
    """Two convolutions with group norms, shifted by the time step."""

    def __init__(self, before: int, after: int, time: int, groups: int) -> None:
        super().__init__()
        self.first, self.second = nn.GroupNorm(groups, before), nn.GroupNorm(groups, after)
        self.enter, self.leave = nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1)
        self.time = nn.Linear(time, after)
        self.skip = nn.Identity() if before == after else nn.Conv2d(before, after, 1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.enter(F.silu(self.first(x))) + self.time(F.silu(time))[:, :, None, None]
        found: torch.Tensor = self.leave(F.silu(self.second(y))) + self.skip(x)
        return found


class Spatial(nn.Module):
    """A transformer's block over the places of an image, with the text, and a gated MLP."""

    def __init__(self, width: int, heads: int, text: int, groups: int) -> None:
        super().__init__()
        self.norm, self.norms = nn.GroupNorm(groups, width, eps=1e-6), nn.ModuleList(nn.LayerNorm(width) for _ in "123")
        self.enter, self.leave = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.own, self.cross = Attention(width, heads), Attention(width, heads, text)
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, image: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        height, width = image.shape[2:]
        x = self.enter(self.norm(image)).flatten(2).transpose(1, 2)
        y = self.norms[0](x)
        x = x + self.own(y, y)
        x = x + self.cross(self.norms[1](x), text)
        value, gate = self.up(self.norms[2](x)).chunk(2, dim=-1)
        x = x + self.down(value * F.gelu(gate))
        found: torch.Tensor = self.leave(x.transpose(1, 2).unflatten(2, (height, width))) + image
        return found


class Level(nn.Module):
    """The blocks of one resolution."""

    def __init__(self, sizes: list[tuple[int, int]], attends: bool, time: int, text: int, groups: int) -> None:
        super().__init__()
        self.residuals = nn.ModuleList(Residual(a, b, time, groups) for a, b in sizes)
        self.spatials = nn.ModuleList(Spatial(b, 8, text, groups) for _, b in sizes) if attends else None

    def block(self, i: int, x: torch.Tensor, time: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        x = self.residuals[i](x, time)
        found: torch.Tensor = x if self.spatials is None else self.spatials[i](x, text)
        return found


class UNet(nn.Module):
    """The form of Stable Diffusion's UNet (Rombach et al., 2022)."""

    def __init__(self, widths: tuple[int, ...], blocks: int, text: int, groups: int) -> None:
        super().__init__()
        time, last = 4 * widths[0], len(widths) - 1
        self.base = widths[0]
        self.time = nn.Sequential(nn.Linear(widths[0], time), nn.SiLU(), nn.Linear(time, time))
        self.enter = nn.Conv2d(4, widths[0], 3, padding=1)
        self.down, self.shrink = nn.ModuleList(), nn.ModuleList()
        kept, now = [widths[0]], widths[0]
        for i, width in enumerate(widths):
            sizes = [(now if k == 0 else width, width) for k in range(blocks)]
            self.down.append(Level(sizes, i < last, time, text, groups))
            kept += [width] * blocks
            now = width
            if i < last:
                self.shrink.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
                kept.append(width)
        self.middle = Level([(now, now), (now, now)], True, time, text, groups)
        self.up, self.grow = nn.ModuleList(), nn.ModuleList()
        for i, width in reversed([*enumerate(widths)]):
            sizes = []
            for _ in range(blocks + 1):
                sizes.append((now + kept.pop(), width))
                now = width
            self.up.append(Level(sizes, i < last, time, text, groups))
            if i:
                self.grow.append(nn.Conv2d(width, width, 3, padding=1))
        self.norm, self.leave = nn.GroupNorm(groups, now), nn.Conv2d(now, 4, 3, padding=1)

    def forward(
        self, sample: torch.Tensor, timestep: torch.Tensor, encoder_hidden_states: torch.Tensor
    ) -> torch.Tensor:
        half = torch.arange(self.base // 2, device=sample.device, dtype=torch.float32) * (-9.21 / (self.base // 2))
        angles = timestep[:, None].float() * half.exp()[None]
        time = self.time(torch.cat([angles.cos(), angles.sin()], -1).to(sample.dtype))
        x, kept = self.enter(sample), [self.enter(sample)]
        for i, level in enumerate(self.down):
            for k in range(len(level.residuals)):
                x = level.block(k, x, time, encoder_hidden_states)
                kept.append(x)
            if i < len(self.shrink):
                x = self.shrink[i](x)
                kept.append(x)
        for k in range(2):
            x = self.middle.block(k, x, time, encoder_hidden_states)
        for i, level in enumerate(self.up):
            for k in range(len(level.residuals)):
                x = level.block(k, torch.cat([x, kept.pop()], 1), time, encoder_hidden_states)
            if i < len(self.grow):
                x = self.grow[i](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        found: torch.Tensor = self.leave(F.silu(self.norm(x)))
        return found


def unet(
    widths: tuple[int, ...] = (320, 640, 1280, 1280),
    blocks: int = 2,
    text: int = 768,
    side: int = 64,
    batch: int = 2,
    groups: int = 32,
) -> Built:
    inputs = {
        "sample": torch.randn(batch, 4, side, side),
        "timestep": torch.full((batch,), 500, dtype=torch.int64),
        "encoder_hidden_states": torch.randn(batch, 77, text),
    }
    return UNet(widths, blocks, text, groups), inputs


class DiTBlock(nn.Module):
    """A transformer's block whose norms are shifted and scaled by the condition."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.own, self.modulation = Attention(width, heads), nn.Linear(width, 6 * width)
        self.norm = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        shift, scale, gate, shift2, scale2, gate2 = self.modulation(F.silu(condition))[:, None].chunk(6, -1)
        y = self.norm(x) * (1 + scale) + shift
        x = x + gate * self.own(y, y)
        y = self.norm(x) * (1 + scale2) + shift2
        found: torch.Tensor = x + gate2 * self.down(F.gelu(self.up(y), approximate="tanh"))
        return found


class DiT(nn.Module):
    """A diffusion transformer with labels (Peebles and Xie, 2023)."""

    def __init__(self, width: int, layers: int, heads: int, side: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(4, width, 2, stride=2)
        self.positions = nn.Parameter(0.02 * torch.randn(1, side * side // 4, width))
        self.labels, self.times = nn.Embedding(1001, width), nn.Embedding(1000, width)
        self.blocks = nn.ModuleList(DiTBlock(width, heads) for _ in range(layers))
        self.norm, self.leave = nn.LayerNorm(width, elementwise_affine=False), nn.Linear(width, 2 * 2 * 8)
        self.side = side // 2

    def forward(self, sample: torch.Tensor, timestep: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.patches(sample).flatten(2).transpose(1, 2) + self.positions
        condition = self.times(timestep) + self.labels(labels)
        for block in self.blocks:
            x = block(x, condition)
        y = self.leave(self.norm(x)).unflatten(1, (self.side, self.side)).unflatten(3, (2, 2, 8))
        found: torch.Tensor = y.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)
        return found


def dit(width: int = 1152, layers: int = 28, heads: int = 16, side: int = 32, batch: int = 2) -> Built:
    at = torch.full((batch,), 500, dtype=torch.int64)
    return DiT(width, layers, heads, side), {
        "sample": torch.randn(batch, 4, side, side),
        "timestep": at,
        "labels": at.clone(),
    }


# ---------------------------------------------------------------- convolutions


class Inverted(nn.Module):
    """An inverted bottleneck with squeeze and excitation (EfficientNet, Tan and Le, 2019)."""

    def __init__(self, before: int, after: int, kernel: int, stride: int, factor: int) -> None:
        super().__init__()
        inner = before * factor
        self.enter = nn.Sequential(nn.Conv2d(before, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.SiLU())
        self.depth = nn.Sequential(
            nn.Conv2d(inner, inner, kernel, stride, kernel // 2, groups=inner, bias=False),
            nn.BatchNorm2d(inner),
            nn.SiLU(),
        )
        squeezed = max(before // 4, 1)
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(inner, squeezed, 1), nn.SiLU(), nn.Conv2d(squeezed, inner, 1)
        )
        self.leave = nn.Sequential(nn.Conv2d(inner, after, 1, bias=False), nn.BatchNorm2d(after))
        self.expands, self.adds = factor > 1, before == after and stride == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.depth(self.enter(x) if self.expands else x)
        y = self.leave(y * torch.sigmoid(self.squeeze(y)))
        found: torch.Tensor = x + y if self.adds else y
        return found


STAGES = (
    (1, 16, 1, 3, 1),
    (6, 24, 2, 3, 2),
    (6, 40, 2, 5, 2),
    (6, 80, 3, 3, 2),
    (6, 112, 3, 5, 1),
    (6, 192, 4, 5, 2),
    (6, 320, 1, 3, 1),
)
"""Stages of EfficientNet-B0: factor, width, blocks, kernel, stride."""


def efficientnet(batch: int = 1, side: int = 224, scale: float = 1.0, deeper: int = 0, head: int = 1280) -> Built:
    def wide(width: int) -> int:
        return max(8, int(width * scale + 4) // 8 * 8)

    layers: list[nn.Module] = [nn.Conv2d(3, wide(32), 3, 2, 1, bias=False), nn.BatchNorm2d(wide(32)), nn.SiLU()]
    now = wide(32)
    for factor, width, blocks, kernel, stride in STAGES:
        for i in range(blocks + deeper):
            layers.append(Inverted(now, wide(width), kernel, stride if i == 0 else 1, factor))
            now = wide(width)
    layers += [nn.Conv2d(now, wide(head), 1, bias=False), nn.BatchNorm2d(wide(head)), nn.SiLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide(head), 1000)]
    return Sequence(*layers), {"pixel_values": torch.randn(batch, 3, side, side)}


class Sequence(nn.Sequential):
    """Layers in a row, with a name for the input."""

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = super().forward(pixel_values)
        return found
