"""Elementwise activations."""

import math

import numpy as np

from taso_mirage.ops import op


@op(onnx="Relu", since=6)
def relu(xp, x):
    """x -> max(x, 0)"""
    return xp.maximum(x, xp.literal(0, x))


relu.example("float32[2,3]")
relu.laws("""
    relu(relu(x)) == relu(x)
    relu(max(x, 0)) == relu(x)
""")
