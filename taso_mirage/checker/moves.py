"""Operators that only place elements, and tensors of positions and sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import accumulate, pairwise
from typing import Any

from taso_mirage.checker.casts import exact, place, rounded
from taso_mirage.checker.forms import (
    FLOATS,
    INTS,
    ONE,
    ZERO,
    Poly,
    condition,
    constant,
    divided,
    floor,
    multiplied,
    need,
    poly,
    total,
)
from taso_mirage.checker.functions import compared, denied
from taso_mirage.checker.tensors import Tensor, broadcast, dims, legal, literal


def concat(*ts: Tensor, axis: int) -> Tensor:
    need(
        0 <= axis < len(ts[0].shape) and len({(t.dtype, t.shape[:axis], t.shape[axis + 1 :]) for t in ts}) == 1,
        "no concat",
    )
    ends = [*accumulate((t.shape[axis] for t in ts), initial=ZERO)]

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
    rows = zip(axes, dims(starts), dims(ends), steps, strict=True)
    return reduce(lambda y, row: stepped(y, *row), rows, x)


def stepped(x: Tensor, axis: int, start: Poly, end: Poly, step: int) -> Tensor:
    """x[start:end:step] along an axis. With a negative step an end of -1 is before the first."""
    if step == 1:
        return x.cut(axis, start, end - start)
    n, stride = x.shape[axis], poly(abs(step))
    low, high = (start, end - 1) if step > 0 else (end + 1, start)
    need(step != 0 and 0 <= axis < len(x.shape) and legal(low), "no such part")
    need(legal(n - 1 - high), "a part that may leave the tensor")
    size = floor(high - low + stride, stride)
    need(legal(size), "no such part")
    return x.along(axis, size, lambda *i: start + i[axis] * step)


def pad(x: Tensor, *, pads: Any, value: float, mode: str) -> Tensor:
    n, fill = len(x.shape), literal(value=(x.dtype, (), (value,))).at() if mode == "constant" else ZERO
    rows = list(zip(x.shape, dims(pads)[:n], dims(pads)[n:], strict=True))
    shape = tuple(m + low + high for m, low, high in rows)
    need(len(pads) == 2 * n and all(map(legal, shape)), "no pad")
    if mode in BEYOND:
        inner = [None if low == high == ZERO else (m, low, high) for m, low, high in rows]
        return Tensor(x.dtype, shape, lambda *i: BEYOND[mode](x, inner, i))
    need(mode == "constant", "no pad")

    def read(*i: Poly) -> Poly:
        at = [j - low for j, (_, low, _) in zip(i, rows, strict=True)]
        inside = multiplied(condition(j) * condition(m - 1 - j) for j, (m, _, _) in zip(at, rows, strict=True))
        return x.at(*at) * inside + denied(inside) * fill

    return Tensor(x.dtype, shape, read)


def edge(x: Tensor, rows: list[Any], index: tuple[Poly, ...]) -> Poly:
    """The nearest element."""

    def value(done: tuple[Poly, ...]) -> Poly:
        k = len(done)
        if k == len(index):
            return x.at(*done)
        if rows[k] is None:
            return value((*done, index[k]))
        n, low, _ = rows[k]
        at = index[k] - low
        before, behind = condition(-at - 1), condition(at - n)
        inside = condition(at) * condition(n - 1 - at)
        return before * value((*done, ZERO)) + inside * value((*done, at)) + behind * value((*done, n - 1))

    return value(())


BEYOND: dict[str, Callable[..., Poly]] = {"edge": edge}


def expand(x: Tensor, *, shape: Any) -> Tensor:
    wanted = dims(shape)
    need(broadcast(x.shape, wanted) == wanted and all(map(legal, wanted)), "no expansion")
    return Tensor(x.dtype, wanted, x.at)


def squeeze(x: Tensor, *, axes: Any) -> Tensor:
    need(all(0 <= a < len(x.shape) for a in axes), "no such axes")
    return x.reshape(tuple(n for i, n in enumerate(x.shape) if i not in axes))


def unsqueeze(x: Tensor, *, axes: Any) -> Tensor:
    rank = len(x.shape) + len(axes)
    at = {a + rank if a < 0 else a for a in axes}
    need(len(at) == len(axes) and at <= set(range(rank)), "no such axes")
    sizes = iter(x.shape)
    return x.reshape(tuple(ONE if i in at else next(sizes) for i in range(rank)))


def flatten(x: Tensor, *, axis: int) -> Tensor:
    need(-len(x.shape) <= axis <= len(x.shape), "no such axis")
    at = axis + len(x.shape) if axis < 0 else axis
    return x.reshape((multiplied(x.shape[:at]), multiplied(x.shape[at:])))


# ---------------------------------------------------------------- positions that are read


def indices(t: Tensor) -> Callable[..., Poly]:
    """The elements of a tensor of positions as integers."""
    need(t.dtype in ("int32", "int64"), "indices of another dtype")
    return lambda *i: exact(t.dtype, t.at(*i))


def gather(x: Tensor, i: Tensor, *, axis: int) -> Tensor:
    need(-len(x.shape) <= axis < len(x.shape), "no such axis")
    k, at, m = axis % len(x.shape), indices(i), len(i.shape)
    if not m and (p := constant(at())) is not None:
        legal(x.shape[k] + (p if p < 0 else -1 - p))  # on the left there is such a position
    shape = (*x.shape[:k], *i.shape, *x.shape[k + 1 :])
    return Tensor(x.dtype, shape, lambda *j: x.at(*j[:k], place(at(*j[k : k + m]), x.shape[k]), *j[k + m :]))


def gather_elements(x: Tensor, i: Tensor, *, axis: int) -> Tensor:
    need(-len(x.shape) <= axis < len(x.shape) == len(i.shape), "no such axis")
    k, at = axis % len(x.shape), indices(i)
    need(all(a == k or legal(n - m) for a, (n, m) in enumerate(zip(x.shape, i.shape, strict=True))), "too many indices")
    return Tensor(x.dtype, i.shape, lambda *j: x.at(*j[:k], place(at(*j), x.shape[k]), *j[k + 1 :]))


def gather_nd(x: Tensor, i: Tensor, *, batch_dims: int) -> Tensor:
    depth, at, m = constant(i.shape[-1]) if i.shape else None, indices(i), len(i.shape) - 1
    if batch_dims or depth is None or not 0 < depth <= len(x.shape):
        need(False, "positions in no axes")
        return x

    def read(*j: Poly) -> Poly:
        found = [place(at(*j[:m], poly(k)), n) for k, n in enumerate(x.shape[: int(depth)])]
        return x.at(*found, *j[m:])

    return Tensor(x.dtype, (*i.shape[:-1], *x.shape[int(depth) :]), read)


def one_hot(i: Tensor, values: Tensor, *, depth: Any, axis: int) -> Tensor:
    (n,), rank, at = dims((depth,)), len(i.shape) + 1, indices(i)
    need(-rank <= axis < rank and values.shape == (poly(2),), "no such axis")
    k = axis % rank

    def read(*j: Poly) -> Poly:
        p = at(*j[:k], *j[k + 1 :])
        low = compared("lt", "int64", p, ZERO)  # a position that is nowhere is legal here
        hit = low * compared("eq", "int64", p + n, j[k]) + denied(low) * compared("eq", "int64", p, j[k])
        return hit * values.at(ONE) + denied(hit) * values.at(ZERO)

    return Tensor(values.dtype, (*i.shape[:k], n, *i.shape[k:]), read)


def equals(a: Poly, b: Poly) -> Poly:
    return condition(a - b) * condition(b - a)


def trilu(x: Tensor, *, k: int, upper: int) -> Tensor:
    need(len(x.shape) > 1 and upper in (0, 1) and isinstance(k, int), "no triangle")
    return Tensor(
        x.dtype,
        x.shape,
        lambda *i: x.at(*i) * (condition(i[-1] - i[-2] - k) if upper else condition(i[-2] - i[-1] + k)),
    )


def eye_like(x: Tensor, *, k: int, dtype: str | None) -> Tensor:
    n, m = x.shape
    return Tensor(dtype or x.dtype, (n, m), lambda i, j: equals(j - i, poly(k)))


# ---------------------------------------------------------------- repetition and blocks


def tile(x: Tensor, *, repeats: Any) -> Tensor:
    times = dims(repeats)
    need(len(times) == len(x.shape) and all(map(legal, times)), "no repeats")

    def read(*i: Poly) -> Poly:
        return x.at(*(j if t == ONE else j - floor(j, n) * n for j, n, t in zip(i, x.shape, times, strict=True)))

    return Tensor(x.dtype, tuple(n * t for n, t in zip(x.shape, times, strict=True)), read)


def resize(x: Tensor, *, factors: Any) -> Tensor:
    need(len(factors) == len(x.shape) and min(factors, default=1) > 0, "no factors")
    return Tensor(
        x.dtype,
        tuple(n * f for n, f in zip(x.shape, factors, strict=True)),
        lambda *i: x.at(*(floor(j, poly(f)) for j, f in zip(i, factors, strict=True))),
    )


def depth_to_space(x: Tensor, *, blocksize: int, mode: str) -> Tensor:
    n, c, h, w = x.shape
    b = poly(blocksize)
    each = divided(c, b * b) if blocksize > 0 else None
    if each is None or mode not in ("DCR", "CRD"):
        need(False, "channels in no blocks")
        return x
    apart, perm = ((b, b, each), (0, 3, 4, 1, 5, 2)) if mode == "DCR" else ((each, b, b), (0, 1, 4, 2, 5, 3))
    return x.reshape((n, *apart, h, w)).moved(perm).reshape((n, each, h * b, w * b))


def space_to_depth(x: Tensor, *, blocksize: int, mode: str) -> Tensor:
    n, c, *image = x.shape
    b = poly(blocksize)
    h, w = (divided(m, b) if blocksize > 0 else None for m in image)
    if h is None or w is None or mode not in ("DCR", "CRD"):
        need(False, "an image in no blocks")
        return x
    perm = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return x.reshape((n, c, h, b, w, b)).moved(perm).reshape((n, b * b * c, h, w))


# ---------------------------------------------------------------- sizes


def extents(*, values: Any, scalar: bool) -> Tensor:
    sizes = dims(values)
    need(not scalar or len(sizes) == 1, "no scalar")
    if scalar:
        return Tensor("int64", (), lambda: sizes[0])
    return Tensor("int64", (poly(len(sizes)),), lambda i: total(equals(i, poly(k)) * n for k, n in enumerate(sizes)))


def range_(*, n: Any, start: Any, step: Any, dtype: str) -> Tensor:
    size, first = dims((n, start))
    need(legal(size) and dtype in (*FLOATS, *INTS) and isinstance(step, int), "no range")
    return Tensor(dtype, (size,), lambda i: rounded(dtype, "int64", first + i * step))


MOVES: dict[str, Callable[..., Any]] = {
    "concat": concat,
    "split": split_,
    "slice": slice_,
    "pad": pad,
    "reshape": lambda x, *, shape: x.reshape(dims(shape)),
    "transpose": lambda x, *, perm: x.moved(perm),
    "expand": expand,
    "squeeze": squeeze,
    "unsqueeze": unsqueeze,
    "flatten": flatten,
    "gather": gather,
    "gather_elements": gather_elements,
    "gather_nd": gather_nd,
    "one_hot": one_hot,
    "trilu": trilu,
    "eye_like": eye_like,
    "tile": tile,
    "resize": resize,
    "upsample": resize,
    "depth_to_space": depth_to_space,
    "space_to_depth": space_to_depth,
    "extents": extents,
    "shape_of": lambda x, *, start, end: extents(values=x.shape[start:end], scalar=False),
    "size_of": lambda x: extents(values=(multiplied(x.shape),), scalar=True),
    "range": range_,
    "constant": literal,
    "constant_of_shape": lambda *, shape, value: expand(literal(value=value), shape=shape),
}
