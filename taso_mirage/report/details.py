"""The terms of drawn and listed graphs as data for the script of a page: types, attributes, names
at each place, and statistics of weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taso_mirage.ir.model import Weight
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor
from taso_mirage.report.drawing import attribute_texts
from taso_mirage.report.result import Result

SAMPLE = 1 << 20
"""The largest number of elements of a weight that are read; of larger ones as many are, at equal
distances."""


class NodeDetails:
    """The list of all terms of a page, and the number of each in it."""

    def __init__(self, result: Result) -> None:
        self.listed: list[dict[str, Any]] = []
        self._weights: Mapping[str, Weight] = {**result.weights, **result.original.weights, **result.model.weights}
        self._names = {**result.model.names, **result.original.names}
        self._statistics: dict[str, list[str]] = {}

    def add(self, graph: Graph, place: str, real: Sequence[Mapping[Node, Node]] = ()) -> dict[Node, int]:
        """The numbers of a graph's terms. `place` is the id of the graph's part of the page, `real`
        the terms that its terms stand for, at each place."""
        numbers: dict[Node, int] = {}
        for node in graph:
            if node is ABSENT:
                continue
            numbers[node] = len(self.listed)
            there = [table[node] for table in real if node in table]
            entry = {
                "op": _operator(node),
                "type": str(node.type) if isinstance(node.type, Tensor) else "",
                "attrs": list(attribute_texts(node)) if node.args and node.op not in ("opaque", "item") else [],
                "args": [numbers[a] for a in node.args if a in numbers],
                "names": [self._names.get(n) or _leaf_name(n) for n in there],
                "weights": [self._weight(n) for n in there if n.op == "weight"],
                "at": place,
            }
            self.listed.append({key: value for key, value in entry.items() if value})
        return numbers

    def _weight(self, node: Node) -> list[str]:
        name = str(node.attr("name"))
        if name not in self._statistics:
            weight = self._weights.get(name)
            self._statistics[name] = [name, *([] if weight is None else statistics(weight.numpy()))]
        return self._statistics[name]


def _operator(node: Node) -> str:
    return str(node.attr("call")) if node.op == "opaque" else node.op


def _leaf_name(node: Node) -> str:
    return str(node.attr("name")) if node.op in ("input", "weight") else ""


def statistics(array: NDArray[Any]) -> list[str]:
    """Minimum, maximum, mean, standard deviation, share of zeros, and the size, as texts; of texts
    the size alone."""
    held = f"{array.size} elements"
    if array.dtype.kind in "OSU" or not array.size:
        return [held]
    step = max(1, math.ceil(array.size / SAMPLE))
    read = np.asarray(array.reshape(-1)[::step]).astype(np.float64)
    known = read[np.isfinite(read)]
    if not known.size:
        return [held, "no finite element"]
    numbers = known.min(), known.max(), known.mean(), known.std()
    said = [f"{name} {value:.4g}" for name, value in zip(("min", "max", "mean", "std"), numbers, strict=True)]
    sample = [f"of a sample of {read.size}"] if step > 1 else []
    odd = [f"{read.size - known.size} not finite"] if known.size < read.size else []
    return [held, *said, f"zeros {np.mean(read == 0):.1%}", *odd, *sample]
