"""Recurrences whose steps are written out: a chain of equal steps, each over the results of the one
before, and the body that they have in common.

The exporter of a Python loop writes every iteration. In such a chain some operator, the *anchor*,
is applied once in every step, to results of the step before. All steps are compared at once, from
each anchor down to the one before: terms that are alike in all steps are terms of the body, terms
of the step before are a state, equal terms are operands that every step reads, and successive parts
of one term are a sequence, as are constants and small weights.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from taso_mirage.ir.terms import ABSENT, Node, Tensor, is_constant, substitute, topological, variable
from taso_mirage.operators.expressions import is_weight
from taso_mirage.search.loops.behind import elements_of
from taso_mirage.search.loops.parts import SuccessiveParts, known_parts, successive_parts

FEWEST = 8
"""The fewest steps of a chain."""
DEEPEST = 128
"""The most terms one above the other in a step."""
ANCHORS = 40
"""The most operators that are tried as anchors, for each depth."""
DEPTH = 12
"""The levels of terms below them by which anchors differ from other operators."""
STATES = 8
"""The most states."""
CANDIDATES = 32
"""The most terms of the step before, of which those that a step computes anew are its states."""
WEIGHTS = 4
"""The most elements of weights that each step has of its own, relative to those of the states: a
loop copies them in each step."""
Steps = tuple[Node, ...]
"""A term of each step."""


class ModelSteps:
    """The terms of a model, what reads each of them, and which terms are the parts of another."""

    def __init__(self, outputs: Sequence[Node]) -> None:
        self.outputs, self.order = set(outputs), topological(outputs)
        self.readers = defaultdict[Node, list[Node]](list)
        self._parts = dict[Steps, SuccessiveParts | None]()
        for node in self.order:
            for arg in dict.fromkeys(node.args):
                self.readers[arg].append(node)

    def parts(self, nodes: Steps) -> SuccessiveParts | None:
        """The term of which others are successive parts: of constants and weights, all of them."""
        if nodes not in self._parts:
            self._parts[nodes] = known_parts(nodes) or successive_parts(nodes)
        return self._parts[nodes]

    def is_read(self, node: Node, inside: Set[Node]) -> bool:
        """Whether a term is a result of the model, or is read by others than those `inside`."""
        return node in self.outputs or any(reader not in inside for reader in self.readers[node])

    def anchors(self) -> Iterator[tuple[Mapping[Node, int], Steps]]:
        """The operators of which each application depends on all before it, with the number of
        these at or below each term.

        Applications of one operator differ by the terms below them, to some depth: of cells of the
        same sizes, for example, by their weights.
        """
        kinds: Mapping[Node, object] = {node: kind_of(node) if node.args else node.type for node in self.order}
        tried = set[Steps]()
        for _ in range(DEPTH):
            alike = defaultdict[object, list[Node]](list)
            for node in self.order:
                if node.args and isinstance(node.type, Tensor) and not is_weight(node):
                    alike[kinds[node]].append(node)
            often = sorted((nodes for nodes in alike.values() if len(nodes) >= FEWEST), key=len, reverse=True)
            for nodes in dict.fromkeys(map(tuple, often[:ANCHORS])):
                if nodes not in tried and (levels := self._levels(nodes)) is not None:
                    yield levels, nodes
                tried.add(nodes)
            kinds = self._with_operands(kinds)

    def _levels(self, anchors: Steps) -> dict[Node, int] | None:
        """For each term the number of anchors at or below it; None where some anchor does not
        depend on all before it."""
        levels, own = dict[Node, int](), {node: i for i, node in enumerate(anchors, 1)}
        for node in self.order:
            level = max((levels[a] for a in node.args), default=0) + (node in own)
            if own.get(node, level) != level:
                return None
            levels[node] = level
        return levels

    def _with_operands(self, kinds: Mapping[Node, object]) -> dict[Node, object]:
        """The kinds of terms that are also those of their operands, as numbers."""
        numbers = dict[object, int]()
        wide = {n: (kinds[n], *[kinds[a] for a in n.args if not is_weight(n)]) for n in self.order}
        return {n: numbers.setdefault(each, len(numbers)) for n, each in wide.items()}


def kind_of(node: Node) -> tuple[object, ...]:
    """The facts that the applications of an operator in all steps share: their weights, too."""
    return node.op, node.attrs, node.type, tuple([a if is_weight(a) else None for a in node.args])


@dataclass
class Chain:
    """The steps between successive anchors, the first of which has a level of 1, after the steps
    `before` it that are like them.

    `kept`: the terms of the step before that may be states; all, if None. Other terms of that step
    are computed again, from these.
    `states`, `sequences` and `others` have the variables of the body for the terms that it reads:
    the values of a state before each step, the successive parts of a term, and one term in all
    steps. `whole` has the body's term for terms of all steps, `after` those of each state after the
    step.
    """

    model: ModelSteps
    levels: Mapping[Node, int]
    kept: Set[Steps] | None = None
    states: dict[Steps, Node] = field(default_factory=dict)
    sequences: dict[Steps, Node] = field(default_factory=dict)
    others: dict[Node, Node] = field(default_factory=dict)
    whole: dict[Steps, Node | None] = field(default_factory=dict)
    after: list[Steps] = field(default_factory=list)
    before: int = 0
    depth: int = 0

    @property
    def count(self) -> int:
        """The number of steps."""
        return len(next(iter(self.states)))

    @property
    def elements(self) -> int:
        """The number of elements of the states."""
        return elements_of(self.states.values())

    def of(self, nodes: Steps) -> Node | None:
        """The term of the body that is these terms in the steps; None where they are not alike."""
        if nodes in self.states:
            return self.states[nodes]
        if nodes not in self.whole:
            self.depth += 1
            self.whole[nodes] = self._of(nodes) if self.depth <= DEEPEST else None
            self.depth -= 1
        return self.whole[nodes]

    def operator(self, nodes: Steps) -> Node | None:
        """The term of the body for applications of one operator."""
        first = nodes[0]
        if not first.args or first.op == "opaque" or any(_form(each) != _form(first) for each in nodes):
            return None
        made = [self.of(tuple([each.args[i] for each in nodes])) for i in range(len(first.args))]
        args = [each for each in made if each is not None]
        return Node(first.op, tuple(args), first.attrs, first.type) if len(args) == len(made) else None

    def news(self) -> dict[Steps, Steps]:
        """The terms of the steps that are the states after them, by the states for which there are
        some."""
        shifted = {new[:-1]: new for new, body in self.whole.items() if body is not None}
        return {old: shifted[old[1:]] for old in self.states if old[1:] in shifted}

    def computed(self) -> dict[Steps, Node]:
        """The terms that a loop over the steps computes, each with the body's term."""
        return {
            nodes: body
            for nodes, body in self.whole.items()
            if body is not None and body.args and self.levels[nodes[-1]]
        }

    def is_inside(self, nodes: Steps) -> bool:
        """Whether terms depend on the anchor before their step, or on its own, and on no later
        one."""
        levels = [self.levels[each] for each in nodes]
        steps = range(1 - self.before, len(nodes) + 1 - self.before)
        return any(levels == [max(step + own, 0) for step in steps] for own in (0, 1))

    def _of(self, nodes: Steps) -> Node | None:
        first = nodes[0]
        if all(each is first for each in nodes):
            return self._other(first)
        if any(each.type != first.type for each in nodes):
            return None
        if self.is_inside(nodes):
            return self.operator(nodes)
        levels = [self.levels[each] for each in nodes]
        if levels[-1] and all(level <= i for i, level in enumerate(levels)):
            return self._state(nodes) if self.kept is None or nodes in self.kept else self.operator(nodes)
        if any(levels):
            return None
        if self.model.parts(nodes) is not None:
            return self.sequences.setdefault(nodes, self._leaf(first))
        return self.operator(nodes)

    def _other(self, node: Node) -> Node | None:
        if node is ABSENT or is_constant(node):
            return node
        if not isinstance(node.type, Tensor) or self.levels[node]:
            return None
        return self.others.setdefault(node, self._leaf(node))

    def _state(self, nodes: Steps) -> Node | None:
        """A state, as long as their new values are not known."""
        if self.after or not isinstance(nodes[0].type, Tensor) or len(self.states) == CANDIDATES:
            return None
        return self.states.setdefault(nodes, self._leaf(nodes[0]))

    def _leaf(self, node: Node) -> Node:
        return variable(f"x{len(self.states) + len(self.sequences) + len(self.others)}", node.tensor)

    # ------------------------------------------------------------ more of the model

    def extend(self) -> bool:
        """Add the step before the first one, if it is like the others; whether it is."""
        leaves = {**dict.fromkeys((*self.states.values(), *self.sequences.values())), **self._fixed()}
        found: dict[Node, Node] = {}
        pairs = [(self.whole[after], nodes[0]) for after, nodes in zip(self.after, self.states, strict=True)]
        if not all(body is not None and _matches(body, node, leaves, found) for body, node in pairs):
            return False
        if any(leaf not in found for leaf, fixed in leaves.items() if fixed is None):
            return False
        sequences = {(found[leaf], *nodes): leaf for nodes, leaf in self.sequences.items()}
        if any(self.model.parts(nodes) is None for nodes in sequences):
            return False
        computed = self.computed()
        firsts = substitute([*computed.values()], {**found, **self._fixed()})
        longer = {nodes: (first, *nodes) for nodes, first in zip(computed, firsts, strict=True)}
        self.states = {(found[leaf], *nodes): leaf for nodes, leaf in self.states.items()}
        self.sequences, self.before = sequences, self.before + 1
        self.after = [longer[nodes] for nodes in self.after]
        self.whole = {longer[nodes]: body for nodes, body in computed.items()}
        return True

    def climb(self) -> None:
        """Add terms of all steps over terms of these, as far as they are not larger: outside of a
        loop those cost no memory in it."""
        waiting = [*self.computed()]
        inside = {node for nodes in waiting for node in nodes}
        while waiting:
            readers = [[r for r in self.model.readers[n] if r not in inside] for n in waiting.pop()]
            kinds = [Counter(map(kind_of, each)) for each in readers]
            for kind in [kind for kind in kinds[0] if all(each[kind] == 1 for each in kinds)]:
                above = tuple([next(r for r in each if kind_of(r) == kind) for each in readers])
                if above in self.whole or not self.is_inside(above) or is_larger(above[0], inside):
                    continue
                if self.of(above) is not None:
                    waiting.append(above)
                    inside |= {*above}

    def is_exact(self) -> bool:
        """Whether the body gives the model's terms in each step, and each state is the new one of
        the step before."""
        bodies, leaves = self.computed(), {**self.states, **self.sequences}
        for i in range(self.count):
            given = {leaf: nodes[i] for nodes, leaf in leaves.items()} | self._fixed()
            made = substitute([*bodies.values()], given)
            if any(new is not nodes[i] for nodes, new in zip(bodies, made, strict=True)):
                return False
        return all(new[:-1] == old[1:] for old, new in zip(self.states, self.after, strict=True))

    def _fixed(self) -> dict[Node, Node]:
        """The operands of every step, by their variables."""
        return {leaf: node for node, leaf in self.others.items()}


def chains(model: ModelSteps) -> list[Chain]:
    """The chains of a model, those with the smallest states first, then the longest."""
    found = [_chain(model, levels, anchors) for levels, anchors in model.anchors()]
    return sorted((each for each in found if each is not None), key=lambda c: (c.elements, -c.count))


def _chain(model: ModelSteps, levels: Mapping[Node, int], anchors: Steps) -> Chain | None:
    """The steps between anchors, if they are alike."""
    chain = _between(Chain(model, levels), anchors)
    news = {} if chain is None else chain.news()
    if chain is not None and len(news) < len(chain.states):  # some state is a term over others, such as a peephole's
        chain = _between(Chain(model, levels, news.keys()), anchors)
        news = {} if chain is None else chain.news()
    if chain is None or len(news) < len(chain.states) or len(news) > STATES:
        return None
    chain.after = [*news.values()]
    own = [leaf for nodes, leaf in chain.sequences.items() if not is_constant(nodes[0]) and is_weight(nodes[0])]
    if elements_of(own) > WEIGHTS * chain.elements:
        return None
    while chain.extend():
        pass
    return chain


def _between(chain: Chain, anchors: Steps) -> Chain | None:
    """The chain with the terms of its steps, from each anchor down to the one before; None where
    they are not alike."""
    last = anchors[1:]
    chain.states[anchors[:-1]] = variable("x0", anchors[0].tensor)
    chain.whole[last] = chain.operator(last)
    return None if chain.whole[last] is None else chain


def _matches(body: Node, node: Node, leaves: Mapping[Node, Node | None], found: dict[Node, Node]) -> bool:
    """Whether a term is a body's for some terms in the place of its variables: for those that
    `leaves` names, which are otherwise `found`."""
    waiting, done = [(body, node)], set[tuple[Node, Node]]()
    while waiting:
        inner, outer = pair = waiting.pop()
        if pair in done:
            continue
        done.add(pair)
        if inner in leaves:
            wanted = leaves[inner] or found.setdefault(inner, outer)
            if wanted is not outer or inner.type != outer.type:
                return False
        elif (not inner.args and inner is not outer) or _form(inner) != _form(outer):
            return False
        else:
            waiting += zip(inner.args, outer.args, strict=True)
    return True


def is_larger(node: Node, inside: Set[Node]) -> bool:
    """Whether a term has more elements than its operands that are inside, or several results."""
    if not isinstance(node.type, Tensor):
        return True
    return elements_of([node]) > elements_of(a for a in node.args if a in inside and isinstance(a.type, Tensor))


def _form(node: Node) -> tuple[object, ...]:
    return node.op, node.attrs, node.type, len(node.args)
