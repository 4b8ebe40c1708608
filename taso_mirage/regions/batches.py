"""Regions whose leading dims are known only at run time: the kernel of one sample is run for every
sample.

The sizes that the other dims have are in a kernel's code, so a region with free dims is searched as
one of a single sample, where they are 1; its blocks are launched once for every sample
(`mugraph.Batch`). This is correct if no sample's result depends on another sample. It is fast at
every number of samples if all of them share no more memory than each has of its own, because shared
memory is read again for every sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

import numpy as np

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.dims import Dim, Symbolic, symbols
from taso_mirage.ir.model import random_array
from taso_mirage.ir.mugraph import Batch
from taso_mirage.ir.terms import Graph, Node, Tensor, topological, variable
from taso_mirage.mugraph.arranged import over_inputs
from taso_mirage.mugraph.collapsed import equal_results, run_exactly
from taso_mirage.mugraph.free import FreeSizes
from taso_mirage.mugraph.moved_goal import core_labels
from taso_mirage.operators.work import size
from taso_mirage.regions.canonical import canonical_region
from taso_mirage.regions.fragments import RegionSite

SAMPLES = (2, 3), (5, 2)
"""The sizes of the free dims at which samples are compared."""
LARGER = 2
"""How many times the usual sizes the largest are at which kernels are compared."""


Known = dict[tuple[Graph, Graph, Batch], bool]
"""For a graph of one sample, and one of several: whether the samples are independent of each
other."""


@dataclass(frozen=True, slots=True)
class EqualRegions:
    """Equal regions: the goal of the search, and the graph at the sizes at which they are measured;
    they differ where `batch` says how many searched graphs run there."""

    goal: Graph
    whole: Graph
    batch: Batch | None = None
    free: FreeSizes | None = None
    """The names of its sizes, where its kernel reads them at run time: `goal` is one instance."""
    measured: tuple[tuple[str, int], ...] = ()
    """The sizes of those names where it is measured."""

    @property
    def sizes(self) -> list[dict[str, int]]:
        """Sets of such sizes: those, the least, and larger ones."""
        usual = dict(self.measured)
        larger = {name: LARGER * size for name, size in self.measured}
        return [usual, dict.fromkeys(usual, 1), larger] if usual else []


def symbols_in(nodes: Iterable[Node]) -> set[str]:
    """The names in the types and attributes of terms."""
    found: set[str] = set()
    stack: list[Any] = [value for node in nodes for value in (node.type, *[v for _, v in node.attrs])]
    while stack:
        value = stack.pop()
        if isinstance(value, Symbolic):
            found |= symbols(value)
        elif isinstance(value, Tensor):
            stack += value.shape or ()
        elif isinstance(value, tuple):
            stack += value
    return found


def batched_kind(site: RegionSite, whole: Graph, free: set[str], known: Known) -> EqualRegions | None:
    """The kind of a region with free dims, if those are leading ones and its samples have nothing
    to do with each other."""
    batch = batch_of(site)
    if batch is None:
        return None
    try:
        goal = resized(site, dict.fromkeys(free, 1))
        core_labels(goal)  # as the search will
        if _shared(goal, batch) > _own(goal, batch):
            return None
        key = goal, resized(site, _sizes(free, SAMPLES[0])), batch  # regions that differ may be equal where sizes are 1
        if key not in known:
            known[key] = independent(site, goal, batch, free)
    except (LookupError, TypeError, ValueError, TasoMirageError):
        return None  # a region that has no such sizes, or is none of one sample
    return EqualRegions(goal, whole, batch) if known[key] else None


def _own(goal: Graph, batch: Batch) -> int:
    """Bytes that one sample has."""
    given = [x for x, one in zip(goal.inputs, batch.inputs, strict=True) if one]
    return sum(size(n.type) for n in (*given, *goal.outputs))


def _shared(goal: Graph, batch: Batch) -> int:
    """Bytes that all samples read."""
    return sum(size(x.type) for x, one in zip(goal.inputs, batch.inputs, strict=True) if not one)


def batch_of(site: RegionSite) -> Batch | None:
    """The leading dims that are free in all results and in some inputs; None where other dims are
    free too, or other ones elsewhere, or no input says how many samples there are."""
    nodes = (*site.inputs, *site.outputs)
    last = [max((i + 1 for i, dim in enumerate(node.shape) if isinstance(dim, Symbolic)), default=0) for node in nodes]
    leading = {tuple(node.shape[:n]) for node, n in zip(nodes, last, strict=True) if n}
    given, made = last[: len(site.inputs)], last[len(site.inputs) :]
    if len(leading) != 1 or not all(made) or not any(given):
        return None
    (dims,) = leading
    if not all(_name(dim) or dim == 1 for dim in dims):
        return None
    return Batch(len(dims), tuple([n > 0 for n in given]))


def _name(dim: Dim) -> bool:
    """Whether a dim is a plain name, so that it can be 1 in a run."""
    return isinstance(dim, Symbolic) and len(symbols(dim)) == 1 and str(dim) in symbols(dim)


def independent(site: RegionSite, goal: Graph, batch: Batch, free: set[str]) -> bool:
    """Whether a region's results are those of its samples: at two sets of sizes, on random inputs,
    in float64. Its operators are those of regions, whose results do not depend on how large a
    number is."""
    rng = np.random.default_rng(0)
    for numbers in SAMPLES:
        whole = resized(site, _sizes(free, numbers))
        inputs = [random_array(node, rng, {}) for node in whole.inputs]
        results = run_exactly(whole, inputs)
        for place in np.ndindex(*results[0].shape[: batch.dims]):
            at = tuple([slice(i, i + 1) for i in place])
            own = [x[at] if one else x for x, one in zip(inputs, batch.inputs, strict=True)]
            pairs = zip(results, run_exactly(goal, own), strict=True)
            if not all(equal_results(result[at], wanted) for result, wanted in pairs):
                return False
    return True


def _sizes(free: set[str], numbers: Sequence[int]) -> dict[str, int]:
    return dict(zip(sorted(free), cycle(numbers), strict=False))


def resized(site: RegionSite, sizes: Mapping[str, Dim]) -> Graph:
    """A region at other sizes than it was found for, which may be names. Its inputs are in the
    order of the site's."""
    site = replace(site, outputs=over_inputs(site.inputs, site.outputs))
    graph, leaves = canonical_region(region_members(site), site.outputs, sizes)
    unread = {x: variable(f"unread{i}", x.tensor) for i, x in enumerate(site.inputs) if x not in leaves}
    return Graph(tuple([(leaves | unread)[x] for x in site.inputs]), graph.outputs)


def region_members(site: RegionSite) -> list[Node]:
    inputs = set(site.inputs)
    return [n for n in topological(site.outputs, stop=inputs) if n.args and n not in inputs]
