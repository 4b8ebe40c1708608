"""Two models compared: differences in structure, and whether they compute the same by the criterion
of the check."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from taso_mirage.errors import CheckFailed, InvalidOption
from taso_mirage.ir.dims import Symbolic, learn, symbols
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node, Tensor
from taso_mirage.measure.check import CheckCase, Difference, check_cases, compare, repeatable
from taso_mirage.measure.fine import Fine
from taso_mirage.measure.loop_inputs import with_usual_draws
from taso_mirage.measure.native import Arrays
from taso_mirage.measure.refusals import shown_sizes
from taso_mirage.measure.session import original
from taso_mirage.measure.target import CPU, Target, at_running_level
from taso_mirage.report.data import check_data
from taso_mirage.search.config import Config, runs_on, settled_sizes
from taso_mirage.system.wording import option

SHOWN = 20
"""The largest number of terms, weights and outputs that are listed one by one."""


@dataclass(frozen=True, slots=True)
class Structure:
    """The differences of two models' structures: each entry as (in a, in b), by name; None or 0
    where a model has none.

    `first` are the lowest terms that only one model has, where the models begin to differ. `terms`
    counts (only a, both, only b).
    """

    operators: Mapping[str, tuple[int, int]]
    terms: tuple[int, int, int]
    first: tuple[tuple[str, ...], tuple[str, ...]]
    inputs: Mapping[str, tuple[str | None, str | None]]
    outputs: Mapping[str, tuple[str | None, str | None]]
    opsets: Mapping[str, tuple[int | None, int | None]]
    weights: Mapping[str, tuple[str | None, str | None]]

    @property
    def equal(self) -> bool:
        counts = any(a != b for a, b in self.operators.values())
        listed = (self.inputs, self.outputs, self.opsets, self.weights)
        return not counts and not any(listed) and not self.terms[0] and not self.terms[2]


def structure(a: Model, b: Model) -> Structure:
    """The structural difference.

    Terms are interned, so equal terms over inputs and weights of equal names are one object.
    """
    nodes = tuple({n: None for n in m.nodes() if n.args} for m in (a, b))
    counts = tuple(Counter(_operator(n) for n in side if n.op != "item") for side in nodes)
    common = len(nodes[0].keys() & nodes[1].keys())
    return Structure(
        {op: (counts[0][op], counts[1][op]) for op in sorted(counts[0] | counts[1])},
        (len(nodes[0]) - common, common, len(nodes[1]) - common),
        (_first(a, b), _first(b, a)),
        _differing(_types(a.input_names, a.graph.inputs), _types(b.input_names, b.graph.inputs)),
        _differing(_types(a.output_names, a.graph.outputs), _types(b.output_names, b.graph.outputs)),
        _differing(a.opsets, b.opsets),
        _weights(a, b),
    )


def _operator(node: Node) -> str:
    return str(node.attr("call")) if node.op == "opaque" else node.op


def _types(names: Sequence[str], nodes: Sequence[Node]) -> dict[str, str]:
    return {name: str(node.type) for name, node in zip(names, nodes, strict=True)}


def _differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {k: (a.get(k), b.get(k)) for k in dict.fromkeys((*a, *b)) if a.get(k) != b.get(k)}


def _first(model: Model, other: Model) -> tuple[str, ...]:
    """The lowest terms that the other model lacks: their operands are leaves, or terms of the other
    model."""
    known = set(other.nodes())
    lowest = [n for n in model.nodes() if n.args and n not in known and all(not a.args or a in known for a in n.args)]
    return tuple(_describe(n, model) for n in lowest)


def _describe(node: Node, model: Model) -> str:
    name = model.names.get(node)
    return repr(node)[:200] if name is None else f"{name} = {repr(node)[:200]}"


def _weights(a: Model, b: Model) -> dict[str, tuple[str | None, str | None]]:
    """Weights that only one model has, that differ in type, or in value."""
    leaves = [{str(n.attr("name")): n for n in m.nodes() if n.op == "weight"} for m in (a, b)]
    found: dict[str, tuple[str | None, str | None]] = {}
    for name in dict.fromkeys((*leaves[0], *leaves[1])):
        old, new = (str(side[name].type) if name in side else None for side in leaves)
        if old != new:
            found[name] = (old, new)
        elif not _same(a.weights[name].numpy(), b.weights[name].numpy()):
            found[name] = (f"{old}, its values", f"{new}, other values")
    return found


def _same(a: Any, b: Any) -> bool:
    """Whether two values are equal bit by bit, so that a NaN equals itself."""
    return bool(np.array_equal(a, b)) or (a.dtype == b.dtype and a.dtype != object and a.tobytes() == b.tobytes())


# ---------------------------------------------------------------- numbers


def numbers(
    a: Model,
    b: Model,
    shapes: Mapping[str, int],
    inputs: Sequence[Arrays] = (),
    target: Target = CPU,
    seconds: float = math.inf,
    remarks: list[str] | None = None,
) -> list[Difference]:
    """The outputs of b against those of a by the criterion of the check, on every case that the
    types of b's inputs admit, on a target at the highest level of the runtime's own optimizations
    at which both run. The float64 references take at most `seconds`, and those that every check
    needs twice as many; `remarks` gets lines about the cases.

    Raises InvalidOption if inputs or outputs do not correspond, and CheckFailed if the outputs of a
    differ from run to run, and OutOfTime if the references that every check needs take too long.
    """
    config = Config(shapes=((shapes, 1.0),), inputs=tuple(inputs))
    return at_running_level(
        partial(_numbers, a, b, shapes, inputs, seconds, remarks), target, partial(runs_on, a, config)
    )


def _numbers(
    a: Model,
    b: Model,
    shapes: Mapping[str, int],
    inputs: Sequence[Arrays],
    seconds: float,
    remarks: list[str] | None,
    target: Target,
) -> list[Difference]:
    sizes = _corresponding(a, b)
    first, second = (original(m, target) for m in (a, b))
    fine = Fine.of(a)
    config = Config(shapes=(({**sizes, **shapes}, 1.0),), inputs=tuple(inputs))
    settled = settled_sizes(a, first, config)
    base = dict(settled.workloads[0][0])
    model, _ = with_usual_draws(replace(a, sizes=base, integers=settled.integers), first, base)
    prepared = list(check_cases(model, first, base, inputs, skipped=remarks, seconds=seconds))
    if not repeatable(first, prepared[0]):
        raise CheckFailed("the first model gives other outputs at every run, so nothing can be compared")
    places = [a.output_names.index(name) for name in b.output_names]
    admitted = [_reorder(case, places) for case in prepared if _admits(b, case.inputs)]
    if not admitted:
        raise InvalidOption(
            f"the second model takes none of the sizes that were tried ({shown_sizes(base)}); fix them with {option('shape')}"
        )
    return compare(b, second, admitted, None if fine is None else fine.opened(b, second.target, source=True))


def _corresponding(a: Model, b: Model) -> dict[str, int]:
    """The sizes that b fixes where a has a name.

    InvalidOption where the models cannot take the same inputs or give the same outputs.
    """
    _same_names("input", a.input_names, b.input_names)
    _same_names("output", a.output_names, b.output_names)
    results = dict(zip(b.output_names, b.graph.outputs, strict=True))
    for name, node in zip(a.output_names, a.graph.outputs, strict=True):
        _same_kind("output", name, node.tensor, results[name].tensor)
    others = {n.attr("name"): n.tensor for n in b.graph.inputs}
    sizes: dict[str, int] = {}
    for node in a.graph.inputs:
        name = str(node.attr("name"))
        _same_kind("input", name, node.tensor, others[name])
        _unify(name, node.tensor, others[name], sizes)
    return sizes


def _same_names(kind: str, a: Sequence[str], b: Sequence[str]) -> None:
    for here, there, names, which in (("first", "second", set(a) - set(b), b), ("second", "first", set(b) - set(a), a)):
        if names:
            raise InvalidOption(
                f"the {kind} {sorted(names)[0]!r} of the {here} model is not in the {there}, whose {kind}s are "
                f"{', '.join(which) or 'none'}: rename it in one of the files to compare numbers"
            )


def _same_kind(kind: str, name: str, a: Tensor, b: Tensor) -> None:
    if a.dtype != b.dtype:
        raise InvalidOption(f"the {kind} {name!r} is {a.dtype} in the first model, {b.dtype} in the second")
    if a.shape is not None and b.shape is not None and a.rank != b.rank:
        raise InvalidOption(f"the {kind} {name!r} has {a.rank} dimensions in the first model, {b.rank} in the second")


def _unify(name: str, a: Tensor, b: Tensor, sizes: dict[str, int]) -> None:
    """Learn the sizes of a's symbols where b has numbers."""
    for i, (m, n) in enumerate(zip(a.shape or (), b.shape or (), strict=False)):
        if not isinstance(n, int):
            continue
        known = sizes.get(str(m)) if isinstance(m, Symbolic) else m
        if known is not None and known != n:
            raise InvalidOption(f"dimension {i} of the input {name!r} is {known} in the first model, {n} in the second")
        if symbols(m) == {str(m)}:
            sizes[str(m)] = n


def _placed(outputs: Callable[[], list[Any] | None], places: Sequence[int]) -> list[Any] | None:
    found = outputs()
    return None if found is None else [found[i] for i in places]


def _reorder(case: CheckCase, places: Sequence[int]) -> CheckCase:
    """The case with its outputs in the order of the second model."""
    resolution = case.resolution
    return replace(
        case,
        original=[case.original[i] for i in places],
        plain=None if case.plain is None else partial(_placed, case.plain, places),
        reference=[case.reference[i] for i in places],
        moved=lambda ways: [case.moved(ways)[i] for i in places],
        resolution=None if resolution is None else lambda: [resolution()[i] for i in places],
    )


def _admits(model: Model, inputs: Arrays) -> bool:
    """Whether the types of the inputs accept these arrays, with equal sizes for equal names."""
    sizes: dict[str, int] = {}
    for node in model.graph.inputs:
        actual = inputs[node.attr("name")].shape
        learn(node.tensor.shape, actual, sizes)
        for dim, size in zip(node.tensor.shape or (), actual, strict=False):
            if (sizes.get(str(dim), size) if isinstance(dim, Symbolic) else dim) != size:
                return False
    return True


# ---------------------------------------------------------------- as data and text


def diff_data(found: Structure, differences: Sequence[Difference] | None) -> dict[str, Any]:
    """The structural and the numeric differences as JSON data; each pair is (first model, second
    model).

    `numeric` is None if nothing could be compared, and an error if the outputs differ by more than
    rounding (a shape, a string, an element that is not finite).
    """
    return {
        "structure": {
            "equal": found.equal,
            "operators": {op: list(pair) for op, pair in found.operators.items()},
            "terms": dict(zip(("only_first", "both", "only_second"), found.terms, strict=True)),
            "first_differences": [list(side) for side in found.first],
            **{
                kind: {name: list(pair) for name, pair in getattr(found, kind).items()}
                for kind in ("inputs", "outputs", "opsets", "weights")
            },
        },
        "numeric": None if differences is None else check_data(differences),
        "equal": bool(differences) and all(d.passed for d in differences or ()),
    }


def structure_lines(found: Structure) -> Iterator[str]:
    """The structural difference as text."""
    if found.equal:
        yield f"structure: equal, {found.terms[1]} terms"
        return
    only, both, other = found.terms
    yield f"structure: {only} terms only in the first model, {both} in both, {other} only in the second"
    for op, (a, b) in found.operators.items():
        if a != b:
            yield f"  {op}: {a} -> {b} ({b - a:+d})"
    for kind in ("inputs", "outputs", "opsets", "weights"):
        rows = list(getattr(found, kind).items())
        for name, pair in rows[:SHOWN]:
            old, new = ("none" if each is None else each for each in pair)
            yield f"  {kind[:-1]} {name or 'ai.onnx'}: {old} -> {new}"
        if len(rows) > SHOWN:
            yield f"  and {len(rows) - SHOWN} more {kind}"
    for side, which in zip(found.first, ("first", "second"), strict=True):
        if side:
            yield f"where the {which} model begins to differ:"
            yield from (f"  {term}" for term in side[:SHOWN])
            yield from [f"  and {len(side) - SHOWN} more"] if len(side) > SHOWN else []


def number_lines(differences: Sequence[Difference]) -> Iterator[str]:
    """The numeric difference as text: the outputs above the bound, else the tightest one."""
    bad = [d for d in differences if not d.passed]
    count = len({d.case for d in differences})
    yield f"numbers: {len(differences) - len(bad)} of {len(differences)} outputs on {count} input sets within the bound"
    tightest = max(differences, key=lambda d: d.error / d.bound if d.bound else d.error)
    yield from (f"  {d}" for d in (bad[:SHOWN] or [tightest]))


def failure(differences: Sequence[Difference]) -> CheckFailed | None:
    """The error of models that do not compute the same."""
    bad = [d for d in differences if not d.passed]
    return CheckFailed(f"the models differ: {bad[0]}") if bad else None
