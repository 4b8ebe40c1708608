"""The optimizer's view of targets; `taso_mirage/targets/` has a folder with everything about
each."""

from __future__ import annotations

from collections.abc import Iterable

from taso_mirage.operators.ops import load_specs
from taso_mirage.targets.cpu.target import CPU, UNOPTIMIZED
from taso_mirage.targets.cuda.target import CUDA
from taso_mirage.targets.known import AUTO, TARGETS, on_threads, runtimes_beside, target, targets_with_kernels
from taso_mirage.targets.openvino.target import OPENVINO
from taso_mirage.targets.protocol import Target

__all__ = [
    "AUTO",
    "CPU",
    "CUDA",
    "OPENVINO",
    "TARGETS",
    "UNOPTIMIZED",
    "Target",
    "on_threads",
    "runtimes_beside",
    "target",
    "target_for",
    "targets_with_kernels",
]


def target_for(target: Target, operators: Iterable[str]) -> Target:
    """The target without options that have no effect on these operators, so that variants share
    measurements."""
    specs = load_specs()
    vary = any(name in specs and specs[name].traits.layout for name in operators)
    return target if vary else target.plain
