"""Dtypes for which ONNX Runtime's CPU provider runs an operator, as it states them itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import cache

import onnx
from onnx import TensorProto
from onnx.defs import OpSchema, get_all_schemas
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

Kernel = tuple[int, int, Mapping[str, frozenset[str]]]
NEWEST = 26
"""The newest opset that the runtime reads."""
ONLY_FLOAT = {"tensor(float)", "tensor(int64)", "tensor(bool)", "tensor(string)"}
"""Dtypes of operators that the runtime expands by their functions."""
KEPT = {"Swish": 25}
"""Operators that it does not expand from this opset on."""


@cache
def _kernels() -> Mapping[tuple[str, str], list[Kernel]]:
    found: dict[tuple[str, str], list[Kernel]] = defaultdict(list)
    for each in runtime.get_registered_ep_kernel_defs("CPUExecutionProvider"):
        first, last = each.version_range
        types = {name: frozenset(given) for name, given in each.type_constraints.items()}
        found[each.domain, each.op_name].append((first, last, types))
    return found


def text(dtype: int) -> str:
    """A dtype as schemas write it."""
    return f"tensor({TensorProto.DataType.Name(dtype).lower()})"


def runs(schema: OpSchema, dtypes: Mapping[str, int], opset: int = NEWEST) -> bool:
    """Whether the runtime has a kernel for tensors of these dtypes, by type variable. It computes
    half precision in single precision where it has none."""
    known = _kernels().get((schema.domain, schema.name))
    if known is None:
        return opset < KEPT.get(schema.name, NEWEST + 1) and all(text(each) in ONLY_FLOAT for each in dtypes.values())
    since = schema.since_version
    ours = [types for first, last, types in known if first == since or (first < since <= last < 2**31 - 1)]
    return any(_admits(types, dtypes) for types in ours)


def _admits(types: Mapping[str, frozenset[str]], dtypes: Mapping[str, int]) -> bool:
    for name, dtype in dtypes.items():
        given = types.get(name)
        allowed = {text(dtype)} | ({text(onnx.TensorProto.FLOAT)} if dtype == onnx.TensorProto.FLOAT16 else set())
        if given is not None and given.isdisjoint(allowed):
            return False
    return True


def operators() -> set[str]:
    """ONNX's operators, by name, that the runtime runs by a kernel or by their functions."""
    known = {name for domain, name in _kernels() if domain == ""}
    expanded = {each.name for each in get_all_schemas() if each.domain == "" and each.has_function}
    newest = {each.name for each in get_all_schemas() if each.domain == "" and not each.deprecated}
    return (known | expanded) & newest
