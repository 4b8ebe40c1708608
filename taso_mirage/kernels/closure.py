"""The closure of a goal over its sub-expressions, with all derivations of each: an AND-OR graph.

It takes the place of Mirage's enumeration of kernels (OSDI'25, section 4), pruned by the same abstract expressions.

A class is a sketch that is part of the goal; an edge derives it from others by one operator. Everything that a kernel may compute on
its way to the goal is in it once, whatever the sizes, the grid or the loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

from taso_mirage.errors import Unsupported
from taso_mirage.kernels.edges import Edge, check
from taso_mirage.kernels.labels import Labelled
from taso_mirage.kernels.pruning import Targets
from taso_mirage.kernels.sketch import LEVELS, Algebra, Sketch
from taso_mirage.kernels.variances import Variance, variances

__all__ = ["Closure", "Edge", "close"]

Progress = Callable[[int, int], None]
"""Told how many classes there are, and how many of them wait for their turn."""


@dataclass(frozen=True, slots=True)
class Closure:
    """Classes as the labels that each hangs on, the derivations of each, and the class of every output.

    `statistics`: classes and edges (all that were kept), wrong (edges that the field refuted), tried (terms made), checked and pruned
    (different terms looked at and dropped), lost (terms in which a label cancels), targets, seconds, verifying (seconds of them); capped
    is 1 where a closure without pruning was cut short. Classes and edges of which no output is derived are then dropped.
    """

    goal: Labelled
    classes: tuple[frozenset[str], ...]
    edges: tuple[tuple[Edge, ...], ...]
    targets: tuple[int, ...]
    statistics: Mapping[str, float] = field(default_factory=dict)
    sketches: tuple[Sketch, ...] = field(default=(), repr=False)
    """The sketch of each class, in the goal's algebra."""


def close(
    goal: Labelled, *, prune: bool = True, cap: int = 2000, seed: int = 0, progress: Progress | None = None
) -> Closure:
    """All classes and edges, each checked in the field with fresh residues of `seed`.

    Raises Unsupported where there are more than `cap` classes, or where an output is not derived. Without `prune` every term is a
    class (the ablation): then the first `cap` are returned.
    """
    start = time.perf_counter()
    closing = _Closing(goal, prune, cap)
    closing.run(progress)
    if closing.capped and prune:
        raise Unsupported(
            f"the closure of this goal has more than {cap} classes: search a smaller part of it, or raise the cap"
        )
    missing = [i for i, s in enumerate(goal.sketches) if s not in closing.index]
    if missing and prune:
        raise Unsupported(f"output {missing[0]} has no derivation in which nothing cancels")
    verifying = time.perf_counter()
    edges = [tuple(made) for made in closing.edges]
    wrong = check(goal, closing.classes, edges, seed)
    end = time.perf_counter()
    statistics = {
        "classes": len(closing.classes),
        "edges": sum(map(len, edges)),
        "wrong": len(wrong),
        **closing.counts,
        "checked": closing.targets.checked,
        "targets": len(closing.targets.polys),
        "capped": float(closing.capped),
        "seconds": end - start,
        "verifying": end - verifying,
    }
    kept = [tuple([e for e in made if (i, e) not in wrong]) for i, made in enumerate(edges)]
    return _trimmed(goal, closing, kept, statistics)


def _trimmed(
    goal: Labelled, closing: _Closing, edges: list[tuple[Edge, ...]], statistics: Mapping[str, float]
) -> Closure:
    """Only what the outputs are derived from, in the same order."""
    outputs = [closing.index[s] for s in goal.sketches if s in closing.index]
    needed: set[int] = set()
    waiting = list(outputs)
    while waiting:
        i = waiting.pop()
        if i not in needed:
            needed.add(i)
            waiting += [arg for edge in edges[i] for arg in edge.args]
    place = {old: new for new, old in enumerate(sorted(needed))}
    return Closure(
        goal,
        tuple([closing.free[i] for i in place]),
        tuple(
            [tuple([Edge(e.op, tuple([place[a] for a in e.args]), e.label, e.name) for e in edges[i]]) for i in place]
        ),
        tuple([place[i] for i in outputs]),
        statistics,
        tuple([closing.classes[i] for i in place]),
    )


class _Closing:
    """The worklist: every class meets itself and all before it once."""

    def __init__(self, goal: Labelled, prune: bool, cap: int) -> None:
        self.goal, self.algebra, self.prune, self.cap = goal, goal.algebra, prune, cap
        self.targets = Targets(goal.algebra, goal.sketches)
        self.wanted = _Wanted(goal, self.targets)
        self.variances = list(variances(goal, self.targets))
        self.classes: list[Sketch] = []
        self.free: list[frozenset[str]] = []
        self.edges: list[dict[Edge, None]] = []
        self.index: dict[Sketch, int] = {}
        self.counts = {"tried": 0, "pruned": 0, "lost": 0}
        self.capped = False

    def run(self, progress: Progress | None) -> None:
        for name, sketch in self.goal.views.items():
            self._put(sketch, Edge("input", (), None, name), self.algebra.free(sketch))
        at = 0
        while at < len(self.classes):
            if len(self.classes) > self.cap:
                self.capped = True
                return
            if progress is not None:
                progress(len(self.classes), len(self.classes) - at)
            self._unary(at)
            self._variances(at)
            self._functions(at)
            for other in range(at + 1):
                self._pair(at, other)
            at += 1
        self._centred()

    def _put(self, sketch: Sketch, edge: Edge, free: frozenset[str], needed: bool = False) -> None:
        """Keep a derivation, unless its term is no part of the goal (nor `needed` for one) or a cancellation lost a label."""
        self.counts["tried"] += 1
        at = self.index.get(sketch)
        if at is None:
            if self.algebra.free(sketch) != free or self.algebra.is_number(sketch):
                self.counts["lost"] += 1
                return
            if self.prune and not (needed or edge.op == "input" or sketch in self.targets):
                self.counts["pruned"] += 1
                return
            at = self.index[sketch] = len(self.classes)
            self.classes.append(sketch)
            self.free.append(free)
            self.edges.append({})
        elif self.free[at] != free:
            self.counts["lost"] += 1
            return
        self.edges[at][edge] = None

    def _unary(self, i: int) -> None:
        algebra, wanted, p, free = self.algebra, self.wanted, self.classes[i], self.free[i]
        if "exp" in wanted.operators:
            self._put(algebra.exp(p), Edge("map", (i,), None, "exp"), free)
        if "sqrt" in wanted.operators and algebra.roots(p) < LEVELS - 1:
            self._put(algebra.sqrt(p), Edge("map", (i,), None, "sqrt"), free)
        if "neg" in wanted.operators:
            self._put(algebra.mul(p, algebra.number(-1)), Edge("map", (i,), None, "neg"), free)
        if "reciprocal" in wanted.operators:
            self._put(algebra.inverse(p), Edge("map", (i,), None, "reciprocal"), free)
        for label in sorted(free & wanted.reduced):
            total = algebra.sum(p, label)
            self._put(total, Edge("sum", (i,), label), free - {label})
            if label in wanted.means:
                mean = algebra.mul(total, wanted.means[label])
                self._put(mean, Edge("mean", (i,), label), free - {label})
            if "max" in wanted.operators:
                self._put(algebra.max(p, label), Edge("max", (i,), label), free - {label})

    def _variances(self, i: int) -> None:
        """Variances of this class; those of the parts of a split label are classes, too, and are merged once both are there."""
        for each in self.variances:
            (variance, mean), free = each.parts, self.free[i] - {each.label}
            if self.classes[i] == each.of:
                self._put(variance, Edge("variance", (i,), each.label), free, needed=True)
            if self.classes[i] == each.of and each.whole is not None:
                self._put(mean, Edge("mean", (i,), each.label), free, needed=True)
            if self.classes[i] in each.parts and each.whole is not None and each.outer in self.free[i]:
                args = [self.index[part] for part in each.parts if part in self.index]
                if i == max(args) and len(args) == 2:
                    self._put(each.whole[0], Edge("merged", tuple(args), each.outer), self.free[i] - {each.outer})
                    self._put(each.whole[1], Edge("merged", (args[1],), each.outer), self.free[i] - {each.outer})

    def _centred(self) -> None:
        """sum((x - mean) w) as sum(x w) - mean sum(w), which need not wait for the mean: outer products that no worklist makes.

        A product in half precision rounds what is no input itself, and a large mean would show it: then x and w are inputs.
        """
        half = any(leaf.dtype in ("float16", "bfloat16") for leaf in self.goal.leaves.values())
        exact = set(self.goal.views.values()) if half else set(self.classes)
        for each in self.variances:
            apart = self.index.get(self.algebra.sub(each.of, each.mean))
            uses = [e for made in self.edges for e in made if e.op in ("mul", "dot") and apart in e.args]
            for weight in dict.fromkeys(a for e in uses for a in e.args if a != apart):
                if {each.of, self.classes[weight]} <= exact and self.free[weight].issuperset(each.labels):
                    self._shifted(each, weight)

    def _shifted(self, each: Variance, weight: int) -> None:
        """The derivation of one sum((x - mean) w), if it is part of the goal."""
        algebra, index = self.algebra, self.index
        x, mean = index.get(each.of), index.get(each.mean)
        whole = algebra.folded(algebra.mul(algebra.sub(each.of, each.mean), self.classes[weight]), each.labels)
        if whole not in index or x is None or mean is None:
            return
        products, weights = self._product(x, weight, each.labels[-1]), self._total(weight, each.labels[-1])
        for label in each.labels[-2::-1]:
            products, weights = self._total(products, label), self._total(weights, label)
        if products is None or weights is None:
            return
        shift = self._class(
            algebra.mul(each.mean, self.classes[weights]),
            Edge("mul", (mean, weights)),
            self.free[mean] | self.free[weights],
        )
        if shift is not None:
            self._put(whole, Edge("sub", (products, shift)), self.free[index[whole]])

    def _class(self, sketch: Sketch, edge: Edge, free: frozenset[str]) -> int | None:
        """The class of a term that is needed, unless a cancellation lost a label."""
        self._put(sketch, edge, free, needed=True)
        return self.index.get(sketch)

    def _total(self, i: int | None, label: str) -> int | None:
        """The class of the sum of a class."""
        if i is None or label not in self.free[i]:
            return None
        return self._class(self.algebra.sum(self.classes[i], label), Edge("sum", (i,), label), self.free[i] - {label})

    def _product(self, i: int, j: int, label: str) -> int | None:
        """The class of the sum of the product of two classes."""
        algebra, free = self.algebra, self.free[i] | self.free[j]
        product = algebra.mul(self.classes[i], self.classes[j])
        if free in (self.free[i], self.free[j]):
            return self._total(self._class(product, Edge("mul", (i, j)), free), label)
        return self._class(algebra.sum(product, label), Edge("dot", (i, j), label), free - {label})

    def _functions(self, i: int) -> None:
        """Opaque functions of this class and those before it."""
        for name, exponential, places in self.wanted.functions:
            fits = [[j for j in range(i + 1) if self.algebra.erased.poly(self.classes[j]) in place] for place in places]
            for args in product(*fits):
                if i in args:
                    made = self.algebra.function(name, [self.classes[j] for j in args], exponential)
                    self._put(made, Edge("map", args, None, name), frozenset().union(*[self.free[j] for j in args]))

    def _pair(self, i: int, j: int) -> None:
        wanted, left, right = self.wanted.operators, self.free[i], self.free[j]
        nested = left <= right or right <= left
        joined = nested or "outer" in wanted
        free = left | right
        algebra, p, q = self.algebra, self.classes[i], self.classes[j]
        if self._shared(self._factor(p, q), self._factor(q, p)) and not _cancels(algebra, p, q, 1):
            if joined and "mul" in wanted:
                self._put(algebra.mul(p, q), Edge("mul", (i, j)), free)
            for label in sorted(left & right & self.wanted.reduced) if not nested else ():
                self._put(algebra.sum(algebra.mul(p, q), label), Edge("dot", (i, j), label), free - {label})
        if i == j and "twice" not in wanted:
            return
        summed = joined and self._shared(p, q)
        if summed and "add" in wanted and not _collide(algebra, p, q, 1):
            self._put(algebra.add(p, q), Edge("add", (i, j)), free)
        for a, b in ((i, j), (j, i)):
            p, q = self.classes[a], self.classes[b]
            if summed and "sub" in wanted and not _collide(algebra, p, q, -1):
                self._put(algebra.sub(p, q), Edge("sub", (a, b)), free)
            if joined and "div" in wanted and self._shared(p, algebra.inverse(q)) and not _cancels(algebra, p, q, -1):
                self._put(algebra.div(p, q), Edge("div", (a, b)), free)

    def _factor(self, p: Sketch, q: Sketch) -> Sketch:
        """p as it stands in p * q, where a product of two sums stays factored."""
        return self.algebra.factored(p) if min(len(self.algebra.polys[x]) for x in (p, q)) > 1 else p

    def _shared(self, p: Sketch, q: Sketch) -> bool:
        """Whether both are part of one target, as far as that can be told before they are joined."""
        return not self.prune or bool(self.targets.places(p) & self.targets.places(q))


def _cancels(algebra: Algebra, p: Sketch, q: Sketch, sign: int) -> bool:
    """Whether a factor of p meets one of q (of 1/q for the sign -1) above and below a fraction line."""
    return bool(algebra.above(p) & algebra.below(q, sign) or algebra.below(p) & algebra.above(q, sign))


def _collide(algebra: Algebra, p: Sketch, q: Sketch, sign: int) -> bool:
    """Whether p + sign * q cancels a term."""
    terms = dict(algebra.polys[p])
    return any(terms.get(m, 0) * c * sign < 0 for m, c in algebra.polys[q])


class _Wanted:
    """What the targets are made of: only that is tried."""

    def __init__(self, goal: Labelled, targets: Targets) -> None:
        algebra = goal.algebra
        self.operators = set(goal.operators & {"outer", "neg", "reciprocal"}) | set(_operators(algebra, targets.polys))
        parts = dict(goal.split)
        self.reduced = frozenset(part for label in goal.reduced for part in parts.get(label, (label,)))
        self.means = self._means(goal, _atoms(algebra, targets.polys))
        places: dict[tuple[str, int], list[set[int]]] = {}
        for atom in _atoms(algebra, targets.polys):
            if atom[0] == "function":
                own = places.setdefault((atom[1], len(atom[3])), [set() for _ in atom[3]])
                for place, poly in zip(own, atom[3], strict=True):
                    place.add(algebra.erased.poly(poly))
        self.functions = [(name.rstrip("!"), name.endswith("!"), own) for (name, _), own in places.items()]

    @staticmethod
    def _means(goal: Labelled, atoms: Iterable[tuple[str, str, object, object, object]]) -> dict[str, Sketch]:
        """The labels over which a mean is taken, and the size that each divides by: of a split label its grid part divides by all."""
        algebra, found = goal.algebra, {}
        sizes = {atom[1] for atom in atoms if atom[0] == "share"}
        for whole, (outer, inner) in goal.split.items():
            if outer in sizes:
                found[outer] = algebra.mul(algebra.share(outer), algebra.share(inner))
            sizes -= {whole, outer, inner}
        return found | {label: algebra.share(label) for label in sizes}


def _atoms(
    algebra: Algebra, polys: Iterable[Sketch]
) -> list[tuple[str, str, tuple[str, ...], tuple[Sketch, ...], object]]:
    factors = dict.fromkeys(f // LEVELS for p in polys for m, _ in algebra.polys[p] for f, _ in m)
    return [algebra.atoms[i] for i in factors]


def _operators(algebra: Algebra, polys: Iterable[Sketch]) -> Iterator[str]:
    for p in polys:
        terms = algebra.polys[p]
        if len(terms) > 1:
            yield "add"
        if len({c > 0 for _, c in terms}) > 1:
            yield "sub"
        for m, c in terms:
            yield from (["add", "twice"] if max(c, -c) > 1 else [])
            yield from (["mul"] if len(m) > 1 or any(e != 1 for _, e in m) else [])
            for f, e in m:
                atom = algebra.atoms[f // LEVELS]
                yield from (["div"] if e < 0 and atom.kind != "share" else [])
                yield from (["sqrt"] if f % LEVELS else [])
                yield from ([atom.kind] if atom.kind in ("exp", "max") else [])
                yield from (["exp"] if (atom.kind, atom.name) == ("function", "exp!") else [])
