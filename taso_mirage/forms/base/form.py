"""A form: one kind of hand-written kernel.

The value states which terms of a model such a kernel computes, which goals have such kernels, and
how these are written. Every file of `forms/` has one, `FORM`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from taso_mirage.devices.device import Device
from taso_mirage.emit.cpu.prepared import CpuProgram
from taso_mirage.emit.discovery import discovered
from taso_mirage.emit.gpu.forms import GpuProgram
from taso_mirage.errors import TasoMirageError
from taso_mirage.forms.base.conversion import Conversion
from taso_mirage.ir.terms import Graph, Node, topological, with_args
from taso_mirage.mugraph.found import FoundMuGraph
from taso_mirage.mugraph.free import FreeSizes, with_free_names
from taso_mirage.operators.expressions import is_weight

Users = Callable[[Node], Sequence[Node]]
"""The terms of a model that read one."""
IsWanted = Callable[[Node], bool]
"""Whether a term is a result of the model."""
FindMembers = Callable[[Node, Users, IsWanted, Mapping[str, int]], list[Node]]
"""The terms of a model that one kernel computes from a term on, at these sizes of the model's
symbols; none where no kernel begins with that term."""


class PreparedGoal(Protocol):
    """A goal that a form has kernels for."""

    @property
    def large(self) -> bool:
        """Whether the weights are large enough for such a kernel."""

    @property
    def once(self) -> bool:
        """Whether a kernel is measured at one number of images only, because more images are more
        blocks of the same kind."""

    @property
    def together(self) -> str:
        """The common name of goals whose kernels are tried in a model together, because no layout
        changes between them."""

    @property
    def joins(self) -> bool:
        """Whether the kernel may be joined with that of a neighbour
        (`pipeline/fuse/neighbours.py`)."""

    @property
    def known(self) -> list[Node]:
        """The operands that are weights."""

    @property
    def slack(self) -> float:
        """The largest time of the kernel alone, as a multiple of the runtime's time."""

    @property
    def by_values(self) -> bool:
        """Whether the time of a kernel depends on the values of its inputs, so that random ones do
        not tell it and the whole model decides."""

    def mugraphs(self, graph: Graph, device: Device) -> list[FoundMuGraph]:
        """The verified muGraphs of `graph`, from which this goal was read; the fastest by the model
        of the device first."""

    def saved(self, device: Device) -> float:
        """Seconds that the kernel may save in a model, by an estimate."""


def itself(node: Node) -> Node:
    return node


def own_terms(op: str) -> FindMembers:
    """The `members` of a form whose kernels compute one term each, of this operator."""
    return lambda node, users, wanted, sizes: [node] if node.op == op else []


@dataclass(frozen=True, slots=True)
class ModelTerms:
    """The conversion of a model's operators to terms of a form, before regions are searched.

    `members`: the operators that one term computes from an operator on, given the place of each
    operator in the model; none where no term begins with that operator. Other operators read the
    last one only. `term`: the term that computes them; None where there is none.
    """

    members: Callable[[Node, Users, IsWanted, Mapping[Node, int]], list[Node]]
    term: Callable[[Sequence[Node], Conversion], Node | None]


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of hand-written kernel.

    `program`: the generation of its terms. `read`: the goal for a graph; None if the form has no
    kernels for it. `members`: the terms of a model that one kernel computes. `shared`: the operand
    that several kernels read, by the first term of one of them; such kernels are also tried as one
    region. `operators`: a term of the form in operators of ONNX. `terms`: the conversion of a
    model's operators to such terms, if models do not contain them. `alone`: the convolution of a
    term without its epilogue `body`, in operators of ONNX. `in_parts`: whether weights have two
    parts, numbers of TF32 and the remainders; a kernel that rounds reads the first part only.
    `follows`: whether a goal whose terms contain sizes is, with names in their place, the same goal
    at every size; None if no goal of the form contains any.
    """

    program: GpuProgram | CpuProgram
    read: Callable[[Graph], PreparedGoal | None]
    members: FindMembers
    shared: Callable[[Node], Node | None] = itself
    operators: Callable[[Node], Node] = itself
    terms: ModelTerms | None = None
    alone: Callable[[Node], Node] | None = None
    in_parts: bool = False
    follows: Callable[[Graph, Graph, FreeSizes], bool] | None = None


@dataclass(frozen=True, slots=True)
class PreparedKinds:
    """The forms of one back end: those whose programs are of one class."""

    program: type[GpuProgram] | type[CpuProgram]

    @property
    def forms(self) -> tuple[Form, ...]:
        """The forms by the names of their files."""
        return tuple([form for form in known_forms() if isinstance(form.program, self.program)])

    @property
    def terms(self) -> list[ModelTerms]:
        """The conversions of a model's operators to terms of forms that models do not contain."""
        return [form.terms for form in self.forms if form.terms is not None]

    def begins(self, node: Node, sizes: Mapping[str, int]) -> bool:
        """Whether a kernel may begin with a term of a model, at these sizes of the model's
        symbols."""
        return any(form.members(node, lambda _: (), lambda _: True, sizes) for form in self.forms)

    def candidates(
        self, order: Sequence[Node], users: Users, wanted: IsWanted, sizes: Mapping[str, int]
    ) -> Iterator[list[Node]]:
        """The lists of terms of a model, in the model's order, that may be regions with such
        kernels at these sizes of its symbols. Lists that share an operand also come as one, before
        each of them."""
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
        """The goal for a graph; None if no form has kernels for it."""
        return next((made for form in self.forms if (made := form.read(goal)) is not None), None)

    def at_every_size(self, goal: Graph, named: Callable[[], Graph], free: FreeSizes) -> bool:
        """Whether a goal of some form, of which `named` has names in the place of sizes, has
        kernels for every size."""
        try:
            with_free_names(goal, free)
        except TasoMirageError:
            found = [form.follows for form in self.forms if form.follows is not None]
            return any(follows(goal, named(), free) for follows in found)
        return True

    def prepared(self, goal: Graph, given: Sequence[Node]) -> PreparedGoal | None:
        """The goal for a graph whose inputs are these terms of a model; None if no form has kernels
        for it, or if its weights are too small or not stored in the model."""
        made, terms = self.read(goal), dict(zip(goal.inputs, given, strict=True))
        known = made is not None and all(is_weight(terms.get(each, each)) for each in made.known)
        return made if made is not None and known and made.large else None


@cache
def known_forms() -> tuple[Form, ...]:
    """Every discovered form."""
    return tuple([form for form in discovered() if isinstance(form, Form)])


@cache
def _by_operator() -> Mapping[str, Form]:
    return {form.program.op: form for form in known_forms()}


def form_of(node: Node) -> Form | None:
    """The form that a term belongs to; None for other terms."""
    forms = _by_operator()
    return forms.get(node.op)


def in_operators(outputs: Sequence[Node]) -> tuple[Node, ...]:
    """The outputs of a model, with each term of a form replaced by operators of ONNX."""
    done: dict[Node, Node] = {}
    for node in topological(outputs):
        new = with_args(node, tuple([done[a] for a in node.args]))
        form = form_of(new)
        done[node] = new if form is None else form.operators(new)
    return tuple([done[o] for o in outputs])


GPU_GOALS = PreparedKinds(GpuProgram)
CPU_GOALS = PreparedKinds(CpuProgram)
