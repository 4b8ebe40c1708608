"""Sizes for the roles of a kernel: every tiling at once, ranked by an analytic model of a GPU.

A kernel takes the longest of: its unique bytes from memory, all its bytes from the L2 cache, its
operations, and the latency of its iterations; plus what a launch costs, the start of blocks that do
not iterate, and what a cluster exchanges. Moving and computing overlap in a loop. It ranks; only a
measurement tells the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from taso_mirage.ir.terms import Node
from taso_mirage.kernels.closure import Closure
from taso_mirage.kernels.derivations.base import TileCounts
from taso_mirage.kernels.derivations.folds import DOT
from taso_mirage.kernels.structures import INSIDE, Plan, PlannedKernel, class_phases, labels_of
from taso_mirage.targets.device import Device

TileSizes = Mapping[str, int]
Allowed = tuple[Sequence[int] | None, Sequence[int] | None]
"""How many blocks and how many iterations a kernel may have; None leaves it open."""


GRID_DIMS = 3
NEAR = 0.02
"""Predictions within such a share of each other are the same."""
STORED = 4
"""Bytes of an element that one kernel stores for another: fp32. A weighted mean (`means.py`) takes
half of that, which is not counted: how blocks are best was measured of fp32."""
OVERLAPPING = 8
"""In a loop of so many iterations, a part of that size of the shorter of moving and computing does
not overlap with the longer."""
TAIL = 0.05
"""Where each thread has one block, a part of that size of its time is lost, for one of them is
interrupted and nobody helps it."""
SHARES = tuple(2**i for i in range(8))
"""Into how many equal shares a label is cut for a few threads."""
AHEAD = 4
"""Iterations whose loads are under way at a time."""
WAITING = 0.5
"""Of the time of computing, the part that a block waits for itself where no other is beside it on
its processor."""
FILLING = 0.5
"""Of the time of moving one iteration's tiles, the part that nothing overlaps with, before the
first is there: of several iterations."""
FEW = 3
"""So many tilings of a kernel that is not the slowest."""
UNEVEN = (16, 32, 64, 128)
"""Tiles of a label that no such power of two divides: the last block's overlaps with the one
before."""
GATHERED = 24
"""Blocks of a cluster start together, where there is room for all of them: with so many more than
one a kernel takes twice as long."""
BESIDE = 2
"""So many blocks of a processor exchange at a time."""
BY_WORDS, HELD, PIECE, WHOLE = 0.25, 64 * 1024, 64, 3
"""Of the time of computing, what a product of one row with weights in blocks takes on the tensor
cores, without a loop, the bytes of weights that a kernel's block holds in registers, what bytes a
block of weights has to be whole times, and how many values as large there are: the bytes, the
numbers, and these less a zero."""
EXCHANGED = 48 * 1024
"""Bytes that the blocks of a cluster combine, at most: they lie in static shared memory."""
CROWDED, CROWDING = 48 * 1024, 1.25
"""Where what was stored is combined without a loop, tiles of so many bytes and more have a block
that waits for all of them at once, and the kernel takes so many times as long (second_kernels-H100:
none of them is the best of its row)."""
WIDE = 512
"""A label of so many elements may be whole in a block of a GPU: the values of a latent head."""
BYTES, TURNING = 0.5, 1.75
"""Of the time of a product of half precision, that of one of bytes where both operands lie along
the sum, as tensor cores want it, and where a tile is turned in registers (quantized_h100-H200)."""
SINGLE, PARTED = 7.5, 4
"""A product of single precision takes so many times as long as one of half precision, in parts on
the tensor cores, and to make the parts of an element, and each iteration, as long as so many
products of an element more."""
ITERATION = (16, 512)
"""Elements in one iteration, along the looped label and within each of its steps."""
LONG, STREAMED = 1 << 15, 8192
"""Of a label of more elements than the one, which no block of a GPU holds whole, an iteration or a
block has up to the other, where nothing is multiplied as matrices are."""

FULL = 0.75
"""Of the lanes of a tile of a long label that powers of two do not divide, the part that elements
have at least."""


@dataclass(frozen=True, slots=True)
class Tiled:
    """A kernel with the tile of each of its labels, its predicted seconds, and the bytes that a
    block holds."""

    kernel: PlannedKernel
    tiles: TileSizes
    seconds: float
    held: float = 0.0


def tiled(
    kernel: PlannedKernel,
    closure: Closure,
    sizes: TileSizes,
    width: int,
    device: Device,
    best: int,
    counts: Allowed = (None, None),
) -> list[Tiled]:
    """The fastest `best` tilings by the model, the first the fastest.

    `width`: bytes of an element of inputs and results.
    """
    labels = sorted(labels_of(kernel.body, closure))
    options = [_whole_bytes(label, _options(label, kernel, closure, sizes, device), closure) for label in labels]
    grids = np.meshgrid(*options, indexing="ij") if options else []
    tiles = {label: grid.reshape(-1).astype(float) for label, grid in zip(labels, grids, strict=True)}
    model = _Model(kernel, closure, sizes, tiles, width, device)
    fits = model.fits()
    for allowed, have in zip(counts, (model.blocks, model.iterations), strict=True):
        fits &= np.isin(have, allowed) if allowed is not None else True
    seconds = np.where(fits, model.seconds(), np.inf)
    # blocks of a general device share a cache one after the other
    held = 0 * model.one if device.general else model.shared() + model.sums()
    order = sorted(np.flatnonzero(np.isfinite(seconds)), key=lambda i: rank(float(seconds[i]), float(held[i])))[:best]
    return [Tiled(kernel, {x: int(tiles[x][i]) for x in labels}, float(seconds[i]), float(held[i])) for i in order]


def rank(seconds: float, held: float) -> tuple[int, float, float]:
    """The order of what the model says: of times that it cannot tell apart, what leaves more of a
    processor to other blocks is first."""
    return round(math.log(seconds) / NEAR), held, seconds


def _innermost(kernel: PlannedKernel, closure: Closure) -> dict[int, list[str]]:
    """The labels of a tensor, the one along which elements stand side by side first; of what
    kernels hand on that one alone, as the goal's results have it."""
    goal = closure.goal
    axes = {c: goal.inputs[e.kind.name] for c, e in kernel.body.chosen if e.kind.reads in goal.inputs}
    axes |= dict(zip(closure.targets, goal.outputs, strict=True))
    found = {c: [x for axis in own for x in axis][::-1] for c, own in axes.items() if own and own[-1]}
    results = [x for own in goal.outputs for axis in own for x in axis]
    for c in (*kernel.body.leaves, *kernel.body.targets):
        inner = [x for x in results if x in closure.classes[c]]
        if c not in found and inner:
            found[c] = inner[-1:]
    return found


def _options(label: str, kernel: PlannedKernel, closure: Closure, sizes: TileSizes, device: Device) -> list[int]:
    size = sizes[label]
    long = not device.general and size > LONG and all(e.kind is not DOT for _, e in kernel.body.chosen)
    if label == kernel.loop and any(e.kind.singly and e.label == label for _, e in kernel.body.chosen):
        return [1]
    if label == kernel.loop:
        within = closure.goal.within(label)
        low, high = (max(n // within, 1) for n in ITERATION)
        if long and size % (2 * low):
            return _full_parts(size, low, max(STREAMED // within, 1)) or [size]
        return _parts(size, low, max(STREAMED // within, 1) if long else high * closure.goal.denser(label))
    if label not in kernel.body.grid:
        return [size]
    if any(label == outer for outer, _ in closure.goal.split.values()) and label in _read(kernel, closure):
        return [1]  # a split reduction: every part is a block's
    shares = {size // n for n in SHARES if size % n == 0} if device.general else {size}
    longest = STREAMED if long else WIDE if size == WIDE and not device.general else device.longest
    parts = _parts(size, 1, longest)
    overlapping = () if device.general or parts[-1] >= UNEVEN[0] or size == parts[-1] else UNEVEN
    return sorted({*parts, *(n for n in shares if n <= device.longest), *(n for n in overlapping if n < size)})


def _whole_bytes(label: str, options: list[int], closure: Closure) -> list[int]:
    step = closure.goal.steps.get(label, 1)
    return [n for n in options if n % step == 0]


def _read(kernel: PlannedKernel, closure: Closure) -> set[str]:
    return {label for c, e in kernel.body.chosen if e.kind.reads is not None for label in closure.classes[c]}


def _parts(size: int, low: int, high: int) -> list[int]:
    found = [d for d in (2**i for i in range(14)) if size % d == 0 and low <= d <= high]
    return found or [size]


def _full_parts(size: int, low: int, high: int) -> list[int]:
    """Parts that fill most of the next power of two: a block of a GPU has as many lanes."""
    return [d for d in range(low, high + 1) if size % d == 0 and d >= FULL * 2 ** (d - 1).bit_length()]


class _Model:
    """The analytic model over all tilings of a kernel: every number is an array with one element
    for each."""

    def __init__(
        self,
        kernel: PlannedKernel,
        closure: Closure,
        sizes: TileSizes,
        tiles: Mapping[str, TileCounts],
        width: int,
        device: Device,
    ) -> None:
        self.body, self.loop, self.closure, self.sizes, self.tiles = kernel.body, kernel.loop, closure, sizes, tiles
        self.width, self.device = width, device
        self.one = next(iter(tiles.values())) * 0 + 1 if tiles else np.ones(1)
        grid = [label for label in kernel.body.grid if label in tiles]
        self.blocks = self._product(np.ceil(sizes[label] / tiles[label]) for label in grid)
        self.joined = [c for c, e in kernel.body.chosen if e.label is not None and e.label == kernel.body.cluster]
        self.cluster = sizes[self.body.cluster] if self.body.cluster is not None else 1
        self.iterations = sizes[self.loop] / tiles[self.loop] if self.loop is not None else self.one
        self.once = self.iterations == 1
        inside = class_phases(kernel.body, closure, self.loop) if self.loop is not None else None
        self.inside = {c for c, s in (inside or {}).items() if s == INSIDE}
        self.inner = _innermost(kernel, closure)
        views = [(c, e.kind.reads) for c, e in kernel.body.chosen if e.kind.reads is not None]
        self.widths = {c: n for c, view in views if (n := closure.goal.stored(view)) is not None}
        self.sources = [c for c, e in kernel.body.chosen if e.kind.reads is not None] + list(kernel.body.leaves)
        self.loaded = self._loaded(views)

    def _loaded(self, views: Iterable[tuple[int, str]]) -> dict[int, TileCounts]:
        """Of classes that are a second view of a tensor: 0 where their tile is that of the first,
        which is loaded once, else 1."""
        leaves, inputs = self.closure.goal.leaves, self.closure.goal.inputs
        first: dict[Node, str] = {}
        found: dict[int, TileCounts] = {}
        for c, view in views:
            before = first.setdefault(leaves[view], view) if view in leaves else view
            if before != view:
                pairs = zip(chain(*inputs[before]), chain(*inputs[view]), strict=False)
                parted = [x for pair in pairs if len({*pair}) > 1 for x in pair]
                found[c] = 1 - self._product(self.tiles[x] == self.sizes[x] for x in parted)
        return found

    def shared(self) -> TileCounts:
        """Bytes of the operands' tiles, two of each in a loop."""
        tiles = sum((self._held(c) for c in self.sources), 0 * self.one)
        return np.asarray(tiles * np.where(self.once, 1, 2))

    def _held(self, c: int) -> TileCounts:
        return self._tile(c) * self._bytes(c) * self.loaded.get(c, self.one)

    def _room(self) -> TileCounts:
        """Bytes of what a block has in shared memory at least: two of each tile that iterations
        load."""
        again = np.where(self.once, 0, 1)
        tiles = (self._held(c) * (1 + again * (c in self.inside)) for c in self.sources)
        return np.asarray(sum(tiles, 0 * self.one))

    def sums(self) -> TileCounts:
        """Bytes of what is summed, in registers."""
        sums = [c for c, e in self.body.chosen if e.label is not None and e.label != self.body.cluster]
        return np.asarray(sum((self._tile(c) * STORED for c in sums), 0 * self.one))

    def fits(self) -> NDArray[np.bool_]:
        """Whether the tiles of the operands, double-buffered where a loop loads them, fit into
        shared memory, and the sums into registers."""
        cut = sum((self.tiles[x] < self.sizes[x] for x in self.body.grid if x in self.tiles), 0 * self.one)
        return np.asarray(
            (self._room() + self._combined() * STORED <= self.device.shared)
            & (self._combined() * STORED <= EXCHANGED)
            & (self.sums() <= self.device.registers)
            & (cut <= GRID_DIMS)
            & (self.cluster <= self.device.cluster)
        )

    def seconds(self) -> TileCounts:
        device = self.device
        unique = sum(self._whole(c) * self._bytes(c) for c in self.sources if c not in self.loaded)
        results = set(self.body.targets)
        unique += sum(self._whole(c) * (self.width if c in self.closure.targets else STORED) for c in results)
        read = [self._moved(c) * self._times(c) * self.loaded.get(c, 1) for c in self.sources]
        moved = sum(read, 0 * self.one) * self.blocks
        moved += sum((self._moved(c) / self._alike(c) for c in results), 0 * self.one) * self.blocks
        busy = np.minimum(1, self.blocks / device.processors)
        usable = device.processors // self.cluster * self.cluster  # blocks of a cluster run at one time
        waves = np.ceil(self.blocks / usable) / (self.blocks / device.processors)
        from_memory = unique / (device.bandwidth * np.minimum(1, self.blocks / (device.processors / 2)))
        rounds = np.ceil(self.blocks / (device.processors * device.resident))
        latency = (self.iterations + AHEAD) * device.latency / AHEAD * rounds
        computing = self._operations() * self.blocks / device.flops * waves
        moving = np.maximum(from_memory, moved / (device.cache * busy))
        overlapped = np.maximum(moving, computing)
        if device.general:
            longest = np.maximum(from_memory + moved / (device.cache * busy), computing)
            return np.asarray(longest * (1 + TAIL * device.processors / self.blocks) + latency + device.launch)
        beside = np.clip(self.blocks / device.processors, 1, np.maximum(device.shared // self.shared(), 1))
        loaded = self.shared() / np.where(self.once, 1, 2) * np.minimum(AHEAD, self.iterations)
        flying = loaded * np.minimum(self.blocks, device.processors * beside)
        moving = np.maximum(moving, unique / np.minimum(device.bandwidth, flying / device.loaded))
        computing = computing * (1 + WAITING / beside)
        overlapped = np.maximum(moving, computing)
        alone = (moving + computing - overlapped) / np.minimum(self.iterations, OVERLAPPING)
        alone += np.where(self.once, 0, moving / (self.iterations * beside) * FILLING)
        soon = self.one < 0
        if (words := self._words_of_one_row()) is not None:
            soon = self.once & (self._tile(words) * self._bytes(words) <= HELD)
            overlapped = np.where(soon, np.maximum(moving, computing * BY_WORDS), overlapped)
            alone = np.where(soon, 0, alone)  # they are loaded while the kernel before ends
        starting = self.once * ~soon * device.started * np.minimum(self.blocks, device.processors * device.resident)
        longest = np.maximum(overlapped + alone, latency) * (1 + (self.cluster - 1) / GATHERED)
        crowded = self.once & (self.shared() > CROWDED) & bool(self.body.leaves)
        longest = longest * np.where(crowded, CROWDING, 1)
        return np.asarray(longest + device.launch + starting + self._exchange())

    def _words_of_one_row(self) -> int | None:
        """Weights of a few bits that one row is multiplied with, scaled after their sums
        (`codegen/gpu/block_products.py`): nothing but they, and they less a zero, has all labels.
        """
        labels = [self.closure.classes[c] for c in (*self.body.leaves, *(c for c, _ in self.body.chosen))]
        whole = set().union(*labels)
        found = next((c for c in self.widths if set(self.closure.classes[c]) == whole), None)
        if found is None or sum(set(each) == whole for each in labels) > WHOLE:
            return None
        return found if self.sizes[self.inner[found][0]] * self._bytes(found) % PIECE == 0 else None

    def _alike(self, c: int) -> int:
        """How many blocks of a cluster have the same of a result, which one of them stores."""
        return 1 if self.body.cluster in self.closure.classes[c] else self.cluster

    def _exchange(self) -> TileCounts:
        """Seconds in which the blocks of a cluster combine: each folds its share of a tile, and all
        get it."""
        share = 2 * (self.cluster - 1) / self.cluster * STORED
        met = len(self.joined) * self.device.met
        rounds = np.ceil(self.blocks / (BESIDE * self.device.processors))
        return np.asarray((self._combined() * share / self.device.exchanged + met) * rounds)

    def _combined(self) -> TileCounts:
        """Elements of a block that a cluster combines."""
        return np.asarray(sum((self._tile(c) for c in self.joined), 0 * self.one))

    def _operations(self) -> TileCounts:
        total = 0 * self.one
        for made, edge in self.body.chosen:
            times = self.iterations if any(a in self.inside for a in edge.args) else self.one
            total = total + edge.kind.operations(made, edge, self) * times
        return np.asarray(total)

    def labels(self, c: int) -> frozenset[str]:
        """Those of a class."""
        return self.closure.classes[c]

    def volume(self, labels: Iterable[str]) -> TileCounts:
        """Elements of a block along some labels."""
        return self._product(self.tiles[label] for label in labels)

    def pace(self, args: Sequence[int], label: str) -> float | TileCounts:
        """How many times as long a product of matrices takes as one of half precision."""
        if all(self.widths.get(c) == 1 for c in args):  # whatever becomes of the sums
            return BYTES if all(self.inner.get(c, [""])[0] == label for c in args) else TURNING
        if self.width != STORED or self.device.general:
            return 1.0
        rows, columns = (self.volume(self.labels(c) - {label}) for c in args)
        return SINGLE * (1 + PARTED * (1 / rows + 1 / columns + 1 / self.volume([label])))

    def _tile(self, c: int) -> TileCounts:
        return self.volume(self.closure.classes[c])

    def _moved(self, c: int) -> TileCounts:
        """Bytes of a tile as memory gives them: at least a sector of the innermost axis, without
        iterations a line."""
        width = self._bytes(c)
        least = np.where(self.once, max(self.device.sector, self.device.line), self.device.sector)
        row, whole = self.one * width, self.one > 0
        for label in self.inner.get(c, ()):
            row = row * np.where(whole, self.tiles[label], 1)
            whole = whole & (self.tiles[label] == self.sizes[label])
        return self._tile(c) * width * np.where(c in self.inner, np.maximum(least / row, 1), 1)

    def _times(self, c: int) -> TileCounts:
        return self.iterations if c in self.inside else self.one

    def _whole(self, c: int) -> float:
        return float(np.prod([self.sizes[label] for label in self.closure.classes[c]]))

    def _bytes(self, c: int) -> float:
        return self.widths.get(c, STORED if c in self.body.leaves else self.width)

    def _product(self, factors: Iterable[TileCounts]) -> TileCounts:
        found = self.one
        for factor in factors:
            found = found * factor
        return found


def predicted(plan: Sequence[Tiled]) -> float:
    """Seconds of a muGraph: its kernels run one after the other."""
    return sum(each.seconds for each in plan)


def fastest(
    plan: Plan,
    closure: Closure,
    sizes: TileSizes,
    width: int,
    device: Device,
    best: int,
    counts: Allowed,
    memo: dict[tuple[object, ...], list[Tiled]],
) -> list[tuple[Tiled, ...]]:
    """The best tilings of a muGraph: the kernels do not share tiles, so each is tiled alone; `memo`
    has those of this closure. There are `best` of the slowest kernel, with the fastest of the
    others, and a few of those."""
    each: list[list[Tiled]] = []
    for kernel in plan:
        key = kernel, tuple(sizes.items())
        if key not in memo:
            memo[key] = tiled(kernel, closure, sizes, width, device, best, counts)
        each.append(memo[key])
    if not all(each):
        return []
    first = tuple(options[0] for options in each)
    slowest = max(range(len(first)), key=lambda i: first[i].seconds)
    most = [best if i == slowest else FEW for i in range(len(first))]
    others = [(*first[:i], option, *first[i + 1 :]) for i, n in enumerate(most) for option in each[i][1:n]]
    return sorted([first, *others], key=lambda plan: rank(predicted(plan), sum(t.held for t in plan)))
