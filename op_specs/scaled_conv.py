"""Scales and shifts next to a convolution are merged into its weights and bias, if they are one
number of any rank, or precede it: learned affine blocks, and the normalization of an image.

A shift before a convolution is a shift of its results only without padding, because the zeros of
the padding are not shifted.
"""

from op_specs.arithmetic import add, div, mul, sub
from op_specs.conv import conv

for _each in (add, sub, mul, div):
    _each.example("float32[2,3,4,5]", "float32[1]")
    _each.example("float32[2,3,4,5]", "float32[1,1,1,1]")
for _kernel, _image in (("float32[4,3,1,1]", "float32[2,3,4,5]"), ("float32[4,3,2,2]", "float32[2,3,4,5]")):
    conv.example(_image, _kernel, "float32[4]", strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1))

ONE = "size(c) == 1 and rank(c) <= rank(x) and is_weight(c)"
NUMBER = "reshape(c, shape=())"
CHANNELS = "shape(c) in ((dim(x, 1),) + (1,) * (rank(x) - 2), (1, dim(x, 1)) + (1,) * (rank(x) - 2)) and is_weight(c)"
OF_INPUTS = "reshape(c, shape=(1, dim(x, 1)) + (1,) * (rank(x) - 2))"
SUM = "reduce_sum({}, axes=iota(rank(w))[1:], keepdims=0)"
UNPADDED = "max(p) == 0 and min(p) == 0"

conv.laws(f"""
    # one number behind
    mul(conv(x, w, *b, **a), c) \
        == conv(x, mul(w, {NUMBER}), mul(*b, {NUMBER}), **a) \
        where {ONE} and is_weight(w) and is_weight(b)
    div(conv(x, w, *b, **a), c) \
        == conv(x, div(w, {NUMBER}), div(*b, {NUMBER}), **a) \
        where {ONE} and is_weight(w) and is_weight(b)
    add(conv(x, w, b, **a), c) == conv(x, w, add(b, {NUMBER}), **a)  where {ONE} and is_weight(b)
    sub(conv(x, w, b, **a), c) == conv(x, w, sub(b, {NUMBER}), **a)  where {ONE} and is_weight(b)
    add(conv(x, w, **a), c) == conv(x, w, expand({NUMBER}, shape=(dim(w, 0),)), **a)  where {ONE}
    sub(conv(x, w, **a), c) == conv(x, w, expand(neg({NUMBER}), shape=(dim(w, 0),)), **a)  where {ONE}

    # one number before
    conv(mul(x, c), w, *b, **a) == conv(x, mul(w, {NUMBER}), *b, **a)  where {ONE} and is_weight(w)
    conv(div(x, c), w, *b, **a) == conv(x, div(w, {NUMBER}), *b, **a)  where {ONE} and is_weight(w)
    conv(add(x, c), w, *b, pads=p, **a) \
        == conv(x, w, add(*b, mul({SUM.format("w")}, {NUMBER})), pads=p, **a) \
        where {ONE} and {UNPADDED} and is_weight(w) and is_weight(b)
    conv(sub(x, c), w, b, pads=p, **a) \
        == conv(x, w, sub(b, mul({SUM.format("w")}, {NUMBER})), pads=p, **a) \
        where {ONE} and {UNPADDED} and is_weight(w) and is_weight(b)
    conv(sub(x, c), w, pads=p, **a) \
        == conv(x, w, neg(mul({SUM.format("w")}, {NUMBER})), pads=p, **a) \
        where {ONE} and {UNPADDED} and is_weight(w)

    # one number for each channel before
    conv(mul(x, c), w, *b, group=1, **a) \
        == conv(x, mul(w, {OF_INPUTS}), *b, group=1, **a) \
        where {CHANNELS} and is_weight(w)
    conv(div(x, c), w, *b, group=1, **a) \
        == conv(x, div(w, {OF_INPUTS}), *b, group=1, **a) \
        where {CHANNELS} and is_weight(w)
    conv(add(x, c), w, *b, pads=p, group=1, **a) \
        == conv(x, w, add(*b, {SUM.format(f"mul(w, {OF_INPUTS})")}), pads=p, group=1, **a) \
        where {CHANNELS} and {UNPADDED} and is_weight(w) and is_weight(b)
    conv(sub(x, c), w, b, pads=p, group=1, **a) \
        == conv(x, w, sub(b, {SUM.format(f"mul(w, {OF_INPUTS})")}), pads=p, group=1, **a) \
        where {CHANNELS} and {UNPADDED} and is_weight(w) and is_weight(b)
    conv(sub(x, c), w, pads=p, group=1, **a) \
        == conv(x, w, neg({SUM.format(f"mul(w, {OF_INPUTS})")}), pads=p, group=1, **a) \
        where {CHANNELS} and {UNPADDED} and is_weight(w)
""")
