"""The model that ONNX Runtime makes of a model, with what each of its nodes takes and how long: by
the runtime's own profiler."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taso_mirage.onnx_io.groups import ValueType, number_nodes
from taso_mirage.targets.onnx_runtime import inference_session, refused
from taso_mirage.targets.protocol import Arrays, Source
from taso_mirage.targets.stamp import Provider

RUNS = 3
"""At least, after one that is not counted."""
TIME = "_kernel_time"


@dataclass(frozen=True, slots=True)
class RunNode:
    """A node of the model that runs: its name, operator, integer attributes, values, the types of
    its operands (those that are there) and results, and the seconds of a run."""

    name: str
    operator: str
    attributes: Mapping[str, int]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operands: tuple[ValueType, ...]
    results: tuple[ValueType, ...]
    seconds: float


def profiled(source: Source, providers: Sequence[Provider], inputs: Arrays, seconds: float) -> list[RunNode]:
    """The nodes of the optimized model, in its order.

    It is written, its nodes are numbered, and it runs as it is. Raises RunFailed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "optimized.onnx")
        inference_session(source, providers, dump=path)
        nodes, held = number_nodes(path)
        events = _events(path, providers, inputs, seconds)
    found = []
    for number, node in nodes.items():
        mine = events.get(number, [])
        first = mine[0]["args"] if mine else {}
        taken, results = (_types(first.get(f"{kind}_type_shape", ())) for kind in ("input", "output"))
        operands = _operands(node.input, held, taken)
        each = statistics.median(e["dur"] for e in mine) * 1e-6 if mine else 0.0
        attributes = {a.name: a.i for a in node.attribute}
        values = tuple(node.input), tuple(node.output)
        found.append(RunNode(node.name, node.op_type, attributes, *values, operands, results, each))
    return found


def _events(
    path: str, providers: Sequence[Provider], inputs: Arrays, seconds: float
) -> dict[str, list[dict[str, Any]]]:
    """What the profiler says of each node, run by run but the first."""
    session = inference_session(path, providers, optimized=False, profile=path)
    end, runs = time.perf_counter() + seconds, 0
    try:
        while runs <= RUNS or time.perf_counter() < end:
            session.run(None, dict(inputs))
            runs += 1
    except Exception as error:
        raise refused("run", error) from None
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    with open(session.end_profiling()) as file:
        for event in json.load(file):
            if event.get("cat") == "Node" and event["name"].endswith(TIME):
                found[event["name"].removesuffix(TIME)].append(event)
    return {name: events[len(events) // runs :] for name, events in found.items()}


def _operands(names: Sequence[str], held: Mapping[str, ValueType], taken: Sequence[ValueType]) -> tuple[ValueType, ...]:
    """The types of operands: the profiler leaves out weights that the runtime has packed."""
    left, found = list(taken), []
    for name in names:
        type = held.get(name) if name else None
        if left and name and (type is None or left[0] == type):
            type = left.pop(0)
        found += [] if type is None else [type]
    return tuple(found)


def _types(said: Sequence[dict[str, list[int]]]) -> tuple[ValueType, ...]:
    """The profiler's `{"float": [2, 3]}`, by our names of dtypes."""
    names = {"float": "float32", "double": "float64"}
    return tuple((names.get(dtype, dtype), tuple(shape)) for each in said for dtype, shape in each.items())


def optimized_operators(content: bytes, providers: Sequence[Provider]) -> list[str]:
    """What the runtime makes of a small model: the operators of its nodes."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "optimized.onnx")
        inference_session(content, providers, dump=path)
        return [node.op_type for node in number_nodes(path)[0].values()]
