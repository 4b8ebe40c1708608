"""Transposed convolutions with stride 1 as plain ones, whose kernels are turned by half a circle:
there are no zeros between neighbours that a runtime would have to leave out."""

from op_specs.conv_transpose import conv_transpose

CASE = {
    1: "x: (n, 2*c, m), w: (2*c, o, 3), b: (2*o) | p: (1, 0), d: (2,), e: (1,), g: 2",
    2: "x: (n, 2*c, m, k), w: (2*c, o, 3, 2), b: (2*o) | p: (1, 0, 2, 1), d: (1, 2), e: (0, 1), g: 2",
    3: "x: (n, c, 2, 3, 2), w: (c, o, 2, 1, 2), b: (o) | p: (1, 0, 0, 1, 0, 1), d: (1, 1, 1), e: (0, 0, 0), g: 1",
}
"""By how many axes an image has, what the proof begins with."""


def _law(axes: int) -> str:
    kernel = [f"dim(w, {i + 2})" for i in range(axes)]
    reach = [f"({size} - 1) * d[{i}]" for i, size in enumerate(kernel)]
    low = [f"{each} - p[{i}]" for i, each in enumerate(reach)]
    high = [f"{each} - p[{axes + i}] + e[{i}]" for i, each in enumerate(reach)]
    behind = ", ".join(kernel)
    groups = f"reshape(w, shape=(g, dim(w, 0) // g, dim(w, 1), {behind}))"
    swapped = f"transpose({groups}, perm=(0, 2, 1, {', '.join(str(i + 3) for i in range(axes))}))"
    filters = f"reshape({swapped}, shape=(g * dim(w, 1), dim(w, 0) // g, {behind}))"
    last = ", ".join(f"{size} - 1" for size in kernel)
    at = ", ".join(str(i + 2) for i in range(axes))
    turned = f"slice({filters}, starts=({last},), ends=({'-1, ' * axes}), axes=({at},), steps=({'-1, ' * axes}))"
    ones = f"({'1, ' * axes})"
    return f"""
    conv_transpose(x, w, *b, strides={ones}, pads=p, dilations=d, output_padding=e, group=g) \
        == conv(x, {turned}, *b, strides={ones}, pads=({", ".join(low + high)}), dilations=d, group=g) \
        where rank(x) == {axes + 2} and min(({", ".join(low + high)})) >= 0 and is_weight(w)
    given {CASE[axes]}
"""


for _axes in CASE:
    conv_transpose.laws(_law(_axes), together=True)
