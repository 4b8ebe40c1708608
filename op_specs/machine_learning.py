"""Operators of ONNX's domain for classical machine learning that are arithmetic."""

import numpy as np

from op_specs.arithmetic import mul, sub
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.terms import Node, constant
from taso_mirage.operators.ops import Call, op


@op(onnx="Scaler", domain="ai.onnx.ml", since=1)
def scaler(xp, x, offset, scale):
    """(n,f), (f), (f) -> (x - offset) * scale; read as a difference and a product"""
    if xp.rank(x) != 2 or xp.rank(offset) != 1 or xp.rank(scale) != 1:
        raise IllTyped(f"features of rank {xp.rank(x)}, offset {xp.shape(offset)}, scale {xp.shape(scale)}")
    return mul(xp, sub(xp, x, offset), scale)


@scaler.importer
def _(call: Call) -> Node:
    x = call.arg(0)
    if x.dtype != "float32" or len(x.shape) != 2:
        raise Unsupported(f"Scaler of {x.type}; only rows of float32 are read")
    return mul.term(sub.term(x, _row(call, "offset", x)), _row(call, "scale", x))


def _row(call: Call, name: str, x: Node) -> Node:
    """One number for each feature, or for all."""
    numbers = np.array(call.attrs.get(name, ()), np.float32)
    if len(numbers) not in (1, x.shape[1]):
        raise Unsupported(f"Scaler with {len(numbers)} numbers in {name} for {x.type}")
    return constant(np.resize(numbers, x.shape[1]) if isinstance(x.shape[1], int) else numbers)


@scaler.exporter
def _(node: Node, opset: int) -> Call:
    raise Unsupported("Scaler is written as Sub and Mul")


scaler.example("float32[2,3]", "float32[3]", "float32[3]")
scaler.example("float32[2,3]", "float32[1]", "float32[1]")
