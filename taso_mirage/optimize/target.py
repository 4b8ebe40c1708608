"""Targets: where a model runs, and a roofline of that machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from taso_mirage.errors import InvalidOption
from taso_mirage.ops import load_specs

CHANNELS_LAST = ("prefer_nhwc", "1")


@dataclass(frozen=True, slots=True)
class Target:
    """An execution provider of ONNX Runtime with its options; seconds to start an operator, operations and bytes a second."""

    name: str
    provider: str
    options: tuple[tuple[str, str], ...] = ()
    launch: float = 3e-6
    flops: float = 5e10
    bandwidth: float = 1e10

    @property
    def variants(self) -> tuple[Target, ...]:
        """The same with other options that change how convolutions and pools run: cuDNN's own choice of algorithm (the provider's trial
        of all of them can take one ten times as slow), and with it channels last, for which ONNX has no word."""
        if not self.gpu:
            return ()
        chosen = (*self.options, ("cudnn_conv_algo_search", "HEURISTIC"))
        return (replace(self, options=chosen), replace(self, options=(*chosen, CHANNELS_LAST)))

    @property
    def channels_last(self) -> bool:
        """Whether the options ask for channels last in the whole model."""
        return CHANNELS_LAST in self.options

    def running(self, operators: Iterable[str]) -> Target:
        """The target without the options that change nothing for these operators, so that variants share what is measured."""
        base = TARGETS.get(self.name, self)
        return base if self in base.variants and not _vary(operators) else self

    @property
    def gpu(self) -> bool:
        return self.provider == "CUDAExecutionProvider"


def _vary(operators: Iterable[str]) -> bool:
    """Whether a variant of a target runs any of these operators in another way."""
    specs = load_specs()
    return any(name in specs and specs[name].traits.layout for name in operators)


CPU = Target("cpu", "CPUExecutionProvider")
CUDA = Target("cuda", "CUDAExecutionProvider", (("use_tf32", "0"),), 2e-6, 3e13, 2e12)
TARGETS = {t.name: t for t in (CPU, CUDA)}


def target(name: str) -> Target:
    """The target of this name."""
    if name not in TARGETS:
        raise InvalidOption(f"--target {name} is not known; the targets are: {', '.join(TARGETS)}")
    return TARGETS[name]
