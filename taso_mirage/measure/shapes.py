"""Sizes of dynamic dims, as one set or as several with weights: the option `--shape`, and the sizes
that it leaves open."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from taso_mirage.errors import InvalidOption
from taso_mirage.ir.dims import learn, symbol, symbols
from taso_mirage.ir.model import Model
from taso_mirage.measure.hints import hints
from taso_mirage.measure.native import Arrays
from taso_mirage.system.wording import option

Workloads = Sequence[tuple[Mapping[str, int], float]]
"""Sets of sizes of the dynamic dims, each with its share of the runs."""


def parse_shapes(model: Model, texts: Sequence[str]) -> list[tuple[dict[str, int], float]]:
    """Sets of sizes with their weights: `batch:4` fixes a dim, `input_ids:1,128` the dims of an
    input by position, `+` joins several.

    With a weight, as in `batch:1+seq:512@3`, they are a set of their own; those without one hold in
    every set.
    """
    common: dict[str, int] = {}
    weighted: list[tuple[str, dict[str, int], float]] = []
    for text in texts:
        shapes, weight = _weight(text)
        sizes = common if weight is None else {}
        for shape in _shapes(model, shapes):
            _fix(sizes, _sizes(model, text, shape))
        if weight is not None:
            weighted.append((text, sizes, weight))
    named = {name for _, sizes, _ in weighted for name in sizes}
    for text, sizes, _ in weighted:
        _fix(sizes, common)
        if missing := named - set(sizes):
            raise InvalidOption(
                f"{option('shape', text)}: it gives no size for {sorted(missing)[0]!r}, which another set does"
            )
    return [(sizes, weight) for _, sizes, weight in weighted] or [(common, 1.0)]


def parse_shape(model: Model, texts: Sequence[str]) -> dict[str, int]:
    """Parse sizes that form a single set, without weights."""
    for text in texts:
        if _weight(text)[1] is not None:
            raise InvalidOption(f"{option('shape', text)}: only `optimize` takes weights")
    return parse_shapes(model, texts)[0][0]


def _weight(text: str) -> tuple[str, float | None]:
    """The text before the weight, and the weight; a name may have an @ too."""
    name, colon, rest = text.rpartition(":")
    sizes, at, given = rest.partition("@")
    if not at:
        return text, None
    try:
        weight = float(given)
    except ValueError:
        weight = 0.0
    if not 0 < weight < math.inf:
        raise InvalidOption(
            f"{option('shape', text)}: the weight after @ must be a positive number, for example batch:1@3"
        )
    return name + colon + sizes, weight


def _shapes(model: Model, text: str) -> list[str]:
    """The shapes that `+` joins; a name may contain a + too."""
    known = {*model.input_names, *model.symbols()}
    return [text] if text.rpartition(":")[0] in known else text.split("+")


def _sizes(model: Model, text: str, shape: str) -> dict[str, int]:
    """The dims that `batch:4` or `input_ids:1,128` fixes; `text` is the option that it is from."""
    inputs = {n.attr("name"): n for n in model.graph.inputs}
    name, _, given = shape.rpartition(":")
    sizes = _numbers(text, given)
    if name not in inputs and name in model.symbols() and len(sizes) == 1:
        return {name: sizes[0]}
    if name not in inputs:
        known = ", ".join([*model.input_names, *model.symbols()])
        raise InvalidOption(f"{option('shape', text)}: the model has no input or dynamic dim {name!r}; it has: {known}")
    dims = inputs[name].tensor.shape or ()
    if len(dims) != len(sizes):
        raise InvalidOption(
            f"{option('shape', text)}: the input {name!r} has {len(dims)} dimensions, {len(sizes)} were given"
        )
    found: dict[str, int] = {}
    for i, (dim, size) in enumerate(zip(dims, sizes, strict=True)):
        if isinstance(dim, int) and dim != size:
            raise InvalidOption(
                f"{option('shape', text)}: dimension {i} of {name!r} is {dim} in the model, {size} was given"
            )
        if not isinstance(dim, int) and len(symbols(dim)) == 1 and dim == symbol(next(iter(symbols(dim)))):
            _fix(found, {next(iter(symbols(dim))): size})
    return found


def _numbers(text: str, given: str) -> list[int]:
    try:
        sizes = [int(part) for part in given.replace("x", ",").split(",")]
    except ValueError:
        raise InvalidOption(f"{option('shape', text)}: write NAME:DIMS, for example input_ids:1,128") from None
    if any(size < 1 for size in sizes):
        raise InvalidOption(f"{option('shape', text)}: sizes must be at least 1")
    return sizes


def _fix(found: dict[str, int], more: dict[str, int]) -> None:
    for name, size in more.items():
        if found.setdefault(name, size) != size:
            raise InvalidOption(
                f"{option('shape')} gives the dim {name!r} two sizes, {found[name]} and {size}; for several sets of sizes give "
                f"each a weight, as in {name}:{size}@1"
            )


def workloads(
    model: Model, shapes: Workloads, inputs: Sequence[Arrays], default: int
) -> list[tuple[dict[str, int], float]]:
    """The sets of sizes with their shares of the weight, the heaviest first.

    A size for every symbol: the user's, else that of the user's inputs, else the one that its name
    suggests, else the default.
    """
    names, suggested = model.symbols(), hints(model, default)
    total = sum(weight for _, weight in shapes)
    found: list[tuple[dict[str, int], float]] = []
    for given, weight in shapes:
        if unknown := set(given) - set(names):
            known = ", ".join(names) or "none"
            raise InvalidOption(
                f"{option('shape')} names {sorted(unknown)[0]!r}, which is no dynamic dim of the model; they are: {known}"
            )
        sizes = {**learned(model, inputs), **given}
        found.append(({name: sizes.get(name, suggested[name]) for name in names}, weight / total))
    return sorted(found, key=lambda each: -each[1])


def learned(model: Model, inputs: Sequence[Arrays]) -> dict[str, int]:
    """The sizes of symbols in the given inputs; if inputs differ, those of the first."""
    sizes: dict[str, int] = {}
    for arrays in inputs:
        for node in model.graph.inputs:
            learn(node.tensor.shape, arrays[node.attr("name")].shape, sizes)
    return sizes
