"""Transposed convolutions with stride 2 as plain ones of four times as many channels, which are the
pixels of blocks of two by two (Shi et al., arXiv:1609.07009): a runtime that keeps a layout of its
own between convolutions has it for these alone."""

from op_specs.conv_transpose import conv_transpose

STRIDE = 2
TAPS = [f"((dim(w, {axis}) + {STRIDE - 1}) // {STRIDE})" for axis in (2, 3)]
"""How many pixels a result sees along each axis."""
REST = [f"{taps} * {STRIDE} - dim(w, {axis})" for axis, taps in zip((2, 3), TAPS, strict=True)]
PHASES = (
    f"transpose(reshape(pad(w, pads=(0, 0, 0, 0, 0, 0, {REST[0]}, {REST[1]})), "
    f"shape=(dim(w, 0), dim(w, 1), {TAPS[0]}, {STRIDE}, {TAPS[1]}, {STRIDE})), perm=(3, 5, 1, 0, 2, 4))"
)
FILTERS = (
    f"slice(reshape({PHASES}, shape=({STRIDE**2} * dim(w, 1), dim(w, 0), {TAPS[0]}, {TAPS[1]})), "
    f"starts=({TAPS[0]} - 1, {TAPS[1]} - 1), ends=(-1, -1), axes=(2, 3), steps=(-1, -1))"
)
ENDS = [f"(dim(x, {i + 2}) - 1) * {STRIDE} + dim(w, {i + 2}) - p[{i + 2}] + e[{i}]" for i in (0, 1)]

conv_transpose.laws(f"""
    conv_transpose(x, w, *b, strides=(2, 2), pads=p, dilations=(1, 1), output_padding=e, group=1) \
        == slice(depth_to_space(conv(x, {FILTERS}, concat(*b, *b, *b, *b, axis=0), strides=(1, 1), \
            pads=({TAPS[0]} - 1, {TAPS[1]} - 1, {TAPS[0]} - 1, {TAPS[1]} - 1), dilations=(1, 1), group=1), \
            blocksize={STRIDE}, mode="DCR"), starts=p[:2], ends=({ENDS[0]}, {ENDS[1]}), axes=(2, 3), steps=(1, 1)) \
        where min(p + e) >= 0 and e[0] - p[2] <= {REST[0]} and e[1] - p[3] <= {REST[1]} and is_weight(w)
    given x: (n, c, h, m), w: (c, o, 3, 4), b: (o) | p: (1, 1, 1, 1), e: (1, 0)
""")
