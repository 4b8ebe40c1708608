"""Seeded random weights with which activations neither explode nor vanish."""

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Weights: TypeAlias = NDArray[np.float32]


def normal(generator: np.random.Generator, shape: Sequence[int], mean: float = 0.0, deviation: float = 1.0) -> Weights:
    """Independent normal values in float32."""
    values = generator.standard_normal(tuple(shape), dtype=np.float32)
    values *= np.float32(deviation)
    values += np.float32(mean)
    return values


def linear(generator: np.random.Generator, shape: Sequence[int], fan_in: int, gain: float = 1.0) -> Weights:
    """Weights for which an input of mean square q gives an output of mean square gain * q."""
    return normal(generator, shape, deviation=math.sqrt(gain / fan_in))


def variance(generator: np.random.Generator, shape: Sequence[int]) -> Weights:
    """The running variance of a normalization: positive, and near one."""
    return generator.uniform(0.8, 1.25, tuple(shape)).astype(np.float32)
