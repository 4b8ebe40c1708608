"""Code that a model carries: its kernels with their functions, the functions' operators in the
graph again, and plans that were compiled for a device, which are refused."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from taso_mirage.errors import InvalidModel
from taso_mirage.onnx_io.walk import graphs_inside
from taso_mirage.targets.stamp import KEYS

DOMAIN = "taso_mirage"
"""The domain of the functions that `runtime.functions` writes."""
OPERATORS_OF_CODE = {
    ("com.microsoft", "EPContext"): "holds code that was compiled for one device",
    ("com.microsoft", "PythonOp"): "calls a function of Python",
    ("com.microsoft", "PythonOpGrad"): "calls a function of Python",
}
"""Operators of the runtime that are code by themselves, or name a file with it."""
DROPPED = "taso_mirage.dropped_kernels"
"""Key in `meta` of a header: how many kernels of the file were not taken."""


def without_kernels(old: ir.Model) -> ir.Model:
    """The model itself if it has no kernels; else a copy with the operators of every kernel in the
    place of its call, those where sizes choose between both. The kernels' code goes from metadata
    and nodes: nothing can run it. Raises InvalidModel for a kernel without operators, and for a
    compiled plan, which has none."""
    if not carries_code(old):
        return old
    source = old.clone()
    source.meta.update(old.meta)
    written = [key for key in source.metadata_props if key.startswith(f"{DOMAIN}.")]
    for key in written:
        del source.metadata_props[key]
    functions = [f for f in source.functions.values() if f.domain == DOMAIN]
    for function in functions:
        _choose_operators(function)
    if functions:
        InlinePass(criteria=lambda function: function.domain == DOMAIN)(source)
    for key in [key for key in source.functions if key[0] == DOMAIN]:
        del source.functions[key]
    for part in graphs_inside(source):
        part.opset_imports.pop(DOMAIN, None)
        for node in part:
            if (does := _is_code(node)) is not None:
                raise InvalidModel(
                    f"the node {node.name or node.op_type!r} {does} ({node.op_type}); optimize the model that it was made of"
                )
            if node.domain == DOMAIN:
                raise InvalidModel(
                    f"the node {node.name or node.op_type!r} runs a kernel without a function of ordinary operators beside it; "
                    "optimize the original model, or trust this one's kernels (--trust-kernels)"
                )
    source.meta[DROPPED] = sum(f.name.startswith(("CpuKernel", "CudaKernel")) for f in functions)
    return source


def is_kernel(function: ir.Function) -> bool:
    """Whether a function is one that a fused kernel runs in the place of."""
    return bool(function.domain == DOMAIN)


def without_stamp(source: ir.Model) -> None:
    """Forget where the file was measured: a result gets the stamp of its own target
    (`targets.packaging`)."""
    for key in KEYS:
        source.metadata_props.pop(key, None)


def carries_code(source: ir.Model) -> bool:
    """Whether a model has anything of a kernel, or a compiled plan."""
    if any(key.startswith(f"{DOMAIN}.") and key not in KEYS for key in source.metadata_props):
        return True
    if DOMAIN in source.opset_imports or any(domain == DOMAIN for domain, *_ in source.functions):
        return True
    return any(
        DOMAIN in part.opset_imports or any(node.domain == DOMAIN or _is_code(node) is not None for node in part)
        for part in graphs_inside(source)
    )


def _is_code(node: ir.Node) -> str | None:
    """The kind of code that a node runs; None where it runs none."""
    return OPERATORS_OF_CODE.get((node.domain, node.op_type))


def dropped(header: ir.Model) -> str | None:
    """A line about the kernels of the file that were not taken, if it had some."""
    if DROPPED not in header.meta:
        return None
    count = header.meta[DROPPED]
    which = f"{count} fused kernel{'' if count == 1 else 's'}" if count else "code for fused kernels"
    return f"{which} in the file did not run: the model's ordinary operators stand in their place (--trust-kernels keeps such code)"


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
