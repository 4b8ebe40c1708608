"""Operators of ONNX's domain for classical machine learning that are arithmetic."""

import numpy as np

from op_specs.arithmetic import mul, sub
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.terms import Literal, Node
from taso_mirage.operators.ops import TERMS, Call, Floats, op


@op(onnx="Scaler", domain="ai.onnx.ml", since=1)
def scaler(xp, x, *, offset: Floats, scale: Floats):
    """(n,f) -> (x - offset) * scale, with a number for each feature, or one for all; read as a
    difference and a product"""
    if xp.rank(x) != 2:
        raise IllTyped(f"features of rank {xp.rank(x)}; only rows are scaled here")
    return mul(xp, sub(xp, x, _row(xp, offset, x)), _row(xp, scale, x))


def _row(xp, numbers: Floats, x):
    features = xp.shape(x)[1]
    if len(numbers) not in (1, features):
        raise IllTyped(f"{len(numbers)} numbers for {features} features")
    count = features if isinstance(features, int) else 1
    return xp.constant(Literal.of(np.resize(np.array(numbers, np.float32), count)))


@scaler.importer
def _(call: Call) -> Node:
    try:
        return scaler.body(TERMS, call.arg(0), **{name: call.attrs.get(name, ()) for name in ("offset", "scale")})
    except IllTyped as error:
        raise Unsupported(f"Scaler: {error}") from None


scaler.example("float32[2,3]", offset=(1.0, 2.0, 3.0), scale=(0.5, 2.0, 4.0))
scaler.example("float32[2,3]", offset=(1.5,), scale=(0.25,))
