"""The checker's normal forms as numbers, so that its reading of operators can be compared with a
runtime's results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from taso_mirage.checker.equations import program
from taso_mirage.checker.forms import FLOATS, INTS, WORK, Poly, Work, bits, fresh, just, variables

Array = NDArray[Any]
Number = int | float | Fraction


def computed(text: str, arrays: Mapping[str, Array], sizes: Mapping[str, int] | None = None) -> list[Array]:
    """The results of a text, element by element as the checker reads it."""
    token, leaves = WORK.set(Work(steps=1_000_000)), dict[str, Any]()
    try:
        results = []
        for tensor in program(text, leaves):
            shape = [int(Values(arrays, sizes or {}).number(n, {})) for n in tensor.shape]
            index = [fresh(n) for n in tensor.shape]
            element = tensor.at(*(just(*v) for v in index))
            values = Values(arrays, sizes or {})
            found = [values.number(element, dict(zip(index, at, strict=True))) for at in positions(shape)]
            results.append(as_array(tensor.dtype, shape, found))
        return results
    finally:
        WORK.reset(token)


def positions(shape: list[int]) -> Iterator[tuple[int, ...]]:
    return product(*map(range, shape))


def as_array(dtype: str, shape: list[int], numbers: list[Number]) -> Array:
    """Integers modulo 2**n, all else as float64."""
    if dtype in FLOATS or dtype == "bool":
        return np.array([float(x) for x in numbers]).reshape(shape)
    return np.array([wrapped(dtype, x) for x in numbers], object).reshape(shape).astype(dtype)


def wrapped(dtype: str, x: Number) -> int:
    low, high = bits(dtype)
    assert x == int(x), f"{x} is no integer"
    return (int(x) - low) % (high - low + 1) + low


class Values:
    """The values of atoms, given those of leaves, sizes and variables."""

    def __init__(self, arrays: Mapping[str, Array], sizes: Mapping[str, int]) -> None:
        self.arrays, self.sizes = arrays, sizes
        self.known: dict[Any, Number] = {}

    def number(self, p: Poly, at: dict[Any, int]) -> Number:
        return sum(value * weight for value, weight in self.parts(p, at))

    def parts(self, p: Poly, at: dict[Any, int]) -> Iterator[tuple[Number, Number]]:
        for (bound, f), c in p.terms:
            for more in self.places(bound, at):
                value: Number = 1
                for a, e in sorted(f, key=lambda pair: pair[0][0] != "ge"):  # 0 before a value that exists nowhere
                    value *= self.atom(a, more) ** e if e == int(e) else float(self.atom(a, more)) ** float(e)
                    if value == 0:
                        break
                yield value, c

    def places(self, bound: frozenset[Any], at: dict[Any, int]) -> Iterator[dict[Any, int]]:
        names = list(bound)
        extents = [int(self.number(v[2], at)) for v in names]
        for values in product(*map(range, extents)):
            yield at | dict(zip(names, values, strict=True))

    def bag(self, p: Poly, at: dict[Any, int]) -> dict[Number, Number]:
        """How often each value is in a bag."""
        found: dict[Number, Number] = {}
        for (bound, f), c in p.terms:
            ((member, _),) = [(a, e) for a, e in f if a[0] == "val"]
            others = Poly(frozenset({((frozenset(), frozenset((a, e) for a, e in f if a[0] != "val")), c)}))
            for more in self.places(bound, at):
                if (weight := self.number(others, more)) != 0:
                    value = self.number(member[1], more)
                    found[value] = found.get(value, 0) + weight
        return {v: w for v, w in found.items() if w}

    def atom(self, a: Any, at: dict[Any, int]) -> Number:
        key = (a, frozenset((v, at[v]) for v in variables(a) if v in at))
        if key not in self.known:
            self.known[key] = getattr(self, f"of_{a[0]}")(a, at)
        return self.known[key]

    def of_var(self, a: Any, at: dict[Any, int]) -> Number:
        return at[a]

    def of_size(self, a: Any, at: dict[Any, int]) -> Number:
        return self.sizes[a[1]]

    def of_read(self, a: Any, at: dict[Any, int]) -> Number:
        index = tuple(int(self.number(i, at)) for i in a[3:])
        array = self.arrays[a[1]]
        assert all(0 <= i < n for i, n in zip(index, array.shape, strict=True)), "a read that is nowhere"
        return array[index].item()

    def of_table(self, a: Any, at: dict[Any, int]) -> Number:
        flat = 0
        for n, i in zip(a[2], a[4:], strict=True):
            flat = flat * n + int(self.number(i, at))
        return self.number(a[3][flat], at)

    def of_ge(self, a: Any, at: dict[Any, int]) -> Number:
        return int(self.number(a[1], at) >= 0)

    def of_lt(self, a: Any, at: dict[Any, int]) -> Number:
        return int(self.number(a[1], at) < 0)

    def of_eq(self, a: Any, at: dict[Any, int]) -> Number:
        return int(self.number(a[1], at) == 0)

    def of_div(self, a: Any, at: dict[Any, int]) -> Number:
        return int(self.number(a[1], at)) // int(self.number(a[2], at))

    def of_place(self, a: Any, at: dict[Any, int]) -> Number:
        i, n = (int(self.number(p, at)) for p in a[1:])
        return i + n if i < 0 else i

    def of_exp(self, a: Any, at: dict[Any, int]) -> Number:
        return math.exp(self.number(a[1], at))

    def of_inv(self, a: Any, at: dict[Any, int]) -> Number:
        with np.errstate(divide="ignore"):  # of a row that sees nothing
            return float(np.divide(1.0, float(self.number(a[1], at))))

    def of_max(self, a: Any, at: dict[Any, int]) -> Number:
        values = list(self.bag(a[2], at))
        if a[1] == "real":
            return max(values)
        dtype, sign = a[1].lstrip("-1"), -1 if a[1][0] == "-" else 1
        return sign * max(sign * wrapped(dtype, v) for v in values)

    def of_call(self, a: Any, at: dict[Any, int]) -> Number:
        name, *rest = a[1].split()
        if name in ("argmax", "argmin"):
            return self.of_position(name, rest[0] == "1", a[2], at)
        operands = [self.number(p, at) for p in a[2:]]
        if name in ("as", "whole", "value", "cut"):
            return converted(name, rest[0], operands[0])
        if rest and rest[0] in INTS:
            return of_integers(name, rest, [wrapped(rest[0], x) for x in operands])
        return of_reals(name, rest, [float(x) for x in operands])

    def of_position(self, name: str, last: bool, bag: Poly, at: dict[Any, int]) -> Number:
        found = []
        for (bound, f), _ in bag.terms:
            ((pair, _),) = f
            found += [(self.number(pair[2], more), int(self.number(pair[1], more))) for more in self.places(bound, at)]
        best = (max if name == "argmax" else min)(value for value, _ in found)
        return (max if last else min)(i for value, i in found if value == best)


def converted(name: str, dtype: str, x: Number) -> Number:
    if name == "as":
        return float(np.array(float(x)).astype(getattr(ml_dtypes, dtype, dtype)))
    return wrapped(dtype, math.trunc(x)) if name != "whole" else x


def of_integers(name: str, rest: list[str], values: list[int]) -> Number:
    arrays = [np.array(v, rest[0]) for v in values]
    functions: dict[str, Any] = {
        "lt": lambda a, b: a < b,
        "eq": lambda a, b: a == b,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "not": np.invert,
        "shift": np.left_shift if rest[-1] == "LEFT" else np.right_shift,
        "mod": np.fmod if rest[-1] == "1" else np.remainder,
        "pow": np.power,
        "div": lambda a, b: abs(int(a)) // abs(int(b)) * (1 if (int(a) < 0) == (int(b) < 0) else -1),
    }
    return int(functions[name](*arrays))


def of_reals(name: str, rest: list[str], values: list[float]) -> Number:
    functions: dict[str, Any] = {"erf": math.erf, "pow": np.power, "round": lambda x: float(np.rint(x))}
    if name == "mod":
        return math.fmod(*values) if rest[-1] == "1" else float(np.remainder(*values))
    inverse = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh", "acosh": "arccosh"}
    inverse["atanh"] = "arctanh"
    with np.errstate(all="ignore"):
        return float((functions.get(name) or getattr(np, inverse.get(name, name)))(*values))
