"""Convolutions of enlarged images as transposed ones of the images themselves: where each pixel is
repeated f times, f neighbours of a kernel see the same one, so their sum does.

A kernel of k by k over an image that is twice as large costs k * k products for each result; the
transposed one costs as many as ceil((k + 1) / 2) squared (Shi et al., arXiv:1609.07009).
"""

from op_specs.conv import conv
from op_specs.conv_turned import TURNED

MEANS = (
    f"average_pool({TURNED}, kernel=f[2:], strides=s, pads=minus(f[2:], s) + minus(f[2:], s), dilations=s, "
    "extra=minus(s, s), count_include_pad=1)"
)
SHAPE = "(prod(f), g * dim(w, 1), dim(w, 0) // g) + plus(shape(w)[2:], minus(f[2:], s))"
SUMS = f"reduce_sum(expand({MEANS}, shape={SHAPE}), axes=(0,), keepdims=0)"
PADS = "minus(minus(shape(w)[2:], s) + minus(shape(w)[2:], s), p)"

conv.laws(f"""
    conv(resize(x, factors=f), w, *b, strides=s, pads=p, dilations=s, group=g) \
        == conv_transpose(x, {SUMS}, *b, strides=f[2:], pads={PADS}, dilations=s, output_padding=minus(s, s), group=g) \
        where max(s) == 1 and f[:2] == (1, 1) and min(f) > 0 and max(f) > 1 and max(shape(w)[2:]) > 1 \
            and min({PADS}) >= 0 and is_weight(w)
    given x: (n, 2*c, h, m), w: (2*o, c, 3, 2), b: (2*o) | s: (1, 1), f: (1, 1, 2, 2), p: (1, 1, 1, 0), g: 2
""")
