"""The targets as the optimizer knows them: `taso_mirage/targets/` has all of one in a folder."""

from __future__ import annotations

from collections.abc import Iterable

from taso_mirage.operators.ops import load_specs
from taso_mirage.targets.cpu.target import CPU, UNOPTIMIZED
from taso_mirage.targets.cuda.target import CUDA
from taso_mirage.targets.known import TARGETS, target
from taso_mirage.targets.openvino.target import OPENVINO
from taso_mirage.targets.protocol import Target

__all__ = ["CPU", "CUDA", "OPENVINO", "TARGETS", "UNOPTIMIZED", "Target", "target", "target_for"]


def target_for(target: Target, operators: Iterable[str]) -> Target:
    """The target without the options that change nothing for these operators, so that variants
    share measurements."""
    specs = load_specs()
    vary = any(name in specs and specs[name].traits.layout for name in operators)
    return target if vary else target.plain
