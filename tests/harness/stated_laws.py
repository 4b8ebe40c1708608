"""Laws with the types and attributes that they state, and wrong ones."""

from __future__ import annotations

from typing import Any

from taso_mirage.rewriting.equation import Equation
from taso_mirage.rewriting.library import parse_attributes, parse_given
from taso_mirage.rewriting.text import law_typing


def stated(law: Equation) -> tuple[Any, Any]:
    """The typing in letters that stands below a law, and its attributes there."""
    given, _, attributes = law_typing(law.name).partition("|")
    return parse_given(given), parse_attributes(attributes)


WRONG = [
    # grouped convolutions: concatenating weights is not concatenating outputs (11 of TASO's 133
    # rules)
    "(conv(x, v, **a), conv(x, w, **a)) == (item(split(conv(x, concat(v, w, axis=0), **a), axis=1, "
    "split=(dim(v, 0), dim(w, 0))), index=0), item(split(conv(x, concat(v, w, axis=0), **a), axis=1, "
    "split=(dim(v, 0), dim(w, 0))), index=1)) where rank(v) == rank(w) and shape(v)[1:] == shape(w)[1:]",
    "conv(x, add(v, w), **a) == mul(conv(x, v, **a), conv(x, w, **a))",
    "relu(add(x, y)) == add(relu(x), relu(y))",
    "relu(neg(x)) == neg(relu(x))",
    "matmul(a, b) == matmul(b, a) where rank(a) == 2 and rank(b) == 2",
    "transpose(matmul(a, b), perm=(1, 0)) == matmul(transpose(a, perm=(1, 0)), transpose(b, perm=(1, 0))) "
    "where rank(a) == 2 and rank(b) == 2",
    "mul(matmul(x, w), c) == matmul(x, mul(w, c)) where rank(c) > 0",
    "transpose(transpose(x, perm=p), perm=q) == transpose(x, perm=compose(q, p))",
    "softmax(add(x, y), axis=i) == add(softmax(x, axis=i), softmax(y, axis=i))",
    "softmax(x, axis=0) == softmax(x, axis=1)",
    "div(x, y) == div(y, x)",
    "exp(add(x, y)) == add(exp(x), exp(y))",
    "sqrt(add(x, y)) == add(sqrt(x), sqrt(y))",
    "sqrt(mul(x, x)) == neg(x)",
    "max(x, y) == add(x, y)",
    "reduce_sum(mul(x, y), axes=i, keepdims=k) == mul(reduce_sum(x, axes=i, keepdims=k), reduce_sum(y, axes=i, keepdims=k))",
    "sub(x, y) == sub(y, x)",
    "reduce_max(neg(x), axes=i, keepdims=k) == neg(reduce_max(x, axes=i, keepdims=k))",
    "tanh(neg(x)) == tanh(x)",
    "concat(x, y, axis=0) == concat(y, x, axis=0)",
    "reshape(transpose(x, perm=(1, 0)), shape=s) == reshape(x, shape=s)",
    # of groups
    "concat(conv(x, v, **a), conv(x, w, **a), axis=1) == conv(x, concat(v, w, axis=0), **a) where rank(v) == "
    "rank(w) and shape(v)[1:] == shape(w)[1:]",
    "add(conv(x, v, **a), conv(y, w, **a)) == conv(concat(x, y, axis=1), concat(v, w, axis=1), **a) where "
    "shape(x) == shape(y) and shape(v) == shape(w)",
    "slice(conv(x, w, **a), axes=(1,), **c) == conv(x, slice(w, axes=(0,), **c), **a)",
    # a kernel enlarged on one side; padding dropped that is not zero
    "conv(x, w, pads=p, dilations=(1, 1), **a) == conv(x, pad(w, pads=(0, 0, 0, 0, 0, 0, 1, 1)), "
    "pads=plus(p, (1, 1, 0, 0)), dilations=(1, 1), **a)",
    "conv(pad(x, pads=p, value=v), w, pads=q, **a) == conv(x, w, pads=plus(q, p[2:rank(x)] + p[rank(x) + "
    "2:]), **a) where p[:2] == (0, 0) and p[rank(x):rank(x) + 2] == (0, 0)",
    # scales of channels, and a bias that counts once
    "mul(conv(x, w, b, **a), c) == conv(x, mul(w, c), b, **a) where rank(c) == 0",
    "conv(mul(x, y), w, **a) == mul(conv(x, w, **a), y) where size(y) > 1",
    "conv(add(x, y), w, b, **a) == add(conv(x, w, b, **a), conv(y, w, b, **a)) where shape(x) == shape(y)",
    "relu(conv(x, w, **a)) == conv(relu(x), w, **a)",
    # borders of pools, and operators that are not linear
    "average_pool(pad(x, pads=p), pads=q, count_include_pad=0, **a) == average_pool(x, pads=plus(q, "
    "p[2:rank(x)] + p[rank(x) + 2:]), count_include_pad=0, **a) where p[:2] == (0, 0) and p[rank(x):rank(x) "
    "+ 2] == (0, 0)",
    "max_pool(pad(x, pads=p), pads=q, **a) == max_pool(x, pads=plus(q, p[2:rank(x)] + p[rank(x) + 2:]), **a) "
    "where p[:2] == (0, 0) and p[rank(x):rank(x) + 2] == (0, 0)",
    "average_pool(x, kernel=(3, 3), strides=s, pads=p, dilations=d, extra=(0, 0), count_include_pad=0) == "
    "conv(x, expand(div(1, 9), shape=(dim(x, 1), 1, 3, 3)), strides=s, pads=p, dilations=d, group=dim(x, 1))",
    "average_pool(x, count_include_pad=0, **a) == average_pool(x, count_include_pad=1, **a)",
    # a kernel of more than one pixel reads the pool's averages
    "conv(average_pool(x, **a), w, strides=(1, 1), **b) == average_pool(conv(x, w, strides=(1, 1), **b), **a)",
    # a scale reaches the bias too, a shift is not scaled, and both are the channels'
    "mul(batch_norm(x, s, t, m, v, **a), c) == batch_norm(x, mul(s, reshape(c, shape=(dim(s, 0),))), t, m, v, **a) "
    "where shape(c) == (dim(s, 0),) + (1,) * (rank(x) - 2)",
    "add(batch_norm(x, s, t, m, v, **a), c) == batch_norm(x, s, t, sub(m, reshape(c, shape=(dim(s, 0),))), v, **a) "
    "where shape(c) == (dim(s, 0),) + (1,) * (rank(x) - 2)",
    "mul(batch_norm(x, s, t, m, v, **a), c) == batch_norm(x, mul(s, c), mul(t, c), m, v, **a) where rank(c) == 1",
    "max_pool(add(x, y), **a) == add(max_pool(x, **a), max_pool(y, **a)) where shape(x) == shape(y)",
    "max_pool(neg(x), **a) == neg(max_pool(x, **a))",
    # layout: every operand moves, and axes with it
    "transpose(add(x, y), perm=p) == add(transpose(x, perm=p), y)",
    "reshape(add(x, y), shape=s) == add(reshape(x, shape=s), y)",
    "reshape(transpose(x, perm=p), shape=s) == reshape(x, shape=s)",
    "transpose(x, perm=p) == transpose(x, perm=inverse(p))",
    "softmax(transpose(x, perm=p), axis=i) == transpose(softmax(x, axis=i), perm=p)",
    "softmax(concat(x, y, axis=i), axis=i) == concat(softmax(x, axis=i), softmax(y, axis=i), axis=i)",
    "slice(slice(x, starts=s, ends=e, axes=i, steps=(1,)), starts=t, ends=u, axes=i, steps=(1,)) == slice(x, "
    "starts=t, ends=u, axes=i, steps=(1,))",
    "item(split(x, axis=i, split=s), index=0) == item(split(x, axis=i, split=s), index=1)",
    "concat(item(split(x, axis=i, split=s), index=1), item(split(x, axis=i, split=s), index=0), axis=i) == x",
    "sigmoid(pad(x, pads=p)) == pad(sigmoid(x), pads=p) where max(p) > 0",
    "depth_to_space(x, blocksize=b, mode='DCR') == depth_to_space(x, blocksize=b, mode='CRD')",
    # a conversion that rounds
    'cast(cast(x, to="float16"), to="float32") == x where dtype(x) == "float32"',
    'cast(cast(x, to="float16"), to="float64") == cast(x, to="float64") where dtype(x) == "float32"',
    'cast(reduce_sum(cast(x, to="float32"), axes=i), to="float16") == reduce_sum(x, axes=i) where dtype(x) == "float16" '
    "and min(at(shape(x), i)) > 1",
    'cast(cast(x, to="int32"), to="float32") == x where dtype(x) == "float32"',
    # products
    "matmul(matmul(x, y), z) == matmul(matmul(x, z), y)",
    "(matmul(x, v), matmul(x, w)) == (item(split(matmul(x, concat(v, w, axis=1)), axis=rank(x) - 1, "
    "split=(dim(w, 1), dim(v, 1))), index=1), item(split(matmul(x, concat(v, w, axis=1)), axis=rank(x) - 1, "
    "split=(dim(w, 1), dim(v, 1))), index=0)) where rank(v) == 2 and rank(w) == 2",
    "matmul(mul(x, c), w) == mul(matmul(x, w), c) where rank(c) == 1",
    "matmul(add(x, c), w) == add(matmul(x, w), c) where rank(c) == 0",
    "global_max_pool(x) == global_average_pool(x)",
    "conv(x, w, strides=(2, 2), pads=p, **a) == conv(slice(x, starts=(0, 0), ends=(dim(x, 2), dim(x, 3)), "
    "axes=(2, 3), steps=(2, 2)), w, strides=(1, 1), pads=p, **a)",
    # sums of products: a bias counts for every column, and padding cuts taps off
    "reduce_sum(add(matmul(x, w), c), axes=(1,)) == add(matmul(x, reduce_sum(w, axes=(1,))), c) "
    "where rank(x) == 2 and rank(w) == 2 and size(c) == 1",
    "reduce_sum(conv_transpose(x, w, strides=(1,), pads=(1, 1), dilations=(1,), output_padding=(0,), group=1), axes=(2,)) "
    "== conv_transpose(concat(reduce_sum(x, axes=(2,)), slice(x, starts=(0,), ends=(1,), axes=(2,), steps=(1,)), axis=1), "
    "concat(reduce_sum(w, axes=(2,)), neg(slice(w, starts=(0,), ends=(1,), axes=(2,), steps=(1,))), axis=0), "
    "strides=(1,), pads=(0, 0), dilations=(1,), output_padding=(0,), group=1) where rank(x) == 3",
    "reduce_sum(conv_transpose(x, w, strides=s, pads=p, dilations=d, output_padding=e, group=g), axes=(2,)) "
    "== conv_transpose(reduce_sum(x, axes=(2,)), reduce_sum(w, axes=(2,)), strides=s, pads=(0, 0), dilations=d, "
    "output_padding=(0,), group=g) where rank(x) == 3",
    # a transposed convolution whose kernel is not turned, whose channels are not swapped, or whose
    # borders are
    "conv_transpose(x, w, strides=(1,), pads=p, dilations=(1,), output_padding=(0,), group=1) == conv(x, "
    "transpose(w, perm=(1, 0, 2)), strides=(1,), pads=(dim(w, 2) - 1 - p[0], dim(w, 2) - 1 - p[1]), dilations=(1,), "
    "group=1) where rank(x) == 3 and min(minus((dim(w, 2), dim(w, 2)), p)) > 0",
    "conv_transpose(x, w, strides=(1,), pads=p, dilations=(1,), output_padding=(0,), group=1) == conv(x, "
    "slice(w, starts=(dim(w, 2) - 1,), ends=(-1,), axes=(2,), steps=(-1,)), strides=(1,), "
    "pads=(dim(w, 2) - 1 - p[0], dim(w, 2) - 1 - p[1]), dilations=(1,), group=1) "
    "where rank(x) == 3 and min(minus((dim(w, 2), dim(w, 2)), p)) > 0 and dim(w, 0) == dim(w, 1)",
    "conv_transpose(x, w, strides=(1,), pads=p, dilations=(1,), output_padding=(0,), group=1) == conv(x, "
    "slice(transpose(w, perm=(1, 0, 2)), starts=(dim(w, 2) - 1,), ends=(-1,), axes=(2,), steps=(-1,)), strides=(1,), "
    "pads=(dim(w, 2) - 1 - p[1], dim(w, 2) - 1 - p[0]), dilations=(1,), group=1) "
    "where rank(x) == 3 and min(minus((dim(w, 2), dim(w, 2)), p)) > 0",
    # lines are images of one row, not of one column each
    "conv(x, w, strides=s, pads=p, dilations=d, group=g) == squeeze(conv(unsqueeze(x, axes=(2,)), "
    "unsqueeze(w, axes=(2,)), strides=(1, s[0]), pads=(0, p[1], 0, p[0]), dilations=(1, d[0]), group=g), axes=(2,)) "
    "where rank(x) == 3",
    # windows of windows
    "average_pool(conv(x, w, strides=t, pads=p, dilations=d, group=g), kernel=k, strides=s, pads=q, dilations=e, "
    "extra=f, count_include_pad=c) == conv(x, average_pool(w, kernel=k, strides=(1,) * len(k), "
    "pads=minus(k, (1,) * len(k)) + minus(k, (1,) * len(k)), dilations=(1,) * len(k), extra=(0,) * len(k), "
    "count_include_pad=0), strides=s, pads=p, dilations=d, group=g) where max(t) == 1 and max(d) == 1",
    "average_pool(average_pool(x, kernel=k, strides=s, **a), kernel=k, strides=s, **a) "
    "== average_pool(x, kernel=plus(k, k), strides=plus(s, s), **a)",
    # one number
    "clip(min(x, c), d, e) == expand(clip(c, d, e), shape=shape(x)) where shape(c) == ()",
    "reduce_mean(instance_norm(x, s, t, **a), axes=(1,), keepdims=0) == reduce_mean(x, axes=(1,), keepdims=0)",
    "sub(x, neg(x)) == expand(0, shape=shape(x))",
]
