"""The functions that a model gets for its kernels, in ONNX: the terms of a kernel, where it is
called, and at which sizes.

CudaKernel0(x0, ...) => (y0, ...)       a kernel's own operators, for where the library that runs
the kernel is not kernel_1f00(x0, ...) => (y0, ...)       one call of it, with the plan and the
compiled code: they are in the file once kernel_1f00(fits, x0, ...) => ...       where sizes are
free: the call if `fits`, else the operators (function original_1f00) sizes_1f00(input, ...) =>
(fits)        whether the model's inputs have the sizes that its kernels were made for
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from taso_mirage.errors import TasoMirageError, Unsupported
from taso_mirage.ir.terms import Graph, Tensor, is_stored
from taso_mirage.onnx_io import from_ir, to_ir
from taso_mirage.onnx_io.build import standalone
from taso_mirage.onnx_io.declarations import declare

DOMAIN = "taso_mirage"
FUNCTIONS_SINCE = 8
"""The first IR version whose models have functions."""
Opsets = Mapping[str, int]


def value(name: str, type: Tensor | None = None) -> ir.Value:
    """A value of this name, with its type where that is known."""
    made = ir.Value(name=name)
    if type is not None:
        declare(made, type)
    return made


def computation(name: str, original: Graph, opsets: Opsets, attributes: Iterable[str] = ()) -> ir.Function:
    """A function of the terms in ONNX, with constants as nodes.

    The attributes are those of the kernel; the body reads none of them.
    """
    body = to_ir(standalone(original, opsets)).graph
    values = list(body.initializers.values())
    constants = [_held(each) for each in values]
    body.initializers.clear()
    for each, node in zip(values, constants, strict=True):
        each.replace_all_uses_with(node.outputs[0])
    body.insert_before(body[0], constants)
    return _function(name, body, attributes)


def reads_back(original: Graph, opsets: Opsets) -> bool:
    """Whether the function of these terms, read from ONNX, has the same terms again: it computes
    them then, because the runtime runs what the file says."""
    graph = computation("function", original, opsets).graph
    for own, leaf in zip(graph.inputs, original.inputs, strict=True):
        declare(own, leaf.tensor)
    try:
        return from_ir(ir.Model(graph, ir_version=FUNCTIONS_SINCE)).graph == original
    except TasoMirageError:
        return False


def forward(name: str, other: str, original: Graph, opsets: Opsets, attributes: Iterable[str]) -> ir.Function:
    """A function that calls another one."""
    inputs, outputs = _values("x", len(original.inputs)), _values("y", len(original.outputs))
    nodes, given = _shown(inputs, original)
    return _function(name, _body(inputs, outputs, [*nodes, _node(other, given, outputs)], opsets), attributes)


def call(name: str, kernel: str, original: Graph, opsets: Opsets, attributes: Mapping[str, str]) -> ir.Function:
    """A function of one node: the kernel with its attributes."""
    inputs, outputs = _values("x", len(original.inputs)), _values("y", len(original.outputs))
    nodes, given = _shown(inputs, original)
    return _function(name, _body(inputs, outputs, [*nodes, _node(kernel, given, outputs, attributes)], opsets))


def choice(
    name: str, kernel: str, other: str, original: Graph, opsets: Opsets, attributes: Mapping[str, str]
) -> ir.Function:
    """A function whose first input selects the kernel or the function `other`."""
    fits, inputs = value("fits"), _values("x", len(original.inputs))
    nodes, shown = _shown(inputs, original)
    branches = []
    for field, op, given in (("then_branch", kernel, attributes), ("else_branch", other, {})):
        results = _values("k" if given else "p", len(original.outputs))
        branches.append(ir.AttrGraph(field, _body([], results, [_node(op, shown, results, given)], opsets)))
    outputs = _values("y", len(original.outputs))
    node = ir.Node("", "If", [fits], branches, outputs=outputs, name=name)
    return _function(name, _body([fits, *inputs], outputs, [*nodes, node], opsets))


def fitting_sizes(name: str, places: Sequence[Sequence[tuple[int, int]]], opsets: Opsets) -> ir.Function:
    """Whether every dim `axis` of every input is `size`: `places` has pairs of them for each
    input."""
    inputs = _values("x", len(places))
    nodes: list[ir.Node] = []

    def add(op: str, args: Sequence[ir.Value], **attributes: object) -> ir.Value:
        made = [ir.convenience.convert_attribute(k, v) for k, v in attributes.items()]
        nodes.append(ir.Node("", op, args, made, outputs=[value(f"v{len(nodes)}")]))
        return nodes[-1].outputs[0]

    def numbers(values: Sequence[int]) -> ir.Value:
        return add("Constant", [], value=ir.Tensor(np.array(values, np.int64)))

    dims = [
        add("Gather", [add("Shape", [x]), numbers([axis for axis, _ in pairs])])
        for x, pairs in zip(inputs, places, strict=True)
    ]
    wanted = numbers([size for pairs in places for _, size in pairs])
    equal = add("Equal", [add("Concat", dims, axis=0) if len(dims) > 1 else dims[0], wanted])
    least = add("ReduceMin", [add("Cast", [equal], to=int(ir.DataType.INT32))], keepdims=0)
    fits = add("Cast", [least], to=int(ir.DataType.BOOL))
    return _function(name, _body(inputs, [fits], nodes, opsets))


def _values(stem: str, count: int) -> list[ir.Value]:
    return [value(f"{stem}{i}") for i in range(count)]


def _shown(inputs: Sequence[ir.Value], original: Graph) -> tuple[list[ir.Node], list[ir.Value]]:
    """The inputs of a function for the call in it.

    An ONNX operator on each 8-bit float tells ONNX Runtime the type of the input; the runtime
    removes that operator.
    """
    nodes, found = list[ir.Node](), list[ir.Value]()
    for each, leaf in zip(inputs, original.inputs, strict=True):
        if is_stored(leaf.dtype):
            nodes.append(ir.Node("", "Identity", [each], outputs=[value(f"{each.name}_shown")]))
        found.append(nodes[-1].outputs[0] if is_stored(leaf.dtype) else each)
    return nodes, found


def _node(
    op: str, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], attributes: Mapping[str, str] | None = None
) -> ir.Node:
    texts = [ir.AttrString(key, text) for key, text in (attributes or {}).items()]
    return ir.Node(DOMAIN, op, inputs, texts, outputs=outputs, name=op)


def _body(
    inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], nodes: Sequence[ir.Node], opsets: Opsets
) -> ir.Graph:
    imports = {"": opsets.get("", 0), DOMAIN: 1}
    return ir.Graph(inputs, outputs, nodes=nodes, opset_imports=imports, name="body")


def _function(name: str, body: ir.Graph, attributes: Iterable[str] = ()) -> ir.Function:
    declared = [ir.Attr(key, ir.AttributeType.STRING, None) for key in attributes]
    return ir.Function(DOMAIN, name, graph=body, attributes=declared)


def _held(given: ir.Value) -> ir.Node:
    """An initializer as a node: functions have none."""
    if given.const_value is None:
        raise Unsupported(f"the constant {given.name!r} of a region has no value")
    made = ir.Value(name=given.name, type=given.type, shape=given.shape)
    return ir.Node("", "Constant", [], [ir.AttrTensor("value", given.const_value)], outputs=[made])
