"""Terms whose C++ is a class by hand: they read weights that are prepared once, before the first
run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from taso_mirage.errors import Unsupported
from taso_mirage.ir.dims import Dim, Symbolic
from taso_mirage.ir.terms import ABSENT, Graph, Node
from taso_mirage.kernels.codegen.discovery import discovered
from taso_mirage.kernels.codegen.statements import Do, Expression, v

LANES = 16
"""The number of tiles or columns of a block is a multiple of this: the longest vectors."""


@dataclass(frozen=True, slots=True)
class TemplateInstance:
    """An instance of a C++ class template that computes a term.

    `headers`: names of files beside this one, or paths. `block`: the tiles or columns of a block.
    `sizes`, `switches`: the arguments of the template, besides whether the bias and the summand are
    there. `layout`: the properties besides the weights on which the prepared weights depend.
    """

    headers: tuple[str | Path, ...]
    name: str
    block: int
    sizes: tuple[Any, ...]
    layout: tuple[Any, ...]
    sides: tuple[int, ...] = ()
    """The sides of a tile, which are powers of two."""
    switches: tuple[bool, ...] = ()
    fixed: tuple[Dim, ...] = ()
    """The sizes besides those of the weights that its code is made for."""
    times: Dim = 1
    """How many times its blocks run, if that is not in its code."""
    rows: Dim = 0
    """A size that its blocks read."""
    weights: tuple[int, ...] = (1,)
    """The places of the operands that are prepared."""
    first: tuple[Dim, Dim, int] = (0, 0, 0)
    """How often its function `digits` runs before the blocks, the bytes that each makes, and the
    properties on which they depend besides."""


@dataclass(frozen=True, slots=True)
class CpuProgram:
    """How the terms of an operator are written: each is an instance of a class template."""

    op: str
    instance: Callable[[Node], TemplateInstance]


@cache
def cpu_programs() -> Mapping[str, CpuProgram]:
    """The programs of the forms, by their operators."""
    programs = [form.program for form in discovered()]
    return {each.op: each for each in programs if isinstance(each, CpuProgram)}


def template_instance(node: Node) -> TemplateInstance:
    """The instance that computes a term of a form."""
    return cpu_programs()[node.op].instance(node)


@dataclass(frozen=True, slots=True)
class PreparedTerm:
    """A term with prepared weights and the C++ class `name` that computes it.

    Raises Unsupported where there is no such class.
    """

    node: Node
    name: str
    kind: TemplateInstance

    def __post_init__(self) -> None:
        types = {arg.tensor for arg in self.node.args if arg is not ABSENT} | {self.node.tensor}
        floats = types - {self.node.args[i].tensor for i in self.weights if self.node.args[i].dtype == "uint8"}
        sizes = *self.node.args[1].shape, *self.kind.fixed
        if any(t.dtype != "float32" for t in floats) or not all(isinstance(n, int) for n in sizes):
            shown = ", ".join(map(str, types))
            raise Unsupported(f"a {self.node.op} of {shown}; its C++ is for float32 and fixed sizes")
        if self.kind.block % LANES:
            raise Unsupported(f"blocks of {self.kind.block}; it must be a multiple of {LANES}")
        sides = self.kind.sides
        if any(side < 1 for side in self.node.attr("block")) or any(side & (side - 1) for side in sides):
            raise Unsupported(f"{self.node.op} with sides {sides}; powers of two have C++")

    @property
    def weights(self) -> list[int]:
        """The places of the operands that are prepared."""
        return [i for i in self.kind.weights if i < len(self.node.args) and self.node.args[i] is not ABSENT]

    def prepare(self, given: Sequence[int], at: Expression) -> Do:
        """The call that prepares its weights, the kernel's inputs of these numbers."""
        missing = [v.nullptr] * (len(self.kind.weights) - len(given))
        return Do(v[f"{self.name}::prepare"](*(v.inputs[i] for i in given), *missing, at))

    @property
    def declaration(self) -> str:
        """The declaration of its class."""
        switches = *(each is not None for each in self.operands), *self.kind.switches
        said = ", ".join([*map(str, self.kind.sizes), *(str(each).lower() for each in switches)])
        return f"using {self.name} = {self.kind.name}<{said}>;"

    @property
    def blocks(self) -> Expression:
        """How many there are."""
        each, times = v[f"{self.name}::BLOCKS"], self.kind.times
        return each if times == 1 else v[str(times)] * each

    @property
    def prepared(self) -> Expression:
        """The bytes of its prepared weights, as far as those of the next term begin."""
        return (v[f"{self.name}::PREPARED"] + 63) / 64 * 64

    @property
    def rows(self) -> Dim:
        """A size that a run gives and blocks read; 0 where there is none."""
        return self.kind.rows if isinstance(self.kind.rows, Symbolic) else 0

    @property
    def operands(self) -> list[Node | None]:
        """The operands of a block after the data and the prepared weights: a bias and a summand;
        None where it has none."""
        return [None if each is ABSENT else each for each in (*self.node.args, ABSENT, ABSENT)[2:4]]


def prepares(node: Node) -> bool:
    """Whether a term of a muGraph reads prepared weights."""
    return node.op in cpu_programs()


def layout(graph: Graph) -> tuple[Any, ...]:
    """A key of the layout of a muGraph's prepared weights: equal layouts have equal keys."""
    return tuple([(node.op, *template_instance(node).layout) for node in graph if prepares(node)])


def headers(graphs: Iterable[Graph]) -> list[str]:
    """The classes that some muGraphs have, each once."""
    nodes = (node for graph in graphs for node in graph if prepares(node))
    found = dict.fromkeys(header for node in nodes for header in template_instance(node).headers)
    names: list[str | Path] = ["lanes.h", *found] if found else []
    folder = files("taso_mirage.kernels.codegen.cpu")
    return [name.read_text() if isinstance(name, Path) else folder.joinpath(name).read_text() for name in names]
