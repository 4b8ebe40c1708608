"""A goal of ordinary operators over named axes: a label for every axis class, and the sketch of
every result.

There is no list of operators: an operator that is defined by others is replaced by them; an
elementwise function of one tensor is an atom (unless it is exp, sqrt or arithmetic with a
constant); everything else is derived from the definition by the meaning `LabelsMeaning`. Inputs,
weights and constants are all inputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod

from taso_mirage.errors import TasoMirageError, Unsupported
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, is_constant, is_stored, topological
from taso_mirage.meanings.base import Scalar
from taso_mirage.mugraph.abstract import Algebra
from taso_mirage.mugraph.atoms import AbstractExpression
from taso_mirage.mugraph.axis_classes import AxisLabels, Unifier
from taso_mirage.mugraph.collapsed import LabelRuns, collapsed_runs
from taso_mirage.mugraph.derivations.arithmetic import ADD_KIND, MUL, SUB, Elementwise
from taso_mirage.mugraph.derivations.one_pass_variance import cancelling, squared_mean, variance_and_mean
from taso_mirage.mugraph.derivations.reductions import DOT, SUM_KIND, FoldKind
from taso_mirage.mugraph.derivations.scalar_terms import ScalarTerm, TermForm, below, seen
from taso_mirage.mugraph.goal import BYTES, Labelled, LabelledTerm, LabelNames, is_packed, stored_leaf
from taso_mirage.mugraph.integer_operands import of_integers_or_floats
from taso_mirage.mugraph.label_trace import LabelledValue, LabelsMeaning
from taso_mirage.mugraph.opaque_functions import function_name, is_scalar, known_in_the_field, tensors
from taso_mirage.mugraph.roles import Role, inlined, role
from taso_mirage.operators import ops
from taso_mirage.operators.interpret import interpret_term

__all__ = ["Labelled", "label"]

OPAQUE = (Role.FUNCTION, Role.POINTWISE)
"""Operators that are atoms of their own."""
SHARED = (ADD_KIND, SUB)
"""Operators whose result is one value, where it is used in several places."""


def label(graph: Graph, split: str | None = None, joined: LabelRuns = ()) -> Labelled:
    """Find the labels of a graph whose sizes are fixed; `split` names a reduced label that the grid
    is to cut as well, `joined` are runs of labels (`Labelled.runs`) that are one, the first.

    A sum that is used in several places is one value, which products do not distribute over.

    Raises Unsupported, which names the term, where an operator moves elements between axes or a
    result does not depend on its axes.
    """
    outputs = of_integers_or_floats(inlined(graph.outputs))
    for ours, wanted in zip(outputs, graph.outputs, strict=True):
        if ours.type != wanted.type:
            raise Unsupported(f"the term {wanted.op} {wanted.type} is {ours.type} as it is taken apart")
    unifier = Unifier()
    values = _values(outputs, LabelsMeaning(unifier))
    _refine(values, unifier)
    return _Reading(graph, unifier, values, split, joined).labelled(outputs)


# ---------------------------------------------------------------- values


def _values(outputs: Sequence[Node], meaning: LabelsMeaning) -> dict[Node, LabelledValue]:
    values: dict[Node, LabelledValue] = {}
    packed = dict.fromkeys(n for n in topological(outputs) if is_packed(n))
    for node in (*packed, *topological(outputs, stop=packed)):
        if node is ABSENT:
            continue
        try:
            values[node] = _value(node, values, meaning)
        except TasoMirageError as error:
            raise Unsupported(f"the term {node.op} {node.type} has no labels: {error}") from None
    return values


def _value(node: Node, values: Mapping[Node, LabelledValue], meaning: LabelsMeaning) -> LabelledValue:
    if not isinstance(node.type, Tensor):
        raise Unsupported("it is no single tensor")
    if is_scalar(node):
        return meaning.constant(node.attr("value"))
    if not node.args or is_packed(node):
        return meaning.leaf(node)
    if role(node) in OPAQUE:
        aligned, axes = meaning.broadcast([values[a] for a in tensors(node)])
        term = ScalarTerm(TermForm.FUNCTION, tuple([x.term for x in aligned]), node=node)
        return meaning.made(term, axes, node.dtype)
    result: LabelledValue = interpret_term(node, meaning, [None if a is ABSENT else values[a] for a in node.args])
    return result


def _refine(values: Mapping[Node, LabelledValue], unifier: Unifier) -> None:
    """A label and the label that it is renamed to have the same parts."""
    pairs = [pair for v in values.values() for t in below(v.term) for pair in t.pairs]
    before = -1
    while before != len(unifier.sizes):
        before = len(unifier.sizes)
        for old, new in pairs:
            unifier.refine((old,), (new,))


# ---------------------------------------------------------------- terms to sketches


class _Reading:
    """Names for the labels, views for the inputs, and the sketch of every term."""

    def __init__(
        self, graph: Graph, unifier: Unifier, values: Mapping[Node, LabelledValue], split: str | None, joined: LabelRuns
    ) -> None:
        self.graph, self.unifier, self.values, self.split = graph, unifier, values, split
        self.algebra = Algebra()
        self.names = _named(values, unifier)
        self.joined = {run[0]: run for run in joined}
        self.inner = frozenset(name for run in joined for name in run[1:])
        single = {name: unifier.sizes[i] for i, name in self.names.items()}
        runs = {name: self.joined.get(name, (name,)) for name in single if name not in self.inner}
        self.sizes = {name: prod(single[x] for x in run) for name, run in runs.items()}
        self.terms = list({id(t): t for v in values.values() for t in below(v.term)}.values())
        self.inputs: dict[str, LabelNames] = {}
        self.leaves: dict[str, Node] = {}
        self.views: dict[str, AbstractExpression] = {}
        self.constants: dict[str, float] = {}
        self.functions: dict[str, Node] = {}
        self.scalars: set[Scalar] = set()
        self.outer = False
        self._exponential: dict[str, bool] = {}
        self._shared: frozenset[int] = frozenset()
        self._memo: dict[tuple[int, tuple[tuple[int, int], ...]], AbstractExpression] = {}

    def labelled(self, outputs: Sequence[Node]) -> Labelled:
        reduced = self._reduced()
        if self.split is not None and self.split not in reduced:
            raise Unsupported(
                f"no reduction over the label {self.split}; there are {', '.join(sorted(reduced)) or 'none'}"
            )
        wanted = [self.values[output] for output in outputs]
        self._shared = _shared([value.term for value in wanted])
        for value in wanted:
            self.sketch(value.term, ())
        self._memo.clear()  # it is now known which sums are one value, so every term that equals one becomes this value
        sketches = tuple([self.sketch(value.term, ()) for value in wanted])
        for output, value, sketch in zip(outputs, wanted, sketches, strict=True):
            axes, read = self.axes(value.axes), self.algebra.free(sketch)
            if read != {each for axis in axes for each in axis}:
                raise Unsupported(
                    f"the result {output.op} {output.type} with the axes {axes} is a function of {sorted(read)} alone"
                )
        inputs, leaves = self._views()
        known = tuple(
            [
                LabelledTerm(n, self.axes(v.axes), self.sketch(v.term, ()))
                for n, v in self.values.items()
                if self._read(v)
            ]
        )
        split = {} if self.split is None else {self.split: self.parts(self.split)}
        return Labelled(
            self.graph,
            inputs,
            leaves,
            tuple([self.joined_axes(value.axes) for value in wanted]),
            self.sizes,
            self.constants,
            self.functions,
            split,
            reduced,
            self.algebra,
            {name: self.views[name] for name in (*inputs, *self.constants)},
            sketches,
            known,
            frozenset(self.scalars),
            self.outer,
            self._scales(wanted),
            () if self.joined else collapsed_runs(self.values, self.terms, self.unifier, self.names),
            tuple([self.axes(value.axes) for value in wanted]),
        )

    def _scales(self, outputs: Sequence[LabelledValue]) -> dict[str, frozenset[str]]:
        """The value of `Labelled.scales`."""
        found: dict[str, frozenset[str]] = {}
        terms = {id(t): t for value in outputs for t in below(value.term)}.values()
        if sum(t.kind is DOT for t in terms) < 2:
            return found
        for term in terms:
            pair = [seen(arg) for arg in term.args] if term.kind is MUL else []
            for x, scale in (pair, pair[::-1]) if pair else ():
                if x.node is not None and is_stored(x.node.dtype) and self._is_summed(x.node):
                    name = self._factor_name(scale)
                    found[name] = found.get(name, frozenset()) | {self._leaf_name(x.node)}
        found.pop("", None)
        return found

    def _factor_name(self, term: ScalarTerm) -> str:
        """The name of a leaf or a number; empty for a computed term."""
        if term.kind is TermForm.CONSTANT:
            return repr(term.value)
        return self._leaf_name(term.node) if term.kind is TermForm.LEAF and term.node is not None else ""

    def _is_summed(self, leaf: Node) -> bool:
        """Whether there is a sum over a label of a leaf, split or not."""
        labels = (i for axis in self.values[leaf].axes for i in self.unifier.axis(axis))
        return not self._reduced().isdisjoint(self.names[i] for i in labels)

    def _views(self) -> tuple[dict[str, LabelNames], dict[str, Node]]:
        """The views in the order of the graph's inputs, then as they were met."""
        order = {node: i for i, node in enumerate(self.graph.inputs)}
        names = sorted(self.inputs, key=lambda name: order.get(stored_leaf(self.leaves[name]), len(order)))
        return {name: self.inputs[name] for name in names}, {name: self.leaves[name] for name in names}

    def _read(self, value: LabelledValue) -> bool:
        """Whether a term below the outputs is one tensor over its own labels and not a count."""
        return value.term.kind not in (TermForm.SCALAR, TermForm.CONSTANT)

    def _reduced(self) -> frozenset[str]:
        found = {self.names[i] for t in self.terms for i in self.unifier.axis(t.labels)}
        return frozenset(found - self.inner)

    def parts(self, name: str) -> tuple[str, str]:
        return f"{name}g", f"{name}i"

    def labels(self, axis: AxisLabels) -> tuple[str, ...]:
        """The names of an axis's labels, a split one as its two parts; of a run that is joined the
        first alone."""
        found: list[str] = []
        for name in (self.names[i] for i in self.unifier.axis(axis)):
            if name not in self.inner:
                found += self.parts(name) if name == self.split else (name,)
        return tuple(found)

    def axes(self, axes: Iterable[AxisLabels]) -> LabelNames:
        return tuple([self.labels(axis) for axis in axes])

    def joined_axes(self, axes: Iterable[AxisLabels]) -> LabelNames:
        """The labels of the tensor in which dims of joined labels are one."""
        named = [(self.labels(axis), self.unifier.axis(axis)) for axis in axes]
        return tuple([labels for labels, own in named if labels or not own])

    def sketch(self, term: ScalarTerm, renaming: tuple[tuple[int, int], ...]) -> AbstractExpression:
        """The sketch of a term whose labels are renamed; recursive, for goals are small."""
        key = id(term), renaming
        if key not in self._memo:
            found = self._sketch(term, renaming)
            self._memo[key] = self.algebra.whole(found) if id(term) in self._shared else found
        return self._memo[key]

    def _sketch(self, term: ScalarTerm, renaming: tuple[tuple[int, int], ...]) -> AbstractExpression:
        if term.kind is TermForm.RENAME:
            return self.sketch(term.args[0], self._composed(term, renaming))
        if term.kind is TermForm.LEAF:
            return self._input(term, dict(renaming))
        if term.kind is TermForm.CONSTANT:
            return self._constant(term.value)
        bound = self.unifier.axis(term.labels)
        renaming = tuple([(old, new) for old, new in renaming if old not in bound])
        if any(new in bound for _, new in renaming):
            raise Unsupported("a fold over an axis under which its operand is seen as well")
        if isinstance(term.kind, Elementwise) and (unit := _unit(term.kind, term)) is not None:
            return self._scaled(term.kind, unit, term, renaming)
        args = [self.sketch(arg, renaming) for arg in term.args]
        if term.kind is TermForm.FUNCTION and term.node is not None:
            return self._function(term.node, args)
        if isinstance(term.kind, FoldKind) or term.kind is DOT:
            return self._fold(term, args)
        if not isinstance(term.kind, Elementwise):
            raise Unsupported("a number computed from sizes")
        self.scalars.add(term.kind.scalar)
        self.outer |= self._outer(args)
        return self._centred(term, term.kind.sketch(self.algebra, *args), renaming)

    def _centred(
        self, term: ScalarTerm, found: AbstractExpression, renaming: tuple[tuple[int, int], ...]
    ) -> AbstractExpression:
        """The mean of squares less the square of the mean, as the mean of the squares of the
        differences."""
        mean = squared_mean(term)
        if mean is None:
            return found
        of, labels = self.sketch(mean.args[0], renaming), self.labels(mean.labels)
        if found != cancelling(self.algebra, of, labels):
            return found
        return variance_and_mean(self.algebra, of, labels)[0]

    def _scaled(
        self, kind: Elementwise, unit: int, term: ScalarTerm, renaming: tuple[tuple[int, int], ...]
    ) -> AbstractExpression:
        """A product or sum with a unit needs no constant: x, -x or 1/x."""
        other = self.sketch(term.args[1 - unit], renaming)
        for each in kind.rest(unit, term.args[unit].value):
            self.scalars.add(each.scalar)
            other = each.sketch(self.algebra, other)
        return other

    def _composed(self, term: ScalarTerm, after: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        """A renaming of a term, and then that of the term that it is part of."""
        outer = dict(after)
        own = {x: y for old, new in term.pairs for x, y in zip(*map(self.unifier.axis, ((old,), (new,))), strict=True)}
        total = {old: outer.get(new, new) for old, new in own.items()} | {o: n for o, n in after if o not in own}
        return tuple(sorted((old, new) for old, new in total.items() if old != new))

    def _outer(self, args: Sequence[AbstractExpression]) -> bool:
        free = [self.algebra.free(p) for p in args]
        return len(free) == 2 and not (free[0] <= free[1] or free[1] <= free[0])

    def _input(self, term: ScalarTerm, renaming: Mapping[int, int]) -> AbstractExpression:
        axes = tuple([tuple([renaming.get(i, i) for i in self.unifier.axis(axis)]) for axis in term.axes])
        named = self.joined_axes(axes)
        assert term.node is not None
        leaf = name = self._leaf_name(term.node)
        while name in self.inputs and self.inputs[name] != named:
            name += "'"
        self.inputs[name], self.leaves[name] = named, self._joined_leaf(term.node, axes)
        self.views[name] = self.algebra.input(leaf, [each for axis in named for each in axis])
        return self.views[name]

    def _joined_leaf(self, leaf: Node, axes: Iterable[AxisLabels]) -> Node:
        """A leaf with one dim for labels that are joined."""
        own = [self.unifier.axis(axis) for axis in axes]
        kept = [ids for ids in own if not ids or any(self.names[i] not in self.inner for i in ids)]
        shape = tuple([prod(self.sizes[self.names[i]] for i in ids if self.names[i] not in self.inner) for ids in kept])
        return leaf if shape == leaf.shape else ops.term("reshape", leaf, shape=shape)

    def _leaf_name(self, leaf: Node) -> str:
        leaf = stored_leaf(leaf)
        if not is_constant(leaf):
            return str(leaf.attr("name"))
        constants = [n for n in map(_stored, self.values) if is_constant(n)]
        return f"constant{constants.index(leaf)}"

    def _constant(self, value: float) -> AbstractExpression:
        name = repr(value)
        self.constants[name] = value
        self.views[name] = self.algebra.input(name)
        return self.views[name]

    def _function(self, node: Node, args: Sequence[AbstractExpression]) -> AbstractExpression:
        name = function_name(node)
        self.functions.setdefault(name, node)
        if name not in self._exponential:
            self._exponential[name] = not known_in_the_field(node)
        return self.algebra.function(name, args, self._exponential[name])

    def _fold(self, term: ScalarTerm, args: list[AbstractExpression]) -> AbstractExpression:
        algebra, labels = self.algebra, self.labels(term.labels)
        kind = term.kind if isinstance(term.kind, FoldKind) else SUM_KIND
        made = algebra.mul(*args) if term.kind is DOT else args[0]
        for each in reversed(labels):
            if each not in algebra.free(made):
                raise Unsupported(f"a fold over the label {each}, on which its operand does not depend")
            made = kind.sketch(algebra, made, each)
        for each in labels:
            made = kind.scaled(algebra, made, each)
        return made


def _stored(node: Node) -> Node:
    return stored_leaf(node) if is_packed(node) else node


def _unit(kind: Elementwise, term: ScalarTerm) -> int | None:
    """The operand of an elementwise operator that is the constant 1, -1 (of products) or 0 (of
    sums)."""
    args = enumerate(term.args)
    return next((i for i, arg in args if arg.kind is TermForm.CONSTANT and arg.value in kind.units), None)


def _shared(outputs: Sequence[ScalarTerm]) -> frozenset[int]:
    """The identities of the sums and differences that are one value: those that are used in several
    places, and differences of integers less their zero, which cost nothing more where they are
    loaded."""
    terms = {id(t): t for output in outputs for t in below(output)}
    centred = {i for i, t in terms.items() if t.kind is SUB and _is_integer(seen(t.args[0]))}
    uses = Counter(id(seen(arg)) for t in terms.values() if t.kind is not TermForm.RENAME for arg in t.args)
    uses.update(id(seen(output)) for output in outputs)
    return frozenset(i for i, n in uses.items() if n > 1 and terms[i].kind in SHARED) | centred


def _is_integer(term: ScalarTerm) -> bool:
    return term.node is not None and term.kind is TermForm.LEAF and term.node.dtype in BYTES


def _named(values: Mapping[Node, LabelledValue], unifier: Unifier) -> dict[int, str]:
    """A letter for each label, in the order in which the inputs have them; behind z come a1, b1,
    ..."""
    leaves = (axis for v in values.values() if v.term.kind is TermForm.LEAF for axis in v.axes)
    others = (axis for v in values.values() for t in below(v.term) for axis in (t.labels, *([n for _, n in t.pairs],)))
    everything = (axis for v in values.values() for axis in v.axes)
    order = dict.fromkeys(i for axis in (*leaves, *everything, *others) for i in unifier.axis(axis))
    return dict(zip(order, _letters(), strict=False))


def _letters() -> Iterator[str]:
    round_ = 0
    while True:
        for letter in "abcdefghijklmnopqrstuvwxyz":
            yield letter + (str(round_) if round_ else "")
        round_ += 1
