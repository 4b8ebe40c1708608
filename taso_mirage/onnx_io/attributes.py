"""Attributes of ONNX nodes as Python values, and nodes with equal effects."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress
from typing import Any

import numpy as np
import onnx_ir as ir

from taso_mirage.errors import Unsupported
from taso_mirage.ir.terms import Literal, Tensor


def attribute_value(name: str, attribute: ir.Attr) -> Any:
    kinds = ir.AttributeType
    if attribute.is_ref():
        raise Unsupported(f"the attribute {name} refers to a function's attribute")
    if attribute.type in (kinds.INT, kinds.FLOAT, kinds.STRING):
        return attribute.value
    if attribute.type in (kinds.INTS, kinds.FLOATS, kinds.STRINGS):
        return tuple(attribute.value)
    if attribute.type == kinds.TENSOR:
        return attribute.as_tensor().numpy()
    raise Unsupported(f"the attribute {name} is a {attribute.type.name.lower()}")


FLAGS = frozenset(
    "keepdims transA transB exclusive reverse select_last_index ceil_mode count_include_pad allowzero noop_with_empty_axes largest "
    "sorted unidirectional".split()
)
"""The names of attributes that are 0 or 1."""


def meant(name: str, value: Any) -> Any:
    """An attribute's value, if all runtimes read it in the same way. ONNX Runtime keeps 32 bits of
    a number, and tests a flag in some places for 1, in others for not 0."""
    if isinstance(value, int) and (value not in (0, 1) if name in FLAGS else not -(2**31) <= value < 2**31):
        raise Unsupported(f"the attribute {name} is {value}")
    return value


def told(node: ir.Node, type: Tensor) -> Tensor:
    """The inferred type of a node's result. The shape is unknown if runtimes read the node's
    attributes differently."""
    try:
        for name, value in plain_attributes(node).items():
            meant(name, value)
    except Unsupported:
        return Tensor(type.dtype, None)
    return type


def plain_attributes(node: ir.Node) -> dict[str, Any]:
    """The attributes of a node that are numbers, texts or arrays."""
    found = {}
    for name, attribute in node.attributes.items():
        with suppress(Unsupported):
            found[name] = attribute_value(name, attribute)
    return found


KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml"})
"""Domains whose operators depend only on their operands and attributes, except those in DRAWS."""
DRAWS = frozenset("Bernoulli Dropout Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split())
"""Standard operators whose results differ from run to run."""


def what_it_does(node: ir.Node) -> Hashable | None:
    """A key that is equal for two nodes that give equal results for equal operands. None if this is
    unknown: for nodes of other domains, and for nodes that draw random numbers, have a body, or are
    placed on a device."""
    if node.domain not in KNOWN_DOMAINS or node.op_type in DRAWS or node.device_configurations:
        return None
    try:
        values = [(name, _hashable(attribute_value(name, a))) for name, a in sorted(node.attributes.items())]
    except Unsupported:
        return None
    return node.domain, node.op_type, tuple(values), tuple(bool(o.name) for o in node.outputs)


def _hashable(value: Any) -> Hashable:
    """A value with its numbers as type and bits: 0 differs from 0.0, and both from -0.0."""
    if isinstance(value, np.ndarray):
        return Literal.of(value) if value.dtype != object else (value.shape, *map(repr, value.flat))
    return repr(value)
