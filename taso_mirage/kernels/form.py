"""A form: a kind of kernel that is written by hand rather than searched, as one value.

It says which terms of a model such a kernel computes, what a goal is that it has kernels for, and
how these are written. Every file of `forms/` has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from taso_mirage.ir.terms import Graph, Node, topological, with_args
from taso_mirage.kernels.codegen.cpu.prepared import CpuProgram
from taso_mirage.kernels.codegen.discovery import discovered
from taso_mirage.kernels.codegen.gpu.forms import GpuProgram
from taso_mirage.kernels.conversion import Conversion
from taso_mirage.kernels.search import FoundMuGraph
from taso_mirage.operators.expressions import is_weight
from taso_mirage.targets.device import Device

Users = Callable[[Node], Sequence[Node]]
"""The terms of a model that read one."""
IsWanted = Callable[[Node], bool]
"""Whether a term is a result of the model."""


class PreparedGoal(Protocol):
    """A goal that a form has kernels for."""

    @property
    def large(self) -> bool:
        """Whether its weights are large enough for such a kernel."""

    @property
    def once(self) -> bool:
        """Whether a kernel is measured at one number of images: more are more blocks of the
        same."""

    @property
    def together(self) -> str:
        """A name for goals that are tried in a model together: between them no layout changes."""

    @property
    def joins(self) -> bool:
        """Whether neighbours may be one kernel (`pipeline/fuse/neighbours.py`)."""

    @property
    def known(self) -> list[Node]:
        """The operands that are weights."""

    @property
    def slack(self) -> float:
        """How many times as slow as the runtime's its kernel may be alone."""

    def mugraphs(self, graph: Graph, device: Device) -> list[FoundMuGraph]:
        """The verified muGraphs of the goal `graph`, which this is, by the model the fastest
        first."""

    def saved(self, device: Device) -> float:
        """Seconds that the kernel may save."""


def itself(node: Node) -> Node:
    return node


def own_terms(op: str) -> Callable[[Node, Users, IsWanted, Mapping[str, int]], list[Node]]:
    """The members of a form whose terms of this operator stand in the model already."""
    return lambda node, users, wanted, sizes: [node] if node.op == op else []


@dataclass(frozen=True, slots=True)
class ModelTerms:
    """How operators of a model become terms of a form, before regions are looked for.

    `members`: the operators that one term computes from such an operator on, of which the last one
    alone is read by others, with the place of each in the model; nothing from other operators on.
    `term`: the term of them; None where it has none.
    """

    members: Callable[[Node, Users, IsWanted, Mapping[Node, int]], list[Node]]
    term: Callable[[Sequence[Node], Conversion], Node | None]


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of kernel that is written by hand.

    `program`: how its terms are written. `read`: what a goal is that it has kernels for; None for
    others. `members`: the terms of a model that one kernel computes from such a term on, at these
    sizes of the model's symbols; nothing from other terms on. `shared`: what kernels of one region
    all read, by the first term of each; regions with the same are also tried together.
    `operators`: its term in operators of ONNX. `terms`: how a model gets such terms, if it has none
    of itself. `alone`: of a term that has a `body`, the
    convolution that it follows, in operators of ONNX. `in_parts`: its weights are two parts,
    numbers of TF32 and what these lack, of which a kernel that rounds reads the first.
    """

    program: GpuProgram | CpuProgram
    read: Callable[[Graph], PreparedGoal | None]
    members: Callable[[Node, Users, IsWanted, Mapping[str, int]], list[Node]]
    shared: Callable[[Node], Node | None] = itself
    operators: Callable[[Node], Node] = itself
    terms: ModelTerms | None = None
    alone: Callable[[Node], Node] | None = None
    in_parts: bool = False


@dataclass(frozen=True, slots=True)
class PreparedKinds:
    """The forms whose programs are of one class, which a back end has."""

    program: type[GpuProgram] | type[CpuProgram]

    @property
    def forms(self) -> tuple[Form, ...]:
        """By the names of their files."""
        return tuple([form for form in known_forms() if isinstance(form.program, self.program)])

    @property
    def terms(self) -> list[ModelTerms]:
        """How a model gets the terms of those that it has none of itself."""
        return [form.terms for form in self.forms if form.terms is not None]

    def begins(self, node: Node, sizes: Mapping[str, int]) -> bool:
        """Whether a kernel may compute a term of a model, at these sizes of its symbols."""
        return any(form.members(node, lambda _: (), lambda _: True, sizes) for form in self.forms)

    def candidates(
        self, order: Sequence[Node], users: Users, wanted: IsWanted, sizes: Mapping[str, int]
    ) -> Iterator[list[Node]]:
        """The terms of a model, in their order, that may be regions with such kernels at these
        sizes of its symbols, each with its epilogue; first all together that read the same."""
        place = {node: i for i, node in enumerate(order)}
        shared: dict[Node, list[list[Node]]] = {}
        for node in order:
            for form in self.forms:
                if found := form.members(node, users, wanted, sizes):
                    shared.setdefault(form.shared(node) or node, []).append(found)
        for several in shared.values():
            if len(several) > 1:
                yield sorted({node for each in several for node in each}, key=place.__getitem__)
            yield from several

    def read(self, goal: Graph) -> PreparedGoal | None:
        """Read a goal that one of the forms has kernels for; None for others."""
        return next((made for form in self.forms if (made := form.read(goal)) is not None), None)

    def prepared(self, goal: Graph, given: Sequence[Node]) -> PreparedGoal | None:
        """Read a goal whose inputs are these terms of a model; None for others, and where weights
        are unknown or too small."""
        made, terms = self.read(goal), dict(zip(goal.inputs, given, strict=True))
        known = made is not None and all(is_weight(terms.get(each, each)) for each in made.known)
        return made if made is not None and known and made.large else None


@cache
def known_forms() -> tuple[Form, ...]:
    """Every form that is found."""
    return tuple([form for form in discovered() if isinstance(form, Form)])


@cache
def _by_operator() -> Mapping[str, Form]:
    return {form.program.op: form for form in known_forms()}


def form_of(node: Node) -> Form | None:
    """The form whose term one is; None for others."""
    forms = _by_operator()
    return forms.get(node.op)


def in_operators(outputs: Sequence[Node]) -> tuple[Node, ...]:
    """Terms of a model with those of forms in operators of ONNX."""
    done: dict[Node, Node] = {}
    for node in topological(outputs):
        new = with_args(node, tuple([done[a] for a in node.args]))
        form = form_of(new)
        done[node] = new if form is None else form.operators(new)
    return tuple([done[o] for o in outputs])


GPU_GOALS = PreparedKinds(GpuProgram)
CPU_GOALS = PreparedKinds(CpuProgram)
