"""The operators in plain numpy with plain loops, and a reader of printed graphs: nothing here comes
from the package."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import numpy as np

Array = Any


def reproduce(record: Mapping[str, Any]) -> tuple[float, float]:
    """The two sides of a counterexample's record, run on its inputs, at its output and element."""
    inputs = record["inputs"]
    index = tuple(record["index"])
    left, right = (run(record[side], inputs)[record["output"]] for side in ("lhs", "rhs"))
    return float(left[index]), float(right[index])


def run(text: str, inputs: Mapping[str, Any]) -> list[Array]:
    """The outputs of a graph as text on named inputs."""
    function = ast.parse(text).body[0]
    assert isinstance(function, ast.FunctionDef)
    env: dict[str, Any] = {}
    for argument in function.args.args:
        assert argument.annotation is not None
        env[argument.arg] = term(argument.annotation, env, inputs)
    for statement in function.body:
        if isinstance(statement, ast.Assign):
            assert isinstance(statement.targets[0], ast.Name)
            env[statement.targets[0].id] = term(statement.value, env, inputs)
        elif isinstance(statement, ast.Return):
            value = statement.value
            outputs = value.elts if isinstance(value, ast.Tuple) else [value]
            return [env[o.id] for o in outputs if isinstance(o, ast.Name)]
    raise AssertionError("the graph returns nothing")


def term(tree: ast.expr, env: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
    assert isinstance(tree, ast.Call), ast.dump(tree)
    assert isinstance(tree.func, ast.Name)
    name = tree.func.id
    if name in ("input", "weight"):
        key = tree.args[0]
        assert isinstance(key, ast.Constant)
        shape = tree.args[1].slice if isinstance(tree.args[1], ast.Subscript) else ast.Tuple([])
        dims = ast.literal_eval(shape)
        return np.array(inputs[key.value], float).reshape(dims)
    attrs = {k.arg: attribute(k.value) for k in tree.keywords}
    args = [env[a.id] if isinstance(a, ast.Name) else None for a in tree.args]
    return OPERATORS[name](*args, **attrs)


def attribute(tree: ast.expr) -> Any:
    if isinstance(tree, ast.Call):  # array(dtype, shape, data)
        dtype, shape, data = (ast.literal_eval(a) for a in tree.args)
        return np.array(data, dtype).astype(float).reshape(shape)
    if isinstance(tree, ast.Name):
        return {"inf": math.inf}[tree.id]
    return ast.literal_eval(tree)


# ---------------------------------------------------------------- windows


def padded(x: Array, pads: tuple[int, ...], value: float = 0.0) -> Array:
    """`pads` low then high for the last axes."""
    spatial = len(pads) // 2
    front = x.ndim - spatial
    low = [0] * front + list(pads[:spatial])
    high = [0] * front + list(pads[spatial:])
    shape = [n + a + b for n, a, b in zip(x.shape, low, high, strict=True)]
    result = np.full(shape, value)
    for index in product(*[range(n) for n in x.shape]):
        at = tuple(i + a for i, a in zip(index, low, strict=True))
        if all(0 <= i < n for i, n in zip(at, shape, strict=True)):
            result[at] = x[index]
    return result


def positions(
    shape: tuple[int, ...], kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]
) -> list[int]:
    rows = zip(shape, kernel, strides, dilations, strict=True)
    return [(n - ((k - 1) * d + 1)) // s + 1 for n, k, s, d in rows]


def conv(x: Array, w: Array, b: Array = None, *, strides: Any, pads: Any, dilations: Any, group: int) -> Array:
    data = padded(x, pads)
    out, per_group, *kernel = w.shape
    counts = positions(data.shape[2:], tuple(kernel), strides, dilations)
    result = np.zeros((x.shape[0], out, *counts))
    for n, o in product(range(x.shape[0]), range(out)):
        first = (o // (out // group)) * per_group
        for at in product(*[range(c) for c in counts]):
            total = 0.0
            for c, *k in product(range(per_group), *[range(m) for m in kernel]):
                place = tuple(a * s + i * d for a, s, i, d in zip(at, strides, k, dilations, strict=True))
                total += data[(n, first + c, *place)] * w[(o, c, *k)]
            result[(n, o, *at)] = total + (0.0 if b is None else b[o])
    return result


def pool(
    x: Array, kernel: Any, strides: Any, pads: Any, dilations: Any, value: float, fold: Callable[..., float]
) -> Array:
    data = padded(x, pads, value)
    counts = positions(data.shape[2:], kernel, strides, dilations)
    result = np.zeros((*x.shape[:2], *counts))
    for n, c in product(range(x.shape[0]), range(x.shape[1])):
        for at in product(*[range(m) for m in counts]):
            window = [
                data[(n, c, *(a * s + i * d for a, s, i, d in zip(at, strides, k, dilations, strict=True)))]
                for k in product(*[range(m) for m in kernel])
            ]
            result[(n, c, *at)] = fold(window)
    return result


def max_pool(x: Array, *, kernel: Any, strides: Any, pads: Any, dilations: Any) -> Array:
    return pool(x, kernel, strides, pads, dilations, -math.inf, max)


def average_pool(
    x: Array, *, kernel: Any, strides: Any, pads: Any, dilations: Any, extra: Any, count_include_pad: int
) -> Array:
    spatial = len(kernel)
    around = (*pads[:spatial], *(p + e for p, e in zip(pads[spatial:], extra, strict=True)))
    total = pool(x, kernel, strides, around, dilations, 0.0, sum)
    ones = padded(np.ones_like(x), pads, 1.0 if count_include_pad else 0.0)
    beyond = (*(0,) * spatial, *extra)
    return total / pool(ones, kernel, strides, beyond, dilations, 0.0, sum)


# ---------------------------------------------------------------- the other operators


def matmul(a: Array, b: Array) -> Array:
    left = a[None, :] if a.ndim == 1 else a
    right = b[:, None] if b.ndim == 1 else b
    batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    left = np.broadcast_to(left, (*batch, *left.shape[-2:]))
    right = np.broadcast_to(right, (*batch, *right.shape[-2:]))
    result = np.zeros((*batch, left.shape[-2], right.shape[-1]))
    for index in product(*[range(n) for n in result.shape]):
        *at, i, j = index
        result[index] = sum(left[(*at, i, k)] * right[(*at, k, j)] for k in range(left.shape[-1]))
    result = result[..., 0, :] if a.ndim == 1 else result
    return result[..., 0] if b.ndim == 1 else result


def gemm(a: Array, b: Array, c: Array = None, *, alpha: float, beta: float, transA: int, transB: int) -> Array:
    product_ = alpha * matmul(a.T if transA else a, b.T if transB else b)
    return product_ if c is None else product_ + beta * c


def split(x: Array, *, axis: int, split: Any) -> list[Array]:
    parts, start = [], 0
    for n in split:
        parts.append(np.take(x, range(start, start + n), axis))
        start += n
    return parts


def slice_(x: Array, *, starts: Any, ends: Any, axes: Any, steps: Any) -> Array:
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        x = np.take(x, list(range(start, end, step)), axis)
    return x


def transpose(x: Array, *, perm: Any) -> Array:
    result = np.zeros([x.shape[p] for p in perm])
    for index in product(*[range(n) for n in x.shape]):
        result[tuple(index[p] for p in perm)] = x[index]
    return result


def pad(x: Array, *, pads: Any, value: float, mode: str) -> Array:
    assert mode == "constant"
    return padded(x, pads, value)


def reduce(fold: Callable[..., Array]) -> Callable[..., Array]:
    return lambda x, *, axes, keepdims: fold(x, axis=tuple(axes), keepdims=bool(keepdims))


def softmax(x: Array, *, axis: int) -> Array:
    parts = np.exp(x)
    return parts / np.sum(parts, axis=axis, keepdims=True)


def layer_norm(x: Array, scale: Array, bias: Array = None, *, axis: int, epsilon: float, stash_type: int) -> Array:
    axes = tuple(range(axis % x.ndim, x.ndim))
    centred = x - x.mean(axis=axes, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(axis=axes, keepdims=True) + epsilon)
    return normal * scale + (0.0 if bias is None else bias)


def rms_norm(x: Array, scale: Array, *, axis: int, epsilon: float, stash_type: int) -> Array:
    axes = tuple(range(axis % x.ndim, x.ndim))
    return x / np.sqrt((x**2).mean(axis=axes, keepdims=True) + epsilon) * scale


def batch_norm(x: Array, scale: Array, bias: Array, mean: Array, variance: Array, *, epsilon: float) -> Array:
    shape = (1, -1, *(1,) * (x.ndim - 2))
    s, b, m, v = (p.reshape(shape) for p in (scale, bias, mean, variance))
    return (x - m) / np.sqrt(v + epsilon) * s + b


def depth_to_space(x: Array, *, blocksize: int, mode: str) -> Array:
    n, c, h, w = x.shape
    b, out = blocksize, c // blocksize**2
    result = np.zeros((n, out, h * b, w * b))
    for i, k, y, z, p, q in product(*map(range, (n, out, h, w, b, b))):
        channel = (p * b + q) * out + k if mode == "DCR" else k * b * b + p * b + q
        result[i, k, y * b + p, z * b + q] = x[i, channel, y, z]
    return result


OPERATORS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "neg": lambda x: -x,
    "max": np.maximum,
    "min": np.minimum,
    "abs": np.abs,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "reciprocal": lambda x: 1 / x,
    "relu": lambda x: np.where(x > 0, x, 0.0),
    "constant": lambda *, value: value,
    "eye_like": lambda x, *, k, dtype: np.eye(*x.shape, k=k),
    "expand": lambda x, *, shape: np.array(np.broadcast_to(x, shape)),
    "reshape": lambda x, *, shape: np.reshape(x, shape),
    "concat": lambda *xs, axis: np.concatenate(xs, axis),
    "item": lambda xs, *, index: xs[index],
    "reduce_sum": reduce(np.sum),
    "reduce_mean": reduce(np.mean),
    "reduce_max": reduce(np.max),
    "reduce_min": reduce(np.min),
    "global_max_pool": lambda x: x.max(axis=tuple(range(2, x.ndim)), keepdims=True),
    "global_average_pool": lambda x: x.mean(axis=tuple(range(2, x.ndim)), keepdims=True),
    "slice": slice_,
    **{f.__name__: f for f in (conv, max_pool, average_pool, matmul, gemm, split, transpose, pad, softmax)},
    **{f.__name__: f for f in (layer_norm, rms_norm, batch_norm, depth_to_space)},
}
