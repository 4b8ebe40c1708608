"""Insertion of kernels into a model: a region of terms becomes one node, which calls a kernel or
the region's own computation (see `kernel_functions`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from hashlib import blake2b
from math import prod
from operator import or_
from typing import Any

import onnx_ir as ir

from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.forms.base.form import in_operators
from taso_mirage.ir.dims import Dim, evaluate, symbol
from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import Graph, Node, Tensor, substitute, topological, variable
from taso_mirage.mugraph.arranged import over_inputs, with_arranged, without_unread
from taso_mirage.onnx_io.kernels import carries_code
from taso_mirage.onnx_io.originals import copy_model
from taso_mirage.onnx_io.read import OpaqueCall
from taso_mirage.operators.ops import get
from taso_mirage.runtime import kernel_functions
from taso_mirage.runtime.kernel_functions import DOMAIN, FUNCTIONS_SINCE, value
from taso_mirage.runtime.plan import PlannedNode
from taso_mirage.runtime.register import FORMAT_KEY, PLAN_FORMAT, SOURCE_KEY

__all__ = ["DOMAIN", "NAMES", "EmbeddedRegion", "embed", "embedded"]
STEMS = {"cpu": "CpuKernel", "cuda": "CudaKernel"}
NAMES = 128
"""The largest number of different kernels of a model for a target; cpp/library.cpp registers as
many names."""
LARGEST = 1 << 16
"""The largest number of elements of a constant inside a function."""


@dataclass(frozen=True, slots=True)
class EmbeddedRegion:
    """Terms of a model between `inputs` and `outputs`, and a kernel that takes and gives these, in
    this order. An input may be an arranged weight, where the terms have the weight itself (see
    `arranged`)."""

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    kernel: PlannedNode

    @staticmethod
    def of(goal: Graph, inputs: Sequence[Node], kernel: PlannedNode) -> EmbeddedRegion:
        """The place where a model computes `goal`, for which the kernel was found, on its own
        terms; the outputs follow from it."""
        outputs = substitute(goal.outputs, dict(zip(goal.inputs, inputs, strict=True)))
        return EmbeddedRegion(tuple(inputs), outputs, kernel)

    @property
    def original(self) -> Graph:
        """The graph of the region, over inputs of its own.

        Raises Unsupported where it has weights or opaque nodes inside.
        """
        leaves = tuple(variable(f"x{i}", node.tensor) for i, node in enumerate(self.inputs))
        outputs = over_inputs(self.inputs, self.outputs)
        outputs = in_operators(substitute(outputs, dict(zip(self.inputs, leaves, strict=True))))
        for node in topological(outputs):
            if node.op in ("weight", "opaque") or (node.op == "input" and node not in leaves):
                name = dict(node.attrs).get("name", node.op)
                raise Unsupported(f"the {node.op} {name!r} inside a region; it must be one of the kernel's inputs")
            if node.op == "constant" and prod(int(n) for n in node.shape) > LARGEST:
                raise Unsupported(f"a constant of {node.type} inside a region; make it an input of the kernel")
        return Graph(leaves, outputs)

    @property
    def free(self) -> bool:
        """Whether the region has sizes that are known only at run time but its kernel has not."""
        sizes = [n for node in (*self.inputs, *self.outputs) for n in node.shape]
        return not self.kernel.free and any(not isinstance(n, int) for n in sizes)

    def reads_back(self, opsets: Mapping[str, int]) -> bool:
        """Whether its function, which runs without the kernels' library, is read from ONNX as the
        region's own terms; a function that chooses by the sizes of a run is not read."""
        return not self.free and kernel_functions.reads_back(self.original, opsets)

    def check(self, sizes: Mapping[str, int]) -> None:
        """Raise IllTyped, with the place and both types, unless the kernel has the region's
        operands and results at these sizes. A dim with a name in the kernel may have any size, but
        the same in every tensor."""
        named: dict[Dim, Dim] = {}
        for word, nodes, types in (
            ("input", self.inputs, self.kernel.inputs),
            ("output", self.outputs, self.kernel.outputs),
        ):
            if len(nodes) != len(types):
                raise IllTyped(f"a region of {len(nodes)} {word}s, its kernel has {len(types)}")
            for i, (node, type) in enumerate(zip(nodes, types, strict=True)):
                if not _takes(type, node, sizes, named):
                    raise IllTyped(
                        f"{word} {i} of a region, {node.op}, is {node.type}, its kernel's {type}; sizes must be fixed, or given"
                    )


def _takes(type: Tensor, node: Node, sizes: Mapping[str, int], named: dict[Dim, Dim]) -> bool:
    """Whether a term has a kernel's type; `named` keeps the values of its named dims."""
    wanted, given = type.shape or (), node.shape
    if node.dtype != type.dtype or len(wanted) != len(given):
        return False
    return all(
        _size(own, sizes) == dim if isinstance(dim, int) else named.setdefault(dim, own) == own
        for dim, own in zip(wanted, given, strict=True)
    )


def _size(dim: Dim, sizes: Mapping[str, int]) -> Dim:
    try:
        return evaluate(dim, sizes)
    except LookupError:
        return dim


def embed(model: Model, regions: Sequence[EmbeddedRegion], sizes: Mapping[str, int] | None = None) -> Model:
    """The model with one node for each region, and functions for each different kernel.

    Where the custom-operator library is registered (`runtime.register`) a node runs its kernel,
    elsewhere a function, which is made of the region's own terms. Regions may read the results of
    others. Equal kernels are in the file once. Pre-transposed weights become weights of the model,
    and weights without readers are left out. The sources travel in the metadata. `sizes` are of the
    model's free dims: a region with such a dim runs its kernel at these sizes, and its own terms at
    others.

    Raises IllTyped where a kernel has other types than its region, Unsupported for a region that
    the model does not have or that cannot be a function, for too many kernels, or for a model with
    code that nobody trusts: the library would run it too. The caller must know that a kernel
    computes its region.
    """
    return embedded(model, regions, sizes)[0]


def embedded(
    model: Model, regions: Sequence[EmbeddedRegion], sizes: Mapping[str, int] | None = None, alike: bool = False
) -> tuple[Model, dict[Node, Node]]:
    """The model that `embed` makes, and for each term of the model before the term of the same
    value, which the made model has unless it is inside a region. With `alike` the nodes of equal
    regions differ in their operands alone, and have no names. The other arguments and the errors
    are those of `embed`.
    """
    if not model.trusted and carries_code(model.header):
        raise Unsupported("the model carries kernels that are not trusted, so none is made for it")
    header = _header(model.header)
    names = _Names(header, {domain: v for domain, v in model.opsets.items() if domain != DOMAIN})
    fits = None
    old = model.nodes()
    model, mapping = with_arranged(model, [x for region in regions for x in region.inputs])
    arranged = bool(mapping)
    known, calls = frozenset(old), dict[tuple[Any, ...], OpaqueCall]()
    for i, region in enumerate(_ordered(regions)):
        region.check(sizes or {})
        for output in region.outputs:
            if output not in known:
                raise Unsupported(f"the model has no term that is output {output.op} of a region, {output.type}")
        name, args = names.of(region), substitute(region.inputs, mapping)
        if region.free:
            fits = fits or _fits(model, sizes or {}, names)
            args = (fits, *args)
        label = "" if alike else f"{name}/{model.names.get(region.outputs[0], i)}"
        call = _call(name, label, args, region)
        same = name, *(n.type for n in (*args, *region.outputs)), *region.kernel.attributes.items()
        call = calls.setdefault(same, call) if alike else call
        mapping.update(zip(region.outputs, _results(call, args, region), strict=True))
    new = dict(zip(old, substitute(old, mapping), strict=True))
    made = replace(
        model,
        graph=Graph(model.graph.inputs, tuple(new[o] for o in model.graph.outputs)),
        opsets={**_domains(regions), **model.opsets, DOMAIN: 1},
        header=header,
        names=_moved(model.names, new),
        origins=_moved({n: o for n, o in model.origins.items() if n not in mapping}, new),
        opaque=_moved(model.opaque, new),
        trusted=True,
    )
    return without_unread(made) if arranged else made, new


def _domains(regions: Sequence[EmbeddedRegion]) -> dict[str, int]:
    """The opset imports of the functions' operators; onnx's own inference needs them in the model
    too."""
    operators = {n.op for region in regions for n in region.original if n.args}
    return {domain: 1 for domain in sorted({get(op).domain for op in operators}) if domain not in ("", "ai.onnx")}


def _header(old: ir.Model) -> ir.Model:
    """A model with the header of the old one and the same graph, which is not changed."""
    made = copy_model(old, old.graph)
    made.ir_version = max(old.ir_version, FUNCTIONS_SINCE)
    made.metadata_props[FORMAT_KEY] = str(PLAN_FORMAT)
    return made


def _moved(old: Mapping[Node, Any], new: Mapping[Node, Node]) -> dict[Node, Any]:
    return {new.get(node, node): value for node, value in old.items()}


def _ordered(regions: Sequence[EmbeddedRegion]) -> Iterable[EmbeddedRegion]:
    """The regions in an order in which a region comes before those that read it.

    Raises Unsupported where two read each other's results, or give the same.
    """
    given = [o for region in regions for o in region.outputs]
    if len(set(given)) < len(given):
        raise Unsupported("two regions that give the same term")
    own = {o: 1 << i for i, region in enumerate(regions) for o in region.outputs}
    below: dict[Node, int] = {}
    for node in topological([x for region in regions for x in region.inputs]):
        below[node] = reduce(or_, [below[a] for a in node.args], own.get(node, 0))
    read = [reduce(or_, [below[x] for x in region.inputs], 0) for region in regions]
    left, waiting = list(range(len(regions))), (1 << len(regions)) - 1
    while left:
        first = next((i for i in left if not read[i] & waiting & ~(1 << i)), None)
        if first is None:
            raise Unsupported(f"{len(left)} regions that read each other's results")
        left.remove(first)
        waiting &= ~(1 << first)
        yield regions[first]


class _Names:
    """The functions of a model's kernels: equal ones have one name."""

    def __init__(self, header: ir.Model, opsets: Mapping[str, int]) -> None:
        self.header, self.opsets = header, dict(opsets)
        self.known: dict[tuple[Graph, str, bool], str] = {}

    def of(self, region: EmbeddedRegion) -> str:
        """The name of the function that a region's node calls."""
        key = (region.original, region.kernel.plan, region.free)
        if key not in self.known:
            self.known[key] = self._made(region)
            kernel = region.kernel
            head = SOURCE_KEY if kernel.target == "cpu" else f"{DOMAIN}.triton."
            self.header.metadata_props[head + kernel.entry] = kernel.source
        return self.known[key]

    def add(self, made: ir.Function) -> str:
        self.header.functions[made.identifier()] = made
        return str(made.name)

    def _made(self, region: EmbeddedRegion) -> str:
        original, opsets, attributes = region.original, self.opsets, region.kernel.attributes
        stem, target = STEMS[region.kernel.target], region.kernel.target
        name = self._free((f"{stem}{i}" for i in range(NAMES)), f"more than {NAMES} different kernels for {target}")
        if not region.free and not region.kernel.images:
            return self.add(kernel_functions.computation(name, original, opsets, attributes))
        entry = self._free((f"{region.kernel.entry}{f'_{i}' if i else ''}" for i in range(NAMES)), "too many kernels")
        if not region.free:
            self.add(kernel_functions.computation(name, original, opsets, attributes))
            return self.add(kernel_functions.call(entry, name, original, opsets, attributes))
        other = self.add(kernel_functions.computation(entry.replace("kernel", "original"), original, opsets))
        self.add(kernel_functions.forward(name, other, original, opsets, attributes))
        return self.add(kernel_functions.choice(entry, name, other, original, opsets, attributes))

    def _free(self, names: Iterable[str], problem: str) -> str:
        taken = {name for domain, name, _ in self.header.functions if domain == DOMAIN}
        found = next((name for name in names if name not in taken), None)
        if found is None:
            raise Unsupported(f"{problem} in one model")
        return found


def _fits(model: Model, sizes: Mapping[str, int], names: _Names) -> Node:
    """A term that is true at these sizes.

    Every free dim of every input is tested, because a runtime permits two dims of one name to
    differ.
    """
    places: dict[Node, list[tuple[int, int]]] = {}
    unknown = set(sizes)
    for node in model.graph.inputs:
        free = [(i, dim) for i, dim in enumerate(node.tensor.shape or ()) if not isinstance(dim, int)]
        unknown -= {name for name in sizes for _, dim in free if dim == symbol(name)}
        if free:
            places[node] = [(i, evaluate(dim, sizes)) for i, dim in free]
    if unknown:
        raise Unsupported(f"the dim {min(unknown)!r} is no dim of an input alone, so a run cannot tell its size")
    key = blake2b(repr([(n.attr("name"), p) for n, p in places.items()]).encode(), digest_size=8).hexdigest()
    name = names.add(kernel_functions.fitting_sizes(f"sizes_{key}", list(places.values()), names.opsets))
    types = [Tensor("bool", ())]
    return _opaque(_opaque_call(name, name, tuple(places), {}, types), tuple(places), types)


def _call(name: str, label: str, args: Sequence[Node], region: EmbeddedRegion) -> OpaqueCall:
    """The node of a region. Attributes that no function holds are its own."""
    own = {} if region.free or region.kernel.images else region.kernel.attributes
    return _opaque_call(name, label, args, own, [n.tensor for n in region.outputs])


def _results(call: OpaqueCall, args: Sequence[Node], region: EmbeddedRegion) -> Sequence[Node]:
    """The terms of a node's outputs."""
    types = [n.tensor for n in region.outputs]
    node = _opaque(call, args, types)
    return [node] if len(types) == 1 else [get("item").term(node, index=i) for i in range(len(types))]


def _opaque_call(
    name: str, label: str, args: Sequence[Node], attributes: Mapping[str, str], types: Sequence[Tensor]
) -> OpaqueCall:
    inputs = [value(f"x{i}", n.tensor) for i, n in enumerate(args)]
    outputs = [value(f"y{i}", type) for i, type in enumerate(types)]
    texts = [ir.AttrString(key, text) for key, text in attributes.items()]
    return OpaqueCall(ir.Node(DOMAIN, name, inputs, texts, outputs=outputs, name=label), ())


def _opaque(call: OpaqueCall, args: Sequence[Node], types: Sequence[Tensor]) -> Node:
    return Node("opaque", tuple(args), (("call", call),), types[0] if len(types) == 1 else tuple(types))
