"""The check: an optimized model against its original, by their errors against one float64
evaluation.

Criterion, for every output, every input set and every size tried: with r the original's graph
evaluated in float64,
    max|optimized - r| <= FACTOR * max|original - r| + FLOOR * max(eps * max|r|, least)
where eps is the rounding of the output's dtype, least its least number above 0, and FLOOR depends
on its bytes. Elements that are not finite must be the same in both; integers, booleans and strings
must be equal. So the optimized model may round as much as the original does, and not lose a digit
more.

Results that are small beside their operands (a sigmoid near 0, a difference of equals) are right to
a rounding of those, and not of their own size. Where the bound is missed, r is computed with every
intermediate result a small part of a rounding off; how far a whole rounding would move it, to first
order, is the output's resolution s. An original that is up to FLOOR * s off is explained by it; an
optimized model may be s off (its weights may be rounded anew), if the original is not; and where
the original was off by more on other inputs (it may be right by luck on these), that counts as its
error, up to s.

Where the original itself is further from r than PLAUSIBLE * eps * max|r| (by bytes of the dtype), r
is no reference (a decision that rounding turned, or a definition that is wrong), and the optimized
model must be within FLOOR * eps * max of the original. If it is no further off than the dtype's
least normal number, below which digits are lost without any fault, the optimized model must be as
near to r as the original is. On another target than ONNX Runtime's CPU provider the original's
kernels may be wrong, so the original runs on the CPU provider then: where it is near r there, it is
the original of the case. On the CPU the runtime's own optimizations may be wrong: an optimized
model that is not within the bound of the original passes if it is within that of the original
without them, which is near r.

Where r is no reference and that fails, every input, weight and constant is rounded another way: if
this moves r itself implausibly far too (quantized activations, a choice of experts), rounding
turned a decision of the original and may turn it either way, and the bound is larger by TURNED *
min(max|original - r|, max|moved r - r|).

Where operators let the runtime round operands to few digits (the trait `coarse`), everything is
compared twice. Without these attributes, original and optimized model are compared as said. With
them, as the models are, r is right by that comparison, and so no error of the original is
implausible: the optimized model may be FACTOR times as far from r. Kernels in the place of such
operators may round, too, but only a `share` as much as the original does: in the first comparison
they may be so far from r.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Protocol

import numpy as np

from taso_mirage.errors import InvalidModel, OutOfTime, RunFailed, TasoMirageError
from taso_mirage.ir.model import Model
from taso_mirage.measure.check_inputs import CheckInputs, all_finite
from taso_mirage.measure.evaluation import Left, in_command, in_time, references
from taso_mirage.measure.fine import Fine
from taso_mirage.measure.magnitudes import (
    epsilon,
    equal_values,
    least,
    least_normal,
    magnitudes,
    most_of,
    rounds,
    same_bytes,
)
from taso_mirage.measure.native import Arrays, first_line
from taso_mirage.measure.plain_runs import plain_outputs
from taso_mirage.measure.reference import FloatReference, RoughReference
from taso_mirage.measure.session import Session, check_source, original
from taso_mirage.measure.target import CPU, Target, lower_levels
from taso_mirage.system.spending import Purpose, spent

FACTOR = 4.0
FLOOR = {8: 64.0, 4: 64.0, 2: 4.0, 1: 1.0}
PLAUSIBLE = {8: 1e6, 4: 4096.0, 2: 64.0}
TURNED = 2.0
UNEXPLAINED = "the original, which float64 does not explain"
"""The name of the other side of a comparison without a reference."""
NUDGES = (1, 2, 3, 4)
"""The seeds of the roundings that may change a decision."""
ROUGH = 2.0**-20, 2.0**-16
"""The fractions of a rounding by which intermediate results are changed; they are so small that no
decision changes. From the first to the second, the change of an output must grow in the same
proportion, within SMOOTH, otherwise it is not the effect of rounding."""
SMOOTH = 4.0
FINE_CASE = ", no operands rounded"
"""The suffix of a case's name in a comparison without `coarse` attributes."""


@dataclass(frozen=True, slots=True)
class CheckCase:
    """One set of inputs: where it comes from, the arrays, the original's outputs and float64
    reference on it, and how far roundings move each of these references: of the inputs, in so many
    ways (`moved`), and, to first order, of all intermediate results (`resolution`). Both are
    computed when they are asked for. `fine`: the original's outputs where the runtime rounds no
    operands to few digits, if it does so."""

    name: str
    inputs: Arrays
    original: list[Any]
    reference: list[Any]
    moved: Callable[[int], list[float]]
    resolution: Callable[[], list[float]] | None = None
    fine: list[Any] | None = None
    allowed: Sequence[float] = ()
    """For every output, the error that is permitted."""
    against: str = "float64"
    """The name of the reference."""
    plain: Callable[[], list[Any] | None] | None = None
    """The original's outputs without the runtime's own optimizations, computed when asked for."""

    def own(self) -> list[float]:
        """The error of the original in each output."""
        return [_own(self, i) for i in range(len(self.original))]


@dataclass(frozen=True, slots=True)
class Difference:
    """One output on one case: its error, the original's own, and the bound that the criterion
    gives."""

    case: str
    output: str
    error: float
    own: float
    bound: float
    against: str = "float64"
    moved: float = 0.0
    region: str = ""
    """The region of the output, if it is a value inside of the model."""

    @property
    def passed(self) -> bool:
        return self.error <= self.bound

    def __str__(self) -> str:
        relation = "within" if self.passed else "above"
        turned = f", and rounding moves it by {self.moved:.3g}" if self.moved else ""
        return (
            f"output {self.output!r} on {self.case}{self.region}: error {self.error:.3g} against {self.against}, "
            f"{relation} the bound {self.bound:.3g} (the original's own error is {self.own:.3g}{turned})"
        )


def check_cases(
    model: Model,
    session: Session,
    base: Mapping[str, int],
    given: Sequence[Arrays] = (),
    others: Sequence[Mapping[str, int]] = (),
    fixed: Collection[str] = (),
    skipped: list[str] | None = None,
    seconds: float = math.inf,
    most: float = math.inf,
) -> Iterator[CheckCase]:
    """The cases of `check_inputs.CheckInputs` that the original runs on, with its outputs there and
    the float64 reference. `skipped` gets a line about sizes that the original, or the reference,
    does not take; `fixed` names the dims whose sizes the user chose. The references take at most
    `seconds`, and those that every check needs twice as many; inputs that there was no time for are
    no case, and a line says so. There are `most` cases at most.

    Raises NoReference if the original runs on the first inputs but the reference cannot be
    computed, and OutOfTime if the references that every check needs take too long.
    """
    made_inputs = CheckInputs(model, session, base, given, others, fixed)
    taken = in_time(made_inputs, seconds, most)
    witness = cache(lambda: original(model, CPU))
    fine = Fine.of(model)
    finely = None if fine is None else fine.opened(model, session.target, source=True)
    for each, reference in zip(taken, references(model, taken, seconds), strict=True):
        if isinstance(reference, Left):
            made_inputs.left_out(each)
            continue
        if isinstance(reference, Exception):
            made_inputs.unusable(each, reference)
            continue
        there = None if finely is None else finely.run(each.inputs)
        case = case_on(each.name, model, each.inputs, each.outputs, reference, there)
        if lower_levels(session.target):
            case = replace(case, plain=cache(partial(plain_outputs, model, each.inputs, session.target)))
        if each.extreme and not _tame(case):  # the laws are over the reals, and extreme numbers may break them
            continue
        yield _witnessed(witness, session.target, case)
    if skipped is not None:
        skipped += made_inputs.notes()


def case_on(
    name: str, model: Model, inputs: Arrays, outputs: list[Any], reference: list[Any], fine: list[Any] | None = None
) -> CheckCase:
    """The case of a model's float64 reference and of its outputs in the runtime."""
    moved = _moving(model, inputs, reference)
    return CheckCase(
        name, inputs, outputs, reference, moved, cache(partial(_resolution, model, inputs, reference)), fine
    )


def _tame(case: CheckCase) -> bool:
    """Whether all floats of the original are finite, and near the reference."""
    return all_finite(case.original) and plausible(case.original, case.reference)


def _witnessed(witness: Callable[[], Session], target: Target, case: CheckCase) -> CheckCase:
    """The case; with the outputs of the original on the CPU provider, if these are near the
    reference and the target's are not."""
    if target.name == CPU.name or plausible(case.original, case.reference):
        return case
    try:
        there = witness().run(case.inputs)
    except TasoMirageError:
        return case
    name = f"{case.name} (by the CPU provider, because the original is inaccurate on {target.name})"
    witnessed = replace(case, name=name, original=there)
    return witnessed if plausible(there, case.reference) else case


def plausible(outputs: Sequence[Any], reference: Sequence[Any]) -> bool:
    """Whether the distance of every float output from the reference is explained by rounding."""
    for old, exact in zip(outputs, reference, strict=True):
        if rounds(old) and exact.shape == old.shape:
            most = magnitudes(old, old, exact)
            if most is None or most.own > max(_explained(old.dtype, most.target), least_normal(old.dtype)):
                return False
    return True


def _explained(dtype: Any, target: float) -> float:
    """The largest error that rounding explains in results up to `target`."""
    return PLAUSIBLE.get(dtype.itemsize, 16.0) * epsilon(dtype) * target


def _moving(model: Model, inputs: Arrays, reference: Sequence[Any]) -> Callable[[int], list[float]]:
    """The changes of the outputs in float64 when the inputs are rounded in several other ways."""
    one = cache(lambda seed: _apart(FloatReference(model, seed)(inputs, in_command), reference))
    return lambda ways: [max(each) for each in zip(*map(one, NUDGES[:ways]), strict=True)]


def _resolution(model: Model, inputs: Arrays, reference: Sequence[Any]) -> list[float]:
    """The change of each output in float64, to first order, if all intermediate results are off by
    a rounding; 0 if the output jumps."""
    near, far = (_largest_moves(model, inputs, reference, part) for part in ROUGH)
    steps = ROUGH[1] / ROUGH[0]
    smooth = [steps / SMOOTH * a <= b <= steps * SMOOTH * a for a, b in zip(near, far, strict=True)]
    return [a / ROUGH[0] if right else 0.0 for a, right in zip(near, smooth, strict=True)]


def _largest_moves(model: Model, inputs: Arrays, reference: Sequence[Any], part: float) -> list[float]:
    moves = [_apart(RoughReference(model, seed, part)(inputs, in_command), reference) for seed in NUDGES]
    return [max(each) for each in zip(*moves, strict=True)]


def _apart(found: Sequence[Any], reference: Sequence[Any]) -> list[float]:
    """For every float output, the largest distance from the reference; 0 for other outputs."""
    apart = []
    for near, exact in zip(found, reference, strict=True):
        same = isinstance(exact, np.ndarray) and exact.dtype.kind == "f" and near.shape == exact.shape
        far = np.abs(near - exact) if same else np.zeros(0)
        apart.append(float(far[np.isfinite(far)].max(initial=0.0)))
    return apart


class Runs(Protocol):
    """A source of a model's outputs on inputs: a session, or an evaluation."""

    def run(self, inputs: Arrays) -> list[Any]:
        """The outputs, in the order of the model. Raises RunFailed."""


@spent(Purpose.CHECKS)
def compare(
    model: Model, session: Runs, prepared: Sequence[CheckCase], fine: Runs | None = None, share: float = 0.0
) -> list[Difference]:
    """The difference of every output on every case; an optimized model that does not run differs
    infinitely. `fine` is the same where the runtime rounds no operands to few digits; where it
    does, there must be one. It may be off by a `share` of the original's error where it does."""
    found: list[Difference] = []
    if fine is not None:
        found += compare(model, fine, [_finely(c, c.fine, share) for c in prepared if c.fine is not None])
    usual = cache(lambda output: max((_own(case, output) for case in prepared), default=0.0))
    for case in prepared:
        try:
            outputs = session.run(case.inputs)
        except RunFailed as error:
            where = f"{case.name}, where it does not run ({first_line(error)[:200]})"
            found += [Difference(where, name, np.inf, 0.0, 0.0) for name in model.output_names]
            continue
        for i, new in enumerate(outputs):
            found.append(_compared(case, i, model.output_names[i], new, usual))
    return found


def _own(case: CheckCase, output: int) -> float:
    """The error of the original in an output of floats."""
    old, exact = case.original[output], case.reference[output]
    if not rounds(old) or exact.shape != old.shape:
        return 0.0
    most = magnitudes(old, old, exact)
    return 0.0 if most is None else most.own


def _finely(case: CheckCase, outputs: list[Any], share: float) -> CheckCase:
    """A case where the runtime rounds no operands to few digits."""
    allowed = [share * _own(case, i) for i in range(len(outputs))]
    return replace(case, name=case.name + FINE_CASE, original=outputs, fine=None, allowed=allowed, plain=None)


def _compared(case: CheckCase, i: int, name: str, new: Any, usual: Callable[[int], float]) -> Difference:
    """The difference of an output; if it fails, the bound includes the part that roundings
    explain."""
    old, exact = case.original[i], case.reference[i]
    coarse = case.fine is not None
    found = difference(case.name, name, new, old, exact, coarse=coarse, against=case.against)
    if case.allowed and found.against != UNEXPLAINED:
        found = replace(found, bound=max(found.bound, case.allowed[i]))
    if found.passed or not np.isfinite(found.error) or not isinstance(old, np.ndarray):
        return found if found.passed else _against_plain(case, i, name, new, found) or found
    turned = _turned(case, i, found)
    if turned.passed or case.resolution is None:
        return turned
    if (plain := _against_plain(case, i, name, new, found)) is not None:
        return plain
    resolved = difference(case.name, name, new, old, exact, case.resolution()[i], usual(i), coarse, case.against)
    return resolved if resolved.passed else turned


def _against_plain(case: CheckCase, i: int, name: str, new: Any, found: Difference) -> Difference | None:
    """The difference from the original without the runtime's own optimizations, if it passes, and
    float64 explains that output alone."""
    old, exact = case.original[i], case.reference[i]
    wrong = found.against == UNEXPLAINED if rounds(old) else not equal_values(old, exact)
    if not wrong or case.plain is None or (outputs := case.plain()) is None:
        return None
    plain = difference(case.name, name, new, outputs[i], exact, against=case.against)
    right = plain.against != UNEXPLAINED if rounds(old) else equal_values(outputs[i], exact)
    return plain if plain.passed and right else None


def _turned(case: CheckCase, output: int, found: Difference) -> Difference:
    """A failed difference, with the larger bound that holds if rounding changed a decision of the
    original."""
    if found.against != UNEXPLAINED:
        return found
    dtype, turned = case.original[output].dtype, found
    plain = max(_explained(dtype, most_of(case.reference[output])), least_normal(dtype))
    for ways in range(1, len(NUDGES) + 1):
        moved = case.moved(ways)[output]
        if moved > plain:
            turned = replace(found, bound=found.bound + TURNED * min(found.own, moved), moved=moved)
        if turned.passed:
            break
    return turned


def difference(
    case: str,
    output: str,
    new: Any,
    old: Any,
    exact: Any,
    resolution: float = 0.0,
    usual: float = 0.0,
    coarse: bool = False,
    against: str = "float64",
) -> Difference:
    """The criterion of this module on one output of a known `resolution`, where the original's
    largest error on any inputs is the `usual` one; of a sequence or a map on each of its parts, of
    which the worst is given. `coarse`: no error of the original is implausible."""
    if isinstance(old, (list, dict)):
        return _worst(case, output, new, old, exact)
    if not rounds(old):
        same = equal_values(old, new)
        return Difference(case, output, 0.0 if same else np.inf, 0.0, 0.0)
    if not isinstance(new, np.ndarray) or new.shape != old.shape or new.dtype != old.dtype:
        return Difference(case, output, np.inf, 0.0, 0.0)
    most = magnitudes(new, old, exact if exact.shape == old.shape else old)
    if most is None:
        return Difference(case, output, np.inf, 0.0, 0.0)
    width = old.dtype.itemsize
    unit = FLOOR[width] * epsilon(old.dtype)
    explained = math.inf if coarse else max(_explained(old.dtype, most.target), FLOOR[width] * resolution)
    if most.own > max(explained, least_normal(old.dtype)):  # the evaluation is not usable as reference
        return Difference(case, output, most.apart, most.own, unit * most.old, UNEXPLAINED)
    factor = FACTOR if most.own <= explained else 1.0  # it underflows
    floor = max(unit * most.target, FLOOR[width] * least(old.dtype))
    own = factor * max(most.own, min(resolution, usual))
    return Difference(case, output, most.error, most.own, max(own, resolution) + floor, against)


def _worst(case: str, output: str, new: Any, old: Any, exact: Any) -> Difference:
    (names, news), (known, olds), (_, exacts) = (_parts(value) for value in (new, old, exact))
    if names != known:
        return Difference(case, output, np.inf, 0.0, 0.0)
    exacts = exacts if len(exacts) == len(olds) else olds
    found = [difference(case, output, *each) for each in zip(news, olds, exacts, strict=True)]
    return max(found, key=lambda d: (not d.passed, d.error), default=Difference(case, output, 0.0, 0.0, 0.0))


def _parts(value: Any) -> tuple[list[Any], list[Any]]:
    """The arrays of a sequence or a map, and how they are put together.

    The floats of a map have single precision.
    """
    if isinstance(value, dict):
        array = np.array(list(value.values()))
        return [tuple(value)], [array.astype(np.float32) if array.dtype == np.float64 else array]
    if not isinstance(value, list):
        return ["tensor"], [value]
    inner = [_parts(each) for each in value]
    return [names for names, _ in inner], [array for _, arrays in inner for array in arrays]


@spent(Purpose.CHECKS)
def repeatable(session: Session, case: CheckCase) -> bool:
    """Whether the original gives the same outputs twice (no random operators)."""
    first, again = session.run(case.inputs), session.run(case.inputs)
    return all(_same_twice(a, b) for a, b in zip(first, again, strict=True))


def _same_twice(a: Any, b: Any) -> bool:
    if rounds(a) and isinstance(b, np.ndarray):
        near = partial(np.allclose, rtol=1e-3, atol=1e-3, equal_nan=True)
        return same_bytes(a, b) or (a.shape == b.shape and near(a.astype(np.float64), b.astype(np.float64)))
    return equal_values(a, b)


def first_bad(count: int, passes: Callable[[int], bool]) -> int:
    """The smallest k in 1..count such that the first k steps fail, given that all of them together
    fail (bisection)."""
    good, bad = 0, count
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            passed = passes(middle)
        except OutOfTime:
            raise
        except (TasoMirageError, InvalidModel):
            passed = False
        good, bad = (middle, bad) if passed else (good, middle)
    return bad


def passes_checker(model: Model) -> bool:
    """Whether onnx's checker accepts the model as it was read; the runtime accepts it."""
    try:
        check_source(model)
    except TasoMirageError:
        return False
    return True
