"""Corrections of a partially equivalent program (PET, OSDI'21, section 6): the result of the
original on the failing part replaces that part of the mutant's output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from taso_mirage.errors import Unsupported
from taso_mirage.ir.terms import Graph, Node, substitute, topological, users, with_args
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.ops import get, traits
from taso_mirage.operators.slicing import cut, join, margin, padded_term, sizes
from taso_mirage.operators.work import work
from taso_mirage.rewriting.derived_traits import multiplies
from taso_mirage.search.partial.agreement import Agreement
from taso_mirage.search.partial.pieces import Piece, pieces
from taso_mirage.search.partial.restrict import Restriction


def correct(original: Graph, mutant: Graph, agreement: Agreement, joined: bool = True) -> Graph:
    """The program that is the mutant where both agree and the original elsewhere.

    `joined`: corrections that share their weights are one operator over their inputs, concatenated
    along the batch. Raises Unsupported where nothing agrees, the region is too ragged, an operator
    has no restriction, or the corrections do as much work as the original.
    """
    if not any(region.same.any() for region in agreement.regions):
        raise Unsupported("the programs agree nowhere; there is nothing to correct")
    restrict = Restriction()
    found = [
        _stitched(pieces(region), wanted, given, restrict)
        for region, wanted, given in zip(agreement.regions, original.outputs, mutant.outputs, strict=True)
    ]
    _worth(original, mutant, found)
    outputs = _folded(_joined(found) if joined else tuple(found))
    return Graph(original.inputs, outputs)


def _stitched(piece: Piece, wanted: Node, given: Node, restrict: Restriction) -> Node:
    if piece.parts:
        return join([_stitched(p, wanted, given, restrict) for p in piece.parts], piece.axis)
    return cut(given, piece.box) if piece.agrees else restrict(wanted, piece.box)


def _worth(original: Graph, mutant: Graph, corrected: Sequence[Node]) -> None:
    """Raise Unsupported if the corrections do as much work as the original."""
    shared = set(topological(mutant.outputs))
    own = products(n for n in topological(corrected) if n not in shared)
    whole = products(topological(original.outputs))
    if own and own >= whole:
        raise Unsupported(f"the corrections multiply {own} times, the original {whole}: no part of it is smaller")


def products(nodes: Iterable[Node]) -> int:
    """Operations of the terms that multiply, without terms that are computed before the run."""
    return sum(work(n, {}).flops for n in nodes if multiplies(n.op) and not is_weight(n))


# ---------------------------------------------------------------- shared terms


def _joined(outputs: Sequence[Node]) -> tuple[Node, ...]:
    """Combine independent products with the same weights into one product over their inputs,
    concatenated along the batch, until there are none left."""
    found = tuple(outputs)
    while (group := next(_alike(found), None)) is not None:
        found = substitute(found, _as_one(group))
    return found


def _alike(outputs: Sequence[Node]) -> Iterator[list[Node]]:
    groups: dict[object, list[Node]] = {}
    for node in topological(outputs):
        batch = traits(node).batch
        if batch is not None and batch(node) and not is_weight(node):
            groups.setdefault((node.op, node.args[1:], node.attrs, sizes(node.args[0])[1:]), []).append(node)
    for group in groups.values():
        apart = [n for i, n in enumerate(group) if not set(group[:i]) & set(topological([n]))]
        if len(apart) > 1:
            yield apart


def _as_one(group: Sequence[Node]) -> dict[Node, Node]:
    first = group[0]
    inputs = _along_batch([n.args[0] for n in group])
    whole = get(first.op).term(inputs, *first.args[1:], **dict(first.attrs))
    found, start = {}, 0
    for node in group:
        n, *rest = sizes(node)
        found[node] = cut(whole, ((start, start + n), *((0, m) for m in rest)))
        start += n
    return found


def _along_batch(parts: Sequence[Node]) -> Node:
    """Equal pads are made once."""
    first, *rest = map(margin, parts)
    if first is None or any(each != first for each in rest) or first.low[0] or first.high[0]:
        return join(parts, 0)
    return padded_term(join([p.args[0] for p in parts], 0), first.low, first.high, first.value)


def _folded(outputs: Sequence[Node]) -> tuple[Node, ...]:
    """Move a pad into its operator again if no other operator uses it and the operator has such an
    attribute."""
    order = topological(outputs)
    uses = users(order)
    done: dict[Node, Node] = {}
    for node in order:
        new = with_args(node, tuple([done[a] for a in node.args]))
        done[node] = _absorbed(new) if node.args and len(uses[node.args[0]]) == 1 else new
    return tuple([done[o] for o in outputs])


def _absorbed(node: Node) -> Node:
    absorb, around = traits(node).absorb, margin(node.args[0])
    if absorb is None or around is None:
        return node
    return absorb(node, node.args[0].args[0], around) or node
