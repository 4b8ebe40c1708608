"""Sizes for the roles of a kernel: every tiling at once, ranked by a model of the device.

That of a GPU is fitted to measurements (`kernel_seconds.py`). A kernel for a CPU takes the longest
of its bytes, those that are there once and those that blocks move, its operations, and the latency
of its iterations. The model only ranks; a measurement gives the time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from taso_mirage.devices.device import Device
from taso_mirage.mugraph.closure import Closure
from taso_mirage.mugraph.derivations.kind import TileCounts
from taso_mirage.mugraph.derivations.reductions import DOT
from taso_mirage.mugraph.kernel_bodies import Plan, PlannedKernel, labels_of
from taso_mirage.mugraph.kernel_seconds import fitted, seconds_of_work
from taso_mirage.mugraph.tile_work import STORED, KernelWork, TileSizes, TileWork

Allowed = tuple[Sequence[int] | None, Sequence[int] | None]
"""The permitted numbers of blocks and iterations of a kernel; None for any."""


GRID_DIMS = 3
NEAR = 0.02
"""The relative difference below which predictions are equal."""
TAIL = 0.05
"""The share of time that is lost if each thread has one block, because one of them is interrupted
and no other thread helps it."""
SHARES = tuple(2**i for i in range(8))
"""The numbers of equal shares into which a label is cut for a few threads."""
AHEAD = 4
"""Iterations whose loads are under way at a time."""
ALIKE = 4
"""The tilings of as many blocks and iterations on a GPU that precede those of other numbers."""
FEW = 3
"""The number of tilings of a kernel that is not the slowest."""
UNEVEN = (16, 32, 64, 128)
"""Tiles of a label that no such power of two divides: the last block's overlaps with the one
before."""
BY_WORDS, HELD = 0.25, 64 * 1024
"""The time of a product of one row with weights in blocks on the tensor cores, without a loop,
relative to its time by computing; and the bytes of weights that a kernel's block holds in
registers."""
EXCHANGED = 48 * 1024
"""The largest number of bytes that the blocks of a cluster combine; they are in static shared
memory."""
WIDE = 512
"""The most elements of a label that may be whole in a block of a GPU: the values of a latent
head."""
ITERATION = (16, 512)
"""Elements in one iteration, along the looped label and within each of its steps."""
LONG, STREAMED = 1 << 15, 8192
"""The number of elements above which no block of a GPU holds a label whole, and the most elements
of it in an iteration or a block, where nothing is multiplied as matrices are."""

FULL = 0.75
"""The least share of the lanes of a tile that elements fill, for a long label that powers of two do
not divide."""


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
    held = model.held()
    fine = map(int, np.flatnonzero(np.isfinite(seconds)))
    order = sorted(fine, key=lambda i: rank(float(seconds[i]), float(held[i])))
    if not device.general:
        order = _various(order, model)
    return [
        Tiled(kernel, {x: int(tiles[x][i]) for x in labels}, float(seconds[i]), float(held[i])) for i in order[:best]
    ]


def _various(order: Sequence[int], model: _Model) -> list[int]:
    """The order with tilings at the end that follow ALIKE ones of as many blocks and iterations:
    these differ in little that the model or a GPU sees, and other numbers are measured, too."""
    counted: Counter[tuple[float, float]] = Counter()
    first, rest = list[int](), list[int]()
    for i in order:
        numbers = float(model.blocks[i]), float(model.iterations[i])
        counted[numbers] += 1
        (first if counted[numbers] <= ALIKE else rest).append(i)
    return [*first, *rest]


def rank(seconds: float, held: float) -> tuple[int, float, float]:
    """The order by the model: of times that it cannot distinguish, the kernel that leaves more of a
    processor to other blocks is first."""
    return round(math.log(seconds) / NEAR), held, seconds


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


class _Model(TileWork):
    """The analytic model over all tilings of a kernel: every number is an array with one element
    for each."""

    def shared(self) -> TileCounts:
        """Bytes of the operands' tiles, two of each in a loop."""
        tiles = sum((self._held(c) for c in self.sources), 0 * self.one)
        return np.asarray(tiles * np.where(self.once, 1, 2))

    def _held(self, c: int) -> TileCounts:
        return self._tile(c) * self._bytes(c) * self.loaded.get(c, self.one)

    def _room(self) -> TileCounts:
        """The least bytes of a block in shared memory: two of each tile that iterations load."""
        again = np.where(self.once, 0, 1)
        tiles = (self._held(c) * (1 + again * (c in self.inside)) for c in self.sources)
        return np.asarray(sum(tiles, 0 * self.one))

    def sums(self) -> TileCounts:
        """Bytes of sums, in registers."""
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
        if not self.device.general:
            return seconds_of_work(self._prepared(), self.device, fitted())
        device = self.device
        unique = sum(self._whole(c) * self._bytes(c) for c in self.sources if c not in self.loaded)
        results = set(self.body.targets)
        unique += sum(self._whole(c) * (self.width if c in self.closure.targets else STORED) for c in results)
        read = [self._moved(c) * self._times(c) * self.loaded.get(c, 1) for c in self.sources]
        moved = self._total(read) * self.blocks + self._total(map(self._moved, results)) * self.blocks
        busy = np.minimum(1, self.blocks / device.processors)
        waves = np.ceil(self.blocks / device.processors) / (self.blocks / device.processors)
        from_memory = unique / (device.bandwidth * np.minimum(1, self.blocks / (device.processors / 2)))
        rounds = np.ceil(self.blocks / (device.processors * device.resident))
        latency = (self.iterations + AHEAD) * device.latency / AHEAD * rounds
        computing = self._operations() * self.blocks / device.flops * waves
        longest = np.maximum(from_memory + moved / (device.cache * busy), computing)
        return np.asarray(longest * (1 + TAIL * device.processors / self.blocks) + latency + device.launch)

    def held(self) -> TileCounts:
        """The bytes that a block holds, of which fewer are better where times are equal. Where
        weights stay in registers it is the number of blocks, since each computes x again. Blocks of
        a general device share a cache one after the other."""
        if self.device.general:
            return 0 * self.one
        return np.where(self._in_registers(), self.blocks, self.shared() + self.sums())

    def _in_registers(self) -> TileCounts:
        """Whether it is one row times weights of a few bits (`emit/gpu/block_products.py`)."""
        words = self._words_of_one_row()
        bytes_ = self._total([self._tile(c) * self._bytes(c) for c in words])
        return np.asarray(self.once & (bytes_ <= HELD) & bool(words))

    def _prepared(self) -> KernelWork:
        """The work of the kernel on a GPU: products of one row with weights of a few bits are fewer
        operations."""
        found, soon = self.work(), self._in_registers()
        if not np.any(soon):
            return found
        share = np.where(soon, BY_WORDS, 1)
        return replace(
            found,
            dots_once=found.dots_once * share,
            lanes_once=found.lanes_once * share,
            functions=found.functions * share,
            folds=found.folds * share,
            largest=found.largest * share,
            chain_once=found.chain_once * share,
            computed_once=np.where(soon, 0, found.computed_once),
        )

    def _operations(self) -> TileCounts:
        total = 0 * self.one
        for made, edge in self.body.chosen:
            times = self.iterations if any(a in self.inside for a in edge.args) else self.one
            total = total + edge.kind.operations(made, edge, self) * times
        return np.asarray(total)


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
