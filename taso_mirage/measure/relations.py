"""Which sizes of a model have to agree: what its operators ask of dims that have different names,
such as a mask over past and new tokens that is added to scores."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from taso_mirage.ir.dims import Dim, Symbolic, evaluate, symbols
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import ABSENT, Node, Tensor
from taso_mirage.rewriting.derived_traits import elementwise

BROADCAST = frozenset(
    "Add Sub Mul Div Mod Pow Sum Max Min Mean Where And Or Xor Equal Less Greater LessOrEqual GreaterOrEqual PRelu".split()
)
"""ONNX operators whose operands broadcast. Where their dims are not known to be equal, they have no
term here."""
PASSES = 4
"""Times that all relations are gone through: one may undo another."""


@dataclass(frozen=True, slots=True)
class SizeRelation:
    """Two dims that have to be equal; where they broadcast, one may be 1 instead."""

    left: Dim
    right: Dim
    broadcasts: bool = True

    def holds(self, sizes: Mapping[str, int]) -> bool:
        a, b = evaluate(self.left, sizes), evaluate(self.right, sizes)
        return a == b or (self.broadcasts and 1 in (a, b))


def relations(model: Model) -> list[SizeRelation]:
    """The relations that the types of a model's operands say, each once."""
    found = dict.fromkeys(
        each
        for node in model.nodes()
        for each in _asked(node)
        if each.left != each.right and 1 not in (each.left, each.right)
    )
    known = {*model.symbols()}
    return [each for each in found if _names(each) <= known]


def agreed(sizes: Mapping[str, int], asked: Sequence[SizeRelation], held: Collection[str]) -> dict[str, int]:
    """The sizes with some that are not `held` changed, so that as many relations hold as can."""
    found = dict(sizes)
    for _ in range(PASSES):
        broken = [each for each in asked if not each.holds(found)]
        for each in broken:
            _mend(found, each, held)
        if not broken:
            break
    return found


def _mend(sizes: dict[str, int], relation: SizeRelation, held: Collection[str]) -> None:
    """Solve one relation for the last of its names: first those that are a side alone (a total),
    then those that are part of a sum."""
    alone = [name for side in (relation.left, relation.right) for name in _linear(side) if _is_name(side)]
    difference = relation.left - relation.right
    signs = _linear(difference)
    order = [*sizes]
    for name in sorted(signs, key=lambda n: (n in alone, order.index(n)), reverse=True):
        size = sizes[name] - signs[name] * evaluate(difference, sizes)
        if name not in held and size >= 1:
            sizes[name] = size
            return


def _linear(dim: Dim) -> dict[str, int]:
    """The names that a dim can be solved for, with their signs."""
    if not isinstance(dim, Symbolic):
        return {}
    single = [(monomial[0][0], c) for monomial, c in dim.terms if len(monomial) == 1 and monomial[0][1] == 1]
    return {name: c for name, c in single if isinstance(name, str) and c in (1, -1)}


def _is_name(dim: Dim) -> bool:
    return isinstance(dim, Symbolic) and len(dim.terms) == 1


def _names(relation: SizeRelation) -> set[str]:
    return symbols(relation.left) | symbols(relation.right)


def _asked(node: Node) -> Iterator[SizeRelation]:
    shapes = [a.type.shape for a in node.args if a is not ABSENT and isinstance(a.type, Tensor)]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < 2 or len(known) < len(node.args):
        return
    if node.op != "opaque":
        yield from _broadcast(known) if elementwise(node.op) else ()
        return
    kind = str(node.attr("call"))
    if kind in BROADCAST:
        yield from _broadcast(known)
    elif kind == "MatMul" and len(known[0]) > 1 and len(known[1]) > 1:
        yield SizeRelation(known[0][-1], known[1][-2], broadcasts=False)
    elif kind == "Concat":
        yield from _joined(known, node)


def _broadcast(shapes: Sequence[tuple[Dim, ...]]) -> Iterator[SizeRelation]:
    for first, second in pairwise(shapes):
        yield from (SizeRelation(a, b) for a, b in zip(reversed(first), reversed(second), strict=False))


def _joined(shapes: Sequence[tuple[Dim, ...]], node: Node) -> Iterator[SizeRelation]:
    axis = int(node.attr("call").node.attributes["axis"].value)
    for first, second in pairwise(shapes):
        for i, (a, b) in enumerate(zip(first, second, strict=False)):
            if i != axis % len(first):
                yield SizeRelation(a, b, broadcasts=False)
