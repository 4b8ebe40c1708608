"""The model into which ONNX Runtime turns a model, with the operands and the time of each of its
nodes, or only their values and times in runs of the whole model, from the runtime's own
profiler."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from taso_mirage.devices.cpu.options import FULL_LEVEL, LEVELS
from taso_mirage.devices.stamp import Provider
from taso_mirage.onnx_io.groups import ValueType, node_values, number_nodes
from taso_mirage.targets.onnx_runtime import dumped_graph, inference_session, refused, run_of
from taso_mirage.targets.protocol import Arrays, Source, plain, timed

RUNS, MOST = 3, 300
"""The smallest and the largest number of runs, after one that is not counted. With more runs,
reading the profiler's file takes longer than the runs."""
TIME, RUN = "_kernel_time", "model_run"


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


@dataclass(frozen=True, slots=True)
class TimedNode:
    """A node of the model that runs: its operator, values, and the seconds of a run; of a node in a
    body, the values of the node whose body it is in. No values: they are not known."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    seconds: float


def profiled(
    source: Source,
    providers: Sequence[Provider],
    inputs: Arrays,
    seconds: float,
    threads: int = 0,
    level: str = FULL_LEVEL,
) -> list[RunNode]:
    """The nodes of the model that the runtime makes at a level of its optimizations, in its order.

    The optimized model is written, its nodes are numbered, and it runs without further
    optimization. Raises RunFailed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "optimized.onnx")
        inference_session(source, providers, dump=path, level=level)
        nodes, held = number_nodes(path)
        events = _events(path, providers, inputs, seconds, threads)
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
    path: str, providers: Sequence[Provider], inputs: Arrays, seconds: float, threads: int
) -> dict[str, list[dict[str, Any]]]:
    """The profiler's events of each node, run by run without the first."""
    session = inference_session(path, providers, level=LEVELS["off"], profile=path, threads=threads)
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    events, runs = _recorded(session, inputs, seconds)
    for event in filter(_of_node, events):
        found[event["name"].removesuffix(TIME)].append(event)
    return {name: events[len(events) // runs :] for name, events in found.items()}


def _recorded(session: Any, inputs: Arrays, seconds: float) -> tuple[list[dict[str, Any]], int]:
    """The profiler's events of several runs, and the number of runs."""
    run = run_of(session, inputs)
    end, runs = time.perf_counter() + seconds, 0
    try:
        while runs <= RUNS or (runs <= MOST and time.perf_counter() < end):
            run()
            runs += 1
    except Exception as error:
        raise refused("run", error) from None
    with open(session.end_profiling()) as file:
        return json.load(file), runs


def _of_node(event: Mapping[str, Any]) -> bool:
    return event.get("cat") == "Node" and bool(event["name"].endswith(TIME))


def profiled_seconds(
    source: Source,
    providers: Sequence[Provider],
    inputs: Arrays,
    seconds: float,
    threads: int = 0,
    level: str = FULL_LEVEL,
) -> tuple[list[TimedNode], float]:
    """The nodes of the model that runs, kernels of a `Trusted` model among them, in the order of a
    run with the seconds of each, and the seconds of a run without the profiler: of some runs of the
    optimized model the lower quartiles.

    The profiler reads the shapes of a node while its clock runs, which takes some microseconds
    (`without_own_time` removes them). The values of nodes are not known if the model is in a
    file, because its weights would be written. Raises RunFailed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = "" if isinstance(plain(source), str) else os.path.join(folder, "optimized.onnx")
        fast = run_of(inference_session(source, providers, dump=path, threads=threads, level=level), inputs)
        values = node_values(path) if path else {}
        runs_at = os.path.join(folder, "runs")
        session = inference_session(source, providers, profile=runs_at, threads=threads, level=level)
        events, runs = _recorded(session, inputs, seconds)
        del session  # its threads would spin while the other model runs
    return _timed_nodes(events, values), _quartile([timed(fast) for _ in range(runs)][1:])


def without_own_time(nodes: Sequence[TimedNode], whole: float) -> list[TimedNode]:
    """The nodes without the profiler's own time, which is about the same for each of them.

    Where all took longer than the `whole` seconds of a run without the profiler, their seconds sum
    up to those afterwards.
    """
    total = sum(each.seconds for each in nodes)
    if total <= whole:
        return list(nodes)
    own = (total - whole) / len(nodes)
    rest = [max(each.seconds - own, 0.0) for each in nodes]
    return [replace(each, seconds=whole * left / sum(rest)) for each, left in zip(nodes, rest, strict=True)]


def _timed_nodes(
    events: Sequence[Mapping[str, Any]], values: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
) -> list[TimedNode]:
    """Each node with its seconds in a run, of all runs but the first."""
    runs = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["name"] == RUN)[1:]
    nodes = sorted(filter(_of_node, events), key=lambda e: (e["ts"], -e["dur"]))
    found: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * len(runs))
    at = 0
    for event, outer, own in _own(nodes):
        while at < len(runs) and event["ts"] >= runs[at][1]:
            at += 1
        if at < len(runs) and event["ts"] >= runs[at][0]:
            found[outer["name"].removesuffix(TIME), event["args"]["op_name"]][at] += own * 1e-6
    return [
        TimedNode(operator, *values.get(name, ((), ())), _quartile(each)) for (name, operator), each in found.items()
    ]


def _quartile(seconds: Sequence[float]) -> float:
    """The lower quartile, because other work on a machine only adds time."""
    return sorted(seconds)[len(seconds) // 4]


def _own(nodes: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any], float]]:
    """Each node, the outermost node that it runs in, and its microseconds without those of nodes
    that run inside of it, sorted by the start of the runs."""
    own = [float(each["dur"]) for each in nodes]
    outer, around = list(nodes), list[int]()
    for i, each in enumerate(nodes):
        while around and each["ts"] >= nodes[around[-1]]["ts"] + nodes[around[-1]]["dur"]:
            around.pop()
        if around:
            own[around[-1]] -= each["dur"]
            outer[i] = nodes[around[0]]
        around.append(i)
    yield from zip(nodes, outer, own, strict=True)


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
    """The operators of the nodes that the runtime makes of a small model."""
    with tempfile.TemporaryDirectory() as folder:
        return [node.op_type for node in number_nodes(dumped_graph(content, providers, folder))[0].values()]
