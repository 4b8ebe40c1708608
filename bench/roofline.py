"""The least time that any program needs on a machine (a roofline): bytes over bandwidth, or
operations over rate."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Node, users
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.work import size, work


@dataclass(frozen=True)
class Machine:
    """Bytes a second that memory was measured to give, and operations a second of the best matrix
    product."""

    bandwidth: float
    flops: float


def demands(model: Model) -> tuple[int, int]:
    """Bytes that a run must move, and its operations: every weight, input and output once; of a
    table only the rows that are read."""
    order = model.nodes()
    uses = users(order)
    weights = [n for n in order if n.op in ("weight", "constant")]
    tables = {n for n in weights if all(_reads_rows(u, n) for u in uses.get(n, ()))}
    rows = [u for n in tables for u in uses.get(n, ())]
    moved = [n for n in weights if n not in tables]
    ends = [*model.graph.inputs, *model.graph.outputs]
    return sum(size(n.type) for n in (*moved, *rows, *ends)), sum(operations(n) for n in order)


def _reads_rows(user: Node, table: Node) -> bool:
    return user.op == "gather" and user.args[0] is table


def operations(node: Node) -> int:
    """The operations of a term; 0 for those without a definition."""
    if not node.args or is_weight(node):
        return 0
    try:
        return work(node, {}).flops
    except (TasoMirageError, LookupError, TypeError, ValueError):
        return 0  # it has no definition here


def floor(model: Model, machine: Machine, taken: float) -> dict[str, Any]:
    """The microseconds below which no program on this machine can come (a roofline), and how many
    times that `taken` is."""
    moved, flops = demands(model)
    least = max(moved / machine.bandwidth, flops / machine.flops) * 1e6
    found = {"us": round(least, 2), "distance": round(taken / least, 3), "bytes": moved, "flops": flops}
    return found | {"bandwidth": float(f"{machine.bandwidth:.4g}"), "rate": float(f"{machine.flops:.4g}")}


def fastest(run: Callable[[], Any], times: int = 8) -> float:
    """Seconds of the fastest of some runs."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return min(found)
