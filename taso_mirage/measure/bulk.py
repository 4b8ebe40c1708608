"""Sizes at which a model has no float64 reference: a tensor would be too large, or a window does
not fit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from taso_mirage.errors import IllTyped, TasoMirageError, Undecidable
from taso_mirage.ir.dims import evaluate
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import ABSENT, Node, Tensor, is_float, numpy_dtype
from taso_mirage.meanings.shapes import SHAPES
from taso_mirage.measure.hints import words_of
from taso_mirage.measure.relations import agreed, relations
from taso_mirage.operators.interpret import interpret_term
from taso_mirage.operators.ops import traits
from taso_mirage.operators.work import Work, sized, work

LARGEST_TENSOR = 4e9
"""The largest number of bytes of one tensor in the float64 reference. A larger tensor fills the
memory, or comes from a size that nobody intended, such as a slice to 1000000000 that was taken for
a dim."""


ROOM = 500_000_000
"""The largest number of bytes that an evaluation may hold at once in addition to the weights, if
smaller sizes can be chosen."""
SMALL, HALVINGS = 16, 6
"""The size below which sizes are not halved, and the largest number of halvings."""


def too_large(model: Model, sizes: Mapping[str, int]) -> str | None:
    """Describe the node that makes a tensor that is too large at these sizes, with its dims and
    bytes; None if there is none. Types that depend on other sizes are ignored."""
    for node in model.nodes():
        for type in _types(node) if node.op != "weight" else ():
            if (count := _type_bytes(type, sizes)) > LARGEST_TENSOR and isinstance(type, Tensor):
                shown = ", ".join(map(str, _dims(type, sizes) or ()))
                return (
                    f"{_called(model, node)} gives {type.dtype}[{shown}], {count / 1e9:.1f} GB in the float64 reference"
                )
    return None


@dataclass(frozen=True, slots=True)
class Bulk:
    """The memory of a float64 evaluation in bytes: the sum over all results, and the largest sum of
    results that exist at once. Weights are read one at a time."""

    total: int = 0
    peak: int = 0


def bulk(model: Model, sizes: Mapping[str, int]) -> Bulk:
    """At some sizes; results whose sizes are not known from these are not counted."""
    order = model.nodes()
    last = {arg: node for node in order for arg in node.args} | dict.fromkeys(model.graph.outputs)
    held: dict[Node, int] = {}
    total = now = peak = 0
    for node in order:
        held[node] = 0 if node.op == "weight" else sum(_type_bytes(type, sizes) for type in _types(node))
        total += held[node]
        now += held[node]
        peak = max(peak, now)
        now -= sum(held.pop(arg, 0) for arg in set(node.args) if last[arg] is node)
    return Bulk(total, peak)


UNTYPED = (TasoMirageError, LookupError, TypeError, ValueError, ArithmeticError, NotImplementedError)
"""Errors of terms that have no type at some sizes."""
RATE, BANDWIDTH = 1.5e10, 1.0e9
"""Operations and bytes that a float64 evaluation does in a second, at least."""


def evaluation_seconds(nodes: Iterable[Node], sizes: Mapping[str, int]) -> float:
    """The estimated seconds of a float64 evaluation of some terms, from their operations and their
    bytes in float64. Reading weights counts, too."""
    total = 0.0
    for node in nodes:
        each = _work(node, sizes) if node.args else Work(0, 0)
        total += each.flops / RATE + 2 * each.bytes / BANDWIDTH
    return total


def _work(node: Node, sizes: Mapping[str, int]) -> Work:
    try:
        return work(node, sizes)
    except UNTYPED:
        return Work(0, 0)


def smaller(model: Model, sizes: Mapping[str, int], held: Collection[str]) -> Iterator[dict[str, int]]:
    """Smaller sizes, the largest first: batches of 1, then repeatedly half of every large size, as
    far as sizes that must agree permit it. `held` values stay."""
    asked, now = relations(model), dict(sizes)
    inputs = [n for n in model.graph.inputs if n.tensor.shape is not None and len(n.shape) > 1]
    leading = {str(n.shape[0]) for n in inputs}
    batches = [name for name in sizes if "batch" in words_of(name) or name in leading]
    free = [name for name in sizes if name not in held]
    steps = [{name: 1 for name in free if name in batches}] + [{}] * HALVINGS
    for fixed in steps:
        halved = {name: max(now[name] // 2, 1) for name in free if name not in batches and now[name] >= SMALL}
        wanted = agreed({**now, **(fixed or halved)}, asked, held)
        if wanted != now:
            now = wanted
            yield now


def too_small(model: Model, sizes: Mapping[str, int]) -> str | None:
    """Describe the node whose windows do not fit at these sizes, where the runtime may give a
    result without an error; None if all fit."""
    for node in model.nodes():
        if traits(node).windowed:
            try:
                args = [None if a is ABSENT else sized(a.type, sizes) for a in node.args]
                interpret_term(node, SHAPES, args, sizes)
            except IllTyped as error:
                return f"{_called(model, node)}: {error}"
            except (KeyError, ArithmeticError, Undecidable):
                continue
    return None


def _types(node: Node) -> tuple[Any, ...]:
    return node.type if isinstance(node.type, tuple) else (node.type,)


def _type_bytes(type: Any, sizes: Mapping[str, int]) -> int:
    """Bytes in float64; 0 where they are not known."""
    dims = _dims(type, sizes) if isinstance(type, Tensor) else None
    return 0 if dims is None else _bytes(type.dtype) * prod(max(n, 0) for n in dims)


def _dims(type: Tensor, sizes: Mapping[str, int]) -> list[int] | None:
    try:
        return [evaluate(dim, sizes) for dim in type.shape or ()]
    except (KeyError, ArithmeticError, Undecidable):
        return None


def _bytes(dtype: str) -> int:
    if is_float(dtype):
        return 8
    try:
        return int(numpy_dtype(dtype).itemsize)
    except TypeError:
        return 1


def _called(model: Model, node: Node) -> str:
    if node.op == "input":
        return f"the input {node.attr('name')!r}"
    origin = model.origins.get(node)
    name = origin.name if origin is not None and origin.name else model.names.get(node)
    kind = str(node.attr("call")) if node.op == "opaque" else node.op
    return f"the node {name!r} ({kind})" if name else f"a node {kind}"
