"""Products with a weight as kernels for the CPU, with the elementwise operators that follow;
weights are stored in the order of their use.

A runtime's product of one row waits for its weights, and for the translation of their addresses.
Weights are read 1.2 times as fast from large pages, and twice as fast if they are stored in half
the width, which is often possible for weights of a checkpoint. A product of more rows is bound by
arithmetic, in which a runtime is good, but not at every size (docs/measured/cpu.md).

Weights of few bits in blocks stay packed: few rows multiply integers, for which a row is digits,
more rows multiply floats that are made of a strip of the weights (`block_linear.h`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf, prod
from typing import Any

from taso_mirage.devices.device import Device
from taso_mirage.devices.machine import cores, has_matrix_unit
from taso_mirage.emit.cpu.elementwise import has_cpp
from taso_mirage.emit.cpu.prepared import CpuProgram, TemplateInstance
from taso_mirage.errors import TasoMirageError
from taso_mirage.forms.base.epilogues import ScalarFunction, broadcasts, following, read_functions, source_terms
from taso_mirage.forms.base.form import Form, IsWanted, Users
from taso_mirage.forms.base.members import FollowingStep, followed
from taso_mirage.ir.dims import Dim, Symbolic, dim_product, fixed
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, variable
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.mugraph.verification import verified_mugraph
from taso_mirage.operators.expressions import is_weight
from taso_mirage.operators.ops import term
from taso_mirage.operators.work import size, work
from taso_mirage.rewriting.derived_traits import elementwise
from taso_mirage.rewriting.forms import ADDED, RegionPattern
from taso_mirage.verdicts import Evidence, Failure

INTEGERS = (64, 1), (32, 1), (16, 1), (64, 2), (32, 2), (32, 4), (16, 4), (16, 8)
"""Blocks of weights of few bits, where a power of two of rows multiplies integers
(`block_linear.h`): columns and rows."""
NARROW_ROWS = 8
"""The number of rows of a tile up to which weights may have their narrow format (`linear.h`)."""
MOST_OF_FREE = 6
"""The number of rows of a tile of few rows where a run gives how many rows there are, and more than
one tile has."""
THIN, WIDE = ((64, NARROW_ROWS), (32, NARROW_ROWS), (16, NARROW_ROWS)), ((48, 9), (64, 6), (32, 12), (16, 6))
"""Columns of a strip of the weights, multiples of the longest vectors, and rows of a tile: of few
rows, and of more."""
TILE_ROWS, DEPTH = 32, 32
"""The rows of a tile of a matrix unit at most, which tells such a block from others, and the
elements of the sum that one step multiplies (`tile_linear.h`)."""
TILED = (32, TILE_ROWS), (64, TILE_ROWS)
"""Blocks of a matrix unit, for products that fill a tile."""
ROUNDING = 4
"""The accuracy level at which a runtime rounds activations to 8 bits, unless zeros are floats; a
kernel rounds to 15."""
TASKS = 4
"""The smallest number of blocks for every core, if the rows can be cut."""
LEAST = 1 << 18
"""The smallest number of elements of the weights; fewer stay in caches."""
MULTIPLIED = tuple(
    RegionPattern(text)
    for text in (
        "matmul(x, w)",
        "matmul_nbits(x, w, scales, **a)",
        "matmul_nbits(x, w, scales, zeros, **a)",
        "matmul_nbits(x, w, scales, None, None, b, **a)",
        "matmul_nbits(x, w, scales, zeros, None, b, **a)",
    )
)
BIASED = MULTIPLIED[3:]
SAVED, SAVED_BY_TILES = (1.0, 0.1), (1.0, 0.5)
"""The estimated savings of the time in which weights come from memory, and of that of the
arithmetic; and on a matrix unit."""


@dataclass(frozen=True, slots=True)
class WeightProduct:
    """A result of a goal that is a product with a weight: its operands, in the order of the
    operator `linear`."""

    x: Node
    w: Node
    b: Node = ABSENT
    z: Node = ABSENT
    scales: Node = ABSENT
    zeros: Node = ABSENT
    form: tuple[tuple[str, int], ...] = ()
    """The attributes of a product with weights of few bits in blocks."""
    biased: bool = False
    """Whether the product itself has the bias."""
    follows: ScalarFunction | None = None
    """The function of the result, if more follows than sums."""
    precedes: ScalarFunction | None = None
    """The function of the data."""

    @property
    def product(self) -> Node:
        """The product alone."""
        x = self.x if self.precedes is None else self.precedes.of(self.x)
        if not self.form:
            return term("matmul", x, self.w)
        bias = self.b if self.biased else ABSENT
        return term("matmul_nbits", x, self.w, self.scales, self.zeros, ABSENT, bias, **dict(self.form))

    @property
    def known(self) -> list[Node]:
        """The operands that are weights."""
        return [each for each in (self.w, self.scales, self.zeros) if each is not ABSENT]

    def goal(self) -> Node:
        """The product as a model writes it."""
        made = self.product
        for other in (ABSENT if self.biased else self.b, self.z):
            made = made if other is ABSENT else term("add", made, other)
        return made if self.follows is None else self.follows.of(made)

    def mugraph(self, block: tuple[int, int, int]) -> Node:
        """With prepared weights."""
        how = {key: value for key, value in self.form if key in ("bits", "block_size")}
        whole = self.zeros is ABSENT or self.zeros.dtype == "uint8"
        how |= {"digits": 2} if whole and dict(self.form).get("accuracy_level") == ROUNDING else {}
        operands = (self.x, self.w, self.b, self.z, self.scales, self.zeros)
        body, prologue = (None if each is None else each.body for each in (self.follows, self.precedes))
        return term("linear", *operands, *self.others, block=block, body=body, prologue=prologue, **how)

    @property
    def others(self) -> tuple[Node, ...]:
        """The operands of both functions."""
        return tuple([a for each in (self.follows, self.precedes) if each is not None for a in each.others])

    @property
    def digits(self) -> tuple[int | None, int | None]:
        """The properties of x's digits on which products of one x must agree."""
        form = dict(self.form)
        return form.get("block_size"), form.get("accuracy_level")

    @property
    def elements(self) -> int:
        """The number of elements of the weights."""
        return int(self.x.shape[-1]) * int(self.product.shape[-1])

    @property
    def rows(self) -> int:
        """The number of rows of all batches."""
        return prod(map(int, self.x.shape[:-1]))

    @property
    def thin(self) -> bool:
        """Whether the product has so few rows that it waits for its weights."""
        return self.rows <= NARROW_ROWS

    @property
    def tiled(self) -> bool:
        """Whether this machine has a matrix unit, and the product fills its tiles."""
        return not self.form and self.rows >= TILE_ROWS and has_matrix_unit()

    def evidence(self) -> Evidence | Failure:
        """The evidence for the product's muGraphs."""
        return _evidence(self._small())

    def _small(self) -> WeightProduct:
        """This product with few rows, columns and blocks, without the functions around it, which
        are the same terms in the goal."""
        rows, form = (2,) * (len(self.x.shape) - 1), dict(self.form)
        shapes: dict[str, tuple[int, ...]] = {"x": (*rows, 3), "w": (3, 5), "b": (5,), "z": (*rows, 5)}
        if form:
            form |= {"K": 19, "N": 5, "block_size": 16}
            packed = (5, form["bits"] // 4) if self.zeros is not ABSENT and self.zeros.dtype == "uint8" else (5, 2)
            shapes |= {"x": (*rows, 19), "w": (5, 2, 2 * form["bits"]), "scales": (5, 2), "zeros": packed}
        made: dict[str, Any] = {"form": tuple(form.items()), "biased": self.biased}
        for name in ("x", "w", "b", "z", "scales", "zeros"):
            old = getattr(self, name)
            made[name] = ABSENT if old is ABSENT else variable(name, Tensor(old.dtype, shapes[name]))
        return WeightProduct(**made)

    def seconds(self, device: Device) -> tuple[float, float]:
        """For the weights to come from memory, and for the arithmetic."""
        return size(self.w.type) / device.bandwidth, work(self.goal(), {}).flops / device.flops

    def saved(self, device: Device) -> float:
        """Seconds that the kernel may save."""
        shares = SAVED_BY_TILES if self.tiled else SAVED
        return max(share * seconds for share, seconds in zip(shares, self.seconds(device), strict=True))

    def blocks(self) -> Iterator[tuple[int, int, int]]:
        """The block sizes of the product's muGraphs."""
        integers = [(n, most) for n, most in INTEGERS if most <= self.rows and (most > 1 or self.rows == 1)]
        few, many = (integers, [*WIDE, *integers]) if self.form else (THIN, WIDE)
        tiled = TILED if self.tiled else ()
        for columns, most in few if self.thin else (*tiled, *many):
            strips, tiles, parts = -(-int(self.product.shape[-1]) // columns), -(-self.rows // most), 1
            while strips * parts < TASKS * cores() and 2 * parts <= tiles:
                parts *= 2
            yield columns, most, parts


@dataclass(frozen=True, slots=True)
class WeightProducts:
    """A goal whose results are products with weights, of one x if they are several."""

    parts: tuple[WeightProduct, ...]
    once, joins, by_values = False, True, False
    together = "products"

    @property
    def known(self) -> list[Node]:
        """The operands that are weights."""
        return [each for part in self.parts for each in part.known]

    def mugraphs(self, graph: Graph, device: Device) -> list[FoundMuGraph]:
        """The verified muGraphs of `graph`, from which this goal was read; the model of the device
        gives all of them the same time."""
        evidence = [part.evidence() for part in self.parts]
        if not all(isinstance(each, Evidence) for each in evidence):
            return []
        seconds = sum(max(part.seconds(device)) for part in self.parts)
        blocks = zip(*[part.blocks() for part in self.parts], strict=True)
        made = [
            Graph(graph.inputs, tuple([part.mugraph(block) for part, block in zip(self.parts, each, strict=True)]))
            for each in blocks
        ]
        first = next(each for each in evidence if isinstance(each, Evidence))
        return [FoundMuGraph(each, graph, seconds, device.name, first) for each in made]

    def saved(self, device: Device) -> float:
        """Seconds that the kernel may save."""
        return sum(part.saved(device) for part in self.parts)

    @property
    def large(self) -> bool:
        """Whether no cache keeps its weights."""
        return sum(part.elements for part in self.parts) >= LEAST

    @property
    def slack(self) -> float:
        """The largest slow-down of the kernel alone, relative to the runtime; for kernels that are
        bound by memory, the whole model decides."""
        return inf if self.parts[0].thin else 1.0


def is_product(node: Node, sizes: Mapping[str, int]) -> bool:
    """Whether a term of a model is one that there are kernels for, its symbols at these sizes."""
    found = _multiplied(node, sizes)
    return found is not None and all(map(is_weight, found.known)) and found.elements >= LEAST


def _multiplied(node: Node, sizes: Mapping[str, int]) -> WeightProduct | None:
    """A product in single precision of some rows with a matrix; None for others."""
    names = next((found for each in MULTIPLIED if (found := each.match(node)) is not None), None)
    if names is None or node.dtype != "float32":
        return None
    operands = {key: names[key] for key in ("x", "w", "b", "scales", "zeros") if key in names}
    made = WeightProduct(**operands, form=names.get("a", ()), biased="b" in names)
    try:
        rows = prod(fixed(made.x.shape, sizes)[:-1])
    except (LookupError, TasoMirageError):  # a size that depends on the data
        return None
    matrix = len(made.w.shape) == (3 if made.form else 2) and all(isinstance(n, int) for n in made.w.shape)
    return made if len(made.x.shape) > 1 and matrix and rows > 0 else None


def shared_operand(node: Node) -> Node | None:
    """The operand of a product with weights of few bits that other products may read, too: such
    products become one kernel."""
    names = next((found for each in MULTIPLIED[1:] if (found := each.match(node)) is not None), {})
    return names.get("x")


def summed_product(node: Node, users: Users, wanted: IsWanted) -> list[Node]:
    """A product of a model with the sums that alone read it: of a bias, if it has none itself, then
    of a tensor of the shape of the result."""
    biased = any(each.match(node) is not None for each in BIASED)

    def takes(shape: tuple[Dim, ...]) -> FollowingStep:
        return ADDED, lambda others: [(a.dtype, a.shape) for a in others] == [(node.dtype, shape)]

    return followed(node, users, wanted, map(takes, (node.shape[-1:], node.shape)[biased:]))


def followed_product(node: Node, users: Users, wanted: IsWanted) -> list[Node]:
    """A product of a model with its epilogue. It has only sums if a function of another product of
    the same x is next to it (a gate): kernels of both are joined, and the gate with them."""
    members = following(node, users, wanted, _reads, has_cpp)
    gated = any(elementwise(u.op) and any(_is_beside(a, node) for a in u.args) for u in users(members[-1]))
    return summed_product(node, users, wanted) if gated else members


def _reads(node: Node, product: Node) -> bool:
    return broadcasts(node, product) and not _is_beside(node, product)


def _is_beside(node: Node, product: Node) -> bool:
    """Whether a tensor is a function of another product of the same x."""
    x = _data(product)
    return x is not None and any(each is not product and _data(each) is x for each in source_terms(node))


def _data(node: Node) -> Node | None:
    """The x of a product; None for other terms."""
    names = next((found for each in MULTIPLIED if (found := each.match(node)) is not None), None)
    return None if names is None else names["x"]


def weight_products(goal: Graph) -> WeightProducts | None:
    """Read a goal whose outputs are all products with epilogues; None for other goals."""
    made = [_with_sums(output, goal) or _followed(output, goal) for output in goal.outputs]
    parts = tuple([part for part in made if part is not None])
    one = all(part.x is parts[0].x and part.digits == parts[0].digits for part in parts)
    return WeightProducts(parts) if len(parts) == len(made) and one and (len(parts) == 1 or parts[0].form) else None


def _summed(node: Node, more: tuple[Node, ...] = ()) -> Iterator[tuple[WeightProduct, tuple[Node, ...]]]:
    """A product that a term may be, and its summand."""
    made = _multiplied(node, {})
    if made is not None:
        yield made, more
    elif len(more) < 2 and ADDED.match(node) is not None:
        for y, z in (node.args, node.args[::-1]):
            yield from _summed(y, (z, *more))


def _with_sums(whole: Node, goal: Graph) -> WeightProduct | None:
    """A result as a product, a bias that is added and then something of its type, all of them
    given; None for others."""
    for made, more in _summed(whole):
        if not made.biased and more and more[0].shape == whole.shape[-1:]:
            made, more = replace(made, b=more[0]), more[1:]
        if more and more[0].type == whole.type:
            made, more = replace(made, z=more[0]), more[1:]
        operands = {*made.known, made.x, made.b, made.z} - {ABSENT}
        if not more and made.product.type == whole.type and operands <= {*goal.inputs}:
            return made
    return None


def _followed(whole: Node, goal: Graph) -> WeightProduct | None:
    """A result as any function of a product, whose data is any function, and of given tensors."""
    found = read_functions(whole, lambda node: _multiplied(node, {}) is not None)
    made = None if found is None else _multiplied(found[0], {})
    if found is None or made is None:
        return None
    _, follows, (data, precedes) = found
    made = replace(made, x=data, follows=follows, precedes=precedes)
    operands = {*made.known, made.x, made.b, *made.others} - {ABSENT}
    return made if made.goal() == whole and operands <= {*goal.inputs} else None


@lru_cache(maxsize=64)
def _evidence(made: WeightProduct) -> Evidence | Failure:
    """At small sizes: the algebra depends on none of them."""
    leaves = tuple([each for each in (made.x, *made.known, made.b, made.z) if each is not ABSENT])
    return verified_mugraph(Graph(leaves, (made.mugraph((16, 8, 1)),)), Graph(leaves, (made.goal(),)))


# ---------------------------------------------------------------- the program


def _instance(node: Node) -> TemplateInstance:
    """With scales its weights are blocks of few bits."""
    return _of_floats(node) if (*node.args, *[ABSENT] * 4)[4] is ABSENT else _of_blocks(node)


def _of_floats(node: Node) -> TemplateInstance:
    columns, most, parts = node.attr("block")
    rows, tiled = dim_product(node.shape[:-1]), most == TILE_ROWS
    free = isinstance(rows, Symbolic)
    return TemplateInstance(
        headers=("linear.h", "matrix_unit.h", "tile_linear.h") if tiled else ("linear.h",),
        name="TileLinear" if tiled else "Linear",
        block=columns,
        sizes=(most if free else rows, *node.args[1].shape, columns, most, parts),
        layout=(columns, most == NARROW_ROWS, tiled),
        switches=(free,),
        rows=rows if free else 0,
        results=_results(node, MOST_OF_FREE if free and most == NARROW_ROWS else most),
        first=(rows, _part_bytes(node), 0) if tiled else (0, 0, 0),
    )


def _part_bytes(node: Node) -> int:
    """The bytes of the parts of a row of x, with a flag (`tile_linear.h`)."""
    return 6 * DEPTH * -(-int(node.args[0].shape[-1]) // DEPTH) + 1


def _results(node: Node, many: int) -> str:
    """The class that lists the results of a block; of a free number of rows a tile has at most
    `many`, where there are more than one tile has."""
    columns, most, parts = node.attr("block")
    rows = dim_product(node.shape[:-1])
    free = isinstance(rows, Symbolic)
    return f"Strip<{most if free else rows}, {node.shape[-1]}, {columns}, {most}, {many}, {parts}, {str(free).lower()}>"


def _of_blocks(node: Node) -> TemplateInstance:
    x, codes, *_, zeros = (*node.args, ABSENT)[:6]
    columns, most, parts = node.attr("block")
    bits, size, digits = node.attr("bits"), node.attr("block_size"), node.attr("digits")
    rows = dim_product(node.shape[:-1])
    free = isinstance(rows, Symbolic)
    bytes = codes.shape[1] * (32 + digits * size)
    kind = "HALF_OF_ALL" if zeros is ABSENT else "WHOLE" if zeros.dtype == "uint8" else "FLOATING"
    matrix = (most if free else rows, x.shape[-1], codes.shape[0])
    return TemplateInstance(
        headers=("linear.h", "block_linear.h"),
        name="BlockLinear",
        block=columns,
        sizes=(*matrix, columns, most, parts, bits, size, digits, kind),
        layout=("blocks", columns),
        switches=(free,),
        fixed=x.shape[-1:],
        rows=rows if free else 0,
        weights=(1, 4, 5),
        results=_results(node, most),
        first=(rows, bytes, bits) if most & (most - 1) == 0 else (0, 0, 0),
    )


def _members(node: Node, users: Users, wanted: IsWanted, sizes: Mapping[str, int]) -> list[Node]:
    return followed_product(node, users, wanted) if is_product(node, sizes) else []


FORM = Form(CpuProgram("linear", _instance), weight_products, _members, shared_operand)
