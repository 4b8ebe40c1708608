"""Vectors scaled to length one."""

import numpy as np

from taso_mirage.ir.terms import Node
from taso_mirage.operators.ops import Call, op


@op(onnx="LpNormalization", since=1)
def lp_norm(xp, x, *, axis: int = -1, p: int = 2):
    """x -> x / (sum |x|^p)^(1/p) along `axis`; 0 where that is 0"""
    axes = (axis % xp.rank(x),)
    if p == 1:
        norm = xp.sum(xp.map(np.absolute, x), axes)
    else:
        norm = xp.map(np.sqrt, xp.sum(xp.mul(x, x), axes))
    zero = xp.literal(0, x)
    return xp.map(np.where, xp.map(np.equal, norm, zero), zero, xp.div(x, norm))


@lp_norm.importer
def _(call: Call) -> Node:
    x = call.arg(0)
    return lp_norm.term(x, axis=call.attrs.get("axis", -1) % len(x.shape), p=call.attrs.get("p", 2))


lp_norm.example("float32[2,3,4]", axis=1)
lp_norm.example("float32[2,3,4]", axis=2, p=1)
