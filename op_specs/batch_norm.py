"""Batch normalisation in inference, defined over other operators so that it folds into weights."""

from op_specs.arithmetic import add, div, mul, sqrt, sub
from op_specs.reshape import reshape
from taso_mirage.errors import IllTyped, Unsupported
from taso_mirage.ir.terms import Node
from taso_mirage.operators.ops import Call, op


@op(onnx="BatchNormalization", since=7, layout=True)
def batch_norm(xp, x, scale, bias, mean, variance, *, epsilon: float = 1e-5):
    """(n,c,...), (c), (c), (c), (c) -> (x - mean) / sqrt(variance + epsilon) * scale + bias, per
    channel"""
    for values in (scale, bias, mean, variance):
        check_channels(xp, values, x)
    factor = div(xp, scale, sqrt(xp, add(xp, variance, xp.literal(epsilon, variance))))
    offset = sub(xp, bias, mul(xp, mean, factor))
    return add(xp, mul(xp, x, per_channel(xp, factor, x)), per_channel(xp, offset, x))


def check_channels(xp, values, x) -> None:
    """Check that there is one number for each channel; a scalar would broadcast."""
    if xp.shape(values) != (xp.shape(x)[1],):
        raise IllTyped(f"{xp.shape(values)} for the channels of {xp.shape(x)}")


def per_channel(xp, values, x):
    """(c) -> (c,1,...), to meet dimension 1 of x"""
    check_channels(xp, values, x)
    return reshape(xp, values, shape=(xp.shape(x)[1], *[1] * (xp.rank(x) - 2)))


@batch_norm.importer
def _(call: Call) -> Node:
    if call.outputs > 1 or call.attrs.get("training_mode"):
        raise Unsupported("BatchNormalization in training mode")
    if not call.attrs.get("spatial", 1):
        raise Unsupported("BatchNormalization with spatial=0")
    if len({a.dtype for a in call.args}) > 1:
        raise Unsupported("BatchNormalization of mixed dtypes")
    return batch_norm.term(*call.args, epsilon=call.attrs.get("epsilon", 1e-5))


batch_norm.example("float32[2,3,4,5]", "float32[3]", "float32[3]", "float32[3]", "float32[3]")
batch_norm.example("float32[2,3]", "float32[3]", "float32[3]", "float32[3]", "float32[3]", epsilon=0.01)
batch_norm.example("float32[2,3,4]", "float32[3]", "float32[3]", "float32[3]", "float32[3]")

CHANNELS = "shape(c) in ((dim(s, 0),) + (1,) * (rank(x) - 2), (1, dim(s, 0)) + (1,) * (rank(x) - 2)) and is_weight(c)"
"""The condition of one number for each channel, which can be merged into the scale or the bias."""

batch_norm.laws(f"""
    mul(batch_norm(x, s, t, m, v, **a), c) \
        == batch_norm(x, mul(s, reshape(c, shape=(dim(s, 0),))), mul(t, reshape(c, shape=(dim(s, 0),))), m, v, **a) \
        where {CHANNELS} and is_weight(s) and is_weight(t)
    div(batch_norm(x, s, t, m, v, **a), c) \
        == batch_norm(x, div(s, reshape(c, shape=(dim(s, 0),))), div(t, reshape(c, shape=(dim(s, 0),))), m, v, **a) \
        where {CHANNELS} and is_weight(s) and is_weight(t)
    add(batch_norm(x, s, t, m, v, **a), c) \
        == batch_norm(x, s, add(t, reshape(c, shape=(dim(s, 0),))), m, v, **a) \
        where {CHANNELS} and is_weight(t)
    sub(batch_norm(x, s, t, m, v, **a), c) \
        == batch_norm(x, s, sub(t, reshape(c, shape=(dim(s, 0),))), m, v, **a) \
        where {CHANNELS} and is_weight(t)
    # a mean of what is scaled and shifted is the mean, scaled and shifted: fewer elements
    average_pool(batch_norm(x, s, t, m, v, **b), pads=p, extra=e, **a) \
        == batch_norm(average_pool(x, pads=p, extra=e, **a), s, t, m, v, **b) \
        where max(p + e) == 0 and min(p + e) == 0
    given x: (n, c, 4*h, 4*k), s: (c), t: (c), m: (c), v: (c) | p: (0, 0, 0, 0), e: (0, 0), b: {{epsilon: 0.01}}, \
        a: {{kernel: (2, 2), strides: (2, 2), dilations: (1, 1), count_include_pad: 0}}
    reduce_mean(batch_norm(x, s, t, m, v, **b), axes=i, keepdims=1) \
        == batch_norm(reduce_mean(x, axes=i, keepdims=1), s, t, m, v, **b) \
        where len(i) > 0 and i[0] > 1
    given x: (n, c, h, k), s: (c), t: (c), m: (c), v: (c) | i: (2, 3), b: {{epsilon: 0.01}}
""")
