"""A muGraph against its goal: random tests in the finite field, then numbers (Mirage, section 5;
PET, Theorem 2).

A muGraph that the field accepts is equal in exact arithmetic up to the stated probability; one that
also passes the numbers does not overflow where the goal does not, and rounds as float32 does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from taso_mirage.ir.terms import LEAVES, Graph, Node, Tensor, is_computed, is_float, is_stored, numpy_dtype, topological
from taso_mirage.meanings.arrays import Array
from taso_mirage.meanings.field import agree
from taso_mirage.meanings.reals import EXACT, Reals
from taso_mirage.meanings.residues import P
from taso_mirage.mugraph.field_check import Field32
from taso_mirage.mugraph.goal import BYTES
from taso_mirage.operators.interpret import interpret
from taso_mirage.verdicts import Evidence, Failure, FailureKind, MeasuredError

ATTEMPTS = 16
"""The largest number of times that tests which divide by zero are replaced."""
EPS = float(np.finfo(np.float32).eps)
LARGEST = float(np.finfo(np.float32).max)
"""The largest number that a kernel can give; a goal that is larger in float64 requires nothing."""
SLACK = 64
"""The largest error of a kernel, relative to the error of rounding the inputs to float32."""
AGAIN = 2
"""Tests in the field of a muGraph that was tested before, at its real sizes."""
UNDERFLOW = 1e-30
"""An absolute error that float32's smallest numbers excuse."""


def verified_mugraph(
    mugraph: Graph, goal: Graph, tests: int = 8, seed: int = 0, numbers: bool = True
) -> Evidence | Failure:
    """Whether `mugraph` computes `goal`, over the same leaves at fixed sizes; a failure gives the
    reason. Without `numbers` in the field alone, for a muGraph of the goal's own operators in
    another order."""
    leaves = _leaves(goal)
    if strange := [n for n in _leaves(mugraph) if n not in leaves]:
        why = f"it reads {strange[0].attr('name')} of type {strange[0].type}, which the goal does not"
        return Failure(FailureKind.NO_MATCH, why)
    types = [[o.type for o in g.outputs] for g in (mugraph, goal)]
    if types[0] != types[1]:
        why = f"its outputs have the types {_listed(types[0])}, the goal's {_listed(types[1])}"
        return Failure(FailureKind.NO_MATCH, why)
    passed = _in_the_field(mugraph, goal, tests, seed)
    if isinstance(passed, Failure):
        return passed
    measured = _in_numbers(mugraph, goal, seed) if numbers else ()
    if isinstance(measured, Failure):
        return measured
    return tested(tests, passed, (len(leaves) / P) ** tests, measured)


def tested(tests: int, undecided: int, bound: float, measured: tuple[MeasuredError, ...]) -> Evidence:
    """The evidence for a muGraph."""
    return Evidence(tests=tests, undecided=undecided, bound=bound, measured=measured)


def tests_json(evidence: Evidence) -> dict[str, Any]:
    """The evidence for a muGraph as a value for a file; `read_tests` reads it back."""
    measured = [asdict(each) for each in evidence.measured]
    known = {"tests": evidence.tests, "undecided": evidence.undecided, "bound": evidence.bound}
    return known | {"measured": measured}


def read_tests(value: Mapping[str, Any]) -> Evidence:
    """Raises TypeError, LookupError or ValueError where the value is not of `tests_json`."""
    known = dict(value)
    measured = tuple([MeasuredError(**each) for each in known.pop("measured")])
    return tested(**known, measured=measured)


def _leaves(graph: Graph) -> list[Node]:
    return [n for n in topological([*graph.inputs, *graph.outputs]) if n.op in LEAVES]


def _listed(types: Iterable[object]) -> str:
    return ", ".join(map(str, types))


def _in_the_field(mugraph: Graph, goal: Graph, tests: int, seed: int) -> int | Failure:
    """How many tests did not decide before `tests` did.

    Each has its own inputs and its own base of the powers.
    """
    passed = undecided = 0
    for attempt in range(ATTEMPTS):
        xp = Field32(tests - passed, seed * ATTEMPTS + attempt)
        values = interpret(
            [*mugraph.outputs, *goal.outputs], xp, {n: xp.cast(xp.fresh(n.tensor), n.dtype) for n in _leaves(goal)}
        )
        valid = np.ones(xp.trials, bool)
        for i, (ours, wanted) in enumerate(zip(mugraph.outputs, goal.outputs, strict=True)):
            if agree(values[ours], values[wanted]) is False:
                return Failure(FailureKind.REFUTED, f"output {i} differs from the goal's in the field")
            valid &= values[ours].valid & values[wanted].valid
        passed += int(valid.sum())
        undecided += int((~valid).sum())
        if passed >= tests:
            return undecided
    why = "they divide by zero, or leave an order open"
    return Failure(FailureKind.UNDECIDED, f"{undecided} of {passed + undecided} tests do not decide: {why}")


# ---------------------------------------------------------------- numbers


class Single(Reals):
    """Every float in float32, as back ends compute between the loads and stores of a tensor."""

    def load(self, array: Array) -> Array:
        return array.astype(np.float32) if is_computed(array.dtype.name) else array

    def cast(self, a: Array, dtype: str) -> Array:
        return super().cast(a, "float32" if is_computed(dtype) else dtype)


SINGLE = Single()


@dataclass(frozen=True, slots=True)
class NumericCase:
    """How inputs are drawn: rounded to `dtype`; "normal", "positive" and "opposed" (signs by input,
    so that scores are large of one sign: exp overflows, or a sum of it is 0), "rising" and
    "falling" (the maximum changes in every iteration, or never), "apart" (the scale is a distance
    between the elements along every axis, so that a maximum over too much leaves nothing),
    "shifted" (the scale is the mean of the first input, as activations may have one: its elements,
    all normal, differ little from each other, and squares less a square cancel)."""

    dtype: str
    draw: str
    scale: float


CASES = (
    NumericCase("float16", "normal", 1),
    NumericCase("bfloat16", "normal", 1),
    NumericCase("float32", "normal", 1),
    NumericCase("float16", "normal", 1 / 64),
    NumericCase("bfloat16", "normal", 16),
    NumericCase("float32", "positive", 4),
    NumericCase("float16", "positive", 16),
    NumericCase("bfloat16", "opposed", 16),
    NumericCase("float16", "rising", 16),
    NumericCase("float32", "falling", 16),
    NumericCase("float32", "normal", 256),
    NumericCase("float32", "apart", 120),
    NumericCase("float32", "shifted", 1000),
)


@dataclass(frozen=True, slots=True)
class NumericReference:
    """A case drawn: the inputs, and each output of the goal in float64 with the error that it
    allows, absolute."""

    case: NumericCase
    inputs: Mapping[Node, Array]
    wanted: tuple[tuple[Array, float], ...]


def _in_numbers(mugraph: Graph, goal: Graph, seed: int) -> tuple[MeasuredError, ...] | Failure:
    measured = []
    for reference in _references(goal, seed):
        values = _evaluated(mugraph, SINGLE, reference.inputs)
        worst = _worst(reference, values)
        if isinstance(worst, Failure):
            return worst
        measured.append(worst)
    return tuple(measured)


def _worst(reference: NumericReference, values: list[Array]) -> MeasuredError | Failure:
    case, ratios = reference.case, [(0.0, 0.0)]
    shown = f"with {case.draw} inputs in {case.dtype} at scale {case.scale:g}"
    for i, (ours, (wanted, allowed)) in enumerate(zip(values, reference.wanted, strict=True)):
        finite = np.isfinite(wanted)
        if not finite.any() and (case.draw, case.scale) == ("normal", 1):
            return Failure(FailureKind.UNDECIDED, f"output {i} of the goal is finite nowhere, {shown}")
        if not finite.any():
            continue
        if not np.isfinite(ours[finite]).all():
            return Failure(FailureKind.INACCURATE, f"output {i} is not finite where the goal is, {shown}")
        error = float(np.abs(ours - wanted)[finite].max())
        largest = max(float(np.abs(wanted[finite]).max()), UNDERFLOW)
        if error > allowed:
            return Failure(
                FailureKind.INACCURATE, f"output {i} is off by {error:.3g} ({allowed:.3g} is allowed), {shown}"
            )
        ratios.append((error / largest, allowed / largest))
    return MeasuredError(case.dtype, case.draw, case.scale, *max(ratios))


@lru_cache(maxsize=8)
def _references(goal: Graph, seed: int) -> tuple[NumericReference, ...]:
    """Cached: a search verifies many muGraphs against one goal."""
    return tuple(_reference(goal, case, seed * len(CASES) + i) for i, case in enumerate(CASES))


def _reference(goal: Graph, case: NumericCase, seed: int) -> NumericReference:
    """The allowed error is a multiple of the change by a rounding of each input in float32, so of
    the goal's condition; and where an input is shifted, of the change of an element by a rounding
    of its mean."""
    rng = np.random.default_rng(seed)
    inputs = {n: _drawn(n.tensor, case, i, rng) for i, n in enumerate(_leaves(goal))}
    nudged = {n: _nudged(a, rng) for n, a in inputs.items()}
    exact, near = _evaluated(goal, EXACT, inputs), _evaluated(goal, EXACT, nudged)
    wanted = []
    for a, b, output in zip(exact, near, goal.outputs, strict=True):
        finite = (np.abs(a) <= LARGEST) & (np.abs(b) <= LARGEST)
        own = EPS * (case.scale if case.draw == "shifted" else 1)
        moved = np.abs(a[finite] - b[finite]).max(initial=0) + own * np.abs(a[finite]).max(initial=0)
        allowed = SLACK * float(moved) + UNDERFLOW if is_float(output.dtype) else 0.0
        wanted.append((np.where(finite, a, np.nan), allowed))
    return NumericReference(case, inputs, tuple(wanted))


def _drawn(type: Tensor, case: NumericCase, index: int, rng: np.random.Generator) -> Array:
    shape = tuple(int(n) for n in type.shape or ())
    if is_stored(type.dtype):  # their rounding does not bound the error of float32, so they are near 1
        return rng.normal(size=shape).astype(numpy_dtype(type.dtype))
    if type.dtype in BYTES:
        limits = np.iinfo(type.dtype)
        return rng.integers(limits.min, limits.max + 1, shape).astype(type.dtype)
    if not is_float(type.dtype):
        return rng.integers(0, 2, shape).astype(numpy_dtype(type.dtype))
    values = rng.normal(size=shape)
    if case.draw in ("positive", "opposed"):
        values = np.abs(values) * (-1 if case.draw == "opposed" and index % 2 else 1)
    if case.draw in ("rising", "falling"):
        values = values * _ramp(shape, case.draw == "falling")
    if case.draw == "apart":
        values = sum((_steps(shape, axis, rng) for axis in range(len(shape))), values / case.scale)
    if case.draw == "shifted":
        values = (index == 0) + values / case.scale
    return (case.scale * values).astype(numpy_dtype(case.dtype)).astype(np.float64)


def _steps(shape: tuple[int, ...], axis: int, rng: np.random.Generator) -> Array:
    """0 and -1, at random along one axis, with at least one 0."""
    found = -rng.integers(0, 2, shape[axis]).astype(float)
    found[rng.integers(shape[axis])] = 0
    return found.reshape(-1, *[1] * (len(shape) - axis - 1))


def _ramp(shape: tuple[int, ...], falling: bool) -> Array:
    """From near 0 to 1 along every axis."""
    found = np.ones(shape)
    for axis, n in enumerate(shape):
        steps = np.arange(1, n + 1) / n
        found *= (steps[::-1] if falling else steps).reshape(-1, *[1] * (len(shape) - axis - 1))
    return found


def _nudged(array: Array, rng: np.random.Generator) -> Array:
    return array * (1 + EPS * rng.choice([-1.0, 1.0], array.shape)) if is_computed(array.dtype.name) else array


def _evaluated(graph: Graph, xp: Reals, inputs: Mapping[Node, Array]) -> list[Any]:
    with np.errstate(all="ignore"):
        values = interpret(graph.outputs, xp, {n: xp.load(a) for n, a in inputs.items()})
    return [np.asarray(values[o], np.float64) for o in graph.outputs]
