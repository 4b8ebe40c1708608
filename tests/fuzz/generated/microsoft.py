"""Operators of ONNX Runtime's own domain that optimizers put into models."""

from __future__ import annotations

import numpy as np

from fuzz.generated.graph import MICROSOFT, Impossible, RandomGraph, dim
from fuzz.generated.operators import step
from fuzz.generated.values import FLOAT, UINT8, Value


def fused(g: RandomGraph) -> None:
    """Refuse what the fused operators have no kernel for."""
    if g.dtype != FLOAT:
        raise Impossible


@step("com.microsoft.Gelu", "com.microsoft.QuickGelu", "com.microsoft.FastGelu", "com.microsoft.BiasGelu")
def gelus(g: RandomGraph, op: str) -> Value:
    fused(g)
    x = g.bounded(g.ranked(2, 3, static=1))
    bias = [g.weight(FLOAT, (dim(x, -1),))] if "Bias" in op or ("Fast" in op and g.chance(0.5)) else []
    form = {"alpha": 1.702} if "Quick" in op else {}
    made = Value("", FLOAT, x.shape, x.bound + 4, False)
    return g.state(op.removeprefix("com.microsoft."), MICROSOFT, [x, *bias], made, **form)[0]


@step("com.microsoft.FusedMatMul")
def fused_product(g: RandomGraph, op: str) -> Value:
    fused(g)
    x = g.bounded(g.ranked(2, 3, static=2))
    turned, n = g.choice((0, 1)), 3
    k, m = (int(d) for d in (x.shape[-2:] if turned else x.shape[:-3:-1]))
    other = g.choice((0, 1))
    w = g.weight(FLOAT, (n, k) if other else (k, n))
    made = Value("", FLOAT, (*x.shape[:-2], m, n), x.bound * 6 * k, False)
    return g.state("FusedMatMul", MICROSOFT, [x, w], made, transA=turned, transB=other, alpha=g.choice((1.0, 0.5)))[0]


@step("com.microsoft.SkipLayerNormalization", "com.microsoft.SkipSimplifiedLayerNormalization")
def skip_norm(g: RandomGraph, op: str) -> Value:
    fused(g)
    x = g.bounded(g.ranked(3, static=3))
    d = dim(x, -1)
    extra = [g.weight(FLOAT, (d,))] if "Simplified" not in op else []
    made = Value("", FLOAT, x.shape, 30.0, False)
    skip = g.weight(FLOAT, x.ints())
    return g.state(
        op.removeprefix("com.microsoft."), MICROSOFT, [x, skip, g.weight(FLOAT, (d,)), *extra], made, epsilon=1e-3
    )[0]


@step("com.microsoft.MultiHeadAttention")
def heads(g: RandomGraph, op: str) -> Value:
    fused(g)
    q, k, v = (g.given(FLOAT, (1, g.choice((3, 3)), 4)) for _ in range(3))
    return g.state("MultiHeadAttention", MICROSOFT, [q, k, v], Value("", FLOAT, q.shape, 4.0, False), num_heads=2)[0]


@step("com.microsoft.RotaryEmbedding")
def fused_rotary(g: RandomGraph, op: str) -> Value:
    fused(g)
    x = g.given(FLOAT, (1, 2, 3, 4))
    places = g.constant(np.array([[0, 1, 2]]))
    given = [x, places, g.weight(FLOAT, (8, 2)), g.weight(FLOAT, (8, 2))]
    return g.state(
        "RotaryEmbedding", MICROSOFT, given, Value("", FLOAT, x.shape, 24.0, False), interleaved=g.choice((0, 1))
    )[0]


@step("com.microsoft.Attention")
def whole_attention(g: RandomGraph, op: str) -> Value:
    fused(g)
    x = g.given(FLOAT, (1, 3, 4))
    form = {"unidirectional": 1} if g.chance(0.3) else {}
    made = Value("", FLOAT, x.shape, 12.0, False)
    given = [x, g.weight(FLOAT, (4, 12)), g.weight(FLOAT, (12,))]
    return g.state("Attention", MICROSOFT, given, made, num_heads=2, **form)[0]


@step("com.microsoft.MatMulNBits")
def packed_product(g: RandomGraph, op: str) -> Value:
    """A product with a weight of four bits, in blocks of 16 numbers."""
    fused(g)
    x, n = g.given(FLOAT, (g.choice((1, 2)), 32)), g.choice((2, 3))
    packed = g.constant(g.numbers.integers(0, 256, (n, 2, 8)).astype(np.uint8))
    scales = g.constant(g.numbers.uniform(0.02, 0.1, n * 2).astype(np.float32))
    zeros = [g.constant(g.numbers.integers(0, 256, n).astype(np.uint8))] if g.chance(0.4) else []
    made = Value("", FLOAT, (x.shape[0], n), 400.0, False)
    return g.state("MatMulNBits", MICROSOFT, [x, packed, scales, *zeros], made, K=32, N=n, bits=4, block_size=16)[0]


@step("com.microsoft.QGemm")
def quantized_gemm(g: RandomGraph, op: str) -> Value:
    fused(g)
    by, at = np.array(0.05, np.float32), np.uint8(3)
    x = g.add("QuantizeLinear", g.bounded(g.ranked(2, dtypes=(FLOAT,), static=2)), by, at, bound=255.0)
    k = dim(x, 1)
    w = g.constant(g.numbers.integers(0, 100, (k, 2)).astype(np.uint8))
    bias = g.constant(g.numbers.integers(-50, 50, 2).astype(np.int32))
    given = [x, by, at, w, by, at, bias, np.array(0.2, np.float32), at]
    q = g.state("QGemm", MICROSOFT, given, Value("", UINT8, (x.shape[0], 2), 255.0))[0]
    return g.add("DequantizeLinear", q, np.array(0.2, np.float32), at, bound=51.0)
