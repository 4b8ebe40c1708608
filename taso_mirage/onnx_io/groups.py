"""Nodes of a file as they stand in it, and the quantized group around one of them as a model of its
own: the node, the dequantizers of its operands, and the quantizers of its results."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.external_data_helper import uses_external_data

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
SMALL = 64
"""The largest number of elements of a constant that a group keeps, such as shapes, axes and
pads."""
STEP = 1 / 128
"""The unit of a group's scales. Each scale is the unit times a number, and equal scales have equal
numbers."""
ValueType = tuple[str, tuple[int, ...]]
"""A dtype and a shape."""


def number_nodes(path: str) -> tuple[dict[str, onnx.NodeProto], dict[str, ValueType]]:
    """Name the nodes of a file by their numbers; each as it was, without its bodies, and the types
    of the weights."""
    model = onnx.load(path, load_external_data=False)
    found = {}
    for i, node in enumerate(model.graph.node):
        found[f"#{i}"] = onnx.NodeProto(
            name=node.name,
            op_type=node.op_type,
            input=node.input,
            output=node.output,
            attribute=[a for a in node.attribute if a.type == onnx.AttributeProto.INT],
        )
        node.name = f"#{i}"
    with open(path, "wb") as file:
        file.write(model.SerializeToString())
    return found, {t.name: (_dtype(t), tuple(t.dims)) for t in model.graph.initializer}


BLOCKED = "_nchwc"
"""The runtime names a node with blocked channels by this and the value of the original that it
computes."""


def node_values(path: str) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """The operands and results of the nodes of a file that the runtime wrote, by the names of the
    nodes; a name that several nodes have is left out. Values with blocked channels have the names
    of the original's."""
    nodes = onnx.load(path, load_external_data=False).graph.node
    counts = Counter(node.name for node in nodes)
    named = {n.output[0]: n.name.rpartition(BLOCKED)[0] for n in nodes if BLOCKED in n.name and len(n.output) > 0}

    def plain(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(named.get(name, name) for name in names)

    return {n.name: (plain(n.input), plain(n.output)) for n in nodes if n.name and counts[n.name] == 1}


def _dtype(tensor: Any) -> str:
    return str(np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type)).name)


@dataclass(frozen=True, slots=True)
class GroupValue:
    """An operand or result: its type, the number of its scale (0: it is not quantized), how many
    scales there are along an axis (0: one for all), whether it is held before the run, its value
    where a group keeps it, and whether it is a bias with the product of the operands' scales."""

    dtype: str
    shape: tuple[int, ...]
    scale: int = 0
    scales: int = 0
    axis: int = 1
    held: bool = False
    value: bytes = b""
    product: bool = False


@dataclass(frozen=True, slots=True)
class QuantizedGroup:
    """A node with its operands and results, None where one is left out; `floats` are the results
    that are read without being quantized, too."""

    node: bytes
    opset: int
    operands: tuple[GroupValue | None, ...]
    results: tuple[GroupValue | None, ...]
    floats: frozenset[int] = frozenset()


@dataclass(frozen=True)
class FileNodes:
    """The graph of a file, without its large weights."""

    model: onnx.ModelProto
    makers: dict[str, Any] = field(default_factory=dict)
    readers: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    held: dict[str, Any] = field(default_factory=dict)

    @property
    def nodes(self) -> Sequence[Any]:
        nodes: Sequence[Any] = self.model.graph.node
        return nodes

    @property
    def outputs(self) -> set[str]:
        return {o.name for o in self.model.graph.output}

    def dequantized(self, name: str) -> Any:
        """The node that dequantizes this value, if one does."""
        made = self.makers.get(name)
        return made if made is not None and made.op_type == DEQUANTIZE else None

    def quantized(self, name: str) -> Any:
        """The node that quantizes this value, if one does."""
        return next((n for n in self.readers[name] if n.op_type == QUANTIZE), None)


def read_nodes(path: str) -> FileNodes:
    found = FileNodes(onnx.load(path, load_external_data=False))
    found.held.update({t.name: t for t in found.model.graph.initializer})
    for node in found.nodes:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            found.held[node.output[0]] = node.attribute[0].t
        found.makers.update(dict.fromkeys(node.output, node))
        for name in node.input:
            found.readers[name].append(node)
    return found


def group_of(
    found: FileNodes, node: Any, operands: Sequence[ValueType], results: Sequence[ValueType]
) -> QuantizedGroup:
    """The group around a node whose operands (those that are there) and results had these types
    when it ran in floats."""
    scales: dict[str, int] = {}
    types = iter(operands)
    places = tuple(_operand(found, name, next(types, ("float32", ())), scales) if name else None for name in node.input)
    ends = [
        _result(found, name, results[i] if i < len(results) else ("float32", ()), scales) if name else None
        for i, name in enumerate(node.output)
    ]
    floats = frozenset(i for i, name in enumerate(node.output) if name and _in_floats(found, name))
    if len(node.input) > 2 and places[2] is not None and places[2].dtype == "int32" and _is_product(found, node):
        places = (*places[:2], replace(places[2], product=True), *places[3:])
    opset = next((o.version for o in found.model.opset_import if o.domain in ("", "ai.onnx")), 17)
    return QuantizedGroup(_bare(node), opset, places, tuple(ends), floats)


def _is_product(found: FileNodes, node: Any) -> bool:
    """Whether the scale of a bias is the product of those of the operands, as it is for sums of
    products."""
    makers = [found.dequantized(name) for name in node.input[:3]]
    scales = [None if n is None else found.held.get(n.input[1]) for n in makers]
    if any(s is None or uses_external_data(s) for s in scales):
        return False
    a, b, bias = (numpy_helper.to_array(s) for s in scales)
    return bool(np.allclose(a * b, bias, rtol=1e-5))


def _in_floats(found: FileNodes, name: str) -> bool:
    return name in found.outputs or any(n.op_type != QUANTIZE for n in found.readers[name])


def _bare(node: Any) -> bytes:
    """The node without names, so that equal groups are equal."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    for part in ("name", "doc_string", "metadata_props"):
        copy.ClearField(part)
    copy.input[:] = [f"x{i}" if name else "" for i, name in enumerate(node.input)]
    copy.output[:] = [f"y{i}" if name else "" for i, name in enumerate(node.output)]
    return bytes(copy.SerializeToString(deterministic=True))


def _operand(found: FileNodes, name: str, type: ValueType, scales: dict[str, int]) -> GroupValue:
    before = found.dequantized(name)
    if before is None:
        held = found.held.get(name)
        if held is None:
            return GroupValue(*type)
        return GroupValue(*type, held=True, value=held.SerializeToString() if np.prod(held.dims) <= SMALL else b"")
    source = found.held.get(before.input[0])
    return _scaled(found, before, type[1], scales, source is not None)


def _result(found: FileNodes, name: str, type: ValueType, scales: dict[str, int]) -> GroupValue:
    after = found.quantized(name)
    return GroupValue(*type) if after is None else _scaled(found, after, type[1], scales, False)


def _scaled(found: FileNodes, node: Any, shape: tuple[int, ...], scales: dict[str, int], held: bool) -> GroupValue:
    """The value of the small integers that a quantization node makes."""
    scale = found.held.get(node.input[1])
    zero = found.held.get(node.input[2]) if len(node.input) > 2 else None
    dtype = "uint8" if zero is None else _dtype(zero)
    key = (
        node.input[1] if scale is None else str(scale.SerializeToString()[: 1 << 12].replace(scale.name.encode(), b""))
    )
    count = int(np.prod(scale.dims)) if scale is not None and scale.dims else 0
    axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
    return GroupValue(dtype, shape, scales.setdefault(key, len(scales) + 1), 0 if count == 1 else count, axis, held)


def group_model(group: QuantizedGroup) -> bytes:
    """The group alone, as a model."""
    node = onnx.NodeProto.FromString(group.node)
    nodes: list[Any] = []
    inputs: list[Any] = []
    outputs: list[Any] = []
    held: list[Any] = []
    for i, place in enumerate(group.operands):
        if place is not None:
            new, given = _fed(f"x{i}", place)
            nodes += new
            (held if place.held else inputs).append(given)
            held += _parameters(f"x{i}", place, _step(group, place))
    nodes.append(node)
    for i, place in enumerate(group.results):
        if place is not None:
            outputs += [_info(f"y{i}", _float(place), place.shape)] if i in group.floats or not place.scale else []
            if place.scale:
                nodes.append(helper.make_node(QUANTIZE, [f"y{i}", f"y{i}_s", f"y{i}_z"], [f"q{i}"], axis=place.axis))
                outputs.append(_info(f"q{i}", place.dtype, place.shape))
                held += _parameters(f"y{i}", place, _step(group, place))
    opsets = [helper.make_opsetid("", group.opset), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "group", inputs, outputs, held)
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def _float(place: GroupValue) -> str:
    return "float32" if place.scale else place.dtype


def _fed(name: str, place: GroupValue) -> tuple[list[Any], Any]:
    """The nodes that make an operand, and the input or weight that it comes from."""
    source = f"{name}_q" if place.scale else name
    if place.value and not place.scale:
        tensor = onnx.TensorProto.FromString(place.value)
        tensor.name = source
    elif place.held:
        tensor = numpy_helper.from_array(np.zeros(place.shape, _numpy(place.dtype)), source)
    else:
        tensor = _info(source, place.dtype, place.shape)
    if not place.scale:
        return [], tensor
    return [helper.make_node(DEQUANTIZE, [source, f"{name}_s", f"{name}_z"], [name], axis=place.axis)], tensor


def _step(group: QuantizedGroup, place: GroupValue) -> float:
    """The scale of a place."""
    factors = [p for p in group.operands[:2] if p is not None]
    return STEP * place.scale if not place.product else float(np.prod([STEP * p.scale for p in factors]))


def _parameters(name: str, place: GroupValue, step: float) -> Iterator[Any]:
    if place.scale:
        shape = (place.scales,) if place.scales else ()
        yield numpy_helper.from_array(np.full(shape, step, np.float32), f"{name}_s")
        yield numpy_helper.from_array(np.zeros(shape, _numpy(place.dtype)), f"{name}_z")


def _info(name: str, dtype: str, shape: Sequence[int]) -> Any:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(_numpy(dtype)), shape)


def _numpy(dtype: str) -> np.dtype[Any]:
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, dtype, dtype))
