"""A key of everything on which a rewrite at a term depends: the term down to a few levels, over
canonical leaves.

Equal surroundings have equal keys, so an application at one term applies at all terms with equal
surroundings: in equal layers, and above a rewrite, where every term is new.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import Any, TypeAlias, cast

from taso_mirage.ir.terms import LEAVES, Node, topological, variable, weight, with_args
from taso_mirage.operators.expressions import is_weight

MatchKey: TypeAlias = tuple[Hashable, ...]
"""A row for each term: operator, attributes and the places of the operands; or the facts about a
leaf."""
MATCHED_LEVELS = 3
"""The depth of the surroundings of a term in operators.

Most patterns are not deeper.
"""
PATTERNS = 1 << 14
"""The number of patterns whose upper parts are kept."""


def match_key(node: Node, levels: int) -> tuple[MatchKey, tuple[Node, ...]]:
    """The terms down to `levels` below a term, each once, nearest first; and all about them that a
    rewrite may ask for.

    Operators, attributes, which operands are the same, types, whether a term depends on weights
    only, and the values of constants.
    """
    place = {node: 0}
    rows: list[Hashable] = []
    level = [node]
    for _ in range(levels):
        below: list[Node] = []
        for each in level:
            for arg in each.args:
                if arg not in place:
                    place[arg] = len(place)
                    below.append(arg)
            rows.append(_inner(each, place))
        level = below
    rows += [_leaf(each) for each in level]
    return tuple(rows), tuple(place)


def _inner(node: Node, place: Mapping[Node, int]) -> Hashable:
    return (node.op, node.attrs, tuple([place[a] for a in node.args])) if node.args else _leaf(node)


def _leaf(node: Node) -> Hashable:
    """The term itself where it is a constant; terms below another one are not visited."""
    if not node.args and node.op not in LEAVES:
        return node
    return bool(node.args), is_weight(node), node.type


def canonical_terms(key: MatchKey, terms: Sequence[Node]) -> tuple[Node, ...]:
    """The terms of some surroundings over leaves that are named by their place: the same for equal
    keys."""
    made = {term: _canonical_leaf(row, i) for i, (row, term) in enumerate(zip(key, terms, strict=True)) if _ends(row)}
    for term in topological(terms[:1], stop=set(made)):
        made[term] = with_args(term, tuple(made[a] for a in term.args))
    return tuple(made[term] for term in terms)


def _ends(row: Hashable) -> bool:
    return not (isinstance(row, tuple) and isinstance(row[0], str))


def _canonical_leaf(row: Hashable, place: int) -> Node:
    if isinstance(row, Node):
        return row
    hides, weighs, type = cast("tuple[bool, bool, Any]", row)
    return (weight if weighs else variable)(f"{'below' if hides else 'leaf'}{place}", type)


@lru_cache(maxsize=PATTERNS)
def depth(pattern: Node) -> int:
    """How many operators are in a row from a term down, at most."""
    return 1 + max(map(depth, pattern.args)) if pattern.args else 0


@lru_cache(maxsize=PATTERNS)
def upper(pattern: Node, levels: int) -> Node:
    """The first levels of a pattern.

    A variable of its own stands for each place below: equal patterns may match commuted terms.
    """
    return _upper(pattern, levels, count())


def _upper(pattern: Node, levels: int, numbers: Iterator[int]) -> Node:
    if not pattern.args:
        return pattern
    if levels == 0:
        return variable(f"below {next(numbers)}")
    return Node(pattern.op, tuple([_upper(a, levels - 1, numbers) for a in pattern.args]), pattern.attrs)
