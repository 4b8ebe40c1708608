"""The states of a part that are worth a measurement: the cheapest by prediction, in an order that
depends on no measurement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby, islice
from typing import TypeAlias

from taso_mirage.ir.terms import Node, topological
from taso_mirage.rewriting.equation import work_terms
from taso_mirage.search.orders import up_to_order

_State: TypeAlias = tuple[Node, ...]
FINALISTS = 4
"""The number of cheapest states of a part that are measured together with the unchanged part."""
SAME_COST = 1.02
"""The relative difference below which predicted costs are equal, because measured operators vary as
much."""
PLAIN = (str, int, float, tuple)
"""Types of attribute values that a text distinguishes."""


def finalists_of(first: _State, prices: Mapping[_State, float], alpha: float) -> list[_State]:
    """Return `first` and the cheapest of the other states that cost less than `alpha` times as
    much, the best first.

    Among states of equal cost (SAME_COST) the one with the fewest terms, and then the one most
    similar to `first`, is best, independent of noise. States that differ only in the order of
    operands occur once.
    """
    worth = [s for s in prices if prices[s] < alpha * prices[first]] or [first]
    least = min(map(prices.__getitem__, worth))
    equal = by_change((s for s in worth if prices[s] <= SAME_COST * least), first)
    others = sorted((s for s in worth if prices[s] > SAME_COST * least), key=prices.__getitem__)
    found = list(islice(up_to_order(chain(equal, others)), FINALISTS))
    return found if first in found else [*found, first]


def by_change(states: Iterable[_State], first: _State) -> Iterator[_State]:
    """States by the number of running terms, the number of them whose operator `first` lacks, and
    the number of terms that `first` lacks; equal ones by a text that identifies them, which takes
    long, and is made only for states that are reached."""
    before = set(topological(first))
    known = {n.op for n in before}

    def counted(state: _State) -> tuple[int, int, int]:
        terms = work_terms(topological(state))
        return len(terms), sum(n.op not in known for n in terms), sum(n not in before for n in terms)

    counts = {state: counted(state) for state in states}
    for _, alike in groupby(sorted(counts, key=counts.__getitem__), key=counts.__getitem__):
        some = [*alike]
        yield from sorted(some, key=text_of) if len(some) > 1 else some


def text_of(state: _State) -> str:
    """A text that identifies a state."""
    order = topological(state)
    numbers = {node: i for i, node in enumerate(order)}
    rows = [
        (n.op, str(n.type), [numbers[a] for a in n.args], [str(v) for _, v in n.attrs if isinstance(v, PLAIN)])
        for n in order
    ]
    return str(rows)
