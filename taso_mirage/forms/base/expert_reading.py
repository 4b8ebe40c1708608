"""The layer of experts that a graph is (`expert_layers.py`): its operators say which it may be, and
a proof that the layer in its usual operators is the graph decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from taso_mirage.errors import TasoMirageError
from taso_mirage.forms.base.expert_layers import ExpertLayer, ExpertProduct
from taso_mirage.ir.dims import Dim, Shape, dim_product, evaluate
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, is_constant, is_part, substitute, variable
from taso_mirage.meanings.index_maps import position
from taso_mirage.mugraph.movement_terms import movements
from taso_mirage.operators.movements import index_map
from taso_mirage.operators.ops import term
from taso_mirage.prove.symbolic import Proved, prove_symbolic
from taso_mirage.rewriting.derived_traits import elementwise, selects
from taso_mirage.rewriting.forms import ADDED, RegionPattern

INTEGERS = ("int32", "int64")
SUMMED = RegionPattern("reduce_sum(y, axes=axes, keepdims=0)")
SCALED, MULTIPLIED = RegionPattern("mul(y, z)"), RegionPattern("matmul(x, w)")


def expert_layer(goal: Graph) -> ExpertLayer | None:
    """Read a goal that is a layer of experts; None for other goals."""
    made = possible_layer(goal.outputs[0]) if len(goal.outputs) == 1 else None
    if made is None or not set(made.leaves) <= set(goal.inputs):
        return None
    return next((each for each in _oriented(made) if _is_goal(each, goal)), None)


def _oriented(made: ExpertLayer) -> Iterator[ExpertLayer]:
    """The layer with its shares by tokens, and by experts."""
    count, rows = made.last.w.shape[0], dim_product(made.x.shape[:-1])
    shares = made.shares.shape
    if made.chosen is not ABSENT:
        yield from [made] if len(shares) == 2 and shares == made.chosen.shape and shares[0] == rows else []
        return
    yield from [made] if shares == (rows, count) else []
    yield from [replace(made, by_expert=1)] if shares == (count, rows) else []


def _is_goal(made: ExpertLayer, goal: Graph) -> bool:
    try:
        whole = made.goal
    except TasoMirageError:
        return False
    return whole.type == goal.outputs[0].type and isinstance(prove_symbolic(goal.outputs, (whole,)), Proved)


def possible_layer(whole: Node) -> ExpertLayer | None:
    """The layer whose sum a term may be, by its operators."""
    found = SUMMED.match(whole)
    scaled = None if found is None or len(found["axes"]) != 1 else SCALED.match(_source(found["y"]))
    if scaled is None or whole.dtype != "float32":
        return None
    for y, shares in ((scaled["y"], scaled["z"]), (scaled["z"], scaled["y"])):
        last = _product(_source(y))
        if last is not None and last.product.sizes[1] == whole.shape[-1]:
            return _layer(last, shares, dim_product(whole.shape[:-1]))
    return None


def _layer(last: _FoundProduct, shares: Node, rows: Dim) -> ExpertLayer | None:
    """The layer with this last product."""
    inner, count = _Hidden(rows), last.product.w.shape[0]
    made = inner.function(last.x)
    if made is None or not 1 <= len(inner.found) <= 2 or not inner.agree(last.chosen):
        return None
    if last.chosen is ABSENT:
        shares = _last(shares, lambda shape: shape in ((rows, count), (count, rows)))
    else:
        shares = _last(shares, lambda shape: len(shape) == 2 and shape[0] == rows)
    body = Graph(tuple(inner.found.values()), (made,))
    return ExpertLayer(inner.x, shares, tuple(inner.found), body, last.product, last.chosen)


@dataclass(frozen=True, slots=True)
class _FoundProduct:
    """A product of experts, its data, and the indices of those whose weights are gathered."""

    x: Node
    product: ExpertProduct
    chosen: Node
    left: bool
    """Whether the weights are the first operand, so that columns are rows of the product."""


def _product(node: Node) -> _FoundProduct | None:
    """The product that a term may be, with its bias."""
    if ADDED.match(node) is not None:
        for y, b in (node.args, node.args[::-1]):
            made, (bias, chosen) = _product(_source(y)), _weights(b)
            if made is not None and made.product.b is ABSENT and not bias.args and len(bias.shape) == 2:
                same = chosen is made.chosen
                return replace(made, product=replace(made.product, b=bias)) if same else None
    if MULTIPLIED.match(node) is None:
        return None
    found = [each for left in (False, True) if (each := _with_weights(node, left)) is not None]
    return max(found, key=lambda each: (each.chosen is not ABSENT, each.product.w.shape[0]), default=None)


def _with_weights(node: Node, left: bool) -> _FoundProduct | None:
    """A product whose weights are an operand: data that is repeated may look like weights of one
    expert."""
    x, other = node.args[::-1] if left else node.args
    w, chosen = _weights(other)
    if w.args or len(w.shape) != 3 or not all(isinstance(n, int) for n in w.shape):
        return None
    return _FoundProduct(x, ExpertProduct(w, transposed=left == (other.shape[-2:] == w.shape[1:])), chosen, left)


def _source(node: Node) -> Node:
    """The term of which a term only moves, or repeats, elements."""
    return _moves(node)[-1]


def _moves(node: Node) -> list[Node]:
    """A term, and those whose elements it moves."""
    terms = [node]
    while (inner := _moved(terms[-1])) is not None:
        terms.append(inner)
    return terms


def _moved(node: Node) -> Node | None:
    """The operand whose elements a term moves by what is known before the model runs."""
    whole = node.args[0] if is_part(node) else node
    known = len(whole.args) > 0 and all(a is ABSENT or is_constant(a) for a in whole.args[1:])
    return whole.args[0] if known and whole.op != "opaque" and selects(whole.op) else None


def _weights(node: Node) -> tuple[Node, Node]:
    """The tensor of which a term has the rows of some indices, and the indices; ABSENT for all of
    them."""
    node, chosen = _source(node), ABSENT
    if len(node.args) == 2 and node.args[1].dtype in INTEGERS:
        node, chosen = _source(node.args[0]), _source(node.args[1])
    return node, chosen


class _Hidden:
    """The function of the hidden numbers, with the products that it reads, each with the number
    that stands for it."""

    def __init__(self, rows: Dim) -> None:
        self.rows = rows
        self.found: dict[ExpertProduct, Node] = {}
        self.data: dict[Node, None] = {}
        self.chosen: dict[Node, None] = {}

    @property
    def x(self) -> Node:
        return next(iter(self.data))

    def agree(self, chosen: Node) -> bool:
        """Whether all products read one x, with the experts of these indices."""
        return len(self.data) == 1 and list(self.chosen) == [chosen]

    def function(self, node: Node) -> Node | None:
        """A term over the numbers that stand for the products; None if it is no function of
        them."""
        source = _source(node)
        if (made := _product(source)) is not None:
            return self._read(made, node, source)
        if not source.args or source.op == "opaque" or not elementwise(source.op):
            return None
        args = [a if a is ABSENT or _is_number(a) else self.function(a) for a in source.args]
        return None if None in args else term(source.op, *args, **dict(source.attrs))

    def _read(self, made: _FoundProduct, node: Node, source: Node) -> Node | None:
        columns = _columns(node, source, len(source.shape) - 1 - made.left)
        if columns is None:
            return None
        product = replace(made.product, start=columns[0], step=columns[1])
        self.data[_data(made.x, self.rows, product.sizes[0])] = None
        self.chosen[made.chosen] = None
        return self.found.setdefault(product, variable(f"v{len(self.found)}", Tensor(node.dtype, (1,))))


def _is_number(node: Node) -> bool:
    return is_constant(node) and node.attr("value").numpy().size == 1


def _last(node: Node, accepted: Callable[[Shape], bool]) -> Node:
    """The last term of an accepted shape among one and those whose elements it moves."""
    terms = [each for each in _moves(node) if accepted(each.shape)]
    return (terms or [node])[-1]


def _data(node: Node, rows: Dim, columns: int) -> Node:
    """The matrix whose rows a term repeats or views; else the last term with as many rows."""
    terms = [each for each in _moves(node) if (dim_product(each.shape[:-1]), each.shape[-1]) == (rows, columns)]
    return next((each for each in terms if len(each.shape) == 2), (terms or [node])[-1])


def _columns(node: Node, source: Node, axis: int) -> tuple[int, int] | None:
    """The first column that a term has of a product, which has them along this axis, and the
    distance to the next."""
    if node is source:
        return 0, 1
    try:
        (over,) = movements(substitute((node,), {source: variable("moved", source.tensor)}))
        (piece,) = index_map(over).pieces
        names = list(map(position, range(len(over.shape))))
        start = int(evaluate(piece.index[axis], dict.fromkeys(names, 0)))
        nexts = [int(evaluate(piece.index[axis], dict.fromkeys(names, 0) | {name: 1})) for name in names]
    except (TasoMirageError, LookupError, TypeError, ValueError):
        return None
    return start, max(max(nexts) - start, 1)
