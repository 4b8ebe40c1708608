"""The meaning `field`: exact residues modulo two primes, for fingerprints (Mirage section 5; PET
Theorem 2).

A value is a residue mod p and one mod q, q | p - 1, over a leading axis of independent trials.
exp(x) = g^x_q mod p with g of order q, so exp(a + b) = exp(a) exp(b) holds; sqrt is an odd power
map, so it is multiplicative; order is on centred residues; every other function of floats is a
keyed random oracle. Equal programs agree on every trial; two different polynomials of degree d
agree on one trial with probability at most d / 32531.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import numpy as np

from taso_mirage.ir.dims import Dim, Shape
from taso_mirage.ir.terms import Literal, Tensor, integer_limits, is_float, is_stored
from taso_mirage.meanings.arrays import Array, aligned, padded_array, pairwise, windows
from taso_mirage.meanings.base import Meaning, Scalar, contraction
from taso_mirage.meanings.functions import function_of
from taso_mirage.meanings.residues import MODULI, P, Preimage, centred, moduli, residue_power
from taso_mirage.meanings.shapes import SHAPES

SMALL = (-256, 256)
"""The range of integers whose residues rounding functions recognise as integers; other residues
rarely fall into it."""


@dataclass(frozen=True, slots=True)
class Residues:
    """`data` is (2, trials, *shape) of int64 residues; `full` says whether the mod-q side is
    defined (not behind an exp); `valid` marks the trials that decide: no zero denominator, and no
    order between numbers equal mod p alone; `held`, if known, is a narrower float type that has all
    these numbers, as they were converted from it."""

    data: Array
    dtype: str
    full: bool
    valid: Array
    held: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape[2:]


class Field(Meaning[Residues]):
    """One instance holds the trials' generators and the oracles' key, so values of one instance can
    be compared."""

    def __init__(self, trials: int = 8, seed: int = 0) -> None:
        self.trials, self.key = trials, seed
        self.rng = np.random.default_rng(seed)
        self.generator = residue_power(self.rng.integers(2, P - 1, (trials, 1)), np.int64(2), P)

    def repeated(self, times: int) -> Field:
        """The field of several programs side by side, each with this one's trials: values of (times
        * trials, ...)."""
        wide = copy(self)
        wide.trials, wide.generator = self.trials * times, np.tile(self.generator, (times, 1))
        return wide

    def fresh(self, type: Tensor) -> Residues:
        """Independent uniform residues; integers are 0 or 1 (legal indices), booleans fair."""
        shape = tuple(int(n) for n in SHAPES.shape(type))
        if is_float(type.dtype):
            sides = [self.rng.integers(0, m, (self.trials, *shape)) for m in MODULI]
            return self._make(np.stack(sides), type.dtype)
        data = self.rng.integers(0, 2, (self.trials, *shape))
        return self._make(np.stack([data, data]), type.dtype)

    def _make(self, data: Array, dtype: str, full: bool = True, valid: Array | None = None) -> Residues:
        return Residues(data, dtype, full, np.ones(self.trials, bool) if valid is None else valid)

    def load(self, array: Array) -> Residues:
        """Numbers as residues. A float is converted as a dyadic rational; infinities are the ends
        of the order."""
        array = np.asarray(array)
        if array.dtype.kind in "biu":
            data = array.astype(np.int64)[None, None] % moduli(array.ndim)
        else:
            data = np.stack([_rationals(array.astype(np.float64), int(m)) for m in MODULI])[:, None]
        return self._make(np.broadcast_to(data, (2, self.trials, *array.shape)), array.dtype.name)

    def shape(self, a: Residues) -> Shape:
        return a.shape

    def dtype(self, a: Residues) -> str:
        return a.dtype

    def constant(self, value: Literal) -> Residues:
        return self.load(value.numpy())

    def extents(self, values: Sequence[Dim], scalar: bool = False) -> Residues:
        return self.load(np.array(values[0] if scalar else list(values), np.int64))

    def iota(self, n: Dim, dtype: str = "int64") -> Residues:
        return replace(self.load(np.arange(int(n), dtype=np.int64)), dtype=dtype)

    # ------------------------------------------------------------ elements

    def map(self, fn: Scalar, *xs: Residues) -> Residues:
        dtype = SHAPES.map(fn, *[Tensor(x.dtype, ()) for x in xs]).dtype
        full = all(x.full for x in xs)
        valid = np.logical_and.reduce([x.valid for x in xs])
        arrays = aligned([x.data for x in xs], 2)
        function = function_of(fn)
        if function.field is not None:
            found = function.field(Preimage(arrays, dtype, full, valid, self.generator))
            if found is not None:
                return self._make(found.data, dtype, found.full, found.valid)
        if any(is_float(x.dtype) for x in xs):
            drawn = self._oracle(function.name, arrays, dtype, valid)
            return _kept(drawn, xs[0], SMALL) if function.known("integer") else drawn
        return self._make(_as_integers(fn, arrays), dtype, full, valid)

    def _oracle(self, name: str, arrays: list[Array], dtype: str, valid: Array) -> Residues:
        """A random function of the mod-p residues, keyed by name, dtype and seed."""
        shape = np.broadcast_shapes(*[a.shape[1:] for a in arrays])
        state = np.full(shape, crc32(f"{name}:{dtype}:{self.key}".encode()), np.uint64)
        for a in arrays:
            state = mixed_bits(state ^ mixed_bits(a[0].astype(np.uint64)))
        data = np.stack(
            [(mixed_bits(state + np.uint64(i)) >> np.uint64(20)).astype(np.int64) % m for i, m in enumerate(MODULI)]
        )
        return self._make(data % 2 if dtype == "bool" else data, dtype, True, valid)

    def cast(self, a: Residues, dtype: str) -> Residues:
        if a.dtype == dtype:
            return a
        if dtype == "bool":
            return replace(
                a, data=np.broadcast_to((a.data[0] != 0).astype(np.int64), a.data.shape), dtype=dtype, full=True
            )
        if _widens(a.dtype, dtype):
            return replace(a, dtype=dtype, held=a.held or (a.dtype if is_float(a.dtype) else ""))
        if a.held and (a.held == dtype or _widens(a.held, dtype)):
            return replace(a, dtype=dtype, held="" if a.held == dtype else a.held)
        if not is_float(a.dtype) and not is_float(dtype):
            return replace(a, dtype=dtype)
        drawn = self._oracle("cast", [a.data], dtype, a.valid)  # the result depends on the value, not on its origin
        return drawn if is_float(dtype) else _kept(drawn, a, _whole_of(dtype))

    # ------------------------------------------------------------ folds

    def contract(self, equation: str, a: Residues, b: Residues) -> Residues:
        letters_a, letters_b, result = contraction(equation, len(a.shape), len(b.shape))
        sizes = dict(zip(letters_a, a.shape, strict=True))
        for c, n in zip(letters_b, b.shape, strict=True):
            sizes[c] = max(n, sizes.get(c, n))
        left = np.broadcast_to(a.data, (2, self.trials, *[sizes[c] for c in letters_a])).astype(np.float64)
        right = np.broadcast_to(b.data, (2, self.trials, *[sizes[c] for c in letters_b])).astype(np.float64)
        lone_a = [i + 2 for i, c in enumerate(letters_a) if c not in letters_b + result]
        if lone_a:
            left = left.sum(axis=tuple(lone_a)) % moduli(left.ndim - 2 - len(lone_a))
            letters_a = "".join(c for c in letters_a if c in letters_b + result)
        data = pairwise(left, right, "01" + letters_a, "01" + letters_b, "01" + result)
        data = data.astype(np.int64) % moduli(data.ndim - 2)
        return self._make(data, a.dtype, a.full and b.full, a.valid & b.valid)

    def reduce(self, fn: np.ufunc, a: Residues, axes: Sequence[int], keepdims: bool = True) -> Residues:
        data, valid = a.data, a.valid
        for axis in axes:
            folded = _fold(fn, data, axis + 2)
            if a.full and fn in (np.maximum, np.minimum):
                tied = (data[0] == folded[0]) & (data[1] != folded[1])
                valid = valid & ~tied.reshape(self.trials, -1).any(axis=1)
            data = folded
        return replace(a, data=data if keepdims else data.squeeze(tuple(i + 2 for i in axes)), valid=valid, held="")

    def cumulate(self, fn: np.ufunc, a: Residues, axis: int) -> Residues:
        parts = [self.reduce(fn, self.slice(a, axis, 0, i + 1), [axis]) for i in range(a.shape[axis])]
        return self.concat(parts, axis) if parts else a

    # ------------------------------------------------------------ structure

    def _structure(self, a: Residues, fn: Callable[[Array], Array]) -> Residues:
        return replace(a, data=fn(a.data))

    def reshape(self, a: Residues, shape: Sequence[Dim]) -> Residues:
        return self._structure(a, lambda d: d.reshape(2, self.trials, *[int(n) for n in shape]))

    def transpose(self, a: Residues, perm: Sequence[int]) -> Residues:
        return self._structure(a, lambda d: d.transpose(0, 1, *[i + 2 for i in perm]))

    def expand(self, a: Residues, shape: Sequence[Dim]) -> Residues:
        sizes = [int(n) for n in shape]
        (data,) = aligned([a.data.reshape(2, self.trials, *(1,) * (len(sizes) - len(a.shape)), *a.shape)], 2)
        return replace(a, data=np.broadcast_to(data, (2, self.trials, *sizes)))

    def concat(self, xs: Sequence[Residues], axis: int) -> Residues:
        data = np.concatenate([x.data for x in xs], axis + 2)
        valid = np.logical_and.reduce([x.valid for x in xs])
        return self._make(data, xs[0].dtype, all(x.full for x in xs), valid)

    def slice(self, a: Residues, axis: int, start: Dim, stop: Dim, step: int = 1) -> Residues:
        end = None if step < 0 and stop == -1 else int(stop)
        return self._structure(a, lambda d: d[(slice(None),) * (axis + 2) + (slice(int(start), end, step),)])

    def pad(
        self,
        a: Residues,
        low: Sequence[Dim],
        high: Sequence[Dim],
        value: float = 0,
        interior: Sequence[int] | None = None,
    ) -> Residues:
        fill = self.load(np.asarray(value, np.float64)).data[:, 0]
        before, after, inner = [int(n) for n in low], [int(n) for n in high], list(interior or [0] * len(a.shape))
        sides = [padded_array(a.data[i], [0, *before], [0, *after], fill[i], [0, *inner]) for i in range(2)]
        return replace(a, data=np.stack(sides), held="")

    def window(
        self, a: Residues, axes: Sequence[int], sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
    ) -> Residues:
        return self._structure(a, lambda d: windows(d, [i + 2 for i in axes], sizes, strides, dilations))

    def take(self, a: Residues, indices: Residues, axis: int) -> Residues:
        chosen = centred(indices.data[0])
        if (chosen == chosen[:1]).all():
            return self._structure(a, lambda d: np.take(d, chosen[0], axis + 2))
        parts = [np.take(a.data[:, t], chosen[t], axis + 1) for t in range(self.trials)]
        return replace(a, data=np.stack(parts, 1), valid=a.valid & indices.valid)

    def take_along(self, a: Residues, indices: Residues, axis: int) -> Residues:
        chosen = centred(indices.data[0])
        chosen = np.where(chosen < 0, chosen + a.shape[axis], chosen)
        sizes = [max(n, 1) if i == axis else m for i, (n, m) in enumerate(zip(a.shape, indices.shape, strict=True))]
        data = a.data[(slice(None), slice(None), *[slice(0, n) for n in sizes])]
        return replace(a, data=np.take_along_axis(data, np.broadcast_to(chosen, (2, *chosen.shape)), axis + 2))

    def put(self, a: Residues, places: Sequence[Residues], updates: Residues, fn: np.ufunc | None = None) -> Residues:
        at = [centred(place.data[0]) for place in places]
        data, valid = a.data.copy(), np.logical_and.reduce([a.valid, updates.valid, *(place.valid for place in places)])
        full, trials = a.full and updates.full, np.arange(self.trials)
        for j in np.ndindex(*places[0].shape):
            index: tuple[Any, ...] = (slice(None), trials, *[p[(slice(None), *j)] for p in at])
            new = replace(updates, data=updates.data[(slice(None), slice(None), *j)])
            if fn is not None:
                new = self.map(fn, replace(a, data=data[index]), new)
                full, valid = full and new.full, valid & new.valid
            data[index] = new.data
        return self._make(data, a.dtype, full, valid)


def _as_integers(fn: Scalar, arrays: list[Array]) -> Array:
    """A function of integers or booleans is itself, on the integers that the residues stand for."""
    with np.errstate(all="ignore"):
        result = np.asarray(fn(*[centred(a[0]) for a in arrays])).astype(np.int64)
    return result[None] % moduli(result.ndim - 1)


def _kept(drawn: Residues, a: Residues, whole: tuple[int, int]) -> Residues:
    """An oracle's random values, except that whole numbers between two bounds keep their value.

    It depends on the residue mod p alone, as the oracle does: so equal programs agree.
    """
    number = centred(a.data[0])
    kept = (whole[0] <= number) & (number <= whole[1])
    return replace(drawn, data=np.where(kept[None], number[None] % moduli(number.ndim - 1), drawn.data))


def _whole_of(dtype: str) -> tuple[int, int]:
    """The small integers that a dtype holds."""
    low, high = integer_limits(dtype)
    return max(low, SMALL[0]), min(high, SMALL[1])


def _fold(fn: np.ufunc, data: Array, axis: int) -> Array:
    if fn is np.add:
        return np.asarray(data.sum(axis=axis, keepdims=True) % moduli(data.ndim - 2))
    if fn in (np.maximum, np.minimum):
        order = centred(data[0])
        at = (order.argmax if fn is np.maximum else order.argmin)(axis=axis - 1, keepdims=True)
        return np.take_along_axis(data, np.broadcast_to(at, (2, *at.shape)), axis)
    moved = np.moveaxis(data, axis, 0)
    total = np.ones_like(moved[0])
    for each in moved:
        total = fn(total, each) % moduli(total.ndim - 2)
    return np.expand_dims(total, axis)


def _rationals(array: Array, modulus: int) -> Array:
    values, where = np.unique(array.ravel(), return_inverse=True)
    residues = [_rational(float(v), modulus) for v in values]
    return np.array(residues, np.int64)[where].reshape(array.shape) if array.size else array.astype(np.int64)


def _rational(value: float, modulus: int) -> int:
    if value == np.inf:
        return modulus // 2
    if value == -np.inf or value < -1e30:
        return modulus // 2 + 1  # the least centred residue; -1e38 and the like stand for minus infinity in masks
    if np.isnan(value):
        return 12345 % modulus
    numerator, denominator = value.as_integer_ratio()
    return numerator % modulus * pow(denominator, modulus - 2, modulus) % modulus


def mixed_bits(x: Array) -> Array:
    """splitmix64's finaliser."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: Array = x ^ (x >> np.uint64(31))
    return mixed


def _widens(old: str, new: str) -> bool:
    if is_float(new) and not is_float(old):
        return not is_stored(new)
    return _FROM.get(old, 9) < _TO.get(new, 0)


_FROM = {"float8_e4m3fn": 0, "float8_e5m2": 0, "float16": 1, "bfloat16": 1, "float32": 2, "float64": 3}
_TO = {"float16": 1, "bfloat16": 1, "float32": 2, "float64": 3}


def agree(a: Residues, b: Residues) -> bool | None:
    """Whether two values of one Field are equal on every valid trial; None if no trial is valid."""
    valid = a.valid & b.valid
    if not valid.any():
        return None
    sides = 2 if a.full and b.full else 1
    return a.shape == b.shape and bool(np.array_equal(a.data[:sides, valid], b.data[:sides, valid]))
