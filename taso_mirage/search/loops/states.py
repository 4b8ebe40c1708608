"""Loops without the states whose values in all steps are terms of sequences.

Such a loop reads the values before each step as one more sequence. By induction they are the
state's: they are the first state and the values after all steps but the last one, and a step makes
of the element of the ones that of the others (`onnx_io/content_terms.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from taso_mirage.errors import TasoMirageError
from taso_mirage.ir.dims import Dim
from taso_mirage.ir.terms import ABSENT, Graph, Node, constant, is_constant, substitute, topological
from taso_mirage.onnx_io.loops import STEP, step_leaves, value_after, values_before
from taso_mirage.operators.expressions import uniform_value
from taso_mirage.operators.ops import term
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.search.loops.behind import LighterLoop, elements_of, of_a_step, results_of
from taso_mirage.search.loops.hoisting import whole_of
from taso_mirage.search.loops.inductions import INDUCTION, is_equal
from taso_mirage.search.loops.values import AllValues, ShiftRegister, StateForm, state_forms
from taso_mirage.search.steps import BehindLoop, ClosedState, RewriteStep


def without_states(loop: Node, proofs: Proofs, used: Collection[int] | None = None) -> LighterLoop | None:
    """The loop without the states whose values in all steps are known; its results that then depend
    on no state are terms of all steps, and without other results there is no loop. None where no
    state is known. `used`: the results that a model reads, which a certificate knows; without it
    all of them."""
    results = results_of(loop)
    made, wanted = LighterLoop(loop, results, (), ()), set(range(len(results)) if used is None else used)
    named = results[min(wanted)] if wanted else None
    while named is not None and made.term is not None:
        found = _without_state(made.term, wanted, named, proofs)
        if found is None:
            break
        made, state = made.then(found), found.closed[0].state
        wanted = {i - (i > state) for i in wanted if i != state}
        named = results_of(made.term)[0] if made.term is not None else None
    if not made.closed:
        return None
    if made.term is None or needed_states(made.term, wanted):
        return made
    return made.then(without_steps(made.term, wanted, proofs))


def needed_states(loop: Node, wanted: Iterable[int]) -> list[int]:
    """The states on which some results of a loop depend."""
    body, states = loop.attr("body"), loop.attr("states")
    found, waiting = set[int](), set(wanted)
    while waiting:
        i = waiting.pop()
        found |= {i} if i < states else set()
        below = set(topological([body.outputs[i]]))
        waiting |= {k for k in range(states) if body.inputs[k] in below} - found
    return sorted(found)


def _without_state(loop: Node, wanted: Collection[int], result: Node, proofs: Proofs) -> LighterLoop | None:
    """The loop without the first state that is needed and whose values are known."""
    body: Graph = loop.attr("body")
    for state in needed_states(loop, wanted):
        for form, each in state_forms(body, loop.attr("states"), state):
            if _is_large(loop, state, form):
                continue
            try:
                found = StateProof(loop, state, form, each, proofs).found()
            except TasoMirageError:
                continue
            if found is not None:
                values, obligations = found
                closed = ClosedState(result, state, values.values, values.before)
                return _reading(loop, state, values, obligations, closed)
    return None


def _is_large(loop: Node, state: int, form: StateForm) -> bool:
    """Whether the values in all steps would fill the memory: a state has many more elements than a
    step reads and gives."""
    size = form.size if isinstance(form, ShiftRegister) else 1
    return elements_of([loop.args[state]]) > size * elements_of(of_a_step(loop))


@dataclass
class StateProof:
    """A form of a state, and the equalities of its proof."""

    loop: Node
    state: int
    form: StateForm
    each: Node
    proofs: Proofs

    def found(self) -> tuple[AllValues, tuple[RewriteStep, ...]] | None:
        """The values in all steps, and the equalities; None where one is not proved."""
        lifted = every_step(self.loop, self.each, self.proofs)
        if lifted is None:
            return None
        first, backward = self.loop.args[self.state], self.loop.attr("backward")
        made = self.form.all(first, lifted[0], backward)
        steps = [*lifted[1]]
        for old, new, leaves in self._claims(made, lifted[0], first, backward):
            over = [a for a in dict.fromkeys(leaves) if a is not ABSENT and not is_constant(a)]
            if old is new:
                continue
            if not is_equal(old, new, over, self.proofs):
                return None
            steps.append(RewriteStep((INDUCTION,), (old,), (new,), over=frozenset(over)))
        return made, tuple(steps)

    def _claims(
        self, made: AllValues, every: Node, first: Node, backward: int
    ) -> Iterator[tuple[Node, Node, Sequence[Node]]]:
        """The equalities, with the terms for all values of which they hold."""
        body: Graph = self.loop.attr("body")
        leaves = dict(zip(body.inputs, step_leaves(self.loop, self.loop.args)[1], strict=True))
        before = _element(made.before)
        leaves[body.inputs[self.state]] = before
        below = topological([body.outputs[self.state]])
        new, each = substitute((body.outputs[self.state], self.each), leaves)
        over = [each] if each in topological([new]) else [a for leaf, a in leaves.items() if leaf in below]
        yield new, self.form.new(before, each), (before, *over)
        yield values_before(first, made.values, backward), made.before, (first, every)
        yield value_after(first, made.values, backward), made.last, (first, every)
        yield from made.lemmas
        step = self.form.new(before, _element(every))
        if made.lemmas:
            whole = made.lemmas[-1][0]
            yield step, _element(whole), (made.before, every, STEP)
        else:
            yield step, _element(made.values), (*made.parts, every, STEP)


def _element(whole: Node) -> Node:
    return term("gather", whole, STEP, axis=0)


def every_step(loop: Node, each: Node, proofs: Proofs) -> tuple[Node, list[RewriteStep]] | None:
    """A term of a step that reads no state in all steps, and the equalities; None where none is
    found."""
    body: Graph = loop.attr("body")
    states = int(loop.attr("states"))
    end = states + int(loop.attr("sequences"))
    below = topological([each])
    if not set(body.inputs[states:end]).isdisjoint(below):
        mapped = term(
            loop.op,
            *loop.args[states:],
            body=Graph(body.inputs[states:], (each,)),
            states=0,
            sequences=end - states,
            backward=loop.attr("backward"),
        )
        return whole_of(mapped, proofs)
    (single,) = substitute((each,), dict(zip(body.inputs[end:], loop.args[end:], strict=True)))
    whole = _repeated(single, loop.args[states].shape[0])
    over = [] if is_constant(single) else [single]
    if not is_equal(single, _element(whole), [*over, STEP], proofs):
        return None
    return whole, [RewriteStep((INDUCTION,), (single,), (_element(whole),), over=frozenset([*over, STEP]))]


def _repeated(single: Node, count: Dim) -> Node:
    """A term for each step."""
    shape = (count, *single.shape)
    if not is_constant(single) or uniform_value(single) is None:
        return term("expand", term("unsqueeze", single, axes=(0,)), shape=shape)
    number = single.attr("value").numpy().reshape(-1)[:1].reshape(())
    return term("expand", constant(number, single.dtype), shape=shape)


def _reading(
    loop: Node, state: int, values: AllValues, obligations: tuple[RewriteStep, ...], closed: ClosedState
) -> LighterLoop:
    """The loop that reads the values of a state as a sequence."""
    body: Graph = loop.attr("body")
    states = loop.attr("states")
    end = states + loop.attr("sequences")
    order = [*(i for i in range(end) if i != state), state, *range(end, len(body.inputs))]
    outputs = (*body.outputs[:state], *body.outputs[state + 1 :])
    if not outputs:
        return LighterLoop(None, (values.last,), obligations, (), (closed,))
    operands = [values.before if i == state else loop.args[i] for i in order]
    step = Graph(tuple(body.inputs[i] for i in order), outputs)
    attrs = {**dict(loop.attrs), "body": step, "states": states - 1, "sequences": end - states + 1}
    made = term(loop.op, *operands, **attrs)
    found = list(results_of(made))
    found.insert(state, values.last)
    return LighterLoop(made, tuple(found), obligations, (), (closed,))


def without_steps(loop: Node, wanted: Collection[int], proofs: Proofs) -> LighterLoop:
    """A loop of which the wanted results depend on no state, with these as terms of all steps;
    those for which no such term is found stay."""
    body: Graph = loop.attr("body")
    olds, results, steps, behind = results_of(loop), list(results_of(loop)), list[RewriteStep](), list[BehindLoop]()
    for i in sorted(wanted):
        found = every_step(loop, body.outputs[i], proofs)
        if found is not None:
            results[i] = found[0]
            steps += found[1]
            behind.append(BehindLoop(olds[i], (), found[0]))
    stays = any(results[i] is olds[i] for i in wanted)
    return LighterLoop(loop if stays else None, tuple(results), tuple(steps), tuple(behind))
