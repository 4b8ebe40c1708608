"""Laws that are tried at all of their places at once: laws that save nothing at a single place, and
laws that usually pay, so that no search has to find each place.

ONNX Runtime's CPU provider keeps the blocked layout of its convolutions from one to the next
through the operators that it has in that layout. One term between them without that layout costs
two changes of layout, so removing it at one of several places gains nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count

from taso_mirage.ir.terms import Node, topological, with_args
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.ops import traits
from taso_mirage.operators.work import size
from taso_mirage.rewriting.equation import Equation
from taso_mirage.rewriting.index import Application, Rules
from taso_mirage.search.passes import Context, new_terms
from taso_mirage.search.steps import RewriteStep

SPREAD = 16
"""The largest size of a new weight, relative to its source."""
_SWEEPS = count(-1, -1)
"""The first number of sweeps here, larger than any sweep of the passes."""


def laws_together(equations: Iterable[Equation]) -> list[Equation]:
    """The equations with the flag, larger patterns first."""
    return sorted((e for e in equations if e.together), key=lambda e: -len(e.lhs_terms))


def all_at_once(outputs: Sequence[Node], rules: Rules, context: Context) -> tuple[tuple[Node, ...], list[RewriteStep]]:
    """The graph after the first legal application at every place, in one traversal; unchanged if no
    term has a layout or is quantized."""
    order = topological(outputs)
    if not any(traits(n).layout or traits(n).quantized for n in order):
        return tuple(outputs), []
    return at_every_place(outputs, rules, context)


def at_every_place(
    outputs: Sequence[Node], rules: Rules, context: Context
) -> tuple[tuple[Node, ...], list[RewriteStep]]:
    """The graph after the first legal application at every place, in one traversal."""
    order = topological(outputs)
    done: dict[Node, Node] = {}
    steps: list[RewriteStep] = []
    sweep = next(_SWEEPS)
    for node in order:
        done[node] = current = with_args(node, tuple([done[a] for a in node.args]))
        legal = (a for a in rules.applications(current) if _legal(a, context))
        first = next(legal, None)
        if first is not None:
            done[node] = first.results[0]
            steps.append(RewriteStep((first.equation.name,), (current,), first.results, sweep))
    return tuple([done[o] for o in outputs]), steps


def _legal(application: Application, context: Context) -> bool:
    """Whether all new terms can be written, and none is a weight that is expanded over an image."""
    new = new_terms(application.results, application.found.operands)
    return all(context.legal(n) and not (is_weight(n) and _spread(n)) for n in new)


def _spread(node: Node) -> bool:
    if node.tensor.rank < 2:  # one number for each channel
        return False
    leaves = [n for n in topological([node]) if not n.args]
    return size(node.tensor) > SPREAD * sum(size(n.tensor) for n in leaves)
