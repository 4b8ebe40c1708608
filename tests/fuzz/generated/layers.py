"""Single operators of networks: products, convolutions, pools, norms, recurrences, attention."""

from __future__ import annotations

import numpy as np

from fuzz.generated.graph import RandomGraph, dim
from fuzz.generated.operators import step
from fuzz.generated.values import FLOAT, INT32, Value


def image(g: RandomGraph) -> Value:
    """Numbers of (batch, channels, height, width), or with one or three axes of space."""
    x = g.bounded(g.ranked(3, 4, 4, 4, 5, static=2 if g.chance(0.3) else 4))
    if (
        any(isinstance(d, int) and d < 2 for d in x.shape[2:])
        or not isinstance(x.shape[1], int)
        or x.elements > g.most // 2
    ):
        x = g.given(g.dtype, (g.choice((1, 2)), g.choice((2, 3, 4)), 6, 5))
    return x


def tokens(g: RandomGraph, hidden: int = 0) -> Value:
    """Numbers of (batch, length, hidden)."""
    x = g.bounded(g.ranked(3, static=1))
    if hidden and x.shape[-1] != hidden:
        x = g.given(g.dtype, (g.choice((1, 2)), g.choice((2, 3)), hidden))
    return x


@step("MatMul")
def matmul(g: RandomGraph, op: str) -> Value:
    x = g.bounded(g.ranked(1, 2, 2, 3, 3, 4, dtypes=(g.dtype,) if g.chance(0.9) else (INT32,), static=1))
    k, n = dim(x, -1), g.choice((1, 2, 3, 4))
    lead = x.ints()[:-2] if x.static and g.chance(0.2) else ()
    w = g.weight(x.dtype, (*lead, k, n) if g.chance(0.9) else (k,))
    return g.add(op, x, w, bound=x.bound * 3 * k)


@step("Gemm")
def gemm(g: RandomGraph, op: str) -> Value:
    x = g.bounded(g.ranked(2, static=2))
    a, b = g.choice((0, 0, 1)), g.choice((0, 1))
    m, k = (int(d) for d in (x.shape[::-1] if a else x.shape))
    n = g.choice((1, 2, 4))
    bias = [g.weight(x.dtype, g.choice(((n,), (1, n), (m, n), (m, 1), (1,), ())))] if g.chance(0.7) else []
    scales = {"alpha": g.choice((1.0, 0.5)), "beta": g.choice((1.0, 0.0, 2.0))} if g.chance(0.4) else {}
    return g.add(
        op,
        x,
        g.weight(x.dtype, (n, k) if b else (k, n)),
        *bias,
        transA=a,
        transB=b,
        bound=x.bound * 3 * k + 6,
        **scales,
    )


@step("Einsum")
def einsum(g: RandomGraph, op: str) -> Value:
    x = g.bounded(g.ranked(2, 3, static=2))
    k = dim(x, -1)
    head = "b" if x.rank == 3 else ""
    equation, w = g.choice(
        (
            (f"{head}ij,jk->{head}ik", (k, 3)),
            (f"{head}ij,kj->{head}ik", (3, k)),
            (f"{head}ij,j->{head}i", (k,)),
            (f"{head}ij,ij->{head}j", tuple(int(d) for d in x.shape[-2:])),
        )
    )
    return g.add(op, x, g.weight(x.dtype, w), equation=equation, bound=x.bound * 3 * x.elements)


@step("Conv", "ConvTranspose")
def convolution(g: RandomGraph, op: str) -> Value:
    x = image(g)
    c, space = dim(x, 1), x.rank - 2
    kernel = [g.choice((1, 2, 3) if isinstance(d, int) and d > 2 else (1, 2)) for d in x.shape[2:]]
    group = g.choice((1, 1, c)) if c % 2 else g.choice((1, 1, 2, c))
    out = group * g.choice((1, 2))
    w = (out, c // group, *kernel) if op == "Conv" else (c, out // group, *kernel)
    form: dict[str, object] = {}
    if g.chance(0.5):
        form["pads"] = [g.choice((0, 1)) for _ in range(2 * space)]
    elif g.chance(0.3):
        form["auto_pad"] = g.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
    if g.chance(0.3):
        form["strides"] = [g.choice((1, 2)) for _ in range(space)]
    if g.chance(0.15) and "auto_pad" not in form:
        form["dilations"] = [2 if k == 1 else 1 for k in kernel]
    if g.chance(0.5):
        form["kernel_shape"] = kernel
    bias = [g.weight(x.dtype, (out,))] if g.chance(0.5) else []
    return g.add(
        op, x, g.weight(x.dtype, w, 0.5), *bias, group=group, bound=x.bound * 2 * int(np.prod(w[1:])) + 3, **form
    )


@step("MaxPool", "AveragePool", "LpPool")
def pool(g: RandomGraph, op: str) -> Value:
    x = image(g)
    space = x.rank - 2
    kernel = [g.choice((1, 2)) for _ in range(space)]
    form: dict[str, object] = {"strides": [g.choice((1, 2)) for _ in range(space)]} if g.chance(0.6) else {}
    if g.chance(0.4):
        form["pads"] = [g.choice((0, k - 1)) for k in [*kernel, *kernel]]
    elif g.chance(0.3):
        form["auto_pad"] = g.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
    if op != "LpPool" and "auto_pad" not in form and g.chance(0.2):
        form["ceil_mode"] = 1
    if op == "AveragePool" and g.chance(0.4):
        form["count_include_pad"] = 1
    outputs = 2 if op == "MaxPool" and g.chance(0.1) else 1
    return g.add(op, x, outputs=outputs, kernel_shape=kernel, exact=op == "MaxPool", **form)


@step("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def whole(g: RandomGraph, op: str) -> Value:
    return g.add(op, image(g), exact=op == "GlobalMaxPool", bound=50.0 if op == "GlobalLpPool" else None)


@step("MaxUnpool")
def unpool(g: RandomGraph, op: str) -> Value:
    x = g.given(g.dtype, (1, 2, 4, 4))
    y, places = g.all("MaxPool", x, outputs=2, kernel_shape=[2, 2], strides=[2, 2], exact=True)
    return g.add(op, y, places, kernel_shape=[2, 2], strides=[2, 2], exact=True, shape=(1, 2, 4, 4))


@step("BatchNormalization", "InstanceNormalization", "GroupNormalization", "LRN")
def channel_norm(g: RandomGraph, op: str) -> Value:
    x = image(g)
    c = dim(x, 1)
    if op == "LRN":
        x = x if x.rank == 4 else g.given(g.dtype, (1, 3, 4, 4))
        return g.add(op, x, size=g.choice((1, 3)), alpha=g.choice((1e-4, 0.1)), bias=g.choice((1.0, 2.0)))
    scale, bias = g.weight(x.dtype, (c,)), g.weight(x.dtype, (c,))
    if op == "BatchNormalization":
        moments = [g.weight(x.dtype, (c,)), g.weight(x.dtype, (c,), positive=True)]
        return g.add(op, x, scale, bias, *moments, epsilon=g.choice((1e-5, 1e-3)), bound=x.bound * 12 + 12)
    if op == "InstanceNormalization":
        return g.add(op, x, scale, bias, epsilon=1e-3, bound=30.0)
    groups = 2 if c % 2 == 0 else 1
    if g.opset < 21:
        scale, bias = g.weight(x.dtype, (groups,)), g.weight(x.dtype, (groups,))
    return g.add(op, x, scale, bias, num_groups=groups, epsilon=1e-3, bound=30.0, shape=x.shape)


@step("LayerNormalization", "RMSNormalization")
def row_norm(g: RandomGraph, op: str) -> Value:
    x = g.bounded(g.ranked(2, 3, 4, static=1))
    first = -1 if not x.static or g.chance(0.7) else g.random.randrange(x.rank)
    shape = x.ints()[first % x.rank :] if x.static else (dim(x, -1),)
    rest = [g.weight(x.dtype, shape)] if op == "LayerNormalization" and g.chance(0.6) else []
    return g.add(op, x, g.weight(x.dtype, shape), *rest, axis=first, epsilon=g.choice((1e-5, 1e-2)), bound=30.0)


@step("LSTM", "GRU", "RNN")
def recurrent(g: RandomGraph, op: str) -> Value:
    x = g.bounded(g.ranked(3, dtypes=(FLOAT,), static=1))
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    hidden, width = g.choice((1, 2, 3)), dim(x, -1)
    way = g.choice(("forward", "forward", "reverse", "bidirectional"))
    d = 2 if way == "bidirectional" else 1
    w, r = g.weight(x.dtype, (d, gates * hidden, width)), g.weight(x.dtype, (d, gates * hidden, hidden))
    bias = [g.weight(x.dtype, (d, 2 * gates * hidden))] if g.chance(0.7) else []
    form = {"linear_before_reset": g.choice((0, 1))} if op == "GRU" else {}
    outputs = g.choice((1, 2)) if op != "LSTM" else g.choice((1, 2, 3))
    found = g.all(op, x, w, r, *bias, outputs=outputs, hidden_size=hidden, direction=way, bound=8.0, **form)
    return g.choice(found)


@step("Attention")
def attention(g: RandomGraph, op: str) -> Value:
    b, h, s, d = g.choice((1, 2)), 2, g.choice((2, 3)), 4
    q, k, v = (g.given(g.dtype, (b, h, s, d)) for _ in range(3))
    mask = [g.weight(g.dtype, (s, s))] if g.chance(0.4) else []
    return g.add(op, q, k, v, *mask, is_causal=int(not mask and g.chance(0.4)), scale=g.choice((None, 0.5)), bound=4.0)


@step("RotaryEmbedding")
def rotary(g: RandomGraph, op: str) -> Value:
    x = g.given(g.dtype, (1, 2, 3, 4))
    cos, sin = g.weight(g.dtype, (1, 3, 2)), g.weight(g.dtype, (1, 3, 2))
    return g.add(op, x, cos, sin, interleaved=g.choice((0, 1)), bound=x.bound * 6)


@step("Resize")
def resize(g: RandomGraph, op: str) -> Value:
    x = g.ranked(4, dtypes=(FLOAT,), static=4)
    mode = g.choice(("nearest", "linear", "nearest", "cubic"))
    form = {"coordinate_transformation_mode": g.choice(("half_pixel", "asymmetric", "align_corners"))}
    if mode == "nearest":
        form = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    scales = np.array([1, 1, 2, g.choice((1, 2))], np.float32)
    region = np.zeros(0, np.float32) if g.opset < 13 else None
    return g.add(
        op,
        x,
        region,
        scales,
        mode=mode,
        bound=x.bound * 2,
        shape=(*x.shape[:2], *(int(int(d) * s) for d, s in zip(x.shape[2:], scales[2:], strict=True))),
        **form,
    )


@step("GridSample", "AffineGrid")
def grids(g: RandomGraph, op: str) -> Value:
    if op == "AffineGrid":
        return g.add(op, g.given(FLOAT, (1, 2, 3)), g.ints(1, 2, 3, 4), align_corners=g.choice((0, 1)), bound=16.0)
    x = g.given(FLOAT, (1, 2, 4, 4))
    grid = g.weight(FLOAT, (1, 3, 3, 2), 0.6)
    names = {"linear": "linear"} if g.opset >= 20 else {"linear": "bilinear"}
    return g.add(
        op,
        x,
        grid,
        mode=g.choice(("nearest", names["linear"])),
        align_corners=g.choice((0, 1)),
        padding_mode=g.choice(("zeros", "border")),
    )


@step("RoiAlign", "MaxRoiPool")
def regions(g: RandomGraph, op: str) -> Value:
    x = g.given(FLOAT, (1, 2, 6, 6))
    if op == "MaxRoiPool":
        boxes = np.array([[0, 0, 0, 3, 3], [0, 1, 1, 5, 4]], np.float32)
        return g.add(op, x, boxes, pooled_shape=[2, 2])
    boxes = np.array([[0.5, 0.5, 3.2, 3.1], [1.0, 1.5, 5.0, 4.0]], np.float32)
    return g.add(op, x, boxes, g.ints(0, 0), output_height=2, output_width=2, sampling_ratio=2)


@step("NonMaxSuppression")
def suppressed(g: RandomGraph, op: str) -> Value:
    boxes = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 10, 1, 11]]], np.float32)
    scores = g.given(FLOAT, (1, 1, 3))
    return g.add(op, boxes, scores, g.ints(2), np.array([0.5], np.float32))


@step("Det", "DeformConv")
def rare(g: RandomGraph, op: str) -> Value:
    if op == "Det":
        return g.add(op, g.given(FLOAT, (2, 3, 3)), bound=200.0)
    x, offset = g.given(FLOAT, (1, 1, 4, 4)), g.weight(FLOAT, (1, 8, 3, 3), 0.3)
    return g.add(op, x, g.weight(FLOAT, (1, 1, 2, 2)), offset, bound=50.0)


@step("DFT", "STFT", "HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix")
def signals(g: RandomGraph, op: str) -> Value:
    if op == "DFT":
        x = g.given(FLOAT, (2, 8, 1))
        return g.add(
            op,
            x,
            None,
            *([g.constant(np.array(1))] if g.opset >= 20 else []),
            onesided=g.choice((0, 1)),
            bound=40.0,
            shape=None,
        )
    if op == "STFT":
        x, length = g.given(FLOAT, (1, 16, 1)), g.weight(FLOAT, (8,))
        window = g.add("Mul", length, length) if g.chance(0.3) else length
        return g.add(op, x, g.constant(np.array(4)), window, bound=40.0, shape=(1, 3, 5, 2))
    if op == "MelWeightMatrix":
        given = (g.constant(np.array(v)) for v in (4, 8, 8000))
        return g.add(op, *given, np.array(0.0, np.float32), np.array(4000.0, np.float32), shape=(5, 4), bound=1.0)
    return g.add(op, g.constant(np.array(8)), periodic=g.choice((0, 1)), shape=(8,), bound=1.0)


@step("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def losses(g: RandomGraph, op: str) -> Value:
    x = g.given(FLOAT, (3, 4))
    target = g.constant(g.numbers.integers(0, 4, (3,)))
    return g.add(op, x, target, reduction=g.choice(("mean", "sum", "none")), bound=30.0)
