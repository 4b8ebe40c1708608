"""The operators as the checker reads them in ONNX: every element of a result at a symbolic
index."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from itertools import pairwise
from typing import Any

from taso_mirage.checker.forms import (
    FLOATS,
    ONE,
    ZERO,
    Poly,
    called,
    compared,
    condition,
    constant,
    denied,
    divided,
    exponential,
    floor,
    fresh,
    greatest,
    inverse,
    just,
    multiplied,
    need,
    poly,
    summed,
    total,
    valued,
)
from taso_mirage.checker.tensors import Tensor, broadcast, dims, legal, literal


def concat(*ts: Tensor, axis: int) -> Tensor:
    need(
        0 <= axis < len(ts[0].shape) and len({(t.dtype, t.shape[:axis], t.shape[axis + 1 :]) for t in ts}) == 1,
        "no concat",
    )
    ends = [total(t.shape[axis] for t in ts[:k]) for k in range(len(ts) + 1)]

    def read(*i: Poly) -> Poly:
        where = [condition(i[axis] - low) * condition(high - 1 - i[axis]) for low, high in pairwise(ends)]
        return total(
            w * t.at(*i[:axis], i[axis] - low, *i[axis + 1 :])
            for w, t, low in zip(where, ts, ends, strict=False)
            if w != ZERO
        )

    return Tensor(ts[0].dtype, (*ts[0].shape[:axis], ends[-1], *ts[0].shape[axis + 1 :]), read)


def split_(x: Tensor, *, axis: int, split: Any) -> tuple[Tensor, ...]:
    sizes = dims(split)
    need(0 <= axis < len(x.shape) and total(sizes) == x.shape[axis] and all(map(legal, sizes)), "no parts")
    return tuple(x.cut(axis, total(sizes[:k]), n) for k, n in enumerate(sizes))


def slice_(x: Tensor, *, starts: Any, ends: Any, axes: Any, steps: Any) -> Tensor:
    need(set(steps) == {1}, "a slice with steps is not read by this checker")
    return reduce(
        lambda y, row: y.cut(row[0], row[1], row[2] - row[1]), zip(axes, dims(starts), dims(ends), strict=True), x
    )


def matmul(a: Tensor, b: Tensor, ta: int = 0, tb: int = 0) -> Tensor:
    if len(a.shape) == 1 and len(b.shape) > 1:  # a vector is a matrix of one row
        y = matmul(a.reshape((ONE, *a.shape)), b, ta, tb)
        return y.reshape((*y.shape[:-2], y.shape[-1]))
    a, b = (
        t.moved((*range(len(t.shape) - 2), len(t.shape) - 1, len(t.shape) - 2)) if turn else t
        for t, turn in ((a, ta), (b, tb))
    )
    need(a.dtype == b.dtype != "bool" and min(len(a.shape), len(b.shape)) > 1, "no product, or of vectors")
    need(a.shape[-1] == b.shape[-2] and {ta, tb} <= {0, 1}, "a product that does not fit")

    def read(*i: Poly) -> Poly:
        k = fresh(a.shape[-1])
        return summed(a.at(*i[:-1], just(*k)) * b.at(*i[:-2], just(*k), i[-1]), frozenset({k}))

    return Tensor(a.dtype, (*broadcast(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), read)


def gemm(
    a: Tensor, b: Tensor, c: Tensor | None = None, *, alpha: float, beta: float, transA: int, transB: int
) -> Tensor:
    y = matmul(a, b, transA, transB) * alpha
    need(
        len(y.shape) == len(a.shape) == len(b.shape) == 2 and (c is None or broadcast(y.shape, c.shape) == y.shape),
        "no gemm",
    )
    return y if c is None else y + c * beta


def windows(
    x: Tensor, kernel: Any, strides: Any, pads: Any, dilations: Any, out: Poly | None, how: Callable[..., Poly]
) -> Tensor:
    """`how` of index and positions in a window, whether these are inside, and the bound
    variables."""
    s = len(kernel)
    need(len(x.shape) == s + 2 and len(strides) == len(dilations) == s == len(pads) / 2 and 0 < s < 4, "no windows")
    need(min(*strides, *dilations) > 0 <= min(pads), "no windows")
    rows = list(zip(x.shape[2:], kernel, strides, dilations, pads[:s], pads[s:], strict=True))
    rooms = [n + low + high - (k - 1) * d - 1 for n, k, _, d, low, high in rows]
    need(all(map(legal, rooms)), "windows that are too large")

    def read(*i: Poly) -> Poly:
        k = [fresh(n) for n in kernel]
        at = [j * t + just(*v) * d - low for j, v, (_, _, t, d, low, _) in zip(i[2:], k, rows, strict=True)]
        low_, high_ = (
            [condition(j) if row[4] else ONE for j, row in zip(at, rows, strict=True)],
            [condition(row[0] - 1 - j) if row[5] else ONE for j, row in zip(at, rows, strict=True)],
        )
        return how(i, at, k, multiplied([*low_, *high_]))

    return Tensor(
        x.dtype,
        (x.shape[0], out or x.shape[1], *(floor(r, poly(t)) + 1 for r, t in zip(rooms, strides, strict=True))),
        read,
    )


def conv(
    x: Tensor, w: Tensor, b: Tensor | None = None, *, strides: Any, pads: Any, dilations: Any, group: int
) -> Tensor:
    each, width = divided(w.shape[0], poly(group)), w.shape[1]
    need(
        each is not None and group > 0 and x.shape[1] == width * group and x.dtype == w.dtype, "groups that do not fit"
    )

    def how(i: Any, at: Any, k: Any, where: Poly) -> Poly:
        c = fresh(width)
        first = floor(i[1], each or ONE) * width if group > 1 else ZERO
        return summed(
            where * x.at(i[0], first + just(*c), *at) * w.at(i[1], just(*c), *(just(*v) for v in k)), frozenset({c, *k})
        )

    y = windows(x, w.shape[2:], strides, pads, dilations, w.shape[0], how)
    return y if b is None else y + per_channel(b, y)


def per_channel(v: Tensor, x: Tensor) -> Tensor:
    need(v.shape == x.shape[1:2], "not one number for each channel")
    return v.reshape((v.shape[0], *(ONE,) * (len(x.shape) - 2)))


def max_pool(x: Tensor, *, kernel: Any, strides: Any, pads: Any, dilations: Any) -> Tensor:
    need(all(p < k for p, k in zip(pads, kernel * 2, strict=True)) and x.dtype in FLOATS, "windows of padding only")

    def how(i: Any, at: Any, k: Any, where: Poly) -> Poly:
        return greatest(x.dtype, summed(where * valued(x.dtype, x.at(*i[:2], *at)), frozenset(k)))

    return windows(x, dims(kernel), strides, pads, dilations, None, how)


def average_pool(
    x: Tensor, *, kernel: Any, strides: Any, pads: Any, dilations: Any, extra: Any, count_include_pad: int
) -> Tensor:
    need(not any(extra) and x.dtype in FLOATS and count_include_pad in (0, 1), "windows beyond the padding")

    def how(i: Any, at: Any, k: Any, where: Poly) -> Poly:
        count = summed(ONE if count_include_pad else where, frozenset(k))
        return summed(where * x.at(*i[:2], *at), frozenset(k)) * inverse(count)

    return windows(x, dims(kernel), strides, pads, dilations, None, how)


def pad(x: Tensor, *, pads: Any, value: float, mode: str) -> Tensor:
    n, fill = len(x.shape), literal(value=(x.dtype, (), (value,))).at()
    rows = list(zip(x.shape, dims(pads)[:n], dims(pads)[n:], strict=True))
    shape = tuple(m + low + high for m, low, high in rows)
    need(
        mode == "constant" and len(pads) == 2 * n and all(map(legal, shape)),
        "no pad, or of a mode that is not read by this checker",
    )

    def read(*i: Poly) -> Poly:
        at = [j - low for j, (_, low, _) in zip(i, rows, strict=True)]
        inside = multiplied(condition(j) * condition(m - 1 - j) for j, (m, _, _) in zip(at, rows, strict=True))
        return x.at(*at) * inside + denied(inside) * fill

    return Tensor(x.dtype, shape, read)


def where(c: Tensor, a: Tensor, b: Tensor) -> Tensor:
    need(c.dtype == "bool" and a.dtype == b.dtype, "operands of other dtypes")
    return Tensor(a.dtype, c.shape, c.read).over(lambda p, x, y: p * x + denied(p) * y, a, b)


def eye_like(x: Tensor, *, k: int, dtype: str | None) -> Tensor:
    n, m = x.shape
    return Tensor(dtype or x.dtype, (n, m), lambda i, j: condition(j - i - k) * condition(i - j + k))


def normal(
    x: Tensor,
    s: Tensor,
    b: Tensor | None = None,
    *,
    axis: int,
    epsilon: float,
    stash_type: int = 1,
    centre: bool = True,
) -> Tensor:
    """Layer norm; without `centre` rms norm."""
    axes = range(axis % len(x.shape), len(x.shape))
    need(
        x.dtype in ("float32", "float64") and -len(x.shape) <= axis < len(x.shape) and stash_type in (0, 1),
        "no norm of that type",
    )
    c = x - x.mean(axes) if centre else x
    y = c / ((c * c).mean(axes) + epsilon).over(lambda p: called("sqrt", p), real=True) * s
    y = y if b is None else y + b
    need(y.shape == x.shape, "a scale that does not broadcast")
    return y


def skipped(
    x: Tensor,
    z: Tensor,
    s: Tensor,
    b: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    epsilon: float,
    centre: bool = True,
) -> tuple[Tensor, Tensor]:
    fits = all(t is None or t.shape == x.shape[-1:] for t in (s, b, bias))
    need(x.shape == z.shape and len(x.shape) in (2, 3) and fits, "no skip")
    y = x + z if bias is None else x + bias + z
    return normal(y, s, b, axis=-1, epsilon=epsilon, centre=centre), y


def gelu(x: Tensor, b: Tensor | None = None, *, approximate: str = "none") -> Tensor:
    need(approximate in ("none", "tanh") and (b is None or b.shape == x.shape[-1:]), "no such gelu")
    y = x if b is None else x + b
    inner = y * math.sqrt(0.5) if approximate == "none" else (y + y * y * y * 0.044715) * math.sqrt(2 / math.pi)
    return y * 0.5 * (inner.call("erf" if approximate == "none" else "tanh") + 1)


def sigmoid(x: Tensor) -> Tensor:
    return x.over(lambda p: inverse(exponential(-p) + 1), real=True)


def kinked(x: Tensor, low: Tensor) -> Tensor:
    return x.over(lambda p, q: (c := compared("lt", x.dtype, p, ZERO)) * q + denied(c) * p, low, real=True)


def power(x: Tensor, y: Tensor) -> Tensor:
    n = constant(y.at()) if not y.shape else None
    return (
        x.over(lambda p: p ** (n or 1)) if n in (1, 2, 3, 4) else x.over(lambda p, q: called(f"pow {x.dtype}", p, q), y)
    )


def softmax(x: Tensor, *, axis: int) -> Tensor:
    need(-len(x.shape) <= axis < len(x.shape), "no such axis")
    e = x.over(exponential, real=True)
    return e / e.fold((axis % len(x.shape),), 1)


def comparing(kind: str, turn: bool, deny: bool) -> Callable[[Tensor, Tensor], Tensor]:
    last = denied if deny else poly
    return lambda a, b: a.over(
        lambda p, q: last(compared(kind, a.dtype, *((q, p) if turn else (p, q)))), b, dtype="bool"
    )


def logic(fn: Callable[..., Poly]) -> Callable[..., Tensor]:
    def one(*ts: Tensor) -> Tensor:
        need(all(t.dtype == "bool" for t in ts), "logic of numbers")
        return ts[0].over(fn, *ts[1:], dtype="bool")

    return one


def refused(reason: str) -> None:
    need(False, reason)


OPS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "neg": lambda x: x.over(Poly.__neg__),
    "reciprocal": lambda x: x.over(inverse, real=True),
    "pow": power,
    "exp": lambda x: x.over(exponential, real=True),
    "max": Tensor.most,
    "min": lambda a, b: a.most(b, sign=-1),
    "relu": lambda x: x.most(0),
    "abs": lambda x: x.most(x * -1) if x.dtype in FLOATS else x.over(lambda p: called(f"abs {x.dtype}", p)),
    **{
        name: lambda x, name=name: x.call(name)
        for name in ("sqrt", "log", "erf", "tanh", "sin", "cos", "floor", "ceil", "round", "sign")
    },
    "clip": lambda x, a=None, b=None: (lambda y: y if b is None else y.most(b, sign=-1))(x if a is None else x.most(a)),
    "leaky_relu": lambda x, *, alpha: kinked(x, x * alpha),
    "sigmoid": sigmoid,
    "swish": lambda x, *, alpha: x * sigmoid(x * alpha),
    "quick_gelu": lambda x, *, alpha: x * sigmoid(x * alpha),
    "gelu": lambda x, *, approximate: gelu(x, approximate=approximate),
    "contrib_gelu": lambda x: gelu(x),
    "bias_gelu": lambda x, b: gelu(x, b),
    "fast_gelu": lambda x, b=None: gelu(x, b, approximate="tanh"),
    "hard_swish": lambda x: x * (x + 3).most(0).most(6, sign=-1) / 6,
    "mish": lambda x: x * OPS["softplus"](x).call("tanh"),
    "softplus": lambda x: (x.over(exponential, real=True) + 1).call("log"),
    "where": where,
    "less": comparing("lt", False, False),
    "equal": comparing("eq", False, False),
    "greater": comparing("lt", True, False),
    "less_or_equal": comparing("lt", True, True),
    "greater_or_equal": comparing("lt", False, True),
    "logical_and": logic(Poly.__mul__),
    "logical_or": logic(lambda a, b: a + b - a * b),
    "logical_not": logic(denied),
    "matmul": lambda a, b: matmul(a, b),
    "gemm": gemm,
    "concat": concat,
    "split": split_,
    "slice": slice_,
    "pad": pad,
    "eye_like": eye_like,
    "fused_matmul": lambda a, b, *, alpha, transA, transB: matmul(a, b, transA, transB) * alpha,
    "softmax": softmax,
    "reduce_sum": lambda x, *, axes, keepdims: x.over(poly).fold(axes, keepdims),
    "reduce_mean": lambda x, *, axes, keepdims: x.mean(axes, keepdims),
    "reduce_max": lambda x, *, axes, keepdims: x.over(poly).fold(axes, keepdims, x.dtype),
    "reduce_sum_square": lambda x, *, axes, keepdims: (x * x).fold(axes, keepdims),
    "reduce_l2": lambda x, *, axes, keepdims: (x * x).fold(axes, keepdims).call("sqrt"),
    "layer_norm": normal,
    "rms_norm": lambda x, s, *, axis, epsilon, stash_type: normal(
        x, s, axis=axis, epsilon=epsilon, stash_type=stash_type, centre=False
    ),
    "skip_layer_norm": lambda *ts, epsilon: skipped(*ts, epsilon=epsilon)[0],
    "skip_layer_norm_sum": lambda *ts, epsilon: skipped(*ts, epsilon=epsilon),
    "skip_rms_norm": lambda x, z, s, b=None, *, epsilon: skipped(x, z, s, None, b, epsilon=epsilon, centre=False)[0],
    "skip_rms_norm_sum": lambda x, z, s, b=None, *, epsilon: skipped(x, z, s, None, b, epsilon=epsilon, centre=False),
    "batch_norm": lambda x, s, b, m, v, *, epsilon: (
        (x - per_channel(m, x)) / per_channel((v + epsilon).call("sqrt"), x) * per_channel(s, x) + per_channel(b, x)
    ),
    "global_max_pool": lambda x: x.over(poly).fold(range(2, len(x.shape)), 1, x.dtype),
    "reduce_min": lambda x, *, axes, keepdims: (
        x.over(Poly.__neg__, real=True).fold(axes, keepdims, x.dtype).over(Poly.__neg__)
    ),
    "squeeze": lambda x, *, axes: (
        x.reshape(tuple(n for i, n in enumerate(x.shape) if i not in axes))
        if all(0 <= a < len(x.shape) for a in axes)
        else refused("no such axes")
    ),
    "nhwc_conv": lambda x, w, b=None, **a: conv(x.moved((0, 3, 1, 2)), w.moved((0, 3, 1, 2)), b, **a).moved(
        (0, 2, 3, 1)
    ),
    "isnan": lambda x: x.over(lambda p: ZERO, dtype="bool"),
    "conv": conv,
    "max_pool": max_pool,
    "average_pool": average_pool,
    "global_average_pool": lambda x: x.mean(range(2, len(x.shape))),
    "reshape": lambda x, *, shape: x.reshape(dims(shape)),
    "transpose": lambda x, *, perm: x.moved(perm),
    "constant": literal,
    "expand": lambda x, *, shape: (
        Tensor(x.dtype, dims(shape), x.at)
        if broadcast(x.shape, dims(shape)) == dims(shape) and all(map(legal, dims(shape)))
        else refused("no expansion")
    ),
    "item": lambda ts, *, index: ts[index] if isinstance(ts, tuple) and index >= 0 else refused("no such part"),
}
