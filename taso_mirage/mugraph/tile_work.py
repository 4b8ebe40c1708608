"""The work of a kernel, counted for many tilings at once: bytes, operations, and the memory of its
blocks. `kernel_seconds.py` converts it to predicted seconds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain

import numpy as np

from taso_mirage.devices.device import Device
from taso_mirage.ir.terms import Node
from taso_mirage.mugraph.closure import Closure
from taso_mirage.mugraph.derivations.kind import DerivationEdge, TileCounts
from taso_mirage.mugraph.derivations.reductions import DOT
from taso_mirage.mugraph.kernel_bodies import INSIDE, PlannedKernel, class_phases

TileSizes = Mapping[str, int]
STORED = 4
"""Bytes of an element that one kernel stores for another: fp32. A weighted mean (`means.py`) takes
half of that, which is not counted: how blocks are best was measured of fp32."""
PIECE, WHOLE = 16, 3
"""The bytes of which a block of weights of a few bits must be a multiple, and the number of values
as large: the bytes, the numbers, and these less a zero."""
BYTES, TURNING = 0.5, 1.75
"""The time of a product of bytes relative to one of half precision: where both operands lie along
the sum, as tensor cores want it, and where a tile is turned in registers (quantized_h100-H200)."""
SINGLE, PARTED = 7.5, 4
"""The time of a product of single precision relative to one of half precision, in parts on the
tensor cores; and the number of products of an element as long as which making its parts, and each
iteration, takes."""
LEAST = 16
"""Rows, columns and terms that a product on tensor cores has at least."""
BETWEEN = 0.25
"""The share of a product, or of a fold, that a step between them takes in a chain."""
ONCE = {
    "looped": "loaded",
    "flying": "held",
    "dots": "dots_once",
    "batched": "batched_once",
    "lanes": "lanes_once",
    "chain": "chain_once",
    "computed": "computed_once",
}
"""Counts within an iteration, and the corresponding counts outside."""


@dataclass(frozen=True, slots=True)
class KernelWork:
    """The work of one kernel: every number is an array with one element for each tiling.

    `blocks`, those of a `cluster`, `iterations`. Bytes: those of all tensors, each once (`unique`);
    those that a block loads in an iteration (`looped`), loads besides (`loaded`) and stores
    (`stored`), in whole sectors; and the values in the lanes of the tiles that are loaded in an
    iteration (`flying`) and besides (`held`), of sums (`summed`), and of those that a cluster
    combines (`exchanged`, in so many `meetings`). Operations of products on tensor cores, in an
    iteration (`dots`) and besides (`dots_once`), and of those with a dim that both operands and the
    result have (`batched`, `batched_once`); how many `products` there are, and `rows`: the longer
    side of the smallest one, 0 without any. Operations on lanes, in an iteration (`lanes`) and
    besides (`lanes_once`); of all of them `functions` and `folds`, whose sums threads exchange.
    `largest`: lanes of the largest tile. `chain`, `chain_once`: steps that wait one for the other,
    in an iteration and besides; `computed_once`: operands of products outside of the loop that are
    no tiles of tensors. `later`: 1 where it reads values that an earlier kernel stored, else 0.
    """

    blocks: TileCounts
    cluster: TileCounts
    iterations: TileCounts
    unique: TileCounts
    looped: TileCounts
    loaded: TileCounts
    stored: TileCounts
    flying: TileCounts
    held: TileCounts
    summed: TileCounts
    exchanged: TileCounts
    meetings: TileCounts
    dots: TileCounts
    dots_once: TileCounts
    batched: TileCounts
    batched_once: TileCounts
    products: TileCounts
    rows: TileCounts
    lanes: TileCounts
    lanes_once: TileCounts
    functions: TileCounts
    folds: TileCounts
    largest: TileCounts
    chain: TileCounts
    chain_once: TileCounts
    computed_once: TileCounts
    later: TileCounts


class TileWork:
    """The counts of a kernel over all of its tilings."""

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
        """For classes that are a second view of a tensor, 0 where their tile is that of the first
        view, which is loaded once, else 1."""
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

    # ------------------------------------------------------------ the counts

    def work(self) -> KernelWork:
        """The work in lanes: threads have a power of two of elements along each label."""
        found: dict[str, TileCounts] = defaultdict(lambda: 0.0 * self.one)
        found["largest"] = found["rows"] + 1.0
        self.steps: dict[str, dict[int, TileCounts]] = {"": {}, "_once": {}, "_all": {}}
        for c in self.sources:
            self._count_load(c, found)
        for made, edge in self.body.chosen:
            if edge.kind.reads is None:
                self._count_operation(made, edge, found)
        self._count_once(found)
        sums = [c for c, e in self.body.chosen if e.label is not None and e.label != self.body.cluster]
        results = {*self.body.targets}
        unique = sum(self._whole(c) * self._bytes(c) for c in self.sources if c not in self.loaded)
        unique += sum(self._whole(c) * (self.width if c in self.closure.targets else STORED) for c in results)
        found |= {
            "blocks": self.blocks * 1.0,
            "cluster": self.cluster * self.one,
            "iterations": self.iterations * 1.0,
            "unique": unique * self.one,
            "stored": self._total(self._moved(c) / self._alike(c) for c in results),
            "summed": self._total(self._lanes(self.labels(c)) * STORED for c in sums),
            "exchanged": self._combined() * STORED,
            "meetings": len(self.joined) * self.one,
            "later": bool(self.body.leaves) * self.one,
        }
        return KernelWork(**{each.name: found[each.name] for each in fields(KernelWork)})

    def _count_once(self, found: dict[str, TileCounts]) -> None:
        """A loop of one iteration is none."""
        for inside, besides in ONCE.items():
            found[besides] = found[besides] + np.where(self.once, found[inside], 0)
            found[inside] = np.where(self.once, 0, found[inside])
        found["chain_once"] = np.where(self.once, found["chain_all"], found["chain_once"])

    def _count_load(self, c: int, found: dict[str, TileCounts]) -> None:
        bytes_, held = ("looped", "flying") if c in self.inside else ("loaded", "held")
        once, lanes = self.loaded.get(c, self.one), self._lanes(self.labels(c))
        found[bytes_] = found[bytes_] + self._moved(c) * once
        found[held] = found[held] + lanes * self._bytes(c) * once
        found["largest"] = np.maximum(found["largest"], lanes)

    def _count_operation(self, made: int, edge: DerivationEdge, found: dict[str, TileCounts]) -> None:
        inside = any(a in self.inside for a in edge.args)
        times, when = (self.iterations, "") if inside else (self.one, "_once")
        lanes = self._lanes(self.labels(made).union(*[self.labels(a) for a in edge.args]))
        product = self._count_product(made, edge, when, found) if edge.kind is DOT else 0.0 * self.one
        folds = (1 - product) * (edge.label is not None)
        kinds = {
            f"lanes{when}": lanes * (1 - product),
            "functions": lanes * times * edge.kind.slow,
            "folds": lanes * times * folds,
        }
        for kind, count in kinds.items():
            found[kind] = found[kind] + count
        found["largest"] = np.maximum(found["largest"], lanes * (1 - product))
        self._follow(made, edge, when, np.where(product + folds > 0, 1, BETWEEN))
        for kind in (when, "_all"):
            found[f"chain{kind}"] = np.maximum(found[f"chain{kind}"], self.steps[kind][made])

    def _follow(self, made: int, edge: DerivationEdge, when: str, step: TileCounts) -> None:
        """Note how many steps led to a class: in an iteration or besides (`when`), and of all."""
        for kind, known in self.steps.items():
            before = [known[a] for a in edge.args if a in known]
            longest = np.max(before, axis=0) if before else 0.0 * self.one
            counts = kind in (when, "_all")
            known[made] = longest + step if counts else longest if kind else 0 * longest

    def _count_product(self, made: int, edge: DerivationEdge, when: str, found: dict[str, TileCounts]) -> TileCounts:
        """Count a sum of products where it is one of matrices: both operands have several elements
        along the labels that the other lacks, and along the sum. The result is 1 there, else 0."""
        a, b = (self.labels(x) for x in edge.args)
        sides = [self._lanes(x) for x in (a - b, b - a, (a & b) - self.labels(made))]
        there = np.where(np.min(sides, axis=0) > 1, 1.0, 0.0)
        rows, columns, terms = (np.maximum(x, LEAST) for x in sides)
        batch = self._lanes(a & b & self.labels(made))
        count = 2 * rows * columns * terms * batch * self.pace(edge.args, edge.folds) * there
        found[f"dots{when}"] = found[f"dots{when}"] + np.where(batch > 1, 0, count)
        found[f"batched{when}"] = found[f"batched{when}"] + np.where(batch > 1, count, 0)
        found["products"] = found["products"] + there
        longer, before = np.maximum(rows, columns), found["rows"]
        found["rows"] = np.where(there == 0, before, np.where(before > 0, np.minimum(before, longer), longer))
        found["largest"] = np.maximum(found["largest"], rows * columns * batch * there)
        single = self.width == STORED  # in parts, which are computed
        made_here = sum(x not in self.sources or single for x in edge.args)
        found[f"computed{when}"] = found[f"computed{when}"] + made_here * there
        return there

    def _lanes(self, labels: Iterable[str]) -> TileCounts:
        return self._product(2.0 ** np.ceil(np.log2(self.tiles[x])) for x in labels)

    def _total(self, counts: Iterable[TileCounts]) -> TileCounts:
        return np.asarray(sum(counts, 0.0 * self.one))

    def labels(self, c: int) -> frozenset[str]:
        """The labels of a class."""
        return self.closure.classes[c]

    def volume(self, labels: Iterable[str]) -> TileCounts:
        """Elements of a block along some labels."""
        return self._product(self.tiles[label] for label in labels)

    def pace(self, args: Sequence[int], label: str) -> float | TileCounts:
        """The time of a product of matrices relative to one of half precision."""
        if all(self.widths.get(c) == 1 for c in args):  # independent of the use of the sums
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

    def _alike(self, c: int) -> int:
        """The number of blocks of a cluster that have the same part of a result; one of them stores
        it."""
        return 1 if self.body.cluster in self.closure.classes[c] else self.cluster

    def _combined(self) -> TileCounts:
        """Elements of a block that a cluster combines."""
        return np.asarray(sum((self._tile(c) for c in self.joined), 0 * self.one))

    def _words_of_one_row(self) -> list[int]:
        """Weights of a few bits that one row is multiplied with, scaled after their sums
        (`emit/gpu/block_products.py`): nothing but they, and they less a zero, has all labels.
        """
        labels = [self.closure.classes[c] for c in (*self.body.leaves, *(c for c, _ in self.body.chosen))]
        whole = set().union(*labels)
        found = [c for c in self.widths if set(self.closure.classes[c]) == whole]
        if sum(set(each) == whole for each in labels) > WHOLE * len(found):
            return []
        even = all(self.sizes[self.inner[c][0]] * self._bytes(c) % PIECE == 0 for c in found)
        return found if even else []


def _innermost(kernel: PlannedKernel, closure: Closure) -> dict[int, list[str]]:
    """The labels of a tensor, the one along which elements stand side by side first; for values
    between kernels that one alone, as the goal's results have it."""
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
