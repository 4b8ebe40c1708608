"""Equalities of sizes that a model requires: between dims of different names (a mask over past and
new tokens that is added to scores), or between a dim and a weight's size."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from taso_mirage.ir.dims import Dim, Symbolic, dim_product, evaluate, symbol, symbols
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import ABSENT, Node, Tensor
from taso_mirage.rewriting.derived_traits import elementwise

BROADCAST = frozenset(
    "Add Sub Mul Div Mod Pow Sum Max Min Mean Where And Or Xor Equal Less Greater LessOrEqual GreaterOrEqual PRelu".split()
)
"""ONNX operators whose operands broadcast. Where their dims are not known to be equal, they have no
term here."""
SUMMED = {"MatMul": (-1, -2), "LSTM": (-1, -1), "GRU": (-1, -1), "RNN": (-1, -1)}
"""ONNX operators of two operands that are summed over: the axis of each."""
PASSES = 4
"""The number of rounds over all relations, because one may undo another."""


@dataclass(frozen=True, slots=True)
class SizeRelation:
    """Two dims that must be equal. If they broadcast, one may be 1 instead. If `left` is a part of
    a `whole`, the whole must be a multiple of `right`."""

    left: Dim
    right: Dim
    broadcasts: bool = True
    whole: Dim = 0

    def holds(self, sizes: Mapping[str, int]) -> bool:
        a, b, whole = (evaluate(dim, sizes) for dim in (self.left, self.right, self.whole))
        return a == b or (self.broadcasts and 1 in (a, b)) or (whole > 0 and b > 0 and whole % b == 0)


def relations(model: Model) -> list[SizeRelation]:
    """The relations that follow from the types of a model's operands, each once."""
    found = dict.fromkeys(
        each
        for node in model.nodes()
        for each in _asked(node)
        if each.left != each.right and 1 not in (each.left, each.right)
    )
    known = {*model.symbols()}
    return [each for each in found if (symbols(each.left) | symbols(each.right)) <= known]


def sums(model: Model) -> list[Symbolic]:
    """The dims of outputs that are sums of dims of inputs (`past + 1`), each once."""
    dims, known = dict.fromkeys(d for node in model.graph.outputs for d in node.tensor.shape or ()), {*model.symbols()}
    return [d for d in dims if isinstance(d, Symbolic) and len(d.terms) > 1 and symbols(d) <= known]


def suspected(model: Model, sizes: Mapping[str, int]) -> list[SizeRelation]:
    """Relations that hold at these sizes, and that the types do not tell: a dim of inputs is as
    large as a sum among the outputs' dims."""
    return [
        SizeRelation(symbol(name), total, broadcasts=False)
        for total in sums(model)
        for name in model.symbols()
        if name not in symbols(total) and sizes[name] == evaluate(total, sizes)
    ]


def agreed(sizes: Mapping[str, int], asked: Sequence[SizeRelation], held: Collection[str]) -> dict[str, int]:
    """The sizes, with some that are not `held` changed so that as many relations as possible
    hold."""
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
    factors = _linear(difference)
    order = [*sizes]
    for name in sorted(factors, key=lambda n: (n in alone, order.index(n)), reverse=True):
        solved = {**sizes, name: sizes[name] - evaluate(difference, sizes) // factors[name]}
        if name not in held and solved[name] >= 1 and relation.holds(solved):
            sizes[name] = solved[name]
            return


def _linear(dim: Dim) -> dict[str, int]:
    """The names that a dim may be solved for, with their factors."""
    if not isinstance(dim, Symbolic):
        return {}
    single = [(monomial[0][0], c) for monomial, c in dim.terms if len(monomial) == 1 and monomial[0][1] == 1]
    return {name: c for name, c in single if isinstance(name, str)}


def _is_name(dim: Dim) -> bool:
    return isinstance(dim, Symbolic) and len(dim.terms) == 1


def _asked(node: Node) -> Iterator[SizeRelation]:
    shapes = [a.type.shape for a in node.args if a is not ABSENT and isinstance(a.type, Tensor)]
    known = [shape for shape in shapes if shape is not None]
    if node.op == "opaque" and str(node.attr("call")) == "Reshape":
        yield from _regrouped(node)
        return
    if len(known) < 2 or len(known) < sum(a is not ABSENT for a in node.args):
        return
    if node.op != "opaque":
        yield from _broadcast(known) if elementwise(node.op) else ()
        return
    kind = str(node.attr("call"))
    if kind in BROADCAST:
        yield from _broadcast(known)
    elif kind in SUMMED and len(known[0]) > 1 and len(known[1]) > 1:
        yield SizeRelation(known[0][SUMMED[kind][0]], known[1][SUMMED[kind][1]], broadcasts=False)
    elif kind == "Concat":
        yield from _joined(known, node)


def _broadcast(shapes: Sequence[tuple[Dim, ...]]) -> Iterator[SizeRelation]:
    for first, second in pairwise(shapes):
        yield from (SizeRelation(a, b) for a, b in zip(reversed(first), reversed(second), strict=False))


def _joined(shapes: Sequence[tuple[Dim, ...]], node: Node) -> Iterator[SizeRelation]:
    given = node.attr("call").node.attributes["axis"]
    if given.is_ref():  # a name of a function without a model; the runtime decides
        return
    axis = given.as_int()
    for first, second in pairwise(shapes):
        for i, (a, b) in enumerate(zip(first, second, strict=False)):
            if i != axis % len(first):
                yield SizeRelation(a, b, broadcasts=False)


def _regrouped(node: Node) -> Iterator[SizeRelation]:
    """Rows of elements, whose number depends on how many there are: best those that there were. Or
    all elements."""
    had, made = (each.shape if isinstance(each, Tensor) else None for each in (node.args[0].type, node.type))
    if not had or not made or not isinstance(row := dim_product(made[1:]), int):
        return
    if isinstance(made[0], int):
        yield SizeRelation(dim_product(had), made[0] * row, broadcasts=False)
    else:
        yield SizeRelation(dim_product(had[1:] or had), row, broadcasts=False, whole=dim_product(had))
