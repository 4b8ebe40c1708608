"""Kernels into a model: a region of terms becomes one node, whose function of the same name is the region's own computation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import onnx_ir as ir

from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir import Graph, Node, Tensor, substitute, topological, variable
from taso_mirage.model import Model
from taso_mirage.onnx_io import to_ir
from taso_mirage.onnx_io.build import standalone
from taso_mirage.onnx_io.read import OpaqueCall
from taso_mirage.onnx_io.write import declare
from taso_mirage.ops import get
from taso_mirage.runtime.plan import Kernel
from taso_mirage.runtime.register import FORMAT, FORMAT_KEY, SOURCE_KEY

DOMAIN = "taso_mirage"
STEMS = {"cpu": "CpuKernel", "cuda": "CudaKernel"}
NAMES = 128
"""Different kernels that a model may have for a target; cpp/library.cpp registers as many names."""
FUNCTIONS_SINCE = 8
"""The first IR version whose models have functions."""
LARGEST = 1 << 16
"""Elements of a constant, at most, that a function keeps inside."""


@dataclass(frozen=True, slots=True)
class Region:
    """Terms of a model between `inputs` and `outputs`, and a kernel that takes and gives these, in this order."""

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    kernel: Kernel

    @staticmethod
    def of(goal: Graph, inputs: Sequence[Node], kernel: Kernel) -> Region:
        """Where a model computes `goal`, which the kernel was found for, on these terms of its own: the outputs follow from it."""
        outputs = substitute(goal.outputs, dict(zip(goal.inputs, inputs, strict=True)))
        return Region(tuple(inputs), outputs, kernel)

    @property
    def original(self) -> Graph:
        """What it computes, over inputs of its own. Raises Unsupported where it has weights or opaque nodes inside."""
        leaves = tuple(variable(f"x{i}", node.tensor) for i, node in enumerate(self.inputs))
        outputs = substitute(self.outputs, dict(zip(self.inputs, leaves, strict=True)))
        for node in topological(outputs):
            if node.op in ("weight", "opaque") or (node.op == "input" and node not in leaves):
                name = dict(node.attrs).get("name", node.op)
                raise Unsupported(f"the {node.op} {name!r} inside a region; it must be one of the kernel's inputs")
            if node.op == "constant" and prod(int(n) for n in node.shape) > LARGEST:
                raise Unsupported(f"a constant of {node.type} inside a region; make it an input of the kernel")
        return Graph(leaves, outputs)

    def check(self) -> None:
        """Raise IllTyped, with the place and both types, unless the kernel takes and gives what the region does."""
        for word, nodes, types in (
            ("input", self.inputs, self.kernel.inputs),
            ("output", self.outputs, self.kernel.outputs),
        ):
            if len(nodes) != len(types):
                raise IllTyped(f"a region of {len(nodes)} {word}s, its kernel has {len(types)}")
            for i, (node, type) in enumerate(zip(nodes, types, strict=True)):
                if node.type != type:
                    raise IllTyped(
                        f"{word} {i} of a region, {node.op}, is {node.type}, its kernel's {type}; sizes must be fixed"
                    )


def embed(model: Model, regions: Sequence[Region]) -> Model:
    """The model with one node for each region, and for each different kernel a function of the node's name.

    Where the custom-operator library is registered (`runtime.register`) a node runs its kernel, elsewhere the function, which is made
    of the region's own terms. Regions may read what others give. Equal kernels share a name. The sources travel in the metadata.

    Raises IllTyped where a kernel has other types than its region, Unsupported for a region that the model does not have or that
    cannot be a function, or for too many kernels. That a kernel computes what its region does is for the caller to know.
    """
    header = _header(model.header)
    names = _Names(header, {domain: v for domain, v in model.opsets.items() if domain != DOMAIN})
    mapping: dict[Node, Node] = {}
    old = model.nodes()
    known = frozenset(old)
    for i, region in enumerate(_ordered(regions)):
        region.check()
        for output in region.outputs:
            if output not in known:
                raise Unsupported(f"the model has no term that is output {output.op} of a region, {output.type}")
        name, args = names.of(region), substitute(region.inputs, mapping)
        label = f"{name}/{model.names.get(region.outputs[0], i)}"
        mapping.update(zip(region.outputs, _call(name, label, args, region), strict=True))
    new = dict(zip(old, substitute(old, mapping), strict=True))
    return replace(
        model,
        graph=Graph(model.graph.inputs, tuple(new[o] for o in model.graph.outputs)),
        opsets={**model.opsets, DOMAIN: 1},
        header=header,
        names=_moved(model.names, new),
        origins=_moved({n: o for n, o in model.origins.items() if n not in mapping}, new),
        opaque=_moved(model.opaque, new),
    )


def _header(old: ir.Model) -> ir.Model:
    """It shares its graph with the old one, which nobody changes."""
    made = ir.Model(
        old.graph,
        ir_version=max(old.ir_version, FUNCTIONS_SINCE),
        producer_name=old.producer_name,
        producer_version=old.producer_version,
        domain=old.domain,
        model_version=old.model_version,
        doc_string=old.doc_string,
        functions=[f.clone() for f in old.functions.values()],
        metadata_props={**old.metadata_props, FORMAT_KEY: str(FORMAT)},
        device_configurations=old.device_configurations,
    )
    made.meta.update(old.meta)
    return made


def _moved(old: Mapping[Node, Any], new: Mapping[Node, Node]) -> dict[Node, Any]:
    return {new.get(node, node): value for node, value in old.items()}


def _ordered(regions: Sequence[Region]) -> Iterable[Region]:
    """Those that give before those that read. Raises Unsupported where two read each other's results, or give the same."""
    left = list(regions)
    given = [o for region in regions for o in region.outputs]
    if len(set(given)) < len(given):
        raise Unsupported("two regions that give the same term")
    while left:
        for region in left:
            others = {o for other in left if other is not region for o in other.outputs}
            if others.isdisjoint(topological(region.inputs)):
                break
        else:
            raise Unsupported(f"{len(left)} regions that read each other's results")
        left.remove(region)
        yield region


class _Names:
    """The functions of a model's kernels: equal ones have one name."""

    def __init__(self, header: ir.Model, opsets: Mapping[str, int]) -> None:
        self.header, self.opsets = header, dict(opsets)
        self.known: dict[tuple[Graph, str], str] = {}

    def of(self, region: Region) -> str:
        original, kernel = region.original, region.kernel
        key = (original, kernel.plan)
        if key not in self.known:
            name = self.known[key] = self._free(kernel.target)
            made = _function(name, original, self.opsets, kernel.attributes)
            self.header.functions[made.identifier()] = made
            suffix = SOURCE_KEY if kernel.target == "cpu" else f"{DOMAIN}.triton."
            self.header.metadata_props[suffix + kernel.entry] = kernel.source
        return self.known[key]

    def _free(self, target: str) -> str:
        taken = {name for domain, name, _ in self.header.functions if domain == DOMAIN}
        for i in range(NAMES):
            if f"{STEMS[target]}{i}" not in taken:
                return f"{STEMS[target]}{i}"
        raise Unsupported(f"more than {NAMES} different kernels for {target} in one model")


def _call(name: str, label: str, args: Sequence[Node], region: Region) -> Sequence[Node]:
    """The terms of a node's outputs."""
    inputs, outputs = (
        [_value(f"{word}{i}", n.tensor) for i, n in enumerate(nodes)]
        for word, nodes in (("x", region.inputs), ("y", region.outputs))
    )
    attributes = [ir.AttrString(key, text) for key, text in region.kernel.attributes.items()]
    call = OpaqueCall(ir.Node(DOMAIN, name, inputs, attributes, outputs=outputs, name=label), ())
    types = tuple(n.tensor for n in region.outputs)
    node = Node("opaque", tuple(args), (("call", call),), types[0] if len(types) == 1 else types)
    return [node] if len(types) == 1 else [get("item").term(node, index=i) for i in range(len(types))]


def _value(name: str, type: Tensor) -> ir.Value:
    value = ir.Value(name=name)
    declare(value, type)
    return value


def _function(name: str, original: Graph, opsets: Mapping[str, int], attributes: Iterable[str]) -> ir.Function:
    """The terms as ONNX writes them, constants as nodes. The attributes are the kernel's: the body reads none of them."""
    body = to_ir(standalone(original, opsets)).graph
    values = list(body.initializers.values())
    constants = [_constant(value) for value in values]
    body.initializers.clear()
    for value, node in zip(values, constants, strict=True):
        value.replace_all_uses_with(node.outputs[0])
    body.insert_before(body[0], constants)
    declared = [ir.Attr(key, ir.AttributeType.STRING, None) for key in attributes]
    return ir.Function(DOMAIN, name, graph=body, attributes=declared)


def _constant(value: ir.Value) -> ir.Node:
    if value.const_value is None:
        raise Unsupported(f"the constant {value.name!r} of a region has no value")
    made = ir.Value(name=value.name, type=value.type, shape=value.shape)
    return ir.Node("", "Constant", [], [ir.AttrTensor("value", value.const_value)], outputs=[made])
