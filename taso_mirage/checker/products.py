"""Products: matrices, index letters, and terms that are summed or compared over windows of an
image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from taso_mirage.checker.casts import cast
from taso_mirage.checker.elementwise import absolute
from taso_mirage.checker.forms import (
    FLOATS,
    INTS,
    ONE,
    ZERO,
    Poly,
    condition,
    divided,
    floor,
    fresh,
    just,
    multiplied,
    need,
    poly,
    summed,
)
from taso_mirage.checker.functions import greatest, inverse, of_some, valued
from taso_mirage.checker.norms import per_channel, root
from taso_mirage.checker.tensors import Tensor, bag, broadcast, dims, legal


def matmul(a: Tensor, b: Tensor, ta: int = 0, tb: int = 0) -> Tensor:
    if 1 in (len(a.shape), len(b.shape)):
        return with_vectors(a, b, ta, tb)
    a, b = (
        t.moved((*range(len(t.shape) - 2), len(t.shape) - 1, len(t.shape) - 2)) if turn else t
        for t, turn in ((a, ta), (b, tb))
    )
    need(a.dtype == b.dtype != "bool" and min(len(a.shape), len(b.shape)) > 1, "no product")
    need(a.shape[-1] == b.shape[-2] and {ta, tb} <= {0, 1}, "a product that does not fit")

    def read(*i: Poly) -> Poly:
        k = fresh(a.shape[-1])
        return summed(a.at(*i[:-1], just(*k)) * b.at(*i[:-2], just(*k), i[-1]), frozenset({k}))

    return Tensor(a.dtype, (*broadcast(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), read)


def with_vectors(a: Tensor, b: Tensor, ta: int, tb: int) -> Tensor:
    """A vector on the left is a matrix of one row, on the right one of one column."""
    row, column = (len(t.shape) == 1 for t in (a, b))
    need(not (row and ta) and not (column and tb), "a vector has no axes to swap")
    left = a.reshape((ONE, *a.shape)) if row else a
    right = b.reshape((*b.shape, ONE)) if column else b
    y = matmul(left, right, ta, tb)
    kept = [n for k, n in enumerate(reversed(y.shape)) if not ((k == 0 and column) or (k == 1 and row))]
    return y.reshape(tuple(reversed(kept)))


def gemm(
    a: Tensor, b: Tensor, c: Tensor | None = None, *, alpha: float, beta: float, transA: int, transB: int
) -> Tensor:
    y = matmul(a, b, transA, transB) * alpha
    need(
        len(y.shape) == len(a.shape) == len(b.shape) == 2 and (c is None or broadcast(y.shape, c.shape) == y.shape),
        "no gemm",
    )
    return y if c is None else y + c * beta


def einsum(a: Tensor, b: Tensor, *, equation: str) -> Tensor:
    operands, _, result = equation.partition("->")
    names = [lettered(t, t_shape) for t, t_shape in zip(operands.split(","), (a.shape, b.shape), strict=True)]
    ends = dict(pair for letters, t in zip(names, (a, b), strict=True) for pair in zip(letters, t.shape, strict=True))
    for letters, t in zip(names, (a, b), strict=True):
        need(all(ends[c] == n for c, n in zip(letters, t.shape, strict=True)), "letters of several sizes")
        need(len(set(letters)) == len(letters), "a diagonal")
    more = max((len([c for c in letters if c.startswith(".")]) for letters in names), default=0)
    out = [*dots(more), *result.replace("...", "")] if "..." in result else list(result)
    need(a.dtype == b.dtype != "bool" and set(out) <= set(ends) and len(set(out)) == len(out), "no such letters")

    def read(*i: Poly) -> Poly:
        at = dict(zip(out, i, strict=True))
        inner = {c: fresh(n) for c, n in ends.items() if c not in at}
        at |= {c: just(*v) for c, v in inner.items()}
        left, right = (t.at(*(at[c] for c in letters)) for letters, t in zip(names, (a, b), strict=True))
        return summed(left * right, frozenset(inner.values()))

    return Tensor(a.dtype, tuple(ends[c] for c in out), read)


def dots(n: int) -> list[str]:
    """The names of axes that an ellipsis stands for, the last one `.0`."""
    return [f".{k}" for k in reversed(range(n))]


def lettered(letters: str, shape: tuple[Poly, ...]) -> list[str]:
    """A name for each axis."""
    if "..." not in letters:
        need(len(letters) == len(shape) and letters.isalpha(), "letters that do not fit")
        return list(letters)
    before, _, behind = letters.partition("...")
    return [*before, *dots(len(shape) - len(before) - len(behind)), *behind]


# ---------------------------------------------------------------- windows


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


def conv_transpose(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    strides: Any,
    pads: Any,
    dilations: Any,
    output_padding: Any,
    group: int,
) -> Tensor:
    """Each element of x adds the kernel, times itself, at stride * its position - pad."""
    s, each, width = len(x.shape) - 2, divided(x.shape[1], poly(group)) if group > 0 else None, w.shape[1]
    need(0 < s < 4 and each is not None and w.shape[0] == x.shape[1] and x.dtype == w.dtype, "groups that do not fit")
    need(len(strides) == len(dilations) == len(output_padding) == s == len(pads) / 2, "no windows")
    need(min(*strides, *dilations) > 0 <= min(*pads, *output_padding), "no windows")
    rows = list(zip(x.shape[2:], w.shape[2:], strides, dilations, pads[:s], strict=True))
    ends = zip(rows, pads[s:], output_padding, strict=True)
    image = tuple((n - 1) * t + (k - 1) * d + 1 - low - high + more for (n, k, t, d, low), high, more in ends)
    need(all(map(legal, image)), "windows that are too large")

    def read(*i: Poly) -> Poly:
        c, at, k = fresh(each or ONE), [fresh(n) for n in x.shape[2:]], [fresh(n) for n in w.shape[2:]]
        places = zip(i[2:], at, k, rows, strict=True)
        gaps = [j + low - just(*v) * t - just(*u) * d for j, v, u, (_, _, t, d, low) in places]
        meets = multiplied(condition(gap) * condition(-gap) for gap in gaps)
        first, last = (floor(i[1], width), i[1] - floor(i[1], width) * width) if group > 1 else (ZERO, i[1])
        channel = first * (each or ONE) + just(*c)
        product = x.at(i[0], channel, *(just(*v) for v in at)) * w.at(channel, last, *(just(*u) for u in k))
        return summed(meets * product, frozenset({c, *at, *k}))

    y = Tensor(x.dtype, (x.shape[0], width * group, *image), read)
    return y if b is None else y + per_channel(b, y)


def max_pool(x: Tensor, *, kernel: Any, strides: Any, pads: Any, dilations: Any) -> Tensor:
    need(all(p < k for p, k in zip(pads, kernel * 2, strict=True)), "windows of padding only")
    need(x.dtype in (*FLOATS, *INTS), "a pool of values that are no numbers")
    top, some = bag(x.dtype, 1), not any(pads) or set(dilations) == {1}

    def how(i: Any, at: Any, k: Any, where: Poly) -> Poly:
        found = summed(where * valued(top, x.at(*i[:2], *at)), frozenset(k))
        return greatest(top, of_some(found) if some else found)

    return windows(x, dims(kernel), strides, pads, dilations, None, how)


def average_pool(
    x: Tensor, *, kernel: Any, strides: Any, pads: Any, dilations: Any, extra: Any, count_include_pad: int
) -> Tensor:
    need(not any(extra) and x.dtype in FLOATS and count_include_pad in (0, 1), "windows beyond the padding")

    def how(i: Any, at: Any, k: Any, where: Poly) -> Poly:
        count = summed(ONE if count_include_pad else where, frozenset(k))
        return summed(where * x.at(*i[:2], *at), frozenset(k)) * inverse(count)

    return windows(x, dims(kernel), strides, pads, dilations, None, how)


def lp_pool(x: Tensor, *, kernel: Any, strides: Any, pads: Any, dilations: Any, p: int) -> Tensor:
    need(p in (1, 2), "no such norm")
    y = absolute(x) if p == 1 else x * x

    def how(i: Any, at: Any, k: Any, where: Poly) -> Poly:
        return summed(where * y.at(*i[:2], *at), frozenset(k))

    sums = windows(y, dims(kernel), strides, pads, dilations, None, how)
    return sums if p == 1 else root(sums)


def image_axes(x: Tensor) -> range:
    need(len(x.shape) > 2, "no image")
    return range(2, len(x.shape))


# ---------------------------------------------------------------- products of integers


def centred(x: Tensor, zero: Tensor | None, axis: int | None = None) -> Tensor:
    """x - zero in 32 bits; a zero for each position of an axis, or one."""
    y = cast(x, to="int32")
    if zero is None:
        return y
    need(zero.dtype == x.dtype, "a zero of another type")
    if axis is not None and len(zero.shape) == 1 and zero.shape != (ONE,):
        need(zero.shape[0] == x.shape[axis], "a zero for each of other positions")
        zero = zero.reshape((zero.shape[0], *(ONE,) * (len(x.shape) - 1 - axis % len(x.shape))))
    return y - cast(zero, to="int32")


def matmul_integer(a: Tensor, b: Tensor, za: Tensor | None = None, zb: Tensor | None = None) -> Tensor:
    need({a.dtype, b.dtype} <= {"int8", "uint8"}, "a product of integers of that type")
    return matmul(centred(a, za, -2), centred(b, zb, -1))


def conv_integer(x: Tensor, w: Tensor, zx: Tensor | None = None, zw: Tensor | None = None, **a: Any) -> Tensor:
    need({x.dtype, w.dtype} <= {"int8", "uint8"}, "a product of integers of that type")
    need(zx is None or all(n == ONE for n in zx.shape), "several zeros of the data")
    return conv(centred(x, zx and zx.reshape(())), centred(w, zw, 0), **a)


PRODUCTS: dict[str, Callable[..., Any]] = {
    "matmul": matmul,
    "gemm": gemm,
    "fused_matmul": lambda a, b, *, alpha, transA, transB: matmul(a, b, transA, transB) * alpha,
    "einsum": einsum,
    "conv": conv,
    "nhwc_conv": lambda x, w, b=None, **a: conv(x.moved((0, 3, 1, 2)), w.moved((0, 3, 1, 2)), b, **a).moved(
        (0, 2, 3, 1)
    ),
    "conv_transpose": conv_transpose,
    "max_pool": max_pool,
    "average_pool": average_pool,
    "lp_pool": lp_pool,
    "global_max_pool": lambda x: x.most_of(image_axes(x), 1),
    "global_average_pool": lambda x: x.mean(image_axes(x)),
    "global_lp_pool": lambda x: root((x * x).fold(image_axes(x), 1)),
    "matmul_integer": matmul_integer,
    "conv_integer": conv_integer,
}
