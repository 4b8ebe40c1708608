"""The changes of loops: a loop in the place of equal steps, an operator in the place of a loop. All
rewrites of one loop are one change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from taso_mirage.ir.terms import Node, substitute
from taso_mirage.report.changes import ChangedRegion, Heights, region_leaves
from taso_mirage.search.steps import RewriteStep, replay

LOOPS = "rewrite of a loop"
"""The name of these changes, in the place of an equation's."""
DEEPEST = 1 << 20
"""The most terms of such a change."""


@dataclass(slots=True)
class _Loop:
    """The terms before, over leaves, and what these and the leaves have become; `news` is the
    result of the last rewrite of the loop, over the leaves."""

    first: RewriteStep
    leaves: tuple[Node, ...]
    now: tuple[Node, ...]
    news: tuple[Node, ...]

    def over_leaves(self) -> tuple[Node, ...]:
        """The terms as they are now, over the leaves of the first ones."""
        count = len(self.news)
        return substitute(self.now[:count], dict(zip(self.now[count:], self.leaves, strict=True)))


def loop_regions(steps: Sequence[RewriteStep]) -> Iterator[ChangedRegion]:
    """The region of each loop that was rewritten, or made of terms, by one step or several.

    Linear for each sweep, and for each step outside of sweeps, up to the last rewrite of a loop.
    """
    found: list[_Loop] = []
    heights = Heights()
    last = max((i for i, step in enumerate(steps) if step.shown), default=-1)
    for sweep, group in groupby(steps[: last + 1], key=lambda step: step.sweep):
        together = [*group]
        for part in [together] if sweep else [[each] for each in together]:
            changed = [_changes(loop, part) for loop in found]
            if part[0].shown and not any(changed):
                found.append(_loop(part[0], heights))
    for loop in found:
        pairs = tuple(zip(loop.first.shown, loop.news, strict=True))
        yield ChangedRegion((LOOPS,), pairs, frozenset(loop.leaves), loop.first.called)


def _loop(step: RewriteStep, heights: Heights) -> _Loop:
    region = ChangedRegion((LOOPS,), tuple(zip(step.shown, step.new, strict=True)), None)
    leaves = tuple(region_leaves(region, heights, DEEPEST))
    return _Loop(step, leaves, (*step.new, *leaves), step.new)


def _changes(loop: _Loop, part: Sequence[RewriteStep]) -> bool:
    """Replay steps on a loop; whether they rewrite it as a loop."""
    before = loop.over_leaves() if part[0].shown else ()
    loop.now = replay(loop.now, part)
    if not part[0].shown or loop.over_leaves() == before:
        return False
    loop.news = loop.over_leaves()
    return True
