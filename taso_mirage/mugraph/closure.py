"""The closure of a goal over its sub-expressions, with all derivations of each: an AND-OR graph.

It takes the place of Mirage's enumeration of kernels (OSDI'25, section 4), pruned by the same
abstract expressions.

A class is a sketch that is part of the goal; an edge derives it from others by one operator. It
contains everything that a kernel may compute for the goal once, independent of sizes, grid and
loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product

from taso_mirage.errors import Unsupported
from taso_mirage.mugraph.abstract import Algebra
from taso_mirage.mugraph.atoms import ROOT_LEVELS, AbstractExpression, AbstractFactor, FactorForm, FactorPowers
from taso_mirage.mugraph.derivations import reductions
from taso_mirage.mugraph.derivations.arithmetic import ADD_KIND, DIV, EXP_KIND, MUL, SQRT_KIND, SUB, UNARY
from taso_mirage.mugraph.derivations.kind import DerivationEdge, DerivationKind
from taso_mirage.mugraph.derivations.leaf import Input, OpaqueKind
from taso_mirage.mugraph.derivations.one_pass_variance import Variances
from taso_mirage.mugraph.derivations.reductions import DOT
from taso_mirage.mugraph.field_check import refuted_derivations
from taso_mirage.mugraph.goal import Labelled
from taso_mirage.mugraph.label_trace import INTEGERS
from taso_mirage.mugraph.pruning import Targets
from taso_mirage.mugraph.refusals import results, signature

_Progress = Callable[[int, int], None]
"""Called with the number of classes and the number of waiting classes."""


@dataclass(frozen=True, slots=True)
class Closure:
    """Classes as the labels that each depends on, the derivations of each, and the class of every
    output.

    `statistics`: classes and edges (all that were kept), wrong (edges that the field refuted),
    tried (terms made), checked and pruned (different terms tested and dropped), lost (terms in
    which a label cancels), targets, seconds, verifying (seconds of them); capped is 1 where a
    closure without pruning was cut short. Classes and edges of which no output is derived are then
    dropped.
    """

    goal: Labelled
    classes: tuple[frozenset[str], ...]
    edges: tuple[tuple[DerivationEdge, ...], ...]
    targets: tuple[int, ...]
    statistics: Mapping[str, float] = field(default_factory=dict)
    sketches: tuple[AbstractExpression, ...] = field(default=(), repr=False)
    """The sketch of each class, in the goal's algebra."""


def close(
    goal: Labelled, *, prune: bool = True, cap: int = 2000, seed: int = 0, progress: _Progress | None = None
) -> Closure:
    """All classes and edges, each checked in the field with fresh residues of `seed`.

    Raises Unsupported where there are more than `cap` classes, or where an output is not derived.
    Without `prune` every term is a class (the ablation): then the first `cap` are returned.
    """
    start = time.perf_counter()
    closing = _Closing(goal, prune, cap)
    closing.run(progress)
    if closing.capped and prune:
        raise Unsupported(
            f"{results(goal.graph)}: its closure has more than {cap} classes; search a smaller part, or raise the cap"
        )
    missing = [i for i, s in enumerate(goal.sketches) if s not in closing.index]
    if missing and prune and goal.scales:  # a number may be a scale and something else
        return close(replace(goal, scales={}), cap=cap, seed=seed, progress=progress)
    if missing and prune:
        output = signature(goal.graph.outputs[missing[0]])
        raise Unsupported(f"{output}: output {missing[0]} has no derivation in which nothing cancels")
    verifying = time.perf_counter()
    edges = [tuple(made) for made in closing.edges]
    wrong = refuted_derivations(goal, closing.classes, edges, seed)
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
    goal: Labelled, closing: _Closing, edges: list[tuple[DerivationEdge, ...]], statistics: Mapping[str, float]
) -> Closure:
    """Only the derivations of the outputs, in the same order."""
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
        tuple([tuple([replace(e, args=tuple([place[a] for a in e.args])) for e in edges[i]]) for i in place]),
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
        self.classes: list[AbstractExpression] = []
        self.free: list[frozenset[str]] = []
        self.edges: list[dict[DerivationEdge, None]] = []
        self.whole: list[bool] = []
        """Whether a class is of integers."""
        self.index: dict[AbstractExpression, int] = {}
        self.counts = {"tried": 0, "pruned": 0, "lost": 0}
        self.capped = False
        self.inside = goal.inside()
        self.variances = Variances(self)

    def run(self, progress: _Progress | None) -> None:
        for name, sketch in self.goal.views.items():
            self.put(sketch, DerivationEdge(Input(name)), self.algebra.free(sketch))
        at = 0
        while at < len(self.classes):
            if len(self.classes) > self.cap:
                self.capped = True
                return
            if progress is not None:
                progress(len(self.classes), len(self.classes) - at)
            self._reduced(at)
            self._functions(at)
            if not self._logical(at):
                self._unary(at)
                self.variances.meet(at)
                for other in range(at + 1):
                    if not self._logical(other):
                        self._pair(at, other)
            at += 1
        self.variances.end()

    def put(self, sketch: AbstractExpression, edge: DerivationEdge, free: frozenset[str], needed: bool = False) -> None:
        """Keep a derivation, unless its term is no part of the goal (nor `needed` for one) or a
        cancellation lost a label."""
        self.counts["tried"] += 1
        ordered = edge.kind.name not in self.wanted.folds  # opaque folds have the goal's own order
        if ordered and edge.label is not None and self.prune and not free.isdisjoint(self.inside.get(edge.label, ())):
            self.counts["pruned"] += 1
            return
        at = self.index.get(sketch)
        if at is None:
            if self.algebra.free(sketch) != free or self.algebra.is_number(sketch):
                self.counts["lost"] += 1
                return
            if self.prune and not (
                needed or edge.kind.reads is not None or (self._scaled(sketch) and sketch in self.targets)
            ):
                self.counts["pruned"] += 1
                return
            at = self.index[sketch] = len(self.classes)
            self.classes.append(sketch)
            self.free.append(free)
            self.edges.append({})
            self.whole.append(self._is_whole(edge))
        elif self.free[at] != free:
            self.counts["lost"] += 1
            return
        self.edges[at][edge] = None

    def _scaled(self, sketch: AbstractExpression) -> bool:
        """Whether scales occur alone, or with a sum that they scale. Before the sum, or with other
        products of the goal, they would occur in too many terms that are not part of a good
        program."""
        scales, algebra = self.goal.scales, self.algebra
        for factors, _ in algebra.polys[sketch] if scales else ():
            near, all_ = (self._inputs(each) for each in (factors, algebra.flat(factors)[1]))
            own = near & scales.keys()
            if len(own) < len(factors) and any(scales[x].isdisjoint(all_ - near) for x in own):
                return False
        return True

    def _inputs(self, factors: FactorPowers) -> set[str]:
        atoms = [self.algebra.atoms[f // ROOT_LEVELS] for f, _ in factors]
        return {each.name for each in atoms if each.form is FactorForm.INPUT}

    def _logical(self, i: int) -> bool:
        """Whether a class consists of truth values. Sketches do arithmetic on them, but the goal
        does not."""
        node = next(iter(self.edges[i])).kind.example(self.goal)
        return node is not None and node.dtype == "bool"

    def _unary(self, i: int) -> None:
        for kind in UNARY:
            made = kind.derived(self.algebra, self.classes[i]) if kind in self.wanted.kinds else None
            if made is not None:
                self.put(made, DerivationEdge(kind, (i,)), self.free[i])

    def _reduced(self, i: int) -> None:
        for label in sorted(self.free[i] & self.wanted.reduced):
            for kind in reductions.REDUCTIONS:
                made = kind.derived(self.wanted, self.classes[i], label)
                if made is not None:
                    self.put(made, DerivationEdge(kind, (i,), label), self.free[i] - {label})

    def _functions(self, i: int) -> None:
        """Opaque functions of this class and those before it."""
        for (name, exponential), places in self.wanted.functions:
            fits = [[j for j in range(i + 1) if self.algebra.erased.poly(self.classes[j]) in place] for place in places]
            for args in product(*fits):
                if i in args:
                    made = self.algebra.function(name, [self.classes[j] for j in args], exponential)
                    kind = OpaqueKind(name) if name else EXP_KIND
                    self.put(made, DerivationEdge(kind, args), frozenset().union(*[self.free[j] for j in args]))

    def _pair(self, i: int, j: int) -> None:
        wanted, left, right = self.wanted.kinds, self.free[i], self.free[j]
        nested = left <= right or right <= left
        joined = nested or self.goal.outer
        free = left | right
        algebra, p, q = self.algebra, self.classes[i], self.classes[j]
        if self._shared(self._factor(p, q), self._factor(q, p)) and not _cancels(algebra, p, q, 1):
            if joined and MUL in wanted and (not self.whole[i] or self._scaled_behind(i, j)):
                self.put(algebra.mul(p, q), DerivationEdge(MUL, (i, j)), free)
            for label in sorted(left & right & self.wanted.reduced) if not nested and self._multiplied(i, j) else ():
                self.put(algebra.sum(algebra.mul(p, q), label), DerivationEdge(DOT, (i, j), label), free - {label})
        if i == j and not self.wanted.twice:
            return
        summed = joined and self._shared(p, q)
        if summed and ADD_KIND in wanted and not _collide(algebra, p, q, 1):
            self.put(algebra.add(p, q), DerivationEdge(ADD_KIND, (i, j)), free)
        for a, b in ((i, j), (j, i)):
            p, q = self.classes[a], self.classes[b]
            if summed and SUB in wanted and not _collide(algebra, p, q, -1):
                self.put(algebra.sub(p, q), DerivationEdge(SUB, (a, b)), free)
            if joined and DIV in wanted and self._shared(p, algebra.inverse(q)) and not _cancels(algebra, p, q, -1):
                self.put(algebra.div(p, q), DerivationEdge(DIV, (a, b)), free)

    def _multiplied(self, i: int, j: int) -> bool:
        """Whether a contraction of two classes can be generated. For integers, both must be bytes;
        a byte minus its zero point is not a byte."""
        first = [next(iter(self.edges[x])) for x in (i, j)]
        return not self.whole[i] or all(e.kind.reads is not None for e in first)

    def _scaled_behind(self, i: int, j: int) -> bool:
        """Whether both of two classes have a label that is summed, or none: a factor of a sum of
        integers stands behind it, and a product of matrices is a contraction."""
        left, right = self.free[i], self.free[j]
        summed = left & self.wanted.reduced
        return summed == right & self.wanted.reduced and (not summed or left <= right or right <= left)

    def _is_whole(self, edge: DerivationEdge) -> bool:
        """Whether a derivation gives integers, as all have that it is of; a function gives none."""
        node, number = edge.kind.example(self.goal), self.goal.constants.get(edge.kind.reads or "")
        if node is not None:
            return node.dtype == INTEGERS
        return isinstance(number, int) or any(self.whole[a] for a in edge.args)

    def _factor(self, p: AbstractExpression, q: AbstractExpression) -> AbstractExpression:
        """p as it stands in p * q, where a product of two sums stays factored."""
        return self.algebra.factored(p) if min(len(self.algebra.polys[x]) for x in (p, q)) > 1 else p

    def _shared(self, p: AbstractExpression, q: AbstractExpression) -> bool:
        """Whether both are part of one target, as far as this is known before they are combined."""
        return not self.prune or bool(self.targets.places(p) & self.targets.places(q))


def _cancels(algebra: Algebra, p: AbstractExpression, q: AbstractExpression, sign: int) -> bool:
    """Whether a factor of p meets one of q (of 1/q for the sign -1) above and below a fraction
    line."""
    return bool(algebra.above(p) & algebra.below(q, sign) or algebra.below(p) & algebra.above(q, sign))


def _collide(algebra: Algebra, p: AbstractExpression, q: AbstractExpression, sign: int) -> bool:
    """Whether p + sign * q cancels a term."""
    terms = dict(algebra.polys[p])
    return any(terms.get(m, 0) * c * sign < 0 for m, c in algebra.polys[q])


class _Wanted:
    """The parts of the targets: a closure derives only these."""

    def __init__(self, goal: Labelled, targets: Targets) -> None:
        self.algebra = algebra = goal.algebra
        atoms = _atoms(algebra, targets.polys)
        written = {kind for kind in UNARY if kind.as_written and kind.scalar in goal.scalars}
        self.kinds: set[DerivationKind] = written.union(_kinds(algebra, targets.polys))
        self.twice = any(max(c, -c) > 1 for p in targets.polys for _, c in algebra.polys[p])
        self.folds = {atom.name for atom in atoms if atom.form is FactorForm.FOLD}
        self.reduced = frozenset(part for label in goal.reduced for part in goal.split.get(label, (label,)))
        self.means = self._means(goal, atoms)
        places: dict[tuple[tuple[str, bool], int], list[set[int]]] = {}
        for atom in atoms:
            if atom.form is FactorForm.FUNCTION:
                key = (atom.name, atom.exponential), len(atom.polys)
                own = places.setdefault(key, [set() for _ in atom.polys])
                for place, poly in zip(own, atom.polys, strict=True):
                    place.add(algebra.erased.poly(poly))
        self.functions = [(function, own) for (function, _), own in places.items()]

    @staticmethod
    def _means(goal: Labelled, atoms: Iterable[AbstractFactor]) -> dict[str, AbstractExpression]:
        """The labels over which a mean is taken, and the size that each divides by: of a split
        label its grid part divides by all."""
        algebra, found = goal.algebra, {}
        sizes = {atom.name for atom in atoms if atom.form is FactorForm.SHARE}
        for whole, (outer, inner) in goal.split.items():
            if outer in sizes:
                found[outer] = algebra.mul(algebra.share(outer), algebra.share(inner))
            sizes -= {whole, outer, inner}
        return found | {label: algebra.share(label) for label in sizes}


def _atoms(algebra: Algebra, polys: Iterable[AbstractExpression]) -> list[AbstractFactor]:
    factors = dict.fromkeys(f // ROOT_LEVELS for p in polys for m, _ in algebra.polys[p] for f, _ in m)
    return [algebra.atoms[i] for i in factors]


def _kinds(algebra: Algebra, polys: Iterable[AbstractExpression]) -> Iterator[DerivationKind]:
    """The arithmetic that normal forms are made with."""
    for p in polys:
        terms = algebra.polys[p]
        if len(terms) > 1:
            yield ADD_KIND
        if len({c > 0 for _, c in terms}) > 1:
            yield SUB
        for m, c in terms:
            yield from ([ADD_KIND] if max(c, -c) > 1 else [])
            yield from ([MUL] if len(m) > 1 or any(e != 1 for _, e in m) else [])
            for f, e in m:
                atom = algebra.atoms[f // ROOT_LEVELS]
                yield from ([DIV] if e < 0 and atom.form is not FactorForm.SHARE else [])
                yield from ([SQRT_KIND] if f % ROOT_LEVELS else [])
                yield from (
                    [EXP_KIND]
                    if atom.form is FactorForm.EXP or (atom.form is FactorForm.FUNCTION and not atom.name)
                    else []
                )
