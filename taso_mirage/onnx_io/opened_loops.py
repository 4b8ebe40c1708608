"""Loops whose steps are terms (`onnx_io/content_terms.py`): each result of a loop as a node of the
states on which it depends, and the equalities that follow from induction over the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from taso_mirage.errors import Unsupported
from taso_mirage.ir.content import NodeContent
from taso_mirage.ir.dims import Dim
from taso_mirage.ir.terms import Node, Tensor, Type, constant, substitute, topological
from taso_mirage.onnx_io.loops import BOUND, renumbered, state_leaves, step_at, value_after, values_before
from taso_mirage.operators.ops import get

LONGEST = 1 << 12
"""The most steps of a loop that are written out."""


@dataclass(frozen=True, slots=True)
class ResultsOfLoops:
    """The results of loops so many levels inside of a model: terms in which the variables of these
    loops are bound."""

    depth: int

    @property
    def operator(self) -> str:
        """The name of these results."""
        return f"a result of a loop at depth {self.depth}"

    def __contains__(self, node: object) -> bool:
        call = node.attr("call") if isinstance(node, Node) and node.op == "opaque" else None
        return isinstance(call, NodeContent) and call.operator == self.operator

    def outside(self, nodes: Iterable[Node]) -> set[Node]:
        """The terms below others that these loops compute once: all but the terms of their
        steps."""
        found, waiting = set[Node](), [*nodes]
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                inside = node.attr("call").bodies[0][1] if node in self else 0
                waiting += node.args[: len(node.args) - inside]
        return found


@dataclass(frozen=True, slots=True)
class OpenedLoop:
    """A loop: its states before the first step, variables for them, the outputs of one step as
    terms over these, the elements of the sequences at a variable place and the other operands, the
    steps in words, the types of the results, the results of loops beside it, whose variables have
    the same names but are others, the number of steps, and whether the last element is the first
    step's."""

    firsts: Sequence[Node]
    leaves: Sequence[Node]
    outputs: Sequence[Node]
    steps: str
    types: Sequence[Type]
    closed: ResultsOfLoops
    count: Dim
    backward: int

    def result(self, index: int, numbers: Sequence[int] | None = None) -> Node:
        """A result as a node of the states on which it depends: their first values, their new
        values, and for a result of all steps its value in one. What is equal for all values of the
        variables is equal in every step, and so are the states, by induction: they begin as equal
        ones. `numbers`: other numbers for the states, whose variables have their numbers as names.
        """
        last, kept = index < len(self.firsts), self._needed(index)
        at = dict(zip(kept, kept if numbers is None else numbers, strict=True))
        order = sorted(kept, key=at.__getitem__)
        names = {self.leaves[i]: renumbered(self.leaves[i], at[i]) for i in order}
        wanted = [self.outputs[i] for i in order] + ([] if last else [self.outputs[index]])
        made = substitute(wanted, names, topological(wanted, stop=self.closed))
        which = f"the last state {order.index(index)}" if last else "the values"
        bound = [at[i] for i in order]
        return self._node(which, (*(self.firsts[i] for i in order), *made), len(made), self.types[index], bound)

    def _node(self, which: str, args: tuple[Node, ...], count: int, type: Type, bound: Sequence[int] = ()) -> Node:
        """A result, of which the last operands are terms of a step. In its content are the types of
        the operands, because records name a result by one of the same content, and the numbers of
        the variables that are `bound` to its states: a term of a step has another value where
        others are."""
        kinds, states = ", ".join(str(a.type) for a in args), ", ".join(map(str, bound))
        digest = f"{which} {type} of {self.steps} over {kinds}, states {states}"
        content = NodeContent(self.closed.operator, digest, (("body", count),))
        return Node("opaque", args, (("call", content),), type)

    def _needed(self, index: int) -> list[int]:
        """The states on which a result depends."""
        kept = {index} if index < len(self.firsts) else set[int]()
        waiting = [self.outputs[index]]
        while waiting:
            below = set(topological([waiting.pop()], stop=self.closed))
            more = {i for i, leaf in enumerate(self.leaves) if leaf in below} - kept
            kept |= more
            waiting += [self.outputs[i] for i in more]
        return sorted(kept)

    def of_fewer_states(self, terms: Iterable[Node], class_of: Callable[[Node], Node]) -> OpenedLoop:
        """The loop with other outputs of a step: of the terms equal to each the one that reads the
        fewest states. `terms`: operands come before what reads them."""
        leaves = {leaf: {i} for i, leaf in enumerate(self.leaves)}
        reads, best = dict[Node, set[int]](), dict[Node, Node]()
        for node in terms:
            below = () if node in self.closed else node.args
            reads[node] = leaves.get(node, set[int]()).union(*(reads[a] for a in below))
            there = best.setdefault(class_of(node), node)
            if len(reads[node]) < len(reads[there]):
                best[class_of(node)] = node
        outputs = [min(o, best[class_of(o)], key=lambda t: len(reads[t])) if o in reads else o for o in self.outputs]
        return replace(self, outputs=outputs)

    def values_of(self, state: int) -> Node:
        """The new values of a state in all steps."""
        new = self.outputs[state]
        type = Tensor(new.dtype, (self.count, *new.shape))
        return replace(self, outputs=(*self.outputs, new), types=(*self.types, type)).result(len(self.outputs))

    def unrolled(self) -> list[tuple[Node, Node]]:
        """Each result of a loop of a known number of steps, and each element of those of all steps,
        with the term that the steps give, one over the results of the one before: its definition
        (`op_specs/scan.py`)."""
        if not isinstance(self.count, int) or not 0 < self.count <= LONGEST:
            raise Unsupported(f"a loop of {self.count} steps, which is not written out")
        states, found = [*self.firsts], list[tuple[Node, ...]]()
        order = topological(self.outputs, stop=self.closed)
        for step in range(self.count):
            place = constant(self.count - 1 - step if self.backward else step)
            given = {**dict(zip(self.leaves, states, strict=True)), step_at(self.closed.depth): place}
            made = substitute(self.outputs, given, order)
            states = [*made[: len(states)]]
            found.append(made[len(states) :])
        stack, unsqueeze, gather = get("concat"), get("unsqueeze"), get("gather")
        values = [*zip(*(found[::-1] if self.backward else found), strict=True)]
        wholes = [stack.term(*[unsqueeze.term(x, axes=(0,)) for x in each], axis=0) for each in values]
        results = [self.result(i) for i in range(len(self.outputs))]
        elements = [
            (gather.term(result, constant(place), axis=0), element)
            for result, each in zip(results[len(states) :], values, strict=True)
            for place, element in enumerate(each)
        ]
        return [*zip(results, [*states, *wholes], strict=True), *elements]

    def behind(self, index: int, states: Sequence[int], whole: Node) -> tuple[Node, Node] | None:
        """A result of all steps that depends on no state but through the new values of some: as the
        values of all steps over these, and `whole` as the values of its elements. None where it
        depends on a state otherwise, or where `whole` is another one in each step.

        Both are equal to what they stand for: in a step, the element of all new values is the new
        value. So the result is `whole` if the element of `whole` is equal to its value in a step.
        """
        step = step_at(self.closed.depth)
        elements = {self.outputs[k]: get("gather").term(self.values_of(k), step, axis=0) for k in states}
        order = topological(self.outputs[index : index + 1], stop=self.closed)
        (value,) = substitute(self.outputs[index : index + 1], elements, order)
        inside, outside = (self.closed.outside([each]) for each in (value, whole))
        if not set(self.leaves).isdisjoint(inside) or any(map(_draws, inside)):
            return None
        if not {*self.leaves, step}.isdisjoint(outside) or whole.type != self.types[index]:
            return None
        element = get("gather").term(whole, step, axis=0)
        one, two = (self._node("the values", (each,), 1, whole.type) for each in (value, element))
        return one, two

    def without_state(self, state: int, values: Node, before: Node) -> LoopWithoutState | None:
        """The loop that reads elements of `before` in the place of a state, whose new values in all
        steps are `values`. None where these are others in each step.

        By induction over the steps, the state is the element of `before` in each of them: in the
        first one, and after a step whose new value is the element of `values`.
        """
        step, first = step_at(self.closed.depth), self.firsts[state]
        outside = self.closed.outside([values, before])
        type = Tensor(first.dtype, (self.count, *first.shape))
        if not {*self.leaves, step}.isdisjoint(outside) or {values.type, before.type} != {type}:
            return None
        firsts = [*self.firsts[:state], *self.firsts[state + 1 :]]
        leaves, element = state_leaves(firsts, self.closed.depth), get("gather").term(before, step, axis=0)
        names = dict(
            zip([*self.leaves[:state], *self.leaves[state + 1 :], self.leaves[state]], [*leaves, element], strict=True)
        )
        outputs = substitute(self.outputs, names, topological(self.outputs, stop=self.closed))
        new = outputs[state]
        if any(map(_draws, self.closed.outside([new]))):
            return None
        conditions = (
            (values_before(first, values, self.backward), before),
            (new, get("gather").term(values, step, axis=0)),
        )
        kept = [i for i in range(len(outputs)) if i != state]
        types, outputs = [self.types[i] for i in kept], tuple(outputs[i] for i in kept)
        made = replace(self, firsts=firsts, leaves=leaves, outputs=outputs, types=types)
        return LoopWithoutState(
            made,
            conditions,
            (
                (self.result(state), value_after(first, values, self.backward)),
                *((self.result(i), made.result(at)) for at, i in enumerate(kept)),
            ),
        )

    def renumbered(self, index: int, most: int) -> Iterator[Node]:
        """A result with all other numbers of its states below `most`: other names of the same
        variables."""
        needed = self._needed(index)
        yield from (self.result(index, each) for each in permutations(range(most), len(needed)))


@dataclass(frozen=True, slots=True)
class LoopWithoutState:
    """A loop with a state less, the equalities on which that rests, and those that follow: of each
    result of the other loop, of which the state is the first, with its term here."""

    loop: OpenedLoop
    conditions: tuple[tuple[Node, Node], ...]
    results: tuple[tuple[Node, Node], ...]

    @property
    def terms(self) -> list[Node]:
        """All terms of the equalities, in their order."""
        return [each for pair in (*self.conditions, *self.results) for each in pair]

    def places(self) -> Iterator[tuple[Node, tuple[OpenedLoop, int]]]:
        """The results of the loop, with their places."""
        yield from ((new, (self.loop, i)) for i, (_, new) in enumerate(self.results[1:]))


def _draws(node: Node) -> bool:
    """Whether a term is a random draw, which is another one in each step."""
    call = node.attr("call") if node.op == "opaque" else None
    return isinstance(call, NodeContent) and call.draw is not None


def changes_in_steps(node: Node, depth: int = 1) -> bool:
    """Whether a term is a variable of a loop, or a random draw in a body, so many levels inside of
    a model or more: another one in each step."""
    if node.op == "input":
        found = BOUND.fullmatch(node.attr("name"))
        return found is not None and (found["level"] is None or int(found["level"]) >= depth)
    return _draws(node) and len(node.attr("call").draw.path) >= depth
