"""Normalisation of every image's channels, alone or in groups, defined over other operators."""

from op_specs.arithmetic import add, div, mul, sqrt, sub
from op_specs.batch_norm import per_channel
from op_specs.cast import cast
from op_specs.reductions import reduce_mean
from op_specs.reshape import reshape
from taso_mirage.errors import IllTyped
from taso_mirage.ir.dims import dim_product
from taso_mirage.operators.ops import op


@op(onnx="InstanceNormalization", since=6)
def instance_norm(xp, x, scale, bias, *, epsilon: float = 1e-5):
    """(n,c,...), (c), (c) -> (x - mean) / sqrt(variance + epsilon) * scale + bias over the axes
    after the channels"""
    normal = _normalised(xp, x, tuple(range(2, xp.rank(x))), epsilon)
    return add(xp, mul(xp, normal, per_channel(xp, scale, x)), per_channel(xp, bias, x))


@op(onnx="GroupNormalization", since=21)
def group_norm(xp, x, scale, bias, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1):
    """(n,c,...), (c), (c) -> the same over all of a group of c / num_groups neighbouring
    channels"""
    shape = xp.shape(x)
    if shape[1] % num_groups != 0:
        raise IllTyped(f"{shape[1]} channels in {num_groups} groups")
    wide = cast(xp, x, to="float32") if stash_type == 1 and xp.dtype(x) in ("float16", "bfloat16") else x
    grouped = reshape(xp, wide, shape=(shape[0], num_groups, dim_product(shape[1:]) // num_groups))
    normal = reshape(xp, _normalised(xp, grouped, (2,), epsilon), shape=shape)
    normal = normal if wide is x else cast(xp, normal, to=xp.dtype(x))
    return add(xp, mul(xp, normal, per_channel(xp, scale, x)), per_channel(xp, bias, x))


def _normalised(xp, x, axes, epsilon):
    centred = sub(xp, x, reduce_mean(xp, x, axes=axes))
    variance = reduce_mean(xp, mul(xp, centred, centred), axes=axes)
    return div(xp, centred, sqrt(xp, add(xp, variance, xp.literal(epsilon, x))))


instance_norm.example("float32[2,3,4,5]", "float32[3]", "float32[3]")
instance_norm.example("float32[2,3,4]", "float32[3]", "float32[3]", epsilon=0.01)
group_norm.example("float32[2,4,3,5]", "float32[4]", "float32[4]", num_groups=2)
group_norm.example("float32[2,6,4]", "float32[6]", "float32[6]", num_groups=3, epsilon=0.01)

# The mean of a normalized image is its shift.
instance_norm.laws("""
    reduce_mean(instance_norm(x, s, t, **a), axes=i, keepdims=0) \
        == expand(t, shape=(dim(x, 0), dim(x, 1))) \
        where i == iota(rank(x))[2:]
    reduce_mean(instance_norm(x, s, t, **a), axes=i, keepdims=1) \
        == expand(reshape(t, shape=(dim(t, 0),) + (1,) * (rank(x) - 2)), shape=shape(x)[:2] + (1,) * (rank(x) - 2)) \
        where i == iota(rank(x))[2:]
    reduce_mean(instance_norm(x, s, t, **a), axes=i, keepdims=0) \
        == expand(reduce_mean(t, axes=(0,), keepdims=0), shape=(dim(x, 0),)) \
        where i == iota(rank(x))[1:]
    given x: (n, c, h), s: (c), t: (c) | i: (1, 2), a: {epsilon: 0.01}
""")
# A scale is merged into the scale of the norm.
for _scale in ("mul", "div"):
    instance_norm.laws(f"""
        {_scale}(instance_norm(x, s, t, **a), c) \
            == instance_norm(x, {_scale}(s, c), {_scale}(t, c), **a) \
            where rank(c) == 0 and is_weight(s) and is_weight(t) and is_weight(c)
    """)
