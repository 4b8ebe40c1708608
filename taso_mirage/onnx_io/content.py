"""The effect of an ONNX node, as a value that is equal for equal nodes of two files.

It depends on the bits of attributes, and on the nodes of bodies and functions in their order, but
not on names of values or documentation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from taso_mirage.onnx_io.attributes import DRAWS, KNOWN_DOMAINS
from taso_mirage.onnx_io.walk import Part


def may_draw(node: ir.Node) -> bool:
    """Whether two runs of a node may differ: it draws random numbers, or its operator belongs
    neither to ONNX nor to the runtime."""
    return node.op_type in DRAWS or node.domain not in {*KNOWN_DOMAINS, "com.microsoft"}


def array_digest(array: Any) -> str:
    """A digest that is equal for arrays of the same dtype, shape and bits (for strings, the same
    characters)."""
    found = np.asarray(array)
    digest = hashlib.sha256(f"{found.dtype.name} {found.shape} ".encode())
    if found.dtype == object:
        digest.update(repr([t if isinstance(t, bytes) else str(t).encode() for t in found.flat]).encode())
    else:
        digest.update(np.ascontiguousarray(found).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


@dataclass(slots=True)
class NodeReader:
    """Digests of nodes with their bodies.

    `outer` gets the values that bodies use and do not define, one for each use, in the order in
    which they are met: two that are equal may be one value in another file.
    """

    functions: Mapping[Any, ir.Function]
    opsets: Mapping[str, int]
    numbers: dict[ir.Value | None, str] = field(default_factory=lambda: {None: "none"})
    outer: list[ir.Value] = field(default_factory=list)

    def operator(self, node: ir.Node, apart: Collection[str] = ()) -> str:
        """A digest of a node's function, without its operands and without the bodies in `apart`."""
        domain = _plain(node.domain)
        function = self.functions.get((node.domain, node.op_type, node.overload))
        version = self.opsets.get(domain, 0) if function is None else self._function(function)
        attributes = [(n, self._attribute(a)) for n, a in sorted(node.attributes.items()) if n not in apart]
        used = [bool(o.name) for o in node.outputs]
        return _digest(domain, node.op_type, node.overload, version, attributes, len(node.inputs), used)

    def _function(self, function: ir.Function) -> str:
        opsets = {_plain(d): v for d, v in function.opset_imports.items()}
        inside = NodeReader(self.functions, opsets)
        attributes = [(n, inside._attribute(a)) for n, a in sorted(function.attributes.items())]
        return _digest(attributes, sorted(opsets.items()), inside._part(function))

    def _part(self, part: Part) -> str:
        """A body or a function: its outputs as terms of its inputs."""
        for value in part.inputs:
            self._define(value)
        if isinstance(part, ir.Graph):
            for value in part.initializers.values():
                if value not in self.numbers and value.const_value is not None:
                    self.numbers[value] = array_digest(value.const_value.numpy())
        nodes = []
        for node in part:
            operands = [self._number(v) for v in node.inputs]
            nodes.append((self.operator(node), operands))
            for value in node.outputs:
                self._define(value)
        return _digest([str(v.type) for v in part.inputs], nodes, [self._number(v) for v in part.outputs])

    def _define(self, value: ir.Value) -> None:
        self.numbers.setdefault(value, f"value {len(self.numbers)}")

    def _number(self, value: ir.Value | None) -> str:
        if value is None or value in self.numbers:
            return self.numbers[value]
        self.outer.append(value)
        return f"outer {len(self.outer) - 1}"

    def _attribute(self, attribute: ir.Attr) -> Hashable:
        kinds, kind, value = ir.AttributeType, attribute.type, attribute.value
        if attribute.is_ref():
            return "refers to", attribute.ref_attr_name, kind.name
        if kind in (kinds.FLOAT, kinds.FLOATS):
            return kind.name, np.float32(value).tobytes()
        if kind in (kinds.GRAPH, kinds.GRAPHS):
            return kind.name, tuple(self._part(g) for g in ([value] if kind == kinds.GRAPH else value))
        if kind in (kinds.TENSOR, kinds.TENSORS):
            return kind.name, tuple(_tensor(t) for t in ([value] if kind == kinds.TENSOR else value))
        if isinstance(value, Iterable) and not isinstance(value, str | bytes):
            return kind.name, tuple(map(_text, value))
        return kind.name, _text(value)


def _tensor(tensor: ir.TensorProtocol) -> str:
    return f"{tensor.dtype} {array_digest(tensor.numpy())}"


def _text(value: Any) -> str:
    return repr(value.encode() if isinstance(value, str) else value)


def _plain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _digest(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
