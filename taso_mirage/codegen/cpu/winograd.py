"""The call of `winograd.h` for a term: a convolution whose weights are transformed once, before the first run."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

from taso_mirage.errors import Unsupported
from taso_mirage.ir import ABSENT, Graph, Node

OP = "winograd"
TILES = 16
"""A block has a multiple of so many tiles: the longest vectors."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """A term as an instance of the class in the header, by the name `name`. Raises Unsupported where it is none."""

    node: Node
    name: str

    def __post_init__(self) -> None:
        types = {arg.tensor for arg in self.node.args if arg is not ABSENT} | {self.node.tensor}
        if any(t.dtype != "float32" or not all(isinstance(n, int) for n in t.shape or ()) for t in types):
            raise Unsupported(f"a convolution of {', '.join(map(str, types))}; its C++ is for float32 and fixed sizes")
        if self.node.attr("block")[0] % TILES:
            raise Unsupported(f"blocks of {self.node.attr('block')[0]} tiles; it must be a multiple of {TILES}")

    @property
    def instance(self) -> str:
        """The declaration of its class."""
        x, w, b, z = (*self.node.args, ABSENT, ABSENT)[:4]
        top, left = self.node.attr("pads")[:2]
        tiles, parts = self.node.attr("block")
        group = self.node.attr("group")
        sizes = (
            x.shape[0],
            group,
            w.shape[1],
            *x.shape[2:],
            int(w.shape[0]) // group,
            *self.node.shape[2:],
            top,
            left,
            self.node.attr("tile"),
            tiles,
            parts,
        )
        switches = (b is not ABSENT, z is not ABSENT, bool(self.node.attr("relu")))
        said = ", ".join([*map(str, sizes), *(str(each).lower() for each in switches)])
        return f"using {self.name} = Winograd<{said}>;"

    @property
    def operands(self) -> list[Node | None]:
        """What a block reads behind the data and the prepared weights; None for what it has not."""
        return [None if each is ABSENT else each for each in (*self.node.args, ABSENT, ABSENT)[2:4]]


def layout(graph: Graph) -> tuple[int, ...]:
    """What the prepared weights of a muGraph hang on: those of equal ones are the same."""
    found = [node for node in graph if node.op == OP]
    return (found[0].attr("tile"), found[0].attr("block")[0]) if found else ()


def header() -> str:
    """The class."""
    return files("taso_mirage.codegen.cpu").joinpath("winograd.h").read_text()
