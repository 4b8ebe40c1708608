"""Re-rolling of recurrences: one loop (`op_specs/scan.py`) in the place of a chain of steps that
are written out (`chains.py`).

A loop of a known number of steps is equal to its steps by its definition, and the body gives
exactly the model's terms in each step. So only these equalities are proved: that the element of a
sequence is the part that the model reads, and that the values of all steps, one above the other,
are what the model makes of them. Single values are elements by the definition, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import Graph, Node, Tensor, constant, substitute, topological, variable
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.ops import term, traits
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.rewriting.folding import fold_constants
from taso_mirage.search.loops.behind import results_of
from taso_mirage.search.loops.chains import Chain, ModelSteps, Steps, chains, is_larger
from taso_mirage.search.loops.parts import GROUP, SuccessiveParts, known_parts
from taso_mirage.search.loops.rerolling import add_proved
from taso_mirage.search.steps import BODIES, RewriteStep

MOST = 2048
"""The most elements of sequences that are proved to be the parts that steps read."""
CHAINS = 24
"""The most chains that become loops."""


def rerolled_chains(outputs: Sequence[Node], proofs: Proofs) -> Iterator[RewriteStep]:
    """A step for each chain of the model, over the results of the steps before it, for CHAINS at
    most: each is looked for in the whole model."""
    outputs = tuple(outputs)
    for _ in range(CHAINS):
        found = _rerolled(ModelSteps(outputs), proofs)
        if found is None:
            break
        yield found
        outputs = substitute(outputs, found.table)


def _rerolled(model: ModelSteps, proofs: Proofs) -> RewriteStep | None:
    """The step for the chain with the smallest states of those that become a loop."""
    return next((s for chain in chains(model) if (s := _Rerolled(model, chain, proofs).step()) is not None), None)


class _Rerolled:
    """The loop of a chain, and the equalities by which it is one."""

    def __init__(self, model: ModelSteps, chain: Chain, proofs: Proofs) -> None:
        chain.climb()
        self.model, self.chain, self.proofs = model, chain, proofs
        self.obligations: list[RewriteStep] = []
        self.computed = chain.computed()
        self.inside = {node for nodes in self.computed for node in nodes}
        self._leave()

    def step(self) -> RewriteStep | None:
        """The step that puts the loop in the place of the chain; None where an equality is not
        proved."""
        chain = self.chain
        sequences = {leaf: parts for nodes, leaf in chain.sequences.items() if (parts := self.model.parts(nodes))}
        directions = {parts.backward for parts in sequences.values() if not is_weight(parts.source)}
        if len(sequences) < len(chain.sequences) or len(directions) > 1:
            return None
        if chain.count * len(sequences) > MOST or not chain.is_exact():
            return None
        backward = True in directions
        sequences = sequences or self._places()
        sequences |= {leaf: parts for nodes, leaf in chain.sequences.items() if (parts := known_parts(nodes, backward))}
        if not self._reads_parts(sequences):
            return None
        wanted = self._wanted()
        if any(not isinstance(nodes[0].type, Tensor) for nodes in wanted):  # one of several results is read outside
            return None
        loop = self._loop(sequences, [self.computed[nodes] for nodes in wanted], backward)
        results, states = results_of(loop), len(chain.states)
        table = self._over(results[states:], wanted, backward)
        if table is None:
            return None
        lasts = {new[-1]: result for new, result in zip(chain.after, results, strict=False)}
        table = {**{n: r for n, r in lasts.items() if self.model.is_read(n, self.inside)}, **table}
        below = {old: new for old, new in table.items() if old in self.inside}
        news = [new if old in below else substitute((new,), below)[0] for old, new in table.items()]
        olds, called, proved = tuple(table), f"{chain.count} steps of a recurrence", tuple(self.obligations)
        return RewriteStep(
            (BODIES,), olds, tuple(news), obligations=proved, unrolled=(loop,), shown=olds, called=called
        )

    def _places(self) -> dict[Node, SuccessiveParts]:
        """The places of the steps, as the sequence of a loop that reads none, which says how many
        there are."""
        found = known_parts([constant(i) for i in range(self.chain.count)])
        return {} if found is None else {variable("place", found.element): found}

    def _reads_parts(self, sequences: Mapping[Node, SuccessiveParts]) -> bool:
        """Whether the parts that steps read are proved to be elements of sequences, or are
        constants that these are; those of stacked weights are equal by their rows."""
        for nodes, leaf in self.chain.sequences.items():
            parts = sequences[leaf]
            for i, node in enumerate(nodes):
                part = parts.at(i)
                if fold_constants(part) is not node and not parts.rows and not self._prove(node, part, [parts.source]):
                    return False
            if not all(self._prove(*row) for row in parts.rows):
                return False
        return True

    def _loop(self, sequences: Mapping[Node, SuccessiveParts], outputs: Sequence[Node], backward: bool) -> Node:
        chain = self.chain
        elements = {leaf: variable(f"{leaf.attr('name')}e", parts.element) for leaf, parts in sequences.items()}
        views = {leaf: parts.view(elements[leaf]) for leaf, parts in sequences.items()}
        news = [self.computed[nodes] for nodes in chain.after]
        body = Graph(
            (*chain.states.values(), *elements.values(), *chain.others.values()), substitute((*news, *outputs), views)
        )
        firsts = [nodes[0] for nodes in chain.states]
        operands = (*firsts, *(parts.sequence for parts in sequences.values()), *chain.others)
        sizes = {"states": len(firsts), "sequences": len(sequences), "backward": int(backward)}
        return term("scan", *operands, body=body, **sizes)

    def _wanted(self) -> list[Steps]:
        """The terms of steps that others read, unless only the value of a state after the last step
        is read."""
        found = []
        for nodes in self.computed:
            read = [n in self.inside and self.model.is_read(n, self.inside) for n in nodes]
            last = nodes in self.chain.after and not any(read[:-1])
            found += [nodes] if any(read) and not last else []
        return found

    def _leave(self) -> None:
        """Terms that others read of the last step alone leave the loop, which would give them of
        all steps: those over its states, and those larger than their operands."""
        lasts, own = {new[-1] for new in self.chain.after}, {nodes[-1] for nodes in self.computed}
        for nodes in reversed(self.computed):
            read = [self.model.is_read(n, self.inside) for n in nodes]
            if any(read[:-1]) or not read[-1] or nodes[-1] in lasts:
                continue
            below = self.inside.intersection(topological([nodes[-1]], stop=lasts))
            if below <= own or is_larger(nodes[-1], self.inside):
                self.inside -= below if below <= own else {nodes[-1]}

    def _over(self, results: Sequence[Node], wanted: Sequence[Steps], backward: bool) -> dict[Node, Node] | None:
        """The terms that read the steps, over the results of the loop; None where an equality is
        not proved."""
        table = dict[Node, Node]()
        for whole, nodes in zip(results, wanted, strict=True):
            order = nodes[::-1] if backward else nodes
            stack = term("concat", *[term("unsqueeze", n, axes=(0,)) for n in order], axis=0)
            readers = dict.fromkeys(r for n in nodes for r in self.model.readers[n] if r not in self.inside)
            joins = {join: new for join in readers if (new := _joined(join, order, whole)) is not None}
            if not all(self._is_join(join, order, stack) for join in joins):
                return None
            table |= joins
            for i, node in enumerate(order):
                if self.model.is_read(node, self.inside | joins.keys()):
                    table[node] = term("gather", whole, constant(i), axis=0)
        return table

    def _is_join(self, join: Node, nodes: Steps, stack: Node) -> bool:
        """Whether a concatenation of all of some terms, and of others, is proved to be a view of
        these terms one above the other: by groups, and by groups of groups."""
        axis, parts = join.attr("axis"), [_Part(n, n, term("unsqueeze", n, axes=(0,)), n) for n in nodes]
        while len(parts) > 1:
            groups = [parts[i : i + GROUP] for i in range(0, len(parts), GROUP)]
            parts = [each[0] if len(each) == 1 else _part(each, axis) for each in groups]
            for part, each in zip(parts, groups, strict=True):
                views = [one.view for one in each]
                if len(each) > 1 and not self._prove(
                    term("concat", *views, axis=axis), part.view, [one.leaf for one in each]
                ):
                    return False
        (whole,) = parts
        return self._prove(join, _beside(join, nodes, whole.joined), join.args) and self._prove(
            whole.stack, stack, nodes
        )

    def _prove(self, old: Node, new: Node, leaves: Sequence[Node]) -> bool:
        return add_proved(old, new, leaves, self.proofs, self.obligations)


@dataclass(frozen=True, slots=True)
class _Part:
    """Successive terms: joined along an axis, as a view of them one above the other, these, and the
    term for all values of which both are equal."""

    joined: Node
    view: Node
    stack: Node
    leaf: Node


def _part(parts: Sequence[_Part], axis: int) -> _Part:
    """The parts of successive terms as one."""
    stack = term("concat", *[each.stack for each in parts], axis=0)
    return _Part(term("concat", *[each.joined for each in parts], axis=axis), _view(stack, axis), stack, stack)


def _view(stack: Node, axis: int) -> Node:
    """Terms one above the other, as they are joined along an axis of theirs."""
    count, *shape = stack.shape
    order = (*range(1, axis + 1), 0, *range(axis + 1, len(shape) + 1))
    moved = stack if axis == 0 else term("transpose", stack, perm=order)
    shape[axis] = shape[axis] * count
    return term("reshape", moved, shape=tuple(shape))


def _joined(join: Node, nodes: Steps, whole: Node) -> Node | None:
    """The term over `whole`, in which terms are one above the other, that is a concatenation of all
    of them and of others; None where it is none of all in this order."""
    if traits(join).lowering is not Lowering.CONCAT or nodes[0] not in join.args:
        return None
    start = join.args.index(nodes[0])
    end = start + len(nodes)
    if join.args[start:end] != nodes or not {*nodes}.isdisjoint((*join.args[:start], *join.args[end:])):
        return None
    return _beside(join, nodes, _view(whole, join.attr("axis")))


def _beside(join: Node, nodes: Steps, part: Node) -> Node:
    """A concatenation with one term in the place of some of its operands."""
    start = join.args.index(nodes[0])
    rest = (*join.args[:start], *join.args[start + len(nodes) :])
    return (
        term("concat", *join.args[:start], part, *join.args[start + len(nodes) :], axis=join.attr("axis"))
        if rest
        else part
    )
