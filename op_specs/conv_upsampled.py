"""Convolutions of enlarged images as transposed convolutions of the original images: if each pixel
is repeated f times, f neighbours of a kernel read the same pixel, so their sum can be applied once.

A kernel of k by k over an image that is twice as large costs k * k products for each result; the
transposed one costs as many as ceil((k + 1) / 2) squared (Shi et al., arXiv:1609.07009).
"""

from op_specs.conv import conv
from op_specs.conv_subpixel import blocks
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
        where max(s) == 1 and f[:2] == (1, 1) and min(f) > 0 and 1 < max(f) <= 4 and max(shape(w)[2:]) > 1 \
            and min({PADS}) >= 0 and is_weight(w)
    given x: (n, 2*c, h, m), w: (2*o, c, 3, 2), b: (2*o) | s: (1, 1), f: (1, 1, 2, 2), p: (1, 1, 1, 0), g: 2
""")


LARGER = ("(dim(w, 2) + 1)", "(dim(w, 3) + 1)")
"""The sizes of that kernel for images that are enlarged twofold."""
ENDS = ", ".join(f"2 * dim(x, {i + 2}) + p[{i + 2}]" for i in (0, 1))

# This law and the law of transposed convolutions with stride 2, for all places at once.
conv.laws(
    f"""
    conv(resize(x, factors=f), w, *b, strides=s, pads=p, dilations=s, group=g) \
        == {blocks(SUMS, "dim(w, 1)", "dim(w, 0)", LARGER, "minus(minus(shape(w)[2:], s), p[:2])", f"({ENDS})")} \
        where s == (1, 1) and g == 1 and f == (1, 1, 2, 2) and max(shape(w)[2:]) > 1 and min({PADS}) >= 0 and is_weight(w)
    given x: (n, c, h, m), w: (o, c, 3, 2), b: (o) | s: (1, 1), f: (1, 1, 2, 2), p: (1, 1, 1, 0), g: 1
""",
    together=True,
)


_JOINED = """
    conv(concat({joined}, axis=1), w, *b, group=1, **a) \
        == add(conv(resize(x, factors=f), item(split(w, axis=1, split={parts}), index={enlarged}), group=1, **a), \
            conv(y, item(split(w, axis=1, split={parts}), index={rest}), *b, group=1, **a)) \
        where f[:2] == (1, 1) and min(f) > 0 and max(f) > 1 and is_weight(w)
    given x: (n, c, h, m), y: (n, d, 2*h, 3*m), w: (o, c + d, 3, 2), b: (o) \
        | f: (1, 1, 2, 3), a: {{strides: (1, 1), pads: (1, 1, 1, 0), dilations: (1, 1)}}
"""
_FIRST = _JOINED.format(joined="resize(x, factors=f), y", parts="(dim(x, 1), dim(y, 1))", enlarged=0, rest=1)
_LAST = _JOINED.format(joined="y, resize(x, factors=f)", parts="(dim(y, 1), dim(x, 1))", enlarged=1, rest=0)

conv.laws(f"""
    # a pixel of the result sees one of the image
    conv(resize(x, factors=f), w, *b, strides=s, pads=p, **a) == resize(conv(x, w, *b, strides=s, pads=p, **a), factors=f) \
        where max(s) == 1 and max(p) == 0 and min(p) == 0 and max(shape(w)[2:]) == 1 and f[:2] == (1, 1) and min(f) > 0 \
            and max(f) > 1
    given x: (n, 2*c, h, m), w: (2*o, c, 1, 1), b: (2*o) \
        | s: (1, 1), p: (0, 0, 0, 0), f: (1, 1, 2, 2), a: {{dilations: (1, 1), group: 2}}

    # the channels that are enlarged, and the others (a decoder with the encoder's images beside it)
    {_FIRST}
    {_LAST}
""")
