"""The targets as the optimizer knows them: `taso_mirage/targets/` has all of one in a folder."""

from __future__ import annotations

from collections.abc import Iterable

from taso_mirage.targets.cpu.target import CPU
from taso_mirage.targets.cuda.target import CUDA
from taso_mirage.targets.known import TARGETS, target
from taso_mirage.targets.openvino.target import OPENVINO
from taso_mirage.targets.protocol import Target

__all__ = ["CPU", "CUDA", "LAYOUT", "OPENVINO", "TARGETS", "Target", "running", "target"]

LAYOUT = frozenset(
    (
        "conv nhwc_conv conv_transpose max_pool average_pool global_max_pool global_average_pool batch_norm lrn "
        "depth_to_space space_to_depth"
    ).split()
)
"""Operators that the runtime may run with channels last (`cuda_nhwc_onnx_ops` of ONNX Runtime), and the convolution that always is: a
variant of a target changes the layout of these, or which of cuDNN's algorithms runs them."""


def running(target: Target, operators: Iterable[str]) -> Target:
    """The target without the options that change nothing for these operators, so that variants share what is measured."""
    return target.plain if LAYOUT.isdisjoint(operators) else target
