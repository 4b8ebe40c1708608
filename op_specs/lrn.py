"""Local response normalisation."""

import numpy as np

from taso_mirage.operators.ops import op


@op(onnx="LRN", since=1, layout=True)
def lrn(xp, x, *, size: int, alpha: float = 0.0001, beta: float = 0.75, bias: float = 1.0):
    """(n,c,...) -> x / (bias + alpha/size * sum of x^2 over `size` channels around)^beta"""
    others = [0] * (xp.rank(x) - 2)
    squares = xp.pad(xp.mul(x, x), [0, (size - 1) // 2, *others], [0, size // 2, *others])
    total = xp.sum(xp.window(squares, [1], [size], [1], [1]), [xp.rank(x)], keepdims=False)
    base = xp.add(xp.literal(bias, x), xp.mul(total, xp.literal(alpha / size, x)))
    return xp.div(x, xp.map(np.power, base, xp.literal(beta, x)))


lrn.example("float32[1,5,2,2]", size=3)
lrn.example("float32[2,7,3,3]", size=5, alpha=0.5, beta=0.5, bias=2.0)
