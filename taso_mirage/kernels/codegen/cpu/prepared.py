"""Terms whose C++ is a class by hand, `winograd.h` or `linear.h`: they read weights that are
prepared once, before the first run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from math import prod
from typing import Any

from taso_mirage.errors import Unsupported
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import ABSENT, Graph, Node
from taso_mirage.operators.ops import traits

LANES = 16
"""Blocks have a multiple of so many tiles or columns: the longest vectors."""


@dataclass(frozen=True, slots=True)
class InstanceClass:
    """How a term becomes an instance of a class: its sizes and switches, and what the prepared
    weights hang on besides the weights. A block has so many tiles or columns; `sides` of a tile are
    powers of two."""

    header: str
    name: str
    block: Callable[[Node], int]
    sides: Callable[[Node], tuple[int, ...]]
    sizes: Callable[[Node], tuple[Any, ...]]
    layout: Callable[[Node], tuple[Any, ...]]
    switches: Callable[[Node], tuple[bool, ...]] = lambda node: ()


def _winograd(node: Node) -> tuple[Any, ...]:
    x, w = node.args[:2]
    group, (top, left, *_) = node.attr("group"), node.attr("pads")
    data = (x.shape[0], group, w.shape[1], *x.shape[2:])
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
    return prod(map(int, node.shape[:-1])), *node.args[1].shape, *node.attr("block")


KINDS: Mapping[Lowering | None, InstanceClass] = {
    Lowering.WINOGRAD: InstanceClass(
        "winograd.h",
        "Winograd",
        lambda n: n.attr("block")[0],
        lambda n: n.attr("tile"),
        _winograd,
        lambda n: (*n.attr("tile"), n.attr("block")[0]),
        lambda n: (bool(n.attr("relu")),),
    ),
    Lowering.LINEAR: InstanceClass(
        "linear.h", "Linear", lambda n: n.attr("block")[0], lambda n: (), _linear, lambda n: n.attr("block")[:1]
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
        if any(t.dtype != "float32" or not all(isinstance(n, int) for n in t.shape or ()) for t in types):
            shown = ", ".join(map(str, types))
            raise Unsupported(f"a {self.node.op} of {shown}; its C++ is for float32 and fixed sizes")
        sides = self.kind.sides(self.node)
        if (block := self.kind.block(self.node)) % LANES:
            raise Unsupported(f"blocks of {block}; it must be a multiple of {LANES}")
        if any(side < 1 for side in self.node.attr("block")) or any(side & (side - 1) for side in sides):
            raise Unsupported(f"{self.node.op} with sides {sides}; powers of two have C++")

    @property
    def kind(self) -> InstanceClass:
        return KINDS[traits(self.node).lowering]

    @property
    def instance(self) -> str:
        """The declaration of its class."""
        kind = self.kind
        switches = [*(each is not None for each in self.operands), *kind.switches(self.node)]
        said = ", ".join([*map(str, kind.sizes(self.node)), *(str(each).lower() for each in switches)])
        return f"using {self.name} = {kind.name}<{said}>;"

    @property
    def operands(self) -> list[Node | None]:
        """What a block reads behind the data and the prepared weights, a bias and what is added;
        None for what it has not."""
        return [None if each is ABSENT else each for each in (*self.node.args, ABSENT, ABSENT)[2:4]]


def prepares(node: Node) -> bool:
    """Whether a term of a muGraph reads prepared weights."""
    return traits(node).lowering in KINDS


def layout(graph: Graph) -> tuple[Any, ...]:
    """What the prepared weights of a muGraph hang on: those of equal ones are the same."""
    found = [node for node in graph if prepares(node)]
    return (found[0].op, *KINDS[traits(found[0]).lowering].layout(found[0])) if found else ()


def headers(graphs: Iterable[Graph]) -> list[str]:
    """The classes that some muGraphs have, each once."""
    found = dict.fromkeys(KINDS[traits(node).lowering].header for graph in graphs for node in graph if prepares(node))
    names = ["lanes.h", *found] if found else []
    return [files("taso_mirage.kernels.codegen.cpu").joinpath(name).read_text() for name in names]
