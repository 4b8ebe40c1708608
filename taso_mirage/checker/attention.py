"""Scaled dot-product attention and rotary embedding, of ONNX (23 and later) and of ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from taso_mirage.checker.casts import cast
from taso_mirage.checker.forms import (
    ONE,
    ZERO,
    Poly,
    condition,
    constant,
    divided,
    floor,
    need,
    poly,
)
from taso_mirage.checker.functions import called, exponential, inverse
from taso_mirage.checker.moves import concat, gather
from taso_mirage.checker.products import matmul
from taso_mirage.checker.tensors import Tensor, broadcast

DTYPES = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}
"""ONNX's numbers of float types."""


@dataclass(frozen=True)
class Options:
    """How scores become weights; `scale` None is one over the root of a head's size."""

    causal: int = 0
    scale: float | None = None
    softcap: float = 0.0
    precision: int | None = None


def apart(x: Tensor, heads: Any) -> Tensor:
    """(b,s,h*d) -> (b,h,s,d)"""
    size = divided(x.shape[2], poly(heads)) if isinstance(heads, int) and heads > 0 else None
    if size is None:
        need(False, "columns for no heads")
        return x
    return x.reshape((*x.shape[:2], poly(heads), size)).moved((0, 2, 1, 3))


def together(x: Tensor) -> Tensor:
    """(b,h,s,d) -> (b,s,h*d)"""
    b, h, s, d = x.shape
    return x.moved((0, 2, 1, 3)).reshape((b, s, h * d))


def shared(x: Tensor, heads: Poly) -> Tensor:
    """(b,g,t,d) -> (b,h,t,d): each head serves h / g neighbours."""
    each = divided(heads, x.shape[1])
    if each is None:
        need(False, "heads of queries that share none")
        return x
    times = each
    return x if times == ONE else x.along(1, heads, lambda *i: floor(i[1], times))


def scaled(x: Tensor, scale: float | None) -> Tensor:
    """x times an attribute, which is taken as the real number that it is."""
    n = constant(x.shape[-1])
    if scale is None and n is None:
        factor = inverse(called("sqrt", x.shape[-1]))
    else:
        factor = poly(Fraction(1 / math.sqrt(float(n or 1)) if scale is None else scale))
    return x.over(lambda p: p * factor, real=True)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, past: Poly, o: Options) -> list[Tensor]:
    """(b,h,s,d), (b,g,t,d), (b,g,t,e) -> (b,h,s,e), and the scores: scaled, capped, masked, and
    after the softmax."""
    need(all(len(t.shape) == 4 for t in (q, k, v)) and q.dtype == k.dtype == v.dtype, "no heads")
    need(k.shape[:3] == v.shape[:3] and o.causal in (0, 1), "keys that do not fit values")
    first = matmul(scaled(q, o.scale), shared(k, q.shape[1]).moved((0, 1, 3, 2)))
    capped = (first / o.softcap).call("tanh") * o.softcap if o.softcap else first
    need(mask is None or broadcast(capped.shape, mask.shape) == capped.shape, "a mask that does not fit")
    need(mask is None or mask.shape[-1:] == capped.shape[-1:], "a mask that does not fit")
    number = mask is not None and mask.dtype != "bool"
    masked = capped + mask if number else capped

    def allowed(*i: Poly) -> Poly:
        ahead = condition(i[2] + past - i[3]) if o.causal else ONE
        return ahead if mask is None or number else mask.at(*i) * ahead

    weights = softmax(masked, allowed, DTYPES[o.precision] if o.precision else q.dtype)
    hidden = [] if o.causal or (mask is not None and not number) else [masked]
    return [matmul(weights, shared(v, q.shape[1])), first, capped, *hidden, weights]


def softmax(x: Tensor, allowed: Callable[..., Poly], wide: str) -> Tensor:
    """Over the last axis, of those that are allowed. ONNX Runtime has it in single precision for
    float64."""
    inner = "float32" if "float64" in (x.dtype, wide) and x.dtype in ("float32", "float64") else wide
    y = cast(x, to=inner)
    e = y.over(exponential, real=True)
    e = Tensor(e.dtype, e.shape, lambda *i, all=e: all.at(*i) * allowed(*i))
    return cast(e / e.fold((len(x.shape) - 1,), 1), to=x.dtype)


def whole(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    *,
    is_causal: int,
    q_num_heads: int | None,
    kv_num_heads: int | None,
    scale: float | None,
    softcap: float,
    softmax_precision: int | None,
    qk_matmul_output_mode: int = 0,
) -> tuple[Tensor, ...]:
    """Attention of ONNX with all its results: y, keys, values, scores."""
    flat = len(q.shape) == 3
    if flat:
        q, k, v = apart(q, q_num_heads), apart(k, kv_num_heads), apart(v, kv_num_heads)
    need((q_num_heads or q.shape[1]) == q.shape[1] or flat, "other heads than the shape has")
    past = ZERO if past_key is None else past_key.shape[2]
    k = k if past_key is None else concat(past_key, k, axis=2)
    v = v if past_value is None else concat(past_value, v, axis=2)
    y, *scores = attend(q, k, v, mask, past, Options(is_causal, scale, softcap, softmax_precision))
    need(qk_matmul_output_mode in (0, 1, 3) or len(scores) == 4, "scores that are not finite")
    kept = scores[-1] if qk_matmul_output_mode == 3 else scores[qk_matmul_output_mode]
    return (together(y) if flat else y), k, v, kept


def multi_head(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    num_heads: int,
    scale: float | None,
    unidirectional: int = 0,
) -> Tensor:
    """MultiHeadAttention of ONNX Runtime: the bias has a part for each of q, k and v."""
    need(all(len(t.shape) == 3 for t in (q, k, v)), "packed operands")
    need(mask is None or mask.dtype == q.dtype, "a mask that is not added")
    need(
        not unidirectional or q.shape[1] == k.shape[1],
        "a causal mask of other lengths, which runtimes align each in their way",
    )
    if bias is not None:
        d, e = q.shape[2], v.shape[2]
        need(bias.shape == (d + d + e,) and k.shape[2] == d, "a bias that does not fit")
        q, k, v = (t + bias.cut(0, at, n) for t, at, n in ((q, ZERO, d), (k, d, d), (v, d + d, e)))
    q, k, v = (apart(t, num_heads) for t in (q, k, v))
    y, *_ = attend(q, k, v, mask, ZERO, Options(unidirectional, scale))
    return together(y)


def packed(
    x: Tensor, w: Tensor, b: Tensor, mask: Tensor | None = None, *, num_heads: int, scale: float | None
) -> Tensor:
    """Attention of ONNX Runtime: q, k and v are thirds of x w + b."""
    need(len(x.shape) == 3 and len(w.shape) == 2 and b.shape == w.shape[1:], "no packed weights")
    n = divided(w.shape[1], poly(3))
    if n is None:
        need(False, "weights in no thirds")
        return x
    y = matmul(x, w) + b
    q, k, v = (y.cut(2, n * i, n) for i in range(3))
    return multi_head(q, k, v, None, mask, num_heads=num_heads, scale=scale)


# ---------------------------------------------------------------- rotary embedding


def rotary(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    *,
    interleaved: int,
    num_heads: int,
    rotary_embedding_dim: int,
) -> Tensor:
    """(b,h,s,d) or (b,s,h*d): of each head the first elements are turned, in pairs of one of each
    half, or of neighbours."""
    flat = len(x.shape) == 3
    y = apart(x, num_heads) if flat else x
    need(len(y.shape) == 4 and interleaved in (0, 1) and x.dtype == cos.dtype == sin.dtype, "no heads to turn")
    b, _, s, size = y.shape
    turned = poly(rotary_embedding_dim) if rotary_embedding_dim else size
    half = divided(turned, poly(2))
    if half is None:
        need(False, "elements that are turned in no pairs")
        return x
    c, d = (angles(t, positions, (b, s, half)) for t in (cos, sin))
    turning = y.cut(3, ZERO, turned)
    pairs = turning.reshape((*y.shape[:3], half, poly(2)) if interleaved else (*y.shape[:3], poly(2), half))
    axis = 4 if interleaved else 3
    first, second = (pairs.cut(axis, poly(k), ONE).reshape((*y.shape[:3], half)) for k in (0, 1))
    parts = [first * c - second * d, first * d + second * c]
    split = tuple(ONE if i == axis else n for i, n in enumerate(pairs.shape))
    done = concat(*(t.reshape(split) for t in parts), axis=axis).reshape(turning.shape)
    rest = [] if turned == size else [y.cut(3, turned, size - turned)]
    y = concat(done, *rest, axis=3) if rest else done
    return together(y) if flat else y


def angles(t: Tensor, positions: Tensor | None, wanted: tuple[Poly, ...]) -> Tensor:
    """(b,1,s,r/2): the rows of a table at positions; one position is that of the first row."""
    if positions is None:
        rows = t
    elif len(positions.shape) == 2:
        rows = gather(t, positions, axis=0)
    else:
        need(positions.shape == (ONE,) and len(t.shape) == 2 and positions.dtype == "int64", "no positions")
        first = Tensor("int64", wanted[:2], lambda _, i: positions.at(ZERO) + i)
        rows = gather(t, first, axis=0)
    need(rows.shape == wanted, "angles that do not fit")
    return rows.reshape((wanted[0], ONE, *wanted[1:]))


def contrib_rotary(x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, **a: Any) -> Tensor:
    return rotary(x, cos, sin, positions, **a)


ATTENTION: dict[str, Callable[..., Any]] = {
    "attention": lambda *ts, **a: whole(*ts, **a)[0],
    "attention_cached": lambda *ts, **a: whole(*ts, **a)[:3],
    "attention_traced": whole,
    "multi_head_attention": multi_head,
    "packed_attention": packed,
    "rotary_embedding": lambda x, cos, sin, positions=None, **a: rotary(x, cos, sin, positions, **a),
    "contrib_rotary_embedding": contrib_rotary,
}
