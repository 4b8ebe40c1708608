"""The gates of a cell: products of one term of a step by several matrices become one product, by
the matrices beside each other.

A cell that is written by hand has a product for each of its gates, and so has the definition of an
LSTM. One product of all gates starts less often and is shared by two threads. Each product is
proved to be its columns of the one product, for all values of the term and of the matrices; so both
loops have the same step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from taso_mirage.ir.terms import (
    ABSENT,
    Graph,
    Node,
    Tensor,
    is_constant,
    is_part,
    substitute,
    topological,
    variable,
    with_args,
)
from taso_mirage.onnx_io.loops import step_leaves
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.interpret import definition
from taso_mirage.operators.ops import term, traits
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.rewriting.derived_traits import multiplies
from taso_mirage.search.loops.inductions import is_equal
from taso_mirage.search.steps import RewriteStep

JOINING = "the gates of a cell as one product"
"""The name of the equalities, among those of a step."""


@dataclass(frozen=True, slots=True)
class _Gate:
    """A term of a body, its definition, and the product by a matrix in it, each of which may be the
    term; `vector`: what the term adds to the product, if it does nothing else."""

    node: Node
    inner: Node
    product: Node
    vector: Node | None

    @property
    def operands(self) -> tuple[Node, ...]:
        """The operands of the term, with those of the product in the place of the product."""
        args = [a.args if a is self.product else (a,) for a in self.node.args]
        return tuple([a for some in args for a in some])


def with_joint_products(loop: Node, proofs: Proofs) -> tuple[Node, list[RewriteStep]]:
    """A loop with one product in the place of several, of one term that its states change by
    weights, and the equalities of its steps; the loop itself where there are none such."""
    found = _Joining(loop, proofs)
    table = found.table()
    return (found.loop(table) if table else loop), found.obligations


def is_split_once(loop: Node) -> bool:
    """Whether at most one term of a step is taken apart. The columns of a GRU's products of the
    state, of the elements, and of their sums meet apart: with joint products its step has more
    operators than before."""
    return sum(traits(n).parts is not None for n in loop.attr("body")) <= 1


class _Joining:
    def __init__(self, loop: Node, proofs: Proofs) -> None:
        self.node, self.proofs = loop, proofs
        self.body: Graph = loop.attr("body")
        self.states = loop.attr("states")
        self.first = self.states + loop.attr("sequences")
        self.single = dict(zip(self.body.inputs, step_leaves(loop, loop.args)[1], strict=True))
        self.joined = False
        self.obligations: list[RewriteStep] = []

    def table(self) -> dict[Node, Node]:
        """The terms of the body, and those in their places, where they differ."""
        gates = {gate.node: (some, i) for some in self._gates() for i, gate in enumerate(some)}
        done = dict[Node, Node]()
        for node in self.body:
            now = with_args(node, tuple([done.get(a, a) for a in node.args]))
            now = self._joined(now, *gates[node], done) if node in gates else self._summed(now)
            done |= {node: now} if now is not node else {}
        return done if self.joined else {}

    def _gates(self) -> list[list[_Gate]]:
        """The products of one term that differs between steps. Those of an element are gates where
        only terms over states read them: others leave the loop themselves."""
        readers, groups = defaultdict[Node, list[Node]](list), defaultdict[Node, list[_Gate]](list)
        for node in self.body:
            for arg in node.args:
                readers[arg].append(node)
        states, moving = self._below(self.body.inputs[: self.states]), self._below(self.body.inputs[: self.first])
        found = [gate for node in self.body if node in moving and (gate := self._gate(node)) is not None]
        inner = {g.product for g in found if g.node is not g.product and readers[g.product] == [g.node]}
        for gate in found:
            late = gate.node in states or (readers[gate.node] and states.issuperset(readers[gate.node]))
            if late and gate.node not in inner and gate.product.args[0] in moving:
                groups[gate.product.args[0]].append(gate)
        return [some for some in groups.values() if len(some) > 1]

    def _below(self, leaves: Sequence[Node]) -> set[Node]:
        """The terms of the body over some of its inputs, and these."""
        found = set(leaves)
        for node in self.body:
            found |= {node} if not found.isdisjoint(node.args) else set()
        return found

    def _gate(self, node: Node) -> _Gate | None:
        """The product in a term by a weight, which the term may add a vector to."""
        sums = traits(node).sums
        if not (multiplies(node.op) or sums) or not isinstance(node.type, Tensor):
            return None
        inner = node if sums or _is_product(node) else definition(node)
        if inner is None:
            return None
        products = [n for n in (node.args if sums else topological([inner], stop={*node.args})) if _is_product(n)]
        if len(products) != 1:
            return None
        (product,) = products
        added = [a for a in inner.args if a is not product] if traits(inner).sums and product in inner.args else []
        vector = added[0] if len(added) == 1 and added[0].shape == product.shape[-1:] else None
        known = [product.args[1], *([] if vector is None else [vector])]
        if (sums and vector is None) or not all(is_weight(self._whole(a)) for a in known):
            return None
        return _Gate(node, inner, product, vector)

    def _whole(self, node: Node) -> Node:
        """A term of the body over the operands of the loop."""
        return substitute((node,), self.single)[0]

    def _joined(self, now: Node, some: Sequence[_Gate], place: int, done: Mapping[Node, Node]) -> Node:
        """The columns of the joint product of some gates, for the one at a place; the term as it is
        now if that is not proved."""
        gate, given = some[place], some[0].product.args[0]
        whole = term("matmul", done.get(given, given), self._beside("matrix", [g.product.args[1] for g in some]))
        vectors = [g.vector for g in some if g.vector is not None]
        sums = len(vectors) == len(some)
        whole = term("add", whole, self._beside("vector", vectors)) if sums else whole
        sizes = tuple([g.product.shape[-1] for g in some])
        columns = term("item", term("split", whole, axis=len(whole.shape) - 1, split=sizes), index=place)
        (new,) = substitute((gate.inner,), {**done, gate.inner if sums else gate.product: columns})
        if not self._proved(now, new, [done.get(a, a) for each in some for a in each.operands]):
            return now
        self.joined = True
        return new

    def _summed(self, now: Node) -> Node:
        """The columns of a sum, in the place of a sum of columns of two terms; other terms as they
        are."""
        if not traits(now).sums or len(now.args) != 2 or not all(is_part(a) for a in now.args):
            return now
        left, right = (a.args[0] for a in now.args)
        alike = traits(left).parts is not None and (left.op, left.attrs) == (right.op, right.attrs)
        if not alike or left.args[0].type != right.args[0].type or len({a.attr("index") for a in now.args}) > 1:
            return now
        given = left.args[0], right.args[0]
        parts = term(left.op, term(now.op, *given), **dict(left.attrs))
        new = term("item", parts, index=now.args[0].attr("index"))
        return new if self._proved(now, new, given) else now

    def _beside(self, called: str, parts: Sequence[Node]) -> Node:
        """A variable of the body for terms beside each other."""
        whole = term("concat", *parts, axis=len(parts[0].shape) - 1)
        leaf = variable(f"{called} of {len(parts)} gates, {parts[0]}", whole.tensor)
        self.single[leaf] = self._whole(whole)
        return leaf

    def _proved(self, old: Node, new: Node, operands: Sequence[Node]) -> bool:
        """Whether two terms of a step are equal for all values of some operands."""
        one, two = self._whole(old), self._whole(new)
        over = [a for a in dict.fromkeys(map(self._whole, operands)) if a is not ABSENT and not is_constant(a)]
        proved = one.type == two.type and is_equal(one, two, over, self.proofs)
        self.obligations += [RewriteStep((JOINING,), (one,), (two,), over=frozenset(over))] if proved else []
        return proved

    def loop(self, table: dict[Node, Node]) -> Node:
        """The loop with these terms, which reads the matrices beside each other."""
        outputs = [table.get(o, o) for o in self.body.outputs]
        read = set(topological(outputs))
        others = [x for x in self.single if x in read][self.first :]
        inputs = (*self.body.inputs[: self.first], *others)
        leaves = {x: variable(f"x{i}", x.tensor) for i, x in enumerate(inputs)}
        step = Graph(tuple(leaves.values()), substitute(outputs, leaves))
        operands = (*self.node.args[: self.first], *[self.single[x] for x in others])
        return term(self.node.op, *operands, **{**dict(self.node.attrs), "body": step})


def _is_product(node: Node) -> bool:
    """Whether a term is a product of a term with a matrix."""
    if len(node.args) != 2 or not multiplies(node.op) or any(not isinstance(a.type, Tensor) for a in node.args):
        return False
    left, right = node.args
    fits = len(right.shape) == 2 and len(left.shape) >= 2 and left.shape[-1] == right.shape[0]
    return fits and node is term("matmul", left, right)
