"""The traits of an operator: facts that the engine needs in addition to its definition.

An operator states its traits in `op_specs/`, beside its definition. `rewriting/derived_traits.py`
derives other traits from the definition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from taso_mirage.ir.dims import Dim
from taso_mirage.ir.mugraph import Lowering
from taso_mirage.ir.terms import Node

TraitInterval = tuple[int, int]
Box = tuple[TraitInterval, ...]
"""For each dim the first position and the one after the last."""
Inner = Callable[[Node, Box], Node]
"""A function that returns the term of an operand's elements within a box."""
Restrict = Callable[[Inner, Node, Box], Node]
Mutate = Callable[[Node], Iterator[Node]]
_Place = Callable[[Node], Box | None]
_Shapes = Sequence[Sequence[Dim]]
Resize = Callable[[Mapping[str, Any], _Shapes, _Shapes, Mapping[int, Dim]], Mapping[str, Any]]
Exact = Callable[[Sequence[Sequence[int]], int], bool]
Decompose = Callable[[Node], Node | None]
Looping = Callable[[Sequence[Node], Sequence[Node]], Iterator[tuple[Node, tuple[Node, ...]]]]
_StoredAt = Callable[[Node, Node], Node | None]
Domain = str | Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class MutantFamily:
    """A family of mutants (PET, OSDI'21, section 4): it rewrites a term of the operator that states
    it.

    If `of` names an operator, the family rewrites only terms whose operands are all of that
    operator.
    """

    name: str
    mutate: Mutate
    of: str | None = None


@dataclass(frozen=True, slots=True)
class Margin:
    """One value around a tensor: the positions before and after each axis."""

    low: tuple[int, ...]
    high: tuple[int, ...]
    value: float


FindMargin = Callable[[Node], Margin | None]
Absorb = Callable[[Node, Node, Margin], Node | None]


@dataclass(eq=False)
class Traits:
    """The traits of one operator. An operator that states nothing has none.

    `windowed`: The operator slides windows over one to three axes of an image (batch, channels,
    axes); its attributes `strides`, `pads` and `dilations` say how. `kernel`: The place of the
    operand that is the kernel. The optimizer computes it before the run, however large it is. A
    windowed operator without one has an attribute `kernel`, its sizes. `initializer`: ONNX Runtime
    takes the kernel as an initializer only. `layout`: ONNX Runtime may run the operator with
    channels last, or by several algorithms. `joins`: The attribute with the axis along which the
    operator concatenates its operands. `updates`: The place of the operand that the operator writes
    over elements of the first one. `parts`: The attribute with the sizes of the parts into
    which the operator cuts its operand. `converts`: The operator changes the dtype of its operand,
    which may round. `repeats`: The operator repeats its operand along axes, up to the shape that
    its attribute `shape` has. `rounds`: ONNX Runtime computes the operator on integers through
    doubles. `inside`: The place of an operand of indices of which ONNX Runtime refuses more than
    there are places, and those that count from the end, which the definition takes. So no law makes
    the term of indices that only a run gives, unless they were those of such a term. `resolution`:
    ONNX Runtime computes results to a rounding of this number, however small they are (in half
    precision to one of single precision). `sums`: The operator adds its operands: where a law
    leaves one out, the other is the result. `quantized`: The operator quantizes, or takes quantized
    operands. The runtime fuses it with its neighbours as they are, so it is not computed before the
    run, and is in no kernel; but on a GPU, where its activations are floats and its integers
    weights. `decides`: Results are decisions of rounding. The float64 reference computes them in
    the declared dtypes, as the runtime does. `coarse`: The attribute that, above 1, lets ONNX
    Runtime round operands to fewer digits than they have, which the definition does not. `domains`:
    How the verifier draws attributes: a key of `verify.attributes.DRAWN`, or a function. Without an
    entry here the attribute's own name is the key. `lowering`: the rule of code generators for the
    operator besides its definition. `stays`: A model's nodes of the operator stay as they are, for
    its definition is a loop; only a certificate opens them (`onnx_io/content_terms.py`).
    """

    windowed: bool = False
    updates: int | None = None
    lowering: Lowering | None = None
    stays: bool = False
    kernel: int | None = None
    initializer: bool = False
    layout: bool = False
    joins: str | None = None
    parts: str | None = None
    converts: bool = False
    repeats: bool = False
    rounds: bool = False
    inside: int | None = None
    sums: bool = False
    quantized: bool = False
    decides: bool = False
    coarse: str | None = None
    resolution: float = 0.0
    domains: dict[str, Domain] = field(default_factory=dict)
    families: list[MutantFamily] = field(default_factory=list)
    restrict: Restrict | None = None
    resize: Resize | None = None
    place: _Place | None = None
    margin: FindMargin | None = None
    absorb: Absorb | None = None
    batch: Callable[[Node], bool] | None = None
    exact: Exact | None = None
    apart: Decompose | None = None
    stored_at: _StoredAt | None = None
    of_loop: Looping | None = None

    def domain(self, attribute: str) -> Callable[[Domain], Domain]:
        """State how the verifier draws an attribute, by a function of
        `attributes.AttributeSite`."""

        def register(hook: Domain) -> Domain:
            self.domains[attribute] = hook
            return hook

        return register

    def mutant(self, name: str, of: str | None = None) -> Callable[[Mutate], Mutate]:
        """Add a family of mutants."""

        def register(mutate: Mutate) -> Mutate:
            self.families.append(MutantFamily(name, mutate, of))
            return mutate

        return register

    def restriction(self, hook: Restrict) -> Restrict:
        """State how to compute the part of a term within a box.

        The hook gets a function that restricts operands, the term, and the box; it raises
        Unsupported where there is no such term. If the operator has several results, the term is
        one of them (`item`). An operator needs no restriction if it is elementwise, or if other
        operators define it.
        """
        self.restrict = hook
        return hook

    def resizing(self, hook: Resize) -> Resize:
        """State the values of attributes that hold sizes where the operands' sizes change.

        The hook gets the attributes, the old and the new shapes, and new names of old sizes; it
        returns the attributes that change.
        """
        self.resize = hook
        return hook

    def placing(self, hook: _Place) -> _Place:
        """State which box of its only operand a term is; None if it is not a single box."""
        self.place = hook
        return hook

    def storing(self, hook: _StoredAt) -> _StoredAt:
        """State which elements of a result are the updates.

        The hook gets the term and its result as a variable, and returns a movement of this
        variable that gives the operand `updates`; None if there is none.
        """
        self.stored_at = hook
        return hook

    def looping(self, hook: Looping) -> Looping:
        """State which terms of an operator whose definition is a loop a loop may be.

        The hook gets the loop's states before the first step and its sequences. It returns terms of
        the operator, each with the terms over it that the results of the loop are then: the states
        after the last step, and what a step gives besides. Nothing is claimed about them: they are
        compared with the loop, and proved.
        """
        self.of_loop = hook
        return hook

    def margins(self, hook: FindMargin) -> FindMargin:
        """State the padding of a term around its only operand; None if the padding is not a single
        value."""
        self.margin = hook
        return hook

    def absorbing(self, hook: Absorb) -> Absorb:
        """State how a term absorbs a margin around its first operand.

        The hook gets the term, the tensor inside the margin, and the margin; it returns the equal
        term over the tensor, or None where no attributes express it.
        """
        self.absorb = hook
        return hook

    def batching(self, hook: Callable[[Node], bool]) -> Callable[[Node], bool]:
        """State whether axis 0 of a term's first operand and of its result is a batch."""
        self.batch = hook
        return hook

    def exactness(self, hook: Exact) -> Exact:
        """State the condition under which ONNX Runtime computes integers exactly.

        The hook gets the elements of each operand and a bound. It returns whether every number on
        the way is below the bound and no divisor is 0.
        """
        self.exact = hook
        return hook

    def decomposition(self, hook: Decompose) -> Decompose:
        """State how a fused term is decomposed into products with weights, which may have kernels,
        and the rest.

        The hook returns None if there would be no gain.
        """
        self.apart = hook
        return hook


NO_TRAITS = Traits()
"""The traits of a term that is no operator."""
