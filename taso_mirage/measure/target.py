"""The optimizer's view of targets; `taso_mirage/targets/` has a folder with everything about
each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from taso_mirage.errors import InputsRefused, InvalidModel, RunRefused, RuntimeCrashed
from taso_mirage.operators.ops import load_specs
from taso_mirage.targets.cpu.target import CPU, UNOPTIMIZED, Cpu
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
    "at_running_level",
    "full_level",
    "lower_levels",
    "on_threads",
    "runtimes_beside",
    "target",
    "target_for",
    "targets_with_kernels",
]


Found = TypeVar("Found")


def target_for(target: Target, operators: Iterable[str]) -> Target:
    """The target without options that have no effect on these operators, so that variants share
    measurements."""
    specs = load_specs()
    vary = any(name in specs and specs[name].traits.layout for name in operators)
    return target if vary else target.plain


def lower_levels(target: Target) -> Sequence[Target]:
    """A target at lower levels of the runtime's own optimizations, the highest first; only the CPU
    has them."""
    return target.lower if isinstance(target, Cpu) else ()


def full_level(target: Target) -> Target:
    """A target at the full level of the runtime's own optimizations."""
    return target.full if isinstance(target, Cpu) else target


def at_running_level(run: Callable[[Target], Found], target: Target, runs: Callable[[Target], bool]) -> Found:
    """The result of a function of a target; where an original does not load or run there, or
    crashes the runtime, at the highest lower level of the runtime's own optimizations at which it
    `runs`.

    Raises the error of the first call where it runs at none, or where the crash has another cause.
    """
    try:
        return run(target)
    except (InvalidModel, RunRefused, InputsRefused, RuntimeCrashed) as error:
        *higher, lowest = lower_levels(target) or (target,)
        if lowest == target or not runs(lowest) or (isinstance(error, RuntimeCrashed) and runs(target)):
            raise
        return run(next(each for each in (*higher, lowest) if runs(each)))
