"""Results of loops that are computed behind them: a term of a step that depends on states only
through their new values is computed for all steps at once from the values of all steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from taso_mirage.ir.dims import dim_product
from taso_mirage.ir.mugraph import usual_size
from taso_mirage.ir.terms import Graph, Node, substitute, topological, variable
from taso_mirage.operators.ops import term
from taso_mirage.prove.rules.proofs import Proofs
from taso_mirage.search.loops.hoisting import whole_of
from taso_mirage.search.steps import BehindLoop, ClosedState, RewriteStep


@dataclass(frozen=True, slots=True)
class LighterLoop:
    """A loop with fewer results or states, or none, the terms over it for the results of another
    loop, the equalities of its steps, the results that are computed behind it, and the states whose
    values in all steps are known."""

    term: Node | None
    results: tuple[Node, ...]
    obligations: tuple[RewriteStep, ...]
    behind: tuple[BehindLoop, ...]
    closed: tuple[ClosedState, ...] = ()

    def then(self, other: LighterLoop, olds: Sequence[Node] | None = None) -> LighterLoop:
        """This form, whose loop then has another form. `olds`: the results of the loop."""
        known = olds if olds is not None else () if self.term is None else results_of(self.term)
        return LighterLoop(
            other.term,
            substitute(self.results, dict(zip(known, other.results, strict=True))),
            (*self.obligations, *other.obligations),
            (*self.behind, *other.behind),
            (*self.closed, *other.closed),
        )


def results_of(loop: Node) -> tuple[Node, ...]:
    """The results of a loop."""
    if not isinstance(loop.type, tuple):
        return (loop,)
    return tuple(term("item", loop, index=i) for i in range(len(loop.type)))


def of_a_step(loop: Node) -> tuple[Node, ...]:
    """The elements of sequences that a step reads, and its outputs besides the states."""
    body, states = loop.attr("body"), loop.attr("states")
    return (*body.inputs[states : states + loop.attr("sequences")], *body.outputs[states:])


def elements_of(terms: Iterable[Node]) -> int:
    """The number of elements of all of some terms."""
    return sum(usual_size(dim_product(n.shape)) for n in terms)


def without_outputs(loop: Node, proofs: Proofs) -> LighterLoop | None:
    """The loop that gives, of all steps, only the new values of states; None where none of its
    results can be computed from them, or the states have more elements than a step reads and gives:
    the states of attention in all steps would fill the memory."""
    body: Graph = loop.attr("body")
    states = int(loop.attr("states"))
    news, others = body.outputs[:states], body.outputs[states:]
    moved = {i: _read(o, news) for i, o in enumerate(others, states) if o not in news and not _reads(o, body, news)}
    moved = {i: read for i, read in moved.items() if read}
    used = list(dict.fromkeys(k for read in moved.values() for k in read))
    if not used or elements_of(news[k] for k in used) > elements_of(of_a_step(loop)):
        return None
    kept = [i for i in range(states, len(body.outputs)) if i not in moved]
    step = Graph(body.inputs, (*news, *(body.outputs[i] for i in kept), *(news[k] for k in used)))
    lighter = term(loop.op, *loop.args, **{**dict(loop.attrs), "body": step})
    parts, places = results_of(lighter), {k: states + len(kept) + i for i, k in enumerate(used)}
    found, steps, behind = dict(enumerate(parts[:states])), list[RewriteStep](), list[BehindLoop]()
    found |= {i: parts[states + at] for at, i in enumerate(kept)}
    for i, read in moved.items():
        made = _whole(loop, body.outputs[i], {news[k]: parts[places[k]] for k in read}, proofs)
        if made is None:
            return None
        found[i] = made[0]
        steps += made[1]
        behind.append(BehindLoop(results_of(loop)[i], tuple(read), made[0]))
    return LighterLoop(lighter, tuple(found[i] for i in range(len(body.outputs))), tuple(steps), tuple(behind))


def _read(output: Node, news: Sequence[Node]) -> list[int]:
    """The states whose new values an output reads, from above."""
    below = set(topological([output], stop=set(news))) | {
        a for n in topological([output], stop=set(news)) for a in n.args
    }
    return [k for k, new in enumerate(news) if new in below]


def _reads(output: Node, body: Graph, news: Sequence[Node]) -> bool:
    """Whether an output reads a state otherwise than through new values."""
    below = set(topological([output], stop=set(news)))
    return bool(below & set(body.inputs[: len(news)]))


def _whole(loop: Node, output: Node, values: dict[Node, Node], proofs: Proofs) -> tuple[Node, list[RewriteStep]] | None:
    """The term of all steps for an output over the new values of states, and its equalities."""
    body: Graph = loop.attr("body")
    states = int(loop.attr("states"))
    end = states + int(loop.attr("sequences"))
    leaves = {new: variable(f"value {i}", new.tensor) for i, new in enumerate(values)}
    (value,) = substitute([output], leaves)
    given = (*leaves.values(), *body.inputs[states:])
    mapped = term(
        loop.op,
        *values.values(),
        *loop.args[states:],
        body=Graph(given, (value,)),
        states=0,
        sequences=len(values) + end - states,
        backward=loop.attr("backward"),
    )
    return whole_of(mapped, proofs)
