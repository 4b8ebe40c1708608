"""Equality by definition: both sides are the same terms once operators that others define are
replaced by their definitions, and concatenations of concatenations are one."""

from __future__ import annotations

from collections.abc import Sequence

from taso_mirage.ir.terms import Node, topological, with_args
from taso_mirage.operators.interpret import unfolded
from taso_mirage.operators.ops import load_specs, traits


def same_by_definition(lhs: Sequence[Node], rhs: Sequence[Node]) -> bool:
    """Whether each output of the left side is the same term as that of the right side, up to the
    order of operands that commute, and to groups of terms that are concatenated along one axis.
    Equal terms are equal wherever they have a value, so fusions into one operator need no other
    proof."""
    if len(lhs) != len(rhs) or any(a.type != b.type for a, b in zip(lhs, rhs, strict=True)):
        return False
    both = _ordered(unfolded((*lhs, *rhs), parts=True))
    return both[: len(lhs)] == both[len(lhs) :]


def _ordered(outputs: Sequence[Node]) -> tuple[Node, ...]:
    """The terms with operands that commute in one order, which is arbitrary, and without
    concatenations of parts that are concatenations along the same axis."""
    done: dict[Node, Node] = {}
    numbers: dict[Node, int] = {}
    specs = load_specs()
    for node in topological(outputs):
        args = [done[a] for a in node.args]
        if len(args) == 2 and node.op in specs and specs[node.op].commutative:
            args.sort(key=numbers.__getitem__)
        if (name := traits(node).joins) is not None:
            inner = [a.op == node.op and a.attr(name) == node.attr(name) for a in args]
            args = [part for a, same in zip(args, inner, strict=True) for part in (a.args if same else (a,))]
        done[node] = with_args(node, tuple(args))
        numbers.setdefault(done[node], len(numbers))
    return tuple([done[o] for o in outputs])
