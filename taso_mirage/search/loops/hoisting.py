"""Hoisting: terms of a loop's body that do not depend on its states are computed for all steps at
once, before the loop.

Each operator f becomes an operator F of whole sequences by an equality that is proved for every
place: f(gather(x, step), ...) == gather(F(x, ...), step). By induction over the steps both loops
are then equal (`onnx_io/content_terms.py`): they have the same first states and the same step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.dims import Dim
from taso_mirage.ir.mugraph import usual_size
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, is_constant, substitute, topological, variable
from taso_mirage.onnx_io.loops import step_leaves
from taso_mirage.operators.interpret import definition
from taso_mirage.operators.ops import term, traits
from taso_mirage.prove.rules.cases import cut_free
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.rewriting.derived_traits import multiplies, selects
from taso_mirage.search.loops.gates import is_split_once, with_joint_products
from taso_mirage.search.steps import RewriteStep

HOISTING = "hoisting out of a loop"
"""The name of the equalities, among those of a step."""
FIRST = ("axis", "axes")
"""The attributes that number axes of an operand, all of which are one further in a sequence."""


@dataclass(frozen=True, slots=True)
class HoistedLoop:
    """A loop in the place of another one, and the equalities of its steps."""

    term: Node
    obligations: tuple[RewriteStep, ...]


def hoisted_loop(loop: Node, proofs: Proofs) -> HoistedLoop | None:
    """The loop without the terms that its states do not change, and with one product for all gates
    of a cell where one split gives all of them; None where there are none that compute anything, or
    none that are proved to be the same."""
    start, joined = with_joint_products(loop, proofs)
    if not is_split_once(start):
        start, joined = loop, []
    made = _Hoisting(start, proofs)
    made.run()
    new = made.loop() or start
    return None if new is loop else HoistedLoop(new, (*joined, *made.obligations))


def whole_of(loop: Node, proofs: Proofs) -> tuple[Node, list[RewriteStep]] | None:
    """The term for the only output of a loop without states, of all steps at once, and its
    equalities; None where none is found."""
    made = _Hoisting(loop, proofs)
    made.run()
    (output,) = made.body.outputs
    return (made.whole[output], made.obligations) if output in made.whole else None


@dataclass
class _Hoisting:
    """The terms of one body: `single` those of a step, over the leaves of `step_leaves`, and
    `whole` those of all steps together."""

    node: Node
    proofs: Proofs
    single: dict[Node, Node] = field(default_factory=dict)
    whole: dict[Node, Node] = field(default_factory=dict)
    fixed: set[Node] = field(default_factory=set)
    obligations: list[RewriteStep] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.body: Graph = self.node.attr("body")
        self.states = int(self.node.attr("states"))
        self.end = self.states + int(self.node.attr("sequences"))
        self.step, leaves = step_leaves(self.node, self.node.args)
        self.single = dict(zip(self.body.inputs, leaves, strict=True))
        self.whole = dict(zip(self.body.inputs[self.states : self.end], self.node.args[self.states :], strict=False))
        self.fixed = {ABSENT, *self.body.inputs[self.end :]}

    @property
    def count(self) -> Dim:
        """The number of steps."""
        return self.node.args[self.states].shape[0]

    def run(self) -> None:
        """Find the terms of all steps, operands first."""
        for node in self.body:
            if node in self.single:
                continue
            args = tuple([self.single.get(a, a) for a in node.args])
            self.single[node] = substitute((node,), dict(zip(node.args, args, strict=True)))[0] if args else node
            if is_constant(node) or (node.args and self.fixed.issuperset(node.args)):
                self.fixed.add(node)
            elif all(a in self.whole or a in self.fixed for a in node.args) and self._is_small(node):
                given = {single: self.whole[a] for a, single in zip(node.args, args, strict=True) if a in self.whole}
                found = self._lifted(self.single[node], given)
                if found is not None:
                    self.whole[node] = found

    def _is_small(self, node: Node) -> bool:
        """Whether a term is a product, or has no more elements than its operands: others are
        computed in every step, which takes less memory."""
        if not isinstance(node.type, Tensor):
            return False
        read = sum(_elements(a) for a in node.args if a in self.whole)
        return multiplies(node.op) or _elements(node) <= read

    def _lifted(self, single: Node, given: Mapping[Node, Node]) -> Node | None:
        """The term of all steps for an operator over elements; `given` has those of its
        operands."""
        at = {a: term("gather", whole, self.step, axis=0) for a, whole in given.items()}
        old = term(single.op, *[at.get(a, a) for a in single.args], **dict(single.attrs))
        leaves = (*given.values(), *(a for a in single.args if a not in given), self.step)
        for whole in forms_of_all(single, given, self.count):
            new = term("gather", whole, self.step, axis=0)
            if new.type == old.type and self._proved(old, new, leaves):
                return whole
        return self._by_definition(single, given)

    def _by_definition(self, single: Node, given: Mapping[Node, Node]) -> Node | None:
        """The term of all steps for an operator that other operators define."""
        inner = definition(single)
        if inner is None or not self._proved(single, inner, single.args):
            return None
        known = dict(given)
        for each in topological([inner], stop={*single.args}):
            if any(a in known for a in each.args):
                found = self._lifted(each, {a: known[a] for a in each.args if a in known})
                if found is None:
                    return None
                known[each] = found
        return known.get(inner)

    def _proved(self, old: Node, new: Node, leaves: Sequence[Node]) -> bool:
        """Whether two terms over some leaves are equal for all values of these."""
        cut = [a for a in dict.fromkeys(leaves) if a is not ABSENT and not is_constant(a)]
        if any(not isinstance(a.type, Tensor) for a in cut):
            return False
        try:
            made = cut_free((old,), (new,), {a: variable(f"x{i}", a.tensor) for i, a in enumerate(cut)})
            proved = bool(self.proofs.judge(made))
        except TasoMirageError:
            return False
        self.obligations += [RewriteStep((HOISTING,), (old,), (new,))] if proved else []
        return proved

    # ------------------------------------------------------------ the new loop

    def loop(self) -> Node | None:
        """The loop over the terms of all steps."""
        read = self._read()
        moved = [n for n in read if n in self.whole and n.args]
        inner = topological(moved, stop=self.body.inputs)
        fixed = [n for n in read if n in self.fixed and n.args]
        if not any(not selects(n.op) and not is_constant(n) for n in (*inner, *fixed)):
            return None
        sequences = [n for n in (*self.body.inputs[self.states : self.end], *moved) if n in read]
        sequences = sequences or [self.body.inputs[self.states]]
        others = [n for n in (*self.body.inputs[self.end :], *fixed) if n in read]
        inputs = (*self.body.inputs[: self.states], *sequences, *others)
        leaves = {n: variable(f"x{i}", n.tensor) for i, n in enumerate(inputs)}
        step = Graph(tuple(leaves.values()), substitute(self.body.outputs, leaves))
        operands = (
            *self.node.args[: self.states],
            *(self.whole[n] for n in sequences),
            *(self.single[n] for n in others),
        )
        attrs = {**dict(self.node.attrs), "body": step, "sequences": len(sequences)}
        return term(self.node.op, *operands, **attrs)

    def _read(self) -> list[Node]:
        """The terms outside of the new loop that its steps, or its outputs, read."""
        rest, read, waiting = set[Node](), set[Node](), list(self.body.outputs)
        while waiting:
            node = waiting.pop()
            if node in self.whole or node in self.fixed or node in self.body.inputs:
                read.add(node)
            elif node not in rest:
                rest.add(node)
                waiting += node.args
        return [n for n in topological(self.body.outputs) if n in read and n is not ABSENT and not is_constant(n)]


def _elements(node: Node) -> int:
    return prod(usual_size(n) for n in node.shape)


def forms_of_all(single: Node, given: Mapping[Node, Node], count: Dim) -> Iterator[Node]:
    """Terms of whole sequences that an operator may be: with its axes one further, for one of
    elements with the operands of lower rank aligned, and for one of samples with more of them."""
    rank = max(len(a.shape) for a in single.args if isinstance(a.type, Tensor) and a is not ABSENT)
    attrs = {key: _further(key, value, count) for key, value in single.attrs}
    plain = [given.get(a, a) for a in single.args]
    aligned = [_aligned(given[a], rank - len(a.shape)) if a in given else a for a in single.args]
    for args in (plain, aligned) if aligned != plain else (plain,):
        try:
            yield term(single.op, *args, **attrs)
        except TasoMirageError:
            continue
    yield from _with_samples(single, given, count)


def _with_samples(single: Node, given: Mapping[Node, Node], count: Dim) -> Iterator[Node]:
    """An operator on samples, with those of all steps as samples."""
    samples, batch = single.args[0], traits(single).batch
    if batch is None or given.keys() != {samples} or not batch(single):
        return
    try:
        data = term("reshape", given[samples], shape=(count * samples.shape[0], *samples.shape[1:]))
        made = term(single.op, data, *single.args[1:], **dict(single.attrs))
        yield term("reshape", made, shape=(count, *single.shape))
    except TasoMirageError:
        return


def _aligned(whole: Node, missing: int) -> Node:
    return term("unsqueeze", whole, axes=tuple(range(1, 1 + missing))) if missing > 0 else whole


def _further(key: str, value: Any, count: Dim) -> Any:
    """An attribute of an operator for one more axis before all others."""
    if key in FIRST and isinstance(value, int):
        return value + 1 if value >= 0 else value
    if key in FIRST and isinstance(value, Sequence):
        return tuple([n + 1 if n >= 0 else n for n in value])
    if key == "perm" and isinstance(value, Sequence):
        return (0, *[n + 1 for n in value])
    return (count, *value) if key == "shape" and isinstance(value, tuple) else value
