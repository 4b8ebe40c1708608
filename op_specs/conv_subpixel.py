"""Transposed convolutions with stride 2 as plain ones with four times as many channels, which are
the pixels of 2 x 2 blocks (Shi et al., arXiv:1609.07009). A runtime that keeps its own layout
between convolutions has it only for plain ones."""

from op_specs.conv_transpose import conv_transpose

STRIDE = 2


def taps(size: str) -> str:
    """The number of pixels along an axis of the kernel on which a result depends."""
    return f"(({size} + {STRIDE - 1}) // {STRIDE})"


def rest(size: str) -> str:
    """The number of zeros by which the kernel is extended."""
    return f"{taps(size)} * {STRIDE} - {size}"


def filters(kernel: str, inputs: str, outputs: str, sizes: tuple[str, str]) -> str:
    """A transposed kernel (inputs, outputs, *sizes) as the turned filters of all pixels of a
    block."""
    high, wide = map(taps, sizes)
    longer = f"pad({kernel}, pads=(0, 0, 0, 0, 0, 0, {rest(sizes[0])}, {rest(sizes[1])}))"
    phases = f"reshape({longer}, shape=({inputs}, {outputs}, {high}, {STRIDE}, {wide}, {STRIDE}))"
    rows = f"reshape(transpose({phases}, perm=(3, 5, 1, 0, 2, 4)), shape=({STRIDE**2} * {outputs}, {inputs}, {high}, {wide}))"
    return f"slice({rows}, starts=({high} - 1, {wide} - 1), ends=(-1, -1), axes=(2, 3), steps=(-1, -1))"


def blocks(kernel: str, inputs: str, outputs: str, sizes: tuple[str, str], starts: str, ends: str) -> str:
    """The pixels of blocks by one convolution of x with b, cut to those from `starts` to `ends`."""
    margins = ", ".join(f"{taps(size)} - 1" for size in sizes)
    channels = (
        f"conv(x, {filters(kernel, inputs, outputs, sizes)}, concat(*b, *b, *b, *b, axis=0), strides=(1, 1), "
        f"pads=({margins}, {margins}), dilations=(1, 1), group=1)"
    )
    pixels = f'depth_to_space({channels}, blocksize={STRIDE}, mode="DCR")'
    return f"slice({pixels}, starts={starts}, ends={ends}, axes=(2, 3), steps=(1, 1))"


SIZES = ("dim(w, 2)", "dim(w, 3)")
ENDS = ", ".join(f"(dim(x, {i + 2}) - 1) * {STRIDE} + {SIZES[i]} - p[{i + 2}] + e[{i}]" for i in (0, 1))

conv_transpose.laws(f"""
    conv_transpose(x, w, *b, strides=(2, 2), pads=p, dilations=(1, 1), output_padding=e, group=1) \
        == {blocks("w", "dim(w, 0)", "dim(w, 1)", SIZES, "p[:2]", f"({ENDS})")} \
        where min(p + e) >= 0 and e[0] - p[2] <= {rest(SIZES[0])} and e[1] - p[3] <= {rest(SIZES[1])} and is_weight(w)
    given x: (n, c, h, m), w: (c, o, 3, 4), b: (o) | p: (1, 1, 1, 1), e: (1, 0)
""")
