"""Sizes and scalars at which a model runs, found by trial runs of the original.

The first trial has the sizes that names suggest (`hints.py`) and that agree (`relations.py`). Where
the runtime refuses it, others follow: one dim as large as a sum among the outputs' dims, all alike,
usual images and lengths, then one dim after the other, and again from there where another node
failed. The user's sizes stay. A scalar that chooses a branch has the first value that runs, of
those that the model compares it with, 0 and 1.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from math import prod
from typing import Any

import numpy as np

from taso_mirage.errors import InvalidOption, RunFailed
from taso_mirage.ir.dims import evaluate, symbols
from taso_mirage.ir.model import Model, random_inputs
from taso_mirage.ir.terms import Node, is_float
from taso_mirage.measure.bulk import too_large, too_small
from taso_mirage.measure.hints import BATCH_SIZE, image_axes, state_batch, words_of
from taso_mirage.measure.native import Arrays
from taso_mirage.measure.refusals import refusal, shown_sizes
from taso_mirage.measure.relations import SizeRelation, agreed, relations, sums
from taso_mirage.measure.session import Session
from taso_mirage.measure.shapes import Workloads
from taso_mirage.onnx_io.input_requirements import compared_numbers

SEEDS = (1, 2, 3)
"""The seeds of the random inputs that every check needs."""
TIMED = 0
"""The seed of the inputs that are timed."""
TRIALS, SECONDS = 64, 20.0
"""The largest number of trials, and the seconds after the first trial within which another may
begin."""
IMAGES = (224, 320, 640, 32, 64, 256, 512)
LENGTHS = (16, 32, 64, 128, 512, 1024, 16_000)
ALIKE = (16, 32, 64, 2, 4)
SINGLE = (1, 2, 3, 4, 7, 16, 32, 48, 64, 80, 128, 224, 512, 16_000)
"""Sizes that are tried: of images, of other dims, of all at once, of one alone."""
EMPTY_TRIALS = 8
"""The number of further trials after one that ran but gave empty results, as with windows larger
than an image, or results of other shapes."""
SUMS = 4
"""Sums among the outputs' dims that are tried as a size."""
CHOICES = 6
"""Combinations of scalars that are tried at one set of sizes."""


@dataclass(frozen=True, slots=True)
class SettledSizes:
    """The sizes that a model runs at: sets of sizes with their shares, values of scalars that
    choose a branch, and remarks on them."""

    workloads: Workloads
    integers: Mapping[str, int]
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SizeTrial:
    """One run: its sizes, whether it ran and gave elements of the inferred shapes, else why not,
    and at which node it failed."""

    sizes: Mapping[str, int]
    integers: Mapping[str, int]
    ran: bool
    full: bool = False
    why: str = ""
    failed: str = ""


def choices(model: Model) -> dict[str, list[int]]:
    """The values of every integer or boolean input of one element: those that the model compares it
    with, the largest first, then 0 and 1. A row of a table that is compared with nothing is
    drawn."""
    scalars = [n for n in model.graph.inputs if _is_choice(n)]
    compared = compared_numbers(model) if scalars else {}
    found: dict[str, list[int]] = {}
    for node in scalars:
        name = str(node.attr("name"))
        if name in model.rows and name not in compared:
            continue
        numbers = [] if node.dtype == "bool" else sorted(compared.get(name, ()), reverse=True)
        found[name] = list(dict.fromkeys(v for v in (*numbers, 0, 1) if _fits(v, node.dtype)))
    return found


def kept_integers(model: Model, given: Sequence[Arrays]) -> Arrays:
    """The inputs that cannot be made up (all but floats), from the user's first inputs or else the
    defaults."""
    known = given[0] if given else model.default_inputs()
    names = [str(n.attr("name")) for n in model.graph.inputs if not is_float(n.dtype)]
    return {name: known[name] for name in names if name in known}


def _can_be_made(node: Node) -> bool:
    """Whether random values of an input can be generated, which excludes sequences and maps."""
    return node.tensor.shape is not None


def _is_choice(node: Node) -> bool:
    whole = node.dtype.startswith(("int", "uint")) or node.dtype == "bool"
    return whole and node.tensor.shape is not None and all(d == 1 for d in node.shape)


def _fits(value: int, dtype: str) -> bool:
    if dtype in ("bool", "int4", "uint4"):
        return value in (0, 1)
    return bool(np.iinfo(dtype).min <= value <= np.iinfo(dtype).max)


def settle(
    model: Model, session: Session, asked: Workloads, held: Mapping[str, int], default: int, kept: Arrays
) -> SettledSizes:
    """Sizes and scalars at which the original runs.

    `asked`: the sets of sizes so far, the heaviest first; `held`: those of the first set that the
    user gave; `kept`: the user's integers. InvalidOption where nothing runs.
    """
    first = dict(asked[0][0])
    scalars = {name: values for name, values in choices(model).items() if name not in kept}
    free = [name for name in first if name not in held]
    if not (free or scalars) or not all(_can_be_made(n) for n in model.graph.inputs):
        return SettledSizes(asked, {})
    looked = _Trials(model, session, kept, scalars)
    candidates = _Candidates(model, relations(model), first, free, default)
    found = _search(looked, candidates)
    if found is None:
        tried = looked.made[0]
        asked_for = replace(model, sizes=tried.sizes, integers=tried.integers)
        raise refusal(asked_for, tried.sizes, held, kept, tried.why, len(looked.made))
    return SettledSizes(_with(asked, found.sizes, free), found.integers, looked.said(found))


def _with(asked: Workloads, sizes: Mapping[str, int], free: Sequence[str]) -> Workloads:
    made = {name: sizes[name] for name in free}
    return [(dict(asked[0][0]) | made, asked[0][1])] + [(dict(each), share) for each, share in asked[1:]]


def _search(looked: _Trials, candidates: _Candidates) -> SizeTrial | None:
    """The first trial that gives elements; else the first that ran."""
    for sizes in candidates.usual():
        if (found := looked.at(sizes)) is not None or looked.over:
            return found or looked.empty
    starts = looked.at_new_nodes(set()) if candidates.free else []
    seen = {each.failed for each in starts}
    while starts:
        best = starts.pop(0)
        for sizes in candidates.around(best):
            if (found := looked.at(sizes)) is not None or looked.over:
                return found or looked.empty
            if new := looked.at_new_nodes(seen):
                seen |= {each.failed for each in new}
                starts = [*new, *starts, best]
                break
    return looked.empty


@dataclass
class _Candidates:
    """Assignments of sizes in the order in which they are tried."""

    model: Model
    asked: Sequence[SizeRelation]
    first: dict[str, int]
    free: Sequence[str]
    default: int

    def agreed(self, sizes: Mapping[str, int]) -> dict[str, int]:
        held = [name for name in self.first if name not in self.free]
        return agreed(sizes, self.asked, held)

    def usual(self) -> Iterator[dict[str, int]]:
        yield self.agreed(self.first)
        if not self.free:
            return
        yield from islice(self._sums(), SUMS)
        yield self._all(self.free, self.default)
        yield self._all(self.free, 1)
        images = [name for name in self.free if name in self._of_images()]
        leading = [name for name in self.free if name in self._leading()]
        lengths = [name for name in self.free if name not in leading]
        for batch in ({}, dict.fromkeys(leading, BATCH_SIZE)):
            for n in IMAGES if images else ():
                yield self._all(images, n, batch)
            for n in LENGTHS if lengths else ():
                yield self._all(lengths, n, batch)
        for n in ALIKE:
            yield self._all(self.free, n)

    def around(self, best: SizeTrial) -> Iterator[dict[str, int]]:
        """One dim after the other; the numbers of the runtime's message come first."""
        said = re.findall(r"\d+", best.why.partition("Message:")[2])
        numbers = [int(n) for n in said if len(n) < 6 and int(n) > 1 and int(n) not in best.sizes.values()]
        for n in dict.fromkeys((*numbers[:4], *SINGLE)):
            for name in self.free:
                moved = {**best.sizes, name: n}
                yield agreed(moved, self.asked, [*(k for k in self.first if k not in self.free), name])

    def _sums(self) -> Iterator[dict[str, int]]:
        """One dim with the size of a sum: a mask over past and new tokens, whose cache grows."""
        leading = self._leading()
        for total in sums(self.model):
            for name in reversed(self.free):
                if name not in leading and name not in symbols(total):
                    yield self._all([name], evaluate(total, self.first))

    def _all(self, names: Sequence[str], size: int, more: Mapping[str, int] | None = None) -> dict[str, int]:
        return self.agreed({**self.first, **(more or {}), **dict.fromkeys(names, size)})

    def _of_images(self) -> set[str]:
        """Height and width of inputs of rank 4."""
        inputs = [n for n in self.model.graph.inputs if n.tensor.shape is not None and len(n.shape) == 4]
        return {str(n.shape[i]) for n in inputs for i in image_axes(n) or (2, 3)}

    def _leading(self) -> set[str]:
        """The first dims of inputs of more ranks, the second ones of states, and those that are
        called a batch."""
        inputs = [n for n in self.model.graph.inputs if n.tensor.shape is not None and len(n.shape) > 1]
        return {str(n.shape[state_batch(n) or 0]) for n in inputs} | {
            name for name in self.free if "batch" in words_of(name)
        }


@dataclass
class _Trials:
    """Runs of the original, each assignment once."""

    model: Model
    session: Session
    kept: Arrays
    scalars: Mapping[str, list[int]]
    made: list[SizeTrial] = field(default_factory=list)
    began: float = 0.0

    @property
    def over(self) -> bool:
        """Whether no further trial may begin."""
        late = len(self.made) >= TRIALS or time.perf_counter() - self.began > SECONDS
        ran = next((i for i, each in enumerate(self.made) if each.ran), None)
        return late or (ran is not None and len(self.made) - ran > EMPTY_TRIALS)

    @property
    def empty(self) -> SizeTrial | None:
        """The first trial that ran, although it gave empty results."""
        return next((each for each in self.made if each.ran), None)

    def at(self, sizes: Mapping[str, int]) -> SizeTrial | None:
        """The trial at these sizes that gives elements, with the first scalars that run."""
        if any(each.sizes == sizes for each in self.made):
            return None
        for values in islice(product(*self.scalars.values()), CHOICES):
            tried = self._tried(dict(sizes), dict(zip(self.scalars, values, strict=True)))
            self.made.append(tried)
            self.began = self.began or time.perf_counter()
            if tried.full:
                return tried
            if self.over:
                break
        return None

    def at_new_nodes(self, seen: Collection[str]) -> list[SizeTrial]:
        """The first trial that failed at each node, but for the nodes in `seen`."""
        failed = {e.failed: e for e in reversed(self.made) if not e.ran and e.failed not in seen}
        return [*reversed(failed.values())]

    def said(self, found: SizeTrial) -> tuple[str, ...]:
        """A remark if another trial than the first one was used."""
        first = self.made[0]
        if found is first:
            return ()
        at = shown_sizes({**first.sizes, **first.integers})
        return (
            f"the sizes were found by {len(self.made)} trial runs: at {at} the original does not run"
            + (f" ({first.why[:160]})" if first.why else ", or gives nothing of the right shape"),
        )

    def _tried(self, sizes: dict[str, int], integers: dict[str, int]) -> SizeTrial:
        if (why := too_large(self.model, sizes)) is not None:
            return SizeTrial(sizes, integers, False, why=why)
        try:
            asked = replace(self.model, sizes=sizes, integers=integers)
            kept = {k: v for k, v in self.kept.items() if _has_shape(asked, k, v, sizes)}
            outputs = self.session.run(random_inputs(asked, SEEDS[0], sizes, kept=kept))
            drawn = any(not is_float(n.dtype) and n.attr("name") not in {*kept, *integers} for n in asked.graph.inputs)
            for seed in (*SEEDS[1:], TIMED) if drawn else ():  # other integers may exceed a table
                self.session.run(random_inputs(asked, seed, sizes, kept=kept))
        except (RunFailed, ValueError, InvalidOption) as error:
            return SizeTrial(sizes, integers, False, why=str(error), failed=_failed(str(error)))
        arrays = [each for each in outputs if isinstance(each, np.ndarray)]
        small = too_small(self.model, sizes)
        full = small is None and all(prod(a.shape) for a in arrays) and _as_inferred(self.model, outputs, sizes)
        return SizeTrial(sizes, integers, True, full, small or "")


def _as_inferred(model: Model, outputs: Sequence[Any], sizes: Mapping[str, int]) -> bool:
    """Whether all results have the inferred shapes. ONNX Runtime reads a range of rows beyond an
    array's end as the rows that there are, where the standard has no result."""
    for node, found in zip(model.graph.outputs, outputs, strict=True):
        dims = node.tensor.shape
        if dims is None or not isinstance(found, np.ndarray):
            continue
        known = [evaluate(dim, sizes) if symbols(dim) <= sizes.keys() else None for dim in dims]
        if len(known) != found.ndim or any(k not in (None, n) for k, n in zip(known, found.shape, strict=True)):
            return False
    return True


def _failed(why: str) -> str:
    """The node that the runtime's message names."""
    named = re.search(r"Name:'([^']*)'", why)
    return "" if named is None else named[1]


def _has_shape(model: Model, name: str, value: Any, sizes: Mapping[str, int]) -> bool:
    node = next(n for n in model.graph.inputs if n.attr("name") == name)
    return tuple(np.shape(value)) == tuple(evaluate(d, sizes) for d in node.tensor.shape or ())
