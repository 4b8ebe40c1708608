"""Rules that are known to be true or false, each with one typing in letters: the classification set
of the verifier."""

from __future__ import annotations

from typing import NamedTuple


class Known(NamedTuple):
    equation: str
    given: str
    attributes: str = ""


WINDOWS = "strides: (1, 1), pads: (1, 1, 1, 1), dilations: (1, 1)"
CONV = f"a: {{{WINDOWS}, group: 1}}"
CONV1 = f"a: {{{WINDOWS}}}"
POOL = f"a: {{kernel: (3, 3), {WINDOWS}}}"
AVERAGE = f"a: {{kernel: (3, 3), {WINDOWS}, extra: (0, 0)}}"
IMAGE = "x: (n, c, h, w)"
IMAGES = "x: (n, c, h, w), y: (n, c, h, w)"
KERNEL = "w: (o, c, 3, 3)"
KERNELS = "v: (o, c, 3, 3), w: (p, c, 3, 3)"
SPLIT = "item(split({}, axis=1, split=(dim(v, 0), dim(w, 0))), index={})"


def _both(term: str) -> str:
    """The two parts of a term that is cut along the channels."""
    return f"({SPLIT.format(term, 0)}, {SPLIT.format(term, 1)})"


TRUE = [
    # convolutions: merging for one group, linearity, batches, kernels grown by zeros
    Known(
        "concat(conv(x, v, group=1, **a), conv(x, w, group=1, **a), axis=1) == conv(x, concat(v, w, axis=0), group=1, **a)",
        f"{IMAGE}, {KERNELS}",
        CONV1,
    ),
    Known(
        "(conv(x, v, group=1, **a), conv(x, w, group=1, **a)) == "
        + _both("conv(x, concat(v, w, axis=0), group=1, **a)"),
        f"{IMAGE}, {KERNELS}",
        CONV1,
    ),
    Known(
        "(relu(conv(x, v, group=1, **a)), relu(conv(x, w, group=1, **a))) == "
        + _both("relu(conv(x, concat(v, w, axis=0), group=1, **a))"),
        f"{IMAGE}, {KERNELS}",
        CONV1,
    ),
    Known(
        "add(conv(x, v, group=1, **a), conv(y, w, group=1, **a)) == "
        "conv(concat(x, y, axis=1), concat(v, w, axis=1), group=1, **a) where shape(x)[2:] == shape(y)[2:]",
        "x: (n, c, h, w), y: (n, d, h, w), v: (o, c, 3, 3), w: (o, d, 3, 3)",
        CONV1,
    ),
    Known(
        "conv(add(x, y), w, **a) == add(conv(x, w, **a), conv(y, w, **a)) where shape(x) == shape(y)",
        f"{IMAGES}, {KERNEL}",
        CONV,
    ),
    Known(
        "conv(x, add(v, w), **a) == add(conv(x, v, **a), conv(x, w, **a)) where shape(v) == shape(w)",
        f"{IMAGE}, v: (o, c, 3, 3), {KERNEL}",
        CONV,
    ),
    Known("conv(mul(x, k), w, **a) == mul(conv(x, w, **a), k) where size(k) == 1", f"{IMAGE}, {KERNEL}, k: ()", CONV),
    Known(
        "concat(conv(x, w, **a), conv(y, w, **a), axis=0) == conv(concat(x, y, axis=0), w, **a)",
        f"{IMAGES}, {KERNEL}",
        CONV,
    ),
    Known(
        "conv(x, v, pads=p, dilations=(1, 1), **a) == "
        "conv(x, pad(v, pads=(0, 0, 1, 0, 0, 0, 1, 0)), pads=plus(p, (1, 0, 1, 0)), dilations=(1, 1), **a)",
        f"{IMAGE}, v: (o, c, 1, 3)",
        "a: {strides: (1, 1), group: 1}, p: (0, 1, 0, 1)",
    ),
    Known(
        "conv(x, v, pads=p, dilations=(1, 1), **a) == "
        "conv(x, pad(v, pads=(0, 0, 0, 0, 0, 0, 1, 1)), pads=plus(p, (0, 0, 1, 1)), dilations=(1, 1), **a)",
        f"{IMAGE}, v: (o, c, 2, 2)",
        "a: {strides: (1, 1), group: 1}, p: (1, 1, 0, 0)",
    ),
    Known(
        "concat(conv(x, v, group=g, **a), conv(y, w, group=h, **a), axis=1) == "
        "conv(concat(x, y, axis=1), concat(v, w, axis=0), group=g + h, **a) "
        "where shape(v) == shape(w) and shape(x) == shape(y) and g == h",
        f"{IMAGES}, v: (o, c, 3, 3), {KERNEL}",
        f"{CONV1}, g: 1, h: 1",
    ),
    Known(
        "conv(pad(x, pads=p), w, pads=q, **a) == conv(x, w, pads=plus(q, p[2:rank(x)] + p[rank(x) + 2:]), **a) "
        "where p[:2] == (0, 0) and p[rank(x):rank(x) + 2] == (0, 0) and min(p) >= 0",
        f"{IMAGE}, {KERNEL}",
        "p: (0, 0, 1, 1, 0, 0, 1, 1), q: (0, 0, 0, 0), a: {strides: (1, 1), dilations: (1, 1), group: 1}",
    ),
    Known(
        "conv(x, w, strides=(2, 2), pads=(0, 0, 0, 0), dilations=(1, 1), group=g) == "
        "conv(slice(x, starts=(0, 0), ends=(dim(x, 2), dim(x, 3)), axes=(2, 3), steps=(2, 2)), w, strides=(1, 1), "
        "pads=(0, 0, 0, 0), dilations=(1, 1), group=g) where shape(w)[2:] == (1, 1)",
        f"{IMAGE}, w: (o, c, 1, 1)",
        "g: 1",
    ),
    Known(
        "conv(x, w, b, **a) == add(conv(x, w, **a), reshape(b, shape=(dim(w, 0),) + (1,) * (rank(x) - 2)))",
        f"{IMAGE}, {KERNEL}, b: (o)",
        CONV,
    ),
    Known(
        "transpose(conv(transpose(x, perm=(0, 1, 3, 2)), transpose(w, perm=(0, 1, 3, 2)), "
        "strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=g), perm=(0, 1, 3, 2)) == "
        "conv(x, w, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=g)",
        f"{IMAGE}, {KERNEL}",
        "g: 1",
    ),
    # pools
    Known(
        "average_pool(x, kernel=(3, 3), strides=s, pads=p, dilations=d, extra=(0, 0), count_include_pad=1) == "
        "conv(x, expand(div(1, 9), shape=(dim(x, 1), 1, 3, 3)), strides=s, pads=p, dilations=d, group=dim(x, 1))",
        IMAGE,
        "s: (1, 1), p: (1, 1, 1, 1), d: (1, 1)",
    ),
    Known("max_pool(concat(x, y, axis=1), **a) == concat(max_pool(x, **a), max_pool(y, **a), axis=1)", IMAGES, POOL),
    Known(
        "max_pool(relu(x), **a) == relu(max_pool(x, **a))",
        IMAGE,
        POOL,
    ),
    Known(
        "average_pool(add(x, y), **a) == add(average_pool(x, **a), average_pool(y, **a)) where shape(x) == shape(y)",
        IMAGES,
        f"a: {{kernel: (3, 3), {WINDOWS}, extra: (0, 0), count_include_pad: 0}}",
    ),
    Known(
        "max_pool(max(x, y), **a) == max(max_pool(x, **a), max_pool(y, **a)) where shape(x) == shape(y)", IMAGES, POOL
    ),
    # products
    Known("matmul(matmul(x, y), z) == matmul(x, matmul(y, z)) where rank(y) >= 2", "x: (m, k), y: (k, n), z: (n, p)"),
    Known(
        "concat(matmul(x, v), matmul(x, w), axis=rank(x) - 1) == matmul(x, concat(v, w, axis=rank(v) - 1))",
        "x: (m, k), v: (k, n), w: (k, p)",
    ),
    Known(
        "concat(matmul(x, w), matmul(y, w), axis=0) == matmul(concat(x, y, axis=0), w)",
        "x: (m, k), y: (l, k), w: (k, n)",
    ),
    Known(
        "add(matmul(x, v), matmul(y, w)) == matmul(concat(x, y, axis=1), concat(v, w, axis=0))",
        "x: (m, k), y: (m, l), v: (k, n), w: (l, n)",
    ),
    Known(
        "transpose(matmul(x, y), perm=(1, 0)) == matmul(transpose(y, perm=(1, 0)), transpose(x, perm=(1, 0)))",
        "x: (m, k), y: (k, n)",
    ),
    Known("matmul(mul(x, k), y) == mul(matmul(x, y), k) where size(k) == 1", "x: (m, k), y: (k, n), k: ()"),
    Known(
        "matmul(x, add(v, w)) == add(matmul(x, v), matmul(x, w)) where shape(v) == shape(w)",
        "x: (m, k), v: (k, n), w: (k, n)",
    ),
    Known(
        "gemm(x, y, c, alpha=e, beta=f, transA=0, transB=1) == "
        "add(mul(matmul(x, transpose(y, perm=(1, 0))), 1), c) where e == 1 and f == 1",
        "x: (m, k), y: (n, k), c: (n)",
        "e: 1.0, f: 1.0",
    ),
    Known(
        "gemm(x, y, transA=0, transB=1, **a) == gemm(x, transpose(y, perm=(1, 0)), transA=0, transB=0, **a)",
        "x: (m, k), y: (n, k)",
        "a: {alpha: 1.0, beta: 1.0}",
    ),
    # layout
    Known(
        "transpose(transpose(x, perm=p), perm=q) == transpose(x, perm=compose(p, q))",
        "x: (m, k, n)",
        "p: (1, 0, 2), q: (0, 2, 1)",
    ),
    Known("transpose(transpose(x, perm=p), perm=inverse(p)) == x", "x: (m, k, n)", "p: (1, 2, 0)"),
    Known(
        "concat(transpose(x, perm=p), transpose(y, perm=p), axis=i) == transpose(concat(x, y, axis=p[i]), perm=p)",
        "x: (m, k), y: (m, l)",
        "p: (1, 0), i: 0",
    ),
    Known(
        "softmax(transpose(x, perm=p), axis=i) == transpose(softmax(x, axis=p[i]), perm=p)",
        "x: (m, k, n)",
        "p: (1, 0, 2), i: 2",
    ),
    Known(
        "reduce_sum(transpose(x, perm=p), axes=(1,), keepdims=1) == "
        "transpose(reduce_sum(x, axes=(p[1],), keepdims=1), perm=p)",
        "x: (m, k, n)",
        "p: (1, 0, 2)",
    ),
    Known("reshape(reshape(x, shape=s), shape=t) == reshape(x, shape=t)", "x: (m, k)", "s: (k, m), t: (m*k,)"),
    Known("reshape(relu(x), shape=s) == relu(reshape(x, shape=s))", "x: (m, k)", "s: (m*k,)"),
    Known(
        "transpose(add(x, y), perm=p) == add(transpose(x, perm=p), transpose(y, perm=p)) where shape(x) == shape(y)",
        "x: (m, k), y: (m, k)",
        "p: (1, 0)",
    ),
    Known(
        "item(split(concat(x, y, axis=i), axis=i, split=(dim(x, i), dim(y, i))), index=1) == y",
        "x: (m, k), y: (m, k)",
        "i: 0",
    ),
    Known(
        "concat(item(split(x, axis=i, split=s), index=0), item(split(x, axis=i, split=s), index=1), axis=i) == "
        "x where len(s) == 2",
        "x: (2*m, k)",
        "i: 0, s: (m, m)",
    ),
    Known(
        "add(concat(x, y, axis=i), concat(v, w, axis=i)) == "
        "concat(add(x, v), add(y, w), axis=i) where shape(x) == shape(v) and shape(y) == shape(w)",
        "x: (m, k), y: (l, k), v: (m, k), w: (l, k)",
        "i: 0",
    ),
    Known(
        "slice(relu(x), **a) == relu(slice(x, **a))",
        "x: (m, k)",
        "a: {starts: (0,), ends: (1,), axes: (0,), steps: (1,)}",
    ),
    Known(
        "pad(mul(x, y), pads=p) == mul(pad(x, pads=p), pad(y, pads=p)) where shape(x) == shape(y)",
        "x: (m, k), y: (m, k)",
        "p: (0, 1, 0, 1)",
    ),
    # elementwise, reductions, normalizations
    Known(
        "concat(add(x, z), add(y, z), axis=i) == add(concat(x, y, axis=i), z)", "x: (m, k), y: (m, k), z: (k)", "i: 0"
    ),
    Known("mul(add(x, y), z) == add(mul(x, z), mul(y, z))", "x: (m, k), y: (m, k), z: (m, k)"),
    Known("div(div(x, y), z) == div(x, mul(y, z))", "x: (m, k), y: (m, k), z: (m, k)"),
    Known("exp(add(x, y)) == mul(exp(x), exp(y))", "x: (m, k), y: (k)"),
    Known("relu(relu(x)) == relu(x)", "x: (m, k)"),
    Known("max(x, neg(y)) == neg(min(neg(x), y))", "x: (m, k), y: (m, k)"),
    Known("softmax(x, axis=i) == div(exp(x), reduce_sum(exp(x), axes=(i,)))", "x: (m, k)", "i: 1"),
    Known(
        "reduce_sum(add(x, y), axes=i, keepdims=k) == "
        "add(reduce_sum(x, axes=i, keepdims=k), reduce_sum(y, axes=i, keepdims=k)) where shape(x) == shape(y)",
        "x: (m, k), y: (m, k)",
        "i: (1,), k: 1",
    ),
    Known(
        "reduce_mean(mul(x, c), axes=i, keepdims=k) == mul(reduce_mean(x, axes=i, keepdims=k), c) where rank(c) == 0",
        "x: (m, k), c: ()",
        "i: (1,), k: 1",
    ),
    Known(
        "layer_norm(x, s, b, **a) == add(layer_norm(x, s, **a), b)",
        "x: (m, k), s: (k), b: (k)",
        "a: {axis: 1, epsilon: 0.001, stash_type: 1}",
    ),
    Known(
        "layer_norm(neg(x), s, **a) == neg(layer_norm(x, s, **a))",
        "x: (m, k), s: (k)",
        "a: {axis: 1, epsilon: 0.001, stash_type: 1}",
    ),
    Known(
        "div(x, sqrt(add(reduce_mean(mul(x, x), axes=(rank(x) - 1,)), 0.5))) == "
        "rms_norm(x, 1, axis=-1, epsilon=0.5, stash_type=1)",
        "x: (m, k)",
    ),
]

FALSE = [
    # TASO's wrong rules: weights are concatenated where groups meet other channels, and sums of
    # grouped convolutions
    Known(
        "concat(conv(x, v, **a), conv(x, w, **a), axis=1) == conv(x, concat(v, w, axis=0), **a)",
        f"{IMAGE}, {KERNELS}",
        CONV,
    ),
    Known(
        "(conv(x, v, **a), conv(x, w, **a)) == " + _both("conv(x, concat(v, w, axis=0), **a)"),
        f"{IMAGE}, {KERNELS}",
        CONV,
    ),
    Known(
        "(relu(conv(x, v, **a)), relu(conv(x, w, **a))) == " + _both("relu(conv(x, concat(v, w, axis=0), **a))"),
        f"{IMAGE}, {KERNELS}",
        CONV,
    ),
    Known(
        "concat(relu(conv(x, v, **a)), relu(conv(x, w, **a)), axis=1) == relu(conv(x, concat(v, w, axis=0), **a))",
        f"{IMAGE}, {KERNELS}",
        CONV,
    ),
    Known(
        "add(conv(x, v, **a), conv(y, w, **a)) == conv(concat(x, y, axis=1), concat(v, w, axis=1), **a)",
        f"{IMAGES}, v: (o, c, 3, 3), {KERNEL}",
        CONV,
    ),
    Known(
        "relu(add(conv(x, v, **a), conv(y, w, **a))) == relu(conv(concat(x, y, axis=1), concat(v, w, axis=1), **a))",
        f"{IMAGES}, v: (o, c, 3, 3), {KERNEL}",
        CONV,
    ),
    Known(
        "add(conv(x, v, **a), conv(x, w, **a)) == conv(concat(x, x, axis=1), concat(v, w, axis=1), **a)",
        f"{IMAGE}, v: (o, c, 3, 3), {KERNEL}",
        CONV,
    ),
    Known(
        "concat(conv(x, v, pads=(0, 1, 0, 1), **a), conv(x, w, pads=(1, 1, 1, 1), **a), axis=1) == "
        "conv(x, concat(pad(v, pads=(0, 0, 1, 0, 0, 0, 1, 0)), w, axis=0), pads=(1, 1, 1, 1), **a)",
        f"{IMAGE}, v: (o, c, 1, 3), w: (p, c, 3, 3)",
        "a: {strides: (1, 1), dilations: (1, 1), group: 1}",
    ),
    Known(
        "item(split(conv(x, w, **a), axis=1, split=s), index=0) == conv(x, item(split(w, axis=0, split=s), index=0), **a)",
        f"{IMAGE}, w: (2*o, c, 3, 3)",
        f"{CONV}, s: (o, o)",
    ),
    Known(
        "(conv(x, v, group=dim(x, 1), **a), conv(x, w, group=dim(x, 1), **a)) == "
        + _both("conv(x, concat(v, w, axis=0), group=dim(x, 1), **a)"),
        f"{IMAGE}, v: (c, 1, 3, 3), w: (c, 1, 3, 3)",
        CONV1,
    ),
    Known(
        "concat(conv(x, v, group=g, **a), conv(y, w, group=h, **a), axis=1) == "
        "conv(concat(x, y, axis=1), concat(v, w, axis=0), group=g + h, **a)",
        f"{IMAGES}, {KERNELS}",
        f"{CONV1}, g: 1, h: 1",
    ),
    # kernels enlarged where they are even, dilated, or on the wrong side
    Known(
        "conv(x, v, pads=(1, 1, 1, 1), **a) == conv(x, pad(v, pads=(0, 0, 1, 1, 0, 0, 0, 0)), pads=(2, 2, 1, 1), **a)",
        f"{IMAGE}, v: (o, c, 2, 2)",
        "a: {strides: (1, 1), dilations: (1, 1), group: 1}",
    ),
    Known(
        "conv(x, v, pads=(1, 1, 0, 0), **a) == conv(x, pad(v, pads=(0, 0, 1, 1, 0, 0, 0, 0)), pads=(1, 1, 1, 1), **a)",
        f"{IMAGE}, v: (o, c, 2, 2)",
        "a: {strides: (1, 1), dilations: (1, 1), group: 1}",
    ),
    Known(
        "conv(x, v, pads=(0, 1, 0, 1), **a) == conv(x, pad(v, pads=(0, 0, 0, 0, 0, 0, 2, 0)), pads=(1, 1, 1, 1), **a)",
        f"{IMAGE}, v: (o, c, 1, 3)",
        "a: {strides: (1, 1), dilations: (1, 1), group: 1}",
    ),
    Known(
        "conv(x, v, pads=p, **a) == conv(x, pad(v, pads=(0, 0, 1, 0, 0, 0, 1, 0)), pads=plus(p, (1, 0, 1, 0)), **a)",
        f"{IMAGE}, v: (o, c, 1, 3)",
        "a: {strides: (1, 1), dilations: (1, 1), group: 1}, p: (0, 1, 0, 1)",
    ),
    # strides and dilations, padding that is not zero or not the border, wrong flips
    Known(
        "conv(x, w, strides=(2, 2), pads=(1, 1, 1, 1), dilations=(1, 1), group=1) == "
        "slice(conv(x, w, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=1), starts=(0, 0), "
        "ends=((dim(x, 2) + 1) // 2, (dim(x, 3) + 1) // 2), axes=(2, 3), steps=(1, 1))",
        f"{IMAGE}, {KERNEL}",
    ),
    Known(
        "conv(x, w, strides=(1, 1), pads=(2, 2, 2, 2), dilations=(2, 2), group=1) == "
        "conv(x, w, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=1)",
        f"{IMAGE}, {KERNEL}",
    ),
    Known(
        "conv(pad(x, pads=(0, 0, 1, 1, 0, 0, 1, 1), value=v), w, pads=(0, 0, 0, 0), **a) == conv(x, w, pads=(1, 1, 1, 1), **a)",
        f"{IMAGE}, {KERNEL}",
        "a: {strides: (1, 1), dilations: (1, 1), group: 1}, v: 0.0",
    ),
    Known(
        "conv(x, w, pads=(0, 0, 2, 2), **a) == conv(x, w, pads=(1, 1, 1, 1), **a)",
        f"{IMAGE}, {KERNEL}",
        "a: {strides: (1, 1), dilations: (1, 1), group: 1}",
    ),
    Known(
        "transpose(conv(transpose(x, perm=(0, 1, 3, 2)), w, **a), perm=(0, 1, 3, 2)) == conv(x, w, **a)",
        f"{IMAGE}, {KERNEL}",
        CONV,
    ),
    Known("relu(conv(x, w, **a)) == conv(relu(x), w, **a)", f"{IMAGE}, {KERNEL}", CONV),
    Known("conv(x, w, b, **a) == add(conv(x, w, **a), b)", f"{IMAGE}, {KERNEL}, b: (o)", CONV),
    Known(
        "conv(add(x, y), w, b, **a) == add(conv(x, w, b, **a), conv(y, w, b, **a))", f"{IMAGES}, {KERNEL}, b: (o)", CONV
    ),
    Known("conv(mul(x, k), w, **a) == mul(conv(x, w, **a), k)", f"{IMAGE}, {KERNEL}, k: ()", CONV),
    Known(
        "conv(conv(x, v, **a), w, **a) == conv(conv(x, w, **a), v, **a)",
        f"{IMAGE}, v: (c, c, 3, 3), w: (c, c, 3, 3)",
        CONV,
    ),
    # pools
    Known(
        "average_pool(x, kernel=(3, 3), strides=s, pads=p, dilations=d, extra=(0, 0), count_include_pad=0) == "
        "conv(x, expand(div(1, 9), shape=(dim(x, 1), 1, 3, 3)), strides=s, pads=p, dilations=d, group=dim(x, 1))",
        IMAGE,
        "s: (1, 1), p: (1, 1, 1, 1), d: (1, 1)",
    ),
    Known("average_pool(x, count_include_pad=0, **a) == average_pool(x, count_include_pad=1, **a)", IMAGE, AVERAGE),
    Known(
        "max_pool(pad(x, pads=(0, 0, 1, 1, 0, 0, 1, 1)), pads=(0, 0, 0, 0), **a) == max_pool(x, pads=(1, 1, 1, 1), **a)",
        IMAGE,
        "a: {kernel: (3, 3), strides: (1, 1), dilations: (1, 1)}",
    ),
    Known("max_pool(add(x, y), **a) == add(max_pool(x, **a), max_pool(y, **a))", IMAGES, POOL),
    Known("max_pool(mul(x, k), **a) == mul(max_pool(x, **a), k)", f"{IMAGE}, k: ()", POOL),
    Known("max_pool(max_pool(x, **a), **a) == max_pool(x, **a)", IMAGE, POOL),
    Known("global_max_pool(x) == global_average_pool(x)", IMAGE),
    # products and transposes
    Known(
        "transpose(matmul(x, y), perm=(1, 0)) == matmul(transpose(x, perm=(1, 0)), transpose(y, perm=(1, 0)))",
        "x: (m, k), y: (k, n)",
    ),
    Known("matmul(x, y) == matmul(y, x)", "x: (m, k), y: (k, m)"),
    Known("matmul(matmul(x, y), z) == matmul(matmul(x, z), y)", "x: (m, k), y: (k, k), z: (k, k)"),
    Known("matmul(matmul(x, y), z) == matmul(x, matmul(y, z))", "x: (m, k), y: (k, n), z: (n, p)"),
    Known("matmul(mul(x, k), y) == mul(matmul(x, y), k)", "x: (m, k), y: (k, n), k: ()"),
    Known("matmul(add(x, c), w) == add(matmul(x, w), c)", "x: (m, k), w: (k, k), c: (k)"),
    Known(
        "concat(matmul(x, v), matmul(x, w), axis=1) == matmul(x, concat(w, v, axis=1))",
        "x: (m, k), v: (k, n), w: (k, n)",
    ),
    Known(
        "concat(matmul(x, v), matmul(y, w), axis=0) == matmul(concat(x, y, axis=0), v)",
        "x: (m, k), y: (m, k), v: (k, n), w: (k, n)",
    ),
    Known(
        "gemm(x, y, transA=0, transB=1, **a) == gemm(x, y, transA=0, transB=0, **a)",
        "x: (m, k), y: (k, k)",
        "a: {alpha: 1.0, beta: 1.0}",
    ),
    Known(
        "transpose(transpose(x, perm=p), perm=q) == transpose(x, perm=compose(q, p))",
        "x: (m, k, n)",
        "p: (1, 0, 2), q: (1, 0, 2)",
    ),
    Known("transpose(transpose(x, perm=p), perm=p) == x", "x: (m, k)", "p: (1, 0)"),
    Known("transpose(x, perm=p) == transpose(x, perm=inverse(p))", "x: (m, k)", "p: (1, 0)"),
    Known("reshape(transpose(x, perm=p), shape=s) == reshape(x, shape=s)", "x: (m, k)", "p: (1, 0), s: (m*k,)"),
    Known("transpose(reshape(x, shape=(dim(x, 1), dim(x, 0))), perm=(1, 0)) == x", "x: (m, k)"),
    Known("reshape(add(x, y), shape=s) == add(reshape(x, shape=s), y)", "x: (m, k), y: (m, k)", "s: (m, k)"),
    Known(
        "softmax(transpose(x, perm=p), axis=i) == transpose(softmax(x, axis=i), perm=p)",
        "x: (m, k, n)",
        "p: (1, 0, 2), i: 2",
    ),
    # concat and split
    Known("concat(x, y, axis=i) == concat(y, x, axis=i)", "x: (m, k), y: (m, k)", "i: 0"),
    Known(
        "concat(concat(x, y, axis=0), concat(v, w, axis=0), axis=0) == "
        "concat(concat(x, v, axis=0), concat(y, w, axis=0), axis=0)",
        "x: (m, k), y: (m, k), v: (m, k), w: (m, k)",
    ),
    Known(
        "item(split(x, axis=i, split=s), index=0) == item(split(x, axis=i, split=s), index=1)",
        "x: (2*m, k)",
        "i: 0, s: (m, m)",
    ),
    Known(
        "item(split(concat(x, y, axis=0), axis=0, split=s), index=0) == "
        "item(split(concat(y, x, axis=0), axis=0, split=s), index=0)",
        "x: (m, k), y: (m, k)",
        "s: (m, m)",
    ),
    Known(
        "add(concat(x, y, axis=i), concat(v, w, axis=i)) == concat(add(x, w), add(y, v), axis=i)",
        "x: (m, k), y: (m, k), v: (m, k), w: (m, k)",
        "i: 0",
    ),
    Known(
        "item(split(softmax(x, axis=i), axis=i, split=s), index=0) == softmax(item(split(x, axis=i, split=s), index=0), axis=i)",
        "x: (2*m, k)",
        "i: 0, s: (m, m)",
    ),
    Known(
        "slice(pad(x, pads=(1, 1, 1, 1)), starts=(0, 0), ends=(dim(x, 0), dim(x, 1)), axes=(0, 1), steps=(1, 1)) == x",
        "x: (m, k)",
    ),
    # broadcasting, reductions, order, normalizations
    Known(
        "reduce_sum(add(x, y), axes=i, keepdims=1) == add(reduce_sum(x, axes=i, keepdims=1), reduce_sum(y, axes=i, keepdims=1))",
        "x: (m, k), y: (m, k)",
        "i: (1,)",
    ),
    Known("concat(add(x, z), add(y, z), axis=0) == concat(add(x, z), y, axis=0)", "x: (m, k), y: (m, k), z: (k)"),
    Known("transpose(add(x, y), perm=p) == add(transpose(x, perm=p), y)", "x: (m, k), y: (k)", "p: (0, 1)"),
    Known(
        "reduce_sum(mul(x, y), axes=i, keepdims=k) == mul(reduce_sum(x, axes=i, keepdims=k), y)",
        "x: (m, k), y: ()",
        "i: (1,), k: 1",
    ),
    Known(
        "reduce_max(neg(x), axes=i, keepdims=k) == neg(reduce_max(x, axes=i, keepdims=k))", "x: (m, k)", "i: (1,), k: 1"
    ),
    Known(
        "reduce_mean(concat(x, y, axis=0), axes=(0,)) == "
        "mul(add(reduce_mean(x, axes=(0,)), reduce_mean(y, axes=(0,))), 0.5)",
        "x: (m, k), y: (l, k)",
    ),
    Known("softmax(x, axis=0) == softmax(x, axis=1)", "x: (m, k)"),
    Known("softmax(add(x, y), axis=i) == softmax(x, axis=i)", "x: (m, k), y: (m, 1)", "i: 1"),
    Known("relu(add(x, y)) == add(relu(x), relu(y))", "x: (m, k), y: (m, k)"),
    Known("relu(mul(x, y)) == mul(relu(x), y)", "x: (m, k), y: ()"),
    Known("max(add(x, y), z) == add(max(x, z), max(y, z))", "x: (m, k), y: (m, k), z: (m, k)"),
    Known("exp(add(x, y)) == add(exp(x), exp(y))", "x: (m, k), y: (m, k)"),
    Known("sqrt(mul(x, x)) == neg(x)", "x: (m, k)"),
    Known("div(x, y) == div(y, x)", "x: (m, k), y: (m, k)"),
    Known("layer_norm(x, s, axis=0, epsilon=0.5) == layer_norm(x, s, axis=1, epsilon=0.5)", "x: (m, k), s: (k)"),
    Known(
        "layer_norm(transpose(x, perm=(1, 0)), s, axis=1, epsilon=0.5) == "
        "transpose(layer_norm(x, s, axis=1, epsilon=0.5), perm=(1, 0))",
        "x: (m, m), s: ()",
    ),
    Known(
        "rms_norm(mul(x, c), s, axis=1, epsilon=0.5) == mul(rms_norm(x, s, axis=1, epsilon=0.5), c)",
        "x: (m, k), s: (k), c: ()",
    ),
    Known("rms_norm(x, s, axis=1, epsilon=e) == layer_norm(x, s, axis=1, epsilon=e)", "x: (m, k), s: (k)", "e: 0.5"),
]
