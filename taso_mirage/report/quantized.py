"""The parts of a quantized model that run in integers, the nodes that run in floats with the
reasons, and the time of conversions, from the runtime's optimized model and its profiler.

To find the reason why a group of DequantizeLinear, an operator and QuantizeLinear is not one
integer operator, the group runs alone, and again with one property changed at a time, until it
becomes one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.model import Model, random_inputs
from taso_mirage.measure import session
from taso_mirage.measure.refusals import shown_sizes
from taso_mirage.measure.target import Target, at_running_level
from taso_mirage.onnx_io.groups import (
    DEQUANTIZE,
    QUANTIZE,
    FileNodes,
    GroupValue,
    QuantizedGroup,
    ValueType,
    group_model,
    group_of,
    read_nodes,
)
from taso_mirage.search.config import Config, runs_on, settled_sizes
from taso_mirage.system.console import Console
from taso_mirage.targets.profile import RunNode

SMALL = ("int8", "uint8", "int4", "uint4", "int2", "uint2")
FLOATS = ("float32", "float16", "bfloat16", "float64")
CONVERSIONS = (QUANTIZE, DEQUANTIZE, "DynamicQuantizeLinear")
INTEGERS, IN_FLOATS, CONVERTS, OTHER = "integers", "floats", "conversions", "other"
NBITS, LEVEL = "MatMulNBits", 4
"""The product with packed weights, and its accuracy level at which it multiplies integers."""
PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose", "LSTM", "GRU")
"""The operators for which models are quantized; they are listed even if the file does not quantize
them."""
SECONDS = 0.5
"""The seconds of the profile."""
LATEST = 21
"""The last opset with which a group is tried."""
KINDS = (INTEGERS, IN_FLOATS, CONVERTS, OTHER)
LISTED, NAMED = 8, 3
"""The largest number of operators and nodes that are listed as text."""
Fuses = Callable[[QuantizedGroup], bool]


def kind(node: RunNode) -> str:
    """The kind of arithmetic of a node of the runtime."""
    dtypes = [dtype for dtype, _ in node.operands]
    if node.operator in CONVERSIONS or (node.operator == "Cast" and dtypes == ["int32"] and _float(node.results)):
        return CONVERTS
    if any(dtype in SMALL for dtype in dtypes):
        return INTEGERS if node.operator != NBITS or node.attributes.get("accuracy_level", 0) == LEVEL else IN_FLOATS
    return IN_FLOATS if _float((*node.operands, *node.results)) else OTHER


def _float(types: Iterable[ValueType]) -> bool:
    return any(dtype in FLOATS for dtype, _ in types)


def runtime_profile(model: Model, path: Path, config: Config) -> dict[str, Any]:
    """The diagnosis of a model that was read from a file, at sizes at which it runs, and at the
    highest level of the runtime's own optimizations at which it does.

    Raises the runtime's error where it does not run the model.
    """
    runs = partial(runs_on, model, config)
    return at_running_level(partial(_profile_on, model, path, config), config.target, runs)


def _profile_on(model: Model, path: Path, config: Config, target: Target) -> dict[str, Any]:
    loaded = session.original(model, target)
    settled = settled_sizes(model, loaded, config)
    model = replace(model, sizes=settled.workloads[0][0], integers=settled.integers)
    run = session.profile(model, random_inputs(model, 0), SECONDS, loaded.target)
    found = quantization(read_nodes(str(path)), run, asking(lambda group: session.operators(group, config.target)))
    return {"sizes": dict(model.sizes), "runtime": f"onnxruntime {session.child_version()}", **found}


def quantization(found: FileNodes, run: Sequence[RunNode], fuses: Fuses) -> dict[str, Any]:
    """The diagnosis as JSON data."""
    where = carriers(found, run)
    total = sum(n.seconds for n in run) or 1.0
    parts = {k: [n for n in run if kind(n) == k] for k in KINDS}
    return {
        "seconds": total,
        **{k: _sum(nodes, total) for k, nodes in parts.items()},
        "fallbacks": [
            {"node": _name(n), "operator": n.op_type, "seconds": ran.seconds, "why": reasons(found, n, ran, fuses)}
            for n, ran in _fallen(found, where)
        ],
        "costliest_conversions": [
            {"node": n.name, "operator": n.operator, "seconds": n.seconds, "of": _of(n)}
            for n in sorted(parts[CONVERTS], key=lambda n: -n.seconds)[:8]
        ],
    }


def _sum(nodes: Sequence[RunNode], total: float) -> dict[str, Any]:
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


def _of(node: RunNode) -> str:
    """The value in floats."""
    return node.outputs[0] if node.operator == DEQUANTIZE else node.inputs[0]


def _name(node: Any) -> str:
    return str(node.name or f"{node.op_type} of {node.output[0]}")


# ---------------------------------------------------------------- where a node of the file runs


def carriers(found: FileNodes, run: Sequence[RunNode]) -> dict[int, RunNode]:
    """For each node of the file, by its place, the node of the runtime that has its name or gives
    its output; else that of its reader, of which it became a part."""
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
    """The products, and nodes beside conversions, that run in floats, the costliest first."""
    floats = {i: ran for i, ran in where.items() if kind(ran) == IN_FLOATS}
    fallen = [
        (node, floats[i])
        for i, node in enumerate(found.nodes)
        if i in floats
        and node.op_type not in CONVERSIONS
        and (node.op_type in (*PRODUCTS, NBITS) or _beside(found, node))
    ]
    return sorted(fallen, key=lambda pair: -pair[1].seconds)


def _beside(found: FileNodes, node: Any) -> bool:
    """Whether an operand is dequantized, or a result is quantized."""
    return any(found.dequantized(v) for v in node.input) or any(found.quantized(v) for v in node.output)


# ---------------------------------------------------------------- why


def reasons(found: FileNodes, node: Any, ran: RunNode, fuses: Fuses) -> list[str]:
    """The reasons why a group is no integer operator: the changes that would make it one."""
    if node.op_type == NBITS:
        return [f"its accuracy level is below {LEVEL}: the runtime multiplies floats"]
    if not _beside(found, node):
        return ["the file does not quantize it"]
    if ran.operator not in (node.op_type, f"Fused{node.op_type}"):
        return [f"the runtime made it a part of {ran.operator}, which it computes in floats"]
    group = group_of(found, node, ran.operands, ran.results)
    if fuses(group):
        return [_around(found, node, group, fuses)]
    repairs = dict(_repairs(group, node))
    for why, repaired in repairs.items():
        if fuses(repaired(group)):
            return [why]
    needed = _necessary(group, repairs, fuses)
    return needed or [f"the runtime has no operator of integers for {node.op_type}"]


def _necessary(group: QuantizedGroup, repairs: Mapping[str, Repair], fuses: Fuses) -> list[str]:
    """The names of the necessary changes; empty if all together are not enough."""

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


def _around(found: FileNodes, node: Any, group: QuantizedGroup, fuses: Fuses) -> str:
    """The reason why a group that is an integer operator by itself is none in its model."""
    unsigned = _every(_unsigned)(group)
    if unsigned != group and not fuses(replace(group, results=unsigned.results)) and fuses(unsigned):
        return "the runtime converts only some of its int8 activations to uint8; with all in uint8 it runs in integers"
    for name in node.input:
        readers = found.readers[name]
        if found.dequantized(name) is not None and len(readers) > 1:
            return f"its operand {name} is dequantized once for {len(readers)} operators; alone it runs in integers"
    return "alone it runs in integers: the runtime took a part of its group away before"


Repair = Callable[[QuantizedGroup], QuantizedGroup]


def _repairs(group: QuantizedGroup, node: Any) -> Iterable[tuple[str, Repair]]:
    """Properties of a group that may prevent its fusion, each with the group without it."""
    for i, place in enumerate(group.operands):
        if place is not None and not place.scale and place.dtype in FLOATS:
            yield f"its operand {node.input[i]} is not quantized", _at("operands", i, _quantized)
        if place is not None and place.scales and not place.held:
            yield (
                f"its operand {node.input[i]} has scales along an axis",
                _at("operands", i, lambda p: replace(p, scales=0)),
            )
    for i, place in enumerate(group.results):
        if place is not None and not place.scale and place.dtype in FLOATS:
            yield f"its result {node.output[i]} is not quantized", _result_quantized(i)
        elif i in group.floats:
            yield f"its result {node.output[i]} is read in floats too", _not_in_floats(i)
    for i, place in enumerate(group.operands):
        if place is not None and place.dtype == "int32" and place.scale and not place.product:
            yield (
                f"the scale of {node.input[i]} is not the product of the operands' scales",
                _at("operands", i, lambda p: replace(p, product=True)),
            )
    if any(p.dtype == "int8" for p in _activations(group)):
        yield "its activations are in int8; in uint8 it runs in integers", _every(_unsigned)
    if len({p.scale for p in _activations(group)}) > 1:
        yield "its operands and results have different scales", _every(lambda p: replace(p, scale=1))
    if group.opset < LATEST:
        yield f"opset {group.opset}; it runs in integers at {LATEST}", lambda g: replace(g, opset=LATEST)


def _activations(group: QuantizedGroup) -> list[GroupValue]:
    return [p for p in (*group.operands, *group.results) if p is not None and p.scale and not p.held]


def _quantized(place: GroupValue) -> GroupValue:
    return replace(place, dtype="uint8", scale=1, value=b"")


def _unsigned(place: GroupValue) -> GroupValue:
    return replace(place, dtype="uint8" if place.dtype == "int8" else place.dtype)


def _at(part: str, i: int, change: Callable[[GroupValue], GroupValue]) -> Repair:
    def at_one(group: QuantizedGroup) -> QuantizedGroup:
        places: Sequence[GroupValue | None] = getattr(group, part)
        changed: dict[str, Any] = {part: tuple(change(p) if j == i and p else p for j, p in enumerate(places))}
        return replace(group, **changed)

    return at_one


def _result_quantized(i: int) -> Repair:
    quantized = _at("results", i, _quantized)
    return lambda group: _not_in_floats(i)(quantized(group))


def _not_in_floats(i: int) -> Repair:
    return lambda group: replace(group, floats=group.floats - {i})


def _every(change: Callable[[GroupValue], GroupValue]) -> Repair:
    """A change of all activations."""

    def one(place: GroupValue | None) -> GroupValue | None:
        return change(place) if place is not None and place.scale and not place.held else place

    return lambda group: replace(
        group, operands=tuple(map(one, group.operands)), results=tuple(map(one, group.results))
    )


def asking(operators: Callable[[bytes], Sequence[str]]) -> Fuses:
    """Whether a group becomes an integer operator, with nothing left to dequantize."""
    known: dict[QuantizedGroup, bool] = {}

    def fuses(group: QuantizedGroup) -> bool:
        if group not in known:
            try:
                known[group] = DEQUANTIZE not in operators(group_model(group))
            except (TasoMirageError, ValueError, TypeError):
                known[group] = False
        return known[group]

    return fuses


# ---------------------------------------------------------------- as text


def show_profile(found: Mapping[str, Any]) -> None:
    """`inspect --profile` as tables."""
    console = Console()
    at = f" at {shown_sizes(found['sizes'])}" if found["sizes"] else ""
    console.print(f"{found['runtime']}: {_time(found['seconds'])} a run{at}", highlight=False, markup=False)
    _print(
        console,
        "arithmetic",
        ("", "share", "time", "operators of the runtime"),
        ((k, f"{found[k]['share']:.0%}", _time(found[k]["seconds"]), _list(found[k]["operators"])) for k in KINDS),
    )
    if not any(found[k]["operators"] for k in (INTEGERS, CONVERTS)):
        console.print("nothing in this model is quantized")
        return
    grouped: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for each in found["fallbacks"]:
        grouped[each["operator"], "; ".join(each["why"])].append(each)
    if grouped:
        rows = (
            (op, str(len(g)), _time(sum(e["seconds"] for e in g)), why, _first(g)) for (op, why), g in grouped.items()
        )
        _print(console, "in floats, and why", ("operator", "count", "time", "why", "nodes"), rows)
    if found["costliest_conversions"]:
        costly = ((e["node"], e["operator"], _time(e["seconds"]), e["of"]) for e in found["costliest_conversions"])
        _print(console, "the costliest conversions", ("node", "operator", "time", "of"), costly)


def _print(console: Console, title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left")
    for head in heads:
        table.add_column(head, justify="right" if head in ("share", "time", "count") else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table, markup=False)


def _list(operators: Mapping[str, Mapping[str, float]]) -> str:
    shown = [f"{op} {each['count']:.0f}" for op, each in [*operators.items()][:LISTED]]
    return ", ".join([*shown, *([f"{len(operators) - LISTED} more"] if len(operators) > LISTED else [])])


def _first(group: Sequence[Mapping[str, Any]]) -> str:
    more = [f"{len(group) - NAMED} more"] if len(group) > NAMED else []
    return ", ".join([*(e["node"] for e in group[:NAMED]), *more])


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"
