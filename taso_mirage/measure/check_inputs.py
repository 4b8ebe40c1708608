"""The inputs of the check and of the timing: the user's inputs and generated ones.

After the user's inputs, inputs are random at the requested sizes (three seeds), and, as far as the
original runs there, with wide and with extreme integers, with large floats where halves become
integers, with masks that hide all or nothing, with other values of scalars that choose a branch,
and at further sizes of every dynamic dim. A sampling rate or a length cannot be generated: the
user's integers are kept where an operator without a definition reads them, and all of them if the
original does not run otherwise. If it has no finite results on random floats either, only the
user's own floats in another order are drawn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from taso_mirage.errors import InputsRefused, InvalidModel, InvalidOption, RunFailed, RunRefused, TasoMirageError
from taso_mirage.ir.dims import evaluate
from taso_mirage.ir.model import Model, random_inputs
from taso_mirage.ir.terms import Node, is_array, is_float, numpy_dtype
from taso_mirage.measure.bulk import LARGEST_TENSOR, ROOM, bulk, too_large
from taso_mirage.measure.hints import BATCH_SIZE
from taso_mirage.measure.integer_inputs import masks_of, may_be_extreme
from taso_mirage.measure.magnitudes import rounds
from taso_mirage.measure.native import Arrays
from taso_mirage.measure.reference import NoReference
from taso_mirage.measure.refusals import made_up, refusal, shown_sizes
from taso_mirage.measure.relations import agreed, relations, suspected
from taso_mirage.measure.session import Session
from taso_mirage.measure.shapes import learned
from taso_mirage.measure.sizes import SEEDS, TIMED, choices, settle
from taso_mirage.onnx_io.input_requirements import compared_numbers
from taso_mirage.operators.ops import traits
from taso_mirage.system.wording import option

LARGE = 1 << 20
"""Elements of a large array."""
LISTED = 6
"""Sizes or names of inputs that a note about what was left out lists."""
SHOWN = 3
"""Further sizes that a note lists."""
HALVES = ("float16", "bfloat16")
FURTHER = 8.0
"""The factor of normal numbers for large floats: sigmoids of most of them round to 0 or 1 in half
precision."""


@dataclass(frozen=True, slots=True)
class CheckInput:
    """One set of inputs that the original runs on, its outputs there, and its sizes.

    An input that is `needed` is no further case.
    """

    name: str
    inputs: Arrays
    outputs: list[Any]
    sizes: Mapping[str, int]
    needed: bool = True
    extreme: bool = False


def all_finite(outputs: Sequence[Any]) -> bool:
    """Whether all floats of the outputs are finite."""
    return all(np.isfinite(o.astype(np.float64)).all() for o in outputs if rounds(o))


def moves(model: Model, base: Mapping[str, int]) -> Iterator[tuple[str, list[dict[str, int]], list[dict[str, int]]]]:
    """For every dynamic dim a larger and a smaller size, with the other dims at their base sizes,
    and with those that may have to agree; and further trials if none runs: with other dims that
    must agree, multiples, and all dims of that size at once."""
    asked, tied = relations(model), suspected(model, base)
    for name in model.symbols():
        size = base[name]
        near = [{**base, name: n} for n in (size + 3, max(1, size - 1))]
        near += [agreed(each, tied, [name]) for each in near]
        along = [agreed(each, asked, [name]) for each in near]
        multiples = [agreed({**base, name: n}, asked, [name]) for n in (2 * size, size + 32, size // 2) if n]
        equal = [other for other in base if base[other] == size]
        together = [agreed({**base, **dict.fromkeys(equal, n)}, asked, equal) for n in (size + 3, 2 * size)]
        yield name, near, [*along, *multiples, *together]


def fitting(model: Model, given: Sequence[Arrays], sizes: Mapping[str, int]) -> Arrays | None:
    """The user's first inputs of these sizes."""
    return next((each for each in given if dict(sizes) == {**sizes, **learned(model, [each])}), None)


def feed(model: Model, given: Sequence[Arrays], sizes: Mapping[str, int]) -> Arrays:
    """The inputs to time: the user's first ones of these sizes, or random ones with the user's
    integers."""
    found = fitting(model, given, sizes)
    return random_inputs(model, TIMED, sizes, kept=_kept(model, given, sizes)) if found is None else found


def _kept(model: Model, given: Sequence[Arrays], sizes: Mapping[str, int]) -> Arrays:
    """The inputs that are not random: integers, booleans and strings of the user's first inputs
    that have the shape of these sizes, or else the defaults."""
    if not given:
        return model.default_inputs()
    known = {**dict.fromkeys(model.symbols(), 2), **model.sizes, **sizes}
    found: dict[str, Any] = {}
    for node in model.graph.inputs:
        value = given[0][node.attr("name")]
        if is_float(node.dtype) or node.tensor.shape is None:
            continue
        if np.shape(value) == tuple(evaluate(d, known) for d in node.shape):
            found[node.attr("name")] = value
    return found


def _listed(said: Collection[str], most: int = LISTED) -> str:
    more = f" and {len(said) - most} more" if len(said) > most else ""
    return "; ".join([*said][:most]) + more


def _floats(model: Model) -> list[Node]:
    """The inputs that are tensors of floats."""
    return [n for n in model.graph.inputs if is_float(n.dtype) and n.tensor.shape is not None]


def _other_floats(model: Model, inputs: Arrays, seed: int) -> Arrays:
    """The inputs with their floats scaled down and in another order, so that they stay in their
    range."""
    rng = np.random.default_rng(seed)
    found = dict(inputs)
    for node in _floats(model):
        array = np.asarray(inputs[node.attr("name")])
        mixed = _mixed(array, rng)
        found[node.attr("name")] = (mixed.astype(np.float64) * rng.uniform(0.5, 1)).astype(array.dtype)
    return found


def _mixed(array: Any, rng: np.random.Generator) -> Any:
    """The elements in another order; for large arrays, whose elements would take seconds, the
    slices along each axis."""
    if array.size <= LARGE:
        return rng.permutation(array.ravel()).reshape(array.shape)
    for axis, n in enumerate(array.shape):
        array = np.take(array, rng.permutation(n), axis)
    return array


def truncates_halves(model: Model) -> bool:
    """Whether a value in half precision becomes an integer. The runtime computes halves in single
    precision on a CPU, and rounds a value only for some of its readers."""
    return any(
        a.dtype in HALVES and n.dtype.startswith(("int", "uint"))
        for n in model.nodes()
        if traits(n).converts
        for a in n.args
    )


def names_of_integers(model: Model) -> list[str]:
    """The names of inputs that are integers."""
    return [n.attr("name") for n in model.graph.inputs if n.dtype.startswith(("int", "uint"))]


class CheckInputs:
    """The inputs of the check, in their order.

    `fixed` names the dims whose sizes the user chose.
    """

    def __init__(
        self,
        model: Model,
        session: Session,
        base: Mapping[str, int],
        given: Sequence[Arrays] = (),
        others: Sequence[Mapping[str, int]] = (),
        fixed: Collection[str] = (),
    ) -> None:
        self.model, self.session, self.base, self.given, self.others = model, session, dict(base), given, others
        self.fixed = {*fixed, *learned(model, given)}
        self._skipped: dict[str, None] = {}
        self._moved: dict[str, None] = {}
        self._fixed_here: list[str] = []
        self._late: list[str] = []
        self._anew: list[str] = []
        self._beside = True
        self._outside = False
        self.late = False
        """Whether drawing ended before all was drawn."""

    def __iter__(self) -> Iterator[CheckInput]:
        self._only_tensors()
        for i, inputs in enumerate(self.given):
            sizes = {**self.base, **learned(self.model, [inputs])}
            name = f"the given inputs {i + 1}"
            try:
                yield CheckInput(name, inputs, self.session.run(inputs), sizes)
            except RunRefused as error:
                raise InputsRefused(f"the model does not run on {name}. {error}") from None
        like = fitting(self.model, self.given, self.base)
        yield from self._random() if like is None else self._added(like)
        for other in self.others:
            if fitting(self.model, self.given, other) is None:
                yield self._drawn(f"random inputs at {shown_sizes(other)}", SEEDS[0], other)
        if self._beside:
            yield from self._further(like is None)

    def notes(self) -> list[str]:
        """Lines that name the base sizes, the further sizes that were checked, and the sizes that
        were left out."""
        base = shown_sizes({**self.base, **self.model.integers})
        found = [f"sizes: {base}; other sizes checked: {_listed(self._moved, SHOWN) or 'none'}"] if base else []
        if self._late:
            found.append(f"the check left out {_listed(self._late)}: there was no time for their float64 references")
        if self._outside:
            found.append("the check has no random inputs beside the given ones: the original has no results there")
        if self.late:
            found.append("the check has no further inputs: the original takes too long")
        if self._skipped:
            found.append(f"the check left out {_listed(self._skipped)}: the original does not run there")
        if self._fixed_here:
            found.append(
                f"no other size of {', '.join(self._fixed_here)} was checked: the original runs at none of the tried sizes"
            )
        return found

    def left_out(self, drawn: CheckInput) -> None:
        """Note that there was no time for the reference on inputs that the original runs on."""
        self._late.append(drawn.name)
        self._moved.pop(shown_sizes(self._differing(drawn.sizes)), None)

    def unusable(self, drawn: CheckInput, error: Exception) -> None:
        """The reference does not take inputs that the original runs on."""
        if not drawn.needed:
            self._skip(drawn.sizes)
            self._moved.pop(shown_sizes(self._differing(drawn.sizes)), None)
        elif (
            isinstance(error, NoReference)
            or any(drawn.inputs is g for g in self.given)
            or not self._made_up(drawn.sizes)
        ):
            raise NoReference(f"its float64 reference cannot be computed on {drawn.name}: {error}") from None
        else:
            raise self._refused(drawn.sizes, f"the float64 reference cannot be computed there: {error}")

    # ------------------------------------------------------------ needed

    def _only_tensors(self) -> None:
        """Raise NoReference for an input that is a sequence, a map or an optional value: such a
        value cannot be generated, and a file of inputs cannot contain it."""
        for node in self.model.graph.inputs:
            if not is_array(node.tensor):
                raise NoReference(f"the input {node.attr('name')!r} is no tensor ({node.type})")

    def _random(self) -> Iterator[CheckInput]:
        for seed in SEEDS:
            yield self._drawn(f"random inputs {seed}", seed, self.base)
            if seed == SEEDS[0]:
                yield from self._large() if truncates_halves(self.model) else ()
                yield from self._wide()

    def _large(self) -> Iterator[CheckInput]:
        drawn = random_inputs(self.model, SEEDS[0], self.base, kept=_kept(self.model, self.given, self.base))
        free = {str(n.attr("name")) for n in _floats(self.model)} - {*self.model.defaults, *self.model.shares}
        large = {name: np.asarray(FURTHER * drawn[name], drawn[name].dtype) for name in free}
        yield from self._tried("large random inputs", {**drawn, **large}, self.base, sizes=False, extreme=True)

    def _drawn(self, name: str, seed: int, sizes: Mapping[str, int]) -> CheckInput:
        if (why := too_large(self.model, sizes)) is not None:
            raise NoReference(
                f"{why}, more than {LARGEST_TENSOR / 1e9:g} GB; give smaller sizes with {option('shape')}"
            )
        try:
            inputs = random_inputs(self.model, seed, sizes, kept=_kept(self.model, self.given, sizes))
            return CheckInput(name, inputs, self.session.run(inputs), sizes)
        except (RunFailed, ValueError) as error:
            if not self._made_up(sizes):
                raise InvalidModel(str(error)) if isinstance(error, RunRefused | ValueError) else error from None
            raise self._refused(sizes, str(error)) from None

    def _added(self, like: Arrays) -> Iterator[CheckInput]:
        """Random inputs beside the user's, or the user's floats varied if the original has no
        finite results on random ones."""
        kept = _kept(self.model, self.given, self.base)
        anew = [name for name in may_be_extreme(self.model) if name in kept]
        self._beside = False
        for self._anew in (anew, []) if anew else ([],):
            if len(self._held(self.base)) == len(like):
                continue  # nothing is random
            found = [*self._at(self.base, f"random inputs {SEEDS[0]}", SEEDS[0])]
            self._beside = bool(found) and all_finite(found[0].outputs)
            self._outside = not self._beside
            if self._beside:
                yield from found
                for seed in SEEDS[1:]:
                    yield from self._at(self.base, f"random inputs {seed}", seed)
                return
        yield from self._varied(like)

    def _held(self, sizes: Mapping[str, int]) -> Arrays:
        """The inputs that are not random at these sizes, without the user's integers that are drawn
        anew."""
        kept = _kept(self.model, self.given, sizes)
        return {name: value for name, value in kept.items() if name not in self._anew}

    def _varied(self, like: Arrays) -> Iterator[CheckInput]:
        if not _floats(self.model):
            return
        for seed in SEEDS:
            inputs = _other_floats(self.model, like, seed)
            yield from self._tried(f"the given integers with other floats {seed}", inputs, self.base, sizes=False)

    # ------------------------------------------------------------ as far as the original runs

    def _wide(self) -> Iterator[CheckInput]:
        """Integers of both signs: the runtime's own fusions may refuse some that the original
        takes, such as rows from the end of a table."""
        kept = self._held(self.base)
        if any(name not in kept for name in names_of_integers(self.model)):
            wide = random_inputs(self.model, SEEDS[-1] + 1, self.base, wide=True, kept=kept)
            yield from self._tried("random inputs with wide integers", wide, self.base, sizes=False)

    def _further(self, widened: bool) -> Iterator[CheckInput]:
        kept = self._held(self.base)
        yield from () if widened else self._wide()
        if self.model.defaults:
            others = _other_floats(self.model, random_inputs(self.model, SEEDS[0], self.base, kept=kept), SEEDS[0])
            yield from self._tried("random inputs with other defaults", others, self.base, sizes=False)
        yield from self._extreme([n for n in may_be_extreme(self.model) if n not in kept], kept)
        yield from self._masks(kept)
        yield from self._choices(kept)
        seen = [self.base, *self.others]
        for name, near, instead in moves(self.model, self.base):
            ran = any(each[name] != self.base[name] for each in self.others)
            for wanted in near:
                sizes = self._fitting(wanted, name)
                if sizes not in seen:
                    seen.append(sizes)
                    found = list(self._at(sizes))
                    yield from found
                    ran |= bool(found)
            for sizes in () if ran else instead:
                if sizes not in seen and sizes[name] != self.base[name]:
                    seen.append(sizes)
                    found = list(self._at(sizes, said=False))
                    yield from found
                    if ran := bool(found):
                        break
            self._fixed_here += [] if ran else [name]

    def _masks(self, kept: Arrays) -> Iterator[CheckInput]:
        """All masks false, or all true: random ones hardly ever hide a whole row. They count only
        where the original's results are finite: what a row without elements gives is left open."""
        masks = [name for name in masks_of(self.model) if name not in kept]
        for seed, value in enumerate((False, True), SEEDS[-1] + 5) if masks else ():
            drawn = random_inputs(self.model, seed, self.base, kept=kept)
            inputs = {**drawn, **{name: np.full_like(drawn[name], value) for name in masks}}
            name = f"random inputs with {', '.join(masks)}={int(value)}"
            yield from (each for each in self._tried(name, inputs, self.base, sizes=False) if all_finite(each.outputs))

    def _fitting(self, sizes: dict[str, int], name: str) -> dict[str, int]:
        """The sizes, or one more of the dim, if so the reference has no room."""
        if sizes[name] > self.base[name] and bulk(self.model, sizes).peak > ROOM:
            return {**self.base, name: self.base[name] + 1}
        return sizes

    def _choices(self, kept: Arrays) -> Iterator[CheckInput]:
        """Each scalar that may choose a branch, at every value with which the model compares it.

        If the original does not run so, sizes are searched for that value.
        """
        compared = compared_numbers(self.model)
        for name, values in choices(self.model).items():
            for value in values if name not in kept else ():
                if value != self.model.integers.get(name):
                    found = list(self._chosen(name, value, self.base, kept))
                    if not found and value in compared.get(name, ()):
                        found = list(self._elsewhere(name, value))
                    yield from found

    def _chosen(self, name: str, value: int, sizes: Mapping[str, int], kept: Arrays) -> Iterator[CheckInput]:
        asked = replace(self.model, integers={**self.model.integers, name: value})
        inputs = random_inputs(asked, SEEDS[-1] + 4, sizes, kept=kept)
        moved = shown_sizes(self._differing(sizes))
        said = f"random inputs with {name}={value}" + (f" at {moved}" if moved else "")
        yield from self._tried(said, inputs, sizes, sizes=False)

    def _elsewhere(self, name: str, value: int) -> Iterator[CheckInput]:
        """With one value of a scalar, at the first sizes that are found for it."""
        node = next(n for n in self.model.graph.inputs if n.attr("name") == name)
        fixed = {name: np.full([1] * node.tensor.rank, value, numpy_dtype(node.dtype))}
        held = {dim: size for dim, size in self.base.items() if dim in self.fixed}
        try:
            found = settle(self.model, self.session, [(self.base, 1.0)], held, BATCH_SIZE, fixed)
        except TasoMirageError:
            return
        sizes = found.workloads[0][0]
        yield from self._chosen(name, value, sizes, {})

    def _at(
        self, sizes: Mapping[str, int], name: str = "", seed: int = SEEDS[-1] + 2, said: bool = True
    ) -> Iterator[CheckInput]:
        """Random inputs at these sizes, as far as they can be drawn and the original runs there."""
        if too_large(self.model, sizes) is None:
            try:
                inputs = random_inputs(self.model, seed, sizes, kept=self._held(sizes))
            except InvalidOption:  # texts, or a rank that is not known: the user's are the only ones
                return
            yield from self._tried(name or f"random inputs at {shown_sizes(sizes)}", inputs, sizes, sizes=said)

    def _extreme(self, names: Sequence[str], kept: Arrays) -> Iterator[CheckInput]:
        """All at once, or, if the original does not run so (one of them is an id), each alone."""
        alone = [[name] for name in names] if len(names) > 1 else []
        for group in ([list(names)] if names else []) + alone:
            inputs = random_inputs(self.model, SEEDS[-1] + 3, self.base, extreme=group, kept=kept)
            name = f"random inputs with extreme integers in {', '.join(group)}"
            found = list(self._tried(name, inputs, self.base, sizes=False, extreme=True))
            yield from found
            if found and len(group) == len(names):
                return

    def _tried(
        self, name: str, inputs: Arrays, at: Mapping[str, int], sizes: bool = True, extreme: bool = False
    ) -> Iterator[CheckInput]:
        try:
            drawn = CheckInput(name, inputs, self.session.run(inputs), at, needed=False, extreme=extreme)
        except RunFailed:
            if sizes:
                self._skip(at)
            return
        if moved := self._differing(at):
            self._moved[shown_sizes(moved)] = None
        yield drawn

    def _differing(self, sizes: Mapping[str, int]) -> dict[str, int]:
        return {name: size for name, size in sizes.items() if self.base.get(name) != size}

    def _skip(self, sizes: Mapping[str, int]) -> None:
        if moved := self._differing(sizes):
            self._skipped[shown_sizes(moved)] = None

    # ------------------------------------------------------------ made-up inputs

    def _made_up(self, sizes: Mapping[str, int]) -> list[str]:
        return made_up(self.model, sizes, self.fixed, _kept(self.model, self.given, sizes))

    def _refused(self, sizes: Mapping[str, int], why: str) -> InputsRefused:
        return refusal(self.model, sizes, self.fixed, _kept(self.model, self.given, sizes), why)
