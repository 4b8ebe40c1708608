"""What the engine asks of an operator besides its definition. Operators state it in `op_specs/`, beside their definitions.

What can be read off a definition is derived (`derived.py`), not stated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from taso_mirage.dims import Dim
from taso_mirage.ir import Node

Interval = tuple[int, int]
Box = tuple[Interval, ...]
"""For each dim the first position and the one after the last."""
Inner = Callable[[Node, Box], Node]
"""The term of the elements of an operand within a box."""
Restrict = Callable[[Inner, Node, Box], Node]
Mutate = Callable[[Node], Iterator[Node]]
Shapes = Sequence[Sequence[Dim]]
Resize = Callable[[Mapping[str, Any], Shapes, Shapes, Mapping[int, Dim]], Mapping[str, Any]]
Exact = Callable[[Sequence[Sequence[int]], int], bool]
Decompose = Callable[[Node], Node | None]
Domain = str | Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Family:
    """A family of mutants (PET, OSDI'21, section 4) that begins at an operator: it takes a term to terms that may be of its type.

    `of`: the operator that all operands must be, where the family is about several terms of it beside each other.
    """

    name: str
    mutate: Mutate
    of: str | None = None


@dataclass(frozen=True, slots=True)
class Margin:
    """Positions of one value around a tensor: before and after each axis."""

    low: tuple[int, ...]
    high: tuple[int, ...]
    value: float


Absorb = Callable[[Node, Node, Margin], Node | None]


@dataclass(eq=False)
class Traits:
    """The traits of one operator; a new operator has none.

    `windowed`: it slides windows over one to three axes of an image (batch, channels, axes), as `strides`, `pads` and `dilations` say.
    `kernel`: which operand is the kernel of a windowed operator, None where the attribute `kernel` has its sizes. It is computed before
    the run whatever that stores; `initializer`: a runtime takes it as an initializer only.
    `layout`: a runtime may run it with channels last, or by another algorithm of the device's library.
    `joins`: the attribute with the axis along which its operands lie one behind the other.
    `parts`: the attribute with the sizes of its results, which are parts of its operand.
    `converts`: it changes the dtype of its operand, which may round.
    `rounds`: the runtime computes it on integers through doubles.
    `domains`: how attributes are drawn: a name of `verify.attributes`, or a function. The name of the attribute decides about others.
    """

    windowed: bool = False
    kernel: int | None = None
    initializer: bool = False
    layout: bool = False
    joins: str | None = None
    parts: str | None = None
    converts: bool = False
    rounds: bool = False
    domains: dict[str, Domain] = field(default_factory=dict)
    families: list[Family] = field(default_factory=list)
    restrict: Restrict | None = None
    resize: Resize | None = None
    place: Callable[[Node], Box | None] | None = None
    margin: Callable[[Node], Margin | None] | None = None
    absorb: Absorb | None = None
    batch: Callable[[Node], bool] | None = None
    exact: Exact | None = None
    apart: Decompose | None = None

    def mutant(self, name: str, of: str | None = None) -> Callable[[Mutate], Mutate]:
        """Add a family of mutants that begins at this operator."""

        def register(mutate: Mutate) -> Mutate:
            self.families.append(Family(name, mutate, of))
            return mutate

        return register

    def domain(self, attribute: str) -> Callable[[Domain], Domain]:
        """State how an attribute is drawn: a function of `verify.attributes.Spot`."""

        def register(hook: Domain) -> Domain:
            self.domains[attribute] = hook
            return hook

        return register

    def restriction(self, hook: Restrict) -> Restrict:
        """The elements of a term within a box, of operands restricted by `inner`. Raises Unsupported where there is no such term.

        Needed where an operator is not elementwise and its definition is not a term of other operators. Where an operator has
        several results, the term is one of them (`item`).
        """
        self.restrict = hook
        return hook

    def resizing(self, hook: Resize) -> Resize:
        """The attributes that hold sizes, where the operands have other dims: (attributes, old shapes, new shapes, names of sizes)."""
        self.resize = hook
        return hook

    def placing(self, hook: Callable[[Node], Box | None]) -> Callable[[Node], Box | None]:
        """The box of its only operand that a term is; None where it is not one."""
        self.place = hook
        return hook

    def margins(self, hook: Callable[[Node], Margin | None]) -> Callable[[Node], Margin | None]:
        """What lies around the only operand of a term, which is in it as it is; None where that is not one value."""
        self.margin = hook
        return hook

    def absorbing(self, hook: Absorb) -> Absorb:
        """A term over a tensor with a margin around it, as one over the tensor; None where no attributes say that.

        It is given the term, the tensor and the margin, which is around the term's first operand.
        """
        self.absorb = hook
        return hook

    def batching(self, hook: Callable[[Node], bool]) -> Callable[[Node], bool]:
        """Whether terms that differ in their first operands are one over those, joined along axis 0."""
        self.batch = hook
        return hook

    def exactness(self, hook: Exact) -> Exact:
        """Whether no number on the way from integers (of each operand, some) reaches `below`, nor is divided by zero."""
        self.exact = hook
        return hook

    def decomposition(self, hook: Decompose) -> Decompose:
        """A fused term as products with weights, for which there may be kernels, and what is left of it; None where that is no gain."""
        self.apart = hook
        return hook


NONE = Traits()
"""Those of what is no operator."""
