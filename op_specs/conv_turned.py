"""Transposed convolutions with stride 1 as plain ones with kernels rotated by 180 degrees; with
stride 1 there are no zeros between neighbours that a runtime would have to skip."""

from op_specs.conv_transpose import conv_transpose

SWAPPED = (
    "reshape(transpose(reshape(w, shape=(g, dim(w, 0) // g) + shape(w)[1:]), perm=(0, 2, 1) + iota(rank(w) + 1)[3:]), "
    "shape=(g * dim(w, 1), dim(w, 0) // g) + shape(w)[2:])"
)
TURNED = f"slice({SWAPPED}, starts=minus(shape(w)[2:], s), ends=(-1,) * len(s), axes=iota(rank(w))[2:], steps=(-1,) * len(s))"
"""A kernel (g*c, o, ...) as a rotated one (g*o, c, ...); s are strides of 1."""
REACH = "times(minus(shape(w)[2:], s), d)"

conv_transpose.laws(
    f"""
    conv_transpose(x, w, *b, strides=s, pads=p, dilations=d, output_padding=e, group=g) \
        == conv(x, {TURNED}, *b, strides=s, pads=minus({REACH} + plus({REACH}, e), p), dilations=d, group=g) \
        where max(s) == 1 and min(minus({REACH} + plus({REACH}, e), p)) >= 0 and is_weight(w)
    given x: (n, 2*c, m, k), w: (2*c, o, 3, 2), b: (2*o) | s: (1, 1), p: (1, 0, 2, 1), d: (1, 2), e: (0, 1), g: 2
""",
    together=True,
)
