"""The dims of the results that a loop stacks, as a runtime knows them where no step runs.

ONNX says no more of a stacked result of no steps than that its first dim is 0. ONNX Runtime takes
the dims that shape inference finds for the body's output, and 0 for each that it does not find. So
a body whose shapes are inferred more exactly changes such a result.
"""

from __future__ import annotations

import onnx

from taso_mirage.ir.model import Model
from taso_mirage.ir.terms import ABSENT, Node, Tensor
from taso_mirage.onnx_io.bodies import Body, kind_of
from taso_mirage.onnx_io.serialization import serialize_types
from taso_mirage.operators.ops import known_elements

KnownDims = list[tuple[int | None, ...] | None]
"""The dims of each result, None for those that are not known, and for a result of unknown rank."""


def knows_more(term: Node, body: Body, changed: Model) -> bool:
    """Whether dims of results that the loop stacks are inferred of the `changed` body which are not
    of the body."""
    if kind_of(term) == "If" or _runs(term, body):
        return False
    apart = _states(term, body)
    pairs = zip(_inferred(body.model)[apart:], _inferred(changed)[apart:], strict=True)
    return any(new is not None and old != new for old, new in pairs)


def _states(term: Node, body: Body) -> int:
    """The number of a body's results before those that are stacked."""
    if kind_of(term) == "Loop":
        return len(body.formal) - 1  # the condition, and the states, without the counter
    return len(body.formal) - _sequences(term)


def _sequences(scan: Node) -> int:
    return int(scan.attr("call").node.attributes["num_scan_inputs"].value)


def _runs(term: Node, body: Body) -> bool:
    """Whether it is known that a loop has a step."""
    operands = term.args[: len(term.attr("call").node.inputs)]
    if kind_of(term) == "Loop":
        trips, condition = ((1,) if x is ABSENT else known_elements(x) for x in operands[:2])
        return all(n is not None and isinstance(n[0], int) and n[0] > 0 for n in (trips, condition))
    shapes = [x.tensor.shape for x in operands[-_sequences(term) :] if isinstance(x.type, Tensor)]
    return any(shape is not None and all(isinstance(n, int) and n > 0 for n in shape) for shape in shapes)


def _inferred(model: Model) -> KnownDims:
    proto = onnx.load_model_from_string(serialize_types(model))
    for output in proto.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    del proto.graph.value_info[:]
    found = onnx.shape_inference.infer_shapes(proto)
    return [_dims(each) for each in found.graph.output]


def _dims(output: onnx.ValueInfoProto) -> tuple[int | None, ...] | None:
    tensor = output.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple([d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim])
