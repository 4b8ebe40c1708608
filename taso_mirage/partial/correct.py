"""A partially equivalent program made whole (PET, OSDI'21, section 6): the original on what fails, stitched into the mutant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from taso_mirage.errors import Unsupported
from taso_mirage.expressions import is_weight
from taso_mirage.ir import Graph, Node, substitute, topological, users, with_args
from taso_mirage.meanings.work import work
from taso_mirage.ops import get, term
from taso_mirage.partial.agreement import Agreement
from taso_mirage.partial.copies import cut, join, padded, sizes
from taso_mirage.partial.pieces import Piece, pieces
from taso_mirage.partial.restrict import Restriction


def correct(original: Graph, mutant: Graph, agreement: Agreement, joined: bool = True) -> Graph:
    """The program that is the mutant where both agree and the original elsewhere.

    `joined`: corrections that share their weights are one operator over their inputs, concatenated along the batch. Raises Unsupported
    where nothing agrees, the region is too ragged, an operator has no restriction, or the corrections do as much work as the original.
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
    """Refuse corrections that are no smaller than what they correct."""
    shared = set(topological(mutant.outputs))
    own = products(n for n in topological(corrected) if n not in shared)
    whole = products(topological(original.outputs))
    if own and own >= whole:
        raise Unsupported(f"the corrections multiply {own} times, the original {whole}: no part of it is smaller")


def products(nodes: Iterable[Node]) -> int:
    """Operations of the terms that multiply, but for those that are known before the run."""
    return sum(work(n, {}).flops for n in nodes if n.op in ("conv", "matmul") and not is_weight(n))


# ---------------------------------------------------------------- what is shared


def _joined(outputs: Sequence[Node]) -> tuple[Node, ...]:
    """Products with the same weights that do not hang on each other, as one over their inputs along the batch, until there are none."""
    found = tuple(outputs)
    while (group := next(_alike(found), None)) is not None:
        found = substitute(found, _as_one(group))
    return found


def _alike(outputs: Sequence[Node]) -> Iterator[list[Node]]:
    groups: dict[object, list[Node]] = {}
    for node in topological(outputs):
        batched = node.op == "conv" or (node.op == "matmul" and len(sizes(node.args[1])) == 2 < 1 + len(sizes(node)))
        if batched and not is_weight(node):
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
    pads = {(p.op, p.attrs) for p in parts}
    if len(pads) > 1 or parts[0].op != "pad" or parts[0].attr("mode") != "constant":
        return join(parts, 0)
    given, rank = parts[0].attr("pads"), len(sizes(parts[0]))
    if given[0] or given[rank]:
        return join(parts, 0)
    return padded(join([p.args[0] for p in parts], 0), given[:rank], given[rank:], parts[0].attr("value"))


def _folded(outputs: Sequence[Node]) -> tuple[Node, ...]:
    """Pads that one convolution alone uses are its own again."""
    order = topological(outputs)
    uses = users(order)
    done: dict[Node, Node] = {}
    for node in order:
        new = with_args(node, tuple([done[a] for a in node.args]))
        lone = node.op == "conv" and _absorbs(node.args[0]) and len(uses[node.args[0]]) == 1
        done[node] = _with_pads(new) if lone else new
    return tuple([done[o] for o in outputs])


def _absorbs(x: Node) -> bool:
    if x.op != "pad" or x.attr("mode") != "constant" or x.attr("value") != 0:
        return False
    pads, rank = x.attr("pads"), len(sizes(x))
    return min(pads) >= 0 and not any((*pads[:2], *pads[rank : rank + 2]))


def _with_pads(node: Node) -> Node:
    x, *rest = node.args
    pads, rank = x.attr("pads"), len(sizes(x))
    sums = [p + q for p, q in zip(node.attr("pads"), (*pads[2:rank], *pads[rank + 2 :]), strict=True)]
    return term("conv", x.args[0], *rest, **{**dict(node.attrs), "pads": sums})
