"""Arithmetic modulo two primes, and the effect of scalar functions on residues.

The meaning `field` is built from these. The rules are for the records of functions; a function
without one is a random oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from taso_mirage.ir.terms import is_float
from taso_mirage.meanings.arrays import Array

P, Q = 65063, 32531  # safe primes, p = 2q + 1; float64 products of inner size up to 2^21 are exact
MODULI = np.array([P, Q], np.int64)
SQRT_P, SQRT_Q = (3 * P - 1) // 4, (Q + 1) // 4  # both odd: an even exponent would accept sqrt(-x) = sqrt(x)


@dataclass(frozen=True, slots=True)
class Image:
    """Residues (2, trials, *shape), whether the mod-q side is defined, and which trials decide."""

    data: Array
    full: bool
    valid: Array


@dataclass(frozen=True, slots=True)
class Preimage:
    """The operands of a function whose result has `dtype`.

    `full` and `valid` are those of all operands; `generator` has one element of order q a trial.
    """

    arrays: list[Array]
    dtype: str
    full: bool
    valid: Array
    generator: Array

    def image(self, data: Array) -> Image:
        return Image(data, self.full, self.valid)

    def without(self, undecided: Array) -> Array:
        """The trials that decide, without those that have an undecided element."""
        return self.valid & ~undecided.reshape(len(self.valid), -1).any(axis=1)


FieldRule: TypeAlias = Callable[[Preimage], Image | None]
"""None where the field knows nothing: the function is an oracle on floats, and itself on
integers."""


def moduli(rank: int) -> Array:
    """The two primes, shaped to broadcast with residues of tensors of a rank."""
    return MODULI.reshape(2, 1, *(1,) * rank)


def centred(residues: Array) -> Array:
    """Residues mod p as integers around 0."""
    return np.where(residues > P // 2, residues - P, residues)


def residue_power(base: Array, exponent: Array | np.int64, modulus: int) -> Array:
    """base ** exponent mod modulus, elementwise, by squaring; products stay below 2^33."""
    base, exponent = np.broadcast_arrays(np.asarray(base, np.int64), exponent)
    result, exponent = np.ones_like(base), exponent.copy()
    while exponent.any():
        result = np.where(exponent & 1, result * base % modulus, result)
        base = base * base % modulus
        exponent = exponent >> 1
    return result


# ---------------------------------------------------------------- rules


def exact(fn: Callable[..., Array]) -> FieldRule:
    """A function of residues that both sides have alike: ring arithmetic."""

    def rule(of: Preimage) -> Image:
        return of.image(fn(*of.arrays) % moduli(max(a.ndim for a in of.arrays) - 2))

    return rule


def residue_order(
    choose: Callable[[list[Array], list[Array]], Array], ties: Callable[[list[Array]], Array] | None = None
) -> FieldRule:
    """Decide on centred mod-p residues, then take both sides of the choice.

    `ties`: where the order mod p leaves open which residue mod q is chosen; such a trial decides
    nothing.
    """

    def rule(of: Preimage) -> Image:
        result = choose([centred(a[0]) for a in of.arrays], of.arrays)
        data = np.broadcast_to(result, (2, *result.shape[1:])) if result.shape[0] == 1 else result
        valid = of.without(ties(of.arrays)) if of.full and ties is not None else of.valid
        return replace(of.image(data), valid=valid)

    return rule


def tested(fn: Callable[[Array, Array], Array]) -> FieldRule:
    """A comparison of centred residues."""
    return residue_order(lambda order, arrays: fn(order[0], order[1]).astype(np.int64)[None])


def tied_residues(arrays: list[Array]) -> Array:
    """Where two numbers are equal mod p alone."""
    a, b = arrays
    return np.asarray((a[0] == b[0]) & (a[1] != b[1]))


def quotient(of: Preimage) -> Image | None:
    """A quotient, or the reciprocal of one operand; trials with a zero denominator do not
    decide."""
    if not is_float(of.dtype):
        return None
    numerator = of.arrays[0] if len(of.arrays) == 2 else np.ones_like(of.arrays[0])
    denominator = of.arrays[-1]
    inverse = np.stack([residue_power(denominator[i], np.int64(m - 2), int(m)) for i, m in enumerate(MODULI)])
    zero = (denominator[0] == 0) | (of.full & (denominator[1] == 0))
    data = numerator * inverse % moduli(inverse.ndim - 2)
    return Image(data, of.full, of.without(zero))


def exponential(of: Preimage) -> Image | None:
    """g^x: at most one exponential on a path has a meaning; further ones are oracles."""
    if not is_float(of.dtype) or not of.full:
        return None
    a = of.arrays[0]
    generator = of.generator.reshape(len(of.valid), *(1,) * (a.ndim - 2))
    found = residue_power(np.broadcast_to(generator, a.shape[1:]), a[1], P)
    return Image(np.stack([found, np.zeros_like(found)]), False, of.valid)


def whole_power(of: Preimage) -> Image | None:
    """A power by a small whole number, so that x^2 is x*x; other powers are oracles."""
    base, exponents = of.arrays
    first = int(exponents.flat[0]) if exponents.size else -1
    if not 0 <= first <= 8 or not (exponents == first).all():
        return None
    return of.image(np.stack([residue_power(a, np.int64(first), int(m)) for a, m in zip(base, MODULI, strict=True)]))


def root(a: Array) -> Array:
    """An odd power map, so it is multiplicative."""
    return np.stack([residue_power(a[0], np.int64(SQRT_P), P), residue_power(a[1], np.int64(SQRT_Q), Q)])
