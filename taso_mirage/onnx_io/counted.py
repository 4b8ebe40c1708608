"""Whether reading alone makes a model smaller: sizes and constants are folded, dead nodes gone."""

from __future__ import annotations

import onnx_ir as ir

from taso_mirage.ir.model import Model
from taso_mirage.onnx_io.write import to_ir

FREE = frozenset({"Constant", "Identity"})
"""Standard operators that the runtime does not run."""


def reads_smaller(model: Model) -> bool:
    """Whether what was read has fewer nodes when it is written again, or fewer inputs: the runtime
    computes ahead of weights, and of no inputs."""
    return has_fixed_inputs(model) or _nodes(to_ir(model)) < _nodes(model.header)


def has_fixed_inputs(model: Model) -> bool:
    """Whether inputs of what was read are weights."""
    return model.source is not None and len(model.header.graph.inputs) < len(model.source.graph.inputs)


def _nodes(model: ir.Model) -> int:
    return sum(not (node.domain == "" and node.op_type in FREE) for node in model.graph)
