"""Code in a model: its kernels with their functions, the replacement of kernels by the functions'
operators, and plans that were compiled for a device, which are rejected."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from taso_mirage.devices.stamp import KEYS
from taso_mirage.errors import InvalidModel
from taso_mirage.onnx_io.walk import Part, graphs_inside, graphs_of, inline
from taso_mirage.system.wording import option

DOMAIN = "taso_mirage"
"""The domain of the functions that `runtime.kernel_functions` writes."""
OPERATORS_OF_CODE = {
    ("com.microsoft", "EPContext"): "holds code that was compiled for one device",
    ("com.microsoft", "PythonOp"): "calls a function of Python",
    ("com.microsoft", "PythonOpGrad"): "calls a function of Python",
}
"""Operators of the runtime that contain code, or name a file with code."""
KERNEL = re.compile(r"(Cpu|Cuda)Kernel\d+")
"""The pattern of the names of functions that kernels replace."""
DROPPED = "taso_mirage.dropped_kernels"
"""The key in a header's `meta` for the number of kernels in the file that were dropped."""


def without_kernels(old: ir.Model) -> ir.Model:
    """The model itself if it has no kernels; otherwise a copy in which the operators of every
    kernel replace its call, also where sizes choose between both. The code of kernels is removed
    from metadata and nodes, so nothing can run it. Raises InvalidModel for a kernel without
    operators, and for a compiled plan, which has none."""
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
        inline(source, lambda function: function.domain == DOMAIN)
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
                    f"optimize the original model, or trust this one's kernels ({option('trust_kernels', True)})"
                )
    source.meta[DROPPED] = sum(f.name.startswith(("CpuKernel", "CudaKernel")) for f in functions)
    return source


@dataclass(frozen=True, slots=True)
class CarriedKernel:
    """A fused kernel that a model carries.

    `name`: the name of the function of ordinary operators that it replaces, with these `operators`.
    `places`: the nodes that call it. `plan`: its tensors, launches and code, one per line.
    `source`: its program in C++ or Triton; empty if the file has none.
    """

    name: str
    places: tuple[str, ...]
    operators: tuple[str, ...]
    plan: str
    source: str

    @property
    def target(self) -> str:
        """The kind of device that it runs on: cpu or cuda."""
        return "cpu" if self.name.startswith("Cpu") else "cuda"


def carried_kernels(source: ir.Model) -> list[CarriedKernel]:
    """The fused kernels of a model that was read as data; no code runs."""
    calls: dict[str, list[ir.Node]] = {}
    for part in graphs_inside(source):
        for node in part:
            if node.domain == DOMAIN:
                calls.setdefault(node.op_type, []).append(node)
    wrapped = {f.name: [n.op_type for n in _nodes_inside(f) if n.domain == DOMAIN] for f in source.functions.values()}
    inner = {node for f in source.functions.values() for node in _nodes_inside(f)}
    found = []
    for function in source.functions.values():
        if not (function.domain == DOMAIN and KERNEL.fullmatch(function.name)):
            continue
        callers = [function.name, *(name for name, called in wrapped.items() if function.name in called)]
        nodes = [n for name in callers for n in calls.get(name, []) if n not in inner]
        texts = (n.attributes.get("plan") for n in calls.get(function.name, []))
        plan = next((each.as_string() for each in texts if each is not None and not each.is_ref()), "")
        places = tuple([node.name or next((o.name for o in node.outputs if o.name), "") for node in nodes])
        found.append(
            CarriedKernel(function.name, places, (*_operators(source, function),), plan, _program(source, plan))
        )
    return sorted(found, key=lambda each: (each.target, int(each.name.partition("Kernel")[2])))


def carried_programs(source: ir.Model) -> dict[str, str]:
    """The programs of a model's kernels, by names of files: in C++ for a CPU, in Triton for a
    GPU."""
    kinds = {"cpp": "cpp", "triton": "py"}
    found = {}
    for key, text in source.metadata_props.items():
        domain, _, rest = key.partition(".")
        kind, _, entry = rest.partition(".")
        if domain == DOMAIN and kind in kinds and entry:
            found[f"{entry}.{kinds[kind]}"] = text
    return found


def _nodes_inside(function: ir.Function) -> Iterator[ir.Node]:
    """The nodes of a function, and those of the bodies in it."""
    waiting: list[Part] = [function]
    while waiting:
        part = waiting.pop()
        yield from part
        for node in part:
            for attribute in node.attributes.values():
                waiting += graphs_of(attribute)


def _operators(source: ir.Model, function: ir.Function) -> Iterator[str]:
    """The ordinary operators of a function and of those of kernels that it calls; no constants."""
    for node in function:
        inside = source.functions.get(node.op_identifier()) if node.domain == DOMAIN else None
        if inside is not None and inside is not function:
            yield from _operators(source, inside)
        elif node.op_type != "Constant":
            yield node.op_type


def _program(source: ir.Model, plan: str) -> str:
    """The program of a plan, from the metadata: of a CPU by the name of its entry point, of a GPU
    by the plan's digest."""
    entry = next((line.removeprefix("entry ") for line in plan.splitlines() if line.startswith("entry ")), None)
    entry = entry or f"kernel_{hashlib.blake2b(plan.encode(), digest_size=8).hexdigest()}"
    kept = (source.metadata_props.get(f"{DOMAIN}.{kind}.{entry}") for kind in ("cpp", "triton"))
    return next((text for text in kept if text is not None), "")


def is_kernel(function: ir.Function) -> bool:
    """Whether a fused kernel replaces a function."""
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
    """A note about the kernels of the file that were dropped, if there were any."""
    if DROPPED not in header.meta:
        return None
    count = header.meta[DROPPED]
    which = f"{count} fused kernel{'' if count == 1 else 's'}" if count else "code for fused kernels"
    kept = f"{option('trust_kernels', True)} keeps such code"
    return f"{which} in the file was not run: the model's ordinary operators are used instead ({kept})"


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
