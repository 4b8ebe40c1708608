"""Proofs of equal terms by their operands: two terms of one operator are equal if their operands
are, so the prover of equations sees only the terms that differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from taso_mirage.ir.terms import Node
from taso_mirage.mugraph.roles import inlined
from taso_mirage.prove.symbolic import Proved, prove_symbolic


def proved_moved(
    goal: Sequence[Node], moved: Sequence[Node], tested: Callable[[Node], bool] = lambda node: False
) -> bool:
    """Whether terms are proved equal to those that `moved_goal` made of them, for all sizes of at
    least 1; but for parts of both that are `tested` otherwise."""
    proved: dict[tuple[Node, Node], bool] = {}
    pairs = list(zip(inlined(goal), moved, strict=True))
    return all(_equal(a, b, tested, proved) for a, b in pairs) or isinstance(prove_symbolic(goal, moved), Proved)


def _equal(a: Node, b: Node, tested: Callable[[Node], bool], proved: dict[tuple[Node, Node], bool]) -> bool:
    if a is b:
        return True
    if (a, b) not in proved:
        if a.args and (a.op, a.attrs, len(a.args)) == (b.op, b.attrs, len(b.args)):
            proved[a, b] = all(_equal(x, y, tested, proved) for x, y in zip(a.args, b.args, strict=True))
        else:
            known = a.type == b.type and tested(a) and tested(b)
            proved[a, b] = isinstance(prove_symbolic([a], [b]), Proved) or known
    return proved[a, b]
