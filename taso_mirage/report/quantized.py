"""What of a quantized model runs in integers, what falls back to floats and why, and what
conversions take: read off the model that the runtime makes of it, and its profiler.

Why a group of DequantizeLinear, an operator and QuantizeLinear is not one operator of integers, the
runtime is asked: the group runs alone, and again with one property changed after the other, until
it is one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from taso_mirage.errors import TasoMirageError
from taso_mirage.onnx_io.groups import DEQUANTIZE, QUANTIZE, FileNodes, Place, QuantizedGroup, group_model, group_of
from taso_mirage.targets.profile import RunNode

SMALL = ("int8", "uint8", "int4", "uint4", "int2", "uint2")
FLOATS = ("float32", "float16", "bfloat16", "float64")
CONVERSIONS = (QUANTIZE, DEQUANTIZE, "DynamicQuantizeLinear")
INTEGERS, IN_FLOATS, CONVERTS, OTHER = "integers", "floats", "conversions", "other"
LATEST = 21
"""The last opset that a group is tried at."""
Fuses = Callable[[QuantizedGroup], bool]


def kind(node: RunNode) -> str:
    """What a node of the runtime computes in."""
    dtypes = [dtype for dtype, _ in node.operands]
    if node.operator in CONVERSIONS or (node.operator == "Cast" and dtypes == ["int32"] and _float(node.results)):
        return CONVERTS
    if any(dtype in SMALL for dtype in dtypes):
        return INTEGERS
    return IN_FLOATS if _float((*node.operands, *node.results)) else OTHER


def _float(types: Iterable[tuple[str, tuple[int, ...]]]) -> bool:
    return any(dtype in FLOATS for dtype, _ in types)


def quantization(found: FileNodes, run: Sequence[RunNode], fuses: Fuses) -> dict[str, Any]:
    """The diagnosis as JSON data."""
    where = carriers(found, run)
    total = sum(n.seconds for n in run) or 1.0
    parts = {k: [n for n in run if kind(n) == k] for k in (INTEGERS, IN_FLOATS, CONVERTS, OTHER)}
    return {
        "seconds": total,
        **{k: _summed(nodes, total) for k, nodes in parts.items()},
        "fallbacks": [
            {"node": _named(n), "operator": n.op_type, "seconds": ran.seconds, "why": reasons(found, n, ran, fuses)}
            for n, ran in _fallen(found, where)
        ],
        "costliest_conversions": [
            {"node": n.name, "operator": n.operator, "seconds": n.seconds, "of": n.inputs[0]}
            for n in sorted(parts[CONVERTS], key=lambda n: -n.seconds)[:8]
        ],
    }


def _summed(nodes: Sequence[RunNode], total: float) -> dict[str, Any]:
    operators: dict[str, dict[str, float]] = defaultdict(lambda: {"count": 0, "seconds": 0.0})
    for node in nodes:
        operators[node.operator]["count"] += 1
        operators[node.operator]["seconds"] += node.seconds
    seconds = sum(n.seconds for n in nodes)
    return {
        "seconds": seconds,
        "share": seconds / total,
        "operators": dict(sorted(operators.items(), key=lambda item: -item[1]["seconds"])),
    }


def _named(node: Any) -> str:
    return str(node.name or f"{node.op_type} of {node.output[0]}")


# ---------------------------------------------------------------- where a node of the file runs


def carriers(found: FileNodes, run: Sequence[RunNode]) -> dict[int, RunNode]:
    """For each node of the file, by its place, the node of the runtime that has its name or gives
    its output; else that of what reads it, of which it became a part."""
    named = {n.name: n for n in run if n.name}
    stems = {re.sub(r"(_token_\d+|_nchwc|/duplicated)+$", "", n.name): n for n in run if n.name}
    made = {value: n for n in run for value in n.outputs if value}
    places = {id(node): i for i, node in enumerate(found.nodes)}
    where: dict[int, RunNode] = {}
    for i, node in reversed(list(enumerate(found.nodes))):
        own = named.get(node.name) or next((made[v] for v in node.output if v in made), None) or stems.get(node.name)
        readers = (r for v in node.output for r in found.readers[v])
        into = (where[places[id(r)]] for r in readers if places.get(id(r)) in where)
        ran = own or next(into, None)
        if ran is not None:
            where[i] = ran
    return where


def _fallen(found: FileNodes, where: Mapping[int, RunNode]) -> list[tuple[Any, RunNode]]:
    """The nodes beside conversions that run in floats, the costliest first."""
    fallen = [
        (node, where[i])
        for i, node in enumerate(found.nodes)
        if i in where and node.op_type not in CONVERSIONS and kind(where[i]) == IN_FLOATS and _beside(found, node)
    ]
    return sorted(fallen, key=lambda pair: -pair[1].seconds)


def _beside(found: FileNodes, node: Any) -> bool:
    """Whether an operand comes out of small integers, or a result becomes such."""
    return any(found.dequantized(v) for v in node.input) or any(found.quantized(v) for v in node.output)


# ---------------------------------------------------------------- why


def reasons(found: FileNodes, node: Any, ran: RunNode, fuses: Fuses) -> list[str]:
    """Why a group is none of integers: what has to change so that it is one."""
    if ran.operator != node.op_type:
        return [f"the runtime made it a part of {ran.operator}, which it computes in floats"]
    group = group_of(found, node, ran.operands, ran.results)
    if fuses(group):
        return [_around(found, node)]
    repairs = dict(_repairs(group, node))
    for why, repaired in repairs.items():
        if fuses(repaired(group)):
            return [why]
    needed = _needed(group, repairs, fuses)
    return needed or [f"the runtime has no operator of integers for {node.op_type}"]


def _needed(group: QuantizedGroup, repairs: Mapping[str, Repair], fuses: Fuses) -> list[str]:
    """Of all changes those that cannot be left out; none where all are not enough."""

    def changed(names: Iterable[str]) -> QuantizedGroup:
        result = group
        for name in names:
            result = repairs[name](result)
        return result

    kept = list(repairs)
    if not kept or not fuses(changed(kept)):
        return []
    for name in list(kept):
        rest = [n for n in kept if n != name]
        if fuses(changed(rest)):
            kept = rest
    return kept


def _around(found: FileNodes, node: Any) -> str:
    """Why a group that is one of integers alone is none in its model."""
    for name in node.input:
        readers = found.readers[name]
        if found.dequantized(name) is not None and len(readers) > 1:
            return f"its operand {name} is dequantized once for {len(readers)} operators; alone it runs in integers"
    return "alone it runs in integers: the runtime took a part of its group away before"


Repair = Callable[[QuantizedGroup], QuantizedGroup]


def _repairs(group: QuantizedGroup, node: Any) -> Iterable[tuple[str, Repair]]:
    """What may be in the way of a group, and the group without it."""
    for i, place in enumerate(group.operands):
        if place is not None and not place.scale and place.dtype in FLOATS:
            yield f"its operand {node.input[i]} is not quantized", _at("operands", i, _quantized)
        if place is not None and place.scales and not place.held:
            yield f"its operand {node.input[i]} has scales along an axis", _at("operands", i, _of_one_scale)
    for i, place in enumerate(group.results):
        if place is not None and not place.scale and place.dtype in FLOATS:
            yield f"its result {node.output[i]} is not quantized", _result_quantized(i)
        elif i in group.floats:
            yield f"its result {node.output[i]} is read in floats too", lambda g, i=i: replace(g, floats=g.floats - {i})
    if any(p.dtype == "int8" for p in _activations(group)):
        yield "its activations are in int8; in uint8 it runs in integers", _every(lambda p: replace(p, dtype="uint8"))
    if len({p.scale for p in _activations(group)}) > 1:
        yield "its operands and results have different scales", _every(lambda p: replace(p, scale=1))
    if group.opset < LATEST:
        yield f"opset {group.opset}; it runs in integers at {LATEST}", lambda g: replace(g, opset=LATEST)


def _activations(group: QuantizedGroup) -> list[Place]:
    return [p for p in (*group.operands, *group.results) if p is not None and p.scale and not p.held]


def _quantized(place: Place) -> Place:
    return replace(place, dtype="uint8", scale=1, value=b"")


def _of_one_scale(place: Place) -> Place:
    return replace(place, scales=0)


def _at(part: str, i: int, change: Callable[[Place], Place]) -> Repair:
    def changed(group: QuantizedGroup) -> QuantizedGroup:
        places: Sequence[Place | None] = getattr(group, part)
        new = tuple(change(p) if j == i and p is not None else p for j, p in enumerate(places))
        return replace(group, **{part: new})

    return changed


def _result_quantized(i: int) -> Repair:
    quantized = _at("results", i, _quantized)
    return lambda group: replace(quantized(group), floats=group.floats - {i})


def _every(change: Callable[[Place], Place]) -> Repair:
    """Of all activations."""

    def one(place: Place | None) -> Place | None:
        return change(place) if place is not None and place.scale and not place.held else place

    return lambda group: replace(
        group, operands=tuple(map(one, group.operands)), results=tuple(map(one, group.results))
    )


def asking(operators: Callable[[bytes], Sequence[str]]) -> Fuses:
    """Whether a group becomes an operator of integers: nothing of it is dequantized any more."""
    known: dict[QuantizedGroup, bool] = {}

    def fuses(group: QuantizedGroup) -> bool:
        if group not in known:
            try:
                known[group] = DEQUANTIZE not in operators(group_model(group))
            except (TasoMirageError, ValueError, TypeError):
                known[group] = False
        return known[group]

    return fuses
