"""Regions whose kernels read their sizes at run time: any dims may be free.

A region is searched at one instance of its free sizes, and the result is typed again with names in
their place (`free.py`). This is correct if the labels that the search derives from the instance
hold at every size: dims of one label have one name, and the labelled goal at other sizes is the
region at those sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import cycle

import numpy as np

from taso_mirage.errors import TasoMirageError
from taso_mirage.forms.base.form import PreparedKinds
from taso_mirage.ir.dims import Dim, Symbolic, evaluate, symbol, symbols
from taso_mirage.ir.model import Model, random_array
from taso_mirage.ir.mugraph import size_names
from taso_mirage.ir.terms import Graph, Node, Tensor
from taso_mirage.meanings.conditions import linear
from taso_mirage.mugraph.collapsed import equal_results, run_exactly
from taso_mirage.mugraph.free import FreeSizes, at_sizes, free_sizes, instance, named_dims
from taso_mirage.mugraph.free_moves import free_moves
from taso_mirage.mugraph.goal import Labelled
from taso_mirage.mugraph.integer_operands import of_integers_or_floats
from taso_mirage.mugraph.labels import label
from taso_mirage.mugraph.moved_goal import core_labels, moved_goal
from taso_mirage.mugraph.roles import inlined
from taso_mirage.mugraph.shrink import resized_goal
from taso_mirage.mugraph.stored_goal import stored_goal
from taso_mirage.regions.batches import (
    EqualRegions,
    batched_kind,
    region_members,
    resized,
    symbols_in,
)
from taso_mirage.regions.canonical import SymbolSizes
from taso_mirage.regions.contained import ErrorReport, contained, operators_of, raised
from taso_mirage.regions.fragments import RegionSite, fragments

OTHERS = (2, 3, 5), (3, 4, 2), (7, 2, 3)
"""Sizes of a model's free dims, in turn, at which a goal is compared with its region."""
LEAST, LARGEST = 2, 64
"""The size of a free dim where kernels are tested, at least: a label of one element is none. And
the largest factor on these sizes, where dims are quotients of them."""
MANY = 1 << 24
"""The number of elements of a region's inputs from which only the first two sets of sizes are
compared, because float64 takes seconds for each."""
FreeKnown = dict[tuple[Graph, FreeSizes], bool]


def free_regions(
    model: Model,
    sizes: SymbolSizes,
    lanes: int,
    batched: bool,
    prepared: PreparedKinds | None = None,
    late: Callable[[], bool] = lambda: False,
    report: ErrorReport = raised,
    among: Collection[Node] | None = None,
) -> tuple[dict[EqualRegions, list[RegionSite]], set[str]]:
    """The regions of a model with their places, and the free dims of those that are left out. One
    whose kernel would depend on its sizes is at `sizes`, or with `batched` one of a single
    sample. With `among` only these terms are in regions."""
    found: dict[EqualRegions, list[RegionSite]] = {}
    left_out: set[str] = set()
    known: FreeKnown = {}
    instances = {name: instance(size) for name, size in sizes.items()}
    for goal, sites in fragments(model, instances, lanes, batched, prepared, late, report, among).items():
        for site in sites:
            seen = symbols_in([*site.inputs, *site.outputs])
            hidden = symbols_in(region_members(site)) - seen
            kind = None
            with contained(operators_of(goal), report):
                kind = free_kind(site, goal, sizes, known, prepared) if seen and not hidden else None
            with contained(operators_of(goal), report):
                if kind is None and not (hidden and (batched or not seen)):  # sizes could not be distinguished
                    fixed = resized(site, sizes) if seen else goal
                    kind = _other(site, fixed, batched and bool(seen))
            if kind is None:
                left_out |= seen | hidden
            else:
                found.setdefault(kind, []).append(site)
    return found, left_out


def free_kind(
    site: RegionSite, goal: Graph, sizes: SymbolSizes, known: FreeKnown, prepared: PreparedKinds | None = None
) -> EqualRegions | None:
    """The kind of a region that has one kernel for all sizes; None where there is none."""
    free = free_sizes([n.shape for n in site.inputs], [n.shape for n in site.outputs])
    if free is None:
        return None
    try:
        measured = tuple((name, evaluate(dim, sizes)) for name, dim in _dims(site, free).items())
        whole = resized(site, sizes)
        if prepared is not None and prepared.prepared(whole, site.inputs) is not None:
            named = named_dims([n.shape for n in site.inputs]).symbols
            several = resized(site, {name: instance(size) for name, size in sizes.items()})
            for made in dict.fromkeys((whole, several)):  # an axis of one element is none
                if prepared.at_every_size(made, lambda: resized(site, named), free):
                    return EqualRegions(made, whole, free=free, measured=measured)
            return None
        goal, free = _with_tiles(site, goal, free, sizes)
        if (goal, free) not in known:
            known[goal, free] = follows(site, goal, free)
    except (LookupError, TypeError, ValueError, TasoMirageError):
        return None
    return EqualRegions(goal, whole, free=free, measured=measured) if known[goal, free] else None


def _with_tiles(site: RegionSite, goal: Graph, free: FreeSizes, sizes: SymbolSizes) -> tuple[Graph, FreeSizes]:
    """The goal at sizes at which those of its labels that are sums have tiles: for the keys of a
    cache and a new one the cache has one less; and the names in its terms if it moves elements."""
    if not moved_goal(goal).moves:
        return goal, free
    named = named_dims([x.shape for x in site.inputs])
    free = replace(free, goal=resized(site, named.symbols))
    moves = free_moves(moved_goal(goal), free)
    labels = None if moves is None else moves.sizes.labels(core_labels(goal))
    measured = {name: evaluate(dim, sizes) for name, dim in _dims(site, free).items()}
    own = {name: instance(size) for name, size in measured.items()}
    found, alone = dict(own), set(map(str, (labels or {}).values()))
    for dim in (labels or {}).values():
        name = next((n for n in sorted(symbols(dim)) if n not in alone and linear(dim, n) == (1, dim - symbol(n))), "")
        if name and name != str(dim):
            found[name] = instance(evaluate(dim, measured)) - evaluate(dim - symbol(name), found)
    if found == own or any(n < LEAST for n in found.values()):
        return goal, free
    return resized(site, {each: evaluate(dim, found) for each, dim in named.symbols.items()}), free


def other_kind(kind: EqualRegions, site: RegionSite, batched: bool) -> EqualRegions | None:
    """The regions of a kind with kernels for the sizes where they are measured; if `batched`, with
    one kernel for any number of samples, or None."""
    return _other(site, kind.whole, batched)


def _other(site: RegionSite, whole: Graph, batched: bool) -> EqualRegions | None:
    if not batched:
        return EqualRegions(whole, whole)
    return batched_kind(site, whole, symbols_in([*site.inputs, *site.outputs]), {})


def _dims(site: RegionSite, free: FreeSizes) -> dict[str, Dim]:
    """The model's dim for each name."""
    pairs = zip([x.shape for x in site.inputs], free.inputs, strict=True)
    known = set(size_names(free.inputs))
    return {str(n): dim for shape, own in pairs for dim, n in zip(shape, own, strict=True) if str(n) in known}


def follows(site: RegionSite, goal: Graph, free: FreeSizes) -> bool:
    """Whether a goal by its labels at other sizes is its region there, and so are the parts of its
    results that are stored apart: the same terms, or else in float64 on random inputs."""
    dims, names = _dims(site, free), sorted(symbols_in([*site.inputs, *site.outputs]))
    found = [fitting_sizes(site, dict(zip(names, cycle(numbers), strict=False))) for numbers in OTHERS]
    points = [sizes for sizes in found if sizes is not None]
    if len(points) < len(found) or not _holds(goal, free, dims, points, lambda sizes: resized(site, sizes)):
        return False
    parts = None if free.goal is None else stored_goal(goal, free.goal)
    if parts is None or parts.named is None or not parts.stores:
        return True
    named = parts.named.parts
    own = [{name: evaluate(dim, sizes) for name, dim in dims.items()} for sizes in points]
    return _holds(
        parts.parts, FreeSizes.of_goal(named), {n: symbol(n) for n in dims}, own, lambda sizes: at_sizes(named, sizes)
    )


def _holds(
    goal: Graph,
    free: FreeSizes,
    dims: Mapping[str, Dim],
    points: Sequence[SymbolSizes],
    at: Callable[[SymbolSizes], Graph],
) -> bool:
    """Whether a goal by its labels is `at` these sizes there."""
    moved = moved_goal(goal)
    core, moves = label(moved.core), free_moves(moved, free)
    labels = None if moves is None else moves.sizes.labels(core)
    if moves is None or labels is None:
        return False
    rng = np.random.default_rng(0)
    for sizes in points:
        own = {name: evaluate(dim, sizes) for name, dim in dims.items()}
        whole, made = at(sizes), moves.at(goal_at(core, labels, own), own)
        if [x.type for x in whole.inputs] != [x.type for x in made.inputs]:
            return False
        if made.outputs == of_integers_or_floats(inlined(whole.outputs)):
            continue
        if sizes is points[-1] and sum(math.prod(x.shape) for x in whole.inputs) > MANY:
            break
        inputs = [random_array(node, rng, {}) for node in whole.inputs]
        if not all(
            equal_results(a, b) for a, b in zip(run_exactly(made, inputs), run_exactly(whole, inputs), strict=True)
        ):
            return False
    return True


def fitting_sizes(site: RegionSite, sizes: SymbolSizes) -> dict[str, int] | None:
    """The least multiples of some sizes at which all dims of a region that depend on sizes are
    there: a quarter of 2 would have no elements. None where none of them fit."""
    members = [*site.inputs, *region_members(site)]
    dims = {dim for node in members if isinstance(node.type, Tensor) for dim in node.type.shape or ()}
    free = [dim for dim in dims if isinstance(dim, Symbolic)]
    factor = 1
    while factor <= LARGEST:
        found = {name: factor * n for name, n in sizes.items()}
        if all(evaluate(dim, found) >= LEAST for dim in free):
            return found
        factor *= 2
    return None


def goal_at(goal: Labelled, labels: Mapping[str, Dim], sizes: Mapping[str, int]) -> Graph:
    """A labelled goal, of whose `labels` the sizes have names, at sizes of those."""
    found = {x: evaluate(labels[x], sizes) if x in labels else n for x, n in goal.sizes.items()}
    return resized_goal(goal, found)[0]
