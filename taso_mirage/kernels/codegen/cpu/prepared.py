"""Terms whose C++ is a class by hand, `winograd.h`, `linear.h` or `block_linear.h`: they read
weights that are prepared once, before the first run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim, Symbolic, dim_product
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import ABSENT, Graph, Node
from taso_mirage.operators.ops import traits

NARROW_ROWS = 8
"""Rows of a tile whose weights may lie in their narrow format (`linear.h`)."""
LANES = 16
"""Blocks have a multiple of so many tiles or columns: the longest vectors."""


@dataclass(frozen=True, slots=True)
class InstanceClass:
    """How a term becomes an instance of a class: its sizes and switches, and the properties besides
    the weights on which the prepared weights depend. A block has so many tiles or columns; `sides`
    of a tile are powers of two."""

    headers: tuple[str, ...]
    name: str
    block: Callable[[Node], int]
    sides: Callable[[Node], tuple[int, ...]]
    sizes: Callable[[Node], tuple[Any, ...]]
    layout: Callable[[Node], tuple[Any, ...]]
    switches: Callable[[Node], tuple[bool, ...]] = lambda node: ()
    fixed: Callable[[Node], tuple[Dim, ...]] = lambda node: ()
    """The sizes besides those of the weights that its code is made for."""
    times: Callable[[Node], Dim] = lambda node: 1
    """How many times its blocks run, if that is not in its code."""
    rows: Callable[[Node], Dim] = lambda node: 0
    """A size that its blocks read."""
    weights: tuple[int, ...] = (1,)
    """The places of the operands that are prepared."""
    first: Callable[[Node], tuple[Dim, int, int]] = lambda node: (0, 0, 0)
    """How often its function `digits` runs before the blocks, the bytes that each makes, and the
    properties on which they depend besides."""


def _winograd(node: Node) -> tuple[Any, ...]:
    x, w = node.args[:2]
    group, (top, left, *_) = node.attr("group"), node.attr("pads")
    data = (1 if isinstance(x.shape[0], Symbolic) else x.shape[0], group, w.shape[1], *x.shape[2:])
    return (
        *data,
        int(w.shape[0]) // group,
        *w.shape[2:],
        *node.shape[2:],
        top,
        left,
        *node.attr("tile"),
        *node.attr("block"),
    )


def _linear(node: Node) -> tuple[Any, ...]:
    columns, most, parts = node.attr("block")
    rows = _rows(node)
    return most if isinstance(rows, Symbolic) else rows, *node.args[1].shape, columns, most, parts


def _rows(node: Node) -> Dim:
    return dim_product(node.shape[:-1])


def _of_blocks(node: Node) -> tuple[Any, ...]:
    x, codes, *_, zeros = (*node.args, ABSENT)[:6]
    columns, most, parts = node.attr("block")
    rows = _rows(node)
    sizes = most if isinstance(rows, Symbolic) else rows, x.shape[-1], codes.shape[0], columns, most, parts
    kind = "HALF_OF_ALL" if zeros is ABSENT else "WHOLE" if zeros.dtype == "uint8" else "FLOATING"
    return *sizes, node.attr("bits"), node.attr("block_size"), node.attr("digits"), kind


def _digits(node: Node) -> tuple[Dim, int, int]:
    """The rows of x that become digits where integers are multiplied, the bytes of a row's digits,
    and their bits: see `BlockLinear`."""
    size, most = node.attr("block_size"), node.attr("block")[1]
    bytes = int(node.args[1].shape[1]) * (32 + node.attr("digits") * size)
    return (_rows(node), bytes, node.attr("bits")) if most & (most - 1) == 0 else (0, 0, 0)


BLOCKS = InstanceClass(
    ("linear.h", "block_linear.h"),
    "BlockLinear",
    lambda n: n.attr("block")[0],
    lambda n: (),
    _of_blocks,
    lambda n: ("blocks", *n.attr("block")[:1]),
    lambda n: (isinstance(_rows(n), Symbolic),),
    lambda n: n.args[0].shape[-1:],
    rows=_rows,
    weights=(1, 4, 5),
    first=_digits,
)
KINDS: Mapping[Lowering | None, InstanceClass] = {
    Lowering.WINOGRAD: InstanceClass(
        ("winograd.h",),
        "Winograd",
        lambda n: n.attr("block")[0],
        lambda n: n.attr("tile"),
        _winograd,
        lambda n: (*n.attr("tile"), n.attr("block")[0]),
        lambda n: (bool(n.attr("relu")),),
        lambda n: n.args[0].shape[1:],
        lambda n: n.shape[0] if isinstance(n.shape[0], Symbolic) else 1,
    ),
    Lowering.LINEAR: InstanceClass(
        ("linear.h",),
        "Linear",
        lambda n: n.attr("block")[0],
        lambda n: (),
        _linear,
        lambda n: (n.attr("block")[0], n.attr("block")[1] == NARROW_ROWS),
        lambda n: (isinstance(_rows(n), Symbolic),),
        rows=_rows,
    ),
}


@dataclass(frozen=True, slots=True)
class PreparedInstance:
    """A term as an instance of its class, by the name `name`.

    Raises Unsupported where it is none.
    """

    node: Node
    name: str

    def __post_init__(self) -> None:
        types = {arg.tensor for arg in self.node.args if arg is not ABSENT} | {self.node.tensor}
        floats = types - {self.node.args[i].tensor for i in self.weights if self.node.args[i].dtype == "uint8"}
        sizes = *self.node.args[1].shape, *self.kind.fixed(self.node)
        if any(t.dtype != "float32" for t in floats) or not all(isinstance(n, int) for n in sizes):
            shown = ", ".join(map(str, types))
            raise Unsupported(f"a {self.node.op} of {shown}; its C++ is for float32 and fixed sizes")
        sides = self.kind.sides(self.node)
        if (block := self.kind.block(self.node)) % LANES:
            raise Unsupported(f"blocks of {block}; it must be a multiple of {LANES}")
        if any(side < 1 for side in self.node.attr("block")) or any(side & (side - 1) for side in sides):
            raise Unsupported(f"{self.node.op} with sides {sides}; powers of two have C++")

    @property
    def kind(self) -> InstanceClass:
        return _kind(self.node)

    @property
    def weights(self) -> list[int]:
        """The places of the operands that are prepared."""
        return [i for i in self.kind.weights if i < len(self.node.args) and self.node.args[i] is not ABSENT]

    @property
    def prepare(self) -> str:
        """C++ that prepares the weights among the kernel's inputs: {0} is the first one, {at} the
        place of the result."""
        given = [f"inputs[{{{i}}}]" for i in range(len(self.weights))]
        given += ["nullptr"] * (len(self.kind.weights) - len(given))
        return f"{self.name}::prepare({', '.join(given)}, {{at}});"

    @property
    def first(self) -> tuple[Dim, int, int]:
        """How often its function `digits` runs before the blocks, the bytes that each makes, and
        the properties on which they depend besides."""
        return self.kind.first(self.node)

    @property
    def instance(self) -> str:
        """The declaration of its class."""
        kind = self.kind
        switches = [*(each is not None for each in self.operands), *kind.switches(self.node)]
        said = ", ".join([*map(str, kind.sizes(self.node)), *(str(each).lower() for each in switches)])
        return f"using {self.name} = {kind.name}<{said}>;"

    @property
    def blocks(self) -> str:
        """How many there are, in C++."""
        times = self.kind.times(self.node)
        return f"{self.name}::BLOCKS" if times == 1 else f"{times} * {self.name}::BLOCKS"

    @property
    def rows(self) -> Dim:
        """A size that a run gives and blocks read; 0 where there is none."""
        found = self.kind.rows(self.node)
        return found if isinstance(found, Symbolic) else 0

    @property
    def operands(self) -> list[Node | None]:
        """The operands of a block after the data and the prepared weights: a bias and a summand;
        None where it has none."""
        return [None if each is ABSENT else each for each in (*self.node.args, ABSENT, ABSENT)[2:4]]


def prepares(node: Node) -> bool:
    """Whether a term of a muGraph reads prepared weights."""
    return traits(node).lowering in KINDS


def _kind(node: Node) -> InstanceClass:
    """With scales its weights are blocks of few bits."""
    lowering = traits(node).lowering
    return BLOCKS if lowering is Lowering.LINEAR and len(node.args) > 4 else KINDS[lowering]


def layout(graph: Graph) -> tuple[Any, ...]:
    """A key of the layout of a muGraph's prepared weights: equal layouts have equal keys."""
    return tuple([(node.op, *_kind(node).layout(node)) for node in graph if prepares(node)])


def headers(graphs: Iterable[Graph]) -> list[str]:
    """The classes that some muGraphs have, each once."""
    found = dict.fromkeys(h for graph in graphs for node in graph if prepares(node) for h in _kind(node).headers)
    names = ["lanes.h", *found] if found else []
    return [files("taso_mirage.kernels.codegen.cpu").joinpath(name).read_text() for name in names]
