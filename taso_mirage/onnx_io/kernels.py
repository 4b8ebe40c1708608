"""A model's kernels as what they are functions of: their own operators, in the graph again."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

DOMAIN = "taso_mirage"
"""The domain of the functions that `runtime.functions` writes."""


def without_kernels(source: ir.Model) -> None:
    """Put the operators of every kernel in the place of its call; where sizes choose between both, the operators."""
    for function in source.functions.values():
        if function.domain == DOMAIN:
            _choose_operators(function)
    InlinePass(criteria=lambda function: function.domain == DOMAIN)(source)


def _choose_operators(function: ir.Function) -> None:
    """The branch that runs the operators, for an `If` that chooses between them and a kernel."""
    for node in list(function):
        branch = node.attributes.get("else_branch") if node.op_type == "If" and node.domain == "" else None
        if branch is None or len(calls := list(branch.as_graph())) != 1 or calls[0].domain != DOMAIN:
            continue
        call = calls[0]
        outputs = [ir.Value(name=f"{value.name}_operators") for value in node.outputs]
        made = ir.Node(call.domain, call.op_type, list(call.inputs), list(call.attributes.values()), outputs=outputs)
        function.insert_before(node, made)
        for old, new in zip(node.outputs, outputs, strict=True):
            old.replace_all_uses_with(new)
        for i, value in enumerate(function.outputs):
            if value in node.outputs:
                function.outputs[i] = outputs[node.outputs.index(value)]
        function.remove(node)
