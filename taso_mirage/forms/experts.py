"""Layers of experts (Shazeer et al., ICLR'17) as kernels for the CPU: of each expert only the rows
of those tokens are computed that have a share of it.

A model writes such a layer in one of two ways. Either it computes every expert for every token, and
adds the results by shares that are zero but for a few. Or it gathers the weights of the chosen
experts for each token. Both are the operator `experts`, whose shares say how many rows each expert
has in a run. That the model writes the one or the other is proved (`prove_symbolic`); that the
operator computes the same is tested in the field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf

import numpy as np

from taso_mirage.devices.device import Device
from taso_mirage.emit.cpu.elementwise import has_cpp
from taso_mirage.emit.cpu.prepared import CpuProgram, TemplateInstance
from taso_mirage.errors import TasoMirageError
from taso_mirage.forms.base.form import Form, IsWanted, Users
from taso_mirage.ir.dims import Dim, Symbolic, dim_product, evaluate
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import (
    ABSENT,
    Graph,
    Node,
    Tensor,
    constant,
    is_constant,
    is_part,
    substitute,
    topological,
    variable,
)
from taso_mirage.meanings.index_maps import position
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.mugraph.free import FreeSizes, with_free_names
from taso_mirage.mugraph.movement_terms import movements
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.interpret import retyped
from taso_mirage.operators.movements import index_map
from taso_mirage.operators.ops import term, traits
from taso_mirage.operators.work import work
from taso_mirage.prove.symbolic import Proved, prove_symbolic
from taso_mirage.rewriting.derived_traits import elementwise, selects
from taso_mirage.rewriting.forms import ADDED, RegionPattern
from taso_mirage.verdicts import Evidence, Failure

BLOCKS = (64, 6), (32, 6), (16, 6)
"""Columns of a strip, and rows of a tile."""
SMALL = 3, 3, 2, 2, 2
"""Tokens, experts, width, hidden width and columns of the results where the field tests a layer,
and every second share is zero."""
SUMMED = RegionPattern("reduce_sum(y, axes=axes, keepdims=0)")
SCALED, MULTIPLIED = RegionPattern("mul(y, z)"), RegionPattern("matmul(x, w)")


@dataclass(frozen=True, slots=True)
class ExpertProduct:
    """A product of all experts: its weights (e,k,n), or (e,n,k) if `transposed`, and biases (e,n),
    or ABSENT. Every `step`-th column from `start` on is read."""

    w: Node
    b: Node = ABSENT
    transposed: bool = False
    start: int = 0
    step: int = 1

    @property
    def sizes(self) -> tuple[int, int]:
        """k and n"""
        k, n = map(int, self.w.shape[:0:-1] if self.transposed else self.w.shape[1:])
        return k, n

    def every(self, x: Node, count: Dim) -> Node:
        """(t,k) or (e,t,k) -> (e,t,count)"""
        y = term("matmul", x, term("transpose", self.w, perm=(0, 2, 1)) if self.transposed else self.w)
        y = y if self.b is ABSENT else term("add", y, term("unsqueeze", self.b, axes=(1,)))
        return self._read(y, count)

    def chosen(self, x: Node, indices: Node, count: Dim) -> Node:
        """(t,1,1,k) or (t,s,1,k), the experts of each token (t,s) -> (t,s,1,count)"""
        w = term("gather", self.w, indices, axis=0)
        y = term("matmul", x, term("transpose", w, perm=(0, 1, 3, 2)) if self.transposed else w)
        if self.b is not ABSENT:
            y = term("add", y, term("unsqueeze", term("gather", self.b, indices, axis=0), axes=(2,)))
        return self._read(y, count)

    def weights(self, name: str, sizes: tuple[int, int, int]) -> Node:
        """A leaf for weights of e, k and n."""
        e, k, n = sizes
        return variable(name, Tensor(self.w.dtype, (e, n, k) if self.transposed else (e, k, n)))

    def _read(self, y: Node, count: Dim) -> Node:
        if (self.start, self.step) == (0, 1) and y.shape[-1] == count:
            return y
        end = self.start + (count - 1) * self.step + 1
        axis = len(y.shape) - 1
        return term("slice", y, axes=(axis,), starts=(self.start,), ends=(end,), steps=(self.step,))


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """A layer of experts: the results of `last` of the function `hidden` of the `products` of x, by
    the shares.

    `shares`: (t,e), or (e,t) if `by_expert`; with `chosen`, indices of experts (t,s), they are (t,s).
    """

    x: Node
    shares: Node
    products: tuple[ExpertProduct, ...]
    hidden: Graph
    last: ExpertProduct
    chosen: Node = ABSENT
    by_expert: int = 0
    large, once, joins, by_values = True, False, False, True
    together = "experts"
    slack = inf

    @property
    def known(self) -> list[Node]:
        """The operands that are weights."""
        return [a for each in (*self.products, self.last) for a in (each.w, each.b) if a is not ABSENT]

    @property
    def leaves(self) -> tuple[Node, ...]:
        """All operands, each once."""
        given = [self.x, self.shares, self.chosen, *self.known]
        return tuple(dict.fromkeys(each for each in given if each is not ABSENT))

    @property
    def goal(self) -> Node:
        """The layer in operators of ONNX."""
        width, n = self.last.sizes
        x = self.x if len(self.x.shape) == 2 else term("reshape", self.x, shape=self._matrix(self.x))
        if self.chosen is ABSENT:
            made = [each.every(x, width) for each in self.products]
            y = self.last.every(self._hidden(made), n)
            shares = self.shares if self.by_expert else term("transpose", self.shares, perm=(1, 0))
            return _weighted(y, shares, 0)
        x = term("unsqueeze", x, axes=(1, 2))
        made = [each.chosen(x, self.chosen, width) for each in self.products]
        y = self.last.chosen(self._hidden(made), self.chosen, n)
        return _weighted(term("squeeze", y, axes=(2,)), self.shares, 1)

    def _matrix(self, x: Node) -> tuple[Dim, ...]:
        return dim_product(x.shape[:-1]), x.shape[-1]

    def _hidden(self, made: Sequence[Node]) -> Node:
        return retyped(self.hidden.outputs, dict(zip(self.hidden.inputs, made, strict=True)))[0]

    def mugraph(self, block: tuple[int, int]) -> Node:
        """The layer by the rows of each expert."""
        (a, *more), last = self.products, self.last
        b = more[0] if more else ExpertProduct(ABSENT)
        operands = self.x, a.w, self.dense_shares(), b.w, last.w, a.b, b.b, last.b
        columns = tuple([(each.start, each.step) for each in self.products])
        transposed = tuple([int(each.transposed) for each in (a, b, last)])
        return term(
            "experts",
            *operands,
            hidden=self.hidden,
            columns=columns,
            by_expert=self.by_expert,
            transposed=transposed,
            block=block,
        )

    def dense_shares(self) -> Node:
        """The share of each token and expert; what a token has of an expert in several places is
        added."""
        if self.chosen is ABSENT:
            return self.shares
        numbers = constant(np.array([0, 1], self.shares.dtype))
        places = term("one_hot", self.chosen, numbers, depth=self.last.w.shape[0], axis=2)
        return term("reduce_sum", term("mul", places, term("unsqueeze", self.shares, axes=(2,))), axes=(1,), keepdims=0)

    def small(self) -> ExpertLayer:
        """This layer of few tokens and experts. Every second share is zero where they are all
        given."""
        t, e, k, f, n = SMALL
        of = ABSENT if self.chosen is ABSENT else variable("chosen", Tensor("int64", (t, 2)))
        shares = variable("shares", Tensor(self.x.dtype, (t, e) if of is ABSENT else (t, 2)))
        if of is ABSENT:
            mask = np.arange(t * e).reshape(t, e) % 2
            shares = term("mul", shares, constant(mask.astype(shares.dtype)))
            shares = term("transpose", shares, perm=(1, 0)) if self.by_expert else shares
        x = variable("x", Tensor(self.x.dtype, (*(1 for _ in self.x.shape[:-2]), t, k)))
        starts = sorted({each.start for each in self.products if each.step == 1})
        products = [
            replace(each, start=each.start if each.step > 1 else f * starts.index(each.start)) for each in self.products
        ]
        wide = max(each.start + (f - 1) * each.step + 1 for each in products)
        leaves = {each.w: each.weights(f"w{i}", (e, k, wide)) for i, each in enumerate(products)}
        leaves |= {
            b: variable(f"b{i}", Tensor(b.dtype, (e, wide)))
            for i, b in enumerate(p.b for p in products)
            if b is not ABSENT
        }
        bias = self.last.b if self.last.b is ABSENT else variable("b", Tensor(self.last.b.dtype, (e, n)))
        last = replace(self.last, w=self.last.weights("w", (e, f, n)), b=bias)
        first = tuple([replace(each, w=leaves[each.w], b=leaves.get(each.b, ABSENT)) for each in products])
        return replace(self, x=x, shares=shares, products=first, last=last, chosen=of)

    def evidence(self) -> Evidence | Failure:
        """The evidence for the layer's muGraphs."""
        return _evidence(self.small())

    def mugraphs(self, graph: Graph, device: Device) -> list[FoundMuGraph]:
        """The verified muGraphs of `graph`, from which this goal was read, at one estimate."""
        evidence = self.evidence()
        if not isinstance(evidence, Evidence):
            return []
        made = [Graph(graph.inputs, (self.mugraph(block),)) for block in BLOCKS]
        seconds = work(self.goal, {}).flops / device.flops
        return [FoundMuGraph(each, graph, seconds, device.name, evidence) for each in made]

    def saved(self, device: Device) -> float:
        """Seconds that the kernel may save: half of those of all products."""
        return work(self.goal, {}).flops / 2 / device.flops


def _weighted(y: Node, shares: Node, axis: int) -> Node:
    """The sum along an axis of (.., .., n) by shares (.., ..)."""
    return term("reduce_sum", term("mul", y, term("unsqueeze", shares, axes=(2,))), axes=(axis,), keepdims=0)


@lru_cache(maxsize=64)
def _evidence(made: ExpertLayer) -> Evidence | Failure:
    """At small sizes: the algebra depends on none of them."""
    leaves = tuple([n for n in topological([made.goal]) if n.op == "input"])
    return verified_mugraph(Graph(leaves, (made.mugraph(BLOCKS[0]),)), Graph(leaves, (made.goal,)))


# ---------------------------------------------------------------- the goal


def expert_layer(goal: Graph) -> ExpertLayer | None:
    """Read a goal that is a layer of experts; None for other goals."""
    made = _read(goal.outputs[0]) if len(goal.outputs) == 1 else None
    if made is None or not set(made.leaves) <= set(goal.inputs):
        return None
    return next((each for each in _oriented(made) if _is_goal(each, goal)), None)


def _follows(goal: Graph, named: Graph, free: FreeSizes) -> bool:
    """Whether the layer that a goal is, with names for its sizes, is the goal at every size."""
    made, every = expert_layer(goal), expert_layer(named)
    if made is None or every is None:
        return False
    return with_free_names(Graph(goal.inputs, (made.goal,)), free).outputs == (every.goal,)


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


def _read(whole: Node) -> ExpertLayer | None:
    """The layer whose sum a term may be, by its operators; the proof that it is one follows."""
    found = SUMMED.match(whole)
    scaled = None if found is None or len(found["axes"]) != 1 else SCALED.match(_source(found["y"]))
    if scaled is None or whole.dtype != "float32":
        return None
    for y, shares in ((scaled["y"], scaled["z"]), (scaled["z"], scaled["y"])):
        last = _product(_source(y))
        if last is None or last.product.sizes[1] != whole.shape[-1]:
            continue
        inner = _Hidden(dim_product(whole.shape[:-1]))
        outputs = inner.function(last.x)
        if outputs is None or not 1 <= len(inner.found) <= 2 or not inner.agree(last.chosen):
            continue
        body = Graph(tuple(inner.found.values()), (outputs,))
        if not has_cpp(body):
            continue
        return ExpertLayer(inner.x, _source(shares), tuple(inner.found), body, last.product, last.chosen)
    return None


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
    made = [_with_weights(node, left) for left in (False, True)]
    found = [each for each in made if each is not None]
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
    while (inner := _moved(node)) is not None:
        node = inner
    return node


def _moved(node: Node) -> Node | None:
    """The operand whose elements a term moves by what is known before the model runs."""
    whole = node.args[0] if is_part(node) else node
    known = len(whole.args) > 0 and all(a is ABSENT or is_constant(a) for a in whole.args[1:])
    return whole.args[0] if known and whole.op != "opaque" and selects(whole.op) else None


def _weights(node: Node) -> tuple[Node, Node]:
    """The tensor of which a term has the rows of some indices, and the indices; ABSENT for all of
    them."""
    node, chosen = _source(node), ABSENT
    if traits(node).lowering is Lowering.GATHER or (node.args and node.op == "gather_nd"):
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
        self.data[_data(made.x, (self.rows, product.sizes[0]))] = None
        self.chosen[made.chosen] = None
        return self.found.setdefault(product, variable(f"v{len(self.found)}", Tensor(node.dtype, (1,))))


def _is_number(node: Node) -> bool:
    return is_constant(node) and node.attr("value").numpy().size == 1


def _data(node: Node, matrix: tuple[Dim, Dim]) -> Node:
    """Of a term and those whose elements it moves, the first that is a matrix of such a shape; else
    the last with as many rows and columns."""
    found, each = node, node
    while each.shape != matrix:
        found = each if (dim_product(each.shape[:-1]), each.shape[-1]) == matrix else found
        if (inner := _moved(each)) is None:
            return found
        each = inner
    return each


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


# ---------------------------------------------------------------- the program


def _instance(node: Node) -> TemplateInstance:
    x, first, _, beside, last, *biases = (*node.args, ABSENT, ABSENT, ABSENT)[:8]
    (columns, most), rows = node.attr("block"), dim_product(x.shape[:-1])
    products = [
        ExpertProduct(w, ABSENT, bool(t)) for w, t in zip((first, beside, last), node.attr("transposed"), strict=True)
    ]
    (wide, width), free = products[2].sizes, isinstance(rows, Symbolic)
    read = [(each.sizes[1], *own) for each, own in zip(products, node.attr("columns"), strict=False)]
    sizes = 0 if free else rows, first.shape[0], products[0].sizes[0], wide, width
    strips = -(-wide // columns)
    return TemplateInstance(
        headers=("experts.h",),
        name="Experts",
        block=columns,
        sizes=(*sizes, *(n for each in (read[0], read[-1]) for n in each), columns, most),
        layout=("experts", columns),
        switches=(
            bool(node.attr("by_expert")),
            *(each.transposed for each in products),
            *(b is not ABSENT for b in biases),
            free,
        ),
        fixed=(*x.shape[-1:], *last.shape),
        rows=rows if free else 0,
        weights=(1, 3, 4, 5, 6, 7),
        first=(strips, 4 * columns * first.shape[0] * rows, 0),
        function=(node.attr("hidden"), columns),
    )


def _members(node: Node, users: Users, wanted: IsWanted, sizes: Mapping[str, int]) -> list[Node]:
    """The terms of a layer, by its sum."""
    made = _read(node)
    if made is None or not all(map(is_weight, made.known)):
        return []
    leaves = set(made.leaves)
    return [each for each in topological([node], stop=leaves) if each not in leaves and not is_constant(each)]


FORM = Form(CpuProgram("experts", _instance), expert_layer, _members, follows=_follows)
