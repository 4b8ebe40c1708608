"""The choice of the fastest of several muGraphs on this machine's CPU: all are compiled, and
measured in turn (Mirage, OSDI'25, section 8)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from math import inf, log, prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taso_mirage.emit.cpp import SizeRange, generate_all, generate_cpp
from taso_mirage.emit.cpu.native_kernel import NativeKernel, build, empty_aligned
from taso_mirage.emit.cpu.prepared import layout
from taso_mirage.emit.ranges import ranges
from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim, fixed
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import Graph, Node, topological
from taso_mirage.operators.movements import index_map, is_moved
from taso_mirage.operators.ops import traits
from taso_mirage.system.spending import Purpose, spent

FILE = 8
"""The number of programs in one C++ file; files are compiled in parallel."""
LEAST = 1.0
"""Seconds in which muGraphs get a first turn even if there is less time."""
TURN = 5
"""The number of runs of a program in its turn that count, after one that brings its data into the
caches again."""
RANGED = 8
"""The number of programs with free sizes that are compiled: each is compiled for whole tiles and
for others."""
CLOSE = 1.2
"""A program that takes longer than this factor times the fastest is not measured in the second half
of the time."""
LARGE, COLD = 1 << 23, 1 << 27
"""Bytes from which on an input counts as a weight, which a run of the whole model reads from
memory; and the bytes that no cache holds."""
EQUAL = 0.03
"""The relative difference up to which times count as equal: then fewer kernels are better, and more
blocks, which threads share better on a machine that others use."""


@dataclass(frozen=True, slots=True)
class TunedNative:
    """A compiled muGraph with the least seconds of a call, as others may use the machine."""

    kernel: NativeKernel
    seconds: float


def tuned_native(
    graphs: Sequence[Graph], threads: int, seconds: float = 2.0, folder: Path | None = None
) -> list[TunedNative]:
    """muGraphs of one goal compiled and measured on `threads` threads for about `seconds`, the
    fastest first. muGraphs with the same program count as one; those without C++, or without a turn
    in time, are left out. Raises Unsupported if all are without C++."""
    made = compiled(different(graphs), threads, folder)
    quickest = _quickest(_calls(made), seconds)
    return sorted((TunedNative(k, t) for k, t in zip(made, quickest, strict=True) if t < inf), key=_rank)


def tuned_ranges(
    graphs: Sequence[Graph],
    threads: int,
    measured: Sequence[Mapping[str, int]],
    seconds: float = 2.0,
    folder: Path | None = None,
) -> tuple[Graph, list[SizeRange]]:
    """The choice of a muGraph with free sizes for most runs, and of those that are clearly faster
    in smaller runs. Each chosen muGraph was the fastest at one of the `measured` sizes, of which
    the first are the usual ones. Raises as `tuned_native`."""
    made = compiled(different(graphs)[:RANGED], threads, folder)
    times: list[list[float]] = []
    end = time.perf_counter() + seconds
    for sizes in measured:
        times.append(_quickest(_calls(made, sizes), seconds / len(measured)))
        if inf in times[-1] or time.perf_counter() > end + LEAST:
            break
    if inf in times[-1] and len(times) > 1:  # the time was over before all had run at these sizes
        times.pop()
    measured = measured[: len(times)]
    usual = times[0].index(min(times[0]))
    alike = [layout(each.graph) == layout(made[usual].graph) for each in made]  # with the same prepared weights
    times = [[t if same else inf for t, same in zip(own, alike, strict=True)] for own in times]
    last, before = ranges(measured, times, usual)
    return made[last].graph, [SizeRange(made[i].graph, most) for i, most in before]


@spent(Purpose.TUNING)
def _quickest(calls: Sequence[Callable[[], None]], seconds: float) -> list[float]:
    """The least seconds of each muGraph, run in turn; infinity for those without a turn before
    twice the time and LEAST were over."""
    found = [inf for _ in calls]
    racing = list(range(len(calls)))
    last = time.perf_counter() + max(2 * seconds, LEAST)
    for share in (seconds / 2, seconds / 2):
        end = min(time.perf_counter() + share, last)
        while (inf in found and time.perf_counter() < last) or time.perf_counter() < end:
            for i in racing:
                if found[0] < inf and time.perf_counter() > last:
                    break
                found[i] = min(found[i], *_turn(calls[i], last))
        racing = [i for i in racing if found[i] <= CLOSE * min(found)]
    return found


def _rank(tuned: TunedNative) -> tuple[int, int, int, float]:
    kernels = [n for n in topological(tuned.kernel.graph.outputs) if traits(n).lowering is Lowering.KERNEL]
    blocks = min((prod(n.attr("grid")) for n in kernels), default=1)
    return round(log(tuned.seconds) / EQUAL), len(kernels), -blocks, tuned.seconds


def different(graphs: Sequence[Graph]) -> list[Graph]:
    """The first muGraph of each program. Raises Unsupported if none has a program."""
    found: dict[str, Graph] = {}
    problem = Unsupported("there is no muGraph to compile; raise the budget of the search")
    for graph in graphs:
        try:
            source = generate_cpp(graph)
        except Unsupported as error:
            problem = error
            continue
        found.setdefault("\n".join(line for line in source.splitlines() if not line.startswith("//")), graph)
    if not found:
        raise problem
    return list(found.values())


@spent(Purpose.COMPILING)
def compiled(graphs: Sequence[Graph], threads: int, folder: Path | None = None) -> list[NativeKernel]:
    """muGraphs as functions of shared libraries, FILE in each."""
    named = [(f"kernel_{i}", graph) for i, graph in enumerate(graphs)]
    parts = [named[i : i + FILE] for i in range(0, len(named), FILE)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        libraries = list(pool.map(lambda part: build(generate_all(dict(part)), folder), parts))
    return [
        NativeKernel(graph, name, folder, threads=threads, library=library)
        for part, library in zip(parts, libraries, strict=True)
        for name, graph in part
    ]


def _calls(kernels: Sequence[NativeKernel], sizes: Mapping[str, int] | None = None) -> list[Callable[[], None]]:
    """A call of each program on the same random inputs; `sizes` are of the names that a run gives.
    As programs take turns, all write the same outputs and scratch memory: for large regions
    separate ones would fill the machine.

    Inputs that no cache would keep from one run of a model to the next come from memory: they have
    several copies, which are read in turn.
    """
    rng = np.random.default_rng(0)
    leaves = kernels[0].graph.inputs
    counts = fixed(tuple([_row_count(x, kernels[0].graph) for x in leaves]), sizes or {})
    inputs = [[_drawn(rng, x.dtype, fixed(x.shape, sizes or {}), n) for x, n in zip(leaves, counts, strict=True)]]
    prepared = {layout(each.graph): [each.prepared(inputs[0])] for each in kernels}
    read = sum(array.nbytes for array in inputs[0])
    read += max(sum(array.nbytes for array in made) for (made,) in prepared.values())
    for _ in range(COLD // read if read >= LARGE else 0):
        inputs.append([_copied(array) for array in inputs[0]])
        for copies in prepared.values():
            copies.append([_copied(array) for array in copies[0]])
    known = kernels[0].sizes(inputs[0])
    outputs = [empty_aligned(fixed(o.shape, known), o.dtype) for o in kernels[0].graph.outputs]
    scratch = empty_aligned((max(each.scratch_bytes(known) for each in kernels),), np.uint8)
    calls: list[Callable[[], None]] = []
    for each in kernels:
        given = zip(inputs, prepared[layout(each.graph)], strict=True)
        calls.append(partial(_next, cycle([each.bound(x, outputs, made, scratch) for x, made in given])))
    return calls


def _next(runs: Iterator[Callable[[], None]]) -> None:
    next(runs)()


def _copied(array: NDArray[Any]) -> NDArray[Any]:
    found = empty_aligned(array.shape, array.dtype)
    found[...] = array
    return found


def _row_count(leaf: Node, graph: Graph) -> Dim:
    """The number of rows from which an input of integers chooses; 0 if it chooses none."""
    operands = [x for node in graph for x in node.args if is_moved(x)]
    rows = (row for x in operands for _, row in index_map(x).rows)
    return next((row.count for row in rows if row.source is leaf), 0)


def _drawn(rng: np.random.Generator, dtype: str, shape: Sequence[int], rows: int = 0) -> NDArray[Any]:
    """Random elements; integers below `rows` if they choose among so many rows."""
    found = empty_aligned(shape, dtype)
    if dtype == "uint8" or rows:
        found[...] = rng.integers(0, rows or 256, shape)
    else:
        values = rng.standard_normal(shape)
        found[...] = values > 0 if dtype == "bool" else values
    return found


def _turn(call: Callable[[], None], last: float) -> Iterator[float]:
    """The seconds of some calls; they include the first one, which finds nothing in caches, only if
    the time ends with it."""
    for i in range(TURN + 1):
        start = time.perf_counter()
        call()
        now = time.perf_counter()
        if i or now > last:
            yield now - start
        if now > last:
            return
