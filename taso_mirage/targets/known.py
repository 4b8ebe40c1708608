"""The targets by name.

A new one is a folder beside these, a line here, and one in `stamp.KNOWN`.
"""

from __future__ import annotations

from taso_mirage.errors import InvalidOption
from taso_mirage.targets.cpu.target import CPU
from taso_mirage.targets.cuda.target import CUDA
from taso_mirage.targets.openvino.target import OPENVINO
from taso_mirage.targets.protocol import Target

TARGETS: dict[str, Target] = {t.name: t for t in (CPU, CUDA, OPENVINO)}


def target(name: str) -> Target:
    """The target of this name."""
    if name not in TARGETS:
        raise InvalidOption(f"--target {name} is not known; the targets are: {', '.join(TARGETS)}")
    return TARGETS[name]
