"""Softmax, norms and sums over axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from taso_mirage.checker.casts import cast
from taso_mirage.checker.elementwise import absolute, power, sigmoid
from taso_mirage.checker.forms import ONE, ZERO, Poly, condition, divided, fresh, just, multiplied, need, poly, summed
from taso_mirage.checker.functions import called, compared, denied, exponential
from taso_mirage.checker.tensors import Tensor, literal


def per_channel(v: Tensor, x: Tensor) -> Tensor:
    need(v.shape == x.shape[1:2], "not one number for each channel")
    return v.reshape((v.shape[0], *(ONE,) * (len(x.shape) - 2)))


def root(x: Tensor) -> Tensor:
    return x.call("sqrt")


def standard(x: Tensor, axes: Sequence[int], epsilon: float, centre: bool = True) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon); the variance is the mean of squares, not corrected for
    its bias."""
    c = x - x.mean(axes) if centre else x
    return c / root((c * c).mean(axes) + epsilon)


def wide(x: Tensor, fn: Callable[[Tensor], Tensor], stash_type: int) -> Tensor:
    """A function in single precision of a number that has fewer digits."""
    need(stash_type in (0, 1), "no norm of that type")
    if stash_type == 0 or x.dtype not in ("float16", "bfloat16"):
        return fn(x)
    return cast(fn(cast(x, to="float32")), to=x.dtype)


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
    need(-len(x.shape) <= axis < len(x.shape), "no such axis")
    axes = range(axis % len(x.shape), len(x.shape))
    y = wide(x, lambda w: standard(w, axes, epsilon, centre), stash_type) * s
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


def instance_norm(x: Tensor, s: Tensor, b: Tensor, *, epsilon: float) -> Tensor:
    need(len(x.shape) > 2, "no image")
    return standard(x, range(2, len(x.shape)), epsilon) * per_channel(s, x) + per_channel(b, x)


def group_norm(x: Tensor, s: Tensor, b: Tensor, *, num_groups: int, epsilon: float, stash_type: int) -> Tensor:
    each = divided(x.shape[1], poly(num_groups)) if len(x.shape) > 2 and num_groups > 0 else None
    if each is None:
        need(False, "channels in no groups")
        return x
    apart = (x.shape[0], poly(num_groups), each * multiplied(x.shape[2:]))
    y = wide(x, lambda w: standard(w.reshape(apart), (2,), epsilon).reshape(w.shape), stash_type)
    return y * per_channel(s, x) + per_channel(b, x)


def nhwc_group_norm(x: Tensor, s: Tensor, b: Tensor, *, groups: int, activation: int, epsilon: float) -> Tensor:
    need(len(x.shape) == 4 and activation in (0, 1), "no image with channels last")
    own = [cast(each, to=x.dtype) for each in (s, b)]
    first = group_norm(x.moved((0, 3, 1, 2)), *own, num_groups=groups, epsilon=epsilon, stash_type=0)
    y = first.moved((0, 2, 3, 1))
    return y * sigmoid(y) if activation else y


def skipped_groups(
    x: Tensor, s: Tensor, b: Tensor, z: Tensor, bias: Tensor | None = None, **a: Any
) -> tuple[Tensor, Tensor]:
    """A norm of groups with channels last over a sum, and the sum."""
    need(len(x.shape) == 4 and (bias is None or bias.shape == x.shape[3:]), "no image with channels last")
    one = (x.shape[0], ONE, ONE, x.shape[3])
    need(z.shape in (x.shape, one, (x.shape[0], x.shape[3])), "no skip")
    y = (x if bias is None else x + bias) + (z.reshape(one) if len(z.shape) == 2 else z)
    return nhwc_group_norm(y, s, b, **a), y


def batch_norm(x: Tensor, s: Tensor, b: Tensor, m: Tensor, v: Tensor, *, epsilon: float) -> Tensor:
    c = (x - per_channel(m, x)) / per_channel(root(v + epsilon), x)
    return c * per_channel(s, x) + per_channel(b, x)


def mean_variance_norm(x: Tensor, *, axes: Any) -> Tensor:
    at = [a % len(x.shape) for a in axes]
    c = x - x.mean(at)
    return c / (root((c * c).mean(at)) + 1e-9)


def lp_norm(x: Tensor, *, axis: int, p: int) -> Tensor:
    """x over its norm, and 0 where that is 0."""
    need(-len(x.shape) <= axis < len(x.shape) and p in (1, 2), "no such norm")
    at = (axis % len(x.shape),)
    norm = absolute(x).fold(at, 1) if p == 1 else root((x * x).fold(at, 1))

    def one(n: Poly, y: Poly, quotient: Poly) -> Poly:
        return denied(compared("eq", x.dtype, n, ZERO)) * quotient

    return norm.over(one, x, x / norm)


def lrn(x: Tensor, *, size: int, alpha: float, beta: float, bias: float) -> Tensor:
    """x over a power of the sum of squares of the channels around."""
    need(len(x.shape) > 1 and size > 0, "no channels")
    low = (size - 1) // 2

    def read(*i: Poly) -> Poly:
        k = fresh(poly(size))
        at = i[1] + just(*k) - low
        inside = condition(at) * condition(x.shape[1] - 1 - at)
        return summed(inside * x.at(i[0], at, *i[2:]) ** 2, frozenset({k}))

    around = Tensor(x.dtype, x.shape, read)
    return x / power(around * (alpha / size) + bias, literal(value=(x.dtype, (), (beta,))))


def softmax(x: Tensor, *, axis: int) -> Tensor:
    need(-len(x.shape) <= axis < len(x.shape), "no such axis")
    e = x.over(exponential, real=True)
    return e / e.fold((axis % len(x.shape),), 1)


def log_softmax(x: Tensor, *, axis: int) -> Tensor:
    need(-len(x.shape) <= axis < len(x.shape), "no such axis")
    return x - x.over(exponential, real=True).fold((axis % len(x.shape),), 1).call("log")


def cumsum(x: Tensor, *, axis: int, exclusive: int, reverse: int) -> Tensor:
    need(-len(x.shape) <= axis < len(x.shape) and {exclusive, reverse} <= {0, 1}, "no such axis")
    at = axis % len(x.shape)
    y = x.over(poly)

    def read(*i: Poly) -> Poly:
        k = fresh(x.shape[at])
        ahead = just(*k) - i[at] if reverse else i[at] - just(*k)
        return summed(condition(ahead - exclusive) * y.at(*i[:at], just(*k), *i[at + 1 :]), frozenset({k}))

    return Tensor(x.dtype, x.shape, read)


def extreme(name: str) -> Callable[..., Tensor]:
    """The position of the largest or smallest, a function of all elements along the axis."""

    def one(x: Tensor, *, axis: int, keepdims: int, select_last_index: int) -> Tensor:
        need(0 <= axis < len(x.shape) and keepdims in (0, 1), "no such axis")
        tag = f"{name} {select_last_index}"

        def read(*i: Poly) -> Poly:
            k = fresh(x.shape[axis])
            pair = just("pair", just(*k), x.at(*i[:axis], just(*k), *i[axis + keepdims :]))
            return called(tag, summed(pair, frozenset({k})))

        kept = (ONE,) if keepdims else ()
        return Tensor("int64", (*x.shape[:axis], *kept, *x.shape[axis + 1 :]), read)

    return one


NORMS: dict[str, Callable[..., Any]] = {
    "softmax": softmax,
    "log_softmax": log_softmax,
    "cumsum": cumsum,
    "argmax": extreme("argmax"),
    "argmin": extreme("argmin"),
    "reduce_sum": lambda x, *, axes, keepdims: x.over(poly).fold(axes, keepdims),
    "reduce_mean": lambda x, *, axes, keepdims: x.mean(axes, keepdims),
    "reduce_max": lambda x, *, axes, keepdims: x.over(poly).most_of(axes, keepdims),
    "reduce_min": lambda x, *, axes, keepdims: x.over(poly).most_of(axes, keepdims, sign=-1),
    "reduce_sum_square": lambda x, *, axes, keepdims: (x * x).fold(axes, keepdims),
    "reduce_l1": lambda x, *, axes, keepdims: absolute(x).fold(axes, keepdims),
    "reduce_l2": lambda x, *, axes, keepdims: root((x * x).fold(axes, keepdims)),
    "reduce_log_sum": lambda x, *, axes, keepdims: x.fold(axes, keepdims).call("log"),
    "reduce_log_sum_exp": lambda x, *, axes, keepdims: x.over(exponential, real=True).fold(axes, keepdims).call("log"),
    "layer_norm": normal,
    "rms_norm": lambda x, s, *, axis, epsilon, stash_type: normal(
        x, s, axis=axis, epsilon=epsilon, stash_type=stash_type, centre=False
    ),
    "skip_layer_norm": lambda *ts, epsilon: skipped(*ts, epsilon=epsilon)[0],
    "skip_layer_norm_sum": lambda *ts, epsilon: skipped(*ts, epsilon=epsilon),
    "skip_rms_norm": lambda x, z, s, b=None, *, epsilon: skipped(x, z, s, None, b, epsilon=epsilon, centre=False)[0],
    "skip_rms_norm_sum": lambda x, z, s, b=None, *, epsilon: skipped(x, z, s, None, b, epsilon=epsilon, centre=False),
    "batch_norm": batch_norm,
    "instance_norm": instance_norm,
    "group_norm": group_norm,
    "nhwc_group_norm": nhwc_group_norm,
    "nhwc_skip_group_norm": lambda *ts, **a: skipped_groups(*ts, **a)[0],
    "nhwc_skip_group_norm_sum": skipped_groups,
    "mean_variance_norm": mean_variance_norm,
    "lp_norm": lp_norm,
    "lrn": lrn,
}
