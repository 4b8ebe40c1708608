"""The uses of operators in their examples, and models of them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from taso_mirage.errors import Unsupported
from taso_mirage.ir.terms import ABSENT, Graph, Node, Tensor, constant, is_float, numpy_dtype, variable
from taso_mirage.operators.ops import Op, get, load_specs
from taso_mirage.rewriting.text import parse_type

NEWEST = 26  # the newest opset that ONNX Runtime 1.31 loads


@dataclass(frozen=True)
class Use:
    """An operator applied to fresh operands, with random values for them."""

    op: Op
    term: Node
    values: dict[Node, Any]

    @property
    def outputs(self) -> tuple[Node, ...]:
        if isinstance(self.term.type, tuple):
            return tuple(get("item").term(self.term, index=i) for i in range(len(self.term.type)))
        return (self.term,)

    @property
    def graph(self) -> Graph:
        return Graph(tuple(self.values), self.outputs)


def uses() -> list[Any]:
    found = []
    for op in load_specs().values():
        found += [pytest.param(op, i, id=f"{op.name}-{i}") for i in range(len(op.examples))]
    return found


def build(op: Op, i: int, integers: bool = False) -> Use:
    rng = np.random.default_rng(i)
    operands: list[Node] = []
    values: dict[Node, Any] = {}
    for k, operand in enumerate(op.examples[i].operands):
        if operand is None:
            operands.append(ABSENT)
        elif not isinstance(operand, str):
            operands.append(constant(np.asarray(operand, np.int64)))
        else:
            leaf = variable(f"x{k}", parse_type(operand))
            operands.append(leaf)
            indices = k > 0 and any(is_float(n.dtype) for n in values)
            drawn = _random(leaf.tensor, rng, integers, 2 if indices else 5)
            scale = op.traits.quantized and is_float(leaf.dtype) and leaf.tensor.rank < 2
            values[leaf] = np.abs(drawn) if scale else drawn
    return Use(op, op.term(*operands, **op.examples[i].attrs), values)


def opsets(use: Use) -> dict[str, int]:
    """The first opsets from 18 on that have the operator, by its own name where there is one."""
    if use.op.domain:
        return {"": 18, use.op.domain: 1}
    names: dict[int, str] = {}
    for opset in range(max(use.op.since, 18), NEWEST + 1):
        with suppress(Unsupported):
            names[opset] = use.op.to_onnx(use.term, opset).op_type
    own = [opset for opset, name in names.items() if name == use.op.onnx]
    return {"": next(iter(own or names), use.op.until)}


def _random(type: Tensor, rng: np.random.Generator, integers: bool, below: int) -> Any:
    """Integers beside a float operand are taken for indices: 0 or 1."""
    shape, dtype = tuple(int(d) for d in type.shape or ()), numpy_dtype(type.dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        return rng.integers(0 if below == 2 else 1, below, shape).astype(dtype)
    drawn = rng.integers(1, 4, shape) if integers else rng.normal(size=shape)
    return np.asarray(drawn).astype(dtype)


ON_A_GPU = ("nhwc_conv", "nhwc_group_norm", "nhwc_skip_group_norm", "nhwc_skip_group_norm_sum")
"""Operators that ONNX Runtime implements on a GPU only."""
