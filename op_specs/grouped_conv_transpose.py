"""A transposed convolution in groups of few channels, with channels first and its epilogue: only
kernels for a GPU have it."""

from op_specs.conv_transpose import conv_transpose
from op_specs.epilogues import followed, nothing_follows, squared
from taso_mirage.errors import IllTyped
from taso_mirage.ir.terms import Graph
from taso_mirage.operators.ops import Ints, op


@op()
def grouped_conv_transpose(
    xp,
    x,
    w,
    *others,
    body: Graph,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    extra: Ints,
    each: int = 1,
    block: Ints = (1, 256),
):
    """(n,g*c,h,w), (g*c,o,i,j), tensors -> (n,g*o,h',w'): conv_transpose with groups of `each`
    channels of x, and its epilogue; one to three axes.

    `body`: the epilogue, as of a `shifted_conv`. `extra`: the output_padding. `block`, which
    changes nothing: how many channels and positions of the result a block of the grid has.
    """
    channels = xp.shape(x)[1]
    if not isinstance(channels, int) or each < 1 or channels % each or len(block) != 2:
        raise IllTyped(f"grouped_conv_transpose of {xp.shape(x)} in groups of {each}, with blocks of {block}")
    attrs = {"strides": strides, "pads": pads, "dilations": dilations, "output_padding": extra}
    return followed(xp, conv_transpose(xp, x, w, **attrs, group=channels // each), others, body)


_SAME = {"strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1), "extra": (1, 1)}
grouped_conv_transpose.example("float32[2,3,3,4]", "float32[3,1,3,3]", body=nothing_follows(3, 6, 8), **_SAME)
grouped_conv_transpose.example(
    "float32[1,4,3,4]", "float32[4,2,3,3]", "float32[1,4,1,1]", body=squared(4, 6, 8), **_SAME, each=2
)
grouped_conv_transpose.example(
    "float32[1,2,5]",
    "float32[2,2,4]",
    body=nothing_follows(4, 8),
    strides=(1,),
    pads=(0, 0),
    dilations=(1,),
    extra=(0,),
)
