"""Convolutions with few filters as convolutions with more filters: each filter, shifted along the
rows, is a filter for each phase of the columns.

A runtime computes a block of filters at once (ONNX Runtime 8 or 16), so with three filters most of
the block is padding. P shifted copies of every filter, with a stride of P along the rows, give the
same results, and rows of k weights become rows of k + P - 1.
"""

from op_specs.conv import conv

PHASES, BLOCK = (4, 2), 16


def _law(phases: int) -> str:
    shifts = [(f"{p} * s[1]", f"{phases - 1 - p} * s[1]") for p in range(phases)]
    shifted = ", ".join(f"pad(w, pads=(0, 0, 0, {low}, 0, 0, 0, {high}))" for low, high in shifts)
    biases = ", ".join(["*b"] * phases)
    height, width = (f"(dim(x, {i}) + p[{i - 2}] + p[{i}] - dim(w, {i})) // s[{i - 2}] + 1" for i in (2, 3))
    strided = f"strides=(s[0], {phases} * s[1]), pads=p, dilations=(1, 1), group=1"
    apart = f"(dim(x, 0), {phases}, dim(w, 0), {height}, ({width}) // {phases})"
    return f"""
    conv(x, w, *b, strides=s, pads=p, dilations=(1, 1), group=1) \
        == reshape(transpose(reshape(conv(x, concat({shifted}, axis=0), concat({biases}, axis=0), {strided}), \
            shape={apart}), perm=(0, 2, 3, 4, 1)), shape=(dim(x, 0), dim(w, 0), {height}, {width})) \
        where rank(x) == 4 and dim(w, 0) <= {BLOCK // phases} and s[1] < dim(w, 3) and ({width}) % {phases} == 0 \
            and is_weight(w)
    given x: (n, c, 5, 16), w: (o, c, 2, 3), b: (o) | s: (2, 2), p: (0, 1, 1, 1)
"""


for _phases in PHASES:
    conv.laws(_law(_phases), together=True)
