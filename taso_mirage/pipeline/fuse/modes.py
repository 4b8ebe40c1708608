"""Whether kernels are searched, taken from earlier searches, or left out."""

from __future__ import annotations

from taso_mirage.errors import InvalidOption
from taso_mirage.lowering.backend import here
from taso_mirage.measure.target import Target
from taso_mirage.search.config import KERNELS, OFF, SEARCH, Config
from taso_mirage.system.wording import option


def check_mode(mode: str, measure: bool, target: Target | None = None) -> None:
    """Raise InvalidOption for an unknown mode, or one that needs measurements if nothing is
    measured; and, if a target is given, RuntimeUnavailable if this machine cannot make kernels for
    it."""
    if mode not in KERNELS:
        raise InvalidOption(f"{option('kernels', mode)} is not known; it is one of {', '.join(KERNELS)}")
    if mode != OFF and not measure:
        raise InvalidOption(
            f"{option('kernels', mode)} and {option('measure', False)} exclude each other: a kernel is kept if it was measured faster"
        )
    if mode != OFF and target is not None:
        here(target)


def usual_mode(config: Config) -> str:
    """The mode of kernels by default: kernels are searched, unless nothing is measured, the model
    is to be portable, or its target has no kernels."""
    none = config.target.lowering is None or config.portable
    return SEARCH if config.measure and not none else OFF
